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
    /// Step and validation loss of the run that computes every pair in both passes.
    pub(crate) plain: Vec<(u64, f64)>,
    /// One for each policy and activation mode.
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
    /// Why it had to: it does not fit the budget, or training diverged.
    pub(crate) infeasible: Option<String>,
}

impl Trained {
    /// Steps and layers that are executed and timed: the middle of every stretch of `time_every` steps, the layers in turn.
    pub(crate) fn samples(&self) -> impl Iterator<Item = (usize, usize)> {
        let Protocol { time_every, layers, .. } = self.protocol;
        let longest = self.runs.iter().map(|run| run.loads.len()).max().unwrap_or(0);
        (0..longest).step_by(time_every as usize).enumerate().map(move |(index, first)| {
            let middle = first + time_every as usize / 2;
            (middle.min(longest - 1), index % layers)
        })
    }

    /// Checks the parts against each other, for a file that may have been changed.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Protocol { layers, ranks, .. } = self.protocol;
        for run in &self.runs {
            let last = run.curve.last().map_or(0, |(step, _)| *step);
            if run.infeasible.is_none() && (run.loads.len() as u64) < last {
                return Err(format!("{} has loads of {} steps, not {last}", run.policy, run.loads.len()));
            }
            if !run.curve.is_sorted_by(|a, b| a.0 < b.0) {
                return Err(format!("the validations of {} are not in order", run.policy));
            }
            for (step, loads) in run.loads.iter().enumerate() {
                if loads.len() != layers || loads.iter().any(|loads| loads.ranks() != ranks) {
                    return Err(format!("{} has not {layers} layers of {ranks} ranks in step {step}", run.policy));
                }
            }
        }
        Ok(())
    }
}
