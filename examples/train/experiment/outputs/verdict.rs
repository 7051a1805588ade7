//! What a reader should know before believing the tables: where lrmoe loses, and how good the fit is.

use super::grid::{Grid, change, mean};
use super::groups::{Group, Spread, Stopped, at_target, has_run, list};
use super::names::{OURS, SYMI};
use super::summary::{Row, measured_over_fitted};
use super::table::subtotal_over;
use super::targets::{self, LAST, percent};
use crate::experiment::cell::{PLANNED, TARGETS};

/// Lines on one quantity.
#[derive(Default)]
struct Lines {
    text: String,
    /// Whether there was a ratio to another policy.
    compared: bool,
}

impl Lines {
    /// Adds a line where there is something to say. `over` is how far lrmoe is above another policy, which is ahead where that is
    /// more than 1 in the mean over seeds.
    fn add(&mut self, what: &str, others: &[&str], over: impl Fn(&str) -> Option<Spread>, more: Option<String>) {
        let mut found = Vec::new();
        for rival in others {
            let ratio = over(rival);
            self.compared |= ratio.is_some();
            if ratio.is_some_and(|ratio| ratio.mean > 1.0) {
                found.push(format!("{rival} ({} %)", change(ratio)));
            }
        }
        found.extend(more);
        if !found.is_empty() {
            self.text += &format!("{what}: {}\n", found.join("; "));
        }
    }

    fn or_nowhere(self, what: &str) -> String {
        match (self.text.is_empty(), self.compared) {
            (false, _) => self.text,
            (true, true) => format!("{what}: nowhere in the mean over seeds.\n"),
            (true, false) => format!("{what}: nothing to compare.\n"),
        }
    }
}

