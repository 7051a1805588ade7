//! Sizes and values at the edge: no token, one token, one expert, every expert, one expert for all, odd widths, extreme values.

use libtest_mimic::Trial;
use lrmoe::kernel::Metric;
use lrmoe::{Activations, Backend, ForwardContext, LayerOptions, MoeConfig, ParamId, RouterGradient, Selection};

use crate::expect::{BOUND, compare_gradients, retained, router_mode, run};
use crate::sample::{Block, kind, kinds, steering_logits, tensor};
use crate::support::compare::Comparison;
use crate::support::layer::wide;
use crate::{Device, Outcome, text, trial};

const SELECTIONS: [Selection; 5] =
    [Selection::All, Selection::TopQ, Selection::Systematic, Selection::Unbiased, Selection::Mixed { certain: 0.5 }];

pub(crate) fn trials<B: Backend>(device: Device<B>) -> Vec<Trial> {
    let sizes = [
        ("one_token", MoeConfig::new(8, 4, 4, 2), 1),
        ("one_expert", MoeConfig::new(8, 4, 1, 1), 30),
        ("every_expert", MoeConfig::new(8, 4, 4, 4), 30),
        ("more_experts_than_pairs", MoeConfig::new(8, 4, 64, 2), 5),
        ("width_one", MoeConfig::new(1, 1, 4, 2), 30),
        ("odd_widths", MoeConfig::new(17, 9, 4, 2), 70),
        ("hidden_above_a_tile", MoeConfig::new(67, 33, 3, 2), 40),
        ("wide_experts", MoeConfig::new(3, 130, 3, 2), 40),
    ];
    let mut trials: Vec<Trial> = sizes
        .into_iter()
        .map(|(name, config, tokens)| {
            trial(device, format!("edges::{name}"), move |d| against_oracle(d, &Block::new(config, tokens, 61)))
        })
        .collect();
    trials.push(trial(device, "edges::no_token", no_token));
    trials.push(trial(device, "edges::all_pairs_on_one_expert", one_expert_for_all));
    trials.push(trial(device, "edges::minus_zero_and_subnormal", tiny_values));
    trials.push(trial(device, "edges::large_values_do_not_overflow_scores", large_values));
    trials.push(trial(device, "edges::a_second_backward_gives_the_same_in_every_metric", twice));
    trials.push(trial(device, "edges::weights_of_experts_without_probability_are_finite", no_probability));
    trials
}

/// Forward and backward in every mode, against the oracle.
pub(crate) fn against_oracle<B: Backend>(device: &Device<B>, block: &Block) -> Outcome {
    let backend = (device.make)();
    let (x, dy) = block.tensors(&backend)?;
    let forward = block.forward(None);
    let mut compare = Comparison::new();
    for select in SELECTIONS {
        for (activations, router_gradient) in
            [(Activations::Stash, RouterGradient::Estimated), (Activations::Recompute, RouterGradient::Exact)]
        {
            let mut options = LayerOptions { select, activations, router_gradient, ..LayerOptions::default() };
            options.plan.q_min = 2;
            let mut layer = block.layer(&backend, options)?;
            let what = format!("{select}, {activations:?}");
            for step in 0..2 {
                let context = ForwardContext { step, ..ForwardContext::default() };
                let (y, saved) = layer.forward(&x, &context).map_err(text)?;
                let y = wide(&y.to_f32(&backend).map_err(text)?);
                compare.relative(&format!("{what}: y"), &y, &forward.y.data, BOUND * device.factor);
                let kept = retained(&layer, &saved, &dy, &forward.routing, &context)?;
                let router = router_mode(router_gradient);
                let want = block.oracle.backward(&block.x, &forward, &block.dy, &kept, router);
                layer.zero_grad();
                let got = layer.backward(&saved, &dy).map_err(text)?;
                if block.config.num_experts_per_tok == 1 {
                    // The weight is 1 whatever the logits are: zero up to the rounding of the terms that cancel.
                    let d_logits = got.d_logits.to_f32(&backend).map_err(text)?;
                    compare.holds(&format!("{what}: d_logits"), d_logits.iter().all(|d| d.abs() < 1e-4));
                    let dx = wide(&got.dx.to_f32(&backend).map_err(text)?);
                    compare.relative(&format!("{what}: dx"), &dx, &want.dx.data, BOUND * device.factor);
                } else {
                    compare_gradients(&mut compare, &what, &layer, &got, &want, device.factor)?;
                }
            }
        }
    }
    compare.finish(SELECTIONS.len() * 2 * 2 * 3)
}

