//! Which pairs are retained: brute force, ties, special values, what a selection depends on.

use libtest_mimic::Trial;
use lrmoe::kernel::Metric;
use lrmoe::plan::Demand;
use lrmoe::plan::quota;
use lrmoe::{Activations, Backend, ForwardContext, LayerOptions, ParamId, Retention, RouterGradient, Selection};

use crate::expect::{retained, run};
use crate::sample::{Block, kind, kinds, single};
use crate::support::compare::Comparison;
use crate::support::layer::wide;
use crate::unbiased::pair_weight_of_each_token;
use crate::{Device, Outcome, text, trial};

const SAMPLED: [Selection; 4] =
    [Selection::TopQ, Selection::Systematic, Selection::Unbiased, Selection::Mixed { certain: 0.4 }];

pub(crate) fn trials<B: Backend>(device: Device<B>) -> Vec<Trial> {
    vec![
        trial(device, "selection::retained_set_is_brute_force", brute_force),
        trial(device, "selection::ties_by_global_token_id", ties),
        trial(device, "selection::not_finite_inputs_are_reported", not_finite),
        trial(device, "selection::zero_h_still_learns", zero_h),
        trial(device, "selection::zero_gradients_take_no_quota", zero_gradients),
        trial(device, "selection::keeping_everything_is_plain_training", keeps_everything),
        trial(device, "selection::twenty_runs_and_threads_same_bits", same_bits),
        trial(device, "selection::depends_on_every_part_of_the_key", key),
        trial(device, "selection::every_metric", metrics),
        trial(device, "selection::weight_cap_is_counted", weight_cap),
        trial(device, "selection::eta_is_that_of_the_scores", eta),
        trial(device, "selection::quotas_at_floor_one_and_above_load", quotas),
    ]
}

/// One expert per token: dx shows which tokens were retained, and with what weight.
fn brute_force<B: Backend>(device: &Device<B>) -> Outcome {
    const TOKENS: usize = 60;
    let backend = (device.make)();
    let block = Block::new(single(8, 5, 4), TOKENS, 31);
    let (x, dy) = block.tensors(&backend)?;
    let forward = block.forward(None);
    let everything = crate::support::oracle_backward::all_pairs(&forward.routing);
    let full = block.oracle.expert_backward(&block.x, &forward, &block.dy, &everything).dx;
    let mut compare = Comparison::new();
    for select in SAMPLED {
        let mut layer = block.layer(&backend, LayerOptions { select, ..LayerOptions::default() })?;
        for seed in 0..20 {
            let context = ForwardContext { seed, ..ForwardContext::default() };
            let (_, saved) = layer.forward(&x, &context).map_err(text)?;
            let want = retained(&layer, &saved, &dy, &forward.routing, &context)?;
            let gradients = layer.backward(&saved, &dy).map_err(text)?;
            let weights = pair_weight_of_each_token(&wide(&gradients.dx.to_f32(&backend).map_err(text)?), &full);
            let got: Vec<usize> = (0..TOKENS).filter(|&t| weights[t] != 0.0).collect();
            let set: Vec<usize> = want.iter().map(|&(p, _)| p).collect();
            compare.equal(&format!("{select}, seed {seed}: retained"), &got, &set);
            let want: Vec<f64> = want.iter().map(|&(_, w)| w).collect();
            let got: Vec<f64> = got.iter().map(|&t| weights[t]).collect();
            compare.relative(&format!("{select}, seed {seed}: weights"), &got, &want, 1e-5 * device.factor);
        }
    }
    compare.finish(2 * 20 * SAMPLED.len())
}

