//! Selection of experts by hand-made scores: ties, groups, bias, masks.

use libtest_mimic::Trial;

use super::sample::{config, configs, sample};
use crate::support::compare::Comparison;
use crate::support::linear::Mat;
use crate::support::oracle::{UNROUTED, order_descending, select_experts};
use crate::support::oracle_backward::{RouterGradient, all_pairs};
use crate::support::oracle_config::{OracleConfig, Scoring};
use crate::support::oracle_losses::{load_balancing_loss, router_z_loss};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("routing::lower_index_wins_ties", ties),
        trial("routing::f22_masked_groups_lose_to_negative_scores", masked_groups),
        trial("routing::f23_tiny_differences_count", tiny_differences),
        trial("routing::bias_selects_but_does_not_weigh", bias),
        trial("routing::odd_values_are_ordered", odd_values),
        trial("routing::no_tokens", no_tokens),
    ];
    for (name, config) in configs() {
        trials.push(trial(&format!("routing::f27_masked_token_is_absent::{name}"), move || masked(&config)));
    }
    trials
}

fn ties() -> Result<(), String> {
    let plain = config(Scoring::Softmax, true);
    let grouped = OracleConfig { n_group: 4, topk_group: 2, ..plain.clone() };
    let mut compare = Comparison::new();
    compare.equal("all equal", &select_experts(&plain, &[0.5; 8], None), &[0, 1, 2]);
    compare.equal("all equal, groups", &select_experts(&grouped, &[0.5; 8], None), &[0, 1, 2]);
    let boundary = [0.1, 0.2, 0.3, 0.2, 0.1, 0.9, 0.2, 0.0];
    compare.equal("tie at the boundary", &select_experts(&plain, &boundary, None), &[5, 2, 1]);
    let groups = [0.0, 0.25, 0.125, 0.125, 0.5, 0.5, 0.25, 0.0];
    compare.equal("tied groups", &select_experts(&grouped, &groups, None), &[4, 5, 1]);
    compare.finish(4)
}

/// Every biased score is negative: an expert of a masked group must not win by a fill value of 0.
fn masked_groups() -> Result<(), String> {
    let grouped = OracleConfig { n_group: 4, topk_group: 2, top_k: 4, ..config(Scoring::Sigmoid, true) };
    let scores = [0.9, 0.1, 0.5, 0.6, 0.2, 0.3, 0.7, 0.8];
    let mut compare = Comparison::new();
    compare.equal("best groups 2 of 4", &select_experts(&grouped, &scores, Some(&[-2.0; 8])), &[7, 6, 3, 2]);
    compare.finish(1)
}

fn tiny_differences() -> Result<(), String> {
    let wide = OracleConfig { num_experts: 64, top_k: 1, ..config(Scoring::Softmax, false) };
    let mut compare = Comparison::new();
    for (low, high) in [(0, 63), (3, 40), (62, 63)] {
        let mut scores = [0.01; 64];
        scores[low] = 0.3;
        scores[high] = 0.3 + 1e-7;
        compare.equal("the larger one", &select_experts(&wide, &scores, None), &[high]);
    }
    compare.finish(3)
}

fn bias() -> Result<(), String> {
    let mut case = sample(&config(Scoring::Sigmoid, true), 4, 11);
    case.layer.weights.correction_bias = Some(Mat::new(1, 8, vec![9.0, 0.0, 0.0, 9.0, 0.0, 0.0, 9.0, 0.0]));
    let routing = case.layer.route(&case.x, None);
    let mut compare = Comparison::new();
    for t in 0..4 {
        let mut selected = routing.experts[t * 3..t * 3 + 3].to_vec();
        selected.sort_unstable();
        compare.equal("selected by the bias", &selected, &[0, 3, 6]);
        let kept: Vec<f64> = routing.experts[t * 3..t * 3 + 3].iter().map(|&e| routing.scores.row(t)[e]).collect();
        let want: Vec<f64> = kept.iter().map(|s| s / kept.iter().sum::<f64>()).collect();
        compare.relative("weights without the bias", &routing.weights[t * 3..t * 3 + 3], &want, 1e-15);
    }
    compare.finish(8)
}

