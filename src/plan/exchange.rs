//! Token rows that ranks exchange, counted from where each pair is computed instead of expected from the number of pairs.

use super::cluster::ClusterSpec;
use super::destinations::{NOWHERE, check_pairs, check_ranks, check_size};
use super::links;
use super::mode::Activations;
use super::route::check_node;
use crate::{Error, Result};

/// The two passes through a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Tokens to outputs.
    Forward,
    /// Output gradients to token gradients.
    Backward,
}

/// Rows, each of H values in the compute type, that cross between a token's rank and another one that computes pairs of it, there and back
/// together.
///
/// Forward sends the token and gets its output back. Backward sends the output's gradient and gets the token's back; where a and b are
/// computed again, it sends the token once more. Under [`RouterGradient::Exact`](super::RouterGradient::Exact) outputs come back one a
/// pair: one row of forward is then to be counted for each pair instead of each (token, rank).
#[must_use]
pub const fn exchange_rows_per_token(activations: Activations, direction: Direction) -> u32 {
    match (direction, activations) {
        (Direction::Forward, _) | (Direction::Backward, Activations::Stash) => 2,
        (Direction::Backward, Activations::Recompute) => 3,
    }
}

/// Rows that one pass moves in one direction. A token goes once to every other rank that computes a pair of it, however many of its
/// pairs it computes; a row counts between nodes once for every rank there.
///
/// ```
/// use lrmoe::plan::{ExchangeRows, NOWHERE};
///
/// // Two nodes of two ranks. A token of rank 0 goes to itself and to rank 2, a token of rank 1 to rank 0 alone, and to rank 3 with one
/// // of two pairs; the last pair is not computed.
/// let destinations = [0, 2, 2, 0, 0, 0, 3, NOWHERE, NOWHERE];
/// let rows = ExchangeRows::count(&destinations, 3, &[0, 1, 1], 4, 2)?;
/// assert_eq!((rows.sent(), rows.received()), ([1, 2, 0, 0].as_slice(), [1, 0, 1, 1].as_slice()));
/// assert_eq!((rows.node_sent(), rows.node_received()), ([2, 0].as_slice(), [0, 2].as_slice()));
/// assert_eq!((rows.local(), rows.total(), rows.crossing_nodes()), ([1, 0, 0, 0].as_slice(), 3, 2));
/// # Ok::<(), lrmoe::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExchangeRows {
    /// `[R]` rows that each rank sends: distinct (token, other rank).
    sent: Vec<u64>,
    /// `[R]` rows that each rank gets from others.
    received: Vec<u64>,
    /// `[nodes]` rows from each node to others.
    node_sent: Vec<u64>,
    /// `[nodes]` rows to each node from others.
    node_received: Vec<u64>,
    /// `[R]` distinct tokens of each rank of which it computes a pair itself.
    local: Vec<u64>,
    /// Consecutive ranks of a node.
    ranks_per_node: usize,
}

impl ExchangeRows {
    /// Counts the rows of a pass: `destinations`, `[T, top_k]`, are those of [`destinations`](super::destinations), of the pairs that the pass
    /// computes; `source_of_token`, `[T]`, the ranks that tokens come from.
    ///
    /// # Errors
    /// [`Error::Shape`] where the lists differ in length; [`Error::Argument`] for 0 `top_k`, ranks or ranks a node, or a rank that does
    /// not exist.
    pub fn count(
        destinations: &[u32],
        top_k: usize,
        source_of_token: &[u32],
        ranks: usize,
        ranks_per_node: usize,
    ) -> Result<Self> {
        check_pairs("destinations", destinations.len(), source_of_token.len(), top_k)?;
        check_node(ranks_per_node)?;
        if ranks == 0 {
            return Err(Error::argument("ranks", 0, "1 or more"));
        }
        check_ranks("source_of_token", source_of_token, ranks)?;
        check_size("rows of ranks", ranks)?;
        let (of_ranks, of_nodes) = (vec![0_u64; ranks], vec![0_u64; ranks.div_ceil(ranks_per_node)]);
        let mut rows = Self {
            sent: of_ranks.clone(),
            received: of_ranks.clone(),
            node_sent: of_nodes.clone(),
            node_received: of_nodes,
            local: of_ranks,
            ranks_per_node,
        };
        // The last token that went to each rank.
        let mut last = vec![usize::MAX; ranks];
        for (t, (own, &source)) in destinations.chunks_exact(top_k).zip(source_of_token).enumerate() {
            for (j, &rank) in own.iter().enumerate().filter(|&(_, &rank)| rank != NOWHERE) {
                let Some(last) = last.get_mut(rank as usize) else {
                    let name = format!("destinations[{}]", t * top_k + j);
                    return Err(Error::argument(name, rank, format!("ranks below {ranks}, or {NOWHERE} for none")));
                };
                if *last != t {
                    *last = t;
                    rows.add(source as usize, rank as usize);
                }
            }
        }
        Ok(rows)
    }

