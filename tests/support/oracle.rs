//! An independent f64 oracle of one MoE block: gate and forward pass, in plain loops.
//!
//! Backward, losses and selection are in `oracle_backward`, `oracle_losses` and `oracle_select`. Misuse panics, which fails the
//! trial. Symbols: T tokens, H hidden, E experts, k experts per token, I expert width; pair p = t*k + j.

use super::block::{BlockWeights, Swiglu};
use super::golden::BlockCase;
use super::linear::{Mat, add_scaled, dot};
use super::oracle_config::{OracleConfig, Scoring};
use super::store::Tensor;

/// In place of an expert, for the pairs of a masked token.
pub const UNROUTED: usize = usize::MAX;

/// One MoE block in f64.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Geometry and routing.
    pub config: OracleConfig,
    /// Weights; the correction bias is a 1 x E matrix, the shared gate 1 x H.
    pub weights: BlockWeights<Mat>,
}

/// What the gate decided, for every token.
#[derive(Debug, Clone)]
pub struct Routing {
    /// k.
    pub top_k: usize,
    /// [T, E].
    pub logits: Mat,
    /// Softmax or sigmoid of the logits, [T, E]; rows of masked tokens are zero.
    pub scores: Mat,
    /// Selected experts by falling selection score, [T, k]; [`UNROUTED`] for masked tokens.
    pub experts: Vec<usize>,
    /// Combine weights g, [T, k]; 0 for masked tokens.
    pub weights: Vec<f64>,
    /// As Hugging Face's attention mask: false is padding, which is not routed. [T].
    pub mask: Vec<bool>,
}

impl Routing {
    /// T.
    pub fn tokens(&self) -> usize {
        self.mask.len()
    }

    /// Every routed pair as (pair, token, expert), in pair order.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        let pair = |(p, &e)| (e != UNROUTED).then_some((p, p / self.top_k, e));
        self.experts.iter().enumerate().filter_map(pair)
    }

    /// Routed pairs of each expert, [E].
    pub fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.logits.cols];
        self.pairs().for_each(|(_, _, e)| counts[e] += 1);
        counts
    }
}

/// One expert applied to one token.
#[derive(Debug, Clone)]
pub struct Activation {
    /// W_gate x, [I].
    pub a: Vec<f64>,
    /// W_up x, [I].
    pub b: Vec<f64>,
    /// silu(a) * b, [I].
    pub h: Vec<f64>,
    /// W_down h, [H].
    pub out: Vec<f64>,
}

/// The forward pass of one block.
#[derive(Debug, Clone)]
pub struct Forward {
    /// The gate's decisions.
    pub routing: Routing,
    /// By pair; nothing for pairs of masked tokens and for dropped ones.
    pub pairs: Vec<Option<Activation>>,
    /// Sum of g_p out_p, without the shared expert, [T, H].
    pub routed: Mat,
    /// Shared expert by token; nothing for masked tokens or without one.
    pub shared: Vec<Option<Activation>>,
    /// What the shared expert's output is multiplied by, [T].
    pub shared_scale: Vec<f64>,
    /// Block output, [T, H]; rows of masked tokens are zero.
    pub y: Mat,
}

impl Forward {
    /// The activation of a routed pair.
    pub fn pair(&self, p: usize) -> &Activation {
        match &self.pairs[p] {
            Some(activation) => activation,
            None => unreachable!("pair {p} was not computed"),
        }
    }

    /// Every pair that was computed, with weight 1: plain training.
    pub fn computed(&self) -> Vec<(usize, f64)> {
        (0..self.pairs.len()).filter(|&p| self.pairs[p].is_some()).map(|p| (p, 1.0)).collect()
    }
}

impl Layer {
    /// The block of a golden case, with config and weights checked against each other.
    pub fn from_case(case: &BlockCase) -> Result<Self, String> {
        let config = OracleConfig::from_json(&case.config_text)?;
        let geometry = [config.hidden_size, config.num_experts, config.top_k, config.moe_intermediate_size];
        let data = [case.hidden_size, case.num_experts, case.top_k, case.moe_intermediate_size];
        if geometry != data {
            return Err(format!("[H, E, k, I] is {geometry:?} in the config, {data:?} in the data"));
        }
        Ok(Self { config, weights: case.weights.try_map(matrix)? })
    }

    /// Routes every token by the router weight. `mask` as in [`Routing::mask`]; nothing masks nothing.
    pub fn route(&self, x: &Mat, mask: Option<&[bool]>) -> Routing {
        let mut logits = Mat::zeros(x.rows, self.config.num_experts);
        for t in 0..x.rows {
            logits.row_mut(t).copy_from_slice(&self.weights.router.apply(x.row(t)));
        }
        self.route_logits(logits, mask)
    }

    /// Routes every token by logits [T, E] from elsewhere.
    pub fn route_logits(&self, logits: Mat, mask: Option<&[bool]>) -> Routing {
        let bias = self.weights.correction_bias.as_ref().map(|bias| bias.row(0));
        route_by(&self.config, logits, mask, |_, scores| select_experts(&self.config, scores, bias))
    }

    /// Runs every routed pair, and the shared expert for every token that is not masked.
    pub fn forward(&self, x: &Mat, routing: Routing) -> Forward {
        let nothing = vec![false; routing.experts.len()];
        self.forward_dropping(x, routing, &nothing)
    }

