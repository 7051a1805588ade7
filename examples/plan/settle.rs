//! What a policy settles on if the routing stays as it is.

use std::time::{Duration, Instant};

use lrmoe::plan::policy::{Input, Policy};
use lrmoe::plan::{Counts, Demand, Placement, Plan, Setup};
use lrmoe::{Error, Result};

/// Timed plans at least and at most, and the time after which no more are started.
const REPETITIONS: (usize, usize) = (5, 101);
const TIMING: Duration = Duration::from_millis(100);
/// How often a larger budget is tried where one does not do: a plan with more memory may take more.
const RAISES: usize = 8;
/// More than any plan takes, without overflow in sums.
const UNLIMITED: u64 = u64::MAX / 2;

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

/// Why a policy does not fit. Its plan is then the one with all the memory it could use; the budget in it is the one asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lack {
    /// Bytes beyond the budget.
    pub(crate) missing: u64,
    /// Bytes that would do, for all steps of the job.
    pub(crate) smallest: u64,
    /// The planner's message.
    pub(crate) reason: String,
}

/// The policy's plan within the budget or, where it does not fit, without one.
///
/// # Errors
/// Whatever the policy fails with, but for lack of memory.
pub(crate) fn settle(policy: &dyn Policy, job: &Job) -> Result<Planned> {
    let error = match steady(policy, job, &job.setup) {
        Ok(placement) => return timed(policy, job, &job.setup, &placement, None),
        Err(error @ Error::Infeasible { .. }) => error,
        Err(error) => return Err(error),
    };
    let reason = error.to_string();
    let smallest = smallest(policy, job, error)?;
    let asked = job.setup.cluster.budget();
    let lack = Lack { missing: smallest.saturating_sub(asked), smallest, reason };
    let unlimited = with_budget(&job.setup, UNLIMITED);
    let placement = steady(policy, job, &unlimited)?;
    let mut planned = timed(policy, job, &unlimited, &placement, Some(lack))?;
    planned.plan.memory.iter_mut().for_each(|memory| memory.budget = asked);
    Ok(planned)
}

/// The budget with which all steps do, by way of what each refusal asks for.
fn smallest(policy: &dyn Policy, job: &Job, mut error: Error) -> Result<u64> {
    for _ in 0..RAISES {
        let Error::Infeasible { smallest, .. } = error else { return Err(error) };
        match steady(policy, job, &with_budget(&job.setup, smallest)) {
            Ok(_) => return Ok(smallest),
            Err(refused) => error = refused,
        }
    }
    Err(error)
}

fn with_budget(setup: &Setup, bytes: u64) -> Setup {
    let mut setup = setup.clone();
    (setup.cluster.bytes_per_rank, setup.cluster.host_reserved_bytes) = (bytes, 0);
    setup
}

/// The placement that the job's last plan is made on. That plan is made too, so that a lack of memory shows.
fn steady(policy: &dyn Policy, job: &Job, setup: &Setup) -> Result<Placement> {
    let mut placement = start(policy, job, setup)?;
    for step in 0..job.steps - 1 {
        placement = plan(policy, job, setup, &placement, step)?.next;
    }
    plan(policy, job, setup, &placement, job.steps - 1)?;
    Ok(placement)
}

/// The last plan, with the median time that it takes.
fn timed(policy: &dyn Policy, job: &Job, setup: &Setup, placement: &Placement, lacks: Option<Lack>) -> Result<Planned> {
    let last = || plan(policy, job, setup, placement, job.steps - 1);
    let plan = last()?;
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < REPETITIONS.0 || (times.len() < REPETITIONS.1 && begin.elapsed() < TIMING) {
        let begin = Instant::now();
        std::hint::black_box(last()?);
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(Planned { plan, lacks, micros: times[times.len() / 2] })
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
