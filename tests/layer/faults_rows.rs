//! Faults that users of Mixture-of-Experts systems reported, as small inputs that would show the same fault here: empty groups,
//! uninitialised memory, index widths. Names carry the number of the report; those that need several ranks are tested where
//! ranks are.

use libtest_mimic::Trial;
use lrmoe::kernel::NONE;
use lrmoe::memory::Category;
use lrmoe::{
    Activations, AdamW, AdamWConfig, Backend, DType, Error, ForwardContext, HostData, LayerOptions, MoeConfig, ParamId,
    RouterGradient, Selection, Tensor,
};

use crate::expect::{BOUND, retained, run, run_with_logits};
use crate::sample::{Block, kind, steering_logits, tensor};
use crate::support::compare::Comparison;
use crate::support::layer::wide;
use crate::support::linear::Mat;
use crate::{Device, Outcome, text, trial};

pub(crate) fn trials<B: Backend>(device: Device<B>) -> Vec<Trial> {
    vec![
        trial(device, "fault_01_03_no_rows_then_rows", no_rows_then_rows),
        trial(device, "fault_06_empty_experts_on_poisoned_memory", empty_experts),
        trial(device, "fault_07_uneven_groups_with_empty_ones", uneven_groups),
        trial(device, "fault_08_09_rows_past_the_last_offset", rows_past_the_end),
        trial(device, "fault_10_padding_rows_inside_groups", padding_rows),
        trial(device, "fault_11_one_expert_for_fifty_steps", one_expert_for_fifty_steps),
        trial(device, "fault_12_13_14_offsets_beyond_32_bits", wide_offsets),
        trial(device, "fault_12_unrouted_entries", unrouted_entries),
        trial(device, "fault_15_one_group_takes_everything", one_group_takes_everything),
    ]
}

fn context() -> ForwardContext<'static> {
    ForwardContext::default()
}

/// Rows `start..end` of a block.
fn rows(block: &Block, start: usize, end: usize) -> Block {
    let cut = |m: &Mat| Mat::new(end - start, m.cols, m.data[start * m.cols..end * m.cols].to_vec());
    Block { x: cut(&block.x), dy: cut(&block.dy), ..block.clone() }
}

fn no_rows_then_rows<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(kind("softmax_shared_gate"), 40, 111);
    let mut compare = Comparison::new();
    for select in [Selection::All, Selection::Systematic, Selection::Unbiased] {
        let options = LayerOptions { select, ..LayerOptions::default() };
        let (x, dy) = block.tensors(&backend)?;
        let want = run(&mut block.layer(&backend, options.clone())?, &x, &dy, &context())?;
        let mut layer = block.layer(&backend, options)?;
        let mut adamw =
            AdamW::new(&layer, AdamWConfig { decay_experts: 0.0, decay_shared: 0.0, ..AdamWConfig::default() })
                .map_err(text)?;
        let (none, no_gradient) = rows(&block, 0, 0).tensors(&backend)?;
        let empty = run(&mut layer, &none, &no_gradient, &context())?;
        compare.holds("exact zeros", empty.weights.iter().all(|(_, g)| g.iter().all(|&g| g == 0)));
        compare.holds("every gradient is there", empty.weights.len() == 6);
        adamw.step(&mut layer, 0.1, 1.0, false).map_err(text)?;
        run(&mut layer, &x, &dy, &context())?.same(&mut compare, &format!("{select}: rows afterwards"), &want);
    }
    compare.finish(12)
}

/// Counts [k, 0, k] under every selection, on memory full of NaN.
fn empty_experts<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(MoeConfig::new(9, 5, 3, 1), 40, 112);
    let experts: Vec<usize> = (0..40).map(|t| 2 * (t % 2)).collect();
    let logits = tensor(&backend, &steering_logits(&experts, 3))?;
    let (x, dy) = block.tensors(&backend)?;
    let mut compare = Comparison::new();
    for select in [Selection::All, Selection::TopQ, Selection::Systematic, Selection::Unbiased] {
        for activations in [Activations::Stash, Activations::Recompute] {
            let mut layer = block.layer(&backend, LayerOptions { select, activations, ..LayerOptions::default() })?;
            let got = run_with_logits(&mut layer, &x, &logits, &dy, &context())?;
            compare.equal("counts", &got.stats.counts, &[20, 0, 20]);
            for (id, gradient) in &got.weights {
                let each = gradient.len() / 3;
                let zero = gradient[each..2 * each].iter().all(|&g| g == 0);
                compare.holds(&format!("{select}, {activations:?}: exact zeros in {}", id.name()), zero);
                let others = gradient[..each].iter().chain(&gradient[2 * each..]);
                let finite = others.clone().all(|&g| f32::from_bits(g).is_finite()) && others.clone().any(|&g| g != 0);
                compare.holds(&format!("{select}: the others of {}", id.name()), finite);
            }
        }
    }
    compare.finish(6 * 5)
}

