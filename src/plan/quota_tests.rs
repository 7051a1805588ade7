//! Unit tests of quotas and curves. The oracle below shares only the histogram with the code under test.

use proptest::prelude::*;

use super::super::demand::BINS;
use super::*;
use crate::rng::{PairKey, PairStream, Philox};

/// The variance model of one expert, straight from its definition.
pub(crate) struct Oracle {
    /// (score, pairs).
    points: Vec<(f64, f64)>,
    infinite: f64,
    finite: f64,
}

impl Oracle {
    fn new(scaled: &Demand, e: usize) -> Self {
        let p = scaled.parts();
        let histogram = &p.histogram[e * BINS..][..BINS];
        let ratio = |b: usize| {
            if b == BINS - 1 { p.top_sum[e] / histogram[b] } else { 2f64.powf((b as f64 + 0.5) / 8.0 - 2.0) }
        };
        let mut points: Vec<_> = (0..BINS).filter(|&b| histogram[b] > 0.0).map(|b| (ratio(b), histogram[b])).collect();
        // The last bin is exact; the others share what is left of the sum in proportion to their centres.
        let last = if histogram[BINS - 1] > 0.0 { points.len() - 1 } else { points.len() };
        let body = p.score_sum[e] - p.top_sum[e] * p.reference[e];
        let centres: f64 = points[..last].iter().map(|(m, n)| m * n).sum();
        points[..last].iter_mut().for_each(|(m, _)| *m *= body / centres);
        points[last..].iter_mut().for_each(|(m, _)| *m *= p.reference[e]);
        Self { points, infinite: p.infinite[e], finite: histogram.iter().sum() }
    }

    pub(crate) fn of(demand: &Demand, counts: &[u32]) -> Vec<Self> {
        let scaled = demand.scaled_to(counts).unwrap();
        (0..counts.len()).map(|e| Self::new(&scaled, e)).collect()
    }

    fn sum(&self) -> f64 {
        self.points.iter().map(|(m, n)| m * n).sum()
    }

    /// V(y) with tau by bisection.
    fn variance(&self, y: f64) -> f64 {
        if y >= self.finite || self.points.is_empty() {
            return 0.0;
        }
        let straight = self.finite.min(1.0);
        if y < straight {
            let slope = self.points.iter().map(|(m, _)| *m).fold(self.sum(), f64::max).powi(2);
            return self.variance(straight) + slope * (straight - y);
        }
        let expected = |tau: f64| -> f64 { self.points.iter().map(|(m, n)| n * (m / tau).min(1.0)).sum() };
        let (mut low, mut high) = (0.0, 1.0);
        while expected(high) > y {
            high *= 2.0;
        }
        for _ in 0..200 {
            let middle = 0.5 * (low + high);
            if expected(middle) > y { low = middle } else { high = middle }
        }
        self.points.iter().map(|(m, n)| n * m * (high - m).max(0.0)).sum()
    }

    /// What is minimised: the last eligible pair is not counted as a gain.
    fn cost(&self, q: u32) -> f64 {
        self.variance((f64::from(q) - self.infinite).min(self.finite) - 1.0)
    }
}

pub(crate) fn weighted_cost(oracles: &[Oracle], q: &[u32], alpha: f64) -> f64 {
    let largest = oracles.iter().map(Oracle::sum).fold(0.0, f64::max);
    let omega = |o: &Oracle| if o.sum() > 0.0 { (o.sum() / largest).powf(2.0 * alpha - 2.0) } else { 0.0 };
    oracles.iter().zip(q).map(|(o, &q)| omega(o) * o.cost(q)).sum()
}

/// Unit grants by linear search over the same gains.
fn unit_grants(counts: &[u32], demand: &Demand, options: &QuotaOptions, sum: u64) -> Vec<u32> {
    let mut solver = Solver::new(counts, demand, options).unwrap();
    while total(&solver.quotas) < sum {
        let mut best = (0.0, None);
        for (e, &quota) in solver.quotas.iter().enumerate() {
            let gain = solver.gain(e, quota);
            if gain > best.0 && quota < counts[e] {
                best = (gain, Some(e));
            }
        }
        let Some(e) = best.1 else { break };
        solver.quotas[e] += 1;
    }
    let all: Vec<u32> = (0..counts.len() as u32).collect();
    solver.spread(&all, sum.saturating_sub(total(&solver.quotas)));
    solver.quotas
}

