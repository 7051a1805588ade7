//! The published experiment on virtual ranks: time to a fixed loss, and memory, under every policy.
//!
//! What a policy computes does not depend on where it is computed, so the model trains on one backend while a step's tokens are
//! split over ranks that exist in plans alone. Each layer of each step is really planned by every policy, and pairs are really
//! selected or dropped as its plan says. Afterwards what each rank had to compute is executed alone and timed, for sampled steps;
//! all times are those of a fit to these samples. What it would send is counted row by row and priced on a machine that is scaled
//! to the model.
//!
//! | file | what it holds |
//! |---|---|
//! | `options.rs`, `geometry.rs` | the options; small models with the proportions of published ones |
//! | `runner.rs`, `trajectory.rs` | one cell: all its runs in turn; one training run |
//! | `planner.rs`, `loads.rs`, `trained.rs` | the plans of a layer; what they make the ranks do; what is kept of it |
//! | `timing.rs`, `account.rs`, `cell.rs` | shares executed and timed; what everything took; the result |
//! | `outputs/` | report, tables, charts, timeline |

mod account;
mod cell;
mod geometry;
mod loads;
mod memory;
mod options;
mod outputs;
mod planner;
mod runner;
#[cfg(test)]
mod tests;
mod timing;
mod trained;
mod trajectory;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use options::ExperimentArgs;

use crate::cli::Options;
use crate::corpus::{CONTEXT, Corpus};
use crate::failure::Failure;
use crate::files::LineFile;
use crate::progress::say;
use cell::{Key, Protocol};
use geometry::Geometry;
use runner::Task;
use timing::Timing;
use trained::Trained;

/// Trains every cell that is not there yet, times those that were not timed together before, and reports on all; returns the exit code.
pub(crate) fn run(options: &Options, corpus: &Corpus, stop: &AtomicBool) -> Result<u8, Failure> {
    let args = &options.experiment;
    let (given, layers) = (options.retain.layers(), options.layers);
    if given != 1 && given != layers {
        return Err(Failure::usage(format!(
            "--retain has {given} values; allowed: 1, or one for each of {layers} layers"
        )));
    }
    // What cannot be written is not worth training.
    LineFile::create(&options.out.join("cells").join("new")).map_err(|e| Failure::usage(format!("--out: {e}")))?;
    let mut cells = Vec::new();
    let mut complete = true;
    for preset in &args.preset {
        for &batch in &options.batch {
            // Cells of one model and batch size have shares of like sizes, so they are timed together.
            let mut group = Vec::new();
            for &balancing in &args.balancing {
                let geometry = Geometry::new(preset, balancing, options)?;
                for seed in options.seed..options.seed + args.seeds {
                    let (preset, balancing) = (preset.clone(), balancing.name().to_owned());
                    let key = Key { preset, balancing, tokens: batch * CONTEXT, seed };
                    let protocol = geometry.protocol(options, corpus, &key)?;
                    let task = Task { key, protocol, geometry: &geometry, options, corpus };
                    match finished_or_trained(&task, stop)? {
                        Some(trained) => group.push(trained),
                        None => complete = false,
                    }
                }
            }
            if args.train_only {
                continue;
            }
            // Where no policy came to its end there is nothing to time, but what ended it to tell.
            let ran = group.iter().flat_map(|trained| &trained.runs).any(|run| run.infeasible.is_none());
            let timing = if ran { timing(&group, options, stop)? } else { None };
            if ran && timing.is_none() {
                complete = false;
                continue;
            }
            for trained in &group {
                cells.push(account::cell(trained, timing.as_ref())?);
            }
        }
    }
    if !cells.is_empty() {
        say(&format!("\n{}", outputs::write(&cells, &options.out)?));
    }
    if complete {
        return Ok(0);
    }
    say("Stopped early: the report covers only the cells that were finished; the same command goes on from there.");
    Ok(crate::INTERRUPTED)
}

/// The cell as an earlier call left it, or trained now; `None` where `stop` was set before its end.
fn finished_or_trained(task: &Task<'_>, stop: &AtomicBool) -> Result<Option<Trained>, Failure> {
    let Key { preset, balancing, tokens, seed } = &task.key;
    let name = format!("{preset}_{balancing}_{tokens}_{seed}");
    let path = task.options.out.join("cells").join(format!("{name}.json"));
    if let Some(trained) = read_if_there::<Trained>(&path)? {
        let path = path.display();
        if trained.key != task.key {
            return Err(Failure::run(format!("{path} holds another cell than its name says; remove it")));
        }
        if let Some(differences) = differences(&trained.protocol, &task.protocol) {
            let text = "; the text is another one: a cell lasts as long as its text";
            let text = if trained.protocol.corpus == task.protocol.corpus { "" } else { text };
            return Err(Failure::usage(format!(
                "{path} was made with other options: {differences}{text}. Give them again, or another folder as --out"
            )));
        }
        trained.check().map_err(|e| Failure::run(format!("{path}: {e}; remove it to have it made again")))?;
        say(&format!("cell     {name}: trained before"));
        return Ok(Some(trained));
    }
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    say(&format!("cell     {name}"));
    let Some(trained) = task.run(stop)? else { return Ok(None) };
    write_json(&path, &trained)?;
    Ok(Some(trained))
}

/// What two protocols do not share, field by field; `None` where they are the same.
fn differences(there: &Protocol, here: &Protocol) -> Option<String> {
    let fields = |protocol: &Protocol| match serde_json::to_value(protocol) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (there, here) = (fields(there), fields(here));
    let differ = there.iter().filter(|(name, value)| here.get(*name) != Some(value));
    let list: Vec<String> = differ
        .map(|(name, value)| {
            format!("{name} {value} there, {} here", here.get(name).unwrap_or(&serde_json::Value::Null))
        })
        .collect();
    (!list.is_empty()).then(|| list.join(", "))
}

/// Times of these very cells as an earlier call took them, or taken now; `None` where `stop` was set before their end, or nothing is
/// there to time.
fn timing(cells: &[Trained], options: &Options, stop: &AtomicBool) -> Result<Option<Timing>, Failure> {
    let Some(Key { preset, tokens, .. }) = cells.first().map(|cell| &cell.key) else { return Ok(None) };
    let path = options.out.join("times").join(format!("{preset}_{tokens}.json"));
    let machine = crate::report::machine();
    if let Some(timing) = read_if_there::<Timing>(&path)?
        && (&timing.machine, timing.version.as_str()) == (&machine, env!("CARGO_PKG_VERSION"))
        && timing.cells.iter().map(|(key, protocol)| (key, protocol)).eq(cells.iter().map(|c| (&c.key, &c.protocol)))
    {
        return Ok(Some(timing));
    }
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    say(&format!("timing   {preset}, {tokens} tokens a step"));
    // Balancing is of no consequence to sizes.
    let geometry = Geometry::new(preset, options.experiment.balancing[0], options)?;
    let timing = Timing::take(cells, &geometry.small, machine, stop)?;
    timing.as_ref().map_or(Ok(()), |timing| write_json(&path, timing))?;
    Ok(timing)
}

fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), Failure> {
    crate::files::write(path, &serde_json::to_string(value).map_err(|e| Failure::run(e.to_string()))?)
}

fn read_if_there<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, Failure> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Failure::run(format!("cannot read {}: {e}", path.display()))),
    };
    let unreadable = |e| Failure::run(format!("{}: {e}; remove it to have it made again", path.display()));
    serde_json::from_str(&text).map(Some).map_err(unreadable)
}
