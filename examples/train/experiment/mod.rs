//! The published experiment on virtual ranks: time to a fixed loss, and memory, under every policy.
//!
//! What a policy computes does not depend on where it is computed, so the model trains on one backend while a step's tokens are
//! split over ranks that exist in plans alone. Each layer of each step is really planned by every policy, and pairs are really
//! selected or dropped as its plan says. What a rank would have to compute is executed alone and timed on sampled steps; all
//! times are those of a fit to these samples. What it would send is counted row by row and priced on a machine that is scaled to the model.
//!
//! | file | what it holds |
//! |---|---|
//! | `options.rs`, `geometry.rs` | the options; small models with the proportions of published ones |
//! | `runner.rs`, `trajectory.rs` | one cell: all its runs in turn; one training run |
//! | `planner.rs`, `loads.rs` | the plans of a layer; what they make the ranks do |
//! | `clock.rs`, `account.rs` | shares executed and timed; what everything took |
//! | `cell.rs` | what a cell leaves |
//! | `outputs.rs` and what it calls | report, tables, charts, timeline |

mod account;
mod cell;
mod clock;
mod geometry;
mod loads;
mod options;
mod outputs;
mod planner;
mod runner;
mod trajectory;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use lrmoe::plan::ClusterSpec;

pub(crate) use options::ExperimentArgs;

use crate::cli::Options;
use crate::corpus::{CONTEXT, Corpus};
use crate::failure::Failure;
use crate::progress::say;
use cell::{Cell, Key, Protocol};
use clock::Clock;
use geometry::Geometry;
use runner::Task;

/// A budget that nothing passes.
const NO_LIMIT: u64 = 1 << 50;

/// Runs every cell that is not there yet, and reports on all of them; returns the exit code.
pub(crate) fn run(options: &Options, corpus: &Corpus, stop: &AtomicBool) -> Result<u8, Failure> {
    let args = &options.experiment;
    if options.retain.layers() > options.layers {
        let (given, layers) = (options.retain.layers(), options.layers);
        return Err(Failure::usage(format!("--retain has {given} values; allowed: one for each of {layers} layers")));
    }
    let mut cells = Vec::new();
    for preset in &args.preset {
        for &balancing in &args.balancing {
            let geometry = Geometry::new(preset, balancing, options)?;
            for &batch in &options.batch {
                let key = |seed| Key { preset: preset.clone(), balancing: balancing.name().into(), tokens: batch * CONTEXT, seed };
                let protocol = protocol(options, &geometry, corpus, &key(0))?;
                for seed in options.seed..options.seed + args.seeds {
                    let task = Task { key: key(seed), protocol: protocol.clone(), geometry: &geometry, options, corpus };
                    match finished_or_run(&task, stop)? {
                        Some(cell) => cells.push(cell),
                        None => return report(&cells, options, true),
                    }
                }
            }
        }
    }
    report(&cells, options, false)
}

/// The cell as an earlier call left it, or run now; `None` where `stop` was set before its end.
fn finished_or_run(task: &Task<'_>, stop: &AtomicBool) -> Result<Option<Cell>, Failure> {
    let Key { preset, balancing, tokens, seed } = &task.key;
    let name = format!("{preset}_{balancing}_{tokens}_{seed}");
    let path = task.options.out.join("cells").join(format!("{name}.json"));
    if let Some(text) = read_if_there(&path)? {
        let cell: Cell = serde_json::from_str(&text)
            .map_err(|e| Failure::run(format!("{}: {e}; remove it to run the cell again", path.display())))?;
        if cell.protocol != task.protocol {
            let path = path.display();
            return Err(Failure::usage(format!(
                "{path} was made with other options; give them again, or another folder as --out"
            )));
        }
        say(&format!("cell     {name}: finished before"));
        return Ok(Some(cell));
    }
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    say(&format!("cell     {name}"));
    let Some(cell) = task.run(stop)? else { return Ok(None) };
    crate::files::write(&path, &serde_json::to_string(&cell).map_err(|e| Failure::run(e.to_string()))?)?;
    Ok(Some(cell))
}

fn read_if_there(path: &Path) -> Result<Option<String>, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Failure::run(format!("cannot read {}: {e}", path.display()))),
    }
}

/// Everything that is fixed before a cell runs, the machine included.
fn protocol(options: &Options, geometry: &Geometry, corpus: &Corpus, key: &Key) -> Result<Protocol, Failure> {
    let args = &options.experiment;
    let real = ClusterSpec::preset(&args.cluster)?;
    let ranks = args.ranks.map_or(real.ranks, usize::from);
    let ranks_per_node = args.ranks_per_node.map_or(real.ranks_per_node, usize::from);
    if key.tokens < ranks {
        return Err(Failure::usage(format!("--ranks is {ranks}; allowed: at most the {} tokens of a step", key.tokens)));
    }
    let gemm_flops = match args.gemm_flops {
        Some(rate) => rate,
        None => measured_rate(options, geometry, key, ranks)?,
    };
    let real = real.with_ranks(ranks, ranks_per_node);
    let scaled = real.scaled_to_model(&geometry.real, &geometry.small, gemm_flops)?;
    let budget = args.budget.unwrap_or(NO_LIMIT);
    let plan = options.plan_options();
    let small = &geometry.small;
    Ok(Protocol {
        ranks,
        ranks_per_node,
        cluster: args.cluster.clone(),
        scaled: ClusterSpec { bytes_per_rank: budget, host_reserved_bytes: 0, ..scaled.cluster },
        token_scale: scaled.token_scale,
        time_scale: scaled.time_scale,
        counter_scale: scaled.counter_scale,
        budget,
        steps: options.steps,
        layers: options.layers,
        hidden: small.hidden_size,
        intermediate: small.moe_intermediate_size,
        experts: small.num_experts,
        top_k: small.num_experts_per_tok,
        policies: args.policy.to_string(),
        activations: args.activations.modes().iter().map(|mode| mode.name()).collect::<Vec<_>>().join(","),
        select: options.select.to_string(),
        retain: options.retain.to_string(),
        alpha: plan.alpha,
        slack: plan.slack,
        q_min: plan.q_min,
        smoothing: plan.smoothing,
        score_floor: f64::from(options.score_floor),
        time_every: args.time_every,
        corpus: format!("{:016x}", corpus.checksum),
    })
}

/// The GEMM rate of a rank, measured once for each model and batch size and then kept, so that all cells see one machine.
fn measured_rate(options: &Options, geometry: &Geometry, key: &Key, ranks: usize) -> Result<f64, Failure> {
    let path = options.out.join("rates.json");
    let mut rates: BTreeMap<String, f64> = match read_if_there(&path)? {
        Some(text) => serde_json::from_str(&text).map_err(|e| Failure::run(format!("{}: {e}", path.display())))?,
        None => BTreeMap::new(),
    };
    let name = format!("{}_{}_{ranks}", key.preset, key.tokens);
    if let Some(&rate) = rates.get(&name) {
        return Ok(rate);
    }
    let rate = Clock::new(&geometry.small, 0)?.gemm_flops(&geometry.small, key.tokens, ranks)?;
    rates.insert(name, rate);
    crate::files::write(&path, &format!("{:#}", serde_json::json!(rates)))?;
    Ok(rate)
}

fn report(cells: &[Cell], options: &Options, stopped: bool) -> Result<u8, Failure> {
    if !cells.is_empty() {
        say(&format!("\n{}", outputs::write(cells, &options.out)?));
    }
    if !stopped {
        return Ok(0);
    }
    say("Stopped early: the report covers only the cells that were finished; the same command goes on from there.");
    Ok(crate::INTERRUPTED)
}
