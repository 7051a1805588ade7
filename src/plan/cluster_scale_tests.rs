//! Ratios of times on the real machine and on the scaled one.

use super::*;
use crate::plan::cost::{CostModel, Pass, Predicted, Priced, RankWork};
use crate::plan::counts::Counts;
use crate::plan::route::{self, Sources};
use crate::plan::{Activations, Ownership, Placement, Setup, optimizer_exchange, selection_exchange};

fn close(got: f64, expected: f64) {
    assert!((got - expected).abs() <= 1e-12 * expected.abs(), "{got} {expected}");
}

#[test]
fn scaling_keeps_every_ratio_of_times() {
    let spec = ClusterSpec::preset("8xh100").unwrap();
    let times = |spec: &ClusterSpec| {
        [
            1e12 / spec.gemm_flops,
            1e9 / spec.copy_bytes_per_s,
            1e9 / spec.intra.bytes_per_s,
            1e9 / spec.inter.bytes_per_s,
            1e9 / spec.host_bytes_per_s,
            spec.intra.latency_s,
            spec.inter.latency_s,
            spec.launch_s,
        ]
    };
    for flops in [1e9, 3.7e11, 2e15] {
        let scaled = spec.scaled_to(flops).unwrap();
        let factor = spec.gemm_flops / flops;
        for (now, then) in times(&scaled).iter().zip(times(&spec)) {
            assert!((now / then / factor - 1.0).abs() < 1e-14);
        }
        assert_eq!((scaled.gemm_flops, scaled.bytes_per_rank), (flops, spec.bytes_per_rank));
        // A model stands for itself.
        let model = MoeConfig::new(2048, 768, 128, 8);
        let same = spec.scaled_to_model(&model, &model, flops).unwrap();
        assert_eq!((same.cluster, same.time_scale, same.token_scale), (scaled, factor, 1.0));
    }
    for flops in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-310] {
        assert!(spec.scaled_to(flops).is_err(), "{flops}");
    }
}

/// Experts of a layer on two nodes of four ranks.
const EXPERTS: usize = 12;
const TOP_K: usize = 3;

fn machine() -> ClusterSpec {
    ClusterSpec::preset("8xh100").unwrap().with_ranks(8, 4)
}

/// What varies between steps.
#[derive(Debug, Clone, Copy)]
struct Case {
    activations: Activations,
    ownership: Ownership,
    selects: bool,
    waves: u64,
    /// Pairs are these times 16 or so.
    load: u32,
}

impl Case {
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for (ownership, activations) in Ownership::ALL.into_iter().flat_map(|o| Activations::ALL.map(|a| (o, a))) {
            // Few pairs leave the GEMMs waiting for weights, many do not.
            for (selects, waves, load) in [(false, 1, 1), (true, 3, 1), (false, 2, 500), (true, 1, 500)] {
                cases.push(Self { activations, ownership, selects, waves, load });
            }
        }
        cases
    }

    /// The step with `pairs` times the pairs, less what the gate takes.
    fn predict(&self, setup: &Setup, pairs: u32) -> Predicted {
        let n = |i: u32| pairs * self.load * (i * 7 % 11 + u32::from(i.is_multiple_of(5)) * 40);
        let counts = Counts::from_flat(8, EXPERTS, (0..8 * EXPERTS as u32).map(n).collect()).unwrap();
        let before = Placement::contiguous(EXPERTS, 8, self.ownership).unwrap();
        let hosts: Vec<Vec<u32>> =
            (0..EXPERTS as u32).map(|e| vec![before.home()[e as usize], (e * 5 + 3) % 8]).collect();
        let hosts: Vec<Vec<u32>> = hosts.into_iter().map(|h| if h[0] == h[1] { vec![h[0]] } else { h }).collect();
        let now = Placement::new(8, &hosts, before.home().to_vec(), self.ownership).unwrap();
        let moved: Vec<u32> = hosts.iter().map(|h| h[h.len() - 1]).collect();
        let next = Placement::new(8, &hosts, moved, self.ownership).unwrap();
        let placements = [&before, &now, &next];

        let total = counts.total();
        let tokens = counts.per_rank().iter().max().unwrap() / TOP_K as u64;
        let sources = Sources::new(counts, 4).unwrap();
        // Each expert's pairs in two even parts: no rounding that depends on their number.
        let even = |(e, r): (usize, usize)| {
            let all = sources.counts().per_expert()[e];
            let half = all / 2;
            match now.hosts(e).len() {
                1 => all,
                _ if now.hosts(e)[0] as usize == r => half,
                _ => all - half,
            }
        };
        let loads: Vec<u32> = now.iter().map(even).collect();
        let work = RankWork::new(&now, &loads, route::traffic(&sources, &now, &loads).unwrap());
        let pass = Pass { work: &work, waves: self.waves };
        let model = CostModel::new(setup).unwrap();
        let mut times = model.predict(&Priced {
            forward: pass,
            backward: pass,
            pairs: total,
            tokens,
            activations: self.activations,
            selects: self.selects,
            placements,
        });
        let gate = gate(setup, tokens);
        times.forward_s -= gate;
        times.backward_s -= 2.0 * gate;
        assert_eq!(times.optimizer_exchange_s, optimizer_exchange(setup, placements).unwrap().seconds);
        assert!(times.exchange_s > 0.0 && times.optimizer_exchange_s > 0.0);
        times
    }
}

