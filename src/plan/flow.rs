//! Flows from experts to the ranks that host them: which loads fit, and what stands in the way where they do not.
//!
//! Every expert has a supply of pairs, every rank a capacity; an edge for each instance. Augmenting paths move pairs from full
//! ranks to others by way of experts that have a copy on both, so a flow is only ever extended: loads found for smaller
//! capacities stay valid for larger ones.

use super::placement::Placement;

/// Not reached.
const NONE: u32 = u32::MAX;

/// A flow under construction.
#[derive(Debug)]
pub(crate) struct Flow<'a> {
    placement: &'a Placement,
    expert_of: Vec<u32>,
    /// `[R + 1]` and `[instances]`: the instances on each rank.
    rank_offsets: Vec<u32>,
    on_rank: Vec<u32>,
    /// Pairs at each instance.
    pub(crate) loads: Vec<u64>,
    /// Pairs on each rank.
    pub(crate) rank_loads: Vec<u64>,
    /// What the last search reached, in its order.
    reached_experts: Vec<u32>,
    reached_ranks: Vec<u32>,
    /// Its distances from where it began, and the edge that each of the reached tries next.
    expert_layer: Vec<u32>,
    rank_layer: Vec<u32>,
    expert_edge: Vec<u32>,
    rank_edge: Vec<u32>,
    /// Instances on the way to a rank with room, in pairs: into a full rank, and out of it by another expert.
    path: Vec<(u32, u32)>,
}

/// What stands in the way: experts whose pairs can go nowhere but to these ranks, all full.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) experts: Vec<u32>,
    pub(crate) ranks: Vec<u32>,
}

/// How far pairs are sent in one phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layers {
    /// To the nearest ranks with room (Dinic): few pairs are moved.
    Nearest,
    /// To all ranks with room: fewer phases.
    All,
}

impl<'a> Flow<'a> {
    pub(crate) fn new(placement: &'a Placement) -> Self {
        let (experts, ranks, instances) = (placement.experts(), placement.ranks(), placement.instances());
        let mut expert_of = Vec::with_capacity(instances);
        (0..experts as u32).for_each(|e| expert_of.extend(std::iter::repeat_n(e, placement.hosts(e as usize).len())));
        let mut rank_offsets = vec![0_u32; ranks + 1];
        placement.host_of_instance().iter().for_each(|&r| rank_offsets[r as usize + 1] += 1);
        (0..ranks).for_each(|r| rank_offsets[r + 1] += rank_offsets[r]);
        let mut next = rank_offsets.clone();
        let mut on_rank = vec![0; instances];
        for (i, &r) in (0_u32..).zip(placement.host_of_instance()) {
            on_rank[next[r as usize] as usize] = i;
            next[r as usize] += 1;
        }
        Self {
            placement,
            expert_of,
            rank_offsets,
            on_rank,
            loads: vec![0; instances],
            rank_loads: vec![0; ranks],
            reached_experts: Vec::with_capacity(experts),
            reached_ranks: Vec::with_capacity(ranks),
            expert_layer: vec![NONE; experts],
            rank_layer: vec![NONE; ranks],
            expert_edge: vec![0; experts],
            rank_edge: vec![0; ranks],
            path: Vec::new(),
        }
    }

    /// Takes everything off again.
    pub(crate) fn clear(&mut self) {
        self.loads.fill(0);
        self.rank_loads.fill(0);
    }

    /// Puts pairs on an instance, whatever the capacity of its rank.
    pub(crate) fn add(&mut self, instance: usize, pairs: u64) {
        self.loads[instance] += pairs;
        self.rank_loads[self.placement.host_of_instance()[instance] as usize] += pairs;
    }

    /// Places up to `pairs` more of one expert, moving others out of the way; returns how many found no place.
    ///
    /// Where some are left over, [`Flow::cut`] tells why.
    pub(crate) fn push(&mut self, expert: usize, mut pairs: u64, capacity: &impl Fn(usize) -> u64) -> u64 {
        while pairs > 0 && self.search(&[expert as u32], Layers::Nearest, capacity) {
            self.send(expert, &mut pairs, capacity);
        }
        pairs
    }

