//! The printed tables: one set for each group and activation mode.

use lrmoe::memory::Category;

use super::attribution;
use super::grid::{GIB, Grid, NOTHING, change, mean, share, signed};
use super::groups::{Group, Spread, Stopped, at_target, groups, list};
use super::names::{FIXED, FIXED_WAVES, OURS, SYMI};
use super::report::Parts;
use super::summary::Row;
use super::targets::{LAST, percent};
use super::verdict;
use crate::experiment::cell::{Cell, Memory, NETWORKS, PLANNED, PolicyRun, TARGETS};

const LEGEND: &str = "\
Targets are the plain run's validation losses at 60, 80 and 95 % of its steps. Seconds are those of all MoE layers until a run
first comes down to a target, optimizer, traffic and planning included; what a phase takes is what its busiest rank takes.
measured: counted in training, or timed on this machine. measured (fit): compute, by a fit to the measured shares of sampled steps.
measured (scaled): planning, timed on this machine, times the time scale. modelled: from the bytes of the plans, seconds over the
network named. MoE s is the sum of the last three.
Numbers are means over seeds, with [least..most] of ratios, which are taken seed by seed.
Subtotal: weights, replicas and everything that grows with tokens, at the rank and step where that is largest.
n/r: not reached; (2/3): reached with two of three seeds, which alone are averaged; no fit: does not fit its budget; ended: stopped
for another reason.";
const NOTES: &str = "\
Notes
symi-drop drops in training only: it is validated without dropping.
Networks x 0.5 and x 2 change bandwidth, not latency, and keep the plans that were made for x 1.
The gate's work does not shrink with the model, so it weighs more here than in the real model, for all policies alike.
lrmoe's activation modes share one training run, whose quotas are those of the last mode.";

/// Everything that is printed.
pub(super) fn text(cells: &[Cell]) -> String {
    let groups = groups(cells);
    let mut text = format!("{LEGEND}\n");
    for (i, group) in groups.iter().enumerate() {
        text += &format!("\n[{}] {}\n{}\n", i + 1, group.title(), protocol(group.first));
        for mode in group.modes() {
            text += &format!("\n{mode}: time\n{}", time(group, mode));
            text += &stopped(group, mode);
            text += &format!("\n{mode}: parts of the time to the last target, and loads\n{}", parts(group, mode));
            text += &format!("\n{mode}: memory of the fullest rank of {}\n{}", group.real_model(), memory(group, mode));
            text += &format!("\n{mode}: where {OURS}'s difference comes from\n{}", difference(group, mode));
        }
        text += &format!("\nMoE s to the last target vs {SYMI} % on slower and faster networks\n{}", networks(group));
    }
    text += &format!("\nWhere {OURS} loses\n{}", verdict::loses(&groups));
    text += &format!("\nHow well the fit repeats what was measured\n{}", verdict::fit(&groups));
    text + &format!("\n{NOTES}\n")
}

