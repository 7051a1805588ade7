use super::*;

const REAL: Batch = Batch { ranks: 8, experts: 128, top_k: 8, tokens_per_rank: 4096 };

fn busiest(counts: &Counts) -> f64 {
    let load = counts.per_expert();
    let max = load.iter().copied().max().unwrap();
    f64::from(max) * load.len() as f64 / counts.total() as f64
}

/// Pairs of the busiest rank over the mean, each expert on its contiguous owner.
fn busiest_owner(counts: &Counts) -> f64 {
    let (ranks, experts) = (counts.ranks(), counts.experts());
    let mut load = vec![0_u64; ranks];
    counts.per_expert().iter().enumerate().for_each(|(e, &n)| load[e * ranks / experts] += u64::from(n));
    load.iter().copied().max().unwrap() as f64 * ranks as f64 / counts.total() as f64
}

#[test]
fn names_are_read_back() {
    for workload in Workload::ALL {
        assert_eq!(workload.to_string().parse(), Ok(workload));
        assert_eq!(serde_json::to_value(workload).unwrap(), workload.name());
    }
    let error = "zipf".parse::<Workload>().unwrap_err().to_string();
    assert!(error.contains("zipf") && error.contains("hot-rank"), "{error}");
}

/// Every token picks exactly k distinct experts, whatever the sizes.
#[test]
fn every_row_could_come_from_tokens() {
    for workload in Workload::ALL {
        for ranks in [1, 2, 3, 8, 64] {
            for (experts, top_k) in [(1, 1), (2, 1), (2, 2), (5, 3), (8, 8), (16, 2), (60, 4), (128, 8), (512, 10)] {
                for tokens_per_rank in [0, 1, 2, 7, 100, 8192] {
                    for step in [0, 5, 31, 1000] {
                        let batch = Batch { ranks, experts, top_k, tokens_per_rank };
                        let what = format!("{workload} {batch:?} step {step}");
                        let tokens = workload.tokens(&batch, 3, step).unwrap();
                        let counts = workload.counts(&batch, 3, step).unwrap();
                        assert_eq!((counts.ranks(), counts.experts()), (ranks, experts), "{what}");
                        for (rank, &tokens) in tokens.iter().enumerate() {
                            assert_eq!(counts.per_rank()[rank], top_k as u64 * u64::from(tokens), "{what}");
                            assert!(counts.row(rank).iter().all(|&n| n <= tokens), "{what}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn depends_on_each_argument_and_on_nothing_else() {
    for workload in Workload::ALL {
        let counts = |seed, step| workload.counts(&REAL, seed, step).unwrap();
        assert_eq!(counts(1, 2), counts(1, 2));
        for (seed, step) in [(2, 2), (1 | 1 << 32, 2), (1, 3), (1, 2 | 1 << 32)] {
            assert_ne!(counts(seed, step), counts(1, 2), "{workload}: seed {seed}, step {step}");
        }
        counts(u64::MAX, u64::MAX);
    }
}

/// FNV-1a of the counts in little-endian bytes.
fn hash(counts: &Counts) -> u64 {
    let bytes = counts.flat().iter().flat_map(|n| n.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Experiments are compared by workload, seed and step: the numbers behind them never change.
#[test]
fn golden_hashes() {
    let found = Workload::ALL.map(|w| (w.name(), hash(&w.counts(&REAL, 1, 30).unwrap())));
    assert_eq!(found, GOLDEN);
}

const GOLDEN: [(&str, u64); 9] = [
    ("balanced", 0x93a8_e71e_14f0_0003),
    ("hot-set", 0xb26f_ac48_7f63_0866),
    ("hot-rank", 0xd1b6_e9d0_e6ac_d7ab),
    ("spread-hot", 0x8224_ce03_96d4_915b),
    ("ragged", 0x6aab_c385_9eaa_c3bd),
    ("empty", 0xb0b2_26ed_38e9_1d27),
    ("rotating", 0xc28d_001e_4f8d_8746),
    ("burst", 0x6ad3_49b3_e827_83d8),
    ("drifting", 0x2342_eb6f_7cf0_6e0a),
];

/// Spread of balanced counts over many draws: T p +- sqrt(T p (1 - p)). Bounds are five standard errors.
#[test]
fn noise_is_that_of_tokens_choosing() {
    let Batch { experts, top_k, tokens_per_rank, .. } = REAL;
    let p = top_k as f64 / experts as f64;
    let mean = f64::from(tokens_per_rank) * p;
    let (mut sum, mut square, mut n) = (0.0, 0.0, 0.0);
    for step in 0..20 {
        for &count in Workload::Balanced.counts(&REAL, 0, step).unwrap().flat() {
            let off = f64::from(count) - mean;
            (sum, square, n) = (sum + off, square + off * off, n + 1.0);
        }
    }
    assert_eq!(sum, 0.0);
    // The row sums are fixed, which takes one of the E degrees of freedom; rounding adds 1/12.
    let expected = mean * (1.0 - p) * (1.0 - 1.0 / experts as f64) + 1.0 / 12.0;
    let standard_error = expected * f64::sqrt(2.0 / n);
    assert!((square / n - expected).abs() < 5.0 * standard_error, "{} against {expected}", square / n);
}

#[test]
fn hot_spots_are_as_hot_and_where_they_say() {
    let at = |workload: Workload, step| workload.counts(&REAL, 7, step).unwrap();
    let near = |found: f64, expected: f64, what: &str| {
        // Five standard deviations of the pairs of an expert with this load.
        let slack = 5.0 / (2048.0 * expected).sqrt();
        assert!((found / expected - 1.0).abs() < slack, "{what}: {found}, expected {expected}");
    };
    near(busiest(&at(Workload::Balanced, 0)), 1.0, "balanced");
    for (workload, step) in [(Workload::HotSet, 0), (Workload::SpreadHot, 0), (Workload::Rotating, 9)] {
        near(busiest(&at(workload, step)), 7.0, workload.name());
    }
    // One rank of 8 is an eighth of the experts: they get (1 + 1/8) / 2 of the pairs.
    near(busiest(&at(Workload::HotRank, 0)), 4.5, "hot-rank");
    near(busiest_owner(&at(Workload::HotRank, 0)), 4.5, "owner of hot-rank");
    near(busiest_owner(&at(Workload::SpreadHot, 0)), 1.0, "owner of spread-hot");
    near(busiest(&at(Workload::Burst, 27)), 1.0, "before a burst");
    near(busiest(&at(Workload::Burst, 28)), 13.0, "a burst");
    let drifting: Vec<f64> = (0..40).map(|i| busiest(&at(Workload::Drifting, i * 100))).collect();
    let mean = drifting.iter().sum::<f64>() / 40.0;
    assert!((5.0..9.0).contains(&mean), "drifting: {mean}");
}

fn hottest(counts: &Counts, how_many: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..counts.experts()).collect();
    order.sort_by_key(|&e| (std::cmp::Reverse(counts.per_expert()[e]), e));
    order.truncate(how_many);
    order.sort_unstable();
    order
}

#[test]
fn hot_sets_stay_rotate_and_burst_anew() {
    let hot = |workload: Workload, step, n| hottest(&workload.counts(&REAL, 7, step).unwrap(), n);
    assert_eq!(hot(Workload::HotSet, 0, 8), hot(Workload::HotSet, 999, 8));
    assert_eq!(hot(Workload::Rotating, 0, 8), hot(Workload::Rotating, 7, 8));
    let moved: Vec<usize> = hot(Workload::Rotating, 7, 8).into_iter().map(|e| (e + 8) % 128).collect();
    let mut next = hot(Workload::Rotating, 8, 8);
    next.sort_by_key(|e| moved.iter().position(|m| m == e));
    assert_eq!(next, moved);
    assert_eq!(hot(Workload::Burst, 28, 2), hot(Workload::Burst, 31, 2));
    assert_ne!(hot(Workload::Burst, 28, 2), hot(Workload::Burst, 60, 2));
}

/// Correlation of log loads between steps: high over few, none over many.
#[test]
fn drifting_popularity_changes_gradually() {
    let logs = |step| -> Vec<f64> {
        let counts = Workload::Drifting.counts(&REAL, 1, step).unwrap();
        counts.per_expert().iter().map(|&n| f64::from(n).max(1.0).ln()).collect()
    };
    let correlation = |a: &[f64], b: &[f64]| {
        let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
        let (ma, mb) = (mean(a), mean(b));
        let product = |f: fn(f64, f64) -> f64| a.iter().zip(b).map(|(x, y)| f(x - ma, y - mb)).sum::<f64>();
        product(|x, y| x * y) / (product(|x, _| x * x) * product(|_, y| y * y)).sqrt()
    };
    let start = logs(100);
    assert!(correlation(&start, &logs(101)) > 0.95);
    assert!(correlation(&start, &logs(63 + 64 * 4)).abs() < 0.45, "five standard errors over 128 experts");
    // Across a key step too.
    assert!(correlation(&logs(127), &logs(128)) > 0.95);
}

#[test]
fn ragged_and_empty_sources_and_experts() {
    let batch = Batch { ranks: 16, ..REAL };
    let ragged = Workload::Ragged.tokens(&batch, 0, 0).unwrap();
    assert_eq!(ragged.iter().sum::<u32>(), 16 * 4096);
    let (least, most) = (ragged.iter().min().unwrap(), ragged.iter().max().unwrap());
    assert!(*most > 2 * 4096 && *least < 4096 / 4, "{ragged:?}");
    let empty = Workload::Empty.counts(&batch, 0, 0).unwrap();
    assert_eq!(empty.per_rank().iter().filter(|&&n| n == 0).count(), 4);
    assert_eq!(empty.per_expert().iter().filter(|&&n| n == 0).count(), 64);
}

#[test]
fn absurd_traffic_is_refused() {
    for workload in Workload::ALL {
        let refused = |batch: Batch| assert!(workload.counts(&batch, 0, 0).is_err(), "{workload} {batch:?}");
        refused(Batch { ranks: 0, ..REAL });
        refused(Batch { experts: 0, ..REAL });
        refused(Batch { ranks: usize::MAX, ..REAL });
        refused(Batch { ranks: 1 << 20, ..REAL });
        refused(Batch { top_k: 0, ..REAL });
        refused(Batch { top_k: 129, ..REAL });
        refused(Batch { top_k: 128, tokens_per_rank: u32::MAX, ..REAL });
    }
}
