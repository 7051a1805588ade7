//! What a rank does for the experts that live on it.

use super::indices::{offsets, retained_rows, rows_of_tokens, tokens_of_rows};
use super::runner::Context;
use super::timed::Timed;
use super::{Phase, data};
use crate::Result;
use crate::backend::Backend;
use crate::kernel::{AdamW, AdamWStep};
use crate::memory::Category;
use crate::op::Rows;
use crate::op::expert::{self, Activated, Activations, Sum, combine};
use crate::optim::AdamWConfig;
use crate::plan;
use crate::rng::Philox;

/// The rows of one pass, and the rows of each token.
struct Pass<Buf> {
    rows: Rows<Buf>,
    tokens: usize,
    row_of_slot: Buf,
}

/// Rows of each resident expert over packed tokens.
fn pass<B: Backend>(
    context: Context<'_, B>,
    rng: &mut Philox,
    counts: &[u32],
    tokens: usize,
) -> Result<Pass<B::Buffer>> {
    let index = tokens_of_rows(rng, counts.iter().map(|&n| n as usize), tokens);
    let table = rows_of_tokens(&index, tokens, context.config.num_experts_per_tok);
    Ok(Pass {
        row_of_slot: context.indices("row_of_slot", table)?,
        rows: Rows {
            count: index.len(),
            offsets: context.indices("offsets", offsets(counts))?,
            index: Some(context.indices("token_of_row", index)?),
            div: 1,
        },
        tokens,
    })
}

/// One row for each packed token.
fn combine_tokens<B: Backend>(
    context: Context<'_, B>,
    timed: &mut Timed<B::Buffer>,
    pass: &Pass<B::Buffer>,
    rows: &B::Buffer,
    weights: Option<&B::Buffer>,
) -> Result<()> {
    if pass.tokens == 0 {
        return Ok(());
    }
    let cols = context.config.hidden_size;
    let out = context.arena.f32("combined", &[pass.tokens, cols], Category::Exchange)?;
    let slots = context.config.num_experts_per_tok;
    let row_of_pair = Some(&pass.row_of_slot);
    let sum = Sum { tokens: pass.tokens, slots, cols, rows, row_of_pair, weights, accumulate: false, out: &out };
    combine(&mut timed.rec, sum)?;
    timed.mark(Phase::Combine);
    Ok(())
}

/// All forward rows, pre-combined. `None` without resident experts.
pub(super) fn forward<B: Backend>(
    context: Context<'_, B>,
    timed: &mut Timed<B::Buffer>,
    rng: &mut Philox,
) -> Result<Option<Activated<B::Buffer>>> {
    let (share, data) = (context.share, context.data);
    let (Some(resident), Some(x)) = (&data.resident, &data.packed_x) else { return Ok(None) };
    let pass = pass(context, rng, &share.forward, share.tokens_in_forward)?;
    let keep_ab = match share.activations {
        plan::Activations::Stash => Category::Stash,
        plan::Activations::Recompute => Category::TokenBuffers,
    };
    let categories = (keep_ab, Category::TokenBuffers);
    let activated = expert::forward(&mut timed.rec, context.arena, &resident.bank, x, &pass.rows, categories)?;
    timed.mark(Phase::Forward);
    let weights = context.normals("weight_of_slot", pass.tokens * context.config.num_experts_per_tok)?;
    combine_tokens(context, timed, &pass, &activated.out, Some(&weights))?;
    Ok(Some(activated))
}

/// The retained rows, their dx pre-combined.
pub(super) fn backward<B: Backend>(
    context: Context<'_, B>,
    timed: &mut Timed<B::Buffer>,
    rng: &mut Philox,
    activated: Option<Activated<B::Buffer>>,
) -> Result<()> {
    let (share, data) = (context.share, context.data);
    let (Some(resident), Some(activated)) = (&data.resident, activated) else { return Ok(()) };
    let (Some(x), Some(dy)) = (&data.packed_x, &data.packed_d) else { return Ok(()) };
    let pass = pass(context, rng, &share.backward, share.tokens_in_backward)?;
    let activations = match share.activations {
        plan::Activations::Recompute => Activations::Recompute,
        plan::Activations::Stash => {
            let everything = !share.selects && share.backward == share.forward;
            let index = match everything {
                true => None,
                false => Some(context.indices("kept_row", retained_rows(rng, &share.forward, &share.backward))?),
            };
            Activations::Stashed { ab: activated.ab, index }
        }
    };
    let args = expert::Backward {
        x,
        dy,
        rows: &pass.rows,
        activations,
        scale: Some(context.normals("scale", pass.rows.count)?),
        grads: Some(resident.grads.clone()),
    };
    let gradient = expert::backward(&mut timed.rec, context.arena, &resident.bank, args)?;
    timed.mark_by(|kernel| match kernel {
        "grouped_forward" => Phase::Recompute,
        "grouped_wgrad" => Phase::Wgrad,
        _ => Phase::Dgrad,
    });
    combine_tokens(context, timed, &pass, &gradient.dx_rows, None)
}

/// AdamW of the parameters whose state is here, on a constant gradient.
pub(super) fn step<B: Backend>(context: Context<'_, B>, timed: &mut Timed<B::Buffer>) -> Result<()> {
    let len = context.share.optimizer_parameters;
    let Some(data::Optimizer { grad, weight, m, v }) = context.data.optimizer.as_ref().filter(|_| len > 0) else {
        return Ok(());
    };
    let AdamWConfig { beta1, beta2, eps, decay_experts, .. } = AdamWConfig::default();
    timed.rec.dispatch(AdamW {
        len,
        step: AdamWStep {
            lr: 1e-3,
            beta1,
            beta2,
            eps,
            weight_decay: decay_experts,
            correction1: 1.0,
            correction2: 1.0,
            grad_scale: 1.0,
        },
        grad: grad.clone(),
        weight: weight.clone(),
        master: None,
        m: m.clone(),
        v: v.clone(),
    })?;
    timed.mark(Phase::Optimizer);
    Ok(())
}
