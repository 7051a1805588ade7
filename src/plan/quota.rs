//! Quotas: how many pairs each expert back-propagates.
//!
//! Minimises `sum_e omega_e V_e(q_e - 1)` with `omega_e = S_e^(2 alpha - 2)` under `sum q_e = Q` and
//! `min(n_e, q_min) <= q_e <= n_e`, where `V_e` is the variance of threshold sampling and `S_e` the expert's
//! score sum. Each `V_e` is convex, so granting one pair at a time to the expert that gains most is optimal. The result
//! is exactly that of these unit grants, ties going to the lower expert index, but found faster: at the optimum
//! `omega_e tau_e^2` is about the same for all experts, so one number, the common threshold, gives every quota to within a few pairs,
//! and only those are granted one by one.
//!
//! [`quotas_within`] adds the ranks: what the experts retain must fit the ranks that host them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::capacity;
use super::curve::Curves;
use super::demand::Demand;
use super::placement::Placement;
use crate::{Error, Result, portable};

/// What is minimised, and the floor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct QuotaOptions {
    /// In [0, 1]. 1 minimises the total variance (Neyman allocation); 0 evens out the experts' relative errors, and with
    /// them the load.
    pub alpha: f64,
    /// Every expert gets at least `min(n_e, q_min)`. Unbiased selection needs 2 or more.
    pub q_min: u32,
}

impl Default for QuotaOptions {
    fn default() -> Self {
        Self { alpha: 1.0, q_min: 8 }
    }
}

impl QuotaOptions {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`Error::Argument`] for an alpha outside [0, 1].
    pub fn validate(&self) -> Result<()> {
        if (0.0..=1.0).contains(&self.alpha) {
            return Ok(());
        }
        Err(Error::argument("alpha", self.alpha, "a number in [0, 1]"))
    }
}

/// A limit that kept the quotas from what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
    /// The floors `min(n_e, q_min)` alone are more than was asked, and are the quotas; or they alone do not fit the ranks,
    /// whose capacities were raised for them.
    Floor,
    /// The noise budget would have been met with less than the smallest fraction allowed.
    MinFraction,
    /// The noise budget is not met even with the largest fraction allowed.
    MaxFraction,
    /// The capacities of the ranks moved pairs to other experts than the demand alone would choose, or kept their sum below what
    /// was asked.
    RankCapacity,
    /// Selecting the pairs would take more time than it saves; everything is retained, nothing scored.
    NoSaving,
    /// What selecting needs to keep does not fit the budget, and everything does without; everything is retained, nothing scored.
    NoRoom,
}

