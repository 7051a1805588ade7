//! Scores, floors, priorities and retained sets of the oracle, by sorting.
//!
//! Scores are computed in f64; from [`floored_scores`] on they are the f32 values that selection is defined on. Selection takes keys
//! as given, so that a device's own keys can be fed in: given the same key bits the retained set is determined.

use super::linear::{Mat, norm};
use super::oracle::{Forward, Layer, Routing};

/// What a pair's score is made of. All are infinite where an input is NaN or infinite.
#[derive(Debug, Clone, PartialEq)]
pub enum ScoreRule {
    /// |g| ||d|| ||h||: the norm of the pair's W_down gradient. The default.
    OutputNorm,
    /// |g| ||d|| sqrt(||h||^2 + kappa_e^2 ||x||^2), with kappa per expert.
    Full(Vec<f64>),
    /// |g| ||d||.
    GateTimesGradient,
    /// |g|.
    Gate,
    /// 1.
    Uniform,
    /// Norm of all three weight gradients of the pair.
    Exact,
}

/// Which pairs are retained.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mode {
    /// Everything, ineligible pairs too.
    All,
    /// The highest scores, weight 1.
    TopQ,
    /// Priority sampling.
    Unbiased,
    /// The top floor(certain * quota) scores with weight 1, priority sampling of the rest.
    Mixed {
        /// Fraction of the quota, 0 to 1.
        certain: f64,
    },
}

/// An eligible pair, as selection sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Pair index t*k + j.
    pub pair: usize,
    /// Its expert.
    pub expert: usize,
    /// Global token id, the first tie-break.
    pub token_id: u64,
    /// j, the second tie-break.
    pub slot: usize,
    /// Floored score: positive, possibly infinite.
    pub score: f32,
}

/// What was selected.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// (pair, pair weight), by pair.
    pub retained: Vec<(usize, f64)>,
    /// By expert: the highest sampled key that was not retained, 0 if there is none.
    pub tau: Vec<f32>,
}

/// Raw score of every pair, [T, k]; nothing for pairs that are not eligible: of masked tokens, dropped, with g = 0, or
/// with d all zero.
pub fn pair_scores(layer: &Layer, x: &Mat, forward: &Forward, d: &Mat, rule: &ScoreRule) -> Vec<Option<f64>> {
    let routing = &forward.routing;
    let mut scores = vec![None; routing.experts.len()];
    for (p, t, e) in routing.pairs() {
        let Some(activation) = &forward.pairs[p] else { continue };
        let g = routing.weights[p].abs();
        if g == 0.0 || d.row(t).iter().all(|&v| v == 0.0) {
            continue;
        }
        let h_norm = norm(&activation.h);
        let score = match rule {
            ScoreRule::OutputNorm => g * norm(d.row(t)) * h_norm,
            ScoreRule::Full(kappa) => g * norm(d.row(t)) * h_norm.hypot(kappa[e] * norm(x.row(t))),
            ScoreRule::GateTimesGradient => g * norm(d.row(t)),
            ScoreRule::Gate => g,
            ScoreRule::Uniform => 1.0,
            ScoreRule::Exact => norm(&layer.contribution(x, forward, d, p).norms(x.row(t), &activation.h)),
        };
        scores[p] = Some(if score.is_finite() { score } else { f64::INFINITY });
    }
    scores
}

/// Scores raised to `score_floor` times the mean finite score of their expert, as f32 in the finite positive range. Where that
/// mean is 0 every score is |g| ||d||, and where that is 0 too, 1. Infinite scores stay.
pub fn floored_scores(forward: &Forward, d: &Mat, scores: &[Option<f64>], score_floor: f64) -> Vec<Option<f32>> {
    let routing = &forward.routing;
    let mut sums = vec![(0.0, 0.0); routing.logits.cols];
    for (p, _, e) in routing.pairs() {
        if let Some(score) = scores[p].filter(|score| score.is_finite()) {
            sums[e].0 += score;
            sums[e].1 += 1.0;
        }
    }
    let mut floored = vec![None; scores.len()];
    for (p, t, e) in routing.pairs() {
        let Some(score) = scores[p] else { continue };
        let (sum, count) = sums[e];
        floored[p] = Some(if score.is_infinite() {
            f32::INFINITY
        } else if sum > 0.0 {
            clamped(score.max(score_floor * sum / count))
        } else {
            let fallback = routing.weights[p].abs() * norm(d.row(t));
            clamped(if fallback > 0.0 { fallback } else { 1.0 })
        });
    }
    floored
}

/// The eligible pairs with their floored scores. `token_ids` holds the global id of every token.
pub fn candidates(routing: &Routing, floored: &[Option<f32>], token_ids: &[u64]) -> Vec<Candidate> {
    let candidate = |(pair, t, expert): (usize, usize, usize)| {
        floored[pair].map(|score| Candidate { pair, expert, token_id: token_ids[t], slot: pair % routing.top_k, score })
    };
    routing.pairs().filter_map(candidate).collect()
}

/// Priority of a floored score: score / u in the finite positive range, infinite where the score is. u in (0, 1].
pub fn priority(score: f32, u: f32) -> f32 {
    assert!(u > 0.0 && u <= 1.0, "u is {u}, allowed: (0, 1]");
    if score.is_infinite() { score } else { clamped(f64::from(score) / f64::from(u)) }
}

