//! The command line: every option, its default, and what it accepts.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, ValueEnum};

use crate::failure::Failure;

/// Width of an attention head; `--hidden` is a multiple of it.
pub(crate) const HEAD_DIM: usize = 32;

/// Trains a small byte-level language model twice from the same weights and the same data order:
/// once plainly, once with the LRMoE backward of its Mixture-of-Experts layers, which computes every
/// routed pair forward but back-propagates only part of them. Prints what each took to reach the
/// same validation loss.
///
/// Exit codes: 0 both runs ended (the table says if a target was not reached), 1 a run or a file
/// failed, 2 a bad option or corpus, 130 stopped by Ctrl-C, with complete files for the steps done.
#[derive(Debug, Clone, Parser)]
#[command(name = "train", verbatim_doc_comment)]
pub(crate) struct Options {
    /// Device of the MoE layers; says why faster ones were refused
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    pub(crate) device: Device,
    /// Pairs the LRMoE run back-propagates: a fraction, or as few as add T times the batch's own noise
    #[arg(long, value_name = "FRACTION|noise:T", default_value = "0.5")]
    pub(crate) retain: Retain,
    /// How the LRMoE run picks pairs in its quotas; mixed takes the share F by score, the rest unbiased
    #[arg(long, value_name = "unbiased|topq|mixed:F|all", default_value = "unbiased")]
    pub(crate) select: Select,
    /// How quotas follow the scores: 1 gives the least total variance, 0 the most even load
    #[arg(long, default_value = "1", value_parser = unit_interval)]
    pub(crate) alpha: f64,
    /// Training steps of each run; one that has not reached the target by then goes on for up to a quarter more
    #[arg(long, default_value_t = 160, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) steps: u64,
    /// Validation loss (nats a byte) to time the runs to [default: the plain run's at 95 % of its steps]
    #[arg(long, value_name = "LOSS", value_parser = positive)]
    pub(crate) target_loss: Option<f64>,
    /// Experts of each MoE layer
    #[arg(long, default_value_t = 32, value_parser = size::<1, 1024>)]
    pub(crate) experts: usize,
    /// Experts each token is sent to, at most --experts
    #[arg(long, default_value_t = 4, value_parser = size::<1, 1024>)]
    pub(crate) top_k: usize,
    /// Width of the model and of each expert, a multiple of 32
    #[arg(long, default_value_t = 128, value_parser = size::<32, 4096>)]
    pub(crate) hidden: usize,
    /// Transformer layers, each with one MoE layer
    #[arg(long, default_value_t = 2, value_parser = size::<1, 64>)]
    pub(crate) layers: usize,
    /// Sequences of 128 bytes a step
    #[arg(long, default_value_t = 24, value_parser = size::<1, 4096>)]
    pub(crate) batch: usize,
    /// Seed of the initial weights, the data order and the selection of pairs
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Also write the LRMoE run's pairs per expert, one JSON object a line for each step and layer
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Folder for report.json, metrics.jsonl, loss.svg and load.svg
    #[arg(long, value_name = "DIR", default_value = "runs/train")]
    pub(crate) out: PathBuf,
    /// Text to train on: files, or folders read recursively [default: this project's sources and documents]
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub(crate) corpus: Vec<PathBuf>,
}

impl Options {
    /// Checks what depends on two options together.
    pub(crate) fn checked(self) -> Result<Self, Failure> {
        if self.top_k > self.experts {
            let (k, e) = (self.top_k, self.experts);
            return Err(Failure::usage(format!("--top-k is {k}; allowed: 1 to --experts, which is {e}")));
        }
        if !self.hidden.is_multiple_of(HEAD_DIM) {
            let h = self.hidden;
            return Err(Failure::usage(format!(
                "--hidden is {h}; allowed: multiples of {HEAD_DIM} (one attention head)"
            )));
        }
        Ok(self)
    }
}

/// `--device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// The fastest device that works.
    Auto,
    /// The processor.
    Cpu,
}

/// `--retain`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Retain {
    /// Fraction of the routed pairs.
    Fraction(f64),
    /// Bound on the noise that selection adds, relative to the batch's own.
    Noise(f64),
}

impl Device {
    /// What lrmoe calls it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
        }
    }
}

impl FromStr for Retain {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let allowed = "allowed: a fraction above 0 and up to 1, or noise:T with T above 0";
        let number = |s: &str| s.parse::<f64>().map_err(|_| allowed.to_string());
        match s.strip_prefix("noise:") {
            Some(t) => Some(number(t)?).filter(|t| *t > 0.0 && t.is_finite()).map(Self::Noise),
            None => Some(number(s)?).filter(|f| *f > 0.0 && *f <= 1.0).map(Self::Fraction),
        }
        .ok_or_else(|| allowed.to_string())
    }
}

impl fmt::Display for Retain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fraction(x) => write!(f, "{x}"),
            Self::Noise(t) => write!(f, "noise:{t}"),
        }
    }
}

/// `--select`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Select {
    /// Every pair: plain training.
    All,
    /// The highest scores of each expert.
    TopQ,
    /// Priority sampling with inverse-probability weights.
    Unbiased,
    /// This share of a quota by score, the rest as `Unbiased`.
    Mixed(f64),
}

impl FromStr for Select {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "all" => return Ok(Self::All),
            "topq" => return Ok(Self::TopQ),
            "unbiased" => return Ok(Self::Unbiased),
            _ => {}
        }
        s.strip_prefix("mixed:")
            .and_then(|f| f.parse().ok())
            .filter(|f| (0.0..1.0).contains(f))
            .map(Self::Mixed)
            .ok_or_else(|| "allowed: unbiased, topq, all, or mixed:F with F from 0 to below 1".into())
    }
}

impl fmt::Display for Select {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::TopQ => f.write_str("topq"),
            Self::Unbiased => f.write_str("unbiased"),
            Self::Mixed(x) => write!(f, "mixed:{x}"),
        }
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
        assert_eq!((o.retain, o.select, o.target_loss), (Retain::Fraction(0.5), Select::Unbiased, None));
        assert!(o.checked().is_ok());
        let o = parse(&["--retain", "noise:0.3", "--select", "mixed:0.25", "--corpus", "a", "b", "--target-loss", "2"])
            .unwrap();
        assert_eq!((o.retain, o.select, o.target_loss), (Retain::Noise(0.3), Select::Mixed(0.25), Some(2.0)));
        assert_eq!(o.corpus, [PathBuf::from("a"), PathBuf::from("b")]);
    }

    #[test]
    fn what_is_printed_parses_back() {
        for s in ["0.5", "1", "noise:0.3"] {
            assert_eq!(s.parse::<Retain>().unwrap().to_string(), s);
        }
        for s in ["all", "topq", "unbiased", "mixed:0.25"] {
            assert_eq!(s.parse::<Select>().unwrap().to_string(), s);
        }
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
            ("--device", "tpu"),
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
    }
}
