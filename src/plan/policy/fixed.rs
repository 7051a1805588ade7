//! Plain expert parallelism: every expert stays where it starts.

use super::{Decision, Input, Policy, shared};
use crate::Result;
use crate::plan::counts::Counts;
use crate::plan::placement::Placement;
use crate::plan::setup::Setup;

/// Expert `e` of E on rank `floor(e R / E)`, one copy, for ever; every pair back-propagated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fixed {
    /// Lets a rank compute its pairs in several waves, which plain expert parallelism does not do: tells what waves alone bring.
    pub waves: bool,
}

impl Policy for Fixed {
    fn name(&self) -> &str {
        if self.waves { "fixed-waves" } else { "fixed" }
    }

    fn start(&self, setup: &Setup, counts: &Counts) -> Result<Placement> {
        shared::contiguous(setup, counts)
    }

    fn decide(&self, setup: &Setup, input: &Input<'_>) -> Result<Decision> {
        shared::check(setup, input)?;
        let pairs = input.counts.per_expert();
        let forward = shared::even_split(input.placement, pairs);
        let kept = shared::keep_all(setup, pairs, input.placement.clone(), forward, input.placement.clone())?;
        Ok(Decision { waves: self.waves, ..kept })
    }
}
