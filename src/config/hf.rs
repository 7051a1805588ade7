//! `config.json` of Hugging Face checkpoints.

use serde_json::{Value, json};

use super::reader::Reader;
use super::validate::{MAX_SIZE, Spelling};
use super::{ModelType, MoeConfig, ScoringFunc};
use crate::error::{Error, Result};

/// Routing options a file may leave out: the defaults of the family's config class in transformers.
struct Defaults {
    norm_topk_prob: bool,
    n_group: usize,
    topk_group: usize,
    routed_scaling_factor: f64,
    router_aux_loss_coef: f64,
}

impl ModelType {
    const fn defaults(self) -> Defaults {
        let softmax = Defaults {
            norm_topk_prob: false,
            n_group: 1,
            topk_group: 1,
            routed_scaling_factor: 1.0,
            router_aux_loss_coef: 0.001,
        };
        match self {
            Self::Qwen3Moe | Self::Qwen2Moe => softmax,
            Self::Mixtral => Defaults { norm_topk_prob: true, ..softmax },
            Self::Glm4Moe => Defaults { norm_topk_prob: true, router_aux_loss_coef: 0.0, ..softmax },
            Self::DeepseekV3 => Defaults {
                norm_topk_prob: true,
                n_group: 8,
                topk_group: 4,
                routed_scaling_factor: 2.5,
                router_aux_loss_coef: 0.0,
            },
        }
    }

    const fn scoring_func(self) -> ScoringFunc {
        match self {
            Self::Qwen3Moe | Self::Qwen2Moe | Self::Mixtral => ScoringFunc::Softmax,
            Self::Glm4Moe | Self::DeepseekV3 => ScoringFunc::Sigmoid,
        }
    }

    /// Names of the number of routed experts, the family's own first. All writers' names are taken in all families.
    const fn expert_names(self) -> [&'static str; 3] {
        match self {
            Self::Qwen3Moe | Self::Qwen2Moe => ["num_experts", "num_local_experts", "n_routed_experts"],
            Self::Mixtral => ["num_local_experts", "num_experts", "n_routed_experts"],
            Self::Glm4Moe | Self::DeepseekV3 => ["n_routed_experts", "num_local_experts", "num_experts"],
        }
    }

    /// Names of the width of a routed expert.
    const fn width_names(self) -> &'static [&'static str] {
        match self {
            Self::Mixtral => &["intermediate_size", "moe_intermediate_size"],
            _ => &["moe_intermediate_size"],
        }
    }

    /// Fields of other families, each with the only value that asks for nothing here.
    fn foreign_fields(self) -> Vec<(&'static str, Value)> {
        let no_groups = [
            ("n_group", json!(1)),
            ("topk_group", json!(1)),
            ("routed_scaling_factor", json!(1)),
            ("first_k_dense_replace", json!(0)),
            ("n_shared_experts", json!(0)),
        ];
        let no_sparse_step = [("decoder_sparse_step", json!(1)), ("mlp_only_layers", json!([]))];
        let no_shared_width = ("shared_expert_intermediate_size", json!(0));
        match self {
            Self::Qwen2Moe => no_groups.into(),
            Self::Qwen3Moe => no_groups.into_iter().chain([no_shared_width]).collect(),
            Self::Mixtral => no_groups.into_iter().chain(no_sparse_step).chain([no_shared_width]).collect(),
            Self::Glm4Moe | Self::DeepseekV3 => {
                no_sparse_step.into_iter().chain([("router_aux_loss_coef", json!(0))]).collect()
            }
        }
    }
}