/// Two groups of equal tokens under `TopQ`: the lowest ids win, whatever the order of the rows.
fn ties<B: Backend>(device: &Device<B>) -> Outcome {
    const TOKENS: usize = 40;
    let backend = (device.make)();
    let mut block = Block::new(single(8, 5, 4), TOKENS, 32);
    for t in 2..TOKENS {
        for mat in [&mut block.x, &mut block.dy] {
            let row = mat.row(t % 2).to_vec();
            mat.row_mut(t).copy_from_slice(&row);
        }
    }
    let ids: Vec<u64> = (0..TOKENS as u64).map(|t| ((t * 7 + 3) % TOKENS as u64) << 31).collect();
    let (x, dy) = block.tensors(&backend)?;
    let mut layer = block.layer(&backend, LayerOptions { select: Selection::TopQ, ..LayerOptions::default() })?;
    let context = ForwardContext { token_ids: Some(&ids), ..ForwardContext::default() };
    let (_, saved) = layer.forward(&x, &context).map_err(text)?;
    let dx = layer.backward(&saved, &dy).map_err(text)?.dx.to_f32(&backend).map_err(text)?;
    let routing = block.forward(None).routing;
    let mut want = Vec::new();
    for (e, &quota) in saved.plan().quotas.iter().enumerate() {
        let mut own: Vec<usize> = (0..TOKENS).filter(|&t| routing.experts[t] == e).collect();
        own.sort_by_key(|&t| ids[t]);
        want.extend(own.into_iter().take(quota as usize));
    }
    want.sort_unstable();
    let got: Vec<usize> = (0..TOKENS).filter(|&t| dx[t * 8..(t + 1) * 8].iter().any(|&v| v != 0.0)).collect();
    let mut compare = Comparison::new();
    compare.equal("retained tokens", &got, &want);
    compare.holds("some are dropped", want.len() < TOKENS && !want.is_empty());
    compare.finish(2)
}

/// NaN and infinities in x, dy and each weight: reported, and the y of tokens they do not touch keeps its bits.
fn not_finite<B: Backend>(device: &Device<B>) -> Outcome {
    const TOKENS: usize = 24;
    let backend = (device.make)();
    let clean = Block::new(kind("softmax"), TOKENS, 33);
    let h = clean.config.hidden_size;
    let (x, dy) = clean.tensors(&backend)?;
    let want = run(&mut clean.layer(&backend, LayerOptions::default())?, &x, &dy, &ForwardContext::default())?;
    let forward = clean.forward(None);
    let mut compare = Comparison::new();
    compare.holds("clean: no NaN seen", !want.stats.nan_seen);
    let bad_expert = 2;
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        for place in ["x", "dy", "gate", "up", "down"] {
            let mut block = clean.clone();
            match place {
                "x" => block.x.row_mut(5)[1] = bad,
                "dy" => block.dy.row_mut(5)[1] = bad,
                "gate" => block.oracle.weights.experts[bad_expert].gate.data[4] = bad,
                "up" => block.oracle.weights.experts[bad_expert].up.data[4] = bad,
                _ => block.oracle.weights.experts[bad_expert].down.data[4] = bad,
            }
            block.sync();
            for select in SAMPLED {
                let what = format!("{bad} in {place}, {select}");
                let mut layer = block.layer(&backend, LayerOptions { select, ..LayerOptions::default() })?;
                let (x, dy) = block.tensors(&backend)?;
                let got = run(&mut layer, &x, &dy, &ForwardContext::default())?;
                let touched = |t: usize| match place {
                    "x" => t == 5,
                    "dy" => false,
                    _ => (0..3).any(|j| forward.routing.experts[t * 3 + j] == bad_expert),
                };
                for t in (0..TOKENS).filter(|&t| !touched(t)) {
                    let row = t * h..(t + 1) * h;
                    compare.equal(&format!("{what}: y of token {t}"), &got.y[row.clone()], &want.y[row]);
                }
                compare.holds(&format!("{what}: reported"), got.stats.nan_seen);
                if place == "x" || place == "dy" {
                    let d_logits = &got.d_logits[..5 * 8];
                    compare.holds(
                        &format!("{what}: others finite"),
                        d_logits.iter().all(|&b| f32::from_bits(b).is_finite()),
                    );
                }
            }
        }
    }
    compare.finish(3 * 5 * SAMPLED.len() * 2)
}

