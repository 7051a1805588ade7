//! Unit tests of plans.

use super::*;
use crate::plan::Ownership;

fn options(retention: Retention) -> PlanOptions {
    PlanOptions { retention, ..PlanOptions::default() }
}

fn fraction(rho: f64) -> PlanOptions {
    options(Retention::Fraction(rho))
}

#[test]
fn fractions_round_and_reach_both_ends() {
    let counts = [100, 33, 0, 8, 1];
    for rho in [0.2, 0.25, 0.5, 0.77, 0.99] {
        let plan = plan_one_rank(&counts, None, &fraction(rho)).unwrap();
        assert_eq!(plan.retained(), (rho * 142.0).round() as u64);
        assert_eq!(plan.requested, plan.retained());
        assert!(plan.limits.is_empty() && !plan.keeps_everything());
    }
    let all = plan_one_rank(&counts, None, &fraction(1.0)).unwrap();
    assert_eq!(all.quotas, counts);
    assert!(all.keeps_everything() && all.limits.is_empty());
    assert_eq!(all.predicted_eta, 0.0);
    for rho in [0.0, 0.1] {
        let floors = plan_one_rank(&counts, None, &fraction(rho)).unwrap();
        assert_eq!(floors.quotas, [8, 8, 0, 8, 1]);
        assert_eq!(floors.limits, [Limit::Floor]);
    }
    let none = plan_one_rank(&counts, None, &PlanOptions { q_min: 0, ..fraction(0.0) }).unwrap();
    assert_eq!(none.quotas, [0; 5]);
    assert!(none.limits.is_empty());
}

#[test]
fn noise_budget_works_through_its_fractions() {
    let counts = [300, 600, 900];
    let at = |theta| plan_one_rank(&counts, None, &options(Retention::noise(theta))).unwrap();
    // Equal scores: eta = N / sum(q - 1) - 1, so theta 0.5 (and a little for rounding) takes 1200 + 3 pairs.
    let half = at(0.5 + 1e-9);
    assert_eq!(half.quotas, [201, 401, 601]);
    assert!((half.predicted_eta - 0.5).abs() < 1e-9);
    assert_eq!(at(0.5 - 1e-9).retained(), 1204);
    assert!(at(0.0).keeps_everything());
    let loose = at(100.0);
    assert_eq!((loose.retained(), loose.limits), (180, vec![Limit::MinFraction]));
    let capped = Retention::Noise { theta: 0.01, min_fraction: 0.0, max_fraction: 0.5 };
    let plan = plan_one_rank(&counts, None, &options(capped)).unwrap();
    assert_eq!((plan.retained(), plan.limits), (900, vec![Limit::MaxFraction]));
}

#[test]
fn no_pairs_is_a_plan_that_keeps_everything() {
    for retention in [Retention::Fraction(0.5), Retention::noise(0.3)] {
        let plan = plan_one_rank(&[0; 8], None, &options(retention)).unwrap();
        assert_eq!(plan.quotas, [0; 8]);
        assert!(plan.keeps_everything() && plan.limits.is_empty());
        assert_eq!(plan.predicted_eta, 0.0);
    }
}

#[test]
fn demand_moves_quotas() {
    // Both experts have the same load; the second one's gradients are three times as large.
    let scores = [[1.0; 100], [3.0; 100]].concat();
    let demand = Demand::from_scores(&scores, &[0, 100, 200]).unwrap();
    let plan = plan_one_rank(&[100, 100], Some(&demand), &fraction(0.41)).unwrap();
    assert_eq!(plan.quotas, [21, 61]);
    let even = plan_one_rank(&[100, 100], Some(&demand), &PlanOptions { alpha: 0.0, ..fraction(0.41) }).unwrap();
    assert_eq!(even.quotas, [41, 41]);
}

#[test]
fn refuses_bad_options_and_shapes() {
    let bad = [
        fraction(f64::NAN),
        fraction(-0.1),
        fraction(1.1),
        options(Retention::noise(-1.0)),
        options(Retention::Noise { theta: 0.3, min_fraction: 0.6, max_fraction: 0.5 }),
        PlanOptions { alpha: 2.0, ..fraction(0.5) },
        PlanOptions { smoothing: 1.0, ..fraction(0.5) },
        PlanOptions { smoothing: f64::NAN, ..fraction(0.5) },
    ];
    for options in bad {
        assert!(matches!(plan_one_rank(&[4, 6], None, &options), Err(Error::Argument { .. })), "{options:?}");
    }
    assert!(matches!(plan_one_rank(&[], None, &fraction(0.5)), Err(Error::Argument { .. })));
    let demand = Demand::uniform(&[4]);
    assert!(matches!(plan_one_rank(&[4, 6], Some(&demand), &fraction(0.5)), Err(Error::Shape { .. })));
}

