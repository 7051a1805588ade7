//! Backward pass of the oracle: per-pair contributions, weighted retained sets, router gradient and its estimator.

use super::block::{BlockWeights, Swiglu};
use super::linear::{Mat, add_scaled, dot, norm};
use super::oracle::{Activation, Forward, Layer, Routing, UNROUTED, sigmoid};
use super::oracle_config::{OracleConfig, Scoring};

/// Where dL/d(combine weight) of a pair comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouterGradient {
    /// <d_t, out_p> for every pair.
    Exact,
    /// With c_t = <d_t, y_t routed> / sum_j g_tj: c_t for a dropped pair, c_t + w (<u, h> - c_t) for a retained one.
    Estimated,
}

/// Gradients of one block.
#[derive(Debug, Clone)]
pub struct Gradients {
    /// dL/d(weight), in the shapes of the weights; the correction bias has none.
    pub weights: BlockWeights<Mat>,
    /// dL/dx, [T, H].
    pub dx: Mat,
    /// dL/d(combine weight), [T, k]; 0 for masked tokens and dropped pairs.
    pub d_topk_weights: Vec<f64>,
    /// dL/d(router logit), [T, E].
    pub d_router_logits: Mat,
}

/// The gradient contribution of one expert application with output gradient `scale * d`, as factors of rank-1 matrices.
#[derive(Debug, Clone)]
pub struct Contribution {
    /// Gradient of a, [I]: dW_gate = da x^T.
    pub da: Vec<f64>,
    /// Gradient of b, [I]: dW_up = db x^T.
    pub db: Vec<f64>,
    /// Gradient of the expert's output, [H]: dW_down = d_out h^T.
    pub d_out: Vec<f64>,
    /// Gradient of x, [H].
    pub dx: Vec<f64>,
    /// <u, h> with u = W_down^T d, not scaled: equals <d, out>.
    pub u_dot_h: f64,
}

impl Contribution {
    /// Of one expert on one token x, whose output is multiplied by `scale` and then has gradient d.
    pub fn new(expert: &Swiglu<Mat>, x: &[f64], activation: &Activation, scale: f64, d: &[f64]) -> Self {
        assert_eq!(x.len(), d.len(), "x and d are rows of one width");
        let u = expert.down.apply_transposed(d);
        let width = u.len();
        let (mut da, mut db) = (vec![0.0; width], vec![0.0; width]);
        for i in 0..width {
            let (a, b, s) = (activation.a[i], activation.b[i], sigmoid(activation.a[i]));
            da[i] = scale * u[i] * b * (s + a * s * (1.0 - s));
            db[i] = scale * u[i] * a * s;
        }
        let mut dx = expert.gate.apply_transposed(&da);
        add_scaled(&mut dx, 1.0, &expert.up.apply_transposed(&db));
        let d_out = d.iter().map(|d| scale * d).collect();
        Self { da, db, d_out, dx, u_dot_h: dot(&u, &activation.h) }
    }

    /// grads += weight * (this contribution's weight gradients).
    pub fn add_to(&self, grads: &mut Swiglu<Mat>, weight: f64, x: &[f64], h: &[f64]) {
        grads.gate.add_outer(weight, &self.da, x);
        grads.up.add_outer(weight, &self.db, x);
        grads.down.add_outer(weight, &self.d_out, h);
    }

    /// Frobenius norms of the gate, up and down weight gradients.
    pub fn norms(&self, x: &[f64], h: &[f64]) -> [f64; 3] {
        [norm(&self.da) * norm(x), norm(&self.db) * norm(x), norm(&self.d_out) * norm(h)]
    }
}

impl Layer {
    /// The contribution of routed pair p, its combine weight included and no pair weight.
    pub fn contribution(&self, x: &Mat, forward: &Forward, d: &Mat, p: usize) -> Contribution {
        let (t, e) = (p / forward.routing.top_k, forward.routing.experts[p]);
        assert_ne!(e, UNROUTED, "pair {p} belongs to a masked token");
        Contribution::new(&self.weights.experts[e], x.row(t), forward.pair(p), forward.routing.weights[p], d.row(t))
    }

    /// Gradients for output gradient d [T, H] from the retained pairs (pair, pair weight) alone; the shared expert is never sampled.
    /// The pair weight multiplies the pair's output gradient once, and so everything that comes from it.
    pub fn backward(
        &self,
        x: &Mat,
        forward: &Forward,
        d: &Mat,
        retained: &[(usize, f64)],
        router: RouterGradient,
    ) -> Gradients {
        let mut grads = self.expert_backward(x, forward, d, retained);
        grads.d_topk_weights = router_pair_gradients(forward, d, retained, router);
        let d_logits = gate_backward(&self.config, &forward.routing, &grads.d_topk_weights);
        self.add_router_gradient(&mut grads, x, &forward.routing, &d_logits);
        grads
    }

