//! What a plan costs in time, and how that was reckoned.
//!
//! A phase lasts as long as its busiest rank; phases follow each other without overlap. Rates are those of the
//! [`ClusterSpec`](super::ClusterSpec).
//!
//! - **Experts**: `rows` pairs on a rank take `rows * 6 H I` floating-point operations forward and twice that backward
//!   (`4 H I` more where a and b are computed again), but never less than reading the weights of its experts once a wave
//!   takes (backward writes their f32 gradient as well, and reads two thirds of them again for a and b). To this come the rows
//!   that kernels between the GEMMs read and write, and a fixed cost a wave.
//! - **Gate and shared expert**: by the tokens of the busiest source.
//! - **Exchange**: a token goes once to every rank that computes a pair of it. Of `n` tokens with `k` pairs each, `N = n k`, a
//!   rank that computes a share `p` of all pairs is expected to need `n (1 - (1 - p)^k)`. Each rank moves its rows at the
//!   intra-node rate; the ranks of a node pool their inter-node rates; the slower of the two counts. Forward sends rows and gets
//!   rows back, one a pair where their outputs are kept apart; backward sends gradients (and tokens again where a and b are computed
//!   again) and gets gradients back. Selecting pairs takes some all-reduced counters and a scan more. Where the routing of every token is known,
//!   [`ExchangeRows`](super::ExchangeRows) counts these rows.
//! - **Optimizer exchange**: gradients of instances to the owner, weights of the next placement from it, f32 and compute
//!   type. `Sharded` spreads each expert evenly over all ranks; `Home` moves whole experts, but nothing for a copy at home.

use serde::{Deserialize, Serialize};

use super::demand::BINS;
use super::exchange::{Direction, exchange_rows_per_token};
use super::links::{self, Moved, Transfers};
use super::mode::{Activations, Ownership, RouterGradient};
use super::placement::Placement;
use super::route::Traffic;
use super::setup::Setup;
use crate::{Error, Result};

/// Rounds of all-reduced counters in which the certain pairs are found, see [`SelectRule`](crate::kernel::SelectRule).
const SELECT_ROUNDS: f64 = 4.0;
/// Score ranges an expert in each of them, and keys of the scan that follows.
const SELECT_RANGES: f64 = 256.0;
/// Bytes of a range: how many pairs, and the sum of their sizes.
const RANGE_BYTES: f64 = 12.0;
/// Bytes of a key's sum of sizes.
const KEY_BYTES: f64 = 8.0;

/// f32 values that kernels between the GEMMs read and write for a pair in forward, besides its row: as a multiple of I.
pub(crate) const FORWARD_WIDTHS: f64 = 6.0;
/// The same in backward where a and b are kept; 2 more where they are computed again.
pub(crate) const BACKWARD_WIDTHS: f64 = 10.0;
/// The same for the row itself, out and in again, in either pass: as a multiple of H.
pub(crate) const PASS_ROWS: f64 = 2.0;

/// A part of a step's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Term {
    /// Gate, experts and combination, forward.
    Forward,
    /// Score, selection and retained pairs, backward.
    Backward,
    /// Token rows between ranks.
    Exchange,
    /// Gradients and weights between ranks.
    OptimizerExchange,
}

impl Term {
    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Exchange => "exchange",
            Self::OptimizerExchange => "optimizer",
        }
    }
}

/// Times in seconds and traffic in bytes that a plan foretells for one layer and step.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    /// Compute of the forward pass on its busiest rank.
    pub forward_s: f64,
    /// Compute of the backward pass on its busiest rank.
    pub backward_s: f64,
    /// Token rows, there and back, both passes; the counters of selection too.
    pub exchange_s: f64,
    /// Gradients to the optimizer and weights from it.
    pub optimizer_exchange_s: f64,
    /// Pairs of the busiest rank over the mean, forward; 1 without pairs.
    pub max_over_mean_forward: f64,
    /// The same of retained pairs.
    pub max_over_mean_backward: f64,
    /// Token bytes between ranks, all ranks together.
    pub exchange_bytes: f64,
    /// Part of them between nodes.
    pub exchange_bytes_inter_node: f64,
    /// Gradient and weight bytes between ranks, all ranks together.
    pub optimizer_bytes: f64,
    /// Part of them between nodes.
    pub optimizer_bytes_inter_node: f64,
    /// Waves of the forward pass.
    pub waves_forward: u64,
    /// Waves of the backward pass.
    pub waves_backward: u64,
}

