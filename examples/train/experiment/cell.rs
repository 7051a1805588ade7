//! What one cell of the experiment leaves: a file that reports are made of, and that is not computed again.

use std::collections::BTreeMap;

use lrmoe::plan::ClusterSpec;
use serde::{Deserialize, Serialize};

/// Factors of the network's speed at which every result is also given. The plans are those made at 1.
pub(crate) const NETWORKS: [f64; 3] = [0.5, 1.0, 2.0];
/// Index of the network that the plans were made for.
pub(crate) const PLANNED: usize = 1;
/// Parts of the plain run's steps whose validation losses are the targets.
pub(crate) const TARGETS: [f64; 3] = [0.6, 0.8, 0.95];

/// Which cell.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Key {
    /// "qwen3-30b-a3b" or "glm-4.5-air": the model whose structure is kept.
    pub(crate) preset: String,
    /// "usual" or "weak".
    pub(crate) balancing: String,
    /// Tokens of a step, all ranks together.
    pub(crate) tokens: usize,
    pub(crate) seed: u64,
}

/// What was fixed before the cell ran. A finished cell is taken as it is only where all of this is the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Protocol {
    pub(crate) ranks: usize,
    pub(crate) ranks_per_node: usize,
    /// Name of the real machine.
    pub(crate) cluster: String,
    /// The machine that the plans were made for: the real one scaled to this model, and in a [`Cell`] to this processor.
    pub(crate) scaled: ClusterSpec,
    /// Tokens of a step for each token of the real model's step.
    pub(crate) token_scale: f64,
    /// Seconds on the scaled machine for each second of the real model on the real one.
    pub(crate) time_scale: f64,
    /// Factor on the counters of selection, which do not shrink with the model.
    pub(crate) counter_scale: f64,
    /// Bytes of a rank for the real model's MoE layers; `None` is no limit. Plans are made with as large a part of what the small model, with
    /// as many layers, takes.
    pub(crate) budget: Option<u64>,
    /// MoE layers of the real model.
    pub(crate) real_layers: usize,
    /// Expert slots of a rank, where a policy's name does not say otherwise.
    pub(crate) symi_slots: usize,
    pub(crate) eplb_slots: usize,
    /// Planned steps.
    pub(crate) steps: u64,
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) experts: usize,
    pub(crate) top_k: usize,
    /// As `--policy` and `--activations` named them.
    pub(crate) policies: String,
    pub(crate) activations: String,
    /// Of the policies that select.
    pub(crate) select: String,
    pub(crate) retain: String,
    pub(crate) alpha: f64,
    pub(crate) slack: f64,
    pub(crate) q_min: u32,
    pub(crate) smoothing: f64,
    pub(crate) score_floor: f64,
    /// Every how many steps the shares of one layer are executed and timed.
    pub(crate) time_every: u64,
    /// FNV-1a of the text.
    pub(crate) corpus: String,
}

/// One model, balancing, batch size and seed under every policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) key: Key,
    pub(crate) protocol: Protocol,
    /// "cpu", "threads", "arch", "os".
    pub(crate) machine: serde_json::Value,
    /// Step and validation loss of the run that computes every pair in both passes: the targets.
    pub(crate) plain: Vec<(u64, f64)>,
    /// One for each policy and activation mode.
    pub(crate) runs: Vec<PolicyRun>,
    /// For each phase: predicted over measured seconds of all samples, and the median relative error of one share.
    pub(crate) fit: BTreeMap<String, [f64; 2]>,
    /// One step of one layer under each policy and mode.
    pub(crate) timelines: Vec<Timeline>,
}

/// One policy in one activation mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PolicyRun {
    pub(crate) policy: String,
    /// "stash" or "recompute".
    pub(crate) activations: String,
    /// The training run whose numerics these are: policies that compute every pair in both passes share "all".
    pub(crate) trajectory: String,
    /// Steps done.
    pub(crate) steps: u64,
    /// Validations, from step 0.
    pub(crate) curve: Vec<Point>,
    /// Over all layers and steps.
    pub(crate) routed_pairs: u64,
    pub(crate) backward_pairs: u64,
    pub(crate) dropped_pairs: u64,
    /// Pairs of the busiest rank over the mean: mean over layers and steps.
    pub(crate) busiest_over_mean_forward: f64,
    pub(crate) busiest_over_mean_backward: f64,
    /// Instances beyond one for each expert: mean over layers and steps.
    pub(crate) replicas_mean: f64,
    /// Token rows, gradients and weights that crossed nodes.
    pub(crate) bytes_inter_node: f64,
    /// Most waves of a step.
    pub(crate) waves: u64,
    /// Memory of the small model.
    pub(crate) memory: Memory,
    /// Memory that the same plans take in the real model: its sizes and layers, its tokens for those of a step here, see
    /// [`Protocol::token_scale`].
    pub(crate) real_memory: Memory,
    /// Sampled shares of this policy: their measured busiest-rank seconds and what the fit says of the same shares.
    pub(crate) sampled: Sampled,
    /// Why the policy did not run to its end: it does not fit the budget, or training diverged. Everything else is empty then.
    pub(crate) infeasible: Option<String>,
}

/// Bytes that a policy reserves, all layers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// By category, of the fullest rank at its fullest step.
    pub(crate) peak_bytes: BTreeMap<String, u64>,
    /// weights + replicas + token_buffers + stash + exchange + scratch of the rank and step where that sum is largest.
    pub(crate) subtotal_bytes: u64,
}

/// A validation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) step: u64,
    /// Nats a byte.
    pub(crate) val_loss: f64,
    /// All steps so far.
    pub(crate) cost: Cost,
}

/// Seconds of all MoE layers; cumulative in a [`Point`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// By phase name, of the busiest rank: from measurements.
    pub(crate) phases: BTreeMap<String, f64>,
    /// By phase name, of the mean rank: from measurements.
    pub(crate) mean: BTreeMap<String, f64>,
    /// Token rows, and the counters of selection: modelled, at each of [`NETWORKS`].
    pub(crate) exchange_s: [f64; 3],
    /// Gradients and weights: modelled, likewise.
    pub(crate) optimizer_exchange_s: [f64; 3],
    /// Planning and routing on the host: measured on this machine, times [`Protocol::time_scale`].
    pub(crate) plan_s: f64,
}

/// Directly measured steps.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Sampled {
    /// (step, layer) pairs that were executed rank by rank.
    pub(crate) count: u64,
    pub(crate) measured_s: f64,
    pub(crate) fitted_s: f64,
}

/// One step of one layer, rank by rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Timeline {
    pub(crate) policy: String,
    pub(crate) activations: String,
    pub(crate) step: u64,
    pub(crate) layer: usize,
    pub(crate) events: Vec<Event>,
}

/// Something that one rank does; ranks wait for each other after each phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    pub(crate) rank: usize,
    pub(crate) name: String,
    /// "measured" or "modelled".
    pub(crate) source: String,
    pub(crate) start_s: f64,
    pub(crate) seconds: f64,
    pub(crate) rows: u64,
}

impl Cost {
    /// The whole on one of [`NETWORKS`].
    pub(crate) fn moe_s(&self, network: usize) -> f64 {
        self.compute_s() + self.exchange_s[network] + self.optimizer_exchange_s[network] + self.plan_s
    }

    /// Phases of the busiest ranks.
    pub(crate) fn compute_s(&self) -> f64 {
        self.phases.values().sum()
    }
}
