//! What stays the same from step to step: the layer, the cluster, and what is asked for.

use super::cluster::ClusterSpec;
use super::mode::{Activations, Ownership, RouterGradient};
use super::options::PlanOptions;
use crate::config::MoeConfig;
use crate::tensor::DType;
use crate::{Error, Result};

/// Everything a policy knows before the first step.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Setup {
    /// Geometry of the layer.
    pub config: MoeConfig,
    /// Type of weights and of the rows that are exchanged.
    pub dtype: DType,
    /// The machine.
    pub cluster: ClusterSpec,
    /// Retention and quotas.
    pub options: PlanOptions,
    /// MoE layers that share a rank's budget, taken to need as much as the planned one.
    pub layers: usize,
    /// What forward keeps; `None` leaves it to the plan.
    pub activations: Option<Activations>,
    /// Who owns the optimizer state; `None` leaves it to the policy when it starts.
    pub ownership: Option<Ownership>,
    /// What the router's gradient needs.
    pub router_gradient: RouterGradient,
    /// Optimizer state lives in host memory: it takes no device memory, and its traffic crosses the host link.
    pub optimizer_offload: bool,
    /// Factor on the bytes of the counters that selection reduces over ranks, above 0: 1, but where a small model stands for a real one,
    /// since their number does not shrink with the model; see [`ScaledCluster`](super::ScaledCluster).
    pub counter_scale: f64,
}

impl Setup {
    /// A setup with default options: bf16 unless the config names a type, every MoE layer of the model on the budget.
    ///
    /// # Errors
    /// [`Error::Config`] or [`Error::Argument`] naming the first field of either that is out of range.
    pub fn new(config: MoeConfig, cluster: ClusterSpec) -> Result<Self> {
        let setup = Self {
            dtype: config.dtype.unwrap_or(DType::BF16),
            layers: config.moe_layers().count().max(1),
            options: PlanOptions::default(),
            activations: None,
            ownership: None,
            router_gradient: RouterGradient::default(),
            optimizer_offload: false,
            counter_scale: 1.0,
            config,
            cluster,
        };
        setup.validate()?;
        Ok(setup)
    }

    /// Checks every field.
    ///
    /// # Errors
    /// As [`Setup::new`].
    pub fn validate(&self) -> Result<()> {
        self.config.validate()?;
        self.cluster.validate()?;
        self.options.validate()?;
        if !self.dtype.is_float() {
            return Err(Error::argument("setup.dtype", self.dtype, "f32, bf16 or f16"));
        }
        if !(self.counter_scale.is_finite() && self.counter_scale > 0.0) {
            return Err(Error::argument("setup.counter_scale", self.counter_scale, "a finite number > 0"));
        }
        if self.layers == 0 || self.layers > 1 << 16 {
            return Err(Error::argument("setup.layers", self.layers, "1 to 65536"));
        }
        Ok(())
    }

    /// Bytes of one expert's weights in the compute type.
    ///
    /// # Errors
    /// [`Error::Overflow`] for a config that was not validated.
    pub fn weight_bytes(&self) -> Result<u64> {
        self.expert_bytes(self.dtype.bytes() as u64)
    }

    /// Bytes of one expert's gradient, f32.
    ///
    /// # Errors
    /// As [`Setup::weight_bytes`].
    pub fn gradient_bytes(&self) -> Result<u64> {
        self.expert_bytes(4)
    }

    fn expert_bytes(&self, each: u64) -> Result<u64> {
        let parameters = self.config.expert_parameters()?;
        parameters.checked_mul(each).ok_or_else(|| Error::Overflow {
            what: "bytes of an expert".into(),
            detail: format!("{parameters} parameters of {each} bytes pass 64 bits"),
        })
    }

    /// Bytes of optimizer state a parameter: two f32 moments, and an f32 master where the weights are not f32 themselves.
    #[must_use]
    pub const fn state_bytes(&self) -> u64 {
        if matches!(self.dtype, DType::F32) { 8 } else { 12 }
    }

    /// Tokens of a rank with so many pairs.
    #[must_use]
    pub const fn tokens(&self, pairs: u64) -> u64 {
        match self.config.num_experts_per_tok {
            0 => 0,
            top_k => pairs.div_ceil(top_k as u64),
        }
    }
}
