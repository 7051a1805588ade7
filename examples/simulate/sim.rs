//! One policy over many steps of one layer.

use std::time::Instant;

use lrmoe::plan::policy::Input;
use lrmoe::plan::{Counts, Demand, Placement, Plan, Policy, RankMemory, Setup};
use lrmoe::{Error, Result};
use serde::Serialize;

/// A refused budget is raised to what the refused step needs, once; a second refusal of one step would contradict the first.
const RAISES_PER_STEP: usize = 1;

/// How a policy fared.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    /// Every step was planned.
    Ran(Box<Run>),
    /// A step did not fit the budget.
    Infeasible(Refusal),
}

/// The first step that did not fit, and what would.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Refusal {
    /// The first step without a plan, from 0.
    pub(crate) step: usize,
    /// Its error.
    pub(crate) reason: String,
    /// Bytes of a rank with which this step and all after it were planned.
    pub(crate) smallest_budget: u64,
}

/// Mean over the steps, and the worst of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Ratio {
    pub(crate) mean: f64,
    pub(crate) worst: f64,
}

/// Totals over all steps. Times are the plans' predictions times `extra_steps`; bytes that cross nodes likewise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Run {
    pub(crate) steps: usize,
    /// Steps to the same loss, over those of plain training.
    pub(crate) extra_steps: f64,
    pub(crate) seconds: f64,
    pub(crate) forward_s: f64,
    pub(crate) backward_s: f64,
    pub(crate) exchange_s: f64,
    pub(crate) optimizer_exchange_s: f64,
    /// Pairs of the busiest rank over the mean.
    pub(crate) max_over_mean_forward: Ratio,
    pub(crate) max_over_mean_backward: Ratio,
    pub(crate) inter_node_token_bytes: f64,
    pub(crate) inter_node_optimizer_bytes: f64,
    /// Of the fullest rank in the fullest step.
    pub(crate) peak_bytes: u64,
    /// weights + replicas + token_buffers + stash + exchange + scratch, of the rank and step where this sum is largest.
    pub(crate) subtotal_bytes: u64,
    pub(crate) pairs: u64,
    pub(crate) retained_pairs: u64,
    pub(crate) dropped_pairs: u64,
    /// Most waves of any step.
    pub(crate) waves_forward: u64,
    pub(crate) waves_backward: u64,
    /// Most instances of any step's placement.
    pub(crate) instances: usize,
    /// Steps that ended with another placement than they began with.
    pub(crate) placement_changes: usize,
    /// Steps whose forward kept only what recomputation needs.
    pub(crate) recompute_steps: usize,
    /// The plans' hashes, folded; hexadecimal, since JSON readers round long numbers.
    pub(crate) hash: String,
    /// Wall time of a plan; the only number here that is measured, and no part of `seconds`.
    pub(crate) median_plan_micros: f64,
    /// Only with `--series`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) series: Option<Vec<Step>>,
}

/// One step. The time has no `extra_steps` in it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Step {
    pub(crate) seconds: f64,
    pub(crate) max_over_mean_forward: f64,
    pub(crate) max_over_mean_backward: f64,
    pub(crate) inter_node_bytes: f64,
    pub(crate) peak_bytes: u64,
    pub(crate) subtotal_bytes: u64,
    pub(crate) instances: usize,
}

/// Plans every step on the placement that the step before chose. What a policy knows of the routing beyond the step itself is
/// the smoothed load of earlier steps, so none sees the future.
///
/// # Errors
/// Whatever the policy refuses but [`Error::Infeasible`], which is an outcome; [`Error::Argument`] without steps.
pub(crate) fn simulate(setup: &Setup, policy: &dyn Policy, steps: &[Counts], extra_steps: f64) -> Result<Outcome> {
    let Some(first) = steps.first() else {
        return Err(Error::argument("steps", 0, "at least one"));
    };
    let mut setup = setup.clone();
    let mut refusal: Option<Refusal> = None;
    let mut tally = Tally::new(extra_steps);
    let mut placement = within(&mut setup, 0, &mut refusal, |setup| policy.start(setup, first))?;
    let mut demand: Option<Demand> = None;
    for (step, counts) in steps.iter().enumerate() {
        let plan = within(&mut setup, step, &mut refusal, |setup| {
            let input = Input { step: step as u64, counts, demand: demand.as_ref(), placement: &placement };
            let begun = Instant::now();
            let plan = policy.plan(setup, &input)?;
            Ok((plan, begun.elapsed().as_secs_f64()))
        })?;
        let (plan, took_s) = plan;
        tally.add(&plan, &placement, took_s);
        let seen = Demand::uniform(counts.per_expert());
        demand = Some(match &demand {
            Some(before) => Demand::smooth(before, &seen, setup.options.smoothing)?,
            None => seen,
        });
        placement = plan.next;
    }
    Ok(match refusal {
        Some(refusal) => Outcome::Infeasible(Refusal { smallest_budget: setup.cluster.budget(), ..refusal }),
        None => Outcome::Ran(Box::new(tally.finish())),
    })
}

