//! Every buffer of a rank, in one table: what the layer allocates, when it lives, and what it is charged to.
//!
//! The table mirrors the layer on one rank to the byte (a test holds the accountant against it) and fixes what the exchange over several
//! ranks may allocate: each wave sends and computes at most `wave_rows` pairs, so that its send and receive buffers, and the grouped GEMMs
//! between them, hold the smaller of that and what the rank has at all. The shared expert and the router's way back, which need
//! no exchange, run over as many tokens at a time. State of a token or pair that is not exchanged stays with its source.

use super::demand::BINS;
use super::mode::{Activations, Ownership, RouterGradient};
use super::setup::Setup;
use crate::Result;
use crate::memory::Category;

/// Statistics that scoring and selection write for each expert, and the elements whose squares are summed together. The kernels define
/// them; planning knows no kernels, and the byte-exact test holds the two together.
const SCORE_SUMS: u64 = 3;
const SCORE_COUNTS: u64 = 2;
const SELECT_STATS: u64 = 5;
const SQUARES_BLOCK: u64 = 4096;
/// Counters, and sums, an expert for one round of the radix selection over ranks, see [`SelectRule`](crate::kernel::SelectRule).
const RADIX: u64 = 256;
/// Gradients and fresh weights cross between ranks in pieces of at most so many elements.
const PIECE: u64 = 1 << 22;

const F32: u64 = 4;
const U32: u64 = 4;
const U64: u64 = 8;

/// When a buffer is live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Span {
    /// As long as the layer; each layer has its own.
    Layer,
    /// From the layer's forward to its backward; each layer has its own.
    Saved,
    /// During one forward; layers share the memory.
    Forward,
    /// During one backward; layers share the memory.
    Backward,
    /// Between backward and the next forward, while the optimizer steps; layers share the memory.
    Step,
}

/// One buffer of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct PlannedBuffer {
    /// Name of the allocation.
    pub name: &'static str,
    /// When it is live.
    pub span: Span,
    /// What it is charged to.
    pub category: Category,
    /// Bytes asked for: elements times bytes an element.
    pub bytes: u64,
}

/// Pairs, tokens and instances of one rank in one layer: what its memory depends on, and never falls
/// as one of them grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankLoad {
    /// T: tokens of this rank.
    pub tokens: u64,
    /// Pairs it is the source of, at most `tokens * k`.
    pub pairs: u64,
    /// Experts whose own copy is here.
    pub owned: u64,
    /// Further instances here. Where this step's placement and the next one differ, the larger number of both: instances that go give
    /// their memory back before those that come take theirs.
    pub replicas: u64,
    /// Pairs it computes in forward.
    pub forward_rows: u64,
    /// Pairs it may back-propagate.
    pub backward_rows: u64,
    /// Pairs it is the source of that may be retained.
    pub retained: u64,
    /// Whether the plan drops any pair of the layer, on whatever rank.
    pub drops: bool,
}

impl RankLoad {
    /// The only rank of a layer with `experts` experts: `tokens` tokens of `top_k` pairs each, `retained` of which are kept.
    #[must_use]
    pub const fn alone(experts: u64, top_k: u64, tokens: u64, retained: u64) -> Self {
        let pairs = tokens.saturating_mul(top_k);
        Self {
            tokens,
            pairs,
            owned: experts,
            replicas: 0,
            forward_rows: pairs,
            backward_rows: retained,
            retained,
            drops: retained < pairs,
        }
    }

    /// The larger one of each field: needs at least what either needs.
    #[must_use]
    pub fn max(&self, other: &Self) -> Self {
        Self {
            tokens: self.tokens.max(other.tokens),
            pairs: self.pairs.max(other.pairs),
            owned: self.owned.max(other.owned),
            replicas: self.replicas.max(other.replicas),
            forward_rows: self.forward_rows.max(other.forward_rows),
            backward_rows: self.backward_rows.max(other.backward_rows),
            retained: self.retained.max(other.retained),
            drops: self.drops || other.drops,
        }
    }
}

