//! What the scores of a step say to the planner.

use super::rows::offsets_of;
use super::segments::segments;
use crate::Result;
use crate::backend::cuda::buffer::CudaBuffer;
use crate::backend::cuda::exec::Exec;
use crate::backend::cuda::launch::{Ptr, blocks_of, u32_of};
use crate::backend::cuda::table::{PLAIN, cuda_kernels};
use crate::backend::elements;
use crate::kernel::{self, DEMAND_BINS, DEMAND_COUNTS, DEMAND_SUMS};
use crate::tensor::DType;

cuda_kernels! {
    /// Histograms and counts of experts, and sums of segments.
    "demand": Demand [] in PLAIN, threads 256, registers 32 {
        score: read f32,
        mean: read f32,
        offsets: read u32,
        counts: write u32,
        sums: write f64,
        rows: value u32,
        experts: value u32,
    }
    /// The outputs, a warp an expert.
    "demand_total": DemandTotal [] in PLAIN, threads 128, registers 40 {
        offsets: read u32,
        scratch_counts: read u32,
        scratch_sums: read f64,
        histogram: write u32,
        sums: write f32,
        counts: write u32,
        rows: value u32,
        experts: value u32,
    }
}

// `cuda/lib_demand.h` has these as its own.
const _: () = assert!(DEMAND_BINS == 64 && DEMAND_SUMS == 3 && DEMAND_COUNTS == 2);

/// Bytes of `DemandShared` in `cuda/lib_demand.h`.
const SHARED: u32 = 456;

pub(super) fn demand(args: &kernel::Demand<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (rows, experts) = (args.rows, args.experts);
    let offsets = offsets_of(&args.offsets, experts)?;
    let score = Ptr::f32(&args.score, rows)?;
    let mean = Ptr::f32(&args.mean, experts)?;
    let histogram = Ptr::u32(&args.histogram, elements("histogram", &[experts, DEMAND_BINS])?)?;
    let sums = Ptr::f32(&args.sums, elements("sums", &[experts, DEMAND_SUMS])?)?;
    let counts = Ptr::u32(&args.counts, elements("counts", &[experts, DEMAND_COUNTS])?)?;
    let blocks = segments(rows, experts)?;
    to.check_offsets(&args.offsets, experts, rows)?;

    let words = elements("demand counts", &[experts, DEMAND_BINS + DEMAND_COUNTS])?;
    let scratch_counts = to.scratch("demand counts", DType::U32, words)?;
    to.fill(&scratch_counts, 0)?;
    let scratch_counts = Ptr::u32(&scratch_counts, words)?;
    let words = elements("demand sums", &[blocks, DEMAND_SUMS, 2])?;
    let scratch_sums = Ptr::u32(&to.scratch("demand sums", DType::U32, words)?, words)?;
    let total = blocks_of(experts, 4);
    let (rows, experts) = (u32_of("rows", rows)?, u32_of("experts", experts)?);
    Demand { score, mean, offsets, counts: scratch_counts, sums: scratch_sums, rows, experts }.launch(
        to,
        blocks as u64,
        SHARED,
    )?;
    DemandTotal { offsets, scratch_counts, scratch_sums, histogram, sums, counts, rows, experts }.launch(to, total, 0)
}
