//! Everything that was found, as a value that is written as JSON.

use lrmoe::plan::Policy;
use lrmoe::{Error, Result};
use serde::Serialize;

use crate::cases::Case;
use crate::sim::{Outcome, Refusal, Run, simulate};
use crate::uniform::Uniform;

/// The policies that LRMoE is measured against in the verdict.
const RIVALS: [&str; 4] = ["fixed", "symi", "eplb", "llep"];

/// Times that differ by a smaller part than this are called the same.
const SAME: f64 = 5e-4;

/// The whole report.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) retention: String,
    pub(crate) seed: u64,
    pub(crate) cases: Vec<CaseReport>,
    /// One for each model and number of ranks.
    pub(crate) uniform: Vec<Uniform>,
    /// Cases in which LRMoE takes at least as long as a rival.
    pub(crate) no_saving: Vec<NoSaving>,
}

/// One routing, model and number of ranks.
#[derive(Debug, Serialize)]
pub(crate) struct CaseReport {
    pub(crate) routing: String,
    pub(crate) model: String,
    pub(crate) ranks: usize,
    pub(crate) ranks_per_node: usize,
    pub(crate) experts: usize,
    pub(crate) top_k: usize,
    /// MoE layers that share a rank's budget.
    pub(crate) layers: usize,
    pub(crate) budget_bytes: u64,
    pub(crate) pairs_per_step: f64,
    pub(crate) notes: Vec<String>,
    pub(crate) policies: Vec<PolicyReport>,
}

/// One policy in one case.
#[derive(Debug, Serialize)]
pub(crate) struct PolicyReport {
    pub(crate) policy: String,
    pub(crate) feasible: bool,
    #[serde(flatten)]
    pub(crate) run: Option<Run>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) refusal: Option<Refusal>,
}

/// Where LRMoE saves nothing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct NoSaving {
    pub(crate) routing: String,
    pub(crate) model: String,
    pub(crate) ranks: usize,
    pub(crate) rival: String,
    pub(crate) lrmoe_s: f64,
    pub(crate) rival_s: f64,
}

impl NoSaving {
    /// Part by which LRMoE takes longer.
    pub(crate) fn over(&self) -> f64 {
        self.lrmoe_s / self.rival_s - 1.0
    }

    /// Whether both take the same time, as far as one can speak of it.
    pub(crate) fn is_tie(&self) -> bool {
        self.over() < SAME
    }

    pub(crate) fn place(&self) -> String {
        place(&self.routing, &self.model, self.ranks)
    }
}

fn place(routing: &str, model: &str, ranks: usize) -> String {
    format!("{routing}, {model}, {ranks} ranks")
}

impl CaseReport {
    /// Simulates every policy, one after the other, so that none disturbs another's plan times.
    ///
    /// # Errors
    /// As [`simulate`], naming the case and the policy.
    pub(crate) fn new(case: &Case, policies: &[Box<dyn Policy>], extra_steps: impl Fn(&str) -> f64) -> Result<Self> {
        let Case { routing, model, setup, steps, notes } = case;
        let fared = |policy: &dyn Policy| {
            let name = policy.name();
            let outcome = simulate(setup, policy, steps, extra_steps(name)).map_err(|e| Error::Input {
                what: format!("{name} on {routing}, {model}, {} ranks", setup.cluster.ranks),
                reason: e.to_string(),
            })?;
            Ok(PolicyReport::new(name, outcome))
        };
        let pairs: u64 = steps.iter().map(lrmoe::plan::Counts::total).sum();
        Ok(Self {
            routing: routing.clone(),
            model: model.clone(),
            ranks: setup.cluster.ranks,
            ranks_per_node: setup.cluster.ranks_per_node,
            experts: setup.config.num_experts,
            top_k: setup.config.num_experts_per_tok,
            layers: setup.layers,
            budget_bytes: setup.cluster.budget(),
            pairs_per_step: pairs as f64 / steps.len().max(1) as f64,
            notes: notes.clone(),
            policies: policies.iter().map(|policy| fared(policy.as_ref())).collect::<Result<_>>()?,
        })
    }

    /// The run of a feasible policy.
    pub(crate) fn run(&self, policy: &str) -> Option<&Run> {
        self.policies.iter().find(|report| report.policy == policy)?.run.as_ref()
    }

    /// Routing, model and ranks.
    pub(crate) fn place(&self) -> String {
        place(&self.routing, &self.model, self.ranks)
    }

    /// Whether the budget refuses LRMoE, but not every rival.
    pub(crate) fn only_rivals_fit(&self) -> bool {
        let refused = self.policies.iter().any(|report| report.policy == "lrmoe" && !report.feasible);
        refused && RIVALS.iter().any(|rival| self.run(rival).is_some())
    }

    /// Rivals that take no longer than LRMoE.
    pub(crate) fn no_saving(&self) -> Vec<NoSaving> {
        let Some(lrmoe) = self.run("lrmoe") else { return Vec::new() };
        let found = |rival: &str, run: &Run| NoSaving {
            routing: self.routing.clone(),
            model: self.model.clone(),
            ranks: self.ranks,
            rival: rival.to_owned(),
            lrmoe_s: lrmoe.seconds,
            rival_s: run.seconds,
        };
        let compared = RIVALS.iter().filter_map(|rival| Some((rival, self.run(rival)?)));
        compared.filter(|(_, run)| run.seconds <= lrmoe.seconds).map(|(rival, run)| found(rival, run)).collect()
    }
}

impl PolicyReport {
    fn new(policy: &str, outcome: Outcome) -> Self {
        let (run, refusal) = match outcome {
            Outcome::Ran(run) => (Some(*run), None),
            Outcome::Infeasible(refusal) => (None, Some(refusal)),
        };
        Self { policy: policy.to_owned(), feasible: run.is_some(), run, refusal }
    }
}

impl Report {
    /// As JSON, with the steps of every run or without.
    ///
    /// # Errors
    /// [`Error::Input`] where a number cannot be written.
    pub(crate) fn json(mut self, series: bool) -> Result<String> {
        if !series {
            let reports = self.cases.iter_mut().flat_map(|case| &mut case.policies);
            reports.filter_map(|report| report.run.as_mut()).for_each(|run| run.series = None);
        }
        serde_json::to_string_pretty(&self)
            .map_err(|e| Error::Input { what: "the report".into(), reason: e.to_string() })
    }
}
