//! Unit tests of demand.

use super::*;
use crate::rng::Philox;

/// Log-normal-looking scores over many octaves.
fn random_scores(rng: &mut Philox, n: usize, scale: f64) -> Vec<f32> {
    (0..n).map(|_| (scale * rng.normal().exp()) as f32).collect()
}

#[test]
fn bins_are_eighths_of_octaves() {
    for b in 0..TOP {
        let low = 2f64.powf(b as f64 / 8.0 - 2.0);
        let high = 2f64.powf((b + 1) as f64 / 8.0 - 2.0);
        assert_eq!(bin(low * (1.0 + 1e-12)), b);
        assert_eq!(bin(high * (1.0 - 1e-12)), b);
        assert!((ratio_at(b, 0) / low - 1.0).abs() < 1e-14);
        assert!((ratio_at(b, 1) / (low * high).sqrt() - 1.0).abs() < 1e-14);
    }
    assert_eq!(bin(1.0), UNIT_BIN);
    assert_eq!([bin(0.25), bin(0.1), bin(f64::MIN_POSITIVE / 2.0)], [0, 0, 0]);
    assert_eq!([bin(64.0), bin(1e300), bin(f64::MAX)], [TOP; 3]);
}

#[test]
fn every_pair_is_counted_once() {
    let scores = [0.0, 1.0, 3.0, f32::INFINITY, 0.0, -0.0, f32::INFINITY, 2.0];
    let demand = Demand::from_scores(&scores, &[0, 4, 4, 7, 8]).unwrap();
    let p = demand.parts();
    assert_eq!(p.load, [4.0, 0.0, 3.0, 1.0]);
    assert_eq!(p.infinite, [1.0, 0.0, 1.0, 0.0]);
    assert_eq!(p.score_sum, [4.0, 0.0, 0.0, 2.0]);
    assert_eq!(p.reference, [2.0, 0.0, 0.0, 2.0]);
    assert_eq!(demand.eligible(), [3.0, 0.0, 1.0, 1.0]);
    assert_eq!(p.histogram[bin(0.5)], 1.0);
    assert_eq!(p.histogram[bin(1.5)], 1.0);
    assert_eq!(p.histogram.iter().sum::<f64>(), 3.0);
}

/// Scores of 1 and one of 1000 among 200: the last bin must keep what is above it.
#[test]
fn the_last_bin_keeps_its_sum() {
    let mut scores = vec![1.0; 200];
    scores[17] = 1000.0;
    let demand = Demand::from_scores(&scores, &[0, 200]).unwrap();
    let mean = 1199.0 / 200.0;
    assert_eq!(demand.parts().histogram[TOP], 1.0);
    assert_eq!(demand.parts().top_sum, [1000.0 / mean]);
    let (top, count) = demand.points(0).next().unwrap();
    assert_eq!(count, 1.0);
    assert!((top / 1000.0 - 1.0).abs() < 1e-14, "{top}");
}

#[test]
fn equal_scores_are_represented_exactly() {
    for score in [1e-40_f32, 0.37, 1.0, 3e38] {
        let demand = Demand::from_scores(&[score; 50], &[0, 50]).unwrap();
        let points: Vec<_> = demand.points(0).collect();
        assert_eq!(points.len(), 1);
        assert!((points[0].0 / f64::from(score) - 1.0).abs() < 1e-14);
        let exact = 50.0 * f64::from(score) * f64::from(score);
        assert!((demand.sum_sq() / exact - 1.0).abs() < 1e-13);
    }
}

#[test]
fn points_keep_the_sum_descend_and_estimate_squares() {
    let mut rng = Philox::new(1, 0);
    for n in [1, 2, 10, 1000] {
        let scores = random_scores(&mut rng, n, 1e-3);
        let demand = Demand::from_scores(&scores, &[0, n as u32]).unwrap();
        let points: Vec<_> = demand.points(0).collect();
        assert!(points.windows(2).all(|w| w[0].0 > w[1].0));
        let sum: f64 = points.iter().map(|(m, count)| m * count).sum();
        let exact: f64 = scores.iter().map(|&m| f64::from(m)).sum();
        assert!((sum / exact - 1.0).abs() < 1e-12);
        let squares: f64 = scores.iter().map(|&m| f64::from(m).powi(2)).sum();
        assert!((demand.sum_sq() / squares - 1.0).abs() < 0.1, "{n}: {} {squares}", demand.sum_sq());
    }
}

