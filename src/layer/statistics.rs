//! Scores of a call, what its selection did with them, and the demand they make on the next plan.

use super::{FLOATS, MoeLayer, SavedForward, check_tensor, forward};
use crate::backend::Backend;
use crate::kernel::{DEMAND_COUNTS, DEMAND_SUMS, Metric, SELECT_STATS};
use crate::memory::Category;
use crate::op::select::{self, Kept, Scored, Scoring};
use crate::plan::{self, Demand, DemandParts};
use crate::tensor::Tensor;
use crate::{Recording, Result};

/// What a backward pass retained, and how well.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Statistics {
    /// `[E]`: pairs routed.
    pub counts: Vec<u32>,
    /// `[E]`: those of them that not even forward computed, see [`crate::Schedule::dropped`].
    pub dropped: Vec<u32>,
    /// `[E]`: pairs allowed.
    pub quotas: Vec<u32>,
    /// `[E]`: pairs back-propagated.
    pub retained: Vec<u32>,
    /// Whether a NaN or infinity reached the routed experts, with x, dy or their weights. Pairs whose score shows it are
    /// retained first, within the quota.
    pub nan_seen: bool,
    /// Figures of the selection; `None` under [`crate::Selection::All`], which scores nothing.
    pub scores: Option<ScoreStatistics>,
}

/// Quality of a selection.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct ScoreStatistics {
    /// `[E]`: pairs with g != 0 and d != 0.
    pub eligible: Vec<u32>,
    /// Share of the summed finite score that was retained, 0 to 1; 1 where there was nothing to retain.
    pub kept_score_mass: f64,
    /// Added noise `sum_e V_e / sum_p m_p^2` of priority sampling at these retained counts, see [`crate::plan`]: the batch acts
    /// as if 1 + eta times smaller. [`crate::Selection::Systematic`] adds less where gradients are alike, so there it is an
    /// over-estimate. For [`crate::Selection::TopQ`], whose error is a bias, it only describes the quotas.
    pub eta: f64,
    /// `(sum w)^2 / sum w^2` over retained pairs.
    pub effective_sample_size: f64,
    /// Largest pair weight; 1 where nothing was retained.
    pub max_pair_weight: f64,
    /// Share of the summed score estimate that the weight cap removed.
    pub cap_removed: f64,
}

impl Statistics {
    /// Busiest expert over the mean, of routed pairs; 1 when balanced, `None` without pairs.
    pub fn max_over_mean(counts: &[u32]) -> Option<f64> {
        let sum = counts.iter().map(|&n| u64::from(n)).sum::<u64>();
        let max = counts.iter().copied().max().unwrap_or(0);
        (sum > 0).then(|| f64::from(max) * counts.len() as f64 / sum as f64)
    }
}

impl<B: Backend> MoeLayer<B> {
    /// The load recalibration metric of every pair for the upstream gradient `dy [T, H]`: `[T, k]`, floored; 0 for pairs
    /// that are not eligible or not computed, +infinity for pairs with NaN or infinite input.
    ///
    /// # Errors
    /// As [`MoeLayer::backward`].
    pub fn scores(&self, saved: &SavedForward<B>, dy: &Tensor<B>) -> Result<Vec<f32>> {
        self.check_saved(saved)?;
        check_tensor("dy", dy, (saved.x.rows(), self.config.hidden_size), FLOATS)?;
        let mut rec = Recording::new();
        let scored = self.score(&mut rec, saved, dy)?;
        self.backend.submit(&rec)?;
        let by_row = self.backend.read_blocking(&scored.score)?.into_f32()?;
        let row_of_pair = self.backend.read_blocking(&saved.routed.row_of_pair)?.into_u32()?;
        Ok(row_of_pair.into_iter().map(|row| by_row.get(row as usize).copied().unwrap_or(0.0)).collect())
    }

    pub(super) fn score(
        &self,
        rec: &mut Recording<B::Buffer>,
        saved: &SavedForward<B>,
        dy: &Tensor<B>,
    ) -> Result<Scored<B::Buffer>> {
        let (arena, sizes) = (self.arena(), self.sizes(saved.x.rows()));
        let rows = forward::pair_rows(&saved.routed, sizes.tokens, sizes.top_k);
        let full = match self.options.metric {
            Metric::Full => {
                Some((saved.x.buffer(), arena.upload_f32("kappa", saved.kappa.clone(), Category::Scratch)?))
            }
            _ => None,
        };
        let scoring = Scoring {
            tokens: sizes.tokens,
            hidden: sizes.hidden,
            experts: sizes.experts,
            top_k: sizes.top_k,
            metric: self.options.metric,
            floor: self.options.score_floor,
            dy: dy.buffer(),
            h_norm: &saved.h_norm,
            full,
        };
        select::score(rec, arena, &rows, &saved.routed, scoring)
    }

