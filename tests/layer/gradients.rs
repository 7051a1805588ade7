//! Gradients of what the layer retained, against the f64 oracle's sum of per-pair contributions.

use libtest_mimic::Trial;
use lrmoe::{Activations, Backend, ForwardContext, LayerOptions, MoeConfig, RouterGradient, Selection};

use crate::expect::{BOUND, compare_gradients, per_expert, retained, router_mode, same_routing};
use crate::sample::{Block, kinds};
use crate::support::compare::Comparison;
use crate::support::layer::wide;
use crate::support::oracle_select::{ScoreRule, floored_scores, pair_scores};
use crate::support::rng::Rng;
use crate::{Device, Outcome, text, trial};

const TOKENS: usize = 40;
const SELECTIONS: [Selection; 5] =
    [Selection::All, Selection::TopQ, Selection::Systematic, Selection::Unbiased, Selection::Mixed { certain: 0.4 }];

pub(crate) fn trials<B: Backend>(device: Device<B>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (name, config) in kinds() {
        for activations in [Activations::Stash, Activations::Recompute] {
            for router in [RouterGradient::Estimated, RouterGradient::Exact] {
                let config = config.clone();
                let name = format!("gradients::{name}::{activations:?}::{router:?}").to_lowercase();
                trials.push(trial(device, name, move |device| of_kind(device, config, activations, router)));
            }
        }
    }
    trials
}

fn of_kind<B: Backend>(
    device: &Device<B>,
    config: MoeConfig,
    activations: Activations,
    router_gradient: RouterGradient,
) -> Outcome {
    let block = Block::new(config, TOKENS, 11);
    let mut rng = Rng::new(12);
    let mask: Vec<bool> = (0..TOKENS).map(|_| rng.below(5) > 0).collect();
    let ids: Vec<u64> = (0..TOKENS as u64).map(|t| (t * 17 + 5) % TOKENS as u64 + (1 << 40)).collect();
    let mut compare = Comparison::new();
    for select in SELECTIONS {
        let mut options = LayerOptions { select, activations, router_gradient, ..LayerOptions::default() };
        options.plan.q_min = 2;
        for (call_id, masked) in [(0, false), (1, true)] {
            let context = ForwardContext {
                seed: 3,
                step: 4,
                layer: 5,
                call_id,
                token_ids: masked.then_some(ids.as_slice()),
                first_token: if masked { 0 } else { 1 << 33 },
                mask: masked.then_some(mask.as_slice()),
            };
            let what = format!("{select}{}", if masked { ", masked" } else { "" });
            one(device, &block, options.clone(), &context, &what, &mut compare)?;
        }
    }
    compare.finish(2 * SELECTIONS.len() * 12)
}

fn one<B: Backend>(
    device: &Device<B>,
    block: &Block,
    options: LayerOptions,
    context: &ForwardContext<'_>,
    what: &str,
    compare: &mut Comparison,
) -> Outcome {
    let backend = (device.make)();
    let mut layer = block.layer(&backend, options)?;
    let (x, dy) = block.tensors(&backend)?;
    let forward = block.forward(context.mask);
    let (y, saved) = layer.forward(&x, context).map_err(text)?;
    same_routing(compare, &backend, &saved, &forward)?;
    let y = wide(&y.to_f32(&backend).map_err(text)?);
    compare.relative(&format!("{what}: y"), &y, &forward.y.data, device.factor * BOUND);

    let raw = pair_scores(&block.oracle, &block.x, &forward, &block.dy, &ScoreRule::OutputNorm);
    let floor = f64::from(layer.options().score_floor);
    let want = floored_scores(&forward, &block.dy, &raw, floor);
    let want: Vec<f64> = want.into_iter().map(|score| score.map_or(0.0, f64::from)).collect();
    let scores = wide(&layer.scores(&saved, &dy).map_err(text)?);
    compare.relative(&format!("{what}: scores"), &scores, &want, device.factor * BOUND);

    let kept = retained(&layer, &saved, &dy, &forward.routing, context)?;
    let router = router_mode(layer.options().router_gradient);
    let want = block.oracle.backward(&block.x, &forward, &block.dy, &kept, router);
    let got = layer.backward(&saved, &dy).map_err(text)?;
    compare_gradients(compare, what, &layer, &got, &want, device.factor)?;
    compare.equal(&format!("{what}: retained"), &got.stats.retained, &per_expert(&forward.routing, &kept));
    compare.equal(&format!("{what}: quotas"), &got.stats.quotas, &saved.plan().quotas);
    let dropped = kept.len() < forward.routing.pairs().count();
    compare.holds(&format!("{what}: something is dropped"), dropped == (layer.options().select != Selection::All));
    statistics(compare, what, &got.stats, &kept, &scores);
    Ok(())
}

/// The reported figures of the selection, from scores and retained pairs.
fn statistics(compare: &mut Comparison, what: &str, stats: &lrmoe::Statistics, kept: &[(usize, f64)], scores: &[f64]) {
    compare.holds(&format!("{what}: no NaN seen"), !stats.nan_seen);
    let Some(stats) = &stats.scores else { return };
    let sum = |f: &dyn Fn(f64) -> f64| kept.iter().map(|&(_, w)| f(w)).sum::<f64>();
    let mass = kept.iter().map(|&(p, _)| scores[p]).sum::<f64>() / scores.iter().sum::<f64>();
    let largest = kept.iter().map(|&(_, w)| w).fold(1.0, f64::max);
    compare.number(&format!("{what}: kept score mass"), stats.kept_score_mass, mass, 1e-5);
    let sample_size = sum(&|w| w).powi(2) / sum(&|w| w * w);
    compare.number(&format!("{what}: effective sample size"), stats.effective_sample_size, sample_size, 1e-5);
    compare.number(&format!("{what}: largest pair weight"), stats.max_pair_weight, largest, 1e-6);
    let eligible: u32 = stats.eligible.iter().sum();
    compare.equal(&format!("{what}: eligible"), &[eligible as usize], &[scores.iter().filter(|&&m| m > 0.0).count()]);
}
