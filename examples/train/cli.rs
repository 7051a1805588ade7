//! The command line: every option, its default, and what it accepts.

use std::path::PathBuf;

use clap::Parser;
use lrmoe::{LayerOptions, PlanOptions, Retention, Selection};

use crate::experiment::ExperimentArgs;
use crate::failure::Failure;
use crate::retain::Retain;

/// Width of an attention head; `--hidden` is a multiple of it.
pub(crate) const HEAD_DIM: usize = 32;

/// Trains a small byte-level language model twice from the same weights and the same data order:
/// once plainly, once with the LRMoE backward of its Mixture-of-Experts layers, which computes every
/// routed pair forward but back-propagates only part of them. Prints what each took to reach the
/// same validation loss.
///
/// With --ranks it runs the published experiment instead: the batch is split over virtual ranks, every
/// policy plans every step, each rank's share is executed alone and timed, and the table compares what
/// each policy took to the same losses.
///
/// Exit codes: 0 all runs ended (the table says if a target was not reached), 1 a run or a file
/// failed, 2 a bad option or corpus, 130 stopped by Ctrl-C, with complete files for what was done.
#[derive(Debug, Clone, Parser)]
#[command(name = "train", verbatim_doc_comment)]
pub(crate) struct Options {
    /// Device of the MoE layers; says why faster ones were refused
    #[arg(long, value_name = "auto|cpu|cuda[:N]|wgpu[:N|:NAME]", default_value = "auto")]
    pub(crate) device: String,
    /// Pairs that are back-propagated: a fraction, or as few as add THETA times the batch's own noise [with --ranks also
    /// A..B over the run, or one value a layer with commas]
    #[arg(long, value_name = "FRACTION|noise:THETA", default_value = "0.5")]
    pub(crate) retain: Retain,
    /// How the LRMoE run picks pairs in its quotas; mixed takes the share F by score, the rest unbiased
    #[arg(long, value_name = "systematic|unbiased|topq|mixed:F|all", default_value_t = LayerOptions::default().select)]
    pub(crate) select: Selection,
    /// How quotas follow the scores: 1 gives the least total variance, 0 the most even load
    #[arg(long, default_value_t = PlanOptions::default().alpha, value_parser = unit_interval)]
    pub(crate) alpha: f64,
    /// How far a rank's share of the kept pairs may pass the mean
    #[arg(long, default_value_t = PlanOptions::default().slack)]
    pub(crate) slack: f64,
    /// Pairs that an expert keeps at least
    #[arg(long, value_name = "N", default_value_t = PlanOptions::default().q_min)]
    pub(crate) q_min: u32,
    /// Weight of earlier steps in the demand that quotas are made from
    #[arg(long, default_value_t = PlanOptions::default().smoothing)]
    pub(crate) smoothing: f64,
    /// Least score of a pair, as a part of its expert's mean
    #[arg(long, default_value_t = LayerOptions::default().score_floor)]
    pub(crate) score_floor: f32,
    /// Training steps of each run; one that has not reached the target by then goes on for up to a quarter more
    #[arg(long, default_value_t = 160, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) steps: u64,
    /// Validation loss (nats a byte) to time the runs to [default: the plain run's at 95 % of its steps]
    #[arg(long, value_name = "LOSS", value_parser = positive, conflicts_with = "ranks")]
    pub(crate) target_loss: Option<f64>,
    /// Experts of each MoE layer [default: 32, with --ranks the model's]
    #[arg(long, value_parser = size::<1, 1024>)]
    pub(crate) experts: Option<usize>,
    /// Experts each token is sent to, at most --experts [default: 4, with --ranks the model's]
    #[arg(long, value_parser = size::<1, 1024>)]
    pub(crate) top_k: Option<usize>,
    /// Width of the model, a multiple of 32, and of each expert [with --ranks experts have the model's proportions]
    #[arg(long, default_value_t = 128, value_parser = size::<32, 4096>)]
    pub(crate) hidden: usize,
    /// Transformer layers, each with one MoE layer
    #[arg(long, default_value_t = 2, value_parser = size::<1, 64>)]
    pub(crate) layers: usize,
    /// Sequences of 128 bytes a step [with --ranks several, with commas]
    #[arg(long, value_name = "N", default_value = "24", value_delimiter = ',', value_parser = size::<1, 4096>)]
    pub(crate) batch: Vec<usize>,
    /// Seed of the initial weights, the data order and the selection of pairs
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Also write the LRMoE run's pairs per expert, one JSON object a line for each step and layer
    #[arg(long, value_name = "FILE", conflicts_with = "ranks")]
    pub(crate) record: Option<PathBuf>,
    /// Folder for report.json, metrics.jsonl, loss.svg and load.svg
    #[arg(long, value_name = "DIR", default_value = "runs/train")]
    pub(crate) out: PathBuf,
    /// Text to train on: files, or folders read recursively [default: this project's sources and documents]
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub(crate) corpus: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) experiment: ExperimentArgs,
}

