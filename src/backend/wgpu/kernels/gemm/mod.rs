//! The three grouped GEMMs: many matrices in one dispatch, groups found on the device.
//!
//! # Numeric contract
//! Every output element is one chain of `fma` over the reduction index in ascending order that starts at +0, or at the old
//! output where the call accumulates. Windows of weights and long groups resume chains from the output. So the bits of a row
//! depend on nothing but that row and its matrix, and all [`variant`]s give the same. (Whether `fma` rounds once is the
//! device's choice: bits of two devices differ.)
//!
//! # How it is built
//! [`product`] states all three as one; [`variant`] is the table of strategies and tile sizes; [`window`] cuts weights that
//! a device does not bind at once; [`choice`] picks a variant, by [`trial`]s; [`encode`] launches. Shaders are one file for
//! each product, which says where rows of the operands begin, and one library for each strategy (`lib_gemm_*.wgsl`).

mod choice;
mod encode;
mod product;
#[cfg(test)]
mod tests;
mod trial;
mod variant;
mod window;

pub(crate) use choice::{check_variant, chosen_variants, gemm_variants};
use product::{Call, Product, Right, Rows};

use crate::backend::wgpu::buffer::WgpuBuffer;
use crate::backend::wgpu::checks::{Extent, Index};
use crate::backend::wgpu::encode::Encoder;
use crate::backend::{divisor, elements};
use crate::kernel::{GroupedDgrad, GroupedForward, GroupedWgrad};
use crate::{Error, Result};

pub(super) fn grouped_forward(args: &GroupedForward<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let index = args.index.as_ref().map(|index| ("index", index));
    run(
        &Product {
            call: Call::Forward,
            rows: args.rows,
            experts: args.groups,
            n: args.n,
            k: args.k,
            a: Rows { buffer: &args.x, cols: args.k, index, div: divisor("index_div", args.index_div)? },
            b: Right::Weights(&args.w),
            scale: None,
            offsets: &args.offsets,
            c: &args.out,
            accumulate: false,
        },
        to,
    )
}

pub(super) fn grouped_dgrad(args: &GroupedDgrad<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let index = args.index.as_ref().map(|index| ("index", index));
    run(
        &Product {
            call: Call::Dgrad,
            rows: args.rows,
            experts: args.groups,
            n: args.n,
            k: args.k,
            a: Rows { buffer: &args.dy, cols: args.n, index, div: divisor("index_div", args.index_div)? },
            b: Right::Weights(&args.w),
            scale: None,
            offsets: &args.offsets,
            c: &args.out,
            accumulate: false,
        },
        to,
    )
}

pub(super) fn grouped_wgrad(args: &GroupedWgrad<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let dy_index = args.dy_index.as_ref().map(|index| ("dy_index", index));
    let x_index = args.x_index.as_ref().map(|index| ("x_index", index));
    run(
        &Product {
            call: Call::Wgrad,
            rows: args.rows,
            experts: args.groups,
            n: args.n,
            k: args.k,
            a: Rows { buffer: &args.dy, cols: args.n, index: dy_index, div: divisor("dy_div", args.dy_div)? },
            b: Right::Rows(Rows { buffer: &args.x, cols: args.k, index: x_index, div: divisor("x_div", args.x_div)? }),
            scale: args.dy_scale.as_ref(),
            offsets: &args.offsets,
            c: &args.out,
            accumulate: args.accumulate,
        },
        to,
    )
}

fn run(product: &Product<'_>, to: &mut Encoder<'_>) -> Result<()> {
    for (name, size) in [("n", product.n), ("k", product.k)] {
        if size == 0 {
            return Err(Error::argument(name, size, "at least 1"));
        }
    }
    elements("weights", &[product.experts, product.n, product.k])?;
    elements("rows of a product", &[product.rows, product.n.max(product.k)])?;
    // Rows of the batch that exist: without an index, those in use must be among them.
    let mut rows = product.rows;
    let operands = [Some(product.a), if let Right::Rows(b) = product.b { Some(b) } else { None }];
    for operand in operands.into_iter().flatten() {
        let stored = operand.buffer.len_rows(operand.cols);
        match operand.index {
            None => rows = rows.min(stored),
            Some((name, buffer)) => to.check_index(Index {
                name,
                buffer,
                rows: Extent::Used(product.offsets, product.experts, product.rows),
                div: operand.div as usize,
                limit: stored,
                none: false,
            })?,
        }
    }
    to.check_offsets(product.offsets, product.experts, rows)?;
    encode::run(&Product { rows, ..*product }, to)
}
