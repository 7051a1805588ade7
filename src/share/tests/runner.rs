//! What a share launches, and where its time goes.

use super::spy::{Launch, Spy};
use super::{empty_share, odd_share};
use crate::plan::Activations;
use crate::share::{Phase, Share, ShareRunner};
use crate::{
    Backend, CpuBackend, Error, ForwardContext, LayerOptions, MoeConfig, MoeLayer, MoeWeights, PlanOptions, Retention,
    ScoringFunc, Selection, Tensor,
};

fn plain() -> MoeConfig {
    MoeConfig::new(24, 17, 8, 2)
}

fn with_everything() -> MoeConfig {
    MoeConfig {
        scoring_func: ScoringFunc::Sigmoid,
        correction_bias: true,
        n_group: 4,
        topk_group: 2,
        shared_expert_intermediate_size: 13,
        shared_expert_gate: true,
        ..plain()
    }
}

/// Phases with time, checked to be the whole of what the backend measured.
fn run(config: &MoeConfig, share: &Share) -> Vec<Phase> {
    let spy = Spy::new(true);
    let mut runner = ShareRunner::new(&spy, config, 7).unwrap();
    let times = runner.run(share).unwrap();
    let whole: f64 = spy.timed().iter().map(std::time::Duration::as_secs_f64).sum();
    assert!((times.total() - whole).abs() <= 1e-12 * whole, "parts {}, whole {whole}", times.total());
    assert!(Phase::ALL.iter().all(|&phase| times[phase] >= 0.0));
    Phase::ALL.into_iter().filter(|&phase| times[phase] > 0.0).collect()
}

fn all_but(absent: &[Phase]) -> Vec<Phase> {
    Phase::ALL.into_iter().filter(|phase| !absent.contains(phase)).collect()
}

#[test]
fn phases_are_those_of_the_share() {
    use Activations::{Recompute, Stash};
    assert_eq!(run(&with_everything(), &odd_share(Recompute, true)), all_but(&[]));
    assert_eq!(run(&with_everything(), &odd_share(Stash, true)), all_but(&[Phase::Recompute]));
    assert_eq!(run(&plain(), &odd_share(Recompute, true)), all_but(&[Phase::Shared]));
    let plain_training = all_but(&[Phase::Shared, Phase::Score, Phase::Select]);
    assert_eq!(run(&plain(), &odd_share(Recompute, false)), plain_training);
}

#[test]
fn a_share_without_anything_takes_no_time() {
    for activations in Activations::ALL {
        for selects in [false, true] {
            assert_eq!(run(&with_everything(), &empty_share(activations, selects)), []);
        }
    }
}

#[test]
fn a_rank_of_one_kind_only_runs_that_kind() {
    let empty = empty_share(Activations::Recompute, true);
    let hosts = Share {
        forward: vec![5, 9],
        backward: vec![4, 0],
        tokens_in_forward: 9,
        tokens_in_backward: 4,
        ..empty.clone()
    };
    let expected = [Phase::Forward, Phase::Combine, Phase::Recompute, Phase::Dgrad, Phase::Wgrad];
    assert_eq!(run(&with_everything(), &hosts), expected);

    let source = Share { tokens: 5, sent_forward: 10, sent_backward: 3, retained: 4, ..empty.clone() };
    let absent = [Phase::Forward, Phase::Recompute, Phase::Dgrad, Phase::Wgrad, Phase::Optimizer];
    assert_eq!(run(&with_everything(), &source), all_but(&absent));

    let owner = Share { optimizer_parameters: 1, ..empty };
    assert_eq!(run(&with_everything(), &owner), [Phase::Optimizer]);
}

#[test]
fn idle_residents_get_zero_gradients_and_busy_ones_finite_ones() {
    let backend = CpuBackend::new();
    let mut runner = ShareRunner::new(&backend, &plain(), 7).unwrap();
    for activations in Activations::ALL {
        let busy = odd_share(activations, true);
        let idle = Share { backward: vec![0; 3], tokens_in_backward: 0, sent_backward: 0, retained: 0, ..busy.clone() };
        for (share, expected) in [(&busy, [true, false, true]), (&idle, [false; 3]), (&busy, [true, false, true])] {
            runner.run(share).unwrap();
            let grads = &runner.data.resident.as_ref().unwrap().grads;
            for grad in [&grads.gate_up, &grads.down] {
                let values = backend.read_blocking(grad).unwrap().into_f32().unwrap();
                assert!(values.iter().all(|v| v.is_finite()));
                let nonzero: Vec<bool> =
                    values.chunks(values.len() / 3).map(|expert| expert.iter().all(|&v| v != 0.0)).collect();
                assert_eq!(nonzero, expected);
                assert!(expected.iter().any(|&e| e) || values.iter().all(|v| v.to_bits() == 0));
            }
        }
    }
}

#[test]
fn a_source_that_retains_nothing_runs() {
    let share = Share { sent_backward: 0, retained: 0, ..odd_share(Activations::Stash, true) };
    assert_eq!(run(&plain(), &share), all_but(&[Phase::Shared, Phase::Recompute]));
}