#[test]
fn refuses_bad_scores() {
    for bad in [f32::NAN, -1.0, f32::NEG_INFINITY] {
        let error = Demand::from_scores(&[1.0, bad], &[0, 2]).unwrap_err().to_string();
        assert!(error.contains("scores[1]"), "{error}");
    }
    for offsets in [&[][..], &[0], &[0, 1], &[1, 2], &[0, 2, 1, 2], &[0, 3]] {
        assert!(matches!(Demand::from_scores(&[1.0, 1.0], offsets), Err(Error::Shape { .. })), "{offsets:?}");
    }
    assert!(matches!(Demand::from_scores_relative_to(&[1.0], &[0, 1], &[]), Err(Error::Shape { .. })));
    for reference in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(Demand::from_scores_relative_to(&[1.0], &[0, 1], &[reference]).is_err(), "{reference}");
        assert!(Demand::from_scores_relative_to(&[0.0], &[0, 1], &[reference]).is_ok(), "{reference}");
    }
}

#[test]
fn refuses_contradictory_parts() {
    let good = Demand::uniform(&[4, 6]);
    let broken: [fn(&mut DemandParts); 13] = [
        |p| p.load[0] = f64::NAN,
        |p| p.load[0] = -4.0,
        |p| p.load[1] = f64::INFINITY,
        |p| p.load[1] = 5.0,
        |p| p.infinite[0] = 1.0,
        |p| p.histogram[3] = 1.0,
        |p| p.histogram[..BINS].fill(0.0),
        |p| p.top_sum[0] = 1.0,
        |p| p.top_sum.truncate(1),
        |p| p.histogram.truncate(BINS),
        |p| p.score_sum[1] = f64::INFINITY,
        |p| p.score_sum[1] = 0.0,
        |p| p.reference[0] = 0.0,
    ];
    for (i, change) in broken.iter().enumerate() {
        let mut parts = good.parts().clone();
        change(&mut parts);
        assert!(Demand::try_from(parts.clone()).is_err(), "change {i}");
        // JSON has no NaN or infinity: they arrive as null and are refused as well.
        let json = serde_json::to_string(&parts).unwrap();
        assert!(serde_json::from_str::<Demand>(&json).is_err(), "change {i}");
    }
    let mut parts = good.parts().clone();
    parts.histogram[UNIT_BIN] = 3.0;
    parts.histogram[TOP] = 1.0;
    parts.top_sum[0] = 58.0;
    assert!(Demand::try_from(parts.clone()).is_err(), "58 is below the last bin");
    parts.top_sum[0] = 59.0;
    assert!(Demand::try_from(parts).is_ok());
}

