//! Sign random projections of rows.

use rayon::prelude::*;

use super::buffer::CpuBuffer;
use super::gemm::Floats;
use super::math::vectorised;
use super::rows::{Element, require_len, with_floats};
use crate::Result;
use crate::backend::elements;
use crate::kernel::{ROW_KEY_BITS, RowKeys};

/// Rows that share one pass over the signs: their sums are independent, which hides the latency of the additions.
const TOGETHER: usize = 4;

/// 2^-64: with it no sum of finite rows that fit memory overflows.
const SHRINK: f32 = 1.0 / (1u128 << 64) as f32;

/// Signs of one column, by projection. The column enters modulo 2^32.
fn signs(column: usize) -> [f32; ROW_KEY_BITS] {
    let mut v = (column as u32).wrapping_add(0x9E37_79B9);
    v = (v ^ (v >> 16)).wrapping_mul(0x85EB_CA6B);
    v = (v ^ (v >> 13)).wrapping_mul(0xC2B2_AE35);
    v ^= v >> 16;
    std::array::from_fn(|i| if v >> i & 1 == 1 { 1.0 } else { -1.0 })
}

#[inline(always)]
fn sums<S: Element, const R: usize>(
    rows: [&[S]; R],
    signs: &[[f32; ROW_KEY_BITS]],
    scale: f32,
) -> [[f32; ROW_KEY_BITS]; R] {
    let mut sums = [[0.0; ROW_KEY_BITS]; R];
    for (c, signs) in signs.iter().enumerate() {
        for (sums, row) in sums.iter_mut().zip(rows) {
            let x = scale * row[c].widen();
            for (sum, sign) in sums.iter_mut().zip(signs) {
                *sum += sign * x;
            }
        }
    }
    sums
}

/// Rank of the bits of positive sums in reflected binary Gray order: bit i of the rank is the parity of the code's bits from i on.
fn rank(sums: &[f32; ROW_KEY_BITS]) -> u32 {
    let mut rank = sums.iter().fold(0, |code, &sum| code << 1 | u32::from(sum > 0.0));
    rank ^= rank >> 1;
    rank ^= rank >> 2;
    rank ^ rank >> 4
}

#[inline(always)]
fn keys<S: Element, const R: usize>(rows: [&[S]; R], signs: &[[f32; ROW_KEY_BITS]]) -> [u32; R] {
    let first = sums(rows, signs, 1.0);
    std::array::from_fn(|r| {
        if first[r].iter().all(|sum| sum.is_finite()) {
            rank(&first[r])
        } else {
            rank(&sums([rows[r]], signs, SHRINK)[0])
        }
    })
}

pub(super) fn row_keys(args: &RowKeys<CpuBuffer>) -> Result<()> {
    let x = args.x.read()?;
    let mut key = args.key.write()?;
    let (cols, total) = (args.cols, elements("x", &[args.rows, args.cols])?);
    let key = key.u32(args.rows)?;
    require_len("x", &args.x, total)?;
    if args.rows == 0 {
        return Ok(());
    }
    let signs: Vec<[f32; ROW_KEY_BITS]> = (0..cols).map(signs).collect();
    with_floats!(x.floats()?, x => {
        key.par_chunks_mut(TOGETHER).with_min_len(4).enumerate().for_each(|(chunk, out)| {
            let row = |r: usize| &x[(chunk * TOGETHER + r) * cols..][..cols];
            vectorised(#[inline(always)] || {
                if out.len() == TOGETHER {
                    out.copy_from_slice(&keys::<_, TOGETHER>(std::array::from_fn(row), &signs));
                } else {
                    for (r, out) in out.iter_mut().enumerate() {
                        [*out] = keys([row(r)], &signs);
                    }
                }
            });
        });
    });
    Ok(())
}
