//! From what the ranks did to what it took.

use std::collections::BTreeMap;
use std::convert::Infallible;

use lrmoe::memory::Category;
use lrmoe::plan::RankMemory;
use lrmoe::share::{Phase, PhaseFit, PhaseTimes, TimeModel};

use super::cell::{Cell, Cost, Memory, Point, PolicyRun};
use super::loads::Loads;
use super::timing::Timing;
use super::trained::{Trained, TrainedRun};

/// What prices a step.
#[derive(Debug, Clone)]
pub(crate) struct Prices<'a> {
    pub(crate) model: &'a TimeModel,
    /// Seconds of this machine for each second of the one that plans were made for: all modelled times are in the latter.
    pub(crate) seconds: f64,
    /// Seconds of planning a layer in the steps of a cycle.
    pub(crate) plans: Vec<f64>,
}

/// Adds one step of one layer: each phase lasts as long as its busiest rank.
pub(crate) fn add_step(cost: &mut Cost, step: usize, loads: &Loads, prices: &Prices<'_>) {
    let (busiest, mean) = phases(&fitted(loads, prices.model));
    for phase in Phase::ALL {
        *cost.phases.entry(phase.name().into()).or_default() += busiest[phase];
        *cost.mean.entry(phase.name().into()).or_default() += mean[phase];
    }
    for network in 0..cost.exchange_s.len() {
        cost.exchange_s[network] += loads.exchange_s[network] * prices.seconds;
        cost.optimizer_exchange_s[network] += loads.optimizer_exchange_s[network] * prices.seconds;
    }
    cost.plan_s += prices.plans[step % prices.plans.len()];
}

/// `[R]` what the fit says that each rank takes.
pub(crate) fn fitted(loads: &Loads, model: &TimeModel) -> Vec<PhaseTimes> {
    let Ok(times) = loads.times(|share| Ok::<_, Infallible>(model.predict(share)));
    times
}

/// Of each phase, the busiest rank's seconds and those of the mean rank.
pub(crate) fn phases(ranks: &[PhaseTimes]) -> (PhaseTimes, PhaseTimes) {
    let busiest = |phase| ranks.iter().map(|times| times[phase]).fold(0.0, f64::max);
    let mean = |phase| ranks.iter().map(|times| times[phase]).sum::<f64>() / ranks.len().max(1) as f64;
    (PhaseTimes::from_fn(busiest), PhaseTimes::from_fn(mean))
}

/// A trained cell with its times; without any where no policy came to its end.
pub(crate) fn cell(trained: &Trained, timing: Option<&Timing>) -> lrmoe::Result<Cell> {
    let seconds = timing.map_or(1.0, |timing| timing.seconds);
    let fit = |fit: &PhaseFit| {
        Some((fit.phase.name().to_owned(), [fit.predicted_over_measured?, fit.median_relative_error?]))
    };
    let mut protocol = trained.protocol.clone();
    protocol.time_scale *= seconds;
    protocol.scaled = protocol.scaled.scaled_to(protocol.scaled.gemm_flops / seconds)?;
    let run = |run: &TrainedRun| {
        let plans = plan_seconds(run).map(|plan_s| plan_s * protocol.time_scale).collect();
        let prices = timing.map(|timing| Prices { model: &timing.model, seconds, plans });
        let sampled = timing.map(|timing| timing.sampled(&trained.key, &run.policy, run.activations));
        PolicyRun { sampled: sampled.unwrap_or_default(), ..policy_run(run, prices.as_ref()) }
    };
    let runs = trained.runs.iter().map(run).collect();
    Ok(Cell {
        key: trained.key.clone(),
        machine: timing.map_or(serde_json::Value::Null, |timing| timing.machine.clone()),
        plain: trained.plain.clone(),
        fit: timing.into_iter().flat_map(|timing| timing.model.error()).filter_map(fit).collect(),
        timelines: timing
            .into_iter()
            .flat_map(|timing| &timing.timelines)
            .filter(|(key, _)| *key == trained.key)
            .map(|(_, timeline)| timeline.clone())
            .collect(),
        runs,
        protocol,
    })
}

/// Steps after which what a plan takes repeats: policies look further every eighth step, or every tenth.
const PLAN_CYCLE: usize = 40;

/// `[PLAN_CYCLE]` seconds of planning one layer in such a step: the median over layers and cycles, which stalls of a shared machine do
/// not move.
fn plan_seconds(run: &TrainedRun) -> impl Iterator<Item = f64> {
    (0..PLAN_CYCLE).map(|at| {
        let mut times: Vec<f64> =
            run.loads.iter().skip(at).step_by(PLAN_CYCLE).flatten().map(|loads| loads.plan_s).collect();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or(0.0)
    })
}

/// One policy's costs at every validation, and its means and peaks.
fn policy_run(run: &TrainedRun, prices: Option<&Prices<'_>>) -> PolicyRun {
    let prices = prices.filter(|_| run.infeasible.is_none());
    let steps = if prices.is_some() { &run.loads[..] } else { &[] };
    let mut cost = Cost::default();
    let mut done = 0;
    let mut curve = Vec::new();
    if let Some(prices) = prices {
        for &(step, val_loss) in &run.curve {
            for layers in &steps[done..step as usize] {
                layers.iter().for_each(|loads| add_step(&mut cost, done, loads, prices));
                done += 1;
            }
            curve.push(Point { step, val_loss, cost: cost.clone() });
        }
    }
    let all = || steps.iter().flatten();
    let count = all().count().max(1) as f64;
    let mean = |value: fn(&Loads) -> f64| all().map(value).sum::<f64>() / count;
    let memory = |model: usize| {
        let peak = all().map(|loads| loads.memory[model].peak).max_by_key(RankMemory::total);
        let by_category = |peak: RankMemory| -> BTreeMap<String, u64> {
            Category::ALL.iter().map(|&category| (category.to_string(), peak.reserved[category as usize])).collect()
        };
        Memory {
            peak_bytes: peak.map(by_category).unwrap_or_default(),
            subtotal_bytes: all().map(|loads| loads.memory[model].subtotal_bytes).max().unwrap_or(0),
        }
    };
    PolicyRun {
        policy: run.policy.clone(),
        activations: run.activations.name().into(),
        trajectory: run.trajectory.clone(),
        steps: steps.len() as u64,
        curve,
        routed_pairs: all().map(|loads| loads.routed).sum(),
        backward_pairs: all().map(|loads| loads.retained).sum(),
        dropped_pairs: all().map(|loads| loads.dropped).sum(),
        busiest_over_mean_forward: mean(|loads| loads.busiest_over_mean[0]),
        busiest_over_mean_backward: mean(|loads| loads.busiest_over_mean[1]),
        replicas_mean: mean(|loads| loads.replicas as f64),
        bytes_inter_node: all().map(|loads| loads.bytes_inter_node).sum(),
        waves: all().flat_map(|loads| loads.waves).max().unwrap_or(0),
        memory: memory(0),
        real_memory: memory(1),
        sampled: super::cell::Sampled::default(),
        infeasible: run.infeasible.clone(),
    }
}
