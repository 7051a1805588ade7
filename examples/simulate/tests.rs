//! Small simulations against what they must add up to, and LRMoE's balance against EPLB's.

use lrmoe::memory::Category;
use lrmoe::plan::cluster::Link;
use lrmoe::plan::policy::{Eplb, Fixed, Input, Lrmoe, Symi, by_name};
use lrmoe::plan::trace::{regroup, scaled};
use lrmoe::plan::{Activations, ClusterSpec, Counts, Demand, Ownership, Policy, Retention, Setup, Workload};
use lrmoe::{DType, MoeConfig};

use crate::cases::generated;
use crate::report::{CaseReport, PolicyReport};
use crate::sim::{Outcome, Refusal, Run, simulate};
use crate::uniform::{MOST, Uniform};

/// H 256, I 128, E 32, k 4: small enough for a test build.
fn setup(ranks: usize) -> Setup {
    let config = MoeConfig { dtype: Some(DType::BF16), ..MoeConfig::new(256, 128, 32, 4) };
    Setup::new(config, ClusterSpec::preset("8xh100").unwrap().with_ranks(ranks, 8)).unwrap()
}

fn ran(setup: &Setup, policy: &dyn Policy, steps: &[Counts], extra_steps: f64) -> Run {
    match simulate(setup, policy, steps, extra_steps).unwrap() {
        Outcome::Ran(run) => *run,
        Outcome::Infeasible(refusal) => panic!("{} is infeasible: {}", policy.name(), refusal.reason),
    }
}

#[test]
fn totals_are_those_of_the_plans() {
    let setup = setup(8);
    let steps = generated(Workload::Drifting, &setup, 512, 3, 6).unwrap();
    for policy in lrmoe::plan::policy::NAMES.iter().map(|name| by_name(name).unwrap()) {
        let policy = policy.as_ref();
        let run = ran(&setup, policy, &steps, 1.0);
        // The same steps by hand: demand is that of the steps before, the placement what the plan before chose.
        let mut placement = policy.start(&setup, &steps[0]).unwrap();
        let mut demand: Option<Demand> = None;
        let (mut seconds, mut token_bytes, mut optimizer_bytes, mut retained) = (0.0, 0.0, 0.0, 0);
        let (mut peak, mut subtotal, mut dropped, mut worst) = (0, 0, 0, 0.0_f64);
        for (step, counts) in steps.iter().enumerate() {
            let input = Input { step: step as u64, counts, demand: demand.as_ref(), placement: &placement };
            let plan = policy.plan(&setup, &input).unwrap();
            seconds += plan.predicted.total_s();
            token_bytes += plan.predicted.exchange_bytes_inter_node;
            optimizer_bytes += plan.predicted.optimizer_bytes_inter_node;
            retained += plan.retained.retained();
            dropped += plan.dropped.as_ref().map_or(0, Counts::total);
            worst = worst.max(plan.predicted.max_over_mean_forward);
            for memory in &plan.memory {
                let without =
                    memory.reserved[Category::Gradients as usize] + memory.reserved[Category::Optimizer as usize];
                peak = peak.max(memory.total());
                subtotal = subtotal.max(memory.total() - without);
            }
            let seen = Demand::uniform(counts.per_expert());
            demand = Some(demand.map_or(seen.clone(), |d| Demand::smooth(&d, &seen, setup.options.smoothing).unwrap()));
            placement = plan.next;
        }
        assert_eq!((run.seconds, run.peak_bytes, run.subtotal_bytes), (seconds, peak, subtotal), "{}", policy.name());
        assert_eq!((run.inter_node_token_bytes, run.inter_node_optimizer_bytes), (token_bytes, optimizer_bytes));
        assert_eq!(
            (run.retained_pairs, run.dropped_pairs, run.max_over_mean_forward.worst),
            (retained, dropped, worst)
        );
        assert_eq!(run.pairs, steps.iter().map(Counts::total).sum::<u64>());
        let parts = run.forward_s + run.backward_s + run.exchange_s + run.optimizer_exchange_s;
        assert!((parts / run.seconds - 1.0).abs() < 1e-12);
        assert!(run.median_plan_micros > 0.0);
    }
}

