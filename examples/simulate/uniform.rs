//! The price of LRMoE where there is nothing to gain: uniform routing, every pair retained.

use lrmoe::Result;
use lrmoe::plan::policy::{Fixed, Lrmoe};
use lrmoe::plan::{PlanOptions, Policy, Retention, Setup, Workload};
use serde::Serialize;

use crate::cases::generated;
use crate::sim::{Outcome, simulate};

/// The most that LRMoE may cost over fixed ownership.
pub(crate) const MOST: f64 = 1.01;

/// Predicted times of the `balanced` workload at retention 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Uniform {
    pub(crate) model: String,
    pub(crate) ranks: usize,
    /// Seconds; absent where the budget refuses a step.
    pub(crate) lrmoe_s: Option<f64>,
    pub(crate) fixed_s: Option<f64>,
}

impl Uniform {
    /// Simulates both policies.
    ///
    /// # Errors
    /// As [`simulate`].
    pub(crate) fn new(model: &str, setup: &Setup, tokens_per_rank: u32, seed: u64, steps: u64) -> Result<Self> {
        let options = PlanOptions { retention: Retention::Fraction(1.0), ..setup.options };
        let mut setup = setup.clone();
        setup.options = options;
        let steps = generated(Workload::Balanced, &setup, tokens_per_rank, seed, steps)?;
        let seconds = |policy: &dyn Policy| {
            Ok(match simulate(&setup, policy, &steps, 1.0)? {
                Outcome::Ran(run) => Some(run.seconds),
                Outcome::Infeasible(_) => None,
            })
        };
        let (lrmoe_s, fixed_s) = (seconds(&Lrmoe::default())?, seconds(&Fixed::default())?);
        Ok(Self { model: model.to_owned(), ranks: setup.cluster.ranks, lrmoe_s, fixed_s })
    }

    /// Time of LRMoE over that of fixed ownership, where both fit.
    pub(crate) fn ratio(&self) -> Option<f64> {
        Some(self.lrmoe_s? / self.fixed_s?)
    }
}
