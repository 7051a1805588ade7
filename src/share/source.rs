//! What a rank does for its own tokens.

use super::Phase;
use super::indices::{quotas, rounds, rows_of_tokens, tokens_of_rows};
use super::runner::Context;
use super::timed::Timed;
use crate::Result;
use crate::backend::Backend;
use crate::kernel::{GatherRows, Metric, RowDots, SUM_SQUARES_BLOCK, SumSquares};
use crate::memory::Category;
use crate::op::Rows;
use crate::op::expert::{Sum, combine};
use crate::op::router::{self, Estimate, Linear, Routed};
use crate::op::select::{self, Choice, Kept, Scoring};
use crate::rng::{PairKey, PairStream, Philox};

/// The tokens of a rank, routed.
#[derive(Debug)]
pub(super) struct Source<'a, B: Backend> {
    pub(super) context: Context<'a, B>,
    pub(super) x: &'a B::Buffer,
    pub(super) d: &'a B::Buffer,
    /// All tokens, as one group.
    pub(super) tokens: Rows<B::Buffer>,
    pairs: Rows<B::Buffer>,
    routed: Routed<B::Buffer>,
    y: B::Buffer,
    dx: B::Buffer,
}

/// Rows that went to other ranks, and stand in for those that come back.
#[derive(Debug)]
pub(super) struct Sent<Buf> {
    rows: Buf,
    row_of_slot: Buf,
}

impl<'a, B: Backend> Source<'a, B> {
    /// Logits, gate and permutation. `None` without tokens.
    pub(super) fn route(context: Context<'a, B>, timed: &mut Timed<B::Buffer>) -> Result<Option<Self>> {
        let (arena, data, sizes) = (context.arena, context.data, context.sizes());
        let (Some(x), Some(d), true) = (&data.x, &data.dy, sizes.tokens > 0) else { return Ok(None) };
        let offsets = context.indices("all_tokens", vec![0, sizes.tokens as u32])?;
        let logits = router::logits(&mut timed.rec, arena, sizes, x, &data.router.weight, &offsets)?;
        let bias = data.correction_bias.as_ref();
        let routed = router::route(&mut timed.rec, arena, sizes, logits, bias, None, false)?;
        timed.mark(Phase::Gate);
        let pairs = Rows {
            count: sizes.tokens * sizes.top_k,
            offsets: routed.offsets.clone(),
            index: Some(routed.pair_of_row.clone()),
            div: sizes.top_k,
        };
        let shape = &[sizes.tokens, sizes.hidden];
        Ok(Some(Self {
            context,
            x,
            d,
            tokens: Rows { count: sizes.tokens, offsets, index: None, div: 1 },
            pairs,
            routed,
            y: arena.f32("y", shape, Category::TokenBuffers)?,
            dx: arena.f32("dx", shape, Category::TokenBuffers)?,
        }))
    }

    /// `[T, H]`: the sum of what comes back.
    pub(super) fn y(&self) -> &B::Buffer {
        &self.y
    }

    /// `[T, H]`: the sum of what comes back.
    pub(super) fn dx(&self) -> &B::Buffer {
        &self.dx
    }

    /// Packs x for other ranks.
    pub(super) fn send_forward(
        &self,
        timed: &mut Timed<B::Buffer>,
        rng: &mut Philox,
    ) -> Result<Option<Sent<B::Buffer>>> {
        self.send(timed, rng, self.context.share.sent_forward, &[self.x])
    }

    /// Packs d for other ranks, and x where they recompute.
    pub(super) fn send_backward(
        &self,
        timed: &mut Timed<B::Buffer>,
        rng: &mut Philox,
    ) -> Result<Option<Sent<B::Buffer>>> {
        let share = self.context.share;
        let sources: &[_] = if share.recomputes() { &[self.d, self.x] } else { &[self.d] };
        self.send(timed, rng, share.sent_backward, sources)
    }

    /// The rows of every source buffer, by the same index. The first buffer's come back.
    fn send(
        &self,
        timed: &mut Timed<B::Buffer>,
        rng: &mut Philox,
        rows: usize,
        sources: &[&B::Buffer],
    ) -> Result<Option<Sent<B::Buffer>>> {
        let (context, tokens) = (self.context, self.tokens.count);
        if rows == 0 {
            return Ok(None);
        }
        let index = tokens_of_rows(rng, rounds(rows, tokens), tokens);
        let table = rows_of_tokens(&index, tokens, context.config.num_experts_per_tok);
        let row_of_slot = context.indices("returned_of_slot", table)?;
        let offsets = context.indices("sent_offsets", vec![0, rows as u32])?;
        let index = context.indices("sent_tokens", index)?;
        let cols = context.config.hidden_size;
        let mut packed = Vec::with_capacity(sources.len());
        for &src in sources {
            let dst = context.arena.f32("packed", &[rows, cols], Category::Exchange)?;
            timed.rec.dispatch(GatherRows {
                rows,
                cols,
                index_div: 1,
                groups: 1,
                src: src.clone(),
                index: index.clone(),
                scale: None,
                offsets: offsets.clone(),
                dst: dst.clone(),
            })?;
            packed.push(dst);
        }
        timed.mark(Phase::Compact);
        Ok(packed.into_iter().next().map(|rows| Sent { rows, row_of_slot }))
    }

