//! Sizes that no routing gives.

use super::odd_share;
use crate::backend::Backend;
use crate::plan::Activations;
use crate::share::{Share, ShareRunner};
use crate::{CpuBackend, MoeConfig, Selection};

/// Spoils a share.
type Change = fn(&mut Share);

/// The message of what is refused; nothing may be allocated or run before.
fn refusal(change: Change) -> String {
    let backend = CpuBackend::new();
    let mut runner = ShareRunner::new(&backend, &MoeConfig::new(24, 17, 8, 2), 7).unwrap();
    let before = backend.memory().report();
    let mut share = odd_share(Activations::Stash, true);
    change(&mut share);
    let error = runner.run(&share).unwrap_err().to_string();
    assert_eq!(backend.memory().report(), before, "{error}");
    error
}

#[test]
fn every_refusal_names_the_field() {
    const HUGE: usize = usize::MAX / 2;
    let cases: [(&str, Change); 22] = [
        ("`backward`", |s| s.backward = vec![11, 5]),
        ("`backward`", |s| s.backward = vec![]),
        ("`forward`", |s| (s.forward, s.backward) = (vec![1; 9], vec![1; 9])),
        ("`forward[2]`", |s| s.forward[2] = 32),
        ("`backward[0]`", |s| s.backward[0] = 14),
        ("`backward[1]`", |s| s.backward[1] = 1),
        ("`tokens_in_forward`", |s| s.tokens_in_forward = 44),
        ("`tokens_in_forward`", |s| (s.forward, s.tokens_in_forward) = (vec![24; 3], 24)),
        ("`tokens_in_backward`", |s| s.tokens_in_backward = 17),
        ("`tokens_in_backward`", |s| (s.backward, s.tokens_in_backward) = (vec![0; 3], 1)),
        ("`sent_forward`", |s| s.sent_forward = 75),
        ("`sent_backward`", |s| s.sent_backward = 75),
        ("`retained`", |s| s.retained = 75),
        ("tokens overflows", |s| s.tokens = HUGE),
        ("tokens overflows", |s| s.tokens = u32::MAX as usize / 2 + 1),
        ("forward overflows", |s| s.forward = vec![u32::MAX; 3]),
        ("backward overflows", |s| s.backward = vec![u32::MAX; 3]),
        ("tokens_in_forward overflows", |s| s.tokens_in_forward = HUGE),
        ("tokens_in_backward overflows", |s| s.tokens_in_backward = HUGE),
        ("optimizer_parameters overflows", |s| s.optimizer_parameters = HUGE),
        ("`sent_forward`", |s| s.sent_forward = HUGE),
        ("`sent_backward`", |s| (s.tokens, s.sent_forward, s.retained) = (0, 0, 0)),
    ];
    for (expected, change) in cases {
        let message = refusal(change);
        assert!(message.contains(expected), "{message} does not name {expected}");
    }
}

#[test]
fn recomputation_may_route_more_pairs_to_an_instance_than_forward() {
    let mut share = odd_share(Activations::Recompute, true);
    share.backward = vec![0, 9, 7];
    share.validate(&MoeConfig::new(24, 17, 8, 2)).unwrap();
    share.activations = Activations::Stash;
    let message = share.validate(&MoeConfig::new(24, 17, 8, 2)).unwrap_err().to_string();
    assert!(message.contains("`backward[1]`"), "{message}");
}

#[test]
fn a_bad_configuration_is_refused() {
    let error = ShareRunner::new(&CpuBackend::new(), &MoeConfig::new(0, 17, 8, 2), 7).unwrap_err();
    assert!(error.to_string().contains("hidden_size"), "{error}");
}

#[test]
fn a_selection_that_selects_nothing_or_that_a_layer_refuses_is_refused() {
    let refusal = |select, floor| {
        let runner = ShareRunner::new(&CpuBackend::new(), &MoeConfig::new(24, 17, 8, 2), 7).unwrap();
        runner.with_selection(select, floor).unwrap_err().to_string()
    };
    assert!(refusal(Selection::All, 0.25).contains("`select` is all"));
    assert!(refusal(Selection::Mixed { certain: 1.0 }, 0.25).contains("`select` is mixed:1"));
    assert!(refusal(Selection::TopQ, 1.5).contains("`score_floor` is 1.5"));
}