#[test]
fn extra_steps_multiply_times_and_traffic_alone() {
    let setup = setup(16);
    let steps = generated(Workload::Burst, &setup, 256, 1, 4).unwrap();
    let [plain, more] = [1.0, 1.5].map(|factor| ran(&setup, &Lrmoe::default(), &steps, factor));
    for (a, b) in [
        (plain.seconds, more.seconds),
        (plain.exchange_s, more.exchange_s),
        (plain.inter_node_token_bytes, more.inter_node_token_bytes),
        (plain.inter_node_optimizer_bytes, more.inter_node_optimizer_bytes),
    ] {
        assert!((b - 1.5 * a).abs() <= 1e-12 * b, "{a} {b}");
    }
    assert!(plain.seconds > 0.0 && plain.inter_node_token_bytes > 0.0);
    assert_eq!((plain.peak_bytes, plain.pairs, &plain.hash), (more.peak_bytes, more.pairs, &more.hash));
    assert_eq!(plain.max_over_mean_backward, more.max_over_mean_backward);
}

#[test]
fn a_seed_repeats_exactly_and_another_differs() {
    let setup = setup(8);
    let run = |seed| {
        let steps = generated(Workload::Rotating, &setup, 256, seed, 10).unwrap();
        let run = ran(&setup, &Lrmoe::default(), &steps, 1.0);
        // The plan time is the one thing that is measured.
        Run { median_plan_micros: 0.0, ..run }
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).hash, run(8).hash);
}

#[test]
fn a_trace_of_eight_ranks_keeps_its_pairs_on_any_number_of_ranks() {
    let recorded = Workload::Drifting.counts(&batch(8, 3072 / 4), 5, 0).unwrap();
    for ranks in [2, 4, 8, 16, 24, 64] {
        let grouped = regroup(&recorded, ranks).unwrap();
        assert_eq!(grouped.per_expert(), recorded.per_expert());
        let setup = setup(ranks);
        let steps = vec![scaled(&grouped, 4 * 512).unwrap(); 3];
        for name in ["lrmoe", "fixed", "eplb", "llep"] {
            let run = ran(&setup, by_name(name).unwrap().as_ref(), &steps, 1.0);
            assert_eq!((run.pairs, run.dropped_pairs), (3 * ranks as u64 * 4 * 512, 0), "{name} on {ranks}");
        }
    }
}

fn batch(ranks: usize, tokens_per_rank: u32) -> lrmoe::plan::workload::Batch {
    lrmoe::plan::workload::Batch { ranks, experts: 32, top_k: 4, tokens_per_rank }
}

#[test]
fn an_infeasible_policy_says_what_would_do_and_the_others_go_on() {
    let mut setup = setup(8);
    let steps = generated(Workload::HotRank, &setup, 4096, 1, 4).unwrap();
    let needed = |policy: &dyn Policy, setup: &Setup| ran(setup, policy, &steps, 1.0).peak_bytes;
    // Fixed ownership holds all pairs of the hot rank at once; in waves it needs less.
    setup.activations = Some(Activations::Recompute);
    setup.cluster.bytes_per_rank = needed(&Fixed::default(), &setup) - 1;
    let policies: Vec<Box<dyn Policy>> = vec![Box::new(Fixed::default()), Box::new(Fixed { waves: true })];
    let case = crate::cases::Case {
        routing: "hot-rank".into(),
        model: "small".into(),
        setup: setup.clone(),
        steps: steps.clone(),
        notes: Vec::new(),
    };
    let report = CaseReport::new(&case, &policies, |_| 1.0).unwrap();
    let [PolicyReport { refusal: Some(refusal), run: None, feasible: false, .. }, waves] = &report.policies[..] else {
        panic!("{report:?}");
    };
    assert!(waves.feasible && waves.run.as_ref().unwrap().waves_forward > 1);
    let Refusal { smallest_budget, reason, .. } = refusal.clone();
    assert!(smallest_budget > setup.cluster.budget() && reason.contains("smallest budget"), "{reason}");
    let text = crate::tables::case(&report);
    assert!(text.contains("fixed: infeasible") && text.contains("fixed-waves"), "{text}");
    // What it says is true, and one byte less is not.
    setup.cluster.bytes_per_rank = smallest_budget;
    assert_eq!(ran(&setup, &Fixed::default(), &steps, 1.0).peak_bytes, smallest_budget);
    setup.cluster.bytes_per_rank = smallest_budget - 1;
    assert!(matches!(simulate(&setup, &Fixed::default(), &steps, 1.0).unwrap(), Outcome::Infeasible(_)));
}

