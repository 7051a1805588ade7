//! One tile of the output, blocked for the caches.

use super::kernel::{DEPTH, DepthMajor, LANE_STRIDE, LaneMajor, Left, Tile, by_rows};
use super::mat::MatMut;
use super::operand::{Operand, RowsAre};
use super::pack::{self, Panels};
use pulp::{Simd, WithSimd};

/// Lanes of one left block: with [`DEPTH`] steps, half of a 512 KiB second-level cache. A multiple of 6 and 12.
const LEFT_LANES: usize = 120;

/// Most columns of the output that one call of [`Block`] serves.
pub(super) const MAX_COLS: usize = 1024;

/// Eight rows of either kind.
const SCRATCH_LEN: usize = 8 * MAX_COLS;
const _: () = assert!(MAX_COLS >= DEPTH && MAX_COLS >= LEFT_LANES);

/// Packing buffers of one thread, grown on demand and kept: at most 2.5 MiB.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    left: Buffer,
    right: Buffer,
    scratch: Buffer,
}

#[cfg(test)]
impl Workspace {
    pub(super) fn bytes(&self) -> usize {
        [&self.left, &self.right, &self.scratch].map(|buffer| buffer.data.capacity() * size_of::<f32>()).iter().sum()
    }
}

/// Elements of a cache line.
const LINE: usize = 16;

/// Elements that start at a cache line, since vectors across two lines load at half the speed.
#[derive(Debug, Default)]
struct Buffer {
    data: Vec<f32>,
    start: usize,
}

impl Buffer {
    /// Makes room for `len` elements; what they are does not matter.
    fn grow(&mut self, len: usize) {
        if self.data.len() < len + LINE {
            self.data = vec![0.0; len + LINE];
            self.start = self.data.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        }
    }

    fn get(&mut self) -> &mut [f32] {
        &mut self.data[self.start..]
    }
}

/// `c (+)= a b` over `depth` steps, with at most [`MAX_COLS`] columns in `c`.
#[derive(Debug)]
pub(super) struct Block<'w, 'a, 'c> {
    pub(super) a: Operand<'a>,
    pub(super) b: Operand<'a>,
    pub(super) depth: usize,
    /// Start the chains from `c` and not from `+0.0`.
    pub(super) accumulate: bool,
    pub(super) c: MatMut<'c>,
    pub(super) workspace: &'w mut Workspace,
}

impl WithSimd for Block<'_, '_, '_> {
    type Output = ();

    /// The register tile uses all vector registers but those for one step of the right panel and a broadcast.
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Constants, so that no other shape is compiled for an instruction set.
        if const { S::REGISTER_COUNT < 32 } {
            self.run::<S, 6, 2>(simd);
        } else if const { S::F32_LANES < 16 } {
            self.run::<S, 6, 4>(simd);
        } else {
            self.run::<S, 12, 2>(simd);
        }
    }
}

