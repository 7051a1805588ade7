//! One training run: the loop, what it measures, and when it stops.

use std::sync::atomic::{AtomicBool, Ordering};

use lrmoe::backend::OnBackend;
use lrmoe::memory::MemoryReport;
use lrmoe::plan::Counts;
use lrmoe::plan::trace::TraceEntry;
use lrmoe::{Backend, LayerOptions, MoeConfig, PlanOptions, Retention, Selection};
use serde_json::{Value, json};

use crate::cli::Options;
use crate::corpus::Corpus;
use crate::failure::Failure;
use crate::files::LineFile;
use crate::load::{LoadHistory, busiest};
use crate::model::Model;
use crate::moe::{MoeSpec, MoeStats};
use crate::moe_op::MoeSeconds;
use crate::optim::ADAMW;
use crate::progress::Progress;
use crate::trainer::{Progressed, Trainer};

/// Coefficient of the load balancing loss.
const AUX_COEF: f64 = 0.01;
/// Validations of a run, not counting the one before its first step.
const VALIDATIONS: u64 = 40;

/// A validation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CurvePoint {
    /// Steps done.
    pub(crate) step: u64,
    /// Nats a byte on the held-out windows.
    pub(crate) val_loss: f64,
    /// Seconds in MoE layers so far, training only.
    pub(crate) moe: MoeSeconds,
}

impl CurvePoint {
    pub(crate) fn moe_s(&self) -> f64 {
        self.moe.forward + self.moe.backward
    }
}

/// What a run was and how it went, valid at any moment of it.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// "plain" or "lrmoe".
    pub(crate) policy: &'static str,
    pub(crate) select: Selection,
    pub(crate) retain: Retention,
    /// Steps done.
    pub(crate) steps: u64,
    /// Whether it came to its own end.
    pub(crate) ended: bool,
    pub(crate) curve: Vec<CurvePoint>,
    pub(crate) moe: MoeSeconds,
    pub(crate) routed_pairs: u64,
    pub(crate) backward_pairs: u64,
    /// Bytes of the MoE layers: buffers alive at once at the moment of their highest sum.
    pub(crate) peak: Option<MemoryReport>,
    pub(crate) loads: LoadHistory,
}

impl Run {
    pub(crate) fn new(policy: &'static str, select: Selection, retain: Retention, options: &Options) -> Self {
        let loads = LoadHistory::new(options.steps, options.layers);
        let (moe, peak) = (MoeSeconds::default(), None);
        let (curve, steps, ended, routed_pairs, backward_pairs) = (Vec::new(), 0, false, 0, 0);
        Self { policy, select, retain, steps, ended, curve, moe, routed_pairs, backward_pairs, peak, loads }
    }

    /// The first validation at or below `target`.
    pub(crate) fn reached(&self, target: f64) -> Option<&CurvePoint> {
        self.curve.iter().find(|p| p.val_loss <= target)
    }

    /// The validation after exactly `step` steps.
    pub(crate) fn at(&self, step: u64) -> Option<&CurvePoint> {
        self.curve.iter().find(|p| p.step == step)
    }
}

/// The part of the plain run's steps whose validation loss is the default target.
pub(crate) const TARGET: f64 = 0.95;

/// The step whose validation loss in the plain run is a target: `fraction` of the planned `steps`, rounded up.
pub(crate) fn target_step(steps: u64, fraction: f64) -> u64 {
    // In whole percent, so that 0.95 * 20 is 19 and not a little more.
    let percent = (fraction * 100.0).round() as u64;
    (steps * percent).div_ceil(100)
}

/// Whether the model is validated after `done` of `steps` steps: about `validations` times, at every target and at the end.
pub(crate) fn is_validated(done: u64, steps: u64, validations: u64, targets: &[f64]) -> bool {
    let target = targets.iter().any(|&fraction| target_step(steps, fraction) == done);
    done.is_multiple_of((steps / validations).max(1)) || done == steps || target
}

/// Files that grow with a run.
#[derive(Debug)]
pub(crate) struct Sinks {
    pub(crate) metrics: LineFile,
    /// Routing trace, for the run that is recorded.
    pub(crate) trace: Option<LineFile>,
}

/// Steps after which a run that has not reached its goal gives up: a quarter more than planned.
pub(crate) fn last_step(steps: u64) -> u64 {
    steps + steps / 4
}

/// Trains `run` to its end, or until `stop` is set, on whichever backend there is. A run that has not reached the loss `goal` by
/// then goes on at the final learning rate until it does, for a quarter more steps at most. Whatever happened before an error is
/// in `run` and `sinks`.
pub(crate) struct Training<'a> {
    pub(crate) run: &'a mut Run,
    pub(crate) options: &'a Options,
    pub(crate) corpus: &'a Corpus,
    pub(crate) goal: Option<f64>,
    pub(crate) sinks: &'a mut Sinks,
    pub(crate) stop: &'a AtomicBool,
}