#[test]
fn uniform_routing_costs_at_most_one_percent() {
    for model in MoeConfig::PRESETS {
        for ranks in [2, 8, 64] {
            let cluster = ClusterSpec::preset("8xh100").unwrap().with_ranks(ranks, 8);
            let mut setup = Setup::new(MoeConfig::preset(model).unwrap(), cluster).unwrap();
            setup.layers = 1;
            let check = Uniform::new(model, &setup, 8192, 1, 5).unwrap();
            let ratio = check.ratio().unwrap();
            assert!(ratio <= MOST, "{model}, {ranks} ranks: {ratio}");
        }
    }
}

#[test]
fn what_saves_nothing_is_listed() {
    let setup = setup(8);
    let steps = generated(Workload::HotSet, &setup, 256, 1, 4).unwrap();
    let case = crate::cases::Case {
        routing: "hot-set".into(),
        model: "small".into(),
        setup,
        steps,
        notes: vec!["a note".into()],
    };
    let policies: Vec<Box<dyn Policy>> =
        vec![Box::new(Lrmoe::default()), Box::new(Fixed::default()), Box::new(Symi::default())];
    // Ten times the steps lose against anything.
    let report = CaseReport::new(&case, &policies, |name| if name == "lrmoe" { 10.0 } else { 1.0 }).unwrap();
    let rivals: Vec<String> = report.no_saving().into_iter().map(|found| found.rival).collect();
    assert_eq!(rivals, ["fixed", "symi"]);
    let text = crate::tables::case(&report);
    assert!(text.contains("lrmoe x10") && text.contains("note: a note"), "{text}");
    assert!(crate::chart::svg(&report).unwrap().unwrap().contains("fixed"));
    assert_eq!(crate::chart::file_name(&report), "hot-set-small-8ranks.svg");
}

/// Only GEMMs take time, so that a policy has no reason to leave a rank busier than it must.
fn gemm_only(mut setup: Setup) -> Setup {
    let link = Link { bytes_per_s: 1e30, latency_s: 0.0 };
    setup.cluster = ClusterSpec {
        bytes_per_rank: 1 << 50,
        copy_bytes_per_s: 1e30,
        host_bytes_per_s: 1e30,
        launch_s: 0.0,
        intra: link,
        inter: link,
        ..setup.cluster
    };
    setup.options.retention = Retention::Fraction(1.0);
    setup
}

/// The busiest rank over the mean, averaged from the second step on, of EPLB at this interval and of LRMoE with as many instances.
fn balance(setup: &Setup, steps: &[Counts], intervals: [u64; 2]) -> ([f64; 2], f64) {
    let eplb = intervals.map(|interval| ran(setup, &Eplb { interval, ..Eplb::default() }, steps, 1.0));
    let instances = eplb[0].instances;
    let ours = ran(setup, &Lrmoe::new(Some(instances)), steps, 1.0);
    let held = |run: &Run| run.series.iter().flatten().skip(1).all(|step| step.instances == instances);
    assert!(eplb.iter().chain([&ours]).all(held));
    let mean = |run: &Run| {
        let ratios = || run.series.iter().flatten().skip(1).map(|step| step.max_over_mean_forward);
        ratios().sum::<f64>() / ratios().count() as f64
    };
    (eplb.each_ref().map(mean), mean(&ours))
}

