//! Demand: what the previous steps' scores say about each expert, in a form that is small, additive over ranks and
//! independent of the scale of the gradients.
//!
//! The histogram of an expert counts its finite floored scores divided by the expert's *reference* (its mean finite eligible
//! score before flooring): bin `b` covers ratios `[2^(b/8 - 2), 2^((b+1)/8 - 2))`, 8 bins an octave, from 2 octaves below the
//! reference to 6 above; lower ratios count in bin 0, higher ones in the last bin, whose sum of ratios is kept as well.
//! Because it is relative, smoothing over steps never has to move counts between bins when the gradients shrink; the
//! absolute scale is carried by the score sum alone.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Bins per expert.
pub const BINS: usize = 64;
const BINS_PER_OCTAVE: usize = 8;
const OCTAVES_BELOW: i32 = 2;
const TOP: usize = BINS - 1;
/// The bin that holds scores equal to the reference.
const UNIT_BIN: usize = BINS_PER_OCTAVE * OCTAVES_BELOW as usize;
/// Relative rounding allowed where counts that are equal by construction are compared.
const SLACK: f64 = 1e-6;

/// Least factor between the centre of a bin and where its scores are taken to be.
const LEAST_FACTOR: f64 = 1.0 / 1024.0;
/// Counts of pairs that can come about: up to the integers of f64, and down to a tenth of what smoothing forgets.
const PAIRS: RangeInclusive<f64> = 1e-10..=9_007_199_254_740_992.0;
/// Scores and their sums that can come about: products of f32 numbers, with room for counts. Planning squares them and
/// divides them by each other, and neither overflows nor vanishes in this range.
const SCORES: RangeInclusive<f64> = 1e-60..=1e60;
/// Fewer pairs than this in a bin are forgotten by smoothing: they say nothing, and fading on they would lose their digits.
const FADED: f64 = 1e-9;

/// `2^(j/16)`: bin edges at even `j`, bin centres at odd `j`. Literals, so that no machine computes them differently.
const SIXTEENTHS: [f64; 16] = [
    1.0,
    1.044_273_782_427_413_8,
    1.090_507_732_665_257_7,
    1.138_788_634_756_691_6,
    1.189_207_115_002_721,
    1.241_857_812_073_484,
    1.296_839_554_651_009_6,
    1.354_255_546_936_892_7,
    std::f64::consts::SQRT_2,
    1.476_826_145_939_499_3,
    1.542_210_825_407_940_7,
    1.610_490_331_949_254_3,
    1.681_792_830_507_429,
    1.756_252_160_373_299_5,
    1.834_008_086_409_342_4,
    1.915_206_561_397_147_4,
];

/// The histogram bin of a positive finite score divided by its expert's reference.
#[must_use]
pub fn bin(ratio: f64) -> usize {
    let above = ratio * f64::from(1 << OCTAVES_BELOW);
    if !above.is_finite() {
        return TOP;
    }
    if above < 1.0 {
        return 0;
    }
    let bits = above.to_bits();
    let octave = ((bits >> 52) - 1023) as usize;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | 1023 << 52);
    let within = SIXTEENTHS.iter().step_by(2).filter(|&&edge| edge <= mantissa).count() - 1;
    (octave * BINS_PER_OCTAVE + within).min(TOP)
}

/// The lower edge (`half` 0) or the geometric centre (`half` 1) of a bin, as a ratio to the reference.
fn ratio_at(bin: usize, half: usize) -> f64 {
    let octave = (bin / BINS_PER_OCTAVE) as i32 - OCTAVES_BELOW;
    let power = if octave < 0 { 1.0 / f64::from(1_u32 << -octave) } else { f64::from(1_u32 << octave) };
    SIXTEENTHS[2 * (bin % BINS_PER_OCTAVE) + half] * power
}

/// The numbers of a [`Demand`], as structure of arrays: what ranks sum and files hold. `E` is the number of experts.
///
/// Counts are `f64`, exact as sums of counters, fractional once smoothed or scaled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DemandParts {
    /// `[E]` pairs routed to the expert, eligible or not.
    pub load: Vec<f64>,
    /// `[E]` pairs with an infinite score (always retained first); in no bin and no sum.
    pub infinite: Vec<f64>,
    /// `[E]` sum of the finite floored scores.
    pub score_sum: Vec<f64>,
    /// `[E]` the score that the histogram's ratios are relative to; positive where the expert has a finite eligible pair.
    pub reference: Vec<f64>,
    /// `[E, 64]` row-major counts of finite eligible pairs.
    pub histogram: Vec<f64>,
    /// `[E]` sum of the ratios counted in the last bin.
    pub top_sum: Vec<f64>,
}

