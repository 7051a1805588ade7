//! What a forward pass keeps, and what a backward pass returns.

use super::Statistics;
use crate::Result;
use crate::backend::Backend;
use crate::kernel::NONE;
use crate::losses::RouterTerms;
use crate::op::Rows;
use crate::op::router::Routed;
use crate::plan::RetentionPlan;
use crate::rng::PairStream;
use crate::tensor::Tensor;

/// The tokens of a call.
#[derive(Debug, Clone)]
pub(crate) struct Tokens<Buf> {
    pub(crate) count: usize,
    /// Offsets `[0, T]` of one group of all tokens.
    pub(crate) all: Buf,
    /// u32 `[T]`, absent where every token takes part.
    pub(crate) mask: Option<Buf>,
    /// The tokens that take part, as one group.
    pub(crate) valid: Rows<Buf>,
    /// u32 `[T]`: row in `valid`, or none; the token itself where absent.
    pub(crate) row_of_token: Option<Buf>,
}

/// State of the shared expert.
#[derive(Debug, Clone)]
pub(crate) struct SharedSaved<Buf> {
    /// Absent under [`crate::Activations::Recompute`].
    pub(crate) ab: Option<Buf>,
    /// f32 `[T]`: sigmoid of the shared-expert gate.
    pub(crate) gate: Option<Buf>,
}

/// What backward needs of a forward pass: routing and plan as they were, never computed again.
#[derive(Debug)]
pub struct SavedForward<B: Backend> {
    pub(crate) layer_uid: u64,
    pub(crate) version: u64,
    pub(crate) x: Tensor<B>,
    /// The logits came from the host: the layer's own router takes no part.
    pub(crate) host_logits: bool,
    pub(crate) tokens: Tokens<B::Buffer>,
    pub(crate) token_ids: Option<B::Buffer>,
    pub(crate) first_token: u64,
    pub(crate) stream: PairStream,
    pub(crate) routed: Routed<B::Buffer>,
    /// `[E]`: pairs routed.
    pub(crate) counts: Vec<u32>,
    /// `[E]`: pairs that not even forward computed.
    pub(crate) dropped: Vec<u32>,
    pub(crate) plan: RetentionPlan,
    pub(crate) terms: Option<RouterTerms>,
    pub(crate) h_norm: B::Buffer,
    /// `[E]`: what [`crate::kernel::Metric::Full`] scores with; the layer's own moves on with every backward.
    pub(crate) kappa: Vec<f32>,
    pub(crate) ab: Option<B::Buffer>,
    pub(crate) out: Option<B::Buffer>,
    pub(crate) y_routed: Option<B::Buffer>,
    pub(crate) shared: Option<SharedSaved<B::Buffer>>,
}

/// Routing of a call, on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// `[T, k]`, by falling selection score; [`crate::kernel::NONE`] for a masked token.
    pub ids: Vec<u32>,
    /// `[T, k]` combine weights.
    pub weights: Vec<f32>,
    /// `[T, E]`.
    pub logits: Vec<f32>,
}

impl<B: Backend> SavedForward<B> {
    /// Pairs routed to each expert, `[E]`, computed or [dropped](crate::Schedule::dropped). Counted once, here; evaluation and
    /// recomputation count nothing.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// The plan that backward will carry out. Its counts are of the pairs that forward computed.
    pub fn plan(&self) -> &RetentionPlan {
        &self.plan
    }

    /// Terms of the router losses of this call: one layer, this rank's unmasked tokens. `None` where neither
    /// coefficient is set.
    pub fn router_terms(&self) -> Option<&RouterTerms> {
        self.terms.as_ref()
    }

    /// Copies the routing of all routed pairs, dropped ones too, to the host.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn routing(&self, backend: &B) -> Result<Routing> {
        Ok(Routing {
            ids: backend.read_blocking(&self.routed.ids)?.into_u32()?,
            weights: backend.read_blocking(&self.routed.weights)?.into_f32()?,
            logits: backend.read_blocking(&self.routed.logits)?.into_f32()?,
        })
    }
}

/// Results of a backward pass. Weight gradients stay in the layer, for its optimizer.
#[derive(Debug)]
pub struct Gradients<B: Backend> {
    /// f32 `[T, H]`: dL/dx, through experts, shared expert and the layer's own router.
    pub dx: Tensor<B>,
    /// f32 `[T, E]`: dL/d(logits). Already part of `dx` where the router is the layer's own.
    pub d_logits: Tensor<B>,
    /// What happened.
    pub stats: Statistics,
    /// u32 `[T, k]`: row of each pair that was back-propagated, or none.
    pub(crate) row_of_pair: B::Buffer,
}

impl<B: Backend> Gradients<B> {
    /// Copies to the host which pairs were back-propagated, `[T, k]`: with [`crate::Selection::All`] every pair that forward computed.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn retained_pairs(&self, backend: &B) -> Result<Vec<bool>> {
        let rows = backend.read_blocking(&self.row_of_pair)?.into_u32()?;
        Ok(rows.into_iter().map(|row| row != NONE).collect())
    }
}
