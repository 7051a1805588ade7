//! Routing: how many pairs every instance computes, and which source sends how many of them, ALGORITHM section 5.

use serde::{Deserialize, Serialize};

use super::counts::Counts;

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
    /// `[E, nodes]` pairs of each expert from each node.
    per_node: Vec<u32>,
}
