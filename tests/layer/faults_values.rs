//! Faults that users of Mixture-of-Experts systems reported, continued: determinism, numerics, routing, memory and balance.

use libtest_mimic::Trial;
use lrmoe::config::ScoringFunc;
use lrmoe::{
    Activations, Backend, DType, Error, ForwardContext, HostData, LayerOptions, MoeConfig, MoeLayer, Selection,
    Statistics, Tensor,
};

use crate::expect::{Bits, run, run_with_logits, tensor_bits};
use crate::sample::{Block, kind, steering_logits, tensor};
use crate::support::compare::Comparison;
use crate::support::layer::wide;
use crate::support::linear::Mat;
use crate::{Device, Outcome, no_storage, no_threads, text, trial, trial_if};

pub(crate) fn trials<B: Backend>(device: Device<B>) -> Vec<Trial> {
    vec![
        trial(device, "fault_16_forward_a_hundred_times", forward_a_hundred_times),
        trial(device, "fault_17_eight_slots_per_token", eight_slots),
        trial(device, "fault_18_forty_repeats_without_a_step", forty_repeats),
        trial_if(device, "fault_19_aux_loss_over_thread_counts", no_threads, aux_loss_threads),
        trial_if(device, "fault_20_cancelling_slots_in_bf16", |d| no_storage(d, DType::BF16), cancelling_slots),
        trial(device, "fault_22_negative_scores_and_masked_groups", masked_groups),
        trial(device, "fault_23_scores_that_differ_by_one_ulp", close_scores),
        trial(device, "fault_24_25_equal_logits_and_recompute", equal_logits),
        trial(device, "fault_26_recompute_counts_once", counted_once),
        trial(device, "fault_27_padding_is_not_counted", padding_not_counted),
        trial(device, "fault_36_skew_under_a_budget", skew_under_a_budget),
        trial(device, "fault_37_imbalance_is_visible", imbalance_is_visible),
    ]
}

fn context() -> ForwardContext<'static> {
    ForwardContext::default()
}

fn forward_a_hundred_times<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(kind("softmax_shared_gate"), 130, 122);
    let (x, _) = block.tensors(&backend)?;
    let layer = block.layer(&backend, LayerOptions::default())?;
    let want = tensor_bits(&backend, &layer.evaluate(&x, &context()).map_err(text)?)?;
    let mut compare = Comparison::new();
    for run in 0..100 {
        let (y, _) = layer.forward(&x, &ForwardContext { step: run, ..context() }).map_err(text)?;
        compare.equal(&format!("run {run}"), &tensor_bits(&backend, &y)?, &want);
    }
    compare.finish(100)
}

fn eight_slots<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(MoeConfig::new(16, 8, 16, 8), 90, 123);
    let (x, dy) = block.tensors(&backend)?;
    let mut compare = Comparison::new();
    let mut first: Option<Bits> = None;
    for repeat in 0..10 {
        let got = run(&mut block.layer(&backend, LayerOptions::default())?, &x, &dy, &context())?;
        match &first {
            Some(first) => got.same(&mut compare, &format!("repeat {repeat}"), first),
            None => first = Some(got),
        }
    }
    compare.finish(36)
}

fn forty_repeats<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(kind("sigmoid_groups_bias_shared"), 60, 124);
    let (x, dy) = block.tensors(&backend)?;
    let options =
        LayerOptions { select: Selection::All, aux_loss_coef: 0.01, z_loss_coef: 0.01, ..LayerOptions::default() };
    let mut layer = block.layer(&backend, options)?;
    let mut compare = Comparison::new();
    let mut first: Option<(Bits, u64, u64)> = None;
    for repeat in 0..40 {
        let (_, saved) = layer.forward(&x, &context()).map_err(text)?;
        let terms = saved.router_terms().ok_or("no terms")?;
        let losses = (terms.load_balancing().to_bits(), terms.z_loss().to_bits());
        let got = run(&mut layer, &x, &dy, &context())?;
        match &first {
            Some((bits, aux, z)) => {
                compare.holds(&format!("repeat {repeat}: losses"), losses == (*aux, *z));
                got.same(&mut compare, &format!("repeat {repeat}"), bits);
            }
            None => first = Some((got, losses.0, losses.1)),
        }
    }
    compare.finish(39 * 5)
}

