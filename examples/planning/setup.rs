//! Options that say what is planned for: model, cluster, memory, retention, policies.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use lrmoe::plan::cluster::parse_bytes;
use lrmoe::plan::policy::{NAMES, by_name};
use lrmoe::plan::trace::{regroup, scaled};
use lrmoe::plan::{Activations, ClusterSpec, Counts, Ownership, PlanOptions, Policy, Retention, Setup};
use lrmoe::{Error, MoeConfig, Result};

/// One model on one number of ranks.
#[derive(Debug, Clone, Args)]
pub(crate) struct SetupArgs {
    /// Model: qwen3-30b-a3b, glm-4.5-air, or a Hugging Face config.json
    #[arg(long, value_name = "NAME|PATH", default_value = "qwen3-30b-a3b")]
    pub(crate) model: String,
    /// Ranks, one device each [default: those of the loads, else the machine's]
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<usize>,
    /// Scales the counts to so many tokens a rank on average [default: as they are]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(crate) tokens: Option<u64>,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}

/// What both planning examples ask for: everything about a setup but the model and the number of ranks. The options that name files
/// are read by [`MachineArgs::setup`].
#[derive(Debug, Clone, Args)]
pub(crate) struct MachineArgs {
    /// Machine: 8xh100, 8xa100, a100-100g, 4x24gb-pcie, laptop, or a .json or .toml file
    #[arg(long, value_name = "NAME|PATH", default_value = "8xh100")]
    pub(crate) cluster: String,
    /// Consecutive ranks with fast links between them [default: the machine's]
    #[arg(long, value_name = "N")]
    pub(crate) ranks_per_node: Option<usize>,
    /// Budget of a rank for all MoE layers together, what the host keeps already taken off: 24GiB, 80GB [default: the machine's]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,
    /// Pairs that backward keeps: a fraction, or as few as a noise budget takes
    #[arg(long, value_name = "FRACTION|noise:THETA[:MIN:MAX]", default_value = "0.5")]
    pub(crate) retain: Retention,
    /// Policies: all, or names with commas: lrmoe, fixed, fixed-waves, symi, symi-drop, eplb, eplb-hierarchical, llep
    #[arg(long, value_name = "all|LIST", default_value = "all")]
    pub(crate) policy: PolicyList,
    /// Where masters and moments live: they take device memory, or cross the host link
    #[arg(long, value_enum, default_value_t = Optimizer::Device)]
    pub(crate) optimizer: Optimizer,
    /// Who owns the optimizer state; auto leaves it to each policy
    #[arg(long, value_enum, default_value_t = Owner::Auto)]
    pub(crate) ownership: Owner,
    /// What forward keeps for backward; auto leaves it to each plan
    #[arg(long, value_enum, default_value_t = Kept::Auto)]
    pub(crate) activations: Kept,
    /// MoE layers that share the memory, each as large as the planned one [default: the model's]
    #[arg(long, value_name = "N")]
    pub(crate) layers: Option<usize>,
    /// How quotas follow the scores: 1 gives the least total variance, 0 the most even fractions
    #[arg(long, default_value_t = PlanOptions::default().alpha)]
    pub(crate) alpha: f64,
    /// How far a rank's share of the kept pairs may pass the mean
    #[arg(long, default_value_t = PlanOptions::default().slack)]
    pub(crate) slack: f64,
}

/// `--optimizer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Optimizer {
    /// In device memory.
    Device,
    /// In host memory.
    Host,
}

/// `--ownership`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Owner {
    /// As each policy prefers.
    Auto,
    /// Cut evenly over all ranks.
    Sharded,
    /// Whole at each expert's home.
    Home,
}

/// `--activations`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kept {
    /// Whatever is faster among what fits.
    Auto,
    /// Inner activations of every pair.
    Stash,
    /// Norms; the rest is computed again.
    Recompute,
}

/// `--policy`: names without duplicates, in the order they were given in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PolicyList(Vec<String>);

