//! Schedules from outside, for a host that plans over several ranks: what a call routed goes out, what to compute comes in.

use super::{ForwardContext, MoeLayer, SavedForward, Selection};
use crate::backend::Backend;
use crate::kernel::NONE;
use crate::plan::{Demand, RetentionPlan};
use crate::tensor::Tensor;
use crate::{Error, Result};

/// What a call routed, on the host, before any expert has run.
#[derive(Debug, Clone, Copy)]
pub struct RoutedCall<'a> {
    /// `[T, k]`: the expert of each pair, by falling selection score of its token; [`NONE`] for a masked token.
    pub ids: &'a [u32],
    /// `[E]`: pairs routed to each expert.
    pub counts: &'a [u32],
    /// k: pair `t * k + j` is the j-th of token t.
    pub top_k: usize,
    /// Smoothed demand of the steps before, as [`MoeLayer::demand`].
    pub demand: Option<&'a Demand>,
}

/// What to compute of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// How many pairs of each expert backward retains. Its counts are the routed pairs less the dropped ones.
    pub retained: RetentionPlan,
    /// `[T, k]`: true for the pairs that not even forward computes; absent where there are none.
    pub dropped: Option<Vec<bool>>,
}

/// A [`Schedule`] that fits its call.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) plan: RetentionPlan,
    /// Absent where nothing is dropped.
    pub(super) drops: Option<Drops>,
}

/// Pairs that forward leaves out, one at least.
#[derive(Debug)]
pub(super) struct Drops {
    /// `[T, k]`: the expert of each pair that is computed, [`NONE`] for the others.
    pub(super) ids: Vec<u32>,
    /// `[E]`: pairs dropped.
    pub(super) counts: Vec<u32>,
}

impl Drops {
    fn new(dropped: &[bool], call: &RoutedCall<'_>) -> Result<Option<Self>> {
        if dropped.len() != call.ids.len() {
            return Err(Error::shape("length of `dropped`", dropped.len(), format!("{} pairs", call.ids.len())));
        }
        let mut drops = Self { ids: call.ids.to_vec(), counts: vec![0; call.counts.len()] };
        let mut any = false;
        for (pair, id) in drops.ids.iter_mut().enumerate().filter(|&(pair, _)| dropped[pair]) {
            let Some(count) = drops.counts.get_mut(*id as usize) else {
                return Err(Error::argument(format!("dropped[{pair}]"), true, "false for a pair of a masked token"));
            };
            *count += 1;
            *id = NONE;
            any = true;
        }
        Ok(any.then_some(drops))
    }
}

impl Schedule {
    fn check(self, call: &RoutedCall<'_>, select: Selection) -> Result<Checked> {
        let Self { retained: plan, dropped } = self;
        for (name, len) in [("retained.counts", plan.counts.len()), ("retained.quotas", plan.quotas.len())] {
            if len != call.counts.len() {
                return Err(Error::shape(format!("length of `{name}`"), len, format!("{} experts", call.counts.len())));
            }
        }
        let drops = dropped.map(|dropped| Drops::new(&dropped, call)).transpose()?.flatten();
        // No known system drops in forward and selects in backward, and the router's baseline of such a token is not defined.
        let whole = match select {
            _ if drops.is_some() => Some("all that is computed, where pairs are dropped"),
            Selection::All => Some("all pairs, with select all"),
            _ => None,
        };
        for (e, (&routed, (&count, &quota))) in call.counts.iter().zip(plan.counts.iter().zip(&plan.quotas)).enumerate()
        {
            let left_out = drops.as_ref().map_or(0, |drops| drops.counts[e]);
            let computed = routed.saturating_sub(left_out);
            if count != computed {
                let allowed = format!("{computed}: {routed} pairs routed less {left_out} dropped");
                return Err(Error::argument(format!("retained.counts[{e}]"), count, allowed));
            }
            let fits = if whole.is_some() { quota == count } else { quota <= count };
            if !fits {
                let allowed = whole.map_or_else(|| format!("at most {count}"), |why| format!("{count}: {why}"));
                return Err(Error::argument(format!("retained.quotas[{e}]"), quota, allowed));
            }
        }
        Ok(Checked { plan, drops })
    }
}

impl<B: Backend> MoeLayer<B> {
    /// As [`MoeLayer::forward`] or, given `logits [T, E]`, [`MoeLayer::forward_with_logits`], under a schedule of the host's own: it
    /// is asked for once routing is known and before any expert runs, and its quotas take the place of the layer's.
    ///
    /// A *dropped* pair is not computed, as where a capacity overflows in GShard (Lepikhin et al. 2020), Switch (Fedus et al. 2021) and
    /// SYMI: it adds nothing to y, which leaves the token to the residual connection around the layer. It gets no dx, and the gradient of its
    /// combine weight is exactly 0. The other combine weights of its token stay as they are; what they owe to the dropped pair's score
    /// through their normalisation, and the router losses and [`SavedForward::counts`], take all routed pairs into account.
    ///
    /// Quotas are taken as they come. Under [`Selection::Unbiased`] and [`Selection::Mixed`] an expert with more pairs needs 2 at least:
    /// with 1 the variance of its gradient is infinite. [`Selection::Systematic`] needs 1. With 0 there is no gradient and the estimate is
    /// biased.
    ///
    /// # Errors
    /// As [`MoeLayer::forward`], what `schedule` returns, and for a schedule that does not fit the call [`Error::Shape`] or
    /// [`Error::Argument`]: counts other than the pairs left to compute, quotas above them or, with [`Selection::All`] or dropped pairs,
    /// below them, a dropped pair of a masked token.
    pub fn forward_scheduled(
        &self,
        x: &Tensor<B>,
        logits: Option<&Tensor<B>>,
        context: &ForwardContext<'_>,
        schedule: impl FnOnce(&RoutedCall<'_>) -> Result<Schedule>,
    ) -> Result<(Tensor<B>, SavedForward<B>)> {
        self.forward_saving(x, logits, context, |routed, counts| {
            let ids = self.backend.read_blocking(&routed.ids)?.into_u32()?;
            let top_k = self.config.num_experts_per_tok;
            let call = RoutedCall { ids: &ids, counts, top_k, demand: self.demand.as_ref() };
            schedule(&call)?.check(&call, self.options.select)
        })
    }
}