/// Per expert: load, eligible pairs, score sum and score histogram. See the module for the histogram.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "DemandParts", into = "DemandParts")]
pub struct Demand {
    parts: DemandParts,
}

impl TryFrom<DemandParts> for Demand {
    type Error = Error;

    /// Checks the parts against each other.
    ///
    /// # Errors
    /// [`Error::Shape`] for a wrong length, [`Error::Argument`] for a number that is out of range, not finite or contradicts
    /// another one (more eligible pairs than pairs, a score sum without pairs, a last bin whose sum is below its edge).
    fn try_from(parts: DemandParts) -> Result<Self> {
        let experts = parts.load.len();
        for (name, values, each, range) in [
            ("load", &parts.load, 1, &PAIRS),
            ("infinite", &parts.infinite, 1, &PAIRS),
            ("score_sum", &parts.score_sum, 1, &SCORES),
            ("reference", &parts.reference, 1, &SCORES),
            ("histogram", &parts.histogram, BINS, &PAIRS),
            ("top_sum", &parts.top_sum, 1, &SCORES),
        ] {
            if values.len() != experts.saturating_mul(each) {
                let expected = format!("{experts} experts x {each}");
                return Err(Error::shape(format!("demand.{name}"), values.len(), expected));
            }
            if let Some(i) = values.iter().position(|v| *v != 0.0 && !range.contains(v)) {
                let allowed = format!("0 or a number from {:e} to {:e}", range.start(), range.end());
                return Err(Error::argument(format!("demand.{name}[{i}]"), values[i], allowed));
            }
        }
        let demand = Self { parts };
        for e in 0..experts {
            demand.check_expert(e)?;
        }
        Ok(demand)
    }
}

impl From<Demand> for DemandParts {
    fn from(demand: Demand) -> Self {
        demand.parts
    }
}

impl Demand {
    /// Demand that knows only the loads: every pair eligible, all scores equal to 1. For the first step.
    #[must_use]
    pub fn uniform(counts: &[u32]) -> Self {
        let mut demand = Self::empty(counts.len());
        for (e, &n) in counts.iter().enumerate() {
            demand.set_equal_scores(e, f64::from(n), 1.0);
        }
        demand
    }

    /// Demand of one rank from its floored scores, relative to each expert's mean of these same scores.
    ///
    /// `scores` is sorted by expert; expert `e` owns `offsets[e]..offsets[e + 1]` (`offsets` has E + 1 entries). A score of 0
    /// marks a pair that is not eligible, +infinity one that is always retained.
    ///
    /// # Errors
    /// As [`Demand::from_scores_relative_to`].
    pub fn from_scores(scores: &[f32], offsets: &[u32]) -> Result<Self> {
        check_scores(scores, offsets)?;
        let mean = |pair: &[u32]| {
            let finite = scores[pair[0] as usize..pair[1] as usize].iter().filter(|m| m.is_finite() && **m > 0.0);
            let (n, sum) = finite.fold((0.0, 0.0), |(n, sum), &m| (n + 1.0, sum + f64::from(m)));
            if n > 0.0 { sum / n } else { 0.0 }
        };
        let references: Vec<f64> = offsets.windows(2).map(mean).collect();
        Self::from_scores_relative_to(scores, offsets, &references)
    }

    /// Demand of one rank from its floored scores, relative to given references: over several ranks the all-reduced mean
    /// finite eligible score of each expert, so that the ranks' demands can be merged.
    ///
    /// # Errors
    /// [`Error::Shape`] where `offsets` do not partition `scores` or `references` has another length than E;
    /// [`Error::Argument`] for a negative or NaN score, and for a reference that is not positive and finite although its
    /// expert has a finite eligible pair.
    pub fn from_scores_relative_to(scores: &[f32], offsets: &[u32], references: &[f64]) -> Result<Self> {
        check_scores(scores, offsets)?;
        let experts = offsets.len() - 1;
        if references.len() != experts {
            return Err(Error::shape("demand references", references.len(), experts));
        }
        let mut demand = Self::empty(experts);
        let parts = &mut demand.parts;
        for (e, &reference) in references.iter().enumerate() {
            let own = &scores[offsets[e] as usize..offsets[e + 1] as usize];
            parts.load[e] = own.len() as f64;
            parts.infinite[e] = own.iter().filter(|m| m.is_infinite()).count() as f64;
            let mut finite = own.iter().filter(|m| m.is_finite() && **m > 0.0).map(|&m| f64::from(m)).peekable();
            if finite.peek().is_none() {
                continue;
            }
            if !(reference > 0.0 && reference.is_finite()) {
                return Err(Error::argument(format!("references[{e}]"), reference, "a finite number > 0"));
            }
            parts.reference[e] = reference;
            for m in finite {
                let ratio = m / reference;
                let b = bin(ratio);
                parts.score_sum[e] += m;
                parts.histogram[e * BINS + b] += 1.0;
                if b == TOP {
                    parts.top_sum[e] += ratio;
                }
            }
        }
        Self::try_from(demand.parts)
    }

