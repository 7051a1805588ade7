//! Random blocks, as a layer of the crate and as the oracle's, with the same f32 values in both.

use lrmoe::config::ScoringFunc;
use lrmoe::{Backend, HostData, LayerOptions, MoeConfig, MoeLayer, MoeWeights, Tensor};

use crate::support::block::{BlockWeights, Swiglu};
use crate::support::linear::Mat;
use crate::support::oracle::{Forward, Layer};
use crate::support::oracle_config::{OracleConfig, Scoring};
use crate::support::rng::Rng;
use crate::text;

/// A block with an input and an upstream gradient.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    pub(crate) config: MoeConfig,
    pub(crate) weights: MoeWeights,
    pub(crate) oracle: Layer,
    pub(crate) x: Mat,
    pub(crate) dy: Mat,
}

/// Every kind of router and shared expert, by name; H and I are no multiples of 4.
pub(crate) fn kinds() -> Vec<(&'static str, MoeConfig)> {
    let base = MoeConfig::new(13, 7, 8, 3);
    let sigmoid = MoeConfig {
        scoring_func: ScoringFunc::Sigmoid,
        correction_bias: true,
        routed_scaling_factor: 2.5,
        n_group: 4,
        topk_group: 2,
        shared_expert_intermediate_size: 5,
        ..base.clone()
    };
    let shared_gate = MoeConfig { shared_expert_intermediate_size: 6, shared_expert_gate: true, ..base.clone() };
    vec![
        ("softmax", base.clone()),
        ("softmax_unnormalised", MoeConfig { norm_topk_prob: false, ..base.clone() }),
        ("softmax_shared_gate", shared_gate),
        ("sigmoid_groups_bias_shared", sigmoid.clone()),
        ("sigmoid_unnormalised", MoeConfig { norm_topk_prob: false, n_group: 1, topk_group: 1, ..sigmoid }),
        ("every_expert", MoeConfig { num_experts_per_tok: 8, ..base }),
    ]
}

/// The kind of this name.
pub(crate) fn kind(name: &str) -> MoeConfig {
    kinds()
        .into_iter()
        .find(|(other, _)| *other == name)
        .map(|(_, config)| config)
        .unwrap_or_else(|| unreachable!("no kind `{name}`"))
}

/// One expert per token with combine weight 1: dx of a token is its one pair's, times the pair weight. The router gets no
/// gradient, since the combine weight is 1 whatever the logits are.
pub(crate) fn single(hidden: usize, width: usize, experts: usize) -> MoeConfig {
    MoeConfig::new(hidden, width, experts, 1)
}

fn f32_matrix(rng: &mut Rng, rows: usize, cols: usize, std: f64) -> Mat {
    let mut matrix = rng.matrix(rows, cols, std);
    matrix.data.iter_mut().for_each(|v| *v = f64::from(*v as f32));
    matrix
}

/// f64 values that are f32 values.
pub(crate) fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&v| v as f32).collect()
}

fn oracle_config(config: &MoeConfig) -> OracleConfig {
    let sigmoid = config.scoring_func == ScoringFunc::Sigmoid;
    OracleConfig {
        hidden_size: config.hidden_size,
        moe_intermediate_size: config.moe_intermediate_size,
        num_experts: config.num_experts,
        top_k: config.num_experts_per_tok,
        scoring: if sigmoid { Scoring::Sigmoid } else { Scoring::Softmax },
        norm_topk_prob: config.norm_topk_prob,
        norm_eps: if sigmoid { 1e-20 } else { 0.0 },
        routed_scaling_factor: config.routed_scaling_factor,
        n_group: config.n_group,
        topk_group: config.topk_group,
    }
}

impl Block {
    /// Random weights, input and gradient of this seed.
    pub(crate) fn new(config: MoeConfig, tokens: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let (h, e, s) = (config.hidden_size, config.num_experts, config.shared_expert_intermediate_size);
        let mut swiglu = |width: usize| Swiglu {
            gate: f32_matrix(&mut rng, width, h, 1.5 / (h as f64).sqrt()),
            up: f32_matrix(&mut rng, width, h, 1.5 / (h as f64).sqrt()),
            down: f32_matrix(&mut rng, h, width, 1.0 / (width as f64).sqrt()),
        };
        let experts = (0..e).map(|_| swiglu(config.moe_intermediate_size)).collect();
        let shared = (s > 0).then(|| swiglu(s));
        let router = f32_matrix(&mut rng, e, h, 1.0 / (h as f64).sqrt());
        let correction_bias = config.correction_bias.then(|| f32_matrix(&mut rng, 1, e, 0.3));
        let shared_gate = config.shared_expert_gate.then(|| f32_matrix(&mut rng, 1, h, 0.5));
        let oracle = Layer {
            config: oracle_config(&config),
            weights: BlockWeights { router, correction_bias, experts, shared, shared_gate },
        };
        let x = f32_matrix(&mut rng, tokens, h, 1.0);
        let dy = f32_matrix(&mut rng, tokens, h, 1.0);
        Self { config, weights: host_weights(&oracle.weights), oracle, x, dy }
    }

    /// Takes changed oracle weights over into the crate's.
    pub(crate) fn sync(&mut self) {
        self.weights = host_weights(&self.oracle.weights);
    }

    /// A layer of the crate with these weights.
    pub(crate) fn layer<B: Backend>(&self, backend: &B, options: LayerOptions) -> Result<MoeLayer<B>, String> {
        MoeLayer::new(backend, self.config.clone(), self.weights.clone(), options).map_err(text)
    }

    /// The input and the upstream gradient on the device.
    pub(crate) fn tensors<B: Backend>(&self, backend: &B) -> Result<(Tensor<B>, Tensor<B>), String> {
        Ok((tensor(backend, &self.x)?, tensor(backend, &self.dy)?))
    }

    /// The oracle's forward pass.
    pub(crate) fn forward(&self, mask: Option<&[bool]>) -> Forward {
        self.oracle.forward(&self.x, self.oracle.route(&self.x, mask))
    }
}

/// A matrix on the device, rounded to f32.
pub(crate) fn tensor<B: Backend>(backend: &B, matrix: &Mat) -> Result<Tensor<B>, String> {
    Tensor::from_f32(backend, &narrow(&matrix.data), matrix.rows, matrix.cols).map_err(text)
}

fn host_weights(weights: &BlockWeights<Mat>) -> MoeWeights {
    let f32s = |parts: &[&Mat]| HostData::F32(parts.iter().flat_map(|m| narrow(&m.data)).collect());
    let gate_up: Vec<&Mat> = weights.experts.iter().flat_map(|e| [&e.gate, &e.up]).collect();
    let down: Vec<&Mat> = weights.experts.iter().map(|e| &e.down).collect();
    MoeWeights {
        router: Some(f32s(&[&weights.router])),
        correction_bias: weights.correction_bias.as_ref().map(|bias| narrow(&bias.data)),
        gate_up: f32s(&gate_up),
        down: f32s(&down),
        shared_gate_up: weights.shared.as_ref().map(|s| f32s(&[&s.gate, &s.up])),
        shared_down: weights.shared.as_ref().map(|s| f32s(&[&s.down])),
        shared_gate: weights.shared_gate.as_ref().map(|gate| f32s(&[gate])),
    }
}

/// Logits `[T, E]` that send token t to `experts[t]` first.
pub(crate) fn steering_logits(experts: &[usize], num_experts: usize) -> Mat {
    let mut logits = Mat::zeros(experts.len(), num_experts);
    for (t, &e) in experts.iter().enumerate() {
        logits.row_mut(t)[e] = 4.0;
    }
    logits
}
