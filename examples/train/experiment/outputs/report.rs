//! report.json: every cell as it is, and what the seeds say together.

use lrmoe::memory::Category;
use serde_json::{Map, Value, json};

use super::attribution;
use super::groups::{Group, at_target, groups, has_run};
use super::summary;
use super::targets::{self, LAST, Reached};
use crate::experiment::cell::{Cell, Cost, Memory, NETWORKS, PLANNED, PolicyRun, TARGETS};

/// Phases of the forward pass; those of the backward pass are all others but the optimizer's.
const FORWARD: [&str; 4] = ["gate", "shared", "forward", "combine"];
const OPTIMIZER: &str = "optimizer";
/// Where numbers come from, by group.
const SOURCES: [(&str, &str); 12] = [
    ("steps, losses, curves, pairs", "measured: counted in training"),
    ("busiest_over_mean, replicas, waves", "measured: counted in the plans and routes of every step"),
    ("moe_forward_s, moe_backward_s, optimizer_s", "measured (fit): a fit to measured shares of sampled steps"),
    ("sampled.measured_s", "measured: shares executed and timed"),
    ("sampled.fitted_s, fit", "measured (fit): what the fit says of the very shares that were measured"),
    ("plan_s", "measured (scaled): on this machine, times time_scale of the protocol"),
    ("exchange_s, optimizer_exchange_s", "modelled: bytes of the plans over the scaled cluster's links"),
    ("bytes_inter_node", "modelled: bytes of the plans"),
    ("peak_bytes, subtotal_bytes", "modelled: reserved by the plans"),
    ("real_peak_bytes, real_subtotal_bytes", "modelled: what the same plans reserve in the real model, all its layers"),
    ("moe_s", "measured (fit) + measured (scaled) + modelled: the sum of all seconds"),
    (
        "moe_s_over_symi_corrected",
        "as moe_s, with every policy's compute times its own sampled.measured_s / sampled.fitted_s",
    ),
];

/// Seconds by where they are spent. They add up to `moe_s`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Parts {
    pub(super) forward_s: f64,
    pub(super) backward_s: f64,
    pub(super) optimizer_s: f64,
    pub(super) exchange_s: f64,
    pub(super) optimizer_exchange_s: f64,
    pub(super) plan_s: f64,
}

impl Parts {
    /// Of a cumulative cost, at the planned network.
    pub(super) fn of(cost: &Cost) -> Self {
        let sum = |belongs: &dyn Fn(&str) -> bool| {
            cost.phases.iter().filter(|(name, _)| belongs(name)).map(|(_, seconds)| seconds).sum()
        };
        Self {
            forward_s: sum(&|name| FORWARD.contains(&name)),
            backward_s: sum(&|name| !FORWARD.contains(&name) && name != OPTIMIZER),
            optimizer_s: sum(&|name| name == OPTIMIZER),
            exchange_s: cost.exchange_s[PLANNED],
            optimizer_exchange_s: cost.optimizer_exchange_s[PLANNED],
            plan_s: cost.plan_s,
        }
    }
}

/// The text of report.json. What was not reached, or stopped before its end, is null.
pub(super) fn json(cells: &[Cell]) -> Value {
    let groups = groups(cells);
    let sources = SOURCES.map(|(group, source)| (group.to_owned(), json!(source)));
    json!({
        "networks": NETWORKS,
        "target_fractions": TARGETS,
        "sources": sources.into_iter().collect::<Map<_, _>>(),
        "cells": cells.iter().map(cell_json).collect::<Vec<_>>(),
        "groups": groups.iter().map(group_json).collect::<Vec<_>>(),
        "summary": groups.iter().enumerate().flat_map(|(i, group)| summary::json(i, group)).collect::<Vec<_>>(),
        "attribution": groups.iter().enumerate().flat_map(|(i, group)| attribution_json(i, group)).collect::<Vec<_>>(),
    })
}

fn cell_json(cell: &Cell) -> Value {
    let losses = targets::losses(cell);
    let key = &cell.key;
    json!({
        "preset": key.preset, "balancing": key.balancing, "tokens": key.tokens, "seed": key.seed,
        "machine": cell.machine, "protocol": cell.protocol, "fit": cell.fit,
        "targets": TARGETS.iter().zip(losses).map(|(f, loss)| json!({"fraction": f, "loss": loss})).collect::<Vec<_>>(),
        "runs": cell.runs.iter().map(|run| run_json(cell, run)).collect::<Vec<_>>(),
    })
}