/// Runs `attempt`; where the budget refuses it, notes the refusal and tries again with the budget that would do, so that the report
/// names one for all steps.
fn within<T>(
    setup: &mut Setup,
    step: usize,
    refusal: &mut Option<Refusal>,
    attempt: impl Fn(&Setup) -> Result<T>,
) -> Result<T> {
    let mut raises = 0;
    loop {
        match attempt(setup) {
            Err(error @ Error::Infeasible { smallest, .. }) if raises < RAISES_PER_STEP => {
                refusal.get_or_insert_with(|| Refusal { step, reason: error.to_string(), smallest_budget: smallest });
                setup.cluster.bytes_per_rank = smallest.saturating_add(setup.cluster.host_reserved_bytes);
                raises += 1;
            }
            other => return other,
        }
    }
}

/// Sums so far.
#[derive(Debug)]
struct Tally {
    extra_steps: f64,
    /// Forward, backward, exchange, optimizer exchange.
    times: [f64; 4],
    token_bytes: f64,
    optimizer_bytes: f64,
    pairs: [u64; 3],
    waves: [u64; 2],
    placement_changes: usize,
    recompute_steps: usize,
    hash: u64,
    took_s: Vec<f64>,
    series: Vec<Step>,
}

impl Tally {
    fn new(extra_steps: f64) -> Self {
        Self {
            extra_steps,
            times: [0.0; 4],
            token_bytes: 0.0,
            optimizer_bytes: 0.0,
            pairs: [0; 3],
            waves: [0; 2],
            placement_changes: 0,
            recompute_steps: 0,
            hash: 0,
            took_s: Vec::new(),
            series: Vec::new(),
        }
    }

    fn add(&mut self, plan: &Plan, before: &Placement, took_s: f64) {
        let p = &plan.predicted;
        let times = [p.forward_s, p.backward_s, p.exchange_s, p.optimizer_exchange_s];
        self.times.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
        self.token_bytes += p.exchange_bytes_inter_node;
        self.optimizer_bytes += p.optimizer_bytes_inter_node;
        let dropped = plan.dropped.as_ref().map_or(0, Counts::total);
        let pairs = [plan.retained.pairs() + dropped, plan.retained.retained(), dropped];
        self.pairs.iter_mut().zip(pairs).for_each(|(sum, n)| *sum += n);
        let waves = [p.waves_forward, p.waves_backward];
        self.waves.iter_mut().zip(waves).for_each(|(most, n)| *most = n.max(*most));
        self.placement_changes += usize::from(plan.next != *before);
        self.recompute_steps += usize::from(plan.activations == lrmoe::plan::Activations::Recompute);
        self.hash = self.hash.rotate_left(5) ^ plan.hash();
        self.took_s.push(took_s);
        self.series.push(Step {
            seconds: p.total_s(),
            max_over_mean_forward: p.max_over_mean_forward,
            max_over_mean_backward: p.max_over_mean_backward,
            inter_node_bytes: p.bytes_inter_node(),
            peak_bytes: plan.memory.iter().map(RankMemory::total).max().unwrap_or(0),
            subtotal_bytes: plan.memory.iter().map(RankMemory::subtotal).max().unwrap_or(0),
            instances: plan.placement.instances(),
        });
    }

    fn finish(self) -> Run {
        let by = self.extra_steps;
        let [forward_s, backward_s, exchange_s, optimizer_exchange_s] = self.times.map(|time| time * by);
        let [pairs, retained_pairs, dropped_pairs] = self.pairs;
        let series = &self.series;
        Run {
            steps: series.len(),
            extra_steps: by,
            seconds: by * series.iter().map(|step| step.seconds).sum::<f64>(),
            forward_s,
            backward_s,
            exchange_s,
            optimizer_exchange_s,
            max_over_mean_forward: ratio(series.iter().map(|step| step.max_over_mean_forward)),
            max_over_mean_backward: ratio(series.iter().map(|step| step.max_over_mean_backward)),
            inter_node_token_bytes: by * self.token_bytes,
            inter_node_optimizer_bytes: by * self.optimizer_bytes,
            peak_bytes: series.iter().map(|step| step.peak_bytes).max().unwrap_or(0),
            subtotal_bytes: series.iter().map(|step| step.subtotal_bytes).max().unwrap_or(0),
            pairs,
            retained_pairs,
            dropped_pairs,
            waves_forward: self.waves[0],
            waves_backward: self.waves[1],
            instances: series.iter().map(|step| step.instances).max().unwrap_or(0),
            placement_changes: self.placement_changes,
            recompute_steps: self.recompute_steps,
            hash: format!("{:016x}", self.hash),
            median_plan_micros: 1e6 * median(self.took_s),
            series: Some(self.series),
        }
    }
}

fn ratio(values: impl Iterator<Item = f64> + Clone) -> Ratio {
    let n = values.clone().count().max(1);
    Ratio { mean: values.clone().sum::<f64>() / n as f64, worst: values.fold(0.0, f64::max) }
}

/// The middle value, of an even number the mean of the two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => 0.0,
        _ if n.is_multiple_of(2) => f64::midpoint(values[n / 2 - 1], values[n / 2]),
        _ => values[n / 2],
    }
}
