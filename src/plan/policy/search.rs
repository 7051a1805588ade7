//! Search for the placement of the next step.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::eplb::{EplbGroups, eplb_map};
use super::shared;
use crate::plan::evaluate::{Evaluator, Outcome, Work, stashed};
use crate::plan::mode::{Activations, Ownership};
use crate::plan::placement::Placement;
use crate::plan::route;
use crate::{Error, Result};

/// Placements up to this many are all tried.
const EXHAUSTIVE: u64 = 1_000;
/// Steps between those that try every number of instances. In between the current number and its neighbours are tried, which takes half
/// the time.
pub(super) const WHOLE_LADDER: u64 = 8;
/// Steps that a change of homes has to pay for itself in: few, so that a placement that only seems better by the noise of one step never does.
const HORIZON: f64 = 4.0;

/// The next step is taken to bring the pairs of this one. The candidates follow from these pairs alone, never from the budget, so
/// that more memory can only add to those that fit.
#[derive(Debug)]
pub(crate) struct Search<'a> {
    pub(crate) evaluator: &'a Evaluator<'a>,
    pub(crate) current: &'a Placement,
    /// Pairs of each expert in earlier steps, if they are known.
    pub(crate) earlier: Option<&'a [u64]>,
    pub(crate) instances: Option<usize>,
    /// Whether every number of extra instances is tried, or only those next to the current one.
    pub(crate) whole_ladder: bool,
    pub(crate) modes: &'a [Activations],
}

