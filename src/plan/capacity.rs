//! Quotas that the ranks can carry, by decomposition.
//!
//! The quotas that fit the ranks, as a flow from experts to hosts, form a polymatroid, so granting the best gain first and
//! forfeiting what does not fit is optimal (A. Federgruen, H. Groenevelt, "The greedy procedure for resource allocation problems",
//! Operations Research 34(6), 1986). The same result comes without single grants from the decomposition algorithm (S. Fujishige,
//! "Lexicographically optimal base of a polymatroid with respect to a weight vector", Mathematics of Operations Research 5(2), 1980;
//! H. Groenevelt, "Two algorithms for maximizing a separable concave function over a polymatroid feasible region", European
//! Journal of Operational Research 54(2), 1991):
//!
//! Find the best quotas without regard to the ranks and send them through the flow. If all arrive, they are the answer. If
//! not, let A be the experts that can be reached from those with pairs left over: they fill all their ranks N(A), and nobody
//! else has pairs there. The greedy procedure has made the same grants by now, less what it forfeited, and as many as any flow
//! carries: `capacity(N(A))` for A, all of them for the others. From here on A gets nothing more, and the others never lose what
//! they have. So the problem falls in two: A shares out exactly `capacity(N(A))`, and the rest shares out what remains of the
//! sum over the other ranks. Parts of A that share no rank are independent, each with the capacity of its own ranks as its
//! sum. All sums are whole, so the quotas are; bounds on single experts are met because the best quotas without regard to
//! the ranks meet them.
//!
//! A, the smallest such set, is the same for every largest flow, so the order in which pairs are sent decides nothing.

use super::flow::Flow;
use super::placement::Placement;
use super::quota::{Limit, Solver, total};
use crate::{Error, Result};

/// No group yet.
const NONE: u32 = u32::MAX;

/// Refuses a placement of another number of experts.
pub(super) fn check(counts: &[u32], placement: &Placement) -> Result<()> {
    if counts.len() == placement.experts() {
        return Ok(());
    }
    Err(Error::shape("counts", counts.len(), format!("{} experts, as the placement has", placement.experts())))
}

/// Turns the solver's quotas, the best ones of this sum, into the best ones that the ranks can carry; returns what bound beside the
/// floors' own sum. `capacity` has an entry for each rank.
pub(super) fn solve(solver: &mut Solver<'_>, sum: u64, placement: &Placement, capacity: &[u64]) -> Vec<Limit> {
    if total(&solver.floors) > sum {
        return Vec::new();
    }
    let mut division = Division::new(solver, placement, capacity);
    let raised = division.carry_floors();
    let changed = division.divide(sum);
    let limits = [raised.then_some(Limit::Floor), changed.then_some(Limit::RankCapacity)];
    limits.into_iter().flatten().collect()
}

/// Experts that share out a sum over ranks of their own.
struct Part {
    /// What [`Division::owner`] says of its ranks.
    id: u32,
    experts: Vec<u32>,
    /// How many it has.
    ranks: usize,
    sum: u64,
}

struct Division<'a, 's> {
    solver: &'a mut Solver<'s>,
    placement: &'a Placement,
    flow: Flow<'a>,
    /// `[R]` pairs.
    capacity: Vec<u64>,
    /// `[R]` the part that each rank belongs to.
    owner: Vec<u32>,
    /// The first number no part has.
    next_id: u32,
    /// `[E]` pairs in the flow.
    carried: Vec<u64>,
    /// `[E]` whether a cut took the expert out of the part at hand.
    cut: Vec<bool>,
    /// `[R]` scratch: parent of each rank in the forest of connected ranks, and the group of each root.
    parent: Vec<u32>,
    group: Vec<u32>,
}

impl<'a, 's> Division<'a, 's> {
    fn new(solver: &'a mut Solver<'s>, placement: &'a Placement, capacity: &[u64]) -> Self {
        let (experts, ranks) = (placement.experts(), placement.ranks());
        Self {
            solver,
            placement,
            flow: Flow::new(placement),
            capacity: capacity.to_vec(),
            owner: vec![0; ranks],
            next_id: 1,
            carried: vec![0; experts],
            cut: vec![false; experts],
            parent: (0..ranks as u32).collect(),
            group: vec![NONE; ranks],
        }
    }

