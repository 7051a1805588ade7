//! Oracle against the float64 truth of every golden case.

use std::sync::Arc;

use libtest_mimic::Trial;

use crate::support::compare::Comparison;
use crate::support::golden::{self, BlockCase, Expected, align};
use crate::support::linear::Mat;
use crate::support::oracle::{Forward, Layer, matrix, route_by};
use crate::support::oracle_backward::{Gradients, RouterGradient, all_pairs};
use crate::support::oracle_config::Scoring;
use crate::support::oracle_losses::load_balancing_loss;
use crate::support::oracle_select::{ScoreRule, pair_scores};
use crate::trial;

/// Relative Frobenius bound on every tensor. The data are good to 1e-14 and the worst error seen, over 16 block cases and two
/// checkpoints, is 1.8e-15; the rest is room for larger cases, still seven orders below what f32 can tell apart.
const BOUND: f64 = 1e-13;

type Check = fn(&BlockCase) -> Result<(), String>;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, case) in golden::cases() {
        let case = match case {
            Ok(case) => case,
            Err(why) => {
                trials.push(trial(&format!("golden::{name}"), move || Err(why)));
                continue;
            }
        };
        let checks: [(&str, Check); 5] = [
            ("forward", forward),
            ("backward", backward),
            ("pair_norms", pair_norms),
            ("aux_loss", aux_loss),
            ("fill0", fill0),
        ];
        for (what, check) in checks {
            if applies(what, &case) {
                let case = Arc::clone(&case);
                trials.push(trial(&format!("golden::{what}::{name}"), move || check(&case)));
            }
        }
    }
    trials
}

/// Block cases of softmax routers owe an auxiliary loss; `fill0` is for cases that have it.
fn applies(what: &str, case: &BlockCase) -> bool {
    let is_block = case.expected.expert_counts.is_some();
    let softmax = Layer::from_case(case).is_ok_and(|layer| layer.config.scoring == Scoring::Softmax);
    match what {
        "aux_loss" => case.expected.aux_loss.is_some() || (is_block && softmax),
        "fill0" => case.expected.fill0.is_some(),
        _ => true,
    }
}

struct Run {
    layer: Layer,
    x: Mat,
    dy: Mat,
    forward: Forward,
    /// Index in the golden data of every pair of the oracle.
    order: Vec<usize>,
}

fn run(case: &BlockCase) -> Result<Run, String> {
    let layer = Layer::from_case(case)?;
    let (x, dy) = (matrix(&case.x)?, matrix(&case.dy)?);
    let forward = layer.forward(&x, layer.route(&x, None));
    let order = case.expected.align(&forward.routing.experts, case.top_k)?;
    Ok(Run { layer, x, dy, forward, order })
}

/// Golden values [T, k] in the pair order of the oracle.
fn ordered(values: &[f64], order: &[usize]) -> Vec<f64> {
    order.iter().map(|&q| values[q]).collect()
}

fn forward(case: &BlockCase) -> Result<(), String> {
    let Run { layer, forward, order, .. } = run(case)?;
    let Expected { router_logits, topk_indices, topk_weights, y, expert_counts, .. } = &case.expected;
    let mut compare = Comparison::new();
    compare.relative("router logits", &forward.routing.logits.data, router_logits, BOUND);
    compare.relative("combine weights", &forward.routing.weights, &ordered(topk_weights, &order), BOUND);
    compare.relative("y", &forward.y.data, y, BOUND);
    if layer.config.scoring == Scoring::Softmax {
        // These are stored in falling order, so the order of slots can be held against them too.
        compare.equal("selected experts in order", &forward.routing.experts, topk_indices);
    }
    if let Some(counts) = expert_counts {
        compare.equal("pairs per expert", &forward.routing.counts(), counts);
    }
    compare.finish(3)
}

fn backward(case: &BlockCase) -> Result<(), String> {
    let Run { layer, x, dy, forward, order } = run(case)?;
    let everything = all_pairs(&forward.routing);
    // With every pair retained at weight 1 the estimator is the exact gradient.
    let exact = layer.backward(&x, &forward, &dy, &everything, RouterGradient::Exact);
    let estimated = layer.backward(&x, &forward, &dy, &everything, RouterGradient::Estimated);
    let expected = &case.expected;
    let mut compare = Comparison::new();
    for (how, grads) in [("exact", &exact), ("estimated", &estimated)] {
        compare_gradients(&mut compare, how, grads, expected);
        if let Some(d) = &expected.d_topk_weights {
            compare.relative(&format!("{how} d combine weights"), &grads.d_topk_weights, &ordered(d, &order), BOUND);
        }
        if let Some(d) = &expected.d_router_logits {
            compare.relative(&format!("{how} d router logits"), &grads.d_router_logits.data, d, BOUND);
        }
    }
    // dx, the router and three matrices of each expert, twice.
    compare.finish(2 * (2 + 3 * case.num_experts))
}