fn protocol(cell: &Cell) -> String {
    let p = &cell.protocol;
    let budget = p.budget.map_or("no limit".into(), |bytes| format!("{:.1} GiB", bytes as f64 / GIB));
    let machine = format!(
        "{} ranks, {} a node, network and compute as on {} ({:.3} s here for 1 s there), budget of a real rank: {budget}, \
         slots of {SYMI}: {}, eplb: {}",
        p.ranks, p.ranks_per_node, p.cluster, p.time_scale, p.symi_slots, p.eplb_slots
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
    format!("    {machine}\n    {model}\n    measured on {cpu} with {threads} threads, text {}", p.corpus)
}

fn percents() -> Vec<String> {
    TARGETS.into_iter().map(percent).collect()
}

/// The last target's name.
fn last_percent() -> Vec<String> {
    percents().split_off(LAST)
}

fn time(group: &Group<'_>, mode: &str) -> Grid {
    let mut grid = Grid::new([
        (String::new(), vec!["policy".to_owned()]),
        ("steps, measured".into(), percents()),
        ("MoE s, measured (fit) + modelled".into(), percents()),
        (format!("MoE s vs {SYMI} %, measured (fit) + modelled"), percents()),
        (format!("vs {FIXED} %"), last_percent()),
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
    let (seeds, _) = row.seeds();
    match row.step() {
        Some(s) if s.seeds == seeds => format!("{:.0}", s.mean),
        Some(s) => format!("{:.0} ({}/{seeds})", s.mean, s.seeds),
        None => row.group.stopped(row.policy, row.mode).map_or("n/r", Stopped::word).into(),
    }
}

/// A line for each policy that stopped with some seed, and each kind of reason.
fn stopped(group: &Group<'_>, mode: &str) -> String {
    let mut text = String::new();
    for policy in group.policies(mode) {
        for why in Stopped::ALL {
            let (seeds, reason) = group.stopped_seeds(policy, mode, why);
            if let Some(reason) = reason {
                text += &format!("{policy}, {}: {}: {reason}\n", list(&seeds), why.word());
            }
        }
    }
    text
}

fn parts(group: &Group<'_>, mode: &str) -> Grid {
    let mut grid = Grid::new([
        ("", vec!["policy"]),
        ("whole run, measured", vec!["bwd pairs %", "dropped %", "max/mean fwd", "bwd", "replicas", "waves"]),
        ("s, measured (fit; plan: scaled)", vec!["forward", "backward", "optimizer", "plan"]),
        ("s, modelled", vec!["exchange", "opt. exch."]),
        ("GiB, modelled", vec!["inter-node"]),
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
    let subtotal = vec!["subtotal".into(), format!("vs {FIXED} %"), format!("vs {FIXED_WAVES} %")];
    let mut grid = Grid::new([
        ("", vec!["policy".to_owned()]),
        ("GiB at its peak, modelled", peak),
        ("GiB at its own peak, modelled", subtotal),
    ]);
    for policy in group.policies(mode) {
        let gibibytes = |of: &dyn Fn(&Memory) -> u64| {
            mean(group.spread(policy, mode, |_, run| Some(of(&run.real_memory) as f64 / GIB)), 2)
        };
        let mut cells = vec![policy.to_owned()];
        cells.extend(categories.iter().map(|c| gibibytes(&|memory| memory.peak_bytes.get(c).copied().unwrap_or(0))));
        cells.push(gibibytes(&|memory| memory.peak_bytes.values().sum()));
        cells.push(gibibytes(&|memory| memory.subtotal_bytes));
        cells.extend([FIXED, FIXED_WAVES].map(|rival| change(subtotal_over(group, policy, mode, rival))));
        grid.row(cells);
    }
    grid
}

/// Bytes of the real model's subtotal over those of `rival`, seed by seed.
pub(super) fn subtotal_over(group: &Group<'_>, policy: &str, mode: &str, rival: &str) -> Option<Spread> {
    group.ratio(policy, mode, rival, |_, run| Some(run.real_memory.subtotal_bytes as f64))
}

/// The attribution: in seconds and percent against [`SYMI`], in percent against the others.
fn difference(group: &Group<'_>, mode: &str) -> String {
    let mut rivals = attribution::rivals(group, mode);
    rivals.sort_by_key(|rival| *rival != SYMI);
    let lines = rivals.iter().map(|rival| (*rival, attribution::lines(group, mode, rival)));
    let found: Vec<_> = lines.filter(|(_, lines)| !lines.is_empty()).collect();
    let missing = attribution::missing(group, mode);
    let Some((_, longest)) = found.iter().max_by_key(|(_, lines)| lines.len()) else {
        return format!("Nothing to compare: {missing}\n");
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
                cells.push(own.map_or(NOTHING.into(), |own| signed(own.seconds.mean, 3)));
                cells.push(share(own.map(|own| own.share)));
            } else {
                cells.push(own.map_or(NOTHING.into(), |own| signed(100.0 * own.share.mean, 1)));
            }
        }
        grid.row(cells);
    }
    let missing = if missing.is_empty() { missing } else { format!("Not compared: {missing}\n") };
    format!("{grid}{missing}Backward GEMMs of the mean rank hold what resident experts without rows cost, too.\n")
}

fn networks(group: &Group<'_>) -> Grid {
    let speeds = || NETWORKS.map(|speed| format!("x {speed}")).to_vec();
    let modes = group.modes();
    let captions = modes.iter().map(|mode| (format!("{mode}, measured (fit) + modelled"), speeds()));
    let mut grid = Grid::new(std::iter::once((String::new(), vec!["policy".to_owned()])).chain(captions));
    for policy in group.all_policies() {
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
        assert!(text.contains("\nfixed, seed 1: no fit: needs 3 MiB more than its budget\n"));
        const PARTS: &str = "stash: parts of the time to the last target, and loads";
        let parts = row(&text, PARTS, "symi");
        let loads = ["100.0", "0.0", "1.52", "1.26", "4.0", "1"];
        assert_eq!(parts[1..7], loads);
        assert_eq!(parts[7..], ["34.54", "64.29", "4.80", "0.95", "19.00", "9.50", "0.93"]);
        assert_eq!(row(&text, PARTS, "lrmoe")[1], "50.0");
        let memory = row(&text, "stash: memory of the fullest rank", "symi");
        let categories = (1..=8).map(|gib| format!("{gib}.00"));
        assert_eq!(memory[1..9], categories.collect::<Vec<_>>());
        // No `fixed` to compare with, and 20 GiB over 40.
        assert_eq!(memory[9..], ["36.00", "20.00", "-", "-50.0"]);
        assert!(
            text.contains(
                "stash: memory of the fullest rank of qwen3-30b-a3b itself, 48 layers, 36864 tokens a rank\n"
            )
        );
        assert_eq!(row(&text, "slower and faster networks", "fixed-waves").len(), 7);
    }

    #[test]
    fn the_protocol_says_slots_and_whether_there_is_a_limit() {
        let mut cell = cell(1);
        assert!(
            protocol(&cell).contains("budget of a real rank: 0.2 GiB")
                && protocol(&cell).contains("slots of symi: 8, eplb: 4\n")
        );
        cell.protocol.budget = None;
        assert!(protocol(&cell).contains("budget of a real rank: no limit"));
    }

    #[test]
    fn runs_that_ended_and_runs_with_slots_are_listed() {
        let mut cells = [cell(1), cell(2)];
        cells[1].runs[0].infeasible = Some("diverged".into());
        for cell in &mut cells {
            let slots = PolicyRun { policy: "symi:20".into(), ..cell.runs[2].clone() };
            cell.runs.insert(4, slots);
        }
        let text = text(&cells);
        assert_eq!(row(&text, "stash: time", "fixed")[..2], ["fixed", "ended"]);
        assert!(
            text.contains(
                "\nfixed, seed 1: no fit: needs 3 MiB more than its budget\nfixed, seed 2: ended: diverged\n"
            )
        );
        let waves = row(&text, "stash: time", "fixed-waves");
        assert_eq!(row(&text, "stash: time", "symi:20")[1..], waves[1..]);
        assert!(text.contains("| vs symi:20\n"), "{text}");
        assert!(text.contains("\nNot compared: fixed (ended)\n"), "{text}");
        assert!(text.contains("\nNothing to compare: lrmoe (not reached)\n"), "{text}");
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
            "MoE s, measured (fit) + modelled",
            "MoE s vs symi %, measured (fit) + modelled",
            "whole run, measured",
            "s, measured (fit; plan: scaled)",
            "GiB, modelled",
            "s, modelled",
            "GiB at its peak, modelled",
            "recompute, measured (fit) + modelled",
        ] {
            assert!(text.contains(label), "{label}");
        }
        for term in attribution::Term::ALL {
            assert!(text.contains(term.title()), "{}", term.title());
        }
        assert!(text.contains("  of the balance: replicas ") && text.contains("experts without rows cost, too."));
        let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= 156, "{widest}");
        assert!(text.lines().all(|line| line.trim_end() == line));
    }

    #[test]
    fn without_cells_there_is_still_the_legend() {
        let text = text(&[]);
        assert!(text.starts_with(LEGEND) && text.ends_with(&format!("{NOTES}\n")));
    }
}
