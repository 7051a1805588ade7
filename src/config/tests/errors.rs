//! Configs that must be refused, and how.

use serde_json::{Map, Value, json};

use super::{MoeConfig, text};
use crate::error::Error;

/// The file `name` with `changes` made to it; a null removes the field.
fn changed(name: &str, changes: &Value) -> String {
    let mut fields: Map<String, Value> = serde_json::from_str(text(name)).unwrap();
    for (field, value) in changes.as_object().unwrap() {
        if value.is_null() {
            fields.remove(field);
        } else {
            fields.insert(field.clone(), value.clone());
        }
    }
    Value::Object(fields).to_string()
}

#[track_caller]
fn refused(text: &str, field: &str, value: &str, allowed: &str) {
    match MoeConfig::from_hf_json(text) {
        Err(Error::Config { field: f, value: v, allowed: a }) => {
            assert!(f == field && v == value && a == allowed, "got {f:?} is {v:?}; allowed: {a:?}\nin {text}");
        }
        other => panic!("expected {field} to be refused, got {other:?}"),
    }
}

/// Rows: file, what is changed in it, then the error: field, value, allowed.
fn table(rows: &[(&str, Value, &str, &str, &str)]) {
    for (name, changes, field, value, allowed) in rows {
        refused(&changed(name, changes), field, value, allowed);
    }
}

#[test]
fn missing_fields() {
    let int = "an integer";
    table(&[
        (
            "qwen3_norm_a",
            json!({"model_type": null}),
            "model_type",
            "missing",
            "qwen3_moe, qwen2_moe, mixtral, glm4_moe, deepseek_v3",
        ),
        ("qwen3_norm_a", json!({"hidden_size": null}), "hidden_size", "missing", int),
        ("qwen3_norm_a", json!({"moe_intermediate_size": null}), "moe_intermediate_size", "missing", int),
        (
            "qwen3_norm_a",
            json!({"num_local_experts": null}),
            "num_experts",
            "missing",
            "an integer, under this name or num_local_experts or n_routed_experts",
        ),
        ("qwen3_norm_a", json!({"num_experts_per_tok": null}), "num_experts_per_tok", "missing", int),
        ("qwen3_norm_a", json!({"num_hidden_layers": null}), "num_hidden_layers", "missing", int),
        (
            "qwen3_norm_a",
            json!({"intermediate_size": null, "decoder_sparse_step": 4}),
            "intermediate_size",
            "missing",
            "the width of the 6 dense layers",
        ),
        (
            "qwen2_nonorm",
            json!({"shared_expert_intermediate_size": null}),
            "shared_expert_intermediate_size",
            "missing",
            int,
        ),
        (
            "mixtral_b",
            json!({"num_local_experts": null}),
            "num_local_experts",
            "missing",
            "an integer, under this name or num_experts or n_routed_experts",
        ),
        (
            "mixtral_b",
            json!({"intermediate_size": null}),
            "intermediate_size",
            "missing",
            "an integer, under this name or moe_intermediate_size",
        ),
        (
            "dsv3_g8",
            json!({"n_routed_experts": null}),
            "n_routed_experts",
            "missing",
            "an integer, under this name or num_local_experts or num_experts",
        ),
        ("dsv3_g8", json!({"n_shared_experts": null}), "n_shared_experts", "missing", int),
        ("glm_g4", json!({"first_k_dense_replace": null}), "first_k_dense_replace", "missing", int),
        (
            "glm_g4",
            json!({"intermediate_size": null}),
            "intermediate_size",
            "missing",
            "the width of the 1 dense layers",
        ),
    ]);
}