    /// Puts the floors into the flow, raising the capacities as little as that takes; returns whether it took any.
    ///
    /// A cut asks for a common least capacity with which its ranks hold the floors of its experts: no smaller one will do. Raised to
    /// that, the flow goes on where it stopped.
    fn carry_floors(&mut self) -> bool {
        let mut raised = false;
        for e in 0..self.carried.len() {
            let floor = u64::from(self.solver.floors[e]);
            let mut left = floor;
            loop {
                left = self.flow.push(e, left, &|r| self.capacity[r]);
                if left == 0 {
                    break;
                }
                let cut = self.flow.cut();
                let need = cut.experts.iter().map(|&e| u64::from(self.solver.floors[e as usize])).sum();
                let level = least_level(cut.ranks.iter().map(|&r| self.capacity[r as usize]).collect(), need);
                self.capacity.iter_mut().for_each(|c| *c = (*c).max(level));
                raised = true;
            }
            self.carried[e] = floor;
        }
        raised
    }

    /// Divides the experts until every part fits its ranks, starting from the solver's quotas for `sum`; returns whether the
    /// capacities changed anything.
    fn divide(&mut self, sum: u64) -> bool {
        let mut order: Vec<u32> = (0..self.carried.len() as u32).collect();
        // Those with few hosts first: whoever comes later finds a way around them.
        order.sort_by_key(|&e| self.placement.hosts(e as usize).len());
        let mut rest = Part { id: 0, experts: order, ranks: self.capacity.len(), sum };
        // Flows of parts still to be solved are taken out, so that those at hand never meet pairs of others: a part's experts have
        // other hosts only in parts below it on this stack.
        let mut full = Vec::new();
        while self.send(&rest) {
            let closed = self.take_cut(&mut rest);
            full.extend(closed);
            self.solver.solve_for(&rest.experts, rest.sum);
        }
        let changed = !full.is_empty();
        while let Some(mut part) = full.pop() {
            self.solver.solve_for(&part.experts, part.sum);
            if part.ranks > 1 && part.experts.len() > 1 && self.send(&part) {
                let closed = self.take_cut(&mut part);
                full.extend(closed);
                // All ranks of a full part are filled, so what remains of it falls apart as well.
                full.extend(self.components(part.experts, part.id));
            }
        }
        changed
    }

    /// Brings the flow of a part to its quotas; returns whether some do not fit. Then [`Division::cut`] holds the experts that
    /// fill their ranks, and those ranks belong to no part.
    fn send(&mut self, part: &Part) -> bool {
        for &e in &part.experts {
            if self.carried[e as usize] > u64::from(self.solver.quotas[e as usize]) {
                self.clear(e as usize);
            }
        }
        for &e in &part.experts {
            self.place(e as usize, part.id);
        }
        let mut any = false;
        for &e in &part.experts {
            let e = e as usize;
            if self.cut[e] {
                continue;
            }
            let quota = u64::from(self.solver.quotas[e]);
            let room = |r: usize| if self.owner[r] == part.id { self.capacity[r] } else { 0 };
            let left = self.flow.push(e, quota - self.carried[e], &room);
            self.carried[e] = quota - left;
            if left > 0 {
                any = true;
                // Nothing sent later can change this flow, nor get past these ranks.
                let cut = self.flow.cut();
                for &r in &cut.ranks {
                    let owner = &mut self.owner[r as usize];
                    if *owner == part.id {
                        *owner = self.next_id;
                    }
                }
                for &e in &cut.experts {
                    self.cut[e as usize] = true;
                    self.clear(e as usize);
                }
            }
        }
        any
    }

