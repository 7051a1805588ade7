//! Which source sends how many pairs to which instance.

use super::counts::Counts;
use super::placement::Placement;
use super::route::{Route, Sources, check_instances, check_node};
use crate::{Error, Result};

/// Splits the pairs of every (source, expert) over the expert's instances, none of which gets more than its limit (`[instances]`).
///
/// Local first, then inside the node, then the rest in rank order. Where the limits of an expert add up to its pairs, no other split
/// keeps more of them on their rank or in their node. The routes are sorted by (expert, source); those of one (expert, source)
/// begin with the local one, then come those inside the node, then the others, by ascending rank.
///
/// # Errors
/// [`Error::Shape`] where sources, placement and limits differ in size; [`Error::Argument`] naming the expert whose limits do not
/// hold its pairs.
pub fn transport(sources: &Sources, placement: &Placement, limits: &[u32]) -> Result<Vec<Route>> {
    split(sources.counts(), sources.ranks_per_node(), placement, limits, "limits")
}

/// Routes retained pairs, `[R, E]`, to any instances of their experts, within the backward capacity of each (`[instances]`): as
/// [`transport`] does.
///
/// # Errors
/// As [`transport`], and [`Error::Argument`] for 0 ranks a node.
pub fn route_backward(
    retained: &Counts,
    ranks_per_node: usize,
    placement: &Placement,
    capacity: &[u32],
) -> Result<Vec<Route>> {
    check_node(ranks_per_node)?;
    split(retained, ranks_per_node, placement, capacity, "backward capacity")
}

/// Routes retained pairs to where their forward ran: `retained[i]` of the pairs of `forward[i]`. Routes without any are left out.
///
/// # Errors
/// [`Error::Shape`] where the lists differ in length; [`Error::Argument`] naming a route that retains more than it has.
pub fn follow(forward: &[Route], retained: &[u32]) -> Result<Vec<Route>> {
    if forward.len() != retained.len() {
        return Err(Error::shape("retained pairs", retained.len(), format!("{} forward routes", forward.len())));
    }
    if let Some((route, kept)) = forward.iter().zip(retained).find(|(route, kept)| **kept > route.pairs) {
        let Route { expert, from, to, pairs } = route;
        let name = format!("retained pairs of expert {expert} from rank {from} on rank {to}");
        return Err(Error::argument(name, kept, format!("at most {pairs}, as forward has")));
    }
    let kept = forward.iter().zip(retained).filter(|(_, kept)| **kept > 0);
    Ok(kept.map(|(route, &pairs)| Route { pairs, ..*route }).collect())
}

/// Where the retained pairs are expected to come from: `q_e n[s][e] / n_e`, `[R, E]`, made whole so that the pairs of each expert add up
/// to its quota `q_e`: the first s ranks together have their share rounded down, so a rank differs by less than a pair from its
/// own.
///
/// # Errors
/// [`Error::Shape`] where there is not one quota for each expert; [`Error::Argument`] for a quota above its count.
pub fn expected_retained(counts: &Counts, quotas: &[u32]) -> Result<Counts> {
    let experts = counts.experts();
    if quotas.len() != experts {
        return Err(Error::shape("quotas", quotas.len(), format!("{experts} experts")));
    }
    if let Some(e) = (0..experts).find(|&e| quotas[e] > counts.per_expert()[e]) {
        let allowed = format!("at most its count {}", counts.per_expert()[e]);
        return Err(Error::argument(format!("quotas[{e}]"), quotas[e], allowed));
    }
    // Of each expert: quota, pairs, pairs of the ranks so far and what is retained of them.
    let mut columns: Vec<[u64; 4]> = (quotas.iter().zip(counts.per_expert()))
        .map(|(&quota, &all)| [u64::from(quota), u64::from(all).max(1), 0, 0])
        .collect();
    let mut retained = Vec::with_capacity(counts.flat().len());
    for row in counts.flat().chunks_exact(experts) {
        retained.extend(row.iter().zip(&mut columns).map(|(&n, [quota, all, seen, given])| {
            *seen += u64::from(n);
            let until = divide(*seen * *quota, *all);
            let share = until - *given;
            *given = until;
            // At most n, as the quota is at most all.
            share as u32
        }));
    }
    Counts::from_flat(counts.ranks(), experts, retained)
}

/// `a / b` for a quotient below 2^32, faster than the machine's own division of 64 bits.
fn divide(a: u64, b: u64) -> u64 {
    // Off by one at most: the relative error of the float is below 2^-51.
    let near = (a as f64 / b as f64) as u64;
    match near * b {
        product if product > a => near - 1,
        product if a - product >= b => near + 1,
        _ => near,
    }
}

