//! Optimizer step and gradient norm.

use rayon::prelude::*;

use super::buffer::CpuBuffer;
use super::math::{dot, vectorised};
use super::rows::Element;
use crate::backend::Buffer;
use crate::kernel::{AdamW, AdamWStep, SUM_SQUARES_BLOCK, SumSquares};
use crate::tensor::HostData;
use crate::{Error, Result};

const CHUNK: usize = 4096;

/// One element; the master weight in and out.
#[inline(always)]
fn update(step: &AdamWStep, w: f32, grad: f32, m: &mut f32, v: &mut f32) -> f32 {
    let g = grad * step.grad_scale;
    *m = step.beta1 * *m + (1.0 - step.beta1) * g;
    *v = step.beta2 * *v + (1.0 - step.beta2) * (g * g);
    let rate = *m / step.correction1 / ((*v / step.correction2).sqrt() + step.eps);
    w * (1.0 - step.lr * step.weight_decay) - step.lr * rate
}

pub(super) fn adamw(args: &AdamW<CpuBuffer>) -> Result<()> {
    let (len, step) = (args.len, &args.step);
    let grad = args.grad.read()?;
    let (mut weight, mut m, mut v) = (args.weight.write()?, args.m.write()?, args.v.write()?);
    let mut master = args.master.as_ref().map(CpuBuffer::write).transpose()?;
    if args.weight.len() < len {
        return Err(Error::shape("length of `weight`", args.weight.len(), format!("at least {len}")));
    }
    let grad = grad.f32(len)?.par_chunks(CHUNK);
    let state = m.f32(len)?.par_chunks_mut(CHUNK).zip(v.f32(len)?.par_chunks_mut(CHUNK)).zip(grad);
    match (weight.data(), &mut master) {
        (HostData::F32(weight), None) => {
            weight[..len].par_chunks_mut(CHUNK).zip(state).for_each(|(w, ((m, v), g))| {
                vectorised(
                    #[inline(always)]
                    || {
                        for (((w, m), v), g) in w.iter_mut().zip(m).zip(v).zip(g) {
                            *w = update(step, *w, *g, m, v);
                        }
                    },
                );
            });
        }
        (HostData::BF16(weight), Some(master)) => with_master(step, master.f32(len)?, &mut weight[..len], state),
        (HostData::F16(weight), Some(master)) => with_master(step, master.f32(len)?, &mut weight[..len], state),
        (other, _) => return Err(args.wrong_storage(other.dtype())),
    }
    Ok(())
}

fn with_master<'a, T: Element>(
    step: &AdamWStep,
    master: &mut [f32],
    weight: &mut [T],
    state: impl IndexedParallelIterator<Item = ((&'a mut [f32], &'a mut [f32]), &'a [f32])>,
) {
    let weights = master.par_chunks_mut(CHUNK).zip(weight.par_chunks_mut(CHUNK));
    weights.zip(state).for_each(|((master, weight), ((m, v), g))| {
        vectorised(
            #[inline(always)]
            || {
                for (((w, m), v), g) in master.iter_mut().zip(m).zip(v).zip(g) {
                    *w = update(step, *w, *g, m, v);
                }
            },
        );
        for (weight, master) in weight.iter_mut().zip(master) {
            *weight = T::narrow(*master);
        }
    });
}

pub(super) fn sum_squares(args: &SumSquares<CpuBuffer>) -> Result<()> {
    let x = args.x.read()?;
    let mut partial = args.partial.write()?;
    let x = x.f32(args.len)?;
    let partial = partial.f32(2 * args.len.div_ceil(SUM_SQUARES_BLOCK))?;
    partial.par_chunks_exact_mut(2).zip(x.par_chunks(SUM_SQUARES_BLOCK)).for_each(|(out, x)| {
        let (max, sum) = vectorised(
            #[inline(always)]
            || {
                let max = x.iter().fold(0.0f32, |max, x| if x.abs() > max { x.abs() } else { max });
                (max, dot(x.len(), |i| x[i], |i| x[i]))
            },
        );
        out[0] = if sum.is_nan() { f32::NAN } else { max };
        out[1] = if max > 0.0 && sum.is_finite() { (sum / f64::from(max) / f64::from(max)) as f32 } else { 1.0 };
    });
    Ok(())
}
