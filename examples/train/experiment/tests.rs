//! The experiment against hand-worked figures, brute force and itself.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use lrmoe::plan::policy::by_name;
use lrmoe::plan::{Activations, ClusterSpec, Lrmoe, Policy, Setup, pair_counts};
use lrmoe::share::{Phase, PhaseTimes, Share, TimeModel};
use lrmoe::{LayerOptions, RoutedCall, Selection};

use super::account::{self, Prices};
use super::cell::{Cost, NETWORKS};
use super::geometry::Geometry;
use super::loads::Loads;
use super::options::Balancing;
use super::planner::{Follower, LayerPlans, sources};
use super::trajectory::{Drive, Followed, Trajectory};
use crate::cli::Options;
use crate::corpus::Corpus;
use crate::moe::{LayerPlanner, MoeSpec};
use crate::optim::ADAMW;
use crate::retain::Retain;

const SMALL: [&str; 11] =
    ["train", "--steps", "3", "--batch", "4", "--hidden", "32", "--experts", "16", "--top-k", "3"];

fn options(more: &[&str]) -> Options {
    Options::try_parse_from(SMALL.iter().chain(more)).unwrap().checked().unwrap()
}

fn setups(geometry: &Geometry, ranks: usize, activations: Activations) -> [Setup; 3] {
    let machine = ClusterSpec::preset("8xa100").unwrap().with_ranks(ranks, 4);
    let scaled = machine.scaled_to_model(&geometry.real, &geometry.small, 1e10).unwrap();
    NETWORKS.map(|factor| {
        let mut cluster = scaled.cluster.clone();
        cluster.intra.bytes_per_s *= factor;
        cluster.inter.bytes_per_s *= factor;
        let mut setup = Setup::new(geometry.small.clone(), cluster).unwrap();
        setup.layers = 2;
        setup.activations = Some(activations);
        setup.counter_scale = scaled.counter_scale;
        setup
    })
}

fn trajectory(policy: &str, ranks: usize, (select, driven): (Selection, bool), options: &Options) -> Trajectory {
    let geometry = Geometry::new("qwen3-30b-a3b", Balancing::Usual, options).unwrap();
    let follower = || Follower::new(by_name(policy).unwrap(), setups(&geometry, ranks, Activations::Recompute));
    let followed = Followed {
        policy: policy.into(),
        activations: Activations::Recompute,
        followers: (0..options.layers).map(|_| follower()).collect(),
    };
    let spec = MoeSpec {
        layer: 0,
        config: geometry.small.clone(),
        options: LayerOptions { aux_loss_coef: 1e-3, ..LayerOptions::default() },
        bias_step: 0.0,
        seed: 5,
        adamw: ADAMW,
    };
    let drive = Drive { name: policy.into(), select, driven };
    let mut run = Trajectory::new(drive, vec![followed], &spec, (ranks, options.batch()), options).unwrap();
    let corpus = Corpus::embedded().unwrap();
    run.begin(&corpus).unwrap();
    for _ in 0..options.steps {
        run.step(&corpus).unwrap();
    }
    run
}

#[test]
fn policies_that_drop_nothing_train_alike_on_any_number_of_ranks() {
    let options = options(&[]);
    let plain = trajectory("fixed", 1, (Selection::All, false), &options);
    assert!(plain.curve.last().unwrap().1 < plain.curve[0].1);
    for policy in ["fixed", "fixed-waves", "eplb", "llep", "symi"] {
        for ranks in [1, 2, 8] {
            let run = trajectory(policy, ranks, (Selection::All, true), &options);
            assert_eq!(run.curve, plain.curve, "{policy} on {ranks} ranks");
            let pairs = |loads: &Loads| (loads.routed, loads.retained, loads.dropped);
            assert!(run.loads[0].iter().flatten().all(|loads| pairs(loads) == (4 * 128 * 3, 4 * 128 * 3, 0)));
        }
    }
    let dropping = trajectory("symi-drop", 8, (Selection::All, true), &options);
    assert_ne!(dropping.curve, plain.curve);
    let loads = || dropping.loads[0].iter().flatten();
    assert!(loads().any(|loads| loads.dropped > 0));
    assert!(loads().all(|loads| loads.retained + loads.dropped == loads.routed));
}