impl MoeConfig {
    /// Reads the `config.json` of a Qwen3-MoE, Qwen2-MoE, Mixtral, GLM-4.5 or DeepSeek-V3 checkpoint.
    ///
    /// The meaning is that of the family's MoE block in transformers, whichever version wrote the file:
    ///
    /// | `model_type` | scores | normalised | expert width | shared experts | MoE layers |
    /// |---|---|---|---|---|---|
    /// | `qwen3_moe` | softmax | `norm_topk_prob` | `moe_intermediate_size` | none | `decoder_sparse_step`, `mlp_only_layers` |
    /// | `qwen2_moe` | softmax | `norm_topk_prob` | `moe_intermediate_size` | `shared_expert_intermediate_size`, gated | as Qwen3 |
    /// | `mixtral` | softmax | always | `intermediate_size` | none | all |
    /// | `glm4_moe`, `deepseek_v3` | sigmoid, correction bias, groups, scaled | `norm_topk_prob` | `moe_intermediate_size` | `n_shared_experts` times that | from `first_k_dense_replace` on |
    ///
    /// - The number of experts may be called `num_experts`, `num_local_experts` or `n_routed_experts`; the element type
    ///   `dtype` or `torch_dtype`. Several at once must agree.
    /// - Whatever fixes a tensor's shape or the set of MoE layers must be stated. Left out, `decoder_sparse_step` is 1,
    ///   `mlp_only_layers` empty, `hidden_act` silu, and routing options have the default of the family's config class:
    ///
    /// | absent | `qwen3_moe`, `qwen2_moe` | `mixtral` | `glm4_moe` | `deepseek_v3` |
    /// |---|---|---|---|---|
    /// | `norm_topk_prob` | false | (always true) | true | true |
    /// | `n_group`, `topk_group` | - | - | 1, 1 | 8, 4 |
    /// | `routed_scaling_factor` | - | - | 1.0 | 2.5 |
    /// | `router_aux_loss_coef` | 0.001 | 0.001 | (no such loss) | (no such loss) |
    ///
    /// - An option of another family is refused unless its value asks for nothing (`n_group` 1 in a Qwen file, say).
    /// - Fields of other parts of the model are not looked at, nor is DeepSeek's `aux_loss_alpha`, whose loss
    ///   transformers does not have.
    ///
    /// # Errors
    /// [`Error::Input`] where the text is no JSON object; otherwise [`Error::Config`] with the field as the file spells
    /// it, its value and what is allowed. The result has passed [`validate`](Self::validate).
    pub fn from_hf_json(text: &str) -> Result<Self> {
        let file = Reader::parse(text)?;
        let family = model_type(&file)?;
        check_options(&file, family)?;

        let (experts_name, num_experts) = file.required(&family.expert_names())?;
        let (width_name, width) = file.required(family.width_names())?;
        let (_, hidden_size) = file.required(&["hidden_size"])?;
        let (_, num_experts_per_tok) = file.required(&["num_experts_per_tok"])?;
        let (_, num_hidden_layers) = file.required(&["num_hidden_layers"])?;
        let defaults = family.defaults();
        let common = Self {
            model_type: family,
            norm_topk_prob: file.bool("norm_topk_prob")?.unwrap_or(defaults.norm_topk_prob),
            scoring_func: family.scoring_func(),
            router_aux_loss_coef: file.float("router_aux_loss_coef")?.unwrap_or(defaults.router_aux_loss_coef),
            num_hidden_layers,
            vocab_size: file.int("vocab_size")?,
            dtype: file.one_of(&["dtype", "torch_dtype"], Reader::dtype)?.map(|(_, dtype)| dtype),
            ..Self::new(hidden_size, width, num_experts, num_experts_per_tok)
        };
        let config = match family {
            ModelType::Mixtral => common,
            ModelType::Qwen3Moe | ModelType::Qwen2Moe => qwen(&file, common)?,
            ModelType::Glm4Moe | ModelType::DeepseekV3 => grouped(&file, common, &defaults)?,
        };
        config.validate_as(&Spelling { num_experts: experts_name, moe_intermediate_size: width_name })?;
        Ok(config)
    }
}

