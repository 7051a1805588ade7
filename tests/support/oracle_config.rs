//! What the oracle needs from a Hugging Face `config.json`, read on its own.

use serde_json::Value;

/// How logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// Over all experts.
    Softmax,
    /// Each expert by itself.
    Sigmoid,
}

/// Geometry and routing of one MoE block.
#[derive(Debug, Clone, PartialEq)]
pub struct OracleConfig {
    /// H.
    pub hidden_size: usize,
    /// I.
    pub moe_intermediate_size: usize,
    /// E.
    pub num_experts: usize,
    /// k.
    pub top_k: usize,
    /// Score function of the router.
    pub scoring: Scoring,
    /// Divide the kept scores by their sum.
    pub norm_topk_prob: bool,
    /// Added to that sum.
    pub norm_eps: f64,
    /// Multiplies the combine weights.
    pub routed_scaling_factor: f64,
    /// Groups of consecutive experts; 1 is no grouping.
    pub n_group: usize,
    /// Groups that stay.
    pub topk_group: usize,
}

impl OracleConfig {
    /// From the text of a `config.json` of Qwen3-MoE, Qwen2-MoE, Mixtral, GLM-4.5 or DeepSeek-V3.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let json: Value = serde_json::from_str(text).map_err(|e| format!("config: {e}"))?;
        let size = |names: &[&str]| {
            let value = names.iter().find_map(|name| json[name].as_u64());
            value.map(|v| v as usize).ok_or_else(|| format!("config: none of {names:?} is a size"))
        };
        let norm = || json["norm_topk_prob"].as_bool().ok_or("config: `norm_topk_prob` is no boolean".to_string());
        let model_type = json["model_type"].as_str().unwrap_or("missing");
        let softmax = |width: &str, norm_topk_prob| -> Result<Self, String> {
            Ok(Self {
                hidden_size: size(&["hidden_size"])?,
                moe_intermediate_size: size(&[width])?,
                num_experts: size(&["num_experts", "num_local_experts"])?,
                top_k: size(&["num_experts_per_tok"])?,
                scoring: Scoring::Softmax,
                norm_topk_prob,
                norm_eps: 0.0,
                routed_scaling_factor: 1.0,
                n_group: 1,
                topk_group: 1,
            })
        };
        match model_type {
            "qwen3_moe" | "qwen2_moe" => softmax("moe_intermediate_size", norm()?),
            "mixtral" => softmax("intermediate_size", true),
            "glm4_moe" | "deepseek_v3" => Ok(Self {
                hidden_size: size(&["hidden_size"])?,
                moe_intermediate_size: size(&["moe_intermediate_size"])?,
                num_experts: size(&["n_routed_experts", "num_local_experts"])?,
                top_k: size(&["num_experts_per_tok"])?,
                scoring: Scoring::Sigmoid,
                norm_topk_prob: norm()?,
                norm_eps: 1e-20,
                routed_scaling_factor: json["routed_scaling_factor"]
                    .as_f64()
                    .ok_or("config: `routed_scaling_factor` is no number")?,
                n_group: size(&["n_group"])?,
                topk_group: size(&["topk_group"])?,
            }),
            other => Err(format!("config: `model_type` {other} is not known to the oracle")),
        }
    }
}