/// Routing in which a few experts are much asked for.
fn routed(tokens: usize, experts: u32, top_k: usize, salt: u32) -> Vec<u32> {
    let mut ids = Vec::new();
    for t in 0..tokens as u32 {
        let mut chosen = BTreeSet::new();
        let mut state = t.wrapping_mul(2_654_435_761).wrapping_add(salt.wrapping_mul(40_503)) | 1;
        while chosen.len() < top_k {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let r = state >> 8;
            chosen.insert(if r.is_multiple_of(3) { r / 3 % 4 } else { r / 3 % experts });
        }
        ids.extend(chosen);
    }
    ids
}

/// A layer of 16 experts on 8 ranks planned by `policy`, one step of it, and what it was given.
struct Step {
    ids: Vec<u32>,
    kept: Vec<bool>,
    loads: Loads,
    quotas: Vec<u32>,
    setups: [Setup; 3],
}

const TOP_K: usize = 3;

fn step(policy: Box<dyn Policy>, activations: Activations, tokens: usize, ranks: usize) -> Step {
    let geometry = Geometry::new("qwen3-30b-a3b", Balancing::Usual, &options(&[])).unwrap();
    let setups = setups(&geometry, ranks, activations);
    let ids = routed(tokens, 16, TOP_K, 7);
    let counts = pair_counts(&ids, TOP_K, &sources(tokens, ranks), ranks, 16, None).unwrap();
    let retain: Retain = "0.5".parse().unwrap();
    let mut plans = LayerPlans::new((0, ranks, 9), retain, true, vec![Follower::new(policy, setups.clone())]);
    let call = RoutedCall { ids: &ids, counts: counts.per_expert(), top_k: TOP_K, demand: None };
    let schedule = plans.schedule(0, &call).unwrap();
    // Any pairs within the quotas will do; these are spread unevenly over sources.
    let mut left = schedule.retained.quotas.clone();
    let dropped = schedule.dropped.unwrap_or_else(|| vec![false; ids.len()]);
    let take = |(&e, &dropped): (&u32, &bool)| {
        let take = !dropped && left[e as usize] > 0;
        left[e as usize] -= u32::from(take);
        take
    };
    let kept: Vec<bool> = ids.iter().zip(&dropped).map(take).collect();
    assert!(left.iter().all(|&left| left == 0));
    plans.retained(&kept).unwrap();
    let loads = plans.done.remove(0).unwrap();
    Step { ids, kept, loads, quotas: schedule.retained.quotas, setups }
}

fn policies() -> Vec<Box<dyn Policy>> {
    let mut all: Vec<Box<dyn Policy>> = vec![Box::new(Lrmoe::new(Some(16)))];
    all.extend(["fixed", "fixed-waves", "eplb", "llep", "symi", "symi-drop", "lrmoe"].map(|n| by_name(n).unwrap()));
    all
}

#[test]
fn every_pair_is_computed_once_and_retained_counts_obey_the_plan() {
    for policy in 0..policies().len() {
        for activations in Activations::ALL {
            for (tokens, ranks) in [(4096, 8), (64, 2), (8, 8), (5, 1)] {
                let policy = policies().remove(policy);
                let name = policy.name().to_owned();
                let Step { ids, kept, loads, quotas, setups } = step(policy, activations, tokens, ranks);
                let sum = |rows: fn(&Share) -> u64| loads.shares().iter().map(rows).sum::<u64>();
                assert_eq!(sum(Share::forward_rows), ids.len() as u64 - loads.dropped, "{name} {activations:?}");
                assert_eq!(sum(Share::backward_rows), kept.iter().filter(|kept| **kept).count() as u64);
                assert_eq!(loads.retained, quotas.iter().map(|&q| u64::from(q)).sum::<u64>());
                assert_eq!(loads.shares().iter().map(|share| share.retained as u64).sum::<u64>(), loads.retained);
                assert_eq!(loads.shares().iter().map(|share| share.tokens).sum::<usize>(), tokens);
                let owned = loads.shares().iter().map(|share| share.optimizer_parameters).sum::<usize>() as u64;
                let parameters = 16 * setups[0].config.expert_parameters().unwrap();
                assert!(owned >= parameters && owned < parameters + ranks as u64, "{name}: {owned} of {parameters}");
                if name == "lrmoe" && tokens == 4096 {
                    let most = lrmoe::plan::rank_capacity(loads.retained, setups[0].options.slack, ranks);
                    let busiest = loads.shares().iter().map(Share::backward_rows).max().unwrap();
                    // Where retained pairs stay, the capacity is an expectation.
                    let held = activations == Activations::Recompute || loads.retained == loads.routed;
                    assert!(!held || busiest <= most, "{busiest} of {most}");
                    assert!(loads.retained < loads.routed);
                }
            }
        }
    }
}