fn no_token<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mut compare = Comparison::new();
    for (name, config) in kinds() {
        let block = Block::new(config, 0, 62);
        let (x, dy) = block.tensors(&backend)?;
        for select in SELECTIONS {
            for (activations, router_gradient) in
                [(Activations::Stash, RouterGradient::Estimated), (Activations::Recompute, RouterGradient::Exact)]
            {
                let options = LayerOptions {
                    select,
                    activations,
                    router_gradient,
                    aux_loss_coef: 1.0,
                    ..LayerOptions::default()
                };
                let got = run(&mut block.layer(&backend, options)?, &x, &dy, &ForwardContext::default())?;
                let what = format!("{name}, {select}");
                compare.equal(&format!("{what}: sizes"), &[got.y.len(), got.dx.len(), got.d_logits.len()], &[0; 3]);
                let zero = got.weights.iter().flat_map(|(_, g)| g).all(|&g| g == 0);
                compare.holds(&format!("{what}: gradients are exact zeros"), zero);
                compare.equal(&format!("{what}: counts"), &got.stats.counts, &[0; 8]);
            }
        }
    }
    compare.finish(6 * 4 * 2 * 3)
}

fn one_expert_for_all<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(MoeConfig::new(8, 5, 6, 1), 50, 63);
    let logits = steering_logits(&[4; 50], 6);
    let routing = block.oracle.route_logits(logits.clone(), None);
    let forward = block.oracle.forward(&block.x, routing);
    let (x, dy) = block.tensors(&backend)?;
    let logits = tensor(&backend, &logits)?;
    let mut compare = Comparison::new();
    for select in SELECTIONS {
        let mut layer = block.layer(&backend, LayerOptions { select, ..LayerOptions::default() })?;
        let context = ForwardContext::default();
        let (y, saved) = layer.forward_with_logits(&x, &logits, &context).map_err(text)?;
        compare.equal("counts", saved.counts(), &[0, 0, 0, 0, 50, 0]);
        let y = wide(&y.to_f32(&backend).map_err(text)?);
        compare.relative(&format!("{select}: y"), &y, &forward.y.data, BOUND * device.factor);
        let kept = retained(&layer, &saved, &dy, &forward.routing, &context)?;
        let want = block.oracle.expert_backward(&block.x, &forward, &block.dy, &kept);
        let got = layer.backward(&saved, &dy).map_err(text)?;
        let dx = wide(&got.dx.to_f32(&backend).map_err(text)?);
        compare.relative(&format!("{select}: dx"), &dx, &want.dx.data, BOUND * device.factor);
        let down = wide(&layer.gradient(lrmoe::ParamId::Down).map_err(text)?.ok_or("no gradient")?);
        for (e, (got, want)) in down.chunks(8 * 5).zip(&want.weights.experts).enumerate() {
            compare.relative(&format!("{select}: down of {e}"), got, &want.down.data, BOUND * device.factor);
        }
    }
    compare.finish(4 * 9)
}

/// -0 and subnormal inputs: no NaN, y as the oracle has it, and the selection still within its quotas.
fn tiny_values<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mut compare = Comparison::new();
    for (what, value) in [("-0", -0.0), ("subnormal", f64::from(f32::from_bits(3))), ("small", 1e-30)] {
        for place in ["x", "dy", "both"] {
            let mut block = Block::new(kind("softmax"), 30, 64);
            if place != "dy" {
                block.x.data.iter_mut().for_each(|v| *v = value);
            }
            if place != "x" {
                block.dy.data.iter_mut().for_each(|v| *v = value);
            }
            let (x, dy) = block.tensors(&backend)?;
            for select in SELECTIONS {
                let mut options = LayerOptions { select, ..LayerOptions::default() };
                options.plan.q_min = 2;
                let mut layer = block.layer(&backend, options)?;
                for step in 0..2 {
                    let got = run(&mut layer, &x, &dy, &ForwardContext { step, ..ForwardContext::default() })?;
                    let all = [&got.y, &got.dx, &got.d_logits].into_iter().chain(got.weights.iter().map(|(_, g)| g));
                    let finite = all.flatten().all(|&b| f32::from_bits(b).is_finite());
                    compare.holds(&format!("{what} in {place}, {select}: finite"), finite);
                    let Some(scores) = &got.stats.scores else { continue };
                    let want: Vec<u32> =
                        got.stats.quotas.iter().zip(&scores.eligible).map(|(&q, &n)| q.min(n)).collect();
                    compare.equal(&format!("{what} in {place}, {select}: retained"), &got.stats.retained, &want);
                    compare.holds(&format!("{what} in {place}, {select}: no NaN seen"), !got.stats.nan_seen);
                    let none = value == 0.0 && place != "x";
                    let eligible = scores.eligible.iter().sum::<u32>();
                    compare.equal(&format!("{what} in {place}: eligible"), &[eligible], &[if none { 0 } else { 90 }]);
                }
            }
        }
    }
    compare.finish(3 * 3 * 4 * 2)
}

