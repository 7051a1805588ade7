//! Copies of blocks of an operand in the order the register tile reads them.

use super::kernel::{DEPTH, LANE_STRIDE, by_rows};
use super::operand::{Operand, RowsAre};
use super::turn::{SQUARE, turn};
use std::ops::Range;

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
    for p in (0..depth.len()).step_by(SQUARE) {
        let taken = SQUARE.min(depth.len() - p);
        let rows = steps(from, &lanes, depth.start + p, taken, scratch);
        for panel in panels.iter() {
            let to = &mut to[panel.start * depth.len() + p * panel.len()..];
            macro_rules! copy {
                ($m:literal) => {
                    for (to, row) in to.as_chunks_mut::<$m>().0.iter_mut().zip(&rows[..taken]) {
                        if let Some(lanes) = row[panel.start..].first_chunk() {
                            *to = *lanes;
                        }
                    }
                };
            }
            by_rows!(panel.len(), 12, copy);
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
    let whole = lanes / width * width;
    for p in (0..depth.len()).step_by(SQUARE) {
        let taken = SQUARE.min(depth.len() - p);
        let rows = steps(from, &(0..lanes), depth.start + p, taken, scratch);
        for col in (0..whole).step_by(width) {
            let to = &mut to[col * depth.len() + p * width..];
            for (to, row) in to.chunks_exact_mut(width).zip(&rows[..taken]) {
                to.copy_from_slice(&row[col..col + width]);
            }
        }
        if whole < lanes {
            let to = &mut to[whole * depth.len() + p * width..];
            for (to, row) in to.chunks_exact_mut(width).zip(&rows[..taken]) {
                let (used, padding) = to.split_at_mut(lanes - whole);
                used.copy_from_slice(&row[whole..]);
                padding.fill(0.0);
            }
        }
    }
}

/// Lanes of `taken` depth steps from `first` on: so few steps that they stay in the first-level cache, and so many that whole
/// lines of every panel are written at once.
#[inline(always)]
fn steps<'s>(
    from: &Operand<'s>,
    lanes: &Range<usize>,
    first: usize,
    taken: usize,
    scratch: &'s mut [f32],
) -> [&'s [f32]; SQUARE] {
    let mut rows: [&[f32]; SQUARE] = [&[]; SQUARE];
    let scratch = scratch.chunks_exact_mut(lanes.len().max(1));
    for (i, (row, scratch)) in rows[..taken].iter_mut().zip(scratch).enumerate() {
        *row = from.read(first + i, lanes.clone(), scratch);
    }
    rows
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
                turn(rows, first, width, to);
                continue;
            }
            for (p, to) in to.chunks_exact_mut(width).enumerate() {
                for (to, row) in to[first..].iter_mut().zip(rows) {
                    *to = row[p];
                }
            }
        }
    }
}

/// What the lanes of padding are read from.
static ZEROS: [f32; DEPTH] = [0.0; DEPTH];
