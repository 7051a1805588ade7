//! One cell: a model, a balancing, a batch size and a seed under every policy, all runs step by step in turn.

use std::sync::atomic::{AtomicBool, Ordering};

use lrmoe::plan::policy::{Eplb, Llep, Symi, by_name};
use lrmoe::plan::{Activations, Lrmoe, Policy};
use lrmoe::{LayerOptions, Selection};

use super::cell::{Key, Protocol, TARGETS};
use super::geometry::Geometry;
use super::options::{ONE_COPY, TOPQ};
use super::outputs::targets::PLAIN;
use super::planner::Follower;
use super::trained::Trained;
use super::trajectory::{Drive, Followed, Trajectory};
use crate::cli::Options;
use crate::corpus::Corpus;
use crate::failure::Failure;
use crate::moe::MoeSpec;
use crate::optim::ADAMW;
use crate::progress::Progress;
use crate::run::{last_step, target_step};

/// What a cell needs.
pub(crate) struct Task<'a> {
    pub(crate) key: Key,
    pub(crate) protocol: Protocol,
    pub(crate) geometry: &'a Geometry,
    pub(crate) options: &'a Options,
    pub(crate) corpus: &'a Corpus,
}

impl Task<'_> {
    /// Trains the cell; `None` where `stop` was set before its end.
    pub(crate) fn run(&self, stop: &AtomicBool) -> Result<Option<Trained>, Failure> {
        let mut runs = self.trajectories()?;
        let planned = self.options.steps;
        let mut progress = Progress::new("cell", planned);
        for run in &mut runs {
            run.begin(self.corpus)?;
        }
        for done in 1.. {
            let goal = runs[0].loss_at(target_step(planned, TARGETS[TARGETS.len() - 1]));
            let short = |run: &Trajectory| goal.is_some_and(|goal| !run.reached(goal));
            let goes_on = |run: &&mut Trajectory| {
                let ended = run.failed.is_some() || run.steps >= last_step(planned);
                !ended && (run.steps < planned || (run.name != PLAIN && short(run)))
            };
            let mut stepped = false;
            let mut validated = None;
            for run in runs.iter_mut().filter(goes_on) {
                match run.step(self.corpus) {
                    Ok(loss) => validated = validated.or(loss),
                    // Without the plain run there are no targets.
                    Err(failure) => match run.excuse(&failure).filter(|_| run.name != PLAIN) {
                        Some(reason) => run.failed = Some(reason),
                        None => return Err(failure),
                    },
                }
                stepped = true;
            }
            if !stepped {
                break;
            }
            match validated {
                Some(loss) => progress.validated(done, None, loss),
                None => progress.step(done, f64::NAN),
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
        progress.finish();
        let (key, protocol, plain) = (self.key.clone(), self.protocol.clone(), runs[0].curve.clone());
        Ok(Some(Trained { key, protocol, plain, runs: runs.into_iter().flat_map(Trajectory::into_runs).collect() }))
    }

    /// The plain run first, whose losses are the targets.
    fn trajectories(&self) -> Result<Vec<Trajectory>, Failure> {
        let modes = self.options.experiment.activations.modes();
        // The last mode drives: there retained pairs are free to move, so that capacities hold exactly.
        let driver_first: Vec<Activations> = modes.iter().rev().copied().collect();
        let names: Vec<&str> = self.options.experiment.policy.iter().collect();
        let has_own_run =
            |name: &&&str| [TOPQ, ONE_COPY, "lrmoe"].contains(*name) || name.split(':').next() == Some("symi-drop");
        let mut plain = Vec::new();
        for name in names.iter().filter(|name| !has_own_run(name)) {
            for &mode in modes {
                plain.push(self.followed(name, mode)?);
            }
        }
        let all = Drive { name: PLAIN.into(), select: Selection::All, driven: false };
        let mut runs = vec![self.trajectory(all, plain)?];
        for name in names.iter().filter(|name| has_own_run(name) && **name != ONE_COPY) {
            let mut followed = Vec::new();
            for &mode in &driver_first {
                followed.push(self.followed(name, mode)?);
            }
            if *name == "lrmoe" && names.contains(&ONE_COPY) {
                for &mode in modes {
                    followed.push(self.followed(ONE_COPY, mode)?);
                }
            }
            let select = match *name {
                "lrmoe" => self.options.select,
                TOPQ => Selection::TopQ,
                _ => Selection::All,
            };
            runs.push(self.trajectory(Drive { name: (*name).into(), select, driven: true }, followed)?);
        }
        Ok(runs)
    }

    fn trajectory(&self, drive: Drive, followed: Vec<Followed>) -> Result<Trajectory, Failure> {
        let spec = MoeSpec {
            layer: 0,
            config: self.geometry.small.clone(),
            options: LayerOptions { aux_loss_coef: self.geometry.aux_coef, ..LayerOptions::default() },
            bias_step: self.geometry.bias_step,
            seed: self.key.seed,
            adamw: ADAMW,
        };
        let sizes = (self.protocol.ranks, self.key.tokens / crate::corpus::CONTEXT);
        Trajectory::new(drive, followed, &spec, sizes, self.options)
    }

    fn followed(&self, name: &str, activations: Activations) -> Result<Followed, Failure> {
        let mut followers = Vec::with_capacity(self.options.layers);
        for _ in 0..self.options.layers {
            let plan = self.options.plan_options();
            let setups = self.geometry.setups(&self.protocol, plan, activations)?;
            let real = self.geometry.real(&self.protocol, plan, activations)?;
            followers.push(Follower::new(self.policy(name)?, setups, real));
        }
        Ok(Followed { policy: name.into(), activations, followers })
    }

    fn policy(&self, name: &str) -> Result<Box<dyn Policy>, Failure> {
        let Protocol { symi_slots, eplb_slots, token_scale, .. } = self.protocol;
        let (name, given) = match name.split_once(':') {
            Some((name, slots)) => {
                let bad = || Failure::usage(format!("--policy: {name}:{slots} does not end in a number of slots"));
                (name, Some(slots.parse::<usize>().map_err(|_| bad())?))
            }
            None => (name, None),
        };
        let (ranks, experts) = (self.protocol.ranks, self.geometry.small.num_experts);
        if let Some(slots) = given.filter(|&slots| slots.saturating_mul(ranks) < experts) {
            let least = experts.div_ceil(ranks);
            return Err(Failure::usage(format!(
                "--policy {name}:{slots}; allowed: {least} or more slots for {experts} experts on {ranks} ranks"
            )));
        }
        let slots = |usual: usize| Some(given.unwrap_or(usual));
        // What counts pairs is scaled as tokens are.
        let min_chunk = (f64::from(Llep::default().min_chunk) * token_scale).round().max(1.0) as u32;
        Ok(match name {
            TOPQ => Box::new(Lrmoe::default()),
            ONE_COPY => Box::new(Lrmoe::new(Some(self.geometry.small.num_experts))),
            "symi" | "symi-drop" => {
                Box::new(Symi { drop: name == "symi-drop", slots_per_rank: slots(symi_slots), ..Symi::default() })
            }
            "eplb" | "eplb-hierarchical" => Box::new(Eplb {
                hierarchical: name == "eplb-hierarchical",
                slots_per_rank: slots(eplb_slots),
                ..Eplb::default()
            }),
            "llep" => Box::new(Llep { min_chunk, ..Llep::default() }),
            _ => by_name(name)?,
        })
    }
}
