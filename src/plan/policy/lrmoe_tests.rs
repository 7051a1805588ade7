//! What holds for every plan of the policy: conservation, budgets, names, and what more memory or retention may do.

use super::*;
use crate::Error;
use crate::config::MoeConfig;
use crate::plan::cluster::Link;
use crate::plan::policy::Eplb;
use crate::plan::route::Route;
use crate::plan::workload::{Batch, Workload};
use crate::plan::{Activations, ClusterSpec, RankMemory, Retention};
use crate::rng::Philox;

/// A random whole number below `bound`, which is small.
fn below(rng: &mut Philox, bound: usize) -> usize {
    rng.next_u32() as usize % bound
}

fn cluster(ranks: usize, ranks_per_node: usize) -> ClusterSpec {
    ClusterSpec {
        ranks,
        ranks_per_node,
        bytes_per_rank: 1 << 40,
        host_reserved_bytes: 0,
        gemm_flops: 4e14,
        copy_bytes_per_s: 2.5e12,
        intra: Link { bytes_per_s: 3.5e11, latency_s: 1e-5 },
        inter: Link { bytes_per_s: 4.5e10, latency_s: 2e-5 },
        host_bytes_per_s: 5e10,
        launch_s: 5e-5,
    }
}

fn setup(experts: usize, top_k: usize, ranks: usize, ranks_per_node: usize) -> Setup {
    let config = MoeConfig { num_hidden_layers: 2, ..MoeConfig::new(256, 128, experts, top_k) };
    Setup::new(config, cluster(ranks, ranks_per_node)).unwrap()
}

/// Counts of several kinds: even, skewed, one hot expert, silent experts, silent and ragged ranks, nothing.
fn random_counts(rng: &mut Philox, ranks: usize, experts: usize) -> Counts {
    let kind = below(rng, 6);
    let hot = below(rng, experts);
    let popularity: Vec<u32> = (0..experts).map(|_| 1 << below(rng, 9)).collect();
    let rows: Vec<Vec<u32>> = (0..ranks)
        .map(|_| {
            let loud = below(rng, 4) > 0;
            (0..experts)
                .map(|e| match kind {
                    0 => 40 + rng.next_u32() % 20,
                    1 => rng.next_u32() % popularity[e],
                    2 => rng.next_u32() % 5 + if e == hot { 5000 } else { 0 },
                    3 => (rng.next_u32() % 100) * u32::from(popularity[e] > 16),
                    4 => (rng.next_u32() % 300) * u32::from(loud),
                    _ => 0,
                })
                .collect()
        })
        .collect();
    Counts::new(&rows).unwrap()
}

#[derive(Clone)]
struct Case {
    setup: Setup,
    counts: Counts,
    demand: Option<Demand>,
    placement: Placement,
    step: u64,
}

impl Case {
    fn plan(&self) -> Result<Plan> {
        let Self { setup, counts, demand, placement, step } = self;
        Lrmoe::default().plan(setup, &Input { step: *step, counts, demand: demand.as_ref(), placement })
    }
}

/// Demand of an earlier step with scores that differ.
fn random_demand(rng: &mut Philox, counts: &Counts) -> Demand {
    let mut offsets = vec![0];
    let mut scores = Vec::new();
    for &n in counts.per_expert() {
        let level = f32::from(1_u8 << below(rng, 7));
        scores.extend((0..n.min(50)).map(|_| if below(rng, 40) == 0 { f32::INFINITY } else { level * rng.uniform() }));
        offsets.push(scores.len() as u32);
    }
    Demand::from_scores(&scores, &offsets).unwrap()
}

