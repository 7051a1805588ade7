//! What a layer carries from step to step: smoothed demand, and the running factor behind the `Full` metric.

use libtest_mimic::Trial;
use lrmoe::kernel::Metric;
use lrmoe::plan::Demand;
use lrmoe::{Backend, ForwardContext, LayerOptions, MoeLayer};

use crate::expect::{BOUND, retained};
use crate::sample::{Block, kind};
use crate::support::compare::Comparison;
use crate::support::layer::wide;
use crate::support::linear::norm;
use crate::support::oracle_select::{ScoreRule, floored_scores, pair_scores};
use crate::{Device, Outcome, text, trial};

pub(crate) fn trials<B: Backend>(device: Device<B>) -> Vec<Trial> {
    vec![
        trial(device, "demand::smoothed_over_steps", smoothed),
        trial(device, "demand::plans_of_the_next_step", next_plan),
        trial(device, "demand::factor_of_the_full_metric", full_metric),
    ]
}

/// Three batches of the same weights.
fn batches() -> Vec<Block> {
    let first = Block::new(kind("softmax"), 60, 141);
    let others = [142, 143].map(|seed| {
        let other = Block::new(kind("softmax"), 50, seed);
        Block { x: other.x, dy: other.dy, ..first.clone() }
    });
    [first].into_iter().chain(others).collect()
}

/// Demand of one batch from the layer's scores, relative to the means before flooring.
fn demand_of<B: Backend>(layer: &MoeLayer<B>, raw: &MoeLayer<B>, block: &Block) -> Result<Demand, String> {
    let (x, dy) = block.tensors(layer.backend())?;
    let scores = |layer: &MoeLayer<B>| {
        let (_, saved) = layer.forward(&x, &ForwardContext::default()).map_err(text)?;
        layer.scores(&saved, &dy).map_err(text)
    };
    let (floored, raw) = (scores(layer)?, scores(raw)?);
    let routing = block.forward(None).routing;
    let (mut sorted, mut offsets, mut means) = (Vec::new(), vec![0], Vec::new());
    for e in 0..routing.logits.cols {
        let own: Vec<usize> = routing.pairs().filter(|&(_, _, f)| f == e).map(|(p, ..)| p).collect();
        sorted.extend(own.iter().map(|&p| floored[p]));
        offsets.push(sorted.len() as u32);
        means.push(own.iter().map(|&p| f64::from(raw[p])).sum::<f64>() / own.len().max(1) as f64);
    }
    Demand::from_scores_relative_to(&sorted, &offsets, &means).map_err(text)
}

fn smoothed<B: Backend>(device: &Device<B>) -> Outcome {
    const FACTOR: f64 = 0.8;
    let backend = (device.make)();
    let batches = batches();
    let mut options = LayerOptions::default();
    options.plan.smoothing = FACTOR;
    let mut layer = batches[0].layer(&backend, options)?;
    let raw = batches[0].layer(&backend, LayerOptions { score_floor: 0.0, ..LayerOptions::default() })?;
    let mut want: Option<Demand> = None;
    let mut compare = Comparison::new();
    for (step, block) in batches.iter().enumerate() {
        let new = demand_of(&layer, &raw, block)?;
        want = Some(match &want {
            Some(previous) => Demand::smooth(previous, &new, FACTOR).map_err(text)?,
            None => new,
        });
        let (x, dy) = block.tensors(&backend)?;
        let (_, saved) = layer.forward(&x, &ForwardContext::default()).map_err(text)?;
        layer.backward(&saved, &dy).map_err(text)?;
        let (got, want) = (layer.demand().ok_or("no demand")?.parts(), want.as_ref().ok_or("no demand")?.parts());
        for (name, got, want, bound) in [
            ("load", &got.load, &want.load, 1e-12),
            ("score_sum", &got.score_sum, &want.score_sum, 1e-5),
            ("reference", &got.reference, &want.reference, 1e-5),
            ("histogram", &got.histogram, &want.histogram, 1e-12),
        ] {
            compare.relative(&format!("step {step}: {name}"), got, want, bound);
        }
    }
    compare.finish(12)
}

/// The plan of a step is that of its counts and the demand of the steps before.
fn next_plan<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let batches = batches();
    let mut layer = batches[0].layer(&backend, LayerOptions::default())?;
    let mut compare = Comparison::new();
    for block in &batches {
        let (x, dy) = block.tensors(&backend)?;
        let (_, saved) = layer.forward(&x, &ForwardContext::default()).map_err(text)?;
        let want = lrmoe::plan::plan_one_rank(saved.counts(), layer.demand(), &layer.options().plan).map_err(text)?;
        compare.holds("plan", *saved.plan() == want);
        let uniform = lrmoe::plan::plan_one_rank(saved.counts(), None, &layer.options().plan).map_err(text)?;
        compare.holds("demand matters, once there is some", (want == uniform) == layer.demand().is_none());
        layer.backward(&saved, &dy).map_err(text)?;
    }
    compare.finish(6)
}

/// kappa_e: mean over the retained pairs of `sqrt(||da||^2 + ||db||^2) / (|g| ||d||)` without pair weights; the first step's as it
/// is, later ones a tenth each.
fn full_metric<B: Backend>(device: &Device<B>) -> Outcome {
    let backend = (device.make)();
    let batches = batches();
    let mut layer = batches[0].layer(&backend, LayerOptions { metric: Metric::Full, ..LayerOptions::default() })?;
    let mut kappa: Vec<f64> = vec![0.0; 8];
    let mut compare = Comparison::new();
    for (step, block) in batches.iter().enumerate() {
        let forward = block.forward(None);
        let (x, dy) = block.tensors(&backend)?;
        let context = ForwardContext { step: step as u64, ..ForwardContext::default() };
        let (_, saved) = layer.forward(&x, &context).map_err(text)?;
        let raw = pair_scores(&block.oracle, &block.x, &forward, &block.dy, &ScoreRule::Full(kappa.clone()));
        let want = floored_scores(&forward, &block.dy, &raw, 0.25);
        let want: Vec<f64> = want.into_iter().map(|score| score.map_or(0.0, f64::from)).collect();
        let got = wide(&layer.scores(&saved, &dy).map_err(text)?);
        compare.relative(&format!("step {step}: scores"), &got, &want, BOUND * device.factor);
        let kept = retained(&layer, &saved, &dy, &forward.routing, &context)?;
        layer.backward(&saved, &dy).map_err(text)?;
        for (e, kappa) in kappa.iter_mut().enumerate() {
            let (mut sum, mut count) = (0.0, 0.0);
            for &(p, _) in kept.iter().filter(|&&(p, _)| forward.routing.experts[p] == e) {
                let contribution = block.oracle.contribution(&block.x, &forward, &block.dy, p);
                let size = norm(&contribution.da).hypot(norm(&contribution.db));
                sum += size / (forward.routing.weights[p].abs() * norm(block.dy.row(p / 3)));
                count += 1.0;
            }
            if count > 0.0 {
                let mean = sum / count;
                *kappa = if *kappa == 0.0 { mean } else { *kappa + 0.1 * (mean - *kappa) };
            }
        }
    }
    compare.holds("the factor is there", kappa.iter().all(|&k| k > 0.0));
    compare.finish(4)
}
