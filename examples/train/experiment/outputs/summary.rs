//! What the seeds of a group say together about each policy and target.

use serde_json::{Value, json};

use super::groups::{Group, Spread, at_target};
use super::names::{FIXED, SYMI};
use super::targets;
use crate::experiment::cell::{Cell, NETWORKS, PLANNED, PolicyRun, TARGETS};

/// One policy, activation mode and target.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) group: &'a Group<'a>,
    pub(super) policy: &'a str,
    pub(super) mode: &'a str,
    /// Index into [`TARGETS`].
    pub(super) target: usize,
}

impl Row<'_> {
    /// Over the seeds that reached it.
    pub(super) fn step(&self) -> Option<Spread> {
        self.group.spread(self.policy, self.mode, |cell, run| Some(at_target(cell, run, self.target)?.step))
    }

    /// Over the plain run's step.
    pub(super) fn steps_over_plain(&self) -> Option<Spread> {
        self.group.spread(self.policy, self.mode, |cell, run| {
            let plain = targets::plain_step(cell, (*targets::losses(cell).get(self.target)?)?)?;
            (plain > 0.0).then_some(at_target(cell, run, self.target)?.step / plain)
        })
    }

    /// MoE seconds at one of [`NETWORKS`].
    pub(super) fn moe_s(&self, network: usize) -> Option<Spread> {
        self.group.spread(self.policy, self.mode, self.seconds(network))
    }

    /// MoE seconds over those of `rival` in the same cell and mode.
    pub(super) fn over(&self, rival: &str, network: usize) -> Option<Spread> {
        self.group.ratio(self.policy, self.mode, rival, self.seconds(network))
    }

    fn seconds(&self, network: usize) -> impl Fn(&Cell, &PolicyRun) -> Option<f64> {
        let target = self.target;
        move |cell, run| Some(at_target(cell, run, target)?.cost.moe_s(network))
    }

    /// As [`Row::over`] at the planned network, if the fit were wrong about each run's compute by as much as it is about its samples.
    pub(super) fn corrected_over(&self, rival: &str) -> Option<Spread> {
        self.group.ratio(self.policy, self.mode, rival, |cell, run| {
            let cost = at_target(cell, run, self.target)?.cost;
            Some(cost.moe_s(PLANNED) + (measured_over_fitted(run)? - 1.0) * cost.compute_s())
        })
    }

    /// Seeds with a run, and those of them where it stopped.
    pub(super) fn seeds(&self) -> (usize, usize) {
        let runs = || self.group.runs(self.policy, self.mode);
        (runs().count(), runs().filter(|(_, run)| run.infeasible.is_some()).count())
    }
}

/// Seconds of a run's samples over what the fit says of the same shares.
pub(super) fn measured_over_fitted(run: &PolicyRun) -> Option<f64> {
    let sampled = run.sampled;
    (sampled.count > 0 && sampled.fitted_s > 0.0).then(|| sampled.measured_s / sampled.fitted_s)
}

/// Every mode, policy and target.
pub(super) fn rows<'a>(group: &'a Group<'a>) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for mode in group.modes() {
        for policy in group.policies(mode) {
            rows.extend((0..TARGETS.len()).map(|target| Row { group, policy, mode, target }));
        }
    }
    rows
}

/// The rows of `group`, which is number `index` of the report.
pub(super) fn json(index: usize, group: &Group<'_>) -> Vec<Value> {
    let key = &group.first.key;
    let row = |row: Row<'_>| {
        let (seeds, infeasible) = row.seeds();
        let at = |network: usize| {
            json!({
                "moe_s": spread(row.moe_s(network)),
                "moe_s_over_symi": spread(row.over(SYMI, network)),
                "moe_s_over_fixed": spread(row.over(FIXED, network)),
            })
        };
        let with_speed = |network: usize| {
            let mut object = at(network);
            object["network"] = json!(NETWORKS[network]);
            object
        };
        let mut object = at(PLANNED);
        for (name, value) in [
            ("group", json!(index)),
            ("preset", json!(key.preset)),
            ("balancing", json!(key.balancing)),
            ("tokens", json!(key.tokens)),
            ("activations", json!(row.mode)),
            ("policy", json!(row.policy)),
            ("fraction", json!(TARGETS[row.target])),
            ("seeds", json!(seeds)),
            ("infeasible_seeds", json!(infeasible)),
            ("reached_seeds", json!(row.step().map_or(0, |s| s.seeds))),
            ("step", spread(row.step())),
            ("steps_over_plain", spread(row.steps_over_plain())),
            ("moe_s_over_symi_corrected", spread(row.corrected_over(SYMI))),
            ("networks", (0..NETWORKS.len()).map(with_speed).collect()),
        ] {
            object[name] = value;
        }
        object
    };
    rows(group).into_iter().map(row).collect()
}

/// `{"seeds", "mean", "min", "max"}`, or null.
pub(super) fn spread(spread: Option<Spread>) -> Value {
    spread.map_or(Value::Null, |s| json!({"seeds": s.seeds, "mean": s.mean, "min": s.min, "max": s.max}))
}

#[cfg(test)]
mod tests {
    use super::super::groups::groups;
    use super::super::sample::cell;
    use super::*;

