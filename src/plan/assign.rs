//! Pairs of each instance, such that the busiest rank has as few as possible.

use super::flow::{Cut, Flow, Layers};
use super::placement::Placement;
use super::refine::Refine;
use super::route::Sources;
use crate::{Error, Result};

/// Passes over the instances, at most, to keep pairs near. Most problems take 5 to 20; what more would still find in the others
/// is measured by the tests.
const PASSES: usize = 64;

/// Pairs that each instance computes, in the order of the placement's instances.
///
/// Every pair is assigned to an instance of its own expert, and the load of the busiest rank is the least that any assignment
/// can reach (under `capacity`: the most that each rank may hold, `[R]`). Among such assignments, few pairs cross nodes, and
/// then ranks: as few as possible where the search ends within its bound on work, which it does in practice.
///
/// # Errors
/// [`Error::Shape`] where sources, placement and capacity differ in size; [`Error::Argument`] where the capacities cannot hold the
/// pairs, naming experts and ranks in question.
pub fn assign(sources: &Sources, placement: &Placement, capacity: Option<&[u64]>) -> Result<Vec<u32>> {
    Ok(assign_within(PASSES, sources, placement, capacity)?.0)
}

/// As [`assign`] but for the heuristics: some more pairs may cross, at the same load of the busiest rank. For comparing placements.
pub(crate) fn assign_draft(sources: &Sources, placement: &Placement) -> Result<Vec<u32>> {
    Ok(assign_within(0, sources, placement, None)?.0)
}

/// [`assign`] in so many passes, and whether they proved that no fewer pairs can cross.
fn assign_within(
    passes: usize,
    sources: &Sources,
    placement: &Placement,
    capacity: Option<&[u64]>,
) -> Result<(Vec<u32>, bool)> {
    sources.counts().check(placement.ranks(), placement.experts())?;
    if let Some(capacity) = capacity.filter(|c| c.len() != placement.ranks()) {
        return Err(Error::shape("capacity", capacity.len(), format!("{} ranks", placement.ranks())));
    }
    let supply = sources.counts().per_expert();
    let limit_at = |busiest: u64| move |rank: usize| capacity.map_or(busiest, |c| busiest.min(c[rank]));
    let mut fill = Fill::new(sources, placement);
    let mut busiest = lower_bound(supply, placement);
    loop {
        let limit = limit_at(busiest);
        fill.start(&limit);
        if fill.flow.push_all(&mut fill.left, Layers::Nearest, &limit) {
            break;
        }
        // The bound is too low. Raise it to the least at which this cut lets its pairs through, as often as there is one (Newton's
        // method on cuts). Then fill afresh: pairs placed under a lower bound had to leave their ranks too early.
        loop {
            busiest = raise(&fill.flow.cut(), supply, capacity)?;
            if fill.flow.push_all(&mut fill.left, Layers::All, &limit_at(busiest)) {
                break;
            }
        }
    }
    let Fill { flow, local, .. } = &mut fill;
    let proven = passes > 0 && Refine::new(sources, placement, flow, local, &limit_at(busiest)).run(passes);
    // At most the pairs of one expert.
    Ok((fill.flow.loads.iter().map(|&load| load as u32).collect(), proven))
}

/// What the busiest rank has at least: the mean, and the same of each expert and each rank alone.
fn lower_bound(supply: &[u32], placement: &Placement) -> u64 {
    let mut forced = vec![0; placement.ranks()];
    let mut hosting = vec![false; placement.ranks()];
    let mut bound = 0;
    for (e, &pairs) in supply.iter().enumerate() {
        let (hosts, pairs) = (placement.hosts(e), u64::from(pairs));
        if let [only] = hosts {
            forced[*only as usize] += pairs;
        }
        hosts.iter().for_each(|&r| hosting[r as usize] = true);
        bound = bound.max(pairs.div_ceil(hosts.len() as u64));
    }
    let total: u64 = supply.iter().map(|&n| u64::from(n)).sum();
    let hosting = hosting.iter().filter(|&&h| h).count() as u64;
    forced.into_iter().fold(bound.max(total.div_ceil(hosting.max(1))), u64::max)
}

/// The least load of the busiest rank at which the ranks of a cut hold the pairs of its experts.
fn raise(cut: &Cut, supply: &[u32], capacity: Option<&[u64]>) -> Result<u64> {
    let pairs: u64 = cut.experts.iter().map(|&e| u64::from(supply[e as usize])).sum();
    let Some(capacity) = capacity else { return Ok(pairs.div_ceil(cut.ranks.len() as u64)) };
    let mut caps: Vec<u64> = cut.ranks.iter().map(|&r| capacity[r as usize]).collect();
    caps.sort_unstable();
    let mut left = pairs;
    for (i, &cap) in caps.iter().enumerate() {
        let level = left.div_ceil((caps.len() - i) as u64);
        if level <= cap {
            return Ok(level);
        }
        left -= cap;
    }
    let list = |numbers: &[u32]| {
        let mut numbers = numbers.to_vec();
        numbers.sort_unstable();
        let shown: Vec<String> = numbers.iter().take(8).map(u32::to_string).collect();
        let more = numbers.len() - shown.len();
        if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
    };
    let (experts, ranks) = (list(&cut.experts), list(&cut.ranks));
    let got = format!("{} pairs on ranks {ranks}", pairs - left);
    let allowed = format!("{left} more: experts {experts} have {pairs} pairs and copies on no other rank");
    Err(Error::argument("capacity", got, allowed))
}

