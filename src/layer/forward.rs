//! Forward: gate, counts, plan, then every routed pair.

use super::saved::{SharedSaved, Tokens};
use super::schedule::Checked;
use super::{
    Activations, FLOATS, ForwardContext, MoeLayer, ParamId, RouterGradient, SavedForward, Selection, check_tensor,
};
use crate::backend::Backend;
use crate::kernel::{NONE, Sigmoid};
use crate::losses::RouterTerms;
use crate::memory::Category;
use crate::op::expert::{self, Activated, Sum, combine};
use crate::op::router::{self, Linear, Routed, Sizes};
use crate::op::{Arena, Rows};
use crate::plan::{PlanOptions, Retention, plan_one_rank};
use crate::rng::{PairKey, PairStream};
use crate::tensor::{DType, Tensor};
use crate::{Error, Recording, Result};

/// Routing of a call, before any expert has run.
struct Begun<B: Backend> {
    tokens: Tokens<B::Buffer>,
    token_ids: Option<B::Buffer>,
    routed: Routed<B::Buffer>,
}

/// What outlives the forward pass.
#[derive(Clone, Copy)]
struct Keep {
    ab: bool,
    out: bool,
    y_routed: bool,
}

impl Keep {
    const NOTHING: Self = Self { ab: false, out: false, y_routed: false };
}

struct Computed<B: Backend> {
    y: Tensor<B>,
    activated: Activated<B::Buffer>,
    y_routed: Option<B::Buffer>,
    shared: Option<SharedSaved<B::Buffer>>,
}

impl<B: Backend> MoeLayer<B> {
    /// `x [T, H]` to `y [T, H]` (f32), exact over all routed pairs, and what [`MoeLayer::backward`] needs.
    ///
    /// What is saved shares memory with `x`, with logits of the host's, and with `y`: do not overwrite them in place before
    /// backward has run.
    ///
    /// # Errors
    /// [`Error::Shape`] for tensors or context of wrong shape, [`Error::State`] where the layer has no router weight,
    /// [`Error::Overflow`], [`Error::OutOfMemory`], and what the device reports.
    pub fn forward(&self, x: &Tensor<B>, context: &ForwardContext<'_>) -> Result<(Tensor<B>, SavedForward<B>)> {
        self.forward_saving(x, None, context, |_, counts| self.plan(counts))
    }

    /// As [`MoeLayer::forward`] with the host's own `logits [T, E]` (f32); backward returns their gradient.
    ///
    /// # Errors
    /// As [`MoeLayer::forward`].
    pub fn forward_with_logits(
        &self,
        x: &Tensor<B>,
        logits: &Tensor<B>,
        context: &ForwardContext<'_>,
    ) -> Result<(Tensor<B>, SavedForward<B>)> {
        self.forward_saving(x, Some(logits), context, |_, counts| self.plan(counts))
    }

    /// The same `y` as [`MoeLayer::forward`], bit for bit, keeping nothing and counting nothing.
    ///
    /// # Errors
    /// As [`MoeLayer::forward`].
    pub fn evaluate(&self, x: &Tensor<B>, context: &ForwardContext<'_>) -> Result<Tensor<B>> {
        let begun = self.route(x, None, context, false)?;
        Ok(self.compute(x, &begun, Keep::NOTHING)?.y)
    }

    /// [`MoeLayer::evaluate`] with the host's own logits.
    ///
    /// # Errors
    /// As [`MoeLayer::forward`].
    pub fn evaluate_with_logits(
        &self,
        x: &Tensor<B>,
        logits: &Tensor<B>,
        context: &ForwardContext<'_>,
    ) -> Result<Tensor<B>> {
        let begun = self.route(x, Some(logits), context, false)?;
        Ok(self.compute(x, &begun, Keep::NOTHING)?.y)
    }

    /// `plan` is given the routing and its counts `[E]`.
    pub(super) fn forward_saving(
        &self,
        x: &Tensor<B>,
        logits: Option<&Tensor<B>>,
        context: &ForwardContext<'_>,
        plan: impl FnOnce(&Routed<B::Buffer>, &[u32]) -> Result<Checked>,
    ) -> Result<(Tensor<B>, SavedForward<B>)> {
        let begun = self.route(x, logits, context, self.options.tracks_losses())?;
        let counts = self.backend.read_blocking(&begun.routed.counts)?.into_u32()?;
        let Checked { plan, drops } = plan(&begun.routed, &counts)?;
        let terms = self.terms(&begun.routed, &counts, begun.tokens.valid.count)?;
        let dropped = match drops {
            Some(drops) => {
                self.leave_out(&begun.routed, self.sizes(x.rows()), drops.ids)?;
                drops.counts
            }
            None => vec![0; counts.len()],
        };
        let exact = self.options.router_gradient == RouterGradient::Exact;
        let keep = Keep {
            ab: self.options.activations == Activations::Stash,
            out: exact,
            y_routed: !exact && !plan.keeps_everything(),
        };
        let done = self.compute(x, &begun, keep)?;
        let saved = SavedForward {
            layer_uid: self.uid,
            version: self.version,
            x: x.clone(),
            host_logits: logits.is_some(),
            tokens: begun.tokens,
            token_ids: begun.token_ids,
            first_token: context.first_token,
            stream: PairStream::new(&PairKey {
                seed: context.seed,
                step: context.step,
                call_id: context.call_id,
                layer: context.layer,
            }),
            routed: begun.routed,
            counts,
            dropped,
            plan,
            terms,
            h_norm: done.activated.h_norm,
            kappa: self.kappa.clone(),
            ab: keep.ab.then_some(done.activated.ab),
            out: keep.out.then_some(done.activated.out),
            y_routed: done.y_routed,
            shared: done.shared,
        };
        Ok((done.y, saved))
    }