#[test]
fn merging_ranks_is_measuring_all_pairs_at_once() {
    let mut rng = Philox::new(2, 0);
    let mut whole: Vec<Vec<f32>> = vec![random_scores(&mut rng, 300, 1.0), vec![], random_scores(&mut rng, 77, 1e-6)];
    whole[0][5] = f32::INFINITY;
    whole[0][200] = 0.0;
    let flat: Vec<f32> = whole.concat();
    let expected = Demand::from_scores(&flat, &[0, 300, 300, 377]).unwrap();
    let references = &expected.parts().reference;
    // Rank 0 has nothing of the last expert, rank 1 everything.
    let rank0 = Demand::from_scores_relative_to(&whole[0][..120], &[0, 120, 120, 120], references).unwrap();
    let rest = [&whole[0][120..], &whole[2]].concat();
    let rank1 = Demand::from_scores_relative_to(&rest, &[0, 180, 180, 257], references).unwrap();
    let merged = Demand::merge(&[rank0.clone(), rank1]).unwrap();
    let (m, x) = (merged.parts(), expected.parts());
    assert_eq!((&m.load, &m.infinite, &m.histogram, &m.reference), (&x.load, &x.infinite, &x.histogram, &x.reference));
    for (a, b) in m.score_sum.iter().zip(&x.score_sum) {
        assert!((a - b).abs() <= 1e-12 * b);
    }
    assert_eq!(Demand::merge(std::slice::from_ref(&rank0)).unwrap(), rank0);

    let other = Demand::from_scores(&whole[0][120..], &[0, 180, 180, 180]).unwrap();
    assert!(matches!(Demand::merge(&[rank0.clone(), other]), Err(Error::Argument { .. })));
    assert!(matches!(Demand::merge(&[rank0, Demand::uniform(&[1])]), Err(Error::Shape { .. })));
    assert!(matches!(Demand::merge(&[]), Err(Error::Argument { .. })));
}

#[test]
fn smoothing_mixes_and_keeps_what_is_not_observed() {
    let old = Demand::from_scores(&[1.0, 3.0, 5.0, 5.0], &[0, 2, 4, 4]).unwrap();
    let new = Demand::from_scores(&[2.0, 2.0, 2.0, 2.0, 7.0], &[0, 4, 4, 5]).unwrap();
    let mixed = Demand::smooth(&old, &new, 0.25).unwrap();
    let p = mixed.parts();
    assert_eq!(p.load, [3.5, 2.0, 1.0]);
    assert_eq!(p.score_sum, [7.0, 10.0, 7.0]);
    assert_eq!(p.histogram[bin(0.5)], 0.25);
    assert_eq!(p.histogram[bin(1.0)], 3.0);
    assert_eq!(Demand::smooth(&old, &old, 0.5).unwrap(), old);
    assert_eq!(Demand::smooth(&old, &new, 0.0).unwrap().parts().load, [4.0, 2.0, 1.0]);
    for factor in [-0.1, 1.0, f64::NAN, f64::INFINITY] {
        assert!(Demand::smooth(&old, &new, factor).is_err(), "{factor}");
    }
    assert!(matches!(Demand::smooth(&Demand::uniform(&[1]), &new, 0.5), Err(Error::Shape { .. })));
}

/// Gradients that shrink a thousandfold between steps must not blur the histogram's shape.
#[test]
fn smoothing_does_not_depend_on_the_scale_of_gradients() {
    let mut rng = Philox::new(3, 0);
    let scores = random_scores(&mut rng, 500, 1.0);
    let shrunk: Vec<f32> = scores.iter().map(|m| m / 1024.0).collect();
    let old = Demand::from_scores(&scores, &[0, 500]).unwrap();
    let new = Demand::from_scores(&shrunk, &[0, 500]).unwrap();
    let mixed = Demand::smooth(&old, &new, 0.5).unwrap();
    for (a, b) in mixed.parts().histogram.iter().zip(&old.parts().histogram) {
        assert!((a - b).abs() <= 1e-12 * b);
    }
    assert!((mixed.parts().score_sum[0] / old.parts().score_sum[0] - (0.5 + 0.5 / 1024.0)).abs() < 1e-12);
}

#[test]
fn smoothing_forever_stays_valid() {
    let mut rng = Philox::new(4, 0);
    let quiet = Demand::from_scores(&[0.0, 0.0, 1.0], &[0, 2, 3]).unwrap();
    let mut demand = Demand::from_scores(&random_scores(&mut rng, 3, 1e30), &[0, 2, 3]).unwrap();
    for _ in 0..3000 {
        demand = Demand::smooth(&demand, &quiet, 0.5).unwrap();
    }
    let scaled = demand.scaled_to(&[10, 10]).unwrap();
    assert!(scaled.sum_sq().is_finite());
    assert_eq!(Demand::try_from(scaled.parts().clone()).unwrap(), scaled);
}

