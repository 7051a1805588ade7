//! Configs that must be accepted, with what they mean; `errors` holds those that must not, `mutations` the rest.

mod errors;
mod mutations;

use super::*;
use crate::error::{Error, Result};

/// The text of a file in `tests/configs`.
macro_rules! file {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/configs/", $name, ".json"))
    };
}

/// Files as transformers wrote them.
pub(super) const FILES: [(&str, &str); 11] = [
    ("qwen3_norm_a", file!("qwen3_norm_a")),
    ("qwen3_nonorm_b", file!("qwen3_nonorm_b")),
    ("qwen2_nonorm", file!("qwen2_nonorm")),
    ("mixtral_b", file!("mixtral_b")),
    ("glm_g4", file!("glm_g4")),
    ("glm_g2_nonorm", file!("glm_g2_nonorm")),
    ("dsv3_g8", file!("dsv3_g8")),
    ("ckpt_qwen3_moe", file!("ckpt_qwen3_moe")),
    ("ckpt_qwen3_moe.hub4", file!("ckpt_qwen3_moe.hub4")),
    ("ckpt_glm4_moe", file!("ckpt_glm4_moe")),
    ("ckpt_glm4_moe.hub4", file!("ckpt_glm4_moe.hub4")),
];

pub(super) fn text(name: &str) -> &'static str {
    FILES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text).unwrap()
}

fn read(name: &str) -> MoeConfig {
    MoeConfig::from_hf_json(text(name)).unwrap()
}

/// What the eight-layer block cases have in common.
fn block(hidden: usize, width: usize, experts: usize, k: usize, dense: usize) -> MoeConfig {
    MoeConfig {
        num_hidden_layers: 8,
        intermediate_size: Some(dense),
        vocab_size: Some(128),
        ..MoeConfig::new(hidden, width, experts, k)
    }
}

fn sigmoid(model_type: ModelType, n_group: usize, topk_group: usize, scale: f64, base: MoeConfig) -> MoeConfig {
    MoeConfig {
        model_type,
        scoring_func: ScoringFunc::Sigmoid,
        correction_bias: true,
        n_group,
        topk_group,
        routed_scaling_factor: scale,
        first_k_dense_replace: 1,
        ..base
    }
}

#[test]
fn every_family_is_read_as_transformers_means_it() {
    let qwen3 = MoeConfig { router_aux_loss_coef: 0.001, ..block(64, 40, 16, 4, 160) };
    assert_eq!(read("qwen3_norm_a"), qwen3);

    let qwen3 = MoeConfig { router_aux_loss_coef: 0.001, norm_topk_prob: false, ..block(128, 37, 9, 2, 148) };
    assert_eq!(read("qwen3_nonorm_b"), qwen3);

    let qwen2 = MoeConfig {
        model_type: ModelType::Qwen2Moe,
        norm_topk_prob: false,
        shared_expert_intermediate_size: 70,
        shared_expert_gate: true,
        router_aux_loss_coef: 0.001,
        ..block(48, 28, 24, 4, 112)
    };
    assert_eq!(read("qwen2_nonorm"), qwen2);

    let mixtral = MoeConfig {
        model_type: ModelType::Mixtral,
        num_hidden_layers: 8,
        router_aux_loss_coef: 0.001,
        intermediate_size: None,
        ..block(33, 41, 12, 3, 1)
    };
    assert_eq!(read("mixtral_b"), mixtral);

    let glm = block(48, 18, 32, 6, 72);
    let glm = MoeConfig { shared_expert_intermediate_size: 36, ..sigmoid(ModelType::Glm4Moe, 4, 2, 2.5, glm) };
    assert_eq!(read("glm_g4"), glm);

    let glm = block(36, 27, 20, 5, 108);
    let glm = MoeConfig {
        norm_topk_prob: false,
        shared_expert_intermediate_size: 27,
        ..sigmoid(ModelType::Glm4Moe, 2, 1, 1.7, glm)
    };
    assert_eq!(read("glm_g2_nonorm"), glm);

    let deepseek = block(40, 14, 64, 8, 56);
    let deepseek =
        MoeConfig { shared_expert_intermediate_size: 14, ..sigmoid(ModelType::DeepseekV3, 8, 4, 2.5, deepseek) };
    assert_eq!(read("dsv3_g8"), deepseek);
}

#[test]
fn both_generations_of_writers_give_the_same_config() {
    let qwen3 = MoeConfig {
        router_aux_loss_coef: 0.001,
        num_hidden_layers: 2,
        intermediate_size: Some(72),
        vocab_size: Some(120),
        dtype: Some(DType::F32),
        ..MoeConfig::new(48, 24, 16, 4)
    };
    assert_eq!(read("ckpt_qwen3_moe"), qwen3);
    assert_eq!(read("ckpt_qwen3_moe.hub4"), qwen3);

    let glm = MoeConfig {
        shared_expert_intermediate_size: 22,
        num_hidden_layers: 2,
        intermediate_size: Some(66),
        vocab_size: Some(100),
        dtype: Some(DType::BF16),
        ..sigmoid(ModelType::Glm4Moe, 1, 1, 2.5, MoeConfig::new(40, 22, 16, 4))
    };
    assert_eq!(read("ckpt_glm4_moe"), glm);
    assert_eq!(read("ckpt_glm4_moe.hub4"), glm);
    assert_eq!(glm.moe_layers().collect::<Vec<_>>(), [1]);
}

