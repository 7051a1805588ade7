//! What a Mixture-of-Experts block is: sizes, routing rule and place in the model.
//!
//! [`MoeConfig`] uses the names of Hugging Face's `config.json`. It comes from a file
//! ([`MoeConfig::from_hf_json`]), from a published model ([`MoeConfig::preset`]) or from code:
//!
//! ```
//! use lrmoe::{MoeConfig, ScoringFunc};
//!
//! let config = MoeConfig {
//!     scoring_func: ScoringFunc::Sigmoid,
//!     correction_bias: true,
//!     ..MoeConfig::new(64, 24, 16, 4)
//! };
//! config.validate()?;
//! assert_eq!(config.expert_parameters()?, 3 * 64 * 24);
//! # Ok::<(), lrmoe::Error>(())
//! ```
//!
//! The fields are public and may hold anything; whatever consumes a config calls
//! [`MoeConfig::validate`] first and may then rely on every size helper succeeding.

mod hf;
mod presets;
mod reader;
mod sizes;
mod validate;

#[cfg(test)]
mod tests;

use crate::tensor::DType;

/// Model family, by the `model_type` of its `config.json`. It decides how checkpoints name their tensors and how
/// [`MoeConfig::from_hf_json`] reads a file; the arithmetic of a block follows from the other fields alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ModelType {
    /// Qwen3-MoE.
    Qwen3Moe,
    /// Qwen2-MoE and Qwen1.5-MoE.
    Qwen2Moe,
    /// Mixtral.
    Mixtral,
    /// GLM-4.5 and its successors of the same code.
    Glm4Moe,
    /// DeepSeek-V3 and R1.
    DeepseekV3,
}

impl ModelType {
    /// Every family that can be read.
    pub const ALL: &[Self] = &[Self::Qwen3Moe, Self::Qwen2Moe, Self::Mixtral, Self::Glm4Moe, Self::DeepseekV3];

    /// The `model_type` of the family's `config.json`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Qwen3Moe => "qwen3_moe",
            Self::Qwen2Moe => "qwen2_moe",
            Self::Mixtral => "mixtral",
            Self::Glm4Moe => "glm4_moe",
            Self::DeepseekV3 => "deepseek_v3",
        }
    }
}

impl std::fmt::Display for ModelType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How router logits become scores in (0, 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoringFunc {
    /// Softmax over all experts of a token.
    Softmax,
    /// Each logit on its own.
    Sigmoid,
}

impl ScoringFunc {
    /// The name in `config.json`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Softmax => "softmax",
            Self::Sigmoid => "sigmoid",
        }
    }

    /// What is added to the sum of a token's k scores before dividing by it (where `norm_topk_prob` holds): 1e-20 for
    /// sigmoid, whose scores may all underflow. Kept softmax scores are at least k/E in sum, unless a correction bias keeps
    /// others than the largest: the smallest normal number leaves every sum as it is but 0.
    pub const fn norm_epsilon(self) -> f32 {
        match self {
            Self::Softmax => f32::MIN_POSITIVE,
            Self::Sigmoid => 1e-20,
        }
    }
}

impl std::fmt::Display for ScoringFunc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One MoE block, and which layers of the model are such blocks.
///
/// Sizes count elements, not bytes. In the docs of this crate H, I, E, k stand for `hidden_size`,
/// `moe_intermediate_size`, `num_experts`, `num_experts_per_tok`.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoeConfig {
    /// Model family: naming of tensors in checkpoints.
    pub model_type: ModelType,
    /// H: width of a token row.
    pub hidden_size: usize,
    /// I: inner width of one routed expert (Mixtral's files call it `intermediate_size`).
    pub moe_intermediate_size: usize,
    /// E: routed experts of a layer.
    pub num_experts: usize,
    /// k: experts selected per token.
    pub num_experts_per_tok: usize,
    /// Divide the k combine weights of a token by their sum plus [`ScoringFunc::norm_epsilon`].
    pub norm_topk_prob: bool,
    /// How logits become scores.
    pub scoring_func: ScoringFunc,
    /// Groups of E / n_group consecutive experts; 1 switches group limiting off.
    pub n_group: usize,
    /// Groups a token may choose from: those with the largest sum of their two best selection scores.
    pub topk_group: usize,
    /// Factor on the combine weights, after normalisation and also without it.
    pub routed_scaling_factor: f64,
    /// Selection (not the combine weights) adds a per-expert f32 `e_score_correction_bias` `[E]` to the scores.
    pub correction_bias: bool,
    /// Total inner width of the shared experts every token passes through; 0 where there are none. Files that count
    /// `n_shared_experts` mean that many times `moe_intermediate_size`.
    pub shared_expert_intermediate_size: usize,
    /// Multiply the shared output by sigmoid(x . w), w `[1, H]` (Qwen2-MoE).
    pub shared_expert_gate: bool,
    /// Factor of the load-balancing loss where the host adds that loss (Hugging Face does if `output_router_logits`).
    pub router_aux_loss_coef: f64,
    /// Layers of the model, dense ones included.
    pub num_hidden_layers: usize,
    /// The first so many layers are dense.
    pub first_k_dense_replace: usize,
    /// Of the other layers, those with (layer + 1) divisible by this are MoE layers.
    pub decoder_sparse_step: usize,
    /// Layers that are dense whatever the other rules say.
    pub mlp_only_layers: Vec<usize>,
    /// Inner width of dense layers. `None` where the file does not say (allowed if there are none) and for Mixtral.
    pub intermediate_size: Option<usize>,
    /// Tokens of the vocabulary, where known.
    pub vocab_size: Option<usize>,
    /// Element type the checkpoint is stored in, where known (`dtype`, formerly `torch_dtype`).
    pub dtype: Option<DType>,
}

impl MoeConfig {
    /// A one-layer Qwen3-like block: softmax scores, normalised top-k weights, no groups, no correction bias, no shared
    /// expert, no auxiliary loss. Change the rest by struct update. Nothing is checked here: see
    /// [`validate`](Self::validate).
    pub const fn new(
        hidden_size: usize,
        moe_intermediate_size: usize,
        num_experts: usize,
        num_experts_per_tok: usize,
    ) -> Self {
        Self {
            model_type: ModelType::Qwen3Moe,
            hidden_size,
            moe_intermediate_size,
            num_experts,
            num_experts_per_tok,
            norm_topk_prob: true,
            scoring_func: ScoringFunc::Softmax,
            n_group: 1,
            topk_group: 1,
            routed_scaling_factor: 1.0,
            correction_bias: false,
            shared_expert_intermediate_size: 0,
            shared_expert_gate: false,
            router_aux_loss_coef: 0.0,
            num_hidden_layers: 1,
            first_k_dense_replace: 0,
            decoder_sparse_step: 1,
            mlp_only_layers: Vec::new(),
            intermediate_size: None,
            vocab_size: None,
            dtype: None,
        }
    }

    /// Whether layer `layer` (from 0) is an MoE block. False from `num_hidden_layers` on.
    pub fn is_moe_layer(&self, layer: usize) -> bool {
        layer < self.num_hidden_layers
            && layer >= self.first_k_dense_replace
            && layer.checked_add(1).and_then(|n| n.checked_rem(self.decoder_sparse_step)) == Some(0)
            && !self.mlp_only_layers.contains(&layer)
    }

    /// The MoE layers, ascending.
    pub fn moe_layers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.num_hidden_layers).filter(|&layer| self.is_moe_layer(layer))
    }
}