/// W_gate = 0 gives h = 0 and a zero gradient of W_down; W_gate itself still has one, and it is retained.
fn zero_h<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mut block = Block::new(kind("softmax"), 40, 34);
    block.oracle.weights.experts.iter_mut().for_each(|expert| expert.gate.data.fill(0.0));
    block.sync();
    let (x, dy) = block.tensors(&backend)?;
    let forward = block.forward(None);
    let mut compare = Comparison::new();
    for select in SAMPLED {
        let mut options = LayerOptions { select, ..LayerOptions::default() };
        options.plan.q_min = 2;
        let mut layer = block.layer(&backend, options)?;
        let context = ForwardContext::default();
        let (_, saved) = layer.forward(&x, &context).map_err(text)?;
        let kept = retained(&layer, &saved, &dy, &forward.routing, &context)?;
        let got = layer.backward(&saved, &dy).map_err(text)?;
        compare.equal(&format!("{select}: retained"), &got.stats.retained, &saved.plan().quotas);
        let router = crate::support::oracle_backward::RouterGradient::Estimated;
        let want = block.oracle.backward(&block.x, &forward, &block.dy, &kept, router);
        crate::expect::compare_gradients(&mut compare, &select.to_string(), &layer, &got, &want, device.factor)?;
        let gate_up = layer.gradient(ParamId::GateUp).map_err(text)?.ok_or("no gradient")?;
        let learns = |expert: &[f32]| expert.iter().any(|&g| g != 0.0);
        compare.holds(&format!("{select}: every expert learns"), gate_up.chunks(2 * 7 * 13).all(learns));
    }
    compare.finish(3)
}

/// Tokens with dy = 0 are not eligible: the others of an expert use its whole quota.
fn zero_gradients<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mut block = Block::new(kind("softmax"), 40, 35);
    for t in (0..40).filter(|t| t % 4 != 0) {
        block.dy.row_mut(t).fill(if t % 2 == 0 { -0.0 } else { 0.0 });
    }
    let forward = block.forward(None);
    let mut eligible = vec![0u32; 8];
    forward.routing.pairs().filter(|&(_, t, _)| t % 4 == 0).for_each(|(_, _, e)| eligible[e] += 1);
    let (x, dy) = block.tensors(&backend)?;
    let mut compare = Comparison::new();
    for select in SAMPLED {
        let mut options = LayerOptions { select, ..LayerOptions::default() };
        options.plan.q_min = 3;
        options.plan.retention = Retention::Fraction(0.2);
        let mut layer = block.layer(&backend, options)?;
        for step in 0..3 {
            let (_, saved) = layer.forward(&x, &ForwardContext { step, ..ForwardContext::default() }).map_err(text)?;
            let stats = layer.backward(&saved, &dy).map_err(text)?.stats;
            let want: Vec<u32> = stats.quotas.iter().zip(&eligible).map(|(&q, &n)| q.min(n)).collect();
            compare.equal(&format!("{select}, step {step}: retained"), &stats.retained, &want);
            let got = stats.scores.ok_or("no scores")?.eligible;
            compare.equal(&format!("{select}, step {step}: eligible"), &got, &eligible);
        }
    }
    compare.finish(3 * 3 * 2)
}

/// Retention 1, and a floor above every load, are `Selection::All` to the bit.
fn keeps_everything<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mut compare = Comparison::new();
    for (name, config) in kinds() {
        let block = Block::new(config, 30, 36);
        let (x, dy) = block.tensors(&backend)?;
        let mask: Vec<bool> = (0..30).map(|t| t % 7 != 3).collect();
        let context = ForwardContext { mask: Some(&mask), ..ForwardContext::default() };
        for activations in [Activations::Stash, Activations::Recompute] {
            for router_gradient in [RouterGradient::Estimated, RouterGradient::Exact] {
                let options = |select: Selection, fraction: f64, q_min: u32| {
                    let mut options = LayerOptions { select, activations, router_gradient, ..LayerOptions::default() };
                    options.plan.retention = Retention::Fraction(fraction);
                    options.plan.q_min = q_min;
                    options
                };
                let mut plain = block.layer(&backend, options(Selection::All, 0.3, 8))?;
                let want = run(&mut plain, &x, &dy, &context)?;
                for select in SAMPLED {
                    for (fraction, q_min) in [(1.0, 2), (0.1, 1000)] {
                        let mut layer = block.layer(&backend, options(select, fraction, q_min))?;
                        let what = format!("{name}, {activations:?}, {router_gradient:?}, {select}, {fraction}");
                        let got = run(&mut layer, &x, &dy, &context)?;
                        got.same(&mut compare, &what, &want);
                        compare.equal(&what, &got.stats.retained, &want.stats.counts);
                    }
                }
            }
        }
    }
    compare.finish(6 * 4 * 8 * 5)
}

