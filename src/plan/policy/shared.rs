//! What the rival policies share: checks, even splits, slots, homes, and a backward that keeps every pair.

use super::{Decision, Input};
use crate::plan::apportion::apportion;
use crate::plan::buffers::RankLoad;
use crate::plan::counts::Counts;
use crate::plan::evaluate::allowed;
use crate::plan::memory::MemoryModel;
use crate::plan::mode::Ownership;
use crate::plan::options::PlanOptions;
use crate::plan::placement::Placement;
use crate::plan::retained::{RetentionPlan, plan_one_rank};
use crate::plan::retention::Retention;
use crate::plan::setup::Setup;
use crate::{Error, Result};

/// Refuses an input of another cluster or layer than the setup's.
pub(super) fn check(setup: &Setup, input: &Input<'_>) -> Result<()> {
    setup.validate()?;
    let (ranks, experts) = (setup.cluster.ranks, setup.config.num_experts);
    input.counts.check(ranks, experts)?;
    input.placement.check("placement", ranks, experts)?;
    match input.demand {
        Some(demand) if demand.experts() != experts => {
            Err(Error::shape("demand", demand.experts(), format!("{experts} experts")))
        }
        _ => Ok(()),
    }
}

/// Runs of experts, one instance each, owned as the setup says or else at home.
pub(super) fn contiguous(setup: &Setup, counts: &Counts) -> Result<Placement> {
    let (ranks, experts) = (setup.cluster.ranks, setup.config.num_experts);
    counts.check(ranks, experts)?;
    Placement::contiguous(experts, ranks, setup.ownership.unwrap_or(Ownership::Home))
}

/// The ranks of each of `experts` experts, ascending, from the experts of each rank.
pub(super) fn hosts_of(experts: usize, held: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut hosts = vec![Vec::new(); experts];
    for (rank, held) in (0_u32..).zip(held) {
        held.iter().for_each(|&e| hosts[e as usize].push(rank));
    }
    hosts
}

/// Every pair computed in forward and back-propagated where its forward ran, in one wave, as the published systems do.
pub(super) fn keep_all(
    setup: &Setup,
    counts: &[u32],
    placement: Placement,
    forward: Vec<u32>,
    next: Placement,
) -> Result<Decision> {
    let options = PlanOptions { retention: Retention::Fraction(1.0), ..setup.options };
    let retained: RetentionPlan = plan_one_rank(counts, None, &options)?;
    Ok(Decision {
        retained,
        dropped: None,
        placement,
        backward: forward.clone(),
        forward,
        activations: setup.activations,
        waves: false,
        next,
        next_s: None,
    })
}

/// `[instances]` pairs of each instance where every expert's pairs are spread evenly over its slots.
pub(super) fn even_split(placement: &Placement, pairs: &[u32]) -> Vec<u32> {
    let mut parts = vec![0; placement.instances()];
    for (e, &n) in pairs.iter().enumerate() {
        let range = placement.range(e);
        apportion(n, &placement.slots()[range.clone()], &mut parts[range]);
    }
    parts
}

/// Slots of the whole cluster when training starts: R times the expert slots of a rank.
///
/// Unless asked for, a rank has the most of `2 ceil(E / R)` slots with which it could still compute twice its mean of the first step's
/// pairs within the budget and be home to a quarter more experts than its part, and never less than the `ceil(E / R)` that the experts take.
pub(super) fn start_slots(
    setup: &Setup,
    counts: &Counts,
    ownership: Ownership,
    slots_per_rank: Option<usize>,
) -> Result<usize> {
    setup.validate()?;
    let (ranks, experts) = (setup.cluster.ranks, setup.config.num_experts);
    counts.check(ranks, experts)?;
    let least = experts.div_ceil(ranks);
    let slots_per_rank = match slots_per_rank {
        Some(slots) => slots,
        None => {
            let mut most = 2 * least;
            while most > least && !slots_fit(setup, counts, ownership, most)? {
                most -= 1;
            }
            most
        }
    };
    match slots_per_rank.checked_mul(ranks).filter(|&slots| u32::try_from(slots).is_ok()) {
        Some(slots) if slots >= experts => Ok(slots),
        _ => {
            let allowed = format!("{least} or more, so that {ranks} ranks hold {experts} experts, and 2^32 - 1 in all");
            Err(Error::argument("slots_per_rank", slots_per_rank, allowed))
        }
    }
}