    /// Gate, counts and permutation.
    fn route(
        &self,
        x: &Tensor<B>,
        logits: Option<&Tensor<B>>,
        context: &ForwardContext<'_>,
        track_losses: bool,
    ) -> Result<Begun<B>> {
        let (arena, sizes) = (self.arena(), self.sizes(x.rows()));
        check_tensor("x", x, (sizes.tokens, sizes.hidden), FLOATS)?;
        check_pairs(sizes.tokens, sizes.top_k)?;
        let tokens = self.tokens(sizes.tokens, context)?;
        let token_ids = upload_token_ids(arena, sizes.tokens, context)?;
        let mut rec = Recording::new();
        let logits = match logits {
            Some(logits) => {
                check_tensor("logits", logits, (sizes.tokens, sizes.experts), &[DType::F32])?;
                logits.buffer().clone()
            }
            None => {
                let weight = self.params.weight(ParamId::Router)?;
                router::logits(&mut rec, arena, sizes, x.buffer(), weight, &tokens.all)?
            }
        };
        let bias = self.correction_bias.as_ref().map(|(_, device)| device);
        let routed = router::route(&mut rec, arena, sizes, logits, bias, tokens.mask.as_ref(), track_losses)?;
        self.backend.submit(&rec)?;
        Ok(Begun { tokens, token_ids, routed })
    }

    /// Makes new rows, for the pairs that `ids [T, k]` still names an expert for.
    fn leave_out(&self, routed: &Routed<B::Buffer>, sizes: Sizes, ids: Vec<u32>) -> Result<()> {
        let mut rec = Recording::new();
        let ids = self.arena().upload_u32("computed_ids", ids, Category::Scratch)?;
        router::permute(&mut rec, sizes, routed, &ids)?;
        self.backend.submit(&rec)?;
        Ok(())
    }

    /// Every pair that has a row, combined, plus the shared expert.
    fn compute(&self, x: &Tensor<B>, begun: &Begun<B>, keep: Keep) -> Result<Computed<B>> {
        let (arena, sizes) = (self.arena(), self.sizes(x.rows()));
        let routed = &begun.routed;
        let category = |kept: bool| if kept { Category::Stash } else { Category::TokenBuffers };
        let mut rec = Recording::new();
        let rows = pair_rows(routed, sizes.tokens, sizes.top_k);
        let categories = (category(keep.ab), category(keep.out));
        let activated = expert::forward(&mut rec, arena, &self.experts()?, x.buffer(), &rows, categories)?;
        let y_len = &[sizes.tokens, sizes.hidden];
        let mut y = arena.f32("y", y_len, category(keep.y_routed))?;
        combine(
            &mut rec,
            Sum {
                tokens: sizes.tokens,
                slots: sizes.top_k,
                cols: sizes.hidden,
                rows: &activated.out,
                row_of_pair: Some(&routed.row_of_pair),
                weights: Some(&routed.weights),
                accumulate: false,
                out: &y,
            },
        )?;
        // The baseline of dropped pairs is the routed part alone, so it is kept apart from a shared expert.
        let y_routed = keep.y_routed.then(|| y.clone());
        if keep.y_routed && self.config.shared_expert_intermediate_size > 0 {
            let sum = arena.f32("y", y_len, Category::TokenBuffers)?;
            rec.copy(&y, &sum)?;
            y = sum;
        }
        let shared = self.shared_forward(&mut rec, x, &begun.tokens, &y, keep.ab)?;
        self.backend.submit(&rec)?;
        Ok(Computed { y: Tensor::new(y, sizes.tokens, sizes.hidden)?, activated, y_routed, shared })
    }

    /// Quotas from this call's counts and the demand of the steps before.
    fn plan(&self, counts: &[u32]) -> Result<Checked> {
        let plan = match self.options.select {
            Selection::All => {
                let everything = PlanOptions { retention: Retention::Fraction(1.0), ..self.options.plan };
                plan_one_rank(counts, None, &everything)
            }
            _ => plan_one_rank(counts, self.demand.as_ref(), &self.options.plan),
        }?;
        Ok(Checked { plan, drops: None })
    }