impl Options {
    /// Checks what depends on several options together.
    pub(crate) fn checked(self) -> Result<Self, Failure> {
        let plan = PlanOptions { retention: self.retain.at(0, 0, 1), ..self.plan_options() };
        let layer =
            LayerOptions { select: self.select, plan, score_floor: self.score_floor, ..LayerOptions::default() };
        layer.validate().map_err(|e| Failure::usage(e.to_string()))?;
        self.experiment.check(self.seed, &self.batch, self.select)?;
        if !self.hidden.is_multiple_of(HEAD_DIM) {
            let h = self.hidden;
            return Err(Failure::usage(format!(
                "--hidden is {h}; allowed: multiples of {HEAD_DIM} (one attention head)"
            )));
        }
        if self.experiment.ranks.is_none() {
            let (k, e) = (self.top_k(), self.experts());
            if k > e {
                return Err(Failure::usage(format!("--top-k is {k}; allowed: 1 to --experts, which is {e}")));
            }
            if self.batch.len() != 1 {
                let n = self.batch.len();
                return Err(Failure::usage(format!("--batch has {n} values; allowed: one, unless --ranks is given")));
            }
            if self.retain.as_constant().is_none() {
                let retain = &self.retain;
                return Err(Failure::usage(format!(
                    "--retain is {retain}; allowed without --ranks: one constant value"
                )));
            }
        }
        Ok(self)
    }

    /// Experts of a layer, of the two runs.
    pub(crate) fn experts(&self) -> usize {
        self.experts.unwrap_or(32)
    }

    /// Experts of a token, of the two runs.
    pub(crate) fn top_k(&self) -> usize {
        self.top_k.unwrap_or(4)
    }

    /// Sequences of a step, of the two runs.
    pub(crate) fn batch(&self) -> usize {
        self.batch[0]
    }

    /// Retention of the LRMoE run, of the two runs.
    pub(crate) fn retention(&self) -> Retention {
        self.retain.at(0, 0, 1)
    }

    /// How quotas are made, but for the retention.
    pub(crate) fn plan_options(&self) -> PlanOptions {
        let Self { alpha, slack, q_min, smoothing, .. } = *self;
        PlanOptions { alpha, slack, q_min, smoothing, ..PlanOptions::default() }
    }
}

fn size<const MIN: usize, const MAX: usize>(s: &str) -> Result<usize, String> {
    let allowed = || format!("allowed: whole numbers from {MIN} to {MAX}");
    s.parse().ok().filter(|n| (MIN..=MAX).contains(n)).ok_or_else(allowed)
}

fn unit_interval(s: &str) -> Result<f64, String> {
    s.parse().ok().filter(|x| (0.0..=1.0).contains(x)).ok_or_else(|| "allowed: numbers from 0 to 1".into())
}

fn positive(s: &str) -> Result<f64, String> {
    s.parse().ok().filter(|x: &f64| *x > 0.0 && x.is_finite()).ok_or_else(|| "allowed: finite numbers above 0".into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(args: &[&str]) -> Result<Options, clap::Error> {
        Options::try_parse_from(std::iter::once(&"train").chain(args))
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
    fn values_and_defaults() {
        let o = parse(&[]).unwrap();
        assert_eq!((o.retention(), o.select, o.target_loss), (Retention::Fraction(0.5), Selection::Systematic, None));
        assert!(o.checked().is_ok());
        let o = parse(&["--retain", "noise:0.3", "--select", "mixed:0.25", "--corpus", "a", "b", "--target-loss", "2"])
            .unwrap();
        assert_eq!((o.retention(), o.target_loss), (Retention::noise(0.3), Some(2.0)));
        assert_eq!(o.select, Selection::Mixed { certain: 0.25 });
        assert_eq!(o.corpus, [PathBuf::from("a"), PathBuf::from("b")]);
    }

    #[test]
    fn bad_values_name_option_value_and_what_is_allowed() {
        for (option, value) in [
            ("--retain", "0"),
            ("--retain", "1.5"),
            ("--retain", "NaN"),
            ("--retain", "noise:-1"),
            ("--retain", "noise:inf"),
            ("--select", "best"),
            ("--select", "mixed:1"),
            ("--alpha", "-0.1"),
            ("--alpha", "NaN"),
            ("--steps", "0"),
            ("--target-loss", "0"),
            ("--experts", "0"),
            ("--top-k", "x"),
            ("--hidden", "16"),
            ("--layers", "0"),
            ("--batch", "0"),
        ] {
            let error = parse(&[&format!("{option}={value}")]).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.exit_code(), 2);
            assert!(text.contains(option) && text.contains(value), "{text}");
            let says_what = ["allowed", "possible values", "is not in"].iter().any(|w| text.contains(w));
            assert!(says_what, "{option}={value}: {text}");
        }
    }

    #[test]
    fn options_that_contradict_each_other_are_named() {
        let message = |args: &[&str]| {
            let failure = parse(args).unwrap().checked().unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            failure.to_string()
        };
        let text = message(&["--top-k", "9", "--experts", "8"]);
        assert!(text.contains("--top-k is 9") && text.contains('8'), "{text}");
        assert!(message(&["--hidden", "100"]).contains("--hidden is 100"));
        assert!(message(&["--batch", "8,16"]).contains("--batch has 2 values"));
        assert!(message(&["--retain", "0.3..0.6"]).contains("--retain is 0.3..0.6"));
    }
}
