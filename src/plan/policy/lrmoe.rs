//! LRMoE: exact forward, scheduled backward, ALGORITHM sections 4 to 6.

use super::search::{Search, WHOLE_LADDER};
use super::{Decision, Input, Policy, shared};
use crate::plan::canonical::Labels;
use crate::plan::counts::Counts;
use crate::plan::demand::Demand;
use crate::plan::evaluate::{self, Evaluator, Settled, Work, allowed};
use crate::plan::mode::{Activations, Ownership};
use crate::plan::placement::Placement;
use crate::plan::quota::Limit;
use crate::plan::retained::{RetentionPlan, plan_and_wish};
use crate::plan::route;
use crate::plan::setup::Setup;
use crate::plan::value::Plan;
use crate::{Error, Result};

/// This project's policy: quotas within rank capacities, the busiest rank minimised exactly, placement for the next step searched
/// among candidates that do not depend on the budget.
///
/// Renaming experts, or ranks inside a node, renames its plans: the input is relabelled first by what it says itself. Labels
/// that nothing distinguishes are interchangeable, so times and bytes stay the same there too.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Lrmoe {
    /// Instances that every placement has, replicas included; `None` leaves the number to the search.
    pub instances: Option<usize>,
}

impl Lrmoe {
    /// With a given number of instances, or as many as pay.
    #[must_use]
    pub const fn new(instances: Option<usize>) -> Self {
        Self { instances }
    }

    /// Decides in canonical labels, with the evaluator that this took.
    fn settle<'a>(&self, setup: &'a Setup, input: &Input<'_>) -> Result<Settled<'a>> {
        let current = input.placement;
        let modes = allowed(setup, None);
        let (mut retained, asked) = plan_and_wish(input.counts.per_expert(), input.demand, &setup.options, current)?;
        let mut evaluator = Evaluator::new(setup, input.counts, input.counts.clone(), &retained, true)?;
        let forward = route::assign(&evaluator.forward, current, None)?;
        let mut backward = route::assign_draft(&evaluator.backward, current)?;
        let mut now = evaluator.works(current, &forward, &backward, &modes)?;
        if let Some(everything) = evaluator.keeping_everything() {
            let plain = everything.works(current, &forward, &forward, &modes)?;
            // Whatever the budget, so that more memory never changes what is retained while both fit.
            let saves_nothing = everything.unlimited_s(current, &plain) <= evaluator.unlimited_s(current, &now);
            let limit = match saves_nothing {
                true => Some(Limit::NoSaving),
                false => needs_everything(&evaluator, &now, &everything, &plain, current)?,
            };
            if let Some(limit) = limit {
                retained = retained.everything_after_all(limit);
                (evaluator, now) = (everything, plain);
                backward.clone_from(&forward);
            }
        }
        // The next placement is made for what is asked for, not for what this one lets through.
        let asked = match retained.limits.contains(&Limit::RankCapacity) {
            true => Some(evaluator.with_quotas(&asked)?),
            false => None,
        };
        let earlier: Option<Vec<u64>> = input.demand.map(shares_of_load);
        let search = Search {
            evaluator: asked.as_ref().unwrap_or(&evaluator),
            current,
            earlier: earlier.as_deref(),
            instances: self.instances,
            whole_ladder: input.step.is_multiple_of(WHOLE_LADDER),
            modes: &modes,
        };
        let (next, next_s) = search.best(&evaluator, &now)?;
        let decision = Decision {
            retained,
            dropped: None,
            placement: current.clone(),
            forward,
            backward,
            activations: None,
            waves: true,
            next,
            next_s,
        };
        let mut settled = evaluate::settle_with(evaluator, now, input, decision)?;
        if settled.outcome.activations == Activations::Recompute {
            settled.send_anew(input)?;
        }
        Ok(settled)
    }
}

/// Earlier loads as whole parts of 2^40.
fn shares_of_load(demand: &Demand) -> Vec<u64> {
    let load = &demand.parts().load;
    let total: f64 = load.iter().sum();
    let share = |n: &f64| if total > 0.0 { (n / total * (1_u64 << 40) as f64) as u64 } else { 0 };
    load.iter().map(share).collect()
}

impl Policy for Lrmoe {
    fn name(&self) -> &str {
        "lrmoe"
    }

