//! Schedules from outside: pairs that not even forward computes, and quotas of another planner.

use libtest_mimic::Trial;
use lrmoe::kernel::{Metric, NONE};
use lrmoe::plan::{RetentionPlan, plan_one_rank};
use lrmoe::{
    Activations, Backend, Error, ForwardContext, LayerOptions, MoeLayer, ParamId, Retention, RoutedCall,
    RouterGradient, SavedForward, Schedule, Selection, Tensor,
};

use crate::expect::{
    BOUND, Bits, ROUTER_BOUND, compare_gradients, finish, per_expert, retained, router_mode, run, same_routing,
};
use crate::losses::{AUX, Z, scaled};
use crate::sample::{Block, kind, kinds, tensor};
use crate::support::compare::Comparison;
use crate::support::layer::wide;
use crate::support::linear::add_scaled;
use crate::support::oracle::{Forward, Routing, UNROUTED};
use crate::support::oracle_losses::{load_balancing_loss, router_z_loss};
use crate::support::oracle_select::{ScoreRule, floored_scores, pair_scores};
use crate::support::rng::Rng;
use crate::{Device, Outcome, no_threads, text, trial, trial_if};

const TOKENS: usize = 40;
const SAMPLED: [Selection; 4] =
    [Selection::TopQ, Selection::Systematic, Selection::Unbiased, Selection::Mixed { certain: 0.4 }];

pub(crate) fn trials<B: Backend>(device: Device<B>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, config) in kinds() {
        for activations in [Activations::Stash, Activations::Recompute] {
            for router_gradient in [RouterGradient::Estimated, RouterGradient::Exact] {
                let block = Block::new(config.clone(), TOKENS, 151);
                let options = LayerOptions {
                    activations,
                    router_gradient,
                    aux_loss_coef: AUX,
                    z_loss_coef: Z,
                    ..LayerOptions::default()
                };
                let name = format!("schedule::drops::{name}::{activations:?}::{router_gradient:?}").to_lowercase();
                trials.push(trial(device, name, move |device| against_oracle(device, &block, &options)));
            }
        }
    }
    trials.extend([
        trial(device, "schedule::nothing_dropped_is_forward", nothing_dropped),
        trial(device, "schedule::an_expert_or_everything_dropped", whole_experts),
        trial(device, "schedule::a_token_dropped_goes_by", whole_tokens),
        trial(device, "schedule::no_token", no_token),
        trial(device, "schedule::quotas_from_outside", quotas),
        trial(device, "schedule::what_does_not_fit_is_refused", refused),
        trial_if(device, "schedule::threads_same_bits", no_threads, threads),
    ]);
    trials
}

/// Which routed pairs a random 40 % drops.
fn random_drops(routing: &Routing, seed: u64) -> Vec<bool> {
    let mut rng = Rng::new(seed);
    routing.experts.iter().map(|&e| rng.uniform() < 0.4 && e != UNROUTED).collect()
}

/// Everything but these pairs.
fn without(call: &RoutedCall<'_>, dropped: &[bool]) -> lrmoe::Result<Schedule> {
    let mut counts = call.counts.to_vec();
    for (&id, _) in call.ids.iter().zip(dropped).filter(|&(_, &dropped)| dropped) {
        counts[id as usize] -= 1;
    }
    Ok(Schedule { retained: RetentionPlan::new(counts.clone(), counts)?, dropped: Some(dropped.to_vec()) })
}

fn dropped_of(routing: &Routing, dropped: &[bool]) -> Vec<u32> {
    let pairs: Vec<(usize, f64)> = (0..dropped.len()).filter(|&p| dropped[p]).map(|p| (p, 1.0)).collect();
    per_expert(routing, &pairs)
}

fn narrow(counts: &[usize]) -> Vec<u32> {
    counts.iter().map(|&n| n as u32).collect()
}