impl Predicted {
    /// The whole step of the layer, in seconds.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        self.forward_s + self.backward_s + self.exchange_s + self.optimizer_exchange_s
    }

    /// All bytes that cross nodes.
    #[must_use]
    pub fn bytes_inter_node(&self) -> f64 {
        self.exchange_bytes_inter_node + self.optimizer_bytes_inter_node
    }

    /// The largest part of the time; the first of equals.
    #[must_use]
    pub fn dominant(&self) -> Term {
        let terms = [
            (Term::Forward, self.forward_s),
            (Term::Backward, self.backward_s),
            (Term::Exchange, self.exchange_s),
            (Term::OptimizerExchange, self.optimizer_exchange_s),
        ];
        let largest = |best: (Term, f64), next: (Term, f64)| if next.1 > best.1 { next } else { best };
        terms.into_iter().fold(terms[0], largest).0
    }
}

/// Pairs that a placement's instances compute in one pass, by rank.
#[derive(Debug, Clone)]
pub(crate) struct RankWork {
    /// `[R]` experts with at least one pair.
    active: Vec<u32>,
    /// What crosses ranks and nodes.
    pub(crate) traffic: Traffic,
}

impl RankWork {
    pub(crate) fn new(placement: &Placement, loads: &[u32], traffic: Traffic) -> Self {
        let mut active = vec![0; placement.ranks()];
        for (&rank, _) in placement.host_of_instance().iter().zip(loads).filter(|(_, load)| **load > 0) {
            active[rank as usize] += 1;
        }
        Self { active, traffic }
    }

    /// Pairs of the busiest rank, as a destination or as a source.
    pub(crate) fn busiest(&self) -> u64 {
        self.traffic.rows.iter().copied().max().unwrap_or(0)
    }

    fn max_over_mean(&self) -> f64 {
        let total: u64 = self.traffic.rows.iter().sum();
        if total == 0 { 1.0 } else { self.busiest() as f64 * self.traffic.rows.len() as f64 / total as f64 }
    }
}

/// One pass of a step, as the model sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub(crate) work: &'a RankWork,
    pub(crate) waves: u64,
}

/// Everything that has a price.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Priced<'a> {
    pub(crate) forward: Pass<'a>,
    pub(crate) backward: Pass<'a>,
    /// All routed pairs, computed or not.
    pub(crate) pairs: u64,
    /// Tokens of the busiest source.
    pub(crate) tokens: u64,
    pub(crate) activations: Activations,
    /// Whether pairs are scored and selected, which reads gradients and takes rounds of counters.
    pub(crate) selects: bool,
    /// Where the experts were, are in this step, and will be.
    pub(crate) placements: [&'a Placement; 3],
}

/// What a step's gradients and weights take between ranks, by the same rules as [`Predicted::optimizer_exchange_s`]: it prices the
/// placements of one plan on any cluster. `placements` are those before, in and after the step.
///
/// # Errors
/// As [`Setup::validate`]; [`Error::Shape`] for placements of other ranks or experts than the setup's; [`Error::Argument`] where
/// their owners of the optimizer state differ.
pub fn optimizer_exchange(setup: &Setup, placements: [&Placement; 3]) -> Result<Moved> {
    setup.validate()?;
    let owner = placements[1].ownership();
    for (name, placement) in ["placement before", "placement", "next placement"].into_iter().zip(placements) {
        placement.check(name, setup.cluster.ranks, setup.config.num_experts)?;
        if placement.ownership() != owner {
            let allowed = format!("{}, as in the step", owner.name());
            return Err(Error::argument(format!("ownership of the {name}"), placement.ownership().name(), allowed));
        }
    }
    Ok(CostModel::new(setup)?.optimizer(placements))
}

