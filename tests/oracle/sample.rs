//! Small random blocks that the trials share.

use crate::support::block::{BlockWeights, Swiglu};
use crate::support::linear::Mat;
use crate::support::oracle::Layer;
use crate::support::oracle_config::{OracleConfig, Scoring};
use crate::support::rng::Rng;

/// A router without groups, bias or scaling.
pub(crate) fn config(scoring: Scoring, norm_topk_prob: bool) -> OracleConfig {
    OracleConfig {
        hidden_size: 5,
        moe_intermediate_size: 7,
        num_experts: 8,
        top_k: 3,
        scoring,
        norm_topk_prob,
        norm_eps: if scoring == Scoring::Sigmoid { 1e-20 } else { 0.0 },
        routed_scaling_factor: 1.0,
        n_group: 1,
        topk_group: 1,
    }
}

/// Every kind of router, by name.
pub(crate) fn configs() -> Vec<(&'static str, OracleConfig)> {
    let grouped =
        OracleConfig { n_group: 4, topk_group: 2, routed_scaling_factor: 2.5, ..config(Scoring::Sigmoid, true) };
    vec![
        ("softmax_norm", config(Scoring::Softmax, true)),
        ("softmax", config(Scoring::Softmax, false)),
        ("sigmoid_norm_groups_scaled", grouped.clone()),
        ("sigmoid_groups_scaled", OracleConfig { norm_topk_prob: false, ..grouped }),
        ("every_expert", OracleConfig { top_k: 8, ..config(Scoring::Softmax, true) }),
    ]
}

/// Random weights, with a shared expert of width 4, its gate, and for sigmoid routers a correction bias.
pub(crate) fn layer(config: &OracleConfig, rng: &mut Rng) -> Layer {
    let (h, i) = (config.hidden_size, config.moe_intermediate_size);
    let mut swiglu = |width| Swiglu {
        gate: rng.matrix(width, h, 0.8),
        up: rng.matrix(width, h, 0.8),
        down: rng.matrix(h, width, 0.8),
    };
    let experts = (0..config.num_experts).map(|_| swiglu(i)).collect();
    let shared = Some(swiglu(4));
    let correction_bias = (config.scoring == Scoring::Sigmoid).then(|| rng.matrix(1, config.num_experts, 0.3));
    let router = rng.matrix(config.num_experts, h, 0.7);
    let shared_gate = Some(rng.matrix(1, h, 0.7));
    let weights = BlockWeights { router, correction_bias, experts, shared, shared_gate };
    Layer { config: config.clone(), weights }
}

/// A block with input and output gradient.
pub(crate) struct Sample {
    pub(crate) layer: Layer,
    pub(crate) x: Mat,
    pub(crate) d: Mat,
    pub(crate) mask: Vec<bool>,
}

/// T tokens, the one with index 1 masked.
pub(crate) fn sample(config: &OracleConfig, tokens: usize, seed: u64) -> Sample {
    let mut rng = Rng::new(seed);
    let layer = layer(config, &mut rng);
    let x = rng.matrix(tokens, config.hidden_size, 1.0);
    let d = rng.matrix(tokens, config.hidden_size, 1.0);
    let mask = (0..tokens).map(|t| t != 1).collect();
    Sample { layer, x, d, mask }
}
