//! What follows from a policy's decision, in the same way for all policies: bytes, waves, times, routes.

use std::rc::Rc;

use super::apportion::apportion;
use super::buffers::RankLoad;
use super::canonical::Labels;
use super::cost::{CostModel, Pass, Predicted, Priced, RankWork};
use super::counts::Counts;
use super::memory::MemoryModel;
use super::mode::Activations;
use super::placement::Placement;
use super::policy::{Decision, Input};
use super::retained::RetentionPlan;
use super::route::{self, Route, Sources};
use super::setup::Setup;
use super::value::Plan;
use super::waves::waves;
use crate::{Error, Result};

/// Pairs of one step and how they are priced, for any number of placements.
#[derive(Debug)]
pub(crate) struct Evaluator<'a> {
    setup: &'a Setup,
    model: CostModel<'a>,
    /// Pairs that forward computes.
    pub(crate) forward: Rc<Sources>,
    /// Pairs that backward is expected to compute.
    pub(crate) backward: Rc<Sources>,
    /// Pairs that were routed, computed or not: `[R]` of each source, and all of them.
    routed: (Rc<[u64]>, u64),
    /// `[R]` pairs of each source that may be retained, whatever their scores.
    retained: Rc<[u64]>,
    /// Whether pairs are scored and selected: where all are retained, neither is.
    selects: bool,
    waves: bool,
}

/// Activations with everything that depends on them.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) activations: Activations,
    /// Pairs that each instance back-propagates.
    pub(crate) capacity: Vec<u32>,
    pub(crate) wave_rows: u64,
    pub(crate) predicted: Predicted,
    /// What the memory of each rank depends on.
    pub(crate) loads: Vec<RankLoad>,
}

/// What the ranks do under one kind of activations.
#[derive(Debug)]
pub(crate) struct Work {
    activations: Activations,
    forward: Rc<[u32]>,
    capacity: Vec<u32>,
    out: Rc<RankWork>,
    back: Rc<RankWork>,
}

/// What the ranks need for it.
#[derive(Debug)]
pub(crate) struct Room {
    loads: Vec<RankLoad>,
    wave_rows: u64,
}

impl<'a> Evaluator<'a> {
    /// For `counts` of the pairs that were `routed`; what is retained of them is planned. Without `waves`, a rank holds all its pairs at
    /// once.
    pub(crate) fn new(
        setup: &'a Setup,
        routed: &Counts,
        counts: Counts,
        retained: &RetentionPlan,
        waves: bool,
    ) -> Result<Self> {
        let per_node = setup.cluster.ranks_per_node;
        let forward = Rc::new(Sources::new(counts, per_node)?);
        let plain = Self {
            setup,
            model: CostModel::new(setup)?,
            backward: Rc::clone(&forward),
            routed: (routed.per_rank().into(), routed.total()),
            retained: forward.counts().per_rank().into(),
            selects: false,
            waves,
            forward,
        };
        if retained.quotas == plain.forward.counts().per_expert() {
            return Ok(plain);
        }
        plain.with_quotas(&retained.quotas)
    }

    /// The same step with other quotas.
    pub(crate) fn with_quotas(&self, quotas: &[u32]) -> Result<Self> {
        let counts = self.forward.counts();
        let expected = route::expected_retained(counts, quotas)?;
        let at_most = |row: &[u32]| row.iter().zip(quotas).map(|(&n, &q)| u64::from(n.min(q))).sum();
        Ok(Self {
            model: self.model.clone(),
            forward: Rc::clone(&self.forward),
            backward: Rc::new(Sources::new(expected, self.setup.cluster.ranks_per_node)?),
            routed: self.routed.clone(),
            retained: counts.flat().chunks_exact(counts.experts()).map(at_most).collect(),
            selects: true,
            ..*self
        })
    }

    /// The same step with every pair back-propagated and none scored, or `None` where all are retained anyway.
    pub(crate) fn keeping_everything(&self) -> Option<Self> {
        self.selects.then(|| Self {
            model: self.model.clone(),
            forward: Rc::clone(&self.forward),
            backward: Rc::clone(&self.forward),
            routed: self.routed.clone(),
            retained: self.forward.counts().per_rank().into(),
            selects: false,
            ..*self
        })
    }

