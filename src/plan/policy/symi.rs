//! SYMI (Skiadopoulos et al., NSDI; first called SwiftMoE): copies in proportion to the last step's popularity.
//!
//! Slots are dealt anew after every step, which is free where the optimizer state is sharded: the new weights go to the new
//! slots. The published rule never ends with more experts than slots and divides by zero where nothing was routed; here the
//! first is an error and the second counts as uniform.

use std::collections::BinaryHeap;

use super::shared::{self, Heaviest};
use super::{Decision, Input, Policy};
use crate::plan::apportion::apportion;
use crate::plan::counts::Counts;
use crate::plan::mode::Ownership;
use crate::plan::placement::Placement;
use crate::plan::setup::Setup;
use crate::{Error, Result};

/// SYMI's policy; a "token" of the paper, whose models route to one expert, is a pair here.
///
/// Copies of one expert on one rank are one instance of several slots. The number of slots of a placement never changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Symi {
    /// Drop in forward what passes an expert's capacity, as published. Without it placement is SYMI's and nothing is dropped.
    pub drop: bool,
    /// Capacity of a slot over its even share of the step's pairs; finite, above 0. Means nothing unless pairs are dropped.
    pub capacity_factor: f64,
    /// s: expert slots of a rank and layer. `None`: up to twice `ceil(E / R)`, as many as the budget holds with room for
    /// twice the mean of the first step's pairs.
    pub slots_per_rank: Option<usize>,
}

impl Default for Symi {
    fn default() -> Self {
        Self { drop: false, capacity_factor: 1.0, slots_per_rank: None }
    }
}

impl Policy for Symi {
    fn name(&self) -> &str {
        if self.drop { "symi-drop" } else { "symi" }
    }

    /// The static baseline of the paper: the same number of slots for every expert; where they do not divide, one more for the
    /// first ones.
    fn start(&self, setup: &Setup, counts: &Counts) -> Result<Placement> {
        let (ranks, experts) = (setup.cluster.ranks, setup.config.num_experts);
        let ownership = setup.ownership.unwrap_or(Ownership::Sharded);
        let slots = shared::start_slots(setup, counts, ownership, self.slots_per_rank)?;
        let slots = symi_counts(&vec![0.0; experts], slots)?;
        let before = Placement::contiguous(experts, ranks, ownership)?;
        lay_out(&slots, &before)
    }

    fn decide(&self, setup: &Setup, input: &Input<'_>) -> Result<Decision> {
        shared::check(setup, input)?;
        if !(self.capacity_factor.is_finite() && self.capacity_factor > 0.0) {
            return Err(Error::argument("capacity_factor", self.capacity_factor, "a finite number > 0"));
        }
        let Input { counts, placement, .. } = *input;
        let next = symi_counts(&shared::loads(counts), shared::slots_of(placement))?;
        let next = lay_out(&next, placement)?;
        let dropped = if self.drop { over_capacity(counts, placement, self.capacity_factor)? } else { None };
        let kept: Vec<u32> = match &dropped {
            Some(dropped) => counts.per_expert().iter().zip(dropped.per_expert()).map(|(n, d)| n - d).collect(),
            None => counts.per_expert().to_vec(),
        };
        let forward = shared::even_split(placement, &kept);
        let decision = shared::keep_all(setup, &kept, placement.clone(), forward, next)?;
        Ok(Decision { dropped, ..decision })
    }
}

/// The pairs that pass their expert's capacity `floor(capacity_factor N r_e / slots)`, N pairs in all and `r_e` slots of the
/// expert, taken from the sources in proportion to what they send. `None` where nothing does.
fn over_capacity(counts: &Counts, placement: &Placement, capacity_factor: f64) -> Result<Option<Counts>> {
    let (ranks, experts) = (counts.ranks(), counts.experts());
    let (pairs, slots) = (counts.total() as f64, shared::slots_of(placement) as f64);
    let mut flat = vec![0; ranks * experts];
    let (mut sent, mut shares) = (vec![0; ranks], vec![0; ranks]);
    let mut any = false;
    for (e, &n) in counts.per_expert().iter().enumerate() {
        let own: f64 = placement.slots()[placement.range(e)].iter().map(|&s| f64::from(s)).sum();
        // Dividing last keeps whole capacities whole; the cast saturates.
        let capacity = (capacity_factor * (pairs * own) / slots) as u32;
        if n <= capacity {
            continue;
        }
        any = true;
        (0..ranks).for_each(|rank| sent[rank] = counts.get(rank, e));
        apportion(n - capacity, &sent, &mut shares);
        (0..ranks).for_each(|rank| flat[rank * experts + e] = shares[rank]);
    }
    if any { Counts::from_flat(ranks, experts, flat).map(Some) } else { Ok(None) }
}

