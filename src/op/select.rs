//! Score, select and compact: which pairs the backward pass computes.

use super::router::Routed;
use super::{Arena, Rows};
use crate::backend::Backend;
use crate::kernel::{
    DEMAND_BINS, DEMAND_COUNTS, DEMAND_SUMS, Demand, GatherRows, Metric, RowKeys, RowNorms, SELECT_STATS, Score,
    Select, SelectRule,
};
use crate::memory::Category;
use crate::rng::PairStream;
use crate::{Recording, Result};

/// The retained pairs as rows of the backward pass.
#[derive(Debug, Clone)]
pub(crate) struct Kept<Buf> {
    /// Rows, with the pair of each as index.
    pub(crate) rows: Rows<Buf>,
    /// u32 `[kept]`: forward row; row r itself where absent.
    pub(crate) row: Option<Buf>,
    /// f32 `[kept]`: pair weights; 1 where absent.
    pub(crate) weight: Option<Buf>,
    /// f32 `[kept]`: `w g`.
    pub(crate) scale: Buf,
    /// u32 `[T, k]`.
    pub(crate) of_pair: Buf,
    /// f32 `[E, SELECT_STATS]`.
    pub(crate) stats: Option<Buf>,
}

/// Scores of all pairs and their summary.
#[derive(Debug, Clone)]
pub(crate) struct Scored<Buf> {
    pub(crate) d_norm: Buf,
    pub(crate) score: Buf,
    pub(crate) mean: Buf,
    pub(crate) histogram: Buf,
    pub(crate) sums: Buf,
    pub(crate) counts: Buf,
}

/// How scores are computed.
#[derive(Debug)]
pub(crate) struct Scoring<'a, Buf> {
    pub(crate) tokens: usize,
    pub(crate) hidden: usize,
    pub(crate) experts: usize,
    pub(crate) top_k: usize,
    pub(crate) metric: Metric,
    pub(crate) floor: f32,
    /// Upstream gradient `[T, H]`.
    pub(crate) dy: &'a Buf,
    /// f32 `[rows]`.
    pub(crate) h_norm: &'a Buf,
    /// Tokens `[T, H]` and kappa `[E]`, for [`Metric::Full`].
    pub(crate) full: Option<(&'a Buf, Buf)>,
}

/// Every pair, unweighted: plain training.
pub(crate) fn keep_all<B: Backend>(
    rec: &mut Recording<B::Buffer>,
    arena: Arena<'_, B>,
    rows: &Rows<B::Buffer>,
    experts: usize,
    routed: &Routed<B::Buffer>,
) -> Result<Kept<B::Buffer>> {
    let scale = arena.f32("scale", &[rows.count], Category::Scratch)?;
    rec.dispatch(GatherRows {
        rows: rows.count,
        cols: 1,
        index_div: 1,
        groups: experts,
        src: routed.weights.clone(),
        index: routed.pair_of_row.clone(),
        scale: None,
        offsets: routed.offsets.clone(),
        dst: scale.clone(),
    })?;
    Ok(Kept { rows: rows.clone(), row: None, weight: None, scale, of_pair: routed.row_of_pair.clone(), stats: None })
}

/// The load recalibration metric of every pair, and the demand it makes.
pub(crate) fn score<B: Backend>(
    rec: &mut Recording<B::Buffer>,
    arena: Arena<'_, B>,
    rows: &Rows<B::Buffer>,
    routed: &Routed<B::Buffer>,
    args: Scoring<'_, B::Buffer>,
) -> Result<Scored<B::Buffer>> {
    let experts = args.experts;
    let mut norms = |name: &str, x: &B::Buffer| -> Result<B::Buffer> {
        let norm = arena.f32(name, &[args.tokens], Category::Scratch)?;
        rec.dispatch(RowNorms { rows: args.tokens, cols: args.hidden, x: x.clone(), norm: norm.clone() })?;
        Ok(norm)
    };
    let d_norm = norms("d_norm", args.dy)?;
    let (x_norm, kappa) = match args.full {
        Some((x, kappa)) => (Some(norms("x_norm", x)?), Some(kappa)),
        None => (None, None),
    };
    let scored = Scored {
        d_norm: d_norm.clone(),
        score: arena.f32("score", &[rows.count], Category::Scratch)?,
        mean: arena.f32("score_mean", &[experts], Category::Scratch)?,
        histogram: arena.u32("score_histogram", &[experts, DEMAND_BINS], Category::Scratch)?,
        sums: arena.f32("score_sums", &[experts, DEMAND_SUMS], Category::Scratch)?,
        counts: arena.u32("score_counts", &[experts, DEMAND_COUNTS], Category::Scratch)?,
    };
    rec.dispatch(Score {
        rows: rows.count,
        experts,
        top_k: args.top_k,
        metric: args.metric,
        floor: args.floor,
        weights: routed.weights.clone(),
        d_norm,
        h_norm: args.h_norm.clone(),
        x_norm,
        kappa,
        pair_of_row: routed.pair_of_row.clone(),
        offsets: routed.offsets.clone(),
        score: scored.score.clone(),
        mean: scored.mean.clone(),
    })?;
    rec.dispatch(Demand {
        rows: rows.count,
        experts,
        score: scored.score.clone(),
        mean: scored.mean.clone(),
        offsets: routed.offsets.clone(),
        histogram: scored.histogram.clone(),
        sums: scored.sums.clone(),
        counts: scored.counts.clone(),
    })?;
    Ok(scored)
}

