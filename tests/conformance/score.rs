//! The load recalibration metric and the demand it makes.

use lrmoe::DType::{F32, U32};
use lrmoe::kernel::{DEMAND_BINS, DEMAND_COUNTS, DEMAND_SUMS, Demand, Metric, Score};

use crate::support::rng::Rng;
use crate::table::{Case, Slot, Want, integers, near, offsets};

const INF: f32 = f32::INFINITY;

/// Changes g by pair, `||d||` by token, `||h||` by row and `||x||` by token.
type Edit = fn(&mut [f32], &mut [f32], &mut [f32], &mut [f32]);

struct Inputs {
    name: &'static str,
    metric: Metric,
    floor: f32,
    tokens: usize,
    top_k: usize,
    counts: Vec<usize>,
    spare: usize,
    first: usize,
    edit: Edit,
}

fn table() -> Vec<Inputs> {
    let s = |name, counts: &[usize]| Inputs {
        name,
        metric: Metric::Product,
        floor: 0.05,
        tokens: counts.iter().sum::<usize>().max(1),
        top_k: 2,
        counts: counts.to_vec(),
        spare: 0,
        first: 0,
        edit: |_, _, _, _| {},
    };
    let m = |name, metric| Inputs { metric, ..s(name, &[5, 0, 9, 2]) };
    vec![
        m("product", Metric::Product),
        m("full", Metric::Full),
        m("gate grad", Metric::GateGrad),
        m("gate", Metric::Gate),
        m("uniform", Metric::Uniform),
        Inputs { spare: 7, ..s("large", &[300, 0, 411, 1]) },
        Inputs { spare: 1, first: 2000, ..s("more rows than a block takes at once", &[5000, 1, 0, 2049]) },
        Inputs {
            edit: |_, _, h, _| h.fill(0.0),
            ..s("a mean of zero of more rows than a block takes at once", &[4100, 3])
        },
        Inputs { spare: 2, first: 3, ..s("first offset above zero", &[4, 0, 3]) },
        Inputs { floor: 0.0, ..s("no floor", &[5, 6]) },
        Inputs { floor: 1.0, ..s("floor at the mean", &[5, 6]) },
        Inputs { floor: 0.9, metric: Metric::Full, top_k: 3, ..s("high floor", &[5, 6]) },
        s("one row", &[1]),
        s("one expert", &[9]),
        Inputs { spare: 4, ..s("no rows", &[0, 0]) },
        s("no experts", &[]),
        Inputs { edit: |_, _, h, _| h.fill(0.0), ..s("mean of zero falls back to g d", &[4, 3]) },
        Inputs {
            edit: |g, _, h, _| {
                h.fill(0.0);
                g.fill(1e-30);
            },
            ..s("fallback too small for f32 is one", &[4, 3])
        },
        Inputs {
            edit: |g, d, h, _| {
                h.fill(0.0);
                g.fill(1e-30);
                d.fill(1e-30);
            },
            ..s("everything vanishes", &[4, 3])
        },
        Inputs { edit: |_, _, h, _| h[1] = 0.0, ..s("h of zero is raised to the floor", &[4, 3]) },
        Inputs {
            edit: |g, d, _, _| {
                g[0] = 0.0;
                g[3] = -0.0;
                d[2] = 0.0;
            },
            ..s("not eligible", &[4, 3])
        },
        Inputs { edit: |g, _, _, _| g.fill(0.0), ..s("none eligible", &[4, 3]) },
        Inputs { edit: |g, _, _, _| g.iter_mut().for_each(|g| *g = -*g), ..s("negative g", &[4, 3]) },
        Inputs {
            edit: |g, d, h, _| {
                g[0] = f32::NAN;
                d[3] = INF;
                h[1] = INF;
            },
            ..s("not finite", &[9, 5])
        },
        Inputs { edit: |_, d, _, _| d.fill(f32::NAN), ..s("none finite", &[4, 3]) },
        Inputs {
            edit: |g, d, _, _| {
                g[0] = 0.0;
                d[0] = f32::NAN;
            },
            ..s("NaN beside a zero is seen", &[4, 3])
        },
        Inputs { metric: Metric::Gate, edit: |_, _, h, _| h[1] = f32::NAN, ..s("gate sees NaN in h", &[4, 3]) },
        Inputs { metric: Metric::Full, edit: |_, _, _, x| x[1] = INF, ..s("full sees an infinite x", &[4, 3]) },
        Inputs { metric: Metric::Full, edit: |_, _, _, x| x[1] = f32::NAN, ..s("full sees NaN in x", &[4, 3]) },
        Inputs { edit: |_, _, _, x| x[1] = INF, ..s("product does not look at x", &[4, 3]) },
        Inputs {
            edit: |g, d, h, _| {
                g.fill(1e20);
                d.fill(1e20);
                h[0] = 1e20;
            },
            ..s("products beyond f32", &[4, 3])
        },
        Inputs { edit: |_, _, h, _| h.fill(1e-39), ..s("subnormal products", &[4, 3]) },
    ]
}