/// Shapes of published files, with fields that only their own remote code reads.
#[test]
fn published_spellings_are_taken() {
    let deepseek = MoeConfig::from_hf_json(
        r#"{"model_type": "deepseek_v3", "hidden_size": 7168, "moe_intermediate_size": 2048, "intermediate_size": 18432,
            "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
            "norm_topk_prob": true, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
            "moe_layer_freq": 1, "first_k_dense_replace": 3, "num_hidden_layers": 61, "aux_loss_alpha": 0.001,
            "seq_aux": true, "ep_size": 1, "torch_dtype": "bfloat16", "vocab_size": 129280, "hidden_act": "silu"}"#,
    )
    .unwrap();
    assert_eq!((deepseek.n_group, deepseek.topk_group, deepseek.routed_scaling_factor), (8, 4, 2.5));
    assert_eq!(deepseek.moe_layers().count(), 58);
    assert_eq!(deepseek.routed_parameters().unwrap(), 58 * 256 * 3 * 7168 * 2048);

    // Neutral options of other families, null where classes allow it, several names that agree.
    let qwen3 = MoeConfig::from_hf_json(
        r#"{"model_type": "qwen3_moe", "hidden_size": 64, "moe_intermediate_size": 24, "num_experts": 16,
            "num_local_experts": 16, "num_experts_per_tok": 4, "num_hidden_layers": 4, "intermediate_size": 96,
            "mlp_only_layers": null, "shared_expert_intermediate_size": 0, "n_group": null, "topk_group": 1,
            "routed_scaling_factor": 1.0, "dtype": null, "torch_dtype": "float16", "scoring_func": "softmax"}"#,
    )
    .unwrap();
    assert_eq!((qwen3.num_experts, qwen3.dtype), (16, Some(DType::F16)));
}

