//! Made-up routing: nine workloads, each a pure function of (workload, batch, seed, step) and the same on every machine.
//! The first eight are the kinds that Megatron-LM's pull request 7488 measures dispatch with.
//!
//! A workload gives every expert a popularity and every rank a number of tokens. Each token picks k distinct experts with
//! chances in proportion to popularity, none above 1. A step draws its counts from the normal approximation of that
//! choice instead of token by token: rank `s` sends expert `e` about `T p +- sqrt(T p (1 - p))` of its T tokens, rounded
//! so that every rank has exactly k T pairs and no expert more than T of them.
//!
//! How skewed: Qwen3-30B-A3B's busiest expert carries about 7 times the mean, 13 at its peak.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Counts;
use super::trace::MAX_COUNTS;
use crate::rng::{Philox, philox4x32};
use crate::{Error, Result, portable};

/// Busiest expert over mean in a lasting hot spot.
const HOT: f64 = 7.0;
/// Busiest expert over mean in a burst.
const PEAK: f64 = 13.0;
/// One expert in so many is hot.
const HOT_ONE_IN: usize = 16;
/// One expert in so many bursts.
const BURST_ONE_IN: usize = 64;
/// Steps after which a rotating hot spot moves on.
const DWELL: u64 = 8;
/// A burst comes once in so many steps, at their end.
const BURST_PERIOD: u64 = 32;
/// Steps of a burst.
const BURST_STEPS: u64 = 4;
/// Steps after which drifting popularities have nothing in common with what they were.
const DRIFT_STEPS: u64 = 64;
/// Standard deviation of drifting popularity, in octaves: the busiest of 128 experts carries about 7 times the mean.
const DRIFT_OCTAVES: f64 = 1.25;
/// Standard deviation of how much more one rank's tokens favour an expert than another's, in octaves.
const TILT_OCTAVES: f64 = 0.35;
/// The least part of its mean that noise leaves of a count, so that no expert drops out of a rank by noise alone.
const LEAST_PART: f64 = 0.125;
/// Most pairs of a rank, so that rounding errors in sums of their parts stay far below one pair.
const MAX_PAIRS: u64 = 1 << 40;

/// The size of what is routed in one step of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// R: source ranks, at least 1.
    pub ranks: usize,
    /// E, at least 1.
    pub experts: usize,
    /// k: distinct experts of each token, 1 to E.
    pub top_k: usize,
    /// T: tokens of a rank, on average over the ranks that have any.
    pub tokens_per_rank: u32,
}

impl Batch {
    fn check(&self) -> Result<()> {
        let size = self.ranks.checked_mul(self.experts);
        if !size.is_some_and(|size| (1..=MAX_COUNTS).contains(&size)) {
            let got = format!("{} ranks x {} experts", self.ranks, self.experts);
            return Err(Error::argument("batch", got, format!("at least 1 x 1, at most {MAX_COUNTS} in all")));
        }
        if !(1..=self.experts).contains(&self.top_k) {
            return Err(Error::argument("batch.top_k", self.top_k, format!("1 to {} experts", self.experts)));
        }
        let pairs = self.top_k as u64 * u64::from(self.tokens_per_rank);
        if pairs > MAX_PAIRS {
            let detail = format!("{} tokens x {} experts each pass {MAX_PAIRS}", self.tokens_per_rank, self.top_k);
            return Err(Error::Overflow { what: "pairs of a rank".into(), detail });
        }
        Ok(())
    }
}

