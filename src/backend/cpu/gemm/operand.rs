//! One side of a product: rows of storage, and what they mean to it.

use super::{Floats, Rows};
use half::slice::HalfFloatSliceExt as _;
use std::ops::Range;

/// What a row of storage is to the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowsAre {
    /// A row (left operand) or column (right operand) of the output; the reduction runs along its elements.
    Lanes,
    /// One step of the reduction; its elements are the lanes.
    Steps,
}

/// Part of a [`Rows`]: everything from a first row and a first column on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand<'a> {
    rows: Rows<'a>,
    first_row: usize,
    first_col: usize,
    pub(super) rows_are: RowsAre,
}

impl<'a> Operand<'a> {
    pub(super) const fn new(rows: Rows<'a>, first_row: usize, rows_are: RowsAre) -> Self {
        Self { rows, first_row, first_col: 0, rows_are }
    }

    /// The operand without its first `lanes` lanes.
    pub(super) const fn skip_lanes(mut self, lanes: usize) -> Self {
        match self.rows_are {
            RowsAre::Lanes => self.first_row += lanes,
            RowsAre::Steps => self.first_col += lanes,
        }
        self
    }

    /// Elements `cols` of a row, widened and scaled: in place where storage has them as they are, else through `scratch`.
    #[inline(always)]
    pub(super) fn read<'s>(&self, row: usize, cols: Range<usize>, scratch: &'s mut [f32]) -> &'s [f32]
    where
        'a: 's,
    {
        if let (Floats::F32(data), None) = (self.rows.data, self.rows.scale) {
            return &data[self.span(row, &cols)];
        }
        let out = &mut scratch[..cols.len()];
        self.copy(row, cols, out);
        out
    }

    /// Elements `cols` of a row, widened and scaled, into `out` of the same length.
    #[inline(always)]
    pub(super) fn copy(&self, row: usize, cols: Range<usize>, out: &mut [f32]) {
        let span = self.span(row, &cols);
        match self.rows.data {
            Floats::F32(data) => out.copy_from_slice(&data[span]),
            Floats::BF16(data) => {
                for (out, x) in out.iter_mut().zip(&data[span]) {
                    *out = f32::from_bits(u32::from(x.to_bits()) << 16);
                }
            }
            Floats::F16(data) => data[span].convert_to_f32_slice(out),
        }
        if let Some(scale) = self.rows.scale {
            let scale = scale[self.first_row + row];
            out.iter_mut().for_each(|x| *x *= scale);
        }
    }

    #[inline(always)]
    fn span(&self, row: usize, cols: &Range<usize>) -> Range<usize> {
        let row = self.first_row + row;
        let row = self.rows.index.map_or(row, |index| (index[row] / self.rows.index_div) as usize);
        let start = row * self.rows.cols + self.first_col;
        start + cols.start..start + cols.end
    }
}
