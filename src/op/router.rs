//! Router stages: logits, selection, permutation; and the way back.

use super::{Arena, Rows};
use crate::backend::{Backend, Buffer};
use crate::config::MoeConfig;
use crate::kernel::{
    Gate, GateBackward, GateRule, GroupedDgrad, GroupedForward, GroupedWgrad, Permute, RouterGrad, RouterLoss,
};
use crate::memory::Category;
use crate::{Recording, Result};

/// Sizes of a router.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) tokens: usize,
    pub(crate) hidden: usize,
    pub(crate) experts: usize,
    pub(crate) top_k: usize,
    pub(crate) rule: GateRule,
}

impl Sizes {
    /// Of so many tokens of a layer.
    pub(crate) fn new(config: &MoeConfig, tokens: usize) -> Self {
        Self {
            tokens,
            hidden: config.hidden_size,
            experts: config.num_experts,
            top_k: config.num_experts_per_tok,
            rule: GateRule {
                scoring: config.scoring_func,
                n_group: config.n_group,
                topk_group: config.topk_group,
                normalise: config.norm_topk_prob,
                norm_eps: config.scoring_func.norm_epsilon(),
                scaling: config.routed_scaling_factor as f32,
            },
        }
    }
}

/// What routing leaves. Counts, offsets and rows are of the pairs to be computed; the rest is of all routed pairs.
#[derive(Debug, Clone)]
pub(crate) struct Routed<Buf> {
    /// f32 `[T, E]`.
    pub(crate) logits: Buf,
    /// u32 `[T, k]`.
    pub(crate) ids: Buf,
    /// f32 `[T, k]`.
    pub(crate) weights: Buf,
    /// u32 `[E]`.
    pub(crate) counts: Buf,
    /// u32 `[E + 1]`.
    pub(crate) offsets: Buf,
    /// u32 `[T k]`; rows past the last offset hold nothing of use.
    pub(crate) pair_of_row: Buf,
    /// u32 `[T k]`, none for a pair that is not computed.
    pub(crate) row_of_pair: Buf,
    /// f32 `[E + 1]`, see [`RouterLoss`]; absent where no loss is tracked.
    pub(crate) loss_sums: Option<Buf>,
}

/// `logits = x W^T`.
pub(crate) fn logits<B: Backend>(
    rec: &mut Recording<B::Buffer>,
    arena: Arena<'_, B>,
    sizes: Sizes,
    x: &B::Buffer,
    weight: &B::Buffer,
    all_tokens: &B::Buffer,
) -> Result<B::Buffer> {
    let out = arena.f32("logits", &[sizes.tokens, sizes.experts], Category::Stash)?;
    rec.dispatch(GroupedForward {
        rows: sizes.tokens,
        groups: 1,
        n: sizes.experts,
        k: sizes.hidden,
        index_div: 1,
        x: x.clone(),
        index: None,
        w: weight.clone(),
        offsets: all_tokens.clone(),
        out: out.clone(),
    })?;
    Ok(out)
}

/// Gate, counts and permutation.
pub(crate) fn route<B: Backend>(
    rec: &mut Recording<B::Buffer>,
    arena: Arena<'_, B>,
    sizes: Sizes,
    logits: B::Buffer,
    bias: Option<&B::Buffer>,
    mask: Option<&B::Buffer>,
    track_losses: bool,
) -> Result<Routed<B::Buffer>> {
    let Sizes { tokens, experts, top_k, rule, .. } = sizes;
    let pairs = &[tokens, top_k];
    let routed = Routed {
        ids: arena.u32("ids", pairs, Category::Stash)?,
        weights: arena.f32("combine_weights", pairs, Category::Stash)?,
        counts: arena.u32("counts", &[experts], Category::Stash)?,
        offsets: arena.u32("offsets", &[experts + 1], Category::Stash)?,
        pair_of_row: arena.u32("pair_of_row", pairs, Category::Stash)?,
        row_of_pair: arena.u32("row_of_pair", pairs, Category::Stash)?,
        loss_sums: if track_losses { Some(arena.f32("loss_sums", &[experts + 1], Category::Stash)?) } else { None },
        logits,
    };
    rec.dispatch(Gate {
        tokens,
        experts,
        top_k,
        rule,
        logits: routed.logits.clone(),
        bias: bias.cloned(),
        mask: mask.cloned(),
        ids: routed.ids.clone(),
        weights: routed.weights.clone(),
    })?;
    permute(rec, sizes, &routed, &routed.ids)?;
    if let Some(sums) = &routed.loss_sums {
        let logits = routed.logits.clone();
        rec.dispatch(RouterLoss { tokens, experts, logits, mask: mask.cloned(), sums: sums.clone() })?;
    }
    Ok(routed)
}