fn aux_loss_threads<B: Backend>(device: &Device<B>) -> Outcome {
    let threads = device.threads.ok_or("no threads to choose")?;
    let block = Block::new(kind("softmax"), 700, 125);
    let options = LayerOptions { aux_loss_coef: 1.0, z_loss_coef: 1.0, ..LayerOptions::default() };
    let mut compare = Comparison::new();
    let mut first: Option<([u64; 2], Vec<u32>)> = None;
    for n in [1, 2, 3, 5, 8] {
        let backend = threads(n);
        let (x, dy) = block.tensors(&backend)?;
        let mut layer = block.layer(&backend, options.clone())?;
        let (_, saved) = layer.forward(&x, &context()).map_err(text)?;
        let terms = saved.router_terms().ok_or("no terms")?;
        let losses = [terms.load_balancing().to_bits(), terms.z_loss().to_bits()];
        let got = run(&mut layer, &x, &dy, &context())?.d_logits;
        match &first {
            Some((want, bits)) => {
                compare.equal(&format!("{n} threads: losses"), &losses, want);
                compare.equal(&format!("{n} threads: gradient"), &got, bits);
            }
            None => first = Some((losses, got)),
        }
    }
    compare.finish(8)
}

/// Eight slots whose outputs are a thousand times their sum, weights and x in bf16. Accumulated in f32 the error stays at f32's
/// rounding of the terms; in bf16 it would be 65,536 times that.
fn cancelling_slots<B: Backend>(device: &Device<B>) -> Outcome {
    const TOKENS: usize = 30;
    let backend = (device.make)();
    let mut block = Block::new(MoeConfig::new(8, 8, 8, 8), TOKENS, 126);
    let brief = |m: &mut Mat| m.data.iter_mut().for_each(|v| *v = half::bf16::from_f64(*v).to_f64());
    brief(&mut block.x);
    block.oracle.weights.router.data.fill(0.0);
    for e in 0..8 {
        // Experts 0 and 4, 1 and 5, .. cancel but for the last of each.
        let source = block.oracle.weights.experts[e % 4].clone();
        let expert = &mut block.oracle.weights.experts[e];
        *expert = source;
        let sign = if e < 4 { 1000.0 } else { -1001.0 };
        expert.down.data.iter_mut().for_each(|v| *v *= if e < 4 { sign } else { sign / 1000.0 });
        [&mut expert.gate, &mut expert.up, &mut expert.down].into_iter().for_each(brief);
    }
    block.sync();
    let forward = block.forward(None);
    let weights = block.weights.clone().to_dtype(DType::BF16).map_err(text)?;
    let options = LayerOptions { select: Selection::All, ..LayerOptions::default() };
    let mut layer = MoeLayer::new(&backend, block.config.clone(), weights, options).map_err(text)?;
    let x = HostData::from_f32(crate::sample::narrow(&block.x.data), DType::BF16);
    let x = Tensor::from_host(&backend, x, TOKENS, 8).map_err(text)?;
    let (_, dy) = block.tensors(&backend)?;
    let (y, saved) = layer.forward(&x, &context()).map_err(text)?;
    let gradients = layer.backward(&saved, &dy).map_err(text)?;
    let everything = crate::support::oracle_backward::all_pairs(&forward.routing);
    let exact = crate::support::oracle_backward::RouterGradient::Exact;
    let want = block.oracle.backward(&block.x, &forward, &block.dy, &everything, exact);
    let mut compare = Comparison::new();
    let y = y.to_f32(&backend).map_err(text)?;
    let dx = gradients.dx.to_f32(&backend).map_err(text)?;
    for t in 0..TOKENS {
        let (mut out, mut back) = (0.0, 0.0);
        for p in t * 8..(t + 1) * 8 {
            let norm = crate::support::linear::norm;
            out += forward.routing.weights[p] * norm(&forward.pair(p).out);
            back += norm(&block.oracle.contribution(&block.x, &forward, &block.dy, p).dx);
        }
        // Router gradients are of the size of the outputs here, times |W_router| = 0.
        let off =
            |got: &[f32], want: &[f64]| wide(got).iter().zip(want).map(|(g, w)| (g - w).powi(2)).sum::<f64>().sqrt();
        let row = t * 8..(t + 1) * 8;
        let (y_off, dx_off) = (off(&y[row.clone()], forward.y.row(t)), off(&dx[row], want.dx.row(t)));
        compare.holds(&format!("token {t}: y off by {y_off} of {out}"), y_off <= device.factor * 1e-6 * out);
        compare.holds(&format!("token {t}: dx off by {dx_off} of {back}"), dx_off <= device.factor * 2e-6 * back);
        let cancels = crate::support::linear::norm(forward.y.row(t)) < 0.1 * out;
        compare.holds(&format!("token {t}: the slots cancel"), cancels);
    }
    compare.finish(3 * TOKENS)
}