/// A kind of made-up routing. Owners of experts are those of contiguous ownership: expert `e` is at home on rank
/// `floor(e R / E)`.
///
/// ```
/// use lrmoe::plan::{Batch, Workload};
///
/// let batch = Batch { ranks: 8, experts: 128, top_k: 8, tokens_per_rank: 4096 };
/// let counts = Workload::HotSet.counts(&batch, 0, 0)?;
/// assert_eq!(counts.per_rank(), [8 * 4096; 8]);
/// assert_eq!("hot-set".parse(), Ok(Workload::HotSet));
/// # Ok::<(), lrmoe::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// All experts equally popular.
    Balanced,
    /// One expert in 16, chosen by the seed, carries 7 times the mean.
    HotSet,
    /// The experts at home on one rank are the hot ones.
    HotRank,
    /// As many hot experts as in `HotSet`, one in each of as many equal stretches of the experts: their owners are spread
    /// over the ranks.
    SpreadHot,
    /// All experts equally popular, but some ranks have many times the tokens of others, differently in each step.
    Ragged,
    /// Half of the experts get nothing and a quarter of the ranks have no tokens, others in each step.
    Empty,
    /// Neighbouring experts, one in 16, are hot; after 8 steps it is their neighbours' turn.
    Rotating,
    /// Balanced, but for 4 steps in 32 one expert in 64, others in each burst, carries 13 times the mean.
    Burst,
    /// Log-normal popularity, up to about 7 times the mean, which changes gradually over 64 steps; ranks differ in what
    /// their tokens favour. The most like training.
    Drifting,
}

/// What a stream of random numbers is for.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    Popularity,
    Tokens,
    EmptyRanks,
    Tilt,
    Noise,
}

impl Workload {
    /// Every workload, in the order of the enum.
    pub const ALL: [Self; 9] = [
        Self::Balanced,
        Self::HotSet,
        Self::HotRank,
        Self::SpreadHot,
        Self::Ragged,
        Self::Empty,
        Self::Rotating,
        Self::Burst,
        Self::Drifting,
    ];