fn odd_values() -> Result<(), String> {
    let values = [-0.0, f64::NEG_INFINITY, 0.0, f64::NAN, f64::INFINITY, 1e-310, -f64::NAN];
    let mut compare = Comparison::new();
    compare.equal("order", &order_descending(&values), &[3, 6, 4, 5, 0, 2, 1]);
    compare.finish(1)
}

fn no_tokens() -> Result<(), String> {
    let case = sample(&config(Scoring::Softmax, true), 0, 1);
    let forward = case.layer.forward(&case.x, case.layer.route(&case.x, None));
    let grads = case.layer.backward(&case.x, &forward, &case.d, &[], RouterGradient::Estimated);
    let mut compare = Comparison::new();
    compare.equal("counts", &forward.routing.counts(), &[0; 8]);
    for (name, grad) in grads.weights.named() {
        compare.holds(&format!("d {name} is zero"), grad.data.iter().all(|&v| v == 0.0));
    }
    compare.number("balance loss", load_balancing_loss(&[&forward.routing]).value, 0.0, 0.0);
    compare.number("z-loss", router_z_loss(&[&forward.routing]).value, 0.0, 0.0);
    compare.finish(20)
}

/// A masked token (with NaN in its rows) gives exactly what the batch without it gives.
fn masked(config: &OracleConfig) -> Result<(), String> {
    let mut case = sample(config, 5, 13);
    case.x.row_mut(1).fill(f64::NAN);
    case.d.row_mut(1).fill(f64::NAN);
    let without = |m: &Mat| {
        let rows: Vec<f64> = [0, 2, 3, 4].iter().flat_map(|&t| m.row(t).to_vec()).collect();
        Mat::new(4, m.cols, rows)
    };
    let run = |x: &Mat, d: &Mat, mask: Option<&[bool]>| {
        let forward = case.layer.forward(x, case.layer.route(x, mask));
        let grads = case.layer.backward(x, &forward, d, &all_pairs(&forward.routing), RouterGradient::Exact);
        (forward, grads)
    };
    let (masked, masked_grads) = run(&case.x, &case.d, Some(&case.mask));
    let (absent, absent_grads) = run(&without(&case.x), &without(&case.d), None);
    let k = config.top_k;
    let mut compare = Comparison::new();
    compare.equal("its pairs", &masked.routing.experts[k..2 * k], &vec![UNROUTED; k]);
    compare.equal("counts", &masked.routing.counts(), &absent.routing.counts());
    let h = config.hidden_size;
    compare.equal("its y", masked.y.row(1), &vec![0.0; h]);
    compare.equal("its dx", masked_grads.dx.row(1), &vec![0.0; h]);
    compare.equal("y of the others", &without(&masked.y).data, &absent.y.data);
    compare.equal("dx of the others", &without(&masked_grads.dx).data, &absent_grads.dx.data);
    for ((name, got), (_, want)) in masked_grads.weights.named().iter().zip(absent_grads.weights.named()) {
        compare.equal(&format!("d {name}"), &got.data, &want.data);
    }
    for (what, loss) in [("balance", load_balancing_loss as fn(&[&_]) -> _), ("z", router_z_loss)] {
        let (got, want) = (loss(&[&masked.routing]), loss(&[&absent.routing]));
        compare.number(&format!("{what} loss"), got.value, want.value, 0.0);
        compare.equal(
            &format!("{what} gradient of the others"),
            &without(&got.d_logits[0]).data,
            &want.d_logits[0].data,
        );
        compare.equal(&format!("its {what} gradient"), got.d_logits[0].row(1), &vec![0.0; config.num_experts]);
    }
    compare.finish(12)
}