/// Random drops in every mode, through the layer's router and through logits of the host's, with router losses.
fn against_oracle<B: Backend>(device: &Device<B>, block: &Block, options: &LayerOptions) -> Outcome {
    let mask: Vec<bool> = (0..TOKENS).map(|t| t % 7 != 3).collect();
    let mut compare = Comparison::new();
    let modes = [
        (Selection::All, Metric::Product),
        (Selection::TopQ, Metric::Product),
        (Selection::Systematic, Metric::Product),
        (Selection::Unbiased, Metric::Product),
        (Selection::Mixed { certain: 0.4 }, Metric::Full),
    ];
    for (select, metric) in modes {
        for mask in [None, Some(mask.as_slice())] {
            for host_logits in [false, true] {
                let context = ForwardContext { mask, ..ForwardContext::default() };
                let mut layer = block.layer(&(device.make)(), LayerOptions { select, metric, ..options.clone() })?;
                for step in 0..2 {
                    let what = format!("{select}, masked {}, host {host_logits}, step {step}", mask.is_some());
                    let context = ForwardContext { step, ..context };
                    drops_once(device, block, &mut layer, &context, host_logits, &what, &mut compare)?;
                }
            }
        }
    }
    compare.finish(5 * 2 * 2 * 2 * 20)
}

fn drops_once<B: Backend>(
    device: &Device<B>,
    block: &Block,
    layer: &mut MoeLayer<B>,
    context: &ForwardContext<'_>,
    host_logits: bool,
    what: &str,
    compare: &mut Comparison,
) -> Outcome {
    let backend = layer.backend().clone();
    let (x, dy) = block.tensors(&backend)?;
    let mut routing = block.oracle.route(&block.x, context.mask);
    let logits = host_logits.then(|| tensor(&backend, &routing.logits)).transpose()?;
    if let Some(logits) = &logits {
        // The f32 values that the layer gets.
        routing.logits.data = wide(&logits.to_f32(&backend).map_err(text)?);
        routing = block.oracle.route_logits(routing.logits, context.mask);
    }
    let dropped = random_drops(&routing, 152 + context.step);
    let forward = block.oracle.forward_dropping(&block.x, routing, &dropped);
    let computed = forward.computed();
    let scheduled = layer.forward_scheduled(&x, logits.as_ref(), context, |call| without(call, &dropped));
    let (y, saved) = scheduled.map_err(text)?;
    same_routing(compare, &backend, &saved, &forward)?;
    let y = wide(&y.to_f32(&backend).map_err(text)?);
    compare.relative(&format!("{what}: y"), &y, &forward.y.data, device.factor * BOUND);

    let counts = narrow(&forward.routing.counts());
    let computed_counts = per_expert(&forward.routing, &computed);
    compare.equal(&format!("{what}: counts"), saved.counts(), &counts);
    compare.equal(&format!("{what}: counts of the plan"), &saved.plan().counts, &computed_counts);
    let (aux, z) = (load_balancing_loss(&[&forward.routing]), router_z_loss(&[&forward.routing]));
    let terms = saved.router_terms().ok_or("no terms")?;
    compare.number(&format!("{what}: load balancing"), terms.load_balancing(), aux.value, 1e-6);
    compare.number(&format!("{what}: z"), terms.z_loss(), z.value, 1e-6);
    if layer.options().metric == Metric::Product {
        let raw = pair_scores(&block.oracle, &block.x, &forward, &block.dy, &ScoreRule::OutputNorm);
        let want = floored_scores(&forward, &block.dy, &raw, f64::from(layer.options().score_floor));
        let want: Vec<f64> = want.into_iter().map(|score| score.map_or(0.0, f64::from)).collect();
        let scores = wide(&layer.scores(&saved, &dy).map_err(text)?);
        compare.relative(&format!("{what}: scores"), &scores, &want, device.factor * BOUND);
    }

    let router = router_mode(layer.options().router_gradient);
    let mut want = block.oracle.backward(&block.x, &forward, &block.dy, &computed, router);
    block.oracle.add_router_gradient(&mut want, &block.x, &forward.routing, &scaled(&aux, &z, 0));
    layer.zero_grad();
    let got = layer.backward(&saved, &dy).map_err(text)?;
    if host_logits {
        let experts = block.oracle.expert_backward(&block.x, &forward, &block.dy, &computed);
        let dx = wide(&got.dx.to_f32(&backend).map_err(text)?);
        compare.relative(&format!("{what}: dx"), &dx, &experts.dx.data, device.factor * BOUND);
        let d_logits = wide(&got.d_logits.to_f32(&backend).map_err(text)?);
        let bound = device.factor * ROUTER_BOUND;
        compare.relative(&format!("{what}: d_logits"), &d_logits, &want.d_router_logits.data, bound);
        compare.holds(&format!("{what}: the own router learns nothing"), layer.gradient(ParamId::Router) == Ok(None));
        experts_only(compare, what, layer, &forward, &experts.weights.experts, device.factor)?;
    } else {
        compare_gradients(compare, what, layer, &got, &want, device.factor)?;
    }
    compare.equal(&format!("{what}: counts reported"), &got.stats.counts, &counts);
    compare.equal(&format!("{what}: dropped"), &got.stats.dropped, &dropped_of(&forward.routing, &dropped));
    compare.equal(&format!("{what}: quotas"), &got.stats.quotas, &computed_counts);
    compare.equal(&format!("{what}: retained"), &got.stats.retained, &computed_counts);
    let pairs: Vec<bool> = forward.pairs.iter().map(Option::is_some).collect();
    compare.equal(&format!("{what}: retained pairs"), &got.retained_pairs(&backend).map_err(text)?, &pairs);
    compare.holds(&format!("{what}: no NaN seen"), !got.stats.nan_seen);
    if let Some(scores) = &got.stats.scores {
        if context.step == 0 {
            let load: Vec<f64> = computed_counts.iter().copied().map(f64::from).collect();
            compare.equal(&format!("{what}: demand"), &layer.demand().ok_or("no demand")?.parts().load, &load);
        }
        compare.holds(&format!("{what}: no noise, all mass"), scores.eta == 0.0 && scores.kept_score_mass == 1.0);
    }
    Ok(())
}

