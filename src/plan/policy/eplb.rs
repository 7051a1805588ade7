//! EPLB (DeepSeek-AI, github.com/deepseek-ai/EPLB): copies for the experts with the largest load a copy, packed so that every
//! rank holds the same number and about the same load.
//!
//! The published packing may put two copies of one expert on one rank (its issue 22), where the second is of no use. Here an
//! expert never gets more copies than there are ranks to hold them, and a copy passes over the ranks that have one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::shared::{self, Heaviest};
use super::{Decision, Input, Policy};
use crate::plan::counts::Counts;
use crate::plan::mode::Ownership;
use crate::plan::placement::Placement;
use crate::plan::setup::Setup;
use crate::{Error, Result};

/// EPLB's policy: an expert's pairs are split evenly over its copies; the placement is made anew now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eplb {
    /// Groups of experts to nodes first, then copies inside each node. Where groups do not divide the experts, nodes not the
    /// groups, or nodes not ranks and slots, the global form runs, which knows no nodes.
    pub hierarchical: bool,
    /// Groups of consecutive experts. 0: those of the router (`n_group`) if the nodes divide them, else one for each expert.
    pub groups: usize,
    /// Expert slots of a rank and layer, as [`Symi::slots_per_rank`](super::Symi::slots_per_rank).
    pub slots_per_rank: Option<usize>,
    /// Steps between two placements, at least 1; the first is made after step 0. EPLB leaves it to the user, who pays for moving
    /// experts each time: 10 by default.
    pub interval: u64,
}

impl Default for Eplb {
    fn default() -> Self {
        Self { hierarchical: false, groups: 0, slots_per_rank: None, interval: 10 }
    }
}

impl Policy for Eplb {
    fn name(&self) -> &str {
        if self.hierarchical { "eplb-hierarchical" } else { "eplb" }
    }

    /// What the policy makes of equal loads.
    fn start(&self, setup: &Setup, counts: &Counts) -> Result<Placement> {
        let (ranks, experts) = (setup.cluster.ranks, setup.config.num_experts);
        let ownership = setup.ownership.unwrap_or(Ownership::Home);
        let slots = shared::start_slots(setup, counts, ownership, self.slots_per_rank)?;
        let before = Placement::contiguous(experts, ranks, ownership)?;
        self.place(setup, &vec![1.0; experts], slots, &before)
    }

    /// Loads are those of `demand`, smoothed over the steps before, or without it this step's.
    fn decide(&self, setup: &Setup, input: &Input<'_>) -> Result<Decision> {
        shared::check(setup, input)?;
        if self.interval == 0 {
            return Err(Error::argument("interval", 0, "1 or more"));
        }
        let next = if input.step.is_multiple_of(self.interval) {
            let slots = shared::slots_of(input.placement);
            match input.demand {
                Some(demand) => self.place(setup, &demand.parts().load, slots, input.placement)?,
                None => self.place(setup, &shared::loads(input.counts), slots, input.placement)?,
            }
        } else {
            input.placement.clone()
        };
        let pairs = input.counts.per_expert();
        let forward = shared::even_split(input.placement, pairs);
        shared::keep_all(setup, pairs, input.placement.clone(), forward, next)
    }
}

impl Eplb {
    fn place(&self, setup: &Setup, load: &[f64], slots: usize, before: &Placement) -> Result<Placement> {
        setup.cluster.validate()?;
        let ranks = before.ranks();
        let map = eplb_map(load, slots, ranks, self.grouping(setup, slots))?;
        let hosts = shared::hosts_of(load.len(), &map);
        let homes = shared::homes(ranks, &hosts, before.home());
        Placement::new(ranks, &hosts, homes, before.ownership())
    }

    /// Groups and nodes if the hierarchical form can run; one of each otherwise.
    fn grouping(&self, setup: &Setup, slots: usize) -> EplbGroups {
        let (ranks, experts, nodes) = (setup.cluster.ranks, setup.config.num_experts, setup.cluster.nodes());
        let groups = match self.groups {
            0 if setup.config.n_group.is_multiple_of(nodes) => setup.config.n_group,
            0 => experts,
            groups => groups,
        };
        let grouping = EplbGroups { groups, nodes };
        let full_nodes = ranks == nodes * setup.cluster.ranks_per_node;
        if self.hierarchical && full_nodes && grouping.divides(experts, slots, ranks) {
            grouping
        } else {
            EplbGroups::GLOBAL
        }
    }
}

/// How EPLB's hierarchical form divides experts and ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EplbGroups {
    /// Groups of consecutive experts, whole on one node.
    pub groups: usize,
    /// Nodes of consecutive ranks.
    pub nodes: usize,
}

impl EplbGroups {
    /// The global form: one group on one node.
    pub const GLOBAL: Self = Self { groups: 1, nodes: 1 };

