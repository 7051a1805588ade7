//! Cells made up for tests.

use std::collections::BTreeMap;

use lrmoe::memory::Category;
use lrmoe::plan::ClusterSpec;
use serde_json::json;

use crate::experiment::cell::{Cell, Cost, Event, Key, Memory, Point, PolicyRun, Protocol, Sampled, Timeline};

/// Planned steps of every cell here.
pub(crate) const STEPS: u64 = 100;

/// Phases with the seconds a step of their busiest and of their mean rank.
const PHASES: [(&str, f64, f64); 12] = [
    ("gate", 0.01, 0.01),
    ("shared", 0.02, 0.02),
    ("forward", 0.30, 0.20),
    ("combine", 0.03, 0.02),
    ("score", 0.0, 0.0),
    ("select", 0.0, 0.0),
    ("compact", 0.01, 0.01),
    ("recompute", 0.10, 0.08),
    ("dgrad", 0.25, 0.20),
    ("wgrad", 0.30, 0.20),
    ("router_backward", 0.01, 0.01),
    ("optimizer", 0.05, 0.05),
];

/// A run of [`STEPS`] steps, validated at every fifth. Its loss falls from 5 towards 2 as `1 / (1 + step / 10)`, `lag` above that
/// from the first step on; its phases cost `speed` times the usual.
pub(crate) fn run(policy: &str, activations: &str, trajectory: &str, speed: f64, lag: f64) -> PolicyRun {
    let cost = |step: u64| {
        let steps = step as f64;
        let phases = |of: fn(&(&str, f64, f64)) -> f64| {
            PHASES.iter().map(|phase| (phase.0.to_owned(), of(phase) * speed * steps)).collect::<BTreeMap<_, _>>()
        };
        Cost {
            phases: phases(|p| p.1),
            mean: phases(|p| p.2),
            exchange_s: [0.4 * steps, 0.2 * steps, 0.1 * steps],
            optimizer_exchange_s: [0.2 * steps, 0.1 * steps, 0.05 * steps],
            plan_s: 0.01 * steps,
        }
    };
    let point = |step: u64| {
        let lag = if step == 0 { 0.0 } else { lag };
        Point { step, val_loss: loss(step) + lag, cost: cost(step) }
    };
    let memory = |unit: u64| {
        let peak = Category::ALL.map(|category| (category.to_string(), unit * (1 + category as u64)));
        Memory { peak_bytes: peak.into(), subtotal_bytes: 20 * unit }
    };
    PolicyRun {
        policy: policy.into(),
        activations: activations.into(),
        trajectory: trajectory.into(),
        steps: STEPS,
        curve: validated().map(point).collect(),
        routed_pairs: 8000,
        backward_pairs: if trajectory == "all" { 8000 } else { 4000 },
        dropped_pairs: 0,
        busiest_over_mean_forward: 1.5 * speed,
        busiest_over_mean_backward: 1.25 * speed,
        replicas_mean: 4.0,
        bytes_inter_node: 1e9,
        waves: 1,
        memory: memory(1 << 20),
        real_memory: memory(1 << 30),
        sampled: Sampled { count: 10, measured_s: 2.0, fitted_s: 2.1 },
        infeasible: None,
    }
}

/// Of the plain run.
fn loss(step: u64) -> f64 {
    2.0 + 3.0 / (1.0 + step as f64 / 10.0)
}

fn validated() -> impl Iterator<Item = u64> {
    (0..=STEPS / 5).map(|i| 5 * i)
}

/// A policy that does not fit its budget.
pub(crate) fn infeasible(policy: &str, activations: &str) -> PolicyRun {
    PolicyRun {
        steps: 0,
        curve: Vec::new(),
        routed_pairs: 0,
        backward_pairs: 0,
        busiest_over_mean_forward: 0.0,
        busiest_over_mean_backward: 0.0,
        replicas_mean: 0.0,
        bytes_inter_node: 0.0,
        waves: 0,
        memory: Memory::default(),
        real_memory: Memory::default(),
        sampled: Sampled::default(),
        infeasible: Some("needs 3 MiB more than its budget".into()),
        ..run(policy, activations, "all", 1.0, 0.0)
    }
}