/// Keys of the tokens' upstream gradients `dy [T, H]`, where the rule orders pairs by them.
pub(crate) fn order<B: Backend>(
    rec: &mut Recording<B::Buffer>,
    arena: Arena<'_, B>,
    rule: SelectRule,
    (tokens, hidden): (usize, usize),
    dy: &B::Buffer,
) -> Result<Option<B::Buffer>> {
    if rule != SelectRule::Systematic {
        return Ok(None);
    }
    let key = arena.u32("d_key", &[tokens], Category::Scratch)?;
    rec.dispatch(RowKeys { rows: tokens, cols: hidden, x: dy.clone(), key: key.clone() })?;
    Ok(Some(key))
}

/// How pairs are chosen.
#[derive(Debug)]
pub(crate) struct Choice<Buf> {
    pub(crate) experts: usize,
    pub(crate) tokens: usize,
    pub(crate) top_k: usize,
    pub(crate) rule: SelectRule,
    pub(crate) weight_cap: f32,
    pub(crate) stream: PairStream,
    pub(crate) first_token: u64,
    pub(crate) token_ids: Option<Buf>,
    /// As [`order`] gives it for the rule.
    pub(crate) order: Option<Buf>,
    pub(crate) quotas: Buf,
    /// Sum of the quotas.
    pub(crate) capacity: usize,
}

/// Selection within the quotas, compacted.
pub(crate) fn select<B: Backend>(
    rec: &mut Recording<B::Buffer>,
    arena: Arena<'_, B>,
    rows: &Rows<B::Buffer>,
    routed: &Routed<B::Buffer>,
    scored: &Scored<B::Buffer>,
    choice: Choice<B::Buffer>,
) -> Result<Kept<B::Buffer>> {
    let (experts, capacity) = (choice.experts, choice.capacity);
    let offsets = arena.u32("kept_offsets", &[experts + 1], Category::Scratch)?;
    let row = arena.u32("kept_row", &[capacity], Category::Scratch)?;
    let pair = arena.u32("kept_pair", &[capacity], Category::Scratch)?;
    let weight = arena.f32("kept_weight", &[capacity], Category::Scratch)?;
    let scale = arena.f32("kept_scale", &[capacity], Category::Scratch)?;
    let of_pair = arena.u32("kept_of_pair", &[choice.tokens, choice.top_k], Category::Scratch)?;
    let stats = arena.f32("select_stats", &[experts, SELECT_STATS], Category::Scratch)?;
    rec.dispatch(Select {
        rows: rows.count,
        experts,
        top_k: choice.top_k,
        capacity,
        rule: choice.rule,
        weight_cap: choice.weight_cap,
        stream: choice.stream,
        first_token: choice.first_token,
        score: scored.score.clone(),
        mean: scored.mean.clone(),
        quotas: choice.quotas,
        pair_of_row: routed.pair_of_row.clone(),
        offsets: routed.offsets.clone(),
        weights: routed.weights.clone(),
        token_ids: choice.token_ids,
        order: choice.order,
        kept_offsets: offsets.clone(),
        row: row.clone(),
        pair: pair.clone(),
        weight: weight.clone(),
        scale: scale.clone(),
        kept_of_pair: of_pair.clone(),
        stats: stats.clone(),
    })?;
    Ok(Kept {
        rows: Rows { count: capacity, offsets, index: Some(pair), div: rows.div },
        row: Some(row),
        weight: Some(weight),
        scale,
        of_pair,
        stats: Some(stats),
    })
}
