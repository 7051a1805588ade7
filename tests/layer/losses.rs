//! Router losses through the backward pass, over one layer and several, and the correction bias.

use libtest_mimic::Trial;
use lrmoe::{Backend, Error, ForwardContext, LayerOptions, RouterTerms, Selection};

use crate::expect::compare_gradients;
use crate::sample::{Block, kind, kinds};
use crate::support::compare::Comparison;
use crate::support::linear::{Mat, add_scaled};
use crate::support::oracle_backward::{RouterGradient, all_pairs};
use crate::support::oracle_losses::{RouterLoss, load_balancing_loss, router_z_loss};
use crate::{Device, Outcome, text, trial};

pub(crate) const AUX: f64 = 0.7;
pub(crate) const Z: f64 = 0.05;

pub(crate) fn trials<B: Backend>(device: Device<B>) -> Vec<Trial> {
    vec![
        trial(device, "losses::one_layer_with_mask", one_layer),
        trial(device, "losses::joint_over_layers", joint),
        trial(device, "losses::micro_batches_add_up", micro_batches),
        trial(device, "losses::correction_bias", correction_bias),
    ]
}

fn options() -> LayerOptions {
    LayerOptions { select: Selection::All, aux_loss_coef: AUX, z_loss_coef: Z, ..LayerOptions::default() }
}

fn mask(tokens: usize) -> Vec<bool> {
    (0..tokens).map(|t| t % 4 != 2).collect()
}

/// `AUX` and `Z` times the gradients of the two losses of one layer.
pub(crate) fn scaled(aux: &RouterLoss, z: &RouterLoss, layer: usize) -> Mat {
    let mut sum = aux.d_logits[layer].zeros_like();
    add_scaled(&mut sum.data, AUX, &aux.d_logits[layer].data);
    add_scaled(&mut sum.data, Z, &z.d_logits[layer].data);
    sum
}

fn one_layer<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mut compare = Comparison::new();
    for (name, config) in kinds() {
        let block = Block::new(config, 40, 71);
        let (x, dy) = block.tensors(&backend)?;
        for mask in [None, Some(mask(40))] {
            let context = ForwardContext { mask: mask.as_deref(), ..ForwardContext::default() };
            let forward = block.forward(mask.as_deref());
            let mut layer = block.layer(&backend, options())?;
            let (_, saved) = layer.forward(&x, &context).map_err(text)?;
            let (aux, z) = (load_balancing_loss(&[&forward.routing]), router_z_loss(&[&forward.routing]));
            let terms = saved.router_terms().ok_or("no terms")?;
            compare.number(&format!("{name}: load balancing"), terms.load_balancing(), aux.value, 1e-6);
            compare.number(&format!("{name}: z"), terms.z_loss(), z.value, 1e-6);
            let everything = all_pairs(&forward.routing);
            let mut want = block.oracle.backward(&block.x, &forward, &block.dy, &everything, RouterGradient::Exact);
            block.oracle.add_router_gradient(&mut want, &block.x, &forward.routing, &scaled(&aux, &z, 0));
            let got = layer.backward(&saved, &dy).map_err(text)?;
            compare_gradients(&mut compare, name, &layer, &got, &want, device.factor)?;
            let off = block.layer(&backend, LayerOptions { select: Selection::All, ..LayerOptions::default() })?;
            let (_, saved) = off.forward(&x, &context).map_err(text)?;
            compare.holds("no coefficient, no terms", saved.router_terms().is_none());
        }
    }
    compare.finish(6 * 2 * 10)
}

/// Two layers of different weights, inputs and masks, as Hugging Face joins them.
fn joint<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mut compare = Comparison::new();
    for name in ["softmax", "sigmoid_groups_bias_shared"] {
        let blocks = [Block::new(kind(name), 40, 72), Block::new(kind(name), 25, 73)];
        let masks = [Some(mask(40)), None];
        let mut layers = Vec::new();
        let mut passes = Vec::new();
        let mut forwards = Vec::new();
        for (block, mask) in blocks.iter().zip(&masks) {
            let layer = block.layer(&backend, options())?;
            let (x, _) = block.tensors(&backend)?;
            let context = ForwardContext { mask: mask.as_deref(), ..ForwardContext::default() };
            passes.push(layer.forward(&x, &context).map_err(text)?.1);
            forwards.push(block.forward(mask.as_deref()));
            layers.push(layer);
        }
        let routings: Vec<_> = forwards.iter().map(|forward| &forward.routing).collect();
        let (aux, z) = (load_balancing_loss(&routings), router_z_loss(&routings));
        let terms = RouterTerms::combine(passes.iter().filter_map(|saved| saved.router_terms())).map_err(text)?;
        compare.number("load balancing", terms.load_balancing(), aux.value, 1e-6);
        compare.number("z", terms.z_loss(), z.value, 1e-6);
        compare.equal("tokens", &[terms.tokens], &[30 + 25]);
        for i in 0..2 {
            let block = &blocks[i];
            let everything = all_pairs(&forwards[i].routing);
            let exact = RouterGradient::Exact;
            let mut want = block.oracle.backward(&block.x, &forwards[i], &block.dy, &everything, exact);
            block.oracle.add_router_gradient(&mut want, &block.x, &forwards[i].routing, &scaled(&aux, &z, i));
            let (_, dy) = block.tensors(&backend)?;
            let got = layers[i].backward_joint(&passes[i], &dy, &terms).map_err(text)?;
            let what = format!("{name}, layer {i}");
            compare_gradients(&mut compare, &what, &layers[i], &got, &want, device.factor)?;
        }
        let wrong = RouterTerms { counts: vec![1; 3], probability: vec![1.0; 3], z: 0.0, tokens: 1 };
        let (_, dy) = blocks[0].tensors(&backend)?;
        let error = layers[0].backward_joint(&passes[0], &dy, &wrong).err();
        compare.holds("terms of another router", matches!(error, Some(Error::Shape { .. })));
    }
    compare.finish(2 * 20)
}