impl Search<'_> {
    /// The placement with the least predicted time among those that fit, and this time; the current one unless another beats it.
    /// `step` and `now` are this step's work on the current one, which must leave room for the next.
    ///
    /// Moving homes takes time once; it counts as if spread over [`HORIZON`] steps.
    pub(crate) fn best(&self, step: &Evaluator<'_>, now: &[Work]) -> Result<(Placement, Option<f64>)> {
        let mut best = None;
        if self.instances.is_none_or(|n| n == self.current.instances()) {
            best = self.drafted(self.current.clone())?;
        }
        for candidate in self.candidates()? {
            let Some((time, candidate)) = self.drafted(candidate)? else { continue };
            let time = time + self.evaluator.moving_s(self.current, &candidate) / HORIZON;
            if best.as_ref().is_some_and(|(least, _)| time >= *least) {
                continue;
            }
            match step.require([self.current, &candidate], now) {
                Ok(()) => best = Some((time, candidate)),
                Err(Error::Infeasible { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        // Where nothing fits, the plan of this step says what is missing.
        Ok(best.map_or_else(|| (self.current.clone(), None), |(time, placement)| (placement, Some(time))))
    }

    /// Predicted time of a step that starts and ends with a placement, less its idle replicas; `None` where it does not fit. Retained pairs
    /// are taken to stay where their forward ran, which is never better than where they will go.
    fn drafted(&self, placement: Placement) -> Result<Option<(f64, Placement)>> {
        let forward = route::assign_draft(&self.evaluator.forward, &placement)?;
        let (placement, forward) = match self.instances {
            Some(_) => (placement, forward),
            None => without_idle(placement, forward)?,
        };
        let backward = stashed(&placement, &forward, self.evaluator.backward.counts().per_expert());
        match self.evaluator.best([&placement; 3], &forward, &backward, self.modes) {
            Ok(Outcome { predicted, .. }) => Ok(Some((predicted.total_s(), placement))),
            Err(Error::Infeasible { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn candidates(&self) -> Result<Vec<Placement>> {
        let (experts, ranks) = (self.current.experts(), self.current.ranks());
        if self.instances.is_none()
            && let Some(all) = every_placement(self.current, EXHAUSTIVE)?
        {
            return Ok(all);
        }
        let most = experts * ranks - experts;
        let extras = match self.instances {
            Some(instances) => vec![instances.clamp(experts, experts * ranks) - experts],
            None => {
                let mut extras = extras(experts, ranks);
                extras.retain(|&extra| extra <= most);
                if !self.whole_ladder {
                    let here = extras.partition_point(|&extra| extra <= self.current.instances() - experts);
                    extras.truncate(here + 1);
                    extras.drain(..here.saturating_sub(2).min(extras.len()));
                }
                extras
            }
        };
        let work = self.work();
        let mut replicas = Replicas::new(&work, ranks);
        let mut candidates = Vec::with_capacity(extras.len() + 2);
        let pinned = self.current.ownership() == Ownership::Home;
        for extra in extras {
            replicas.grow(experts + extra);
            candidates.push(self.pack(&work, &replicas.held, pinned));
        }
        if self.instances.is_some() {
            if pinned {
                candidates.push(self.pack(&work, &replicas.held, false));
            }
            candidates.push(self.balanced(&work, replicas.total)?);
        } else if pinned && let Some(earlier) = self.earlier {
            // Homes are moved for what lasts: they are chosen by the steps before and judged by this one.
            candidates.push(self.pack(earlier, &vec![1; experts], false));
        }
        Ok(candidates)
    }

    /// EPLB's placement of as many instances, so that no number of them is spent worse.
    fn balanced(&self, work: &[u64], instances: usize) -> Result<Placement> {
        let ranks = self.current.ranks();
        let load: Vec<f64> = work.iter().map(|&work| work as f64).collect();
        let map = eplb_map(&load, instances, ranks, EplbGroups::GLOBAL)?;
        let hosts = shared::hosts_of(work.len(), &map);
        let home = self.current.home().iter().zip(&hosts);
        let home = home.map(|(home, own)| if own.contains(home) { *home } else { own[0] }).collect();
        Placement::new(ranks, &hosts, home, self.current.ownership())
    }

    /// Work of each expert: forward and backward passes of its pairs, in thirds of a forward pass.
    fn work(&self) -> Vec<u64> {
        let backward = match self.modes {
            [Activations::Stash] => 6,
            _ => 8,
        };
        let pairs = self.evaluator.forward.counts().per_expert();
        let retained = self.evaluator.backward.counts().per_expert();
        pairs.iter().zip(retained).map(|(&n, &q)| 3 * u64::from(n) + backward * u64::from(q)).collect()
    }

    /// Places instances, the longest work first, on the rank with least work that has room and no copy; of such ranks, one where
    /// the expert is already. Where homes are `pinned`, every expert keeps an instance at its own.
    fn pack(&self, work: &[u64], held: &[u32], pinned: bool) -> Placement {
        let (experts, ranks) = (self.current.experts(), self.current.ranks());
        let mut offsets = Vec::with_capacity(experts + 1);
        offsets.push(0);
        held.iter().fold(0, |end, n| {
            offsets.push(end + n);
            end + n
        });
        let instances = offsets[experts] as usize;
        let mut home = self.current.home().to_vec();
        let share = |e: usize| work[e] / u64::from(held[e]);
        let mut hosts = vec![0; instances];
        let mut load = vec![0; ranks];
        // Where homes are pinned, replicas have their own room, evenly.
        let mut room = vec![instances.div_ceil(ranks); ranks];
        if pinned {
            room.fill(experts.div_ceil(ranks) + (instances - experts).div_ceil(ranks));
            for e in 0..experts {
                hosts[offsets[e] as usize] = home[e];
                load[home[e] as usize] += share(e);
                room[home[e] as usize] = room[home[e] as usize].saturating_sub(1);
            }
        }
        let mut packing = Packing::new(load, room);
        let mut order: Vec<usize> = (0..experts).filter(|&e| !pinned || held[e] > 1).collect();
        order.sort_by_key(|&e| Reverse(share(e)));
        for e in order {
            let own = &mut hosts[offsets[e] as usize..offsets[e + 1] as usize];
            for placed in usize::from(pinned)..own.len() {
                let rank = packing.choose(&own[..placed], self.current.hosts(e));
                packing.put(rank, share(e));
                own[placed] = rank;
            }
            if !own.contains(&home[e]) {
                home[e] = own[0];
            }
            own.sort_unstable();
        }
        Placement::from_parts(ranks, offsets, hosts, home, self.current.ownership())
    }
}

/// Extra instances to try: few, then whole slots of every rank.
fn extras(experts: usize, ranks: usize) -> Vec<usize> {
    // The last slots that E leaves open are free of cost for the busiest rank's memory.
    let open = experts.div_ceil(ranks) * ranks - experts;
    let mut extras = vec![0, ranks.div_ceil(4), ranks.div_ceil(2), ranks, 2 * ranks, 4 * ranks];
    extras.extend([open, open + ranks]);
    extras.sort_unstable();
    extras.dedup();
    extras
}

/// Numbers of instances, grown one at a time for the expert with the largest work an instance.
struct Replicas<'a> {
    work: &'a [u64],
    ranks: usize,
    held: Vec<u32>,
    total: usize,
    /// By (work an instance, as a fraction that compares exactly; lower index).
    heap: BinaryHeap<(Share, Reverse<usize>)>,
}

/// A quotient that compares exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    work: u64,
    held: u32,
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let (a, b) = (u128::from(self.work) * u128::from(other.held), u128::from(other.work) * u128::from(self.held));
        a.cmp(&b).then(other.held.cmp(&self.held))
    }
}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<'a> Replicas<'a> {
    fn new(work: &'a [u64], ranks: usize) -> Self {
        let heap = work.iter().enumerate().map(|(e, &work)| (Share { work, held: 1 }, Reverse(e))).collect();
        Self { work, ranks, held: vec![1; work.len()], total: work.len(), heap }
    }

    /// Up to a number of instances, fewer only where every expert is everywhere.
    fn grow(&mut self, instances: usize) {
        while self.total < instances {
            let Some((_, Reverse(e))) = self.heap.pop() else { return };
            if self.held[e] as usize == self.ranks {
                continue;
            }
            self.held[e] += 1;
            self.total += 1;
            self.heap.push((Share { work: self.work[e], held: self.held[e] }, Reverse(e)));
        }
    }
}

/// Ranks by the work they have.
struct Packing {
    load: Vec<u64>,
    room: Vec<usize>,
    /// Ranks with room, by (work, rank).
    open: BTreeSet<(u64, u32)>,
}

impl Packing {
    fn new(load: Vec<u64>, room: Vec<usize>) -> Self {
        let with_room = (0..).zip(load.iter().zip(&room)).filter(|(_, (_, room))| **room > 0);
        Self { open: with_room.map(|(rank, (&load, _))| (load, rank)).collect(), load, room }
    }

    fn put(&mut self, rank: u32, work: u64) {
        let r = rank as usize;
        self.open.remove(&(self.load[r], rank));
        self.load[r] += work;
        self.room[r] = self.room[r].saturating_sub(1);
        if self.room[r] > 0 {
            self.open.insert((self.load[r], rank));
        }
    }

    /// The least loaded rank with room that is not among `taken`; of equally loaded ones one of `preferred`, else the lowest. Where all
    /// room is on ranks that are taken, the least loaded rank that is not, whatever its room: there is one, as `taken` are fewer
    /// than the ranks.
    fn choose(&self, taken: &[u32], preferred: &[u32]) -> u32 {
        let Some(least) = self.open.iter().find(|(_, rank)| !taken.contains(rank)) else {
            let free = (0..self.load.len() as u32).filter(|rank| !taken.contains(rank));
            return free.min_by_key(|&rank| self.load[rank as usize]).unwrap_or(0);
        };
        let stays = |rank: &&u32| self.open.contains(&(least.0, **rank)) && !taken.contains(rank);
        *preferred.iter().find(stays).unwrap_or(&least.1)
    }
}

/// Every placement of these experts, if there are at most `limit`. Homes stay where the expert does.
fn every_placement(current: &Placement, limit: u64) -> Result<Option<Vec<Placement>>> {
    let (experts, ranks) = (current.experts(), current.ranks());
    if ranks > 10 {
        return Ok(None);
    }
    let choices = (1_u64 << ranks) - 1;
    let Some(count) = u32::try_from(experts).ok().and_then(|e| choices.checked_pow(e)).filter(|n| *n <= limit) else {
        return Ok(None);
    };
    let place = |index: u64| {
        let mut rest = index;
        let mut homes = current.home().to_vec();
        let hosts: Vec<Vec<u32>> = homes
            .iter_mut()
            .map(|home| {
                let subset = rest % choices + 1;
                rest /= choices;
                let own: Vec<u32> = (0..ranks as u32).filter(|rank| subset >> rank & 1 == 1).collect();
                if !own.contains(home) {
                    *home = own[0];
                }
                own
            })
            .collect();
        Placement::new(ranks, &hosts, homes, current.ownership())
    };
    (0..count).map(place).collect::<Result<_>>().map(Some)
}

/// A placement less the replicas that compute nothing, with the loads of what is left. Every expert keeps one instance.
fn without_idle(placement: Placement, loads: Vec<u32>) -> Result<(Placement, Vec<u32>)> {
    let pinned = placement.ownership() == Ownership::Home;
    let host = |i: usize| placement.host_of_instance()[i];
    let mut keep: Vec<bool> = loads.iter().map(|&load| load > 0).collect();
    let mut homes = placement.home().to_vec();
    for (e, home) in homes.iter_mut().enumerate() {
        let own = placement.range(e);
        let at_home = own.clone().find(|&i| host(i) == *home).unwrap_or(own.start);
        match own.clone().find(|&i| keep[i]) {
            Some(busy) if !pinned && !keep[at_home] => *home = host(busy),
            _ => keep[at_home] = true,
        }
    }
    if keep.iter().all(|&kept| kept) {
        return Ok((placement, loads));
    }
    let hosts: Vec<Vec<u32>> =
        (0..placement.experts()).map(|e| placement.range(e).filter(|&i| keep[i]).map(host).collect()).collect();
    let loads = loads.into_iter().zip(&keep).filter(|(_, kept)| **kept).map(|(n, _)| n).collect();
    Ok((Placement::new(placement.ranks(), &hosts, homes, placement.ownership())?, loads))
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