    /// Whether groups divide the experts, and nodes groups, slots and ranks.
    const fn divides(self, experts: usize, slots: usize, ranks: usize) -> bool {
        let Self { groups, nodes } = self;
        groups > 0
            && nodes > 0
            && experts.is_multiple_of(groups)
            && groups.is_multiple_of(nodes)
            && slots.is_multiple_of(nodes)
            && ranks.is_multiple_of(nodes)
    }
}

/// EPLB: the experts of each rank, `[ranks]` lists, none with an expert twice, in the order they were placed.
///
/// Groups are packed onto nodes ([`eplb_pack`]), the experts of each node copied ([`eplb_replicate`]), the copies packed onto its ranks.
/// Slots that do not divide are spread as evenly as can be; of more slots than ranks can use (no expert twice), the rest stay empty.
///
/// # Errors
/// [`Error::Argument`] for loads that are negative, NaN or infinite, fewer slots than experts, no ranks, and
/// groups or nodes that do not divide what they must.
pub fn eplb_map(load: &[f64], slots: usize, ranks: usize, grouping: EplbGroups) -> Result<Vec<Vec<u32>>> {
    shared::check_loads("load", load)?;
    let experts = load.len();
    let EplbGroups { groups, nodes } = grouping;
    if ranks == 0 {
        return Err(Error::argument("ranks", 0, "1 or more"));
    }
    if !grouping.divides(experts, slots, ranks) {
        let value = format!("{groups} groups on {nodes} nodes");
        let allowed = format!(
            "groups that divide {experts} experts, and nodes that divide the groups, {slots} slots and {ranks} ranks"
        );
        return Err(Error::argument("grouping", value, allowed));
    }
    let (group_size, node_ranks) = (experts / groups, ranks / nodes);
    let group_loads: Vec<f64> = load.chunks_exact(group_size).map(|group| group.iter().sum()).collect();
    let all: Vec<u32> = (0..groups as u32).collect();
    let mut map = Vec::with_capacity(ranks);
    for node in eplb_pack(&group_loads, &all, &vec![groups / nodes; nodes])? {
        let own: Vec<usize> = node.iter().flat_map(|&g| g * group_size..(g + 1) * group_size).collect();
        let own_loads: Vec<f64> = own.iter().map(|&e| load[e]).collect();
        let node_slots = (slots / nodes).min(own.len().saturating_mul(node_ranks));
        let copies = eplb_replicate(&own_loads, node_slots, node_ranks)?;
        let mut number = vec![0_u32; own.len()];
        copies.iter().for_each(|&i| number[i as usize] += 1);
        let copy_loads: Vec<f64> =
            copies.iter().map(|&i| own_loads[i as usize] / f64::from(number[i as usize])).collect();
        let first = |rank| shared::first_slot(rank, node_slots, node_ranks);
        let room: Vec<usize> = (0..node_ranks).map(|rank| first(rank + 1) - first(rank)).collect();
        for items in eplb_pack(&copy_loads, &copies, &room)? {
            map.push(items.into_iter().map(|item| own[copies[item] as usize] as u32).collect());
        }
    }
    Ok(map)
}

/// EPLB's replication: the expert in each of `slots` slots, first one slot each in order, then each further slot to the expert with the
/// largest load a copy, ties to the lower index; experts without load come last, those with the fewest copies first.
///
/// No expert gets more than `most` copies, the number of ranks that can hold them; EPLB itself has no such limit.
///
/// # Errors
/// [`Error::Argument`] for loads that are negative, NaN or infinite, and for slots outside E to `most` E.
pub fn eplb_replicate(load: &[f64], slots: usize, most: usize) -> Result<Vec<u32>> {
    shared::check_loads("load", load)?;
    let experts = load.len();
    if slots < experts || slots > experts.saturating_mul(most) || u32::try_from(slots).is_err() {
        let allowed = format!("1 to {most} for each of {experts} experts, up to {}", u32::MAX);
        return Err(Error::argument("slots", slots, allowed));
    }
    // Copies break ties among loads of 0 alone, as EPLB's ties go to the lower index.
    let entry = |e: u32, copies: u32| {
        let each = load[e as usize] / f64::from(copies);
        Heaviest { load: each, copies: if each > 0.0 { 0 } else { copies }, index: e }
    };
    let mut copies = vec![1_u32; experts];
    let mut slot_experts: Vec<u32> = (0..experts as u32).collect();
    let mut next: BinaryHeap<Heaviest> = slot_experts.iter().map(|&e| entry(e, 1)).collect();
    while slot_experts.len() < slots {
        // With `most` 1 all slots are given already; with more, an expert leaves the heap once it has that many.
        let Some(Heaviest { index, .. }) = next.pop() else { break };
        slot_experts.push(index);
        copies[index as usize] += 1;
        if (copies[index as usize] as usize) < most {
            next.push(entry(index, copies[index as usize]));
        }
    }
    Ok(slot_experts)
}