#[test]
fn absent_routing_options_have_the_default_of_the_class() {
    let sizes = r#""hidden_size": 64, "num_experts_per_tok": 2, "num_hidden_layers": 4, "intermediate_size": 40"#;
    let deep =
        r#""moe_intermediate_size": 24, "n_routed_experts": 32, "n_shared_experts": 0, "first_k_dense_replace": 0"#;
    let qwen = r#""moe_intermediate_size": 24, "num_experts": 32"#;
    let cases = [
        ("qwen3_moe", qwen, "", (false, 1, 1, 1.0, 0.001)),
        ("qwen2_moe", qwen, r#", "shared_expert_intermediate_size": 8"#, (false, 1, 1, 1.0, 0.001)),
        ("mixtral", r#""num_local_experts": 32"#, "", (true, 1, 1, 1.0, 0.001)),
        ("glm4_moe", deep, "", (true, 1, 1, 1.0, 0.0)),
        ("deepseek_v3", deep, "", (true, 8, 4, 2.5, 0.0)),
    ];
    for (family, fields, more, expected) in cases {
        let c = MoeConfig::from_hf_json(&format!(r#"{{"model_type": "{family}", {sizes}, {fields}{more}}}"#)).unwrap();
        let got = (c.norm_topk_prob, c.n_group, c.topk_group, c.routed_scaling_factor, c.router_aux_loss_coef);
        assert_eq!(got, expected, "{family}");
        assert_eq!((c.decoder_sparse_step, c.mlp_only_layers.len(), c.moe_layers().count()), (1, 0, 4), "{family}");
        assert_eq!((c.vocab_size, c.dtype), (None, None), "{family}");
    }
}

#[test]
fn layers_follow_the_three_rules() {
    let base = MoeConfig { num_hidden_layers: 8, intermediate_size: Some(8), ..MoeConfig::new(4, 4, 4, 2) };
    let layers = |c: &MoeConfig| c.moe_layers().collect::<Vec<_>>();
    assert_eq!(layers(&base), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(layers(&MoeConfig { first_k_dense_replace: 3, ..base.clone() }), [3, 4, 5, 6, 7]);
    assert_eq!(layers(&MoeConfig { decoder_sparse_step: 2, ..base.clone() }), [1, 3, 5, 7]);
    assert_eq!(layers(&MoeConfig { decoder_sparse_step: 3, ..base.clone() }), [2, 5]);
    let some = MoeConfig { decoder_sparse_step: 2, mlp_only_layers: vec![5, 0], ..base.clone() };
    assert_eq!(layers(&some), [1, 3, 7]);
    assert!(!base.is_moe_layer(8) && !base.is_moe_layer(usize::MAX));
    // Unchecked fields must not panic either.
    assert!(layers(&MoeConfig { decoder_sparse_step: 0, ..base.clone() }).is_empty());
    assert!(!MoeConfig { num_hidden_layers: usize::MAX, ..base }.is_moe_layer(usize::MAX));
}

/// The figures are those published or derived for the two models, not recomputed from the presets.
#[test]
fn presets_have_the_published_numbers() {
    let qwen = MoeConfig::preset("qwen3-30b-a3b").unwrap();
    assert_eq!(qwen.expert_parameters(), Ok(4_718_592));
    assert_eq!(qwen.pair_flops(), Ok(9_437_184));
    assert_eq!(qwen.moe_layers().count(), 48);
    assert_eq!(qwen.routed_parameters().unwrap() * 2, 54 << 30);
    assert_eq!(qwen.expert_parameters().unwrap() * 128 * 2 * 8, 9 << 30);
    assert_eq!(qwen.shared_expert_parameters(), Ok(0));
    assert_eq!(qwen.router_parameters(), Ok(262_144));
    assert_eq!(qwen.layer_parameters(), Ok(603_979_776 + 262_144));

    let glm = MoeConfig::preset("glm-4.5-air").unwrap();
    assert_eq!(glm.expert_parameters(), Ok(17_301_504));
    assert_eq!(glm.pair_flops(), Ok(34_603_008));
    assert_eq!(glm.moe_layers().collect::<Vec<_>>(), (1..46).collect::<Vec<_>>());
    assert_eq!(glm.routed_parameters(), Ok(99_656_663_040));
    assert_eq!(glm.shared_expert_parameters(), Ok(17_301_504));
    assert_eq!(glm.expert_parameters().unwrap() * 16, 264 << 20);
}

#[test]
fn presets_equal_their_published_files() {
    let qwen = MoeConfig::from_hf_json(
        r#"{"model_type": "qwen3_moe", "hidden_size": 2048, "moe_intermediate_size": 768, "intermediate_size": 6144,
            "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "router_aux_loss_coef": 0.001,
            "decoder_sparse_step": 1, "mlp_only_layers": [], "num_hidden_layers": 48, "vocab_size": 151936,
            "torch_dtype": "bfloat16", "hidden_act": "silu"}"#,
    );
    assert_eq!(MoeConfig::preset("qwen3-30b-a3b"), qwen);
    let glm = MoeConfig::from_hf_json(
        r#"{"model_type": "glm4_moe", "hidden_size": 4096, "moe_intermediate_size": 1408, "intermediate_size": 10944,
            "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8, "norm_topk_prob": true,
            "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "first_k_dense_replace": 1,
            "num_hidden_layers": 46, "vocab_size": 151552, "torch_dtype": "bfloat16", "hidden_act": "silu"}"#,
    );
    assert_eq!(MoeConfig::preset("glm-4.5-air"), glm);
    for name in MoeConfig::PRESETS {
        MoeConfig::preset(name).unwrap().validate().unwrap();
    }
    assert_eq!(
        MoeConfig::preset("qwen3").unwrap_err().to_string(),
        "argument `preset` is `qwen3`; allowed: qwen3-30b-a3b, glm-4.5-air"
    );
}

#[test]
fn sizes_count_the_gate_of_the_shared_expert_and_never_wrap() {
    let base = MoeConfig { shared_expert_intermediate_size: 7, ..MoeConfig::new(10, 4, 3, 1) };
    assert_eq!(base.shared_expert_parameters(), Ok(210));
    let gated = MoeConfig { shared_expert_gate: true, ..base };
    assert_eq!(gated.shared_expert_parameters(), Ok(220));
    assert_eq!(gated.layer_parameters(), Ok(3 * 3 * 10 * 4 + 220 + 30));

    let huge =
        MoeConfig { shared_expert_intermediate_size: usize::MAX, ..MoeConfig::new(usize::MAX, 1 << 40, 1 << 40, 1) };
    let sizes: [fn(&MoeConfig) -> Result<u64>; 6] = [
        MoeConfig::expert_parameters,
        MoeConfig::shared_expert_parameters,
        MoeConfig::router_parameters,
        MoeConfig::layer_parameters,
        MoeConfig::routed_parameters,
        MoeConfig::pair_flops,
    ];
    for size in sizes {
        let error = size(&huge).unwrap_err();
        assert!(matches!(&error, Error::Overflow { .. }) && error.to_string().contains("hidden_size"), "{error}");
    }
}

#[test]
fn a_config_survives_a_report() {
    for (name, text) in FILES {
        let config = MoeConfig::from_hf_json(text).unwrap();
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<MoeConfig>(&json).unwrap(), config, "{name}");
        assert!(json.contains(&format!(r#""model_type":"{}""#, config.model_type)), "{json}");
        assert!(json.contains(&format!(r#""scoring_func":"{}""#, config.scoring_func)), "{json}");
    }
}