/// Terms of two halves of a batch, combined, give each half the gradients of the whole batch.
fn micro_batches<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let whole = Block::new(kind("softmax"), 40, 74);
    let mut layer = whole.layer(&backend, options())?;
    let (x, dy) = whole.tensors(&backend)?;
    let (_, saved) = layer.forward(&x, &ForwardContext::default()).map_err(text)?;
    let want = layer.backward(&saved, &dy).map_err(text)?.d_logits.to_f32(&backend).map_err(text)?;
    let total = saved.router_terms().ok_or("no terms")?.clone();
    let mut halves = Vec::new();
    for half in 0..2 {
        let rows = |m: &Mat| Mat::new(20, m.cols, m.data[half * 20 * m.cols..(half + 1) * 20 * m.cols].to_vec());
        let block = Block { x: rows(&whole.x), dy: rows(&whole.dy), ..whole.clone() };
        let (x, dy) = block.tensors(&backend)?;
        let context = ForwardContext { call_id: half as u32, ..ForwardContext::default() };
        halves.push((layer.forward(&x, &context).map_err(text)?.1, dy));
    }
    let terms = RouterTerms::combine(halves.iter().filter_map(|(saved, _)| saved.router_terms())).map_err(text)?;
    let mut compare = Comparison::new();
    compare.equal("counts", &terms.counts, &total.counts);
    compare.number("load balancing", terms.load_balancing(), total.load_balancing(), 1e-6);
    let mut got = Vec::new();
    for (saved, dy) in &halves {
        let gradients = layer.backward_joint(saved, dy, &terms).map_err(text)?;
        got.extend(gradients.d_logits.to_f32(&backend).map_err(text)?);
    }
    let f64s = crate::support::layer::wide;
    compare.relative("d_logits", &f64s(&got), &f64s(&want), 1e-6 * device.factor);
    compare.finish(3)
}

/// `bias += step * sign(mean load - load)`, and the next selection uses it.
fn correction_bias<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let mut block = Block::new(kind("sigmoid_groups_bias_shared"), 60, 75);
    let (x, _) = block.tensors(&backend)?;
    let mut layer = block.layer(&backend, LayerOptions::default())?;
    let mut compare = Comparison::new();
    for step in 0..5 {
        let forward = block.forward(None);
        let (_, saved) = layer.forward(&x, &ForwardContext::default()).map_err(text)?;
        crate::expect::same_routing(&mut compare, &backend, &saved, &forward)?;
        let counts: Vec<u64> = saved.counts().iter().copied().map(u64::from).collect();
        layer.update_correction_bias(&counts, 0.05).map_err(text)?;
        let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        let bias = block.oracle.weights.correction_bias.as_mut().ok_or("no bias")?;
        for (bias, &count) in bias.data.iter_mut().zip(&counts) {
            let sign = if count as f64 == mean { 0.0 } else { (mean - count as f64).signum() };
            *bias = f64::from(*bias as f32 + 0.05 * sign as f32);
        }
        let want = crate::sample::narrow(&bias.data);
        compare.equal(&format!("bias after step {step}"), layer.correction_bias().ok_or("no bias")?, &want);
    }
    let error = layer.update_correction_bias(&[1; 3], 0.05).err();
    compare.holds("counts of another router", matches!(error, Some(Error::Shape { .. })));
    let error = layer.update_correction_bias(&[1; 8], f32::NAN).err();
    compare.holds("a step that is no number", matches!(error, Some(Error::Argument { .. })));
    let mut plain = Block::new(kind("softmax"), 4, 76).layer(&backend, LayerOptions::default())?;
    let error = plain.update_correction_bias(&[1; 8], 0.1).err();
    compare.holds("no bias is a state", matches!(error, Some(Error::State { .. })));
    compare.finish(13)
}
