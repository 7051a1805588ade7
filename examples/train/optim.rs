//! One optimizer step over weights of two owners: candle's and the MoE layers'.

use candle_core::Var;
use candle_core::backprop::GradStore;
use candle_nn::{AdamW, Optimizer, ParamsAdamW};

use crate::failure::Failure;
use crate::model::Model;
use crate::moe::AdamWParams;
use crate::trainer::DIVERGED;

/// Shared by candle's AdamW and that of the experts.
pub(crate) const ADAMW: AdamWParams = AdamWParams { beta1: 0.9, beta2: 0.98, eps: 1e-9, weight_decay: 0.05 };
/// Largest norm of all gradients together.
const CLIP_NORM: f64 = 1.0;
const PEAK_LR: f64 = 3e-3;
/// The cosine ends at this share of the peak.
const FINAL_LR: f64 = 0.1;

/// The learning rate of `step` (from 0) of `steps`: linear warm-up over a twentieth of the run, then a cosine, then its end value.
pub(crate) fn learning_rate(step: u64, steps: u64) -> f64 {
    let warm_up = (steps / 20).max(1);
    if step < warm_up {
        return PEAK_LR * (step + 1) as f64 / warm_up as f64;
    }
    let done = ((step - warm_up) as f64 / (steps - warm_up).max(1) as f64).min(1.0);
    let cosine = 0.5 * (1.0 + (std::f64::consts::PI * done).cos());
    PEAK_LR * (FINAL_LR + (1.0 - FINAL_LR) * cosine)
}

/// AdamW of candle's weights, which steps the MoE layers along.
#[derive(Debug)]
pub(crate) struct JointAdamW {
    weights: Vec<Var>,
    decaying: AdamW,
    others: AdamW,
}

impl JointAdamW {
    pub(crate) fn new(model: &Model) -> Result<Self, Failure> {
        let AdamWParams { beta1, beta2, eps, weight_decay } = ADAMW;
        let params = ParamsAdamW { lr: 0.0, beta1, beta2, eps, weight_decay };
        let (matrices, others) = model.host_weights();
        let weights = matrices.iter().chain(&others).cloned().collect();
        let decaying = AdamW::new(matrices, params.clone())?;
        let others = AdamW::new(others, ParamsAdamW { weight_decay: 0.0, ..params })?;
        Ok(Self { weights, decaying, others })
    }

    /// Clips the norm of all gradients together, steps everything, and returns that norm.
    ///
    /// # Errors
    /// A norm that is not finite: nothing is stepped then.
    pub(crate) fn step(&mut self, model: &Model, grads: &mut GradStore, lr: f64) -> Result<f64, Failure> {
        let mut norm_sq = 0.0;
        for weight in &self.weights {
            if let Some(grad) = grads.get(weight) {
                norm_sq += f64::from(grad.sqr()?.sum_all()?.to_scalar::<f32>()?);
            }
        }
        for layer in model.moe_layers() {
            norm_sq += layer.with(|l| l.grad_norm_sq())?;
        }
        let norm = norm_sq.sqrt();
        if !norm.is_finite() {
            return Err(Failure::run(format!("{DIVERGED}: the gradient norm is {norm}")));
        }
        let scale = (CLIP_NORM / norm).min(1.0);
        if scale < 1.0 {
            for weight in &self.weights {
                if let Some(grad) = grads.remove(weight) {
                    grads.insert(weight, (grad * scale)?);
                }
            }
        }
        for host in [&mut self.decaying, &mut self.others] {
            host.set_learning_rate(lr);
            host.step(grads)?;
        }
        for layer in model.moe_layers() {
            layer.with(|l| l.step(lr, scale))?;
        }
        Ok(norm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schedule_warms_up_peaks_once_and_ends_low() {
        for steps in [1, 2, 19, 400] {
            let lr = (0..steps).map(|s| learning_rate(s, steps)).collect::<Vec<_>>();
            let peak = lr.iter().copied().fold(0.0, f64::max);
            assert!((peak - PEAK_LR).abs() < 1e-12 && lr.iter().all(|x| *x > 0.0));
            let warm_up = (steps / 20).max(1) as usize;
            assert!(lr[..warm_up].is_sorted() && lr[warm_up..].is_sorted_by(|a, b| a >= b));
        }
        assert!((learning_rate(399, 400) / PEAK_LR - FINAL_LR).abs() < 1e-3);
    }
}