    /// Reads the small per-expert figures back, and takes this step's demand in. `finite` is the sum of squares of the
    /// combine weights' gradients.
    pub(super) fn statistics(
        &mut self,
        saved: &SavedForward<B>,
        scored: Option<&Scored<B::Buffer>>,
        kept: &Kept<B::Buffer>,
        finite: &B::Buffer,
    ) -> Result<Statistics> {
        let (counts, dropped, quotas) = (saved.counts.clone(), saved.dropped.clone(), saved.plan.quotas.clone());
        let offsets = self.backend.read_blocking(&kept.rows.offsets)?.into_u32()?;
        let retained: Vec<u32> = offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
        // What comes in with W_down shows behind the scores, in the gradients of the combine weights.
        let mut nan_seen = !self.read_sum_squares(finite)?.is_finite();
        let scores = match scored {
            Some(scored) => {
                let (scores, infinite) = self.score_statistics(&saved.plan.counts, &retained, scored, kept)?;
                nan_seen |= infinite;
                Some(scores)
            }
            None => None,
        };
        Ok(Statistics { counts, dropped, quotas, retained, nan_seen, scores })
    }

    /// The figures, and whether a score was infinite. `load` is of the pairs that were computed: they are what quotas are shared among.
    fn score_statistics(
        &mut self,
        load: &[u32],
        retained: &[u32],
        scored: &Scored<B::Buffer>,
        kept: &Kept<B::Buffer>,
    ) -> Result<(ScoreStatistics, bool)> {
        let f64s = |buffer: &B::Buffer| -> Result<Vec<f64>> {
            Ok(self.backend.read_blocking(buffer)?.into_f32()?.into_iter().map(f64::from).collect())
        };
        let (mean, sums) = (f64s(&scored.mean)?, f64s(&scored.sums)?);
        let counts = self.backend.read_blocking(&scored.counts)?.into_u32()?;
        let histogram = self.backend.read_blocking(&scored.histogram)?.into_u32()?;
        let column = |values: &[f64], width: usize, column: usize| -> Vec<f64> {
            values.iter().skip(column).step_by(width).copied().collect()
        };
        let score_sum: Vec<f64> =
            column(&sums, DEMAND_SUMS, 0).iter().zip(&mean).map(|(sum, mean)| sum * mean).collect();
        let eligible: Vec<u32> = counts.iter().step_by(DEMAND_COUNTS).copied().collect();
        let infinite: Vec<f64> = counts.iter().skip(1).step_by(DEMAND_COUNTS).copied().map(f64::from).collect();
        let total = score_sum.iter().sum::<f64>();
        let any_infinite = infinite.iter().any(|&n| n > 0.0);
        let demand = Demand::try_from(DemandParts {
            load: load.iter().copied().map(f64::from).collect(),
            infinite,
            score_sum,
            reference: mean.clone(),
            histogram: histogram.into_iter().map(f64::from).collect(),
            top_sum: column(&sums, DEMAND_SUMS, 2),
        })?;
        let eta = plan::quota::eta(retained, load, &demand)?;
        let statistics = match &kept.stats {
            Some(stats) => {
                let stats = f64s(stats)?;
                let scaled = |index: usize| -> f64 {
                    column(&stats, SELECT_STATS, index).iter().zip(&mean).map(|(value, mean)| value * mean).sum()
                };
                let sum = |index: usize| column(&stats, SELECT_STATS, index).iter().sum::<f64>();
                let (weights, squares) = (sum(1), sum(2));
                ScoreStatistics {
                    eligible,
                    kept_score_mass: if total > 0.0 { (scaled(0) / total).min(1.0) } else { 1.0 },
                    eta,
                    effective_sample_size: if squares > 0.0 { weights * weights / squares } else { 0.0 },
                    max_pair_weight: column(&stats, SELECT_STATS, 3).into_iter().fold(1.0, f64::max),
                    cap_removed: if total > 0.0 { scaled(4) / total } else { 0.0 },
                }
            }
            None => ScoreStatistics {
                eligible,
                kept_score_mass: 1.0,
                eta: 0.0,
                effective_sample_size: retained.iter().copied().map(f64::from).sum(),
                max_pair_weight: 1.0,
                cap_removed: 0.0,
            },
        };
        self.demand = Some(match self.demand.take() {
            Some(previous) => Demand::smooth(&previous, &demand, self.options.plan.smoothing)?,
            None => demand,
        });
        Ok((statistics, any_infinite))
    }
}
