//! Gradients of the oracle against finite differences of its own forward pass.

use libtest_mimic::Trial;

use super::sample::{Sample, configs, sample};
use crate::support::compare::Comparison;
use crate::support::golden::align;
use crate::support::linear::{Mat, add_scaled, dot};
use crate::support::oracle::{Forward, Layer, Routing, UNROUTED, softmax};
use crate::support::oracle_backward::{RouterGradient, all_pairs};
use crate::support::oracle_losses::{load_balancing_loss, router_z_loss};
use crate::support::rng::Rng;
use crate::trial;

/// Step of the differences. Their truncation error goes with its fourth power.
const STEP: f64 = 5e-4;
/// Bound on |difference - gradient|, relative to the gradient's norm (a random direction may be nearly orthogonal to it).
const BOUND: f64 = 1e-9;
/// Rounding of f, in units in the last place, divided by the step; it alone counts where the gradient is zero.
const ROUNDING: f64 = 32.0;
const TOKENS: usize = 6;
const SEEDS: u64 = 3;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, config) in configs() {
        let check = move |check: fn(&Sample, &mut Rng, &mut Comparison), at_least: usize| {
            let mut compare = Comparison::new();
            for seed in 1..=SEEDS {
                check(&sample(&config, TOKENS, seed), &mut Rng::new(100 + seed), &mut compare);
            }
            compare.finish(at_least * SEEDS as usize)
        };
        let (input, weights, logits) = (check.clone(), check.clone(), check.clone());
        let (sampled, dropped, losses) = (check.clone(), check.clone(), check);
        trials.push(trial(&format!("differences::input::{name}"), move || input(by_input, 1)));
        trials.push(trial(&format!("differences::weights::{name}"), move || weights(by_weights, 10)));
        trials.push(trial(&format!("differences::logits::{name}"), move || logits(by_logits, 1)));
        trials.push(trial(&format!("differences::sampled::{name}"), move || sampled(by_sampled, 10)));
        trials.push(trial(&format!("differences::dropped::{name}"), move || dropped(by_dropped, 12)));
        trials.push(trial(&format!("differences::losses::{name}"), move || losses(by_losses, 4)));
    }
    trials
}

/// Fourth-order central difference of f at 0.
fn derivative(f: impl Fn(f64) -> f64) -> f64 {
    (8.0 * (f(STEP) - f(-STEP)) - (f(2.0 * STEP) - f(-2.0 * STEP))) / (12.0 * STEP)
}

/// `f` along a random direction from `at`, against the gradient.
fn check(compare: &mut Comparison, what: &str, rng: &mut Rng, at: &Mat, gradient: &Mat, f: impl Fn(&Mat) -> f64) {
    let direction = rng.matrix(at.rows, at.cols, 1.0);
    let along = |step: f64| {
        let mut moved = at.clone();
        add_scaled(&mut moved.data, step, &direction.data);
        f(&moved)
    };
    let difference = derivative(along) - dot(&gradient.data, &direction.data);
    let scale = dot(&gradient.data, &gradient.data).sqrt() * dot(&direction.data, &direction.data).sqrt();
    let rounding = ROUNDING * f64::EPSILON * f(at).abs() / STEP;
    let allowed = BOUND * scale + rounding;
    compare.holds(
        &format!("{what}: difference quotient - gradient = {difference:.3e}, allowed {allowed:.3e}"),
        difference.abs() <= allowed,
    );
}

fn full(sample: &Sample) -> Forward {
    let routing = sample.layer.route(&sample.x, Some(&sample.mask));
    sample.layer.forward(&sample.x, routing)
}

/// <d, y>, which must not cross a change of selection (the order of slots may change).
fn loss(layer: &Layer, x: &Mat, d: &Mat, routing: Routing, selected: &[usize]) -> f64 {
    let same = align(&routing.experts, selected, routing.top_k);
    assert!(same.is_ok(), "the selection changed inside a difference, use another seed: {same:?}");
    dot(&layer.forward(x, routing).y.data, &d.data)
}

fn by_input(sample: &Sample, rng: &mut Rng, compare: &mut Comparison) {
    let Sample { layer, x, d, mask } = sample;
    let forward = full(sample);
    let grads = layer.backward(x, &forward, d, &all_pairs(&forward.routing), RouterGradient::Exact);
    check(compare, "dx", rng, x, &grads.dx, |x| {
        loss(layer, x, d, layer.route(x, Some(mask)), &forward.routing.experts)
    });
}

fn by_weights(sample: &Sample, rng: &mut Rng, compare: &mut Comparison) {
    let Sample { layer, x, d, mask } = sample;
    let forward = full(sample);
    let grads = layer.backward(x, &forward, d, &all_pairs(&forward.routing), RouterGradient::Exact);
    for (i, ((name, at), (_, gradient))) in layer.weights.named().iter().zip(grads.weights.named()).enumerate() {
        check(compare, name, rng, at, gradient, |w| {
            let moved = with_weight(layer, i, w);
            loss(&moved, x, d, moved.route(x, Some(mask)), &forward.routing.experts)
        });
    }
}

fn by_logits(sample: &Sample, rng: &mut Rng, compare: &mut Comparison) {
    let Sample { layer, x, d, mask } = sample;
    let forward = full(sample);
    let grads = layer.backward(x, &forward, d, &all_pairs(&forward.routing), RouterGradient::Exact);
    check(compare, "d logits", rng, &forward.routing.logits, &grads.d_router_logits, |logits| {
        let routing = layer.route_logits(logits.clone(), Some(mask));
        loss(layer, x, d, routing, &forward.routing.experts)
    });
}