    /// Its name in command lines and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::HotSet => "hot-set",
            Self::HotRank => "hot-rank",
            Self::SpreadHot => "spread-hot",
            Self::Ragged => "ragged",
            Self::Empty => "empty",
            Self::Rotating => "rotating",
            Self::Burst => "burst",
            Self::Drifting => "drifting",
        }
    }

    /// The counts of one step: rank `s` has exactly `k T_s` pairs, with `T_s` from [`Workload::tokens`], and at most `T_s`
    /// for one expert.
    ///
    /// # Errors
    /// [`Error::Argument`] for batch out of range or more than [`MAX_COUNTS`] ranks x experts, [`Error::Overflow`] where
    /// the pairs of a rank pass 2^40, or those of an expert or all tokens of a ragged step 2^32 - 1.
    pub fn counts(self, batch: &Batch, seed: u64, step: u64) -> Result<Counts> {
        let tokens = self.tokens(batch, seed, step)?;
        let &Batch { ranks, experts, top_k, .. } = batch;
        let popularity = self.popularity(batch, seed, step);
        let mut pairs = Vec::with_capacity(ranks * experts);
        for (rank, tokens) in tokens.into_iter().enumerate() {
            // Ranks are at most MAX_COUNTS.
            let stream = |purpose| stream(seed, step, purpose, rank as u32);
            let tilted = (self == Self::Drifting).then(|| {
                let mut rng = stream(Purpose::Tilt);
                let tilt = |w: &f64| w * portable::pow(2.0, TILT_OCTAVES * rng.normal());
                popularity.iter().map(tilt).collect::<Vec<_>>()
            });
            let chances = filled(tilted.as_ref().unwrap_or(&popularity), top_k as f64, 1.0);
            pairs.extend(draw(&chances, top_k, tokens, &mut stream(Purpose::Noise)));
        }
        Counts::from_flat(ranks, experts, pairs)
    }

    /// `[R]` tokens of each rank in one step.
    ///
    /// # Errors
    /// As [`Workload::counts`].
    pub fn tokens(self, batch: &Batch, seed: u64, step: u64) -> Result<Vec<u32>> {
        batch.check()?;
        let Batch { ranks, tokens_per_rank, .. } = *batch;
        let mut tokens = vec![tokens_per_rank; ranks];
        match self {
            Self::Ragged => {
                // Squares of uniforms: a quarter of the ranks above 1.7 times the mean, a quarter below 0.2 times.
                let mut rng = stream(seed, step, Purpose::Tokens, 0);
                let shares: Vec<f64> = (0..ranks).map(|_| f64::from(rng.uniform())).map(|u| u * u).collect();
                let total = ranks as u64 * u64::from(tokens_per_rank);
                // So that any rank may get them all.
                let limit = u64::from(u32::MAX).min(MAX_PAIRS / batch.top_k as u64);
                if total > limit {
                    let detail = format!("{ranks} ranks x {tokens_per_rank} tokens pass {limit}");
                    return Err(Error::Overflow { what: "tokens of a step".into(), detail });
                }
                tokens = rounded(&filled(&shares, total as f64, f64::INFINITY), total, u32::MAX);
            }
            Self::Empty => {
                let without = (ranks / 4).max(1).min(ranks - 1);
                let mut rng = stream(seed, step, Purpose::EmptyRanks, 0);
                chosen(without, ranks, &mut rng).into_iter().for_each(|rank| tokens[rank] = 0);
            }
            _ => {}
        }
        Ok(tokens)
    }

    /// `[E]` popularity of the experts, in any unit; at least k are positive.
    fn popularity(self, batch: &Batch, seed: u64, step: u64) -> Vec<f64> {
        let Batch { ranks, experts, top_k, .. } = *batch;
        let stream = |when| stream(seed, when, Purpose::Popularity, 0);
        let hot = (experts / HOT_ONE_IN).max(1);
        match self {
            Self::Balanced | Self::Ragged => vec![1.0; experts],
            Self::HotSet => heated(experts, &chosen(hot, experts, &mut stream(0)), HOT),
            Self::HotRank => {
                let home = |e: usize| e as u128 * ranks as u128 / experts as u128;
                let owner = home(below(experts, &mut stream(0)));
                let own: Vec<usize> = (0..experts).filter(|&e| home(e) == owner).collect();
                heated(experts, &own, HOT)
            }
            Self::SpreadHot => {
                let mut rng = stream(0);
                let start = |i: usize| i * experts / hot;
                let within = |i| start(i) + below(start(i + 1) - start(i), &mut rng);
                heated(experts, &(0..hot).map(within).collect::<Vec<_>>(), HOT)
            }
            Self::Empty => {
                let without = (experts / 2).min(experts - top_k);
                let mut weights = vec![1.0; experts];
                chosen(without, experts, &mut stream(step)).into_iter().for_each(|e| weights[e] = 0.0);
                weights
            }
            Self::Rotating => {
                let moves = (step / DWELL % experts as u64) as usize;
                let first = below(experts, &mut stream(0)) + moves * hot;
                heated(experts, &(0..hot).map(|i| (first + i) % experts).collect::<Vec<_>>(), HOT)
            }
            Self::Burst if step % BURST_PERIOD < BURST_PERIOD - BURST_STEPS => vec![1.0; experts],
            Self::Burst => {
                let bursting = (experts / BURST_ONE_IN).max(1);
                heated(experts, &chosen(bursting, experts, &mut stream(step / BURST_PERIOD)), PEAK)
            }
            Self::Drifting => {
                let (from, part) = (step / DRIFT_STEPS, (step % DRIFT_STEPS) as f64 / DRIFT_STEPS as f64);
                let (mut old, mut new) = (stream(from), stream(from + 1));
                // Keeps the variance of the mixture at 1.
                let norm = ((1.0 - part) * (1.0 - part) + part * part).sqrt();
                let mix = |_| ((1.0 - part) * old.normal() + part * new.normal()) / norm;
                (0..experts).map(mix).map(|z| portable::pow(2.0, DRIFT_OCTAVES * z)).collect()
            }
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Workload {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.into_iter().map(Self::name).collect();
            Error::argument("workload", name, names.join(", "))
        })
    }
}

/// An own sequence for each (seed, step, purpose, index).
fn stream(seed: u64, step: u64, purpose: Purpose, index: u32) -> Philox {
    let words = |x: u64| [x as u32, (x >> 32) as u32];
    let ([step_low, step_high], key) = (words(step), words(seed));
    let [w0, w1, w2, w3] = philox4x32([step_low, step_high, purpose as u32, index], key);
    let long = |low, high| u64::from(low) | u64::from(high) << 32;
    Philox::new(long(w0, w1), long(w2, w3))
}