/// EPLB's balanced packing: items by falling load, ties to the lower index, each into the lightest pack with room, until pack `p`
/// holds `room[p]` items. Returns the items of each pack in the order they came. One item a pack stays in order.
///
/// Beyond EPLB, two items of one `kind` never share a pack: packs that hold the kind are passed over. Where only those have room
/// left, one of them takes an item from a full pack that lacks the kind, which gets the new one; the exchange that
/// leaves the lower load on the heavier of the two is taken.
///
/// # Errors
/// [`Error::Shape`] where loads, kinds and room differ in number; [`Error::Argument`] for loads that are not finite or negative, and
/// where items of one kind cannot be kept apart.
pub fn eplb_pack(load: &[f64], kind: &[u32], room: &[usize]) -> Result<Vec<Vec<usize>>> {
    shared::check_loads("load", load)?;
    let items = load.len();
    if kind.len() != items {
        return Err(Error::shape("kinds", kind.len(), format!("{items} items")));
    }
    let places = room.iter().fold(0_usize, |sum, &room| sum.saturating_add(room));
    if places != items {
        return Err(Error::shape("room of all packs", places, format!("{items} items")));
    }
    if room.iter().all(|&room| room == 1) {
        return Ok((0..items).map(|item| vec![item]).collect());
    }
    let mut order: Vec<usize> = (0..items).collect();
    order.sort_by(|&a, &b| load[b].total_cmp(&load[a]));
    let mut packing = Packing { load, kind, packs: vec![Vec::new(); room.len()], loads: vec![0.0; room.len()] };
    let lightest = |loads: &[f64], pack: u32| Reverse((Load(loads[pack as usize]), pack));
    let with_room = (0..room.len() as u32).filter(|&pack| room[pack as usize] > 0);
    let mut open: BinaryHeap<Reverse<(Load, u32)>> = with_room.map(|pack| lightest(&packing.loads, pack)).collect();
    let mut passed = Vec::new();
    for item in order {
        let mut found = None;
        while let Some(Reverse((_, pack))) = open.pop() {
            if !packing.holds(pack as usize, kind[item]) {
                found = Some(pack);
                break;
            }
            passed.push(pack);
        }
        let pack = match found {
            Some(pack) => {
                packing.put(pack as usize, item);
                pack
            }
            None => {
                // All packs with room were passed over, the lightest first.
                let exchanged = if passed.is_empty() { None } else { packing.exchange(passed.remove(0), item) };
                exchanged.ok_or_else(|| {
                    let allowed = format!("{} packs that can each take one", room.len());
                    Error::argument(format!("kind {}", kind[item]), "too frequent", allowed)
                })?
            }
        };
        passed.push(pack);
        let still = passed.drain(..).filter(|&pack| packing.packs[pack as usize].len() < room[pack as usize]);
        open.extend(still.map(|pack| lightest(&packing.loads, pack)));
    }
    Ok(packing.packs)
}

/// A finite load, to be ordered.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Load(f64);

impl Eq for Load {}

impl PartialOrd for Load {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Load {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Packs while they are filled.
#[derive(Debug)]
struct Packing<'a> {
    load: &'a [f64],
    kind: &'a [u32],
    packs: Vec<Vec<usize>>,
    loads: Vec<f64>,
}

impl Packing<'_> {
    fn holds(&self, pack: usize, kind: u32) -> bool {
        self.packs[pack].iter().any(|&item| self.kind[item] == kind)
    }

    fn put(&mut self, pack: usize, item: usize) {
        self.packs[pack].push(item);
        self.loads[pack] += self.load[item];
    }

    /// Makes room for `item` in a pack that lacks its kind, by moving one of that pack's items to `open`, which has room. Returns
    /// `open`.
    fn exchange(&mut self, open: u32, item: usize) -> Option<u32> {
        let to = open as usize;
        let mut best: Option<(f64, usize, usize)> = None;
        for from in (0..self.packs.len()).filter(|&from| from != to && !self.holds(from, self.kind[item])) {
            for (at, &moved) in self.packs[from].iter().enumerate().filter(|(_, m)| !self.holds(to, self.kind[**m])) {
                let gives = self.loads[from] - self.load[moved] + self.load[item];
                let heavier = gives.max(self.loads[to] + self.load[moved]);
                if best.is_none_or(|(least, ..)| heavier < least) {
                    best = Some((heavier, from, at));
                }
            }
        }
        let (_, from, at) = best?;
        let moved = self.packs[from].remove(at);
        self.loads[from] -= self.load[moved];
        self.put(from, item);
        self.put(to, moved);
        Some(open)
    }
}

#[cfg(test)]
#[path = "eplb_tests.rs"]
mod tests;
