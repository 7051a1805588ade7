//! The report for people.

use std::fmt::Write as _;

use crate::planning::table::{Table, bytes, seconds, whole};
use crate::report::{CaseReport, NoSaving, PolicyReport, Report};
use crate::sim::{Refusal, Run};
use crate::uniform::{MOST, Uniform};

const COLUMNS: [&str; 14] = [
    "policy",
    "ms",
    "vs symi",
    "vs fixed",
    "forward",
    "backward",
    "GiB across",
    "GiB peak",
    "GiB subtotal",
    "vs fixed",
    "keeps",
    "waves",
    "dropped",
    "plan us",
];
/// What gives an infeasible case room.
const ROOM: &str = "--memory, --ranks, --layers (fewer a rank, as in pipeline stages) or --optimizer host make room";
const GIB: f64 = (1_u64 << 30) as f64;

/// What the columns mean, once.
pub(crate) const LEGEND: &str = "\
ms: predicted time of all steps, one layer, times the policy's extra steps. vs symi, vs fixed: that time against theirs.
forward, backward: pairs of the busiest rank over the mean, averaged over the steps (worst step).
GiB across: tokens and optimizer traffic between nodes, all ranks and steps. GiB peak: the fullest rank, all layers.
GiB subtotal: weights + replicas + token buffers + stash + exchange + scratch of the fullest rank, without gradients and optimizer.
keeps: stashed activations, or too little to do without recomputing; each plan takes the faster that fits, so compare GiB with this in view.
waves: the most of any pass. dropped: pairs that not even forward computed. plan us: median time of a plan, measured here and in no other number.";

/// One case: a heading, notes, a row for each policy.
pub(crate) fn case(case: &CaseReport) -> String {
    let nodes = case.ranks.div_ceil(case.ranks_per_node);
    let mut text = format!(
        "{}, {}: {} ranks on {}, E {}, k {}, {} pairs a step; MoE layers in {} a rank: {}\n",
        case.routing,
        case.model,
        case.ranks,
        if nodes == 1 { "one node".to_owned() } else { format!("{nodes} nodes") },
        case.experts,
        case.top_k,
        whole(case.pairs_per_step.round() as u64),
        bytes(case.budget_bytes),
        case.layers,
    );
    for note in &case.notes {
        let _ = writeln!(text, "note: {note}");
    }
    if case.policies.iter().any(|report| report.feasible) {
        let mut table = Table::new(COLUMNS);
        let ran = case.policies.iter().filter_map(|report| Some((report, report.run.as_ref()?)));
        ran.for_each(|(report, run)| table.row(row(case, report, run)));
        let _ = write!(text, "{table}");
    } else {
        let _ = writeln!(text, "no policy fits; {ROOM}");
    }
    for report in &case.policies {
        if let Some(Refusal { step, smallest_budget, .. }) = &report.refusal {
            let when = if *step == 0 { String::new() } else { format!(" from step {step}") };
            let budget = bytes(*smallest_budget);
            let _ = writeln!(text, "{}: infeasible{when}, at least {budget} a rank", report.policy);
        }
    }
    text
}

fn row(case: &CaseReport, report: &PolicyReport, run: &Run) -> [String; COLUMNS.len()] {
    let name =
        if run.extra_steps == 1.0 { report.policy.clone() } else { format!("{} x{}", report.policy, run.extra_steps) };
    let against = |rival: &str, of: fn(&Run) -> f64| match case.run(rival) {
        Some(other) if report.policy != rival && of(other) > 0.0 => percent(of(run) / of(other) - 1.0),
        _ => "-".to_owned(),
    };
    let balance = |ratio: crate::sim::Ratio| format!("{:.2} ({:.2})", ratio.mean, ratio.worst);
    let share = if run.pairs == 0 { 0.0 } else { run.dropped_pairs as f64 / run.pairs as f64 };
    [
        name,
        format!("{:.2}", 1e3 * run.seconds),
        against("symi", |run| run.seconds),
        against("fixed", |run| run.seconds),
        balance(run.max_over_mean_forward),
        balance(run.max_over_mean_backward),
        format!("{:.2}", (run.inter_node_token_bytes + run.inter_node_optimizer_bytes) / GIB),
        format!("{:.2}", run.peak_bytes as f64 / GIB),
        format!("{:.2}", run.subtotal_bytes as f64 / GIB),
        against("fixed", |run| run.subtotal_bytes as f64),
        keeps(run),
        run.waves_forward.max(run.waves_backward).to_string(),
        format!("{:.1} %", 100.0 * share),
        format!("{:.0}", run.median_plan_micros),
    ]
}

fn keeps(run: &Run) -> String {
    match run.recompute_steps {
        0 => "stash".to_owned(),
        n if n == run.steps => "recompute".to_owned(),
        n => format!("recompute {n}/{}", run.steps),
    }
}

fn percent(part: f64) -> String {
    format!("{:+.1} %", 100.0 * part)
}

/// Where LRMoE saves nothing, and what it costs where nothing can be saved.
pub(crate) fn verdict(report: &Report) -> String {
    let mut text = String::from("Verdict\n");
    let compared = report.cases.iter().filter(|case| case.run("lrmoe").is_some()).count();
    let (mut ties, mut losses): (Vec<&NoSaving>, Vec<_>) = report.no_saving.iter().partition(|found| found.is_tie());
    losses.sort_by(|a, b| b.over().total_cmp(&a.over()));
    if compared == 0 {
        text.push_str("lrmoe was not simulated, or never fits: nothing to compare\n");
    } else {
        let _ = writeln!(
            text,
            "lrmoe in {compared} cases, against fixed, symi, eplb and llep where they fit: {} comparisons lost (-), {} even (=), \
             all others won",
            losses.len(),
            ties.len()
        );
    }
    for found in losses {
        let (ours, theirs) = (seconds(found.lrmoe_s), seconds(found.rival_s));
        let _ = writeln!(text, "- {}: {ours}, {} {theirs}: {}", found.place(), found.rival, percent(found.over()));
    }
    ties.sort_by_key(|found| found.place());
    for found in ties.chunk_by(|a, b| a.place() == b.place()) {
        let rivals: Vec<&str> = found.iter().map(|found| found.rival.as_str()).collect();
        let time = found.first().map_or(0.0, |found| found.lrmoe_s);
        let _ = writeln!(text, "= {}: {}, as {}", found[0].place(), seconds(time), rivals.join(" and "));
    }
    for case in report.cases.iter().filter(|case| case.only_rivals_fit()) {
        let _ = writeln!(text, "! {}: lrmoe does not fit, but a rival does", case.place());
    }
    report.uniform.iter().for_each(|check| text.push_str(&uniform(check)));
    text
}

fn uniform(check: &Uniform) -> String {
    let Uniform { model, ranks, .. } = check;
    let limit = 100.0 * (MOST - 1.0);
    match check.ratio() {
        Some(ratio) => format!(
            "uniform routing, every pair retained, {model}, {ranks} ranks: lrmoe takes {ratio:.4} of fixed's time: {}\n",
            if ratio <= MOST { format!("within {limit:.0} %") } else { format!("FAILS, more than {limit:.0} % over") }
        ),
        None => format!(
            "uniform routing, every pair retained, {model}, {ranks} ranks: not compared, the budget refuses it\n"
        ),
    }
}
