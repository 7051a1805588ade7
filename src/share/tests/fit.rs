//! Fits against known lines.

use super::{empty_share, odd_share};
use crate::plan::Activations;
use crate::rng::Philox;
use crate::share::{Phase, PhaseTimes, Share, TimeModel};

/// Random sizes; the number of residents and of active experts vary too.
fn share(rng: &mut Philox, activations: Activations, selects: bool) -> Share {
    let mut upto = |n: u32| rng.next_u32() % (n + 1);
    let resident = 1 + upto(7);
    let forward: Vec<u32> = (0..resident).map(|_| upto(3) * upto(200)).collect();
    let backward: Vec<u32> = forward.iter().map(|&n| upto(n) * u32::from(upto(4) > 0)).collect();
    Share {
        tokens: 1 + upto(5000) as usize,
        tokens_in_forward: upto(3000) as usize,
        tokens_in_backward: upto(2000) as usize,
        sent_forward: upto(4000) as usize,
        sent_backward: upto(2500) as usize,
        retained: upto(3000) as usize,
        optimizer_parameters: upto(1 << 20) as usize,
        forward,
        backward,
        activations,
        selects,
    }
}

/// The line of each phase, written apart from the model: seconds.
fn truth(share: &Share, phase: Phase) -> f64 {
    let recomputes = share.activations == Activations::Recompute;
    let t = share.tokens as f64;
    let f: f64 = share.forward.iter().map(|&n| f64::from(n)).sum();
    let b: f64 = share.backward.iter().map(|&n| f64::from(n)).sum();
    let busy = |rows: &[u32]| rows.iter().filter(|&&n| n != 0).count() as f64;
    let (sf, sb) = (share.sent_forward as f64, share.sent_backward as f64);
    let tokens_in = (share.tokens_in_forward + share.tokens_in_backward) as f64;
    match phase {
        Phase::Gate => 2e-5 + 3e-7 * t,
        Phase::Shared => 1e-5 + 2e-6 * t + if recomputes { 1e-6 * t } else { 0.0 },
        Phase::Forward => 3e-5 + 4e-6 * f + 1e-4 * busy(&share.forward),
        Phase::Combine => 1e-5 + 1e-7 * (f + b + sf + sb) + 2e-7 * (tokens_in + sf + sb),
        Phase::Score if share.selects => 1e-5 + 1e-7 * t,
        Phase::Select if share.selects => 1e-5 + 2e-7 * t + 1e-7 * share.retained as f64,
        Phase::Score | Phase::Select => 0.0,
        Phase::Compact => {
            let packed = sf + if recomputes { 2.0 * sb } else { sb };
            1e-5 + 1e-7 * packed + if share.selects { 0.0 } else { 1e-8 * t }
        }
        Phase::Recompute if recomputes => 2e-5 + 3e-6 * b + 5e-5 * busy(&share.backward),
        Phase::Recompute => 0.0,
        Phase::Dgrad => 2e-5 + 4e-6 * b + 6e-5 * busy(&share.backward),
        Phase::Wgrad => 7e-5 * share.backward.len() as f64 + 5e-6 * b + 9e-5 * busy(&share.backward),
        Phase::RouterBackward => 1e-5 + 4e-7 * t + if share.selects { 2e-7 * t } else { 0.0 },
        Phase::Optimizer if share.optimizer_parameters == 0 => 0.0,
        Phase::Optimizer => 1e-5 + 2e-9 * share.optimizer_parameters as f64,
    }
}

fn samples(seed: u64, count: usize, mut noise: impl FnMut(&mut Philox) -> f64) -> Vec<(Share, PhaseTimes)> {
    let mut rng = Philox::new(seed, 0);
    let one = |i: usize| {
        let share = share(&mut rng, Activations::ALL[i % 2], !i.is_multiple_of(3));
        let times = PhaseTimes::from_fn(|phase| truth(&share, phase) * noise(&mut rng));
        (share, times)
    };
    (0..count).map(one).collect()
}