    /// Runs of experts, one instance each. Where the setup leaves the owner of the optimizer state open, it is the one under which the
    /// step after the first is foretold to be faster.
    fn start(&self, setup: &Setup, counts: &Counts) -> Result<Placement> {
        setup.validate()?;
        let (experts, ranks) = (setup.config.num_experts, setup.cluster.ranks);
        counts.check(ranks, experts)?;
        let start = |ownership| Placement::contiguous(experts, ranks, ownership);
        if let Some(ownership) = setup.ownership {
            return start(ownership);
        }
        let mut best: Option<(f64, Placement)> = None;
        let mut refused = None;
        for ownership in [Ownership::Home, Ownership::Sharded] {
            let placement = start(ownership)?;
            let input = Input { step: 0, counts, demand: None, placement: &placement };
            match self.decide(setup, &input) {
                Ok(decision) => {
                    let time = decision.next_s.unwrap_or(f64::INFINITY);
                    if best.as_ref().is_none_or(|(least, _)| time < *least) {
                        best = Some((time, placement));
                    }
                }
                Err(error @ Error::Infeasible { .. }) => refused = Some(evaluate::least(refused, error)),
                Err(error) => return Err(error),
            }
        }
        match (best, refused) {
            (Some((_, placement)), _) => Ok(placement),
            (None, Some(error)) => Err(error),
            (None, None) => start(Ownership::default()),
        }
    }

    fn decide(&self, setup: &Setup, input: &Input<'_>) -> Result<Decision> {
        shared::check(setup, input)?;
        let canonical = Canonical::new(setup, input)?;
        let settled = self.settle(setup, &canonical.input(input.step))?;
        canonical.restore(settled.decision)
    }

    fn plan(&self, setup: &Setup, input: &Input<'_>) -> Result<Plan> {
        shared::check(setup, input)?;
        let canonical = Canonical::new(setup, input)?;
        let Settled { decision, evaluator, mut outcome } = self.settle(setup, &canonical.input(input.step))?;
        let back = canonical.labels.inverse();
        let (_, instances) = back.placement(&decision.placement)?;
        outcome.capacity = instances.iter().map(|&i| outcome.capacity[i as usize]).collect();
        outcome.loads = canonical.labels.ranks.iter().map(|&r| outcome.loads[r as usize]).collect();
        let evaluator = evaluator.renamed(&back, input.counts)?;
        Settled { decision: canonical.restore(decision)?, evaluator, outcome }.into_plan(self.name())
    }
}

/// [`Limit::NoRoom`] where only a step that keeps everything fits.
fn needs_everything(
    selecting: &Evaluator<'_>,
    now: &[Work],
    everything: &Evaluator<'_>,
    plain: &[Work],
    current: &Placement,
) -> Result<Option<Limit>> {
    match selecting.require([current; 2], now) {
        Ok(()) => Ok(None),
        Err(refused @ Error::Infeasible { .. }) => match everything.require([current; 2], plain) {
            Ok(()) => Ok(Some(Limit::NoRoom)),
            Err(error) => Err(evaluate::least(Some(refused), error)),
        },
        Err(error) => Err(error),
    }
}

/// An input in canonical labels.
struct Canonical {
    labels: Labels,
    counts: Counts,
    demand: Option<Demand>,
    placement: Placement,
}

impl Canonical {
    fn new(setup: &Setup, input: &Input<'_>) -> Result<Self> {
        let per_node = setup.cluster.ranks_per_node;
        let labels = Labels::canonical(input.counts, input.demand, input.placement, per_node);
        Ok(Self {
            counts: labels.counts(input.counts)?,
            demand: input.demand.map(|demand| labels.demand(demand)),
            placement: labels.placement(input.placement)?.0,
            labels,
        })
    }

    fn input(&self, step: u64) -> Input<'_> {
        Input { step, counts: &self.counts, demand: self.demand.as_ref(), placement: &self.placement }
    }

    /// A decision in the labels that the input came in.
    fn restore(&self, decision: Decision) -> Result<Decision> {
        let back = self.labels.inverse();
        let (placement, instances) = back.placement(&decision.placement)?;
        let of_instances = |loads: &[u32]| instances.iter().map(|&i| loads[i as usize]).collect();
        let (forward, backward) = (of_instances(&decision.forward), of_instances(&decision.backward));
        let RetentionPlan { counts, quotas, .. } = &decision.retained;
        let retained = RetentionPlan {
            counts: back.of_experts(counts),
            quotas: back.of_experts(quotas),
            ..decision.retained.clone()
        };
        Ok(Decision { retained, placement, forward, backward, next: back.placement(&decision.next)?.0, ..decision })
    }
}

#[cfg(test)]
#[path = "lrmoe_tests.rs"]
mod tests;