    /// The same pairs under other labels, under which those of forward are `counts`.
    pub(crate) fn renamed(self, labels: &Labels, counts: &Counts) -> Result<Self> {
        let sources = |counts| Ok::<_, Error>(Rc::new(Sources::new(counts, self.setup.cluster.ranks_per_node)?));
        let forward = sources(counts.clone())?;
        let backward = match self.selects {
            true => sources(labels.counts(self.backward.counts())?)?,
            false => Rc::clone(&forward),
        };
        Ok(Self { forward, backward, ..self })
    }

    /// The activations that take least time among those that fit; of equals, [`Activations::Stash`].
    ///
    /// `placements` are those before, in and after this step; `forward` and `backward` are the pairs of each instance, the latter
    /// where a pair may change its instance.
    pub(crate) fn best(
        &self,
        placements: [&Placement; 3],
        forward: &[u32],
        backward: &[u32],
        allowed: &[Activations],
    ) -> Result<Outcome> {
        self.best_of(placements, self.works(placements[1], forward, backward, allowed)?)
    }

    /// As [`Evaluator::best`], of works that are already there.
    fn best_of(&self, placements: [&Placement; 3], works: Vec<Work>) -> Result<Outcome> {
        let mut best: Option<Outcome> = None;
        let mut refused = None;
        for work in works {
            // The same loads in as few waves: computing a and b again takes more of everything but memory.
            if let Some(stash) = &best
                && work.activations == Activations::Recompute
                && work.capacity == stash.capacity
                && (stash.predicted.waves_forward, stash.predicted.waves_backward) == (1, 1)
            {
                continue;
            }
            match self.outcome(placements, work) {
                Ok(outcome) if best.as_ref().is_none_or(|b| outcome.predicted.total_s() < b.predicted.total_s()) => {
                    best = Some(outcome);
                }
                Ok(_) => {}
                Err(error @ Error::Infeasible { .. }) => refused = Some(least(refused, error)),
                Err(error) => return Err(error),
            }
        }
        match (best, refused) {
            (Some(best), _) => Ok(best),
            (None, Some(error)) => Err(error),
            (None, None) => Err(Error::argument("activations", "none", "stash or recompute")),
        }
    }

    /// The pairs that each rank computes and moves, for each kind of activations.
    pub(crate) fn works(
        &self,
        placement: &Placement,
        forward: &[u32],
        backward: &[u32],
        allowed: &[Activations],
    ) -> Result<Vec<Work>> {
        let of = |sources: &Sources, loads: &[u32]| -> Result<RankWork> {
            Ok(RankWork::new(placement, loads, route::traffic(sources, placement, loads)?))
        };
        let out = Rc::new(of(&self.forward, forward)?);
        let loads: Rc<[u32]> = forward.into();
        let mut works: Vec<Work> = Vec::with_capacity(allowed.len());
        for &activations in allowed {
            let capacity = match activations {
                Activations::Recompute => backward.to_vec(),
                Activations::Stash => stashed(placement, forward, self.backward.counts().per_expert()),
            };
            let back = match works.iter().find(|work| work.capacity == capacity) {
                Some(same) => Rc::clone(&same.back),
                None if !self.selects && capacity == forward => Rc::clone(&out),
                None => Rc::new(of(&self.backward, &capacity)?),
            };
            works.push(Work { activations, forward: Rc::clone(&loads), out: Rc::clone(&out), back, capacity });
        }
        Ok(works)
    }

    /// Memory of each rank for work on the first placement, the second one following, and pairs of a wave such that it fits.
    ///
    /// # Errors
    /// [`Error::Infeasible`] where none does.
    pub(crate) fn room(&self, placements: [&Placement; 2], work: &Work) -> Result<Room> {
        let loads = self.rank_loads(placements, work);
        let ceiling = self.degree(work).into_iter().fold(1, u64::max);
        let model = MemoryModel::new(self.setup, placements[0].ownership(), work.activations)?.scored(self.selects);
        let wave_rows = if self.waves {
            model.fewest_waves(&loads, ceiling)?
        } else {
            model.require(&loads, ceiling)?;
            ceiling
        };
        Ok(Room { loads, wave_rows })
    }