/// Norms whose squares overflow f32: the scores stay finite and in order.
fn large_values<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mut block = Block::new(kind("softmax"), 30, 65);
    block.dy.data.iter_mut().for_each(|v| *v = f64::from((*v * 1e25) as f32));
    let (x, dy) = block.tensors(&backend)?;
    let forward = block.forward(None);
    let mut options = LayerOptions::default();
    options.plan.q_min = 2;
    let mut layer = block.layer(&backend, options)?;
    let context = ForwardContext::default();
    let (_, saved) = layer.forward(&x, &context).map_err(text)?;
    let kept = retained(&layer, &saved, &dy, &forward.routing, &context)?;
    let router = router_mode(RouterGradient::Estimated);
    let want = block.oracle.backward(&block.x, &forward, &block.dy, &kept, router);
    let got = layer.backward(&saved, &dy).map_err(text)?;
    let mut compare = Comparison::new();
    compare_gradients(&mut compare, "dy of 1e25", &layer, &got, &want, device.factor)?;
    let nan_seen = got.stats.nan_seen;
    let stats = got.stats.scores.ok_or("no scores")?;
    compare.holds("no NaN seen", !nan_seen && stats.eta.is_finite());
    let sum = want.weights.named().iter().flat_map(|(_, m)| &m.data).map(|g| g * g).sum::<f64>();
    compare.number("grad_norm_sq beyond f32", layer.grad_norm_sq().map_err(text)?, sum, 1e-5);
    compare.finish(10)
}

/// Backward moves the layer's running estimates on; what a forward saved is not touched by that.
fn twice<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(kind("softmax_shared_gate"), 60, 66);
    let (x, dy) = block.tensors(&backend)?;
    let mut compare = Comparison::new();
    for metric in [Metric::Product, Metric::Full, Metric::GateGrad, Metric::Gate, Metric::Uniform] {
        let mut options = LayerOptions { metric, ..LayerOptions::default() };
        options.plan.q_min = 2;
        let mut layer = block.layer(&backend, options)?;
        for step in 0..3 {
            let context = ForwardContext { step, ..ForwardContext::default() };
            let (_, saved) = layer.forward(&x, &context).map_err(text)?;
            let mut results = Vec::new();
            for _ in 0..2 {
                layer.zero_grad();
                let scores = layer.scores(&saved, &dy).map_err(text)?;
                let got = layer.backward(&saved, &dy).map_err(text)?;
                let gate_up = layer.gradient(ParamId::GateUp).map_err(text)?.ok_or("no gradient")?;
                let [dx, d_logits] = [got.dx, got.d_logits].map(|t| t.to_f32(&backend));
                results.push([scores, dx.map_err(text)?, d_logits.map_err(text)?, gate_up]);
            }
            let bits = |r: &[Vec<f32>; 4]| r.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>();
            compare.holds(&format!("{metric:?}, step {step}"), bits(&results[0]) == bits(&results[1]));
        }
    }
    compare.finish(15)
}

/// A correction bias keeps experts whose softmax probability vanishes: weight 0, not 0 / 0.
fn no_probability<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mut config = MoeConfig::new(8, 4, 4, 2);
    config.correction_bias = true;
    let mut block = Block::new(config, 3, 67);
    block.weights.correction_bias = Some(vec![-10.0, 0.0, 0.0, 0.0]);
    let (x, dy) = block.tensors(&backend)?;
    let mut layer = block.layer(&backend, LayerOptions::default())?;
    let mut logits = steering_logits(&[0; 3], 4);
    logits.data.iter_mut().for_each(|v| *v *= 100.0);
    let logits = tensor(&backend, &logits)?;
    let (y, saved) = layer.forward_with_logits(&x, &logits, &ForwardContext::default()).map_err(text)?;
    let got = layer.backward(&saved, &dy).map_err(text)?;
    let mut compare = Comparison::new();
    let ids = saved.routing(&backend).map_err(text)?.ids;
    compare.holds("the bias rules out expert 0", ids == [1, 2, 1, 2, 1, 2]);
    for (name, tensor) in [("y", y), ("dx", got.dx), ("d_logits", got.d_logits)] {
        compare.holds(name, tensor.to_f32(&backend).map_err(text)?.iter().all(|&v| v == 0.0));
    }
    compare.holds("no NaN seen", !got.stats.nan_seen);
    compare.finish(5)
}