/// The retained set for these quotas, one per expert. `u` gives a candidate's uniform number in (0, 1].
pub fn select(
    mode: Mode,
    routing: &Routing,
    candidates: &[Candidate],
    quotas: &[usize],
    u: impl Fn(&Candidate) -> f32,
) -> Selection {
    let counts = routing.counts();
    assert_eq!(quotas.len(), counts.len(), "one quota per expert");
    let tau = vec![0.0; quotas.len()];
    if mode == Mode::All || quotas.iter().zip(&counts).all(|(q, n)| q >= n) {
        return Selection { retained: routing.pairs().map(|(p, _, _)| (p, 1.0)).collect(), tau };
    }
    let mut selection = Selection { retained: Vec::new(), tau };
    for (e, &quota) in quotas.iter().enumerate() {
        let own: Vec<Candidate> = candidates.iter().filter(|c| c.expert == e).copied().collect();
        let certain = match mode {
            Mode::All | Mode::TopQ => quota,
            Mode::Unbiased => 0,
            Mode::Mixed { certain } => ((certain * quota as f64).floor() as usize).min(quota.saturating_sub(2)),
        };
        let (kept, rest) = take_highest(&own, certain, |c| c.score);
        selection.retained.extend(kept.iter().map(|c| (c.pair, 1.0)));
        if mode == Mode::TopQ {
            continue;
        }
        let key = |c: &Candidate| priority(c.score, u(c));
        let (sampled, rest) = take_highest(&rest, quota - certain, key);
        let tau = rest.first().map_or(0.0, key);
        selection.tau[e] = tau;
        selection.retained.extend(sampled.iter().map(|c| (c.pair, pair_weight(c.score, tau))));
    }
    selection.retained.sort_by_key(|&(pair, _)| pair);
    selection
}

/// Systematic sampling of one expert's candidates: what is retained, with weights. `key` orders candidates before their token ids and
/// slots, `random` is the expert's draw. Everything as the definition reads, in exact integers.
pub fn systematic(
    own: &[Candidate],
    quota: usize,
    key: impl Fn(&Candidate) -> u32,
    random: u64,
) -> Vec<(Candidate, f64)> {
    if quota >= own.len() {
        return own.iter().map(|c| (*c, 1.0)).collect();
    }
    let infinite = own.iter().filter(|c| c.score.is_infinite()).count();
    let (kept, rest) = take_highest(own, infinite.min(quota), |c| c.score);
    let mut retained: Vec<(Candidate, f64)> = kept.iter().map(|c| (*c, 1.0)).collect();
    if infinite >= quota {
        return retained;
    }
    let top = rest[0].score;
    let sizes: Vec<u128> = rest.iter().map(|c| size(c.score, top)).collect();
    let mut slots = (quota - infinite) as u128;
    let mut first = 0;
    while sizes[first] * slots >= sizes[first..].iter().sum() {
        retained.push((rest[first], 1.0));
        slots -= 1;
        first += 1;
    }
    let sum: u128 = sizes[first..].iter().sum();
    assert!(sum < 1 << 64, "sum {sum}, allowed: below 2^64");
    let start = (u128::from(random) * sum) >> 64;
    let mut list: Vec<(Candidate, u128)> = rest.into_iter().zip(sizes).skip(first).collect();
    list.sort_by_key(|(c, _)| (key(c), c.token_id, c.slot));
    let mut before = 0;
    for (candidate, size) in list {
        let after = before + size;
        if (before * slots + start) / sum < (after * slots + start) / sum {
            retained.push((candidate, sum as f64 / (slots * size) as f64));
        }
        before = after;
    }
    retained
}

/// The largest s with `2^40 score / top >= s - 1/2`, at least 1, by bisection.
pub fn size(score: f32, top: f32) -> u128 {
    let (mut score, mut top) = (f64::from(score), f64::from(top));
    if score * 2f64.powi(42) < top {
        return 1;
    }
    // Both become integers: their 24 bits of mantissa are above the point.
    let scale = 2f64.powi(23 - score.log2().floor() as i32);
    (score, top) = (score * scale, top * scale);
    assert!(score.fract() == 0.0 && top.fract() == 0.0, "{score} and {top} are no integers");
    let (mut low, mut high) = (0, 1 << 41);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if (2 * middle - 1) * (top as u128) <= (score as u128) << 41 { low = middle } else { high = middle }
    }
    low.max(1)
}

/// max(1, tau / score); 1 for an infinite score.
pub fn pair_weight(score: f32, tau: f32) -> f64 {
    if score.is_infinite() { 1.0 } else { (f64::from(tau) / f64::from(score)).max(1.0) }
}

/// Splits into the `n` first and the rest, ordered by falling key, then token id, then slot.
pub fn take_highest(
    candidates: &[Candidate],
    n: usize,
    key: impl Fn(&Candidate) -> f32,
) -> (Vec<Candidate>, Vec<Candidate>) {
    let mut ordered = candidates.to_vec();
    ordered.sort_by(|a, b| {
        ordered_bits(key(b)).cmp(&ordered_bits(key(a))).then((a.token_id, a.slot).cmp(&(b.token_id, b.slot)))
    });
    let rest = ordered.split_off(n.min(ordered.len()));
    (ordered, rest)
}

/// Bits of a non-negative key in the order of its value, with -0 as +0 and NaN as +infinity.
pub fn ordered_bits(key: f32) -> u32 {
    assert!(key.is_nan() || key >= 0.0, "a key is never negative, this one is {key}");
    if key.is_nan() { f32::INFINITY.to_bits() } else { (key + 0.0).to_bits() }
}

fn clamped(value: f64) -> f32 {
    (value as f32).clamp(f32::MIN_POSITIVE, f32::MAX)
}
