//! The optimizer contract: accumulation, clipping, skipping, decay by part, frozen parts, 16-bit storage, refused calls.

use half::{bf16, f16};
use libtest_mimic::Trial;
use lrmoe::memory::Category;
use lrmoe::{
    AdamW, AdamWConfig, Backend, DType, Error, ForwardContext, HostData, LayerOptions, MoeLayer, MoeWeights, ParamId,
    Part, Selection, Trainable,
};

use crate::expect::{bits, run};
use crate::sample::{Block, kind, steering_logits, tensor};
use crate::support::compare::Comparison;
use crate::support::layer::wide;
use crate::support::linear::Mat;
use crate::{Device, Outcome, no_storage, text, trial, trial_if};

const CONFIG: AdamWConfig =
    AdamWConfig { beta1: 0.9, beta2: 0.95, eps: 1e-8, decay_router: 0.02, decay_experts: 0.1, decay_shared: 0.3 };

pub(crate) fn trials<B: Backend>(device: Device<B>) -> Vec<Trial> {
    let mut trials = vec![
        trial(device, "optimizer::micro_batches_accumulate", accumulation),
        trial(device, "optimizer::grad_norm", grad_norm),
        trial(device, "optimizer::skip_changes_nothing", skip),
        trial(device, "optimizer::frozen_parts", frozen),
        trial(device, "optimizer::host_logits_leave_the_router_alone", host_logits),
        trial(device, "optimizer::refused_calls_change_nothing", refused),
        trial(device, "optimizer::zero_grad_starts_anew", zero_grad),
    ];
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let name = format!("optimizer::adamw_in_f64::{dtype}");
        trials.push(trial_if(device, name, move |d| no_storage(d, dtype), move |d| adamw(d, dtype)));
    }
    trials
}

fn block() -> Block {
    Block::new(kind("softmax_shared_gate"), 40, 81)
}

fn plain() -> LayerOptions {
    LayerOptions { select: Selection::All, ..LayerOptions::default() }
}

/// Every weight of a layer as f32, by name.
fn weights<B: Backend>(layer: &MoeLayer<B>) -> Result<Vec<(ParamId, Vec<f32>)>, String> {
    let MoeWeights { router, gate_up, down, shared_gate_up, shared_down, shared_gate, .. } =
        layer.weights().map_err(text)?;
    let all = [router, Some(gate_up), Some(down), shared_gate_up, shared_down, shared_gate];
    let mut named = Vec::new();
    for (id, data) in ParamId::ALL.into_iter().zip(all) {
        if let Some(data) = data {
            named.push((id, data.into_f32().map_err(text)?));
        }
    }
    Ok(named)
}

fn weight_bits<B: Backend>(layer: &MoeLayer<B>) -> Result<Vec<(ParamId, Vec<u32>)>, String> {
    Ok(weights(layer)?.into_iter().map(|(id, values)| (id, bits(&values))).collect())
}

/// Forward and backward, adding to the gradients.
fn accumulate<B: Backend>(layer: &mut MoeLayer<B>, x: &Mat, dy: &Mat, step: u64) -> Outcome {
    let (x, dy) = (tensor(layer.backend(), x)?, tensor(layer.backend(), dy)?);
    let (_, saved) = layer.forward(&x, &ForwardContext { step, ..ForwardContext::default() }).map_err(text)?;
    layer.backward(&saved, &dy).map_err(text)?;
    Ok(())
}

