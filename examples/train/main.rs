//! Trains a small byte-level language model twice, once plainly and once with the LRMoE backward, and compares the two.
//!
//! ```text
//! cargo run --release --example train                 # the project's own sources as text, both runs in under three minutes
//! cargo run --release --example train -- --help       # every option
//! cargo run --release --example train -- --corpus ~/books --steps 2000 --retain noise:0.3
//! ```
//!
//! Both runs start from the same weights and see the same bytes in the same order. The model is candle's: embedding,
//! attention, norms, router weights and head, with candle's autograd. Its MLPs are lrmoe's: each is a Mixture-of-Experts
//! layer behind a candle operation of (x, router logits), which owns its experts, their gradients and their AdamW state.
//! One global norm clips the gradients of both owners together.
//!
//! | file | what it holds |
//! |---|---|
//! | `cli.rs` | the options |
//! | `corpus.rs` | the text, its split, the windows of a step |
//! | `model.rs`, `softmax.rs` | the transformer around the MoE layers |
//! | `moe.rs`, `moe_op.rs`, `moe_lrmoe.rs` | what the model asks of an MoE layer; the candle operation; lrmoe behind it |
//! | `optim.rs` | learning rate, joint clipping, AdamW |
//! | `trainer.rs`, `run.rs`, `load.rs` | a model being trained; one of the two runs and what it measures |
//! | `experiment/` | with `--ranks`: every policy on virtual ranks |
//! | `report.rs`, `plot.rs`, `plot_load.rs`, `files.rs`, `progress.rs` | what comes out of it |
//!
//! # Output
//! In `runs/train`, or the folder of `--out`; each file replaces its predecessor only when it is complete:
//!
//! - `report.json`: machine, text, model and both runs; null where a thing was not reached or not measured.
//! - `metrics.jsonl`: one line for each step of each run. Its `moe_*_s` are running totals, as in the report.
//! - `loss.svg`, `load.svg`: the validation loss, and how evenly the experts were loaded.
//!
//! MoE seconds are the wall time of the layers' forward and backward in training: from router logits to output, and from
//! the output's gradient to those of input, logits and experts. Validation and the optimizer are not in them.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use lrmoe::{Retention, Selection};

mod cli;
mod corpus;
mod experiment;
mod failure;
mod files;
mod load;
mod model;
mod moe;
mod moe_lrmoe;
mod moe_op;
mod optim;
mod plot;
mod plot_load;
mod progress;
mod report;
mod retain;
mod rng;
mod run;
mod softmax;
mod trainer;

use cli::Options;
use corpus::Corpus;
use failure::Failure;
use files::LineFile;
use progress::say;
use report::Report;
use run::{Run, Sinks, Training};

/// Exit code after Ctrl-C, as a shell reports it.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    settle_thread_pools();
    let result = Options::parse().checked().and_then(|options| train(&options));
    ExitCode::from(result.unwrap_or_else(|failure| {
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("error: {failure}\n"));
        failure.exit_code()
    }))
}

/// candle's elementwise operations run on a pool of its own whose threads spin between operations. They would take the cores
/// from the MoE layers, and their time with them, so that pool is left at one thread. candle also counts the processors anew in
/// every matrix product unless told how many there are.
fn settle_thread_pools() {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    for (name, value) in [("CANDLE_NUM_THREADS", 1), ("RAYON_NUM_THREADS", cores)] {
        if std::env::var_os(name).is_none() {
            // SAFETY: this is the first thing the program does; no other thread exists that could read the environment.
            unsafe { std::env::set_var(name, value.to_string()) };
        }
    }
}

/// Reads the text, finds the device and does what the options ask for; returns the exit code.
fn train(options: &Options) -> Result<u8, Failure> {
    let corpus = if options.corpus.is_empty() { Corpus::embedded()? } else { Corpus::read(&options.corpus)? };
    let device = match (options.experiment.ranks, options.device.as_str()) {
        (None, name) => name,
        (Some(_), "auto" | "cpu") => "cpu",
        (Some(_), _) => {
            return Err(Failure::usage("--device: with --ranks the virtual ranks share the CPU; allowed: auto, cpu"));
        }
    };
    let device = lrmoe::backend::choose(device).map_err(|e| Failure::usage(format!("--device: {e}")))?;
    let stop = stop_on_ctrl_c()?;
    introduce(&corpus, &device);
    match options.experiment.ranks {
        Some(_) => experiment::run(options, &corpus, &stop),
        None => both_runs(options, &corpus, &device, &stop),
    }
}