/// Raw scores and means as defined, in f64; scores below the range of f32 count as they round.
fn score(s: &Inputs) -> Case {
    let (mut case, mut rng) = (Case::new(s.name), Rng::new(61));
    let used: usize = s.first + s.counts.iter().sum::<usize>();
    let total = used + s.spare;
    let pairs = s.tokens * s.top_k;
    let mut positive = |len: usize| -> Vec<f32> { (0..len).map(|_| rng.normal().abs() as f32 + 0.01).collect() };
    let (mut g, mut d, mut h, mut x) = (positive(pairs), positive(s.tokens), positive(total), positive(s.tokens));
    let kappa = positive(s.counts.len());
    (s.edit)(&mut g, &mut d, &mut h, &mut x);
    // A permutation of the pairs, so that row and pair are not the same.
    let mut order: Vec<u32> = (0..pairs as u32).collect();
    (1..order.len()).rev().for_each(|i| order.swap(i, rng.below(i + 1)));
    if s.name != "large" {
        order.sort_unstable();
    }
    let mut pair_of_row = vec![u32::MAX; total];
    pair_of_row[s.first..used].copy_from_slice(&order[..used - s.first]);
    for unused in (0..s.first).chain(used..total) {
        h[unused] = f32::NAN;
    }
    let starts: Vec<u32> = offsets(&s.counts).iter().map(|o| o + s.first as u32).collect();
    let full = s.metric == Metric::Full;
    let args = Score {
        rows: total,
        experts: s.counts.len(),
        top_k: s.top_k,
        metric: s.metric,
        floor: s.floor,
        weights: case.f32("weights", &g),
        d_norm: case.f32("d_norm", &d),
        h_norm: case.f32("h_norm", &h),
        x_norm: case.optional_f32("x_norm", full.then_some(&x)),
        kappa: case.optional_f32("kappa", full.then_some(&kappa)),
        pair_of_row: case.u32("pair_of_row", &pair_of_row),
        offsets: case.u32("offsets", &starts),
        score: case.out("score", F32, total),
        mean: case.out("mean", F32, s.counts.len()),
    };
    let (score, mean) = (args.score, args.mean);
    case.run(args);
    let (mut scores, mut means) = (vec![Want::Held; s.first], Vec::new());
    for e in 0..s.counts.len() {
        let rows = starts[e] as usize..starts[e + 1] as usize;
        let raw: Vec<Option<f64>> = rows
            .clone()
            .map(|r| {
                let pair = pair_of_row[r] as usize;
                let [g, d, h, x] = [g[pair].abs(), d[pair / s.top_k], h[r], x[pair / s.top_k]].map(f64::from);
                let of_x = if full { x * f64::from(kappa[e]) } else { 0.0 };
                if ![g, d, h, of_x].into_iter().all(f64::is_finite) {
                    return Some(f64::INFINITY);
                }
                let score = match s.metric {
                    Metric::Product => g * d * h,
                    Metric::Full => g * d * (h * h + of_x * of_x).sqrt(),
                    Metric::GateGrad => g * d,
                    Metric::Gate => g,
                    Metric::Uniform => 1.0,
                };
                let rounded = if score < f64::from(f32::from_bits(1)) / 2.0 { 0.0 } else { score };
                (g > 0.0 && d > 0.0).then_some(rounded.min(f32::MAX.into()))
            })
            .collect();
        let average = |scores: &[Option<f64>]| {
            let finite: Vec<f64> = scores.iter().flatten().copied().filter(|s| s.is_finite()).collect();
            if finite.is_empty() { 0.0 } else { finite.iter().sum::<f64>() / finite.len() as f64 }
        };
        let normal = |x: f64| x.clamp(f32::MIN_POSITIVE.into(), f32::MAX.into());
        let mut average_raw = average(&raw);
        let floored: Vec<Option<f64>> = if average_raw > 0.0 {
            average_raw = normal(average_raw);
            let floor = normal(f64::from(s.floor) * average_raw);
            raw.iter().map(|s| s.map(|s| s.max(floor))).collect()
        } else {
            let fallback = |r: usize| {
                let pair = pair_of_row[r] as usize;
                let product = f64::from(g[pair].abs()) * f64::from(d[pair / s.top_k]);
                if product as f32 == 0.0 { 1.0 } else { normal(product) }
            };
            let all: Vec<Option<f64>> =
                rows.zip(&raw).map(|(r, s)| s.map(|s| if s.is_finite() { fallback(r) } else { s })).collect();
            average_raw = average(&all);
            all
        };
        // The mean is a fixed-point sum relative to the largest score.
        scores.extend(floored.iter().map(|s| s.map_or(Want::Bits(0), |s| near(s, s, 4.0))));
        means.push(if average_raw == 0.0 { Want::Bits(0) } else { near(average_raw, average_raw, 4.0) });
    }
    case.want(score, scores);
    case.want(mean, means);
    case
}

