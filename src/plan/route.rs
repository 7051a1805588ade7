//! Routing: how many pairs every instance computes, and which source sends how many of them, ALGORITHM section 5.
//!
//! Two steps. [`assign`] chooses the pairs of each instance: the busiest rank gets the least that any choice can give it.
//! [`transport`] then says which source sends how many where. The pairs of one expert are interchangeable, so for given amounts
//! the best transport is known beforehand: an instance takes what it can from its own rank, a node what it can from its own
//! ranks. [`traffic`] reads from this what crosses ranks and nodes without making a single route.
//!
//! ```
//! use lrmoe::plan::{Counts, Ownership, Placement, route};
//!
//! // Two ranks; expert 0 has a copy on each, expert 1 lives on rank 1.
//! let counts = Counts::new(&[[6, 1], [4, 3]])?;
//! let placement = Placement::new(2, &[vec![0, 1], vec![1]], vec![0, 1], Ownership::Home)?;
//! let sources = route::Sources::new(counts, 2)?;
//! let loads = route::assign(&sources, &placement, None)?;
//! assert_eq!(loads, [7, 3, 4]);
//! let routes = route::transport(&sources, &placement, &loads)?;
//! let seen: Vec<_> = routes.iter().map(|r| (r.expert, r.from, r.to, r.pairs)).collect();
//! assert_eq!(seen, [(0, 0, 0, 6), (0, 1, 1, 3), (0, 1, 0, 1), (1, 0, 1, 1), (1, 1, 1, 3)]);
//! # Ok::<(), lrmoe::Error>(())
//! ```

use serde::{Deserialize, Serialize};

use super::counts::Counts;
use super::placement::Placement;
use crate::{Error, Result};

pub use super::assign::assign;
pub(crate) use super::assign::assign_draft;
pub use super::traffic::{Traffic, traffic};
pub use super::transport::{expected_retained, follow, route_backward, transport};

/// Pairs of one expert that go from one rank to one instance. The pairs of a (source, expert) are numbered in token order; its
/// routes, in the order they stand in, take consecutive ranges of these numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Route {
    /// Expert.
    pub expert: u32,
    /// Source rank.
    pub from: u32,
    /// Rank of the instance.
    pub to: u32,
    /// How many, at least 1.
    pub pairs: u32,
}

/// Counts with their sums over nodes: what routing reads, made once for any number of placements.
#[derive(Debug, Clone)]
pub struct Sources {
    counts: Counts,
    ranks_per_node: usize,
    nodes: usize,
    /// `[E, nodes]` pairs of each expert from each node.
    per_node: Vec<u32>,
}

impl Sources {
    /// Sums the counts over nodes of consecutive ranks, the last one perhaps not full.
    ///
    /// # Errors
    /// [`Error::Argument`] for 0 ranks a node.
    pub fn new(counts: Counts, ranks_per_node: usize) -> Result<Self> {
        check_node(ranks_per_node)?;
        let (experts, nodes) = (counts.experts(), counts.ranks().div_ceil(ranks_per_node));
        let mut per_node = vec![0; experts * nodes];
        let mut sums = vec![0_u32; experts];
        for (node, rows) in counts.flat().chunks(ranks_per_node.saturating_mul(experts)).enumerate() {
            sums.fill(0);
            for row in rows.chunks_exact(experts) {
                // No overflow: counts hold at most 2^32 - 1 pairs of an expert over all ranks.
                sums.iter_mut().zip(row).for_each(|(sum, n)| *sum += n);
            }
            sums.iter().enumerate().for_each(|(e, &sum)| per_node[e * nodes + node] = sum);
        }
        Ok(Self { counts, ranks_per_node, nodes, per_node })
    }

    /// The counts.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Pairs of an expert from all ranks of a node; `expert < E`, `node < nodes()`.
    #[must_use]
    pub fn per_node(&self, expert: usize, node: usize) -> u32 {
        self.per_node[expert * self.nodes..][..self.nodes][node]
    }

    /// Number of nodes, at least 1.
    #[must_use]
    pub const fn nodes(&self) -> usize {
        self.nodes
    }

    /// Ranks of every node but perhaps the last.
    #[must_use]
    pub const fn ranks_per_node(&self) -> usize {
        self.ranks_per_node
    }

    /// The node that a rank belongs to.
    #[must_use]
    pub const fn node_of(&self, rank: usize) -> usize {
        rank / self.ranks_per_node
    }
}

/// Refuses nodes without ranks.
pub(crate) fn check_node(ranks_per_node: usize) -> Result<()> {
    if ranks_per_node > 0 {
        return Ok(());
    }
    Err(Error::argument("ranks_per_node", 0, "1 or more"))
}

/// Refuses a list that has not one entry for each instance.
pub(crate) fn check_instances(what: &str, len: usize, placement: &Placement) -> Result<()> {
    if len == placement.instances() {
        return Ok(());
    }
    Err(Error::shape(what, len, format!("{} instances", placement.instances())))
}

#[cfg(test)]
#[path = "route_tests.rs"]
pub(crate) mod tests;
