//! Where the difference between two policies' MoE seconds to a target comes from.

use super::groups::{Group, Spread, at_target, find, has_run};
use super::names::{ONE_COPY, OURS, SYMI, is_ours};
use super::targets::{self, LAST, Reached, seconds_of};
use crate::experiment::cell::{Cell, PLANNED, PolicyRun};

/// A part of the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Term {
    Steps,
    BackwardGemms,
    OtherCompute,
    BalanceForward,
    BalanceBackward,
    Selection,
    Exchange,
    OptimizerExchange,
    Planning,
}

impl Term {
    /// In the order of reports, indexed by `Term as usize`.
    pub(super) const ALL: [Self; 9] = [
        Self::Steps,
        Self::BackwardGemms,
        Self::OtherCompute,
        Self::BalanceForward,
        Self::BalanceBackward,
        Self::Selection,
        Self::Exchange,
        Self::OptimizerExchange,
        Self::Planning,
    ];

    /// Its key in report.json.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::BackwardGemms => "backward_gemms",
            Self::OtherCompute => "other_compute",
            Self::BalanceForward => "balance_forward",
            Self::BalanceBackward => "balance_backward",
            Self::Selection => "selection",
            Self::Exchange => "exchange",
            Self::OptimizerExchange => "optimizer_exchange",
            Self::Planning => "planning",
        }
    }

    /// For readers of a table.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Steps => "more or fewer steps",
            Self::BackwardGemms => "backward GEMMs of the mean rank (fewer pairs)",
            Self::OtherCompute => "other compute of the mean rank",
            Self::BalanceForward => "balance, forward",
            Self::BalanceBackward => "balance, backward and optimizer",
            Self::Selection => "score, select, compact",
            Self::Exchange => "traffic of tokens",
            Self::OptimizerExchange => "traffic of gradients and weights",
            Self::Planning => "planning",
        }
    }

    /// Where its seconds come from.
    pub(super) const fn source(self) -> &'static str {
        match self {
            Self::Steps => ALL,
            Self::Exchange | Self::OptimizerExchange => "modelled",
            Self::Planning => "measured (scaled)",
            _ => FITTED,
        }
    }
}

const FITTED: &str = "measured (fit)";
const ALL: &str = "all";

/// `ours - rival` in seconds, part by part.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Attribution {
    /// Seconds of the rival.
    pub(super) rival: f64,
    /// Seconds by `Term as usize`; they add up to the difference.
    pub(super) terms: [f64; 9],
    /// The two balance terms once more: what placement alone gives, and what replicas add to it.
    pub(super) balance: Option<[f64; 2]>,
}

/// Splits the difference of two runs at the same target. Steps that `ours` needs beyond the rival's count at what a step of `ours`
/// costs; every other term is the difference a step times the rival's steps. `one_copy` is [`ONE_COPY`] at that target: what it lacks
/// of the balance, replicas give. `None` where either run began at the target.
pub(super) fn attribute(ours: &Reached, rival: &Reached, one_copy: Option<&Reached>) -> Option<Attribution> {
    let (a, b) = (per_step(ours)?, per_step(rival)?);
    let mut terms: [f64; 9] = std::array::from_fn(|i| rival.step * (a[i] - b[i]));
    terms[Term::Steps as usize] = (ours.step - rival.step) * a.iter().sum::<f64>();
    let excess = |parts: &[f64; 9]| parts[Term::BalanceForward as usize] + parts[Term::BalanceBackward as usize];
    let balance = one_copy.and_then(per_step).map(|one| {
        let (ours, one, rival_s) = (excess(&a), excess(&one), excess(&b));
        [rival.step * (one - rival_s), rival.step * (ours - one)]
    });
    Some(Attribution { rival: rival.cost.moe_s(PLANNED), terms, balance })
}

