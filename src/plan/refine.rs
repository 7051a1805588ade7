//! Fewer pairs across nodes and ranks, at the same loads of the busiest rank.
//!
//! For given amounts the best transport keeps `min(load, local pairs)` of every instance on its rank and the same of every node, so
//! what crosses is a convex function of the amounts, and the amounts are a flow: through an expert, its groups (its instances in
//! one node), its instances and their ranks. A flow is cheapest when its residual network has no cycle of negative cost
//! (Klein). The cycles are found by Bellman-Ford passes, several at once in the graph of predecessors.

use super::flow::Flow;
use super::placement::Placement;
use super::route::Sources;

/// One step in the residual network, moving pairs along.
#[derive(Debug, Clone, Copy)]
enum Arc {
    None,
    /// From the rank of an instance to its group: the instance gives pairs up.
    Out(u32),
    /// From a group to the rank of an instance, which takes them.
    In(u32),
    /// From a group to its expert: the pairs leave the node.
    Leave(u32),
    /// From an expert to its group in another node.
    Enter(u32),
    /// From a rank with room to the idle room of all ranks.
    Fill(u32),
    /// From the idle room to a rank, which gains room.
    Free(u32),
}

/// The instances of one expert in one node.
#[derive(Debug)]
struct Group {
    expert: u32,
    first: u32,
    end: u32,
    /// Pairs of the node for this expert.
    demand: u64,
    load: u64,
}

/// The residual network of a flow, with labels of Bellman and Ford.
#[derive(Debug)]
pub(crate) struct Refine<'a, 'f> {
    hosts: &'a [u32],
    /// Cost of a pair that crosses nodes, where one that crosses ranks costs 1. No cycle changes more ranks, so nodes come first.
    node_cost: i64,
    flow: &'f mut Flow<'a>,
    /// Pairs of each instance's own rank.
    local: &'f [u64],
    /// Only of experts with a choice.
    groups: Vec<Group>,
    /// First group of each expert with a choice.
    offsets: Vec<u32>,
    group_of: Vec<u32>,
    /// `[R]` room of each rank.
    room: Vec<u64>,
    /// Ranks, then groups, experts with a choice, and the idle room.
    labels: Vec<i64>,
    by: Vec<Arc>,
    /// Walk that came by each vertex last.
    seen: Vec<u64>,
    walks: u64,
}

impl<'a, 'f> Refine<'a, 'f> {
    pub(crate) fn new(
        sources: &Sources,
        placement: &'a Placement,
        flow: &'f mut Flow<'a>,
        local: &'f [u64],
        limit: &impl Fn(usize) -> u64,
    ) -> Self {
        let hosts = placement.host_of_instance();
        let (mut groups, mut offsets) = (Vec::<Group>::new(), vec![0]);
        let mut group_of = vec![0; placement.instances()];
        for e in (0..placement.experts()).filter(|&e| placement.hosts(e).len() > 1) {
            let (mut last, expert) = (usize::MAX, offsets.len() as u32 - 1);
            for i in placement.range(e) {
                let node = sources.node_of(hosts[i] as usize);
                if node != last {
                    let demand = u64::from(sources.per_node(e, node));
                    groups.push(Group { expert, first: i as u32, end: i as u32, demand, load: 0 });
                    last = node;
                }
                group_of[i] = groups.len() as u32 - 1;
                if let Some(group) = groups.last_mut() {
                    group.end += 1;
                    group.load += flow.loads[i];
                }
            }
            offsets.push(groups.len() as u32);
        }
        let room: Vec<u64> =
            flow.rank_loads.iter().enumerate().map(|(r, &load)| limit(r).saturating_sub(load)).collect();
        let vertices = room.len() + groups.len() + offsets.len();
        Self {
            hosts,
            // A cycle passes through a rank once, out of one instance and into another.
            node_cost: 2 * room.len() as i64 + 1,
            flow,
            local,
            groups,
            offsets,
            group_of,
            room,
            labels: vec![0; vertices],
            by: vec![Arc::None; vertices],
            seen: vec![0; vertices],
            walks: 0,
        }
    }

    /// Cancels negative cycles for so many passes at most; whether none is left, so that no assignment with the same busiest rank moves
    /// fewer pairs across nodes, or as few and fewer across ranks.
    pub(crate) fn run(&mut self, passes: usize) -> bool {
        for _ in 0..passes {
            if !self.relax() {
                return true;
            }
            self.cancel();
        }
        false
    }

    fn group_vertex(&self, group: usize) -> usize {
        self.room.len() + group
    }

    fn expert_vertex(&self, expert: usize) -> usize {
        self.room.len() + self.groups.len() + expert
    }

    fn idle_vertex(&self) -> usize {
        self.labels.len() - 1
    }

    fn lower(&mut self, vertex: usize, label: i64, by: Arc) -> bool {
        let lower = label < self.labels[vertex];
        if lower {
            self.labels[vertex] = label;
            self.by[vertex] = by;
        }
        lower
    }

