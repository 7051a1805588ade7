//! What the scores of a step say to the planner, and what kernels with a workgroup per expert have in common.

use crate::backend::elements;
use crate::backend::wgpu::buffer::WgpuBuffer;
use crate::backend::wgpu::encode::Encoder;
use crate::backend::wgpu::launch::{Arg, Launch, u32_of};
use crate::backend::wgpu::shader::{Param, Source, source};
use crate::kernel::{DEMAND_BINS, DEMAND_COUNTS, DEMAND_SUMS, Demand};
use crate::{Error, Result};

static DEMAND: Source = source!("demand", ["lib_wide", "lib_exact", "lib_sum"]);

// The shader has these as its own.
const _: () = assert!(DEMAND_BINS == 64 && DEMAND_SUMS == 3 && DEMAND_COUNTS == 2);

/// Rows at most: sizes of 40 bits summed over an expert's rows stay below 2^64.
const MOST_ROWS: usize = (1 << 24) - 1;

/// Rows at most where an expert's workgroup may not loop on: software adapters end an invocation's loops without a word after 65535
/// turns, and selection takes up to 42 for every 256 rows.
const MOST_ROWS_SOFTWARE: usize = 1 << 18;

/// Refuses more rows than one expert's workgroup can take: all of them may be one expert's.
pub(super) fn check_expert_rows(to: &Encoder<'_>, rows: usize) -> Result<()> {
    let most = if to.profile().software { MOST_ROWS_SOFTWARE } else { MOST_ROWS };
    if rows <= most {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: format!("selection from {rows} rows"),
        why: format!("this device takes at most {most} at once; use fewer tokens"),
    })
}

/// Cost of the workgroup of an expert of average load, at so many operations a row.
pub(super) fn expert_cost(rows: usize, experts: usize, operations: u64) -> u64 {
    (rows.div_ceil(experts.max(1)) as u64).saturating_mul(operations).max(1)
}

pub(super) fn demand(args: &Demand<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let (rows, experts) = (args.rows, args.experts);
    check_expert_rows(to, rows)?;
    let arrays = vec![
        Arg::u32("offsets", &args.offsets, elements("groups", &[experts])? + 1)?,
        Arg::f32("score", &args.score, rows)?.as_bits(),
        Arg::f32("mean", &args.mean, experts)?.as_bits(),
        Arg::u32("histogram", &args.histogram, elements("histogram", &[experts, DEMAND_BINS])?)?,
        Arg::f32("sums", &args.sums, elements("sums", &[experts, DEMAND_SUMS])?)?.as_bits(),
        Arg::u32("counts", &args.counts, elements("counts", &[experts, DEMAND_COUNTS])?)?,
    ];
    to.check_offsets(&args.offsets, experts, rows)?;
    to.launch(Launch {
        source: &DEMAND,
        entry: "main",
        workgroup: 256,
        constants: vec![],
        params: vec![("rows", Param::U32(u32_of("rows", rows)?))],
        args: arrays,
        groups: experts as u64,
        cost: expert_cost(rows, experts, 128),
    })
}