/// Seconds of the counters that ranks all-reduce to select a step's retained pairs, as [`Predicted::exchange_s`] holds them; 0 on one
/// rank.
///
/// # Errors
/// As [`Setup::validate`].
pub fn selection_exchange(setup: &Setup) -> Result<f64> {
    setup.validate()?;
    Ok(CostModel::new(setup)?.selection())
}

/// Seconds until every rank knows the counts of all others, before a step can be planned or anything sent: E numbers of a rank; 0 on
/// one rank. No [`Predicted`] holds them, since every policy pays them alike.
///
/// # Errors
/// As [`Setup::validate`].
pub fn counts_exchange(setup: &Setup) -> Result<f64> {
    setup.validate()?;
    let Some(link) = links::widest(&setup.cluster) else { return Ok(0.0) };
    let bytes = 4.0 * (setup.cluster.ranks * setup.config.num_experts) as f64 * setup.counter_scale;
    Ok(link.latency_s + bytes / link.bytes_per_s)
}

/// The prices of one setup, worked out once.
#[derive(Debug, Clone)]
pub(crate) struct CostModel<'a> {
    setup: &'a Setup,
    weight_bytes: f64,
    gradient_bytes: f64,
    state_bytes: f64,
    pair_flops: f64,
    row_bytes: f64,
    hidden: f64,
    width: f64,
}

impl<'a> CostModel<'a> {
    pub(crate) fn new(setup: &'a Setup) -> Result<Self> {
        let config = &setup.config;
        Ok(Self {
            weight_bytes: setup.weight_bytes()? as f64,
            gradient_bytes: setup.gradient_bytes()? as f64,
            // Two moments and the f32 weights, masters or not.
            state_bytes: 3.0 * setup.gradient_bytes()? as f64,
            pair_flops: config.pair_flops()? as f64,
            row_bytes: (config.hidden_size * setup.dtype.bytes()) as f64,
            hidden: config.hidden_size as f64,
            width: config.moe_intermediate_size as f64,
            setup,
        })
    }

    /// Times and bytes of one step.
    pub(crate) fn predict(&self, step: &Priced<'_>) -> Predicted {
        let recompute = step.activations == Activations::Recompute;
        let dense = self.dense(step.tokens);
        let forward = self.experts(step.forward, 1.0, 1.0, FORWARD_WIDTHS * self.width);
        let again = if recompute { 2.0 / 3.0 } else { 0.0 };
        let kernels = (BACKWARD_WIDTHS + if recompute { 2.0 } else { 0.0 }) * self.width;
        let gradient = self.gradient_bytes / self.weight_bytes;
        let backward = self.experts(step.backward, 2.0 + again, 1.0 + again + gradient, kernels);
        // Outputs of pairs that are kept apart come back apart.
        let apart = f64::from(u32::from(self.setup.router_gradient == RouterGradient::Exact));
        let per_token = |direction| f64::from(exchange_rows_per_token(step.activations, direction));
        let out = self.rows(step.forward, step.pairs, [per_token(Direction::Forward) - apart, apart]);
        let back = self.rows(step.backward, step.pairs, [per_token(Direction::Backward), 0.0]);
        let optimizer = self.optimizer(step.placements);
        // Scores read every gradient row once.
        let read = step.tokens as f64 * self.hidden * 4.0 / self.setup.cluster.copy_bytes_per_s;
        let scoring = if step.selects { read } else { 0.0 };
        let counters = if step.selects { self.selection() } else { 0.0 };
        Predicted {
            forward_s: dense + forward,
            backward_s: 2.0 * dense + backward + scoring,
            exchange_s: out.seconds + back.seconds + counters,
            optimizer_exchange_s: optimizer.seconds,
            max_over_mean_forward: step.forward.work.max_over_mean(),
            max_over_mean_backward: step.backward.work.max_over_mean(),
            exchange_bytes: out.bytes + back.bytes,
            exchange_bytes_inter_node: out.inter_node_bytes + back.inter_node_bytes,
            optimizer_bytes: optimizer.bytes,
            optimizer_bytes_inter_node: optimizer.inter_node_bytes,
            waves_forward: step.forward.waves,
            waves_backward: step.backward.waves,
        }
    }