    /// Adds the rows that come back to `out` `[T, H]`.
    pub(super) fn receive(
        &self,
        timed: &mut Timed<B::Buffer>,
        sent: Option<&Sent<B::Buffer>>,
        out: &B::Buffer,
    ) -> Result<()> {
        let Some(sent) = sent else { return Ok(()) };
        let slots = self.context.config.num_experts_per_tok;
        self.add(timed, slots, &sent.rows, Some(&sent.row_of_slot), None, out)?;
        timed.mark(Phase::Combine);
        Ok(())
    }

    /// `out[t] += sum_j weights[t] rows[row_of_slot[t, j]]`.
    pub(super) fn add(
        &self,
        timed: &mut Timed<B::Buffer>,
        slots: usize,
        rows: &B::Buffer,
        row_of_slot: Option<&B::Buffer>,
        weights: Option<&B::Buffer>,
        out: &B::Buffer,
    ) -> Result<()> {
        let sum = Sum {
            tokens: self.tokens.count,
            slots,
            cols: self.context.config.hidden_size,
            rows,
            row_of_pair: row_of_slot,
            weights,
            accumulate: true,
            out,
        };
        combine(&mut timed.rec, sum)
    }

    /// Scores and selects, or keeps all pairs.
    pub(super) fn choose(&self, timed: &mut Timed<B::Buffer>) -> Result<Kept<B::Buffer>> {
        let (context, arena, sizes) = (self.context, self.context.arena, self.context.sizes());
        if !context.share.selects {
            let kept = select::keep_all(&mut timed.rec, arena, &self.pairs, sizes.experts, &self.routed)?;
            timed.mark(Phase::Compact);
            return Ok(kept);
        }
        let h_norm = context.magnitudes("h_norm", self.pairs.count)?;
        let scoring = Scoring {
            tokens: sizes.tokens,
            hidden: sizes.hidden,
            experts: sizes.experts,
            top_k: sizes.top_k,
            metric: Metric::Product,
            floor: context.selection.score_floor,
            dy: self.d,
            h_norm: &h_norm,
            full: None,
        };
        let scored = select::score(&mut timed.rec, arena, &self.pairs, &self.routed, scoring)?;
        let rule = context.selection.rule;
        let order = select::order(&mut timed.rec, arena, rule, (sizes.tokens, sizes.hidden), self.d)?;
        timed.mark(Phase::Score);
        let counts = arena.backend.read_blocking(&self.routed.counts)?.into_u32()?;
        let capacity = context.share.retained;
        let choice = Choice {
            experts: sizes.experts,
            tokens: sizes.tokens,
            top_k: sizes.top_k,
            rule,
            weight_cap: f32::INFINITY,
            stream: PairStream::new(&PairKey { seed: 0, step: 0, call_id: 0, layer: 0 }),
            first_token: 0,
            token_ids: None,
            order,
            quotas: context.indices("quotas", quotas(&counts, capacity))?,
            capacity,
        };
        let kept = select::select(&mut timed.rec, arena, &self.pairs, &self.routed, &scored, choice)?;
        timed.mark(Phase::Select);
        Ok(kept)
    }

    /// From the products that come back to the logits, and on to the router weight and dx.
    pub(super) fn router_backward(&self, timed: &mut Timed<B::Buffer>, kept: &Kept<B::Buffer>) -> Result<()> {
        let (context, arena, sizes) = (self.context, self.context.arena, self.context.sizes());
        let rec = &mut timed.rec;
        let dot_dy = match context.share.selects {
            true => {
                let dot = arena.f32("dot_dy", &[sizes.tokens], Category::Scratch)?;
                rec.dispatch(RowDots {
                    rows: sizes.tokens,
                    cols: sizes.hidden,
                    a_div: 1,
                    a: self.d.clone(),
                    b: self.y.clone(),
                    b_index: None,
                    dot: dot.clone(),
                })?;
                Some(dot)
            }
            false => None,
        };
        let dot = context.normals("dot", kept.rows.count)?;
        let estimate = Estimate { dot_dy, dot, weight: kept.weight.clone(), kept_of_pair: &kept.of_pair };
        let d_weights = router::combine_weight_gradient(rec, arena, sizes, &self.routed, estimate)?;
        let pairs = self.pairs.count;
        let finite = arena.f32("finite", &[pairs.div_ceil(SUM_SQUARES_BLOCK), 2], Category::Scratch)?;
        rec.dispatch(SumSquares { len: pairs, x: d_weights.clone(), partial: finite })?;
        let d_logits = router::logits_gradient(rec, arena, sizes, &self.routed, d_weights, (None, 0.0))?;
        let router = &context.data.router;
        let linear = Linear {
            n: sizes.experts,
            k: sizes.hidden,
            weight: &router.weight,
            grad: Some((router.grad.clone(), false)),
        };
        let rows = router::linear_backward(rec, arena, linear, &self.tokens, self.x, (&d_logits, None))?;
        self.add(timed, 1, &rows, None, None, &self.dx)?;
        timed.mark(Phase::RouterBackward);
        Ok(())
    }
}