/// The bin of a ratio by logarithm.
fn bin(ratio: f64) -> usize {
    (16.0 + 8.0 * ratio.log2()).floor().clamp(0.0, DEMAND_BINS as f64 - 1.0) as usize
}

fn demand(name: &str, counts: &[usize], mean: &[f32], scores: &[f32]) -> Case {
    let mut case = Case::new(name);
    let experts = counts.len();
    let starts = offsets(counts);
    let args = Demand {
        rows: scores.len(),
        experts,
        score: case.f32("score", scores),
        mean: case.f32("mean", mean),
        offsets: case.u32("offsets", &starts),
        histogram: case.out("histogram", U32, experts * DEMAND_BINS),
        sums: case.out("sums", F32, experts * DEMAND_SUMS),
        counts: case.out("counts", U32, experts * DEMAND_COUNTS),
    };
    let outputs = (args.histogram, args.sums, args.counts);
    case.run(args);
    let (mut histogram, mut sums, mut totals) = (vec![0; experts * DEMAND_BINS], Vec::new(), Vec::new());
    for e in 0..experts {
        let own = &scores[starts[e] as usize..starts[e + 1] as usize];
        let eligible: Vec<f64> = own.iter().filter(|s| **s > 0.0).map(|&s| f64::from(s) / f64::from(mean[e])).collect();
        let finite: Vec<f64> = eligible.iter().copied().filter(|r| r.is_finite()).collect();
        finite.iter().for_each(|&ratio| histogram[e * DEMAND_BINS + bin(ratio)] += 1);
        let top = finite.iter().filter(|&&ratio| bin(ratio) == DEMAND_BINS - 1);
        let column = |sum: f64| near(sum.min(f32::MAX.into()), sum, 4.0);
        sums.extend([finite.iter().sum(), finite.iter().map(|r| r * r).sum(), top.sum()].map(column));
        totals.extend([eligible.len() as u32, (eligible.len() - finite.len()) as u32]);
    }
    case.want(outputs.0, integers(&histogram));
    case.want(outputs.1, sums);
    case.want(outputs.2, integers(&totals));
    case
}

fn demands() -> Vec<Case> {
    let mut rng = Rng::new(62);
    let mut random = |len: usize| -> Vec<f32> { (0..len).map(|_| (2.0 * rng.normal()).exp() as f32).collect() };
    // Whole powers of two are edges exactly; the others are irrational, and f32 has a number on either side.
    let mut edges = Vec::new();
    for b in 0..=DEMAND_BINS {
        let edge = ((b as f64 - 16.0) / 8.0).exp2();
        let nearest = edge as f32;
        let around = [f32::from_bits(nearest.to_bits() - 2), f32::from_bits(nearest.to_bits() + 2)];
        edges.extend(around);
        if b % 8 == 0 {
            edges.extend([nearest, f32::from_bits(nearest.to_bits() - 1)]);
        }
    }
    let special = [0.0, INF, INF, 1e-38, f32::MIN_POSITIVE, 1.0, 0.0, 3e38, 1e30];
    vec![
        demand("typical", &[5, 0, 9, 2], &[0.7, 0.0, 1.9, 3.0], &random(16)),
        demand("large", &[900, 0, 333], &[4.0, 0.0, 1.3], &random(1233)),
        demand("more rows than a block takes at once", &[5000, 0, 2049], &[2.0, 0.0, 1.1], &random(7049)),
        demand("bin edges", &[edges.len()], &[1.0], &edges),
        demand("scaled bin edges", &[edges.len()], &[1024.0], &edges.iter().map(|e| e * 1024.0).collect::<Vec<_>>()),
        demand("spare rows", &[2], &[1.0], &[1.0, 2.0, f32::NAN, f32::NAN]),
        demand("special scores", &[special.len()], &[1.0], &special),
        demand("one row", &[1], &[0.5], &[2.0]),
        demand("no rows", &[0, 0], &[0.0, 0.0], &[]),
        demand("no experts", &[], &[], &[]),
        demand("none eligible", &[3], &[0.0], &[0.0, 0.0, -0.0]),
        demand("all infinite", &[2], &[0.0], &[INF, INF]),
    ]
}

