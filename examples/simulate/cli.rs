//! The command line: every option, its default, and what it accepts.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Parser;
use lrmoe::plan::Workload;
use lrmoe::plan::policy::{NAMES, by_name};
use lrmoe::{Error, Result};

use crate::planning::setup::MachineArgs;

/// Plans many steps of MoE layers under every policy, over a recorded routing trace or generated workloads, and compares what the
/// plans predict: time, balance, bytes across nodes, memory. Nothing is trained and no device is used.
///
/// Per step a policy sees the step's own counts and the smoothed loads of the steps before; it starts where the step before left
/// the experts. Times are predictions for the machine of --cluster; only the plan time is measured.
///
/// Exit codes: 0 the report is complete (infeasible policies have a row that says so), 1 a file or a plan failed, 2 a bad option.
#[derive(Debug, Clone, Parser)]
#[command(name = "simulate", verbatim_doc_comment)]
pub(crate) struct Options {
    /// Routing trace, as `train --record` writes it; every layer in it is simulated, and E is the trace's
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    pub(crate) trace: Option<PathBuf>,
    /// Generated routing: all, or names with commas: balanced, hot-set, hot-rank, spread-hot, ragged, empty, rotating, burst, drifting
    #[arg(long, value_name = "all|LIST", default_value = "all")]
    pub(crate) workload: Workloads,
    /// Models with commas between them: qwen3-30b-a3b, glm-4.5-air, or a Hugging Face config.json
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "qwen3-30b-a3b,glm-4.5-air")]
    pub(crate) model: Vec<String>,
    /// Numbers of ranks with commas between them; one device each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64", value_parser = rank_count)]
    pub(crate) ranks: Vec<usize>,
    /// Steps: of a trace the first so many [default: all], of a workload this many [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) steps: Option<u64>,
    /// Seed of generated routing
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Tokens of a rank and step, on average; the counts of a trace are scaled to them
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tokens_per_rank: u32,
    /// Experts of each token [default: the model's, at most E]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) top_k: Option<u32>,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// Steps to the same loss over plain training's, as measured: lrmoe=1.04,symi-drop=1.1; multiplies times and traffic [default: 1]
    #[arg(long, value_name = "POLICY=FACTOR,..", default_value = "")]
    pub(crate) extra_steps: ExtraSteps,
    /// Writes the whole report as JSON; `-` prints it instead of the tables
    #[arg(long, value_name = "PATH|-")]
    pub(crate) json: Option<PathBuf>,
    /// Puts every step of every policy into the JSON
    #[arg(long, requires = "json")]
    pub(crate) series: bool,
    /// Draws cumulative time over steps: the first case into a file that ends in .svg, every case into any other path, a folder
    #[arg(long, value_name = "FILE.svg|DIR")]
    pub(crate) svg: Option<PathBuf>,
}

impl Options {
    /// Whether standard output is for JSON alone.
    pub(crate) fn json_only(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }
}

/// `--workload`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Workloads(pub(crate) Vec<Workload>);

impl FromStr for Workloads {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.trim() == "all" {
            return Ok(Self(Workload::ALL.to_vec()));
        }
        let mut workloads: Vec<Workload> = Vec::new();
        for name in text.split(',') {
            let workload = name.trim().parse()?;
            if !workloads.contains(&workload) {
                workloads.push(workload);
            }
        }
        Ok(Self(workloads))
    }
}

/// `--extra-steps`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ExtraSteps(Vec<(String, f64)>);

impl ExtraSteps {
    /// The factor of a policy; 1 unless it was given.
    pub(crate) fn of(&self, policy: &str) -> f64 {
        self.0.iter().find(|(name, _)| name == policy).map_or(1.0, |(_, factor)| *factor)
    }

    /// For people: what was given, else that nothing was.
    pub(crate) fn describe(&self) -> String {
        if self.0.is_empty() {
            return "extra steps: 1 for every policy (--extra-steps sets what training measured)".to_owned();
        }
        let given: Vec<String> = self.0.iter().map(|(name, factor)| format!("{name} {factor}")).collect();
        format!("extra steps: {}; 1 for the others", given.join(", "))
    }
}

impl FromStr for ExtraSteps {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = |part: &str| {
            let allowed =
                format!("POLICY=FACTOR with one of {} and a factor from 0.01 to 100, once each", NAMES.join(", "));
            Error::argument("--extra-steps", format!("`{part}`"), allowed)
        };
        let mut factors: Vec<(String, f64)> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, factor) = part.split_once('=').ok_or_else(|| refused(part))?;
            let name = by_name(name.trim()).map_err(|_| refused(part))?.name().to_owned();
            let factor =
                factor.trim().parse().ok().filter(|f| (0.01..=100.0).contains(f)).ok_or_else(|| refused(part))?;
            if factors.iter().any(|(known, _)| *known == name) {
                return Err(refused(part));
            }
            factors.push((name, factor));
        }
        Ok(Self(factors))
    }
}

fn rank_count(text: &str) -> std::result::Result<usize, String> {
    let allowed = || "allowed: whole numbers from 1 to 4096".to_owned();
    text.trim().parse().ok().filter(|n| (1..=4096).contains(n)).ok_or_else(allowed)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(args: &[&str]) -> std::result::Result<Options, clap::Error> {
        Options::try_parse_from(std::iter::once(&"simulate").chain(args))
    }

    #[test]
    fn the_definition_is_sound_and_every_option_is_explained() {
        let command = Options::command();
        command.clone().debug_assert();
        for arg in command.get_arguments() {
            assert!(arg.get_help().is_some(), "--{} has no help", arg.get_id());
        }
    }

    #[test]
    fn defaults_and_lists() {
        let o = parse(&[]).unwrap();
        assert_eq!(o.model, ["qwen3-30b-a3b", "glm-4.5-air"]);
        assert_eq!((o.ranks, o.workload.0.len(), o.extra_steps.of("lrmoe")), (vec![64], 9, 1.0));
        let o =
            parse(&["--ranks", "2,8,64", "--workload", "burst, ragged,burst", "--extra-steps", "lrmoe=1.04,symi=2"])
                .unwrap();
        assert_eq!((o.ranks, o.workload.0), (vec![2, 8, 64], vec![Workload::Burst, Workload::Ragged]));
        assert_eq!(["lrmoe", "symi", "fixed"].map(|name| o.extra_steps.of(name)), [1.04, 2.0, 1.0]);
        assert!(o.extra_steps.describe().contains("lrmoe 1.04"));
    }

    #[test]
    fn bad_values_name_the_option_and_what_is_allowed() {
        for (option, value, named) in [
            ("--ranks", "0", "allowed"),
            ("--ranks", "8,x", "allowed"),
            ("--steps", "0", "not in"),
            ("--tokens-per-rank", "0", "not in"),
            ("--workload", "hot", "drifting"),
            ("--extra-steps", "lrmoe", "POLICY=FACTOR"),
            ("--extra-steps", "best=1", "eplb"),
            ("--extra-steps", "lrmoe=0", "0.01"),
            ("--extra-steps", "lrmoe=nan", "0.01"),
            ("--extra-steps", "lrmoe=1,lrmoe=2", "once"),
        ] {
            let error = parse(&[&format!("{option}={value}")]).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.exit_code(), 2);
            assert!(text.contains(option) && text.contains(named), "{text}");
        }
        assert!(parse(&["--trace", "a", "--workload", "burst"]).is_err());
        assert!(parse(&["--series"]).is_err());
    }
}