/// A correction bias of -2 makes every selection score negative; experts of masked groups must still lose.
fn masked_groups<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mut block = Block::new(kind("sigmoid_groups_bias_shared"), 100, 127);
    block.oracle.weights.correction_bias = Some(Mat::new(1, 8, vec![-2.0; 8]));
    block.sync();
    let (x, _) = block.tensors(&backend)?;
    let layer = block.layer(&backend, LayerOptions::default())?;
    let (_, saved) = layer.forward(&x, &context()).map_err(text)?;
    let mut compare = Comparison::new();
    crate::expect::same_routing(&mut compare, &backend, &saved, &block.forward(None))?;
    for (t, ids) in saved.routing(&backend).map_err(text)?.ids.chunks(3).enumerate() {
        let mut groups: Vec<u32> = ids.iter().map(|id| id / 2).collect();
        groups.sort_unstable();
        groups.dedup();
        compare.holds(&format!("token {t}: {ids:?} in two groups"), groups.len() <= 2);
    }
    compare.finish(101)
}

/// Scores that differ by the least that f32 can hold are ordered by it, not by index; equal ones by index.
fn close_scores<B: Backend>(device: &Device<B>) -> Outcome {
    const EXPERTS: usize = 64;
    let backend = (device.make)();
    let mut compare = Comparison::new();
    for scoring_func in [ScoringFunc::Softmax, ScoringFunc::Sigmoid] {
        let config = MoeConfig { scoring_func, ..MoeConfig::new(4, 4, EXPERTS, 2) };
        let block = Block::new(config, 40, 128);
        let mut logits = Mat::zeros(40, EXPERTS);
        for t in 0..40 {
            let (low, high) = (t % 8, EXPERTS - 1 - t % 5);
            logits.row_mut(t).fill(-1.0);
            // 1e-6 apart near 0: a quarter of that in the sigmoid, four steps of f32 there.
            logits.row_mut(t)[low] = 0.0;
            logits.row_mut(t)[high] = match (t % 3, scoring_func) {
                (0, _) => 0.0,
                (1, _) => 1e-6,
                _ => -1e-6,
            };
        }
        let (x, _) = block.tensors(&backend)?;
        let layer = block.layer(&backend, LayerOptions::default())?;
        let on_device = tensor(&backend, &logits)?;
        let (_, saved) = layer.forward_with_logits(&x, &on_device, &context()).map_err(text)?;
        for (t, ids) in saved.routing(&backend).map_err(text)?.ids.chunks(2).enumerate() {
            let (low, high) = ((t % 8) as u32, (EXPERTS - 1 - t % 5) as u32);
            let want = if t % 3 == 1 { [high, low] } else { [low, high] };
            compare.equal(&format!("{scoring_func}: token {t}"), ids, &want);
        }
    }
    compare.finish(80)
}

/// All logits equal: routing is a chain of ties. Recomputing must take the saved routing, and give the bits of stashing.
fn equal_logits<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mut block = Block::new(kind("softmax"), 40, 129);
    block.oracle.weights.router.data.fill(0.0);
    block.sync();
    let (x, dy) = block.tensors(&backend)?;
    let mut compare = Comparison::new();
    for select in [Selection::All, Selection::Systematic, Selection::Unbiased] {
        let once = |activations: Activations| {
            let mut layer = block.layer(&backend, LayerOptions { select, activations, ..LayerOptions::default() })?;
            let (_, saved) = layer.forward(&x, &context()).map_err(text)?;
            let routing = saved.routing(&backend).map_err(text)?;
            let first = layer.backward(&saved, &dy).map_err(text)?;
            let again = layer.backward(&saved, &dy).map_err(text)?;
            let same = tensor_bits(&backend, &first.dx)? == tensor_bits(&backend, &again.dx)?;
            Ok::<_, String>((
                routing,
                same,
                run(&mut block.layer(&backend, layer.options().clone())?, &x, &dy, &context())?,
            ))
        };
        let (routing, same, stash) = once(Activations::Stash)?;
        let (other, same_again, recompute) = once(Activations::Recompute)?;
        compare.equal("the first experts win", &routing.ids, &[0, 1, 2].repeat(40));
        compare.holds("routing is the same", routing == other);
        compare.holds("a second backward gives the same", same && same_again);
        recompute.same(&mut compare, &select.to_string(), &stash);
        compare.holds("statistics", stash.stats == recompute.stats);
    }
    compare.finish(16)
}

