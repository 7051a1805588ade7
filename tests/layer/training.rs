//! The noise budget over steps, and that a layer trains in every mode.

use libtest_mimic::Trial;
use lrmoe::{
    Activations, AdamW, AdamWConfig, Backend, DType, ForwardContext, LayerOptions, MoeConfig, MoeLayer, Retention,
    RouterGradient, Selection, Tensor,
};

use crate::sample::{Block, kind, narrow, single, tensor};
use crate::support::compare::Comparison;
use crate::support::layer::wide;
use crate::support::linear::Mat;
use crate::unbiased::pair_weight_of_each_token;
use crate::{Device, Outcome, no_storage, text, trial, trial_if};

pub(crate) fn trials<B: Backend>(device: Device<B>) -> Vec<Trial> {
    let mut trials = vec![
        trial(device, "noise_budget::met_when_demand_is_stationary", stationary),
        trial(device, "noise_budget::variance_over_seeds_is_within_it", variance),
        trial(device, "noise_budget::limits_are_named", limits),
    ];
    let selections = [
        Selection::All,
        Selection::TopQ,
        Selection::Systematic,
        Selection::Unbiased,
        Selection::Mixed { certain: 0.5 },
    ];
    for select in selections {
        for (activations, router) in
            [(Activations::Stash, RouterGradient::Estimated), (Activations::Recompute, RouterGradient::Exact)]
        {
            let name = format!("training::loss_falls::{select}::{activations:?}").to_lowercase();
            let options = LayerOptions {
                select,
                activations,
                router_gradient: router,
                aux_loss_coef: 1e-3,
                ..LayerOptions::default()
            };
            trials.push(trial(device, name, move |d| loss_falls(d, options, DType::F32)));
        }
    }
    for dtype in [DType::BF16, DType::F16] {
        let name = format!("training::loss_falls::systematic::{dtype}");
        let run = move |d: &Device<B>| loss_falls(d, LayerOptions::default(), dtype);
        trials.push(trial_if(device, name, move |d| no_storage(d, dtype), run));
    }
    trials
}

fn noise_options(theta: f64) -> LayerOptions {
    let mut options = LayerOptions::default();
    options.plan.retention = Retention::noise(theta);
    options.plan.q_min = 4;
    options
}

/// The same batch each step: what is measured is what was predicted, and within the budget, with as few pairs as that takes.
fn stationary<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(kind("softmax"), 300, 101);
    let (x, dy) = block.tensors(&backend)?;
    let mut compare = Comparison::new();
    let mut last = u64::MAX;
    for theta in [0.05, 0.2, 0.5] {
        let mut layer = block.layer(&backend, noise_options(theta))?;
        for step in 0..4 {
            let (_, saved) = layer.forward(&x, &ForwardContext { step, ..ForwardContext::default() }).map_err(text)?;
            let plan = saved.plan().clone();
            let stats = layer.backward(&saved, &dy).map_err(text)?.stats;
            let eta = stats.scores.ok_or("no scores")?.eta;
            compare.holds(
                &format!("step {step}: predicted {} within {theta}", plan.predicted_eta),
                plan.predicted_eta <= theta,
            );
            if step > 0 {
                compare.number(&format!("step {step}: eta as predicted"), eta, plan.predicted_eta, 1e-3);
                compare.holds(
                    &format!("step {step}: eta {eta} uses the budget {theta}"),
                    eta <= theta * 1.001 && eta > 0.8 * theta,
                );
                compare.holds("something is dropped", plan.limits.is_empty() && plan.retained() < plan.pairs());
            }
            if step == 3 {
                compare.holds("more noise, fewer pairs", plan.retained() < last);
                last = plan.retained();
            }
        }
    }
    compare.finish(3 * 14)
}