fn group_json(group: &Group<'_>) -> Value {
    let Cell { key, machine, protocol, .. } = group.first;
    json!({
        "preset": key.preset, "balancing": key.balancing, "tokens": key.tokens, "seeds": group.seeds(),
        "machine": machine, "protocol": protocol,
    })
}

fn run_json(cell: &Cell, run: &PolicyRun) -> Value {
    let losses = targets::losses(cell);
    let reached: Vec<Option<Reached>> = (0..TARGETS.len()).map(|target| at_target(cell, run, target)).collect();
    let last = reached[LAST].as_ref();
    let there = has_run(run).then_some(());
    let total = run.curve.last().map(|point| Parts::of(&point.cost));
    let to_target = last.map(|reached| Parts::of(&reached.cost));
    let by_category = |memory: &Memory| -> Map<String, Value> {
        let names = Category::ALL.map(|category| category.to_string()).into_iter();
        let bytes = |name: &str| json!(there.map(|()| memory.peak_bytes.get(name).copied().unwrap_or(0)));
        names.map(|name| (name.clone(), bytes(&name))).collect()
    };
    let peak_total = |memory: &Memory| there.map(|()| memory.peak_bytes.values().sum::<u64>());
    let targets = TARGETS.iter().zip(losses).zip(&reached).map(|((fraction, loss), reached)| {
        let seconds = |network: usize| reached.as_ref().map(|r| r.cost.moe_s(network));
        json!({
            "fraction": fraction, "loss": loss, "step": reached.as_ref().map(|r| r.step), "moe_s": seconds(PLANNED),
            "moe_s_half_network": seconds(0), "moe_s_twice_network": seconds(2),
        })
    });
    json!({
        "policy": run.policy,
        "activations": run.activations,
        "trajectory": run.trajectory,
        "seed": cell.key.seed,
        "infeasible": run.infeasible,
        "steps": there.map(|()| run.steps),
        "target_loss": losses[LAST],
        "reached_step": last.map(|r| r.step),
        "moe_s_to_target": last.map(|r| r.cost.moe_s(PLANNED)),
        "parts_to_target": to_target.map(parts_json),
        "moe_s": run.curve.last().map(|p| p.cost.moe_s(PLANNED)),
        "moe_forward_s": total.map(|p| p.forward_s),
        "moe_backward_s": total.map(|p| p.backward_s),
        "optimizer_s": total.map(|p| p.optimizer_s),
        "exchange_s": total.map(|p| p.exchange_s),
        "optimizer_exchange_s": total.map(|p| p.optimizer_exchange_s),
        "plan_s": total.map(|p| p.plan_s),
        "routed_pairs": there.map(|()| run.routed_pairs),
        "backward_pairs": there.map(|()| run.backward_pairs),
        "dropped_pairs": there.map(|()| run.dropped_pairs),
        "bytes_inter_node": there.map(|()| run.bytes_inter_node),
        "busiest_over_mean_forward": there.map(|()| run.busiest_over_mean_forward),
        "busiest_over_mean_backward": there.map(|()| run.busiest_over_mean_backward),
        "replicas_mean": there.map(|()| run.replicas_mean),
        "waves": there.map(|()| run.waves),
        "peak_bytes": by_category(&run.memory),
        "peak_total_bytes": peak_total(&run.memory),
        "subtotal_bytes": there.map(|()| run.memory.subtotal_bytes),
        "real_peak_bytes": by_category(&run.real_memory),
        "real_peak_total_bytes": peak_total(&run.real_memory),
        "real_subtotal_bytes": there.map(|()| run.real_memory.subtotal_bytes),
        "final_val_loss": run.curve.last().map(|p| p.val_loss),
        "sampled": there.map(|()| run.sampled),
        "targets": targets.collect::<Vec<_>>(),
        "curve": run.curve.iter()
            .map(|p| json!({"step": p.step, "val_loss": p.val_loss, "moe_s": p.cost.moe_s(PLANNED)}))
            .collect::<Vec<_>>(),
    })
}