/// Experts in order, each in consecutive slots, the slots dealt to the ranks in runs of one size.
fn lay_out(slots: &[u32], before: &Placement) -> Result<Placement> {
    let ranks = before.ranks();
    let total: usize = slots.iter().map(|&s| s as usize).sum();
    let mut hosts: Vec<Vec<u32>> = Vec::with_capacity(slots.len());
    let mut taken = Vec::with_capacity(slots.len());
    let (mut slot, mut rank) = (0, 0);
    for &own in slots {
        let end = slot + own as usize;
        let mut on = Vec::new();
        while slot < end {
            let rank_end = shared::first_slot(rank + 1, total, ranks);
            if slot == rank_end {
                rank += 1;
                continue;
            }
            let here = rank_end.min(end) - slot;
            on.push(rank as u32);
            taken.push(here as u32);
            slot += here;
        }
        hosts.push(on);
    }
    let homes = shared::homes(ranks, &hosts, before.home());
    Placement::with_slots(ranks, &hosts, taken, homes, before.ownership())
}

/// SYMI's rule: how many of `slots` each expert gets for the next step, `[E]`, from `popularity` `[E]`.
///
/// Goals are proportional to popularity; counts start at the goals rounded down, at least 1. While they are too many, the
/// expert furthest above its goal gives one back, unless it has only one; while they are too few, the one furthest below gets
/// one. Ties go to the lower index. Nothing routed counts as uniform.
///
/// ```
/// use lrmoe::plan::policy::symi_counts;
///
/// assert_eq!(symi_counts(&[50.0, 30.0, 15.0, 5.0], 8)?, [4, 2, 1, 1]);
/// # Ok::<(), lrmoe::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`] for no experts, more experts than slots, more slots than 2^32 - 1, and a popularity that is
/// negative, NaN or infinite; [`Error::Overflow`] where their sum is.
pub fn symi_counts(popularity: &[f64], slots: usize) -> Result<Vec<u32>> {
    let total = shared::check_loads("popularity", popularity)?;
    let experts = popularity.len();
    if slots < experts || u32::try_from(slots).is_err() {
        let allowed = format!("one for each of {experts} experts, up to {}", u32::MAX);
        return Err(Error::argument("slots", slots, allowed));
    }
    let goal = |p: f64| if total > 0.0 { p / total * slots as f64 } else { slots as f64 / experts as f64 };
    let goals: Vec<f64> = popularity.iter().map(|&p| goal(p)).collect();
    let mut counts: Vec<u32> = goals.iter().map(|goal| goal.max(1.0) as u32).collect();
    let given: u64 = counts.iter().map(|&c| u64::from(c)).sum();
    let slots = slots as u64;
    let error = |e: usize, counts: &[u32]| f64::from(counts[e]) - goals[e];
    let entry = |load: f64, e: usize| Heaviest { load, copies: 0, index: e as u32 };
    if given > slots {
        // The published loop also visits experts that have one slot; that changes nothing but their own error.
        let spare = (0..experts).filter(|&e| counts[e] > 1).map(|e| entry(error(e, &counts), e));
        let mut above: BinaryHeap<Heaviest> = spare.collect();
        for _ in slots..given {
            let Some(Heaviest { load, index, .. }) = above.pop() else { break };
            counts[index as usize] -= 1;
            if counts[index as usize] > 1 {
                above.push(entry(load - 1.0, index as usize));
            }
        }
    } else {
        // Negated, so that the greatest is the smallest error.
        let mut below: BinaryHeap<Heaviest> = (0..experts).map(|e| entry(-error(e, &counts), e)).collect();
        for _ in given..slots {
            let Some(Heaviest { load, index, .. }) = below.pop() else { break };
            counts[index as usize] += 1;
            below.push(entry(load - 1.0, index as usize));
        }
    }
    Ok(counts)
}