impl PolicyList {
    /// The policies, each with its default options.
    ///
    /// # Errors
    /// None after parsing: every name is known.
    pub(crate) fn policies(&self) -> Result<Vec<Box<dyn Policy>>> {
        self.0.iter().map(|name| by_name(name)).collect()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl FromStr for PolicyList {
    type Err = Error;

    /// Reads `all` or names from [`NAMES`] with commas between them.
    fn from_str(text: &str) -> Result<Self> {
        if text.trim() == "all" {
            return Ok(Self(NAMES.iter().map(ToString::to_string).collect()));
        }
        let mut names = Vec::new();
        for name in text.split(',').map(str::trim) {
            if by_name(name).is_err() {
                let allowed = format!("all, or some of {}", NAMES.join(", "));
                return Err(Error::argument("policy", format!("`{name}`"), allowed));
            }
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        Ok(Self(names))
    }
}

impl fmt::Display for PolicyList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

impl MachineArgs {
    /// The machine that the options name, with as many ranks as its file or preset says and `--memory` applied.
    ///
    /// # Errors
    /// As [`ClusterSpec::from_path`]; [`Error::Argument`] for a name that is neither a preset nor a `.json` or `.toml` file.
    pub(crate) fn cluster(&self) -> Result<ClusterSpec> {
        let path = Path::new(&self.cluster);
        let is_file = path.extension().is_some_and(|ending| ending == "json" || ending == "toml");
        let spec = match ClusterSpec::preset(&self.cluster) {
            Ok(spec) => spec,
            Err(_) if is_file => ClusterSpec::from_path(path)?,
            Err(_) => {
                let allowed = format!("{}, or a .json or .toml file", ClusterSpec::PRESETS.join(", "));
                return Err(Error::argument("--cluster", format!("`{}`", self.cluster), allowed));
            }
        };
        Ok(match self.memory {
            Some(bytes_per_rank) => ClusterSpec { bytes_per_rank, host_reserved_bytes: 0, ..spec },
            None => spec,
        })
    }

    /// Everything that stays the same from step to step, for this model on so many ranks.
    ///
    /// # Errors
    /// As [`MachineArgs::cluster`] and [`Setup::validate`].
    pub(crate) fn setup(&self, config: MoeConfig, ranks: usize) -> Result<Setup> {
        let spec = self.cluster()?;
        let ranks_per_node = self.ranks_per_node.unwrap_or(spec.ranks_per_node);
        let mut setup = Setup::new(config, spec.with_ranks(ranks, ranks_per_node))?;
        setup.options =
            PlanOptions { retention: self.retain, alpha: self.alpha, slack: self.slack, ..PlanOptions::default() };
        if let Some(layers) = self.layers {
            setup.layers = layers;
        }
        setup.optimizer_offload = self.optimizer == Optimizer::Host;
        setup.ownership = match self.ownership {
            Owner::Auto => None,
            Owner::Sharded => Some(Ownership::Sharded),
            Owner::Home => Some(Ownership::Home),
        };
        setup.activations = match self.activations {
            Kept::Auto => None,
            Kept::Stash => Some(Activations::Stash),
            Kept::Recompute => Some(Activations::Recompute),
        };
        setup.validate()?;
        Ok(setup)
    }
}

impl SetupArgs {
    /// Everything that stays the same from step to step, on so many ranks.
    ///
    /// # Errors
    /// As [`model`] and [`MachineArgs::setup`].
    pub(crate) fn setup(&self, ranks: usize) -> Result<Setup> {
        self.machine.setup(model(&self.model)?, ranks)
    }

    /// Counts as the setup needs them: on its number of ranks, with `--tokens` of its top-k pairs each.
    ///
    /// # Errors
    /// [`Error::Input`] naming `file` where it has another number of experts than the model, or a rank more pairs than fit;
    /// otherwise as [`regroup`] and [`scaled`].
    pub(crate) fn counts(&self, setup: &Setup, file: &str, counts: &Counts) -> Result<Counts> {
        let (got, expected) = (counts.experts(), setup.config.num_experts);
        if got != expected {
            let reason = format!(
                "has {got} experts, but `num_experts` of the model {} is {expected}; allowed: a model with {got} experts \
                 (--model PATH/config.json), or loads for {expected}",
                self.model
            );
            return Err(Error::Input { what: file.to_owned(), reason });
        }
        let counts = match setup.cluster.ranks {
            ranks if ranks == counts.ranks() => counts.clone(),
            ranks => regroup(counts, ranks)?,
        };
        match self.tokens {
            Some(tokens) => scaled(&counts, tokens * setup.config.num_experts_per_tok as u64),
            None => Ok(counts),
        }
    }
}

/// The geometry of a model by the name of a preset or the path of a Hugging Face `config.json`.
///
/// # Errors
/// [`Error::Argument`] for a name that is neither; [`Error::Input`] naming the file for one that cannot be read or is no JSON;
/// [`Error::Config`] naming its field.
pub(crate) fn model(name: &str) -> Result<MoeConfig> {
    if let Ok(config) = MoeConfig::preset(name) {
        return Ok(config);
    }
    let path = Path::new(name);
    if path.extension().is_none_or(|ending| ending != "json") {
        let allowed = format!("{}, or the path of a config.json", MoeConfig::PRESETS.join(", "));
        return Err(Error::argument("--model", format!("`{name}`"), allowed));
    }
    let unusable = |reason: String| Error::Input { what: name.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|e| unusable(format!("cannot be read: {e}")))?;
    MoeConfig::from_hf_json(&text).map_err(|e| unusable(e.to_string()))
}