fn skewed() -> RetentionPlan {
    let counts: Vec<u32> = (0..20).map(|e| 1000 / (e + 1) % 487).collect();
    let scores: Vec<f32> = (0..20).flat_map(|e| (0..40).map(move |i| ((e * 7 + i * i) % 31) as f32)).collect();
    let offsets: Vec<u32> = (0..=20).map(|e| 40 * e).collect();
    let demand = Demand::from_scores(&scores, &offsets).unwrap();
    plan_one_rank(&counts, Some(&demand), &PlanOptions { alpha: 0.6, ..fraction(0.5) }).unwrap()
}

/// Another machine must arrive at these numbers too; alpha 0.6 passes through the crate's own power function.
#[test]
fn hash_is_stable_and_sees_every_integer() {
    let plan = skewed();
    assert_eq!(plan.hash(), GOLDEN_HASH, "{plan}");
    let small = RetentionPlan {
        counts: vec![1],
        quotas: vec![1],
        requested: 1,
        retention: Retention::Fraction(1.0),
        limits: vec![],
        predicted_eta: 0.0,
    };
    // FNV-1a of the bytes written out, independently of `hash`.
    let bytes = [1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let expected = bytes.iter().fold(14_695_981_039_346_656_037_u64, |h, b| (h ^ b).wrapping_mul(1_099_511_628_211));
    assert_eq!(small.hash(), expected);
    let changes: [fn(&mut RetentionPlan); 5] = [
        |p| p.counts[3] += 1,
        |p| p.quotas[3] -= 1,
        |p| p.requested += 1 << 32,
        |p| p.limits.push(Limit::Floor),
        |p| p.quotas.swap(0, 1),
    ];
    for (i, change) in changes.iter().enumerate() {
        let mut other = plan.clone();
        change(&mut other);
        assert_ne!(other.hash(), plan.hash(), "change {i}");
    }
    let mut other = plan.clone();
    other.predicted_eta += 1.0;
    assert_eq!(other.hash(), plan.hash());
}

#[test]
fn json_round_trip_and_refusals() {
    let plan = skewed();
    let json = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<RetentionPlan>(&json).unwrap(), plan);
    let changes: [fn(&mut RetentionPlan); 5] = [
        |p| p.quotas[0] = p.counts[0] + 1,
        |p| p.quotas.truncate(3),
        |p| p.requested -= 1,
        |p| p.predicted_eta = f64::NAN,
        |p| {
            p.counts.clear();
            p.quotas.clear();
        },
    ];
    for (i, change) in changes.iter().enumerate() {
        let mut other = plan.clone();
        change(&mut other);
        let json = serde_json::to_string(&other).unwrap();
        assert!(serde_json::from_str::<RetentionPlan>(&json).is_err(), "change {i}");
    }
    let options: PlanOptions = serde_json::from_str(r#"{"retention": "noise:0.3", "alpha": 0.5}"#).unwrap();
    assert_eq!(options, PlanOptions { retention: Retention::noise(0.3), alpha: 0.5, ..PlanOptions::default() });
    assert!(serde_json::from_str::<PlanOptions>(r#"{"retain": "0.3"}"#).is_err());
}

#[test]
fn prints_a_compact_table() {
    let plan = plan_one_rank(&[100, 20, 4, 0, 0, 0, 0, 0, 7], None, &fraction(0.0)).unwrap();
    let text = plan.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 7, "{text}");
    assert!(lines[0].starts_with("9 experts, 27 of 131 pairs retained (20.6 %, asked 0), eta "), "{text}");
    assert!(lines[0].ends_with("limits: floor"), "{text}");
    assert_eq!(lines[4], "expert         8");
    assert_eq!(lines[6], "quota          7");
}

#[test]
fn rank_capacity_is_that_of_decimal_arithmetic() {
    for (total, slack, ranks, capacity) in [
        (100, 0.05, 5, 21),
        (100, 0.05, 1, 105),
        (101, 0.05, 5, 22),
        (100, 0.0, 3, 34),
        (0, 0.5, 3, 0),
        (1, 0.0, 64, 1),
        (1_000_000, 1e-6, 1, 1_000_001),
        (1_000_000, 4e-7, 1, 1_000_000),
        ((1 << 53) - 1, 0.0, 1, (1 << 53) - 1),
        (u64::MAX, 0.05, 2, 9_684_540_638_697_514_598),
        (7, f64::MAX, u32::MAX as usize, u64::MAX),
        (u64::MAX, 0.05, 1, u64::MAX),
    ] {
        assert_eq!(rank_capacity(total, slack, ranks), capacity, "{total} {slack} {ranks}");
    }
}

/// Eight experts on four ranks, two each; the first rank's have most of the load.
fn crowded() -> (Vec<u32>, Placement) {
    (vec![400, 300, 100, 50, 60, 40, 30, 20], Placement::contiguous(8, 4, Ownership::Home).unwrap())
}

fn rank_loads(quotas: &[u32]) -> Vec<u64> {
    quotas.chunks(2).map(quota::total).collect()
}

#[test]
fn no_rank_passes_its_share() {
    let (counts, placement) = crowded();
    // Q = 200: 52.5 pairs a rank with the default slack.
    let plan = plan_within(&counts, None, &PlanOptions { q_min: 2, ..fraction(0.2) }, &placement).unwrap();
    assert_eq!((plan.retained(), plan.requested), (200, 200));
    assert_eq!(plan.limits, [Limit::RankCapacity]);
    let loads = rank_loads(&plan.quotas);
    assert!(loads[0] == 53 && loads.iter().all(|&load| load <= 53), "{loads:?}");
    let loose = plan_within(&counts, None, &PlanOptions { slack: 3.0, ..fraction(0.2) }, &placement).unwrap();
    assert_eq!(loose, plan_one_rank(&counts, None, &fraction(0.2)).unwrap());
    // Q = 500: 132 pairs a rank, but rank 2 and 3 have only 100 and 50.
    let plan = plan_within(&counts, None, &fraction(0.5), &placement).unwrap();
    assert_eq!((rank_loads(&plan.quotas), plan.requested), (vec![132, 132, 100, 50], 500));
    assert_eq!(plan.limits, [Limit::RankCapacity]);
    assert_eq!(plan.predicted_eta, quota::eta(&plan.quotas, &counts, &Demand::uniform(&counts)).unwrap());
    assert!(plan.predicted_eta > plan_one_rank(&counts, None, &fraction(0.5)).unwrap().predicted_eta);
    assert!(plan.to_string().contains("limits: rank_capacity"), "{plan}");
    let json = serde_json::to_string(&plan).unwrap();
    assert!(json.contains("\"rank_capacity\""), "{json}");
    assert_eq!(serde_json::from_str::<RetentionPlan>(&json).unwrap(), plan);
    // A sum that nothing explains is refused.
    for other in ["[]", "[\"floor\"]", "[\"max_fraction\"]"] {
        assert!(serde_json::from_str::<RetentionPlan>(&json.replace("[\"rank_capacity\"]", other)).is_err());
    }
}

#[test]
fn one_rank_is_no_limit() {
    let counts = skewed().counts;
    let placement = Placement::contiguous(counts.len(), 1, Ownership::Home).unwrap();
    let capped = Retention::Noise { theta: 0.01, min_fraction: 0.0, max_fraction: 0.5 };
    let noise = [Retention::noise(0.3), Retention::noise(100.0), Retention::noise(0.0), capped];
    let fractions = [0.0, 0.001, 0.1, 0.5, 0.99, 1.0].map(Retention::Fraction);
    for retention in noise.into_iter().chain(fractions) {
        for slack in [0.0, 0.05] {
            let options = PlanOptions { slack, alpha: 0.6, ..options(retention) };
            let plan = plan_within(&counts, None, &options, &placement).unwrap();
            assert_eq!(plan, plan_one_rank(&counts, None, &options).unwrap(), "{retention}");
        }
    }
}

#[test]
fn plain_training_stays_plain_on_any_ranks() {
    let (counts, placement) = crowded();
    for retention in [Retention::Fraction(1.0), Retention::noise(0.0)] {
        let plan = plan_within(&counts, None, &PlanOptions { slack: 0.0, ..options(retention) }, &placement).unwrap();
        assert!(plan.keeps_everything() && plan.limits.is_empty(), "{plan}");
    }
    let idle = plan_within(&[0; 8], None, &fraction(0.5), &placement).unwrap();
    assert!(idle.keeps_everything() && idle.limits.is_empty());
}

/// The sum comes from the noise budget alone; ranks then raise the noise above it, and the plan says so.
#[test]
fn noise_budgets_are_found_without_ranks() {
    let (counts, placement) = crowded();
    let alone = plan_one_rank(&counts, None, &options(Retention::noise(1.0))).unwrap();
    let plan = plan_within(&counts, None, &options(Retention::noise(1.0)), &placement).unwrap();
    assert_eq!((plan.requested, plan.limits.as_slice()), (alone.requested, [Limit::RankCapacity].as_slice()));
    assert!(alone.predicted_eta <= 1.0 && plan.predicted_eta > 1.0, "{plan}");
    let loose = plan_within(&counts, None, &options(Retention::noise(100.0)), &placement).unwrap();
    assert_eq!(loose.limits, [Limit::MinFraction, Limit::RankCapacity]);
    assert!(matches!(plan_within(&counts[1..], None, &fraction(1.0), &placement), Err(Error::Shape { .. })));
    let bad = PlanOptions { slack: -0.1, ..fraction(0.5) };
    assert!(matches!(plan_within(&counts, None, &bad, &placement), Err(Error::Argument { .. })));
}

const GOLDEN_HASH: u64 = 15_856_747_841_747_412_334;
