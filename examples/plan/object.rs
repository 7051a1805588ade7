//! The plans in JSON.

use lrmoe::plan::route::Route;
use lrmoe::plan::{Placement, Predicted, RankMemory};
use lrmoe::{Error, Result};
use serde::Serialize;

use crate::settle::Planned;

/// One policy; fields as in the documentation of the example.
#[derive(Serialize)]
struct Object<'a> {
    policy: &'a str,
    feasible: bool,
    instances: Vec<[usize; 2]>,
    quotas: &'a [u32],
    forward: Vec<[u32; 4]>,
    backward: Vec<[u32; 4]>,
    capacity: Vec<[usize; 3]>,
    wave_rows: u64,
    memory: Vec<Memory>,
    limits: Vec<&'static str>,
    predicted: &'a Predicted,
    plan_micros: f64,
    hash: String,
    dropped: Vec<[usize; 3]>,
    activations: &'static str,
    ownership: &'static str,
    next: Vec<[usize; 2]>,
    missing: Option<u64>,
    smallest_budget: Option<u64>,
    reason: Option<&'a str>,
}

#[derive(Serialize)]
struct Memory {
    rank: usize,
    weights: u64,
    gradients: u64,
    replicas: u64,
    optimizer: u64,
    token_buffers: u64,
    stash: u64,
    exchange: u64,
    scratch: u64,
    total: u64,
    used: u64,
    budget: u64,
}

/// A list with one policy a line.
///
/// # Errors
/// [`Error::Input`] for what JSON has no number for.
pub(crate) fn list(planned: &[Planned]) -> Result<String> {
    let line = |planned| {
        serde_json::to_string(&Object::new(planned))
            .map_err(|e| Error::Input { what: "a plan".into(), reason: format!("cannot be written as JSON: {e}") })
    };
    let lines: Vec<String> = planned.iter().map(line).collect::<Result<_>>()?;
    Ok(format!("[\n{}\n]", lines.join(",\n")))
}

impl<'a> Object<'a> {
    fn new(planned: &'a Planned) -> Self {
        let Planned { plan, lacks, micros } = planned;
        let capacity = plan.placement.iter().zip(&plan.capacity);
        let dropped = plan.dropped.iter().flat_map(|dropped| {
            let cells = (0..dropped.experts()).flat_map(|e| (0..dropped.ranks()).map(move |from| [e, from]));
            cells.map(|[e, from]| [e, from, dropped.get(from, e) as usize]).filter(|[.., pairs]| *pairs > 0)
        });
        Self {
            policy: &plan.policy,
            feasible: lacks.is_none(),
            instances: instances(&plan.placement),
            quotas: &plan.retained.quotas,
            forward: routes(&plan.forward),
            backward: routes(&plan.backward),
            capacity: capacity.map(|((expert, rank), &pairs)| [expert, rank, pairs as usize]).collect(),
            wave_rows: plan.wave_rows,
            memory: plan.memory.iter().enumerate().map(|(rank, memory)| Memory::new(rank, memory)).collect(),
            limits: plan.retained.limits.iter().map(|limit| limit.name()).collect(),
            predicted: &plan.predicted,
            plan_micros: *micros,
            hash: format!("{:016x}", plan.hash()),
            dropped: dropped.collect(),
            activations: plan.activations.name(),
            ownership: plan.placement.ownership().name(),
            next: instances(&plan.next),
            missing: lacks.as_ref().map(|lack| lack.missing),
            smallest_budget: lacks.as_ref().map(|lack| lack.smallest),
            reason: lacks.as_ref().map(|lack| lack.reason.as_str()),
        }
    }
}

impl Memory {
    fn new(rank: usize, memory: &RankMemory) -> Self {
        // In the order of `Category::ALL`.
        let [weights, gradients, replicas, optimizer, token_buffers, stash, exchange, scratch] = memory.reserved;
        let (total, used, budget) = (memory.total(), memory.used_total(), memory.budget);
        Self {
            rank,
            weights,
            gradients,
            replicas,
            optimizer,
            token_buffers,
            stash,
            exchange,
            scratch,
            total,
            used,
            budget,
        }
    }
}

fn instances(placement: &Placement) -> Vec<[usize; 2]> {
    placement.iter().map(|(expert, rank)| [expert, rank]).collect()
}

fn routes(routes: &[Route]) -> Vec<[u32; 4]> {
    routes.iter().map(|route| [route.expert, route.from, route.to, route.pairs]).collect()
}