/// The variance of sum w m over seeds, against theta sum m^2: the bound of the plan holds for what is really drawn. A sample
/// variance of 2,000 draws is within 20 % of the truth at 6 standard deviations.
fn variance<B: Backend>(device: &Device<B>) -> Outcome {
    const THETA: f64 = 0.2;
    const SEEDS: u64 = 2000;
    let backend = (device.make)();
    let block = Block::new(single(6, 5, 3), 60, 102);
    let (x, dy) = block.tensors(&backend)?;
    let forward = block.forward(None);
    let everything = crate::support::oracle_backward::all_pairs(&forward.routing);
    let full = block.oracle.expert_backward(&block.x, &forward, &block.dy, &everything).dx;
    // The budget is one of priority sampling; systematic sampling estimates the sum of the scores without any error.
    let options = LayerOptions { select: Selection::Unbiased, ..noise_options(THETA) };
    let mut layer = block.layer(&backend, options)?;
    let (mut sum, mut squares, mut truth, mut energy) = (0.0, 0.0, 0.0, 0.0);
    for seed in 0..=SEEDS {
        let (_, saved) = layer.forward(&x, &ForwardContext { seed, ..ForwardContext::default() }).map_err(text)?;
        if seed == 0 {
            let scores = wide(&layer.scores(&saved, &dy).map_err(text)?);
            truth = scores.iter().sum::<f64>();
            energy = scores.iter().map(|m| m * m).sum::<f64>();
        }
        let scores = wide(&layer.scores(&saved, &dy).map_err(text)?);
        let dx = layer.backward(&saved, &dy).map_err(text)?.dx;
        if seed == 0 {
            continue; // Planned without demand.
        }
        let weights = pair_weight_of_each_token(&wide(&dx.to_f32(&backend).map_err(text)?), &full);
        let off = weights.iter().zip(&scores).map(|(w, m)| w * m).sum::<f64>() - truth;
        sum += off;
        squares += off * off;
    }
    let n = SEEDS as f64;
    let variance = (squares - sum * sum / n) / (n - 1.0);
    let mut compare = Comparison::new();
    compare.holds(&format!("variance {variance} within {}", THETA * energy), variance <= 1.2 * THETA * energy);
    compare.holds(&format!("variance {variance} is there"), variance > 0.1 * THETA * energy);
    compare.holds("the mean is unbiased", (sum / n).abs() <= 6.0 * (variance / n).sqrt());
    compare.finish(3)
}

fn limits<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let block = Block::new(kind("softmax"), 100, 103);
    let (x, _) = block.tensors(&backend)?;
    let mut compare = Comparison::new();
    let cases = [(0.0, 0.1, 0.5, "max_fraction"), (1e9, 0.4, 1.0, "min_fraction")];
    for (theta, min_fraction, max_fraction, limit) in cases {
        let mut options = noise_options(0.1);
        options.plan.retention = Retention::Noise { theta, min_fraction, max_fraction };
        let layer = block.layer(&backend, options)?;
        let (_, saved) = layer.forward(&x, &ForwardContext::default()).map_err(text)?;
        let named = saved.plan().limits.iter().any(|l| l.name() == limit);
        compare.holds(&format!("{:?} has {limit}", saved.plan().limits), named);
    }
    compare.finish(2)
}

/// Fifty steps of regression on a teacher of the same shape halve the loss.
fn loss_falls<B: Backend>(device: &Device<B>, options: LayerOptions, dtype: DType) -> Outcome {
    let backend = (device.make)();
    let config = MoeConfig { shared_expert_intermediate_size: 4, ..MoeConfig::new(8, 8, 4, 2) };
    let teacher = Block::new(config.clone(), 96, 104);
    let target = teacher.forward(None).y;
    let student = Block::new(config, 96, 105);
    let weights = student.weights.clone().to_dtype(dtype).map_err(text)?;
    let mut layer = MoeLayer::new(&backend, student.config.clone(), weights, options).map_err(text)?;
    let mut adamw = AdamW::new(&layer, AdamWConfig { decay_experts: 0.0, ..AdamWConfig::default() }).map_err(text)?;
    let x = tensor(&backend, &teacher.x)?;
    let before = loss(&layer, &x, &target)?;
    for step in 0..50 {
        let (y, saved) = layer.forward(&x, &ForwardContext { step, ..ForwardContext::default() }).map_err(text)?;
        let y = wide(&y.to_f32(&backend).map_err(text)?);
        let dy: Vec<f64> = y.iter().zip(&target.data).map(|(y, t)| (y - t) / y_len(&target)).collect();
        let dy = Tensor::from_f32(&backend, &narrow(&dy), 96, 8).map_err(text)?;
        layer.zero_grad();
        layer.backward(&saved, &dy).map_err(text)?;
        adamw.step(&mut layer, 0.02, 1.0, false).map_err(text)?;
    }
    let after = loss(&layer, &x, &target)?;
    let mut compare = Comparison::new();
    compare.holds(&format!("loss {before} falls to {after}"), after < 0.5 * before);
    compare.finish(1)
}

fn y_len(target: &Mat) -> f64 {
    target.data.len() as f64
}

fn loss<B: Backend>(layer: &MoeLayer<B>, x: &Tensor<B>, target: &Mat) -> Result<f64, String> {
    let y = layer.evaluate(x, &ForwardContext::default()).map_err(text)?;
    let y = wide(&y.to_f32(layer.backend()).map_err(text)?);
    Ok(y.iter().zip(&target.data).map(|(y, t)| (y - t) * (y - t)).sum::<f64>() / y_len(target))
}