/// Sizes and choices that all ranks of a setup share. Products saturate: a total of `u64::MAX` is no size but an overflow.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    hidden: u64,
    width: u64,
    experts: u64,
    top_k: u64,
    shared: u64,
    shared_gate: bool,
    correction_bias: bool,
    element: u64,
    expert_parameters: u64,
    router_parameters: u64,
    shared_parameters: u64,
    state_bytes: u64,
    ranks: u64,
    ownership: Ownership,
    activations: Activations,
    router_gradient: RouterGradient,
    pub(super) scores: bool,
    pub(super) ordered: bool,
    pub(super) full_metric: bool,
    pub(super) router_losses: bool,
    pub(super) masked: bool,
    pub(super) token_ids: bool,
}

impl Shape {
    pub(super) fn new(setup: &Setup, ownership: Ownership, activations: Activations) -> Result<Self> {
        let config = &setup.config;
        Ok(Self {
            hidden: config.hidden_size as u64,
            width: config.moe_intermediate_size as u64,
            experts: config.num_experts as u64,
            top_k: config.num_experts_per_tok as u64,
            shared: config.shared_expert_intermediate_size as u64,
            shared_gate: config.shared_expert_gate,
            correction_bias: config.correction_bias,
            element: setup.dtype.bytes() as u64,
            expert_parameters: config.expert_parameters()?,
            router_parameters: config.router_parameters()?,
            shared_parameters: config.shared_expert_parameters()?,
            state_bytes: if setup.optimizer_offload { 0 } else { setup.state_bytes() },
            ranks: setup.cluster.ranks.max(1) as u64,
            ownership,
            activations,
            router_gradient: setup.router_gradient,
            scores: setup.options.retention != super::Retention::Fraction(1.0),
            ordered: true,
            full_metric: false,
            router_losses: config.router_aux_loss_coef > 0.0,
            masked: false,
            token_ids: false,
        })
    }

    pub(super) const fn top_k(&self) -> u64 {
        self.top_k
    }

    pub(super) const fn experts(&self) -> u64 {
        self.experts
    }

    /// Hands every buffer of one layer to `put`. `wave_rows` bounds the pairs that one wave sends or computes.
    pub(super) fn visit(&self, load: &RankLoad, wave_rows: u64, put: &mut impl FnMut(PlannedBuffer)) {
        self.long_lived(load, put);
        self.saved(load, put);
        self.forward(load, wave_rows, put);
        self.backward(load, wave_rows, put);
        self.step(load, put);
    }

    const fn many_ranks(&self) -> bool {
        self.ranks > 1
    }

    const fn stashes(&self) -> bool {
        matches!(self.activations, Activations::Stash)
    }

    const fn exact_router(&self) -> bool {
        matches!(self.router_gradient, RouterGradient::Exact)
    }

    /// The baseline of dropped pairs needs y without the shared expert.
    const fn keeps_y(&self, load: &RankLoad) -> bool {
        load.drops && !self.exact_router()
    }

    /// Parameters of a rank's shard of all experts. The P parameters of an expert are cut in R runs of `P / R`; its `P mod R` left-over
    /// parameters go to one rank each, round-robin from expert to expert. So no rank has more than `ceil(E P / R)`.
    fn shard(&self) -> u64 {
        self.experts.saturating_mul(self.expert_parameters).div_ceil(self.ranks)
    }