/// Rows of `routed` for the pairs that `ids [T, k]` names an expert for, in the place of those it had.
pub(crate) fn permute<Buf: Buffer>(
    rec: &mut Recording<Buf>,
    sizes: Sizes,
    routed: &Routed<Buf>,
    ids: &Buf,
) -> Result<()> {
    rec.dispatch(Permute {
        pairs: sizes.tokens * sizes.top_k,
        experts: sizes.experts,
        ids: ids.clone(),
        counts: routed.counts.clone(),
        offsets: routed.offsets.clone(),
        pair_of_row: routed.pair_of_row.clone(),
        row_of_pair: routed.row_of_pair.clone(),
    })
}

/// Inputs of [`combine_weight_gradient`].
#[derive(Debug)]
pub(crate) struct Estimate<'a, Buf> {
    pub(crate) dot_dy: Option<Buf>,
    pub(crate) dot: Buf,
    pub(crate) weight: Option<Buf>,
    pub(crate) kept_of_pair: &'a Buf,
}

/// ALGORITHM section 3.7: the gradient of every combine weight from the retained pairs.
pub(crate) fn combine_weight_gradient<B: Backend>(
    rec: &mut Recording<B::Buffer>,
    arena: Arena<'_, B>,
    sizes: Sizes,
    routed: &Routed<B::Buffer>,
    estimate: Estimate<'_, B::Buffer>,
) -> Result<B::Buffer> {
    let out = arena.f32("d_weights", &[sizes.tokens, sizes.top_k], Category::Scratch)?;
    rec.dispatch(RouterGrad {
        tokens: sizes.tokens,
        top_k: sizes.top_k,
        weights: routed.weights.clone(),
        dot_dy: estimate.dot_dy,
        dot: estimate.dot,
        weight: estimate.weight,
        kept_of_pair: estimate.kept_of_pair.clone(),
        ids: routed.ids.clone(),
        d_weights: out.clone(),
    })?;
    Ok(out)
}

/// Gradient of the logits from those of the combine weights and of the losses.
pub(crate) fn logits_gradient<B: Backend>(
    rec: &mut Recording<B::Buffer>,
    arena: Arena<'_, B>,
    sizes: Sizes,
    routed: &Routed<B::Buffer>,
    d_weights: B::Buffer,
    (aux, z_scale): (Option<B::Buffer>, f32),
) -> Result<B::Buffer> {
    let out = arena.f32("d_logits", &[sizes.tokens, sizes.experts], Category::TokenBuffers)?;
    rec.dispatch(GateBackward {
        tokens: sizes.tokens,
        experts: sizes.experts,
        top_k: sizes.top_k,
        rule: sizes.rule,
        z_scale,
        logits: routed.logits.clone(),
        ids: routed.ids.clone(),
        d_weights,
        aux,
        d_logits: out.clone(),
    })?;
    Ok(out)
}

/// A linear map `[n, k]` of the tokens that take part.
#[derive(Debug)]
pub(crate) struct Linear<'a, Buf> {
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) weight: &'a Buf,
    pub(crate) grad: Option<(Buf, bool)>,
}

/// Backward of `out = x W^T` over the given tokens: the weight gradient, and one dx row for each of them.
pub(crate) fn linear_backward<B: Backend>(
    rec: &mut Recording<B::Buffer>,
    arena: Arena<'_, B>,
    linear: Linear<'_, B::Buffer>,
    tokens: &Rows<B::Buffer>,
    x: &B::Buffer,
    (d_out, d_index): (&B::Buffer, Option<&B::Buffer>),
) -> Result<B::Buffer> {
    let Linear { n, k, weight, grad } = linear;
    if let Some((out, accumulate)) = grad {
        rec.dispatch(GroupedWgrad {
            rows: tokens.count,
            groups: 1,
            n,
            k,
            dy_div: 1,
            x_div: 1,
            accumulate,
            dy: d_out.clone(),
            dy_index: d_index.cloned(),
            dy_scale: None,
            x: x.clone(),
            x_index: tokens.index.clone(),
            offsets: tokens.offsets.clone(),
            out,
        })?;
    }
    let dx_rows = arena.f32("dx_rows", &[tokens.count, k], Category::Scratch)?;
    rec.dispatch(GroupedDgrad {
        rows: tokens.count,
        groups: 1,
        n,
        k,
        index_div: 1,
        dy: d_out.clone(),
        index: d_index.cloned(),
        w: weight.clone(),
        offsets: tokens.offsets.clone(),
        out: dx_rows.clone(),
    })?;
    Ok(dx_rows)
}
