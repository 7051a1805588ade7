//! What crosses ranks and nodes.

use super::placement::Placement;
use super::route::{Route, Sources, check_instances, check_node};
use crate::{Error, Result};

/// Pairs that ranks and nodes compute, receive and send. A token that several pairs share counts once for each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traffic {
    /// `[R]` pairs computed.
    pub rows: Vec<u64>,
    /// `[R]` of them, those of other ranks.
    pub received: Vec<u64>,
    /// `[R]` pairs of this rank computed on others.
    pub sent: Vec<u64>,
    /// `[nodes]` pairs computed in this node for others.
    pub node_received: Vec<u64>,
    /// `[nodes]` pairs of this node computed in others.
    pub node_sent: Vec<u64>,
}

impl Traffic {
    fn zero(ranks: usize, nodes: usize) -> Self {
        let (of_ranks, of_nodes) = (vec![0; ranks], vec![0; nodes]);
        Self {
            rows: of_ranks.clone(),
            received: of_ranks.clone(),
            sent: of_ranks,
            node_received: of_nodes.clone(),
            node_sent: of_nodes,
        }
    }

    /// Counts what routes move.
    ///
    /// # Errors
    /// [`Error::Argument`] for 0 ranks, 0 ranks a node, or a route from or to a rank that does not exist.
    pub fn of_routes(routes: &[Route], ranks: usize, ranks_per_node: usize) -> Result<Self> {
        check_node(ranks_per_node)?;
        if ranks == 0 {
            return Err(Error::argument("ranks", 0, "1 or more"));
        }
        let mut traffic = Self::zero(ranks, ranks.div_ceil(ranks_per_node));
        for route in routes {
            let (from, to, pairs) = (route.from as usize, route.to as usize, u64::from(route.pairs));
            if from.max(to) >= ranks {
                return Err(Error::argument("route", format!("{from} to {to}"), format!("ranks below {ranks}")));
            }
            traffic.rows[to] += pairs;
            if from == to {
                continue;
            }
            traffic.received[to] += pairs;
            traffic.sent[from] += pairs;
            let (here, there) = (from / ranks_per_node, to / ranks_per_node);
            if here != there {
                traffic.node_received[there] += pairs;
                traffic.node_sent[here] += pairs;
            }
        }
        Ok(traffic)
    }

    /// Pairs that cross ranks, those that cross nodes among them.
    #[must_use]
    pub fn crossing_ranks(&self) -> u64 {
        self.sent.iter().sum()
    }

    /// Pairs that cross nodes.
    #[must_use]
    pub fn crossing_nodes(&self) -> u64 {
        self.node_sent.iter().sum()
    }
}

/// What [`transport`](super::route::transport) moves when each instance computes its load (`[instances]`; for each expert they
/// add up to its pairs), in time linear in instances and ranks: no route is made.
///
/// # Errors
/// [`Error::Shape`] where sources, placement and loads differ in size; [`Error::Argument`] naming the expert whose loads do not add
/// up to its pairs.
pub fn traffic(sources: &Sources, placement: &Placement, loads: &[u32]) -> Result<Traffic> {
    let counts = sources.counts();
    counts.check(placement.ranks(), placement.experts())?;
    check_instances("loads", loads.len(), placement)?;
    let mut traffic = Traffic::zero(counts.ranks(), sources.nodes());
    traffic.sent.copy_from_slice(counts.per_rank());
    for (r, &pairs) in counts.per_rank().iter().enumerate() {
        traffic.node_sent[sources.node_of(r)] += pairs;
    }
    for e in 0..placement.experts() {
        let (hosts, own) = (placement.hosts(e), &loads[placement.range(e)]);
        let (pairs, sum) = (counts.per_expert()[e], own.iter().map(|&load| u64::from(load)).sum::<u64>());
        if sum != u64::from(pairs) {
            let name = format!("loads of expert {e}");
            return Err(Error::argument(name, format!("{own:?}, in all {sum}"), format!("{pairs} in all")));
        }
        // An instance takes what it can from its own rank, a node what it can from its own ranks.
        let (mut node, mut in_node) = (usize::MAX, 0);
        let mut close = |node: usize, load: u64| {
            if load > 0 {
                let kept = load.min(u64::from(sources.per_node(e, node)));
                traffic.node_received[node] += load - kept;
                traffic.node_sent[node] -= kept;
            }
        };
        for (&rank, &load) in hosts.iter().zip(own) {
            let r = rank as usize;
            let local = load.min(counts.get(r, e));
            traffic.rows[r] += u64::from(load);
            traffic.received[r] += u64::from(load - local);
            traffic.sent[r] -= u64::from(local);
            if sources.node_of(r) != node {
                close(node, in_node);
                (node, in_node) = (sources.node_of(r), 0);
            }
            in_node += u64::from(load);
        }
        close(node, in_node);
    }
    Ok(traffic)
}

#[cfg(test)]
#[path = "traffic_tests.rs"]
mod tests;
