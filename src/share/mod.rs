//! One rank's share of a training step, executed alone and timed by phase.
//!
//! A [`Share`] holds the sizes of what one rank of a cluster computes for one layer and step. A [`ShareRunner`] runs
//! that share with the kernels of [`crate::MoeLayer`] on made-up values and returns the seconds of every [`Phase`], so that a
//! single device can tell how long each of many ranks would compute. [`TimeModel`] fits such times and predicts others.
//!
//! What counts and what does not:
//! - Only kernels count. Transfers between ranks, planning, allocation, the first touch of memory and the making of
//!   indices do not.
//! - Values are normal random numbers, weights and activations f32. No kernel branches on values (except for ties and
//!   quotas of selection), so its time depends on sizes and indices alone.
//! - Rows of one expert ascend by token, and the rows of a token are spread over experts, as after a real permutation. Which
//!   token goes where is drawn anew, from the seed, in every run.
//! - Pairs are selected as [`crate::LayerOptions`] do by default, or by [`ShareRunner::with_selection`].
//! - The router gradient is the estimated one ([`crate::RouterGradient::Estimated`]), the metric
//!   [`crate::kernel::Metric::Product`]; router losses and token masks take no part.
//!
//! ```
//! use lrmoe::share::{Phase, Share, ShareRunner};
//! use lrmoe::{Activations, CpuBackend, MoeConfig};
//!
//! let config = MoeConfig::new(64, 32, 8, 2); // hidden size, expert width, experts, experts per token
//! let mut runner = ShareRunner::new(&CpuBackend::new(), &config, 0)?;
//! let share = Share {
//!     tokens: 32,
//!     forward: vec![20, 12], // two resident experts
//!     backward: vec![10, 6],
//!     tokens_in_forward: 24,
//!     tokens_in_backward: 12,
//!     sent_forward: 40,
//!     sent_backward: 20,
//!     retained: 32,
//!     optimizer_parameters: 2 * 3 * 64 * 32,
//!     activations: Activations::Stash,
//!     selects: true,
//! };
//! let times = runner.run(&share)?;
//! assert!(times[Phase::Wgrad] > 0.0 && times[Phase::Recompute] == 0.0);
//! # Ok::<(), lrmoe::Error>(())
//! ```

mod check;
mod data;
mod destination;
mod fit;
mod indices;
mod runner;
mod shared;
mod source;
#[cfg(test)]
mod tests;
mod timed;

use std::ops::{Add, AddAssign, Index, IndexMut};

pub use fit::{PhaseFit, TimeModel};
pub use runner::ShareRunner;

use crate::plan::Activations;

/// Sizes of one rank's share of one layer and step.
///
/// *Source* is the rank whose tokens are routed, *destination* the rank that hosts the expert; every rank is both.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Tokens of this rank as a source.
    pub tokens: usize,
    /// Forward rows of each resident expert; one with 0 rows is still resident.
    pub forward: Vec<u32>,
    /// Backward rows of each resident expert. At most the forward rows under [`Activations::Stash`], where a retained pair
    /// stays at its instance; [`Activations::Recompute`] routes retained pairs anew.
    pub backward: Vec<u32>,
    /// Distinct tokens, received or its own, that have forward rows here: rows of the packed input and of the
    /// pre-combined output.
    pub tokens_in_forward: usize,
    /// Distinct tokens that have backward rows here.
    pub tokens_in_backward: usize,
    /// Rows of x that this source packs for other ranks, one per (token, destination); as many rows of y come back.
    pub sent_forward: usize,
    /// Rows of d that this source packs for other ranks, and of x too under recomputation; as many rows of dx come back.
    pub sent_backward: usize,
    /// Retained pairs of this source. Looked at only where it selects.
    pub retained: usize,
    /// Expert parameters whose AdamW state this rank owns.
    pub optimizer_parameters: usize,
    /// What forward keeps for backward.
    pub activations: Activations,
    /// Whether pairs are scored and selected; otherwise plain training.
    pub selects: bool,
}

