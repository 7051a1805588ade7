//! What a plan is asked for.

use serde::{Deserialize, Serialize};

use super::demand;
use super::quota::QuotaOptions;
use super::retention::Retention;
use crate::{Error, Result};

/// What a plan is asked for, the same for one rank and for many.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlanOptions {
    /// How many pairs to retain.
    pub retention: Retention,
    /// See [`QuotaOptions::alpha`].
    pub alpha: f64,
    /// See [`QuotaOptions::q_min`].
    pub q_min: u32,
    /// How far a rank's share of the retained pairs may pass the mean: the backward capacity of each of R ranks is
    /// `(1 + slack) Q / R` for Q retained pairs. Finite and at least 0. Means nothing on one rank.
    pub slack: f64,
    /// Weight of the previous demand in [`Demand::smooth`](super::Demand::smooth), in [0, 1). Planning itself takes demand as it is given.
    pub smoothing: f64,
}

impl Default for PlanOptions {
    fn default() -> Self {
        let QuotaOptions { alpha, q_min } = QuotaOptions::default();
        Self { retention: Retention::Fraction(0.5), alpha, q_min, slack: 0.05, smoothing: 0.5 }
    }
}

impl PlanOptions {
    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::Argument`] for the first field out of range.
    pub fn validate(&self) -> Result<()> {
        self.retention.validate()?;
        self.quota_options().validate()?;
        if !(self.slack.is_finite() && self.slack >= 0.0) {
            return Err(Error::argument("slack", self.slack, "a finite number >= 0"));
        }
        demand::check_smoothing(self.smoothing)
    }

    /// The part that the quotas depend on.
    #[must_use]
    pub const fn quota_options(&self) -> QuotaOptions {
        QuotaOptions { alpha: self.alpha, q_min: self.q_min }
    }
}
