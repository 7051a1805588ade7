//! Router: selection, its gradient, the estimated gradient, and the gate of a shared expert.

use crate::backend::wgpu::buffer::WgpuBuffer;
use crate::backend::wgpu::checks::Index;
use crate::backend::wgpu::encode::Encoder;
use crate::backend::wgpu::launch::{Arg, Launch, MAX_ROUNDS, groups_of, u32_of};
use crate::backend::wgpu::shader::{Constant, Param, Source, source};
use crate::backend::{Buffer, elements};
use crate::config::ScoringFunc;
use crate::kernel::{Gate, GateBackward, RouterGrad, Sigmoid, SigmoidBackward};
use crate::{Error, Result};

static GATE: Source = source!("gate", ["lib_sigmoid", "lib_reduce", "lib_softmax", "lib_gate"]);
static GATE_BACKWARD: Source = source!("gate_backward", ["lib_sigmoid", "lib_reduce", "lib_softmax", "lib_gate"]);
static ROUTER_GRAD: Source = source!("router_grad");
static SIGMOID: Source = source!("sigmoid", ["lib_sigmoid"]);
static SIGMOID_BACKWARD: Source = source!("sigmoid_backward");

/// Workgroup memory in bytes that every device has.
const WORKGROUP_BYTES: usize = 16 << 10;

/// Bytes of workgroup memory for reductions, per invocation and per part: a sum, a maximum, the best key with its index.
const LANE_BYTES: usize = 16;

/// Parts of a reduction at most, `PARTS` of `lib_common.wgsl`.
const MAX_PARTS: usize = 16;

/// Invocations for a row of experts: about four experts each.
pub(super) fn workgroup_for(experts: usize) -> u32 {
    match experts {
        0..=128 => 32,
        129..=256 => 64,
        257..=512 => 128,
        _ => 256,
    }
}

fn check_rounds(kernel: &str, rounds: usize, experts: usize, top_k: usize) -> Result<()> {
    if rounds <= MAX_ROUNDS {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: format!("{kernel} of {top_k} of {experts} experts"),
        why: format!("a token takes {rounds} rounds of one workgroup; at most {MAX_ROUNDS} are safe"),
    })
}

/// Rounds of the loops of one invocation: softmax and keys, groups, and slots.
fn gate_rounds(args: &Gate<WgpuBuffer>, lanes: usize) -> usize {
    let (experts, groups, kept) = (args.experts, args.rule.n_group, args.rule.topk_group);
    // A reduction takes the invocations in parts, then the parts.
    let reduction = MAX_PARTS + lanes / 8;
    let pass = |candidates: usize| candidates.div_ceil(lanes) + reduction;
    let slots = args.top_k * pass(experts);
    let selection = if kept < groups { groups.div_ceil(lanes) * (experts / groups) + kept * pass(groups) } else { 0 };
    3 * pass(experts) + selection + slots
}

pub(crate) fn gate(args: &Gate<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let (tokens, experts, top_k, rule) = (args.tokens, args.experts, args.top_k, args.rule);
    rule.check(experts, top_k)?;
    let logits = elements("logits", &[tokens, experts])?;
    let pairs = elements("pairs", &[tokens, top_k])?;
    u32_of("logits", logits)?;
    let (e, k) = (u32_of("experts", experts)?, u32_of("top_k", top_k)?);
    let workgroup = workgroup_for(experts);
    let lanes = workgroup as usize;
    let keys = (WORKGROUP_BYTES - LANE_BYTES * (lanes + MAX_PARTS)) / 4;
    if rule.n_group >= keys {
        return Err(Error::Unsupported {
            what: format!("gate of {} groups of experts", rule.n_group),
            why: format!("workgroup memory holds the scores of {keys}"),
        });
    }
    let keeps_keys = experts <= keys - rule.n_group;
    let rounds = gate_rounds(args, lanes);
    check_rounds("gate", rounds, experts, top_k)?;
    let softmax = rule.scoring == ScoringFunc::Softmax;
    to.launch(Launch {
        source: &GATE,
        entry: "main",
        workgroup,
        constants: vec![
            ("SIGMOID", Constant::Bool(!softmax)),
            // The logits have the order of the probabilities, and keep it where those round to equals.
            ("BY_LOGIT", Constant::Bool(softmax && args.bias.is_none() && rule.n_group == 1)),
            ("NORMALISE", Constant::Bool(rule.normalise)),
            ("N_GROUP", Constant::U32(u32_of("n_group", rule.n_group)?)),
            ("TOPK_GROUP", Constant::U32(u32_of("topk_group", rule.topk_group)?)),
            ("KEEPS_KEYS", Constant::Bool(keeps_keys)),
            ("KEPT_KEYS", Constant::U32(if keeps_keys { e } else { 1 })),
        ],
        params: vec![
            ("experts", Param::U32(e)),
            ("top_k", Param::U32(k)),
            ("group_size", Param::U32(u32_of("experts", experts / rule.n_group)?)),
            ("norm_eps", Param::F32(rule.norm_eps)),
            ("scaling", Param::F32(rule.scaling)),
        ],
        args: vec![
            Arg::f32_bits("logits", &args.logits, logits)?,
            Arg::optional_f32("bias", args.bias.as_ref(), experts)?,
            Arg::optional_u32("mask", args.mask.as_ref(), tokens)?,
            Arg::u32("ids", &args.ids, pairs)?,
            Arg::f32("weights", &args.weights, pairs)?,
        ],
        groups: tokens as u64,
        cost: (rounds * lanes * 4) as u64,
    })
}

