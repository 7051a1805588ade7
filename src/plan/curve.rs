//! The variance of selection as a function of the quota, for one expert.
//!
//! Threshold sampling with `y` expected pairs out of scores `m` retains a pair with probability `min(1, m / tau)`, where
//! `sum min(1, m / tau) = y`, and has variance `V(y) = sum m max(0, tau - m)`: convex and decreasing, with
//! `dV/dy = -tau^2` (N. Duffield, C. Lund, M. Thorup, "Priority sampling for estimation of arbitrary subset sums", J. ACM
//! 54(6), 2007). `V(q - 1)` bounds the variance of priority sampling with `q` pairs (M. Szegedy, "The DLT priority sampling is
//! essentially optimal", STOC 2006).
//!
//! On a histogram, `tau` is piecewise `L / (y - K)`: `K` counts the points above `tau`, `L` sums the scores below. So both
//! `tau` and the fall of `V` between two quotas have closed forms without cancellation.

use super::demand::{BINS, Demand};

/// Pairs by which a quota may miss the eligible pairs and still retain them all: predicted counts are products of fractions.
const ROUNDING: f64 = 1e-6;

/// Relative distance within which thresholds are taken as tied: far more than rounding makes of equal ones.
const TIE: f64 = 1e-12;

/// Quotas up to `infinite + 2` are below what threshold sampling describes (with one slot the variance of priority sampling
/// is infinite). There `V` is continued as a straight line with the slope of the whole score sum: finite, convex, and steep
/// enough that an expert leaves this range before others get more than they need.
#[derive(Debug)]
pub(crate) struct Curve<'a> {
    /// Scores, descending.
    scores: &'a [f64],
    /// Pairs at each score.
    counts: &'a [f64],
    /// `above[k]`: pairs at the k highest points.
    above: &'a [f64],
    /// `below[k]`: score sum of all but the k highest points.
    below: &'a [f64],
    /// `until[k]`: the expected sample size at which `tau` falls to `scores[k]`; ascending.
    until: &'a [f64],
    /// Pairs with an infinite score: they take quota first.
    infinite: f64,
    /// Pairs with a finite score.
    finite: f64,
    /// Slope of the linear continuation is `-steep^2`.
    steep: f64,
    /// Pairs of the expert this step: with all of them retained the variance is 0.
    load: u32,
}

impl Curve<'_> {
    /// Sum of the finite scores.
    pub(crate) fn score_sum(&self) -> f64 {
        self.below.first().copied().unwrap_or(0.0)
    }

    /// The largest threshold there is; any greater one asks for no pair.
    pub(crate) fn tau_max(&self) -> f64 {
        self.steep
    }

    /// The smallest positive threshold there is; 0 without finite scores.
    pub(crate) fn tau_min(&self) -> f64 {
        self.scores.last().copied().unwrap_or(0.0)
    }

    /// The smallest quota that retains every eligible pair.
    pub(crate) fn enough(&self) -> u32 {
        (self.infinite + self.finite - ROUNDING).max(0.0).ceil().min(f64::from(self.load)) as u32
    }

    /// Where on the curve a quota stands: its expected sample size, one less than its finite pairs.
    fn position(&self, quota: f64) -> f64 {
        (quota - self.infinite).min(self.finite) - 1.0
    }

    /// End of the linear continuation.
    fn straight(&self) -> f64 {
        self.finite.min(1.0)
    }

    /// The segment that holds `y`, for `straight() <= y <= finite`.
    fn segment(&self, y: f64) -> usize {
        self.until.partition_point(|&end| end < y).min(self.scores.len().saturating_sub(1))
    }

    fn tau_in(&self, segment: usize, y: f64) -> f64 {
        let high = if segment == 0 { self.steep } else { self.scores[segment - 1] };
        let room = y - self.above[segment];
        if room > 0.0 { (self.below[segment] / room).min(high).max(self.scores[segment]) } else { high }
    }

    /// The threshold predicted for a quota: 0 where it retains everything eligible.
    pub(crate) fn tau(&self, quota: u32) -> f64 {
        if self.complete(quota) {
            return 0.0;
        }
        let y = self.position(f64::from(quota));
        if y < self.straight() { self.steep } else { self.tau_in(self.segment(y), y) }
    }

    fn complete(&self, quota: u32) -> bool {
        quota >= self.load || f64::from(quota) >= self.infinite + self.finite - ROUNDING || self.scores.is_empty()
    }

    /// `V(quota - 1)`, and 0 where the quota retains everything eligible.
    pub(crate) fn variance(&self, quota: u32) -> f64 {
        if self.complete(quota) {
            return 0.0;
        }
        let y = self.position(f64::from(quota));
        let straight = self.straight();
        let at = y.max(straight);
        let segment = self.segment(at);
        let tau = self.tau_in(segment, at);
        let light = self.scores[segment..].iter().zip(&self.counts[segment..]);
        // A last bin filled by less than one expected pair ends at the straight line: nothing is left to sample there.
        let sampled: f64 = if at >= self.finite { 0.0 } else { light.map(|(&m, &n)| n * m * (tau - m).max(0.0)).sum() };
        sampled + self.steep * self.steep * (at - y)
    }

    /// How much `V(min(quota, eligible) - 1)` falls with one more pair: the integral of `tau^2`, never increasing in the
    /// quota, 0 once everything eligible is retained.
    ///
    /// The last pair of an expert ends at `V(eligible - 1)`, about one smallest score squared above the truth of 0. Counting
    /// that as a gain would break convexity, and with it the exactness of granting the best gain first.
    pub(crate) fn gain(&self, quota: u32) -> f64 {
        if self.complete(quota) {
            return 0.0;
        }
        let end = self.position(f64::from(quota) + 1.0);
        let mut y = self.position(f64::from(quota));
        let mut gain = 0.0;
        let straight = self.straight();
        if y < straight {
            let stop = end.min(straight);
            gain += self.steep * self.steep * (stop - y);
            y = stop;
        }
        if y >= end {
            return gain;
        }
        let mut segment = self.segment(y);
        loop {
            let last = segment + 1 == self.scores.len();
            let stop = if last { end } else { end.min(self.until[segment]).max(y) };
            gain += self.tau_in(segment, y) * self.tau_in(segment, stop) * (stop - y);
            if last || stop >= end {
                return gain;
            }
            y = stop;
            segment += 1;
        }
    }

    /// Bounds of the real-valued quota at which the threshold falls to `tau`, as far as it has any effect: no rounding moves it
    /// past them. Third, how much of it is in inverse proportion to `tau` nearby.
    pub(crate) fn quota_at(&self, tau: f64) -> (f64, f64, f64) {
        // All experts may have their steepest slope in common, and rounding alone tells them apart.
        if self.scores.is_empty() || tau > self.steep * (1.0 + TIE) {
            return (0.0, 0.0, 0.0);
        }
        let heavy = self.scores.partition_point(|&m| m > tau);
        let light = if heavy == self.scores.len() { 0.0 } else { self.below[heavy] / tau };
        let free = if heavy == self.scores.len() { self.finite } else { self.above[heavy] + light };
        let y = free.max(self.straight()).min(self.finite - 1.0);
        let quota = self.infinite + 1.0 + y;
        // Far more than rounding can move a quota of this size, far less than a pair.
        let slack = quota * TIE + 1e-6;
        let sure = if tau > self.steep * (1.0 - TIE) { 0.0 } else { quota - slack };
        (sure, quota + slack, if y == free { light } else { 0.0 })
    }
}

