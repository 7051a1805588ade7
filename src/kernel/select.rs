//! Selection kernels: score, demand, select.

use super::check_positive;
use crate::{Error, Result};

/// The load recalibration metric: estimated contribution of a pair to its expert's update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// `|g| ||d|| ||h||`: the Frobenius norm of the pair's `W_down` gradient.
    #[default]
    Product,
    /// `|g| ||d|| sqrt(||h||^2 + kappa_e^2 ||x||^2)`: adds the `W_gate` and `W_up` part by a running estimate.
    Full,
    /// `|g| ||d||`.
    GateGrad,
    /// `|g|`.
    Gate,
    /// 1 for every eligible pair.
    Uniform,
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
impl Metric {
    /// Number in `score.wgsl` and `cuda/score.cu`.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Product => 0,
            Self::Full => 1,
            Self::GateGrad => 2,
            Self::Gate => 3,
            Self::Uniform => 4,
        }
    }
}

/// Which pairs of an expert are retained within its quota.
///
/// # Systematic sampling
///
/// Systematic sampling with probability proportional to size from an ordered list (W. G. Madow, "On the theory of systematic
/// sampling, II", Annals of Mathematical Statistics 20(3), 1949): evenly spaced marks on the line of all sizes, laid end to end. Every
/// stretch of the list is retained in proportion, so where neighbours in the list have similar gradients the errors of dropped and
/// weighted pairs cancel (*implicit stratification*). The list is ordered by key, global token id, slot and row.
///
/// - Infinite scores come first, with weight 1. If they fill the quota, the first in the order of choice are all there is.
/// - A finite score m has the size `s = max(1, round(2^40 m / m_max))`, halves rounded up, `m_max` the expert's largest finite score. From
///   here on everything is integer, so the result depends on keys, scores and the draw alone.
/// - `q` slots are left for sizes that sum to `S`. The largest size is certain while `s q >= S`: it has weight 1 and takes a slot and its
///   size with it. Equal sizes go the same way.
/// - Any other pair has inclusion probability `q s / S < 1` and weight `S / (q s)`, rounded once. With `C` the running sum of sizes and `U` uniform in
///   `0..S`, it is retained where `floor((C q + U) / S)` grows from before the pair to behind it: exactly q times. `U` is
///   [`PairStream::expert_bits`](crate::rng::PairStream::expert_bits)` * S / 2^64`, rounded down.
///
/// One draw serves a whole expert, so an estimate is unbiased at any quota of 1 or more, and its variance finite: with one slot a pair
/// has probability `s / S`. What there is not is an estimate of that variance from the sample.
///
/// Over ranks: an all-reduced maximum gives `m_max`. Sizes grow with the bits of the score, so four rounds of all-reduced counts and
/// sums of 256 score ranges an expert find the certain ones: a range is certain as a whole where its lower bound has a size s with
/// `s q >= S`, q and S as it and the ranges above leave them; the highest range where this fails is the next round's. Sizes of the rest are summed by expert and key on every rank, and an exclusive scan of
/// these 256 sums an expert over ranks says at which C a rank enters each key. Ranks hold ascending token ids, so the order within a key
/// is that of one rank, and so is the retained set.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SelectRule {
    /// The highest scores, weight 1.
    TopQ,
    /// Systematic sampling in proportion to the score, along [`Select::order`]: unbiased, and less noisy than priority sampling
    /// where keys bring similar gradients together.
    Systematic,
    /// Priority sampling: highest `score / u`, weight `max(1, tau / score)`.
    Unbiased,
    /// The highest `certain * quota` scores with weight 1, priority sampling for the rest: at least two slots of it, for with
    /// one the variance is infinite, unless `certain` is 1.
    Mixed {
        /// Fraction of the quota, 0 to 1.
        certain: f32,
    },
}

