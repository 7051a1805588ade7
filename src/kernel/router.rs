//! Router kernels: selection, gradients, losses, and the gate of a shared expert.

use crate::{Error, Result};

/// Selection and weighting rule of the router: constants of [`Gate`] and [`GateBackward`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateRule {
    /// Softmax over all experts, or a sigmoid per expert.
    pub scoring: crate::config::ScoringFunc,
    /// Groups of consecutive experts; 1 for no grouping.
    pub n_group: usize,
    /// Groups that stay eligible.
    pub topk_group: usize,
    /// Divide the selected weights by their sum.
    pub normalise: bool,
    /// Added to that sum (1e-20 in GLM-4 and DeepSeek-V3, 0 elsewhere).
    pub norm_eps: f32,
    /// Factor on the final weights.
    pub scaling: f32,
}

impl GateRule {
    /// Whether `top_k` of `experts` can be chosen by this rule.
    pub(crate) fn check(&self, experts: usize, top_k: usize) -> Result<()> {
        if self.n_group == 0 || !experts.is_multiple_of(self.n_group) {
            return Err(Error::argument("n_group", self.n_group, format!("a divisor of {experts} experts")));
        }
        if self.topk_group == 0 || self.topk_group > self.n_group {
            return Err(Error::argument("topk_group", self.topk_group, format!("1 to {}", self.n_group)));
        }
        let candidates = experts / self.n_group * self.topk_group;
        if top_k == 0 || top_k > candidates {
            return Err(Error::argument("top_k", top_k, format!("1 to {candidates}")));
        }
        Ok(())
    }
}

kernel! {
    /// Router: scores, selection and combine weights, with Hugging Face semantics.
    ///
    /// `ids[t]` are the selected experts by falling selection score, the lower index first among equals; NaN comes
    /// before every number. A masked token gets [`NONE`](super::NONE) and weight 0.
    Gate {
        params {
            /// T.
            tokens: usize,
            /// E.
            experts: usize,
            /// k.
            top_k: usize,
            /// Scoring, grouping, normalisation, scaling.
            rule: GateRule,
        }
        read {
            /// f32 `[T, E]`.
            logits: Buf,
            /// f32 `[E]`, added to the scores for selection only.
            bias: Option<Buf>,
            /// u32 `[T]`, 0 = masked.
            mask: Option<Buf>,
        }
        write {
            /// u32 `[T, k]`.
            ids: Buf,
            /// f32 `[T, k]`.
            weights: Buf,
        }
    }
}

kernel! {
    /// Gradient of the router: combine weights, auxiliary loss and z-loss back to the logits.
    ///
    /// `d_logits = J_gate^T d_weights + J_softmax^T aux + 2 z_scale lse softmax`, exact zeros for masked tokens.
    GateBackward {
        params {
            /// T.
            tokens: usize,
            /// E.
            experts: usize,
            /// k.
            top_k: usize,
            /// As in the forward pass.
            rule: GateRule,
            /// Coefficient of the z-loss over its number of tokens.
            z_scale: f32,
        }
        read {
            /// f32 `[T, E]`.
            logits: Buf,
            /// u32 `[T, k]`, as [`Gate`] wrote it.
            ids: Buf,
            /// f32 `[T, k]`: dL/d(combine weights).
            d_weights: Buf,
            /// f32 `[E]`: dL/d(softmax probability of expert e), the same for every token.
            aux: Option<Buf>,
        }
        write {
            /// f32 `[T, E]`.
            d_logits: Buf,
        }
    }
}

kernel! {
    /// Sums that the router losses need: `sum_t softmax(logits_t)` and `sum_t logsumexp(logits_t)^2`.
    RouterLoss {
        params {
            /// T.
            tokens: usize,
            /// E.
            experts: usize,
        }
        read {
            /// f32 `[T, E]`.
            logits: Buf,
            /// u32 `[T]`, 0 = masked: takes no part.
            mask: Option<Buf>,
        }
        write {
            /// f32 `[E + 1]`: probability sums, then the squared logsumexp sum.
            sums: Buf,
        }
    }
}

kernel! {
    /// The estimated router gradient, ALGORITHM section 3.7: `c_t = dot_dy[t] / sum_j g_tj` (0 where that sum is 0 or
    /// `dot_dy` is absent); `c_t` for a pair that is not retained, `c_t + w (<u, h> - c_t)` for a retained one, `<u, h>` where w = 1.
    RouterGrad {
        params {
            /// T.
            tokens: usize,
            /// k.
            top_k: usize,
        }
        read {
            /// f32 `[T, k]`.
            weights: Buf,
            /// f32 `[T]`: `<d_t, y_t>` of the routed part; absent where every pair that was computed is retained.
            dot_dy: Option<Buf>,
            /// f32 `[kept]`: `<u, h>`.
            dot: Buf,
            /// f32 `[kept]`: pair weights; 1 where absent.
            weight: Option<Buf>,
            /// u32 `[T, k]`: retained row of each pair, or [`NONE`](super::NONE).
            kept_of_pair: Buf,
            /// u32 `[T, k]`: [`NONE`](super::NONE) for masked tokens, whose gradient is 0.
            ids: Buf,
        }
        write {
            /// f32 `[T, k]`.
            d_weights: Buf,
        }
    }
}

kernel! {
    /// `s = sigmoid(z)`.
    Sigmoid {
        params {
            /// Elements.
            len: usize,
        }
        read {
            /// f32.
            z: Buf,
        }
        write {
            /// f32.
            s: Buf,
        }
    }
}

kernel! {
    /// `dz = ds s (1 - s)`.
    SigmoidBackward {
        params {
            /// Elements.
            len: usize,
        }
        read {
            /// f32.
            s: Buf,
            /// f32.
            ds: Buf,
        }
        write {
            /// f32.
            dz: Buf,
        }
    }
}
