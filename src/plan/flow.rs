//! Flows from experts to the ranks that host them: which loads fit, and what stands in the way where they do not.
//!
//! Every expert has a supply of pairs, every rank a capacity; an edge for each instance. Augmenting paths move pairs from full
//! ranks to others by way of experts that have a copy on both, so a flow is only ever extended: loads found for smaller
//! capacities stay valid for larger ones.

use super::placement::Placement;

/// Not reached, or reached without a predecessor.
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
    /// Instance by which an expert, a rank was reached.
    expert_from: Vec<u32>,
    rank_from: Vec<u32>,
    reached_experts: Vec<u32>,
    reached_ranks: Vec<u32>,
}

/// What stands in the way: experts whose pairs can go nowhere but to these ranks, all full.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) experts: Vec<u32>,
    pub(crate) ranks: Vec<u32>,
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
            expert_from: vec![NONE; experts],
            rank_from: vec![NONE; ranks],
            reached_experts: Vec::new(),
            reached_ranks: Vec::new(),
        }
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
        while pairs > 0 {
            let Some(end) = self.search(expert, capacity) else { break };
            // From the free rank back to the expert: each expert on the way moves pairs from the rank it was reached by.
            let mut amount = pairs.min(capacity(end as usize) - self.rank_loads[end as usize]);
            let mut rank = end;
            loop {
                let by = self.expert_of[self.rank_from[rank as usize] as usize] as usize;
                if by == expert {
                    break;
                }
                let out = self.expert_from[by] as usize;
                amount = amount.min(self.loads[out]);
                rank = self.placement.host_of_instance()[out];
            }
            let mut rank = end;
            self.rank_loads[end as usize] += amount;
            loop {
                let into = self.rank_from[rank as usize] as usize;
                self.loads[into] += amount;
                let by = self.expert_of[into] as usize;
                if by == expert {
                    break;
                }
                let out = self.expert_from[by] as usize;
                self.loads[out] -= amount;
                rank = self.placement.host_of_instance()[out];
            }
            pairs -= amount;
        }
        pairs
    }

    /// Breadth first from an expert to a rank with room.
    fn search(&mut self, expert: usize, capacity: &impl Fn(usize) -> u64) -> Option<u32> {
        for e in self.reached_experts.drain(..) {
            self.expert_from[e as usize] = NONE;
        }
        for r in self.reached_ranks.drain(..) {
            self.rank_from[r as usize] = NONE;
        }
        self.reached_experts.push(expert as u32);
        let mut next = 0;
        while let Some(&e) = self.reached_experts.get(next) {
            next += 1;
            for into in self.placement.range(e as usize) {
                let rank = self.placement.host_of_instance()[into];
                if self.rank_from[rank as usize] != NONE {
                    continue;
                }
                self.rank_from[rank as usize] = into as u32;
                self.reached_ranks.push(rank);
                if self.rank_loads[rank as usize] < capacity(rank as usize) {
                    return Some(rank);
                }
                let here = self.rank_offsets[rank as usize] as usize..self.rank_offsets[rank as usize + 1] as usize;
                for &out in &self.on_rank[here] {
                    let other = self.expert_of[out as usize] as usize;
                    if other != expert && self.expert_from[other] == NONE && self.loads[out as usize] > 0 {
                        self.expert_from[other] = out;
                        self.reached_experts.push(other as u32);
                    }
                }
            }
        }
        None
    }

    /// After a push that left pairs over: everything reachable from that expert. All these ranks are full, and everything on them
    /// belongs to these experts.
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
}