/// The gradients of the routed experts, end to end.
fn experts_only<B: Backend>(
    compare: &mut Comparison,
    what: &str,
    layer: &MoeLayer<B>,
    forward: &Forward,
    want: &[crate::support::block::Swiglu<crate::support::linear::Mat>],
    factor: f64,
) -> Outcome {
    let read = |id| layer.gradient(id).map_err(text)?.ok_or("no gradient".to_string());
    let (gate_up, down) = (read(ParamId::GateUp)?, read(ParamId::Down)?);
    let experts = forward.routing.logits.cols;
    let each = (gate_up.len() / experts, down.len() / experts);
    for (e, want) in want.iter().enumerate() {
        let both = [want.gate.data.as_slice(), &want.up.data].concat();
        let got = wide(&gate_up[e * each.0..(e + 1) * each.0]);
        compare.relative(&format!("{what}: gate_up of {e}"), &got, &both, factor * BOUND);
        let got = wide(&down[e * each.1..(e + 1) * each.1]);
        compare.relative(&format!("{what}: down of {e}"), &got, &want.down.data, factor * BOUND);
    }
    Ok(())
}

/// The layer's own plan, handed in from outside, step by step: not one bit differs.
fn nothing_dropped<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mask: Vec<bool> = (0..TOKENS).map(|t| t % 5 != 1).collect();
    let mut compare = Comparison::new();
    for (name, config) in kinds() {
        let block = Block::new(config, TOKENS, 161);
        let (x, dy) = block.tensors(&backend)?;
        for select in [Selection::All].into_iter().chain(SAMPLED) {
            let options = LayerOptions { select, aux_loss_coef: AUX, ..LayerOptions::default() };
            let (mut own, mut scheduled) = (block.layer(&backend, options.clone())?, block.layer(&backend, options)?);
            for step in 0..3 {
                let what = format!("{name}, {select}, step {step}");
                let context = ForwardContext { step, mask: Some(&mask), ..ForwardContext::default() };
                let want = run(&mut own, &x, &dy, &context)?;
                let mut seen = None;
                let (y, saved) = scheduled
                    .forward_scheduled(&x, None, &context, |call| {
                        seen = Some((call.ids.to_vec(), call.counts.to_vec(), call.top_k));
                        let plan = scheduled.options().plan;
                        let retained = match select {
                            Selection::All => RetentionPlan::new(call.counts.to_vec(), call.counts.to_vec())?,
                            _ => plan_one_rank(call.counts, call.demand, &plan)?,
                        };
                        Ok(Schedule { retained, dropped: (step == 1).then(|| vec![false; call.ids.len()]) })
                    })
                    .map_err(text)?;
                let (ids, counts, top_k) = seen.ok_or("the schedule was not asked for")?;
                compare.equal(&format!("{what}: ids"), &ids, &saved.routing(&backend).map_err(text)?.ids);
                compare.equal(&format!("{what}: counts"), &counts, saved.counts());
                compare.equal(&format!("{what}: k"), &[top_k], &[block.config.num_experts_per_tok]);
                compare.equal(&format!("{what}: nothing dropped"), &want.stats.dropped, &[0; 8]);
                let got = finish(&mut scheduled, &y, &saved, &dy)?;
                got.same(&mut compare, &what, &want);
                compare.holds(&format!("{what}: statistics"), got.stats == want.stats);
            }
        }
    }
    compare.finish(6 * 5 * 3 * 9)
}