/// A number below `n`, which is at most 2^32; the bias is below n / 2^32.
fn below(n: usize, rng: &mut Philox) -> usize {
    ((u64::from(rng.next_u32()) * n as u64) >> 32) as usize
}

/// `count` distinct numbers below `n`.
fn chosen(count: usize, n: usize, rng: &mut Philox) -> Vec<usize> {
    let mut all: Vec<usize> = (0..n).collect();
    for i in 0..count {
        let other = i + below(n - i, rng);
        all.swap(i, other);
    }
    all.truncate(count);
    all
}

/// Popularities with mean 1 in which each of the experts in `hot` has `load`, or less where all of them together would leave
/// the others under half of an equal share.
fn heated(experts: usize, hot: &[usize], load: f64) -> Vec<f64> {
    let part = hot.len() as f64 / experts as f64;
    let share = (load * part).min((1.0 + part) / 2.0);
    let cold = if hot.len() < experts { (1.0 - share) / (1.0 - part) } else { 0.0 };
    let mut weights = vec![cold; experts];
    hot.iter().for_each(|&e| weights[e] = share / part);
    weights
}

/// `total` in proportion to `weights`, but at most `cap` each: what is over goes to the others in proportion.
///
/// `total` is at most `cap` times the positive weights.
fn filled(weights: &[f64], total: f64, cap: f64) -> Vec<f64> {
    let mut parts = vec![0.0; weights.len()];
    let mut open: Vec<usize> = (0..weights.len()).filter(|&i| weights[i] > 0.0).collect();
    let mut left = total;
    loop {
        let scale = left / open.iter().map(|&i| weights[i]).sum::<f64>();
        let before = open.len();
        open.retain(|&i| {
            let fits = scale * weights[i] < cap;
            parts[i] = if fits { scale * weights[i] } else { cap };
            fits
        });
        if open.len() == before || open.is_empty() {
            return parts;
        }
        left -= (before - open.len()) as f64 * cap;
    }
}

/// Whole numbers up to `cap` near `parts`, with the sum `total`, by largest remainder; what is 0 stays 0.
///
/// `parts` add up to `total` but for rounding, and `cap` times the positive ones reaches it.
fn rounded(parts: &[f64], total: u64, cap: u32) -> Vec<u32> {
    let mut whole: Vec<u32> = parts.iter().map(|&x| x as u32).collect();
    let mut missing = total.saturating_sub(whole.iter().map(|&n| u64::from(n)).sum());
    let remainder = |i: usize| parts[i] - parts[i].floor();
    let mut order: Vec<usize> = (0..parts.len()).filter(|&i| parts[i] > 0.0).collect();
    order.sort_by(|&a, &b| remainder(b).total_cmp(&remainder(a)).then(a.cmp(&b)));
    // Once round is enough, but for rounding errors in the sum of the parts.
    for &i in order.iter().cycle() {
        if missing == 0 {
            break;
        }
        if whole[i] < cap {
            whole[i] += 1;
            missing -= 1;
        }
    }
    whole
}

/// `[E]` pairs of a rank whose tokens pick expert `e` with chance `chances[e]`; the chances add up to k.
fn draw(chances: &[f64], top_k: usize, tokens: u32, rng: &mut Philox) -> Vec<u32> {
    let count = f64::from(tokens);
    let noisy = |&p: &f64| {
        let mean = count * p;
        (mean + (mean * (1.0 - p)).sqrt() * rng.normal()).clamp(LEAST_PART * mean, count)
    };
    let drawn: Vec<f64> = chances.iter().map(noisy).collect();
    if tokens == 0 {
        return vec![0; chances.len()];
    }
    let total = top_k as u64 * u64::from(tokens);
    rounded(&filled(&drawn, total as f64, count), total, tokens)
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