    fn long_lived(&self, load: &RankLoad, put: &mut impl FnMut(PlannedBuffer)) {
        let mut add = |name, category, bytes: &[u64]| {
            put(PlannedBuffer { name, span: Span::Layer, category, bytes: product(bytes) });
        };
        let (expert, element) = (self.expert_parameters, self.element);
        add("router", Category::Weights, &[self.router_parameters, element]);
        add("experts", Category::Weights, &[load.owned, expert, element]);
        add("shared", Category::Weights, &[self.shared_parameters, element]);
        add("correction_bias", Category::Weights, &[u64::from(self.correction_bias), self.experts, F32]);
        add("grad.router", Category::Gradients, &[self.router_parameters, F32]);
        add("grad.experts", Category::Gradients, &[load.owned, expert, F32]);
        add("grad.shared", Category::Gradients, &[self.shared_parameters, F32]);
        add("replicas", Category::Replicas, &[load.replicas, expert, element]);
        add("grad.replicas", Category::Replicas, &[load.replicas, expert, F32]);
        let stepped = match self.ownership {
            Ownership::Home => product(&[load.owned, expert]),
            Ownership::Sharded => self.shard(),
        };
        add("state.router", Category::Optimizer, &[self.router_parameters, self.state_bytes]);
        add("state.experts", Category::Optimizer, &[stepped, self.state_bytes]);
        add("state.shared", Category::Optimizer, &[self.shared_parameters, self.state_bytes]);
        if self.ownership == Ownership::Sharded && self.many_ranks() {
            add("grad.shard", Category::Gradients, &[stepped, F32]);
        }
    }

    /// What waits for backward, sized by the source's tokens and, for activations, by the pairs that the rank computed.
    fn saved(&self, load: &RankLoad, put: &mut impl FnMut(PlannedBuffer)) {
        let mut add = |name, bytes: &[u64]| {
            put(PlannedBuffer { name, span: Span::Saved, category: Category::Stash, bytes: product(bytes) });
        };
        let (tokens, experts, hidden) = (load.tokens, self.experts, self.hidden);
        add("all_tokens", &[2, U32]);
        if self.masked {
            add("mask", &[tokens, U32]);
            add("valid_offsets", &[2, U32]);
            add("valid_tokens", &[tokens, U32]);
            add("row_of_token", &[tokens, U32]);
        }
        if self.token_ids {
            add("token_ids", &[tokens, 2, U32]);
        }
        add("logits", &[tokens, experts, F32]);
        add("ids", &[tokens, self.top_k, U32]);
        add("combine_weights", &[tokens, self.top_k, F32]);
        add("counts", &[experts, U32]);
        add("offsets", &[experts + 1, U32]);
        add("pair_of_row", &[tokens, self.top_k, U32]);
        add("row_of_pair", &[tokens, self.top_k, U32]);
        add("h_norm", &[tokens, self.top_k, F32]);
        if self.router_losses {
            add("loss_sums", &[experts + 1, F32]);
        }
        if self.exact_router() {
            add("expert_out", &[tokens, self.top_k, hidden, F32]);
        }
        if self.keeps_y(load) {
            add("y", &[tokens, hidden, F32]);
        }
        if self.shared > 0 && self.shared_gate {
            add("shared_gate", &[tokens, F32]);
        }
        if self.stashes() {
            add("ab", &[load.forward_rows, 2, self.width, F32]);
            if self.many_ranks() {
                add("x_rows", &[load.forward_rows, hidden, self.element]);
            }
            if self.shared > 0 {
                add("shared.ab", &[tokens, 2, self.shared, F32]);
            }
        }
    }