/// A random setup and step, the placement one that the policy chose for other pairs.
fn random_case(rng: &mut Philox, most_experts: usize, most_ranks: usize) -> Case {
    let (experts, ranks) = (1 + below(rng, most_experts), 1 + below(rng, most_ranks));
    let mut setup = setup(experts, 1 + below(rng, experts.min(8)), ranks, 1 + below(rng, ranks.min(8)));
    setup.options.retention = match below(rng, 5) {
        0 => Retention::Fraction(1.0),
        1 => Retention::noise(0.3),
        _ => Retention::Fraction(f64::from(rng.uniform())),
    };
    setup.options.slack = [0.0, 0.05, 0.5][below(rng, 3)];
    setup.ownership = [None, Some(Ownership::Home), Some(Ownership::Sharded)][below(rng, 3)];
    let before = random_counts(rng, ranks, experts);
    let placement = Lrmoe::default().start(&setup, &before).unwrap();
    let mut case = Case { setup, counts: before, demand: None, placement, step: 0 };
    if below(rng, 3) > 0 {
        case.placement = case.plan().unwrap().next;
    }
    if below(rng, 3) > 0 {
        case.demand = Some(random_demand(rng, &case.counts));
    }
    // Steps that try every number of instances, and others.
    case.step = below(rng, 2) as u64;
    case.counts = random_counts(rng, ranks, experts);
    case
}

/// Everything that a plan owes whatever the input.
fn check(case: &Case, plan: &Plan) {
    let Case { setup, counts, placement, .. } = case;
    plan.check().unwrap();
    assert_eq!(&plan.placement, placement);
    assert_eq!(plan.retained.counts, counts.per_expert());
    assert!(plan.fits(), "{:?}", plan.memory);
    for (s, e) in (0..counts.ranks()).flat_map(|s| (0..counts.experts()).map(move |e| (s as u32, e as u32))) {
        let routes = plan.forward.iter().filter(|r| (r.from, r.expert) == (s, e));
        let routed: u32 = routes.map(|r| r.pairs).sum();
        assert_eq!(routed, counts.get(s as usize, e as usize));
    }
    let retained = &plan.retained;
    assert!(retained.quotas.iter().zip(&retained.counts).all(|(q, n)| q <= n));
    if retained.limits.is_empty() {
        assert_eq!(retained.retained(), retained.requested);
    }
    if let Retention::Fraction(rho) = setup.options.retention {
        assert_eq!(retained.requested, (rho * counts.total() as f64).round() as u64);
    }
    // No rank beyond its share where pairs may change their instance, unless floors or plain training say so.
    let limits = [Limit::Floor, Limit::NoSaving];
    if plan.activations == Activations::Recompute
        && setup.options.retention != Retention::Fraction(1.0)
        && retained.retained() < counts.total()
        && !limits.iter().any(|limit| retained.limits.contains(limit))
    {
        let capacity = crate::plan::rank_capacity(retained.requested, setup.options.slack, plan.ranks());
        assert!(plan.backward_rows().iter().all(|&rows| rows <= capacity), "{plan}");
    }
    assert!(plan.predicted.total_s().is_finite() && plan.predicted.total_s() > 0.0);
}

#[test]
fn plans_of_random_inputs_hold_together() {
    let mut rng = Philox::new(11, 0);
    for i in 0..1500 {
        // Mostly small, where the odd cases are.
        let (experts, ranks) = if i % 20 == 0 { (512, 64) } else { (24, 9) };
        let case = random_case(&mut rng, experts, ranks);
        let first = case.plan().unwrap();
        check(&case, &first);
        let again = case.plan().unwrap();
        assert_eq!((first.hash(), &first), (again.hash(), &again));
    }
}

