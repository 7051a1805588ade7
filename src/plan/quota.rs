//! Quotas: how many pairs each expert back-propagates.
//!
//! Minimises `sum_e omega_e V_e(q_e - 1)` with `omega_e = S_e^(2 alpha - 2)` under `sum q_e = Q` and
//! `min(n_e, q_min) <= q_e <= n_e`, where `V_e` is the variance of threshold sampling and `S_e` the expert's
//! score sum. Each `V_e` is convex, so granting one pair at a time to the expert that gains most is optimal. The result
//! is exactly that of these unit grants, ties going to the lower expert index, but found by bisection: at the optimum
//! `omega_e tau_e^2` is about the same for all experts, so one number, the common threshold, gives every quota to within a few pairs,
//! and only those are granted one by one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::curve::Curves;
use super::demand::Demand;
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
    /// The floors `min(n_e, q_min)` alone are more than was asked; they are the quotas.
    Floor,
    /// The noise budget would have been met with less than the smallest fraction allowed.
    MinFraction,
    /// The noise budget is not met even with the largest fraction allowed.
    MaxFraction,
}

impl Limit {
    /// The name used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::MinFraction => "min_fraction",
            Self::MaxFraction => "max_fraction",
        }
    }

    /// A number that never changes, for hashes.
    pub(crate) const fn code(self) -> u32 {
        match self {
            Self::Floor => 1,
            Self::MinFraction => 2,
            Self::MaxFraction => 3,
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
    /// The Q that was asked for or found; the sum of `q` unless [`Limit::Floor`] binds.
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
    check_theta(theta)?;
    let mut solver = Solver::new(counts, demand, options)?;
    let (first, last) = range.into_inner();
    solver.check_total(last)?;
    if first > last {
        return Err(Error::argument("range", format!("{first}..={last}"), "a first sum not above the last"));
    }
    // Quotas of a larger sum are nowhere smaller where that matters, so eta never rises with the sum.
    if solver.eta_at(first) <= theta {
        let limit = (first > 0).then_some(Limit::MinFraction);
        return Ok(solver.finish(first, limit));
    }
    if solver.eta_at(last) > theta {
        return Ok(solver.finish(last, Some(Limit::MaxFraction)));
    }
    let (mut too_noisy, mut enough) = (first, last);
    while enough - too_noisy > 1 {
        let middle = too_noisy + (enough - too_noisy) / 2;
        if solver.eta_at(middle) <= theta {
            enough = middle;
            solver.within.0 = solver.found.0;
        } else {
            too_noisy = middle;
            solver.within.1 = solver.found.1;
        }
    }
    solver.solve(enough);
    Ok(solver.finish(enough, None))
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

/// Everything that does not depend on the sum of the quotas, and the quotas of the last sum solved for.
struct Solver<'a> {
    counts: &'a [u32],
    curves: Curves,
    sum_sq: f64,
    pairs: u64,
    /// `[E]` `S_e^(1 - alpha)` relative to the largest S: `omega_e = 1 / relief_e^2`; 0 where `S_e` is 0.
    relief: Vec<f64>,
    /// `[E]` lower bounds.
    floors: Vec<u32>,
    /// `[E]` where gains end, at least the floor.
    ceilings: Vec<u32>,
    /// Bits of two common thresholds: at the first more pairs are asked for than any sum still to be solved for, at the
    /// second no more than that.
    within: (u64, u64),
    /// The same for the last sum alone: tighter.
    found: (u64, u64),
    quotas: Vec<u32>,
    heap: BinaryHeap<(u64, Reverse<usize>)>,
}

impl<'a> Solver<'a> {
    fn new(counts: &'a [u32], demand: &Demand, options: &QuotaOptions) -> Result<Self> {
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
        let within = (least.to_bits(), f64::max(least, most).to_bits());
        Ok(Self {
            counts,
            sum_sq: scaled.sum_sq(),
            pairs: total(counts),
            relief,
            within,
            found: within,
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

    /// Sets the quotas for one sum, at most the number of pairs.
    fn solve(&mut self, sum: u64) {
        self.quotas.copy_from_slice(&self.floors);
        self.found = self.within;
        if total(&self.floors) >= sum {
            return;
        }
        if total(&self.ceilings) <= sum {
            self.quotas.copy_from_slice(&self.ceilings);
        } else {
            self.start_below(sum);
            self.grant(sum - total(&self.quotas));
        }
        self.spread(sum - total(&self.quotas));
    }

    /// Raises the quotas to grants that are certainly among the best ones for `sum`, leaving few pairs over.
    ///
    /// For a common threshold `t`, every grant up to `quota_at(t * relief)` gains at least `t^2` and every grant more than one
    /// beyond it gains less. If even the upper counts fit into `sum`, the lower ones are safe.
    fn start_below(&mut self, sum: u64) {
        let experts = self.counts.len() as u64;
        let (mut low, mut high) = self.within;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let upper = self.upper(middle);
            if upper > sum {
                low = middle;
                continue;
            }
            high = middle;
            if sum - upper < experts {
                break;
            }
        }
        self.found = (low, high);
        if self.upper(high) <= sum {
            for e in 0..self.counts.len() {
                self.quotas[e] = self.around(e, high).0;
            }
        }
    }

    /// No fewer than the pairs whose grants gain as much as a common threshold asks.
    fn upper(&self, threshold_bits: u64) -> u64 {
        (0..self.counts.len()).map(|e| u64::from(self.around(e, threshold_bits).1)).sum()
    }

    /// The whole quotas around the common threshold, within the bounds: grants up to the first surely gain enough, grants
    /// beyond the second surely do not.
    fn around(&self, e: usize, threshold_bits: u64) -> (u32, u32) {
        let quota = self.curves.get(e).quota_at(f64::from_bits(threshold_bits) * self.relief[e]);
        // Far more than rounding can move a quota of this size, far less than a pair.
        let slack = quota * 1e-12 + 1e-6;
        let bounded = |q: f64| (q as u32).clamp(self.floors[e], self.ceilings[e]);
        (bounded((quota - slack).floor()), bounded((quota + slack).floor() + 1.0))
    }

    /// Grants single pairs, the best gain first, as long as there is one.
    fn grant(&mut self, pairs: u64) {
        self.heap.clear();
        for e in 0..self.counts.len() {
            self.offer(e);
        }
        for _ in 0..pairs {
            let Some((_, Reverse(e))) = self.heap.pop() else { return };
            self.quotas[e] += 1;
            self.offer(e);
        }
    }

    /// Puts the next pair of an expert up for granting.
    fn offer(&mut self, e: usize) {
        let gain = self.gain(e, self.quotas[e]);
        if gain > 0.0 && self.quotas[e] < self.ceilings[e] {
            self.heap.push((gain.to_bits(), Reverse(e)));
        }
    }

    fn gain(&self, e: usize, quota: u32) -> f64 {
        let relief = self.relief[e];
        if relief > 0.0 { self.curves.get(e).gain(quota) / (relief * relief) } else { 0.0 }
    }

    /// Shares out pairs that gain nothing, in proportion to the pairs each expert still drops; what rounding leaves goes to
    /// the largest remainders, the lower index first.
    fn spread(&mut self, pairs: u64) {
        let room: u64 = self.pairs - total(&self.quotas);
        if pairs == 0 || room == 0 {
            return;
        }
        let mut left = pairs;
        let mut remainders = Vec::with_capacity(self.counts.len());
        for (e, quota) in self.quotas.iter_mut().enumerate() {
            let share = u128::from(pairs) * u128::from(self.counts[e] - *quota);
            // At most the room of this expert, as `pairs <= room`.
            let whole = (share / u128::from(room)) as u32;
            *quota += whole;
            left -= u64::from(whole);
            remainders.push((Reverse(share % u128::from(room)), e));
        }
        remainders.sort_unstable();
        for (_, e) in remainders.into_iter().take(left as usize) {
            self.quotas[e] += 1;
        }
    }

    fn finish(self, requested: u64, bound: Option<Limit>) -> Quotas {
        let floor = (total(&self.quotas) > requested).then_some(Limit::Floor);
        Quotas {
            requested,
            limits: floor.into_iter().chain(bound).collect(),
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
mod tests;
