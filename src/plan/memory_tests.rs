use proptest::prelude::*;

use super::*;
use crate::DType;
use crate::config::MoeConfig;
use crate::plan::waves::waves;
use crate::plan::{ClusterSpec, PlanOptions, Retention, RouterGradient};

const MODES: [(Ownership, Activations); 4] = [
    (Ownership::Home, Activations::Stash),
    (Ownership::Home, Activations::Recompute),
    (Ownership::Sharded, Activations::Stash),
    (Ownership::Sharded, Activations::Recompute),
];

fn rank_memory(
    setup: &Setup,
    ownership: Ownership,
    activations: Activations,
    load: &RankLoad,
    wave_rows: u64,
) -> Result<RankMemory> {
    MemoryModel::new(setup, ownership, activations)?.rank(load, wave_rows)
}

fn largest_wave(
    setup: &Setup,
    ownership: Ownership,
    activations: Activations,
    loads: &[RankLoad],
    ceiling: u64,
) -> Result<u64> {
    MemoryModel::new(setup, ownership, activations)?.largest_wave(loads, ceiling)
}

fn small(ranks: usize, budget: u64) -> Setup {
    let config = MoeConfig { shared_expert_intermediate_size: 12, ..MoeConfig::new(32, 16, 8, 2) };
    let cluster = ClusterSpec { bytes_per_rank: budget, ..ClusterSpec::preset("8xa100").unwrap() };
    Setup::new(config, cluster.with_ranks(ranks, 8)).unwrap()
}

fn model(setup: &Setup, mode: (Ownership, Activations)) -> MemoryModel {
    MemoryModel::new(setup, mode.0, mode.1).unwrap()
}

fn load() -> impl Strategy<Value = RankLoad> {
    (0_u64..2000, 0_u64..=100, 0_u64..=100, 0_u64..5, 0_u64..4, 0_u64..5000, 0_u64..5000, any::<bool>()).prop_map(
        |(tokens, pairs, retained, owned, replicas, forward_rows, backward_rows, drops)| {
            let pairs = 2 * tokens * pairs / 100;
            let retained = pairs * retained / 100;
            RankLoad { tokens, pairs, owned, replicas, forward_rows, backward_rows, retained, drops }
        },
    )
}