#[test]
fn crossing_bytes_are_those_of_a_count_by_hand() {
    for activations in Activations::ALL {
        let (tokens, ranks) = (512, 8);
        let Step { ids, kept, loads, setups, .. } = step(by_name("fixed").unwrap(), activations, tokens, ranks);
        assert!(kept.iter().all(|kept| *kept));
        // Two experts a rank, four ranks a node: expert e is on node e / 8, token t on node t / 256.
        let mut rows = BTreeSet::new();
        for (pair, &e) in ids.iter().enumerate() {
            let (token, rank) = (pair / TOP_K, e / 2);
            if token / 256 != e as usize / 8 {
                rows.insert((token, rank));
            }
        }
        let row_bytes = setups[0].config.hidden_size * setups[0].dtype.bytes();
        let times = if activations == Activations::Stash { 4 } else { 5 };
        assert_eq!(loads.bytes_inter_node, (rows.len() * row_bytes * times) as f64);
        assert_eq!(loads.optimizer_exchange_s, [0.0; 3]);
        // A network of half the speed takes twice as long but for the latency.
        let latency = 4.0 * setups[0].cluster.inter.latency_s;
        let [half, one, twice] = loads.exchange_s.map(|seconds| seconds - latency);
        assert!((half / one - 2.0).abs() < 1e-9 && (one / twice - 2.0).abs() < 1e-9, "{half} {one} {twice}");
    }
}

#[test]
fn a_drop_takes_the_last_pairs_of_each_source() {
    let Step { ids, kept, loads, .. } = step(by_name("symi-drop").unwrap(), Activations::Stash, 4096, 8);
    assert!(loads.dropped > 0);
    for rank in 0..8 {
        for expert in 0..16 {
            let own = (rank * 512 * TOP_K..(rank + 1) * 512 * TOP_K).filter(|&pair| ids[pair] == expert);
            let kept: Vec<bool> = own.map(|pair| kept[pair]).collect();
            assert!(kept.is_sorted_by(|a, b| a >= b), "rank {rank}, expert {expert}");
        }
    }
}

fn share(rows: u32, kept: u32) -> Share {
    Share {
        tokens: 10,
        forward: vec![rows, 0],
        backward: vec![kept, 0],
        tokens_in_forward: 10,
        tokens_in_backward: 10,
        sent_forward: 0,
        sent_backward: 0,
        retained: 10,
        optimizer_parameters: 100,
        activations: Activations::Stash,
        selects: false,
    }
}

#[test]
fn a_step_costs_what_its_busiest_ranks_take_phase_by_phase() {
    // Forward takes 2 ms a row, dgrad 3 ms, wgrad 1 ms; everything else nothing.
    let times = |share: &Share| {
        PhaseTimes::from_fn(|phase| match phase {
            Phase::Forward => 2e-3 * share.forward_rows() as f64,
            Phase::Dgrad => 3e-3 * share.backward_rows() as f64,
            Phase::Wgrad => 1e-3 * share.backward_rows() as f64,
            _ => 0.0,
        })
    };
    let samples: Vec<(Share, PhaseTimes)> =
        (1..40).map(|n| share(n, 80 - 2 * n)).map(|share| (share.clone(), times(&share))).collect();
    let model = TimeModel::fit(&samples).unwrap();
    let Step { loads, .. } = step(by_name("fixed").unwrap(), Activations::Stash, 64, 2);
    let mut loads = loads.with_shares(vec![share(30, 4), share(10, 8)]);
    (loads.exchange_s, loads.optimizer_exchange_s) = ([0.8, 0.4, 0.2], [0.08, 0.04, 0.02]);
    let mut cost = Cost::default();
    // The machine that plans were made for takes twice as long.
    let prices = Prices { model: &model, seconds: 0.5, plan_s: 2e-3 };
    (0..3).for_each(|_| account::add_step(&mut cost, &loads, &prices));
    // Rank 0 is the busiest forward, rank 1 backward: 60 + 24 + 8 ms a step; the mean rank takes 40 + 18 + 6.
    let close = |got: f64, expected: f64| assert!((got - expected).abs() < 1e-9, "{got}, not {expected}");
    let expected = [("forward", 0.060, 0.040), ("dgrad", 0.024, 0.018), ("wgrad", 0.008, 0.006), ("gate", 0.0, 0.0)];
    for (phase, busiest, mean) in expected {
        close(cost.phases[phase], 3.0 * busiest);
        close(cost.mean[phase], 3.0 * mean);
    }
    close(cost.plan_s, 3.0 * 2e-3);
    for (network, traffic) in [0.44, 0.22, 0.11].into_iter().enumerate() {
        close(cost.moe_s(network), 3.0 * (0.092 + traffic + 0.002));
    }
}