#[test]
fn tiny_budgets_are_refused_with_the_one_that_would_do() {
    let mut rng = Philox::new(12, 0);
    let mut refused = 0;
    for _ in 0..300 {
        let mut case = random_case(&mut rng, 24, 9);
        let need = case.plan().unwrap();
        let most = need.memory.iter().map(RankMemory::total).max().unwrap();
        case.setup.cluster.bytes_per_rank = most * (1 + below(&mut rng, 12) as u64) / 8;
        match case.plan() {
            Ok(plan) => check(&case, &plan),
            Err(Error::Infeasible { needed, budget, smallest, .. }) => {
                refused += 1;
                assert!(needed > budget && smallest > budget);
                case.setup.cluster.bytes_per_rank = smallest;
                check(&case, &case.plan().unwrap());
                case.setup.cluster.bytes_per_rank = smallest - 1;
                assert!(case.plan().is_err());
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 20, "{refused}");
}

/// More memory never takes a plan away, and the placement chosen with it is foretold to be at least as fast.
#[test]
fn more_memory_is_never_slower() {
    let mut rng = Philox::new(13, 0);
    for _ in 0..200 {
        let mut case = random_case(&mut rng, 24, 9);
        let need = case.plan().unwrap();
        let most = need.memory.iter().map(RankMemory::total).max().unwrap();
        let mut last: Option<Plan> = None;
        for eighths in 1..=16 {
            case.setup.cluster.bytes_per_rank = most * eighths / 8;
            match case.plan() {
                Ok(plan) => {
                    if let Some(last) = &last {
                        assert!(plan.next_s.unwrap() <= last.next_s.unwrap(), "{eighths}");
                    }
                    last = Some(plan);
                }
                Err(error) => assert!(last.is_none(), "{error}"),
            }
        }
    }
}

/// With the retention the busiest rank's retained pairs never fall, and keeping everything never takes less time than keeping a part.
#[test]
fn more_retention_is_never_faster() {
    let mut rng = Philox::new(14, 0);
    for _ in 0..300 {
        let mut case = random_case(&mut rng, 24, 9);
        case.setup.activations = Some(Activations::Recompute);
        let mut last: Option<Plan> = None;
        let mut times = Vec::new();
        for percent in [0, 5, 20, 35, 50, 65, 80, 95, 100] {
            case.setup.options.retention = Retention::Fraction(f64::from(percent) / 100.0);
            let plan = case.plan().unwrap();
            let busiest = |p: &Plan| p.backward_rows().into_iter().max();
            if let Some(last) = &last {
                assert!(busiest(&plan) >= busiest(last), "{percent} %: {last} then {plan}");
            }
            times.push(plan.predicted.total_s() - plan.predicted.optimizer_exchange_s);
            last = Some(plan);
        }
        assert!(times.is_sorted(), "{times:?}");
    }
}

fn shuffled(rng: &mut Philox, length: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..length as u32).collect();
    (1..length).rev().for_each(|i| order.swap(i, below(rng, i + 1)));
    order
}

/// Renaming experts, and ranks inside their nodes, renames the plan where nothing ties and keeps times and bytes anyway.
#[test]
fn renaming_renames() {
    let mut rng = Philox::new(15, 0);
    for i in 0..400 {
        let mut case = random_case(&mut rng, 24, 9);
        let ties = i % 2 == 0;
        if !ties {
            let rows: Vec<Vec<u32>> = (0..case.counts.ranks())
                .map(|_| (0..case.counts.experts()).map(|_| rng.next_u32() % 1_000_000).collect())
                .collect();
            case.counts = Counts::new(&rows).unwrap();
        }
        let per_node = case.setup.cluster.ranks_per_node;
        let mut ranks = Vec::new();
        while ranks.len() < case.counts.ranks() {
            let node = (case.counts.ranks() - ranks.len()).min(per_node);
            let first = ranks.len() as u32;
            ranks.extend(shuffled(&mut rng, node).into_iter().map(|r| first + r));
        }
        let labels = Labels { experts: shuffled(&mut rng, case.counts.experts()), ranks };
        let here = case.plan().unwrap();
        let renamed = Case {
            counts: labels.counts(&case.counts).unwrap(),
            demand: case.demand.as_ref().map(|demand| labels.demand(demand)),
            placement: labels.placement(&case.placement).unwrap().0,
            setup: case.setup.clone(),
            step: case.step,
        };
        let there = renamed.plan().unwrap();
        assert_eq!(here.predicted, there.predicted);
        assert_eq!(here.next_s, there.next_s);
        let sorted = |plan: &Plan| {
            let mut totals: Vec<u64> = plan.memory.iter().map(RankMemory::total).collect();
            totals.sort_unstable();
            totals
        };
        assert_eq!(sorted(&here), sorted(&there));
        if !ties {
            assert_eq!(labels.of_experts(&here.retained.quotas), there.retained.quotas);
            assert_eq!(labels.placement(&here.next).unwrap().0, there.next);
            let (renamed, instances) = labels.placement(&here.placement).unwrap();
            assert_eq!(renamed, there.placement);
            let capacity: Vec<u32> = instances.iter().map(|&i| here.capacity[i as usize]).collect();
            assert_eq!(capacity, there.capacity);
        }
    }
}

#[test]
fn one_rank_is_planned_as_by_itself() {
    let mut rng = Philox::new(16, 0);
    for _ in 0..200 {
        let mut case = random_case(&mut rng, 24, 1);
        case.setup.cluster.launch_s = 0.0;
        let plan = case.plan().unwrap();
        let demand = case.demand.as_ref();
        let alone = crate::plan::plan_one_rank(case.counts.per_expert(), demand, &case.setup.options).unwrap();
        if !plan.retained.limits.contains(&Limit::NoSaving) {
            assert_eq!((plan.retained.requested, plan.retained.retained()), (alone.requested, alone.retained()));
        }
        assert_eq!((plan.predicted.exchange_s, plan.predicted.optimizer_exchange_s), (0.0, 0.0));
    }
}

/// Even routing leaves nothing to balance: with everything retained, fixed ownership is not beaten but met.
#[test]
fn uniform_routing_costs_nothing() {
    for (experts, ranks) in [(8, 2), (32, 8), (128, 64), (16, 3)] {
        let mut setup = setup(experts, 4, ranks, 4);
        setup.options.retention = Retention::Fraction(1.0);
        let counts = Counts::from_flat(ranks, experts, vec![64; ranks * experts]).unwrap();
        let run = |policy: &dyn Policy| {
            let mut placement = policy.start(&setup, &counts).unwrap();
            let mut total = 0.0;
            for step in 0..5 {
                let input = Input { step, counts: &counts, demand: None, placement: &placement };
                let plan = policy.plan(&setup, &input).unwrap();
                total += plan.predicted.total_s();
                placement = plan.next;
            }
            total
        };
        let (ours, fixed) = (run(&Lrmoe::default()), run(&crate::plan::policy::Fixed { waves: true }));
        assert!(ours <= fixed * 1.01, "{experts} x {ranks}: {ours} {fixed}");
    }
}

#[test]
fn refuses_setups_changed_for_the_worse() {
    let case = random_case(&mut Philox::new(17, 0), 8, 4);
    let refused = |change: &dyn Fn(&mut Setup)| {
        let mut setup = case.setup.clone();
        change(&mut setup);
        assert!(Case { setup: setup.clone(), ..case.clone() }.plan().is_err());
        assert!(
            Lrmoe::default()
                .decide(&setup, &Input { step: 0, counts: &case.counts, demand: None, placement: &case.placement })
                .is_err()
        );
    };
    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        refused(&|setup| setup.cluster.gemm_flops = bad);
        refused(&|setup| setup.cluster.intra.latency_s = bad);
        refused(&|setup| setup.options.slack = bad);
        refused(&|setup| setup.options.alpha = bad);
    }
    refused(&|setup| setup.cluster.ranks += 1);
    refused(&|setup| setup.cluster.ranks_per_node = 0);
    refused(&|setup| setup.config.num_experts += 1);
    refused(&|setup| setup.layers = 0);
    let demand = Demand::uniform(&vec![1; case.counts.experts() + 1]);
    let input = Input { step: 0, counts: &case.counts, demand: Some(&demand), placement: &case.placement };
    assert!(Lrmoe::default().plan(&case.setup, &input).is_err());
}