proptest! {
    /// What the search for a wave and its short cut over many ranks rest on.
    #[test]
    fn needs_grow_with_waves_and_with_every_field(
        a in load(), b in load(), wave in 0_u64..4000, more in 0_u64..4000, mode in 0_usize..4, exact: bool, shared: bool,
        layers in 1_usize..4,
    ) {
        let mut setup = small(4, 1 << 30);
        setup.layers = layers;
        if !shared {
            setup.config.shared_expert_intermediate_size = 0;
        }
        setup.router_gradient = if exact { RouterGradient::Exact } else { RouterGradient::Estimated };
        let model = model(&setup, MODES[mode]);
        let of = |load: &RankLoad, wave| model.peak(load, wave).unwrap();
        prop_assert!(of(&a, wave).total() <= of(&a, wave + more).total());
        prop_assert!(of(&a, wave).total() <= of(&a.max(&b), wave).total());
        prop_assert!(of(&b, wave).total() <= of(&a.max(&b), wave).total());
        let memory = of(&a, wave);
        for (used, reserved) in memory.used.iter().zip(memory.reserved) {
            prop_assert!(*used <= reserved);
        }
    }

    /// The search against trying every wave, and what it says where there is none.
    #[test]
    fn finds_the_largest_wave(
        loads in proptest::collection::vec(load(), 1..7), ceiling in 0_u64..1200, budget in 200_000_u64..4_000_000, mode in 0_usize..4,
    ) {
        let setup = small(loads.len(), budget);
        let model = model(&setup, MODES[mode]);
        let needs = |wave: u64| loads.iter().map(|load| model.rank(load, wave).unwrap().total()).max().unwrap();
        let smallest = smallest_wave(loads.len() as u64, ceiling);
        let want = (smallest..=ceiling).rev().find(|&wave| needs(wave) <= budget);
        let few = model.fewest_waves(&loads, ceiling);
        match model.largest_wave(&loads, ceiling) {
            Ok(wave) => {
                prop_assert_eq!(Some(wave), want);
                let (few, ranks) = (few.unwrap(), loads.len() as u64);
                prop_assert!(smallest <= few && few <= wave);
                prop_assert_eq!(waves(ceiling, few, ranks).unwrap(), waves(ceiling, wave, ranks).unwrap());
            }
            Err(Error::Infeasible { rank, needed, budget: limit, smallest: enough, detail }) => {
                prop_assert_eq!(want, None);
                prop_assert_eq!(few.unwrap_err(), model.largest_wave(&loads, ceiling).unwrap_err());
                let memory = model.rank(&loads[rank], smallest).unwrap();
                prop_assert_eq!((needed, limit, enough), (memory.total(), budget, needs(smallest)));
                let parts: u64 = detail.split(", ").map(|part| part.split_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
                prop_assert_eq!(parts, needed);
                let with = |budget| largest_wave(&small(loads.len(), budget), MODES[mode].0, MODES[mode].1, &loads, ceiling);
                prop_assert!(with(enough).is_ok());
                prop_assert!(with(enough - 1).is_err());
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        }
    }
}

/// Weights and optimizer state of whole models, against their published sizes: 54 GiB of expert weights, and 45 layers of 4.125 GiB.
#[test]
fn published_models() {
    const GIB: u64 = 1 << 30;
    for (name, layers, weights, router) in
        [("qwen3-30b-a3b", 48, 54 * GIB, 128 * 2048), ("glm-4.5-air", 45, 45 * 4_224 * (GIB >> 10), 128 * 4096)]
    {
        let setup = Setup::new(MoeConfig::preset(name).unwrap(), ClusterSpec::preset("8xh100").unwrap()).unwrap();
        let shared = setup.config.shared_expert_parameters().unwrap();
        let bias = if setup.config.correction_bias { 128 * 4 } else { 0 };
        let whole = RankLoad { owned: 128, ..RankLoad::default() };
        let memory = rank_memory(&setup, Ownership::Home, Activations::Stash, &whole, 4096).unwrap();
        let of = |category: Category| memory.reserved[category as usize];
        assert_eq!(of(Category::Weights), weights + layers * (2 * (router + shared) + bias), "{name}");
        assert_eq!(of(Category::Gradients), 2 * weights + layers * 4 * (router + shared), "{name}");
        assert_eq!(of(Category::Optimizer), 6 * weights + layers * 12 * (router + shared), "{name}");
        // An eighth on each rank, sharded: no rounding, as 8 divides everything.
        let eighth = RankLoad { owned: 16, replicas: 2, ..RankLoad::default() };
        let memory = rank_memory(&setup, Ownership::Sharded, Activations::Stash, &eighth, 4096).unwrap();
        let of = |category: Category| memory.reserved[category as usize];
        assert_eq!(of(Category::Weights), weights / 8 + layers * (2 * (router + shared) + bias), "{name}");
        assert_eq!(of(Category::Gradients), 2 * weights / 8 * 2 + layers * 4 * (router + shared), "{name}");
        assert_eq!(of(Category::Optimizer), 6 * weights / 8 + layers * 12 * (router + shared), "{name}");
        assert_eq!(of(Category::Replicas), 3 * weights / 64, "{name}");
    }
}

#[test]
fn shards_and_homes() {
    // 8 experts of 1536 parameters over 5 ranks: 2457.6 each.
    let mut setup = small(5, 1 << 30);
    setup.dtype = DType::F32;
    let load = RankLoad { owned: 2, ..RankLoad::default() };
    let of = |setup: &Setup, ownership, category: Category| {
        rank_memory(setup, ownership, Activations::Stash, &load, 64).unwrap().reserved[category as usize]
    };
    let replicated = 8 * 32 + 3 * 32 * 12; // router and shared expert
    let gradients = 4 * (2 * 1536 + replicated);
    assert_eq!(of(&setup, Ownership::Home, Category::Optimizer), 8 * (2 * 1536 + replicated));
    assert_eq!(of(&setup, Ownership::Sharded, Category::Optimizer), 8 * (2458 + replicated));
    assert_eq!(of(&setup, Ownership::Home, Category::Gradients), gradients);
    assert_eq!(of(&setup, Ownership::Sharded, Category::Gradients), gradients + 4 * 2458);
    setup.dtype = DType::F16;
    assert_eq!(of(&setup, Ownership::Home, Category::Optimizer), 12 * (2 * 1536 + replicated));
    setup.optimizer_offload = true;
    for ownership in Ownership::ALL {
        assert_eq!(of(&setup, ownership, Category::Optimizer), 0);
    }
    // One rank holds every shard: there is nothing to gather.
    let alone = small(1, 1 << 30);
    for activations in Activations::ALL {
        let load = RankLoad::alone(8, 2, 100, 100);
        let [home, sharded] = [Ownership::Home, Ownership::Sharded]
            .map(|ownership| rank_memory(&alone, ownership, activations, &load, 200).unwrap());
        assert_eq!(home, sharded);
    }
}

/// Without an order there are no keys, and no sums beside the counters.
#[test]
fn selections_without_order_need_less() {
    let load = RankLoad { drops: true, ..RankLoad::alone(8, 2, 500, 700) };
    for (ranks, sums) in [(1, 0), (4, 8 * 256 * 8)] {
        let setup = small(ranks, 1 << 30);
        let bytes = |ordered| -> u64 {
            let model = model(&setup, (Ownership::Home, Activations::Stash)).ordered(ordered);
            model.buffers(&load, 100).unwrap().iter().map(|b| b.bytes).sum()
        };
        assert_eq!(bytes(true), bytes(false) + 4 * 500 + sums);
    }
}

/// The exchange of one wave, added up by hand: H 32, bf16 rows both ways.
#[test]
fn exchange_of_a_wave() {
    let setup = small(4, 1 << 30);
    let load = RankLoad {
        tokens: 500,
        pairs: 1000,
        owned: 2,
        replicas: 1,
        forward_rows: 700,
        backward_rows: 300,
        retained: 450,
        drops: true,
    };
    let exchange = |activations, span, wave| -> u64 {
        let buffers = model(&setup, (Ownership::Home, activations)).buffers(&load, wave).unwrap();
        let some = buffers.iter().filter(|b| b.span == span && b.category == Category::Exchange);
        some.map(|b| b.bytes).sum()
    };
    let (row, counts, keys) = (32 * 2, 4 * 8 * 4, 8 * 256 * (4 + 8));
    for activations in Activations::ALL {
        let stash = activations == Activations::Stash;
        for wave in [64_u64, 400, 800, 5000] {
            let (sent, computed) = (wave.min(1000), wave.min(700));
            // Out: row, index, weight; back: row, norm.
            let want = (sent + computed) * (row + 8 + row + 4) + counts;
            assert_eq!(exchange(activations, Span::Forward, wave), want);
            let (sent, computed) = (wave.min(450), wave.min(300));
            let extra = if stash { 4 } else { row };
            let out = (sent + computed) * (row + 8 + extra + row);
            let want = out + 4 * sent + 4 * 450 + counts + keys + 9 * 4;
            assert_eq!(exchange(activations, Span::Backward, wave), want);
        }
        // What a stash keeps does not depend on the wave; without it no pair leaves a row behind.
        let saved = |wave| -> u64 {
            let buffers = model(&setup, (Ownership::Home, activations)).buffers(&load, wave).unwrap();
            buffers
                .iter()
                .filter(|b| b.span == Span::Saved && ["ab", "x_rows"].contains(&b.name))
                .map(|b| b.bytes)
                .sum()
        };
        assert_eq!(
            (saved(64), saved(5000)),
            if stash { (700 * (2 * 16 * 4 + row), 700 * (128 + row)) } else { (0, 0) }
        );
    }
}

#[test]
fn scoring_follows_the_retention() {
    let mut setup = small(1, 1 << 30);
    let load = RankLoad::alone(8, 2, 100, 200);
    let scores = |setup: &Setup| {
        let buffers = model(setup, MODES[0]).buffers(&load, 200).unwrap();
        buffers.iter().any(|buffer| buffer.name == "score")
    };
    assert!(scores(&setup));
    setup.options = PlanOptions { retention: Retention::Fraction(1.0), ..PlanOptions::default() };
    assert!(!scores(&setup));
}

#[test]
fn refuses_what_contradicts_itself() {
    let setup = small(2, 1 << 30);
    let model = model(&setup, MODES[0]);
    let good = RankLoad { tokens: 10, pairs: 20, owned: 4, ..RankLoad::default() };
    assert_eq!(model.largest_wave(&[good, good], 300).unwrap(), 300);
    for (bad, field) in [
        (RankLoad { pairs: 21, ..good }, "pairs"),
        (RankLoad { retained: 21, ..good }, "retained"),
        (RankLoad { replicas: 5, ..good }, "replicas"),
    ] {
        let refused = model.largest_wave(&[good, bad], 300).unwrap_err().to_string();
        assert!(refused.contains("rank 1") && refused.contains(field), "{refused}");
        assert!(model.rank(&bad, 300).is_err() && model.buffers(&bad, 300).is_err());
    }
    assert!(matches!(model.largest_wave(&[good], 300), Err(Error::Shape { .. })));
    let absurd = RankLoad { tokens: u64::MAX, ..good };
    assert!(matches!(model.rank(&absurd, 300), Err(Error::Overflow { .. })));
    assert!(matches!(model.largest_wave(&[good, absurd], 300), Err(Error::Overflow { .. })));
}

#[test]
fn infeasible_says_what_is_missing() {
    let setup = small(2, 50_000);
    let loads =
        [RankLoad { owned: 4, ..RankLoad::default() }, RankLoad { owned: 4, replicas: 1, ..RankLoad::default() }];
    let error = largest_wave(&setup, Ownership::Home, Activations::Stash, &loads, 1000).unwrap_err();
    let message = error.to_string();
    let Error::Infeasible { rank, needed, budget, smallest, detail } = error else { panic!("{message}") };
    assert_eq!((rank, budget, smallest), (1, 50_000, needed));
    assert!(detail.contains("replicas 9216"), "{detail}");
    for part in [format!("rank 1 needs {needed}"), format!("{} more", needed - 50_000), "50000".into(), detail] {
        assert!(message.contains(&part), "{message}");
    }
}
