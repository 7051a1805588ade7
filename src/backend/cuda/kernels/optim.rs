//! Optimizer step and gradient norm.

use super::shape::{THREADS, grid};
use crate::Result;
use crate::backend::Buffer;
use crate::backend::cuda::buffer::CudaBuffer;
use crate::backend::cuda::exec::Exec;
use crate::backend::cuda::launch::Ptr;
use crate::backend::cuda::table::{FLOATS, PLAIN, cuda_kernels};
use crate::kernel::{self, SUM_SQUARES_BLOCK};
use crate::tensor::DType;

cuda_kernels! {
    /// A step on `exact`: the master weights, or the weights where there are none.
    "adamw": AdamW [W] in FLOATS, threads 256, registers 64 {
        grad: read f32,
        weight: write W,
        exact: write f32,
        m: write f32,
        v: write f32,
        len: value u64,
        grad_scale: value f32,
        beta1: value f32,
        rest1: value f32,
        beta2: value f32,
        rest2: value f32,
        correction1: value f32,
        correction2: value f32,
        eps: value f32,
        decay: value f32,
        lr: value f32,
    }
    /// Scaled sums of squares of blocks.
    "sum_squares": SumSquares [] in PLAIN, threads 256, registers 56 {
        x: read f32,
        partial: write f32,
        len: value u64,
    }
}

/// Elements of a block of `adamw`: two times 16 bytes of each array a thread, as `PACKS` in the kernel.
const STEP_BLOCK: usize = THREADS * 2 * 4;

/// Bytes of shared memory: a sum and a magnitude for each warp.
const SUM_SHARED: u32 = (THREADS / 32 * (size_of::<f64>() + size_of::<u32>())) as u32;

pub(super) fn adamw(args: &kernel::AdamW<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (len, step) = (args.len, &args.step);
    let grad = Ptr::f32(&args.grad, len)?;
    let weight = Ptr::floats(&args.weight, len)?;
    let master = Ptr::optional_f32(args.master.as_ref(), len)?;
    let (m, v) = (Ptr::f32(&args.m, len)?, Ptr::f32(&args.v, len)?);
    let dtype = args.weight.dtype();
    if master.is_some() == (dtype == DType::F32) {
        return Err(args.wrong_storage(dtype));
    }
    let kernel = AdamW {
        grad,
        weight,
        exact: master.unwrap_or(weight),
        m,
        v,
        len: len as u64,
        grad_scale: step.grad_scale,
        beta1: step.beta1,
        rest1: 1.0 - step.beta1,
        beta2: step.beta2,
        rest2: 1.0 - step.beta2,
        correction1: step.correction1,
        correction2: step.correction2,
        eps: step.eps,
        decay: 1.0 - step.lr * step.weight_decay,
        lr: step.lr,
    };
    kernel.launch(to, grid(len, STEP_BLOCK), 0)
}

pub(super) fn sum_squares(args: &kernel::SumSquares<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let x = Ptr::f32(&args.x, args.len)?;
    let blocks = args.len.div_ceil(SUM_SQUARES_BLOCK);
    let partial = Ptr::f32(&args.partial, 2 * blocks)?;
    SumSquares { x, partial, len: args.len as u64 }.launch(to, grid(blocks, 1), SUM_SHARED)
}
