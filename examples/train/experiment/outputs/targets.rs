//! Target losses of a cell, and when a run reaches one.

use std::collections::BTreeMap;

use crate::experiment::cell::{Cell, Cost, Point, PolicyRun, TARGETS};
use crate::run::target_step;

/// The trajectory of policies that compute every pair in both passes: the plain run.
pub(crate) const PLAIN: &str = "all";
/// Index of the last of [`TARGETS`].
pub(super) const LAST: usize = TARGETS.len() - 1;

/// A run at a target loss, between two validations in general.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reached {
    pub(crate) step: f64,
    /// All steps until then.
    pub(crate) cost: Cost,
}

/// "95 %": what a target is called.
pub(super) fn percent(fraction: f64) -> String {
    format!("{:.0} %", 100.0 * fraction)
}

/// The target losses, one for each of [`TARGETS`]; `None` where the plain run did not get there.
pub(super) fn losses(cell: &Cell) -> [Option<f64>; 3] {
    TARGETS.map(|fraction| {
        let step = target_step(cell.protocol.steps, fraction);
        cell.plain.iter().find(|(at, _)| *at == step).map(|(_, loss)| *loss)
    })
}

/// The step at which the plain run first comes down to `loss`.
pub(super) fn plain_step(cell: &Cell, loss: f64) -> Option<f64> {
    let (after, part) = crossing(cell.plain.iter().map(|(_, loss)| *loss), loss)?;
    let step = |i: usize| cell.plain[i].0 as f64;
    Some(mix(step(after.saturating_sub(1)), step(after), part))
}

/// Where the validation loss first comes down to `loss`: on the straight line between the validations before and after, of the
/// step and of every part of the cost alike. `None` if it never does.
pub(super) fn reach(run: &PolicyRun, loss: f64) -> Option<Reached> {
    let (after, part) = crossing(run.curve.iter().map(|p| p.val_loss), loss)?;
    Some(between(&run.curve[after.saturating_sub(1)], &run.curve[after], part))
}

/// Index of the first loss at or below `loss`, and the part of the way to it from the one before at which a straight line comes down
/// to `loss`. At index 0 that is 1.
fn crossing(losses: impl Iterator<Item = f64>, loss: f64) -> Option<(usize, f64)> {
    let mut before = None;
    for (after, end) in losses.enumerate() {
        if end <= loss {
            return Some((
                after,
                before.filter(|start| *start > loss).map_or(1.0, |start| (start - loss) / (start - end)),
            ));
        }
        before = Some(end);
    }
    None
}

/// Exact at both ends.
fn mix(a: f64, b: f64, part: f64) -> f64 {
    (1.0 - part) * a + part * b
}

/// Of a phase; 0 where there is none of that name.
pub(super) fn seconds_of(phases: &BTreeMap<String, f64>, name: &str) -> f64 {
    phases.get(name).copied().unwrap_or(0.0)
}

