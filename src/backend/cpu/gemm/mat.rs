//! A mutable matrix that can be cut into disjoint parts, by rows and by columns.

use std::marker::PhantomData;
use std::ptr::NonNull;

/// `rows x cols` elements, row-major, rows `stride` elements apart; what `&mut [f32]` cannot express once columns are cut.
#[derive(Debug)]
pub(super) struct MatMut<'a> {
    ptr: NonNull<f32>,
    stride: usize,
    rows: usize,
    cols: usize,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: a `MatMut` is the only access to its elements, exactly as `&mut [f32]` is, which is `Send`.
unsafe impl Send for MatMut<'_> {}

impl<'a> MatMut<'a> {
    /// As many whole rows of `cols >= 1` as `data` holds.
    pub(super) fn new(data: &'a mut [f32], cols: usize) -> Self {
        let rows = data.len() / cols.max(1);
        Self { ptr: NonNull::from(data).cast(), stride: cols, rows, cols, owner: PhantomData }
    }

    pub(super) const fn rows(&self) -> usize {
        self.rows
    }

    pub(super) const fn cols(&self) -> usize {
        self.cols
    }

    /// The first `at` rows (all, where there are fewer) and the others.
    pub(super) fn split_rows(self, at: usize) -> (Self, Self) {
        let at = at.min(self.rows);
        let tail = Self { rows: self.rows - at, ptr: self.offset(at, 0), ..self };
        (Self { rows: at, ..self }, tail)
    }

    /// The first `at` columns (all, where there are fewer) and the others.
    pub(super) fn split_cols(self, at: usize) -> (Self, Self) {
        let at = at.min(self.cols);
        let tail = Self { cols: self.cols - at, ptr: self.offset(0, at), ..self };
        (Self { cols: at, ..self }, tail)
    }

    /// Elements `col .. col + len` of the rows `row .. row + M`; cut at the last column.
    ///
    /// # Panics
    /// Where a row or the column is outside: a slip inside this module.
    #[inline(always)]
    pub(super) fn rows_mut<const M: usize>(&mut self, row: usize, col: usize, len: usize) -> [&mut [f32]; M] {
        assert!(row <= self.rows && M <= self.rows - row && col < self.cols, "tile outside its matrix");
        let len = len.min(self.cols - col);
        std::array::from_fn(|i| {
            // SAFETY: the range lies within `rows x cols`, which this value alone may access, `&mut self` is held for as long, and
            // rows are disjoint, being `stride >= cols` apart.
            unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().add((row + i) * self.stride + col), len) }
        })
    }

    /// Sets every element.
    pub(super) fn fill(&mut self, value: f32) {
        for row in 0..self.rows {
            let [row] = self.rows_mut(row, 0, self.cols);
            row.fill(value);
        }
    }

    /// Address of an element, or of the first past the end; never read where the part it starts is empty.
    fn offset(&self, row: usize, col: usize) -> NonNull<f32> {
        if row * self.stride + col == 0 || self.rows == 0 || self.cols == 0 || row >= self.rows || col >= self.cols {
            return self.ptr;
        }
        // SAFETY: the element exists, so the address lies within the allocation.
        unsafe { self.ptr.add(row * self.stride + col) }
    }
}