fn same_bits<B: Backend>(device: &Device<B>) -> Outcome {
    let block = Block::new(kind("sigmoid_groups_bias_shared"), 150, 37);
    let mut compare = Comparison::new();
    for select in [Selection::All].into_iter().chain(SAMPLED) {
        for activations in [Activations::Stash, Activations::Recompute] {
            let options =
                LayerOptions { select, activations, aux_loss_coef: 0.1, z_loss_coef: 0.1, ..LayerOptions::default() };
            let once = |backend: &B| {
                let (x, dy) = block.tensors(backend)?;
                run(&mut block.layer(backend, options.clone())?, &x, &dy, &ForwardContext::default())
            };
            let backend = (device.make)();
            let want = once(&backend)?;
            for run in 0..20 {
                let got = once(&backend)?;
                got.same(&mut compare, &format!("{select}, {activations:?}, run {run}"), &want);
                compare.holds(&format!("{select}, {activations:?}, run {run}: statistics"), got.stats == want.stats);
            }
            let Some(threads) = device.threads else { continue };
            for n in [1, 2, 3] {
                let got = once(&threads(n))?;
                got.same(&mut compare, &format!("{select}, {activations:?}, {n} threads"), &want);
                compare.holds(&format!("{select}, {n} threads: statistics"), got.stats == want.stats);
            }
        }
    }
    compare.finish(5 * 2 * 20 * 5)
}

fn key<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(kind("softmax"), 40, 38);
    let (x, dy) = block.tensors(&backend)?;
    let base = ForwardContext { seed: 1, step: 2, layer: 3, call_id: 4, ..ForwardContext::default() };
    let ids: Vec<u64> = (0..40).collect();
    let mut compare = Comparison::new();
    let different = [
        ("seed", ForwardContext { seed: 9, ..base }),
        ("high half of the seed", ForwardContext { seed: 1 | 1 << 32, ..base }),
        ("step", ForwardContext { step: 9, ..base }),
        ("layer", ForwardContext { layer: 9, ..base }),
        ("call id", ForwardContext { call_id: 9, ..base }),
        ("first token", ForwardContext { first_token: 1 << 32, ..base }),
    ];
    for select in [Selection::Systematic, Selection::Unbiased] {
        let once = |context: &ForwardContext<'_>| {
            let options = LayerOptions { select, ..LayerOptions::default() };
            run(&mut block.layer(&backend, options)?, &x, &dy, context).map(|bits| bits.weights)
        };
        let want = once(&base)?;
        compare.holds(&format!("{select}: the same key, the same selection"), once(&base)? == want);
        let own_ids = once(&ForwardContext { token_ids: Some(&ids), ..base })?;
        compare.holds(&format!("{select}: ids that count from 0 are the default"), own_ids == want);
        for (what, context) in &different {
            // Systematic sampling draws once an expert: ids are places in its list, and all of them moved alike.
            let draws = select == Selection::Unbiased || *what != "first token";
            compare.holds(&format!("{select}: another {what}, another selection"), (once(context)? != want) == draws);
        }
    }
    // TopQ draws nothing.
    let options = LayerOptions { select: Selection::TopQ, ..LayerOptions::default() };
    let top = |context| run(&mut block.layer(&backend, options.clone())?, &x, &dy, context).map(|bits| bits.weights);
    compare.holds("TopQ does not depend on the seed", top(&base)? == top(&ForwardContext { seed: 9, ..base })?);
    compare.finish(17)
}