fn is_zero(values: &[f32]) -> bool {
    values.iter().all(|v| v.to_bits() == 0)
}

/// An expert that is dropped whole has a gradient of exact zeros; so have all, with everything dropped.
fn whole_experts<B: Backend>(device: &Device<B>) -> Outcome {
    const GONE: usize = 2;
    let backend = (device.make)();
    let mut compare = Comparison::new();
    for (name, config) in kinds() {
        let block = Block::new(config, TOKENS, 171);
        let (x, dy) = block.tensors(&backend)?;
        let routing = block.oracle.route(&block.x, None);
        for (everything, activations) in [(false, Activations::Stash), (true, Activations::Recompute)] {
            let what = format!("{name}, everything {everything}");
            let dropped: Vec<bool> = routing.experts.iter().map(|&e| everything || e == GONE).collect();
            let options = LayerOptions { activations, ..LayerOptions::default() };
            let mut layer = block.layer(&backend, options)?;
            let context = ForwardContext::default();
            let (y, saved) =
                layer.forward_scheduled(&x, None, &context, |call| without(call, &dropped)).map_err(text)?;
            let forward = block.oracle.forward_dropping(&block.x, routing.clone(), &dropped);
            let y = wide(&y.to_f32(&backend).map_err(text)?);
            compare.relative(&format!("{what}: y"), &y, &forward.y.data, device.factor * BOUND);
            let got = layer.backward(&saved, &dy).map_err(text)?;
            for id in [ParamId::GateUp, ParamId::Down] {
                let gradient = layer.gradient(id).map_err(text)?.ok_or("no gradient")?;
                for (e, gradient) in gradient.chunks(gradient.len() / 8).enumerate() {
                    let zero = per_expert(&routing, &forward.computed())[e] == 0;
                    compare.holds(&format!("{what}: {} of {e}", id.name()), is_zero(gradient) == zero);
                }
            }
            compare.holds(&format!("{what}: it had pairs"), saved.counts()[GONE] > 0);
            compare.equal(&format!("{what}: dropped"), &got.stats.dropped[GONE..=GONE], &saved.counts()[GONE..=GONE]);
            compare.equal(&format!("{what}: retained"), &got.stats.retained[GONE..=GONE], &[0]);
        }
    }
    compare.finish(6 * 2 * 20)
}

