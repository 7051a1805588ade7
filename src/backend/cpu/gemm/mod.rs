//! Grouped matrix multiplication with batch-invariant bits.
//!
//! Rows are sorted by group; group `e` owns rows `offsets[e]..offsets[e + 1]` and one matrix `W[e]` of shape `[N, K]`.
//! [`forward`], [`dgrad`] and [`wgrad`] are the three products of a linear layer over such groups.
//!
//! # Numeric contract
//! Every output element is one chain of f32 fused multiply-adds over the reduction index in ascending order,
//! `acc = a.mul_add(b, acc)`, that starts at `+0.0`, or at the old output where the call accumulates. A chain never
//! splits: depth blocks reload their accumulators from the output. So the bits of a row depend on nothing but that row and
//! its matrix: not on the rows beside it, the number of groups, the tile shape, the thread count or the instruction set.
//! (Which NaN comes out, where one does, is the hardware's choice.)
//!
//! # How it is built
//! One blocked product serves all three calls; they differ in whether the rows of an operand are lanes of the output or
//! steps of the reduction ([`operand`]). [`plan`] cuts the output into disjoint tiles of even cost, [`block`] runs one tile
//! (pack the right operand once, then left blocks that fit the second-level cache), [`pack`] fuses gather, scale and
//! widening into the copies that blocking needs anyway ([`turn`] transposes), [`kernel`] is the register tile.
//!
//! Each thread that worked keeps its packing buffers, at most 2.5 MiB, for the next call.

mod block;
mod check;
mod kernel;
mod mat;
mod operand;
mod pack;
mod plan;
#[cfg(test)]
mod tests;
mod turn;

use crate::error::Result;
use mat::MatMut;
use operand::{Operand, RowsAre};
use plan::Group;

/// Elements of a matrix in storage; arithmetic is f32, and widening is exact.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Floats<'a> {
    /// IEEE 754 binary32.
    F32(&'a [f32]),
    /// bfloat16.
    BF16(&'a [half::bf16]),
    /// IEEE 754 binary16.
    F16(&'a [half::f16]),
}

impl Floats<'_> {
    /// Number of elements.
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::F32(data) => data.len(),
            Self::BF16(data) => data.len(),
            Self::F16(data) => data.len(),
        }
    }
}

/// A matrix `[rows, cols]` seen through an optional gather and an optional scale per row.
///
/// Logical row `r` is row `index[r] / index_div` of `data` (row `r` where there is no index), and where there is a scale,
/// every element is multiplied by `scale[r]`: one f32 multiplication, rounded, before the product sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'a> {
    /// Elements, row-major, a whole number of rows.
    pub(crate) data: Floats<'a>,
    /// Elements per row, at least 1.
    pub(crate) cols: usize,
    /// Data row of each logical row, times `index_div`.
    pub(crate) index: Option<&'a [u32]>,
    /// Divisor of the indices, at least 1; unused without an index. With pair indices `t * k + j` and `k` here, rows are tokens.
    pub(crate) index_div: u32,
    /// Factor of each logical row.
    pub(crate) scale: Option<&'a [f32]>,
}

/// `out[r, :] = x[r, :] W[e]^T` for every row `r` of every group `e`.
///
/// Shapes: `offsets [E + 1]`, `x [R, K]` with `K = x.cols`, `w [E, N, K]`, `out [R, N]`. `out` is written, never read; its rows outside
/// `offsets[0]..offsets[E]` are left alone, and those of `x`, its index and its scale are not looked at.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) or [`Error::Argument`](crate::Error::Argument) where a length, an offset or an index does not fit,
/// [`Error::Overflow`](crate::Error::Overflow) where a size does not. Nothing has been written then.
pub(crate) fn forward(offsets: &[u32], x: Rows<'_>, w: Floats<'_>, n: usize, out: &mut [f32]) -> Result<()> {
    let k = x.cols;
    let used = check::offsets("forward", offsets)?;
    check::rows("forward: x", &x, &used)?;
    check::weights("forward: w", w, offsets, n, k)?;
    check::output_rows("forward: out", out.len(), n, &used)?;
    let groups = groups_of_rows(offsets, out, n, k);
    plan::execute(groups, false, |e| {
        let a = Operand::new(x, offsets[e] as usize, RowsAre::Lanes);
        (a, Operand::new(dense(w, k), e * n, RowsAre::Lanes))
    });
    Ok(())
}

