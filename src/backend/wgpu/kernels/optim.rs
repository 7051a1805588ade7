//! Optimizer step and gradient norm, over weights that may be larger than what a kernel can bind.

use crate::Result;
use crate::backend::Buffer;
use crate::backend::wgpu::buffer::WgpuBuffer;
use crate::backend::wgpu::encode::Encoder;
use crate::backend::wgpu::launch::{Arg, Launch, groups_of, u32_of};
use crate::backend::wgpu::shader::{Constant, Param, Source, source};
use crate::backend::wgpu::windows::{ALIGNED, bindable, windows};
use crate::kernel::{AdamW, SUM_SQUARES_BLOCK, SumSquares};
use crate::tensor::DType;

static ADAMW: Source = source!("adamw");
static SUM_SQUARES: Source = source!("sum_squares", ["lib_reduce"]);

pub(crate) fn adamw(args: &AdamW<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let (len, step) = (args.len, &args.step);
    let buffers = [
        Arg::f32("grad", &args.grad, len)?,
        Arg::floats("weight", &args.weight, len)?,
        Arg::optional_f32("master", args.master.as_ref(), len)?,
        Arg::f32("m", &args.m, len)?,
        Arg::f32("v", &args.v, len)?,
    ];
    let dtype = args.weight.dtype();
    if args.master.is_some() == (dtype == DType::F32) {
        return Err(args.wrong_storage(dtype));
    }
    let mut memory = vec![&args.grad, &args.weight, &args.m, &args.v];
    memory.extend(&args.master);
    let per_group = 64 * if args.master.is_some() { 2 } else { 1 };
    for window in windows(len, ALIGNED, bindable(&memory, to.profile())) {
        to.launch(Launch {
            source: &ADAMW,
            entry: "main",
            workgroup: 64,
            constants: vec![],
            params: vec![
                ("len", Param::U32(u32_of("elements", window.len())?)),
                ("grad_scale", Param::F32(step.grad_scale)),
                ("beta1", Param::F32(step.beta1)),
                ("rest1", Param::F32(1.0 - step.beta1)),
                ("beta2", Param::F32(step.beta2)),
                ("rest2", Param::F32(1.0 - step.beta2)),
                ("correction1", Param::F32(step.correction1)),
                ("correction2", Param::F32(step.correction2)),
                ("eps", Param::F32(step.eps)),
                ("decay", Param::F32(1.0 - step.lr * step.weight_decay)),
                ("lr", Param::F32(step.lr)),
            ],
            args: buffers.iter().map(|arg| arg.clone().window(window.clone())).collect(),
            groups: groups_of(window.len(), per_group),
            cost: 32 * per_group as u64,
        })?;
    }
    Ok(())
}

pub(crate) fn sum_squares(args: &SumSquares<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let x = Arg::f32_bits("x", &args.x, args.len)?;
    let blocks = args.len.div_ceil(SUM_SQUARES_BLOCK);
    let partial = Arg::f32_bits("partial", &args.partial, 2 * blocks)?;
    for window in windows(args.len, SUM_SQUARES_BLOCK, bindable(&[&args.x, &args.partial], to.profile())) {
        let blocks = groups_of(window.len(), SUM_SQUARES_BLOCK);
        let first = window.start / SUM_SQUARES_BLOCK;
        to.launch(Launch {
            source: &SUM_SQUARES,
            entry: "main",
            workgroup: 256,
            constants: vec![("BLOCK", Constant::U32(SUM_SQUARES_BLOCK as u32))],
            params: vec![("len", Param::U32(u32_of("elements", window.len())?))],
            args: vec![x.clone().window(window), partial.clone().window(2 * first..2 * (first + blocks as usize))],
            groups: blocks,
            cost: 16 * SUM_SQUARES_BLOCK as u64,
        })?;
    }
    Ok(())
}
