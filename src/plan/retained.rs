//! What one layer retains in one step.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::capacity;
use super::demand::Demand;
use super::options::PlanOptions;
use super::placement::Placement;
use super::quota::{self, Limit, Solver};
use super::retention::Retention;
use crate::{Error, Result};

/// What one layer retains in one step: saved with the forward pass and read by its backward pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RetentionPlanData")]
#[non_exhaustive]
pub struct RetentionPlan {
    /// `[E]` pairs routed to each expert.
    pub counts: Vec<u32>,
    /// `[E]` pairs to retain, at most the counts.
    pub quotas: Vec<u32>,
    /// The sum of quotas that was asked for; that of `quotas` unless a limit binds.
    pub requested: u64,
    /// What was asked for.
    pub retention: Retention,
    /// Limits that kept the quotas from it.
    pub limits: Vec<Limit>,
    /// Predicted noise of the selection; see [`quota::eta`].
    pub predicted_eta: f64,
}

/// A plan as it stands in a file, before it is checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RetentionPlanData {
    counts: Vec<u32>,
    quotas: Vec<u32>,
    requested: u64,
    retention: Retention,
    limits: Vec<Limit>,
    predicted_eta: f64,
}

impl TryFrom<RetentionPlanData> for RetentionPlan {
    type Error = Error;

    fn try_from(data: RetentionPlanData) -> Result<Self> {
        let RetentionPlanData { counts, quotas, requested, retention, limits, predicted_eta } = data;
        check_counts(&counts)?;
        if quotas.len() != counts.len() {
            return Err(Error::shape("plan.quotas", quotas.len(), format!("{} experts", counts.len())));
        }
        if let Some(e) = (0..counts.len()).find(|&e| quotas[e] > counts[e]) {
            return Err(Error::argument(format!("plan.quotas[{e}]"), quotas[e], format!("at most {}", counts[e])));
        }
        let retained = quota::total(&quotas);
        let explained = match retained.cmp(&requested) {
            Ordering::Less => limits.contains(&Limit::RankCapacity),
            Ordering::Equal => true,
            Ordering::Greater => {
                [Limit::Floor, Limit::NoSaving, Limit::NoRoom].iter().any(|limit| limits.contains(limit))
            }
        };
        if !explained {
            let allowed = format!(
                "the sum of quotas {retained}, unless floor, no_saving or no_room raised or rank_capacity lowered it"
            );
            return Err(Error::argument("plan.requested", requested, allowed));
        }
        if !predicted_eta.is_finite() || predicted_eta < 0.0 {
            return Err(Error::argument("plan.predicted_eta", predicted_eta, "a finite number >= 0"));
        }
        Ok(Self { counts, quotas, requested, retention, limits, predicted_eta })
    }
}

/// Plans one layer on one rank: the quotas, from this step's counts and the demand of earlier steps.
///
/// Without demand (the first step) all scores are taken as equal. A retention of 1 keeps everything; one of 0, or any
/// below the floors, keeps the floors and says so in [`RetentionPlan::limits`].
///
/// # Errors
/// [`Error::Argument`] for options out of range or no experts, [`Error::Shape`] where `demand` has another number of experts,
/// [`Error::Overflow`] where the pairs pass 2^53.
pub fn plan_one_rank(counts: &[u32], demand: Option<&Demand>, options: &PlanOptions) -> Result<RetentionPlan> {
    Ok(plan(counts, demand, options, None)?.0)
}

/// Plans one layer over many ranks: as [`plan_one_rank`] for the pairs of all ranks, `[E]`, with quotas that no rank of
/// `placement` needs more than its [`rank_capacity`] for.
///
/// The sum of the quotas is found from the retention without regard to the ranks; the quotas are then those of
/// [`quota::quotas_within`], and [`RetentionPlan::predicted_eta`] is theirs. Where the retention asks for every pair it asks for plain
/// training, so no capacity is applied, whatever the load of the ranks. On one rank the plan is that of
/// [`plan_one_rank`].
///
/// # Errors
/// As [`plan_one_rank`], and [`Error::Shape`] where `placement` has another number of experts.
pub fn plan_within(
    counts: &[u32],
    demand: Option<&Demand>,
    options: &PlanOptions,
    placement: &Placement,
) -> Result<RetentionPlan> {
    Ok(plan(counts, demand, options, Some(placement))?.0)
}