impl Share {
    /// Forward rows of all resident experts.
    pub fn forward_rows(&self) -> u64 {
        self.forward.iter().copied().map(u64::from).sum()
    }

    /// Backward rows of all resident experts.
    pub fn backward_rows(&self) -> u64 {
        self.backward.iter().copied().map(u64::from).sum()
    }

    /// Rows of `hidden_size` values that this source packs, both passes: x, then d and, under recomputation, x again.
    pub fn packed_rows(&self) -> u64 {
        let again = if self.recomputes() { 2 } else { 1 };
        (self.sent_forward as u64).saturating_add((self.sent_backward as u64).saturating_mul(again))
    }

    fn recomputes(&self) -> bool {
        self.activations == Activations::Recompute
    }
}

/// A part of the step that is timed on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Source: logits, gate, permutation.
    Gate,
    /// Source: the shared expert and its gate, forward and backward.
    Shared,
    /// Destination: gate and up, SwiGLU, down of all forward rows.
    Forward,
    /// Both passes: rows into one row per token at the destination, and returned rows into y and dx at the source.
    Combine,
    /// Source: norms, the load recalibration metric, demand, and keys where selection goes by them.
    Score,
    /// Source: selection within the quotas.
    Select,
    /// Source, both passes: packing of rows, and of the combine weights where nothing is selected.
    Compact,
    /// Destination: gate and up of the backward rows once more.
    Recompute,
    /// Destination: gradients of activations and inputs, SwiGLU backward included.
    Dgrad,
    /// Destination: weight gradients of all resident experts, zeros for those without rows.
    Wgrad,
    /// Source: gradients of combine weights, logits, router weight, and the router's part of dx.
    RouterBackward,
    /// Owner: AdamW of the expert parameters.
    Optimizer,
}

impl Phase {
    /// Every phase, in the order of reports.
    pub const ALL: [Self; 12] = [
        Self::Gate,
        Self::Shared,
        Self::Forward,
        Self::Combine,
        Self::Score,
        Self::Select,
        Self::Compact,
        Self::Recompute,
        Self::Dgrad,
        Self::Wgrad,
        Self::RouterBackward,
        Self::Optimizer,
    ];

    /// Name in reports, the same as when serialised.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Shared => "shared",
            Self::Forward => "forward",
            Self::Combine => "combine",
            Self::Score => "score",
            Self::Select => "select",
            Self::Compact => "compact",
            Self::Recompute => "recompute",
            Self::Dgrad => "dgrad",
            Self::Wgrad => "wgrad",
            Self::RouterBackward => "router_backward",
            Self::Optimizer => "optimizer",
        }
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Seconds by phase, in the order of [`Phase::ALL`]; 0 for a phase that did not run.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct PhaseTimes([f64; Phase::ALL.len()]);

impl PhaseTimes {
    /// The seconds that `time` gives for each phase.
    pub fn from_fn(time: impl FnMut(Phase) -> f64) -> Self {
        Self(Phase::ALL.map(time))
    }

    /// Seconds of all phases together.
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }
}

impl Index<Phase> for PhaseTimes {
    type Output = f64;

    fn index(&self, phase: Phase) -> &f64 {
        &self.0[phase as usize]
    }
}

impl IndexMut<Phase> for PhaseTimes {
    fn index_mut(&mut self, phase: Phase) -> &mut f64 {
        &mut self.0[phase as usize]
    }
}

impl AddAssign for PhaseTimes {
    fn add_assign(&mut self, other: Self) {
        for (mine, other) in self.0.iter_mut().zip(other.0) {
            *mine += other;
        }
    }
}

impl Add for PhaseTimes {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl std::iter::Sum for PhaseTimes {
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        times.fold(Self::default(), Self::add)
    }
}