fn gate(setup: &Setup, tokens: u64) -> f64 {
    2.0 * (tokens as usize * setup.config.hidden_size * EXPERTS) as f64 / setup.cluster.gemm_flops
}

fn setups(real: &MoeConfig, small: &MoeConfig) -> ([Setup; 2], ScaledCluster) {
    let scaled = machine().scaled_to_model(real, small, 3.3e10).unwrap();
    assert_eq!(scaled.cluster.gemm_flops, 3.3e10);
    assert_eq!(scaled.cluster.bytes_per_rank, machine().bytes_per_rank);
    let mut setups =
        [Setup::new(real.clone(), machine()).unwrap(), Setup::new(small.clone(), scaled.cluster.clone()).unwrap()];
    setups.iter_mut().for_each(|setup| setup.optimizer_offload = true);
    setups[1].counter_scale = scaled.counter_scale;
    (setups, scaled)
}

#[test]
fn a_small_model_of_the_same_proportions_keeps_every_share() {
    let (real, small) = (MoeConfig::new(4096, 1536, EXPERTS, TOP_K), MoeConfig::new(256, 96, EXPERTS, TOP_K));
    let ([there, here], scaled) = setups(&real, &small);
    close(scaled.token_scale, 1.0 / 16.0);
    for case in Case::all() {
        let (there, here) = (case.predict(&there, 32), case.predict(&here, 2));
        let times = |p: &Predicted| [p.forward_s, p.backward_s, p.exchange_s, p.optimizer_exchange_s, p.total_s()];
        for (there, here) in times(&there).into_iter().zip(times(&here)) {
            // What is taken away for the gate leaves more rounding than 1e-12.
            assert!((here / (there * scaled.time_scale) - 1.0).abs() < 1e-10, "{case:?} {there} {here}");
        }
    }
    // Time without bytes or operations: waves and collectives.
    for (there, here) in [
        (there.cluster.launch_s, here.cluster.launch_s),
        (there.cluster.intra.latency_s, here.cluster.intra.latency_s),
        (there.cluster.inter.latency_s, here.cluster.inter.latency_s),
    ] {
        close(here, there * scaled.time_scale);
    }
}

#[test]
fn another_proportion_keeps_the_shares_of_both_passes_together() {
    let (real, small) = (MoeConfig::new(4096, 1408, EXPERTS, TOP_K), MoeConfig::new(192, 88, EXPERTS, TOP_K));
    let ([there, here], scaled) = setups(&real, &small);
    close(scaled.token_scale, 1.0 / 16.0);
    for case in Case::all().into_iter().filter(|case| !case.selects && case.load > 1) {
        let (there, here) = (case.predict(&there, 32), case.predict(&here, 2));
        let scale = |there: f64, here: f64| here / (there * scaled.time_scale) - 1.0;
        assert!(scale(there.exchange_s, here.exchange_s).abs() < 1e-10, "{case:?}");
        assert!(scale(there.optimizer_exchange_s, here.optimizer_exchange_s).abs() < 1e-10, "{case:?}");
        let passes = scale(there.forward_s + there.backward_s, here.forward_s + here.backward_s);
        match case.activations {
            Activations::Stash => assert!(passes.abs() < 1e-10, "{case:?}"),
            // 18 I + 4 H values instead of 16 I + 4 H.
            Activations::Recompute => assert!(passes.abs() < 0.01, "{case:?} {passes}"),
        }
    }
}

#[test]
fn of_what_depends_on_experts_alone_the_gate_does_not_shrink() {
    let (real, small) = (MoeConfig::new(4096, 1408, EXPERTS, TOP_K), MoeConfig::new(192, 88, EXPERTS, TOP_K));
    let ([there, here], scaled) = setups(&real, &small);
    let g = 16.0;
    close(gate(&here, 1000), gate(&there, 16_000) * scaled.time_scale * g);
    let counters = |setup: &Setup| selection_exchange(setup).unwrap();
    close(counters(&here), counters(&there) * scaled.time_scale);
    let unscaled = Setup { counter_scale: 1.0, ..here.clone() };
    assert!(counters(&unscaled) > 2.0 * counters(&here));
}

#[test]
fn refuses_models_that_are_not_alike() {
    let real = MoeConfig::new(4096, 1536, EXPERTS, TOP_K);
    let scale = |small: MoeConfig, flops: f64| machine().scaled_to_model(&real, &small, flops).unwrap_err().to_string();
    let cases = [
        (scale(MoeConfig::new(256, 96, 8, TOP_K), 1e10), "small.num_experts` is 8; allowed: 12"),
        (scale(MoeConfig::new(256, 96, EXPERTS, 2), 1e10), "small.num_experts_per_tok` is 2"),
        (scale(MoeConfig::new(256, 0, EXPERTS, TOP_K), 1e10), "moe_intermediate_size"),
        (scale(MoeConfig::new(0, 96, EXPERTS, TOP_K), 1e10), "hidden_size"),
        (scale(real.clone(), f64::NAN), "gemm_flops"),
        (scale(real.clone(), 0.0), "gemm_flops"),
        (scale(real.clone(), 1e-200), "cluster."),
    ];
    for (error, says) in cases {
        assert!(error.contains(says), "{error}, not {says}");
    }
}