/// Counts and demand are those of one forward, however often activations are recomputed, backward is run, or y evaluated.
fn counted_once<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(kind("softmax"), 40, 130);
    let (x, dy) = block.tensors(&backend)?;
    let mut compare = Comparison::new();
    let mut demands = Vec::new();
    for activations in [Activations::Stash, Activations::Recompute] {
        let mut layer =
            block.layer(&backend, LayerOptions { activations, aux_loss_coef: 0.1, ..LayerOptions::default() })?;
        let (_, saved) = layer.forward(&x, &context()).map_err(text)?;
        let counts = saved.counts().to_vec();
        let terms = saved.router_terms().cloned();
        compare.equal("pairs", &[counts.iter().sum::<u32>()], &[120]);
        layer.evaluate(&x, &context()).map_err(text)?;
        let stats = layer.backward(&saved, &dy).map_err(text)?.stats;
        layer.evaluate(&x, &context()).map_err(text)?;
        compare.equal("counts in the statistics", &stats.counts, &counts);
        compare.equal("counts afterwards", saved.counts(), &counts);
        compare.holds("terms afterwards", saved.router_terms() == terms.as_ref());
        let load = layer.demand().ok_or("no demand")?.parts().load.clone();
        let want: Vec<f64> = counts.iter().copied().map(f64::from).collect();
        compare.equal("load in the demand", &load, &want);
        demands.push(layer.demand().cloned());
    }
    compare.holds("demand does not depend on recomputation", demands[0] == demands[1]);
    compare.finish(11)
}

/// 64 tokens of which 16 are padding: counts, quotas, losses, y and dx are those of the 48 alone.
fn padding_not_counted<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mut compare = Comparison::new();
    for name in ["softmax_shared_gate", "sigmoid_groups_bias_shared"] {
        let alone = Block::new(kind(name), 48, 131);
        let h = alone.x.cols;
        for padding in [0.0, 5.0, f64::NAN, f64::INFINITY] {
            let mut padded = Block { x: Mat::zeros(64, h), dy: Mat::zeros(64, h), ..alone.clone() };
            padded.x.data.fill(padding);
            padded.dy.data.fill(padding);
            padded.x.data[..48 * h].copy_from_slice(&alone.x.data);
            padded.dy.data[..48 * h].copy_from_slice(&alone.dy.data);
            let mask: Vec<bool> = (0..64).map(|t| t < 48).collect();
            let options = LayerOptions { aux_loss_coef: 0.5, z_loss_coef: 0.5, ..LayerOptions::default() };
            let once = |block: &Block, context: &ForwardContext<'_>| {
                let mut layer = block.layer(&backend, options.clone())?;
                let (x, dy) = block.tensors(&backend)?;
                let (_, saved) = layer.forward(&x, context).map_err(text)?;
                let losses = saved.router_terms().cloned();
                Ok::<_, String>((losses, saved.plan().clone(), run(&mut layer, &x, &dy, context)?))
            };
            let (losses, plan, want) = once(&alone, &context())?;
            let (got_losses, got_plan, got) = once(&padded, &ForwardContext { mask: Some(&mask), ..context() })?;
            let what = format!("{name}, padding {padding}");
            compare.holds(&format!("{what}: plan"), got_plan == plan);
            compare.holds(&format!("{what}: losses"), got_losses == losses);
            compare.holds(&format!("{what}: statistics"), got.stats == want.stats);
            compare.equal(&format!("{what}: weight gradients"), &got.weights, &want.weights);
            for (part, got, want, cols) in [
                ("y", &got.y, &want.y, h),
                ("dx", &got.dx, &want.dx, h),
                ("d_logits", &got.d_logits, &want.d_logits, 8),
            ] {
                compare.equal(&format!("{what}: {part}"), &got[..48 * cols], want);
                compare.equal(&format!("{what}: {part} of padding"), &got[48 * cols..], &vec![0; 16 * cols]);
            }
        }
    }
    compare.finish(2 * 4 * 10)
}

