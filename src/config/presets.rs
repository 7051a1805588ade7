//! Published models.

use super::{ModelType, MoeConfig, ScoringFunc};
use crate::error::{Error, Result};
use crate::tensor::DType;

impl MoeConfig {
    /// Names that [`preset`](Self::preset) knows.
    pub const PRESETS: &[&str] = &["qwen3-30b-a3b", "glm-4.5-air"];

    /// The geometry and routing of a published model.
    ///
    /// # Errors
    /// [`Error::Argument`] listing [`PRESETS`](Self::PRESETS) for any other name.
    pub fn preset(name: &str) -> Result<Self> {
        match name {
            "qwen3-30b-a3b" => Ok(qwen3_30b_a3b()),
            "glm-4.5-air" => Ok(glm_4_5_air()),
            _ => Err(Error::argument("preset", format!("`{name}`"), Self::PRESETS.join(", "))),
        }
    }
}

/// Qwen3-30B-A3B: every layer is an MoE layer.
fn qwen3_30b_a3b() -> MoeConfig {
    MoeConfig {
        router_aux_loss_coef: 0.001,
        num_hidden_layers: 48,
        intermediate_size: Some(6144),
        vocab_size: Some(151_936),
        dtype: Some(DType::BF16),
        ..MoeConfig::new(2048, 768, 128, 8)
    }
}

/// GLM-4.5-Air (106B-A12B): layer 0 is dense; the extra multi-token-prediction layer is not counted.
fn glm_4_5_air() -> MoeConfig {
    MoeConfig {
        model_type: ModelType::Glm4Moe,
        scoring_func: ScoringFunc::Sigmoid,
        correction_bias: true,
        shared_expert_intermediate_size: 1408,
        num_hidden_layers: 46,
        first_k_dense_replace: 1,
        intermediate_size: Some(10_944),
        vocab_size: Some(151_552),
        dtype: Some(DType::BF16),
        ..MoeConfig::new(4096, 1408, 128, 8)
    }
}