#[test]
fn a_follower_that_does_not_fit_stops_and_says_why() {
    let geometry = Geometry::new("qwen3-30b-a3b", Balancing::Usual, &options(&[])).unwrap();
    let mut tight = setups(&geometry, 2, Activations::Stash);
    tight.iter_mut().for_each(|setup| setup.cluster.bytes_per_rank = 1000);
    let roomy = setups(&geometry, 2, Activations::Stash);
    let follower = |setups: &[Setup; 3]| Follower::new(by_name("fixed").unwrap(), setups.clone());
    let retain: Retain = "1".parse().unwrap();
    let ids = routed(64, 16, TOP_K, 1);
    let counts = pair_counts(&ids, TOP_K, &sources(64, 2), 2, 16, None).unwrap();
    let call = RoutedCall { ids: &ids, counts: counts.per_expert(), top_k: TOP_K, demand: None };
    let mut plans = LayerPlans::new((0, 2, 9), retain.clone(), false, vec![follower(&roomy), follower(&tight)]);
    for step in 0..2 {
        plans.schedule(step, &call).unwrap();
        plans.retained(&vec![true; ids.len()]).unwrap();
        assert!(plans.done[0].is_some() && plans.done[1].is_none());
    }
    assert!(plans.followers[1].infeasible.as_ref().unwrap().contains("1000"));
    // A run cannot do without its own driver.
    let mut driven = LayerPlans::new((0, 2, 9), retain, true, vec![follower(&tight)]);
    assert!(driven.schedule(0, &call).is_err());
}

#[test]
fn a_finished_cell_is_taken_as_it_is_and_other_options_are_refused() {
    let out = std::env::temp_dir().join(format!("lrmoe-experiment-{}", std::process::id()));
    let path = out.to_str().unwrap();
    let args = ["--ranks", "4", "--ranks-per-node", "2", "--time-every", "2", "--out", path];
    let (corpus, stop) = (Corpus::embedded().unwrap(), AtomicBool::new(false));
    let run = |more: &[&str]| super::run(&options(&[&args, more].concat()), &corpus, &stop);
    assert_eq!(run(&[]).unwrap(), 0);
    let cell = out.join("cells/qwen3-30b-a3b_usual_512_1.json");
    let (before, report) = (std::fs::read(&cell).unwrap(), std::fs::read(out.join("report.json")).unwrap());
    assert_eq!(run(&[]).unwrap(), 0);
    assert_eq!((std::fs::read(&cell).unwrap(), std::fs::read(out.join("report.json")).unwrap()), (before, report));
    let refused = run(&["--retain", "0.4"]).unwrap_err();
    assert!(refused.to_string().contains("other options") && refused.exit_code() == 2, "{refused}");
    for file in ["targets.svg", "memory.svg", "timeline.json"] {
        assert!(out.join(file).exists(), "{file}");
    }
    // Stopped before a cell: nothing is lost, and the exit code says so.
    let stopped = super::run(&options(&[&args[..], &["--seed", "2"]].concat()), &corpus, &AtomicBool::new(true));
    assert_eq!(stopped.unwrap(), 130);
    std::fs::remove_dir_all(&out).unwrap();
}

#[test]
fn the_small_models_keep_the_proportions_of_the_published_ones() {
    let options = Options::try_parse_from(["train", "--ranks", "8"]).unwrap();
    let of = |preset, balancing| Geometry::new(preset, balancing, &options).unwrap();
    let qwen = of("qwen3-30b-a3b", Balancing::Usual);
    let sizes = |g: &Geometry| (g.small.hidden_size, g.small.moe_intermediate_size, g.small.num_experts);
    assert_eq!((sizes(&qwen), qwen.small.num_experts_per_tok), ((128, 48, 128), 8));
    assert_eq!((qwen.aux_coef, qwen.bias_step), (0.001, 0.0));
    let glm = of("glm-4.5-air", Balancing::Weak);
    assert_eq!((sizes(&glm), glm.small.shared_expert_intermediate_size), ((128, 44, 128), 44));
    assert!(glm.small.correction_bias && glm.aux_coef == 0.0 && (glm.bias_step - 1e-4).abs() < 1e-9);
}
