//! One training run of the experiment, and the policies whose plans are made along it.

use std::sync::{Arc, Mutex, PoisonError};

use lrmoe::plan::Activations;
use lrmoe::{CpuBackend, LayerOptions, Retention, Selection};

use super::cell::TARGETS;
use super::loads::Loads;
use super::planner::{Follower, LayerPlans};
use super::trained::TrainedRun;
use crate::cli::Options;
use crate::corpus::Corpus;
use crate::failure::Failure;
use crate::moe::{MoeSpec, SharedPlanner};
use crate::retain::Retain;
use crate::run::is_validated;
use crate::trainer::Trainer;

/// Validations of a run, besides those at the targets.
const VALIDATIONS: u64 = 24;

/// A policy in one activation mode, to be followed along a run.
pub(crate) struct Followed {
    pub(crate) policy: String,
    pub(crate) activations: Activations,
    /// One for each layer.
    pub(crate) followers: Vec<Follower>,
}

/// A run, its model, and all that was done in it.
pub(crate) struct Trajectory {
    pub(crate) name: String,
    trainer: Trainer,
    layers: Vec<Arc<Mutex<LayerPlans>>>,
    /// Policy and activation mode of each follower.
    followed: Vec<(String, Activations)>,
    /// Step and validation loss.
    pub(crate) curve: Vec<(u64, f64)>,
    /// `[followers][steps][layers]`; a follower that stopped has fewer steps.
    pub(crate) loads: Vec<Vec<Vec<Loads>>>,
    /// Why a follower stopped.
    infeasible: Vec<Option<String>>,
    /// Why the run itself ended early.
    pub(crate) failed: Option<String>,
    pub(crate) steps: u64,
    planned: u64,
}

/// What tells runs apart.
pub(crate) struct Drive {
    pub(crate) name: String,
    pub(crate) select: Selection,
    /// Whether the first follower's plans say what is computed.
    pub(crate) driven: bool,
}

impl Trajectory {
    /// A run from freshly drawn weights: the same for every run of one seed.
    pub(crate) fn new(
        drive: Drive,
        followed: Vec<Followed>,
        spec: &MoeSpec,
        (ranks, batch): (usize, usize),
        options: &Options,
    ) -> Result<Self, Failure> {
        let Drive { name, select, driven } = drive;
        let mut spec = spec.clone();
        // The layers' own retention is never asked for: every call is planned from outside.
        spec.options =
            LayerOptions { select, plan: options.plan_options(), score_floor: options.score_floor, ..spec.options };
        let trainer = Trainer::new(options.layers, &spec, &CpuBackend::new(), batch, options.steps)?;
        let names = followed.iter().map(|f| (f.policy.clone(), f.activations)).collect::<Vec<_>>();
        let mut by_layer: Vec<Vec<Follower>> = (0..options.layers).map(|_| Vec::new()).collect();
        for followed in followed {
            by_layer.iter_mut().zip(followed.followers).for_each(|(layer, follower)| layer.push(follower));
        }
        let retain = if driven { options.retain.clone() } else { Retain::constant(Retention::Fraction(1.0)) };
        let mut layers = Vec::with_capacity(options.layers);
        for ((index, followers), handle) in by_layer.into_iter().enumerate().zip(trainer.model.moe_layers()) {
            let plans = LayerPlans::new((index, ranks, options.steps), retain.clone(), driven, followers);
            let plans = Arc::new(Mutex::new(plans));
            let shared: SharedPlanner = Arc::clone(&plans) as SharedPlanner;
            handle.with(|layer| layer.plan_with(shared));
            layers.push(plans);
        }
        Ok(Self {
            name,
            trainer,
            layers,
            loads: vec![Vec::new(); names.len()],
            infeasible: vec![None; names.len()],
            failed: None,
            followed: names,
            curve: Vec::new(),
            steps: 0,
            planned: options.steps,
        })
    }

    /// Validates before the first step.
    pub(crate) fn begin(&mut self, corpus: &Corpus) -> Result<(), Failure> {
        self.curve.push((0, self.trainer.validate(corpus)?));
        Ok(())
    }

    /// One step, and a validation where one is due; the loss of that.
    pub(crate) fn step(&mut self, corpus: &Corpus) -> Result<Option<f64>, Failure> {
        self.trainer.step(corpus)?;
        let mut done: Vec<Option<Vec<Loads>>> = vec![Some(Vec::new()); self.followed.len()];
        for layer in &self.layers {
            let mut layer = layer.lock().unwrap_or_else(PoisonError::into_inner);
            for (i, loads) in std::mem::take(&mut layer.done).into_iter().enumerate() {
                match (loads, &mut done[i]) {
                    (Some(loads), Some(layers)) => layers.push(loads),
                    // Another layer had none.
                    (Some(_), None) => {}
                    (None, _) => {
                        done[i] = None;
                        let reason = &layer.followers[i].infeasible;
                        self.infeasible[i] = self.infeasible[i].take().or_else(|| reason.clone());
                    }
                }
            }
        }
        for (steps, layers) in self.loads.iter_mut().zip(done) {
            steps.extend(layers);
        }
        self.steps += 1;
        if !is_validated(self.steps, self.planned, VALIDATIONS, &TARGETS) {
            return Ok(None);
        }
        let loss = self.trainer.validate(corpus)?;
        self.curve.push((self.steps, loss));
        Ok(Some(loss))
    }

    /// Why a step that failed is a result of its own: the driving policy does not fit, or training diverged.
    pub(crate) fn excuse(&self, failure: &Failure) -> Option<String> {
        let infeasible = |layer: &Arc<Mutex<LayerPlans>>| {
            let layer = layer.lock().unwrap_or_else(PoisonError::into_inner);
            layer.followers.first().and_then(|driver| driver.infeasible.clone())
        };
        let diverged = failure.to_string();
        let diverged = diverged.starts_with(crate::trainer::DIVERGED).then_some(diverged);
        self.layers.iter().find_map(infeasible).or(diverged)
    }

    /// What it leaves, one for each follower.
    pub(crate) fn into_runs(self) -> impl Iterator<Item = TrainedRun> {
        let Self { name, curve, followed, loads, infeasible, failed, .. } = self;
        followed.into_iter().zip(loads).zip(infeasible).map(move |(((policy, activations), loads), infeasible)| {
            let infeasible = failed.clone().or(infeasible);
            let (trajectory, curve) = (name.clone(), curve.clone());
            TrainedRun { policy, activations, trajectory, curve, loads, infeasible }
        })
    }

    /// Whether the validation loss has come down to `target`.
    pub(crate) fn reached(&self, target: f64) -> bool {
        self.curve.iter().any(|(_, loss)| *loss <= target)
    }

    /// The loss of the validation after exactly `step` steps.
    pub(crate) fn loss_at(&self, step: u64) -> Option<f64> {
        self.curve.iter().find(|(at, _)| *at == step).map(|(_, loss)| *loss)
    }
}
