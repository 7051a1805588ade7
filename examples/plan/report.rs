//! Tables and chart.

use std::fmt::Write as _;

use lrmoe::Result;
use lrmoe::memory::Category;
use lrmoe::plan::{Ownership, Placement, RankMemory};

use crate::planning::bars::{BarChart, Series};
use crate::planning::table::{Table, bytes, short, whole};
use crate::settle::{Job, Planned};

/// The policy that others are compared with.
const REFERENCE: &str = "fixed";

/// Everything that is printed for people.
pub(crate) fn tables(job: &Job, planned: &[Planned], verbose: bool) -> String {
    let mut text = format!("{}\n\n{}\n{}", introduction(job), times(planned), means(planned));
    if planned.iter().any(|planned| planned.lacks.is_some()) {
        text += "\nWhat does not fit is shown with all the memory it could use:\n";
        planned.iter().for_each(|planned| text += &lack(planned, verbose));
    }
    if verbose {
        for planned in planned {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n{}, by rank\n{}", name(planned), by_rank(planned));
        }
    }
    text
}

fn introduction(job: &Job) -> String {
    let (config, cluster) = (&job.setup.config, &job.setup.cluster);
    let total = job.counts.total();
    let busiest = job.counts.per_rank().iter().copied().max().unwrap_or(0);
    format!(
        "layer    {} experts of {} x {}, top-{}; {} such layers share the memory\n\
         machine  {} ranks, {} a node; {} a rank for MoE layers, optimizer state {}\n\
         pairs    {}, at most {} from one rank; retain {}",
        config.num_experts,
        config.hidden_size,
        config.moe_intermediate_size,
        config.num_experts_per_tok,
        job.setup.layers,
        cluster.ranks,
        cluster.ranks_per_node,
        bytes(cluster.budget()),
        if job.setup.optimizer_offload { "in host memory" } else { "on the device" },
        whole(total),
        whole(busiest),
        job.setup.options.retention,
    )
}

/// Load and predicted time of each policy.
fn times(planned: &[Planned]) -> Table {
    let mut table = Table::new([
        "predicted",
        "fits",
        "retained",
        "dropped",
        "fwd max/mean",
        "bwd max/mean",
        "forward ms",
        "backward ms",
        "exchange ms",
        "optimizer ms",
        "total ms",
        "most on",
        "vs fixed",
    ]);
    let reference = planned.iter().find(|p| p.plan.policy == REFERENCE).map(|p| p.plan.predicted.total_s());
    for p in planned {
        let (plan, time) = (&p.plan, &p.plan.predicted);
        let dropped = plan.dropped.as_ref().map_or(0, lrmoe::plan::Counts::total);
        let pairs = plan.retained.pairs() + dropped;
        let ms = |s: f64| format!("{:.3}", 1e3 * s);
        let change = reference.filter(|reference| *reference > 0.0).map(|reference| time.total_s() / reference - 1.0);
        table.row([
            plan.policy.clone(),
            if p.lacks.is_none() { "yes".into() } else { "no".into() },
            percent(plan.retained.retained(), pairs),
            percent(dropped, pairs),
            format!("{:.3}", time.max_over_mean_forward),
            format!("{:.3}", time.max_over_mean_backward),
            ms(time.forward_s),
            ms(time.backward_s),
            ms(time.exchange_s),
            ms(time.optimizer_exchange_s),
            ms(time.total_s()),
            time.dominant().name().into(),
            change.map_or_else(|| "-".into(), |change| format!("{:+.1} %", 100.0 * change)),
        ]);
    }
    table
}

/// What each policy takes for it.
fn means(planned: &[Planned]) -> Table {
    let mut table = Table::new([
        "needs",
        "instances",
        "fullest rank",
        "of budget",
        "wave rows",
        "waves fwd/bwd",
        "activations",
        "ownership",
        "limits",
        "plan us",
    ]);
    for p in planned {
        let plan = &p.plan;
        let fullest = plan.memory.iter().max_by_key(|memory| memory.total());
        let (total, budget) = fullest.map_or((0, 0), |memory| (memory.total(), memory.budget));
        let limits: Vec<&str> = plan.retained.limits.iter().map(|limit| limit.name()).collect();
        table.row([
            plan.policy.clone(),
            plan.placement.instances().to_string(),
            bytes(total),
            percent(total, budget),
            whole(plan.wave_rows),
            format!("{}/{}", plan.predicted.waves_forward, plan.predicted.waves_backward),
            plan.activations.name().into(),
            plan.placement.ownership().name().into(),
            if limits.is_empty() { "-".into() } else { limits.join(", ") },
            format!("{:.0}", p.micros),
        ]);
    }
    table
}

fn lack(planned: &Planned, verbose: bool) -> String {
    let Some(lack) = &planned.lacks else { return String::new() };
    let reason = if verbose { format!("; {}", lack.reason) } else { String::new() };
    format!(
        "  {}: {} missing, {} a rank would do{reason}\n",
        planned.plan.policy,
        bytes(lack.missing),
        bytes(lack.smallest)
    )
}

/// Instances, pairs and bytes of every rank.
fn by_rank(planned: &Planned) -> Table {
    let plan = &planned.plan;
    let columns = ["rank", "instances", "pairs fwd", "pairs bwd"].map(String::from);
    let mut table =
        Table::new(columns.into_iter().chain(Category::ALL.iter().map(ToString::to_string)).chain(["total".into()]));
    let rows = plan.forward_rows().into_iter().zip(plan.backward_rows());
    let ranks = plan.placement.instances_per_rank().into_iter().zip(rows).zip(&plan.memory);
    for (rank, ((held, (forward, backward)), memory)) in ranks.enumerate() {
        let total = bytes(memory.total()) + if RankMemory::fits(memory) { "" } else { " !" };
        let counts = [rank.to_string(), held.to_string(), whole(forward), whole(backward)];
        table.row(counts.into_iter().chain(memory.reserved.map(bytes)).chain([total]));
    }
    table
}

/// Work of every rank, before with each expert on its contiguous rank and after under each policy.
///
/// # Errors
/// As [`BarChart::svg`] and [`Placement::contiguous`].
pub(crate) fn chart(job: &Job, planned: &[Planned]) -> Result<String> {
    let (ranks, experts) = (job.counts.ranks(), job.counts.experts());
    let mut before = vec![0.0; ranks];
    for (e, rank) in Placement::contiguous(experts, ranks, Ownership::Home)?.iter() {
        before[rank] += WORK * f64::from(job.counts.per_expert()[e]);
    }
    let after = |planned: &Planned| {
        let rows = planned.plan.forward_rows().into_iter().zip(planned.plan.backward_rows());
        let work = rows.map(|(forward, backward)| forward as f64 + (WORK - 1.0) * backward as f64);
        Series::new(name(planned), work.collect())
    };
    let pairs = short(job.counts.total() as f64);
    BarChart {
        title: format!("Work of each rank: {pairs} pairs, {experts} experts, retain {}", job.setup.options.retention),
        quantity: "forward + 2 x backward".into(),
        before: Series::new("before: experts in order, all pairs kept", before),
        after: planned.iter().map(after).collect(),
    }
    .svg()
}

/// Work of a pair that is kept, in forward passes: its backward takes as much as two.
const WORK: f64 = 3.0;

fn name(planned: &Planned) -> String {
    let suffix = if planned.lacks.is_none() { "" } else { " (does not fit)" };
    format!("{}{suffix}", planned.plan.policy)
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.1} %", 100.0 * part as f64 / whole as f64) }
}
