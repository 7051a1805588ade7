//! Evaluation, independence of rows, masks.

use libtest_mimic::Trial;
use lrmoe::{Activations, Backend, Error, ForwardContext, LayerOptions, RouterGradient, Selection, Tensor};

use crate::expect::{compare_gradients, retained, router_mode, run, same_routing, tensor_bits};
use crate::sample::{Block, kinds, narrow, tensor};
use crate::support::compare::Comparison;
use crate::{Device, Outcome, text, trial};

pub(crate) fn trials<B: Backend>(device: Device<B>) -> Vec<Trial> {
    vec![
        trial(device, "forward::evaluate_is_forward", evaluate),
        trial(device, "forward::rows_do_not_depend_on_the_batch", rows_alone),
        trial(device, "forward::masked_tokens_take_no_part", masked),
        trial(device, "forward::all_tokens_masked", all_masked),
        trial(device, "forward::wrong_inputs_are_named", wrong_inputs),
    ]
}

/// The same bits, no memory left behind, no demand counted.
fn evaluate<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mask: Vec<bool> = (0..33).map(|t| t % 5 != 1).collect();
    let mut compare = Comparison::new();
    for (name, config) in kinds() {
        let block = Block::new(config, 33, 51);
        let logits = tensor(&backend, &block.forward(None).routing.logits)?;
        let (x, _) = block.tensors(&backend)?;
        for activations in [Activations::Stash, Activations::Recompute] {
            for router_gradient in [RouterGradient::Estimated, RouterGradient::Exact] {
                let options = LayerOptions { activations, router_gradient, ..LayerOptions::default() };
                let layer = block.layer(&backend, options)?;
                for mask in [None, Some(mask.as_slice())] {
                    let context = ForwardContext { mask, ..ForwardContext::default() };
                    let what = format!("{name}, {activations:?}, {router_gradient:?}, masked {}", mask.is_some());
                    let (y, saved) = layer.forward(&x, &context).map_err(text)?;
                    let (z, other) = layer.forward_with_logits(&x, &logits, &context).map_err(text)?;
                    let (want, steered) = (tensor_bits(&backend, &y)?, tensor_bits(&backend, &z)?);
                    drop((y, z, saved, other));
                    let before = backend.memory().report();
                    let got = layer.evaluate(&x, &context).map_err(text)?;
                    compare.equal(&format!("{what}: y"), &tensor_bits(&backend, &got)?, &want);
                    drop(got);
                    let got = layer.evaluate_with_logits(&x, &logits, &context).map_err(text)?;
                    compare.equal(&format!("{what}: y by logits"), &tensor_bits(&backend, &got)?, &steered);
                    drop(got);
                    let after = backend.memory().report();
                    compare.equal(&format!("{what}: live bytes"), &after.live, &before.live);
                    compare.holds(&format!("{what}: used bytes"), after.used <= before.used);
                    compare.holds(&format!("{what}: no demand"), layer.demand().is_none());
                }
            }
        }
    }
    compare.finish(6 * 4 * 2 * 5)
}

/// A token alone, in a batch, and in a batch of another order: the same y.
fn rows_alone<B: Backend>(device: &Device<B>) -> Outcome {
    const TOKENS: usize = 70;
    let backend = (device.make)();
    let mut compare = Comparison::new();
    for (name, config) in kinds() {
        let block = Block::new(config, TOKENS, 52);
        let h = block.x.cols;
        let layer = block.layer(&backend, LayerOptions::default())?;
        let (x, _) = block.tensors(&backend)?;
        let y = tensor_bits(&backend, &layer.evaluate(&x, &ForwardContext::default()).map_err(text)?)?;
        for t in [0, 1, 13, TOKENS - 1] {
            let one = Tensor::from_f32(&backend, &narrow(block.x.row(t)), 1, h).map_err(text)?;
            let got = tensor_bits(&backend, &layer.evaluate(&one, &ForwardContext::default()).map_err(text)?)?;
            compare.equal(&format!("{name}: token {t} alone"), &got, &y[t * h..(t + 1) * h]);
        }
        let mut reversed = block.x.clone();
        for t in 0..TOKENS {
            reversed.row_mut(t).copy_from_slice(block.x.row(TOKENS - 1 - t));
        }
        let reversed = tensor(&backend, &reversed)?;
        let got = tensor_bits(&backend, &layer.evaluate(&reversed, &ForwardContext::default()).map_err(text)?)?;
        let got: Vec<u32> = got.chunks(h).rev().flatten().copied().collect();
        compare.equal(&format!("{name}: reversed"), &got, &y);
    }
    compare.finish(6 * 5)
}