/// `out[r, :] = dy[r, :] W[e]` for every row `r` of every group `e`.
///
/// Shapes: `offsets [E + 1]`, `dy [R, N]` with `N = dy.cols`, `w [E, N, K]`, `out [R, K]`. As in [`forward`], `out` is never read.
///
/// # Errors
/// As [`forward`].
pub(crate) fn dgrad(offsets: &[u32], dy: Rows<'_>, w: Floats<'_>, k: usize, out: &mut [f32]) -> Result<()> {
    let n = dy.cols;
    let used = check::offsets("dgrad", offsets)?;
    check::rows("dgrad: dy", &dy, &used)?;
    check::weights("dgrad: w", w, offsets, n, k)?;
    check::output_rows("dgrad: out", out.len(), k, &used)?;
    let groups = groups_of_rows(offsets, out, k, n);
    plan::execute(groups, false, |e| {
        let a = Operand::new(dy, offsets[e] as usize, RowsAre::Lanes);
        (a, Operand::new(dense(w, k), e * n, RowsAre::Steps))
    });
    Ok(())
}

/// `out[e] = sum over rows r of group e, ascending, of dy[r, :]^T x[r, :]`, or `out[e] +=` where `accumulate`.
///
/// Shapes: `offsets [E + 1]`, `dy [R, N]`, `x [R, K]`, `out [E, N, K]`. A group without rows gets exactly `+0.0`, and stays as it is
/// where `accumulate`. Without `accumulate`, `out` is never read.
///
/// # Errors
/// As [`forward`].
pub(crate) fn wgrad(offsets: &[u32], dy: Rows<'_>, x: Rows<'_>, accumulate: bool, out: &mut [f32]) -> Result<()> {
    let (n, k) = (dy.cols, x.cols);
    let used = check::offsets("wgrad", offsets)?;
    check::rows("wgrad: dy", &dy, &used)?;
    check::rows("wgrad: x", &x, &used)?;
    check::weights("wgrad: out", Floats::F32(out), offsets, n, k)?;
    let groups = out
        .chunks_exact_mut(n * k)
        .zip(offsets.windows(2))
        .enumerate()
        .map(|(index, (out, range))| Group { index, depth: (range[1] - range[0]) as usize, out: MatMut::new(out, k) })
        .collect();
    plan::execute(groups, accumulate, |e| {
        let first = offsets[e] as usize;
        (Operand::new(dy, first, RowsAre::Steps), Operand::new(x, first, RowsAre::Steps))
    });
    Ok(())
}

/// One output matrix per group: its rows of `out [R, cols]`.
fn groups_of_rows<'a>(offsets: &[u32], out: &'a mut [f32], cols: usize, depth: usize) -> Vec<Group<'a>> {
    let first = offsets[0] as usize;
    let (_, mut rest) = MatMut::new(out, cols).split_rows(first);
    let mut groups = Vec::with_capacity(offsets.len() - 1);
    for (index, range) in offsets.windows(2).enumerate() {
        let (out, tail) = rest.split_rows((range[1] - range[0]) as usize);
        groups.push(Group { index, depth, out });
        rest = tail;
    }
    groups
}

/// Plain rows: no gather, no scale.
const fn dense(data: Floats<'_>, cols: usize) -> Rows<'_> {
    Rows { data, cols, index: None, index_div: 1, scale: None }
}