    /// Gate and shared expert of one source, forward.
    fn dense(&self, tokens: u64) -> f64 {
        let config = &self.setup.config;
        let gate = 2.0 * config.num_experts as f64;
        let shared = 6.0 * config.shared_expert_intermediate_size as f64;
        tokens as f64 * self.hidden * (gate + shared) / self.setup.cluster.gemm_flops
    }

    /// The busiest rank's experts: GEMMs at the slower of arithmetic and weight traffic, and `kernels` f32 values a row, plus
    /// the row itself out and in again, between them.
    fn experts(&self, pass: Pass<'_>, flops: f64, weight_reads: f64, kernels: f64) -> f64 {
        let cluster = &self.setup.cluster;
        let per_row = flops * self.pair_flops / cluster.gemm_flops;
        let per_expert = pass.waves as f64 * weight_reads * self.weight_bytes / cluster.copy_bytes_per_s;
        let between = 4.0 * (kernels + PASS_ROWS * self.hidden) / cluster.copy_bytes_per_s;
        let rank = |(&rows, &active): (&u64, &u32)| {
            let rows = rows as f64;
            (rows * per_row).max(f64::from(active) * per_expert) + rows * between
        };
        let busiest = pass.work.traffic.rows.iter().zip(&pass.work.active).map(rank).fold(0.0, f64::max);
        busiest + pass.waves as f64 * cluster.launch_s
    }

    /// Token rows of one pass, all directions together: so many rows for every (token, rank), and so many for every pair.
    fn rows(&self, pass: Pass<'_>, pairs: u64, [per_token, per_pair]: [f64; 2]) -> Moved {
        let traffic = &pass.work.traffic;
        if pairs == 0 {
            return Moved::default();
        }
        let top_k = self.setup.config.num_experts_per_tok;
        // Distinct tokens for each pair that a rank computes.
        let distinct = |rows: u64| {
            if rows == 0 {
                return 1.0;
            }
            let share = rows as f64 / pairs as f64;
            let missed = (0..top_k).fold(1.0, |missed, _| missed * (1.0 - share));
            (1.0 - missed) / (top_k as f64 * share)
        };
        // Bytes of a received pair on each rank, and of one on average.
        let bytes = |rows: u64| self.row_bytes * (per_token * distinct(rows) + per_pair);
        let received: Vec<f64> =
            traffic.received.iter().zip(&traffic.rows).map(|(&n, &r)| n as f64 * bytes(r)).collect();
        let (total, moving) = (received.iter().sum::<f64>(), traffic.received.iter().sum::<u64>());
        if moving == 0 {
            return Moved::default();
        }
        let mean = total / moving as f64;
        let nodes = traffic.node_received.iter().zip(&traffic.node_sent).map(|(a, b)| *a.max(b) as f64 * mean);
        let crossing: u64 = traffic.node_received.iter().sum();
        let sent = traffic.sent.iter().map(|&n| n as f64 * mean);
        let busiest = received.into_iter().zip(sent).map(|(a, b)| a.max(b)).fold(0.0, f64::max);
        // There and back are two collectives, each in as many waves.
        let seconds = links::seconds(&self.setup.cluster, busiest, nodes, 2.0 * pass.waves as f64);
        Moved { seconds, bytes: total, inter_node_bytes: total * (crossing as f64 / moving as f64) }
    }

    /// Collectives of selection: score sums for the floors, counts and sums that find the certain pairs, a scan of the sums by key, ties,
    /// demand of the next plan, and the retained counts of all ranks.
    fn selection(&self) -> f64 {
        let Some(link) = links::widest(&self.setup.cluster) else { return 0.0 };
        let experts = self.setup.config.num_experts as f64;
        // Floors take a sum and a count an expert, ties of infinite scores a count, demand its histogram and two sums.
        let rounds = SELECT_ROUNDS * SELECT_RANGES * RANGE_BYTES;
        let reduced = experts * (rounds + 12.0 + 4.0 + (BINS as f64 + 2.0) * 8.0);
        let scanned = experts * SELECT_RANGES * KEY_BYTES;
        let gathered = experts * 4.0 * self.setup.cluster.ranks as f64;
        // A ring passes what it reduces twice, and what it scans once.
        let bytes = (2.0 * reduced + scanned + gathered) * self.setup.counter_scale;
        (SELECT_ROUNDS + 5.0) * link.latency_s + bytes / link.bytes_per_s
    }