/// A line for each group, mode and target where another policy takes fewer MoE seconds or where lrmoe does not get there, for each
/// group and mode where another takes less memory, and where lrmoe stopped.
pub(super) fn loses(groups: &[Group<'_>]) -> String {
    let (mut stopped, mut time, mut memory) = (String::new(), Lines::default(), Lines::default());
    for (i, group) in groups.iter().enumerate() {
        for mode in group.modes() {
            let at = format!("[{}] {mode}", i + 1);
            for why in Stopped::ALL {
                if let (seeds, Some(reason)) = group.stopped_seeds(OURS, mode, why) {
                    stopped += &format!("{at}: {} with {}: {reason}\n", why.word(), list(&seeds));
                }
            }
            let others: Vec<&str> = group.policies(mode).into_iter().filter(|policy| *policy != OURS).collect();
            for (target, fraction) in TARGETS.into_iter().enumerate() {
                let row = Row { group, policy: OURS, mode, target };
                let what = format!("{at}, MoE s to {}", percent(fraction));
                time.add(&what, &others, |rival| row.over(rival, PLANNED), not_reached(&row));
            }
            let over = |rival: &str| subtotal_over(group, OURS, mode, rival);
            memory.add(&format!("{at}, memory subtotal"), &others, over, None);
        }
    }
    stopped + &time.or_nowhere("MoE s") + &memory.or_nowhere("memory subtotal")
}

/// Seeds where there is a target, and lrmoe fits, but never comes down to it.
fn not_reached(row: &Row<'_>) -> Option<String> {
    let runs = row.group.runs(row.policy, row.mode).filter(|(_, run)| has_run(run));
    let set = runs.filter(|(cell, _)| targets::losses(cell).get(row.target).copied().flatten().is_some());
    let late = set.filter(|(cell, run)| at_target(cell, run, row.target).is_none());
    let seeds: Vec<u64> = late.map(|(cell, _)| cell.key.seed).collect();
    (!seeds.is_empty()).then(|| format!("not reached with {}", list(&seeds)))
}

/// By group: what the samples of each policy say of the fit, and of its MoE seconds if that were so everywhere. Then the fit by phase.
pub(super) fn fit(groups: &[Group<'_>]) -> String {
    let mut text = String::new();
    for (i, group) in groups.iter().enumerate() {
        text += &format!("{}\n", samples(i, group));
    }
    format!(
        "{text}meas./fit: measured over fitted seconds of the sampled shares. vs {SYMI}: MoE s to {}, %. corrected: the same with every\n\
         policy's compute times its own meas./fit.\n\n{}",
        percent(TARGETS[LAST]),
        phases(groups)
    )
}

/// Of each policy and mode.
fn samples(index: usize, group: &Group<'_>) -> Grid {
    let modes = group.modes();
    let columns = || ["samples", "meas./fit", &format!("vs {SYMI}"), "corrected"].map(String::from).to_vec();
    let captions = modes.iter().map(|mode| (format!("{mode}; vs {SYMI} %: measured (fit) + modelled"), columns()));
    let policy = (String::new(), vec![format!("[{}] policy", index + 1)]);
    let mut grid = Grid::new(std::iter::once(policy).chain(captions));
    for policy in group.all_policies() {
        let mut cells = vec![policy.to_owned()];
        for mode in &modes {
            let row = Row { group, policy, mode, target: LAST };
            let count: u64 = group.runs(policy, mode).map(|(_, run)| run.sampled.count).sum();
            cells.push(count.to_string());
            cells.push(mean(group.spread(policy, mode, |_, run| measured_over_fitted(run)), 3));
            cells.extend([row.over(SYMI, PLANNED), row.corrected_over(SYMI)].map(change));
        }
        grid.row(cells);
    }
    grid
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
        assert!(text.contains("MoE s to 60 %: not reached with seeds 1, 2"), "{text}");
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
            rival.real_memory.subtotal_bytes = lrmoe.real_memory.subtotal_bytes / 2;
        }
        let text = loses(&groups(&cells));
        assert!(text.contains("stash, MoE s to 80 %: symi (+"), "{text}");
        assert!(text.contains("stash, memory subtotal: symi (+100.0 %)\n"), "{text}");
        for cell in &mut cells {
            cell.runs = vec![infeasible("lrmoe", "stash")];
        }
        let text = loses(&groups(&cells));
        assert!(text.contains("[1] stash: no fit with seeds 1, 2: needs 3 MiB more than its budget\n"), "{text}");
        cells[0].runs[0].infeasible = Some("diverged".into());
        let text = loses(&groups(&cells));
        assert!(
            text.contains("[1] stash: no fit with seed 2") && text.contains("[1] stash: ended with seed 1: diverged\n")
        );
    }

    #[test]
    fn a_target_that_was_never_set_is_not_missed() {
        let mut cells = [cell(1)];
        cells[0].runs.retain(|run| run.policy == "lrmoe");
        assert!(loses(&groups(&cells)).contains("[1] recompute, MoE s to 95 %: not reached with seed 1\n"));
        cells[0].plain.clear();
        assert!(!loses(&groups(&cells)).contains("not reached"));
    }

    #[test]
    fn to_lose_nowhere_takes_something_to_compare() {
        const NOTHING: &str = "MoE s: nothing to compare.\nmemory subtotal: nothing to compare.\n";
        assert_eq!(loses(&[]), NOTHING);
        for left in [&["lrmoe"][..], &["symi", "fixed-waves"], &["fixed", "lrmoe"], &[]] {
            let mut cells = [cell(1)];
            cells[0].runs.retain(|run| run.activations == "stash" && left.contains(&run.policy.as_str()));
            assert_eq!(loses(&groups(&cells)), NOTHING, "{left:?}");
        }
        let mut cells = [cell(1)];
        cells[0].runs.retain(|run| run.activations == "stash");
        let nowhere = "MoE s: nowhere in the mean over seeds.\nmemory subtotal: nowhere in the mean over seeds.\n";
        assert_eq!(loses(&groups(&cells)), nowhere);
        // Memory alone can be compared where nobody else comes down to a target.
        cells[0].runs.iter_mut().filter(|run| run.policy != "lrmoe").for_each(|run| run.curve.truncate(2));
        let memory_only = "MoE s: nothing to compare.\nmemory subtotal: nowhere in the mean over seeds.\n";
        assert_eq!(loses(&groups(&cells)), memory_only);
    }

    #[test]
    fn the_fit_is_shown_by_policy_and_by_phase() {
        let mut cells = [cell(1), cell(2)];
        for run in cells.iter_mut().flat_map(|cell| &mut cell.runs).filter(|run| run.policy == "lrmoe") {
            run.sampled.measured_s = 2.0 * run.sampled.fitted_s;
        }
        let text = fit(&groups(&cells));
        let words = |policy: &str| {
            let line = text.lines().find(|line| line.starts_with(&format!("{policy} "))).unwrap();
            line.split_whitespace().filter(|word| *word != "|").map(String::from).collect::<Vec<_>>()
        };
        // Two seeds, ten samples each; 2.0 s measured where the fit says 2.1.
        assert_eq!(words("symi"), ["symi", "20", "0.952", "0.0", "0.0", "20", "0.952", "0.0", "0.0"]);
        assert_eq!(words("fixed")[..5], ["fixed", "0", "-", "-", "-"]);
        let ours = words("lrmoe");
        assert_eq!(ours[1..3], ["20", "2.000"]);
        assert!(ours[3].starts_with("-2") && ours[5].starts_with('+'), "{ours:?}");
        let wgrad = text.lines().find(|line| line.starts_with("wgrad")).unwrap();
        assert!(wgrad.contains("0.980") && wgrad.contains("0.050"), "{wgrad}");
    }
}