pub(crate) fn gate_backward(args: &GateBackward<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let (tokens, experts, top_k, rule) = (args.tokens, args.experts, args.top_k, args.rule);
    rule.check(experts, top_k)?;
    let logits = elements("logits", &[tokens, experts])?;
    let pairs = elements("pairs", &[tokens, top_k])?;
    u32_of("logits", logits)?;
    let (e, k) = (u32_of("experts", experts)?, u32_of("top_k", top_k)?);
    let workgroup = workgroup_for(experts);
    let lanes = workgroup as usize;
    let per_lane = experts.div_ceil(lanes);
    let rounds = per_lane.saturating_mul(top_k.saturating_add(4)).saturating_add(2 * top_k.div_ceil(lanes) + 40);
    check_rounds("gate_backward", rounds, experts, top_k)?;
    let sigmoid = rule.scoring == ScoringFunc::Sigmoid;
    let has_z = args.z_scale != 0.0;
    let buffers = vec![
        Arg::f32_bits("logits", &args.logits, logits)?,
        Arg::u32("ids", &args.ids, pairs)?,
        Arg::f32("d_weights", &args.d_weights, pairs)?,
        Arg::optional_f32("aux", args.aux.as_ref(), experts)?,
        Arg::f32("d_logits", &args.d_logits, logits)?,
    ];
    to.check_index(Index::or_none("ids", &args.ids, pairs, experts))?;
    to.launch(Launch {
        source: &GATE_BACKWARD,
        entry: "main",
        workgroup,
        constants: vec![
            ("SIGMOID", Constant::Bool(sigmoid)),
            ("NORMALISE", Constant::Bool(rule.normalise)),
            ("HAS_Z", Constant::Bool(has_z)),
            ("NEEDS_SOFTMAX", Constant::Bool(!sigmoid || has_z || args.aux.is_some())),
        ],
        params: vec![
            ("experts", Param::U32(e)),
            ("top_k", Param::U32(k)),
            ("norm_eps", Param::F32(rule.norm_eps)),
            ("scaling", Param::F32(rule.scaling)),
            ("z_scale", Param::F32(args.z_scale)),
        ],
        args: buffers,
        groups: tokens as u64,
        cost: (rounds * lanes * 4) as u64,
    })
}

pub(crate) fn router_grad(args: &RouterGrad<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let (tokens, top_k) = (args.tokens, args.top_k);
    let pairs = elements("pairs", &[tokens, top_k])?;
    let rows = args.dot.len();
    let buffers = vec![
        Arg::f32("weights", &args.weights, pairs)?,
        Arg::optional_f32("dot_dy", args.dot_dy.as_ref(), tokens)?,
        Arg::f32("dot", &args.dot, rows)?,
        Arg::optional_f32("weight", args.weight.as_ref(), rows)?,
        Arg::u32("kept_of_pair", &args.kept_of_pair, pairs)?,
        Arg::u32("ids", &args.ids, pairs)?,
        Arg::f32("d_weights", &args.d_weights, pairs)?,
    ];
    check_rounds("router_grad", top_k, top_k, top_k)?;
    to.check_index(Index::or_none("kept_of_pair", &args.kept_of_pair, pairs, rows))?;
    to.launch(Launch {
        source: &ROUTER_GRAD,
        entry: "main",
        workgroup: 64,
        constants: vec![],
        params: vec![("top_k", Param::U32(u32_of("top_k", top_k)?)), ("pairs", Param::U32(u32_of("pairs", pairs)?))],
        args: buffers,
        groups: groups_of(pairs, 64),
        cost: 64 * (24 + 2 * top_k as u64),
    })
}

pub(crate) fn sigmoid(args: &Sigmoid<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    to.launch(Launch {
        source: &SIGMOID,
        entry: "main",
        workgroup: 64,
        constants: vec![],
        params: vec![("len", Param::U32(u32_of("len", args.len)?))],
        args: vec![Arg::f32("z", &args.z, args.len)?, Arg::f32("s", &args.s, args.len)?],
        groups: groups_of(args.len, 64),
        cost: 64 * 32,
    })
}

pub(crate) fn sigmoid_backward(args: &SigmoidBackward<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    to.launch(Launch {
        source: &SIGMOID_BACKWARD,
        entry: "main",
        workgroup: 64,
        constants: vec![],
        params: vec![("len", Param::U32(u32_of("len", args.len)?))],
        args: vec![
            Arg::f32("s", &args.s, args.len)?,
            Arg::f32("ds", &args.ds, args.len)?,
            Arg::f32("dz", &args.dz, args.len)?,
        ],
        groups: groups_of(args.len, 64),
        cost: 64 * 12,
    })
}
