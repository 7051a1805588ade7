//! Simulates many steps of MoE layers under every policy and compares what the plans predict.
//!
//! ```text
//! cargo run --release --example simulate                        # all nine workloads, two models, 64 ranks
//! cargo run --release --example simulate -- --help              # every option
//! cargo run --release --example simulate -- --trace trace.jsonl --ranks 2,8,64 --retain 1 --json report.json --svg charts
//! ```
//!
//! A case is one routing (a layer of a trace, or a workload) on one model and one number of ranks. In each case every policy starts
//! from its own first placement and plans step after step: it sees the counts of the step at hand and the smoothed loads of those
//! before, and begins where its last plan left the experts. All numbers but the plan time are the plans' predictions; the same
//! options and seed give the same numbers on every machine.
//!
//! A trace is recorded on some number of ranks with some batch: its steps are dealt out to the ranks asked for and scaled to
//! `--tokens-per-rank`. Its number of experts replaces the model's.
//!
//! | file | what it holds |
//! |---|---|
//! | `cli.rs` | the options |
//! | `cases.rs` | what is simulated: traces and workloads for models and ranks |
//! | `sim.rs` | one policy over the steps of one case |
//! | `uniform.rs` | the check that uniform routing costs nothing |
//! | `report.rs`, `tables.rs`, `chart.rs` | what comes out of it: JSON, text, SVG |

use std::process::ExitCode;

use clap::Parser;
use lrmoe::{Error, Result};

mod cases;
mod chart;
mod cli;
#[path = "../planning/mod.rs"]
mod planning;
mod report;
mod sim;
mod tables;
mod uniform;

#[cfg(test)]
mod tests;

use cli::Options;
use planning::output::{note, say, write_file};
use report::{CaseReport, Report};
use uniform::Uniform;

/// Steps of the check on uniform routing.
const UNIFORM_STEPS: u64 = 20;

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options, &say) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("error: {error}"));
            let usage = matches!(error, Error::Argument { .. } | Error::Config { .. });
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

/// Everything, with each table written as soon as it is there.
fn run(options: &Options, write: &dyn Fn(&str) -> Result<()>) -> Result<()> {
    let print = |text: &str| if options.json_only() { Ok(()) } else { write(text) };
    let routings = cases::routings(options)?;
    let policies = options.machine.policy.policies()?;
    let mut report = Report {
        retention: options.machine.retain.to_string(),
        seed: options.seed,
        cases: Vec::new(),
        uniform: Vec::new(),
        no_saving: Vec::new(),
    };
    for model in &options.model {
        for &ranks in &options.ranks {
            for (i, routing) in routings.iter().enumerate() {
                let case = cases::case(options, routing, model, ranks)?;
                if report.cases.is_empty() {
                    print(&format!(
                        "{}\n{}; retention {}",
                        tables::LEGEND,
                        options.extra_steps.describe(),
                        report.retention
                    ))?;
                }
                if i == 0 {
                    let check = Uniform::new(model, &case.setup, options.tokens_per_rank, options.seed, UNIFORM_STEPS)?;
                    report.uniform.push(check);
                }
                let found = CaseReport::new(&case, &policies, |policy| options.extra_steps.of(policy))?;
                print(&format!("\n{}", tables::case(&found)))?;
                report.no_saving.extend(found.no_saving());
                report.cases.push(found);
            }
        }
    }
    print(&format!("\n{}", tables::verdict(&report)))?;
    draw(options, &report)?;
    write_json(options, report, write)
}

/// `--svg`.
fn draw(options: &Options, report: &Report) -> Result<()> {
    let Some(path) = &options.svg else { return Ok(()) };
    let one = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg"));
    for case in report.cases.iter().take(if one { 1 } else { usize::MAX }) {
        let to = if one { path.clone() } else { path.join(chart::file_name(case)) };
        match chart::svg(case)? {
            Some(text) => write_file(&to, &text)?,
            None => {
                note(&format!("no chart of {}: no policy fits", case.place()));
            }
        }
    }
    Ok(())
}

/// `--json`.
fn write_json(options: &Options, report: Report, write: &dyn Fn(&str) -> Result<()>) -> Result<()> {
    let Some(path) = &options.json else { return Ok(()) };
    let text = report.json(options.series)?;
    if options.json_only() { write(&text) } else { write_file(path, &text) }
}
