//! The printed tables: one set for each group and activation mode.

use lrmoe::memory::Category;

use super::attribution::{self, OURS};
use super::grid::{Grid, NOTHING, change, mean, share};
use super::groups::{Group, Spread, at_target, groups};
use super::report::Parts;
use super::summary::{FIXED, FIXED_WAVES, Row, SYMI};
use super::verdict;
use crate::experiment::cell::{Cell, NETWORKS, PLANNED, PolicyRun, TARGETS};

const MIB: f64 = 1_048_576.0;
const GIB: f64 = 1_073_741_824.0;
const LAST: usize = TARGETS.len() - 1;
const LEGEND: &str = "\
Targets are the plain run's validation losses at 60, 80 and 95 % of its steps. Seconds are those of all MoE layers until a run
first comes down to a target, optimizer, traffic and planning included; what a phase takes is what its busiest rank takes.
measured: executed and timed on this machine share by share for sampled steps, and fitted to all others. modelled: from the bytes
of the plans over the network named. Numbers are means over seeds, with [least..most] of ratios, which are taken seed by seed.
Subtotal: weights, replicas and everything that grows with tokens, at the rank and step where that is largest.
n/r: not reached; (2/3): reached with two of three seeds, which alone are averaged; no fit: does not fit its budget.";

/// Everything that is printed.
pub(super) fn text(cells: &[Cell]) -> String {
    let groups = groups(cells);
    let mut text = format!("{LEGEND}\n");
    for (i, group) in groups.iter().enumerate() {
        text += &format!("\n[{}] {}\n{}\n", i + 1, group.title(), protocol(group.first));
        for mode in group.modes() {
            text += &format!("\n{mode}: time\n{}", time(group, mode));
            text += &misfits(group, mode);
            text += &format!("\n{mode}: parts of the time to the last target, and loads\n{}", parts(group, mode));
            text += &format!("\n{mode}: memory of the fullest rank\n{}", memory(group, mode));
            text += &format!("\n{mode}: where lrmoe's difference comes from\n{}", difference(group, mode));
        }
        text += &format!("\nMoE s to the last target vs symi % on slower and faster networks\n{}", networks(group));
    }
    text += &format!("\nWhere lrmoe loses\n{}", verdict::loses(&groups));
    text += &format!("\nHow well the fit repeats what was measured\n{}", verdict::fit(&groups));
    text
}

fn protocol(cell: &Cell) -> String {
    let p = &cell.protocol;
    let machine = format!(
        "{} ranks, {} a node, network and compute as on {} ({:.3} s here for 1 s there), {:.1} MiB a rank, text {}",
        p.ranks,
        p.ranks_per_node,
        p.cluster,
        p.time_scale,
        p.budget as f64 / MIB,
        p.corpus
    );
    let model = format!(
        "{} layers, hidden {}, {} experts of width {}, top-{}; {} steps; retain {}, alpha {}, slack {}, q_min {}, smoothing {}, floor {}",
        p.layers,
        p.hidden,
        p.experts,
        p.intermediate,
        p.top_k,
        p.steps,
        p.retain,
        p.alpha,
        p.slack,
        p.q_min,
        p.smoothing,
        p.score_floor
    );
    let cpu = cell.machine["cpu"].as_str().unwrap_or("a processor of unknown name");
    let threads = &cell.machine["threads"];
    format!("    {machine}\n    {model}\n    measured on {cpu} with {threads} threads")
}

fn percents() -> Vec<String> {
    TARGETS.iter().map(|fraction| format!("{:.0} %", 100.0 * fraction)).collect()
}

/// The last target's name.
fn last_percent() -> Vec<String> {
    percents().split_off(LAST)
}

fn time(group: &Group<'_>, mode: &str) -> Grid {
    let mut grid = Grid::new([
        ("", vec!["policy".to_owned()]),
        ("steps, measured", percents()),
        ("MoE s, measured + modelled", percents()),
        ("MoE s vs symi %, measured + modelled", percents()),
        ("vs fixed %", last_percent()),
    ]);
    for policy in group.policies(mode) {
        let rows: Vec<Row<'_>> = (0..TARGETS.len()).map(|target| Row { group, policy, mode, target }).collect();
        let mut cells = vec![policy.to_owned()];
        cells.extend(rows.iter().map(step));
        cells.extend(rows.iter().map(|row| mean(row.moe_s(PLANNED), 2)));
        cells.extend(rows.iter().map(|row| change(row.over(SYMI, PLANNED))));
        cells.extend(rows.last().map(|row| change(row.over(FIXED, PLANNED))));
        grid.row(cells);
    }
    grid
}

/// The mean step, or why there is none.
fn step(row: &Row<'_>) -> String {
    let (seeds, infeasible) = row.seeds();
    match row.step() {
        Some(s) if s.seeds == seeds => format!("{:.0}", s.mean),
        Some(s) => format!("{:.0} ({}/{seeds})", s.mean, s.seeds),
        None if infeasible == seeds => "no fit".into(),
        None => "n/r".into(),
    }
}

