//! The small models that stand for the published ones.

use lrmoe::MoeConfig;

use super::options::Balancing;
use crate::cli::Options;
use crate::failure::Failure;

/// A published model, perhaps with other experts, and the small one that keeps its routing and proportions.
#[derive(Debug, Clone)]
pub(crate) struct Geometry {
    pub(crate) real: MoeConfig,
    pub(crate) small: MoeConfig,
    /// Coefficient of the load balancing loss.
    pub(crate) aux_coef: f64,
    /// Step of the correction bias, where the router has one.
    pub(crate) bias_step: f32,
}

/// What DeepSeek-V3 (arXiv 2412.19437) moves an expert's bias by in a step; GLM-4.5 takes the same (arXiv 2508.06471).
const BIAS_STEP: f32 = 1e-3;

impl Geometry {
    /// The model `preset` at the options' width: experts keep their width relative to the model's, to the nearest multiple of four.
    pub(crate) fn new(preset: &str, balancing: Balancing, options: &Options) -> Result<Self, Failure> {
        let published = MoeConfig::preset(preset)?;
        let real = MoeConfig {
            num_experts: options.experts.unwrap_or(published.num_experts),
            num_experts_per_tok: options.top_k.unwrap_or(published.num_experts_per_tok),
            ..published
        };
        let of_four = |width: usize| (width * options.hidden + 2 * real.hidden_size) / (4 * real.hidden_size);
        let scaled = |width: usize| 4 * of_four(width).max(1);
        let small = MoeConfig {
            hidden_size: options.hidden,
            moe_intermediate_size: scaled(real.moe_intermediate_size),
            shared_expert_intermediate_size: match real.shared_expert_intermediate_size {
                0 => 0,
                width => scaled(width),
            },
            num_hidden_layers: options.layers,
            first_k_dense_replace: 0,
            intermediate_size: None,
            ..real.clone()
        };
        small.validate().map_err(|e| Failure::usage(format!("--experts, --top-k: {e}")))?;
        let (loss, bias) = match balancing {
            Balancing::Usual => (1.0, 1.0),
            Balancing::Weak => (0.01, 0.1),
        };
        let bias_step = if real.correction_bias { BIAS_STEP * bias } else { 0.0 };
        Ok(Self { aux_coef: real.router_aux_loss_coef * loss, bias_step, small, real })
    }
}