/// Every command of a rank that sends, hosts and recomputes, in order.
#[test]
fn commands_of_a_rank_among_many() {
    let spy = Spy::new(true);
    let mut runner = ShareRunner::new(&spy, &plain(), 7).unwrap();
    spy.launches();
    runner.run(&odd_share(Activations::Recompute, true)).unwrap();
    let (h, i, e, t) = (24, 17, 8, 37);
    let expected: Vec<Launch> = vec![
        ("grouped_forward", vec![t, 1, e, h]),
        ("gate", vec![]),
        ("permute", vec![]),
        ("gather_rows", vec![41, h]),
        ("grouped_forward", vec![43, 3, 2 * i, h]),
        ("swiglu", vec![43, i]),
        ("grouped_forward", vec![43, 3, h, i]),
        ("combine", vec![31, 2, h]),
        ("combine", vec![t, 2, h]),
        ("row_norms", vec![]),
        ("score", vec![]),
        ("demand", vec![]),
        ("row_keys", vec![]),
        ("select", vec![2 * t, 29]),
        ("gather_rows", vec![23, h]),
        ("gather_rows", vec![23, h]),
        ("grouped_forward", vec![16, 3, 2 * i, h]),
        ("grouped_dgrad", vec![16, 3, h, i]),
        ("swiglu_backward", vec![16, i]),
        ("grouped_wgrad", vec![16, 3, h, i]),
        ("grouped_wgrad", vec![16, 3, 2 * i, h]),
        ("grouped_dgrad", vec![16, 3, 2 * i, h]),
        ("combine", vec![13, 2, h]),
        ("combine", vec![t, 2, h]),
        ("row_dots", vec![]),
        ("router_grad", vec![]),
        ("sum_squares", vec![]),
        ("gate_backward", vec![]),
        ("grouped_wgrad", vec![t, 1, e, h]),
        ("grouped_dgrad", vec![t, 1, e, h]),
        ("combine", vec![t, 1, h]),
        ("adamw", vec![1237]),
    ];
    assert_eq!(spy.launches(), expected);
}

/// One rank that is the whole cluster launches what the layer launches, in the same sizes.
#[test]
fn one_rank_launches_what_the_layer_launches() {
    let cases = [
        (plain(), Selection::All, Activations::Stash),
        (plain(), Selection::Unbiased, Activations::Recompute),
        (with_everything(), Selection::All, Activations::Recompute),
        (with_everything(), Selection::Systematic, Activations::Stash),
        (with_everything(), Selection::Mixed { certain: 0.5 }, Activations::Stash),
        (plain(), Selection::TopQ, Activations::Stash),
        (MoeConfig { shared_expert_gate: false, ..with_everything() }, Selection::Unbiased, Activations::Recompute),
    ];
    let mut keys = 0;
    for (config, select, activations) in cases {
        let (tokens, hidden) = (96, config.hidden_size);
        let spy = Spy::new(true);
        let plan = PlanOptions { retention: Retention::Fraction(0.5), ..PlanOptions::default() };
        let options = LayerOptions { select, activations, plan, ..LayerOptions::default() };
        let weights = MoeWeights::init(&config, 3, 0.2).unwrap();
        let mut layer = MoeLayer::new(&spy, config.clone(), weights, options).unwrap();
        let mut values = vec![0.0; tokens * hidden];
        crate::rng::Philox::new(1, 9).fill_normal(&mut values, 1.0);
        let x = Tensor::from_f32(&spy, &values, tokens, hidden).unwrap();
        spy.launches();
        let (_, saved) = layer.forward(&x, &ForwardContext::default()).unwrap();
        let stats = layer.backward(&saved, &x).unwrap().stats;
        let mut of_layer = spy.launches();

        let retained: u32 = stats.retained.iter().sum();
        assert!(select == Selection::All || (retained as usize) < 2 * tokens, "the case must drop pairs");
        let share = Share {
            tokens,
            forward: stats.counts,
            backward: stats.retained,
            tokens_in_forward: tokens,
            tokens_in_backward: tokens.min(retained as usize),
            sent_forward: 0,
            sent_backward: 0,
            retained: retained as usize,
            optimizer_parameters: 0,
            activations,
            selects: select != Selection::All,
        };
        let mut runner = ShareRunner::new(&spy, &config, 7).unwrap();
        if select != Selection::All {
            runner = runner.with_selection(select, 0.5).unwrap();
        }
        spy.launches();
        runner.run(&share).unwrap();
        let mut of_share = spy.launches();
        of_layer.sort();
        of_share.sort();
        assert_eq!(of_share, of_layer, "{select} {activations:?}");
        keys += of_share.iter().filter(|(name, _)| *name == "row_keys").count();
    }
    assert_eq!(keys, 1, "one of the cases goes by keys");
}

/// Memory of earlier runs serves the later ones, also those of other numbers of residents and of fewer tokens.
#[test]
fn the_steady_state_allocates_nothing() {
    let backend = CpuBackend::new();
    let mut runner = ShareRunner::new(&backend, &with_everything(), 7).unwrap();
    let share = odd_share(Activations::Recompute, true);
    runner.run(&share).unwrap();
    let before = backend.memory().report();
    for _ in 0..3 {
        runner.run(&share).unwrap();
    }
    let after = backend.memory().report();
    assert_eq!((after.allocations, after.reserved), (before.allocations, before.reserved));
    let fewer = Share { forward: vec![4], backward: vec![4], tokens_in_forward: 4, tokens_in_backward: 4, ..share };
    runner.run(&fewer).unwrap();
    assert_eq!(runner.data.resident.as_ref().unwrap().bank.groups, 1);
}

#[test]
fn a_backend_without_times_is_refused() {
    let mut runner = ShareRunner::new(&Spy::new(false), &plain(), 7).unwrap();
    let error = runner.run(&odd_share(Activations::Stash, true)).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}