#[test]
fn contradictions() {
    table(&[
        (
            "qwen3_norm_a",
            json!({"num_experts": 8}),
            "num_experts",
            "8 while num_local_experts is 16",
            "one value for num_experts, num_local_experts, n_routed_experts",
        ),
        (
            "dsv3_g8",
            json!({"num_local_experts": 8}),
            "n_routed_experts",
            "64 while num_local_experts is 8",
            "one value for n_routed_experts, num_local_experts, num_experts",
        ),
        (
            "mixtral_b",
            json!({"moe_intermediate_size": 8}),
            "intermediate_size",
            "41 while moe_intermediate_size is 8",
            "one value for intermediate_size, moe_intermediate_size",
        ),
        (
            "ckpt_glm4_moe",
            json!({"torch_dtype": "float16"}),
            "dtype",
            "\"bfloat16\" while torch_dtype is \"float16\"",
            "one value for dtype, torch_dtype",
        ),
        (
            "glm_g4",
            json!({"shared_expert_intermediate_size": 18}),
            "shared_expert_intermediate_size",
            "18",
            "36 or absent: it follows from n_shared_experts * moe_intermediate_size",
        ),
    ]);
    refused(
        r#"{"model_type": "mixtral", "hidden_size": 64, "hidden_size": 65}"#,
        "hidden_size",
        "given twice, as 64 and as 65",
        "one value",
    );
    let agreeing = text("mixtral_b").replacen('{', r#"{"hidden_size": 33, "#, 1);
    assert_eq!(MoeConfig::from_hf_json(&agreeing), MoeConfig::from_hf_json(text("mixtral_b")));
}

#[test]
fn options_a_family_does_not_have() {
    let qwen_greedy = "\"greedy\" or absent: qwen3_moe has no other: it takes the k largest scores";
    table(&[
        (
            "qwen3_norm_a",
            json!({"model_type": "qwen9_moe"}),
            "model_type",
            "\"qwen9_moe\"",
            "qwen3_moe, qwen2_moe, mixtral, glm4_moe, deepseek_v3",
        ),
        ("qwen3_norm_a", json!({"model_type": 3}), "model_type", "3", "a string"),
        (
            "qwen3_norm_a",
            json!({"hidden_act": "gelu"}),
            "hidden_act",
            "\"gelu\"",
            "\"silu\" or absent: experts are SwiGLU",
        ),
        (
            "qwen3_norm_a",
            json!({"scoring_func": "sigmoid"}),
            "scoring_func",
            "\"sigmoid\"",
            "\"softmax\" or absent: qwen3_moe has no other",
        ),
        (
            "dsv3_g8",
            json!({"scoring_func": "tanh"}),
            "scoring_func",
            "\"tanh\"",
            "\"sigmoid\" or absent: deepseek_v3 has no other",
        ),
        ("qwen3_norm_a", json!({"topk_method": "noaux_tc"}), "topk_method", "\"noaux_tc\"", qwen_greedy),
        (
            "dsv3_g8",
            json!({"topk_method": "group_limited_greedy"}),
            "topk_method",
            "\"group_limited_greedy\"",
            "\"noaux_tc\" or absent: deepseek_v3 has no other: it selects by score plus correction bias within the best \
             groups",
        ),
        (
            "dsv3_g8",
            json!({"moe_layer_freq": 2}),
            "moe_layer_freq",
            "2",
            "1 or absent: every layer after the dense ones is an MoE layer",
        ),
        (
            "mixtral_b",
            json!({"norm_topk_prob": false}),
            "norm_topk_prob",
            "false",
            "true or absent: mixtral always normalises",
        ),
        (
            "mixtral_b",
            json!({"router_jitter_noise": 0.1}),
            "router_jitter_noise",
            "0.1",
            "0 or absent: routing is exact, without noise on the router's input",
        ),
    ]);
    let foreign = [
        ("qwen3_norm_a", "qwen3_moe", "n_group", json!(2), "1"),
        ("qwen3_norm_a", "qwen3_moe", "topk_group", json!(2), "1"),
        ("qwen3_norm_a", "qwen3_moe", "routed_scaling_factor", json!(2.5), "1"),
        ("qwen3_norm_a", "qwen3_moe", "first_k_dense_replace", json!(1), "0"),
        ("qwen3_norm_a", "qwen3_moe", "n_shared_experts", json!(1), "0"),
        ("qwen3_norm_a", "qwen3_moe", "shared_expert_intermediate_size", json!(64), "0"),
        ("qwen2_nonorm", "qwen2_moe", "n_shared_experts", json!(1), "0"),
        ("mixtral_b", "mixtral", "decoder_sparse_step", json!(2), "1"),
        ("mixtral_b", "mixtral", "mlp_only_layers", json!([1]), "[]"),
        ("mixtral_b", "mixtral", "shared_expert_intermediate_size", json!("64"), "0"),
        ("glm_g4", "glm4_moe", "decoder_sparse_step", json!(2), "1"),
        ("glm_g4", "glm4_moe", "mlp_only_layers", json!([1]), "[]"),
        ("glm_g4", "glm4_moe", "router_aux_loss_coef", json!(0.5), "0"),
        ("dsv3_g8", "deepseek_v3", "router_aux_loss_coef", json!(0.5), "0"),
    ];
    for (name, family, field, value, neutral) in foreign {
        let allowed = format!("{neutral}, null or absent: {family} has no such option");
        refused(&changed(name, &json!({ field: value })), field, &value.to_string(), &allowed);
    }
}

#[test]
fn absurd_numbers() {
    let sizes = "1..=2147483647";
    table(&[
        ("qwen3_norm_a", json!({"hidden_size": 0}), "hidden_size", "0", sizes),
        ("qwen3_norm_a", json!({"moe_intermediate_size": 0}), "moe_intermediate_size", "0", sizes),
        ("qwen3_norm_a", json!({"num_local_experts": 0}), "num_local_experts", "0", sizes),
        ("qwen3_norm_a", json!({"intermediate_size": 0}), "intermediate_size", "0", sizes),
        ("qwen3_norm_a", json!({"vocab_size": 0}), "vocab_size", "0", sizes),
        ("qwen3_norm_a", json!({"num_hidden_layers": 0}), "num_hidden_layers", "0", "1..=4096"),
        ("qwen3_norm_a", json!({"num_hidden_layers": 5000}), "num_hidden_layers", "5000", "1..=4096"),
        ("qwen3_norm_a", json!({"decoder_sparse_step": 0}), "decoder_sparse_step", "0", "1..=8"),
        ("qwen3_norm_a", json!({"decoder_sparse_step": 9}), "decoder_sparse_step", "9", "1..=8"),
        ("mixtral_b", json!({"intermediate_size": 0}), "intermediate_size", "0", sizes),
        ("mixtral_b", json!({"num_local_experts": 0}), "num_local_experts", "0", sizes),
        ("dsv3_g8", json!({"n_routed_experts": 0}), "n_routed_experts", "0", sizes),
        (
            "qwen3_norm_a",
            json!({"num_experts_per_tok": 17}),
            "num_experts_per_tok",
            "17",
            "1..=16, the value of num_local_experts",
        ),
        (
            "ckpt_qwen3_moe.hub4",
            json!({"num_experts_per_tok": 0}),
            "num_experts_per_tok",
            "0",
            "1..=16, the value of num_experts",
        ),
        (
            "glm_g4",
            json!({"num_experts_per_tok": 17}),
            "num_experts_per_tok",
            "17",
            "1..=16: topk_group (2) groups hold 8 experts each",
        ),
        ("glm_g4", json!({"n_group": 5}), "n_group", "5", "a divisor of n_routed_experts (32)"),
        ("glm_g4", json!({"n_group": 64}), "n_group", "64", "a divisor of n_routed_experts (32)"),
        ("glm_g4", json!({"n_group": 0}), "n_group", "0", "a divisor of n_routed_experts (32)"),
        (
            "glm_g4",
            json!({"n_group": 32}),
            "n_group",
            "32",
            "1, or groups of at least 2 of the 32 experts (n_routed_experts), since a group's score is the sum of its two \
             best",
        ),
        ("glm_g4", json!({"topk_group": 5}), "topk_group", "5", "1..=4, the value of n_group"),
        ("glm_g4", json!({"topk_group": 0}), "topk_group", "0", "1..=4, the value of n_group"),
        (
            "glm_g4",
            json!({"first_k_dense_replace": 8}),
            "first_k_dense_replace",
            "8",
            "0..8: of num_hidden_layers (8), one must be an MoE layer",
        ),
        (
            "qwen3_norm_a",
            json!({"mlp_only_layers": [1, 8]}),
            "mlp_only_layers",
            "a list with 8",
            "entries in 0..8, the value of num_hidden_layers",
        ),
        (
            "ckpt_qwen3_moe",
            json!({"mlp_only_layers": [1, 0, 1]}),
            "mlp_only_layers",
            "[0, 1]",
            "a list that leaves an MoE layer among num_hidden_layers (2), first_k_dense_replace (0) and \
             decoder_sparse_step (1)",
        ),
    ]);
    let scaling = "a finite number above 0, normal as f32";
    for (number, shown) in
        [("0", "0"), ("-2.5", "-2.5"), ("1e300", &format!("{}", 1e300)), ("1e-40", &format!("{}", 1e-40))]
    {
        let text =
            text("glm_g4").replace(r#""routed_scaling_factor": 2.5"#, &format!(r#""routed_scaling_factor": {number}"#));
        refused(&text, "routed_scaling_factor", shown, scaling);
    }
    refused(
        &changed("qwen3_norm_a", &json!({"router_aux_loss_coef": -0.5})),
        "router_aux_loss_coef",
        "-0.5",
        "a finite number, 0 or above",
    );
}

#[test]
fn sizes_that_no_integer_holds() {
    let int = "an integer in 0..=2147483647";
    let huge = 1_u64 << 40;
    table(&[
        ("qwen3_norm_a", json!({"hidden_size": huge}), "hidden_size", "1099511627776", int),
        ("qwen3_norm_a", json!({"hidden_size": u64::MAX}), "hidden_size", "18446744073709551615", int),
        ("mixtral_b", json!({"intermediate_size": huge}), "intermediate_size", "1099511627776", int),
        ("glm_g4", json!({"moe_intermediate_size": huge}), "moe_intermediate_size", "1099511627776", int),
        ("glm_g4", json!({"n_shared_experts": huge}), "n_shared_experts", "1099511627776", int),
        (
            "glm_g4",
            json!({"n_shared_experts": 200_000_000}),
            "n_shared_experts",
            "200000000",
            "at most 2147483647 / moe_intermediate_size (18)",
        ),
        ("qwen3_norm_a", json!({"vocab_size": huge}), "vocab_size", "1099511627776", int),
    ]);
    // Every size alone is fine. Per hidden element of a layer: three projections of every expert, and the router.
    let experts = (1_u128 << 31) - 1;
    let bytes = 16 * 8 * 64 * (3 * experts * (1 << 30) + experts);
    refused(
        &changed("qwen3_norm_a", &json!({"moe_intermediate_size": 1 << 30, "num_local_experts": i32::MAX})),
        "num_local_experts",
        "2147483647",
        &format!(
            "sizes whose weights and optimizer state ({bytes} bytes for 8 layers of 2147483647 experts of 3 * 64 * \
             1073741824) stay below 2^63 bytes"
        ),
    );
}

#[test]
fn wrong_types() {
    let int = "an integer in 0..=2147483647";
    let wrong = [json!(64.0), json!(-1), json!("64"), json!(true), json!([64]), json!({"a": 1})];
    let fields = [
        ("qwen3_norm_a", "hidden_size"),
        ("qwen3_norm_a", "num_local_experts"),
        ("qwen3_norm_a", "num_experts_per_tok"),
        ("qwen3_norm_a", "num_hidden_layers"),
        ("qwen3_norm_a", "decoder_sparse_step"),
        ("qwen3_norm_a", "intermediate_size"),
        ("qwen3_norm_a", "vocab_size"),
        ("qwen2_nonorm", "shared_expert_intermediate_size"),
        ("mixtral_b", "intermediate_size"),
        ("glm_g4", "n_group"),
        ("glm_g4", "topk_group"),
        ("glm_g4", "n_shared_experts"),
        ("glm_g4", "first_k_dense_replace"),
    ];
    for (name, field) in fields {
        for value in &wrong {
            refused(&changed(name, &json!({ field: value })), field, &value.to_string(), int);
        }
    }
    table(&[
        ("qwen3_norm_a", json!({"norm_topk_prob": 1}), "norm_topk_prob", "1", "true or false"),
        ("glm_g4", json!({"norm_topk_prob": "true"}), "norm_topk_prob", "\"true\"", "true or false"),
        ("glm_g4", json!({"routed_scaling_factor": "2.5"}), "routed_scaling_factor", "\"2.5\"", "a number"),
        ("qwen3_norm_a", json!({"router_aux_loss_coef": []}), "router_aux_loss_coef", "[]", "a number"),
        ("qwen3_norm_a", json!({"mlp_only_layers": [0.5]}), "mlp_only_layers", "[0.5]", "a list of layer numbers"),
        ("qwen3_norm_a", json!({"mlp_only_layers": 1}), "mlp_only_layers", "1", "a list of layer numbers"),
        ("qwen3_norm_a", json!({"dtype": "int8"}), "dtype", "\"int8\"", "float32, bfloat16, float16 or null"),
        ("qwen3_norm_a", json!({"torch_dtype": 16}), "torch_dtype", "16", "float32, bfloat16, float16 or null"),
        (
            "qwen3_norm_a",
            json!({"hidden_act": ["silu"]}),
            "hidden_act",
            "[\"silu\"]",
            "\"silu\" or absent: experts are SwiGLU",
        ),
    ]);
    // Null is no size, and no default either.
    for (name, field) in [("qwen3_norm_a", "hidden_size"), ("glm_g4", "n_group"), ("glm_g4", "n_shared_experts")] {
        let number = format!(r#""{field}": "#);
        let (before, after) = text(name).split_once(&number).unwrap();
        let after = after.trim_start_matches(|c: char| c.is_ascii_digit());
        refused(&format!("{before}{number}null{after}"), field, "null", int);
    }
    let long = "x".repeat(1 << 16);
    let Err(Error::Config { value, .. }) = MoeConfig::from_hf_json(&changed("glm_g4", &json!({"hidden_size": long})))
    else {
        panic!("a string is no size");
    };
    assert!(value.len() < 100 && value.ends_with(".."), "{value}");
}

#[test]
fn text_that_is_no_object() {
    let deep = "[".repeat(100_000);
    let nested = format!(r#"{{"model_type": {}"#, r#"{"a": "#.repeat(100_000));
    let giant = format!(r#"{{"hidden_size": {}}}"#, "9".repeat(5000));
    let texts = [
        "",
        " ",
        "null",
        "[]",
        "3",
        "{",
        "{}}",
        r#"{"hidden_size": NaN}"#,
        r#"{"hidden_size": 1e999}"#,
        "\u{feff}{}",
        &deep,
        &nested,
        &giant,
    ];
    for text in texts {
        let error = MoeConfig::from_hf_json(text).unwrap_err();
        let start: String = text.chars().take(40).collect();
        assert!(matches!(&error, Error::Input { what, .. } if what == "config.json"), "{start}: {error}");
        assert!(error.to_string().contains("line"), "{start}: {error}");
    }
    // Beyond u64 but a number: refused as a size, not as text.
    let text = text("mixtral_b").replace(r#""hidden_size": 33"#, r#""hidden_size": 99999999999999999999"#);
    refused(&text, "hidden_size", "1e+20", "an integer in 0..=2147483647");
}

/// What only code can build.
#[test]
fn validate_refuses_what_a_file_cannot_say() {
    let base = MoeConfig::new(64, 24, 16, 4);
    assert_eq!(base.validate(), Ok(()));
    for (size, config) in [
        ("hidden_size", MoeConfig { hidden_size: usize::MAX, ..base.clone() }),
        ("moe_intermediate_size", MoeConfig { moe_intermediate_size: usize::MAX, ..base.clone() }),
        ("num_experts", MoeConfig { num_experts: usize::MAX, ..base.clone() }),
        ("num_hidden_layers", MoeConfig { num_hidden_layers: usize::MAX, ..base.clone() }),
        ("shared_expert_intermediate_size", MoeConfig { shared_expert_intermediate_size: usize::MAX, ..base.clone() }),
        ("vocab_size", MoeConfig { vocab_size: Some(usize::MAX), ..base.clone() }),
    ] {
        let error = config.validate().unwrap_err().to_string();
        assert!(error.starts_with(&format!("config field `{size}` is {}; allowed: ", usize::MAX)), "{error}");
    }
    for factor in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, f64::MIN_POSITIVE, f64::MAX] {
        let error = MoeConfig { routed_scaling_factor: factor, ..base.clone() }.validate().unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("config field `routed_scaling_factor` is {factor};")),
            "{error}"
        );
    }
    for coef in [f64::NAN, f64::INFINITY, -1e-300] {
        let error = MoeConfig { router_aux_loss_coef: coef, ..base.clone() }.validate().unwrap_err();
        assert!(error.to_string().starts_with(&format!("config field `router_aux_loss_coef` is {coef};")), "{error}");
    }
    let gate = MoeConfig { shared_expert_gate: true, ..base.clone() }.validate().unwrap_err();
    assert_eq!(
        gate.to_string(),
        "config field `shared_expert_gate` is true; allowed: false where shared_expert_intermediate_size is 0: there is \
         no shared output to gate"
    );
    // The largest sizes that fit, one by one.
    let wide = MoeConfig::new(i32::MAX as usize, 1, 1, 1);
    assert_eq!(wide.validate(), Ok(()));
    assert_eq!(MoeConfig::new(1, 1, i32::MAX as usize, i32::MAX as usize).validate(), Ok(()));
}