    /// Takes what [`Division::send`] found out of the part; returns it as parts.
    fn take_cut(&mut self, part: &mut Part) -> Vec<Part> {
        let (closed, experts): (Vec<u32>, Vec<u32>) = part.experts.iter().partition(|&&e| self.cut[e as usize]);
        closed.iter().for_each(|&e| self.cut[e as usize] = false);
        let scope = self.next_id;
        self.next_id += 1;
        let parts = self.components(closed, scope);
        // An expert without a host left has no pairs there either, as the cut would have reached it.
        let own = |r: &u32| self.owner[*r as usize] == part.id;
        part.experts = experts.into_iter().filter(|&e| self.placement.hosts(e as usize).iter().any(own)).collect();
        part.sum -= parts.iter().map(|part| part.sum).sum::<u64>();
        parts
    }

    /// Experts by the ranks of one owner that connect them, as parts that fill their ranks.
    fn components(&mut self, experts: Vec<u32>, scope: u32) -> Vec<Part> {
        let placement = self.placement;
        for &e in &experts {
            let mut first = None;
            for &r in placement.hosts(e as usize).iter().filter(|&&r| self.owner[r as usize] == scope) {
                let root = root(&mut self.parent, r);
                // Always a root: trees are only ever hung below it here.
                let first = *first.get_or_insert(root);
                self.parent[root as usize] = first;
            }
        }
        let mut parts: Vec<Part> = Vec::new();
        for &e in &experts {
            let Some(&host) = placement.hosts(e as usize).iter().find(|&&r| self.owner[r as usize] == scope) else {
                continue;
            };
            let root = root(&mut self.parent, host) as usize;
            if self.group[root] == NONE {
                self.group[root] = parts.len() as u32;
                parts.push(Part { id: self.next_id + parts.len() as u32, experts: Vec::new(), ranks: 0, sum: 0 });
            }
            parts[self.group[root] as usize].experts.push(e);
        }
        self.next_id += parts.len() as u32;
        for part in &mut parts {
            for &e in &part.experts {
                for &r in placement.hosts(e as usize) {
                    let r = r as usize;
                    if self.owner[r] == scope {
                        self.owner[r] = part.id;
                        self.parent[r] = r as u32;
                        self.group[r] = NONE;
                        part.ranks += 1;
                        part.sum += self.capacity[r];
                    }
                }
            }
        }
        parts
    }

    /// Puts what an expert's quota is above its flow on hosts with room, as far as that goes without moving others.
    fn place(&mut self, e: usize, id: u32) {
        let mut left = u64::from(self.solver.quotas[e]) - self.carried[e];
        for i in self.placement.range(e) {
            if left == 0 {
                break;
            }
            let r = self.placement.host_of_instance()[i] as usize;
            if self.owner[r] == id {
                let pairs = left.min(self.capacity[r] - self.flow.rank_loads[r]);
                self.flow.add(i, pairs);
                self.carried[e] += pairs;
                left -= pairs;
            }
        }
    }

    /// Takes all pairs of an expert out of the flow.
    fn clear(&mut self, e: usize) {
        for i in self.placement.range(e) {
            let load = std::mem::take(&mut self.flow.loads[i]);
            self.flow.rank_loads[self.placement.host_of_instance()[i] as usize] -= load;
        }
        self.carried[e] = 0;
    }
}

/// The root of a rank's tree, halving the path on the way.
fn root(parent: &mut [u32], mut rank: u32) -> u32 {
    while parent[rank as usize] != rank {
        let up = parent[parent[rank as usize] as usize];
        parent[rank as usize] = up;
        rank = up;
    }
    rank
}

/// The least level for which capacities raised to it hold `need` pairs, more than they hold as they are.
fn least_level(mut capacity: Vec<u64>, need: u64) -> u64 {
    capacity.sort_unstable();
    let mut above: u64 = capacity.iter().sum();
    let mut level = 0;
    for (raised, &own) in (1..).zip(&capacity) {
        above -= own;
        level = need.saturating_sub(above).div_ceil(raised);
        if capacity.get(raised as usize).is_none_or(|&next| level <= next) {
            break;
        }
    }
    level
}

#[cfg(test)]
#[path = "capacity_tests.rs"]
mod tests;
