//! Policies: rules that turn routing counts into placements, quotas and loads. One trait and one report, so that they are
//! compared on the same inputs.

mod eplb;
mod fixed;
mod llep;
mod lrmoe;
mod names;
mod search;
mod shared;
mod symi;

use std::fmt;

pub use lrmoe::Lrmoe;

use super::counts::Counts;
use super::demand::Demand;
use super::evaluate;
use super::mode::Activations;
use super::placement::Placement;
use super::retained::RetentionPlan;
use super::setup::Setup;
use super::value::Plan;
use crate::Result;

pub use eplb::{Eplb, EplbGroups, eplb_map, eplb_pack, eplb_replicate};
pub use fixed::Fixed;
pub use llep::Llep;
pub use names::{NAMES, by_name};
pub use symi::{Symi, SymiCost, SymiCostInput, symi_cost, symi_counts, symi_gradient_source};

/// What a policy sees of one layer in one step. All ranks gather the same.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Number of the step, from 0.
    pub step: u64,
    /// This step's pairs.
    pub counts: &'a Counts,
    /// What earlier steps' scores and loads say; `None` at the first step.
    pub demand: Option<&'a Demand>,
    /// Where the experts are now: what the step before, or [`Policy::start`], decided.
    pub placement: &'a Placement,
}

/// What a policy decides; the rest of a [`Plan`] follows from it in the same way for all.
#[derive(Debug, Clone)]
pub struct Decision {
    /// Pairs routed and pairs back-propagated. Its counts are this step's less what `dropped` holds.
    pub retained: RetentionPlan,
    /// `[R, E]` pairs that not even forward computes, row-major, at most the counts; `None` drops nothing.
    pub dropped: Option<Counts>,
    /// Where this step runs: the current placement, or that with copies made for this step alone.
    pub placement: Placement,
    /// Pairs that each instance of `placement` computes in forward; for each expert their sum is its count.
    pub forward: Vec<u32>,
    /// `c[e][r]`: pairs that each instance may back-propagate under [`Activations::Recompute`]; for each expert their sum is its quota.
    /// Under [`Activations::Stash`] a pair stays where its forward ran, so each instance's share of the quota follows from
    /// `forward`.
    pub backward: Vec<u32>,
    /// What forward keeps, or whatever is cheaper among what fits.
    pub activations: Option<Activations>,
    /// Whether a rank may compute its pairs in several waves, or must hold them all at once.
    pub waves: bool,
    /// Placement of the next step.
    pub next: Placement,
    /// Predicted seconds of a step that starts and ends there and brings the same pairs, if the policy foretells them; see
    /// [`Plan::next_s`].
    pub next_s: Option<f64>,
}

/// A rule that decides.
///
/// A policy is a pure function of setup and input: every rank calls it with the same gathered numbers and gets the same
/// decision.
pub trait Policy: fmt::Debug + Send + Sync {
    /// The name in reports and options.
    fn name(&self) -> &str;

    /// The placement before anything is known of the routing. `counts` are those of the first step, for sizes only: how many pairs
    /// the ranks hold; a policy must not fit the placement to their experts.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] for options that do not fit the setup.
    fn start(&self, setup: &Setup, counts: &Counts) -> Result<Placement>;

    /// Decides one step of one layer.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] where input and setup differ in ranks or experts, [`crate::Error::Argument`] for options out of range.
    fn decide(&self, setup: &Setup, input: &Input<'_>) -> Result<Decision>;

    /// The whole plan of one step: the decision with routes, memory and predicted times.
    ///
    /// # Errors
    /// As [`Policy::decide`], and [`crate::Error::Infeasible`] where the decision does not fit the budget.
    fn plan(&self, setup: &Setup, input: &Input<'_>) -> Result<Plan> {
        shared::check(setup, input)?;
        evaluate::settle(setup, input, self.decide(setup, input)?)?.into_plan(self.name())
    }
}