/// Under Stash `fixed` does not fit. `lrmoe` is faster and a little later than the plain run; under Recompute it never comes down to
/// the targets. Every seed is a little slower than the one before.
pub(crate) fn cell(seed: u64) -> Cell {
    let slower = 1.0 + 0.01 * seed as f64;
    let all = |policy, mode, speed: f64| run(policy, mode, "all", speed * slower, 0.0);
    let mut runs = vec![infeasible("fixed", "stash"), all("fixed", "recompute", 1.3)];
    for (mode, lag) in [("stash", 0.01), ("recompute", 9.0)] {
        runs.extend([
            all("fixed-waves", mode, 1.2),
            all("symi", mode, 1.0),
            run("lrmoe-1copy", mode, "lrmoe", 0.8, lag),
            run("lrmoe", mode, "lrmoe", 0.7, lag),
        ]);
    }
    runs[2].real_memory.subtotal_bytes = 40 << 30;
    let key = Key { preset: "qwen3-30b-a3b".into(), balancing: "usual".into(), tokens: 4608, seed };
    let machine = json!({"cpu": "test", "threads": 2, "arch": "x86_64", "os": "linux"});
    let fit = [("forward".to_owned(), [1.01, 0.03]), ("wgrad".to_owned(), [0.98, 0.05])].into();
    let timelines = vec![timeline("symi", "stash"), timeline("lrmoe", "recompute")];
    let plain = validated().map(|step| (step, loss(step))).collect();
    Cell { key, protocol: protocol(), machine, plain, runs, fit, timelines }
}

fn protocol() -> Protocol {
    let gpu = |bytes_per_s| lrmoe::plan::cluster::Link { bytes_per_s, latency_s: 1e-5 };
    let scaled = ClusterSpec {
        ranks: 2,
        ranks_per_node: 1,
        bytes_per_rank: 1 << 30,
        host_reserved_bytes: 0,
        gemm_flops: 1e10,
        copy_bytes_per_s: 1e10,
        intra: gpu(1e9),
        inter: gpu(1e8),
        host_bytes_per_s: 1e9,
        launch_s: 1e-5,
    };
    Protocol {
        ranks: 2,
        ranks_per_node: 1,
        cluster: "a100-100g".into(),
        scaled,
        token_scale: 0.0625,
        time_scale: 0.5,
        counter_scale: 0.01,
        budget: Some(256 << 20),
        real_layers: 48,
        symi_slots: 8,
        eplb_slots: 4,
        steps: STEPS,
        layers: 2,
        hidden: 64,
        intermediate: 32,
        experts: 16,
        top_k: 2,
        policies: "all".into(),
        activations: "stash,recompute".into(),
        select: "unbiased".into(),
        retain: "0.5".into(),
        alpha: 1.0,
        slack: 0.05,
        q_min: 8,
        smoothing: 0.9,
        score_floor: 0.25,
        time_every: 10,
        corpus: "0123456789abcdef".into(),
    }
}

/// Two ranks, the second of which is busier; ranks wait for each other after each phase.
fn timeline(policy: &str, activations: &str) -> Timeline {
    let mut events = Vec::new();
    let mut start_s = 0.0;
    for (name, source, seconds) in [
        ("gate", "measured", [1e-3, 1e-3]),
        ("exchange", "modelled", [2e-3, 2e-3]),
        ("forward", "measured", [3e-3, 7e-3]),
    ] {
        for (rank, seconds) in seconds.into_iter().enumerate() {
            let (name, source) = (name.to_owned(), source.to_owned());
            events.push(Event { rank, name, source, start_s, seconds, rows: 10 + rank as u64 });
        }
        start_s += seconds[1];
    }
    Timeline { policy: policy.into(), activations: activations.into(), step: 50, layer: 1, events }
}
