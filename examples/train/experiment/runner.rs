//! One cell: a model, a balancing, a batch size and a seed under every policy, all runs step by step in turn.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use lrmoe::plan::policy::{Symi, by_name};
use lrmoe::plan::{Activations, Counts, Lrmoe, Policy, Setup};
use lrmoe::share::{PhaseFit, TimeModel};
use lrmoe::{LayerOptions, Selection};

use super::account;
use super::cell::{Cell, Key, NETWORKS, Protocol, TARGETS};
use super::clock::Clock;
use super::geometry::Geometry;
use super::options::{ONE_COPY, TOPQ};
use super::outputs::targets::{PLAIN, target_step};
use super::planner::Follower;
use super::trajectory::{Drive, Followed, Trajectory};
use crate::cli::Options;
use crate::corpus::Corpus;
use crate::failure::Failure;
use crate::moe::MoeSpec;
use crate::optim::ADAMW;
use crate::progress::Progress;
use crate::run::last_step;

/// What a cell needs.
pub(crate) struct Task<'a> {
    pub(crate) key: Key,
    pub(crate) protocol: Protocol,
    pub(crate) geometry: &'a Geometry,
    pub(crate) options: &'a Options,
    pub(crate) corpus: &'a Corpus,
}

impl Task<'_> {
    /// Runs the cell; `None` where `stop` was set before its end.
    pub(crate) fn run(&self, stop: &AtomicBool) -> Result<Option<Cell>, Failure> {
        let mut runs = self.trajectories()?;
        let mut clock = Clock::new(&self.geometry.small, self.key.seed)?;
        let (planned, every) = (self.options.steps, self.options.experiment.time_every);
        let mut progress = Progress::new("cell", planned);
        for run in &mut runs {
            run.begin(self.corpus)?;
        }
        let mut step = 0;
        loop {
            let goal = runs[0].loss_at(target_step(planned, TARGETS[TARGETS.len() - 1]));
            let short = |run: &Trajectory| goal.is_some_and(|goal| !run.reached(goal));
            let active = |run: &Trajectory| {
                run.steps < planned || (run.steps < last_step(planned) && run.name != PLAIN && short(run))
            };
            let goes_on: Vec<bool> = runs.iter().map(active).collect();
            if goes_on.iter().all(|goes_on| !goes_on) {
                break;
            }
            let mut validated = None;
            for (run, _) in runs.iter_mut().zip(&goes_on).filter(|(_, goes_on)| **goes_on) {
                let loss = run.step(self.corpus)?;
                validated = validated.or(loss);
            }
            if step % every == every / 2 {
                let layer = (step / every) as usize % self.options.layers;
                sample(&mut clock, &runs, &goes_on, (step, layer))?;
            }
            step += 1;
            match validated {
                Some(loss) => progress.validated(step, None, loss),
                None => progress.step(step, f64::NAN),
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
        progress.finish();
        self.cell(&runs, &clock).map(Some)
    }

    fn cell(&self, runs: &[Trajectory], clock: &Clock) -> Result<Cell, Failure> {
        let model = clock.model()?;
        let mut cell = Cell {
            key: self.key.clone(),
            protocol: self.protocol.clone(),
            machine: crate::report::machine(),
            runs: Vec::new(),
            fit: fit_errors(&model),
            timelines: Vec::new(),
        };
        for run in runs {
            for (i, (policy, activations)) in run.followed.iter().enumerate() {
                let activations = activations.name();
                let sampled = clock.sampled(policy, activations, &model);
                cell.runs.push(account::policy_run(run, i, &model, self.protocol.time_scale, sampled));
                // Its last sampled step.
                let every = self.options.experiment.time_every;
                let done = run.loads[i].len() as u64;
                let Some(step) = (0..done).rev().find(|step| step % every == every / 2) else { continue };
                let layer = (step / every) as usize % self.options.layers;
                let loads = &run.loads[i][step as usize][layer];
                cell.timelines.push(clock.timeline(policy, activations, (step, layer), loads));
            }
        }
        Ok(cell)
    }

    /// The plain run first, whose losses are the targets.
    fn trajectories(&self) -> Result<Vec<Trajectory>, Failure> {
        let modes = self.options.experiment.activations.modes();
        // The last mode drives: there retained pairs are free to move, so that capacities hold exactly.
        let driver_first: Vec<Activations> = modes.iter().rev().copied().collect();
        let names: Vec<&str> = self.options.experiment.policy.iter().collect();
        let own_run = ["symi-drop", "lrmoe", ONE_COPY, TOPQ];
        let mut plain = Vec::new();
        for name in names.iter().filter(|name| !own_run.contains(name)) {
            for &mode in modes {
                plain.push(self.followed(name, mode)?);
            }
        }
        let all = Drive { name: PLAIN.into(), select: Selection::All, driven: false };
        let mut runs = vec![self.trajectory(all, plain)?];
        for name in names.iter().filter(|name| own_run.contains(name) && **name != ONE_COPY) {
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
                "symi-drop" => Selection::All,
                TOPQ => Selection::TopQ,
                _ => self.options.select,
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
            let mut setups = Vec::with_capacity(NETWORKS.len());
            for factor in NETWORKS {
                setups.push(self.setup(activations, factor)?);
            }
            let setups: [Setup; 3] =
                setups.try_into().map_err(|_| Failure::run("as many setups as networks are needed"))?;
            let policy = self.policy(name, &setups[0])?;
            followers.push(Follower::new(policy, setups));
        }
        Ok(Followed { policy: name.into(), activations, followers })
    }

    fn policy(&self, name: &str, setup: &Setup) -> Result<Box<dyn Policy>, Failure> {
        Ok(match name {
            TOPQ => Box::new(Lrmoe::default()),
            ONE_COPY => Box::new(Lrmoe::new(Some(self.geometry.small.num_experts))),
            // The modes share a training run, so they need equally many slots: those that fit while activations are kept.
            "symi" | "symi-drop" => {
                let (ranks, experts) = (self.protocol.ranks, self.geometry.small.num_experts);
                let pairs = self.key.tokens * self.geometry.small.num_experts_per_tok;
                let even = Counts::from_flat(ranks, experts, vec![pairs.div_ceil(ranks * experts) as u32; ranks * experts])?;
                let mut most = setup.clone();
                most.activations = Some(Activations::Stash);
                let start = Symi::default().start(&most, &even)?;
                let slots: usize = start.slots().iter().map(|&slots| slots as usize).sum();
                Box::new(Symi { drop: name == "symi-drop", slots_per_rank: Some(slots / ranks), ..Symi::default() })
            }
            _ => by_name(name)?,
        })
    }

    /// What is planned for, on a network of `factor` times the speed.
    fn setup(&self, activations: Activations, factor: f64) -> Result<Setup, Failure> {
        let mut cluster = self.protocol.scaled.clone();
        cluster.intra.bytes_per_s *= factor;
        cluster.inter.bytes_per_s *= factor;
        let mut setup = Setup::new(self.geometry.small.clone(), cluster)?;
        setup.options = self.options.plan_options();
        setup.layers = self.options.layers;
        setup.activations = Some(activations);
        setup.counter_scale = self.protocol.counter_scale;
        Ok(setup)
    }
}

/// Of each phase that ran: predicted over measured seconds of all samples, and the median relative error of one.
fn fit_errors(model: &TimeModel) -> BTreeMap<String, [f64; 2]> {
    let of = |fit: &PhaseFit| {
        Some((fit.phase.name().to_owned(), [fit.predicted_over_measured?, fit.median_relative_error?]))
    };
    model.error().iter().filter_map(of).collect()
}

/// Executes every policy's shares of one step and layer, beginning with another one each time.
fn sample(
    clock: &mut Clock,
    runs: &[Trajectory],
    goes_on: &[bool],
    (step, layer): (u64, usize),
) -> Result<(), Failure> {
    let mut all = Vec::new();
    for (run, _) in runs.iter().zip(goes_on).filter(|(_, goes_on)| **goes_on) {
        for ((policy, activations), loads) in run.followed.iter().zip(&run.loads) {
            // A follower that stopped has no loads of this step.
            if let Some(layers) = loads.get(step as usize) {
                all.push((policy, activations, &layers[layer]));
            }
        }
    }
    let turn = if all.is_empty() { 0 } else { step as usize % all.len() };
    all.rotate_left(turn);
    for (policy, activations, loads) in all {
        clock.sample(policy, activations.name(), loads)?;
    }
    Ok(())
}