/// A token without any computed pair: y and dx are those of the shared expert alone. A pair that is dropped beside others has no
/// gradient of its combine weight.
fn whole_tokens<B: Backend>(device: &Device<B>) -> Outcome {
    const GONE: usize = 5;
    let backend = (device.make)();
    let mut compare = Comparison::new();
    for (name, config) in kinds() {
        let (k, h) = (config.num_experts_per_tok, config.hidden_size);
        let block = Block::new(config, TOKENS, 181);
        let (x, dy) = block.tensors(&backend)?;
        let routing = block.oracle.route(&block.x, None);
        let mut dropped = random_drops(&routing, 182);
        dropped[GONE * k..(GONE + 1) * k].fill(true);
        let forward = block.oracle.forward_dropping(&block.x, routing.clone(), &dropped);
        let logits = tensor(&backend, &routing.logits)?;
        for router_gradient in [RouterGradient::Estimated, RouterGradient::Exact] {
            let mut layer = block.layer(&backend, LayerOptions { router_gradient, ..LayerOptions::default() })?;
            let scheduled =
                layer.forward_scheduled(&x, Some(&logits), &ForwardContext::default(), |call| without(call, &dropped));
            let (y, saved) = scheduled.map_err(text)?;
            let got = layer.backward(&saved, &dy).map_err(text)?;
            let row = GONE * h..(GONE + 1) * h;
            let y = &y.to_f32(&backend).map_err(text)?[row.clone()];
            let dx = &got.dx.to_f32(&backend).map_err(text)?[row];
            let d_logits = got.d_logits.to_f32(&backend).map_err(text)?;
            let mut shared = vec![0.0; h];
            if let Some(activation) = &forward.shared[GONE] {
                add_scaled(&mut shared, forward.shared_scale[GONE], &activation.out);
            }
            compare.relative(&format!("{name}: y"), &wide(y), &shared, device.factor * BOUND);
            let want = block.oracle.expert_backward(&block.x, &forward, &block.dy, &[]).dx;
            compare.relative(&format!("{name}: dx"), &wide(dx), want.row(GONE), device.factor * BOUND);
            compare.holds(&format!("{name}: d_logits"), is_zero(&d_logits[GONE * 8..(GONE + 1) * 8]));
            if name != "sigmoid_unnormalised" {
                continue;
            }
            // Here the gradient of a logit is that of its own combine weight, times a factor.
            for (p, t, e) in routing.pairs() {
                let zero = is_zero(&d_logits[t * 8 + e..=t * 8 + e]);
                compare.holds(&format!("{name}: gradient of pair {p}"), zero == dropped[p]);
            }
        }
    }
    compare.finish(6 * 2 * 3 + 2 * TOKENS * 3)
}

fn no_token<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mut compare = Comparison::new();
    for (name, config) in kinds() {
        let block = Block::new(config, 0, 191);
        let (x, dy) = block.tensors(&backend)?;
        for select in [Selection::All].into_iter().chain(SAMPLED) {
            let mut layer = block.layer(&backend, LayerOptions { select, ..LayerOptions::default() })?;
            let scheduled = layer.forward_scheduled(&x, None, &ForwardContext::default(), |call| without(call, &[]));
            let (y, saved) = scheduled.map_err(text)?;
            let got = layer.backward(&saved, &dy).map_err(text)?;
            let what = format!("{name}, {select}");
            compare.equal(&format!("{what}: rows"), &[y.rows(), got.dx.rows(), got.d_logits.rows()], &[0; 3]);
            compare.equal(&format!("{what}: pairs"), &got.retained_pairs(&backend).map_err(text)?, &[]);
            compare.equal(&format!("{what}: dropped"), &got.stats.dropped, &[0; 8]);
        }
    }
    compare.finish(6 * 5 * 3)
}