/// Four micro-batches, one of them empty, give the gradients of the whole batch.
fn accumulation<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = block();
    let mut compare = Comparison::new();
    let mut whole = block.layer(&backend, plain())?;
    accumulate(&mut whole, &block.x, &block.dy, 0)?;
    let mut parts = block.layer(&backend, plain())?;
    for (start, end) in [(0, 7), (7, 7), (7, 30), (30, 40)] {
        let rows = |m: &Mat| Mat::new(end - start, m.cols, m.data[start * m.cols..end * m.cols].to_vec());
        accumulate(&mut parts, &rows(&block.x), &rows(&block.dy), 0)?;
    }
    for id in ParamId::ALL {
        let read =
            |layer: &MoeLayer<B>| layer.gradient(id).map_err(text)?.ok_or(format!("no gradient of {}", id.name()));
        compare.relative(id.name(), &wide(&read(&parts)?), &wide(&read(&whole)?), 2e-6 * device.factor);
    }
    compare.finish(6)
}

fn zero_grad<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = block();
    let mut layer = block.layer(&backend, plain())?;
    let mut compare = Comparison::new();
    let none = |layer: &MoeLayer<B>| -> Result<bool, String> {
        Ok(ParamId::ALL.iter().all(|&id| layer.gradient(id).is_ok_and(|g| g.is_none())))
    };
    compare.holds("no gradient before the first backward", none(&layer)?);
    compare.number("no gradient, no norm", layer.grad_norm_sq().map_err(text)?, 0.0, 0.0);
    accumulate(&mut layer, &block.x, &block.dy, 0)?;
    let first = crate::expect::gradient_bits(&layer)?;
    layer.zero_grad();
    compare.holds("none after zero_grad", none(&layer)?);
    accumulate(&mut layer, &block.x, &block.dy, 0)?;
    compare.equal("the same gradients again", &crate::expect::gradient_bits(&layer)?, &first);
    accumulate(&mut layer, &block.x, &block.dy, 0)?;
    for ((id, twice), (_, once)) in crate::expect::gradient_bits(&layer)?.iter().zip(&first) {
        let f64s = |bits: &[u32], by: f64| bits.iter().map(|&b| by * f64::from(f32::from_bits(b))).collect::<Vec<_>>();
        compare.relative(&format!("twice {}", id.name()), &f64s(twice, 1.0), &f64s(once, 2.0), 1e-6 * device.factor);
    }
    compare.finish(4 + 6)
}

fn grad_norm<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mut compare = Comparison::new();
    for scale in [1.0, 1e-30, 1e25] {
        let mut block = block();
        block.dy.data.iter_mut().for_each(|v| *v = f64::from((*v * scale) as f32));
        let mut layer = block.layer(&backend, plain())?;
        accumulate(&mut layer, &block.x, &block.dy, 0)?;
        let mut want = 0.0;
        for id in ParamId::ALL {
            want += wide(&layer.gradient(id).map_err(text)?.ok_or("no gradient")?).iter().map(|g| g * g).sum::<f64>();
        }
        compare.number(&format!("dy times {scale}"), layer.grad_norm_sq().map_err(text)?, want, 1e-6);
    }
    let mut block = block();
    block.dy.data[7] = f64::NAN;
    let mut layer = block.layer(&backend, plain())?;
    accumulate(&mut layer, &block.x, &block.dy, 0)?;
    compare.holds("a NaN shows", !layer.grad_norm_sq().map_err(text)?.is_finite());
    compare.finish(4)
}

/// A skipped step leaves weights, moments and the saved forward as they are: the next step is what it would have been.
fn skip<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = block();
    let mut compare = Comparison::new();
    let mut ends = Vec::new();
    for skips in [false, true] {
        let mut layer = block.layer(&backend, plain())?;
        let mut adamw = AdamW::new(&layer, CONFIG).map_err(text)?;
        accumulate(&mut layer, &block.x, &block.dy, 0)?;
        adamw.step(&mut layer, 0.01, 1.0, false).map_err(text)?;
        let (x, dy) = block.tensors(&backend)?;
        let (_, saved) = layer.forward(&x, &ForwardContext::default()).map_err(text)?;
        if skips {
            let before = weight_bits(&layer)?;
            adamw.step(&mut layer, 0.01, 1.0, true).map_err(text)?;
            adamw.step(&mut layer, 0.5, 3.0, true).map_err(text)?;
            compare.equal("weights", &weight_bits(&layer)?, &before);
        }
        layer.backward(&saved, &dy).map_err(text)?;
        adamw.step(&mut layer, 0.01, 0.5, false).map_err(text)?;
        ends.push(weight_bits(&layer)?);
    }
    compare.equal("weights after the next step", &ends[1], &ends[0]);
    compare.finish(2)
}