    fn terms(&self, routed: &Routed<B::Buffer>, counts: &[u32], tokens: usize) -> Result<Option<RouterTerms>> {
        let Some(sums) = &routed.loss_sums else { return Ok(None) };
        let sums = self.backend.read_blocking(sums)?.into_f32()?;
        let (probability, z) = sums.split_at(self.config.num_experts);
        Ok(Some(RouterTerms {
            counts: counts.iter().copied().map(u64::from).collect(),
            probability: probability.iter().copied().map(f64::from).collect(),
            z: f64::from(z[0]),
            tokens: tokens as u64,
        }))
    }

    fn shared_forward(
        &self,
        rec: &mut Recording<B::Buffer>,
        x: &Tensor<B>,
        tokens: &Tokens<B::Buffer>,
        y: &B::Buffer,
        stash: bool,
    ) -> Result<Option<SharedSaved<B::Buffer>>> {
        let Some(bank) = self.shared_expert()? else { return Ok(None) };
        let arena = self.arena();
        let keep = if stash { Category::Stash } else { Category::TokenBuffers };
        let gate = match self.params.find(ParamId::SharedGate) {
            Some(param) => {
                let mut sizes = self.sizes(tokens.count);
                sizes.experts = 1;
                let z = router::logits(rec, arena, sizes, x.buffer(), &param.weight, &tokens.all)?;
                let s = arena.f32("shared_gate", &[tokens.count], Category::Stash)?;
                rec.dispatch(Sigmoid { len: tokens.count, z, s: s.clone() })?;
                Some(s)
            }
            None => None,
        };
        let activated = expert::forward(rec, arena, &bank, x.buffer(), &tokens.valid, (keep, Category::TokenBuffers))?;
        combine(
            rec,
            Sum {
                tokens: tokens.count,
                slots: 1,
                cols: bank.hidden,
                rows: &activated.out,
                row_of_pair: tokens.row_of_token.as_ref(),
                weights: gate.as_ref(),
                accumulate: true,
                out: y,
            },
        )?;
        Ok(Some(SharedSaved { ab: stash.then_some(activated.ab), gate }))
    }

    fn tokens(&self, count: usize, context: &ForwardContext<'_>) -> Result<Tokens<B::Buffer>> {
        let arena = self.arena();
        let range = |name: &str, end: usize| arena.upload_u32(name, vec![0, end as u32], Category::Stash);
        let all = range("all_tokens", count)?;
        let Some(mask) = context.mask else {
            let valid = Rows { count, offsets: all.clone(), index: None, div: 1 };
            return Ok(Tokens { count, all, mask: None, valid, row_of_token: None });
        };
        if mask.len() != count {
            return Err(Error::shape("length of `mask`", mask.len(), format!("{count} tokens")));
        }
        let index: Vec<u32> = (0u32..).zip(mask).filter(|&(_, &valid)| valid).map(|(token, _)| token).collect();
        let mut row_of_token = vec![NONE; count];
        for (row, &token) in (0u32..).zip(&index) {
            row_of_token[token as usize] = row;
        }
        let upload = |name: &str, values: Vec<u32>| arena.upload_u32(name, values, Category::Stash);
        let valid = Rows {
            count: index.len(),
            offsets: range("valid_offsets", index.len())?,
            index: Some(upload("valid_tokens", index)?),
            div: 1,
        };
        Ok(Tokens {
            count,
            all,
            mask: Some(upload("mask", mask.iter().map(|&valid| u32::from(valid)).collect())?),
            valid,
            row_of_token: Some(upload("row_of_token", row_of_token)?),
        })
    }

    /// The router as a linear map over the tokens that take part.
    pub(super) fn router_linear(&self) -> Option<Linear<'_, B::Buffer>> {
        self.params.find(ParamId::Router).map(|param| Linear {
            n: self.config.num_experts,
            k: self.config.hidden_size,
            weight: &param.weight,
            grad: self.params.grad(ParamId::Router),
        })
    }
}

/// Rows of the routed experts: every pair that is computed.
pub(super) fn pair_rows<Buf: Clone>(routed: &Routed<Buf>, tokens: usize, top_k: usize) -> Rows<Buf> {
    Rows { count: tokens * top_k, offsets: routed.offsets.clone(), index: Some(routed.pair_of_row.clone()), div: top_k }
}

fn check_pairs(tokens: usize, top_k: usize) -> Result<()> {
    if tokens.checked_mul(top_k).is_none_or(|pairs| pairs >= NONE as usize) {
        return Err(Error::Overflow {
            what: "pairs of one call".into(),
            detail: format!("{tokens} tokens x {top_k} experts do not fit 32 bits; split the call"),
        });
    }
    Ok(())
}

fn upload_token_ids<B: Backend>(
    arena: Arena<'_, B>,
    tokens: usize,
    context: &ForwardContext<'_>,
) -> Result<Option<B::Buffer>> {
    let Some(ids) = context.token_ids else { return Ok(None) };
    if ids.len() != tokens {
        return Err(Error::shape("length of `token_ids`", ids.len(), format!("{tokens} tokens")));
    }
    let words = ids.iter().flat_map(|&id| [id as u32, (id >> 32) as u32]).collect();
    Ok(Some(arena.upload_u32("token_ids", words, Category::Stash)?))
}