    fn forward(&self, load: &RankLoad, wave_rows: u64, put: &mut impl FnMut(PlannedBuffer)) {
        let mut add = |name, category, bytes: &[u64]| {
            put(PlannedBuffer { name, span: Span::Forward, category, bytes: product(bytes) });
        };
        let (sent, rows, tokens) =
            (load.pairs.min(wave_rows), load.forward_rows.min(wave_rows), load.tokens.min(wave_rows));
        let (hidden, width, shared) = (self.hidden, self.width, self.shared);
        if !self.stashes() {
            add("ab", Category::TokenBuffers, &[rows, 2, width, F32]);
        }
        add("h", Category::TokenBuffers, &[rows, width, F32]);
        if self.many_ranks() || !self.exact_router() {
            add("expert_out", Category::TokenBuffers, &[rows, hidden, F32]);
        }
        if !self.keeps_y(load) || shared > 0 {
            add("y", Category::TokenBuffers, &[load.tokens, hidden, F32]);
        }
        if shared > 0 {
            if self.shared_gate {
                add("shared.logits", Category::Stash, &[load.tokens, F32]);
            }
            if !self.stashes() {
                add("shared.ab", Category::TokenBuffers, &[tokens, 2, shared, F32]);
            }
            add("shared.h", Category::TokenBuffers, &[tokens, shared, F32]);
            add("shared.h_norm", Category::Stash, &[tokens, F32]);
            add("shared.expert_out", Category::TokenBuffers, &[tokens, hidden, F32]);
        }
        if self.many_ranks() {
            add("wave.offsets", Category::TokenBuffers, &[self.experts + 1, U32]);
            add("wave.pair_of_row", Category::TokenBuffers, &[rows, U32]);
            add("counts_of_ranks", Category::Exchange, &[self.ranks, self.experts, U32]);
            add("send.x", Category::Exchange, &[sent, hidden, self.element]);
            add("send.row", Category::Exchange, &[sent, U32]);
            add("send.weight", Category::Exchange, &[sent, F32]);
            add("recv.x", Category::Exchange, &[rows, hidden, self.element]);
            add("recv.row", Category::Exchange, &[rows, U32]);
            add("recv.weight", Category::Exchange, &[rows, F32]);
            add("send.out", Category::Exchange, &[rows, hidden, self.element]);
            add("send.h_norm", Category::Exchange, &[rows, F32]);
            add("recv.out", Category::Exchange, &[sent, hidden, self.element]);
            add("recv.h_norm", Category::Exchange, &[sent, F32]);
        }
    }

    fn backward(&self, load: &RankLoad, wave_rows: u64, put: &mut impl FnMut(PlannedBuffer)) {
        let mut add = |name, category, bytes: &[u64]| {
            put(PlannedBuffer { name, span: Span::Backward, category, bytes: product(bytes) });
        };
        let (rows, tokens) = (load.backward_rows.min(wave_rows), load.tokens.min(wave_rows));
        let (experts, hidden, top_k) = (self.experts, self.hidden, self.top_k);
        let mut scratch = |name, bytes: &[u64]| add(name, Category::Scratch, bytes);
        if self.scores || load.drops {
            scratch("d_norm", &[load.tokens, F32]);
            scratch("score", &[load.tokens, top_k, F32]);
            scratch("score_mean", &[experts, F32]);
            scratch("score_histogram", &[experts, BINS as u64, U32]);
            scratch("score_sums", &[experts, SCORE_SUMS, F32]);
            scratch("score_counts", &[experts, SCORE_COUNTS, U32]);
            if self.full_metric {
                scratch("x_norm", &[load.tokens, F32]);
                scratch("kappa", &[experts, F32]);
                scratch("d_ab_norm", &[rows, F32]);
            }
        }
        if load.drops {
            if self.ordered {
                scratch("d_key", &[load.tokens, U32]);
            }
            scratch("quotas", &[experts, U32]);
            scratch("kept_offsets", &[experts + 1, U32]);
            for name in ["kept_row", "kept_pair", "kept_weight", "kept_scale"] {
                scratch(name, &[load.retained, F32]);
            }
            scratch("kept_of_pair", &[load.tokens, top_k, U32]);
            scratch("select_stats", &[experts, SELECT_STATS, F32]);
        } else {
            scratch("scale", &[load.tokens, top_k, F32]);
        }
        self.expert_backward((rows, self.width), &mut scratch);
        scratch("d_weights", &[load.tokens, top_k, F32]);
        if self.keeps_y(load) {
            scratch("dot_dy", &[load.tokens, F32]);
        }
        scratch("finite", &[product(&[load.tokens, top_k]).div_ceil(SQUARES_BLOCK), 2, F32]);
        if self.router_losses {
            scratch("aux_gradient", &[experts, F32]);
        }
        scratch("router.dx_rows", &[tokens, hidden, F32]);
        if self.shared > 0 {
            self.expert_backward((tokens, self.shared), &mut scratch);
            if self.shared_gate {
                if self.masked {
                    scratch("shared_gate_rows", &[load.tokens, F32]);
                }
                scratch("shared_gate_grad", &[load.tokens, F32]);
                scratch("shared_gate.dx_rows", &[tokens, hidden, F32]);
            }
        }
        add("dx", Category::TokenBuffers, &[load.tokens, hidden, F32]);
        add("d_logits", Category::TokenBuffers, &[load.tokens, experts, F32]);
        if self.many_ranks() {
            self.backward_exchange(load, wave_rows, &mut |name, bytes| add(name, Category::Exchange, bytes));
        }
    }

