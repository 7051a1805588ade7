//! Router: selection, its gradient, the estimated gradient, and the gate of a shared expert.

use crate::backend::cuda::buffer::CudaBuffer;
use crate::backend::cuda::checks::Index;
use crate::backend::cuda::exec::Exec;
use crate::backend::cuda::launch::{Ptr, blocks_of, u32_of};
use crate::backend::cuda::table::{PLAIN, cuda_kernels};
use crate::backend::{Buffer, elements};
use crate::config::ScoringFunc;
use crate::kernel;
use crate::{Error, Result};

cuda_kernels! {
    /// Scores, selection and combine weights, a warp a token.
    "gate": Gate [] in PLAIN, threads 128, registers 40 {
        logits: read f32,
        bias: maybe f32,
        mask: maybe u32,
        ids: write u32,
        weights: write f32,
        tokens: value u64,
        experts: value u32,
        top_k: value u32,
        sigmoid: value u32,
        n_group: value u32,
        topk_group: value u32,
        normalise: value u32,
        norm_eps: value f32,
        scaling: value f32,
        keeps_keys: value u32,
    }
    /// Gradient of the router, a warp a token.
    "gate_backward": GateBackward [] in PLAIN, threads 128, registers 48 {
        logits: read f32,
        ids: read u32,
        d_weights: read f32,
        aux: maybe f32,
        d_logits: write f32,
        tokens: value u64,
        experts: value u32,
        top_k: value u32,
        sigmoid: value u32,
        normalise: value u32,
        norm_eps: value f32,
        scaling: value f32,
        z_scale: value f32,
    }
    /// Estimated gradient of the combine weights, a thread a pair.
    "router_grad": RouterGrad [] in PLAIN, threads 256, registers 32 {
        weights: read f32,
        dot_dy: maybe f32,
        dot: read f32,
        weight: maybe f32,
        kept_of_pair: read u32,
        ids: read u32,
        d_weights: write f32,
        pairs: value u64,
        rows: value u64,
        top_k: value u32,
    }
    /// `s = sigmoid(z)`.
    "sigmoid": Sigmoid [] in PLAIN, threads 256, registers 16 {
        z: read f32,
        s: write f32,
        len: value u64,
    }
    /// `dz = ds s (1 - s)`.
    "sigmoid_backward": SigmoidBackward [] in PLAIN, threads 256, registers 16 {
        s: read f32,
        ds: read f32,
        dz: write f32,
        len: value u64,
    }
}

/// Tokens of a block of the gate and its gradient, `TOKENS_OF_A_BLOCK` of `cuda/`.
const TOKENS_OF_A_BLOCK: usize = 4;

pub(super) fn gate(args: &kernel::Gate<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (tokens, experts, top_k, rule) = (args.tokens, args.experts, args.top_k, args.rule);
    rule.check(experts, top_k)?;
    let logits = elements("logits", &[tokens, experts])?;
    let pairs = elements("pairs", &[tokens, top_k])?;
    // Keys of groups where some drop out, and of experts where there is room.
    let groups = if rule.topk_group < rule.n_group { rule.n_group } else { 0 };
    let room = to.gpu().shared_per_block as usize / (4 * TOKENS_OF_A_BLOCK);
    if groups > room {
        return Err(Error::Unsupported {
            what: format!("gate of {} groups of experts", rule.n_group),
            why: format!("shared memory holds the scores of {room}"),
        });
    }
    let keeps_keys = experts <= room - groups;
    let words = TOKENS_OF_A_BLOCK * (groups + if keeps_keys { experts } else { 0 });
    let launch = Gate {
        logits: Ptr::f32(&args.logits, logits)?,
        bias: Ptr::optional_f32(args.bias.as_ref(), experts)?,
        mask: Ptr::optional_u32(args.mask.as_ref(), tokens)?,
        ids: Ptr::u32(&args.ids, pairs)?,
        weights: Ptr::f32(&args.weights, pairs)?,
        tokens: tokens as u64,
        experts: u32_of("experts", experts)?,
        top_k: u32_of("top_k", top_k)?,
        sigmoid: (rule.scoring == ScoringFunc::Sigmoid).into(),
        n_group: u32_of("n_group", rule.n_group)?,
        topk_group: u32_of("topk_group", rule.topk_group)?,
        normalise: rule.normalise.into(),
        norm_eps: rule.norm_eps,
        scaling: rule.scaling,
        keeps_keys: keeps_keys.into(),
    };
    launch.launch(to, blocks_of(tokens, TOKENS_OF_A_BLOCK), u32_of("keys", 4 * words)?)
}

pub(super) fn gate_backward(args: &kernel::GateBackward<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (tokens, experts, top_k, rule) = (args.tokens, args.experts, args.top_k, args.rule);
    rule.check(experts, top_k)?;
    let logits = elements("logits", &[tokens, experts])?;
    let pairs = elements("pairs", &[tokens, top_k])?;
    let launch = GateBackward {
        logits: Ptr::f32(&args.logits, logits)?,
        ids: Ptr::u32(&args.ids, pairs)?,
        d_weights: Ptr::f32(&args.d_weights, pairs)?,
        aux: Ptr::optional_f32(args.aux.as_ref(), experts)?,
        d_logits: Ptr::f32(&args.d_logits, logits)?,
        tokens: tokens as u64,
        experts: u32_of("experts", experts)?,
        top_k: u32_of("top_k", top_k)?,
        sigmoid: (rule.scoring == ScoringFunc::Sigmoid).into(),
        normalise: rule.normalise.into(),
        norm_eps: rule.norm_eps,
        scaling: rule.scaling,
        z_scale: args.z_scale,
    };
    to.check_index(Index::or_none("ids", &args.ids, pairs, experts))?;
    launch.launch(to, blocks_of(tokens, TOKENS_OF_A_BLOCK), 0)
}

pub(super) fn router_grad(args: &kernel::RouterGrad<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (tokens, top_k) = (args.tokens, args.top_k);
    let pairs = elements("pairs", &[tokens, top_k])?;
    let rows = args.dot.len();
    let launch = RouterGrad {
        weights: Ptr::f32(&args.weights, pairs)?,
        dot_dy: Ptr::optional_f32(args.dot_dy.as_ref(), tokens)?,
        dot: Ptr::f32(&args.dot, rows)?,
        weight: Ptr::optional_f32(args.weight.as_ref(), rows)?,
        kept_of_pair: Ptr::u32(&args.kept_of_pair, pairs)?,
        ids: Ptr::u32(&args.ids, pairs)?,
        d_weights: Ptr::f32(&args.d_weights, pairs)?,
        pairs: pairs as u64,
        rows: rows as u64,
        top_k: u32_of("top_k", top_k)?,
    };
    to.check_index(Index::or_none("kept_of_pair", &args.kept_of_pair, pairs, rows))?;
    launch.launch(to, blocks_of(pairs, 256), 0)
}

pub(super) fn sigmoid(args: &kernel::Sigmoid<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (z, s) = (Ptr::f32(&args.z, args.len)?, Ptr::f32(&args.s, args.len)?);
    Sigmoid { z, s, len: args.len as u64 }.launch(to, blocks_of(args.len, 256), 0)
}

pub(super) fn sigmoid_backward(args: &kernel::SigmoidBackward<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (s, ds, dz) = (Ptr::f32(&args.s, args.len)?, Ptr::f32(&args.ds, args.len)?, Ptr::f32(&args.dz, args.len)?);
    SigmoidBackward { s, ds, dz, len: args.len as u64 }.launch(to, blocks_of(args.len, 256), 0)
}
