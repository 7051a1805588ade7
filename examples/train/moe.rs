//! What the host model needs of a Mixture-of-Experts layer, in plain slices: the seam between candle and lrmoe.

use std::sync::{Arc, Mutex};

use lrmoe::{LayerOptions, MoeConfig, RoutedCall, Schedule};

use crate::failure::Failure;

/// Everything that fixes one MoE layer.
#[derive(Debug, Clone)]
pub(crate) struct MoeSpec {
    /// Index of the layer in the model.
    pub(crate) layer: usize,
    pub(crate) config: MoeConfig,
    pub(crate) options: LayerOptions,
    /// How far an expert's correction bias moves in a step, where the router has one.
    pub(crate) bias_step: f32,
    pub(crate) seed: u64,
    pub(crate) adamw: AdamWParams,
}

/// Plans the calls of one layer for ranks that the layer itself knows nothing of.
pub(crate) trait LayerPlanner: Send {
    /// What forward computes and backward keeps of what `call` routed in `step`.
    fn schedule(&mut self, step: u64, call: &RoutedCall<'_>) -> lrmoe::Result<Schedule>;

    /// The pairs, `[tokens, k]`, that backward has kept of the last call.
    fn retained(&mut self, pairs: &[bool]) -> lrmoe::Result<()>;
}

/// A planner that the training loop keeps a handle of.
pub(crate) type SharedPlanner = Arc<Mutex<dyn LayerPlanner>>;

/// AdamW without the learning rate, which the schedule gives at each step; shared by candle's weights and the experts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdamWParams {
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) eps: f64,
    pub(crate) weight_decay: f64,
}

/// What one forward and backward of a layer did.
#[derive(Debug, Clone, Default)]
pub(crate) struct MoeStats {
    /// Routed pairs of each expert.
    pub(crate) counts: Vec<u32>,
    /// Pairs each expert may back-propagate.
    pub(crate) quotas: Vec<u32>,
    /// Pairs each expert did back-propagate.
    pub(crate) retained: Vec<u32>,
    /// Share of the scores that the retained pairs hold.
    pub(crate) kept_score: Option<f64>,
    /// Noise added by selection, relative to the batch's own.
    pub(crate) eta: Option<f64>,
    /// Effective sample size of the pair weights.
    pub(crate) ess: Option<f64>,
    pub(crate) max_weight: Option<f64>,
    pub(crate) aux_loss: Option<f64>,
    /// Whether a NaN entered the backward.
    pub(crate) nan_seen: Option<bool>,
}

/// One MoE layer that owns its experts, their gradients and their optimizer state. Arrays are row-major f32.
pub(crate) trait MoeBlock: Send {
    /// y `[tokens, hidden]` of x `[tokens, hidden]` and router logits `[tokens, experts]`; keeps what `backward` needs.
    fn forward(&mut self, x: &[f32], logits: &[f32], tokens: usize, step: u64) -> Result<Vec<f32>, Failure>;

    /// (dx, d_logits) of dy `[tokens, hidden]` for the last `forward`; adds to the experts' gradients.
    fn backward(&mut self, dy: &[f32]) -> Result<(Vec<f32>, Vec<f32>), Failure>;

    /// As `forward`, keeping nothing.
    fn evaluate(&mut self, x: &[f32], logits: &[f32], tokens: usize) -> Result<Vec<f32>, Failure>;

    /// Squared norm of the experts' gradients.
    fn grad_norm_sq(&mut self) -> Result<f64, Failure>;

    /// One AdamW step with the gradients times `grad_scale`, which are zero afterwards.
    fn step(&mut self, lr: f64, grad_scale: f64) -> Result<(), Failure>;

    /// Has every later training call planned by `planner`.
    fn plan_with(&mut self, planner: SharedPlanner);

    /// What the last forward and backward did.
    fn stats(&self) -> &MoeStats;
}