/// A line for each policy that does not fit in some seed.
fn misfits(group: &Group<'_>, mode: &str) -> String {
    let mut text = String::new();
    for policy in group.policies(mode) {
        let unfit = group.runs(policy, mode).filter_map(|(cell, run)| Some((cell.key.seed, run.infeasible.as_ref()?)));
        let (seeds, reasons): (Vec<_>, Vec<_>) = unfit.unzip();
        if let Some(reason) = reasons.first() {
            let seeds = seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
            text += &format!("{policy} does not fit (seed {seeds}): {reason}\n");
        }
    }
    text
}

fn parts(group: &Group<'_>, mode: &str) -> Grid {
    let mut grid = Grid::new([
        ("", vec!["policy"]),
        ("whole run, measured", vec!["bwd pairs %", "dropped %", "max/mean fwd", "bwd", "replicas", "waves"]),
        ("s, measured", vec!["forward", "backward", "optimizer", "plan"]),
        ("s, modelled", vec!["exchange", "opt. exch."]),
        ("modelled", vec!["GiB inter-node"]),
    ]);
    for policy in group.policies(mode) {
        let of = |f: &dyn Fn(&PolicyRun) -> f64| group.spread(policy, mode, |_, run| Some(f(run)));
        let routed = |part: u64, run: &PolicyRun| 100.0 * part as f64 / run.routed_pairs.max(1) as f64;
        let spent = |f: fn(&Parts) -> f64| {
            mean(group.spread(policy, mode, |cell, run| Some(f(&Parts::of(&at_target(cell, run, LAST)?.cost)))), 2)
        };
        grid.row(vec![
            policy.to_owned(),
            mean(of(&|run| routed(run.backward_pairs, run)), 1),
            mean(of(&|run| routed(run.dropped_pairs, run)), 1),
            mean(of(&|run| run.busiest_over_mean_forward), 2),
            mean(of(&|run| run.busiest_over_mean_backward), 2),
            mean(of(&|run| run.replicas_mean), 1),
            of(&|run| run.waves as f64).map_or(NOTHING.into(), |s| format!("{:.0}", s.max)),
            spent(|p| p.forward_s),
            spent(|p| p.backward_s),
            spent(|p| p.optimizer_s),
            spent(|p| p.plan_s),
            spent(|p| p.exchange_s),
            spent(|p| p.optimizer_exchange_s),
            mean(of(&|run| run.bytes_inter_node / GIB), 2),
        ]);
    }
    grid
}

fn memory(group: &Group<'_>, mode: &str) -> Grid {
    let categories = Category::ALL.map(|category| category.to_string());
    let mut peak = categories.clone().map(|name| name.replace("_buffers", "s")).to_vec();
    peak.push("peak".into());
    let subtotal = ["subtotal", "vs fixed %", "vs fixed-waves %"].map(String::from).to_vec();
    let mut grid = Grid::new([
        ("", vec!["policy".to_owned()]),
        ("MiB at its peak, modelled", peak),
        ("MiB at its own peak, modelled", subtotal),
    ]);
    for policy in group.policies(mode) {
        let mebibytes =
            |f: &dyn Fn(&PolicyRun) -> u64| mean(group.spread(policy, mode, |_, r| Some(f(r) as f64 / MIB)), 1);
        let mut cells = vec![policy.to_owned()];
        cells.extend(categories.iter().map(|c| mebibytes(&|run| run.peak_bytes.get(c).copied().unwrap_or(0))));
        cells.push(mebibytes(&|run| run.peak_bytes.values().sum()));
        cells.push(mebibytes(&|run| run.subtotal_bytes));
        cells.extend([FIXED, FIXED_WAVES].map(|rival| change(subtotal_over(group, policy, mode, rival))));
        grid.row(cells);
    }
    grid
}

/// Bytes of the subtotal over those of `rival`, seed by seed.
pub(super) fn subtotal_over(group: &Group<'_>, policy: &str, mode: &str, rival: &str) -> Option<Spread> {
    group.ratio(policy, mode, rival, |_, run| Some(run.subtotal_bytes as f64))
}

/// The attribution: in seconds and percent against `symi`, in percent against the others.
fn difference(group: &Group<'_>, mode: &str) -> String {
    let mut rivals = attribution::rivals(group, mode);
    rivals.sort_by_key(|rival| *rival != SYMI);
    let lines = rivals.iter().map(|rival| (*rival, attribution::lines(group, mode, rival)));
    let found: Vec<_> = lines.filter(|(_, lines)| !lines.is_empty()).collect();
    let Some((_, longest)) = found.iter().max_by_key(|(_, lines)| lines.len()) else {
        return format!("{OURS} and another policy did not both reach the last target.\n");
    };
    let columns = |rival: &str| if rival == SYMI { vec!["s", "% of its MoE s"] } else { vec!["%"] };
    let mut grid = Grid::new(
        std::iter::once((String::new(), vec!["term", "source"]))
            .chain(found.iter().map(|(rival, _)| (format!("vs {rival}"), columns(rival)))),
    );
    for line in longest {
        let mut cells = vec![line.title.to_owned(), line.source.to_owned()];
        for (rival, lines) in &found {
            let own = lines.iter().find(|own| own.name == line.name);
            if *rival == SYMI {
                cells.push(own.map_or(NOTHING.into(), |own| format!("{:+.3}", own.seconds.mean)));
                cells.push(share(own.map(|own| own.share)));
            } else {
                cells.push(own.map_or(NOTHING.into(), |own| super::grid::signed(100.0 * own.share.mean)));
            }
        }
        grid.row(cells);
    }
    grid.to_string()
}

