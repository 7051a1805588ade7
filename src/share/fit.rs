//! Times of shares as functions of their sizes, fitted to measurements.

use super::{Phase, PhaseTimes, Share};
use crate::{Error, Result};

/// Coefficients of a phase.
const TERMS: usize = 3;

/// Seconds below which a time counts as this long when errors are taken relative to it: clocks resolve no less.
const SHORTEST: f64 = 1e-6;

/// Residuals above this many median absolute deviations are stalls.
const STALL: f64 = 4.0;

/// Relative residuals below this are rounding and never stalls.
const ROUNDING: f64 = 1e-9;
/// Samples of a phase below which none is left out.
const FEW: usize = 8;
/// Seconds that no phase takes.
const LONGEST: f64 = 1e9;

/// A column counts as a combination of others where less than this part of its length is left without them.
const COLLINEAR: f64 = 1e-6;

/// The fitted line of one phase, and how well it fits.
///
/// Figures are over all samples in which the phase ran, stalls included, so that they hide nothing.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseFit {
    /// The phase.
    pub phase: Phase,
    /// Seconds of each unit of [`PhaseFit::features`]; none is negative.
    pub coefficients: [f64; TERMS],
    /// Samples in which the phase ran.
    pub samples: usize,
    /// Of these, left out as stalls of the machine.
    pub dropped: usize,
    /// Sum of the predicted over the sum of the measured seconds; `None` where nothing was measured.
    pub predicted_over_measured: Option<f64>,
    /// Median of `|predicted - measured| / measured`, times below a microsecond taken as one; `None` without samples.
    pub median_relative_error: Option<f64>,
}

impl PhaseFit {
    /// What the coefficients of a phase multiply: names in the order of [`PhaseFit::coefficients`].
    ///
    /// `1` counts only where the phase runs at all; an *active* expert is one with rows.
    pub const fn features(phase: Phase) -> [&'static str; TERMS] {
        match phase {
            Phase::Gate => ["1", "tokens", "-"],
            Phase::Shared => ["1", "tokens", "tokens where recomputed"],
            Phase::Forward => ["1", "forward rows", "active experts"],
            Phase::Combine => ["1", "rows read", "rows written"],
            Phase::Score => ["1", "tokens", "-"],
            Phase::Select => ["1", "tokens", "retained pairs"],
            Phase::Compact => ["1", "rows packed", "tokens where nothing is selected"],
            Phase::Recompute | Phase::Dgrad => ["1", "backward rows", "active experts"],
            Phase::Wgrad => ["resident experts", "backward rows", "active experts"],
            Phase::RouterBackward => ["1", "tokens", "tokens where selected"],
            Phase::Optimizer => ["1", "parameters", "-"],
        }
    }
}

/// Predicts the times of a share: for each phase a sum of at most three sizes times non-negative coefficients.
///
/// Predictions hold for the configuration, backend and machine of the samples, and within the range of their sizes.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct TimeModel {
    /// In the order of [`Phase::ALL`].
    fits: Vec<PhaseFit>,
}

/// One sample of one phase.
struct Point {
    features: [f64; TERMS],
    measured: f64,
}

impl Point {
    fn scale(&self) -> f64 {
        self.measured.max(SHORTEST)
    }

    /// Errors relative to what was measured pull a fit down, for a time that came out short then weighs more than one that
    /// came out long. Relative to a first prediction they do not. The bound keeps a sample that the prediction missed from
    /// outweighing all others.
    fn scale_of(&self, prediction: &[f64; TERMS]) -> f64 {
        dot(&self.features, prediction).max(self.scale() / 4.0)
    }

    fn residual(&self, coefficients: &[f64; TERMS]) -> f64 {
        (dot(&self.features, coefficients) - self.measured) / self.scale()
    }
}