/// A sampled backward is the gradient of the loss in which each retained pair's output counts w times, combine weights held fixed.
fn by_sampled(sample: &Sample, rng: &mut Rng, compare: &mut Comparison) {
    let Sample { layer, x, d, .. } = sample;
    let forward = full(sample);
    let mut retained = all_pairs(&forward.routing);
    retained.retain(|_| rng.uniform() < 0.6);
    retained.iter_mut().for_each(|(_, w)| *w = 1.0 + 2.0 * rng.uniform());
    let grads = layer.expert_backward(x, &forward, d, &retained);
    let weighted_loss = |layer: &Layer, x: &Mat| {
        let moved = layer.forward(x, forward.routing.clone());
        let shared = (0..x.rows).map(|t| dot(d.row(t), moved.y.row(t)) - dot(d.row(t), moved.routed.row(t)));
        let pairs = retained.iter().map(|&(p, w)| {
            let t = p / layer.config.top_k;
            w * forward.routing.weights[p] * dot(d.row(t), &moved.pair(p).out)
        });
        shared.sum::<f64>() + pairs.sum::<f64>()
    };
    check(compare, "dx of the experts", rng, x, &grads.dx, |x| weighted_loss(layer, x));
    for (i, ((name, at), (_, gradient))) in layer.weights.named().iter().zip(grads.weights.named()).enumerate() {
        check(compare, name, rng, at, gradient, |w| weighted_loss(&with_weight(layer, i, w), x));
    }
}

/// Pairs that forward drops: every gradient is that of the loss without them, their combine weights in the normalisation as ever.
fn by_dropped(sample: &Sample, rng: &mut Rng, compare: &mut Comparison) {
    let Sample { layer, x, d, mask } = sample;
    let routing = layer.route(x, Some(mask));
    let dropped: Vec<bool> = routing.experts.iter().map(|&e| e != UNROUTED && rng.uniform() < 0.4).collect();
    let loss = |layer: &Layer, x: &Mat, moved: Routing| {
        assert_eq!(moved.experts, routing.experts, "the slots changed inside a difference, use another seed");
        dot(&layer.forward_dropping(x, moved, &dropped).y.data, &d.data)
    };
    let forward = layer.forward_dropping(x, routing.clone(), &dropped);
    let grads = layer.backward(x, &forward, d, &forward.computed(), RouterGradient::Exact);
    check(compare, "dx", rng, x, &grads.dx, |x| loss(layer, x, layer.route(x, Some(mask))));
    check(compare, "d logits", rng, &routing.logits, &grads.d_router_logits, |logits| {
        loss(layer, x, layer.route_logits(logits.clone(), Some(mask)))
    });
    for (i, ((name, at), (_, gradient))) in layer.weights.named().iter().zip(grads.weights.named()).enumerate() {
        check(compare, name, rng, at, gradient, |w| {
            let moved = with_weight(layer, i, w);
            loss(&moved, x, moved.route(x, Some(mask)))
        });
    }
    let zero = |p: usize| grads.d_topk_weights[p] == 0.0;
    let gone = (0..dropped.len()).filter(|&p| dropped[p]).collect::<Vec<_>>();
    compare.holds("some pairs are dropped, some are not", !gone.is_empty() && !forward.computed().is_empty());
    compare.holds("dropped pairs have no gradient of their combine weight", gone.into_iter().all(zero));
}

/// Both router losses over two layers that share a mask, and over one; and once by their defining sums.
fn by_losses(sample: &Sample, rng: &mut Rng, compare: &mut Comparison) {
    let Sample { layer, mask, .. } = sample;
    let logits = [(); 2].map(|()| rng.matrix(TOKENS, layer.config.num_experts, 1.5));
    let route = |logits: &Mat| layer.route_logits(logits.clone(), Some(mask));
    let [first, second] = [route(&logits[0]), route(&logits[1])];
    let losses = [("balance", load_balancing_loss as fn(&[&Routing]) -> _), ("z", router_z_loss)];
    for (what, loss) in losses {
        let both = loss(&[&first, &second]);
        check(compare, &format!("{what}, first of two layers"), rng, &logits[0], &both.d_logits[0], |logits| {
            loss(&[&route(logits), &second]).value
        });
        check(compare, &format!("{what}, second of two layers"), rng, &logits[1], &both.d_logits[1], |logits| {
            loss(&[&first, &route(logits)]).value
        });
        let one = loss(&[&first]);
        check(compare, &format!("{what}, one layer"), rng, &logits[0], &one.d_logits[0], |logits| {
            loss(&[&route(logits)]).value
        });
    }
    let both = load_balancing_loss(&[&first, &second]).value;
    compare.number("balance by its definition", both, balance_by_definition(&[&first, &second]), 1e-14);
}

/// E * sum_e (fraction of tokens with e in slot j, summed over j) * (mean probability), on the rows of all layers put together.
fn balance_by_definition(layers: &[&Routing]) -> f64 {
    let rows: Vec<(&Routing, usize)> =
        layers.iter().flat_map(|&r| (0..r.tokens()).filter(|&t| r.mask[t]).map(move |t| (r, t))).collect();
    let (n, num_experts) = (rows.len() as f64, layers[0].logits.cols);
    let mut sum = 0.0;
    for e in 0..num_experts {
        let probability: f64 = rows.iter().map(|(r, t)| softmax(r.logits.row(*t))[e]).sum::<f64>() / n;
        for j in 0..layers[0].top_k {
            let fraction = rows.iter().filter(|(r, t)| r.experts[t * r.top_k + j] == e).count() as f64 / n;
            sum += fraction * probability;
        }
    }
    num_experts as f64 * sum
}

/// The layer with trainable parameter number `i` replaced.
fn with_weight(layer: &Layer, i: usize, value: &Mat) -> Layer {
    let mut moved = layer.clone();
    *moved.weights.trainable_mut()[i] = value.clone();
    moved
}
