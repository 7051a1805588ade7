//! The register tile.

use super::mat::MatMut;
use pulp::{Simd, WithSimd};

/// Depth steps of one block. Measured: with 256, the second trip of every tile to the output costs more than the larger panels.
pub(super) const DEPTH: usize = 512;

/// Distance of two lanes in a lane-major left panel. Not a power of two, so that lanes fall into different cache sets, and a
/// constant, so that all lanes are addressed from one register.
pub(super) const LANE_STRIDE: usize = DEPTH + 16;

/// Calls `$tile` with the number of rows as a constant; what is above `$most` is not even compiled.
macro_rules! by_rows {
    ($rows:expr, $most:expr, $tile:ident) => {
        match $rows {
            1 if const { 1 <= $most } => $tile!(1),
            2 if const { 2 <= $most } => $tile!(2),
            3 if const { 3 <= $most } => $tile!(3),
            4 if const { 4 <= $most } => $tile!(4),
            5 if const { 5 <= $most } => $tile!(5),
            6 if const { 6 <= $most } => $tile!(6),
            7 if const { 7 <= $most } => $tile!(7),
            8 if const { 8 <= $most } => $tile!(8),
            9 if const { 9 <= $most } => $tile!(9),
            10 if const { 10 <= $most } => $tile!(10),
            11 if const { 11 <= $most } => $tile!(11),
            12 if const { 12 <= $most } => $tile!(12),
            _ => {}
        }
    };
}
pub(super) use by_rows;

/// Accumulators of a tile.
type Acc<S, const M: usize, const NV: usize> = [[<S as Simd>::f32s; NV]; M];

/// A left panel of `M` lanes, broadcast one element at a time.
pub(super) trait Left<const M: usize>: Copy {
    /// The chains of a tile, from where `acc` stands, over the steps that both sides have.
    fn multiply<S: Simd, const NV: usize>(self, simd: S, right: &[[S::f32s; NV]], acc: Acc<S, M, NV>) -> Acc<S, M, NV>;
}

/// Lanes one after another: what rows that are lanes are, without any transposition.
#[derive(Clone, Copy)]
pub(super) struct LaneMajor<'a, const M: usize>(pub(super) &'a [[f32; LANE_STRIDE]; M]);

impl<const M: usize> Left<M> for LaneMajor<'_, M> {
    #[inline(always)]
    fn multiply<S: Simd, const NV: usize>(
        self,
        simd: S,
        right: &[[S::f32s; NV]],
        mut acc: Acc<S, M, NV>,
    ) -> Acc<S, M, NV> {
        let right = &right[..right.len().min(LANE_STRIDE)];
        for (p, right) in right.iter().enumerate() {
            for (acc, left) in acc.iter_mut().zip(self.0) {
                step(simd, left[p], right, acc);
            }
        }
        acc
    }
}

/// Depth steps one after another: what rows that are steps are.
#[derive(Clone, Copy)]
pub(super) struct DepthMajor<'a, const M: usize>(pub(super) &'a [[f32; M]]);

impl<const M: usize> Left<M> for DepthMajor<'_, M> {
    #[inline(always)]
    fn multiply<S: Simd, const NV: usize>(
        self,
        simd: S,
        right: &[[S::f32s; NV]],
        mut acc: Acc<S, M, NV>,
    ) -> Acc<S, M, NV> {
        for (left, right) in self.0.iter().zip(right) {
            for (acc, &left) in acc.iter_mut().zip(left) {
                step(simd, left, right, acc);
            }
        }
        acc
    }
}

/// One link of the chains of one row.
#[inline(always)]
fn step<S: Simd, const NV: usize>(simd: S, left: f32, right: &[S::f32s; NV], acc: &mut [S::f32s; NV]) {
    let left = simd.splat_f32s(left);
    for (acc, &right) in acc.iter_mut().zip(right) {
        *acc = simd.mul_add_f32s(left, right, *acc);
    }
}

/// `M x (NV vectors)` elements of the output: `c[row.., col..] (+)= left * right`.
pub(super) struct Tile<'t, 'c, L, const M: usize, const NV: usize> {
    pub(super) left: L,
    /// `[depth][NV * lanes]`.
    pub(super) right: &'t [f32],
    pub(super) c: &'t mut MatMut<'c>,
    pub(super) row: usize,
    pub(super) col: usize,
    /// Start the chains from `c` and not from `+0.0`.
    pub(super) load: bool,
}

impl<L: Left<M>, const M: usize, const NV: usize> WithSimd for Tile<'_, '_, L, M, NV> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { left, right, c, row, col, load } = self;
        let (right, _) = S::as_simd_f32s(right);
        let (right, _) = right.as_chunks::<NV>();
        let rows = c.rows_mut::<M>(row, col, NV * S::F32_LANES);
        if rows.iter().all(|row| row.len() == NV * S::F32_LANES) {
            whole(simd, left, right, rows, load);
        } else {
            partial(simd, left, right, rows, load);
        }
    }
}

/// A tile that lies inside the output. Everything is by constant index, so that accumulators never leave their registers.
#[inline(always)]
fn whole<S: Simd, L: Left<M>, const M: usize, const NV: usize>(
    simd: S,
    left: L,
    right: &[[S::f32s; NV]],
    rows: [&mut [f32]; M],
    load: bool,
) {
    let mut acc = [[simd.splat_f32s(0.0); NV]; M];
    if load {
        for (acc, row) in acc.iter_mut().zip(&rows) {
            if let Some(row) = S::as_simd_f32s(row).0.first_chunk::<NV>() {
                *acc = *row;
            }
        }
    }
    let acc = left.multiply(simd, right, acc);
    for (acc, row) in acc.iter().zip(rows) {
        if let Some(row) = S::as_mut_simd_f32s(row).0.first_chunk_mut::<NV>() {
            *row = *acc;
        }
    }
}

/// A tile cut at the last column: what stands in its other lanes never reaches the output.
#[inline(always)]
fn partial<S: Simd, L: Left<M>, const M: usize, const NV: usize>(
    simd: S,
    left: L,
    right: &[[S::f32s; NV]],
    rows: [&mut [f32]; M],
    load: bool,
) {
    let mut acc = [[simd.splat_f32s(0.0); NV]; M];
    if load {
        for (acc, row) in acc.iter_mut().zip(&rows) {
            for (acc, row) in acc.iter_mut().zip(row.chunks(S::F32_LANES)) {
                *acc = simd.partial_load_f32s(row);
            }
        }
    }
    let acc = left.multiply(simd, right, acc);
    for (acc, row) in acc.iter().zip(rows) {
        for (&acc, row) in acc.iter().zip(row.chunks_mut(S::F32_LANES)) {
            simd.partial_store_f32s(row, acc);
        }
    }
}