fn between(start: &Point, end: &Point, part: f64) -> Reached {
    let mix = |a, b| mix(a, b, part);
    let (a, b) = (&start.cost, &end.cost);
    let map = |a: &BTreeMap<String, f64>, b: &BTreeMap<String, f64>| {
        let names = a.keys().chain(b.keys());
        names.map(|name| (name.clone(), mix(seconds_of(a, name), seconds_of(b, name)))).collect()
    };
    let array = |a: [f64; 3], b: [f64; 3]| std::array::from_fn(|i| mix(a[i], b[i]));
    let cost = Cost {
        phases: map(&a.phases, &b.phases),
        mean: map(&a.mean, &b.mean),
        exchange_s: array(a.exchange_s, b.exchange_s),
        optimizer_exchange_s: array(a.optimizer_exchange_s, b.optimizer_exchange_s),
        plan_s: mix(a.plan_s, b.plan_s),
    };
    Reached { step: mix(start.step as f64, end.step as f64), cost }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{cell, run};
    use super::*;
    use crate::experiment::cell::NETWORKS;

    fn point(step: u64, val_loss: f64, seconds: f64) -> Point {
        let phases = |s: f64| BTreeMap::from([("forward".to_owned(), s), ("wgrad".to_owned(), 2.0 * s)]);
        let cost = Cost {
            phases: phases(seconds),
            mean: phases(seconds / 2.0),
            exchange_s: [4.0 * seconds, 2.0 * seconds, seconds],
            optimizer_exchange_s: [0.5 * seconds; 3],
            plan_s: 0.25 * seconds,
        };
        Point { step, val_loss, cost }
    }

    fn with_curve(curve: Vec<Point>) -> PolicyRun {
        PolicyRun { curve, ..run("lrmoe", "stash", "lrmoe", 1.0, 0.0) }
    }

    #[test]
    fn a_crossing_is_interpolated_in_step_and_in_every_part() {
        // From 3.0 at step 40 to 2.6 at step 60: 2.9 is a quarter of the way.
        let run = with_curve(vec![point(0, 5.0, 0.0), point(40, 3.0, 8.0), point(60, 2.6, 16.0), point(80, 2.4, 99.0)]);
        let reached = reach(&run, 2.9).unwrap();
        assert!((reached.step - 45.0).abs() < 1e-9);
        let cost = &reached.cost;
        for (got, expected) in [
            (cost.phases["forward"], 10.0),
            (cost.phases["wgrad"], 20.0),
            (cost.mean["forward"], 5.0),
            (cost.mean["wgrad"], 10.0),
            (cost.exchange_s[0], 40.0),
            (cost.exchange_s[1], 20.0),
            (cost.exchange_s[2], 10.0),
            (cost.optimizer_exchange_s[1], 5.0),
            (cost.plan_s, 2.5),
            // The whole is interpolated as its parts are: between 46 and 92.
            (cost.moe_s(1), 57.5),
        ] {
            assert!((got - expected).abs() < 1e-9, "{got} is not {expected}");
        }
        for network in 0..NETWORKS.len() {
            let whole = |i: usize| run.curve[i].cost.moe_s(network);
            assert!((cost.moe_s(network) - (0.75 * whole(1) + 0.25 * whole(2))).abs() < 1e-9);
        }
    }

    #[test]
    fn the_first_crossing_counts_and_a_loss_met_exactly_is_reached_there() {
        let run = with_curve(vec![point(0, 5.0, 0.0), point(10, 3.0, 1.0), point(20, 3.5, 2.0), point(30, 2.0, 3.0)]);
        assert_eq!(reach(&run, 3.2).unwrap().step, 9.0);
        assert_eq!(reach(&run, 3.0).unwrap(), Reached { step: 10.0, cost: run.curve[1].cost.clone() });
        assert_eq!(reach(&run, 2.0).unwrap(), Reached { step: 30.0, cost: run.curve[3].cost.clone() });
        assert_eq!(reach(&run, 5.0).unwrap().step, 0.0);
        assert_eq!(reach(&run, 9.0).unwrap().step, 0.0);
        assert_eq!(reach(&run, 1.9), None);
        assert_eq!(reach(&with_curve(Vec::new()), 9.0), None);
    }

    #[test]
    fn a_phase_that_appears_later_counts_from_zero() {
        let mut curve = vec![point(0, 4.0, 0.0), point(10, 2.0, 1.0)];
        curve[0].cost = Cost::default();
        curve[1].cost.phases.insert("score".into(), 6.0);
        assert!((reach(&with_curve(curve), 3.0).unwrap().cost.phases["score"] - 3.0).abs() < 1e-12);
    }

    #[test]
    fn targets_are_the_plain_runs_whatever_policies_there_are() {
        let mut cell = cell(7);
        let expected = losses(&cell);
        let at = |step: u64| cell.plain.iter().find(|p| p.0 == step).map(|p| p.1);
        assert_eq!(expected, [at(60), at(80), at(95)]);
        assert!(expected.iter().all(Option::is_some));
        cell.runs.retain(|run| run.policy == "lrmoe");
        assert_eq!(losses(&cell), expected);
        assert_eq!(plain_step(&cell, expected[1].unwrap()), Some(80.0));
        // A plain run that stopped early sets only the targets it passed.
        cell.plain.retain(|p| p.0 <= 80);
        assert_eq!(losses(&cell), [expected[0], expected[1], None]);
        cell.plain.clear();
        assert_eq!((losses(&cell), plain_step(&cell, 9.0)), ([None; 3], None));
    }

    #[test]
    fn the_plain_run_comes_down_to_a_loss_where_a_run_of_the_same_curve_does() {
        let mut cell = cell(1);
        cell.plain = vec![(0, 5.0), (40, 3.0), (50, 3.0), (60, 2.6), (80, 2.7)];
        let run = with_curve(cell.plain.iter().map(|&(step, loss)| point(step, loss, 1.0)).collect());
        for loss in [9.0, 5.0, 4.0, 3.0, 2.9, 2.6, 2.5] {
            assert_eq!(plain_step(&cell, loss), reach(&run, loss).map(|reached| reached.step), "{loss}");
        }
        assert_eq!(
            [9.0, 4.0, 3.0, 2.6, 2.5].map(|loss| plain_step(&cell, loss)),
            [Some(0.0), Some(20.0), Some(40.0), Some(60.0), None]
        );
        assert!((plain_step(&cell, 2.9).unwrap() - 52.5).abs() < 1e-9);
    }
}