    fn optimizer(&self, placements: [&Placement; 3]) -> Moved {
        let [before, now, next] = placements;
        let owner = match next.ownership() {
            Ownership::Sharded => self.sharded(now, next),
            Ownership::Home => self.home(now, next),
        };
        // Candidates are compared as if they had always been there.
        let copies = if std::ptr::eq(before, now) { Moved::default() } else { self.copies(before, now) };
        let mut moved = copies + owner;
        if self.setup.optimizer_offload {
            let cluster = &self.setup.cluster;
            let experts = match next.ownership() {
                Ownership::Sharded => next.experts() as f64 / cluster.ranks as f64,
                Ownership::Home => f64::from(next.homes_per_rank().into_iter().max().unwrap_or(0)),
            };
            moved.seconds += experts * (self.gradient_bytes + self.weight_bytes) / cluster.host_bytes_per_s;
        }
        moved
    }

    /// Every instance sends a shard of its gradient to every rank, and every rank sends its shard of every next instance.
    fn sharded(&self, now: &Placement, next: &Placement) -> Moved {
        let cluster = &self.setup.cluster;
        let ranks = cluster.ranks as f64;
        if cluster.ranks == 1 {
            return Moved::default();
        }
        let phase = |placement: &Placement, bytes: f64| {
            let remote = bytes * (ranks - 1.0) / ranks;
            let held = placement.instances_per_rank();
            let shards = placement.instances() as f64 * bytes / ranks;
            let rank = |n: u32| (f64::from(n) * remote).max(shards - f64::from(n) * bytes / ranks);
            let busiest = held.iter().map(|&n| rank(n)).fold(0.0, f64::max);
            let nodes = held.chunks(cluster.ranks_per_node).map(|node| {
                let (members, held) = (node.len() as f64, f64::from(node.iter().sum::<u32>()));
                let out = held * bytes * (ranks - members) / ranks;
                out.max((placement.instances() as f64 - held) * bytes * members / ranks)
            });
            let inter_node = held
                .chunks(cluster.ranks_per_node)
                .map(|node| f64::from(node.iter().sum::<u32>()) * bytes * (ranks - node.len() as f64) / ranks);
            Moved {
                seconds: links::seconds(cluster, busiest, nodes, 1.0),
                bytes: placement.instances() as f64 * remote,
                inter_node_bytes: inter_node.sum(),
            }
        };
        phase(now, self.gradient_bytes) + phase(next, self.weight_bytes)
    }

    /// Seconds of moving the optimizer state of experts that change their home.
    pub(crate) fn moving_s(&self, before: &Placement, after: &Placement) -> f64 {
        let mut state = Transfers::new(&self.setup.cluster);
        if after.ownership() == Ownership::Home {
            for (&old, &new) in before.home().iter().zip(after.home()) {
                state.add(old as usize, new as usize, self.state_bytes);
            }
        }
        state.finish().seconds
    }

    /// Copies made for this step alone get their weights from home before it starts.
    fn copies(&self, before: &Placement, now: &Placement) -> Moved {
        let mut weights = Transfers::new(&self.setup.cluster);
        for (e, r) in now.iter().filter(|&(e, r)| before.find(e, r).is_none()) {
            weights.add(now.home()[e] as usize, r, self.weight_bytes);
        }
        weights.finish()
    }

    /// Replicas send gradients home and get weights from there. A new home gets the whole state.
    fn home(&self, now: &Placement, next: &Placement) -> Moved {
        let mut gradients = Transfers::new(&self.setup.cluster);
        let mut weights = Transfers::new(&self.setup.cluster);
        for (e, r) in now.iter() {
            gradients.add(r, now.home()[e] as usize, self.gradient_bytes);
        }
        for (e, r) in next.iter() {
            weights.add(next.home()[e] as usize, r, self.weight_bytes);
        }
        for (&old, &new) in now.home().iter().zip(next.home()) {
            weights.add(old as usize, new as usize, self.state_bytes);
        }
        gradients.finish() + weights.finish()
    }
}

#[cfg(test)]
#[path = "cost_tests.rs"]
mod tests;