/// y = 0 (shared expert included) and dx = 0 for masked tokens; nothing else depends on what they hold, NaN included.
fn masked<B: Backend>(device: &Device<B>) -> Outcome {
    const TOKENS: usize = 40;
    let backend = (device.make)();
    let mask: Vec<bool> = (0..TOKENS).map(|t| t % 3 != 1).collect();
    let context = ForwardContext { mask: Some(&mask), seed: 5, ..ForwardContext::default() };
    let mut compare = Comparison::new();
    for (name, config) in kinds() {
        let block = Block::new(config, TOKENS, 53);
        let h = block.x.cols;
        let mut spoilt = block.clone();
        for t in (0..TOKENS).filter(|&t| !mask[t]) {
            spoilt.x.row_mut(t).fill(f64::NAN);
            spoilt.dy.row_mut(t).fill(f64::INFINITY);
        }
        for router_gradient in [RouterGradient::Estimated, RouterGradient::Exact] {
            for activations in [Activations::Stash, Activations::Recompute] {
                for select in [Selection::All, Selection::Systematic, Selection::Unbiased] {
                    let options = LayerOptions {
                        select,
                        router_gradient,
                        activations,
                        aux_loss_coef: 0.3,
                        z_loss_coef: 0.2,
                        ..LayerOptions::default()
                    };
                    let what = format!("{name}, {select}, {router_gradient:?}, {activations:?}");
                    let once = |block: &Block| {
                        let (x, dy) = block.tensors(&backend)?;
                        run(&mut block.layer(&backend, options.clone())?, &x, &dy, &context)
                    };
                    let (got, other) = (once(&block)?, once(&spoilt)?);
                    other.same(&mut compare, &format!("{what}: NaN padding"), &got);
                    compare.holds(&format!("{what}: statistics"), got.stats == other.stats);
                    for t in (0..TOKENS).filter(|&t| !mask[t]) {
                        let zero = vec![0u32; h];
                        compare.equal(&format!("{what}: y of token {t}"), &got.y[t * h..(t + 1) * h], &zero);
                        compare.equal(&format!("{what}: dx of token {t}"), &got.dx[t * h..(t + 1) * h], &zero);
                        compare.equal(
                            &format!("{what}: d_logits of token {t}"),
                            &got.d_logits[t * 8..(t + 1) * 8],
                            &[0; 8],
                        );
                    }
                }
            }
        }
        let pairs = mask.iter().filter(|&&m| m).count() * block.config.num_experts_per_tok;
        let (x, dy) = block.tensors(&backend)?;
        let mut layer = block.layer(&backend, LayerOptions::default())?;
        let (_, saved) = layer.forward(&x, &context).map_err(text)?;
        compare.equal("counted pairs", &[saved.counts().iter().sum::<u32>() as usize], &[pairs]);
        let forward = block.forward(Some(&mask));
        same_routing(&mut compare, &backend, &saved, &forward)?;
        let kept = retained(&layer, &saved, &dy, &forward.routing, &context)?;
        let got = layer.backward(&saved, &dy).map_err(text)?;
        let router = router_mode(layer.options().router_gradient);
        let want = block.oracle.backward(&block.x, &forward, &block.dy, &kept, router);
        compare_gradients(&mut compare, name, &layer, &got, &want, device.factor)?;
    }
    compare.finish(6 * 8 * 20)
}

fn all_masked<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mask = [false; 6];
    let context = ForwardContext { mask: Some(&mask), ..ForwardContext::default() };
    let mut compare = Comparison::new();
    for (name, config) in kinds() {
        let block = Block::new(config, 6, 54);
        let (x, dy) = block.tensors(&backend)?;
        for select in [Selection::All, Selection::TopQ, Selection::Systematic, Selection::Unbiased] {
            let options = LayerOptions { select, aux_loss_coef: 1.0, z_loss_coef: 1.0, ..LayerOptions::default() };
            let mut layer = block.layer(&backend, options)?;
            let (_, saved) = layer.forward(&x, &context).map_err(text)?;
            let terms = saved.router_terms().ok_or("no terms")?;
            compare.equal("losses", &[terms.load_balancing(), terms.z_loss()], &[0.0, 0.0]);
            let got = run(&mut layer, &x, &dy, &context)?;
            let all = [&got.y, &got.dx, &got.d_logits].into_iter().chain(got.weights.iter().map(|(_, g)| g));
            compare.holds(&format!("{name}, {select}: all zero"), all.flatten().all(|&b| f32::from_bits(b) == 0.0));
            compare.equal("counts", &got.stats.counts, &[0; 8]);
        }
    }
    compare.finish(6 * 3 * 3)
}

fn wrong_inputs<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(kinds().remove(0).1, 6, 55);
    let (x, dy) = block.tensors(&backend)?;
    let mut layer = block.layer(&backend, LayerOptions::default())?;
    let mut compare = Comparison::new();
    let mut refused = |what: &str, error: Option<Error>, names: &str| {
        let named = matches!(&error, Some(Error::Shape { what, .. }) if what.contains(names));
        compare.holds(&format!("{what}: {error:?}"), named);
    };
    let short = [true; 5];
    let context = ForwardContext { mask: Some(&short), ..ForwardContext::default() };
    refused("short mask", layer.forward(&x, &context).err(), "mask");
    refused("short mask in evaluation", layer.evaluate(&x, &context).err(), "mask");
    let ids = [1u64; 7];
    let context = ForwardContext { token_ids: Some(&ids), ..ForwardContext::default() };
    refused("long token ids", layer.forward(&x, &context).err(), "token_ids");
    let narrow = Tensor::from_f32(&backend, &[0.0; 12], 1, 12).map_err(text)?;
    refused("narrow x", layer.forward(&narrow, &ForwardContext::default()).err(), "x");
    refused("logits of another shape", layer.forward_with_logits(&x, &x, &ForwardContext::default()).err(), "logits");
    let (_, saved) = layer.forward(&x, &ForwardContext::default()).map_err(text)?;
    refused("narrow dy", layer.backward(&saved, &narrow).err(), "dy");
    refused("narrow dy in scores", layer.scores(&saved, &narrow).err(), "dy");
    compare.holds("the layer still works", layer.backward(&saved, &dy).is_ok());
    let mut weights = block.weights.clone();
    weights.router = None;
    let layer = lrmoe::MoeLayer::new(&backend, block.config.clone(), weights, LayerOptions::default()).map_err(text)?;
    let error = layer.forward(&x, &ForwardContext::default()).err();
    compare.holds("no router weight is a state", matches!(error, Some(Error::State { .. })));
    compare.finish(9)
}