fn split(
    counts: &Counts,
    ranks_per_node: usize,
    placement: &Placement,
    limits: &[u32],
    name: &str,
) -> Result<Vec<Route>> {
    counts.check(placement.ranks(), placement.experts())?;
    check_instances(name, limits.len(), placement)?;
    let sources = counts.flat().iter().filter(|&&n| n > 0).count();
    let mut routes = Vec::with_capacity(sources.saturating_add(placement.instances()));
    let mut splitter = Splitter { ranks_per_node, room: Vec::new(), near: Vec::new() };
    Columns::new(counts).for_each(|e, column| {
        let own = &limits[placement.range(e)];
        let (pairs, room) = (counts.per_expert()[e], own.iter().map(|&c| u64::from(c)).sum::<u64>());
        if room < u64::from(pairs) {
            let name = format!("{name} of expert {e} on ranks {:?}", placement.hosts(e));
            return Err(Error::argument(name, format!("{own:?}, in all {room}"), format!("{pairs} or more in all")));
        }
        if pairs > 0 {
            splitter.split(e, column, placement.hosts(e), own, &mut routes);
        }
        Ok(())
    })?;
    Ok(routes)
}

/// Splits one expert at a time; its buffers serve all.
struct Splitter {
    ranks_per_node: usize,
    /// What each instance still takes.
    room: Vec<u32>,
    /// Routes to other ranks of the node: source, index of the instance, pairs.
    near: Vec<(u32, u32, u32)>,
}

impl Splitter {
    /// `column`: pairs of each rank, as many as fit; sorted by source, as are `hosts`.
    fn split(&mut self, e: usize, column: &mut [u32], hosts: &[u32], limits: &[u32], routes: &mut Vec<Route>) {
        let Self { ranks_per_node, room, near } = self;
        room.clear();
        room.extend(limits);
        // Local pairs leave the column at once; `limits - room` remembers them.
        for (room, &r) in room.iter_mut().zip(hosts) {
            let local = column[r as usize].min(*room);
            column[r as usize] -= local;
            *room -= local;
        }
        let local_room = room.clone();
        near.clear();
        let mut first = 0;
        while first < hosts.len() {
            let node = hosts[first] as usize / *ranks_per_node;
            let in_node = |r: &&u32| **r as usize / *ranks_per_node == node;
            let end = first + hosts[first..].iter().take_while(in_node).count();
            let ranks =
                node * *ranks_per_node..node.saturating_add(1).saturating_mul(*ranks_per_node).min(column.len());
            let mut to = first;
            for s in ranks {
                while column[s] > 0 && to < end {
                    let pairs = column[s].min(room[to]);
                    if pairs == 0 {
                        to += 1;
                        continue;
                    }
                    near.push((s as u32, to as u32, pairs));
                    column[s] -= pairs;
                    room[to] -= pairs;
                }
            }
            first = end;
        }
        let (mut own, mut next, mut to) = (0, 0, 0);
        for (s, far) in (0_u32..).zip(column.iter_mut()) {
            let mut emit = |at: usize, pairs| routes.push(Route { expert: e as u32, from: s, to: hosts[at], pairs });
            if hosts.get(own) == Some(&s) {
                let local = limits[own] - local_room[own];
                if local > 0 {
                    emit(own, local);
                }
                own += 1;
            }
            while let Some(&(_, at, pairs)) = near.get(next).filter(|route| route.0 == s) {
                emit(at as usize, pairs);
                next += 1;
            }
            while *far > 0 && to < hosts.len() {
                let pairs = (*far).min(room[to]);
                if pairs == 0 {
                    to += 1;
                    continue;
                }
                emit(to, pairs);
                *far -= pairs;
                room[to] -= pairs;
            }
        }
    }
}

/// The columns of a matrix of counts, one after the other: read in blocks, since a column alone uses a sixteenth of the memory it
/// touches.
struct Columns<'a> {
    counts: &'a Counts,
    /// Distance of two columns in the block: not that of a power of two, which would put them all in the same lines of a cache.
    stride: usize,
    block: Vec<u32>,
}

impl<'a> Columns<'a> {
    const WIDTH: usize = 16;

    fn new(counts: &'a Counts) -> Self {
        let stride = counts.ranks() + Self::WIDTH;
        Self { counts, stride, block: vec![0; stride * Self::WIDTH] }
    }

    /// Calls `f` with every expert and its pairs from each rank, a copy that it may use up.
    fn for_each(mut self, mut f: impl FnMut(usize, &mut [u32]) -> Result<()>) -> Result<()> {
        let (ranks, experts) = (self.counts.ranks(), self.counts.experts());
        for first in (0..experts).step_by(Self::WIDTH) {
            for (s, row) in self.counts.flat().chunks_exact(experts).enumerate() {
                for (&n, column) in row[first..].iter().zip(self.block.chunks_exact_mut(self.stride)) {
                    column[s] = n;
                }
            }
            let columns = self.block.chunks_exact_mut(self.stride).take(experts - first);
            columns.enumerate().try_for_each(|(k, column)| f(first + k, &mut column[..ranks]))?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "transport_tests.rs"]
mod tests;