/// The rank that sends an expert's summed gradient (or whose shard of it is asked) to `destination`: the destination itself if
/// it is a host, else host number `destination` modulo their number, so that no host serves everybody. `hosts` as
/// [`Placement::hosts`] has them; `None` without any.
#[must_use]
pub fn symi_gradient_source(hosts: &[u32], destination: u32) -> Option<u32> {
    if hosts.contains(&destination) {
        return Some(destination);
    }
    hosts.get((destination as usize).checked_rem(hosts.len())?).copied()
}

/// What SYMI's cost model asks for; sizes of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SymiCostInput {
    /// E.
    pub experts: usize,
    /// N: ranks.
    pub ranks: usize,
    /// s: slots of a rank; at least `E / N`.
    pub slots_per_rank: usize,
    /// G: bytes of one expert's gradient.
    pub gradient_bytes: f64,
    /// W: bytes of one expert's weights.
    pub weight_bytes: f64,
    /// Between device and host, bytes a second; infinite where the optimizer state is on the device.
    pub host_bytes_per_s: f64,
    /// Of a rank's network, bytes a second.
    pub network_bytes_per_s: f64,
}

/// Seconds that gradients and weights of one layer and step take on a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SymiCost {
    /// With equal, unmoving copies and each expert's state at its copies.
    pub fixed_s: f64,
    /// With SYMI's sharded state.
    pub symi_s: f64,
}

impl SymiCost {
    /// How much longer SYMI takes, as a part of the other; 0 where neither takes any time.
    #[must_use]
    pub fn extra(&self) -> f64 {
        if self.fixed_s > 0.0 { (self.symi_s - self.fixed_s) / self.fixed_s } else { 0.0 }
    }
}

/// SYMI's closed form, section "cost" of the paper: for X of G and W, `E/N X / host` over the host link in both forms, and over
/// the network `(s N - E)/N X` where copies do not move, `(s N - s)/N X` where the state is sharded.
///
/// # Errors
/// [`Error::Argument`] for sizes of 0, fewer slots than experts, and bytes or rates that are negative or NaN (rates also not 0).
pub fn symi_cost(input: &SymiCostInput) -> Result<SymiCost> {
    let SymiCostInput { experts, ranks, slots_per_rank, .. } = *input;
    for (name, size) in [("experts", experts), ("ranks", ranks), ("slots_per_rank", slots_per_rank)] {
        if size == 0 {
            return Err(Error::argument(name, size, "1 or more"));
        }
    }
    for (name, bytes) in [("gradient_bytes", input.gradient_bytes), ("weight_bytes", input.weight_bytes)] {
        if !(bytes.is_finite() && bytes >= 0.0) {
            return Err(Error::argument(name, bytes, "a finite number >= 0"));
        }
    }
    for (name, rate) in
        [("host_bytes_per_s", input.host_bytes_per_s), ("network_bytes_per_s", input.network_bytes_per_s)]
    {
        if rate.is_nan() || rate <= 0.0 {
            return Err(Error::argument(name, rate, "a number > 0"));
        }
    }
    let [experts, ranks, per_rank] = [experts, ranks, slots_per_rank].map(|size| size as f64);
    let slots = per_rank * ranks;
    if slots < experts {
        return Err(Error::argument("slots_per_rank", slots_per_rank, format!("{experts} experts over {ranks} ranks")));
    }
    let bytes = input.gradient_bytes + input.weight_bytes;
    let host = experts / ranks * bytes / input.host_bytes_per_s;
    let network = |remote: f64| remote / ranks * bytes / input.network_bytes_per_s;
    Ok(SymiCost { fixed_s: host + network(slots - experts), symi_s: host + network(slots - per_rank) })
}

#[cfg(test)]
#[path = "symi_tests.rs"]
mod tests;
