//! What a policy settles on if the routing stays as it is.

use std::time::{Duration, Instant};

use lrmoe::plan::policy::{Input, Policy};
use lrmoe::plan::{Counts, Demand, Placement, Plan, Setup};
use lrmoe::{Error, Result};

/// Timed plans at least and at most, and the time after which no more are started.
const REPETITIONS: (usize, usize) = (5, 101);
const TIMING: Duration = Duration::from_millis(100);
/// How often a larger budget is tried where one does not do. A budget that would do for a plan changes the next plan at times.
const RAISES: usize = 8;

/// What every policy gets.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) setup: Setup,
    pub(crate) counts: Counts,
    pub(crate) demand: Demand,
    /// At least 1.
    pub(crate) steps: u64,
}

/// What a policy makes of it.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    pub(crate) plan: Plan,
    /// `None` where it fits.
    pub(crate) lacks: Option<Lack>,
    /// Median time of a plan in microseconds.
    pub(crate) micros: f64,
}

/// Why a policy does not fit. Its plan is then that of a budget with which it does; its memory shows the budget that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lack {
    /// Bytes beyond the budget.
    pub(crate) missing: u64,
    /// Bytes that would do.
    pub(crate) smallest: u64,
    /// The planner's message.
    pub(crate) reason: String,
}

/// The policy's plan within the budget, or with the smallest one that does.
///
/// # Errors
/// Whatever the policy fails with, but for lack of memory.
pub(crate) fn settle(policy: &dyn Policy, job: &Job) -> Result<Planned> {
    let mut setup = job.setup.clone();
    let asked = setup.cluster.budget();
    let mut reason = None;
    let mut raises = 0;
    loop {
        let error = match steady(policy, job, &setup) {
            Ok((mut plan, micros)) => {
                plan.memory.iter_mut().for_each(|memory| memory.budget = asked);
                let smallest = setup.cluster.budget();
                let lacks = reason.map(|reason| Lack { missing: smallest - asked, smallest, reason });
                return Ok(Planned { plan, lacks, micros });
            }
            Err(error) => error,
        };
        let Error::Infeasible { smallest, .. } = error else { return Err(error) };
        if smallest <= setup.cluster.budget() || raises == RAISES {
            return Err(error);
        }
        reason.get_or_insert_with(|| error.to_string());
        setup.cluster.bytes_per_rank = smallest;
        setup.cluster.host_reserved_bytes = 0;
        raises += 1;
    }
}

/// The last of the job's plans under this setup, and the median time that it takes.
fn steady(policy: &dyn Policy, job: &Job, setup: &Setup) -> Result<(Plan, f64)> {
    let mut placement = start(policy, job, setup)?;
    for step in 0..job.steps - 1 {
        placement = plan(policy, job, setup, &placement, step)?.next;
    }
    let last = || plan(policy, job, setup, &placement, job.steps - 1);
    let plan = last()?;
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < REPETITIONS.0 || (times.len() < REPETITIONS.1 && begin.elapsed() < TIMING) {
        let begin = Instant::now();
        std::hint::black_box(last()?);
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok((plan, times[times.len() / 2]))
}

/// The first placement: that of the budget asked for, if there is one. A policy may take more slots where there is more memory, and
/// would then never find the budget that does for those it has.
fn start(policy: &dyn Policy, job: &Job, setup: &Setup) -> Result<Placement> {
    match policy.start(&job.setup, &job.counts) {
        Err(Error::Infeasible { .. }) => policy.start(setup, &job.counts),
        other => other,
    }
}

fn plan(policy: &dyn Policy, job: &Job, setup: &Setup, placement: &Placement, step: u64) -> Result<Plan> {
    policy.plan(setup, &Input { step, counts: &job.counts, demand: Some(&job.demand), placement })
}