/// The curves of all experts, in flat arrays.
#[derive(Debug)]
pub(crate) struct Curves {
    /// `[E]` number of points.
    points: Vec<usize>,
    /// `[E, 64]` each; see [`Curve`].
    scores: Vec<f64>,
    counts: Vec<f64>,
    above: Vec<f64>,
    below: Vec<f64>,
    until: Vec<f64>,
    /// `[E]` each.
    infinite: Vec<f64>,
    finite: Vec<f64>,
    load: Vec<u32>,
}

impl Curves {
    /// The curves of a demand already scaled to `counts`, so of the same number of experts.
    pub(crate) fn new(scaled: &Demand, counts: &[u32]) -> Self {
        let flat = || vec![0.0; counts.len() * BINS];
        let mut curves = Self {
            points: Vec::with_capacity(counts.len()),
            scores: flat(),
            counts: flat(),
            above: flat(),
            below: flat(),
            until: flat(),
            infinite: scaled.parts().infinite.clone(),
            finite: Vec::with_capacity(counts.len()),
            load: counts.to_vec(),
        };
        for e in 0..counts.len() {
            let start = e * BINS;
            let (mut used, mut pairs) = (0, 0.0);
            for (i, (score, count)) in (start..).zip(scaled.points(e)) {
                curves.scores[i] = score;
                curves.counts[i] = count;
                curves.above[i] = pairs;
                pairs += count;
                used += 1;
            }
            let mut sum = 0.0;
            for i in (start..start + used).rev() {
                sum += curves.counts[i] * curves.scores[i];
                curves.below[i] = sum;
                curves.until[i] = curves.above[i] + sum / curves.scores[i];
            }
            curves.points.push(used);
            curves.finite.push(pairs);
        }
        curves
    }

    /// The curve of one expert; `expert < experts()`.
    pub(crate) fn get(&self, expert: usize) -> Curve<'_> {
        let range = expert * BINS..expert * BINS + self.points[expert];
        let scores = &self.scores[range.clone()];
        let below = &self.below[range.clone()];
        // With whole pairs the sum is never below the largest score; a fraction of a pair may be.
        let steep = scores.first().zip(below.first()).map_or(0.0, |(m, sum)| sum.max(*m));
        Curve {
            scores,
            below,
            steep,
            counts: &self.counts[range.clone()],
            above: &self.above[range.clone()],
            until: &self.until[range],
            infinite: self.infinite[expert],
            finite: self.finite[expert],
            load: self.load[expert],
        }
    }
}