/// Every metric selects by its own scores, and `Full` learns its factor from what was retained.
fn metrics<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(kind("softmax"), 40, 39);
    let (x, dy) = block.tensors(&backend)?;
    let forward = block.forward(None);
    let mut compare = Comparison::new();
    for metric in [Metric::Product, Metric::Full, Metric::GateGrad, Metric::Gate, Metric::Uniform] {
        let mut layer = block.layer(&backend, LayerOptions { metric, ..LayerOptions::default() })?;
        let mut scores = Vec::new();
        for step in 0..3 {
            let context = ForwardContext { step, ..ForwardContext::default() };
            let (_, saved) = layer.forward(&x, &context).map_err(text)?;
            scores.push(layer.scores(&saved, &dy).map_err(text)?);
            let kept = retained(&layer, &saved, &dy, &forward.routing, &context)?;
            layer.zero_grad();
            let got = layer.backward(&saved, &dy).map_err(text)?;
            let router = crate::support::oracle_backward::RouterGradient::Estimated;
            let want = block.oracle.backward(&block.x, &forward, &block.dy, &kept, router);
            let what = format!("{metric:?}, step {step}");
            crate::expect::compare_gradients(&mut compare, &what, &layer, &got, &want, device.factor)?;
        }
        compare.holds(&format!("{metric:?}: only Full changes"), (scores[0] != scores[1]) == (metric == Metric::Full));
        if metric == Metric::Full {
            let grows = scores[0].iter().zip(&scores[1]).all(|(before, after)| after >= before);
            compare.holds("Full: the part of W_gate and W_up adds to the scores", grows);
        }
    }
    compare.finish(5 * 3 * 10)
}

fn weight_cap<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(kind("softmax"), 60, 40);
    let (x, dy) = block.tensors(&backend)?;
    let stats = |weight_cap: Option<f32>| {
        let mut options = LayerOptions { weight_cap, ..LayerOptions::default() };
        options.plan.retention = Retention::Fraction(0.3);
        options.plan.q_min = 2;
        let stats = run(&mut block.layer(&backend, options)?, &x, &dy, &ForwardContext::default())?.stats;
        stats.scores.ok_or_else(|| "no scores".to_string())
    };
    let (free, capped, loose) = (stats(None)?, stats(Some(1.25))?, stats(Some(1e6))?);
    let mut compare = Comparison::new();
    compare.holds("weights above the cap occur without it", free.max_pair_weight > 1.25 && free.cap_removed == 0.0);
    compare.number("the cap is the largest weight", capped.max_pair_weight, 1.25, 1e-6);
    compare.holds("what it removed is counted", capped.cap_removed > 0.0 && capped.cap_removed < 1.0);
    compare.holds("a loose cap changes nothing", loose == free);
    compare.finish(4)
}

/// V(q - 1) of threshold sampling from the scores themselves, over sum m^2. The histogram has 8 bins an octave, so a score is
/// represented within 2^(1/16) of itself; tau and V follow within about twice and four times that.
fn eta<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(kind("softmax"), 400, 41);
    let (x, dy) = block.tensors(&backend)?;
    let forward = block.forward(None);
    // The histogram is relative to the mean score before flooring.
    let layer = block.layer(&backend, LayerOptions { score_floor: 0.0, ..LayerOptions::default() })?;
    let (_, saved) = layer.forward(&x, &ForwardContext::default()).map_err(text)?;
    let raw = layer.scores(&saved, &dy).map_err(text)?;
    let mut compare = Comparison::new();
    for fraction in [0.2, 0.5, 0.8] {
        let mut options = LayerOptions::default();
        options.plan.retention = Retention::Fraction(fraction);
        let mut layer = block.layer(&backend, options)?;
        let (_, saved) = layer.forward(&x, &ForwardContext::default()).map_err(text)?;
        let scores = layer.scores(&saved, &dy).map_err(text)?;
        let stats = layer.backward(&saved, &dy).map_err(text)?.stats;
        let (mut variance, mut squares) = (0.0, 0.0);
        let mut sorted = Vec::new();
        let mut offsets = vec![0u32];
        let mut means = Vec::new();
        for (e, &kept) in stats.retained.iter().enumerate() {
            let own: Vec<f32> = forward.routing.pairs().filter(|&(_, _, f)| f == e).map(|(p, ..)| scores[p]).collect();
            let own64 = wide(&own);
            let unfloored = forward.routing.pairs().filter(|&(_, _, f)| f == e).map(|(p, ..)| f64::from(raw[p]));
            means.push(unfloored.sum::<f64>() / own.len() as f64);
            squares += own64.iter().map(|m| m * m).sum::<f64>();
            variance += threshold_variance(&own64, f64::from(kept) - 1.0);
            sorted.extend(own);
            offsets.push(sorted.len() as u32);
        }
        let got = stats.scores.ok_or("no scores")?.eta;
        compare.number(&format!("eta at {fraction}"), got, variance / squares, 4.0 * (2.0_f64.powf(1.0 / 16.0) - 1.0));
        let demand = Demand::from_scores_relative_to(&sorted, &offsets, &means).map_err(text)?;
        let same = quota::eta(&stats.retained, &stats.counts, &demand).map_err(text)?;
        compare.number(&format!("eta at {fraction} by the planner"), got, same, 1e-3);
    }
    compare.finish(6)
}