/// Whether a rank with so many slots fits twice its mean of the pairs, all kept, and is home to a quarter more experts than its part.
fn slots_fit(setup: &Setup, counts: &Counts, ownership: Ownership, slots: usize) -> Result<bool> {
    let (ranks, experts) = (setup.cluster.ranks as u64, setup.config.num_experts as u64);
    let setup =
        Setup { options: PlanOptions { retention: Retention::Fraction(1.0), ..setup.options }, ..setup.clone() };
    let source = counts.per_rank().iter().copied().max().unwrap_or(0);
    let rows = (2 * counts.total()).div_ceil(ranks);
    let held = (slots as u64).min(experts);
    let owned = (5 * experts.div_ceil(ranks)).div_ceil(4).min(held);
    let load = RankLoad {
        tokens: setup.tokens(source),
        pairs: source,
        owned,
        replicas: held - owned,
        forward_rows: rows,
        backward_rows: rows,
        retained: source,
        drops: false,
    };
    for activations in allowed(&setup, None) {
        if MemoryModel::new(&setup, ownership, activations)?.rank(&load, rows.max(source))?.fits() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Slots of the whole cluster by a placement that a policy made earlier.
pub(super) fn slots_of(placement: &Placement) -> usize {
    placement.slots().iter().map(|&s| s as usize).sum()
}

/// First slot of a rank where `slots` are dealt to `ranks` in runs as even as can be; of `ranks` itself: the number of slots.
pub(super) fn first_slot(rank: usize, slots: usize, ranks: usize) -> usize {
    (rank as u128 * slots as u128 / ranks as u128) as usize
}

/// `[E]` homes: where they were if the expert still lives there, else on the host that is home to the fewest, ties to the lower
/// rank. `hosts` ascend and are not empty.
pub(super) fn homes<Hosts: AsRef<[u32]>>(ranks: usize, hosts: &[Hosts], before: &[u32]) -> Vec<u32> {
    let mut homes = before.to_vec();
    let mut held = vec![0_u32; ranks];
    let stays = |e: usize| hosts[e].as_ref().contains(&before[e]);
    (0..hosts.len()).filter(|&e| stays(e)).for_each(|e| held[before[e] as usize] += 1);
    for e in (0..hosts.len()).filter(|&e| !stays(e)) {
        if let Some(&rank) = hosts[e].as_ref().iter().min_by_key(|&&r| (held[r as usize], r)) {
            homes[e] = rank;
            held[rank as usize] += 1;
        }
    }
    homes
}

/// Popularity of the experts as numbers.
pub(super) fn loads(counts: &Counts) -> Vec<f64> {
    counts.per_expert().iter().map(|&n| f64::from(n)).collect()
}

/// Refuses loads that are negative, NaN or infinite, singly or in sum. Returns the sum.
pub(super) fn check_loads(name: &str, loads: &[f64]) -> Result<f64> {
    if loads.is_empty() {
        return Err(Error::argument(name, "empty", "one number for each expert, at least one"));
    }
    if let Some(e) = loads.iter().position(|l| !(l.is_finite() && *l >= 0.0)) {
        return Err(Error::argument(format!("{name}[{e}]"), loads[e], "a finite number >= 0"));
    }
    let total: f64 = loads.iter().sum();
    if total.is_finite() {
        return Ok(total);
    }
    Err(Error::Overflow { what: format!("sum of {name}"), detail: "it passes the largest f64".into() })
}

/// A load that orders as a number does and, among equals, prefers what stands first: the greatest of a heap is the heaviest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Heaviest {
    pub(super) load: f64,
    /// Breaks ties of equal loads: less is greater.
    pub(super) copies: u32,
    pub(super) index: u32,
}

impl Eq for Heaviest {}

impl PartialOrd for Heaviest {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Heaviest {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.load.total_cmp(&other.load).then_with(|| (other.copies, other.index).cmp(&(self.copies, self.index)))
    }
}