/// Three steps with changing rate and scale against AdamW in f64, from the layer's own gradients.
fn adamw<B: Backend>(device: &Device<B>, dtype: DType) -> Outcome {
    let backend = (device.make)();
    let block = block();
    let stored = block.weights.clone().to_dtype(dtype).map_err(text)?;
    let mut layer = MoeLayer::new(&backend, block.config.clone(), stored, plain()).map_err(text)?;
    let mut optimizer = AdamW::new(&layer, CONFIG).map_err(text)?;
    let mut compare = Comparison::new();
    let start = weights(&layer)?;
    let mut states: Vec<_> =
        start.iter().map(|(id, w)| (*id, wide(w), vec![0.0; w.len()], vec![0.0; w.len()])).collect();
    for (n, (lr, scale)) in (1..).zip([(1e-2, 1.0), (3e-3, 0.25), (1e-2, 2.0)]) {
        layer.zero_grad();
        accumulate(&mut layer, &block.x, &block.dy, n)?;
        let mut gradients = Vec::new();
        for (id, ..) in &states {
            gradients.push(wide(&layer.gradient(*id).map_err(text)?.ok_or("no gradient")?));
        }
        optimizer.step(&mut layer, lr, scale, false).map_err(text)?;
        let now = weights(&layer)?;
        for (((id, w, m, v), g), (_, got)) in states.iter_mut().zip(&gradients).zip(&now) {
            for (((w, m), v), g) in w.iter_mut().zip(m).zip(v).zip(g) {
                reference_step(*id, n as i32, f64::from(lr), g * f64::from(scale), w, m, v);
            }
            let what = format!("{} after step {n}", id.name());
            match dtype {
                DType::F32 => compare.relative(&what, &wide(got), w, 1e-6 * device.factor),
                _ => rounded(&mut compare, &what, dtype, got, w),
            }
        }
    }
    let moved = weights(&layer)?.iter().zip(&start).all(|(now, start)| now.1 != start.1);
    compare.holds("every weight tensor moved", moved);
    compare.finish(3 * 6 + 1)
}

fn reference_step(id: ParamId, n: i32, lr: f64, g: f64, w: &mut f64, m: &mut f64, v: &mut f64) {
    let decay = match id.part() {
        Part::Router => CONFIG.decay_router,
        Part::Experts => CONFIG.decay_experts,
        Part::Shared => CONFIG.decay_shared,
    };
    let (beta1, beta2) = (f64::from(CONFIG.beta1), f64::from(CONFIG.beta2));
    *m = beta1 * *m + (1.0 - beta1) * g;
    *v = beta2 * *v + (1.0 - beta2) * g * g;
    let step = (*m / (1.0 - beta1.powi(n))) / ((*v / (1.0 - beta2.powi(n))).sqrt() + f64::from(CONFIG.eps));
    *w -= lr * (step + f64::from(decay) * *w);
}

/// Stored weights are the f64 masters rounded once: equal, but for masters within f32 rounding of a tie, which may go to
/// the neighbour.
fn rounded(compare: &mut Comparison, what: &str, dtype: DType, got: &[f32], master: &[f64]) {
    let round = |w: f64| match dtype {
        DType::BF16 => bf16::from_f64(w).to_f32(),
        _ => f16::from_f64(w).to_f32(),
    };
    let unequal = got.iter().zip(master).filter(|&(&got, &w)| got != round(w)).count();
    let far =
        got.iter().zip(master).find(|&(&got, &w)| got != round(w * (1.0 + 1e-5)) && got != round(w * (1.0 - 1e-5)));
    compare.holds(&format!("{what}: {far:?} is rounded wrongly"), far.is_none());
    compare.holds(&format!("{what}: {unequal} of {} differ", got.len()), unequal * 50 <= got.len() + 50);
}

