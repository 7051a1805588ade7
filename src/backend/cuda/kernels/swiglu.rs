//! SwiGLU, forward and backward, where the GEMM in front of it has not done it already.

use super::rows::offsets_of;
use super::shape::{TEAM_SHARED, team_grid, team_of};
use crate::Result;
use crate::backend::cuda::buffer::CudaBuffer;
use crate::backend::cuda::checks::Index;
use crate::backend::cuda::exec::Exec;
use crate::backend::cuda::launch::{Ptr, u32_of};
use crate::backend::cuda::table::{PLAIN, cuda_kernels};
use crate::backend::elements;
use crate::kernel;

cuda_kernels! {
    /// h and its norms.
    "swiglu": SwiGlu [] in PLAIN, threads 256, registers 64 {
        ab: read f32,
        offsets: read u32,
        h: write f32,
        norm: write f32,
        rows: value u64,
        width: value u64,
        groups: value u32,
        size: value u32,
    }
    /// Gradients of a and b, h, and products of h with its gradient.
    "swiglu_backward": SwiGluBackward [] in PLAIN, threads 256, registers 64 {
        ab: read f32,
        ab_index: maybe u32,
        u: read f32,
        scale: maybe f32,
        offsets: read u32,
        d_ab: write f32,
        h: write f32,
        dot: write f32,
        rows: value u64,
        stored: value u64,
        width: value u64,
        groups: value u32,
        size: value u32,
    }
}

pub(super) fn swiglu(args: &kernel::SwiGlu<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (rows, width) = (args.rows, args.width);
    let total = elements("ab", &[rows, 2, width])?;
    let kernel = SwiGlu {
        ab: Ptr::f32(&args.ab, total)?,
        offsets: offsets_of(&args.offsets, args.groups)?,
        h: Ptr::f32(&args.h, total / 2)?,
        norm: Ptr::f32(&args.norm, rows)?,
        rows: rows as u64,
        width: width as u64,
        groups: u32_of("groups", args.groups)?,
        size: team_of(width),
    };
    to.check_offsets(&args.offsets, args.groups, rows)?;
    kernel.launch(to, team_grid(rows, width), TEAM_SHARED)
}

pub(super) fn swiglu_backward(args: &kernel::SwiGluBackward<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (rows, width) = (args.rows, args.width);
    let total = elements("d_ab", &[rows, 2, width])?;
    let stored = match &args.ab_index {
        Some(_) => args.ab.len_rows(elements("two rows", &[2, width])?),
        None => rows,
    };
    let kernel = SwiGluBackward {
        ab: Ptr::f32(&args.ab, elements("ab", &[stored, 2, width])?)?,
        ab_index: Ptr::optional_u32(args.ab_index.as_ref(), rows)?,
        u: Ptr::f32(&args.u, total / 2)?,
        scale: Ptr::optional_f32(args.scale.as_ref(), rows)?,
        offsets: offsets_of(&args.offsets, args.groups)?,
        d_ab: Ptr::f32(&args.d_ab, total)?,
        h: Ptr::f32(&args.h, total / 2)?,
        dot: Ptr::f32(&args.dot, rows)?,
        rows: rows as u64,
        stored: stored as u64,
        width: width as u64,
        groups: u32_of("groups", args.groups)?,
        size: team_of(width),
    };
    to.check_offsets(&args.offsets, args.groups, rows)?;
    if let Some(buffer) = &args.ab_index {
        to.check_index(Index::in_use("ab_index", buffer, (&args.offsets, args.groups, rows), stored))?;
    }
    kernel.launch(to, team_grid(rows, width), TEAM_SHARED)
}
