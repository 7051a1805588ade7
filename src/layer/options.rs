//! Options of a layer and context of a call.

use std::str::FromStr;

use crate::kernel::{Metric, SelectRule};
use crate::plan::{Activations, PlanOptions, RouterGradient};
use crate::{Error, Result};

/// Which pairs are back-propagated, ALGORITHM section 3.2.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    /// Every pair: plain training. Nothing is scored or planned.
    All,
    /// The highest scores within the quota, weight 1: deterministic and biased.
    TopQ,
    /// Systematic sampling in proportion to the score, along an order in which pairs of similar upstream gradients stand together:
    /// unbiased, see [`SelectRule`]. Where gradients fall into clusters, weight gradients have far less variance than under priority
    /// sampling at the same quotas; a test holds it to half.
    Systematic,
    /// Priority sampling: unbiased. It draws every pair for itself.
    Unbiased,
    /// The top `certain * quota` scores for certain, priority sampling for the rest: unbiased.
    Mixed {
        /// Fraction of the quota, at least 0 and below 1.
        certain: f32,
    },
}

impl Selection {
    /// The kernel's rule; `None` for [`Selection::All`].
    pub(crate) fn rule(self) -> Option<SelectRule> {
        match self {
            Self::All => None,
            Self::TopQ => Some(SelectRule::TopQ),
            Self::Systematic => Some(SelectRule::Systematic),
            Self::Unbiased => Some(SelectRule::Unbiased),
            Self::Mixed { certain } => Some(SelectRule::Mixed { certain }),
        }
    }

    fn validate(self) -> Result<()> {
        match self {
            Self::Mixed { certain } if !(0.0..1.0).contains(&certain) => {
                Err(Error::argument("select", format!("mixed:{certain}"), "mixed:F with 0 <= F < 1"))
            }
            _ => Ok(()),
        }
    }
}

/// What [`Selection`] is parsed from.
const NAMES: &str = "all, topq, systematic, unbiased, mixed or mixed:FRACTION";

impl FromStr for Selection {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let selection = match text.split_once(':') {
            None => match text {
                "all" => Self::All,
                "topq" => Self::TopQ,
                "systematic" => Self::Systematic,
                "unbiased" => Self::Unbiased,
                "mixed" => Self::Mixed { certain: 0.5 },
                _ => return Err(Error::argument("select", text, NAMES)),
            },
            Some(("mixed", fraction)) => match fraction.parse() {
                Ok(certain) => Self::Mixed { certain },
                Err(_) => return Err(Error::argument("select", text, "mixed:F with 0 <= F < 1")),
            },
            Some(_) => return Err(Error::argument("select", text, NAMES)),
        };
        selection.validate()?;
        Ok(selection)
    }
}

impl std::fmt::Display for Selection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::TopQ => f.write_str("topq"),
            Self::Systematic => f.write_str("systematic"),
            Self::Unbiased => f.write_str("unbiased"),
            Self::Mixed { certain } => write!(f, "mixed:{certain}"),
        }
    }
}

/// Parts of a layer that are trained together, or frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Router weight.
    Router,
    /// Routed experts.
    Experts,
    /// Shared expert and its gate.
    Shared,
}

/// Which parts receive gradients. A frozen part has no gradient buffer and no optimizer state, and costs no wgrad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trainable {
    /// Router weight.
    pub router: bool,
    /// Routed experts.
    pub experts: bool,
    /// Shared expert and its gate.
    pub shared: bool,
}

impl Trainable {
    /// Everything.
    pub const ALL: Self = Self { router: true, experts: true, shared: true };
    /// Nothing: for evaluation.
    pub const NONE: Self = Self { router: false, experts: false, shared: false };

    pub(crate) const fn has(self, part: Part) -> bool {
        match part {
            Part::Router => self.router,
            Part::Experts => self.experts,
            Part::Shared => self.shared,
        }
    }
}

/// Options of a [`crate::MoeLayer`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LayerOptions {
    /// Which pairs are back-propagated.
    pub select: Selection,
    /// Retention, exponent alpha, floor and smoothing of the quotas.
    pub plan: PlanOptions,
    /// The load recalibration metric.
    pub metric: Metric,
    /// No score falls below this fraction of its expert's mean.
    pub score_floor: f32,
    /// Largest pair weight; no limit where absent. A limit brings bias back.
    pub weight_cap: Option<f32>,
    /// Stash or recompute.
    pub activations: Activations,
    /// Router gradient of dropped pairs.
    pub router_gradient: RouterGradient,
    /// Factor of the load-balancing loss in backward; 0 switches it off.
    pub aux_loss_coef: f64,
    /// Factor of the router z-loss in backward; 0 switches it off.
    pub z_loss_coef: f64,
    /// Parts that receive gradients.
    pub trainable: Trainable,
}

