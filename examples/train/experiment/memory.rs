//! What the plans make the ranks reserve, in the small model and in the one that it stands for.

use lrmoe::plan::{Activations, MemoryModel, Placement, Plan, RankLoad, RankMemory, Setup};
use lrmoe::{Error, Result};
use serde::{Deserialize, Serialize};

use super::loads::{Moves, by_rank};

/// Memory of the ranks that have most of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fullest {
    pub(crate) peak: RankMemory,
    /// The largest [`RankMemory::subtotal`] of a rank.
    pub(crate) subtotal_bytes: u64,
}

impl Fullest {
    /// # Errors
    /// [`Error::Argument`] without ranks.
    pub(crate) fn of(ranks: &[RankMemory]) -> Result<Self> {
        let peak = ranks.iter().max_by_key(|rank| rank.total()).copied();
        Ok(Self {
            peak: peak.ok_or_else(|| Error::argument("ranks", 0, "1 or more"))?,
            subtotal_bytes: ranks.iter().map(RankMemory::subtotal).max().unwrap_or(0),
        })
    }
}

/// The model that the small one stands for.
#[derive(Debug, Clone)]
pub(crate) struct Real {
    pub(crate) setup: Setup,
    /// Its tokens for each of the small one's.
    pub(crate) tokens: u64,
}

impl Real {
    /// `[R]` what the plan's ranks would reserve in the real model.
    pub(crate) fn memory(
        &self,
        plan: &Plan,
        moves: &Moves<'_>,
        forward: &[u32],
        selects: bool,
    ) -> Result<Vec<RankMemory>> {
        let model = MemoryModel::new(&self.setup, plan.placement.ownership(), plan.activations)?.scored(selects);
        let quotas = &plan.retained.quotas;
        // Under stash any pair may be retained where it is, up to the quota.
        let most: Vec<u32> = match plan.activations {
            Activations::Recompute => plan.capacity.clone(),
            Activations::Stash => plan.placement.iter().zip(forward).map(|((e, _), &n)| n.min(quotas[e])).collect(),
        };
        let (out, back) = (by_rank(plan, forward), by_rank(plan, &most));
        let held = [&plan.placement, &plan.next].map(Placement::instances_per_rank);
        let owned = [&plan.placement, &plan.next].map(Placement::homes_per_rank);
        let most = |of: &[Vec<u32>; 2], r: usize| u64::from(of[0][r].max(of[1][r]));
        let rank = |r: usize| {
            let load = RankLoad {
                tokens: self.tokens * moves.own.tokens[r] as u64,
                pairs: self.tokens * moves.own.computed.per_rank()[r],
                owned: most(&owned, r),
                replicas: most(&held, r) - most(&owned, r),
                forward_rows: self.tokens * out[r],
                backward_rows: self.tokens * back[r],
                retained: self.tokens * at_most(moves.own.computed.row(r), quotas),
                drops: selects,
            };
            model.rank(&load, self.tokens.saturating_mul(plan.wave_rows))
        };
        (0..plan.ranks()).map(rank).collect()
    }
}

/// Pairs that may be retained of these, whatever their scores.
fn at_most(counts: &[u32], quotas: &[u32]) -> u64 {
    counts.iter().zip(quotas).map(|(&n, &q)| u64::from(n.min(q))).sum()
}
