//! The register tile.

use super::mat::MatMut;
use pulp::{Simd, WithSimd};

/// Depth steps of one block: a right panel of 16 columns then takes half of a 32 KiB first-level cache.
pub(super) const DEPTH: usize = 256;

/// Distance of two lanes in a lane-major left panel. Not a power of two, so that lanes fall into different cache sets, and a
/// constant, so that all lanes are addressed from one register.
pub(super) const LANE_STRIDE: usize = DEPTH + 16;

/// A left panel of `M` lanes, broadcast one element at a time.
pub(super) trait Left<const M: usize>: Copy {
    /// Element of lane `i` at depth `p`, where `p < LANE_STRIDE`.
    fn at(self, p: usize, i: usize) -> f32;
    /// Depth steps it can serve.
    fn depth(self) -> usize;
}

/// Lanes one after another: what rows that are lanes are, without any transposition.
#[derive(Clone, Copy)]
pub(super) struct LaneMajor<'a, const M: usize>(pub(super) &'a [[f32; LANE_STRIDE]; M]);

impl<const M: usize> Left<M> for LaneMajor<'_, M> {
    #[inline(always)]
    fn at(self, p: usize, i: usize) -> f32 {
        self.0[i][p]
    }

    #[inline(always)]
    fn depth(self) -> usize {
        LANE_STRIDE
    }
}

/// Depth steps one after another: what rows that are steps are.
#[derive(Clone, Copy)]
pub(super) struct DepthMajor<'a, const M: usize>(pub(super) &'a [[f32; M]]);

impl<const M: usize> Left<M> for DepthMajor<'_, M> {
    #[inline(always)]
    fn at(self, p: usize, i: usize) -> f32 {
        self.0[p][i]
    }

    #[inline(always)]
    fn depth(self) -> usize {
        self.0.len()
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
        let right = &right[..right.len().min(left.depth())];

        let mut acc = [[simd.splat_f32s(0.0); NV]; M];
        if load {
            for (i, acc) in acc.iter_mut().enumerate() {
                load_row(simd, c.row_mut(row + i, col, NV * S::F32_LANES), acc);
            }
        }
        for (p, right) in right.iter().enumerate() {
            for (i, acc) in acc.iter_mut().enumerate() {
                let a = simd.splat_f32s(left.at(p, i));
                for (acc, &b) in acc.iter_mut().zip(right) {
                    *acc = simd.mul_add_f32s(a, b, *acc);
                }
            }
        }
        for (i, acc) in acc.iter().enumerate() {
            store_row(simd, acc, c.row_mut(row + i, col, NV * S::F32_LANES));
        }
    }
}

#[inline(always)]
fn load_row<S: Simd, const NV: usize>(simd: S, row: &[f32], acc: &mut [S::f32s; NV]) {
    let (whole, rest) = S::as_simd_f32s(row);
    if whole.len() == NV {
        acc.copy_from_slice(whole);
        return;
    }
    for (v, acc) in acc.iter_mut().enumerate() {
        *acc = whole.get(v).copied().unwrap_or_else(|| simd.partial_load_f32s(if v == whole.len() { rest } else { &[] }));
    }
}

#[inline(always)]
fn store_row<S: Simd, const NV: usize>(simd: S, acc: &[S::f32s; NV], row: &mut [f32]) {
    let (whole, rest) = S::as_mut_simd_f32s(row);
    if whole.len() == NV {
        whole.copy_from_slice(acc);
        return;
    }
    let (full, partial) = acc.split_at(whole.len());
    whole.copy_from_slice(full);
    if let (Some(&last), false) = (partial.first(), rest.is_empty()) {
        simd.partial_store_f32s(rest, last);
    }
}