/// A frozen part has no gradient, no optimizer memory, and keeps its weights; the others train as ever.
fn frozen<B: Backend>(device: &Device<B>) -> Outcome {
    let block = block();
    let mut compare = Comparison::new();
    let backend = (device.make)();
    let all = {
        let (x, dy) = block.tensors(&backend)?;
        run(&mut block.layer(&backend, plain())?, &x, &dy, &ForwardContext::default())?
    };
    let elements = |part: Part| -> u64 {
        let w = &block.weights;
        let len = |data: &Option<HostData>| data.as_ref().map_or(0, HostData::len) as u64;
        match part {
            Part::Router => len(&w.router),
            Part::Experts => (w.gate_up.len() + w.down.len()) as u64,
            Part::Shared => len(&w.shared_gate_up) + len(&w.shared_down) + len(&w.shared_gate),
        }
    };
    for (router, experts, shared) in
        [(true, true, false), (true, false, true), (false, true, true), (false, false, false)]
    {
        let trainable = Trainable { router, experts, shared };
        let backend = (device.make)();
        let mut layer = block.layer(&backend, LayerOptions { trainable, ..plain() })?;
        let mut adamw = AdamW::new(&layer, CONFIG).map_err(text)?;
        let trained = |part: Part| match part {
            Part::Router => router,
            Part::Experts => experts,
            Part::Shared => shared,
        };
        let parts = [Part::Router, Part::Experts, Part::Shared];
        let floats: u64 = parts.into_iter().filter(|&part| trained(part)).map(elements).sum();
        let live = backend.memory().report().live;
        let what = format!("{trainable:?}");
        compare.equal(&format!("{what}: gradient bytes"), &[live[Category::Gradients as usize]], &[4 * floats]);
        compare.equal(&format!("{what}: optimizer bytes"), &[live[Category::Optimizer as usize]], &[8 * floats]);
        let before = weight_bits(&layer)?;
        let (x, dy) = block.tensors(&backend)?;
        let got = run(&mut layer, &x, &dy, &ForwardContext::default())?;
        compare.equal(&format!("{what}: dx"), &got.dx, &all.dx);
        let want: Vec<_> = all.weights.iter().filter(|(id, _)| trained(id.part())).cloned().collect();
        compare.equal(&format!("{what}: gradients"), &got.weights, &want);
        adamw.step(&mut layer, 0.01, 1.0, false).map_err(text)?;
        for ((id, before), (_, after)) in before.iter().zip(&weight_bits(&layer)?) {
            compare.holds(&format!("{what}: {} moves if trained", id.name()), (before != after) == trained(id.part()));
        }
    }
    compare.finish(4 * 10)
}