/// The first assignment under a limit, before anything is moved.
struct Fill<'a> {
    sources: &'a Sources,
    placement: &'a Placement,
    flow: Flow<'a>,
    /// Pairs of each instance's own rank.
    local: Vec<u64>,
    /// `[E]` pairs not yet placed.
    left: Vec<u64>,
    /// `[E]` fewest copies first: they have the least choice.
    order: Vec<u32>,
    rooms: Vec<(u64, u32)>,
}

impl<'a> Fill<'a> {
    fn new(sources: &'a Sources, placement: &'a Placement) -> Self {
        let counts = sources.counts();
        let mut order: Vec<u32> = (0..placement.experts() as u32).collect();
        order.sort_by_key(|&e| placement.hosts(e as usize).len());
        Self {
            sources,
            placement,
            flow: Flow::new(placement),
            local: placement.iter().map(|(e, r)| u64::from(counts.get(r, e))).collect(),
            left: Vec::with_capacity(placement.experts()),
            order,
            rooms: Vec::new(),
        }
    }

    fn start(&mut self, limit: &impl Fn(usize) -> u64) {
        let placement = self.placement;
        self.flow.clear();
        self.left.clear();
        self.left.extend(self.sources.counts().per_expert().iter().map(|&n| u64::from(n)));
        let choosers = self.order.partition_point(|&e| placement.hosts(e as usize).len() < 2);
        for k in 0..choosers {
            let e = self.order[k] as usize;
            self.spread(e, placement.range(e), u64::MAX, limit);
        }
        // What is local here and could only leave the node has precedence over what has another copy in it.
        for alone in [true, false] {
            for k in choosers..self.order.len() {
                let e = self.order[k] as usize;
                self.for_nodes(e, |fill, _, range| {
                    if (range.len() == 1) == alone {
                        range.for_each(|i| fill.spread(e, i..i + 1, fill.local[i], limit));
                    }
                });
            }
        }
        for k in choosers..self.order.len() {
            let e = self.order[k] as usize;
            self.for_nodes(e, |fill, node, range| {
                let here: u64 = fill.flow.loads[range.clone()].iter().sum();
                let wanted = u64::from(fill.sources.per_node(e, node)).saturating_sub(here);
                fill.spread(e, range, wanted, limit);
            });
        }
        for k in choosers..self.order.len() {
            let e = self.order[k] as usize;
            self.spread(e, placement.range(e), u64::MAX, limit);
        }
    }

    /// Calls `f` with the instances of one expert in each node that has any.
    fn for_nodes(&mut self, e: usize, mut f: impl FnMut(&mut Self, usize, std::ops::Range<usize>)) {
        let (mut range, hosts) = (self.placement.range(e), self.placement.host_of_instance());
        while let Some(first) = range.next() {
            let node = self.sources.node_of(hosts[first] as usize);
            let mut end = first + 1;
            while end < range.end && self.sources.node_of(hosts[end] as usize) == node {
                end += 1;
            }
            range.start = end;
            f(self, node, first..end);
        }
    }

    /// Puts up to `pairs` of what an expert has left on some of its instances, those with most room first, so that their rooms
    /// become alike.
    fn spread(&mut self, e: usize, instances: std::ops::Range<usize>, pairs: u64, limit: &impl Fn(usize) -> u64) {
        let mut pairs = pairs.min(self.left[e]);
        if pairs == 0 {
            return;
        }
        let room_of = |flow: &Flow<'_>, i: usize| {
            let rank = self.placement.host_of_instance()[i] as usize;
            limit(rank).saturating_sub(flow.rank_loads[rank])
        };
        if instances.len() == 1 {
            let taken = pairs.min(room_of(&self.flow, instances.start));
            self.flow.add(instances.start, taken);
            self.left[e] -= taken;
            return;
        }
        self.rooms.clear();
        self.rooms.extend(instances.map(|i| (room_of(&self.flow, i), i as u32)));
        self.rooms.sort_unstable_by_key(|&(room, i)| (std::cmp::Reverse(room), i));
        // The rooms of the first ones go down to a common level, as low as the pairs ask.
        let (mut sum, mut among) = (0, 0);
        for &(room, _) in &self.rooms {
            if sum >= pairs + among * room {
                break;
            }
            sum += room;
            among += 1;
        }
        pairs = pairs.min(sum);
        let (level, extra) = ((sum - pairs) / among, (sum - pairs) % among);
        for (k, &(room, i)) in (0_u64..).zip(&self.rooms[..among as usize]) {
            // Rooms that do not divide evenly are left to the last.
            let kept = level + u64::from(k >= among - extra);
            self.flow.add(i as usize, room - kept);
        }
        self.left[e] -= pairs;
    }
}

#[cfg(test)]
#[path = "assign_tests.rs"]
mod tests;