impl TimeModel {
    /// Fits each phase on its own: non-negative least squares of errors relative to the measured times (those below a
    /// microsecond count as one), exactly, by trying every subset of the terms; then once more relative to the first
    /// predictions, without the samples whose residual is further than 4 median absolute deviations from the median. The
    /// result is a function of the samples, the same in every run.
    ///
    /// # Errors
    /// [`Error::Argument`] without samples, for times that are not finite, negative or above 1e9 seconds, and for a time of a phase that does
    /// not run in its share.
    pub fn fit(samples: &[(Share, PhaseTimes)]) -> Result<Self> {
        if samples.is_empty() {
            return Err(Error::argument("samples", "empty", "one sample or more"));
        }
        let fits = Phase::ALL.iter().map(|&phase| {
            let points = points(samples, phase)?;
            let first = least_squares(points.iter().map(|point| (point, point.scale())));
            let residuals: Vec<f64> = points.iter().map(|point| point.residual(&first)).collect();
            let middle = median(residuals.iter().copied()).unwrap_or(0.0);
            let spread = median(residuals.iter().map(|r| (r - middle).abs())).unwrap_or(0.0);
            // Of a few samples none can be told to be a stall.
            let limit = if points.len() < FEW { f64::INFINITY } else { (STALL * spread).max(ROUNDING) };
            let kept = points.iter().zip(&residuals).filter(|(_, r)| (*r - middle).abs() <= limit);
            let kept: Vec<(&Point, f64)> = kept.map(|(point, _)| (point, point.scale_of(&first))).collect();
            let dropped = points.len() - kept.len();
            let coefficients = least_squares(kept.into_iter());
            Ok(judge(phase, coefficients, &points, dropped))
        });
        Ok(Self { fits: fits.collect::<Result<_>>()? })
    }

    /// Seconds of every phase of `share`.
    pub fn predict(&self, share: &Share) -> PhaseTimes {
        let mut times = PhaseTimes::default();
        for fit in &self.fits {
            times[fit.phase] = dot(&features(share, fit.phase), &fit.coefficients);
        }
        times
    }

    /// Units of a phase per second once everything else is paid for: the inverse of the second coefficient (tokens, rows or
    /// parameters, see [`PhaseFit::features`]). `None` where that is 0.
    pub fn rate(&self, phase: Phase) -> Option<f64> {
        let fit = self.fits.iter().find(|fit| fit.phase == phase)?;
        (fit.coefficients[1] > 0.0).then(|| 1.0 / fit.coefficients[1])
    }

    /// Fit and errors of every phase on the samples of the fit, in the order of [`Phase::ALL`].
    pub fn error(&self) -> &[PhaseFit] {
        &self.fits
    }

    /// As [`TimeModel::error`] on other samples: what the model is worth where it was not fitted. None is dropped.
    ///
    /// # Errors
    /// As [`TimeModel::fit`], except that there may be no samples.
    pub fn error_on(&self, samples: &[(Share, PhaseTimes)]) -> Result<Vec<PhaseFit>> {
        let judged =
            self.fits.iter().map(|fit| Ok(judge(fit.phase, fit.coefficients, &points(samples, fit.phase)?, 0)));
        judged.collect()
    }
}

/// Sizes that the time of a phase is linear in; all 0 where it does not run.
fn features(share: &Share, phase: Phase) -> [f64; TERMS] {
    let recomputes = share.recomputes();
    let [tokens, retained, resident, parameters] =
        [share.tokens, share.retained, share.forward.len(), share.optimizer_parameters].map(|n| n as f64);
    let [forward, backward, packed] =
        [share.forward_rows(), share.backward_rows(), share.packed_rows()].map(|n| n as f64);
    let active = |rows: &[u32]| rows.iter().filter(|&&n| n > 0).count() as f64;
    let sent = share.sent_forward as f64 + share.sent_backward as f64;
    let combined = share.tokens_in_forward as f64 + share.tokens_in_backward as f64;
    let only = |condition: bool, value: f64| if condition { value } else { 0.0 };
    let has_tokens = share.tokens > 0;
    let (runs, features) = match phase {
        Phase::Gate => (has_tokens, [1.0, tokens, 0.0]),
        Phase::Shared => (has_tokens, [1.0, tokens, only(recomputes, tokens)]),
        Phase::Forward => (resident > 0.0, [1.0, forward, active(&share.forward)]),
        Phase::Combine => (combined + sent > 0.0, [1.0, forward + backward + sent, combined + sent]),
        Phase::Score => (has_tokens && share.selects, [1.0, tokens, 0.0]),
        Phase::Select => (has_tokens && share.selects, [1.0, tokens, retained]),
        Phase::Compact => {
            let scalars = only(!share.selects, tokens);
            (packed + scalars > 0.0, [1.0, packed, scalars])
        }
        Phase::Recompute => (recomputes && resident > 0.0, [1.0, backward, active(&share.backward)]),
        Phase::Dgrad => (resident > 0.0, [1.0, backward, active(&share.backward)]),
        Phase::Wgrad => (resident > 0.0, [resident, backward, active(&share.backward)]),
        Phase::RouterBackward => (has_tokens, [1.0, tokens, only(share.selects, tokens)]),
        Phase::Optimizer => (parameters > 0.0, [1.0, parameters, 0.0]),
    };
    if runs { features } else { [0.0; TERMS] }
}