#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) demand: Demand,
    pub(crate) counts: Vec<u32>,
    pub(crate) options: QuotaOptions,
    pub(crate) sum: u64,
}

/// Random experts: idle ones, equal scores, heavy tails, ineligible and infinite pairs; loads that changed since.
pub(crate) fn cases(experts: usize, pairs: usize) -> impl Strategy<Value = Case> {
    let score = prop_oneof![
        8 => (-20.0..20.0_f64).prop_map(|x| 2f64.powf(x / 4.0) as f32),
        3 => Just(1.0_f32),
        1 => Just(0.0_f32),
        1 => (20.0..40.0_f64).prop_map(|x| x.exp2().min(1e12) as f32),
    ];
    let expert = (prop::collection::vec(score, 0..pairs), -30..30_i32, 0..8_u32, 0..2 * pairs as u32, any::<bool>());
    let alpha = prop_oneof![Just(0.0), Just(0.5), Just(1.0), 0.0..1.0_f64];
    (prop::collection::vec(expert, 1..=experts), alpha, 0..12_u32, 0.0..=1.0_f64).prop_map(
        |(experts, alpha, q_min, part)| {
            let (mut scores, mut offsets, mut counts) = (vec![], vec![0], vec![]);
            for (own, exponent, infinite, count, same_load) in experts {
                let own_len = own.len() as u32;
                let eligible = own.iter().filter(|m| **m > 0.0).count().max(1);
                let floor = 0.25 * own.iter().sum::<f32>() / eligible as f32;
                let floored = |m: &f32| if *m > 0.0 { m.max(floor) * 2f32.powi(exponent) } else { 0.0 };
                scores.extend(own.iter().map(floored));
                // One expert in eight has infinite scores.
                let infinite = if infinite == 7 { own_len % 5 } else { 0 };
                scores.extend((0..infinite).map(|_| f32::INFINITY));
                offsets.push(scores.len() as u32);
                counts.push(if same_load { own_len + infinite } else { count });
            }
            let sum = (part * total(&counts) as f64).round() as u64;
            let demand = Demand::from_scores(&scores, &offsets).unwrap();
            Case { demand, counts, options: QuotaOptions { alpha, q_min }, sum }
        },
    )
}

