//! Sums of the router losses.

use super::router::workgroup_for;
use crate::Result;
use crate::backend::elements;
use crate::backend::wgpu::buffer::WgpuBuffer;
use crate::backend::wgpu::encode::Encoder;
use crate::backend::wgpu::launch::{Arg, Launch, check_rounds, groups_of, u32_of};
use crate::backend::wgpu::shader::{Constant, Param, Source, source};
use crate::kernel::RouterLoss;
use crate::tensor::DType;

static PASSES: Source = source!("router_loss", ["lib_sigmoid", "lib_reduce", "lib_softmax"]);
static TOTAL: Source = source!("router_loss_total", ["lib_reduce"]);

/// Tokens that one invocation adds up: 1/64 of the logits is what their sums take.
const CHUNK: usize = 64;

/// Invocations that add up the sums of the chunks.
const TOTAL_WORKGROUP: u32 = 64;

pub(crate) fn router_loss(args: &RouterLoss<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let (experts, columns) = (args.experts, elements("sums", &[args.experts])? + 1);
    let logits = elements("logits", &[args.tokens, experts])?;
    u32_of("logits", logits)?;
    let logits = Arg::f32_bits("logits", &args.logits, logits)?;
    let mask = Arg::optional_u32("mask", args.mask.as_ref(), args.tokens)?;
    let sums = Arg::f32("sums", &args.sums, columns)?;
    // Without experts there is nothing to sum over tokens.
    let tokens = if experts == 0 { 0 } else { args.tokens };
    let chunks = tokens.div_ceil(CHUNK);
    // Of the last pass: over the chunks, then at most as many rounds as there are invocations.
    let rounds = chunks.div_ceil(TOTAL_WORKGROUP as usize) + TOTAL_WORKGROUP as usize;
    check_rounds(to.profile(), rounds, || format!("router_loss of {tokens} tokens"))?;
    let partial_len = elements("sums of chunks", &[chunks, columns])?;
    let partial_buffer = to.scratch("sums of chunks", DType::F32, partial_len.max(1))?;
    let partial = Arg::f32("partial", &partial_buffer, partial_len.max(1))?;
    if chunks > 0 {
        let stats_len = elements("softmax of tokens", &[tokens, 2])?;
        let stats_buffer = to.scratch("softmax of tokens", DType::F32, stats_len)?;
        let stats = Arg::f32("stats", &stats_buffer, stats_len)?;
        let workgroup = workgroup_for(experts);
        let column_groups = groups_of(columns, workgroup as usize);
        let pass = |entry: &'static str, groups: u64, cost: u64| -> Result<Launch<'_>> {
            Ok(Launch {
                source: &PASSES,
                entry,
                workgroup,
                constants: vec![("CHUNK", Constant::U32(CHUNK as u32))],
                params: vec![
                    ("tokens", Param::U32(u32_of("tokens", tokens)?)),
                    ("experts", Param::U32(u32_of("experts", experts)?)),
                    ("column_groups", Param::U32(column_groups as u32)),
                ],
                args: vec![logits.clone(), mask.clone(), stats.clone(), partial.clone()],
                groups,
                cost,
            })
        };
        to.launch(pass("stats_of_tokens", tokens as u64, 32 * columns as u64)?)?;
        let cost = 32 * CHUNK as u64 * u64::from(workgroup);
        to.launch(pass("sums_of_chunks", chunks as u64 * column_groups, cost)?)?;
    }
    to.launch(Launch {
        source: &TOTAL,
        entry: "main",
        workgroup: TOTAL_WORKGROUP,
        constants: vec![],
        params: vec![
            ("chunks", Param::U32(u32_of("chunks", chunks)?)),
            ("columns", Param::U32(u32_of("columns", columns)?)),
        ],
        args: vec![partial, sums],
        groups: columns as u64,
        cost: u64::from(TOTAL_WORKGROUP) * (16 + rounds as u64),
    })
}