    /// The part of [`Layer::backward`] that does not go through the router: experts, shared expert and its gate.
    pub fn expert_backward(&self, x: &Mat, forward: &Forward, d: &Mat, retained: &[(usize, f64)]) -> Gradients {
        let mut weights = self.weights.map(Mat::zeros_like);
        weights.correction_bias = None;
        let mut dx = Mat::zeros(x.rows, x.cols);
        let mut seen = vec![false; forward.pairs.len()];
        for &(p, w) in retained {
            assert!(!std::mem::replace(&mut seen[p], true), "pair {p} is retained twice");
            let (t, e) = (p / forward.routing.top_k, forward.routing.experts[p]);
            let contribution = self.contribution(x, forward, d, p);
            contribution.add_to(&mut weights.experts[e], w, x.row(t), &forward.pair(p).h);
            add_scaled(dx.row_mut(t), w, &contribution.dx);
        }
        for (t, activation) in forward.shared.iter().enumerate() {
            let (Some(activation), Some(expert)) = (activation, &self.weights.shared) else { continue };
            let scale = forward.shared_scale[t];
            let contribution = Contribution::new(expert, x.row(t), activation, scale, d.row(t));
            if let Some(grad) = &mut weights.shared {
                contribution.add_to(grad, 1.0, x.row(t), &activation.h);
            }
            add_scaled(dx.row_mut(t), 1.0, &contribution.dx);
            if let (Some(grad), Some(gate)) = (&mut weights.shared_gate, &self.weights.shared_gate) {
                let d_gate_logit = dot(d.row(t), &activation.out) * scale * (1.0 - scale);
                add_scaled(grad.row_mut(0), d_gate_logit, x.row(t));
                add_scaled(dx.row_mut(t), d_gate_logit, gate.row(0));
            }
        }
        let routing = &forward.routing;
        Gradients {
            weights,
            dx,
            d_topk_weights: vec![0.0; routing.experts.len()],
            d_router_logits: routing.logits.zeros_like(),
        }
    }

    /// Adds a gradient of the logits [T, E] (from the gate or a loss) to logits, router weight and dx.
    pub fn add_router_gradient(&self, grads: &mut Gradients, x: &Mat, routing: &Routing, d_logits: &Mat) {
        for t in (0..routing.tokens()).filter(|&t| routing.mask[t]) {
            grads.weights.router.add_outer(1.0, d_logits.row(t), x.row(t));
            add_scaled(grads.dx.row_mut(t), 1.0, &self.weights.router.apply_transposed(d_logits.row(t)));
            add_scaled(grads.d_router_logits.row_mut(t), 1.0, d_logits.row(t));
        }
    }
}

/// Every routed pair with weight 1: plain training.
pub fn all_pairs(routing: &Routing) -> Vec<(usize, f64)> {
    routing.pairs().map(|(p, _, _)| (p, 1.0)).collect()
}

/// dL/d(combine weight) of every pair, [T, k]; 0 for pairs that forward dropped, whatever their weight would have been.
pub fn router_pair_gradients(
    forward: &Forward,
    d: &Mat,
    retained: &[(usize, f64)],
    router: RouterGradient,
) -> Vec<f64> {
    let routing = &forward.routing;
    let mut weight_of = vec![None; routing.experts.len()];
    for &(p, w) in retained {
        weight_of[p] = Some(w);
    }
    let mut gradients = vec![0.0; routing.experts.len()];
    for (p, t, _) in routing.pairs() {
        let Some(activation) = &forward.pairs[p] else { continue };
        let own = dot(d.row(t), &activation.out);
        gradients[p] = match (router, weight_of[p]) {
            (RouterGradient::Exact, _) => own,
            // Equal to the general formula, but exact: c_t must not leave rounding behind.
            (RouterGradient::Estimated, Some(1.0)) => own,
            (RouterGradient::Estimated, Some(w)) => {
                let baseline = baseline(forward, d, t);
                baseline + w * (own - baseline)
            }
            (RouterGradient::Estimated, None) => baseline(forward, d, t),
        };
    }
    gradients
}

/// c_t = <d_t, y_t routed> / sum_j g_tj, or 0 where the weights sum to 0.
pub fn baseline(forward: &Forward, d: &Mat, t: usize) -> f64 {
    let k = forward.routing.top_k;
    let sum: f64 = forward.routing.weights[t * k..(t + 1) * k].iter().sum();
    if sum == 0.0 { 0.0 } else { dot(d.row(t), forward.routed.row(t)) / sum }
}

/// dL/d(logits) [T, E] from dL/d(combine weights) [T, k], through scaling, normalisation and score function. The selection and
/// the correction bias have no gradient.
pub fn gate_backward(config: &OracleConfig, routing: &Routing, d_weights: &[f64]) -> Mat {
    let mut d_logits = routing.logits.zeros_like();
    let k = routing.top_k;
    for t in (0..routing.tokens()).filter(|&t| routing.mask[t]) {
        let scores = routing.scores.row(t);
        let slots: Vec<(usize, f64)> = (t * k..(t + 1) * k).map(|p| (routing.experts[p], d_weights[p])).collect();
        let mut d_scores = vec![0.0; config.num_experts];
        // g_j = scale * s_j / sum, so dL/ds_j = scale * (dL/dg_j - sum_i dL/dg_i s_i / sum) / sum.
        let (divisor, mean) = if config.norm_topk_prob {
            let sum = slots.iter().map(|&(e, _)| scores[e]).sum::<f64>() + config.norm_eps;
            (sum, slots.iter().map(|&(e, dg)| dg * scores[e] / sum).sum())
        } else {
            (1.0, 0.0)
        };
        for &(e, dg) in &slots {
            d_scores[e] = config.routed_scaling_factor * (dg - mean) / divisor;
        }
        let row = d_logits.row_mut(t);
        let projected = dot(&d_scores, scores);
        for e in 0..config.num_experts {
            row[e] = match config.scoring {
                Scoring::Softmax => scores[e] * (d_scores[e] - projected),
                Scoring::Sigmoid => scores[e] * (1.0 - scores[e]) * d_scores[e],
            };
        }
    }
    d_logits
}
