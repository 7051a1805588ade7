//! The experiment against hand-worked figures, brute force and itself.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use lrmoe::memory::Category;
use lrmoe::plan::policy::by_name;
use lrmoe::plan::{Activations, Lrmoe, Policy, Setup, pair_counts};
use lrmoe::share::{Phase, PhaseTimes, Share, TimeModel};
use lrmoe::{LayerOptions, PlanOptions, RoutedCall, Selection};

use super::account::{self, Prices};
use super::cell::{Cost, Key, Protocol};
use super::geometry::Geometry;
use super::loads::Loads;
use super::memory::Fullest;
use super::options::Balancing;
use super::planner::{Follower, LayerPlans, sources};
use super::timing::Timing;
use super::trained::{Trained, TrainedRun};
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

/// What the runner plans for: a small Qwen3 of 16 experts, two to four ranks a node.
struct World {
    geometry: Geometry,
    protocol: Protocol,
}

impl World {
    fn new(ranks: usize) -> Self {
        let options = options(&["--ranks", &ranks.to_string(), "--ranks-per-node", "4"]);
        let geometry = Geometry::new("qwen3-30b-a3b", Balancing::Usual, &options).unwrap();
        let key = Key { preset: "qwen3-30b-a3b".into(), balancing: "usual".into(), tokens: 512, seed: 1 };
        let protocol = geometry.protocol(&options, &Corpus::embedded().unwrap(), &key).unwrap();
        Self { geometry, protocol }
    }

    fn setups(&self, activations: Activations) -> [Setup; 3] {
        self.geometry.setups(&self.protocol, PlanOptions::default(), activations).unwrap()
    }

    fn follower(&self, policy: Box<dyn Policy>, activations: Activations) -> Follower {
        let real = self.geometry.real(&self.protocol, PlanOptions::default(), activations).unwrap();
        Follower::new(policy, self.setups(activations), real)
    }
}