/// Largest relative error of the predictions of fresh shares, by phase.
fn worst(model: &TimeModel) -> f64 {
    let mut worst = 0.0f64;
    for (share, times) in samples(99, 200, |_| 1.0) {
        let predicted = model.predict(&share);
        for phase in Phase::ALL {
            let error = (predicted[phase] - times[phase]).abs();
            worst = worst.max(if error == 0.0 { 0.0 } else { error / times[phase] });
        }
    }
    worst
}

#[test]
fn exact_lines_are_recovered() {
    let model = TimeModel::fit(&samples(1, 120, |_| 1.0)).unwrap();
    assert!(worst(&model) < 1e-9, "{}", worst(&model));
    let forward = &model.error()[Phase::Forward as usize];
    for (got, truth) in forward.coefficients.iter().zip([3e-5, 4e-6, 1e-4]) {
        assert!((got / truth - 1.0).abs() < 1e-8, "{forward:?}");
    }
    assert!((model.rate(Phase::Forward).unwrap() * 4e-6 - 1.0).abs() < 1e-8);
    assert!(model.error().iter().all(|fit| fit.dropped == 0), "rounding is no stall: {:?}", model.error());
    assert!(model.error().iter().all(|fit| (fit.predicted_over_measured.unwrap() - 1.0).abs() < 1e-9));
}

/// 2 % noise, and 5 % of times longer by a factor of 2 to 100: stalls of the machine. The fit must be nearly as good as
/// that of the same samples without the stalls.
#[test]
fn stalls_are_dropped_and_said() {
    for seed in 0..8 {
        let fit = |stalls: bool| {
            let noisy = samples(seed, 400, |rng| {
                let (noise, stalled) = (1.0 + 0.02 * rng.normal(), rng.next_u32().is_multiple_of(20));
                let factor = f64::from(2.0 + 98.0 * rng.uniform());
                if stalls && stalled { noise * factor } else { noise }
            });
            TimeModel::fit(&noisy).unwrap()
        };
        let (quiet, model) = (fit(false), fit(true));
        assert!(worst(&model) < 1.5 * worst(&quiet), "seed {seed}: {}, quiet {}", worst(&model), worst(&quiet));
        for (fit, quiet) in model.error().iter().zip(quiet.error()) {
            let more = (fit.dropped - quiet.dropped) as f64 / fit.samples as f64;
            assert!((0.01..0.1).contains(&more), "seed {seed}: {fit:?}");
            assert!(fit.median_relative_error.unwrap() < 0.02, "seed {seed}: {fit:?}");
        }
    }
}

/// Noise of mean 1 moves the predicted sum neither up nor down, however large it is.
#[test]
fn noise_does_not_bias_the_fit() {
    let model = TimeModel::fit(&samples(3, 4000, |rng| 0.6 + 0.8 * f64::from(rng.uniform()))).unwrap();
    for fit in model.error_on(&samples(99, 200, |_| 1.0)).unwrap() {
        assert!((fit.predicted_over_measured.unwrap() - 1.0).abs() < 0.02, "{fit:?}");
    }
}

#[test]
fn bad_samples_are_refused() {
    assert!(TimeModel::fit(&[]).unwrap_err().to_string().contains("`samples`"));
    let good = samples(1, 3, |_| 1.0);
    for bad in [f64::NAN, f64::INFINITY, -1e-9] {
        let mut samples = good.clone();
        samples[1].1[Phase::Wgrad] = bad;
        let message = TimeModel::fit(&samples).unwrap_err().to_string();
        assert!(message.contains("samples[1], phase wgrad"), "{message}");
        let message = TimeModel::fit(&good).unwrap().error_on(&samples).unwrap_err().to_string();
        assert!(message.contains("samples[1], phase wgrad"), "{message}");
    }
    let stray = (empty_share(Activations::Stash, true), PhaseTimes::from_fn(|_| 1e-3));
    let message = TimeModel::fit(&[stray]).unwrap_err().to_string();
    assert!(message.contains("does not run"), "{message}");
}