fn compare_gradients(compare: &mut Comparison, how: &str, grads: &Gradients, expected: &Expected) {
    compare.relative(&format!("{how} dx"), &grads.dx.data, &expected.dx, BOUND);
    let (got, want) = (grads.weights.named(), expected.grads.named());
    compare.holds("the oracle has a gradient for every weight", got.len() == want.len());
    for ((name, got), (_, want)) in got.iter().zip(&want) {
        compare.relative(&format!("{how} d {name}"), &got.data, want, BOUND);
    }
}

fn pair_norms(case: &BlockCase) -> Result<(), String> {
    let Run { layer, x, dy, forward, order } = run(case)?;
    let norms: Vec<[f64; 3]> = forward
        .routing
        .pairs()
        .map(|(p, t, _)| layer.contribution(&x, &forward, &dy, p).norms(x.row(t), &forward.pair(p).h))
        .collect();
    let golden = &case.expected.pair_norms;
    let mut compare = Comparison::new();
    for (i, (what, want)) in [("gate", &golden.gate), ("up", &golden.up), ("down", &golden.down)].iter().enumerate() {
        let got: Vec<f64> = norms.iter().map(|n| n[i]).collect();
        compare.relative(&format!("norm of d W_{what}"), &got, &ordered(want, &order), BOUND);
    }
    // Pairs that are not eligible have a norm of exactly 0 in the golden data.
    for (rule, want) in [(ScoreRule::OutputNorm, &golden.down), (ScoreRule::Exact, &golden.rss)] {
        let scores = pair_scores(&layer, &x, &forward, &dy, &rule);
        let got: Vec<f64> = scores.iter().map(|score| score.unwrap_or(0.0)).collect();
        compare.relative(&format!("score {rule:?}"), &got, &ordered(want, &order), BOUND);
        let dropped: Vec<bool> = scores.iter().map(Option::is_none).collect();
        let zero: Vec<bool> = ordered(want, &order).iter().map(|&norm| norm == 0.0).collect();
        compare.equal(&format!("pairs without a score {rule:?}"), &dropped, &zero);
    }
    compare.finish(7)
}

fn aux_loss(case: &BlockCase) -> Result<(), String> {
    let golden = case.expected.aux_loss.as_ref().ok_or("`f64.aux_loss` is missing for a softmax router")?;
    let Run { forward, .. } = run(case)?;
    let loss = load_balancing_loss(&[&forward.routing]);
    let mut compare = Comparison::new();
    compare.number("auxiliary loss", loss.value, golden.value, BOUND);
    compare.relative("its gradient", &loss.d_logits[0].data, &golden.d_router_logits, BOUND);
    compare.finish(2)
}

/// The same block with another selection: what follows selection has to be right for any.
fn fill0(case: &BlockCase) -> Result<(), String> {
    let golden = case.expected.fill0.as_ref().ok_or("no `fill0` data")?;
    let layer = Layer::from_case(case)?;
    let (x, dy) = (matrix(&case.x)?, matrix(&case.dy)?);
    let k = case.top_k;
    let logits = layer.route(&x, None).logits;
    let routing = route_by(&layer.config, logits, None, |t, _| golden.topk_indices[t * k..(t + 1) * k].to_vec());
    let forward = layer.forward(&x, routing);
    let grads = layer.backward(&x, &forward, &dy, &all_pairs(&forward.routing), RouterGradient::Exact);
    let mut compare = Comparison::new();
    compare.relative("combine weights", &forward.routing.weights, &golden.topk_weights, BOUND);
    compare.relative("y", &forward.y.data, &golden.y, BOUND);
    compare.relative("dx", &grads.dx.data, &golden.dx, BOUND);
    compare.relative("d router", &grads.weights.router.data, &golden.grad_router, BOUND);
    // The two selections differ, or this case would show nothing.
    let differs = align(&golden.topk_indices, &case.expected.topk_indices, k).is_err();
    compare.holds("the selection differs from the one with -infinity", differs);
    compare.finish(5)
}