impl Default for LayerOptions {
    fn default() -> Self {
        Self {
            select: Selection::Systematic,
            plan: PlanOptions::default(),
            metric: Metric::default(),
            score_floor: 0.25,
            weight_cap: None,
            activations: Activations::default(),
            router_gradient: RouterGradient::default(),
            aux_loss_coef: 0.0,
            z_loss_coef: 0.0,
            trainable: Trainable::ALL,
        }
    }
}

impl LayerOptions {
    /// Checks every value.
    ///
    /// # Errors
    /// [`Error::Argument`] naming the option, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        self.select.validate()?;
        self.plan.validate()?;
        if matches!(self.select, Selection::Unbiased | Selection::Mixed { .. }) && self.plan.q_min < 2 {
            let allowed = format!("2 or more with select {}: one slot has infinite variance", self.select);
            return Err(Error::argument("q_min", self.plan.q_min, allowed));
        }
        if !(0.0..=1.0).contains(&self.score_floor) {
            return Err(Error::argument("score_floor", self.score_floor, "0 to 1"));
        }
        if let Some(cap) = self.weight_cap.filter(|cap| cap.is_nan() || *cap < 1.0) {
            return Err(Error::argument("weight_cap", cap, "1 or more, or none"));
        }
        for (name, value) in [("aux_loss_coef", self.aux_loss_coef), ("z_loss_coef", self.z_loss_coef)] {
            // Kernels compute in f32, so what counts is the value there.
            if !(value as f32).is_finite() || value < 0.0 {
                return Err(Error::argument(name, value, "a number finite as f32, 0 or more"));
            }
        }
        Ok(())
    }

    pub(crate) fn tracks_losses(&self) -> bool {
        self.aux_loss_coef > 0.0 || self.z_loss_coef > 0.0
    }
}

/// What identifies a call, and which tokens take part.
///
/// Selection draws its numbers from (seed, step, call id, layer, expert, global token id), or without the token where one draw serves
/// an expert: the same values give the same selection on every backend.
#[derive(Debug, Clone, Copy, Default)]
pub struct ForwardContext<'a> {
    /// Seed of the run.
    pub seed: u64,
    /// Optimizer step.
    pub step: u64,
    /// Layer number.
    pub layer: u32,
    /// Tells micro-batches and repeated uses of one layer within a step apart.
    pub call_id: u32,
    /// Global token ids, `[T]`, each once; `first_token + t` where absent.
    pub token_ids: Option<&'a [u64]>,
    /// Global id of the first token where `token_ids` is absent.
    pub first_token: u64,
    /// `[T]`: false for padding, which is not routed, not counted, gets y = 0 and takes no part in losses.
    pub mask: Option<&'a [bool]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_option_is_refused_and_a_missing_one_has_its_default() {
        assert_eq!(serde_json::from_str::<LayerOptions>("{}").unwrap(), LayerOptions::default());
        let options = LayerOptions { weight_cap: Some(2.0), ..LayerOptions::default() };
        assert_eq!(serde_json::from_str::<LayerOptions>(r#"{"weight_cap": 2.0}"#).unwrap(), options);
        let json = serde_json::to_string(&options).unwrap();
        assert_eq!(serde_json::from_str::<LayerOptions>(&json).unwrap(), options);
        let misspelt = serde_json::from_str::<LayerOptions>(&json.replace("weight_cap", "weight_caps"));
        assert!(misspelt.unwrap_err().to_string().contains("weight_caps"));
    }

    #[test]
    fn coefficients_that_are_infinite_as_f32_are_refused() {
        for (name, options) in [
            ("aux_loss_coef", LayerOptions { aux_loss_coef: 1e39, ..LayerOptions::default() }),
            ("z_loss_coef", LayerOptions { z_loss_coef: 1e300, ..LayerOptions::default() }),
        ] {
            assert!(matches!(options.validate(), Err(Error::Argument { name: named, .. }) if named == name));
        }
    }
}
