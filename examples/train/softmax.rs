//! Causal softmax with a gradient: candle composes one from several passes over the scores, which costs more than the attention's products.

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Shape, Tensor};
use rayon::prelude::*;

/// Rows of `scores` `[.., S, S]` times `scale`, row i over its columns 0..=i; the other columns are 0.
pub(crate) fn causal_softmax(scores: &Tensor, scale: f64) -> candle_core::Result<Tensor> {
    scores.contiguous()?.apply_op1(CausalSoftmax { scale: scale as f32 })
}

struct CausalSoftmax {
    scale: f32,
}

impl CustomOp1 for CausalSoftmax {
    fn name(&self) -> &'static str {
        "causal-softmax"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (scores, width) = square(storage, layout)?;
        let mut out = vec![0_f32; scores.len()];
        out.par_chunks_mut(width * width).zip(scores.par_chunks(width * width)).for_each(|(out, scores)| {
            for (row, (out, scores)) in out.chunks_mut(width).zip(scores.chunks(width)).enumerate() {
                let (out, scores) = (&mut out[..=row], &scores[..=row]);
                let max = scores.iter().fold(f32::NEG_INFINITY, |m, s| m.max(*s * self.scale));
                out.iter_mut().zip(scores).for_each(|(o, s)| *o = (*s * self.scale - max).exp());
                let norm = 1.0 / out.iter().sum::<f32>();
                out.iter_mut().for_each(|o| *o *= norm);
            }
        });
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(&self, _scores: &Tensor, probs: &Tensor, grad: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let op = CausalSoftmaxGrad { scale: self.scale };
        Ok(Some(probs.apply_op2_no_bwd(&grad.contiguous()?, &op)?))
    }
}

/// scale * p * (g - <p, g>) for each row, given p and g.
struct CausalSoftmaxGrad {
    scale: f32,
}

impl CustomOp2 for CausalSoftmaxGrad {
    fn name(&self) -> &'static str {
        "causal-softmax-grad"
    }

    fn cpu_fwd(
        &self,
        probs: &CpuStorage,
        layout: &Layout,
        grad: &CpuStorage,
        grad_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let ((probs, width), (grad, _)) = (square(probs, layout)?, square(grad, grad_layout)?);
        let mut out = vec![0_f32; probs.len()];
        let size = width * width;
        out.par_chunks_mut(size).zip(probs.par_chunks(size).zip(grad.par_chunks(size))).for_each(|(out, (p, g))| {
            let rows = out.chunks_mut(width).zip(p.chunks(width).zip(g.chunks(width)));
            for (row, (out, (p, g))) in rows.enumerate() {
                let (p, g) = (&p[..=row], &g[..=row]);
                let dot = p.iter().zip(g).map(|(p, g)| p * g).sum::<f32>();
                for (out, (p, g)) in out.iter_mut().zip(p.iter().zip(g)) {
                    *out = self.scale * p * (g - dot);
                }
            }
        });
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

/// The elements and the width of contiguous square matrices.
fn square<'a>(storage: &'a CpuStorage, layout: &Layout) -> candle_core::Result<(&'a [f32], usize)> {
    match (layout.contiguous_offsets(), layout.dims()) {
        (Some((start, end)), [.., rows, cols]) if rows == cols && *rows > 0 => {
            Ok((&storage.as_slice::<f32>()?[start..end], *cols))
        }
        _ => candle_core::bail!("causal softmax needs contiguous square matrices, not {layout:?}"),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use candle_nn::ops::softmax;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn agrees_with_candle_s_own_softmax_and_gradient() {
        let (n, s, scale) = (3, 5, 0.7);
        let mut rng = Rng::new(1, "softmax", 0);
        let mut draw = || Tensor::from_vec(rng.normal(n * s * s, 2.0), (n, s, s), &Device::Cpu).unwrap();
        let (x, dy) = (Var::from_tensor(&draw()).unwrap(), draw());
        let mask = (0..s * s).map(|i| if i % s > i / s { f32::NEG_INFINITY } else { 0.0 }).collect();
        let mask = Tensor::from_vec(mask, (1, s, s), &Device::Cpu).unwrap();
        let want = softmax(&(x.as_tensor() * scale).unwrap().broadcast_add(&mask).unwrap(), 2).unwrap();
        let got = causal_softmax(&x, scale).unwrap();
        let grad = |y: &Tensor| (y * &dy).unwrap().sum_all().unwrap().backward().unwrap().get(&x).unwrap().clone();
        for (got, want) in [(&got, &want), (&grad(&got), &grad(&want))] {
            let gap = (got - want).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap();
            assert!(gap.to_scalar::<f32>().unwrap() < 1e-6);
        }
    }
}