    /// The backward pass of a bank of experts, of rows and inner width.
    fn expert_backward(&self, (rows, width): (u64, u64), scratch: &mut impl FnMut(&'static str, &[u64])) {
        if !self.stashes() {
            scratch("ab", &[rows, 2, width, F32]);
        }
        scratch("u", &[rows, width, F32]);
        scratch("d_ab", &[rows, 2, width, F32]);
        scratch("h_again", &[rows, width, F32]);
        scratch("dot", &[rows, F32]);
        scratch("dx_rows", &[rows, self.hidden, F32]);
    }

    fn backward_exchange(&self, load: &RankLoad, wave_rows: u64, add: &mut impl FnMut(&'static str, &[u64])) {
        let (sent, rows) = (load.retained.min(wave_rows), load.backward_rows.min(wave_rows));
        let (hidden, element) = (self.hidden, self.element);
        if self.scores || load.drops {
            add("key_counts", &[self.experts, RADIX, U32]);
            // Later the sums by key, of the same size.
            if self.ordered {
                add("key_sums", &[self.experts, RADIX, U64]);
            }
            add("retained_of_ranks", &[self.ranks, self.experts, U32]);
        }
        add("wave.offsets", &[self.experts + 1, U32]);
        add("send.d", &[sent, hidden, element]);
        add("send.row", &[sent, U32]);
        add("send.scale", &[sent, F32]);
        add("recv.d", &[rows, hidden, element]);
        add("recv.row", &[rows, U32]);
        add("recv.scale", &[rows, F32]);
        if self.stashes() {
            add("send.stash_row", &[sent, U32]);
            add("recv.stash_row", &[rows, U32]);
        } else {
            add("send.x", &[sent, hidden, element]);
            add("recv.x", &[rows, hidden, element]);
        }
        add("send.dx", &[rows, hidden, element]);
        add("recv.dx", &[sent, hidden, element]);
        add("recv.dot", &[sent, F32]);
        add("dot_of_pair", &[load.retained, F32]);
    }

    fn step(&self, load: &RankLoad, put: &mut impl FnMut(PlannedBuffer)) {
        let mut add = |name, category, bytes: &[u64]| {
            put(PlannedBuffer { name, span: Span::Step, category, bytes: product(bytes) });
        };
        let (hidden, width, shared) = (self.hidden, self.width, self.shared);
        let mut norm = |len: u64| add("grad_norm", Category::Scratch, &[len.div_ceil(SQUARES_BLOCK), 2, F32]);
        norm(self.router_parameters);
        if self.ownership == Ownership::Sharded && self.many_ranks() {
            norm(self.shard());
        } else {
            norm(product(&[load.owned, 2, width, hidden]));
            norm(product(&[load.owned, width, hidden]));
        }
        if shared > 0 {
            norm(product(&[2, shared, hidden]));
            norm(product(&[shared, hidden]));
            if self.shared_gate {
                norm(hidden);
            }
        }
        if self.many_ranks() {
            let largest = self.expert_parameters.max(self.router_parameters).max(self.shared_parameters);
            let piece = largest.min(PIECE);
            for (name, bytes) in
                [("send.grad", F32), ("recv.grad", F32), ("send.weights", self.element), ("recv.weights", self.element)]
            {
                add(name, Category::Exchange, &[piece, bytes]);
            }
        }
    }
}

fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |product, &factor| product.saturating_mul(factor))
}