/// 95 % of the pairs on one expert under a rising byte budget: a clear refusal, or the results of no budget at all.
fn skew_under_a_budget<B: Backend>(device: &Device<B>) -> Outcome {
    let block = Block::new(MoeConfig::new(16, 16, 8, 1), 200, 132);
    let experts: Vec<usize> = (0..200).map(|t| if t % 20 == 0 { t / 20 % 8 } else { 3 }).collect();
    let logits = steering_logits(&experts, 8);
    let mut compare = Comparison::new();
    let want = {
        let backend = (device.make)();
        let (x, dy) = block.tensors(&backend)?;
        let logits = tensor(&backend, &logits)?;
        run_with_logits(&mut block.layer(&backend, LayerOptions::default())?, &x, &logits, &dy, &context())?
    };
    compare.holds("the load is skewed", want.stats.counts[3] >= 190);
    let (mut refused, mut done) = (0, 0);
    for budget in (20_000..600_000).step_by(20_000) {
        let backend = (device.budget)(budget);
        let attempt = || -> lrmoe::Result<_> {
            let mut layer =
                MoeLayer::new(&backend, block.config.clone(), block.weights.clone(), LayerOptions::default())?;
            let on_device = |m: &Mat| Tensor::from_f32(&backend, &crate::sample::narrow(&m.data), m.rows, m.cols);
            let (x, dy, logits) = (on_device(&block.x)?, on_device(&block.dy)?, on_device(&logits)?);
            let (y, saved) = layer.forward_with_logits(&x, &logits, &context())?;
            let gradients = layer.backward(&saved, &dy)?;
            Ok((y, gradients, layer))
        };
        match attempt() {
            Ok((y, gradients, layer)) => {
                done += 1;
                compare.equal(&format!("{budget}: y"), &tensor_bits(&backend, &y)?, &want.y);
                compare.equal(&format!("{budget}: dx"), &tensor_bits(&backend, &gradients.dx)?, &want.dx);
                let got = crate::expect::gradient_bits(&layer)?;
                compare.equal(&format!("{budget}: weight gradients"), &got, &want.weights);
                compare.equal(&format!("{budget}: retained"), &gradients.stats.retained, &want.stats.retained);
            }
            Err(Error::OutOfMemory { asked, used, .. }) => {
                refused += 1;
                compare.holds(&format!("{budget}: refused with cause"), used + asked > budget && done == 0);
            }
            Err(other) => return Err(other.to_string()),
        }
        compare.holds(&format!("{budget} is kept"), backend.memory().report().reserved <= budget);
    }
    compare.holds(&format!("{refused} refused, {done} done: both occur"), refused > 3 && done > 3);
    compare.finish(60)
}

fn imbalance_is_visible<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(MoeConfig::new(8, 6, 4, 1), 100, 133);
    let experts: Vec<usize> = (0..100).map(|t| if t < 70 { 2 } else { t % 4 }).collect();
    let logits = tensor(&backend, &steering_logits(&experts, 4))?;
    let (x, dy) = block.tensors(&backend)?;
    let mut layer = block.layer(&backend, LayerOptions::default())?;
    let stats = run_with_logits(&mut layer, &x, &logits, &dy, &context())?.stats;
    let mut compare = Comparison::new();
    let counts: Vec<u32> = (0..4).map(|e| experts.iter().filter(|&&other| other == e).count() as u32).collect();
    compare.equal("counts", &stats.counts, &counts);
    let ratio = Statistics::max_over_mean(&stats.counts).ok_or("no ratio")?;
    compare.number("busiest over mean", ratio, f64::from(counts[2]) / 25.0, 1e-12);
    compare.holds("nothing routed, no ratio", Statistics::max_over_mean(&[0, 0]).is_none());
    compare.equal("dropped in the backward pass", &[stats.retained.iter().sum::<u32>()], &[50]);
    let report = serde_json::to_value(&stats).map_err(|e| e.to_string())?;
    for field in ["counts", "quotas", "retained"] {
        compare.holds(&format!("`{field}` is exported"), report[field].as_array().is_some_and(|v| v.len() == 4));
    }
    for field in ["eligible", "kept_score_mass", "eta", "effective_sample_size", "max_pair_weight"] {
        compare.holds(&format!("`{field}` is exported"), !report["scores"][field].is_null());
    }
    compare.holds("`nan_seen` is exported", report["nan_seen"].is_boolean());
    let memory = serde_json::to_value(backend.memory().report()).map_err(|e| e.to_string())?;
    compare.holds("bytes by category are exported", memory["peak"].as_array().is_some_and(|v| v.len() == 8));
    compare.finish(14)
}