    /// Pairs that the busiest rank sends or computes, forward and backward.
    fn degree(&self, work: &Work) -> [u64; 2] {
        let most = |sources: &Sources| sources.counts().per_rank().iter().copied().max().unwrap_or(0);
        [work.out.busiest().max(most(&self.forward)), work.back.busiest().max(most(&self.backward))]
    }

    fn outcome(&self, placements: [&Placement; 3], work: Work) -> Result<Outcome> {
        let here = placements[1];
        let Room { loads, wave_rows } = self.room([here, placements[2]], &work)?;
        let ranks = here.ranks() as u64;
        let [out, back] = self.degree(&work).map(|degree| waves(degree, wave_rows, ranks));
        let predicted = self.predict(placements, &work, [out?, back?]);
        Ok(Outcome { activations: work.activations, capacity: work.capacity, wave_rows, predicted, loads })
    }

    fn predict(&self, placements: [&Placement; 3], work: &Work, waves: [u64; 2]) -> Predicted {
        self.model.predict(&Priced {
            forward: Pass { work: &work.out, waves: waves[0] },
            backward: Pass { work: &work.back, waves: waves[1] },
            pairs: self.routed.1,
            tokens: self.setup.tokens(self.routed.0.iter().copied().max().unwrap_or(0)),
            activations: work.activations,
            selects: self.selects,
            placements,
        })
    }

    /// Predicted seconds of work that starts and ends with a placement, had the ranks all the memory they could use.
    pub(crate) fn unlimited_s(&self, placement: &Placement, works: &[Work]) -> f64 {
        let time = |work| self.predict([placement; 3], work, [1, 1]).total_s();
        works.iter().map(time).fold(f64::INFINITY, f64::min)
    }