/// With the host's logits the layer's own router gets no gradient, whatever its buffer held before.
fn host_logits<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = block();
    let mut layer = block.layer(&backend, plain())?;
    let mut adamw = AdamW::new(&layer, CONFIG).map_err(text)?;
    let (x, dy) = block.tensors(&backend)?;
    let experts: Vec<usize> = (0..40).map(|t| t % 8).collect();
    let logits = tensor(&backend, &steering_logits(&experts, 8))?;
    let steered = crate::expect::run_with_logits(&mut layer, &x, &logits, &dy, &ForwardContext::default())?;
    let mut compare = Comparison::new();
    compare.holds("no router gradient", steered.weights.iter().all(|(id, _)| *id != ParamId::Router));
    compare.holds("the other gradients are there", steered.weights.len() == 5);
    compare.holds("a norm without it", layer.grad_norm_sq().map_err(text)?.is_finite());
    let before = weight_bits(&layer)?;
    adamw.step(&mut layer, 0.01, 1.0, false).map_err(text)?;
    let after = weight_bits(&layer)?;
    compare.holds("the router stays, the experts move", before[0] == after[0] && before[1] != after[1]);
    // A micro-batch with host logits, then one through the router: its gradient starts there.
    let mut layer = block.layer(&backend, plain())?;
    let (_, saved) = layer.forward_with_logits(&x, &logits, &ForwardContext::default()).map_err(text)?;
    layer.backward(&saved, &dy).map_err(text)?;
    accumulate(&mut layer, &block.x, &block.dy, 0)?;
    let mixed = layer.gradient(ParamId::Router).map_err(text)?.ok_or("no gradient")?;
    let mut alone = block.layer(&backend, plain())?;
    accumulate(&mut alone, &block.x, &block.dy, 0)?;
    let want = alone.gradient(ParamId::Router).map_err(text)?.ok_or("no gradient")?;
    compare.equal("router gradient of the second", &bits(&mixed), &bits(&want));
    compare.finish(5)
}

/// Calls with the wrong partner, order or value: the right error, and nothing has changed.
fn refused<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = block();
    let mut layer = block.layer(&backend, LayerOptions::default())?;
    let mut other = block.layer(&backend, LayerOptions::default())?;
    let mut adamw = AdamW::new(&layer, CONFIG).map_err(text)?;
    let mut foreign = AdamW::new(&other, CONFIG).map_err(text)?;
    let (x, dy) = block.tensors(&backend)?;
    let (_, saved) = layer.forward(&x, &ForwardContext::default()).map_err(text)?;
    layer.backward(&saved, &dy).map_err(text)?;
    let state = |layer: &MoeLayer<B>| -> Result<_, String> {
        Ok((weight_bits(layer)?, crate::expect::gradient_bits(layer)?, layer.demand().cloned()))
    };
    let before = state(&layer)?;
    let mut compare = Comparison::new();
    let mut is_state = |what: &str, error: Option<Error>| {
        compare.holds(&format!("{what}: {error:?}"), matches!(error, Some(Error::State { .. })));
    };
    is_state("another layer's optimizer", foreign.step(&mut layer, 0.1, 1.0, false).err());
    is_state("another layer's optimizer, skipping", foreign.step(&mut layer, 0.1, 1.0, true).err());
    is_state("another layer's forward", other.backward(&saved, &dy).err());
    is_state("another layer's forward in scores", other.scores(&saved, &dy).err());
    for (lr, scale) in [(f32::NAN, 1.0), (f32::INFINITY, 1.0), (-0.1, 1.0), (0.1, f32::NAN), (0.1, f32::NEG_INFINITY)] {
        let error = adamw.step(&mut layer, lr, scale, false).err();
        compare.holds(&format!("lr {lr}, scale {scale}: {error:?}"), matches!(error, Some(Error::Argument { .. })));
    }
    compare.holds("nothing has changed", state(&layer)? == before);
    compare.holds("the saved forward still fits", layer.scores(&saved, &dy).is_ok());
    adamw.step(&mut layer, 0.1, 1.0, false).map_err(text)?;
    let after = state(&layer)?;
    let error = layer.backward(&saved, &dy).err();
    compare.holds(&format!("forward from before a step: {error:?}"), matches!(error, Some(Error::State { .. })));
    compare.holds("nothing has changed by that", state(&layer)? == after);
    for config in [
        AdamWConfig { beta1: 1.0, ..CONFIG },
        AdamWConfig { beta2: f32::NAN, ..CONFIG },
        AdamWConfig { eps: 0.0, ..CONFIG },
        AdamWConfig { decay_experts: -1.0, ..CONFIG },
    ] {
        let error = AdamW::new(&layer, config).err();
        compare.holds(&format!("{config:?}: {error:?}"), matches!(error, Some(Error::Argument { .. })));
    }
    compare.finish(17)
}
