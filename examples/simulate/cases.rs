//! What is simulated: the routing of many steps, for each model and number of ranks.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use lrmoe::plan::trace::TraceReader;
use lrmoe::plan::trace::{regroup, scaled};
use lrmoe::plan::workload::Batch;
use lrmoe::plan::{Counts, Setup, Workload};
use lrmoe::{Error, MoeConfig, Result};

use crate::cli::Options;
use crate::planning::setup::model;

/// Steps of a generated workload: two bursts, one whole drift, eight moves of a rotating hot spot.
const STEPS: u64 = 64;

/// Where routing comes from.
#[derive(Debug, Clone)]
pub(crate) enum Routing {
    /// One layer of a trace, as recorded.
    Trace { name: String, layer: u32, steps: Vec<Counts> },
    /// Generated for the model and the ranks.
    Generated(Workload),
}

/// One layer of one model on one machine, and the pairs of every step.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// Workload, or trace and layer.
    pub(crate) routing: String,
    pub(crate) model: String,
    pub(crate) setup: Setup,
    pub(crate) steps: Vec<Counts>,
    /// What the reader should know of how it came about.
    pub(crate) notes: Vec<String>,
}

/// Reads the trace, or names the workloads.
///
/// # Errors
/// [`Error::Input`] naming a trace that cannot be read or has no steps.
pub(crate) fn routings(options: &Options) -> Result<Vec<Routing>> {
    match &options.trace {
        Some(path) => layers(path, options.steps),
        None => Ok(options.workload.0.iter().copied().map(Routing::Generated).collect()),
    }
}

/// The layers of a trace in order, each with its first steps in the order of the file.
fn layers(path: &Path, limit: Option<u64>) -> Result<Vec<Routing>> {
    let name = path.display().to_string();
    let failed = |reason: String| Error::Input { what: name.clone(), reason };
    let file = File::open(path).map_err(|e| failed(format!("cannot be read: {e}")))?;
    let mut layers: std::collections::BTreeMap<u32, Vec<Counts>> = std::collections::BTreeMap::new();
    for entry in TraceReader::new(BufReader::new(file), name.as_str()) {
        let entry = entry?;
        let steps = layers.entry(entry.layer).or_default();
        if limit.is_none_or(|limit| (steps.len() as u64) < limit) {
            steps.push(entry.counts);
        }
    }
    if layers.is_empty() {
        return Err(failed("has no steps".into()));
    }
    let stem = path.file_stem().map_or_else(|| name.clone(), |stem| stem.to_string_lossy().into_owned());
    Ok(layers.into_iter().map(|(layer, steps)| Routing::Trace { name: stem.clone(), layer, steps }).collect())
}

/// A routing on a model and a number of ranks.
///
/// # Errors
/// Those of the model, the machine and the setup; [`Error::Config`] where the model's routing does not fit the trace's experts.
pub(crate) fn case(options: &Options, routing: &Routing, name: &str, ranks: usize) -> Result<Case> {
    let (config, mut notes) = (model(name)?, Vec::new());
    let experts = match routing {
        Routing::Trace { steps, .. } => steps.first().map_or(config.num_experts, Counts::experts),
        Routing::Generated(_) => config.num_experts,
    };
    let top_k = options.top_k.map_or(config.num_experts_per_tok.min(experts), |k| k as usize);
    if (experts, top_k) != (config.num_experts, config.num_experts_per_tok) {
        notes.push(format!(
            "{name} with {experts} experts and top-{top_k} in place of its {} and {}; all other sizes are its own",
            config.num_experts, config.num_experts_per_tok
        ));
    }
    let setup =
        options.machine.setup(MoeConfig { num_experts: experts, num_experts_per_tok: top_k, ..config }, ranks)?;
    let (routing, steps) = match routing {
        Routing::Trace { name, layer, steps } => {
            let pairs = u64::from(options.tokens_per_rank) * top_k as u64;
            let steps: Vec<Counts> =
                steps.iter().map(|counts| scaled(&regroup(counts, ranks)?, pairs)).collect::<Result<_>>()?;
            if let Some(note) = impossible(&steps, top_k) {
                notes.push(note);
            }
            (format!("{name} layer {layer}"), steps)
        }
        Routing::Generated(workload) => {
            let steps = options.steps.unwrap_or(STEPS);
            (workload.name().to_owned(), generated(*workload, &setup, options.tokens_per_rank, options.seed, steps)?)
        }
    };
    Ok(Case { routing, model: name.to_owned(), setup, steps, notes })
}

/// The pairs of a generated workload.
///
/// # Errors
/// As [`Workload::counts`].
pub(crate) fn generated(
    workload: Workload,
    setup: &Setup,
    tokens_per_rank: u32,
    seed: u64,
    steps: u64,
) -> Result<Vec<Counts>> {
    let batch = Batch {
        ranks: setup.cluster.ranks,
        experts: setup.config.num_experts,
        top_k: setup.config.num_experts_per_tok,
        tokens_per_rank,
    };
    (0..steps).map(|step| workload.counts(&batch, seed, step)).collect()
}

/// A trace recorded with a smaller k may send an expert more pairs than a rank has tokens, which no top-k routing does.
fn impossible(steps: &[Counts], top_k: usize) -> Option<String> {
    let beyond = |counts: &Counts| {
        let row = |rank: usize| {
            let tokens = counts.per_rank()[rank].div_ceil(top_k as u64);
            counts.row(rank).iter().any(|&n| u64::from(n) > tokens)
        };
        (0..counts.ranks()).any(row)
    };
    let n = steps.iter().filter(|counts| beyond(counts)).count();
    (n > 0).then(|| {
        format!(
            "in {n} of {} steps an expert gets more pairs of a rank than it has tokens: the trace was recorded with fewer than \
             {top_k} experts a token, see --top-k",
            steps.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(rows: &[[u32; 2]]) -> Counts {
        Counts::new(rows).unwrap()
    }

    #[test]
    fn impossible_routing_is_pointed_out() {
        assert_eq!(impossible(&[counts(&[[4, 4]])], 2), None);
        let note = impossible(&[counts(&[[4, 4]]), counts(&[[4, 4], [6, 2]])], 2).unwrap();
        assert!(note.starts_with("in 1 of 2 steps"), "{note}");
    }
}