fn model_type(file: &Reader) -> Result<ModelType> {
    let name = file.string("model_type")?;
    let known = ModelType::ALL.iter().find(|known| name.as_deref() == Some(known.as_str()));
    known.copied().ok_or_else(|| {
        let value = name.map_or_else(|| "missing".to_owned(), |name| json!(name).to_string());
        let allowed: Vec<&str> = ModelType::ALL.iter().map(|known| known.as_str()).collect();
        Error::config("model_type", value, allowed.join(", "))
    })
}

/// Options with one possible value in a family.
fn check_options(file: &Reader, family: ModelType) -> Result<()> {
    let scoring = family.scoring_func();
    let (topk_method, topk_why) = match scoring {
        ScoringFunc::Softmax => ("greedy", "it takes the k largest scores"),
        ScoringFunc::Sigmoid => ("noaux_tc", "it selects by score plus correction bias within the best groups"),
    };
    file.only("hidden_act", &[json!("silu")], "experts are SwiGLU")?;
    file.only("scoring_func", &[json!(scoring.as_str())], &format!("{family} has no other"))?;
    file.only("topk_method", &[json!(topk_method)], &format!("{family} has no other: {topk_why}"))?;
    file.only("moe_layer_freq", &[json!(1)], "every layer after the dense ones is an MoE layer")?;
    if family == ModelType::Mixtral {
        file.only("norm_topk_prob", &[json!(true)], "mixtral always normalises")?;
        file.only("router_jitter_noise", &[json!(0)], "routing is exact, without noise on the router's input")?;
    }
    for (field, neutral) in family.foreign_fields() {
        file.only(field, &[neutral, Value::Null], &format!("{family} has no such option"))?;
    }
    Ok(())
}

/// Qwen: dense layers by step and by list; Qwen2 has one gated shared expert.
fn qwen(file: &Reader, common: MoeConfig) -> Result<MoeConfig> {
    let mut mlp_only_layers = file.int_list("mlp_only_layers")?.unwrap_or_default();
    mlp_only_layers.sort_unstable();
    mlp_only_layers.dedup();
    let shared = match common.model_type {
        ModelType::Qwen2Moe => file.required(&["shared_expert_intermediate_size"])?.1,
        _ => 0,
    };
    Ok(MoeConfig {
        shared_expert_intermediate_size: shared,
        shared_expert_gate: shared > 0,
        decoder_sparse_step: file.int("decoder_sparse_step")?.unwrap_or(common.decoder_sparse_step),
        mlp_only_layers,
        intermediate_size: file.int("intermediate_size")?,
        ..common
    })
}

/// GLM-4.5 and DeepSeek-V3: group-limited selection by biased sigmoid scores, ungated shared experts.
fn grouped(file: &Reader, common: MoeConfig, defaults: &Defaults) -> Result<MoeConfig> {
    let (_, n_shared_experts) = file.required(&["n_shared_experts"])?;
    let (_, first_k_dense_replace) = file.required(&["first_k_dense_replace"])?;
    let width = common.moe_intermediate_size;
    // Checked here rather than in validate, so that the error names the field of the file and not the product.
    let shared = n_shared_experts.checked_mul(width).filter(|&n| n <= MAX_SIZE).ok_or_else(|| {
        let allowed = format!("at most {MAX_SIZE} / moe_intermediate_size ({width})");
        Error::config("n_shared_experts", n_shared_experts, allowed)
    })?;
    let why = "it follows from n_shared_experts * moe_intermediate_size";
    file.only("shared_expert_intermediate_size", &[json!(shared)], why)?;
    Ok(MoeConfig {
        n_group: file.int("n_group")?.unwrap_or(defaults.n_group),
        topk_group: file.int("topk_group")?.unwrap_or(defaults.topk_group),
        routed_scaling_factor: file.float("routed_scaling_factor")?.unwrap_or(defaults.routed_scaling_factor),
        correction_bias: true,
        shared_expert_intermediate_size: shared,
        first_k_dense_replace,
        intermediate_size: file.int("intermediate_size")?,
        ..common
    })
}
