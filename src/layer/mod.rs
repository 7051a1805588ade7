//! The Mixture-of-Experts layer on one rank.
//!
//! [`MoeLayer::forward`] computes every routed pair; [`MoeLayer::backward`] computes the pairs that the plan retains. A host that plans
//! for several ranks hands its plan in through [`MoeLayer::forward_scheduled`].

mod backward;
mod forward;
mod kappa;
mod options;
mod params;
mod saved;
mod schedule;
mod statistics;

use std::sync::atomic::{AtomicU64, Ordering};

pub use options::{ForwardContext, LayerOptions, Part, Selection, Trainable};

pub use crate::plan::{Activations, RouterGradient};
pub use params::ParamId;
pub(crate) use params::Params;
pub use saved::{Gradients, Routing, SavedForward};
pub use schedule::{RoutedCall, Schedule};
pub use statistics::{ScoreStatistics, Statistics};

use crate::backend::{Backend, Buffer};
use crate::config::MoeConfig;
use crate::kernel::{SUM_SQUARES_BLOCK, SumSquares};
use crate::losses;
use crate::memory::Category;
use crate::op::Arena;
use crate::op::expert::Bank;
use crate::op::router::Sizes;
use crate::plan::Demand;
use crate::tensor::{DType, HostData};
use crate::weights::MoeWeights;
use crate::{Error, Recording, Result};

static NEXT_UID: AtomicU64 = AtomicU64::new(0);

/// A Mixture-of-Experts layer: router, routed experts, optional shared expert, with their gradients.
#[derive(Debug)]
pub struct MoeLayer<B: Backend> {
    backend: B,
    config: MoeConfig,
    options: LayerOptions,
    params: Params<B>,
    correction_bias: Option<(Vec<f32>, B::Buffer)>,
    demand: Option<Demand>,
    kappa: Vec<f32>,
    uid: u64,
    version: u64,
}