    /// Places as much as possible of what every expert has left, moving others out of the way; whether all found a place.
    ///
    /// Where some are left over, [`Flow::cut`] tells why: it holds everything that can be reached from any of them. The method
    /// is Dinic's, blocking flows in layers: each phase costs hardly more than a look at every instance.
    pub(crate) fn push_all(&mut self, left: &mut [u64], layers: Layers, capacity: &impl Fn(usize) -> u64) -> bool {
        let mut waiting: Vec<u32> = (0..left.len() as u32).filter(|&e| left[e as usize] > 0).collect();
        while !waiting.is_empty() {
            if !self.search(&waiting, layers, capacity) {
                return false;
            }
            for &e in &waiting {
                self.send(e as usize, &mut left[e as usize], capacity);
            }
            waiting.retain(|&e| left[e as usize] > 0);
        }
        true
    }

    /// Breadth first from experts; whether a rank with room was reached.
    ///
    /// With [`Layers::All`] distances never shrink either, and after each phase every rank with room is farther away.
    fn search(&mut self, from: &[u32], layers: Layers, capacity: &impl Fn(usize) -> u64) -> bool {
        self.reached_experts.drain(..).for_each(|e| self.expert_layer[e as usize] = NONE);
        self.reached_ranks.drain(..).for_each(|r| self.rank_layer[r as usize] = NONE);
        for &e in from {
            self.reach(e, 0);
        }
        let (mut next_expert, mut next_rank, mut depth, mut found) = (0, 0, 0, false);
        while next_expert < self.reached_experts.len() {
            depth += 1;
            while let Some(&e) = self.reached_experts.get(next_expert) {
                next_expert += 1;
                for &rank in self.placement.hosts(e as usize) {
                    let r = rank as usize;
                    if self.rank_layer[r] == NONE {
                        self.rank_layer[r] = depth;
                        self.rank_edge[r] = self.rank_offsets[r];
                        self.reached_ranks.push(rank);
                        found |= self.rank_loads[r] < capacity(r);
                    }
                }
            }
            if found && layers == Layers::Nearest {
                return true;
            }
            depth += 1;
            while let Some(&rank) = self.reached_ranks.get(next_rank) {
                next_rank += 1;
                for at in self.rank_offsets[rank as usize]..self.rank_offsets[rank as usize + 1] {
                    let out = self.on_rank[at as usize] as usize;
                    let e = self.expert_of[out];
                    if self.expert_layer[e as usize] == NONE && self.loads[out] > 0 {
                        self.reach(e, depth);
                    }
                }
            }
        }
        found
    }

    fn reach(&mut self, expert: u32, layer: u32) {
        self.expert_layer[expert as usize] = layer;
        self.expert_edge[expert as usize] = self.placement.offsets()[expert as usize];
        self.reached_experts.push(expert);
    }

    /// Sends pairs of one expert where the last search began along its layers, as many as they carry.
    fn send(&mut self, expert: usize, pairs: &mut u64, capacity: &impl Fn(usize) -> u64) {
        self.path.clear();
        let mut at = expert;
        while *pairs > 0 {
            let Some(into) = self.edge_into(at) else {
                // A dead end: the rank before it tries its next instance.
                let Some((_, out)) = self.path.pop() else { return };
                self.rank_edge[self.placement.host_of_instance()[out as usize] as usize] += 1;
                at = self.path.last().map_or(expert, |&(_, out)| self.expert_of[out as usize] as usize);
                continue;
            };
            let rank = self.placement.host_of_instance()[into as usize] as usize;
            let room = capacity(rank).saturating_sub(self.rank_loads[rank]);
            if room == 0 {
                match self.edge_out(rank) {
                    Some(out) => {
                        self.path.push((into, out));
                        at = self.expert_of[out as usize] as usize;
                    }
                    None => self.expert_edge[at] += 1,
                }
                continue;
            }
            let mut amount = room.min(*pairs);
            for &(_, out) in &self.path {
                amount = amount.min(self.loads[out as usize]);
            }
            for (into, out) in self.path.drain(..) {
                self.loads[into as usize] += amount;
                self.loads[out as usize] -= amount;
            }
            self.add(into as usize, amount);
            *pairs -= amount;
            at = expert;
        }
    }

