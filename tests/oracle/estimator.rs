//! Unbiasedness of a sampled backward, router estimator included, by summing over every possible sample.

use libtest_mimic::Trial;

use super::sample::{configs, sample};
use crate::support::block::BlockWeights;
use crate::support::compare::Comparison;
use crate::support::linear::{Mat, add_scaled};
use crate::support::oracle_backward::{Gradients, RouterGradient, all_pairs, baseline};
use crate::support::oracle_config::{OracleConfig, Scoring};
use crate::support::rng::Rng;
use crate::trial;

/// The mean adds 64 or more gradients.
const BOUND: f64 = 1e-12;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, config) in configs() {
        let config = OracleConfig { top_k: config.top_k.min(3), ..config };
        trials.push(trial(&format!("estimator::mean_over_all_samples::{name}"), move || mean_over_samples(&config)));
    }
    trials.push(trial("estimator::by_hand", by_hand));
    trials.push(trial("estimator::no_weight_no_baseline", no_baseline_without_weight));
    trials
}

/// Every pair is retained by itself with probability pi, with weight 1/pi: the mean of all gradients over all samples is the exact one.
fn mean_over_samples(config: &OracleConfig) -> Result<(), String> {
    let case = sample(config, 3, 7);
    let forward = case.layer.forward(&case.x, case.layer.route(&case.x, Some(&case.mask)));
    let everything = all_pairs(&forward.routing);
    let mut rng = Rng::new(8);
    // One certain pair, so that the branch for weight 1 takes part.
    let pi: Vec<f64> = (0..everything.len()).map(|i| if i == 0 { 1.0 } else { 0.2 + 0.6 * rng.uniform() }).collect();
    let exact = case.layer.backward(&case.x, &forward, &case.d, &everything, RouterGradient::Exact);
    let mut mean = scaled_zero(&exact);
    let mut total = 0.0;
    let mut differing = 0;
    for subset in 0..1usize << everything.len() {
        let mut probability = 1.0;
        let mut retained = Vec::new();
        for (i, &(p, _)) in everything.iter().enumerate() {
            if subset >> i & 1 == 1 {
                probability *= pi[i];
                retained.push((p, 1.0 / pi[i]));
            } else {
                probability *= 1.0 - pi[i];
            }
        }
        let grads = case.layer.backward(&case.x, &forward, &case.d, &retained, RouterGradient::Estimated);
        differing += usize::from(grads.weights.router != exact.weights.router);
        add_gradients(&mut mean, probability, &grads);
        total += probability;
    }
    let mut compare = Comparison::new();
    compare.number("sum of the probabilities", total, 1.0, BOUND);
    compare.holds("samples differ from the exact router gradient", differing > 0);
    compare.relative("mean d combine weights", &mean.d_topk_weights, &exact.d_topk_weights, BOUND);
    compare.relative("mean d router logits", &mean.d_router_logits.data, &exact.d_router_logits.data, BOUND);
    compare.relative("mean dx", &mean.dx.data, &exact.dx.data, BOUND);
    for ((name, got), (_, want)) in mean.weights.named().iter().zip(exact.weights.named()) {
        compare.relative(&format!("mean d {name}"), &got.data, &want.data, BOUND);
    }
    compare.finish(5 + 1 + 3 * config.num_experts)
}

fn scaled_zero(like: &Gradients) -> Gradients {
    Gradients {
        weights: like.weights.map(Mat::zeros_like),
        dx: like.dx.zeros_like(),
        d_topk_weights: vec![0.0; like.d_topk_weights.len()],
        d_router_logits: like.d_router_logits.zeros_like(),
    }
}

fn add_gradients(sum: &mut Gradients, scale: f64, grads: &Gradients) {
    let parameters = |w: &BlockWeights<Mat>| w.named().into_iter().map(|(_, m)| m.data.clone()).collect::<Vec<_>>();
    for (to, from) in sum.weights.trainable_mut().into_iter().zip(parameters(&grads.weights)) {
        add_scaled(&mut to.data, scale, &from);
    }
    add_scaled(&mut sum.dx.data, scale, &grads.dx.data);
    add_scaled(&mut sum.d_topk_weights, scale, &grads.d_topk_weights);
    add_scaled(&mut sum.d_router_logits.data, scale, &grads.d_router_logits.data);
}

/// One token, three pairs: kept with weight 2, kept with weight 1, dropped.
fn by_hand() -> Result<(), String> {
    let case =
        sample(&OracleConfig { routed_scaling_factor: 1.5, ..super::sample::config(Scoring::Sigmoid, false) }, 1, 3);
    let forward = case.layer.forward(&case.x, case.layer.route(&case.x, None));
    let grads = case.layer.backward(&case.x, &forward, &case.d, &[(0, 2.0), (1, 1.0)], RouterGradient::Estimated);
    let own = |p: usize| case.d.data.iter().zip(&forward.pair(p).out).map(|(d, o)| d * o).sum::<f64>();
    let g = &forward.routing.weights;
    let c = (g[0] * own(0) + g[1] * own(1) + g[2] * own(2)) / (g[0] + g[1] + g[2]);
    let mut compare = Comparison::new();
    compare.relative("dg", &grads.d_topk_weights, &[2.0 * own(0) - c, own(1), c], 1e-13);
    let contribution = case.layer.contribution(&case.x, &forward, &case.d, 0);
    compare.number("<u, h> is <d, out>", contribution.u_dot_h, own(0), 1e-13);
    compare.finish(2)
}

/// Combine weights that sum to 0 leave no baseline.
fn no_baseline_without_weight() -> Result<(), String> {
    let case = sample(&super::sample::config(Scoring::Sigmoid, false), 2, 5);
    let mut routing = case.layer.route(&case.x, None);
    routing.weights[..3].fill(0.0);
    let forward = case.layer.forward(&case.x, routing);
    let grads = case.layer.backward(&case.x, &forward, &case.d, &[(4, 2.0)], RouterGradient::Estimated);
    let mut compare = Comparison::new();
    compare.number("baseline", baseline(&forward, &case.d, 0), 0.0, 0.0);
    compare.equal("dg of the dropped pairs", &grads.d_topk_weights[..3], &[0.0; 3]);
    compare.holds("the other token keeps its baseline", grads.d_topk_weights[3..].iter().all(|&dg| dg != 0.0));
    compare.finish(3)
}