impl<B: Backend> MoeLayer<B> {
    /// A layer with the given weights.
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::Argument`] for bad configuration and options, [`Error::Shape`] where the weights do
    /// not fit the configuration, [`Error::OutOfMemory`].
    pub fn new(backend: &B, config: MoeConfig, weights: MoeWeights, options: LayerOptions) -> Result<Self> {
        config.validate()?;
        options.validate()?;
        weights.check(&config)?;
        let correction_bias = match &weights.correction_bias {
            Some(bias) => {
                let data = HostData::F32(bias.clone());
                Some((bias.clone(), backend.import("correction_bias", data, Category::Weights)?))
            }
            None => None,
        };
        let params = Params::new(backend, weights, options.trainable)?;
        let kappa = vec![0.0; config.num_experts];
        let uid = NEXT_UID.fetch_add(1, Ordering::Relaxed);
        let backend = backend.clone();
        Ok(Self { backend, config, options, params, correction_bias, demand: None, kappa, uid, version: 0 })
    }

    /// The configuration.
    pub fn config(&self) -> &MoeConfig {
        &self.config
    }

    /// The options.
    pub fn options(&self) -> &LayerOptions {
        &self.options
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Smoothed demand of the steps so far: what the next plan starts from.
    pub fn demand(&self) -> Option<&Demand> {
        self.demand.as_ref()
    }

    /// Copies the weights to the host.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn weights(&self) -> Result<MoeWeights> {
        self.params.download(&self.backend, self.correction_bias.as_ref().map(|(host, _)| host.clone()))
    }

    /// Copies an accumulated weight gradient to the host; `None` where there is none since [`MoeLayer::zero_grad`].
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn gradient(&self, id: ParamId) -> Result<Option<Vec<f32>>> {
        match self.params.find(id).filter(|param| param.has_grad).and_then(|param| param.grad.as_ref()) {
            Some(grad) => Ok(Some(self.backend.read_blocking(grad)?.into_f32()?)),
            None => Ok(None),
        }
    }

    /// Forgets the accumulated gradients: the next backward starts anew.
    pub fn zero_grad(&mut self) {
        self.params.zero_grads();
    }

    /// Sum of squares of all accumulated gradients, in f64 and without overflow, so that a host can clip one global norm
    /// over its own parameters and these. NaN or infinite where a gradient is.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn grad_norm_sq(&self) -> Result<f64> {
        let mut rec = Recording::new();
        let arena = self.arena();
        let mut partials = Vec::new();
        for grad in self.params.iter().filter(|param| param.has_grad).filter_map(|param| param.grad.as_ref()) {
            partials.push(sum_squares(&mut rec, arena, "grad_norm", grad)?);
        }
        self.backend.submit(&rec)?;
        let mut sum = 0.0;
        for partial in &partials {
            sum += self.read_sum_squares(partial)?;
        }
        Ok(sum)
    }

    /// The value behind [`sum_squares`], blocking.
    fn read_sum_squares(&self, partial: &B::Buffer) -> Result<f64> {
        let blocks = self.backend.read_blocking(partial)?.into_f32()?;
        let square = |block: &[f32]| f64::from(block[1]) * f64::from(block[0]) * f64::from(block[0]);
        Ok(blocks.chunks_exact(2).map(square).sum())
    }

    /// The correction bias, `[E]`.
    pub fn correction_bias(&self) -> Option<&[f32]> {
        self.correction_bias.as_ref().map(|(host, _)| host.as_slice())
    }

    /// One step of [`losses::correction_bias_step`] with the counts of [`SavedForward::counts`], summed over whatever
    /// ranks and micro-batches share the router.
    ///
    /// # Errors
    /// [`Error::State`] for a router without correction bias, and the errors of [`losses::correction_bias_step`].
    pub fn update_correction_bias(&mut self, counts: &[u64], step: f32) -> Result<()> {
        let Some((host, device)) = &mut self.correction_bias else {
            return Err(Error::State {
                what: "this router has no correction bias".into(),
                fix: "set `correction_bias` in the configuration".into(),
            });
        };
        let mut bias = host.clone();
        losses::correction_bias_step(&mut bias, counts, step)?;
        self.backend.upload(device, 0, &HostData::F32(bias.clone()))?;
        *host = bias;
        Ok(())
    }

    pub(crate) fn params(&self) -> &Params<B> {
        &self.params
    }

    /// To be called by whatever changes the weights: what was saved before no longer fits them.
    pub(crate) fn weights_changed(&mut self) {
        self.version += 1;
    }

    pub(crate) fn uid(&self) -> u64 {
        self.uid
    }

    fn arena(&self) -> Arena<'_, B> {
        Arena { backend: &self.backend }
    }

    fn sizes(&self, tokens: usize) -> Sizes {
        Sizes::new(&self.config, tokens)
    }

    fn experts(&self) -> Result<Bank<B::Buffer>> {
        Ok(Bank {
            gate_up: self.params.weight(ParamId::GateUp)?.clone(),
            down: self.params.weight(ParamId::Down)?.clone(),
            groups: self.config.num_experts,
            hidden: self.config.hidden_size,
            width: self.config.moe_intermediate_size,
        })
    }

    fn shared_expert(&self) -> Result<Option<Bank<B::Buffer>>> {
        let width = self.config.shared_expert_intermediate_size;
        if width == 0 {
            return Ok(None);
        }
        Ok(Some(Bank {
            gate_up: self.params.weight(ParamId::SharedGateUp)?.clone(),
            down: self.params.weight(ParamId::SharedDown)?.clone(),
            groups: 1,
            hidden: self.config.hidden_size,
            width,
        }))
    }
}

/// Sum of squares of all elements, in blocks; not finite where an element is not.
fn sum_squares<B: Backend>(
    rec: &mut Recording<B::Buffer>,
    arena: Arena<'_, B>,
    name: &str,
    x: &B::Buffer,
) -> Result<B::Buffer> {
    let partial = arena.f32(name, &[x.len().div_ceil(SUM_SQUARES_BLOCK), 2], Category::Scratch)?;
    rec.dispatch(SumSquares { len: x.len(), x: x.clone(), partial: partial.clone() })?;
    Ok(partial)
}

/// Checks a `[rows, cols]` input.
fn check_tensor<B: Backend>(
    name: &str,
    tensor: &crate::Tensor<B>,
    (rows, cols): (usize, usize),
    dtypes: &[DType],
) -> Result<()> {
    if (tensor.rows(), tensor.cols()) != (rows, cols) {
        return Err(Error::shape(
            format!("shape of `{name}`"),
            format!("[{}, {}]", tensor.rows(), tensor.cols()),
            format!("[{rows}, {cols}]"),
        ));
    }
    if !dtypes.contains(&tensor.dtype()) {
        return Err(Error::shape(format!("element type of `{name}`"), tensor.dtype(), format!("one of {dtypes:?}")));
    }
    Ok(())
}

const FLOATS: &[DType] = &[DType::F32, DType::BF16, DType::F16];