/// Random quotas, none and all among them: obeyed to the pair, and the retained set is that of the rule under them.
fn quotas<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mask: Vec<bool> = (0..TOKENS).map(|t| t % 6 != 2).collect();
    let mut rng = Rng::new(202);
    let mut compare = Comparison::new();
    for (name, config) in kinds() {
        let block = Block::new(config, TOKENS, 201);
        let (x, dy) = block.tensors(&backend)?;
        let forward = block.forward(Some(&mask));
        let counts = narrow(&forward.routing.counts());
        for select in SAMPLED {
            let mut options = LayerOptions { select, ..LayerOptions::default() };
            options.plan.retention = Retention::Fraction(0.1);
            let mut layer = block.layer(&backend, options)?;
            for step in 0..3 {
                let what = format!("{name}, {select}, step {step}");
                let mut quotas: Vec<u32> = counts.iter().map(|&n| rng.below(n as usize + 1) as u32).collect();
                (quotas[0], quotas[7]) = (0, counts[7]);
                let context = ForwardContext { seed: 4, step, mask: Some(&mask), ..ForwardContext::default() };
                let scheduled = layer.forward_scheduled(&x, None, &context, |call| {
                    let retained = RetentionPlan::new(call.counts.to_vec(), quotas.clone())?;
                    Ok(Schedule { retained, dropped: None })
                });
                let (y, saved) = scheduled.map_err(text)?;
                let y = wide(&y.to_f32(&backend).map_err(text)?);
                compare.relative(&format!("{what}: y"), &y, &forward.y.data, device.factor * BOUND);
                let kept = retained(&layer, &saved, &dy, &forward.routing, &context)?;
                let router = router_mode(layer.options().router_gradient);
                let want = block.oracle.backward(&block.x, &forward, &block.dy, &kept, router);
                layer.zero_grad();
                let got = layer.backward(&saved, &dy).map_err(text)?;
                compare_gradients(&mut compare, &what, &layer, &got, &want, device.factor)?;
                compare.equal(&format!("{what}: quotas"), &got.stats.quotas, &quotas);
                compare.equal(&format!("{what}: retained"), &got.stats.retained, &quotas);
                let mut pairs = vec![false; forward.pairs.len()];
                kept.iter().for_each(|&(p, _)| pairs[p] = true);
                compare.equal(&format!("{what}: pairs"), &got.retained_pairs(&backend).map_err(text)?, &pairs);
            }
        }
    }
    compare.finish(6 * 4 * 3 * 10)
}