/// Trains both runs and writes what they gave; returns the exit code.
fn both_runs(
    options: &Options,
    corpus: &Corpus,
    device: &lrmoe::backend::Choice,
    stop: &AtomicBool,
) -> Result<u8, Failure> {
    let Options { layers, hidden, .. } = options;
    let (experts, top_k, batch) = (options.experts(), options.top_k(), options.batch());
    say(&format!("model    {layers} layers, hidden {hidden}, {experts} experts of width {hidden}, top-{top_k}"));
    let tokens = batch * corpus::CONTEXT;
    say(&format!("training {} steps of {batch} x {} = {tokens} bytes, twice", options.steps, corpus::CONTEXT));
    let create =
        |option: &str, path: &Path| LineFile::create(path).map_err(|e| Failure::usage(format!("{option}: {e}")));
    let backend = device.open().map_err(|e| Failure::usage(format!("--device: {e}")))?;
    let mut sinks = Sinks { metrics: create("--out", &options.out.join("metrics.jsonl"))?, trace: None };
    let mut trace = options.record.as_deref().map(|path| create("--record", path)).transpose()?;
    let plans = [("plain", Selection::All, Retention::Fraction(1.0)), ("lrmoe", options.select, options.retention())];
    let mut runs = Vec::new();
    let mut result = Ok(());
    for (policy, select, retain) in plans {
        if result.is_err() || stop.load(Ordering::Relaxed) {
            break;
        }
        if policy == "lrmoe" {
            sinks.trace = trace.take();
        }
        let mut run = Run::new(policy, select, retain, options);
        let goal = report::target_loss(options, &runs);
        let training = Training { run: &mut run, options, corpus, goal, sinks: &mut sinks, stop };
        result = backend.with(training);
        runs.push(run);
    }
    let complete = runs.len() == plans.len() && runs.iter().all(|r| r.ended);
    write_results(&Report { options, corpus, device, runs: &runs, complete }, sinks)?;
    result?;
    Ok(if complete { 0 } else { INTERRUPTED })
}

fn introduce(corpus: &Corpus, device: &lrmoe::backend::Choice) {
    say(&format!("device   {}", device.name));
    device.refused.iter().for_each(|(name, reason)| say(&format!("         {name}: {reason}")));
    let (name, files, bytes, checksum) = (&corpus.name, corpus.files, corpus.len(), corpus.checksum);
    let skipped = if corpus.skipped > 0 { format!(", {} others skipped", corpus.skipped) } else { String::new() };
    say(&format!("text     {name}: {files} files{skipped}, {bytes} bytes, FNV-1a {checksum:016x}"));
    let held_out = bytes - corpus.train_len();
    say(&format!("         {} bytes to train on, {held_out} held out", corpus.train_len()));
}

/// The first Ctrl-C ends training after the current step; the second ends the program.
fn stop_on_ctrl_c() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let handler = move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(INTERRUPTED));
        }
    };
    ctrlc::set_handler(handler).map_err(|e| Failure::run(format!("cannot listen for Ctrl-C: {e}")))?;
    Ok(stop)
}

fn write_results(report: &Report<'_>, sinks: Sinks) -> Result<(), Failure> {
    let Options { out, record, .. } = report.options;
    let trace = match (&sinks.trace, record) {
        (Some(_), Some(path)) => format!(", and {}", path.display()),
        _ => String::new(),
    };
    sinks.metrics.finish()?;
    sinks.trace.map_or(Ok(()), LineFile::finish)?;
    files::write(&out.join("report.json"), &format!("{:#}", report.to_json()))?;
    files::write(&out.join("loss.svg"), &plot::loss(report.runs, report.target_loss())?)?;
    files::write(&out.join("load.svg"), &plot_load::load(report.runs)?)?;
    say(&format!("\n{}", report.to_table()));
    if !report.complete {
        say("Stopped early: these results cover only the steps done.");
    }
    say(&format!("Wrote report.json, metrics.jsonl, loss.svg and load.svg to {}{trace}", out.display()));
    Ok(())
}