/// Sizes that never vary, or vary together, leave predictions within the samples' range as they were measured.
#[test]
fn collinear_sizes_do_no_harm() {
    let base = odd_share(Activations::Recompute, true);
    let times = PhaseTimes::from_fn(|phase| truth(&base, phase));
    let model = TimeModel::fit(&vec![(base.clone(), times); 5]).unwrap();
    for phase in Phase::ALL {
        assert!((model.predict(&base)[phase] / times[phase] - 1.0).abs() < 1e-9, "{phase}");
    }

    let scaled = |n: usize| Share {
        tokens: 10 * n,
        forward: vec![n as u32; 4],
        backward: vec![n as u32 / 2; 4],
        tokens_in_forward: 2 * n,
        tokens_in_backward: n,
        sent_forward: 4 * n,
        sent_backward: 2 * n,
        retained: 5 * n,
        optimizer_parameters: 100 * n,
        ..base.clone()
    };
    let sample = |n: usize| (scaled(n), PhaseTimes::from_fn(|phase| truth(&scaled(n), phase)));
    let samples: Vec<_> = (1..30).map(|i| sample(40 * i)).collect();
    let model = TimeModel::fit(&samples).unwrap();
    let (share, times) = sample(222);
    for phase in Phase::ALL {
        assert!((model.predict(&share)[phase] / times[phase] - 1.0).abs() < 1e-6, "{phase}");
    }
}

/// A line that falls with the rows cannot come from work: the fit is flat, and no coefficient is negative.
#[test]
fn coefficients_are_never_negative() {
    let mut samples = samples(4, 100, |_| 1.0);
    for (share, times) in &mut samples {
        *times = PhaseTimes::from_fn(|phase| match truth(share, phase) {
            0.0 => 0.0,
            time => 1e-6 / (1e-3 + time),
        });
    }
    let model = TimeModel::fit(&samples).unwrap();
    assert!(model.error().iter().all(|fit| fit.coefficients.iter().all(|&c| c >= 0.0)));
    assert_eq!(model.error()[Phase::Forward as usize].coefficients[1..], [0.0; 2]);
    assert_eq!(model.rate(Phase::Forward), None);
}

#[test]
fn predictions_grow_with_every_size() {
    let model = TimeModel::fit(&samples(5, 150, |rng| 1.0 + 0.1 * rng.normal().abs())).unwrap();
    for activations in Activations::ALL {
        let base = odd_share(activations, true);
        let more = [
            Share { tokens: base.tokens + 9, ..base.clone() },
            Share { forward: vec![19, 1, 24], ..base.clone() },
            Share { backward: vec![15, 0, 5], ..base.clone() },
            Share { tokens_in_forward: 35, ..base.clone() },
            Share { sent_forward: 60, sent_backward: 60, ..base.clone() },
            Share { retained: 50, ..base.clone() },
            Share { optimizer_parameters: 5000, ..base.clone() },
        ];
        for more in more {
            let (before, after) = (model.predict(&base), model.predict(&more));
            assert!(Phase::ALL.iter().all(|&phase| after[phase] >= before[phase]));
            assert!(after.total() > before.total(), "{more:?}");
        }
    }
    assert_eq!(model.predict(&empty_share(Activations::Recompute, true)).total(), 0.0);
}

#[test]
fn models_survive_serialisation_bit_for_bit() {
    let samples = samples(6, 60, |rng| 1.0 + 0.1 * rng.normal().abs());
    let model = TimeModel::fit(&samples).unwrap();
    assert_eq!(TimeModel::fit(&samples).unwrap(), model);
    let text = serde_json::to_string(&model).unwrap();
    assert_eq!(serde_json::from_str::<TimeModel>(&text).unwrap(), model);
    let share: Share = serde_json::from_str(&serde_json::to_string(&samples[0].0).unwrap()).unwrap();
    assert_eq!(share, samples[0].0);
}

/// Samples of a layer without a shared expert: the phase has tokens but never any time.
#[test]
fn a_phase_that_never_takes_time_is_predicted_as_zero() {
    let mut samples = samples(7, 40, |_| 1.0);
    samples.iter_mut().for_each(|(_, times)| times[Phase::Shared] = 0.0);
    let model = TimeModel::fit(&samples).unwrap();
    assert_eq!(model.predict(&samples[0].0)[Phase::Shared], 0.0);
    let fit = &model.error()[Phase::Shared as usize];
    assert_eq!((fit.predicted_over_measured, fit.median_relative_error), (None, Some(0.0)));
}
