//! A product and the SwiGLU behind it in one launch: all buffers are written as by the two.
//!
//! Sums over the columns of a row (norms, dot products) are taken from f64 parts of 16 columns, not in the order of the kernels
//! of their own; in f32 that differs where f64 rounding decides.

use super::rows::{Choice, Product, Ready, dgrad, forward};
use super::table::{self, DownBackParams, GateUpParams, GemmDots, GemmNorms};
use super::{Groups, in_pairs};
use crate::Result;
use crate::backend::cuda::buffer::CudaBuffer;
use crate::backend::cuda::checks::{Extent, Index};
use crate::backend::cuda::exec::Exec;
use crate::backend::cuda::launch::{Ptr, blocks_of, u32_of};
use crate::backend::known::Same;
use crate::backend::{Buffer, elements};
use crate::kernel::{Access, GroupedDgrad, GroupedForward, Kernel, SwiGlu, SwiGluBackward};
use crate::tensor::DType;

/// Columns of one part: `lib_gemm_swiglu.h`.
const PART: usize = 16;

/// Threads that sum parts.
const THREADS: usize = 256;

/// Bytes of shared memory of the four warps' slices: eight rows of 64 columns, or of 32.
const SLICES: u32 = 4 * 8 * 64 * 4;
const SMALL_SLICES: u32 = SLICES / 2;

/// Whether two commands are the two halves of what [`fused`] launches.
fn may_fuse(first: &Kernel<CudaBuffer>, second: &Kernel<CudaBuffer>) -> bool {
    let (link, fits) = match (first, second) {
        (Kernel::GroupedForward(up), Kernel::SwiGlu(act)) => {
            let sizes = (up.rows, up.groups, Some(up.n)) == (act.rows, act.groups, act.width.checked_mul(2));
            (&up.out, sizes && up.offsets.is(&act.offsets) && act.ab.is(&up.out))
        }
        (Kernel::GroupedDgrad(down), Kernel::SwiGluBackward(act)) => {
            let sizes = (down.rows, down.groups, down.k) == (act.rows, act.groups, act.width);
            (&down.out, sizes && down.offsets.is(&act.offsets) && act.u.is(&down.out))
        }
        _ => return false,
    };
    fits && apart(first, second, link)
}

/// Launches two commands as one where there is a kernel for their types; nothing where there is none.
///
/// # Errors
/// Those of the two.
pub(in crate::backend::cuda) fn fused(
    first: &Kernel<CudaBuffer>,
    second: &Kernel<CudaBuffer>,
    to: &mut Exec<'_>,
) -> Result<bool> {
    if !may_fuse(first, second) {
        return Ok(false);
    }
    match (first, second) {
        (Kernel::GroupedForward(up), Kernel::SwiGlu(act)) => gate_up(up, act, to),
        (Kernel::GroupedDgrad(down), Kernel::SwiGluBackward(act)) => down_back(down, act, to),
        _ => Ok(false),
    }
}

/// Whether the second command writes nothing that the first one uses, and reads nothing that it writes but `link`.
fn apart(first: &Kernel<CudaBuffer>, second: &Kernel<CudaBuffer>, link: &CudaBuffer) -> bool {
    let of = |kernel: &Kernel<CudaBuffer>, access| -> Vec<CudaBuffer> {
        let bindings = kernel.bindings().into_iter().filter(|binding| binding.access == access);
        bindings.filter_map(|binding| binding.buffer.cloned()).collect()
    };
    let (reads, writes) = (of(first, Access::Read), of(second, Access::Write));
    let others: Vec<_> = of(second, Access::Read).into_iter().filter(|buffer| !buffer.is(link)).collect();
    let meet = |a: &[CudaBuffer], b: &[CudaBuffer]| a.iter().any(|a| b.iter().any(|b| a.shares_memory(b)));
    let link = std::slice::from_ref(link);
    !meet(&reads, &writes) && !meet(link, &writes) && !meet(link, &others)
}

