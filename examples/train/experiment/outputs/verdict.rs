//! What a reader should know before believing the tables: where lrmoe loses, and how good the fit is.

use super::attribution::OURS;
use super::grid::{Grid, change, mean};
use super::groups::{Group, Spread, at_target, has_run};
use super::summary::Row;
use super::table::subtotal_over;
use super::targets;
use crate::experiment::cell::{PLANNED, TARGETS};

/// A line for each group, mode and target where another policy takes fewer MoE seconds or where lrmoe does not get there, and for
/// each group and mode where another takes less memory or lrmoe does not fit.
pub(super) fn loses(groups: &[Group<'_>]) -> String {
    let (mut time, mut memory) = (String::new(), String::new());
    for (i, group) in groups.iter().enumerate() {
        for mode in group.modes() {
            let others: Vec<&str> = group.policies(mode).into_iter().filter(|policy| *policy != OURS).collect();
            let say = |text: &mut String, what: &str, found: &[String]| {
                if !found.is_empty() {
                    *text += &format!("[{}] {mode}, {what}: {}\n", i + 1, found.join("; "));
                }
            };
            for (target, fraction) in TARGETS.iter().enumerate() {
                let row = Row { group, policy: OURS, mode, target };
                let mut found = behind(&others, |rival| row.over(rival, PLANNED));
                found.extend(not_reached(&row));
                say(&mut time, &format!("MoE s to {:.0} %", 100.0 * fraction), &found);
            }
            let mut found = behind(&others, |rival| subtotal_over(group, OURS, mode, rival));
            let unfit = group.runs(OURS, mode).filter(|(_, run)| run.infeasible.is_some());
            let unfit: Vec<u64> = unfit.map(|(cell, _)| cell.key.seed).collect();
            if !unfit.is_empty() {
                found.push(format!("does not fit its budget with seed {}", list(&unfit)));
            }
            say(&mut memory, "memory subtotal", &found);
        }
    }
    let or = |text: String, nowhere: &str| if text.is_empty() { format!("{nowhere}\n") } else { text };
    or(time, "MoE s: nowhere in the mean over seeds.") + &or(memory, "memory subtotal: nowhere in the mean over seeds.")
}

/// Others that are ahead in the mean over seeds, with how far lrmoe is above them in percent.
fn behind(others: &[&str], over: impl Fn(&str) -> Option<Spread>) -> Vec<String> {
    let mut found = Vec::new();
    for rival in others {
        if let Some(ratio) = over(rival).filter(|ratio| ratio.mean > 1.0) {
            found.push(format!("{rival} ({} %)", change(Some(ratio))));
        }
    }
    found
}

/// Seeds where there is a target, and lrmoe fits, but never comes down to it.
fn not_reached(row: &Row<'_>) -> Option<String> {
    let runs = row.group.runs(row.policy, row.mode).filter(|(_, run)| has_run(run));
    let set = runs.filter(|(cell, _)| targets::losses(cell).get(row.target).copied().flatten().is_some());
    let late = set.filter(|(cell, run)| at_target(cell, run, row.target).is_none());
    let seeds: Vec<u64> = late.map(|(cell, _)| cell.key.seed).collect();
    (!seeds.is_empty()).then(|| format!("not reached with seed {}", list(&seeds)))
}

fn list(seeds: &[u64]) -> String {
    seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// Measured over fitted seconds of the sampled steps by policy, and the fit by phase.
pub(super) fn fit(groups: &[Group<'_>]) -> String {
    let mut policies: Vec<&str> = Vec::new();
    for (group, mode) in groups.iter().flat_map(|group| group.modes().into_iter().map(move |mode| (group, mode))) {
        for policy in group.policies(mode) {
            if !policies.contains(&policy) {
                policies.push(policy);
            }
        }
    }
    let mut grid = Grid::new([
        (String::new(), vec!["group, mode".to_owned(), "samples".into()]),
        ("measured over fitted seconds of the same shares".into(), policies.iter().map(ToString::to_string).collect()),
    ]);
    for (i, group) in groups.iter().enumerate() {
        for mode in group.modes() {
            let samples: u64 =
                policies.iter().flat_map(|policy| group.runs(policy, mode)).map(|(_, run)| run.sampled.count).sum();
            let ratio = |policy: &&str| {
                let of = group.spread(policy, mode, |_, run| {
                    let s = run.sampled;
                    (s.count > 0 && s.fitted_s > 0.0).then(|| s.measured_s / s.fitted_s)
                });
                mean(of, 3)
            };
            let mut cells = vec![format!("[{}] {mode}", i + 1), samples.to_string()];
            cells.extend(policies.iter().map(ratio));
            grid.row(cells);
        }
    }
    format!("{grid}\n{}", phases(groups))
}

/// The fit of each phase: fitted over measured seconds, and the median relative error of one share.
fn phases(groups: &[Group<'_>]) -> Grid {
    let names: std::collections::BTreeSet<&str> =
        groups.iter().flat_map(|group| &group.cells).flat_map(|cell| cell.fit.keys()).map(String::as_str).collect();
    let columns = || (1..=groups.len()).map(|i| format!("[{i}]")).collect::<Vec<_>>();
    let mut grid = Grid::new([
        (String::new(), vec!["phase".to_owned()]),
        ("fitted over measured seconds".into(), columns()),
        ("median relative error of one share".into(), columns()),
    ]);
    for name in names {
        let of = |group: &Group<'_>, number: usize| {
            Spread::of(group.cells.iter().filter_map(|cell| Some(cell.fit.get(name)?[number])))
        };
        let mut cells = vec![name.to_owned()];
        cells.extend(groups.iter().map(|group| mean(of(group, 0), 3)));
        cells.extend(groups.iter().map(|group| mean(of(group, 1), 3)));
        grid.row(cells);
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::super::groups::groups;
    use super::super::sample::{cell, infeasible};
    use super::*;

    #[test]
    fn lrmoe_loses_to_whoever_is_ahead_in_the_mean() {
        let mut cells = [cell(1), cell(2)];
        let text = loses(&groups(&cells));
        assert!(text.contains("MoE s to 60 %: not reached with seed 1, 2"), "{text}");
        assert!(!text.contains("stash, MoE s"), "{text}");
        assert!(text.ends_with("memory subtotal: nowhere in the mean over seeds.\n"), "{text}");
        // Much faster with one seed and a little slower with the other is ahead; less memory is ahead too.
        for (cell, factor) in cells.iter_mut().zip([0.2, 1.1]) {
            let lrmoe = cell.runs.iter().find(|r| r.policy == "lrmoe" && r.activations == "stash").unwrap().clone();
            let rival = cell.runs.iter_mut().find(|r| r.policy == "symi" && r.activations == "stash").unwrap();
            for (point, ours) in rival.curve.iter_mut().zip(&lrmoe.curve) {
                point.cost = ours.cost.clone();
                point.cost.phases.values_mut().for_each(|seconds| *seconds *= factor);
            }
            rival.subtotal_bytes = lrmoe.subtotal_bytes / 2;
        }
        let text = loses(&groups(&cells));
        assert!(text.contains("stash, MoE s to 80 %: symi (+"), "{text}");
        assert!(text.contains("stash, memory subtotal: symi (+100.0 %)\n"), "{text}");
        for cell in &mut cells {
            cell.runs = vec![infeasible("lrmoe", "stash")];
        }
        let text = loses(&groups(&cells));
        assert!(text.contains("memory subtotal: does not fit its budget with seed 1, 2"), "{text}");
    }

    #[test]
    fn a_target_that_was_never_set_is_not_missed() {
        let mut cells = [cell(1)];
        cells[0].runs.retain(|run| run.policy == "lrmoe");
        assert!(!loses(&groups(&cells)).contains("not reached"));
    }

    #[test]
    fn the_fit_is_shown_by_policy_and_by_phase() {
        let cells = [cell(1), cell(2)];
        let text = fit(&groups(&cells));
        // Four policies that fit, two seeds, ten samples each.
        assert!(text.contains("[1] stash") && text.contains(" 80 | "), "{text}");
        // 2.0 s measured where the fit says 2.1.
        assert!(text.contains("0.952"), "{text}");
        let wgrad = text.lines().find(|line| line.starts_with("wgrad")).unwrap();
        assert!(wgrad.contains("0.980") && wgrad.contains("0.050"), "{wgrad}");
    }
}