/// Seconds of one step by term; that of `Steps` is 0.
fn per_step(reached: &Reached) -> Option<[f64; 9]> {
    let cost = &reached.cost;
    let mut parts = [0.0; 9];
    for (name, busiest) in &cost.phases {
        let mean = seconds_of(&cost.mean, name);
        let (of_mean, of_excess) = match name.as_str() {
            "gate" | "shared" | "forward" | "combine" => (Term::OtherCompute, Term::BalanceForward),
            "recompute" | "dgrad" | "wgrad" => (Term::BackwardGemms, Term::BalanceBackward),
            "router_backward" | "optimizer" => (Term::OtherCompute, Term::BalanceBackward),
            _ => (Term::Selection, Term::Selection),
        };
        parts[of_mean as usize] += mean;
        parts[of_excess as usize] += busiest - mean;
    }
    parts[Term::Exchange as usize] = cost.exchange_s[PLANNED];
    parts[Term::OptimizerExchange as usize] = cost.optimizer_exchange_s[PLANNED];
    parts[Term::Planning as usize] = cost.plan_s;
    (reached.step > 0.0).then(|| parts.map(|seconds| seconds / reached.step))
}

/// [`attribute`] of [`OURS`] against `rival` in one cell and mode, at the last target.
pub(super) fn in_cell(cell: &Cell, ours: &PolicyRun, rival: &str) -> Option<Attribution> {
    let last = |run: &PolicyRun| at_target(cell, run, LAST);
    let one_copy = find(cell, ONE_COPY, &ours.activations).filter(|run| run.trajectory == ours.trajectory);
    attribute(&last(ours)?, &last(find(cell, rival, &ours.activations)?)?, one_copy.and_then(last).as_ref())
}

/// Over the seeds of a group where both reached the target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// "measured (fit)", "measured (scaled)", "modelled", or "all" of them together.
    pub(super) source: &'static str,
    /// Part of another line.
    pub(super) detail: bool,
    pub(super) seconds: Spread,
    /// Of the rival's seconds to the target, seed by seed.
    pub(super) share: Spread,
}

/// The terms, after the balance its two parts where they are known, and the total. Empty where no seed has both.
pub(super) fn lines(group: &Group<'_>, mode: &str, rival: &str) -> Vec<Line> {
    let line = |(name, title, source), detail, of: &dyn Fn(&Attribution) -> Option<f64>| {
        let seconds = |cell: &Cell, run: &PolicyRun| of(&in_cell(cell, run, rival)?);
        let share = |cell: &Cell, run: &PolicyRun| {
            let found = in_cell(cell, run, rival)?;
            (found.rival > 0.0).then_some(of(&found)? / found.rival)
        };
        let (seconds, share) = (group.spread(OURS, mode, seconds)?, group.spread(OURS, mode, share)?);
        Some(Line { name, title, source, detail, seconds, share })
    };
    let mut lines = Vec::new();
    for term in Term::ALL {
        let names = (term.name(), term.title(), term.source());
        lines.extend(line(names, false, &|found| Some(found.terms[term as usize])));
        if term == Term::BalanceBackward {
            let part = |i: usize| move |found: &Attribution| found.balance.map(|parts| parts[i]);
            let placement = ("balance_placement", "  of the balance: placement", FITTED);
            let replicas = ("balance_replicas", "  of the balance: replicas", FITTED);
            lines.extend(line(placement, true, &part(0)));
            lines.extend(line(replicas, true, &part(1)));
        }
    }
    lines.extend(line(("total", "total", ALL), false, &|found| Some(found.terms.iter().sum())));
    lines
}

/// Policies that [`OURS`] is compared with: those that are not variants of it.
pub(super) fn rivals<'a>(group: &Group<'a>, mode: &str) -> Vec<&'a str> {
    group.policies(mode).into_iter().filter(|policy| !is_ours(policy)).collect()
}