kernel! {
    /// The load recalibration metric of every row, floored at `floor` times the mean of its expert.
    ///
    /// 0 for a pair that is not eligible (g = 0, or d = 0), +infinity where an input is not finite, otherwise in the
    /// finite positive range. Sums are fixed-point, so the result does not depend on the order of rows.
    Score {
        params {
            /// R.
            rows: usize,
            /// E.
            experts: usize,
            /// k.
            top_k: usize,
            /// Formula.
            metric: Metric,
            /// Fraction of the expert's mean below which no score falls.
            floor: f32,
        }
        read {
            /// f32 `[T, k]`: combine weights g.
            weights: Buf,
            /// f32 `[T]`: `||d_t||`.
            d_norm: Buf,
            /// f32 `[R]`: `||h_p||` by row.
            h_norm: Buf,
            /// f32 `[T]`: `||x_t||`, for [`Metric::Full`].
            x_norm: Option<Buf>,
            /// f32 `[E]`, for [`Metric::Full`].
            kappa: Option<Buf>,
            /// u32 `[R]`.
            pair_of_row: Buf,
            /// u32 `[E + 1]`.
            offsets: Buf,
        }
        write {
            /// f32 `[R]`.
            score: Buf,
            /// f32 `[E]`: mean finite eligible score before the floor; 0 where there is none.
            mean: Buf,
        }
    }
}

impl<Buf> Score<Buf> {
    /// Refuses tokens without pairs, and a metric without what it is made of.
    pub(crate) fn check(&self) -> Result<()> {
        check_positive("top_k", self.top_k)?;
        if self.metric == Metric::Full && (self.x_norm.is_none() || self.kappa.is_none()) {
            return Err(Error::argument("metric", "full", "`x_norm` and `kappa` given, or another metric"));
        }
        Ok(())
    }
}

kernel! {
    /// What the next step's plan needs: per expert sums and a histogram of scores, all relative to `mean`.
    ///
    /// Bin `b` holds scores from `2^((b - 16) / 8)` times the mean on; the first and last bins take what lies outside.
    Demand {
        params {
            /// R.
            rows: usize,
            /// E.
            experts: usize,
        }
        read {
            /// f32 `[R]`.
            score: Buf,
            /// f32 `[E]`.
            mean: Buf,
            /// u32 `[E + 1]`.
            offsets: Buf,
        }
        write {
            /// u32 `[E, DEMAND_BINS]`: finite eligible pairs.
            histogram: Buf,
            /// f32 `[E, DEMAND_SUMS]`.
            sums: Buf,
            /// u32 `[E, DEMAND_COUNTS]`.
            counts: Buf,
        }
    }
}

kernel! {
    /// Selection within the quotas and compaction of the result, in forward row order.
    ///
    /// Order of choice: bits of the score or priority falling, global token id, slot, row. Exactly `min(quota, eligible)` pairs of each expert.
    Select {
        params {
            /// R.
            rows: usize,
            /// E.
            experts: usize,
            /// k.
            top_k: usize,
            /// Rows that `row`, `pair`, `weight` and `scale` hold; at least the sum of the quotas.
            capacity: usize,
            /// Rule.
            rule: SelectRule,
            /// Largest pair weight, or infinity.
            weight_cap: f32,
            /// Keys of the counter-based generator.
            stream: crate::rng::PairStream,
            /// Global id of token 0 where `token_ids` is absent.
            first_token: u64,
        }
        read {
            /// f32 `[R]`.
            score: Buf,
            /// f32 `[E]`.
            mean: Buf,
            /// u32 `[E]`.
            quotas: Buf,
            /// u32 `[R]`.
            pair_of_row: Buf,
            /// u32 `[E + 1]`.
            offsets: Buf,
            /// f32 `[T, k]`: combine weights g.
            weights: Buf,
            /// u32 `[T, 2]`: global token ids, low word first.
            token_ids: Option<Buf>,
            /// u32 `[T]`: keys of the tokens, for [`SelectRule::Systematic`]; [`RowKeys`](super::RowKeys) of the upstream gradient, or any.
            order: Option<Buf>,
        }
        write {
            /// u32 `[E + 1]`: offsets of the retained rows.
            kept_offsets: Buf,
            /// u32 `[capacity]`: forward row.
            row: Buf,
            /// u32 `[capacity]`: pair.
            pair: Buf,
            /// f32 `[capacity]`: pair weight w.
            weight: Buf,
            /// f32 `[capacity]`: w g.
            scale: Buf,
            /// u32 `[T, k]`: retained row of each pair, or [`NONE`](super::NONE).
            kept_of_pair: Buf,
            /// f32 `[E, SELECT_STATS]`.
            stats: Buf,
        }
    }
}

impl<Buf> Select<Buf> {
    /// Refuses tokens without pairs, and a rule without the keys that it orders by.
    pub(crate) fn check(&self) -> Result<()> {
        check_positive("top_k", self.top_k)?;
        if self.rule == SelectRule::Systematic && self.order.is_none() {
            return Err(Error::argument("order", "absent", "keys of the tokens, which rule systematic needs"));
        }
        Ok(())
    }
}