/// Cases in which LRMoE is busier than EPLB, or on workloads whose skew a placement can follow not less busy.
fn busier_than_eplb(ownership: Ownership) -> Vec<String> {
    let skewed = [
        Workload::HotSet,
        Workload::HotRank,
        Workload::SpreadHot,
        Workload::Rotating,
        Workload::Burst,
        Workload::Drifting,
    ];
    // EPLB's own interval, and a placement every step, as LRMoE may make.
    let intervals = [10, 1];
    let mut found = Vec::new();
    for (ranks, experts, top_k) in [(2, 32, 4), (8, 32, 4), (16, 128, 8), (64, 128, 8)] {
        let mut setup = gemm_only(self::setup(ranks));
        (setup.config.num_experts, setup.config.num_experts_per_tok) = (experts, top_k);
        setup.ownership = Some(ownership);
        for workload in Workload::ALL {
            // Long enough for a burst and four moves of a rotating hot spot.
            let steps = generated(workload, &setup, 4096, 1, 33).unwrap();
            let (eplb, lrmoe) = balance(&setup, &steps, intervals);
            for (theirs, interval) in eplb.into_iter().zip(intervals) {
                let bad = if skewed.contains(&workload) { lrmoe >= theirs } else { lrmoe > theirs };
                if bad {
                    let case = format!("{workload}, R {ranks}, E {experts}");
                    found.push(format!("{case}: eplb every {interval} {theirs:.4}, lrmoe {lrmoe:.4}"));
                }
            }
        }
    }
    found
}

#[test]
fn with_as_many_replicas_lrmoe_is_never_busier_than_eplb() {
    assert_eq!(busier_than_eplb(Ownership::Sharded), <[String; 0]>::default());
}

/// Where homes are moved, two cases are known in which EPLB's smoothed loads foretell a jump less badly than the last step's do: the steps
/// of the jumps decide the mean there.
#[test]
fn with_as_many_replicas_lrmoe_is_busier_than_eplb_after_jumps_only() {
    let known = ["rotating, R 16, E 128: eplb every 1 ", "empty, R 64, E 128: eplb every 10 "];
    let found = busier_than_eplb(Ownership::Home);
    assert!(found.iter().all(|case| known.iter().any(|start| case.starts_with(start))), "{found:?}");
}

#[test]
fn a_trace_runs_from_file_to_report_and_charts() {
    let folder = std::env::temp_dir().join(format!("lrmoe-simulate-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (trace, json, charts) = (folder.join("small.jsonl"), folder.join("report.json"), folder.join("charts"));
    let mut text = String::new();
    for step in 0..4 {
        for layer in [0, 3] {
            let counts = Workload::Drifting.counts(&batch(8, 96), u64::from(layer), step).unwrap();
            text += &format!("{}\n", lrmoe::plan::trace::TraceEntry { step, layer, counts });
        }
    }
    std::fs::write(&trace, text).unwrap();
    let arguments = ["--ranks", "2,4", "--layers", "1", "--steps", "3", "--tokens-per-rank", "64", "--series"];
    let files = [("--trace", &trace), ("--json", &json), ("--svg", &charts)];
    let files = files.iter().flat_map(|(option, path)| [(*option).into(), path.as_os_str().to_owned()]);
    let arguments = ["simulate".into()].into_iter().chain(files).chain(arguments.map(Into::into));
    let printed = std::cell::RefCell::new(String::new());
    let print = |text: &str| {
        printed.borrow_mut().push_str(text);
        Ok(())
    };
    crate::run(&clap::Parser::parse_from(arguments), &print).unwrap();
    let printed = printed.into_inner();
    assert_eq!(
        (printed.matches(" on one node").count(), printed.matches("\nuniform routing").count()),
        (8, 4),
        "{printed}"
    );
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let cases = report["cases"].as_array().unwrap();
    // Two layers, two models, two numbers of ranks.
    assert_eq!((cases.len(), std::fs::read_dir(&charts).unwrap().count()), (8, 8));
    for case in cases {
        assert_eq!(
            (&case["experts"], &case["top_k"], &case["pairs_per_step"]),
            (&32.into(), &8.into(), &{
                let ranks = case["ranks"].as_f64().unwrap();
                (ranks * 8.0 * 64.0).into()
            })
        );
        let policies = case["policies"].as_array().unwrap();
        assert_eq!(policies.len(), lrmoe::plan::policy::NAMES.len());
        for policy in policies {
            let series = policy["series"].as_array().unwrap();
            let sum: f64 = series.iter().map(|step| step["seconds"].as_f64().unwrap()).sum();
            assert_eq!((series.len(), policy["seconds"].as_f64()), (3, Some(sum)), "{}", policy["policy"]);
        }
    }
    assert_eq!(report["uniform"].as_array().unwrap().len(), 4);
    std::fs::remove_dir_all(&folder).unwrap();
}