    /// Checks that work on the first placement, the second one following, fits the ranks under some kind of activations.
    ///
    /// # Errors
    /// [`Error::Infeasible`] for the kind that needs least.
    pub(crate) fn require(&self, placements: [&Placement; 2], works: &[Work]) -> Result<()> {
        let mut refused = None;
        for work in works {
            match self.room(placements, work) {
                Ok(_) => return Ok(()),
                Err(error @ Error::Infeasible { .. }) => refused = Some(least(refused, error)),
                Err(error) => return Err(error),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Seconds of moving the optimizer state of experts that change their home.
    pub(crate) fn moving_s(&self, before: &Placement, after: &Placement) -> f64 {
        self.model.moving_s(before, after)
    }

    /// What the memory of each rank depends on, with the larger number of instances and of homes of both placements: what goes
    /// gives its memory back before what comes takes it.
    fn rank_loads(&self, placements: [&Placement; 2], work: &Work) -> Vec<RankLoad> {
        let here = placements[0];
        let held = placements.map(Placement::instances_per_rank);
        let owned = placements.map(Placement::homes_per_rank);
        let most = |of: &[Vec<u32>; 2], r: usize| u64::from(of[0][r].max(of[1][r]));
        let most_retained = match work.activations {
            Activations::Recompute => work.back.traffic.rows.clone(),
            Activations::Stash => work.staying(here, self.backward.counts().per_expert()),
        };
        (0..here.ranks())
            .map(|r| {
                let (held, owned) = (most(&held, r), most(&owned, r));
                RankLoad {
                    tokens: self.setup.tokens(self.routed.0[r]),
                    pairs: self.forward.counts().per_rank()[r],
                    owned,
                    replicas: held - owned,
                    forward_rows: work.out.traffic.rows[r],
                    backward_rows: most_retained[r],
                    retained: self.retained[r],
                    drops: self.selects,
                }
            })
            .collect()
    }
}

impl Work {
    /// `[R]` pairs that each rank back-propagates at most where they stay: any of those it computed, up to the quotas.
    fn staying(&self, placement: &Placement, quotas: &[u32]) -> Vec<u64> {
        let mut rows = vec![0; placement.ranks()];
        for (i, (e, r)) in placement.iter().enumerate() {
            rows[r] += u64::from(self.forward[i].min(quotas[e]));
        }
        rows
    }
}

/// The refusal that the smaller budget would lift.
pub(crate) fn least(first: Option<Error>, second: Error) -> Error {
    match (first, second) {
        (Some(a @ Error::Infeasible { smallest: x, .. }), Error::Infeasible { smallest: y, .. }) if x <= y => a,
        (_, second) => second,
    }
}

/// The activations that a setup and a decision leave open.
pub(crate) fn allowed(setup: &Setup, decided: Option<Activations>) -> Vec<Activations> {
    decided.or(setup.activations).map_or_else(|| Activations::ALL.to_vec(), |one| vec![one])
}

/// Each instance's share of the quotas where a pair stays with the instance that ran its forward: in proportion to `forward`, by
/// largest remainder.
pub(crate) fn stashed(placement: &Placement, forward: &[u32], quotas: &[u32]) -> Vec<u32> {
    let mut shares = vec![0; forward.len()];
    for (e, &quota) in quotas.iter().enumerate() {
        let range = placement.range(e);
        apportion(quota, &forward[range.clone()], &mut shares[range]);
    }
    shares
}

/// A decision with what follows from it, but for the routes.
#[derive(Debug)]
pub(crate) struct Settled<'a> {
    pub(crate) decision: Decision,
    pub(crate) evaluator: Evaluator<'a>,
    pub(crate) outcome: Outcome,
}

/// Refuses a decision that does not fit the input or contradicts itself.
fn check(input: &Input<'_>, kept: &Counts, decision: &Decision) -> Result<()> {
    let (ranks, experts) = (kept.ranks(), kept.experts());
    let Decision { retained, placement, forward, backward, next, .. } = decision;
    for (name, placement) in [("placement", placement), ("next placement", next)] {
        placement.check(name, ranks, experts)?;
    }
    if placement.ownership() != input.placement.ownership() || next.ownership() != input.placement.ownership() {
        let allowed = format!("{}, as it was", input.placement.ownership().name());
        return Err(Error::argument("ownership of a placement", next.ownership().name(), allowed));
    }
    if retained.counts != kept.per_expert() {
        return Err(Error::argument("decision.retained.counts", "other pairs", "this step's less what is dropped"));
    }
    for (name, loads, sums) in [("forward", forward, &retained.counts), ("backward", backward, &retained.quotas)] {
        if loads.len() != placement.instances() {
            let expected = format!("{} instances", placement.instances());
            return Err(Error::shape(format!("decision.{name}"), loads.len(), expected));
        }
        for (e, &sum) in sums.iter().enumerate() {
            let got: u64 = loads[placement.range(e)].iter().map(|&n| u64::from(n)).sum();
            if got != u64::from(sum) {
                return Err(Error::argument(format!("decision.{name} of expert {e}"), got, sum.to_string()));
            }
        }
    }
    Ok(())
}

/// Prices a decision.
pub(crate) fn settle<'a>(setup: &'a Setup, input: &Input<'_>, decision: Decision) -> Result<Settled<'a>> {
    let kept = match &decision.dropped {
        Some(dropped) => without(input.counts, dropped)?,
        None => input.counts.clone(),
    };
    check(input, &kept, &decision)?;
    let evaluator = Evaluator::new(setup, input.counts, kept, &decision.retained, decision.waves)?;
    let modes = allowed(setup, decision.activations);
    let works = evaluator.works(&decision.placement, &decision.forward, &decision.backward, &modes)?;
    settle_with(evaluator, works, input, decision)
}

/// As [`settle`], with an evaluator and the decision's works that are already there.
pub(crate) fn settle_with<'a>(
    evaluator: Evaluator<'a>,
    works: Vec<Work>,
    input: &Input<'_>,
    decision: Decision,
) -> Result<Settled<'a>> {
    let outcome = evaluator.best_of([input.placement, &decision.placement, &decision.next], works)?;
    Ok(Settled { decision, evaluator, outcome })
}