    /// One pass over all arcs; whether a label changed.
    fn relax(&mut self) -> bool {
        let mut changed = false;
        for expert in 0..self.offsets.len() - 1 {
            let (own, vertex) =
                (self.offsets[expert] as usize..self.offsets[expert + 1] as usize, self.expert_vertex(expert));
            for g in own.clone() {
                let Group { first, end, demand, load, .. } = self.groups[g];
                for i in first..end {
                    let (at, rank) = (i as usize, self.hosts[i as usize] as usize);
                    if self.flow.loads[at] > 0 {
                        let label = self.labels[rank] + i64::from(self.flow.loads[at] <= self.local[at]);
                        changed |= self.lower(self.group_vertex(g), label, Arc::Out(i));
                    }
                }
                if load > 0 {
                    let label = self.labels[self.group_vertex(g)] + if load <= demand { self.node_cost } else { 0 };
                    changed |= self.lower(vertex, label, Arc::Leave(g as u32));
                }
            }
            for g in own {
                let Group { first, end, demand, load, .. } = self.groups[g];
                let label = self.labels[vertex] - if load < demand { self.node_cost } else { 0 };
                changed |= self.lower(self.group_vertex(g), label, Arc::Enter(g as u32));
                for i in first..end {
                    let (at, rank) = (i as usize, self.hosts[i as usize] as usize);
                    let label = self.labels[self.group_vertex(g)] - i64::from(self.flow.loads[at] < self.local[at]);
                    changed |= self.lower(rank, label, Arc::In(i));
                }
            }
        }
        let idle = self.idle_vertex();
        for r in 0..self.room.len() {
            if self.room[r] > 0 {
                changed |= self.lower(idle, self.labels[r], Arc::Fill(r as u32));
            }
        }
        for r in 0..self.room.len() {
            changed |= self.lower(r, self.labels[idle], Arc::Free(r as u32));
        }
        changed
    }

    /// Where an arc begins.
    fn tail(&self, arc: Arc) -> Option<usize> {
        Some(match arc {
            Arc::None => return None,
            Arc::Out(i) => self.hosts[i as usize] as usize,
            Arc::In(i) => self.group_vertex(self.group_of[i as usize] as usize),
            Arc::Leave(g) => self.group_vertex(g as usize),
            Arc::Enter(g) => self.expert_vertex(self.groups[g as usize].expert as usize),
            Arc::Fill(r) => r as usize,
            Arc::Free(_) => self.idle_vertex(),
        })
    }

    /// How many pairs an arc carries at its present cost.
    fn width(&self, arc: Arc) -> u64 {
        // Above the kink the cost changes there, below it at zero.
        let down = |load: u64, kink: u64| if load <= kink { load } else { load - kink };
        let up = |load: u64, kink: u64| if load < kink { kink - load } else { u64::MAX };
        match arc {
            Arc::Out(i) => down(self.flow.loads[i as usize], self.local[i as usize]),
            Arc::In(i) => up(self.flow.loads[i as usize], self.local[i as usize]),
            Arc::Leave(g) => down(self.groups[g as usize].load, self.groups[g as usize].demand),
            Arc::Enter(g) => up(self.groups[g as usize].load, self.groups[g as usize].demand),
            Arc::Fill(r) => self.room[r as usize],
            Arc::None | Arc::Free(_) => u64::MAX,
        }
    }

    fn push(&mut self, arc: Arc, pairs: u64) {
        match arc {
            Arc::None => (),
            Arc::Out(i) => {
                self.flow.loads[i as usize] -= pairs;
                self.flow.rank_loads[self.hosts[i as usize] as usize] -= pairs;
            }
            Arc::In(i) => {
                self.flow.loads[i as usize] += pairs;
                self.flow.rank_loads[self.hosts[i as usize] as usize] += pairs;
            }
            Arc::Leave(g) => self.groups[g as usize].load -= pairs,
            Arc::Enter(g) => self.groups[g as usize].load += pairs,
            Arc::Fill(r) => self.room[r as usize] -= pairs,
            Arc::Free(r) => self.room[r as usize] += pairs,
        }
    }

    /// Cancels the cycles among the predecessors: they have no vertex in common, and each has a negative cost.
    fn cancel(&mut self) {
        let before = self.walks;
        let mut found = false;
        // Every cycle passes through a rank.
        for start in 0..self.room.len() {
            self.walks += 1;
            let mut at = start;
            while self.seen[at] <= before {
                self.seen[at] = self.walks;
                let Some(tail) = self.tail(self.by[at]) else { break };
                at = tail;
            }
            if self.seen[at] == self.walks && self.tail(self.by[at]).is_some() {
                self.cancel_at(at);
                found = true;
            }
        }
        // Other costs hold now: predecessors found before mean nothing, labels are as good a start as any.
        if found {
            self.by.fill(Arc::None);
        }
    }

    fn cancel_at(&mut self, start: usize) {
        let mut pairs = u64::MAX;
        let mut at = start;
        while let Some(tail) = self.tail(self.by[at]) {
            pairs = pairs.min(self.width(self.by[at]));
            at = tail;
            if at == start {
                break;
            }
        }
        while let Some(tail) = self.tail(self.by[at]) {
            self.push(self.by[at], pairs);
            at = tail;
            if at == start {
                break;
            }
        }
    }
}