fn refusals() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut refuse = |name: &str, fragments: &[&'static str], change: fn(&mut Case, Score<Slot>) -> Score<Slot>| {
        let mut case = Case::new(name);
        let args = Score {
            rows: 4,
            experts: 2,
            top_k: 2,
            metric: Metric::Product,
            floor: 0.1,
            weights: case.f32("weights", &[1.0; 4]),
            d_norm: case.f32("d_norm", &[1.0; 2]),
            h_norm: case.f32("h_norm", &[1.0; 4]),
            x_norm: None,
            kappa: None,
            pair_of_row: case.u32("pair_of_row", &[0, 1, 2, 3]),
            offsets: case.u32("offsets", &[0, 1, 4]),
            score: case.out("score", F32, 4),
            mean: case.out("mean", F32, 2),
        };
        let args = change(&mut case, args);
        case.run(args);
        cases.push(case.refused(fragments));
    };
    refuse("pair out of range", &["pair_of_row", "4"], |case, a| Score {
        pair_of_row: case.u32("pair_of_row", &[0, 1, 4, 3]),
        ..a
    });
    refuse("full without its inputs", &["metric", "full"], |_, a| Score { metric: Metric::Full, ..a });
    refuse("offsets fall", &["offsets"], |case, a| Score { offsets: case.u32("offsets", &[0, 3, 2]), ..a });
    refuse("offsets past the rows", &["offset"], |case, a| Score { offsets: case.u32("offsets", &[0, 3, 5]), ..a });
    refuse("short h", &["`h_norm`"], |case, a| Score { h_norm: case.f32("h_norm", &[1.0; 3]), ..a });
    refuse("short weights", &["`weights`"], |case, a| Score { weights: case.f32("weights", &[1.0; 3]), ..a });
    refuse("k of zero", &["top_k"], |_, a| Score { top_k: 0, ..a });
    refuse("integer scores", &["`wrong`", "f32"], |case, a| Score { score: case.out("wrong", U32, 4), ..a });
    refuse("in place", &["in use"], |_, a| Score { score: a.h_norm, ..a });
    refuse("k beyond the address space", &["pairs"], |_, a| Score { top_k: usize::MAX, ..a });
    refuse("experts beyond the address space", &[""], |_, a| Score { experts: usize::MAX, ..a });
    let mut refuse = |name: &str, fragments: &[&'static str], offsets: &[u32], rows: usize, experts: usize| {
        let mut case = Case::new(name);
        let args = Demand {
            rows,
            experts,
            score: case.f32("score", &[1.0; 4]),
            mean: case.f32("mean", &[1.0; 2]),
            offsets: case.u32("offsets", offsets),
            histogram: case.out("histogram", U32, 2 * DEMAND_BINS),
            sums: case.out("sums", F32, 2 * DEMAND_SUMS),
            counts: case.out("counts", U32, 2 * DEMAND_COUNTS),
        };
        case.run(args);
        cases.push(case.refused(fragments));
    };
    refuse("offsets fall", &["offsets"], &[0, 3, 2], 4, 2);
    refuse("offsets past the rows", &["offset"], &[0, 3, 5], 4, 2);
    refuse("offsets past the scores", &["`score`"], &[0, 3, 5], 5, 2);
    refuse("short mean", &["`mean`"], &[0, 3, 4, 4], 4, 3);
    refuse("experts beyond the address space", &[""], &[0, 3, 4], 4, usize::MAX);
    cases
}

/// All cases of this family.
pub fn cases() -> Vec<Case> {
    table().iter().map(score).chain(demands()).chain(refusals()).collect()
}
