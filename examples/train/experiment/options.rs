//! Options of the experiment.

use std::fmt;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use lrmoe::plan::cluster::parse_bytes;
use lrmoe::plan::policy::{NAMES, by_name};
use lrmoe::plan::{Activations, ClusterSpec};
use lrmoe::{Error, MoeConfig, Selection};

use crate::failure::Failure;

/// LRMoE's quotas filled by the highest scores instead of by sampling.
pub(crate) const TOPQ: &str = "lrmoe-topq";
/// LRMoE without replicas, planned on LRMoE's training run.
pub(crate) const ONE_COPY: &str = "lrmoe-1copy";
/// The policies of `--policy all`.
const ALL: [&str; 9] = ["fixed", "fixed-waves", "eplb", "llep", "symi", "symi-drop", "lrmoe", ONE_COPY, TOPQ];

/// What only the experiment asks for.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The experiment")]
pub(crate) struct ExperimentArgs {
    /// Virtual ranks that share a step's tokens evenly; switches from the two runs to the experiment
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) ranks: Option<u16>,
    /// Consecutive ranks with fast links between them [default: the machine's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), requires = "ranks")]
    pub(crate) ranks_per_node: Option<u16>,
    /// Policies: all, or names with commas; symi, symi-drop and eplb may say their expert slots of a rank, as in symi:20
    #[arg(long, value_name = "all|LIST", default_value = "all", requires = "ranks")]
    pub(crate) policy: PolicyNames,
    /// Bytes of a rank for all MoE layers of the real model: 80GiB; or so many times what even loads take where nothing is replicated or
    /// computed again, as in 0.9x [default: no limit]
    #[arg(long, value_name = "BYTES|FACTORx", requires = "ranks")]
    pub(crate) budget: Option<Budget>,
    /// Machine whose network, memory and latencies are scaled to the model and this processor
    #[arg(long, value_name = "NAME", default_value = "8xa100", value_parser = ClusterSpec::PRESETS.to_vec(), requires = "ranks")]
    pub(crate) cluster: String,
    /// Runs everything with so many seeds, from --seed on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000), requires = "ranks")]
    pub(crate) seeds: u64,
    /// Models whose routing and proportions are kept, with commas
    #[arg(long, value_name = "NAMES", default_value = "qwen3-30b-a3b", value_delimiter = ',', value_parser = MoeConfig::PRESETS.to_vec(), requires = "ranks")]
    pub(crate) preset: Vec<String>,
    /// How strongly the router is balanced, with commas: usual is as the model's own training, weak a hundredth of the loss or a tenth
    /// of the bias step
    #[arg(
        long,
        value_enum,
        value_name = "usual|weak",
        default_value = "usual",
        value_delimiter = ',',
        requires = "ranks"
    )]
    pub(crate) balancing: Vec<Balancing>,
    /// What forward keeps for backward
    #[arg(long, value_enum, default_value_t = Kept::Both, requires = "ranks")]
    pub(crate) activations: Kept,
    /// Executes and times every rank's share of one layer in every Nth step
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..), requires = "ranks")]
    pub(crate) time_every: u64,
    /// Trains what is missing and stops there: no times, no report
    #[arg(long, requires = "ranks")]
    pub(crate) train_only: bool,
}

/// `--budget`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Budget {
    /// Of the real model.
    Bytes(u64),
    /// Of what even loads take.
    Factor(f64),
}

impl FromStr for Budget {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.strip_suffix('x').map(str::parse) {
            None => match parse_bytes(text)? {
                0 => Err(Error::argument("budget", 0, "1 byte or more")),
                bytes => Ok(Self::Bytes(bytes)),
            },
            Some(Ok(factor)) if (1e-3..=1e3).contains(&factor) => Ok(Self::Factor(factor)),
            Some(_) => Err(Error::argument("budget", format!("`{text}`"), "bytes such as 80GiB, or 0.001x to 1000x")),
        }
    }
}

impl ExperimentArgs {
    /// Checks what lists and seeds name.
    pub(crate) fn check(&self, first_seed: u64, batches: &[usize], select: Selection) -> Result<(), Failure> {
        let twice = |option: &str, values: Vec<String>| {
            let again = (1..values.len()).find(|&i| values[..i].contains(&values[i]));
            again.map_or(Ok(()), |i| Err(Failure::usage(format!("{option} names {} twice; allowed: once", values[i]))))
        };
        twice("--preset", self.preset.clone())?;
        twice("--balancing", self.balancing.iter().map(|b| b.name().to_owned()).collect())?;
        twice("--batch", batches.iter().map(usize::to_string).collect())?;
        let selecting = self.policy.iter().find(|name| *name == "lrmoe");
        if let Some(name) = selecting.filter(|_| self.ranks.is_some() && select == Selection::All) {
            return Err(Failure::usage(format!("--select is all; allowed with --policy {name}: any way but all")));
        }
        if first_seed.checked_add(self.seeds).is_none() {
            let most = u64::MAX - self.seeds;
            return Err(Failure::usage(format!("--seed is {first_seed}; allowed with --seeds: at most {most}")));
        }
        Ok(())
    }
}

/// How strongly the router is balanced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Balancing {
    /// As published for the model.
    Usual,
    /// Far less.
    Weak,
}

impl Balancing {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::Weak => "weak",
        }
    }
}

/// `--activations`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kept {
    /// Inner activations of every pair.
    Stash,
    /// Norms; the rest is computed again.
    Recompute,
    /// One after the other.
    Both,
}

impl Kept {
    pub(crate) const fn modes(self) -> &'static [Activations] {
        match self {
            Self::Stash => &[Activations::Stash],
            Self::Recompute => &[Activations::Recompute],
            Self::Both => &[Activations::Stash, Activations::Recompute],
        }
    }
}

/// `--policy`: names without duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PolicyNames(Vec<String>);

impl PolicyNames {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl FromStr for PolicyNames {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.trim() == "all" {
            return Ok(Self(ALL.map(String::from).to_vec()));
        }
        let mut names: Vec<String> = Vec::new();
        for name in text.split(',').map(str::trim) {
            if !is_known(name) {
                let allowed = format!(
                    "all, or some of {}, {ONE_COPY}, {TOPQ}; only symi, symi-drop and eplb with a number of slots, as in symi:20",
                    NAMES.join(", ")
                );
                return Err(Error::argument("policy", format!("`{name}`"), allowed));
            }
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        if names.iter().any(|name| name == ONE_COPY) && !names.iter().any(|name| name == "lrmoe") {
            return Err(Error::argument("policy", ONE_COPY, "only beside lrmoe, on whose training run it is planned"));
        }
        // The order that was asked in is of no consequence.
        names.sort_by_key(|name| (ALL.iter().position(|known| known == name), name.clone()));
        Ok(Self(names))
    }
}

fn is_known(name: &str) -> bool {
    match name.split_once(':') {
        Some((name, slots)) => {
            let with_slots = ["symi", "symi-drop", "eplb", "eplb-hierarchical"].contains(&name);
            with_slots && slots.parse::<u16>().is_ok_and(|number| number > 0 && number.to_string() == slots)
        }
        None => name == TOPQ || name == ONE_COPY || by_name(name).is_ok(),
    }
}

impl fmt::Display for PolicyNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}