    /// As [`Layer::forward`] without the pairs of `dropped`, [T, k]: they add nothing, and the combine weights stay as routed.
    pub fn forward_dropping(&self, x: &Mat, routing: Routing, dropped: &[bool]) -> Forward {
        let mut pairs = vec![None; routing.experts.len()];
        assert_eq!(dropped.len(), pairs.len(), "one drop entry per pair");
        let mut routed = Mat::zeros(x.rows, x.cols);
        for (p, t, e) in routing.pairs().filter(|&(p, ..)| !dropped[p]) {
            let activation = activate(&self.weights.experts[e], x.row(t));
            add_scaled(routed.row_mut(t), routing.weights[p], &activation.out);
            pairs[p] = Some(activation);
        }
        let mut y = routed.clone();
        let mut shared = vec![None; x.rows];
        let mut shared_scale = vec![0.0; x.rows];
        for t in (0..x.rows).filter(|&t| routing.mask[t]) {
            let Some(expert) = &self.weights.shared else { continue };
            let activation = activate(expert, x.row(t));
            shared_scale[t] = self.weights.shared_gate.as_ref().map_or(1.0, |gate| sigmoid(dot(gate.row(0), x.row(t))));
            add_scaled(y.row_mut(t), shared_scale[t], &activation.out);
            shared[t] = Some(activation);
        }
        Forward { routing, pairs, routed, shared, shared_scale, y }
    }
}

/// Routes every token to the experts that `select` names, given the token and its scores; masked tokens are not routed.
pub fn route_by(
    config: &OracleConfig,
    logits: Mat,
    mask: Option<&[bool]>,
    select: impl Fn(usize, &[f64]) -> Vec<usize>,
) -> Routing {
    let (tokens, top_k) = (logits.rows, config.top_k);
    let mask = mask.map_or_else(|| vec![true; tokens], <[bool]>::to_vec);
    assert_eq!(mask.len(), tokens, "one mask entry per token");
    let mut scores = Mat::zeros(tokens, config.num_experts);
    let mut experts = vec![UNROUTED; tokens * top_k];
    let mut weights = vec![0.0; tokens * top_k];
    for t in (0..tokens).filter(|&t| mask[t]) {
        let row = match config.scoring {
            Scoring::Softmax => softmax(logits.row(t)),
            Scoring::Sigmoid => logits.row(t).iter().map(|&z| sigmoid(z)).collect(),
        };
        let selected = select(t, &row);
        weights[t * top_k..(t + 1) * top_k].copy_from_slice(&combine_weights(config, &row, &selected));
        experts[t * top_k..(t + 1) * top_k].copy_from_slice(&selected);
        scores.row_mut(t).copy_from_slice(&row);
    }
    Routing { top_k, logits, scores, experts, weights, mask }
}

/// The k experts of one token: best score plus bias within the best groups, ties to the lower index.
pub fn select_experts(config: &OracleConfig, scores: &[f64], bias: Option<&[f64]>) -> Vec<usize> {
    let mut choice: Vec<f64> = scores.to_vec();
    if let Some(bias) = bias {
        add_scaled(&mut choice, 1.0, bias);
    }
    if config.n_group > 1 {
        let size = config.num_experts / config.n_group;
        let best_two = |group: &[f64]| order_descending(group).iter().take(2).map(|&i| group[i]).sum();
        let group_scores: Vec<f64> = choice.chunks(size).map(best_two).collect();
        for &masked in &order_descending(&group_scores)[config.topk_group..] {
            choice[masked * size..(masked + 1) * size].fill(f64::NEG_INFINITY);
        }
    }
    order_descending(&choice)[..config.top_k].to_vec()
}

/// Combine weights of the selected experts: their scores without bias, normalised and scaled as configured.
pub fn combine_weights(config: &OracleConfig, scores: &[f64], selected: &[usize]) -> Vec<f64> {
    let sum: f64 = selected.iter().map(|&e| scores[e]).sum();
    let divisor = if config.norm_topk_prob { sum + config.norm_eps } else { 1.0 };
    selected.iter().map(|&e| config.routed_scaling_factor * (scores[e] / divisor)).collect()
}

/// Indices by falling value; equal values (0.0 and -0.0 are equal) by rising index, NaN before everything.
pub fn order_descending(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&i, &j| {
        let (a, b) = (values[i], values[j]);
        b.is_nan().cmp(&a.is_nan()).then(b.partial_cmp(&a).unwrap_or(std::cmp::Ordering::Equal)).then(i.cmp(&j))
    });
    order
}

/// exp(z_i) / sum exp(z_j), shifted so that nothing overflows.
pub fn softmax(logits: &[f64]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = logits.iter().map(|z| (z - top).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|e| e / sum).collect()
}

/// 1 / (1 + exp(-z)).
pub fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

/// SwiGLU expert on one token.
pub fn activate(expert: &Swiglu<Mat>, x: &[f64]) -> Activation {
    let a = expert.gate.apply(x);
    let b = expert.up.apply(x);
    let h: Vec<f64> = a.iter().zip(&b).map(|(&a, &b)| a * sigmoid(a) * b).collect();
    let out = expert.down.apply(&h);
    Activation { a, b, h, out }
}

/// A stored tensor as an f64 matrix; a vector becomes one row.
pub fn matrix(tensor: &Tensor) -> Result<Mat, String> {
    match tensor.shape.as_slice() {
        &[cols] => Ok(Mat::new(1, cols, tensor.f64()?)),
        &[rows, cols] => Ok(Mat::new(rows, cols, tensor.f64()?)),
        other => Err(format!("a tensor of shape {other:?} is no matrix")),
    }
}