/// The samples in which a phase ran, checked.
fn points(samples: &[(Share, PhaseTimes)], phase: Phase) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    for (i, (share, times)) in samples.iter().enumerate() {
        let (features, measured) = (features(share, phase), times[phase]);
        let name = || format!("samples[{i}], phase {phase}");
        if !(0.0..=LONGEST).contains(&measured) {
            return Err(Error::argument(name(), measured, "0 to 1e9 seconds"));
        }
        if features != [0.0; TERMS] {
            points.push(Point { features, measured });
        } else if measured > 0.0 {
            return Err(Error::argument(name(), measured, "0: its share does not run this phase"));
        }
    }
    Ok(points)
}

fn judge(phase: Phase, coefficients: [f64; TERMS], points: &[Point], dropped: usize) -> PhaseFit {
    let measured: f64 = points.iter().map(|point| point.measured).sum();
    let predicted: f64 = points.iter().map(|point| dot(&point.features, &coefficients)).sum();
    PhaseFit {
        phase,
        coefficients,
        samples: points.len(),
        dropped,
        predicted_over_measured: (measured > 0.0).then(|| predicted / measured),
        median_relative_error: median(points.iter().map(|point| point.residual(&coefficients).abs())),
    }
}

/// Non-negative least squares of errors over their scales. With three terms every support can be tried: the best one whose
/// unconstrained solution has no negative coefficient is the optimum. Collinear supports are left out, for a smaller one does
/// as well; among equals the smaller support, then the earlier terms win.
fn least_squares<'a>(points: impl Iterator<Item = (&'a Point, f64)>) -> [f64; TERMS] {
    let rows = points.map(|(point, scale)| (point.features.map(|f| f / scale), point.measured / scale));
    let rows: Vec<([f64; TERMS], f64)> = rows.collect();
    let target = rows.iter().map(|(_, b)| b * b).sum::<f64>();
    let mut best = ([0.0; TERMS], target);
    let mut supports: Vec<u32> = (1..1 << TERMS).collect();
    supports.sort_by_key(|support| support.count_ones());
    for support in supports {
        let terms: Vec<usize> = (0..TERMS).filter(|term| support >> term & 1 == 1).collect();
        let Some(solution) = solve(&rows, &terms) else { continue };
        let error = rows.iter().map(|(a, b)| (dot(a, &solution) - b).powi(2)).sum::<f64>();
        // A gain within rounding is none.
        if solution.iter().all(|&c| c >= 0.0) && error < best.1 - 1e-14 * target {
            best = (solution, error);
        }
    }
    best.0
}

/// Least squares over some of the terms by modified Gram-Schmidt; `None` where their columns are collinear.
fn solve(rows: &[([f64; TERMS], f64)], terms: &[usize]) -> Option<[f64; TERMS]> {
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(terms.len());
    let mut upper = [[0.0; TERMS]; TERMS];
    let mut target: Vec<f64> = rows.iter().map(|(_, b)| *b).collect();
    let mut projected = [0.0; TERMS];
    for (j, &term) in terms.iter().enumerate() {
        let mut column: Vec<f64> = rows.iter().map(|(a, _)| a[term]).collect();
        let length = product(&column, &column).sqrt();
        for (i, q) in basis.iter().enumerate() {
            upper[i][j] = product(q, &column);
            column.iter_mut().zip(q).for_each(|(c, q)| *c -= upper[i][j] * q);
        }
        let left = product(&column, &column).sqrt();
        if left.is_nan() || left <= COLLINEAR * length {
            return None;
        }
        upper[j][j] = left;
        column.iter_mut().for_each(|c| *c /= left);
        projected[j] = product(&column, &target);
        target.iter_mut().zip(&column).for_each(|(t, c)| *t -= projected[j] * c);
        basis.push(column);
    }
    let mut solution = [0.0; TERMS];
    for (j, &term) in terms.iter().enumerate().rev() {
        let known: f64 = (j + 1..terms.len()).map(|i| upper[j][i] * solution[terms[i]]).sum();
        solution[term] = (projected[j] - known) / upper[j][j];
    }
    Some(solution)
}

fn dot(a: &[f64; TERMS], b: &[f64; TERMS]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The middle value, the lower of two; `None` of nothing.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}
