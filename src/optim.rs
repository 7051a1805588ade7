//! Decoupled AdamW over the weights of a layer.

use crate::backend::{Backend, Buffer};
use crate::kernel::{self, AdamWStep, Cast};
use crate::layer::{MoeLayer, ParamId, Part};
use crate::memory::Category;
use crate::tensor::DType;
use crate::{Error, Recording, Result};

/// Options of [`AdamW`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamWConfig {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Weight decay of the router.
    pub decay_router: f32,
    /// Weight decay of the routed experts.
    pub decay_experts: f32,
    /// Weight decay of the shared expert and its gate.
    pub decay_shared: f32,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.95, eps: 1e-8, decay_router: 0.0, decay_experts: 0.1, decay_shared: 0.1 }
    }
}

impl AdamWConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// [`Error::Argument`] naming the option, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        for (name, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return Err(Error::argument(name, beta, "at least 0 and below 1"));
            }
        }
        if !(self.eps.is_finite() && self.eps > 0.0) {
            return Err(Error::argument("eps", self.eps, "a finite number above 0"));
        }
        let decays = [
            ("decay_router", self.decay_router),
            ("decay_experts", self.decay_experts),
            ("decay_shared", self.decay_shared),
        ];
        for (name, decay) in decays {
            if !(decay.is_finite() && decay >= 0.0) {
                return Err(Error::argument(name, decay, "a finite number, 0 or more"));
            }
        }
        Ok(())
    }

    fn decay(&self, part: Part) -> f32 {
        match part {
            Part::Router => self.decay_router,
            Part::Experts => self.decay_experts,
            Part::Shared => self.decay_shared,
        }
    }
}

/// Moments of one weight, and its f32 master where the weight is stored in 16 bits.
#[derive(Debug)]
struct Moments<B: Backend> {
    id: ParamId,
    master: Option<B::Buffer>,
    m: B::Buffer,
    v: B::Buffer,
    steps: i32,
}

/// AdamW state of the trained parts of one layer.
#[derive(Debug)]
pub struct AdamW<B: Backend> {
    config: AdamWConfig,
    layer_uid: u64,
    moments: Vec<Moments<B>>,
}

impl<B: Backend> AdamW<B> {
    /// Zero moments for every trained weight of `layer`; masters start from its weights.
    ///
    /// # Errors
    /// [`Error::Argument`] for bad options, [`Error::OutOfMemory`].
    pub fn new(layer: &MoeLayer<B>, config: AdamWConfig) -> Result<Self> {
        config.validate()?;
        let backend = layer.backend();
        let mut rec = Recording::new();
        let mut moments = Vec::new();
        for param in layer.params().iter().filter(|param| param.grad.is_some()) {
            let alloc = |name: &str| {
                backend.alloc(&format!("{name}.{}", param.id.name()), DType::F32, param.len(), Category::Optimizer)
            };
            let (m, v) = (alloc("m")?, alloc("v")?);
            rec.fill(&m, 0);
            rec.fill(&v, 0);
            let master = match param.weight.dtype() {
                DType::F32 => None,
                _ => {
                    let master = alloc("master")?;
                    rec.dispatch(Cast { len: param.len(), src: param.weight.clone(), dst: master.clone() })?;
                    Some(master)
                }
            };
            moments.push(Moments { id: param.id, master, m, v, steps: 0 });
        }
        backend.submit(&rec)?;
        Ok(Self { config, layer_uid: layer.uid(), moments })
    }

    /// One step with learning rate `lr` on gradients times `grad_scale` (inverse loss scale times clipping).
    ///
    /// Weights without a gradient since [`MoeLayer::zero_grad`] stay as they are. With `skip` nothing changes at all, for
    /// hosts that found an overflow. Gradients are not cleared.
    ///
    /// # Errors
    /// [`Error::State`] for another layer than the state was made for, [`Error::Argument`] for a rate or scale that is
    /// not finite (or a negative rate); nothing has changed then.
    pub fn step(&mut self, layer: &mut MoeLayer<B>, lr: f32, grad_scale: f32, skip: bool) -> Result<()> {
        if layer.uid() != self.layer_uid {
            return Err(Error::State {
                what: "this optimizer state belongs to another layer".into(),
                fix: "step the layer it was made from".into(),
            });
        }
        if !(lr.is_finite() && lr >= 0.0) {
            return Err(Error::argument("lr", lr, "a finite number, 0 or more"));
        }
        if !grad_scale.is_finite() {
            return Err(Error::argument("grad_scale", grad_scale, "a finite number"));
        }
        if skip {
            return Ok(());
        }
        let mut rec = Recording::new();
        let mut stepped = Vec::new();
        for moments in &self.moments {
            let Some(param) = layer.params().find(moments.id).filter(|param| param.has_grad) else { continue };
            let Some(grad) = &param.grad else { continue };
            let steps = moments.steps.saturating_add(1);
            rec.dispatch(kernel::AdamW {
                len: param.len(),
                step: AdamWStep {
                    lr,
                    beta1: self.config.beta1,
                    beta2: self.config.beta2,
                    eps: self.config.eps,
                    weight_decay: self.config.decay(moments.id.part()),
                    correction1: (1.0 - f64::from(self.config.beta1).powi(steps)) as f32,
                    correction2: (1.0 - f64::from(self.config.beta2).powi(steps)) as f32,
                    grad_scale,
                },
                grad: grad.clone(),
                weight: param.weight.clone(),
                master: moments.master.clone(),
                m: moments.m.clone(),
                v: moments.v.clone(),
            })?;
            stepped.push(moments.id);
        }
        layer.backend().submit(&rec)?;
        for moments in self.moments.iter_mut().filter(|moments| stepped.contains(&moments.id)) {
            moments.steps = moments.steps.saturating_add(1);
        }
        layer.weights_changed();
        Ok(())
    }
}