fn trajectory(policy: &str, ranks: usize, (select, driven): (Selection, bool), options: &Options) -> Trajectory {
    let world = World::new(ranks);
    let followed = |activations| Followed {
        policy: policy.into(),
        activations,
        followers: (0..options.layers).map(|_| world.follower(by_name(policy).unwrap(), activations)).collect(),
    };
    let spec = MoeSpec {
        layer: 0,
        config: world.geometry.small.clone(),
        options: LayerOptions { aux_loss_coef: 1e-3, ..LayerOptions::default() },
        bias_step: 0.0,
        seed: 5,
        adamw: ADAMW,
    };
    let drive = Drive { name: policy.into(), select, driven };
    let modes = [Activations::Recompute, Activations::Stash].map(followed).into();
    let mut run = Trajectory::new(drive, modes, &spec, (ranks, options.batch()), options).unwrap();
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

#[test]
fn what_a_trained_run_retains_obeys_the_plan_of_every_step() {
    let options = options(&["--retain", "0.4"]);
    let run = trajectory("lrmoe", 8, (options.select, true), &options);
    let [driver, follower] = &run.loads[..] else { panic!("two followers") };
    assert_eq!((driver.len(), follower.len()), (3, 3));
    for (driver, follower) in driver.iter().flatten().zip(follower.iter().flatten()) {
        let asked = (0.4 * driver.routed as f64).round() as u64;
        // Rank capacities may lower the quotas, nothing raises them here.
        assert!(driver.retained == driver.quota && driver.quota <= asked && driver.quota > asked / 2);
        assert_eq!((follower.retained, follower.routed), (driver.retained, driver.routed));
        for loads in [driver, follower] {
            let sum = |rows: fn(&Share) -> u64| loads.shares().iter().map(rows).sum::<u64>();
            assert_eq!((sum(Share::forward_rows), sum(Share::backward_rows)), (loads.routed, loads.retained));
        }
        let most = lrmoe::plan::rank_capacity(asked, PlanOptions::default().slack, 8);
        assert!(driver.shares().iter().all(|share| share.backward_rows() <= most));
        // Where pairs stay, no expert of a rank goes back with more than it had.
        let stays = |share: &Share| share.forward.iter().zip(&share.backward).all(|(out, back)| back <= out);
        assert!(follower.shares().iter().all(stays));
    }
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
    let world = World::new(ranks);
    let ids = routed(tokens, 16, TOP_K, 7);
    let counts = pair_counts(&ids, TOP_K, &sources(tokens, ranks), ranks, 16, None).unwrap();
    let retain: Retain = "0.5".parse().unwrap();
    let follower = world.follower(policy, activations);
    let mut plans = LayerPlans::new((0, ranks, 9), retain, true, vec![follower]);
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
    Step { ids, kept, loads, quotas: schedule.retained.quotas, setups: world.setups(activations) }
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
                // Owners step every expert, and add up the gradients of its other instances.
                let instances = 16 + loads.replicas as u64;
                assert!(owned >= instances * parameters / 16 && owned < instances * parameters / 16 + ranks as u64);
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
        // Counts first, then rows there and back in both passes.
        let latency = 5.0 * setups[0].cluster.inter.latency_s;
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
    let prices = Prices { model: &model, seconds: 0.5, plans: vec![2e-3, 5e-3] };
    (0..3).for_each(|step| account::add_step(&mut cost, step, &loads, &prices));
    // Rank 0 is the busiest forward, rank 1 backward: 60 + 24 + 8 ms a step; the mean rank takes 40 + 18 + 6.
    let close = |got: f64, expected: f64| assert!((got - expected).abs() < 1e-9, "{got}, not {expected}");
    let expected = [("forward", 0.060, 0.040), ("dgrad", 0.024, 0.018), ("wgrad", 0.008, 0.006), ("gate", 0.0, 0.0)];
    for (phase, busiest, mean) in expected {
        close(cost.phases[phase], 3.0 * busiest);
        close(cost.mean[phase], 3.0 * mean);
    }
    close(cost.plan_s, 2.0 * 2e-3 + 5e-3);
    for (network, traffic) in [0.44, 0.22, 0.11].into_iter().enumerate() {
        close(cost.moe_s(network), 3.0 * (0.092 + traffic) + 9e-3);
    }
    // In two waves forward and three waves backward every wave has its part of the rows, rounded up: 2 x 15 and 3 x 3 rows at most.
    loads.waves = [2, 3];
    let mut in_waves = Cost::default();
    account::add_step(&mut in_waves, 0, &loads, &prices);
    for (phase, seconds) in [("forward", 2e-3 * 2.0 * 15.0), ("dgrad", 3e-3 * 3.0 * 3.0), ("wgrad", 1e-3 * 3.0 * 3.0)] {
        close(in_waves.phases[phase], seconds);
    }
}

#[test]
fn a_cell_has_the_times_of_its_fit_and_the_traffic_of_its_scale() {
    let world = World::new(2);
    let Step { loads, .. } = step(by_name("fixed").unwrap(), Activations::Stash, 64, 2);
    let run = TrainedRun {
        policy: "fixed".into(),
        activations: Activations::Stash,
        trajectory: "all".into(),
        curve: vec![(0, 5.0), (2, 4.0)],
        loads: (0..2).map(|_| vec![loads.clone(), loads.clone()]).collect(),
        infeasible: None,
    };
    let key = Key { preset: "qwen3-30b-a3b".into(), balancing: "usual".into(), tokens: 64, seed: 1 };
    let stopped = TrainedRun { policy: "eplb".into(), infeasible: Some("too large".into()), ..run.clone() };
    let trained = Trained { key, protocol: world.protocol, plain: vec![(0, 5.0), (2, 4.0)], runs: vec![run, stopped] };
    let (config, machine) = (&world.geometry.small, serde_json::json!({}));
    let stop = AtomicBool::new(true);
    assert_eq!(Timing::take(std::slice::from_ref(&trained), config, machine.clone(), &stop).unwrap(), None);
    let timing =
        Timing::take(std::slice::from_ref(&trained), config, machine, &AtomicBool::new(false)).unwrap().unwrap();
    let cell = account::cell(&trained, Some(&timing)).unwrap();
    let (first, last) = (&cell.runs[0].curve[0], &cell.runs[0].curve[1]);
    assert_eq!((first.cost.moe_s(1), cell.runs[0].steps), (0.0, 2));
    // Two steps of two layers.
    assert!((last.cost.exchange_s[1] - 4.0 * loads.exchange_s[1] * timing.seconds).abs() < 1e-12);
    let plans = 4.0 * loads.plan_s * trained.protocol.time_scale * timing.seconds;
    assert!((last.cost.plan_s / plans - 1.0).abs() < 1e-9);
    let rate = |cell: &Protocol| cell.scaled.gemm_flops;
    assert!((rate(&cell.protocol) * timing.seconds / rate(&trained.protocol) - 1.0).abs() < 1e-12);
    assert_eq!((cell.runs[1].steps, cell.runs[1].curve.len(), cell.runs[1].sampled.count), (0, 0, 0));
    // The timeline of a step is as long as the step: phases, traffic and planning.
    let timeline = cell.timelines.iter().find(|t| t.policy == "fixed").unwrap();
    let end = timeline.events.iter().map(|event| event.start_s + event.seconds).fold(0.0, f64::max);
    let parts: std::collections::BTreeMap<&str, f64> =
        timeline.events.iter().fold(Default::default(), |mut parts, e| {
            let longest = parts.entry(e.name.as_str()).or_insert(0.0_f64);
            *longest = longest.max(e.seconds);
            parts
        });
    assert!((end - parts.values().sum::<f64>()).abs() < 1e-12);
    assert!(parts["exchange, forward"] > 0.0 && parts["plan"] > 0.0);
}

#[test]
fn real_memory_is_that_of_as_many_more_tokens() {
    let Step { loads, .. } = step(by_name("fixed").unwrap(), Activations::Stash, 4096, 8);
    let [small, real] = loads.memory;
    let at = |memory: &Fullest, category: Category| memory.peak.reserved[category as usize];
    // Two experts a rank and the router, in two bytes each, 48 layers: of 32 x 12 and of 2048 x 768.
    assert_eq!(at(&small, Category::Weights), 48 * 2 * (2 * 3 * 32 * 12 + 16 * 32));
    assert_eq!(at(&real, Category::Weights), 48 * 2 * (2 * 3 * 2048 * 768 + 16 * 2048));
    // 64 times the tokens and the width, but for ids, logits and size classes.
    let stash = at(&real, Category::Stash) as f64 / at(&small, Category::Stash) as f64 / (64.0 * 64.0);
    assert!(stash > 0.6 && stash < 1.01, "{stash}");
    assert!(real.subtotal_bytes > small.subtotal_bytes);
}

#[test]
fn a_follower_that_does_not_fit_stops_and_says_why() {
    let world = World::new(2);
    let roomy = || world.follower(by_name("fixed").unwrap(), Activations::Stash);
    let tight = || {
        let mut follower = roomy();
        follower.setups.iter_mut().for_each(|setup| setup.cluster.bytes_per_rank = 1000);
        follower
    };
    let retain: Retain = "1".parse().unwrap();
    let ids = routed(64, 16, TOP_K, 1);
    let counts = pair_counts(&ids, TOP_K, &sources(64, 2), 2, 16, None).unwrap();
    let call = RoutedCall { ids: &ids, counts: counts.per_expert(), top_k: TOP_K, demand: None };
    let mut plans = LayerPlans::new((0, 2, 9), retain.clone(), false, vec![roomy(), tight()]);
    for step in 0..2 {
        plans.schedule(step, &call).unwrap();
        plans.retained(&vec![true; ids.len()]).unwrap();
        assert!(plans.done[0].is_some() && plans.done[1].is_none());
    }
    assert!(plans.followers[1].infeasible.as_ref().unwrap().contains("1000"));
    // A run cannot do without its own driver.
    let mut driven = LayerPlans::new((0, 2, 9), retain, true, vec![tight()]);
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
    for (more, says) in [
        (&["--preset", "glm-4.5-air,glm-4.5-air"][..], "--preset names glm-4.5-air twice"),
        (&["--batch", "4,4"], "--batch names 4 twice"),
        (&["--seed", "18446744073709551615", "--seeds", "2"], "--seed is 18446744073709551615"),
    ] {
        let all = SMALL.iter().filter(|arg| !["--batch", "4"].contains(arg)).chain(&["--ranks", "4"]).chain(more);
        let refused = Options::try_parse_from(all).unwrap().checked().unwrap_err().to_string();
        assert!(refused.contains(says), "{refused}");
    }
    // Stopped before a cell: nothing is lost, and the exit code says so.
    let stopped = super::run(&options(&[&args[..], &["--seed", "2"]].concat()), &corpus, &AtomicBool::new(true));
    assert_eq!(stopped.unwrap(), 130);
    std::fs::remove_dir_all(&out).unwrap();
}

#[test]
fn a_budget_is_as_large_a_part_of_the_small_model() {
    let protocol = |budget: &str| {
        let args = ["--ranks", "8", "--budget", budget];
        let options = options(&args);
        let geometry = Geometry::new("qwen3-30b-a3b", Balancing::Usual, &options).unwrap();
        let key = Key { preset: "qwen3-30b-a3b".into(), balancing: "usual".into(), tokens: 512, seed: 1 };
        geometry.protocol(&options, &Corpus::embedded().unwrap(), &key).unwrap()
    };
    let (one, half) = (protocol("1x"), protocol("0.5x"));
    assert_eq!(one.budget.unwrap() / 2, half.budget.unwrap());
    assert_eq!(one.scaled.bytes_per_rank / 2, half.scaled.bytes_per_rank);
    let bytes = protocol(&one.budget.unwrap().to_string());
    assert!(bytes.scaled.bytes_per_rank.abs_diff(one.scaled.bytes_per_rank) <= 1);
    // Two experts a rank in 48 layers: 2 + 4 + 12 bytes a parameter, and what 4,096 tokens keep.
    let state = 48 * 18 * 2 * 3 * 2048 * 768_u64;
    assert!(one.budget.unwrap() > state && one.budget.unwrap() < 2 * state, "{:?}", one.budget);
    for bad in ["x", "0x", "-1x", "2000x", "NaNx", "much"] {
        assert!(Options::try_parse_from(["train", "--ranks", "8", "--budget", bad]).is_err(), "{bad}");
    }
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