fn uneven_groups<B: Backend>(device: &Device<B>) -> Outcome {
    const SIZES: [usize; 6] = [162, 0, 2577, 446, 0, 83];
    let backend = (device.make)();
    let tokens = SIZES.iter().sum();
    let block = Block::new(MoeConfig::new(20, 8, 6, 1), tokens, 113);
    let mut experts: Vec<usize> = SIZES.iter().enumerate().flat_map(|(e, &n)| vec![e; n]).collect();
    let mut rng = crate::support::rng::Rng::new(114);
    for t in (1..tokens).rev() {
        experts.swap(t, rng.below(t + 1));
    }
    let logits = steering_logits(&experts, 6);
    let forward = block.oracle.forward(&block.x, block.oracle.route_logits(logits.clone(), None));
    let logits = tensor(&backend, &logits)?;
    let (x, dy) = block.tensors(&backend)?;
    let mut compare = Comparison::new();
    for select in [Selection::All, Selection::Systematic, Selection::Unbiased] {
        let mut layer = block.layer(&backend, LayerOptions { select, ..LayerOptions::default() })?;
        let (y, saved) = layer.forward_with_logits(&x, &logits, &context()).map_err(text)?;
        compare.equal("counts", saved.counts(), &SIZES.map(|n| n as u32));
        let y = wide(&y.to_f32(&backend).map_err(text)?);
        compare.relative("y", &y, &forward.y.data, BOUND * device.factor);
        let kept = retained(&layer, &saved, &dy, &forward.routing, &context())?;
        let want = block.oracle.expert_backward(&block.x, &forward, &block.dy, &kept);
        let got = layer.backward(&saved, &dy).map_err(text)?;
        let dx = wide(&got.dx.to_f32(&backend).map_err(text)?);
        compare.relative("dx", &dx, &want.dx.data, BOUND * device.factor);
        let down = wide(&layer.gradient(ParamId::Down).map_err(text)?.ok_or("no gradient")?);
        let gate_up = wide(&layer.gradient(ParamId::GateUp).map_err(text)?.ok_or("no gradient")?);
        for (e, want) in want.weights.experts.iter().enumerate() {
            let both: Vec<f64> = want.gate.data.iter().chain(&want.up.data).copied().collect();
            let what = format!("{select}: expert {e}");
            compare.relative(&what, &down[e * 160..(e + 1) * 160], &want.down.data, BOUND * device.factor);
            compare.relative(&what, &gate_up[e * 320..(e + 1) * 320], &both, BOUND * device.factor);
        }
    }
    compare.finish(2 * 15)
}

/// Quotas above the eligible pairs leave rows without content behind the last offset, full of NaN. Two backward passes that reuse
/// the memory of one another.
fn rows_past_the_end<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mut block = Block::new(kind("softmax_shared_gate"), 60, 115);
    for t in (0..60).filter(|t| t % 5 != 0) {
        block.dy.row_mut(t).fill(0.0);
    }
    let forward = block.forward(None);
    let (x, dy) = block.tensors(&backend)?;
    let mut compare = Comparison::new();
    for activations in [Activations::Stash, Activations::Recompute] {
        for router_gradient in [RouterGradient::Estimated, RouterGradient::Exact] {
            let mut layer =
                block.layer(&backend, LayerOptions { activations, router_gradient, ..LayerOptions::default() })?;
            for step in 0..2 {
                let context = ForwardContext { step, ..context() };
                let (_, saved) = layer.forward(&x, &context).map_err(text)?;
                let kept = retained(&layer, &saved, &dy, &forward.routing, &context)?;
                let spare = saved.plan().retained() as usize - kept.len();
                compare.holds("there are rows past the end", spare > 0);
                let router = crate::expect::router_mode(router_gradient);
                let want = block.oracle.backward(&block.x, &forward, &block.dy, &kept, router);
                layer.zero_grad();
                let got = layer.backward(&saved, &dy).map_err(text)?;
                let what = format!("{activations:?}, {router_gradient:?}, step {step}");
                crate::expect::compare_gradients(&mut compare, &what, &layer, &got, &want, device.factor)?;
            }
        }
    }
    compare.finish(8 * 25)
}