    /// The next instance of an expert whose rank is one layer on.
    fn edge_into(&mut self, expert: usize) -> Option<u32> {
        let (end, layer) = (self.placement.offsets()[expert + 1], self.expert_layer[expert]);
        while self.expert_edge[expert] < end {
            let into = self.expert_edge[expert];
            if self.rank_layer[self.placement.host_of_instance()[into as usize] as usize] == layer + 1 {
                return Some(into);
            }
            self.expert_edge[expert] += 1;
        }
        None
    }

    /// The next instance on a rank that holds pairs of an expert one layer on.
    fn edge_out(&mut self, rank: usize) -> Option<u32> {
        let (end, layer) = (self.rank_offsets[rank + 1], self.rank_layer[rank]);
        while self.rank_edge[rank] < end {
            let out = self.on_rank[self.rank_edge[rank] as usize];
            let next = self.expert_layer[self.expert_of[out as usize] as usize];
            if next == layer + 1 && self.loads[out as usize] > 0 {
                return Some(out);
            }
            self.rank_edge[rank] += 1;
        }
        None
    }

    /// After a push that left pairs over: everything reachable from their experts. All these ranks are full, and everything on
    /// them belongs to these experts.
    pub(crate) fn cut(&self) -> Cut {
        Cut { experts: self.reached_experts.clone(), ranks: self.reached_ranks.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Ownership;

    #[test]
    fn moves_others_out_of_the_way() {
        // 0 on {0, 1}, 1 on {0}: the pairs of 0 must leave rank 0.
        let placed = Placement::new(2, &[vec![0, 1], vec![0]], vec![0, 0], Ownership::Home).unwrap();
        let mut flow = Flow::new(&placed);
        assert_eq!(flow.push(0, 4, &|_| 5), 0);
        assert_eq!(flow.push(1, 5, &|_| 5), 0);
        assert_eq!((flow.loads.as_slice(), flow.rank_loads.as_slice()), ([0, 4, 5].as_slice(), [5, 4].as_slice()));
        assert_eq!(flow.push(1, 1, &|_| 5), 1);
        assert_eq!(flow.cut(), Cut { experts: vec![1], ranks: vec![0] });
        assert_eq!(flow.push(0, 3, &|_| 5), 2);
        assert_eq!(flow.rank_loads, [5, 5]);
    }

    #[test]
    fn pushes_all_at_once() {
        let placed = Placement::new(3, &[vec![0, 1], vec![0], vec![1, 2]], vec![0, 0, 1], Ownership::Home).unwrap();
        let mut flow = Flow::new(&placed);
        assert!(flow.push_all(&mut [5, 0, 5], Layers::Nearest, &|_| 5));
        let mut left = [0, 4, 1];
        // 1 pushes 0 off rank 0, 0 pushes 2 off rank 1.
        assert!(flow.push_all(&mut left, Layers::Nearest, &|_| 5), "{left:?} {flow:?}");
        assert_eq!((flow.rank_loads.as_slice(), flow.loads[2]), ([5, 5, 5].as_slice(), 4));
        let mut left = [0, 1, 0];
        assert!(!flow.push_all(&mut left, Layers::All, &|_| 5));
        assert_eq!(left, [0, 1, 0]);
        assert_eq!(flow.cut().ranks.len(), 3);
        flow.clear();
        assert_eq!((flow.loads.iter().sum::<u64>(), flow.rank_loads.iter().sum::<u64>()), (0, 0));
    }
}