#[test]
fn plans_read_back_from_what_they_write() {
    let mut rng = Philox::new(18, 0);
    for _ in 0..50 {
        let case = random_case(&mut rng, 12, 5);
        let plan = case.plan().unwrap();
        let json = serde_json::to_string(&plan).unwrap();
        let read: Plan = serde_json::from_str(&json).unwrap();
        assert_eq!((read.hash(), &read), (plan.hash(), &plan));
        assert!(plan.to_string().contains("lrmoe"));
        if let Some(route) = plan.forward.first() {
            let mut broken = plan.clone();
            broken.forward[0].pairs = route.pairs + 1;
            assert_ne!(broken.hash(), plan.hash());
            let refused = |plan: &Plan| serde_json::from_str::<Plan>(&serde_json::to_string(plan).unwrap()).is_err();
            assert!(refused(&broken));
            assert!(refused(&Plan { wave_rows: 0, ..plan.clone() }));
            assert!(refused(&Plan { next_s: Some(-1.0), ..plan.clone() }));
            let reversed: Vec<Route> = plan.forward.iter().rev().copied().collect();
            assert_eq!(refused(&Plan { forward: reversed.clone(), ..plan.clone() }), reversed != plan.forward);
        }
    }
}

/// At the same number of instances, made for the same pairs, on a cluster where nothing but arithmetic takes time.
#[test]
fn busiest_rank_is_never_worse_than_eplb() {
    let skewed = [
        Workload::HotSet,
        Workload::HotRank,
        Workload::SpreadHot,
        Workload::Rotating,
        Workload::Burst,
        Workload::Drifting,
    ];
    for (experts, ranks, top_k, tokens_per_rank) in [(32, 8, 4, 512), (128, 16, 8, 512), (128, 64, 8, 128)] {
        for (&workload, ownership) in Workload::ALL.iter().flat_map(|w| Ownership::ALL.map(|o| (w, o))) {
            let mut setup = setup(experts, top_k, ranks, 8);
            let fast = Link { bytes_per_s: 1e30, latency_s: 0.0 };
            setup.cluster = ClusterSpec { copy_bytes_per_s: 1e30, intra: fast, inter: fast, ..setup.cluster };
            setup.options.retention = Retention::Fraction(1.0);
            setup.ownership = Some(ownership);
            let mut better = 0;
            for seed in 1..=3 {
                let batch = Batch { ranks, experts, top_k, tokens_per_rank };
                let counts = workload.counts(&batch, seed, 30).unwrap();
                let settled = |policy: &dyn Policy| {
                    let mut placement = policy.start(&setup, &counts).unwrap();
                    let input = Input { step: 0, counts: &counts, demand: None, placement: &placement };
                    placement = policy.plan(&setup, &input).unwrap().next;
                    let input = Input { step: 1, counts: &counts, demand: None, placement: &placement };
                    policy.plan(&setup, &input).unwrap()
                };
                let rival = settled(&Eplb::default());
                let ours = settled(&Lrmoe::new(Some(rival.placement.instances())));
                assert_eq!(ours.placement.instances(), rival.placement.instances());
                let busiest = |plan: &Plan| plan.forward_rows().into_iter().max();
                let says = format!("{workload} {ownership:?} {experts} x {ranks}, seed {seed}");
                assert!(busiest(&ours) <= busiest(&rival), "{says}: {ours}\n{rival}");
                better += usize::from(busiest(&ours) < busiest(&rival));
            }
            assert!(!skewed.contains(&workload) || better > 0, "{workload} {ownership:?} {experts} x {ranks}");
        }
    }
}

/// The hash is part of what ranks exchange, so it may not change unnoticed.
#[test]
fn hash_is_what_it_was() {
    let setup = setup(4, 1, 2, 2);
    let counts = Counts::new(&[[6, 1, 3, 2], [2, 9, 1, 4]]).unwrap();
    let placement = Placement::contiguous(4, 2, Ownership::Home).unwrap();
    let input = Input { step: 0, counts: &counts, demand: None, placement: &placement };
    let plan = crate::plan::policy::Fixed { waves: false }.plan(&setup, &input).unwrap();
    assert_eq!(plan.hash(), 9_089_353_700_076_855_853);
}
