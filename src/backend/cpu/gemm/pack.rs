//! Copies of blocks of an operand in the order the register tile reads them.

use super::kernel::{DEPTH, LANE_STRIDE};
use super::operand::{Operand, RowsAre};
use std::ops::Range;

/// Lanes and depth steps of one transposed square.
const SQUARE: usize = 8;

/// How the lanes of a left block are shared out among panels: as even as can be, since a tile of few lanes wastes its loads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panels {
    lanes: usize,
    count: usize,
}

impl Panels {
    /// `lanes` lanes in panels of at most `most`.
    pub(super) fn new(lanes: usize, most: usize) -> Self {
        Self { lanes, count: lanes.div_ceil(most) }
    }

    /// Ranges of lanes, in order.
    pub(super) fn iter(self) -> impl Iterator<Item = Range<usize>> {
        let bound = move |i: usize| {
            let (each, more) = (self.lanes / self.count, self.lanes % self.count);
            i * each + i.min(more)
        };
        (0..self.count).map(move |i| bound(i)..bound(i + 1))
    }
}

/// Left block, lanes one after another: `[lane][LANE_STRIDE]`.
#[inline(always)]
pub(super) fn lane_major(from: &Operand<'_>, lanes: Range<usize>, depth: &Range<usize>, to: &mut [f32]) {
    for (lane, to) in lanes.zip(to.chunks_exact_mut(LANE_STRIDE)) {
        from.copy(lane, depth.clone(), &mut to[..depth.len()]);
    }
}

/// Left block, depth steps one after another within each panel: `[panel][depth][lanes of the panel]`.
#[inline(always)]
pub(super) fn depth_major(
    from: &Operand<'_>,
    lanes: Range<usize>,
    depth: &Range<usize>,
    panels: Panels,
    scratch: &mut [f32],
    to: &mut [f32],
) {
    for (p, step) in depth.clone().enumerate() {
        let row = from.read(step, lanes.clone(), scratch);
        for panel in panels.iter() {
            let at = panel.start * depth.len() + p * panel.len();
            to[at..at + panel.len()].copy_from_slice(&row[panel]);
        }
    }
}

/// Right block in panels of `width` lanes, the last one padded with zeros: `[panel][depth][width]`.
#[inline(always)]
pub(super) fn right(
    from: &Operand<'_>,
    lanes: usize,
    depth: &Range<usize>,
    width: usize,
    scratch: &mut [f32],
    to: &mut [f32],
) {
    match from.rows_are {
        RowsAre::Lanes => right_lanes(from, lanes, depth, width, scratch, to),
        RowsAre::Steps => right_steps(from, lanes, depth, width, scratch, to),
    }
}

#[inline(always)]
fn right_steps(
    from: &Operand<'_>,
    lanes: usize,
    depth: &Range<usize>,
    width: usize,
    scratch: &mut [f32],
    to: &mut [f32],
) {
    let panel = depth.len() * width;
    for (p, step) in depth.clone().enumerate() {
        let row = from.read(step, 0..lanes, scratch);
        for (j, lanes) in row.chunks(width).enumerate() {
            let at = j * panel + p * width;
            let (used, padding) = to[at..at + width].split_at_mut(lanes.len());
            used.copy_from_slice(lanes);
            padding.fill(0.0);
        }
    }
}

#[inline(always)]
fn right_lanes(
    from: &Operand<'_>,
    lanes: usize,
    depth: &Range<usize>,
    width: usize,
    scratch: &mut [f32],
    to: &mut [f32],
) {
    let (scratch, _) = scratch.as_chunks_mut::<DEPTH>();
    for (j, to) in to.chunks_exact_mut(depth.len() * width).take(lanes.div_ceil(width)).enumerate() {
        let lanes = j * width..lanes.min((j + 1) * width);
        for first in (0..width).step_by(SQUARE) {
            let taken = SQUARE.min(width - first);
            let mut rows: [&[f32]; SQUARE] = [&ZEROS[..depth.len()]; SQUARE];
            for (i, (row, scratch)) in rows[..taken].iter_mut().zip(scratch.iter_mut()).enumerate() {
                let lane = lanes.start + first + i;
                if lane < lanes.end {
                    *row = from.read(lane, depth.clone(), scratch);
                }
            }
            if taken == SQUARE {
                transpose(rows, first, width, to);
            } else {
                for (p, to) in to.chunks_exact_mut(width).enumerate() {
                    for (to, row) in to[first..].iter_mut().zip(rows) {
                        *to = row[p];
                    }
                }
            }
        }
    }
}

/// What the lanes of padding are read from.
static ZEROS: [f32; DEPTH] = [0.0; DEPTH];

/// Eight rows of storage become lanes `first .. first + 8` of every depth step.
#[inline(always)]
fn transpose(rows: [&[f32]; SQUARE], first: usize, width: usize, to: &mut [f32]) {
    let depth = rows[0].len();
    let squares = rows.map(|row| row.as_chunks::<SQUARE>().0);
    for q in 0..depth / SQUARE {
        let square: [[f32; SQUARE]; SQUARE] = std::array::from_fn(|i| squares[i][q]);
        for p in 0..SQUARE {
            let at = (q * SQUARE + p) * width + first;
            let column: [f32; SQUARE] = std::array::from_fn(|i| square[i][p]);
            to[at..at + SQUARE].copy_from_slice(&column);
        }
    }
    for p in depth / SQUARE * SQUARE..depth {
        let at = p * width + first;
        for (to, row) in to[at..at + SQUARE].iter_mut().zip(rows) {
            *to = row[p];
        }
    }
}