fn check_bounds(case: &Case, result: &Quotas) {
    let floors: Vec<u32> = case.counts.iter().map(|&n| n.min(case.options.q_min)).collect();
    for (e, &q) in result.q.iter().enumerate() {
        assert!(floors[e] <= q && q <= case.counts[e], "expert {e}: {} <= {q} <= {}", floors[e], case.counts[e]);
    }
    if total(&floors) > case.sum {
        assert_eq!(result.limits, [Limit::Floor]);
        assert_eq!(result.q, floors);
    } else {
        assert_eq!(result.limits, []);
        assert_eq!(total(&result.q), case.sum);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn equals_unit_grants(case in cases(10, 60)) {
        let result = quotas(&case.counts, &case.demand, &case.options, case.sum).unwrap();
        check_bounds(&case, &result);
        prop_assert_eq!(&result.q, &unit_grants(&case.counts, &case.demand, &case.options, case.sum));
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Gains and variances against the oracle, and the monotony that everything rests on.
    #[test]
    fn curves_follow_the_definition(case in cases(2, 80)) {
        let scaled = case.demand.scaled_to(&case.counts).unwrap();
        let curves = Curves::new(&scaled, &case.counts);
        for (e, oracle) in Oracle::of(&case.demand, &case.counts).iter().enumerate() {
            let curve = curves.get(e);
            let size = oracle.sum().powi(2).max(oracle.cost(0));
            for q in 0..case.counts[e] {
                let gain = oracle.cost(q) - oracle.cost(q + 1);
                prop_assert!((curve.gain(q) - gain).abs() <= 1e-11 * size, "{} {gain} of {size}", curve.gain(q));
                prop_assert!(curve.gain(q + 1) <= curve.gain(q) * (1.0 + 1e-12), "gain rises at {q}");
                prop_assert!(curve.variance(q + 1) <= curve.variance(q), "variance rises at {q}");
                if f64::from(q) < oracle.infinite + oracle.finite - 1e-6 {
                    prop_assert!((curve.variance(q) - oracle.cost(q)).abs() <= 1e-11 * size);
                } else {
                    prop_assert_eq!(curve.variance(q), 0.0);
                }
            }
            prop_assert_eq!(curve.variance(case.counts[e]), 0.0);
            prop_assert_eq!(curve.gain(case.counts[e]), 0.0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// No other quotas within the bounds cost less.
    #[test]
    fn equals_full_enumeration(case in cases(4, 9)) {
        let oracles = Oracle::of(&case.demand, &case.counts);
        let result = quotas(&case.counts, &case.demand, &case.options, case.sum).unwrap();
        let found = weighted_cost(&oracles, &result.q, case.options.alpha);
        let floors: Vec<u32> = case.counts.iter().map(|&n| n.min(case.options.q_min)).collect();
        prop_assume!(total(&floors) <= case.sum);
        let mut q = floors.clone();
        loop {
            if total(&q) == case.sum {
                let other = weighted_cost(&oracles, &q, case.options.alpha);
                prop_assert!(found <= other * (1.0 + 1e-9) + 1e-300, "{:?} costs {found}, {q:?} {other}", result.q);
            }
            let Some(e) = (0..q.len()).find(|&e| q[e] < case.counts[e]) else { break };
            q[e] += 1;
            q[..e].copy_from_slice(&floors[..e]);
        }
    }

    #[test]
    fn more_pairs_never_mean_more_noise_or_smaller_useful_quotas(case in cases(5, 30)) {
        let mut last: Option<Quotas> = None;
        for sum in 0..=total(&case.counts) {
            let next = quotas(&case.counts, &case.demand, &case.options, sum).unwrap();
            prop_assert_eq!(next.eta, eta(&next.q, &case.counts, &case.demand).unwrap());
            if let Some(last) = last {
                prop_assert!(next.eta <= last.eta, "{sum}: {} after {}", next.eta, last.eta);
                prop_assert!(next.tau.iter().zip(&last.tau).all(|(new, old)| new <= old));
            }
            last = Some(next);
        }
        prop_assert_eq!(last.unwrap().q, case.counts);
    }

    #[test]
    fn noise_budget_takes_the_smallest_sum(case in cases(5, 30), theta in 0.0..2.0_f64, ends in (0.0..=1.0_f64, 0.0..=1.0_f64)) {
        let pairs = total(&case.counts) as f64;
        let (first, last) = ((ends.0.min(ends.1) * pairs) as u64, (ends.0.max(ends.1) * pairs) as u64);
        let found = quotas_for_noise(&case.counts, &case.demand, &case.options, theta, first..=last).unwrap();
        let brute = (first..=last)
            .map(|sum| quotas(&case.counts, &case.demand, &case.options, sum).unwrap())
            .find(|q| q.eta <= theta);
        let limits: Vec<Limit> = found.limits.iter().copied().filter(|&limit| limit != Limit::Floor).collect();
        match brute {
            Some(brute) => {
                prop_assert_eq!(&found.q, &brute.q);
                prop_assert_eq!(found.requested, brute.requested);
                let at_start = brute.requested == first && first > 0;
                prop_assert_eq!(limits, if at_start { vec![Limit::MinFraction] } else { vec![] });
            }
            None => {
                prop_assert_eq!(found.requested, last);
                prop_assert_eq!(limits, [Limit::MaxFraction]);
            }
        }
    }
}

/// Several hundred experts with thousands of pairs, against unit grants.
#[test]
fn large_layers_equal_unit_grants() {
    let mut rng = Philox::new(11, 0);
    for (experts, alpha, part) in [(512, 1.0, 0.5), (512, 0.0, 0.25), (128, 0.7, 0.9), (128, 1.0, 0.999), (1, 1.0, 0.3)]
    {
        let counts: Vec<u32> =
            (0..experts).map(|e| (rng.uniform() * 4000.0 / (1.0 + e as f32)) as u32 + e % 7).collect();
        let scale: Vec<f64> = counts.iter().map(|_| rng.normal().exp()).collect();
        let own = |e: usize| counts[e] as usize;
        let scores: Vec<f32> =
            (0..counts.len()).flat_map(|e| vec![e; own(e)]).map(|e| (scale[e] * rng.normal().exp()) as f32).collect();
        let mut offsets = vec![0];
        counts.iter().for_each(|n| offsets.push(offsets.last().unwrap() + n));
        let demand = Demand::from_scores(&scores, &offsets).unwrap();
        let sum = (total(&counts) as f64 * part) as u64;
        let options = QuotaOptions { alpha, q_min: 2 };
        let result = quotas(&counts, &demand, &options, sum).unwrap();
        assert_eq!(result.q, unit_grants(&counts, &demand, &options, sum));
        assert_eq!(total(&result.q), sum);
    }
}

/// At alpha 0 all experts gain the same as long as infinite scores take their quota, but for rounding: the lower index wins all the same.
#[test]
fn ties_that_rounding_hides_are_ties() {
    let mut rng = Philox::new(15, 0);
    for _ in 0..400 {
        let (mut scores, mut offsets) = (Vec::new(), vec![0]);
        for _ in 0..3 {
            let scale = (8.0 * rng.normal()).exp();
            scores.extend((0..4).map(|_| (scale * rng.normal().exp()) as f32));
            scores.extend([f32::INFINITY; 5]);
            offsets.push(scores.len() as u32);
        }
        let demand = Demand::from_scores(&scores, &offsets).unwrap();
        let options = QuotaOptions { alpha: 0.0, q_min: 0 };
        for sum in 0..=27 {
            let result = quotas(&[9; 3], &demand, &options, sum).unwrap();
            assert_eq!(result.q, unit_grants(&[9; 3], &demand, &options, sum), "sum {sum} of {scores:?}");
        }
    }
}

/// Without ties the order of the experts does not matter.
#[test]
fn renaming_experts_renames_quotas() {
    let mut rng = Philox::new(12, 0);
    for alpha in [0.5, 1.0] {
        let own: Vec<Vec<f32>> = (5..25).map(|n| (0..3 * n).map(|_| rng.normal().exp() as f32).collect()).collect();
        let run = |order: &[usize]| {
            let lists: Vec<&[f32]> = order.iter().map(|&e| own[e].as_slice()).collect();
            let counts: Vec<u32> = lists.iter().map(|l| l.len() as u32).collect();
            let mut offsets = vec![0];
            counts.iter().for_each(|n| offsets.push(offsets.last().unwrap() + n));
            let demand = Demand::from_scores(&lists.concat(), &offsets).unwrap();
            quotas(&counts, &demand, &QuotaOptions { alpha, q_min: 2 }, total(&counts) / 2).unwrap().q
        };
        let plain: Vec<usize> = (0..own.len()).collect();
        let renamed: Vec<usize> = plain.iter().map(|e| e * 7 % own.len()).collect();
        let (a, b) = (run(&plain), run(&renamed));
        assert!(renamed.iter().zip(&b).all(|(&e, q)| a[e] == *q), "{a:?} {b:?}");
    }
}

/// Two experts of the same scores but 4 times the size: alpha 1 favours the large scores, alpha 0 does not see the size.
#[test]
fn alpha_trades_variance_for_evenness() {
    let mut rng = Philox::new(13, 0);
    let small: Vec<f32> = (0..400).map(|_| rng.normal().exp() as f32).collect();
    let scores: Vec<f32> = small.iter().copied().chain(small.iter().map(|m| 4.0 * m)).collect();
    let demand = Demand::from_scores(&scores, &[0, 400, 800]).unwrap();
    let run = |alpha| quotas(&[400, 400], &demand, &QuotaOptions { alpha, q_min: 2 }, 300).unwrap();
    let (even, half, neyman) = (run(0.0), run(0.5), run(1.0));
    assert_eq!(even.q, [150, 150]);
    assert!(neyman.q[1] > half.q[1] && half.q[1] > 180, "{:?} {:?}", half.q, neyman.q);
    assert!(neyman.eta < half.eta && half.eta < even.eta);
    // Common threshold at alpha 1, thresholds in proportion to the score sums at alpha 0.
    assert!((neyman.tau[1] / neyman.tau[0] - 1.0).abs() < 0.1, "{:?}", neyman.tau);
    assert!((even.tau[1] / even.tau[0] - 4.0).abs() < 1e-9, "{:?}", even.tau);
}

/// Equal scores of one size: quotas in proportion to load, the noise as worked out by hand.
#[test]
fn equal_scores_are_shared_by_load() {
    let counts = [100, 300, 0, 200];
    let demand = Demand::uniform(&counts);
    let result = quotas(&counts, &demand, &QuotaOptions::default(), 303).unwrap();
    // q - 1 in proportion to n: 50, 150, 100.
    assert_eq!(result.q, [51, 151, 0, 101]);
    // V(y) = n^2 / y - n, so eta = (sum n^2 / y - n) / sum n = (200 + 600 + 400 - 600) / 600.
    assert!((result.eta - 1.0).abs() < 1e-12, "{}", result.eta);
    assert!(result.tau.iter().zip([2.0, 2.0, 0.0, 2.0]).all(|(a, b)| (a - b).abs() < 1e-12));
}

/// Ties go to the lower index, one pair each.
#[test]
fn ties_go_to_the_lower_index() {
    let counts = [50; 6];
    let result = quotas(&counts, &Demand::uniform(&counts), &QuotaOptions::default(), 6 * 20 + 2).unwrap();
    assert_eq!(result.q, [21, 21, 20, 20, 20, 20]);
}

/// What gains nothing is shared in proportion to what is still dropped.
#[test]
fn leftovers_are_spread() {
    let scores = [[1.0; 10].as_slice(), &[0.0; 90], &[1.0; 10], &[0.0; 30]].concat();
    let demand = Demand::from_scores(&scores, &[0, 100, 140]).unwrap();
    let result = quotas(&[100, 40], &demand, &QuotaOptions::default(), 60).unwrap();
    assert_eq!(result.q, [10 + 30, 10 + 10]);
    assert_eq!(result.eta, 0.0);
}

#[test]
fn one_hot_expert_and_idle_ones() {
    let mut counts = [0; 64];
    counts[17] = 10_000;
    let result = quotas(&counts, &Demand::uniform(&counts), &QuotaOptions::default(), 2500).unwrap();
    assert_eq!(result.q[17], 2500);
    assert_eq!(total(&result.q), 2500);
    let nothing = quotas(&[0; 4], &Demand::uniform(&[9; 4]), &QuotaOptions::default(), 0).unwrap();
    assert_eq!((nothing.q, nothing.limits, nothing.eta), (vec![0; 4], vec![], 0.0));
    assert_eq!(quotas(&[], &Demand::uniform(&[]), &QuotaOptions::default(), 0).unwrap().q, [0; 0]);
}

/// Infinite scores take quota first and leave the curve of the finite ones as it was.
#[test]
fn infinite_scores_shift_the_curve() {
    let finite: Vec<f32> = (1..=20).map(|i| i as f32).collect();
    let with: Vec<f32> = finite.iter().copied().chain([f32::INFINITY; 5]).collect();
    let plain = Demand::from_scores(&finite, &[0, 20]).unwrap();
    let shifted = Demand::from_scores(&with, &[0, 25]).unwrap();
    for q in 2..20 {
        assert_eq!(eta(&[q], &[20], &plain).unwrap(), eta(&[q + 5], &[25], &shifted).unwrap());
    }
    let only = Demand::from_scores(&[f32::INFINITY; 6], &[0, 3, 6]).unwrap();
    let result = quotas(&[30, 10], &only, &QuotaOptions { alpha: 1.0, q_min: 2 }, 20).unwrap();
    assert_eq!(
        result.q,
        quotas(&[30, 10], &Demand::uniform(&[30, 10]), &QuotaOptions { alpha: 1.0, q_min: 2 }, 20).unwrap().q
    );
}

#[test]
fn extreme_scales_stay_finite() {
    for scale in [1e-45_f32, 1e-38, 1e38] {
        let scores = [scale, scale, 2.0 * scale, scale, scale, 3.0 * scale, 1.0, 1.0, 1.0, 1.0];
        let demand = Demand::from_scores(&scores, &[0, 6, 10]).unwrap();
        for alpha in [0.0, 0.5, 1.0] {
            let options = QuotaOptions { alpha, q_min: 1 };
            for sum in 0..=10 {
                let result = quotas(&[6, 4], &demand, &options, sum).unwrap();
                assert!(result.eta.is_finite());
                assert_eq!(result.q, unit_grants(&[6, 4], &demand, &options, sum));
            }
        }
    }
    let counts = [u32::MAX, 3, u32::MAX - 1];
    let result = quotas(&counts, &Demand::uniform(&counts), &QuotaOptions::default(), 1 << 32).unwrap();
    assert_eq!(total(&result.q), 1 << 32);
    assert_eq!(result.q[1], 3);
    assert!(result.q[0].abs_diff(result.q[2]) <= 2, "{:?}", result.q);
}

#[test]
fn refuses_bad_arguments() {
    let demand = Demand::uniform(&[4, 6]);
    let good = QuotaOptions::default();
    for alpha in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert!(quotas(&[4, 6], &demand, &QuotaOptions { alpha, ..good }, 5).is_err(), "{alpha}");
    }
    assert!(matches!(quotas(&[4, 6], &demand, &good, 11), Err(Error::Argument { .. })));
    assert!(matches!(quotas(&[4], &demand, &good, 1), Err(Error::Shape { .. })));
    for theta in [-0.1, f64::NAN, f64::INFINITY] {
        assert!(quotas_for_noise(&[4, 6], &demand, &good, theta, 0..=5).is_err(), "{theta}");
    }
    assert!(quotas_for_noise(&[4, 6], &demand, &good, 0.5, 0..=11).is_err());
    #[expect(clippy::reversed_empty_ranges, reason = "this is what must be refused")]
    let reversed = 6..=5;
    assert!(quotas_for_noise(&[4, 6], &demand, &good, 0.5, reversed).is_err());
    assert!(matches!(eta(&[1], &[4, 6], &demand), Err(Error::Shape { .. })));
    assert!(matches!(eta(&[5, 1], &[4, 6], &demand), Err(Error::Argument { .. })));
}

/// The variance of actual priority sampling, measured: at most the bound, and not far below it.
#[test]
fn predicted_variance_bounds_priority_sampling() {
    let mut rng = Philox::new(14, 0);
    let scores: Vec<f32> = (0..60).map(|_| rng.normal().exp().max(0.4) as f32).collect();
    let demand = Demand::from_scores(&scores, &[0, 60]).unwrap();
    let squares: f64 = scores.iter().map(|&m| f64::from(m).powi(2)).sum();
    for q in [4_usize, 12, 30, 50] {
        let draws = 20_000;
        let mut noise = 0.0;
        for step in 0..draws {
            let stream = PairStream::new(&PairKey { seed: 1, step, call_id: 0, layer: 0 });
            let mut order: Vec<(f64, f64)> = (0_u64..)
                .zip(&scores)
                .map(|(t, &m)| (f64::from(m) / f64::from(stream.uniform(0, t)), f64::from(m)))
                .collect();
            order.sort_by(|a, b| b.0.total_cmp(&a.0));
            let tau = order[q].0;
            noise += order[..q].iter().map(|&(_, m)| (m.max(tau) - m).powi(2)).sum::<f64>();
            noise += order[q..].iter().map(|&(_, m)| m * m).sum::<f64>();
        }
        let measured = noise / draws as f64 / squares;
        let bound = eta(&[q as u32], &[60], &demand).unwrap();
        assert!(measured <= bound * 1.03 && measured > 0.5 * bound, "q {q}: measured {measured}, bound {bound}");
    }
}

/// What a diverging run brings: millions of pairs, most of them with infinite scores, more than may be retained.
#[test]
fn infinite_scores_beyond_the_sum_take_no_time() {
    let demand =
        Demand::from_scores(&[f32::INFINITY, 1.0, f32::INFINITY, 2.0, 1.0, 3.0, 1.0, 1.0], &[0, 4, 8]).unwrap();
    let counts = [800_000_000, 1_000];
    for (alpha, total) in [(1.0, 320_000_000), (0.0, 320_000_000), (1.0, 399_999_999)] {
        let options = QuotaOptions { alpha, ..QuotaOptions::default() };
        let found = quotas(&counts, &demand, &options, total).unwrap();
        assert_eq!(super::total(&found.q), total);
    }
}