/// Padding between the rows of a group, full of NaN: weight gradients as if it were not there.
fn padding_rows<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(kind("softmax_shared_gate"), 48, 116);
    let mut padded = Block { x: Mat::zeros(64, 13), dy: Mat::zeros(64, 13), ..block.clone() };
    padded.x.data.fill(f64::NAN);
    padded.dy.data.fill(f64::NAN);
    let mask: Vec<bool> = (0..64).map(|t| t % 4 != 3).collect();
    let ids: Vec<u64> = (0..64).map(|t| t / 4 * 3 + t % 4).collect();
    for (row, t) in (0..64).filter(|&t| mask[t]).enumerate() {
        padded.x.row_mut(t).copy_from_slice(block.x.row(row));
        padded.dy.row_mut(t).copy_from_slice(block.dy.row(row));
    }
    let mut compare = Comparison::new();
    for select in [Selection::All, Selection::Systematic, Selection::Unbiased] {
        let options = LayerOptions { select, ..LayerOptions::default() };
        let (x, dy) = block.tensors(&backend)?;
        let want = run(&mut block.layer(&backend, options.clone())?, &x, &dy, &context())?;
        let (x, dy) = padded.tensors(&backend)?;
        let context = ForwardContext { mask: Some(&mask), token_ids: Some(&ids), ..context() };
        let got = run(&mut block.layer(&backend, options)?, &x, &dy, &context)?;
        compare.equal(&format!("{select}: weight gradients"), &got.weights, &want.weights);
        compare.equal(&format!("{select}: retained"), &got.stats.retained, &want.stats.retained);
    }
    compare.finish(4)
}

fn one_expert_for_fifty_steps<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(MoeConfig::new(8, 6, 8, 1), 64, 117);
    let logits = tensor(&backend, &steering_logits(&[5; 64], 8))?;
    let (x, dy) = block.tensors(&backend)?;
    let mut layer = block.layer(&backend, LayerOptions::default())?;
    let mut adamw = AdamW::new(&layer, AdamWConfig { decay_experts: 0.0, ..AdamWConfig::default() }).map_err(text)?;
    let start = layer.weights().map_err(text)?.down.into_f32().map_err(text)?;
    let mut compare = Comparison::new();
    for step in 0..50 {
        let (y, saved) = layer.forward_with_logits(&x, &logits, &ForwardContext { step, ..context() }).map_err(text)?;
        layer.zero_grad();
        let stats = layer.backward(&saved, &dy).map_err(text)?.stats;
        compare.equal("counts", &stats.counts, &[0, 0, 0, 0, 0, 64, 0, 0]);
        compare.holds("quota of the one expert", stats.retained[5] == 32 && stats.retained.iter().sum::<u32>() == 32);
        compare.holds("y is finite", y.to_f32(&backend).map_err(text)?.iter().all(|v| v.is_finite()));
        compare.holds("norm is finite", layer.grad_norm_sq().map_err(text)?.is_finite());
        adamw.step(&mut layer, 1e-3, 1.0, false).map_err(text)?;
    }
    let end = layer.weights().map_err(text)?.down.into_f32().map_err(text)?;
    for (e, (start, end)) in start.chunks(48).zip(end.chunks(48)).enumerate() {
        compare.holds(&format!("expert {e} moves if used"), (start != end) == (e == 5));
    }
    compare.finish(50 * 4 + 8)
}

/// Rows times columns above 2^31 and 2^32: exact in the request that the budget refuses, and nothing is allocated.
fn wide_offsets<B: Backend>(device: &Device<B>) -> Outcome {
    const BUDGET: u64 = 96 << 20;
    let backend = (device.budget)(BUDGET);
    let mut compare = Comparison::new();
    // [65,536 tokens x 8 experts, 2 x 4,096] values: 2^32 of them, 2^34 bytes. As 32-bit arithmetic: 0.
    let config = MoeConfig::new(4, 4096, 8, 8);
    let block = Block::new(config, 65_536, 118);
    let layer = block.layer(&backend, LayerOptions::default())?;
    let (x, _) = block.tensors(&backend)?;
    match layer.forward(&x, &context()) {
        Err(Error::OutOfMemory { asked, budget, .. }) => {
            compare.equal("asked for", &[asked, budget], &[1 << 34, BUDGET]);
        }
        other => return Err(format!("expected out of memory, got {other:?}")),
    }
    compare.holds("nothing of it was allocated", backend.memory().report().reserved <= BUDGET);
    // 38,000 tokens x 8 experts x 7,168: the product of the report, asked for as one buffer.
    let pairs = 38_000 * 8;
    match backend.alloc("dx_rows", DType::F32, pairs * 7_168, Category::Scratch) {
        Err(Error::OutOfMemory { asked, .. }) => compare.holds("within a size class", asked >= 4 * 304_000 * 7_168),
        other => return Err(format!("expected out of memory, got {other:?}")),
    }
    let error = backend.alloc("absurd", DType::F32, usize::MAX, Category::Scratch).err();
    compare.holds(&format!("{error:?}"), matches!(error, Some(Error::Overflow { .. })));
    let error = Tensor::from_host(&backend, HostData::F32(Vec::new()), usize::MAX, 2).err();
    compare.holds(&format!("{error:?}"), matches!(error, Some(Error::Overflow { .. })));
    // Pairs that 32 bits cannot count: 2^22 tokens x 1,024 experts.
    let config = MoeConfig::new(1, 1, 1024, 1024);
    let block = Block::new(config, 0, 119);
    let layer = block.layer(&backend, LayerOptions::default())?;
    let x = backend.alloc("x", DType::BF16, 1 << 22, Category::TokenBuffers).map_err(text)?;
    let x = Tensor::new(x, 1 << 22, 1).map_err(text)?;
    let before = backend.memory().report();
    let error = layer.forward(&x, &context()).err();
    compare.holds(&format!("{error:?}"), matches!(error, Some(Error::Overflow { .. })));
    compare.equal("no allocation", &[backend.memory().report().allocations], &[before.allocations]);
    compare.finish(7)
}