    /// From parts that a demand held already, in whatever order of experts.
    pub(super) const fn from_checked(parts: DemandParts) -> Self {
        Self { parts }
    }

    /// Number of experts.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.parts.load.len()
    }

    /// The numbers themselves.
    #[must_use]
    pub const fn parts(&self) -> &DemandParts {
        &self.parts
    }

    /// The histogram of one expert; `expert < experts()`.
    fn histogram(&self, expert: usize) -> &[f64] {
        &self.parts.histogram[expert * BINS..][..BINS]
    }

    /// Eligible pairs with a finite score, of one expert.
    fn finite(&self, expert: usize) -> f64 {
        self.histogram(expert).iter().sum()
    }

    /// `[E]` eligible pairs: those with a positive finite or an infinite score.
    #[must_use]
    pub fn eligible(&self) -> Vec<f64> {
        (0..self.experts()).map(|e| self.parts.infinite[e] + self.finite(e)).collect()
    }

    /// The finite scores of one expert as at most 64 (score, count) points, highest score first.
    ///
    /// Scores of the last bin stand at their mean, the others at the centres of their bins times the one factor that makes
    /// all scores sum to the stored score sum. So equal scores are represented exactly.
    pub(crate) fn points(&self, expert: usize) -> impl Iterator<Item = (f64, f64)> + '_ {
        let histogram = self.histogram(expert);
        let (reference, top_sum) = (self.parts.reference[expert], self.parts.top_sum[expert]);
        let centred: f64 = (0..TOP).map(|b| histogram[b] * ratio_at(b, 1)).sum();
        let body = self.parts.score_sum[expert] / reference - top_sum;
        // A score lies within half a bin of its centre, but for bin 0, which has no lower edge. Where the last bin
        // dominates, rounding may leave anything.
        let factor = (body / centred).clamp(LEAST_FACTOR, SIXTEENTHS[1]);
        (0..BINS).rev().filter(move |&b| histogram[b] > 0.0).map(move |b| {
            let ratio = if b == TOP { top_sum / histogram[TOP] } else { ratio_at(b, 1) * factor };
            (ratio * reference, histogram[b])
        })
    }

    /// Estimate of the sum of m^2 over all finite eligible pairs, from the histogram (the last bin as if all its scores
    /// were equal, so never more than the truth there).
    #[must_use]
    pub fn sum_sq(&self) -> f64 {
        (0..self.experts()).map(|e| self.points(e).map(|(m, count)| count * m * m).sum::<f64>()).sum()
    }

    /// Sum over the ranks of one step, in the order given.
    ///
    /// Counts add exactly in any order; the sums of scores add in rank order, which every rank must therefore share.
    ///
    /// # Errors
    /// [`Error::Argument`] without ranks, and where two ranks measured an expert's scores against different references
    /// (re-binning would blur the histogram: all-reduce the mean first); [`Error::Shape`] where they differ in experts.
    pub fn merge(ranks: &[Self]) -> Result<Self> {
        let Some(first) = ranks.first() else {
            return Err(Error::argument("ranks", "empty", "at least one demand"));
        };
        let mut merged = Self::empty(first.experts());
        for (r, rank) in ranks.iter().enumerate() {
            if rank.experts() != merged.experts() {
                let what = format!("experts in the demand of rank {r}");
                return Err(Error::shape(what, rank.experts(), merged.experts()));
            }
            for (e, &reference) in rank.parts.reference.iter().enumerate() {
                let common = &mut merged.parts.reference[e];
                if *common == 0.0 {
                    *common = reference;
                } else if reference != 0.0 && reference != *common {
                    let name = format!("reference of expert {e} on rank {r}");
                    return Err(Error::argument(name, reference, format!("{common}, as on the ranks before it")));
                }
            }
            for (sum, term) in merged.additive_mut().into_iter().zip(rank.additive()) {
                sum.iter_mut().zip(term).for_each(|(a, b)| *a += b);
            }
        }
        Self::try_from(merged.parts)
    }

    /// Exponential smoothing over steps: `factor * previous + (1 - factor) * new`, each in units of its own mean score.
    ///
    /// An expert without pairs in one of the two says nothing there, so the other one's entry is taken as it is. Merge ranks
    /// first: the reference of a smoothed demand is an average and fits no other rank's. Bins that faded to a billionth of a pair are
    /// emptied.
    ///
    /// # Errors
    /// [`Error::Argument`] for a factor outside [0, 1), [`Error::Shape`] where the two differ in experts.
    pub fn smooth(previous: &Self, new: &Self, factor: f64) -> Result<Self> {
        check_smoothing(factor)?;
        if previous.experts() != new.experts() {
            return Err(Error::shape("experts in the previous demand", previous.experts(), new.experts()));
        }
        let weights: Vec<[f64; 2]> = (0..new.experts())
            .map(|e| match (previous.parts.load[e] > 0.0, new.parts.load[e] > 0.0) {
                (true, true) => [factor, 1.0 - factor],
                (true, false) => [1.0, 0.0],
                (false, _) => [0.0, 1.0],
            })
            .collect();
        let mix = |old: &[f64], new: &[f64], each: usize| -> Vec<f64> {
            let term = |(i, (a, b)): (usize, (&f64, &f64))| weights[i / each][0] * a + weights[i / each][1] * b;
            old.iter().zip(new).enumerate().map(term).collect()
        };
        let (p, n) = (&previous.parts, &new.parts);
        let score_sum = mix(&p.score_sum, &n.score_sum, 1);
        let ratio_sum = mix(&previous.ratio_sums(), &new.ratio_sums(), 1);
        let mut mixed = Self {
            parts: DemandParts {
                load: mix(&p.load, &n.load, 1),
                infinite: mix(&p.infinite, &n.infinite, 1),
                reference: score_sum.iter().zip(&ratio_sum).map(|(s, r)| if *r > 0.0 { s / r } else { 0.0 }).collect(),
                score_sum,
                histogram: mix(&p.histogram, &n.histogram, BINS),
                top_sum: mix(&p.top_sum, &n.top_sum, 1),
            },
        };
        (0..mixed.experts()).for_each(|e| mixed.forget_faded(e));
        Self::try_from(mixed.parts)
    }

    /// This step's demand as foretold by this one: every expert's numbers times (this step's pairs / its load here).
    ///
    /// Where this demand knows nothing of an expert's finite scores (no load, or a score sum of 0), all its pairs are taken as
    /// eligible with equal scores: the mean score over all other experts, or 1 if none is known.
    ///
    /// # Errors
    /// [`Error::Shape`] where `counts` has another number of experts.
    pub fn scaled_to(&self, counts: &[u32]) -> Result<Self> {
        if counts.len() != self.experts() {
            return Err(Error::shape("counts", counts.len(), format!("{} experts", self.experts())));
        }
        let known = |e: usize| self.parts.load[e] > 0.0 && self.parts.score_sum[e] > 0.0;
        let (pairs, sum) = (0..self.experts())
            .filter(|&e| known(e))
            .fold((0.0, 0.0), |(pairs, sum), e| (pairs + self.finite(e), sum + self.parts.score_sum[e]));
        let mean = if pairs > 0.0 { sum / pairs } else { 1.0 };
        let mut scaled = self.clone();
        for (e, &n) in counts.iter().enumerate() {
            let n = f64::from(n);
            if known(e) {
                let by = n / self.parts.load[e];
                for values in scaled.additive_mut() {
                    let each = values.len() / counts.len();
                    values[e * each..][..each].iter_mut().for_each(|v| *v *= by);
                }
                scaled.parts.load[e] = n;
            } else {
                scaled.set_equal_scores(e, n, mean);
            }
        }
        Ok(scaled)
    }

    fn empty(experts: usize) -> Self {
        let zeros = || vec![0.0; experts];
        let histogram = vec![0.0; experts * BINS];
        Self {
            parts: DemandParts {
                load: zeros(),
                infinite: zeros(),
                score_sum: zeros(),
                reference: zeros(),
                histogram,
                top_sum: zeros(),
            },
        }
    }

    /// Makes expert `e` one of `n` pairs, all eligible with the same score.
    fn set_equal_scores(&mut self, e: usize, n: f64, score: f64) {
        let parts = &mut self.parts;
        parts.load[e] = n;
        parts.infinite[e] = 0.0;
        parts.score_sum[e] = n * score;
        parts.reference[e] = if n > 0.0 { score } else { 0.0 };
        parts.histogram[e * BINS..][..BINS].fill(0.0);
        parts.histogram[e * BINS + UNIT_BIN] = n;
        parts.top_sum[e] = 0.0;
    }

    /// `[E]` sum of all finite scores divided by their reference.
    fn ratio_sums(&self) -> Vec<f64> {
        let ratio = |(sum, reference): (&f64, &f64)| if *reference > 0.0 { sum / reference } else { 0.0 };
        self.parts.score_sum.iter().zip(&self.parts.reference).map(ratio).collect()
    }

    fn forget_faded(&mut self, e: usize) {
        let parts = &mut self.parts;
        if parts.infinite[e] < FADED {
            parts.infinite[e] = 0.0;
        }
        let histogram = &mut parts.histogram[e * BINS..][..BINS];
        histogram.iter_mut().filter(|count| **count < FADED).for_each(|count| *count = 0.0);
        if histogram[TOP] == 0.0 {
            parts.top_sum[e] = 0.0;
        }
        if histogram.iter().all(|count| *count == 0.0) {
            parts.score_sum[e] = 0.0;
            parts.reference[e] = 0.0;
        }
    }

    /// Everything that adds over ranks and scales with the load.
    fn additive(&self) -> [&[f64]; 5] {
        let p = &self.parts;
        [&p.load, &p.infinite, &p.score_sum, &p.histogram, &p.top_sum]
    }

    fn additive_mut(&mut self) -> [&mut [f64]; 5] {
        let p = &mut self.parts;
        [&mut p.load, &mut p.infinite, &mut p.score_sum, &mut p.histogram, &mut p.top_sum]
    }

    fn check_expert(&self, e: usize) -> Result<()> {
        let p = &self.parts;
        let finite = self.finite(e);
        let eligible = finite + p.infinite[e];
        if !eligible.is_finite() || eligible > p.load[e] * (1.0 + SLACK) {
            let allowed = format!("at most its load {}", p.load[e]);
            return Err(Error::argument(format!("eligible pairs of expert {e}"), eligible, allowed));
        }
        if (finite > 0.0) != (p.score_sum[e] > 0.0) {
            let allowed = format!("positive exactly if the histogram has pairs; it has {finite}");
            return Err(Error::argument(format!("demand.score_sum[{e}]"), p.score_sum[e], allowed));
        }
        if finite > 0.0 && p.reference[e] == 0.0 {
            return Err(Error::argument(format!("demand.reference[{e}]"), 0.0, "positive with finite scores"));
        }
        let least = self.histogram(e)[TOP] * ratio_at(TOP, 0);
        if p.top_sum[e] < least * (1.0 - SLACK) || (least == 0.0 && p.top_sum[e] > 0.0) {
            let allowed = format!("at least its count x lower edge = {least}, and 0 for an empty bin");
            return Err(Error::argument(format!("demand.top_sum[{e}]"), p.top_sum[e], allowed));
        }
        Ok(())
    }
}

/// Refuses a smoothing factor outside [0, 1).
pub(crate) fn check_smoothing(factor: f64) -> Result<()> {
    if (0.0..1.0).contains(&factor) {
        return Ok(());
    }
    Err(Error::argument("smoothing", factor, "a number in [0, 1): the weight of the previous demand"))
}

fn check_scores(scores: &[f32], offsets: &[u32]) -> Result<()> {
    let partition = offsets.first() == Some(&0)
        && offsets.is_sorted()
        && offsets.last().is_some_and(|&last| last as usize == scores.len());
    if !partition {
        let got = format!("{} entries from {:?} to {:?}", offsets.len(), offsets.first(), offsets.last());
        let expected = format!("E + 1 entries that never fall, from 0 to {}", scores.len());
        return Err(Error::shape("score offsets", got, expected));
    }
    match scores.iter().position(|m| m.is_nan() || *m < 0.0) {
        Some(i) => Err(Error::argument(format!("scores[{i}]"), scores[i], "0, a positive number or +infinity")),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "demand_tests.rs"]
mod tests;
