//! The plans of one layer in one training run: that of the policy which drives the run, and those of the policies that look on.

use std::time::Instant;

use lrmoe::plan::policy::Input;
use lrmoe::plan::route::{Route, Sources, assign, route_backward, transport};
use lrmoe::plan::{Activations, Counts, Demand, Placement, Plan, Policy, RetentionPlan, Setup};
use lrmoe::plan::{NOWHERE, destinations, pair_counts, retain};
use lrmoe::{Error, Result, RoutedCall, Schedule};

use super::loads::{Loads, Moves, Own, Priced};
use super::memory::Real;
use crate::moe::LayerPlanner;
use crate::retain::Retain;

/// A policy, the setup it plans for, and where it has placed the experts.
pub(crate) struct Follower {
    pub(crate) policy: Box<dyn Policy>,
    /// The setup at each of [`NETWORKS`](super::cell::NETWORKS); plans are made for the middle one.
    pub(crate) setups: [Setup; 3],
    real: Real,
    placement: Option<Placement>,
    demand: Option<Demand>,
    /// Why it had to stop.
    pub(crate) infeasible: Option<String>,
}

impl Follower {
    pub(crate) fn new(policy: Box<dyn Policy>, setups: [Setup; 3], real: Real) -> Self {
        Self { policy, setups, real, placement: None, demand: None, infeasible: None }
    }

    /// Its plan of this step and the seconds that took. `demand` is that of scores, where the run has any.
    fn plan(&mut self, step: u64, counts: &Counts, demand: Option<&Demand>) -> Result<(Plan, Placement, f64)> {
        let setup = &self.setups[super::cell::PLANNED];
        let placement = match self.placement.take() {
            Some(placement) => placement,
            None => self.policy.start(setup, counts)?,
        };
        let input = Input { step, counts, demand: demand.or(self.demand.as_ref()), placement: &placement };
        let begun = Instant::now();
        let plan = self.policy.plan(setup, &input)?;
        let took = begun.elapsed().as_secs_f64();
        let seen = Demand::uniform(counts.per_expert());
        self.demand = Some(match &self.demand {
            Some(before) => Demand::smooth(before, &seen, setup.options.smoothing)?,
            None => seen,
        });
        self.placement = Some(plan.next.clone());
        Ok((plan, placement, took))
    }
}

/// What forward left for the time after backward.
struct Pending {
    ids: Vec<u32>,
    top_k: usize,
    source_of_token: Vec<u32>,
    counts: Counts,
    /// One for each follower; `None` where it has stopped.
    plans: Vec<Option<(Plan, Placement, f64)>>,
}

/// All plans of one layer in one training run.
pub(crate) struct LayerPlans {
    layer: usize,
    ranks: usize,
    planned_steps: u64,
    retain: Retain,
    /// Whether the first follower's plans say what is computed; otherwise everything is.
    driven: bool,
    pub(crate) followers: Vec<Follower>,
    pending: Option<Pending>,
    /// What each follower's ranks did in the last step.
    pub(crate) done: Vec<Option<Loads>>,
}

impl LayerPlans {
    pub(crate) fn new(
        (layer, ranks, planned_steps): (usize, usize, u64),
        retain: Retain,
        driven: bool,
        followers: Vec<Follower>,
    ) -> Self {
        Self { layer, ranks, planned_steps, retain, driven, followers, pending: None, done: Vec::new() }
    }
}

impl LayerPlanner for LayerPlans {
    fn schedule(&mut self, step: u64, call: &RoutedCall<'_>) -> Result<Schedule> {
        let (experts, top_k) = (call.counts.len(), call.top_k);
        let source_of_token = sources(call.ids.len() / top_k, self.ranks);
        let counts = pair_counts(call.ids, top_k, &source_of_token, self.ranks, experts, None)?;
        let retention = self.retain.at(self.layer, step, self.planned_steps);
        let mut plans = Vec::with_capacity(self.followers.len());
        for (i, follower) in self.followers.iter_mut().enumerate() {
            if follower.infeasible.is_some() {
                plans.push(None);
                continue;
            }
            follower.setups.iter_mut().for_each(|setup| setup.options.retention = retention);
            match follower.plan(step, &counts, call.demand) {
                Ok(plan) => plans.push(Some(plan)),
                Err(error @ Error::Infeasible { .. }) => {
                    follower.infeasible = Some(error.to_string());
                    // Without its driver's plan the run itself cannot go on.
                    if self.driven && i == 0 {
                        return Err(error);
                    }
                    plans.push(None);
                }
                Err(error) => return Err(error),
            }
        }
        let driver = plans.first().and_then(Option::as_ref).map(|(plan, ..)| plan).filter(|_| self.driven);
        let schedule = match driver {
            None => {
                let all = counts.per_expert().to_vec();
                Schedule { retained: RetentionPlan::new(all.clone(), all)?, dropped: None }
            }
            Some(plan) => Schedule {
                retained: plan.retained.clone(),
                dropped: plan.dropped.as_ref().map(|d| last_pairs(call.ids, top_k, &source_of_token, d)).transpose()?,
            },
        };
        self.pending = Some(Pending { ids: call.ids.to_vec(), top_k, source_of_token, counts, plans });
        Ok(schedule)
    }

