//! One tile of the output, blocked for the caches.

use super::kernel::{DEPTH, DepthMajor, LANE_STRIDE, LaneMajor, Left, Tile};
use super::mat::MatMut;
use super::operand::{Operand, RowsAre};
use super::pack::{self, Panels};
use pulp::{Simd, WithSimd};

/// Lanes of one left block: with [`DEPTH`] steps about half of a 512 KiB second-level cache. A multiple of 6 and 12.
const LEFT_LANES: usize = 240;

/// Most columns of the output that one call of [`Block`] serves.
pub(super) const MAX_COLS: usize = 1024;

/// Widest right panel of any instruction set, in lanes.
const MAX_WIDTH: usize = 32;

const LEFT_LEN: usize = LEFT_LANES * LANE_STRIDE;
const RIGHT_LEN: usize = (MAX_COLS + MAX_WIDTH) * DEPTH;
const SCRATCH_LEN: usize = 8 * DEPTH;
// Whole rows of a block, as steps of the reduction, go through the scratch too.
const _: () = assert!(SCRATCH_LEN >= MAX_COLS && SCRATCH_LEN >= LEFT_LANES);

/// Most that one thread keeps for packing, in bytes.
pub(super) const WORKSPACE_BYTES: usize = (LEFT_LEN + RIGHT_LEN + SCRATCH_LEN) * size_of::<f32>();

/// Packing buffers of one thread, grown on demand and kept.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    left: Vec<f32>,
    right: Vec<f32>,
    scratch: Vec<f32>,
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
        match (S::REGISTER_COUNT, S::F32_LANES) {
            (32, 16) => self.run::<S, 12, 2>(simd),
            (32, _) => self.run::<S, 6, 4>(simd),
            _ => self.run::<S, 6, 2>(simd),
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
        grow(&mut self.workspace.scratch, SCRATCH_LEN);
        grow(&mut self.workspace.right, self.c.cols().next_multiple_of(width) * step);
        grow(&mut self.workspace.left, self.c.rows().min(LEFT_LANES) * LANE_STRIDE);
        for start in (0..self.depth).step_by(step) {
            let depth = start..self.depth.min(start + step);
            let load = self.accumulate || start > 0;
            simd.vectorize(PackRight { block: &mut self, depth: depth.clone(), width });
            for first in (0..self.c.rows()).step_by(LEFT_LANES) {
                let lanes = first..self.c.rows().min(first + LEFT_LANES);
                let panels = Panels::new(lanes.len(), M);
                simd.vectorize(PackLeft { block: &mut self, depth: depth.clone(), lanes: lanes.clone(), panels });
                self.tiles::<S, NV>(simd, first, panels, depth.len(), width, load);
            }
        }
    }

    /// Every tile of one left block: a right panel stays in the first-level cache while the left panels pass.
    #[inline(always)]
    fn tiles<S: Simd, const NV: usize>(
        &mut self,
        simd: S,
        first: usize,
        panels: Panels,
        depth: usize,
        width: usize,
        load: bool,
    ) {
        let Self { a, c, workspace, .. } = self;
        for col in (0..c.cols()).step_by(width) {
            let right = &workspace.right[col * depth..(col + width) * depth];
            for panel in panels.iter() {
                let at = At { row: first + panel.start, col, load };
                match a.rows_are {
                    RowsAre::Lanes => {
                        let left = &workspace.left[panel.start * LANE_STRIDE..panel.end * LANE_STRIDE];
                        at.lanes::<S, NV>(simd, left, right, c);
                    }
                    RowsAre::Steps => {
                        let left = &workspace.left[panel.start * depth..panel.end * depth];
                        at.steps::<S, NV>(simd, panel.len(), left, right, c);
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

/// Calls `$tile` with the number of rows as a constant.
macro_rules! by_rows {
    ($rows:expr, $tile:ident) => {
        match $rows {
            1 => $tile!(1),
            2 => $tile!(2),
            3 => $tile!(3),
            4 => $tile!(4),
            5 => $tile!(5),
            6 => $tile!(6),
            7 => $tile!(7),
            8 => $tile!(8),
            9 => $tile!(9),
            10 => $tile!(10),
            11 => $tile!(11),
            _ => $tile!(12),
        }
    };
}

impl At {
    #[inline(always)]
    fn lanes<S: Simd, const NV: usize>(self, simd: S, left: &[f32], right: &[f32], c: &mut MatMut<'_>) {
        let (left, _) = left.as_chunks::<LANE_STRIDE>();
        macro_rules! tile {
            ($m:literal) => {
                if let Some(left) = left.first_chunk::<$m>() {
                    self.tile::<S, _, $m, NV>(simd, LaneMajor(left), right, c);
                }
            };
        }
        by_rows!(left.len(), tile);
    }

    #[inline(always)]
    fn steps<S: Simd, const NV: usize>(self, simd: S, rows: usize, left: &[f32], right: &[f32], c: &mut MatMut<'_>) {
        macro_rules! tile {
            ($m:literal) => {
                self.tile::<S, _, $m, NV>(simd, DepthMajor(left.as_chunks::<$m>().0), right, c)
            };
        }
        by_rows!(rows, tile);
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
struct PackRight<'b, 'w, 'a, 'c> {
    block: &'b mut Block<'w, 'a, 'c>,
    depth: std::ops::Range<usize>,
    width: usize,
}

impl WithSimd for PackRight<'_, '_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Block { b, c, workspace: Workspace { right, scratch, .. }, .. } = self.block;
        pack::right(b, c.cols(), &self.depth, self.width, scratch, right);
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
        match a.rows_are {
            RowsAre::Lanes => pack::lane_major(a, self.lanes, &self.depth, left),
            RowsAre::Steps => pack::depth_major(a, self.lanes, &self.depth, self.panels, scratch, left),
        }
    }
}

/// At least `len` elements; what they are does not matter.
fn grow(buffer: &mut Vec<f32>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
}