    fn find<'a>(rows: &'a [Value], policy: &str, mode: &str, fraction: f64) -> &'a Value {
        rows.iter()
            .find(|row| row["policy"] == policy && row["activations"] == mode && row["fraction"] == fraction)
            .unwrap()
    }

    #[test]
    fn means_and_ranges_are_those_of_the_seeds() {
        let cells = [cell(1), cell(2), cell(3)];
        let groups = groups(&cells);
        let rows = json(4, &groups[0]);
        assert_eq!(rows.len(), 2 * 5 * TARGETS.len());
        let seconds = |cell: &Cell, policy: &str, network: usize| {
            let run = super::super::groups::find(cell, policy, "stash").unwrap();
            at_target(cell, run, 2).unwrap().cost.moe_s(network)
        };
        let row = find(&rows, "lrmoe", "stash", 0.95);
        let own = cells.each_ref().map(|cell| seconds(cell, "lrmoe", PLANNED));
        let ratios = cells.each_ref().map(|cell| seconds(cell, "lrmoe", PLANNED) / seconds(cell, "symi", PLANNED));
        for (found, values) in [(&row["moe_s"], own), (&row["moe_s_over_symi"], ratios)] {
            let of = |name: &str| found[name].as_f64().unwrap();
            assert!((of("mean") - values.iter().sum::<f64>() / 3.0).abs() < 1e-9, "{found}");
            assert_eq!(of("min"), values.iter().copied().fold(f64::INFINITY, f64::min));
            assert_eq!(of("max"), values.iter().copied().fold(0.0, f64::max));
            assert_eq!(found["seeds"], 3);
        }
        let half = &row["networks"][0];
        assert_eq!((&half["network"], &row["networks"][1]["moe_s"]), (&json!(0.5), &row["moe_s"]));
        let expected = cells.iter().map(|cell| seconds(cell, "lrmoe", 0) / seconds(cell, "symi", 0)).sum::<f64>() / 3.0;
        assert!((half["moe_s_over_symi"]["mean"].as_f64().unwrap() - expected).abs() < 1e-9);
        assert_eq!((&row["group"], &row["seeds"], &row["reached_seeds"]), (&json!(4), &json!(3), &json!(3)));
        assert!(row["steps_over_plain"]["mean"].as_f64().unwrap() > 1.0);
        assert_eq!(find(&rows, "symi", "recompute", 0.6)["steps_over_plain"]["mean"], 1.0);
    }

    #[test]
    fn compute_alone_is_corrected_by_each_policys_own_samples() {
        let mut cells = [cell(1)];
        for run in &mut cells[0].runs {
            run.sampled.measured_s = if run.policy == "lrmoe" { 1.2 } else { 0.9 } * run.sampled.fitted_s;
        }
        let cost = |policy: &str| {
            let run = super::super::groups::find(&cells[0], policy, "stash").unwrap();
            at_target(&cells[0], run, 2).unwrap().cost
        };
        let rest = |cost: &crate::experiment::cell::Cost| cost.moe_s(PLANNED) - cost.compute_s();
        let (ours, symi) = (cost("lrmoe"), cost("symi"));
        let expected = (1.2 * ours.compute_s() + rest(&ours)) / (0.9 * symi.compute_s() + rest(&symi));
        let rows = json(0, &groups(&cells)[0]);
        let found = &find(&rows, "lrmoe", "stash", 0.95)["moe_s_over_symi_corrected"];
        assert!((found["mean"].as_f64().unwrap() - expected).abs() < 1e-12, "{found}");
        let symi = cells[0].runs.iter_mut().find(|run| run.policy == "symi" && run.activations == "stash").unwrap();
        symi.sampled = Default::default();
        let rows = json(0, &groups(&cells)[0]);
        assert!(find(&rows, "lrmoe", "stash", 0.95)["moe_s_over_symi_corrected"].is_null());
    }

    #[test]
    fn steps_are_compared_with_the_plain_runs_own() {
        let mut cells = [cell(1)];
        cells[0].runs.retain(|run| run.policy == "lrmoe" && run.activations == "stash");
        let rows = json(0, &groups(&cells)[0]);
        let row = find(&rows, "lrmoe", "stash", 0.95);
        let step = row["step"]["mean"].as_f64().unwrap();
        assert!((row["steps_over_plain"]["mean"].as_f64().unwrap() - step / 95.0).abs() < 1e-12 && step > 95.0);
    }

    #[test]
    fn nothing_is_made_of_targets_not_reached_and_policies_that_do_not_fit() {
        let cells = [cell(1), cell(2)];
        let groups = groups(&cells);
        let rows = json(0, &groups[0]);
        let late = find(&rows, "lrmoe", "recompute", 0.95);
        assert_eq!((&late["reached_seeds"], &late["infeasible_seeds"]), (&json!(0), &json!(0)));
        let unfit = find(&rows, "fixed", "stash", 0.95);
        assert_eq!((&unfit["reached_seeds"], &unfit["infeasible_seeds"]), (&json!(0), &json!(2)));
        for row in [late, unfit] {
            for name in ["step", "steps_over_plain", "moe_s", "moe_s_over_symi", "moe_s_over_fixed"] {
                assert!(row[name].is_null(), "{name} is {}", row[name]);
            }
            assert!(row["networks"].as_array().unwrap().iter().all(|at| at["moe_s"].is_null()));
        }
        assert!(find(&rows, "lrmoe", "stash", 0.95)["moe_s_over_fixed"].is_null());
        assert!(find(&rows, "symi", "recompute", 0.95)["moe_s_over_fixed"]["mean"].as_f64().unwrap() < 1.0);
    }
}