/// Masked tokens have no expert: their entries sort to nowhere, and every row map is that of a reference.
fn unrouted_entries<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(kind("softmax"), 50, 120);
    let mask: Vec<bool> = (0..50).map(|t| t >= 4 && t % 6 != 2).collect();
    let context = ForwardContext { mask: Some(&mask), ..context() };
    let (x, _) = block.tensors(&backend)?;
    let layer = block.layer(&backend, LayerOptions::default())?;
    let (y, saved) = layer.forward(&x, &context).map_err(text)?;
    let forward = block.forward(Some(&mask));
    let routing = saved.routing(&backend).map_err(text)?;
    let mut compare = Comparison::new();
    for (t, &valid) in mask.iter().enumerate() {
        let own = &routing.ids[t * 3..(t + 1) * 3];
        compare.holds(&format!("token {t}: {own:?}"), own.iter().all(|&id| (id == NONE) != valid));
        let weights = &routing.weights[t * 3..(t + 1) * 3];
        compare.holds(&format!("token {t}: {weights:?}"), valid || weights == [0.0; 3]);
    }
    let counts: Vec<u32> = forward.routing.counts().iter().map(|&n| n as u32).collect();
    compare.equal("counts", saved.counts(), &counts);
    let y = wide(&y.to_f32(&backend).map_err(text)?);
    compare.relative("y", &y, &forward.y.data, BOUND * device.factor);
    compare.finish(102)
}

/// Everything goes to one expert, then to its neighbour: neither writes into the other's part of any buffer.
fn one_group_takes_everything<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(MoeConfig::new(8, 6, 4, 1), 64, 121);
    let (x, dy) = block.tensors(&backend)?;
    let mut compare = Comparison::new();
    for select in [Selection::All, Selection::Systematic, Selection::Unbiased] {
        let mut layer = block.layer(&backend, LayerOptions { select, ..LayerOptions::default() })?;
        let mut steered = |expert: usize| -> Result<(), String> {
            let logits = tensor(&backend, &steering_logits(&[expert; 64], 4))?;
            let (_, saved) = layer.forward_with_logits(&x, &logits, &context()).map_err(text)?;
            layer.backward(&saved, &dy).map_err(text)?;
            Ok(())
        };
        steered(1)?;
        steered(2)?;
        let both = layer.gradient(ParamId::Down).map_err(text)?.ok_or("no gradient")?;
        for expert in [1, 2] {
            let mut alone = block.layer(&backend, LayerOptions { select, ..LayerOptions::default() })?;
            let logits = tensor(&backend, &steering_logits(&[expert; 64], 4))?;
            let got = run_with_logits(&mut alone, &x, &logits, &dy, &context())?;
            let (_, down) = got.weights.iter().find(|(id, _)| *id == ParamId::Down).ok_or("no gradient")?;
            let part = expert * 48..(expert + 1) * 48;
            let same = crate::expect::bits(&both[part.clone()]) == down[part];
            // The second call plans with the first one's demand, so it may draw another set.
            compare.holds(&format!("{select}: expert {expert}"), same || (select != Selection::All && expert == 2));
        }
        let outside = both[..48].iter().chain(&both[3 * 48..]).all(|&g| g == 0.0);
        compare.holds(&format!("{select}: the experts beside them"), outside);
    }
    compare.finish(6)
}