/// V(y) = sum m max(0, tau - m) where sum min(1, m / tau) = y, by bisection.
fn threshold_variance(scores: &[f64], y: f64) -> f64 {
    if y + 1.0 >= scores.len() as f64 {
        return 0.0;
    }
    let (mut low, mut high) = (0.0, scores.iter().sum::<f64>());
    for _ in 0..200 {
        let tau = 0.5 * (low + high);
        let expected: f64 = scores.iter().map(|m| (m / tau).min(1.0)).sum();
        if expected > y { low = tau } else { high = tau }
    }
    scores.iter().map(|m| m * (high - m).max(0.0)).sum()
}

/// Floors that bind, floors of 0 and 1 (refused where a weight would have infinite variance), retention 0, loads below
/// the floor.
fn quotas<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(kind("softmax"), 12, 42);
    let (x, dy) = block.tensors(&backend)?;
    let forward = block.forward(None);
    let mut compare = Comparison::new();
    for select in SAMPLED {
        for (fraction, q_min) in [(0.0, 0), (0.0, 1), (0.0, 2), (0.1, 2), (0.5, 0), (0.5, 1), (0.9, 1), (0.5, 100)] {
            // With nothing retained, the estimate is the same for every slot, and normalised weights make that 0.
            let nothing = fraction == 0.0 && q_min == 0;
            let router_gradient = if nothing { RouterGradient::Exact } else { RouterGradient::Estimated };
            let mut options = LayerOptions { select, router_gradient, ..LayerOptions::default() };
            options.plan.retention = Retention::Fraction(fraction);
            options.plan.q_min = q_min;
            if q_min < 2 && matches!(select, Selection::Unbiased | Selection::Mixed { .. }) {
                compare.holds(&format!("{select}, floor {q_min}: refused"), block.layer(&backend, options).is_err());
                continue;
            }
            let mut layer = block.layer(&backend, options)?;
            for step in 0..2 {
                let what = format!("{select}, {fraction}, floor {q_min}, step {step}");
                let context = ForwardContext { step, ..ForwardContext::default() };
                let (_, saved) = layer.forward(&x, &context).map_err(text)?;
                let kept = retained(&layer, &saved, &dy, &forward.routing, &context)?;
                layer.zero_grad();
                let got = layer.backward(&saved, &dy).map_err(text)?;
                let router = crate::expect::router_mode(router_gradient);
                let want = block.oracle.backward(&block.x, &forward, &block.dy, &kept, router);
                crate::expect::compare_gradients(&mut compare, &what, &layer, &got, &want, device.factor)?;
                let asked: Vec<u32> = got.stats.counts.iter().map(|&n| n.min(q_min)).collect();
                let met = got.stats.quotas.iter().zip(&asked).all(|(q, floor)| q >= floor);
                compare.holds(&format!("{what}: floors"), met);
                if fraction == 0.0 {
                    compare.equal(&format!("{what}: the floors alone"), &got.stats.retained, &asked);
                }
            }
        }
    }
    compare.finish((8 + 8 + 3 + 3) * 2 * 20)
}