#[test]
fn scaling_follows_the_load_and_falls_back_to_equal_scores() {
    let inf = f32::INFINITY;
    let demand = Demand::from_scores(&[1.0, 3.0, inf, 0.0, 0.0, 0.0, inf], &[0, 4, 4, 6, 7]).unwrap();
    let scaled = demand.scaled_to(&[8, 5, 6, 9]).unwrap();
    let p = scaled.parts();
    assert_eq!(p.load, [8.0, 5.0, 6.0, 9.0]);
    assert_eq!(p.infinite, [2.0, 0.0, 0.0, 0.0]);
    // The mean known score is 2: experts never seen, without eligible pairs and with infinite ones only get it.
    assert_eq!(p.score_sum, [8.0, 10.0, 12.0, 18.0]);
    assert_eq!(scaled.eligible(), [6.0, 5.0, 6.0, 9.0]);
    let nothing = demand.scaled_to(&[0; 4]).unwrap();
    assert_eq!(nothing.parts().score_sum, [0.0; 4]);
    assert_eq!(nothing.sum_sq(), 0.0);
    assert_eq!(Demand::uniform(&[0, 0]).scaled_to(&[3, 1]).unwrap(), Demand::uniform(&[3, 1]));
    assert!(matches!(demand.scaled_to(&[1]), Err(Error::Shape { .. })));
}

#[test]
fn json_round_trip_is_exact() {
    let mut rng = Philox::new(5, 0);
    let a = Demand::from_scores(&random_scores(&mut rng, 400, 1e-20), &[0, 150, 150, 400]).unwrap();
    let b = Demand::from_scores(&random_scores(&mut rng, 400, 1e-20), &[0, 10, 50, 400]).unwrap();
    let mixed = Demand::smooth(&a, &b, 0.3).unwrap();
    let json = serde_json::to_string(&mixed).unwrap();
    assert_eq!(serde_json::from_str::<Demand>(&json).unwrap(), mixed);
    let extra = json.replacen('{', "{\"loads\":[],", 1);
    assert!(serde_json::from_str::<Demand>(&extra).is_err(), "an unknown field is a mistake");
}

#[test]
fn numbers_that_planning_cannot_square_are_refused() {
    let parts = Demand::from_scores(&[1.0, 3.0, f32::INFINITY, 200.0], &[0, 3, 4]).unwrap().parts().clone();
    let with = |change: fn(&mut DemandParts, f64), value: f64| {
        let mut parts = parts.clone();
        change(&mut parts, value);
        Demand::try_from(parts)
    };
    type Change = fn(&mut DemandParts, f64);
    let changes: [(&str, Change); 6] = [
        ("load", |p, v| p.load[1] = v),
        ("infinite", |p, v| p.infinite[1] = v),
        ("score_sum", |p, v| p.score_sum[1] = v),
        ("reference", |p, v| p.reference[1] = v),
        ("histogram", |p, v| p.histogram[BINS + 3] = v),
        ("top_sum", |p, v| p.top_sum[1] = v),
    ];
    for (name, change) in changes {
        for value in [f64::NAN, f64::INFINITY, -1.0, 1e-300, f64::MIN_POSITIVE / 2.0, 1e300] {
            match with(change, value) {
                Err(Error::Argument { name: named, allowed, .. }) => {
                    assert!(named.starts_with(&format!("demand.{name}[")), "{named} instead of {name}");
                    assert!(allowed.starts_with("0 or a number from 1e-"), "{allowed}");
                }
                other => panic!("{name} = {value:e}: {other:?}"),
            }
        }
    }
}

#[test]
fn infinite_scores_of_long_ago_are_forgotten() {
    let mut demand = Demand::from_scores(&[f32::INFINITY, 1.0], &[0, 2]).unwrap();
    let finite = Demand::from_scores(&[1.0, 1.0], &[0, 2]).unwrap();
    for _ in 0..40 {
        demand = Demand::smooth(&demand, &finite, 0.5).unwrap();
    }
    assert_eq!(demand.parts().infinite, [0.0]);
}