/// As [`plan_within`], with the quotas that it would be were there no ranks.
pub(super) fn plan_and_wish(
    counts: &[u32],
    demand: Option<&Demand>,
    options: &PlanOptions,
    placement: &Placement,
) -> Result<(RetentionPlan, Vec<u32>)> {
    plan(counts, demand, options, Some(placement))
}

/// Pairs that each of `ranks` ranks may back-propagate when `total` are retained: `ceil((1 + slack) total / ranks)`.
///
/// The slack counts in whole millionths, to the nearest, so that the result is exact: that of decimal arithmetic on every machine.
#[must_use]
pub fn rank_capacity(total: u64, slack: f64, ranks: usize) -> u64 {
    const ONE: u128 = 1_000_000;
    // Casts and products saturate; divided by a million and up to 2^32 ranks, what was cut off is beyond u64 still.
    let share = ((slack * ONE as f64).round() as u128).saturating_add(ONE);
    let capacity = u128::from(total).saturating_mul(share).div_ceil(ONE * (ranks as u128).max(1));
    u64::try_from(capacity).unwrap_or(u64::MAX)
}

fn plan(
    counts: &[u32],
    demand: Option<&Demand>,
    options: &PlanOptions,
    placement: Option<&Placement>,
) -> Result<(RetentionPlan, Vec<u32>)> {
    options.validate()?;
    check_counts(counts)?;
    placement.map_or(Ok(()), |placement| capacity::check(counts, placement))?;
    if let Some(demand) = demand.filter(|demand| demand.experts() != counts.len()) {
        return Err(Error::shape("counts", counts.len(), format!("{} experts", demand.experts())));
    }
    let pairs = quota::total(counts);
    if options.retention == Retention::Fraction(1.0) {
        return Ok((RetentionPlan::everything(counts, pairs), counts.to_vec()));
    }
    let uniform;
    let demand = match demand {
        Some(demand) => demand,
        None => {
            uniform = Demand::uniform(counts);
            &uniform
        }
    };
    // Exact: check_counts keeps the number of pairs within the integers of f64, and a fraction is at most 1.
    let part = |fraction: f64| ((fraction * pairs as f64).round() as u64).min(pairs);
    let mut solver = Solver::new(counts, demand, &options.quota_options())?;
    let (sum, ends) = match options.retention {
        Retention::Fraction(fraction) => (part(fraction), None),
        Retention::Noise { theta, min_fraction, max_fraction } => {
            solver.sum_for_noise(theta, part(min_fraction)..=part(max_fraction))?
        }
    };
    solver.solve(sum);
    let asked = solver.quotas.clone();
    let bound = match placement {
        Some(placement) if sum < pairs => {
            let capacity = vec![rank_capacity(sum, options.slack, placement.ranks()); placement.ranks()];
            capacity::solve(&mut solver, sum, placement, &capacity)
        }
        _ => Vec::new(),
    };
    let quotas = solver.finish(sum, bound.into_iter().chain(ends));
    let plan = RetentionPlan {
        counts: counts.to_vec(),
        quotas: quotas.q,
        requested: quotas.requested,
        retention: options.retention,
        limits: quotas.limits,
        predicted_eta: quotas.eta,
    };
    Ok((plan, asked))
}

fn check_counts(counts: &[u32]) -> Result<()> {
    if counts.is_empty() {
        return Err(Error::argument("counts", "empty", "one count for each expert, at least one"));
    }
    let pairs = quota::total(counts);
    if pairs > 1 << 53 {
        return Err(Error::Overflow { what: "number of pairs".into(), detail: format!("{pairs} is above 2^53") });
    }
    Ok(())
}