/// Why a policy cannot be part of an attribution; `None` where it reached the last target with some seed.
fn out(group: &Group<'_>, mode: &str, policy: &str) -> Option<&'static str> {
    let mut runs = group.runs(policy, mode).peekable();
    if runs.peek().is_none() {
        return Some("not run");
    }
    if let Some(stopped) = group.stopped(policy, mode) {
        return Some(stopped.word());
    }
    let mut set = false;
    for (cell, run) in runs.filter(|(_, run)| has_run(run)) {
        set |= targets::losses(cell)[LAST].is_some();
        if at_target(cell, run, LAST).is_some() {
            return None;
        }
    }
    Some(if set { "not reached" } else { "no target" })
}

/// What [`lines`] are missing for, and why: [`OURS`] alone where it is the one, else rivals, [`SYMI`] always among them.
pub(super) fn missing(group: &Group<'_>, mode: &str) -> String {
    if let Some(why) = out(group, mode, OURS) {
        return format!("{OURS} ({why})");
    }
    let mut rivals = rivals(group, mode);
    if !rivals.contains(&SYMI) {
        rivals.insert(0, SYMI);
    }
    let without = rivals.into_iter().filter(|rival| lines(group, mode, rival).is_empty());
    let why = |rival| format!("{rival} ({})", out(group, mode, rival).unwrap_or("not reached with a seed of both"));
    without.map(why).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::super::groups::groups;
    use std::collections::BTreeMap;

    use super::super::sample::{cell, infeasible};
    use super::*;
    use crate::experiment::cell::Cost;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()))
    }

    fn reached(step: f64, phases: &[(&str, f64, f64)], [exchange, optimizer, plan_s]: [f64; 3]) -> Reached {
        let map = |of: fn(&(&str, f64, f64)) -> f64| {
            phases.iter().map(|phase| (phase.0.to_owned(), of(phase))).collect::<BTreeMap<_, _>>()
        };
        let cost = Cost {
            phases: map(|p| p.1),
            mean: map(|p| p.2),
            exchange_s: [9.0, exchange, 7.0],
            optimizer_exchange_s: [8.0, optimizer, 6.0],
            plan_s,
        };
        Reached { step, cost }
    }

    /// Ours: 12 steps of 11 s; the rival: 10 of 14.6 s. All numbers were worked out by hand.
    #[test]
    fn a_hand_worked_example() {
        let rival = reached(
            10.0,
            &[("forward", 40.0, 20.0), ("wgrad", 60.0, 40.0), ("optimizer", 10.0, 10.0), ("compact", 5.0, 4.0)],
            [20.0, 10.0, 1.0],
        );
        let ours = reached(
            12.0,
            &[
                ("forward", 36.0, 24.0),
                ("wgrad", 36.0, 24.0),
                ("optimizer", 12.0, 12.0),
                ("compact", 6.0, 3.0),
                ("select", 6.0, 6.0),
            ],
            [12.0, 18.0, 6.0],
        );
        let one_copy = reached(12.0, &[("forward", 42.0, 24.0), ("wgrad", 42.0, 24.0)], [0.0; 3]);
        let found = attribute(&ours, &rival, Some(&one_copy)).unwrap();
        let expected = [
            (Term::Steps, 22.0),
            (Term::BackwardGemms, 10.0 * (2.0 - 4.0)),
            (Term::OtherCompute, 10.0 * ((2.0 + 1.0) - (2.0 + 1.0))),
            (Term::BalanceForward, 10.0 * (1.0 - 2.0)),
            (Term::BalanceBackward, 10.0 * (1.0 - 2.0)),
            (Term::Selection, 10.0 * (1.0 - 0.5)),
            (Term::Exchange, 10.0 * (1.0 - 2.0)),
            (Term::OptimizerExchange, 10.0 * (1.5 - 1.0)),
            (Term::Planning, 10.0 * (0.5 - 0.1)),
        ];
        for (term, seconds) in expected {
            assert!(close(found.terms[term as usize], seconds), "{term:?}: {}", found.terms[term as usize]);
        }
        // Its excess is 1.5 + 1.5 a step, where the rival's is 4 and ours 2.
        assert!(found.balance.is_some_and(|[placement, replicas]| close(placement, -10.0) && close(replicas, -10.0)));
        assert_eq!(found.rival, 146.0);
        assert!(close(found.terms.iter().sum(), 132.0 - 146.0));
    }

    #[test]
    fn terms_add_up_to_the_difference_of_moe_seconds() {
        for seed in 0..5 {
            let mut cell = cell(seed);
            // Names that nobody foresaw, and a mean that lacks a phase, must not be lost.
            for (i, run) in cell.runs.iter_mut().enumerate() {
                for point in &mut run.curve {
                    point.cost.phases.insert("unforeseen".into(), 0.07 * (i as f64 + 1.0) * point.step as f64);
                    point.cost.mean.remove("dgrad");
                }
            }
            for mode in ["stash", "recompute"] {
                for rival in ["symi", "fixed-waves", "lrmoe-1copy"] {
                    for policy in ["lrmoe", "fixed-waves", "symi"] {
                        let (ours, rival) = (find(&cell, policy, mode).unwrap(), find(&cell, rival, mode).unwrap());
                        let seconds = |run| at_target(&cell, run, 2).map(|reached| reached.cost.moe_s(PLANNED));
                        let Some(found) = in_cell(&cell, ours, &rival.policy) else {
                            assert!(seconds(ours).is_none() || seconds(rival).is_none());
                            continue;
                        };
                        let difference = seconds(ours).unwrap() - seconds(rival).unwrap();
                        assert!(close(found.terms.iter().sum(), difference), "{found:?} is not {difference}");
                        if let Some([placement, replicas]) = found.balance {
                            let balance =
                                [Term::BalanceForward, Term::BalanceBackward].map(|t| found.terms[t as usize]);
                            assert!(close(placement + replicas, balance.iter().sum()));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn lines_of_a_group_add_up_and_replicas_are_apart_only_where_they_are_known() {
        let mut cells = [cell(1), cell(2), cell(3)];
        let sum = |lines: &[Line], of: fn(&Line) -> f64| {
            lines.iter().filter(|line| !line.detail && line.name != "total").map(of).sum::<f64>()
        };
        {
            let groups = groups(&cells);
            let lines = lines(&groups[0], "stash", "symi");
            let names: Vec<&str> = lines.iter().map(|line| line.name).collect();
            assert_eq!(names[4..8], ["balance_backward", "balance_placement", "balance_replicas", "selection"]);
            let total = lines.last().unwrap();
            assert_eq!((total.name, total.seconds.seeds), ("total", 3));
            assert!(close(sum(&lines, |l| l.seconds.mean), total.seconds.mean));
            assert!(close(sum(&lines, |l| l.share.mean), total.share.mean) && total.share.mean < 0.0);
            assert!(super::lines(&groups[0], "recompute", "symi").is_empty());
            assert!(super::lines(&groups[0], "stash", "fixed").is_empty());
            assert_eq!(rivals(&groups[0], "stash"), ["fixed", "fixed-waves", "symi"]);
        }
        for cell in &mut cells {
            cell.runs.retain(|run| run.policy != ONE_COPY);
        }
        let groups = groups(&cells);
        assert!(lines(&groups[0], "stash", "symi").iter().all(|line| !line.detail));
    }

    #[test]
    fn what_is_missing_is_told_from_what_was_not_reached() {
        let mut cells = [cell(1)];
        let missing = |cells: &[Cell], mode| super::missing(&groups(cells)[0], mode);
        assert_eq!(missing(&cells, "stash"), "fixed (no fit)");
        assert_eq!(missing(&cells, "recompute"), "lrmoe (not reached)");
        cells[0].runs[0].infeasible = Some("diverged".into());
        assert_eq!(missing(&cells, "stash"), "fixed (ended)");
        cells[0].runs.retain(|run| run.policy != "symi");
        assert_eq!(missing(&cells, "stash"), "symi (not run); fixed (ended)");
        let mut late = find(&cells[0], "fixed-waves", "stash").unwrap().clone();
        late.policy = "symi:20".into();
        late.curve.truncate(3);
        cells[0].runs.push(late);
        assert_eq!(missing(&cells, "stash"), "symi (not run); fixed (ended); symi:20 (not reached)");
        cells[0].plain.clear();
        assert_eq!(missing(&cells, "stash"), "lrmoe (no target)");
        cells[0].runs = vec![infeasible("lrmoe", "stash")];
        assert_eq!(missing(&cells, "stash"), "lrmoe (no fit)");
        cells[0].runs.clear();
        assert_eq!(missing(&cells, "stash"), "lrmoe (not run)");
        let mut cells = [cell(1), cell(2)];
        for (cell, late) in cells.iter_mut().zip(["symi", "lrmoe"]) {
            cell.runs.iter_mut().filter(|run| run.policy == late).for_each(|run| run.curve.truncate(3));
        }
        assert_eq!(missing(&cells, "stash"), "fixed (no fit); symi (not reached with a seed of both)");
    }

    #[test]
    fn a_target_that_a_run_begins_at_has_no_steps_to_compare() {
        let begins = reached(0.0, &[], [0.0; 3]);
        let later = reached(5.0, &[("forward", 5.0, 5.0)], [0.0; 3]);
        assert_eq!(attribute(&begins, &later, None), None);
        assert_eq!(attribute(&later, &begins, None), None);
        assert_eq!(attribute(&later, &later, Some(&begins)).unwrap().balance, None);
    }
}