fn networks(group: &Group<'_>) -> Grid {
    let speeds = || NETWORKS.map(|speed| format!("x {speed}")).to_vec();
    let modes = group.modes();
    let captions = modes.iter().map(|mode| (format!("{mode}, measured + modelled"), speeds()));
    let mut grid = Grid::new(std::iter::once((String::new(), vec!["policy".to_owned()])).chain(captions));
    let mut policies: Vec<&str> = Vec::new();
    for policy in modes.iter().flat_map(|mode| group.policies(mode)) {
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    for policy in policies {
        let mut cells = vec![policy.to_owned()];
        for mode in &modes {
            let row = Row { group, policy, mode, target: LAST };
            cells.extend((0..NETWORKS.len()).map(|network| change(row.over(SYMI, network))));
        }
        grid.row(cells);
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::super::sample::cell;
    use super::*;

    /// The cells of the row of `policy` beneath the heading, bars left out.
    fn row(text: &str, heading: &str, policy: &str) -> Vec<String> {
        let table = text.split(heading).nth(1).unwrap().lines().skip(1);
        let line = table.take_while(|line| !line.is_empty()).find(|line| line.starts_with(&format!("{policy} ")));
        line.unwrap().split_whitespace().filter(|word| *word != "|").map(String::from).collect()
    }

    #[test]
    fn rows_hold_the_numbers_of_the_cells() {
        let text = text(&[cell(1)]);
        assert!(text.contains("measured on test with 2 threads") && text.contains("retain 0.5, alpha 1"), "{text}");
        // A step of symi takes 1.08 s of phases times 1.01, 0.3 s of traffic and 0.01 s of planning.
        let symi = row(&text, "stash: time", "symi");
        assert_eq!(symi, ["symi", "60", "80", "95", "84.05", "112.06", "133.08", "0.0", "0.0", "0.0", "-"]);
        let late = row(&text, "recompute: time", "lrmoe");
        assert_eq!(late[..4], ["lrmoe", "n/r", "n/r", "n/r"]);
        let unfit = row(&text, "stash: time", "fixed");
        assert_eq!(unfit[..5], ["fixed", "no", "fit", "no", "fit"]);
        assert!(text.contains("fixed does not fit (seed 1): needs 3 MiB more"));
        const PARTS: &str = "stash: parts of the time to the last target, and loads";
        let parts = row(&text, PARTS, "symi");
        let loads = ["100.0", "0.0", "1.52", "1.26", "4.0", "1"];
        assert_eq!(parts[1..7], loads);
        assert_eq!(parts[7..], ["34.54", "64.29", "4.80", "0.95", "19.00", "9.50", "0.93"]);
        assert_eq!(row(&text, PARTS, "lrmoe")[1], "50.0");
        let memory = row(&text, "stash: memory of the fullest rank", "symi");
        assert_eq!(memory[1..11], ["1.0", "2.0", "3.0", "4.0", "5.0", "6.0", "7.0", "8.0", "36.0", "20.0"]);
        // No `fixed` to compare with, and 20 MiB over 40.
        assert_eq!(memory[11..], ["-", "-50.0"]);
        assert_eq!(row(&text, "slower and faster networks", "fixed-waves").len(), 7);
    }

    #[test]
    fn seeds_that_did_not_reach_a_target_are_counted() {
        let mut cells = [cell(1), cell(2), cell(3)];
        let late = cells[2].runs.iter_mut().find(|run| run.policy == "lrmoe").unwrap();
        late.curve.truncate(18);
        let text = text(&cells);
        assert!(row(&text, "stash: time", "lrmoe").join(" ").contains("(2/3)"), "{text}");
        assert!(text.contains("[1] stash, MoE s to 95 %: not reached with seed 3"), "{text}");
    }

    #[test]
    fn every_group_of_numbers_says_where_it_comes_from_and_lines_are_narrow() {
        let text = text(&[cell(1), cell(2), cell(3)]);
        for label in [
            "steps, measured",
            "MoE s, measured + modelled",
            "MoE s vs symi %, measured + modelled",
            "whole run, measured",
            "s, measured",
            "s, modelled",
            "MiB at its peak, modelled",
            "recompute, measured + modelled",
        ] {
            assert!(text.contains(label), "{label}");
        }
        for term in attribution::Term::ALL {
            assert!(text.contains(term.title()), "{}", term.title());
        }
        assert!(text.contains("replicas (memory-driven)"));
        let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= 156, "{widest}");
        assert!(text.lines().all(|line| line.trim_end() == line));
    }

    #[test]
    fn without_cells_there_is_still_the_legend() {
        assert!(text(&[]).starts_with(LEGEND));
    }
}
