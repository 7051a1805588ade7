//! Backward: score, select, then the retained pairs.

use super::saved::SharedSaved;
use super::{FLOATS, Gradients, MoeLayer, ParamId, SavedForward, check_tensor, forward, kappa, sum_squares};
use crate::backend::Backend;
use crate::kernel::{GatherRows, Metric, RowDots, SigmoidBackward};
use crate::losses::RouterTerms;
use crate::memory::Category;
use crate::op::expert::{self, Activations, BankGradient, BankGrads, Sum, combine};
use crate::op::router::{self, Estimate, Linear};
use crate::op::select::{self, Choice, Kept, Scored};
use crate::tensor::Tensor;
use crate::{Error, Recording, Result};

/// Scores, unless nothing is scored, and the retained pairs.
type Chosen<Buf> = (Option<Scored<Buf>>, Kept<Buf>);

impl<B: Backend> MoeLayer<B> {
    /// Gradients of the retained pairs for the upstream gradient `dy [T, H]`. Weight gradients are added to what is there
    /// since [`MoeLayer::zero_grad`]; router losses are those of this call alone.
    ///
    /// `saved` is not consumed: a second call gives the same `dx` and `d_logits`, and adds the same weight gradients again.
    /// Each call also takes its demand into the smoothed demand that later plans start from.
    ///
    /// # Errors
    /// [`Error::State`] where `saved` belongs to another layer or to weights that have changed since,
    /// [`Error::Shape`], [`Error::OutOfMemory`], and what the device reports.
    pub fn backward(&mut self, saved: &SavedForward<B>, dy: &Tensor<B>) -> Result<Gradients<B>> {
        self.backward_with_terms(saved, dy, saved.terms.as_ref())
    }

    /// As [`MoeLayer::backward`], with the router losses of `terms`: combined over layers as Hugging Face does, or over
    /// ranks and micro-batches, see [`RouterTerms::combine`].
    ///
    /// # Errors
    /// As [`MoeLayer::backward`].
    pub fn backward_joint(
        &mut self,
        saved: &SavedForward<B>,
        dy: &Tensor<B>,
        terms: &RouterTerms,
    ) -> Result<Gradients<B>> {
        terms.check_experts(self.config.num_experts)?;
        self.backward_with_terms(saved, dy, Some(terms))
    }

    fn backward_with_terms(
        &mut self,
        saved: &SavedForward<B>,
        dy: &Tensor<B>,
        terms: Option<&RouterTerms>,
    ) -> Result<Gradients<B>> {
        self.check_saved(saved)?;
        let (arena, sizes) = (self.arena(), self.sizes(saved.x.rows()));
        check_tensor("dy", dy, (sizes.tokens, sizes.hidden), FLOATS)?;

        // One recording: every allocation is made before anything runs, so a refused one leaves all gradients as they were. The
        // price is that the scratch of all stages is live at once.
        let mut rec = Recording::new();
        let (scored, kept) = self.select(&mut rec, saved, dy)?;
        let bank = self.expert_backward(&mut rec, saved, dy, &kept)?;
        let dx = arena.f32("dx", &[sizes.tokens, sizes.hidden], Category::TokenBuffers)?;
        combine(
            &mut rec,
            Sum {
                tokens: sizes.tokens,
                slots: sizes.top_k,
                cols: sizes.hidden,
                rows: &bank.dx_rows,
                row_of_pair: Some(&kept.of_pair),
                weights: None,
                accumulate: false,
                out: &dx,
            },
        )?;
        let d_weights = self.combine_weight_gradient(&mut rec, saved, dy, &kept, bank.dot)?;
        let finite = sum_squares(&mut rec, arena, "finite", &d_weights)?;
        let d_logits = self.router_backward(&mut rec, saved, d_weights, &dx, terms)?;
        self.shared_backward(&mut rec, saved, dy, &dx)?;
        let d_ab_norm = match self.options.metric {
            Metric::Full if scored.is_some() => Some(kappa::norms(&mut rec, arena, &kept, &bank.d_ab)?),
            _ => None,
        };
        self.backend.submit(&rec)?;
        self.params.mark_grads(|id| id != ParamId::Router || !saved.host_logits);

        let stats = self.statistics(saved, scored.as_ref(), &kept, &finite)?;
        if let (Some(scored), Some(norm)) = (&scored, &d_ab_norm) {
            self.update_kappa(scored, &kept, norm)?;
        }
        Ok(Gradients {
            dx: Tensor::new(dx, sizes.tokens, sizes.hidden)?,
            d_logits: Tensor::new(d_logits, sizes.tokens, sizes.experts)?,
            stats,
            row_of_pair: kept.of_pair,
        })
    }