/// Each refusal names what is wrong, its value and what is allowed, and leaves a layer that works.
fn refused<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(kind("softmax"), TOKENS, 211);
    let (x, _) = block.tensors(&backend)?;
    let mask: Vec<bool> = (0..TOKENS).map(|t| t != 3).collect();
    let context = ForwardContext { mask: Some(&mask), ..ForwardContext::default() };
    let counts = narrow(&block.forward(Some(&mask)).routing.counts());
    let first = block.forward(Some(&mask)).routing.experts[0];
    let pairs = TOKENS * 3;
    let drop = |p: usize, len: usize| Some((0..len).map(|q| q == p).collect::<Vec<bool>>());
    let all = RetentionPlan::new(counts.clone(), counts.clone()).map_err(text)?;
    let changed = |expert: usize, count: i64, quota: i64| {
        let mut plan = all.clone();
        plan.counts[expert] = (i64::from(plan.counts[expert]) + count) as u32;
        plan.quotas[expert] = (i64::from(plan.quotas[expert]) + quota) as u32;
        plan
    };
    let (mut short, mut few_quotas) = (all.clone(), all.clone());
    short.counts.pop();
    few_quotas.quotas.pop();
    let cases = [
        ("experts", SAMPLED[1], short, None, vec!["`retained.counts`", "is 7", "8 experts"]),
        ("quotas", SAMPLED[1], few_quotas, None, vec!["`retained.quotas`", "is 7", "8 experts"]),
        ("too many", SAMPLED[1], changed(4, 1, 0), None, vec!["`retained.counts[4]`", "0 dropped"]),
        ("too few", Selection::All, changed(4, -1, -1), None, vec!["`retained.counts[4]`", "0 dropped"]),
        ("above", SAMPLED[0], changed(5, 0, 1), None, vec!["`retained.quotas[5]`", "at most"]),
        ("not all", Selection::All, changed(6, 0, -1), None, vec!["`retained.quotas[6]`", "select all"]),
        ("drop list", Selection::All, all.clone(), drop(0, pairs - 1), vec!["`dropped`", "is 119", "120 pairs"]),
        ("masked", Selection::All, all.clone(), drop(10, pairs), vec!["`dropped[10]` is true", "masked"]),
        ("drops not counted", SAMPLED[1], all.clone(), drop(0, pairs), vec!["`retained.counts[", "1 dropped"]),
        (
            "drops and selection",
            SAMPLED[1],
            changed(first, -1, -2),
            drop(0, pairs),
            vec!["`retained.quotas[", "all that is computed", "dropped"],
        ),
    ];
    let mut compare = Comparison::new();
    for (what, select, retained, dropped, fragments) in cases {
        let layer = block.layer(&backend, LayerOptions { select, ..LayerOptions::default() })?;
        let want = layer.evaluate(&x, &context).and_then(|y| y.to_f32(&backend)).map_err(text)?;
        let error = layer.forward_scheduled(&x, None, &context, |_| Ok(Schedule { retained, dropped })).err();
        let message = error.map_or("not refused".to_string(), text);
        for fragment in fragments {
            compare.holds(&format!("{what}: {message:?} has {fragment:?}"), message.contains(fragment));
        }
        let again = layer.forward(&x, &context).and_then(|(y, _)| y.to_f32(&backend)).map_err(text)?;
        compare.equal(&format!("{what}: y afterwards"), &again, &want);
    }
    let layer = block.layer(&backend, LayerOptions::default())?;
    let own = || Error::argument("policy", "lost", "a plan");
    let error = layer.forward_scheduled(&x, None, &context, |_| Err(own())).err();
    compare.holds("an error of the schedule comes back as it is", error == Some(own()));
    let unrouted = std::cell::Cell::new(0);
    let counting = |call: &RoutedCall<'_>| {
        unrouted.set(call.ids.iter().filter(|&&id| id == NONE).count());
        without(call, &vec![false; call.ids.len()])
    };
    layer.forward_scheduled(&x, None, &context, counting).map_err(text)?;
    compare.equal("pairs of the masked token", &[unrouted.get()], &[3]);
    compare.finish(10 * 3)
}

fn threads<B: Backend>(device: &Device<B>) -> Outcome {
    let Some(threads) = device.threads else { return Err("no threads".into()) };
    let block = Block::new(kind("sigmoid_groups_bias_shared"), 150, 221);
    let dropped = random_drops(&block.oracle.route(&block.x, None), 222);
    let mut compare = Comparison::new();
    for select in [Selection::All, Selection::Systematic, Selection::Unbiased] {
        let once = |n: usize| -> Result<Bits, String> {
            let backend = threads(n);
            let (x, dy) = block.tensors(&backend)?;
            let options = LayerOptions { select, aux_loss_coef: AUX, z_loss_coef: Z, ..LayerOptions::default() };
            let mut layer = block.layer(&backend, options)?;
            let call: (Tensor<B>, SavedForward<B>) = layer
                .forward_scheduled(&x, None, &ForwardContext::default(), |call| without(call, &dropped))
                .map_err(text)?;
            finish(&mut layer, &call.0, &call.1, &dy)
        };
        let want = once(1)?;
        let got = once(2)?;
        got.same(&mut compare, &format!("{select}"), &want);
        compare.holds(&format!("{select}: statistics"), got.stats == want.stats);
    }
    compare.finish(2 * 5)
}