fn gate_up(up: &GroupedForward<CudaBuffer>, act: &SwiGlu<CudaBuffer>, to: &mut Exec<'_>) -> Result<bool> {
    let width = act.width;
    let product = Product { cols: width, paired: true, ..forward(up)? };
    let choice = product.choice(to);
    if choice.rounds_weights(&product) {
        return Ok(false);
    }
    let (spec, slices) = match choice {
        Choice::Large => (table::GATE_UP, SLICES),
        Choice::Small => (table::GATE_UP_SMALL, SMALL_SLICES),
        Choice::Rounded => (table::GATE_UP_ROUNDED, SLICES),
        Choice::RoundedSmall => (table::GATE_UP_ROUNDED_SMALL, SMALL_SLICES),
        Choice::Mixed | Choice::Simt => return Ok(false),
    };
    let rows = product.groups.check(&[product.x], to)?;
    let total = elements("h", &[act.rows, width])?;
    let (ab, h) = (Ptr::f32(&up.out, elements("ab", &[act.rows, 2, width])?)?, Ptr::f32(&act.h, total)?);
    let norm = Ptr::f32(&act.norm, act.rows)?;
    let ready = product.ready(rows, choice, to)?;
    let parts = Parts::new(&product.groups, rows, width, to)?;
    let flags = ready.flags([ab, h].iter().all(|&out| in_pairs(out, width)));
    let Ready { x, w, tiles, n, k, .. } = ready;
    let params = GateUpParams {
        x: x.rows,
        index: x.index,
        w,
        tiles,
        ab,
        h,
        parts: parts.at,
        div: x.div,
        rows: rows as u64,
        stored: x.stored,
        n,
        k,
        flags,
    };
    ready.launch(spec, &params.args(), slices, to)?;
    let Parts { at: parts, offsets, rows, groups, blocks } = parts;
    let norms = GemmNorms { parts, offsets, norm, rows: rows as u64, groups, blocks };
    norms.launch(to, blocks_of(rows, THREADS), 0)?;
    Ok(true)
}

fn down_back(down: &GroupedDgrad<CudaBuffer>, act: &SwiGluBackward<CudaBuffer>, to: &mut Exec<'_>) -> Result<bool> {
    let width = act.width;
    let product = dgrad(down)?;
    let choice = product.choice(to);
    if choice.rounds_weights(&product) {
        return Ok(false);
    }
    let (spec, slices) = match choice {
        Choice::Large => (table::DOWN_BACK, SLICES),
        Choice::Small => (table::DOWN_BACK_SMALL, SMALL_SLICES),
        Choice::Rounded => (table::DOWN_BACK_ROUNDED, SLICES),
        Choice::RoundedSmall => (table::DOWN_BACK_ROUNDED_SMALL, SMALL_SLICES),
        Choice::Mixed | Choice::Simt => return Ok(false),
    };
    let rows = product.groups.check(&[product.x], to)?;
    let total = elements("u", &[act.rows, width])?;
    let stored = match &act.ab_index {
        Some(_) => act.ab.len_rows(elements("two rows", &[2, width])?),
        None => act.rows,
    };
    let ab = Ptr::f32(&act.ab, elements("ab", &[stored, 2, width])?)?;
    let ab_index = Ptr::optional_u32(act.ab_index.as_ref(), act.rows)?;
    let scale = Ptr::optional_f32(act.scale.as_ref(), act.rows)?;
    let (u, h) = (Ptr::f32(&down.out, total)?, Ptr::f32(&act.h, total)?);
    let d_ab = Ptr::f32(&act.d_ab, elements("d_ab", &[act.rows, 2, width])?)?;
    let dot = Ptr::f32(&act.dot, act.rows)?;
    if let Some(buffer) = &act.ab_index {
        let rows = Extent::Used(&act.offsets, act.groups, act.rows);
        to.check_index(Index { name: "ab_index", buffer, rows, div: 1, limit: stored, none: false })?;
    }
    let ready = product.ready(rows, choice, to)?;
    let parts = Parts::new(&product.groups, rows, width, to)?;
    let flags = ready.flags([u, ab, d_ab, h].iter().all(|&out| in_pairs(out, width)));
    let Ready { x, w, tiles, n, k, .. } = ready;
    let params = DownBackParams {
        x: x.rows,
        index: x.index,
        w,
        tiles,
        u,
        ab,
        ab_index,
        scale,
        d_ab,
        h,
        parts: parts.at,
        div: x.div,
        rows: rows as u64,
        ab_stored: stored as u64,
        stored: x.stored,
        n,
        k,
        flags,
    };
    ready.launch(spec, &params.args(), slices, to)?;
    let Parts { at: parts, offsets, rows, groups, blocks } = parts;
    let dots = GemmDots { parts, offsets, dot, rows: rows as u64, groups, blocks };
    dots.launch(to, blocks_of(rows, THREADS), 0)?;
    Ok(true)
}

/// Where sums over parts of rows are kept, and what they are summed with.
struct Parts {
    at: Ptr,
    offsets: Ptr,
    rows: usize,
    groups: u32,
    blocks: u32,
}

impl Parts {
    fn new(groups: &Groups<'_>, rows: usize, width: usize, to: &mut Exec<'_>) -> Result<Self> {
        let blocks = width.div_ceil(PART);
        let words = elements("sums over rows", &[rows, blocks, 2])?;
        let buffer = to.scratch("sums over rows", DType::U32, words)?;
        Ok(Self {
            at: Ptr::u32(&buffer, words)?,
            offsets: Ptr::u32(groups.offsets, groups.groups + 1)?,
            rows,
            groups: u32_of("groups", groups.groups)?,
            blocks: u32_of("columns", blocks)?,
        })
    }
}