    fn add(&mut self, from: usize, to: usize) {
        if from == to {
            self.local[from] += 1;
            return;
        }
        self.sent[from] += 1;
        self.received[to] += 1;
        let (here, there) = (from / self.ranks_per_node, to / self.ranks_per_node);
        if here != there {
            self.node_sent[here] += 1;
            self.node_received[there] += 1;
        }
    }

    /// `[R]` rows that each rank sends: distinct (token, other rank).
    #[must_use]
    pub fn sent(&self) -> &[u64] {
        &self.sent
    }

    /// `[R]` rows that each rank gets from others.
    #[must_use]
    pub fn received(&self) -> &[u64] {
        &self.received
    }

    /// `[nodes]` rows from each node to others.
    #[must_use]
    pub fn node_sent(&self) -> &[u64] {
        &self.node_sent
    }

    /// `[nodes]` rows to each node from others.
    #[must_use]
    pub fn node_received(&self) -> &[u64] {
        &self.node_received
    }

    /// `[R]` distinct tokens of each rank of which it computes a pair itself.
    #[must_use]
    pub fn local(&self) -> &[u64] {
        &self.local
    }

    /// Rows between ranks, those between nodes among them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.sent.iter().sum()
    }

    /// Rows between nodes.
    #[must_use]
    pub fn crossing_nodes(&self) -> u64 {
        self.node_sent.iter().sum()
    }

    /// Seconds of moving the rows with so many bytes each in so many collectives, by the link model that plans are priced with.
    ///
    /// Rows there and rows back take the same time, since links carry both directions at once, so both fit in one call: bytes of a row of H
    /// values times [`exchange_rows_per_token`], and two collectives a wave.
    ///
    /// # Errors
    /// [`Error::Shape`] for a cluster of other ranks or nodes; [`Error::Argument`] for numbers that are negative, NaN or infinite, and as
    /// [`ClusterSpec::validate`].
    pub fn seconds(&self, cluster: &ClusterSpec, bytes_per_row: f64, collectives: f64) -> Result<f64> {
        cluster.validate()?;
        let ours = (self.sent.len(), self.ranks_per_node.min(self.sent.len()));
        let theirs = (cluster.ranks, cluster.ranks_per_node.min(cluster.ranks));
        if ours != theirs {
            let shape = |(ranks, per_node): (usize, usize)| format!("{ranks} ranks, {per_node} a node");
            return Err(Error::shape("cluster", shape(theirs), format!("{}, as the rows were counted", shape(ours))));
        }
        for (name, value) in [("bytes_per_row", bytes_per_row), ("collectives", collectives)] {
            if !(0.0..f64::INFINITY).contains(&value) {
                return Err(Error::argument(name, value, "a finite number >= 0"));
            }
        }
        let busier = |sent: &u64, received: &u64| *sent.max(received) as f64 * bytes_per_row;
        let busiest = self.sent.iter().zip(&self.received).map(|(a, b)| busier(a, b)).fold(0.0, f64::max);
        let nodes = self.node_sent.iter().zip(&self.node_received).map(|(a, b)| busier(a, b));
        Ok(links::seconds(cluster, busiest, nodes, collectives))
    }
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