    pub(super) fn check_saved(&self, saved: &SavedForward<B>) -> Result<()> {
        let (what, fix) = if saved.layer_uid != self.uid {
            ("the saved forward belongs to another layer", "call backward on the layer that ran it")
        } else if saved.version != self.version {
            ("the weights changed since this forward", "run backward before the optimizer step")
        } else {
            return Ok(());
        };
        Err(Error::State { what: what.into(), fix: fix.into() })
    }

    /// ALGORITHM sections 3.1 and 3.2. Where the quotas keep everything, plain training's path is taken to the letter.
    fn select(
        &self,
        rec: &mut Recording<B::Buffer>,
        saved: &SavedForward<B>,
        dy: &Tensor<B>,
    ) -> Result<Chosen<B::Buffer>> {
        let (arena, sizes) = (self.arena(), self.sizes(saved.x.rows()));
        let rows = forward::pair_rows(&saved.routed, sizes.tokens, sizes.top_k);
        let Some(rule) = self.options.select.rule() else {
            return Ok((None, select::keep_all(rec, arena, &rows, sizes.experts, &saved.routed)?));
        };
        let scored = self.score(rec, saved, dy)?;
        if saved.plan.keeps_everything() {
            let kept = select::keep_all(rec, arena, &rows, sizes.experts, &saved.routed)?;
            return Ok((Some(scored), kept));
        }
        let order = select::order(rec, arena, rule, (sizes.tokens, sizes.hidden), dy.buffer())?;
        let choice = Choice {
            experts: sizes.experts,
            tokens: sizes.tokens,
            top_k: sizes.top_k,
            rule,
            weight_cap: self.options.weight_cap.unwrap_or(f32::INFINITY),
            stream: saved.stream,
            first_token: saved.first_token,
            token_ids: saved.token_ids.clone(),
            order,
            quotas: arena.upload_u32("quotas", saved.plan.quotas.clone(), Category::Scratch)?,
            capacity: saved.plan.quotas.iter().map(|&q| q as usize).sum(),
        };
        let kept = select::select(rec, arena, &rows, &saved.routed, &scored, choice)?;
        Ok((Some(scored), kept))
    }

    fn bank_grads(&self, gate_up: ParamId, down: ParamId) -> Option<BankGrads<B::Buffer>> {
        let ((gate_up, accumulate), (down, _)) = self.params.grad(gate_up).zip(self.params.grad(down))?;
        Some(BankGrads { gate_up, down, accumulate })
    }

    fn expert_backward(
        &self,
        rec: &mut Recording<B::Buffer>,
        saved: &SavedForward<B>,
        dy: &Tensor<B>,
        kept: &Kept<B::Buffer>,
    ) -> Result<BankGradient<B::Buffer>> {
        let activations = match &saved.ab {
            Some(ab) => Activations::Stashed { ab: ab.clone(), index: kept.row.clone() },
            None => Activations::Recompute,
        };
        let args = expert::Backward {
            x: saved.x.buffer(),
            dy: dy.buffer(),
            rows: &kept.rows,
            activations,
            scale: Some(kept.scale.clone()),
            grads: self.bank_grads(ParamId::GateUp, ParamId::Down),
        };
        expert::backward(rec, self.arena(), &self.experts()?, args)
    }

    /// ALGORITHM section 3.7.
    fn combine_weight_gradient(
        &self,
        rec: &mut Recording<B::Buffer>,
        saved: &SavedForward<B>,
        dy: &Tensor<B>,
        kept: &Kept<B::Buffer>,
        dot: B::Buffer,
    ) -> Result<B::Buffer> {
        let (arena, sizes) = (self.arena(), self.sizes(saved.x.rows()));
        if let Some(out) = &saved.out {
            let exact = arena.f32("d_weights", &[sizes.tokens, sizes.top_k], Category::Scratch)?;
            rec.dispatch(RowDots {
                rows: sizes.tokens * sizes.top_k,
                cols: sizes.hidden,
                a_div: sizes.top_k,
                a: dy.buffer().clone(),
                b: out.clone(),
                b_index: Some(saved.routed.row_of_pair.clone()),
                dot: exact.clone(),
            })?;
            return Ok(exact);
        }
        let dot_dy = match &saved.y_routed {
            Some(y) => {
                let dot_dy = arena.f32("dot_dy", &[sizes.tokens], Category::Scratch)?;
                rec.dispatch(RowDots {
                    rows: sizes.tokens,
                    cols: sizes.hidden,
                    a_div: 1,
                    a: dy.buffer().clone(),
                    b: y.clone(),
                    b_index: None,
                    dot: dot_dy.clone(),
                })?;
                Some(dot_dy)
            }
            None => None,
        };
        let estimate = Estimate { dot_dy, dot, weight: kept.weight.clone(), kept_of_pair: &kept.of_pair };
        router::combine_weight_gradient(rec, arena, sizes, &saved.routed, estimate)
    }