impl RetentionPlan {
    /// Quotas of a policy's own: `counts` pairs are routed to the experts, `quotas` of them retained. Nothing is foretold of their noise.
    ///
    /// # Errors
    /// [`Error::Shape`] where the two differ in length, [`Error::Argument`] without experts and for a quota above its count,
    /// [`Error::Overflow`] where the pairs pass 2^53.
    pub fn new(counts: Vec<u32>, quotas: Vec<u32>) -> Result<Self> {
        let (pairs, requested) = (quota::total(&counts), quota::total(&quotas));
        let fraction = if pairs > 0 { requested as f64 / pairs as f64 } else { 1.0 };
        let retention = Retention::Fraction(fraction.min(1.0));
        RetentionPlanData { counts, quotas, requested, retention, limits: Vec::new(), predicted_eta: 0.0 }.try_into()
    }

    /// Plain training: nothing is dropped, whatever the demand.
    fn everything(counts: &[u32], pairs: u64) -> Self {
        Self {
            counts: counts.to_vec(),
            quotas: counts.to_vec(),
            requested: pairs,
            retention: Retention::Fraction(1.0),
            limits: Vec::new(),
            predicted_eta: 0.0,
        }
    }

    /// The same request, answered with every pair for a reason that is named.
    pub(crate) fn everything_after_all(self, limit: Limit) -> Self {
        Self { quotas: self.counts.clone(), limits: vec![limit], predicted_eta: 0.0, ..self }
    }

    /// Pairs routed, over all experts.
    #[must_use]
    pub fn pairs(&self) -> u64 {
        quota::total(&self.counts)
    }

    /// Pairs to retain, over all experts.
    #[must_use]
    pub fn retained(&self) -> u64 {
        quota::total(&self.quotas)
    }

    /// Whether every pair of every expert is retained, so that the backward pass is the plain one.
    #[must_use]
    pub fn keeps_everything(&self) -> bool {
        self.quotas == self.counts
    }

    /// Hash of what the plan makes ranks do: counts, quotas, requested sum and limits, not the prediction.
    ///
    /// FNV-1a, 64 bits, over little-endian words: version (1), E, counts, quotas, requested (low, high), number of limits, their codes.
    /// It is the same on every machine, and stays so between versions of this crate unless the version word changes.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let requested = [self.requested as u32, (self.requested >> 32) as u32];
        [1, self.counts.len() as u32]
            .into_iter()
            .chain(self.counts.iter().copied())
            .chain(self.quotas.iter().copied())
            .chain(requested)
            .chain([self.limits.len() as u32])
            .chain(self.limits.iter().map(|limit| limit.code()))
            .flat_map(u32::to_le_bytes)
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    }
}

impl fmt::Display for RetentionPlan {
    /// One line of totals, then counts and quotas in rows of eight experts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PER_ROW: usize = 8;
        let (pairs, retained) = (self.pairs(), self.retained());
        let kept = if pairs > 0 { 100.0 * retained as f64 / pairs as f64 } else { 100.0 };
        let limits: Vec<&str> = self.limits.iter().map(|limit| limit.name()).collect();
        let limits = if limits.is_empty() { "none".to_owned() } else { limits.join(", ") };
        write!(
            f,
            "{} experts, {retained} of {pairs} pairs retained ({kept:.1} %, asked {}), eta {:.3}, limits: {limits}",
            self.counts.len(),
            self.retention,
            self.predicted_eta,
        )?;
        let rows = self.counts.chunks(PER_ROW).zip(self.quotas.chunks(PER_ROW));
        for (row, (counts, quotas)) in rows.enumerate() {
            let first = row * PER_ROW;
            write!(f, "\nexpert ")?;
            (first..first + counts.len()).try_for_each(|e| write!(f, "{e:>9}"))?;
            write!(f, "\npairs  ")?;
            counts.iter().try_for_each(|n| write!(f, "{n:>9}"))?;
            write!(f, "\nquota  ")?;
            quotas.iter().try_for_each(|q| write!(f, "{q:>9}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "retained_tests.rs"]
mod tests;
