//! Plans one MoE layer with every policy, from the pairs that its router sends, and compares load, time and memory.
//!
//! ```text
//! cargo run --release --example plan -- --loads loads.json
//! cargo run --release --example plan -- --model glm-4.5-air --loads loads.csv --ranks 64 --memory 40GiB --retain noise:0.3
//! cargo run --release --example plan -- --loads loads.npy --policy lrmoe,fixed --json
//! cargo run --release --example plan -- --help       # every option
//! ```
//!
//! Each policy starts with the placement it has before anything is known of the routing, then plans the same pairs several times,
//! each time on the placement that the step before chose. The last of these plans is reported: what the policy settles on if the
//! routing stays as it is. Nothing is executed; times are those of the cost model, see [`lrmoe::plan`].
//!
//! A policy that does not fit the memory is reported with what it lacks, the smallest budget that would do, and the plan that it
//! makes with all the memory it could use: its times are then what they would be, and its bytes show where it fails.
//!
//! # Output
//! A table of all policies, with `--verbose` one of the ranks of each, and a chart of each rank's work before and after
//! (`plan.svg`, or where `--svg` says). With `--json` a list with one object for each policy instead, and a chart only where
//! `--svg` asks for one:
//!
//! | key | content |
//! |---|---|
//! | `policy`, `feasible` | name; whether every rank fits `--memory` |
//! | `instances` | `[expert, rank]` of every copy |
//! | `quotas` | pairs that backward keeps, of each expert |
//! | `forward`, `backward` | `[expert, from, to, pairs]` of every route; those of backward are expected before selection |
//! | `capacity` | `[expert, rank, pairs]` that each instance may back-propagate |
//! | `wave_rows` | most pairs of a wave on a rank |
//! | `memory` | for each rank: bytes by category, their sum `total`, what buffers ask for without rounding (`used`), and `budget` |
//! | `limits` | what kept the quotas from the retention that was asked for |
//! | `predicted` | seconds, busiest rank over the mean, traffic in bytes, waves |
//! | `plan_micros` | median wall time of the last plan |
//! | `hash` | of everything that ranks do by it, 16 hexadecimal digits |
//! | `dropped` | `[expert, from, pairs]` that not even forward computes |
//! | `activations`, `ownership` | what forward keeps; who owns the optimizer state |
//! | `next` | `[expert, rank]` of the placement that follows |
//! | `missing`, `smallest_budget`, `reason` | null, or where the policy does not fit: bytes it lacks, bytes that would do, the message |
//!
//! | file | what it holds |
//! |---|---|
//! | `cli.rs` | the options |
//! | `settle.rs` | a policy's plan in its steady state, within the memory or not |
//! | `object.rs` | the JSON |
//! | `report.rs` | tables and chart |

#[path = "../planning/mod.rs"]
mod planning;

mod cli;
mod object;
mod report;
mod settle;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use clap::Parser;
use lrmoe::Result;

use cli::Options;
use planning::loads::Loads;
use planning::output::{note, say, write_file};
use settle::{Job, Planned};

/// Exit code where no policy fits.
const NOTHING_FITS: u8 = 2;

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // Nobody could be told. Help is no failure, though clap reports it as one.
            let _ = error.print();
            return ExitCode::from(u8::from(error.use_stderr()));
        }
    };
    match run(&options) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            note(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Plans and prints; returns the exit code.
fn run(options: &Options) -> Result<u8> {
    let job = job(options)?;
    let planned = plan_all(options, &job)?;
    if options.json {
        say(&object::list(&planned)?)?;
    } else {
        say(&report::tables(&job, &planned, options.verbose))?;
    }
    if let Some(path) = options.chart() {
        write_file(path, &report::chart(&job, &planned)?)?;
        let wrote = format!("Chart: {}", path.display());
        if options.json { note(&wrote) } else { say(&wrote)? }
    }
    Ok(exit_code(&planned))
}

fn plan_all(options: &Options, job: &Job) -> Result<Vec<Planned>> {
    options.setup.machine.policy.policies()?.iter().map(|policy| settle::settle(policy.as_ref(), job)).collect()
}

fn exit_code(planned: &[Planned]) -> u8 {
    if planned.iter().any(|planned| planned.lacks.is_none()) { 0 } else { NOTHING_FITS }
}

/// Reads every file that the options name.
fn job(options: &Options) -> Result<Job> {
    let loads = Loads::read(&options.loads)?;
    let file = options.loads.display().to_string();
    let ranks = options.setup.ranks.unwrap_or(loads.counts.ranks());
    let setup = options.setup.setup(ranks)?;
    let counts = options.setup.counts(&setup, &file, &loads.counts)?;
    if ranks != loads.counts.ranks() {
        note(&format!("note: {file} has {} ranks; its pairs are regrouped for {ranks}", loads.counts.ranks()));
    }
    Ok(Job { demand: loads.demand()?, setup, counts, steps: options.steps })
}
