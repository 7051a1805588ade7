//! The command line.

use std::path::{Path, PathBuf};

use clap::Parser;

use crate::planning::setup::SetupArgs;

/// Plans one MoE layer with every policy, from the pairs that its router sends, and compares load,
/// time and memory. Each policy plans the same pairs --steps times, each time on the placement that
/// the step before chose; the last plan is reported: what it settles on if the routing stays as it is.
///
/// Exit codes: 0 at least one policy fits the memory, 1 a bad option or file, 2 no policy fits.
#[derive(Debug, Clone, Parser)]
#[command(name = "plan", verbatim_doc_comment)]
pub(crate) struct Options {
    /// Pairs of each rank for each expert: .json {"counts": [[...], ...], "scores": [...]}, .csv, .npy or .safetensors
    #[arg(long, value_name = "FILE")]
    pub(crate) loads: PathBuf,
    #[command(flatten)]
    pub(crate) setup: SetupArgs,
    /// Plans that each policy makes, one on the placement of the other
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) steps: u64,
    /// Prints JSON alone instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Also prints the ranks of each plan
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) verbose: bool,
    /// Where the chart goes [default: plan.svg, none with --json]
    #[arg(long, value_name = "PATH")]
    pub(crate) svg: Option<PathBuf>,
}

impl Options {
    /// The file of the chart, if there is to be one.
    pub(crate) fn chart(&self) -> Option<&Path> {
        let default = (!self.json).then_some(Path::new("plan.svg"));
        self.svg.as_deref().or(default)
    }
}
