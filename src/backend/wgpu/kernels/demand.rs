//! What the scores of a step say to the planner.

use super::experts;
use super::rows::offsets_of;
use crate::Result;
use crate::backend::elements;
use crate::backend::wgpu::buffer::WgpuBuffer;
use crate::backend::wgpu::encode::Encoder;
use crate::backend::wgpu::launch::{Arg, Launch, u32_of};
use crate::backend::wgpu::shader::{Param, Source, source};
use crate::kernel::{DEMAND_BINS, DEMAND_COUNTS, DEMAND_SUMS, Demand};

static DEMAND: Source = source!("demand", ["lib_wide", "lib_exact", "lib_sum"]);

// The shader has these as its own.
const _: () = assert!(DEMAND_BINS == 64 && DEMAND_SUMS == 3 && DEMAND_COUNTS == 2);

pub(super) fn demand(args: &Demand<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let (rows, groups) = (args.rows, args.experts);
    experts::check_rows(to, rows)?;
    let arrays = vec![
        offsets_of(&args.offsets, groups)?,
        Arg::f32("score", &args.score, rows)?.into_bits(),
        Arg::f32("mean", &args.mean, groups)?.into_bits(),
        Arg::u32("histogram", &args.histogram, elements("histogram", &[groups, DEMAND_BINS])?)?,
        Arg::f32("sums", &args.sums, elements("sums", &[groups, DEMAND_SUMS])?)?.into_bits(),
        Arg::u32("counts", &args.counts, elements("counts", &[groups, DEMAND_COUNTS])?)?,
    ];
    to.check_offsets(&args.offsets, groups, rows)?;
    to.launch(Launch {
        source: &DEMAND,
        entry: "main",
        workgroup: experts::workgroup_for(rows, groups),
        constants: vec![],
        params: vec![("rows", Param::U32(u32_of("rows", rows)?))],
        args: arrays,
        groups: groups as u64,
        cost: experts::cost(rows, groups, 128),
    })
}
