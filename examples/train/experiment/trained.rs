//! What training leaves of a cell: losses, and what the ranks had to do. Times are taken from it later, as often as one likes.

use lrmoe::plan::Activations;
use serde::{Deserialize, Serialize};

use super::cell::{Key, Protocol};
use super::loads::Loads;

/// All runs of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Trained {
    pub(crate) key: Key,
    pub(crate) protocol: Protocol,
    /// One for each policy and activation mode, in the order asked for.
    pub(crate) runs: Vec<TrainedRun>,
}

/// One policy in one activation mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TrainedRun {
    pub(crate) policy: String,
    pub(crate) activations: Activations,
    /// The training run whose numerics these are.
    pub(crate) trajectory: String,
    /// Step and validation loss.
    pub(crate) curve: Vec<(u64, f64)>,
    /// `[steps][layers]`; short where the policy had to stop.
    pub(crate) loads: Vec<Vec<Loads>>,
    /// Why it had to.
    pub(crate) infeasible: Option<String>,
}

impl Trained {
    /// Step and layer number `index` of those that are executed and timed: the middle of every stretch of `time_every` steps, the
    /// layers in turn.
    pub(crate) fn sample(&self, index: u64) -> (usize, usize) {
        let every = self.protocol.time_every;
        ((index * every + every / 2) as usize, index as usize % self.protocol.layers)
    }
}
