//! What links take for bytes that ranks exchange: the one model behind every time of an exchange, expected or counted.
//!
//! Each rank sends and receives at once, at the intra-node rate in each direction; the ranks of a node pool their inter-node rates. The
//! slower of the two counts, and a latency for each collective on top.

use super::cluster::{ClusterSpec, Link};

/// Bytes between ranks and between nodes in one or more exchanges, and their time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Moved {
    /// Seconds, one exchange after the other.
    pub seconds: f64,
    /// Bytes between ranks, all ranks together.
    pub bytes: f64,
    /// Part of them between nodes.
    pub inter_node_bytes: f64,
}

impl std::ops::Add for Moved {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            seconds: self.seconds + other.seconds,
            bytes: self.bytes + other.bytes,
            inter_node_bytes: self.inter_node_bytes + other.inter_node_bytes,
        }
    }
}

/// Seconds of `collectives` that move `busiest` bytes at the busiest rank and `nodes` bytes at each node, each in its busier direction.
/// `nodes` has at most one number for each node.
pub(crate) fn seconds(cluster: &ClusterSpec, busiest: f64, nodes: impl Iterator<Item = f64>, collectives: f64) -> f64 {
    let pooled = |(node, bytes): (usize, f64)| bytes / (members(cluster, node) as f64 * cluster.inter.bytes_per_s);
    let inter = nodes.enumerate().map(pooled).fold(0.0, f64::max);
    if busiest == 0.0 {
        return 0.0;
    }
    let latency = if inter > 0.0 { cluster.inter.latency_s } else { cluster.intra.latency_s };
    (busiest / cluster.intra.bytes_per_s).max(inter) + collectives * latency
}

/// Ranks of a node.
fn members(cluster: &ClusterSpec, node: usize) -> usize {
    (cluster.ranks - node * cluster.ranks_per_node).min(cluster.ranks_per_node)
}

/// The link between the two ranks that are furthest apart; `None` for one rank.
pub(crate) const fn widest(cluster: &ClusterSpec) -> Option<Link> {
    match (cluster.ranks, cluster.nodes()) {
        (1, _) => None,
        (_, 1) => Some(cluster.intra),
        _ => Some(cluster.inter),
    }
}

/// Point-to-point transfers that run at once.
#[derive(Debug)]
pub(crate) struct Transfers<'a> {
    cluster: &'a ClusterSpec,
    sent: Vec<f64>,
    received: Vec<f64>,
    node_sent: Vec<f64>,
    node_received: Vec<f64>,
    moved: Moved,
}

impl<'a> Transfers<'a> {
    pub(crate) fn new(cluster: &'a ClusterSpec) -> Self {
        let (ranks, nodes) = (vec![0.0; cluster.ranks], vec![0.0; cluster.nodes()]);
        Self {
            cluster,
            sent: ranks.clone(),
            received: ranks,
            node_sent: nodes.clone(),
            node_received: nodes,
            moved: Moved::default(),
        }
    }

    pub(crate) fn add(&mut self, from: usize, to: usize, bytes: f64) {
        if from == to {
            return;
        }
        let per_node = self.cluster.ranks_per_node;
        self.sent[from] += bytes;
        self.received[to] += bytes;
        self.moved.bytes += bytes;
        if from / per_node != to / per_node {
            self.node_sent[from / per_node] += bytes;
            self.node_received[to / per_node] += bytes;
            self.moved.inter_node_bytes += bytes;
        }
    }

    pub(crate) fn finish(self) -> Moved {
        let busiest = self.sent.iter().chain(&self.received).copied().fold(0.0, f64::max);
        let nodes = self.node_sent.iter().zip(&self.node_received).map(|(a, b)| a.max(*b));
        Moved { seconds: seconds(self.cluster, busiest, nodes, 1.0), ..self.moved }
    }
}