    /// From the combine weights and losses to the logits, and on to the layer's own router weight and x.
    fn router_backward(
        &self,
        rec: &mut Recording<B::Buffer>,
        saved: &SavedForward<B>,
        d_weights: B::Buffer,
        dx: &B::Buffer,
        terms: Option<&RouterTerms>,
    ) -> Result<B::Buffer> {
        let (arena, sizes) = (self.arena(), self.sizes(saved.x.rows()));
        let losses = match terms {
            Some(terms) => {
                let aux = match self.options.aux_loss_coef {
                    0.0 => None,
                    coef => Some(arena.upload_f32(
                        "aux_gradient",
                        terms.load_balancing_gradient(coef),
                        Category::Scratch,
                    )?),
                };
                (aux, terms.z_scale(self.options.z_loss_coef))
            }
            None => (None, 0.0),
        };
        let d_logits = router::logits_gradient(rec, arena, sizes, &saved.routed, d_weights, losses)?;
        if let Some(linear) = self.router_linear().filter(|_| !saved.host_logits) {
            let d_out = (&d_logits, saved.tokens.valid.index.as_ref());
            let rows = router::linear_backward(rec, arena, linear, &saved.tokens.valid, saved.x.buffer(), d_out)?;
            self.add_token_rows(rec, saved, &rows, dx)?;
        }
        Ok(d_logits)
    }

    /// `dx[t] += rows[row of t]` for the tokens that take part.
    fn add_token_rows(
        &self,
        rec: &mut Recording<B::Buffer>,
        saved: &SavedForward<B>,
        rows: &B::Buffer,
        dx: &B::Buffer,
    ) -> Result<()> {
        combine(
            rec,
            Sum {
                tokens: saved.tokens.count,
                slots: 1,
                cols: self.config.hidden_size,
                rows,
                row_of_pair: saved.tokens.row_of_token.as_ref(),
                weights: None,
                accumulate: true,
                out: dx,
            },
        )
    }

    fn shared_backward(
        &self,
        rec: &mut Recording<B::Buffer>,
        saved: &SavedForward<B>,
        dy: &Tensor<B>,
        dx: &B::Buffer,
    ) -> Result<()> {
        let (Some(bank), Some(shared)) = (self.shared_expert()?, &saved.shared) else { return Ok(()) };
        let tokens = &saved.tokens.valid;
        let scale = self.shared_scale(rec, saved, shared)?;
        let activations = match &shared.ab {
            Some(ab) => Activations::Stashed { ab: ab.clone(), index: None },
            None => Activations::Recompute,
        };
        let args = expert::Backward {
            x: saved.x.buffer(),
            dy: dy.buffer(),
            rows: tokens,
            activations,
            scale: scale.clone(),
            grads: self.bank_grads(ParamId::SharedGateUp, ParamId::SharedDown),
        };
        let gradient = expert::backward(rec, self.arena(), &bank, args)?;
        self.add_token_rows(rec, saved, &gradient.dx_rows, dx)?;
        let (Some(s), Some(param)) = (scale, self.params.find(ParamId::SharedGate)) else { return Ok(()) };
        let dz = self.arena().f32("shared_gate_grad", &[tokens.count], Category::Scratch)?;
        rec.dispatch(SigmoidBackward { len: tokens.count, s, ds: gradient.dot, dz: dz.clone() })?;
        let grad = self.params.grad(ParamId::SharedGate);
        let linear = Linear { n: 1, k: bank.hidden, weight: &param.weight, grad };
        let rows = router::linear_backward(rec, self.arena(), linear, tokens, saved.x.buffer(), (&dz, None))?;
        self.add_token_rows(rec, saved, &rows, dx)
    }

    /// The shared-expert gate of the tokens that take part, in row order.
    fn shared_scale(
        &self,
        rec: &mut Recording<B::Buffer>,
        saved: &SavedForward<B>,
        shared: &SharedSaved<B::Buffer>,
    ) -> Result<Option<B::Buffer>> {
        let tokens = &saved.tokens.valid;
        let (Some(gate), Some(index)) = (&shared.gate, &tokens.index) else { return Ok(shared.gate.clone()) };
        let rows = self.arena().f32("shared_gate_rows", &[tokens.count], Category::Scratch)?;
        rec.dispatch(GatherRows {
            rows: tokens.count,
            cols: 1,
            index_div: 1,
            groups: 1,
            src: gate.clone(),
            index: index.clone(),
            scale: None,
            offsets: tokens.offsets.clone(),
            dst: rows.clone(),
        })?;
        Ok(Some(rows))
    }
}