impl Settled<'_> {
    /// Replaces a draft of where retained pairs go by the assignment itself, where that is no slower and fits.
    pub(crate) fn send_anew(&mut self, input: &Input<'_>) -> Result<()> {
        let Self { decision, evaluator, outcome } = self;
        let backward = route::assign(&evaluator.backward, &decision.placement, None)?;
        let placements = [input.placement, &decision.placement, &decision.next];
        match evaluator.best(placements, &decision.forward, &backward, &[outcome.activations]) {
            Ok(better) if better.predicted.total_s() <= outcome.predicted.total_s() => {
                (*outcome, decision.backward) = (better, backward);
                Ok(())
            }
            Ok(_) | Err(Error::Infeasible { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Adds the routes.
    pub(crate) fn into_plan(self, policy: &str) -> Result<Plan> {
        let Self { decision, evaluator, outcome } = self;
        let ownership = decision.placement.ownership();
        let model = MemoryModel::new(evaluator.setup, ownership, outcome.activations)?.scored(evaluator.selects);
        let memory = outcome.loads.iter().map(|load| model.rank(load, outcome.wave_rows)).collect::<Result<_>>()?;
        let forward = route::transport(&evaluator.forward, &decision.placement, &decision.forward)?;
        let backward = match outcome.activations {
            Activations::Recompute => route::transport(&evaluator.backward, &decision.placement, &outcome.capacity)?,
            Activations::Stash => stay(&decision.placement, &forward, &outcome.capacity)?,
        };
        Ok(Plan {
            policy: policy.to_owned(),
            retained: decision.retained,
            dropped: decision.dropped,
            placement: decision.placement,
            activations: outcome.activations,
            forward,
            backward,
            capacity: outcome.capacity,
            wave_rows: outcome.wave_rows,
            memory,
            predicted: outcome.predicted,
            next: decision.next,
            next_s: decision.next_s,
        })
    }
}

/// The expected retained part of each forward route: each instance's share, in proportion to the routes that lead to it.
fn stay(placement: &Placement, forward: &[Route], capacity: &[u32]) -> Result<Vec<Route>> {
    let mut retained = vec![0; forward.len()];
    // Of each instance: its pairs, those of the routes so far, and what is retained of them.
    let mut instances = vec![[0_u64; 3]; placement.instances()];
    let mut found = Vec::with_capacity(forward.len());
    for route in forward {
        let range = placement.range(route.expert as usize);
        // Mostly one instance, or few.
        match placement.hosts(route.expert as usize).iter().position(|&host| host == route.to) {
            Some(at) => found.push(range.start + at),
            None => return Err(Error::argument("forward", format!("{route:?}"), "routes to instances")),
        }
    }
    forward.iter().zip(&found).for_each(|(route, &i)| instances[i][0] += u64::from(route.pairs));
    for ((share, route), &instance) in retained.iter_mut().zip(forward).zip(&found) {
        let [all, seen, given] = &mut instances[instance];
        *seen += u64::from(route.pairs);
        let until = *seen * u64::from(capacity[instance]) / (*all).max(1);
        // At most the pairs of the route, as the capacity is at most all of them.
        *share = (until - *given) as u32;
        *given = until;
    }
    route::follow(forward, &retained)
}

/// Counts less what is dropped.
fn without(counts: &Counts, dropped: &Counts) -> Result<Counts> {
    dropped.check(counts.ranks(), counts.experts())?;
    let left = counts.flat().iter().zip(dropped.flat()).map(|(n, d)| n.checked_sub(*d)).collect::<Option<Vec<u32>>>();
    let Some(left) = left else {
        return Err(Error::argument("dropped pairs", "more than are routed", "at most the counts"));
    };
    Counts::from_flat(counts.ranks(), counts.experts(), left)
}