    fn retained(&mut self, pairs: &[bool]) -> Result<()> {
        let pending = self.pending.take().ok_or_else(|| Error::State {
            what: "backward without a planned forward".into(),
            fix: "run forward first".into(),
        })?;
        let Pending { ids, top_k, source_of_token, counts, .. } = &pending;
        let kept = pair_counts(ids, *top_k, source_of_token, self.ranks, counts.experts(), Some(pairs))?;
        let mut tokens = vec![0; self.ranks];
        source_of_token.iter().for_each(|&source| tokens[source as usize] += 1);
        self.done.clear();
        for (i, (follower, plan)) in self.followers.iter().zip(&pending.plans).enumerate() {
            let driver = self.driven && i == 0;
            let loads = match plan {
                Some(plan) => Some(pending.loads(follower, plan, driver, (pairs, &kept, &tokens))?),
                None => None,
            };
            self.done.push(loads);
        }
        Ok(())
    }
}

impl Pending {
    /// What the ranks do under one plan, given which pairs were retained, how many that are of each rank and expert, and each rank's
    /// tokens.
    fn loads(
        &self,
        follower: &Follower,
        (plan, before, plan_s): &(Plan, Placement, f64),
        driver: bool,
        (retained, kept, tokens): (&[bool], &Counts, &[usize]),
    ) -> Result<Loads> {
        let (ids, k, from) = (&self.ids, self.top_k, &self.source_of_token);
        let (ranks, experts) = (self.counts.ranks(), self.counts.experts());
        let (computed, computed_counts) = match &plan.dropped {
            Some(dropped) => {
                let drops = last_pairs(ids, k, from, dropped)?;
                let computed: Vec<bool> = drops.into_iter().map(|dropped| !dropped).collect();
                let counts = pair_counts(ids, k, from, ranks, experts, Some(&computed))?;
                (Some(computed), counts)
            }
            None => (None, self.counts.clone()),
        };
        let out = destinations(ids, k, from, experts, &plan.forward, computed.as_deref())?;
        let mut plan_s = *plan_s;
        let back = match plan.activations {
            Activations::Stash => retain(&out, retained)?,
            Activations::Recompute => {
                let setup = &follower.setups[super::cell::PLANNED];
                let begun = Instant::now();
                let routes = send_anew(kept, setup.cluster.ranks_per_node, plan, driver)?;
                plan_s += begun.elapsed().as_secs_f64();
                destinations(ids, k, from, experts, &routes, Some(retained))?
            }
        };
        let own = Own { tokens: tokens.to_vec(), computed: computed_counts, retained: kept.per_rank().to_vec() };
        let moves = Moves { ids, top_k: k, source_of_token: from, out: &out, back: &back, own };
        let Follower { setups, real, .. } = follower;
        Loads::new(&moves, &Priced { plan, before, setups, real, plan_s })
    }
}

/// Routes of the retained pairs: within the plan's capacities where the plan is the one they were retained under, else such that
/// the busiest rank has the least.
fn send_anew(kept: &Counts, ranks_per_node: usize, plan: &Plan, driver: bool) -> Result<Vec<Route>> {
    if driver {
        return route_backward(kept, ranks_per_node, &plan.placement, &plan.capacity);
    }
    let sources = Sources::new(kept.clone(), ranks_per_node)?;
    let loads = assign(&sources, &plan.placement, None)?;
    transport(&sources, &plan.placement, &loads)
}

/// The rank of each token: equal runs of consecutive tokens.
pub(crate) fn sources(tokens: usize, ranks: usize) -> Vec<u32> {
    (0..tokens).map(|t| (t * ranks / tokens) as u32).collect()
}

/// The pairs to drop: of every source and expert as many as `dropped` says, the last ones in token order, which is where a buffer
/// that is filled in this order runs over.
fn last_pairs(ids: &[u32], top_k: usize, source_of_token: &[u32], dropped: &Counts) -> Result<Vec<bool>> {
    let experts = dropped.experts();
    let mut left = dropped.flat().to_vec();
    let mut drops = vec![false; ids.len()];
    for (pair, &expert) in ids.iter().enumerate().rev().filter(|(_, e)| **e != NOWHERE) {
        let left = &mut left[source_of_token[pair / top_k] as usize * experts + expert as usize];
        if *left > 0 {
            *left -= 1;
            drops[pair] = true;
        }
    }
    match left.iter().find(|&&left| left > 0) {
        None => Ok(drops),
        Some(left) => Err(Error::argument("dropped", left, "at most the pairs of each source and expert")),
    }
}