impl OnBackend for Training<'_> {
    type Output = Result<(), Failure>;

    fn run<B: Backend>(self, backend: &B) -> Result<(), Failure> {
        let Self { run, options, corpus, goal, sinks, stop } = self;
        let spec = moe_spec(run, options);
        // Runs on one device follow each other: what the last one peaked at is not this one's.
        backend.memory().reset_peaks();
        let mut trainer = Trainer::new(options.layers, &spec, backend, options.batch(), options.steps)?;
        let mut progress = Progress::new(run.policy, options.steps);
        let stopped = || stop.load(Ordering::Relaxed);
        let mut result = validate(run, &trainer, corpus).map(|loss| progress.validated(0, None, loss));
        while result.is_ok() && !stopped() {
            let short = goal.is_some_and(|goal| run.reached(goal).is_none());
            if run.steps >= if short { last_step(options.steps) } else { options.steps } {
                run.ended = true;
                break;
            }
            result = step(run, &mut trainer, corpus).and_then(|mut line| {
                let train_loss = line["loss"].as_f64().unwrap_or(f64::NAN);
                if is_validated(run.steps, options.steps, VALIDATIONS, &[TARGET]) || stopped() {
                    let loss = validate(run, &trainer, corpus)?;
                    line["val_loss"] = loss.into();
                    progress.validated(run.steps, Some(train_loss), loss);
                }
                progress.step(run.steps, train_loss);
                sinks.metrics.line(&line.to_string())?;
                sinks.trace.as_mut().map_or(Ok(()), |trace| record(trace, run.steps - 1, &trainer.model))
            });
        }
        run.peak = Some(backend.memory().report());
        progress.finish();
        result
    }
}

fn moe_spec(run: &Run, options: &Options) -> MoeSpec {
    MoeSpec {
        layer: 0,
        config: MoeConfig::new(options.hidden, options.hidden, options.experts(), options.top_k()),
        options: LayerOptions {
            select: run.select,
            plan: PlanOptions { retention: run.retain, ..options.plan_options() },
            score_floor: options.score_floor,
            aux_loss_coef: AUX_COEF,
            ..LayerOptions::default()
        },
        bias_step: 0.0,
        seed: options.seed,
        adamw: ADAMW,
    }
}

/// One training step; returns its line of metrics.
fn step(run: &mut Run, trainer: &mut Trainer, corpus: &Corpus) -> Result<Value, Failure> {
    let index = run.steps;
    let Progressed { loss, lr, grad_norm } = trainer.step(corpus)?;
    let mut layers = Vec::new();
    for (index_of_layer, layer) in trainer.model.moe_layers().enumerate() {
        let stats = layer.with(|l| l.stats().clone());
        run.routed_pairs += sum(&stats.counts);
        run.backward_pairs += sum(&stats.retained);
        run.loads.add(index, index_of_layer, &stats);
        layers.push(layer_metrics(&stats));
    }
    run.moe = trainer.model.moe_seconds();
    run.steps += 1;
    Ok(json!({
        "run": run.policy, "step": run.steps, "loss": loss, "val_loss": null, "lr": lr, "grad_norm": grad_norm,
        "moe_forward_s": run.moe.forward, "moe_backward_s": run.moe.backward, "layers": layers,
    }))
}

fn validate(run: &mut Run, trainer: &Trainer, corpus: &Corpus) -> Result<f64, Failure> {
    let val_loss = trainer.validate(corpus)?;
    run.curve.push(CurvePoint { step: run.steps, val_loss, moe: run.moe });
    Ok(val_loss)
}

fn layer_metrics(stats: &MoeStats) -> Value {
    json!({
        "routed": sum(&stats.counts), "quota": sum(&stats.quotas), "retained": sum(&stats.retained),
        "busiest_forward": busiest(&stats.counts), "busiest_backward": busiest(&stats.retained),
        "kept_score": stats.kept_score, "eta": stats.eta, "ess": stats.ess, "max_weight": stats.max_weight,
        "aux_loss": stats.aux_loss, "nan_seen": stats.nan_seen,
    })
}

fn record(trace: &mut LineFile, step: u64, model: &Model) -> Result<(), Failure> {
    (0..).zip(model.moe_layers()).try_for_each(|(layer, handle)| {
        let counts = Counts::new(&[handle.with(|l| l.stats().counts.clone())])?;
        trace.line(&TraceEntry { counts, layer, step }.to_string())
    })
}

fn sum(pairs: &[u32]) -> u64 {
    pairs.iter().map(|n| u64::from(*n)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_and_the_end_are_validated() {
        let targets = [0.6, 0.8, 0.95];
        for steps in [1, 2, 7, 39, 40, 41, 399, 400, 1000] {
            let validated = |step| is_validated(step, steps, VALIDATIONS, &targets);
            for fraction in targets {
                let target = target_step(steps, fraction);
                assert!(target >= 1 && target <= steps && validated(target), "{steps} {fraction}");
            }
            assert!(validated(steps));
            assert!((1..=steps).filter(|&step| validated(step)).count() as u64 <= 2 * VALIDATIONS + 4);
        }
    }

    #[test]
    fn target_steps_are_rounded_up_from_exact_percentages() {
        for n in 1..3000 {
            let steps = [0.6, 0.8, 0.95].map(|fraction| target_step(n, fraction));
            assert_eq!(steps, [60, 80, 95].map(|percent| (n * percent).div_ceil(100)));
        }
    }
}