fn parts_json(parts: Parts) -> Value {
    json!({
        "forward_s": parts.forward_s, "backward_s": parts.backward_s, "optimizer_s": parts.optimizer_s,
        "exchange_s": parts.exchange_s, "optimizer_exchange_s": parts.optimizer_exchange_s, "plan_s": parts.plan_s,
    })
}

/// An object for each mode and rival where both reached the last target in some seed.
fn attribution_json(index: usize, group: &Group<'_>) -> Vec<Value> {
    let modes = group.modes().into_iter();
    let pairs = modes.flat_map(|mode| attribution::rivals(group, mode).into_iter().map(move |rival| (mode, rival)));
    pairs
        .filter_map(|(mode, rival)| {
            let lines = attribution::lines(group, mode, rival);
            let terms = lines.iter().map(|line| {
                let (seconds, share) = (summary::spread(Some(line.seconds)), summary::spread(Some(line.share)));
                json!({"term": line.name, "source": line.source, "detail": line.detail, "seconds": seconds, "of_rival": share})
            });
            let terms = terms.collect::<Vec<_>>();
            (!terms.is_empty()).then(|| json!({"group": index, "activations": mode, "rival": rival, "terms": terms}))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::sample::cell;
    use super::*;

    const RUN_KEYS: [&str; 35] = [
        "policy",
        "activations",
        "trajectory",
        "seed",
        "infeasible",
        "steps",
        "target_loss",
        "reached_step",
        "moe_s_to_target",
        "parts_to_target",
        "moe_s",
        "moe_forward_s",
        "moe_backward_s",
        "optimizer_s",
        "exchange_s",
        "optimizer_exchange_s",
        "plan_s",
        "routed_pairs",
        "backward_pairs",
        "dropped_pairs",
        "bytes_inter_node",
        "busiest_over_mean_forward",
        "busiest_over_mean_backward",
        "replicas_mean",
        "waves",
        "peak_bytes",
        "peak_total_bytes",
        "subtotal_bytes",
        "real_peak_bytes",
        "real_peak_total_bytes",
        "real_subtotal_bytes",
        "final_val_loss",
        "sampled",
        "targets",
        "curve",
    ];

    fn keys(value: &Value) -> BTreeSet<&str> {
        value.as_object().unwrap().keys().map(String::as_str).collect()
    }

    fn run<'a>(report: &'a Value, policy: &str, mode: &str) -> &'a Value {
        let runs = report["cells"][0]["runs"].as_array().unwrap();
        runs.iter().find(|run| run["policy"] == policy && run["activations"] == mode).unwrap()
    }

    #[test]
    fn the_schema_is_exact_for_every_run() {
        let report = json(&[cell(1), cell(2)]);
        let top = ["networks", "target_fractions", "sources", "cells", "groups", "summary", "attribution"];
        assert_eq!(keys(&report), top.into());
        let first = &report["cells"][0];
        let of_cell = ["preset", "balancing", "tokens", "seed", "machine", "protocol", "fit", "targets", "runs"];
        assert_eq!(keys(first), of_cell.into());
        assert_eq!((&first["protocol"]["budget"], &first["machine"]["threads"]), (&json!(256 << 20), &json!(2)));
        for run in first["runs"].as_array().unwrap() {
            assert_eq!(keys(run), RUN_KEYS.into());
            for peak in ["peak_bytes", "real_peak_bytes"] {
                let categories = Category::ALL.map(|c| c.to_string());
                assert_eq!(keys(&run[peak]), categories.iter().map(String::as_str).collect());
            }
            assert_eq!(run["targets"].as_array().unwrap().len(), TARGETS.len());
            let of_target = ["fraction", "loss", "step", "moe_s", "moe_s_half_network", "moe_s_twice_network"];
            assert_eq!(keys(&run["targets"][0]), of_target.into());
        }
        let of_group = ["preset", "balancing", "tokens", "seeds", "machine", "protocol"];
        assert_eq!((keys(&report["groups"][0]), &report["groups"][0]["seeds"]), (of_group.into(), &json!([1, 2])));
        let attribution = &report["attribution"][0];
        assert_eq!(keys(attribution), ["group", "activations", "rival", "terms"].into());
        assert_eq!(keys(&attribution["terms"][0]), ["term", "source", "detail", "seconds", "of_rival"].into());
        let sources = report["sources"].as_object().unwrap();
        assert!(sources.values().all(|s| s.as_str().is_some_and(|s| s.contains("measured") || s.contains("modelled"))));
    }

    #[test]
    fn parts_add_up_to_the_whole_and_targets_agree() {
        let report = json(&[cell(1)]);
        let symi = run(&report, "symi", "stash");
        let sum = |of: &Value, names: &[&str]| names.iter().map(|name| of[name].as_f64().unwrap()).sum::<f64>();
        let rest = ["optimizer_s", "exchange_s", "optimizer_exchange_s", "plan_s"];
        let whole = sum(symi, &["moe_forward_s", "moe_backward_s"]) + sum(symi, &rest);
        assert!((whole - symi["moe_s"].as_f64().unwrap()).abs() < 1e-9);
        let parts = &symi["parts_to_target"];
        let whole = sum(parts, &["forward_s", "backward_s"]) + sum(parts, &rest);
        assert!((whole - symi["moe_s_to_target"].as_f64().unwrap()).abs() < 1e-9);
        let last = &symi["targets"][2];
        assert_eq!((&last["moe_s"], &last["step"]), (&symi["moe_s_to_target"], &symi["reached_step"]));
        assert_eq!((&last["step"], &last["loss"]), (&json!(95.0), &symi["target_loss"]));
        let seconds = |name: &str| last[name].as_f64().unwrap();
        // Traffic is 0.3 s a step at the planned network, twice that at half of it.
        assert!((seconds("moe_s_half_network") - seconds("moe_s") - 0.3 * 95.0).abs() < 1e-9);
        assert!((seconds("moe_s") - seconds("moe_s_twice_network") - 0.15 * 95.0).abs() < 1e-9);
        assert_eq!(symi["curve"].as_array().unwrap().len(), 21);
    }

    #[test]
    fn memory_of_the_small_model_and_of_the_real_one_are_apart() {
        let mut cells = [cell(1)];
        cells[0].protocol.budget = None;
        let report = json(&cells);
        assert!(report["cells"][0]["protocol"]["budget"].is_null());
        let waves = run(&report, "fixed-waves", "stash");
        // The sample's categories take 1 to 8 MiB and 1 to 8 GiB.
        for (unit, names) in [
            (1_u64 << 20, ["peak_bytes", "peak_total_bytes", "subtotal_bytes"]),
            (1 << 30, ["real_peak_bytes", "real_peak_total_bytes", "real_subtotal_bytes"]),
        ] {
            assert_eq!((&waves[names[0]]["weights"], &waves[names[1]]), (&json!(unit), &json!(36 * unit)));
            assert_eq!(waves[names[2]], json!(if unit == 1 << 20 { 20 * unit } else { 40 * unit }));
        }
    }

    #[test]
    fn what_was_not_reached_or_stopped_is_null() {
        let report = json(&[cell(1)]);
        let late = run(&report, "lrmoe", "recompute");
        for name in ["reached_step", "moe_s_to_target", "parts_to_target"] {
            assert!(late[name].is_null(), "{name} is {}", late[name]);
        }
        assert!(late["target_loss"].is_f64() && late["moe_forward_s"].is_f64() && late["targets"][0]["step"].is_null());
        let unfit = run(&report, "fixed", "stash");
        assert_eq!(unfit["infeasible"], "needs 3 MiB more than its budget");
        let known = [
            "policy",
            "activations",
            "trajectory",
            "seed",
            "infeasible",
            "target_loss",
            "curve",
            "targets",
            "peak_bytes",
            "real_peak_bytes",
        ];
        for name in RUN_KEYS.iter().filter(|name| !known.contains(name)) {
            assert!(unfit[name].is_null(), "{name} is {}", unfit[name]);
        }
        for peak in ["peak_bytes", "real_peak_bytes"] {
            assert!(unfit[peak].as_object().unwrap().values().all(Value::is_null));
        }
        assert!(unfit["curve"].as_array().unwrap().is_empty());
    }

    #[test]
    fn without_cells_every_list_is_empty() {
        let report = json(&[]);
        for name in ["cells", "groups", "summary", "attribution"] {
            assert_eq!(report[name], json!([]), "{name}");
        }
    }
}
