//! Router losses of the oracle with their gradients, over one layer or several taken together.

use super::linear::{Mat, add_scaled};
use super::oracle::{Routing, softmax};

/// A loss and its gradient with respect to the logits of each layer, [T, E]; rows of masked tokens are zero.
#[derive(Debug, Clone)]
pub struct RouterLoss {
    /// Without a coefficient.
    pub value: f64,
    /// One per layer.
    pub d_logits: Vec<Mat>,
}

/// Load-balancing loss as Hugging Face defines it: the tokens of all layers are taken together, and over those that are not masked
/// the loss is E * sum_e (pairs of e per token) * (mean softmax probability of e). 0 without tokens.
/// The pairs are those routed, which for a softmax router without bias are the top k of the softmax.
pub fn load_balancing_loss(layers: &[&Routing]) -> RouterLoss {
    let mut d_logits: Vec<Mat> = layers.iter().map(|layer| layer.logits.zeros_like()).collect();
    let tokens = live_tokens(layers);
    if tokens == 0.0 {
        return RouterLoss { value: 0.0, d_logits };
    }
    let num_experts = layers[0].logits.cols;
    let mut pairs_per_token = vec![0.0; num_experts];
    let mut mean_probability = vec![0.0; num_experts];
    for layer in layers {
        layer.pairs().for_each(|(_, _, e)| pairs_per_token[e] += 1.0 / tokens);
        for t in (0..layer.tokens()).filter(|&t| layer.mask[t]) {
            add_scaled(&mut mean_probability, 1.0 / tokens, &softmax(layer.logits.row(t)));
        }
    }
    let scale = num_experts as f64;
    let value = pairs_per_token.iter().zip(&mean_probability).map(|(f, p)| scale * f * p).sum();
    for (layer, d_logits) in layers.iter().zip(&mut d_logits) {
        for t in (0..layer.tokens()).filter(|&t| layer.mask[t]) {
            let p = softmax(layer.logits.row(t));
            let expected: f64 = p.iter().zip(&pairs_per_token).map(|(p, f)| p * f).sum();
            for (e, d) in d_logits.row_mut(t).iter_mut().enumerate() {
                *d = scale / tokens * p[e] * (pairs_per_token[e] - expected);
            }
        }
    }
    RouterLoss { value, d_logits }
}

/// Router z-loss (Zoph et al. 2022, ST-MoE): mean over tokens of the squared log-sum-exp of the logits. 0 without tokens.
pub fn router_z_loss(layers: &[&Routing]) -> RouterLoss {
    let mut d_logits: Vec<Mat> = layers.iter().map(|layer| layer.logits.zeros_like()).collect();
    let tokens = live_tokens(layers);
    let mut value = 0.0;
    for (layer, d_logits) in layers.iter().zip(&mut d_logits) {
        for t in (0..layer.tokens()).filter(|&t| layer.mask[t]) {
            let z = log_sum_exp(layer.logits.row(t));
            value += z * z / tokens;
            add_scaled(d_logits.row_mut(t), 2.0 * z / tokens, &softmax(layer.logits.row(t)));
        }
    }
    RouterLoss { value, d_logits }
}

fn live_tokens(layers: &[&Routing]) -> f64 {
    layers.iter().map(|layer| layer.mask.iter().filter(|&&live| live).count() as f64).sum()
}

fn log_sum_exp(logits: &[f64]) -> f64 {
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    top + logits.iter().map(|z| (z - top).exp()).sum::<f64>().ln()
}