impl Limit {
    /// The name used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::MinFraction => "min_fraction",
            Self::MaxFraction => "max_fraction",
            Self::RankCapacity => "rank_capacity",
            Self::NoSaving => "no_saving",
            Self::NoRoom => "no_room",
        }
    }

    /// A number that never changes, for hashes.
    pub(crate) const fn code(self) -> u32 {
        match self {
            Self::Floor => 1,
            Self::MinFraction => 2,
            Self::MaxFraction => 3,
            Self::RankCapacity => 4,
            Self::NoSaving => 5,
            Self::NoRoom => 6,
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Quotas and what is foretold of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Quotas {
    /// `[E]` pairs to retain.
    pub q: Vec<u32>,
    /// The Q that was asked for or found; the sum of `q` unless [`Limit::Floor`] raised or [`Limit::RankCapacity`] lowered it.
    pub requested: u64,
    /// Limits that bound, each once, in the order of their definition.
    pub limits: Vec<Limit>,
    /// `[E]` predicted sampling threshold, in units of the scores: a retained pair of score m gets weight `max(1, tau / m)`. 0 where
    /// every eligible pair is retained.
    pub tau: Vec<f64>,
    /// Predicted noise; see [`eta`].
    pub eta: f64,
}

/// Quotas with the sum `total`.
///
/// `demand` is that of earlier steps; it is [scaled](Demand::scaled_to) to `counts` here.
///
/// # Errors
/// [`Error::Argument`] for a total above the sum of `counts`, or bad options; [`Error::Shape`] where `demand` has another
/// number of experts.
pub fn quotas(counts: &[u32], demand: &Demand, options: &QuotaOptions, total: u64) -> Result<Quotas> {
    let mut solver = Solver::new(counts, demand, options)?;
    solver.check_total(total)?;
    solver.solve(total);
    Ok(solver.finish(total, None))
}

/// Quotas with the smallest sum in `range` for which the predicted [`eta`] is at most `theta`.
///
/// Where even the end of the range does not reach theta, its quotas are returned with [`Limit::MaxFraction`].
///
/// # Errors
/// [`Error::Argument`] for a theta that is negative or not finite, a range that is empty or ends above the sum of `counts`,
/// or bad options; [`Error::Shape`] where `demand` has another number of experts.
pub fn quotas_for_noise(
    counts: &[u32],
    demand: &Demand,
    options: &QuotaOptions,
    theta: f64,
    range: RangeInclusive<u64>,
) -> Result<Quotas> {
    let mut solver = Solver::new(counts, demand, options)?;
    let (sum, bound) = solver.sum_for_noise(theta, range)?;
    solver.solve(sum);
    Ok(solver.finish(sum, bound))
}

/// Quotas with the sum `total` that the ranks can carry: pairs can be shared out over the experts' hosts in `placement` so that
/// no rank back-propagates more than its `capacity`, `[R]` pairs.
///
/// Among all such quotas these are the best: exactly what granting one pair at a time gives, the best gain first, where a grant
/// that the ranks cannot carry is forfeited. They are those of [`quotas`] unless [`Limit::RankCapacity`] says otherwise; their sum
/// falls short of `total` only where no more can be carried. Floors win over capacities: where the floors alone do not fit,
/// every rank gets at least the least common capacity with which they do, and [`Limit::Floor`] is reported.
///
/// ```
/// use lrmoe::plan::quota::{QuotaOptions, quotas, quotas_within};
/// use lrmoe::plan::{Demand, Limit, Ownership, Placement};
///
/// let counts = [60, 60, 240];
/// let (demand, options) = (Demand::uniform(&counts), QuotaOptions { alpha: 1.0, q_min: 2 });
/// assert_eq!(quotas(&counts, &demand, &options, 123)?.q, [21, 21, 81]);
/// // Experts 0 and 1 on rank 0, 2 on rank 1: what rank 1 cannot carry goes to rank 0.
/// let placement = Placement::new(2, &[[0], [0], [1]], vec![0, 0, 1], Ownership::Home)?;
/// let within = quotas_within(&counts, &demand, &options, 123, &placement, &[65, 65])?;
/// assert_eq!((within.q, within.limits), (vec![29, 29, 65], vec![Limit::RankCapacity]));
/// # Ok::<(), lrmoe::Error>(())
/// ```
///
/// # Errors
/// As [`quotas`], and [`Error::Shape`] where `counts`, `placement` and `capacity` differ in experts or ranks.
pub fn quotas_within(
    counts: &[u32],
    demand: &Demand,
    options: &QuotaOptions,
    total: u64,
    placement: &Placement,
    capacity: &[u64],
) -> Result<Quotas> {
    capacity::check(counts, placement)?;
    if capacity.len() != placement.ranks() {
        return Err(Error::shape("capacity", capacity.len(), format!("{} ranks", placement.ranks())));
    }
    let mut solver = Solver::new(counts, demand, options)?;
    solver.check_total(total)?;
    solver.solve(total);
    let bound = capacity::solve(&mut solver, total, placement, capacity);
    Ok(solver.finish(total, bound))
}

/// Predicted noise of selection: `sum_e V_e(q_e - 1) / sum m^2`, 0 if everything eligible is retained.
///
/// If pairs were independent samples, `sum m^2` would be the noise that the data brings anyway; selection then acts as if
/// the batch were `1 + eta` times smaller. `demand` is [scaled](Demand::scaled_to) to `counts` here; infinite scores take part only
/// by the quota they use up.
///
/// # Errors
/// [`Error::Shape`] where the three differ in the number of experts; [`Error::Argument`] for a quota above its count.
pub fn eta(quotas: &[u32], counts: &[u32], demand: &Demand) -> Result<f64> {
    if quotas.len() != counts.len() {
        return Err(Error::shape("quotas", quotas.len(), format!("{} experts", counts.len())));
    }
    if let Some(e) = (0..counts.len()).find(|&e| quotas[e] > counts[e]) {
        return Err(Error::argument(format!("quotas[{e}]"), quotas[e], format!("at most its count {}", counts[e])));
    }
    let scaled = demand.scaled_to(counts)?;
    Ok(noise(&Curves::new(&scaled, counts), quotas, scaled.sum_sq()))
}

fn noise(curves: &Curves, quotas: &[u32], sum_sq: f64) -> f64 {
    let variance: f64 = quotas.iter().enumerate().map(|(e, &q)| curves.get(e).variance(q)).sum();
    if variance > 0.0 { variance / sum_sq } else { 0.0 }
}

/// Refuses a noise budget that is negative or not finite.
pub(crate) fn check_theta(theta: f64) -> Result<()> {
    if theta.is_finite() && theta >= 0.0 {
        return Ok(());
    }
    Err(Error::argument("noise budget theta", theta, "a finite number >= 0"))
}

/// Everything that does not depend on the sum of the quotas, and the quotas of the last sums solved for.
pub(super) struct Solver<'a> {
    counts: &'a [u32],
    curves: Curves,
    sum_sq: f64,
    pairs: u64,
    /// `[E]` `S_e^(1 - alpha)` relative to the largest S: `omega_e = 1 / relief_e^2`; 0 where `S_e` is 0.
    relief: Vec<f64>,
    /// `[E]` lower bounds.
    pub(super) floors: Vec<u32>,
    /// `[E]` where gains end, at least the floor.
    pub(super) ceilings: Vec<u32>,
    /// Bits of the least and the greatest common threshold there is.
    ends: (u64, u64),
    /// The same of the last one found: a first guess.
    last: u64,
    /// `0..E`.
    all: Vec<u32>,
    /// `[E]` what was solved for.
    pub(super) quotas: Vec<u32>,
    heap: BinaryHeap<(u64, Reverse<u32>)>,
}

impl<'a> Solver<'a> {
    pub(super) fn new(counts: &'a [u32], demand: &Demand, options: &QuotaOptions) -> Result<Self> {
        options.validate()?;
        let scaled = demand.scaled_to(counts)?;
        let curves = Curves::new(&scaled, counts);
        let sums: Vec<f64> = (0..counts.len()).map(|e| curves.get(e).score_sum()).collect();
        let largest = sums.iter().copied().fold(0.0, f64::max);
        let relief_of = |s: &f64| if *s > 0.0 { portable::pow(s / largest, 1.0 - options.alpha) } else { 0.0 };
        let relief: Vec<f64> = sums.iter().map(relief_of).collect();
        let floors: Vec<u32> = counts.iter().map(|&n| n.min(options.q_min)).collect();
        let ceilings = floors.iter().enumerate().map(|(e, &floor)| curves.get(e).enough().max(floor)).collect();
        let ends = relief.iter().enumerate().filter(|(_, r)| **r > 0.0).map(|(e, r)| {
            let curve = curves.get(e);
            (curve.tau_min() / r, curve.tau_max() / r)
        });
        let (least, most) = ends.fold((f64::MAX, 0.0), |(least, most), (a, b)| (a.min(least), b.max(most)));
        // Positive floats order as their bits, so halving the distance of the bits halves that of the exponents.
        let ends = (least.to_bits(), f64::max(least, most).to_bits());
        Ok(Self {
            counts,
            sum_sq: scaled.sum_sq(),
            pairs: total(counts),
            relief,
            ends,
            last: ends.0,
            all: (0..counts.len() as u32).collect(),
            quotas: floors.clone(),
            heap: BinaryHeap::with_capacity(counts.len()),
            floors,
            ceilings,
            curves,
        })
    }

    fn check_total(&self, total: u64) -> Result<()> {
        if total <= self.pairs {
            return Ok(());
        }
        Err(Error::argument("sum of quotas", total, format!("at most the number of pairs {}", self.pairs)))
    }

    fn eta_at(&mut self, total: u64) -> f64 {
        self.solve(total);
        noise(&self.curves, &self.quotas, self.sum_sq)
    }

    /// The smallest sum in `range` whose noise is at most `theta`, or an end of it and why.
    pub(super) fn sum_for_noise(&mut self, theta: f64, range: RangeInclusive<u64>) -> Result<(u64, Option<Limit>)> {
        check_theta(theta)?;
        let (first, last) = range.into_inner();
        self.check_total(last)?;
        if first > last {
            return Err(Error::argument("range", format!("{first}..={last}"), "a first sum not above the last"));
        }
        // Quotas of a larger sum are nowhere smaller where that matters, so eta never rises with the sum.
        if self.eta_at(first) <= theta {
            return Ok((first, (first > 0).then_some(Limit::MinFraction)));
        }
        if self.eta_at(last) > theta {
            return Ok((last, Some(Limit::MaxFraction)));
        }
        let (mut too_noisy, mut enough) = (first, last);
        while enough - too_noisy > 1 {
            let middle = too_noisy + (enough - too_noisy) / 2;
            if self.eta_at(middle) <= theta { enough = middle } else { too_noisy = middle }
        }
        Ok((enough, None))
    }

    /// Sets the quotas for one sum, at most the number of pairs.
    pub(super) fn solve(&mut self, sum: u64) {
        let all = std::mem::take(&mut self.all);
        self.solve_for(&all, sum);
        self.all = all;
    }

    /// Sets the quotas of some experts to those that are best for one sum of theirs, or to their counts where the sum is more than
    /// all their pairs.
    pub(super) fn solve_for(&mut self, experts: &[u32], sum: u64) {
        let total = |bounds: &[u32]| -> u64 { experts.iter().map(|&e| u64::from(bounds[e as usize])).sum() };
        let (floors, ceilings) = (total(&self.floors), total(&self.ceilings));
        let start = if ceilings <= sum { &self.ceilings } else { &self.floors };
        experts.iter().for_each(|&e| self.quotas[e as usize] = start[e as usize]);
        if floors >= sum {
            return;
        }
        if ceilings > sum {
            self.start_below(experts, sum);
            self.grant(experts, sum - total(&self.quotas));
        }
        let left = sum - total(&self.quotas);
        self.spread(experts, left.min(total(self.counts) - total(&self.quotas)));
    }

    /// Raises the quotas to grants that are certainly among the best ones for `sum`, leaving few pairs over.
    ///
    /// For a common threshold `t`, every grant up to `quota_at(t * relief)` gains at least `t^2` and every grant more than one
    /// beyond it gains less. If even the upper counts fit into `sum`, the lower ones are safe. The upper counts are about
    /// linear in `1 / t`, so Newton's steps find a threshold soon; every third step halves the range whatever happens.
    fn start_below(&mut self, experts: &[u32], sum: u64) {
        let few = experts.len() as u64;
        let (mut low, mut high) = self.ends;
        let (mut next, mut step) = (self.last, 0);
        let mut safe = self.upper(experts, high).0 <= sum;
        while high - low > 1 {
            let at = if low < next && next < high { next } else { low + (high - low) / 2 };
            let (upper, light) = self.upper(experts, at);
            if upper > sum {
                low = at;
            } else {
                (high, safe) = (at, true);
                if sum - upper < few {
                    break;
                }
            }
            step += 1;
            let missing = sum as f64 - 0.5 * few as f64 - upper as f64;
            // Nonsense (negative, infinite, not a number) has bits beyond the range and is not used.
            next = if step % 3 == 0 { 0 } else { (f64::from_bits(at) * (light / (light + missing))).to_bits() };
        }
        self.last = high;
        if safe {
            experts.iter().for_each(|&e| self.quotas[e as usize] = self.around(e as usize, high).0);
        }
    }

    /// No fewer than the pairs whose grants gain as much as a common threshold asks, and how many of these are in inverse
    /// proportion to it nearby.
    fn upper(&self, experts: &[u32], threshold_bits: u64) -> (u64, f64) {
        experts.iter().fold((0, 0.0), |(pairs, light), &e| {
            let (_, upper, own) = self.around(e as usize, threshold_bits);
            (pairs + u64::from(upper), light + own)
        })
    }

    /// The whole quotas around the common threshold, within the bounds: grants up to the first surely gain enough, grants
    /// beyond the second surely do not. Third, what of them is in inverse proportion to the threshold.
    fn around(&self, e: usize, threshold_bits: u64) -> (u32, u32, f64) {
        let (sure, most, light) = self.curves.get(e).quota_at(f64::from_bits(threshold_bits) * self.relief[e]);
        let (floor, ceiling) = (self.floors[e], self.ceilings[e]);
        let bounded = |q: f64| (q as u32).clamp(floor, ceiling);
        let upper = bounded(most.floor() + 1.0);
        (bounded(sure.floor()), upper, if floor < upper && upper < ceiling { light } else { 0.0 })
    }

    /// Grants single pairs, the best gain first, as long as there is one. Gains never rise with the quota, so all those of one expert that
    /// beat the others' best are granted at once: where infinite scores outnumber the pairs, that is nearly all.
    fn grant(&mut self, experts: &[u32], pairs: u64) {
        self.heap.clear();
        experts.iter().for_each(|&e| self.offer(e));
        let mut left = pairs;
        while left > 0 {
            let Some((_, Reverse(e))) = self.heap.pop() else { return };
            let run = if left > 4 * experts.len() as u64 { self.run(e, left) } else { 1 };
            self.quotas[e as usize] += run;
            left -= u64::from(run);
            self.offer(e);
        }
    }

    /// How many pairs in a row, at most `left` and at least 1, an expert is granted before any that are up.
    fn run(&self, e: u32, left: u64) -> u32 {
        let quota = self.quotas[e as usize];
        let most = u64::from(self.ceilings[e as usize] - quota).min(left) as u32;
        let best = self.heap.peek();
        let first = |run: u32| {
            let gain = self.gain(e as usize, quota + run - 1);
            gain > 0.0 && best.is_none_or(|best| (gain.to_bits(), Reverse(e)) > *best)
        };
        let (mut sure, mut step) = (1, 1);
        while sure < most && first((sure + step).min(most)) {
            sure = (sure + step).min(most);
            step = step.saturating_mul(2);
        }
        while step > 1 {
            step /= 2;
            if sure + step <= most && first(sure + step) {
                sure += step;
            }
        }
        sure
    }

    /// Puts the next pair of an expert up for granting.
    fn offer(&mut self, e: u32) {
        let quota = self.quotas[e as usize];
        let gain = self.gain(e as usize, quota);
        if gain > 0.0 && quota < self.ceilings[e as usize] {
            self.heap.push((gain.to_bits(), Reverse(e)));
        }
    }

    pub(super) fn gain(&self, e: usize, quota: u32) -> f64 {
        let relief = self.relief[e];
        if relief > 0.0 { self.curves.get(e).gain(quota) / (relief * relief) } else { 0.0 }
    }

    /// Shares out pairs that gain nothing, at most those still dropped, in proportion to the pairs each expert still drops; what
    /// rounding leaves goes to the largest remainders, the lower index first.
    fn spread(&mut self, experts: &[u32], pairs: u64) {
        if pairs == 0 {
            return;
        }
        let dropped = |e: u32, quotas: &[u32]| u64::from(self.counts[e as usize] - quotas[e as usize]);
        let room: u64 = experts.iter().map(|&e| dropped(e, &self.quotas)).sum();
        let mut left = pairs;
        let mut remainders = Vec::with_capacity(experts.len());
        for &e in experts {
            let share = u128::from(pairs) * u128::from(dropped(e, &self.quotas));
            // At most the room of this expert, as `pairs <= room`.
            let whole = (share / u128::from(room)) as u32;
            self.quotas[e as usize] += whole;
            left -= u64::from(whole);
            remainders.push((Reverse(share % u128::from(room)), e));
        }
        remainders.sort_unstable();
        for (_, e) in remainders.into_iter().take(left as usize) {
            self.quotas[e as usize] += 1;
        }
    }

    pub(super) fn finish(self, requested: u64, bound: impl IntoIterator<Item = Limit>) -> Quotas {
        let floor = (total(&self.quotas) > requested).then_some(Limit::Floor);
        let mut limits: Vec<Limit> = floor.into_iter().chain(bound).collect();
        limits.sort_unstable();
        limits.dedup();
        Quotas {
            requested,
            limits,
            tau: self.quotas.iter().enumerate().map(|(e, &q)| self.curves.get(e).tau(q)).collect(),
            eta: noise(&self.curves, &self.quotas, self.sum_sq),
            q: self.quotas,
        }
    }
}

/// Sum of counts, as wide as it can get.
pub(crate) fn total(counts: &[u32]) -> u64 {
    counts.iter().map(|&n| u64::from(n)).sum()
}

#[cfg(test)]
#[path = "quota_tests.rs"]
pub(super) mod tests;
