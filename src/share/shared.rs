//! The shared expert of a rank's own tokens.

use super::Phase;
use super::data::TrainedLinear;
use super::source::Source;
use super::timed::Timed;
use crate::backend::{Backend, Buffer};
use crate::kernel::{Sigmoid, SigmoidBackward};
use crate::memory::Category;
use crate::op::expert::{self, Activated, Activations};
use crate::op::router::{self, Linear};
use crate::{Result, plan};

/// What forward leaves for backward.
#[derive(Debug)]
pub(super) struct SharedForward<Buf> {
    activated: Activated<Buf>,
    /// f32 `[T]`: sigmoid of the gate.
    gate: Option<Buf>,
}

impl<B: Backend> Source<'_, B> {
    /// Adds the shared expert to y. `None` where the layer has none.
    pub(super) fn shared_forward(&self, timed: &mut Timed<B::Buffer>) -> Result<Option<SharedForward<B::Buffer>>> {
        let (context, arena, tokens) = (self.context, self.context.arena, self.tokens.count);
        let Some(shared) = &context.data.shared else { return Ok(None) };
        let mut y = self.y().clone();
        if context.share.selects {
            // The baseline of dropped pairs needs the routed part alone, so the layer adds the shared expert to a copy.
            y = arena.f32("y_sum", &[self.y().len()], Category::TokenBuffers)?;
            timed.rec.copy(self.y(), &y)?;
        }
        let gate = match &context.data.shared_gate {
            Some(TrainedLinear { weight, .. }) => {
                let mut sizes = context.sizes();
                sizes.experts = 1;
                let z = router::logits(&mut timed.rec, arena, sizes, self.x, weight, &self.tokens.offsets)?;
                let s = arena.f32("shared_gate", &[tokens], Category::Stash)?;
                timed.rec.dispatch(Sigmoid { len: tokens, z, s: s.clone() })?;
                Some(s)
            }
            None => None,
        };
        let categories = (Category::Stash, Category::TokenBuffers);
        let activated = expert::forward(&mut timed.rec, arena, &shared.bank, self.x, &self.tokens, categories)?;
        self.add(timed, 1, &activated.out, None, gate.as_ref(), &y)?;
        timed.mark(Phase::Shared);
        Ok(Some(SharedForward { activated, gate }))
    }

    /// Gradients of the shared expert and its gate, and their part of dx.
    pub(super) fn shared_backward(
        &self,
        timed: &mut Timed<B::Buffer>,
        forward: Option<SharedForward<B::Buffer>>,
    ) -> Result<()> {
        let (context, arena, tokens) = (self.context, self.context.arena, self.tokens.count);
        let (Some(shared), Some(forward)) = (&context.data.shared, forward) else { return Ok(()) };
        let activations = match context.share.activations {
            plan::Activations::Stash => Activations::Stashed { ab: forward.activated.ab, index: None },
            plan::Activations::Recompute => Activations::Recompute,
        };
        let args = expert::Backward {
            x: self.x,
            dy: self.d,
            rows: &self.tokens,
            activations,
            scale: forward.gate.clone(),
            grads: Some(shared.grads.clone()),
        };
        let gradient = expert::backward(&mut timed.rec, arena, &shared.bank, args)?;
        self.add(timed, 1, &gradient.dx_rows, None, None, self.dx())?;
        if let (Some(s), Some(TrainedLinear { weight, grad })) = (forward.gate, &context.data.shared_gate) {
            let dz = arena.f32("shared_gate_grad", &[tokens], Category::Scratch)?;
            timed.rec.dispatch(SigmoidBackward { len: tokens, s, ds: gradient.dot, dz: dz.clone() })?;
            let linear = Linear { n: 1, k: shared.bank.hidden, weight, grad: Some((grad.clone(), false)) };
            let rows = router::linear_backward(&mut timed.rec, arena, linear, &self.tokens, self.x, (&dz, None))?;
            self.add(timed, 1, &rows, None, None, self.dx())?;
        }
        timed.mark(Phase::Shared);
        Ok(())
    }
}