impl Block<'_, '_, '_> {
    /// With tiles of at most `M` rows and `NV` vectors.
    #[inline(always)]
    pub(super) fn run<S: Simd, const M: usize, const NV: usize>(mut self, simd: S) {
        if self.depth == 0 {
            if !self.accumulate {
                self.c.fill(0.0);
            }
            return;
        }
        let width = NV * S::F32_LANES;
        let blocks = self.depth.div_ceil(DEPTH);
        let step = self.depth.div_ceil(blocks);
        self.workspace.scratch.grow(SCRATCH_LEN);
        self.workspace.right.grow(self.c.cols().next_multiple_of(width) * step);
        self.workspace.left.grow(self.c.rows().min(LEFT_LANES) * LANE_STRIDE);
        for start in (0..self.depth).step_by(step) {
            let depth = start..self.depth.min(start + step);
            let load = self.accumulate || start > 0;
            simd.vectorize(PackRight::<NV> { block: &mut self, depth: depth.clone() });
            for first in (0..self.c.rows()).step_by(LEFT_LANES) {
                let lanes = first..self.c.rows().min(first + LEFT_LANES);
                let panels = Panels::new(lanes.len(), M);
                simd.vectorize(PackLeft { block: &mut self, depth: depth.clone(), lanes: lanes.clone(), panels });
                self.tiles::<S, M, NV>(simd, first, panels, depth.len(), width, load);
            }
        }
    }

    /// Every tile of one left block: a right panel stays in the first-level cache while the left panels pass.
    #[inline(always)]
    fn tiles<S: Simd, const M: usize, const NV: usize>(
        &mut self,
        simd: S,
        first: usize,
        panels: Panels,
        depth: usize,
        width: usize,
        load: bool,
    ) {
        let Self { a, c, workspace, .. } = self;
        let (left, right) = (workspace.left.get(), workspace.right.get());
        for col in (0..c.cols()).step_by(width) {
            let right = &right[col * depth..(col + width) * depth];
            for panel in panels.iter() {
                let at = At { row: first + panel.start, col, load };
                match a.rows_are {
                    RowsAre::Lanes => {
                        let left = &left[panel.start * LANE_STRIDE..panel.end * LANE_STRIDE];
                        at.lanes::<S, M, NV>(simd, left, right, c);
                    }
                    RowsAre::Steps => {
                        let left = &left[panel.start * depth..panel.end * depth];
                        at.steps::<S, M, NV>(simd, panel.len(), left, right, c);
                    }
                }
            }
        }
    }
}

/// Place of a register tile in the output.
#[derive(Clone, Copy)]
struct At {
    row: usize,
    col: usize,
    load: bool,
}

impl At {
    #[inline(always)]
    fn lanes<S: Simd, const M: usize, const NV: usize>(self, simd: S, left: &[f32], right: &[f32], c: &mut MatMut<'_>) {
        let (left, _) = left.as_chunks::<LANE_STRIDE>();
        macro_rules! tile {
            ($m:literal) => {
                if let Some(left) = left.first_chunk::<$m>() {
                    self.tile::<S, _, $m, NV>(simd, LaneMajor(left), right, c);
                }
            };
        }
        by_rows!(left.len(), M, tile);
    }

    #[inline(always)]
    fn steps<S: Simd, const M: usize, const NV: usize>(
        self,
        simd: S,
        rows: usize,
        left: &[f32],
        right: &[f32],
        c: &mut MatMut<'_>,
    ) {
        macro_rules! tile {
            ($m:literal) => {
                self.tile::<S, _, $m, NV>(simd, DepthMajor(left.as_chunks::<$m>().0), right, c)
            };
        }
        by_rows!(rows, M, tile);
    }

    #[inline(always)]
    fn tile<S: Simd, L: Left<M>, const M: usize, const NV: usize>(
        self,
        simd: S,
        left: L,
        right: &[f32],
        c: &mut MatMut<'_>,
    ) {
        let Self { row, col, load } = self;
        simd.vectorize(Tile::<'_, '_, L, M, NV> { left, right, c, row, col, load });
    }
}

/// Packs the right block of some depth steps.
struct PackRight<'b, 'w, 'a, 'c, const NV: usize> {
    block: &'b mut Block<'w, 'a, 'c>,
    depth: std::ops::Range<usize>,
}

impl<const NV: usize> WithSimd for PackRight<'_, '_, '_, '_, NV> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Block { b, c, workspace: Workspace { right, scratch, .. }, .. } = self.block;
        pack::right(b, c.cols(), &self.depth, NV * S::F32_LANES, scratch.get(), right.get());
    }
}

/// Packs one left block of some depth steps.
struct PackLeft<'b, 'w, 'a, 'c> {
    block: &'b mut Block<'w, 'a, 'c>,
    depth: std::ops::Range<usize>,
    lanes: std::ops::Range<usize>,
    panels: Panels,
}

impl WithSimd for PackLeft<'_, '_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Block { a, workspace: Workspace { left, scratch, .. }, .. } = self.block;
        let (left, scratch) = (left.get(), scratch.get());
        match a.rows_are {
            RowsAre::Lanes => pack::lane_major(a, self.lanes, &self.depth, left),
            RowsAre::Steps => pack::depth_major(a, self.lanes, &self.depth, self.panels, scratch, left),
        }
    }
}
