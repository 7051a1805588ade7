//! The load recalibration metric: raw scores by row, their sums by expert, then mean and floor.

use super::rows::offsets_of;
use super::segments::segments;
use crate::Result;
use crate::backend::cuda::buffer::CudaBuffer;
use crate::backend::cuda::checks::Index;
use crate::backend::cuda::exec::Exec;
use crate::backend::cuda::launch::{Ptr, u32_of};
use crate::backend::cuda::table::{PLAIN, cuda_kernels};
use crate::backend::{Buffer, elements};
use crate::kernel;
use crate::tensor::DType;

cuda_kernels! {
    /// Scores before the floor, and the largest of each expert.
    "score": Score [] in PLAIN, threads 256, registers 40 {
        weights: read f32,
        d_norm: read f32,
        h_norm: read f32,
        x_norm: maybe f32,
        kappa: maybe f32,
        pair_of_row: read u32,
        offsets: read u32,
        score: write f32,
        tallies: write u64,
        rows: value u32,
        experts: value u32,
        top_k: value u32,
        pairs: value u32,
        metric: value u32,
    }
    /// Sums of the scores, after the fallback where all vanished.
    "score_sum": ScoreSum [] in PLAIN, threads 256, registers 32 {
        weights: read f32,
        d_norm: read f32,
        pair_of_row: read u32,
        offsets: read u32,
        score: write f32,
        tallies: write u64,
        rows: value u32,
        experts: value u32,
        top_k: value u32,
        pairs: value u32,
    }
    /// Means, and scores with the floor.
    "score_floor": ScoreFloor [] in PLAIN, threads 256, registers 32 {
        offsets: read u32,
        tallies: read u64,
        score: write f32,
        mean: write f32,
        rows: value u32,
        experts: value u32,
        fraction: value f32,
    }
}

/// Words of an expert's tally, `Tally` of `cuda/lib_tally.h`.
const TALLY_WORDS: usize = 6;

pub(super) fn score(args: &kernel::Score<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (rows, experts) = (args.rows, args.experts);
    let tokens = args.d_norm.len();
    args.check()?;
    let pairs = elements("pairs", &[tokens, args.top_k])?;
    let offsets = offsets_of(&args.offsets, experts)?;
    let pair_of_row = Ptr::u32(&args.pair_of_row, rows)?;
    let weights = Ptr::f32(&args.weights, pairs)?;
    let d_norm = Ptr::f32(&args.d_norm, tokens)?;
    let h_norm = Ptr::f32(&args.h_norm, rows)?;
    let x_norm = Ptr::optional_f32(args.x_norm.as_ref(), tokens)?;
    let kappa = Ptr::optional_f32(args.kappa.as_ref(), experts)?;
    let score = Ptr::f32(&args.score, rows)?;
    let mean = Ptr::f32(&args.mean, experts)?;
    let blocks = segments(rows, experts)? as u64;
    let (row_count, expert_count) = (u32_of("rows", rows)?, u32_of("experts", experts)?);
    // Entries of `pair_of_row` have 32 bits: pairs beyond are in no row.
    let (top_k, pair_count) = (u32_of("top_k", args.top_k)?, u32::try_from(pairs).unwrap_or(u32::MAX));
    to.check_offsets(&args.offsets, experts, rows)?;
    to.check_index(Index::in_use("pair_of_row", &args.pair_of_row, (&args.offsets, experts, rows), pairs))?;

    let words = elements("score tallies", &[experts, TALLY_WORDS])?;
    let tallies = to.scratch("score tallies", DType::U32, words)?;
    to.fill(&tallies, 0)?;
    let tallies = Ptr::u32(&tallies, words)?;
    let raw = Score {
        weights,
        d_norm,
        h_norm,
        x_norm,
        kappa,
        pair_of_row,
        offsets,
        score,
        tallies,
        rows: row_count,
        experts: expert_count,
        top_k,
        pairs: pair_count,
        metric: args.metric.number(),
    };
    raw.launch(to, blocks, 0)?;
    let (rows, experts, pairs) = (row_count, expert_count, pair_count);
    ScoreSum { weights, d_norm, pair_of_row, offsets, score, tallies, rows, experts, top_k, pairs }
        .launch(to, blocks, 0)?;
    ScoreFloor { offsets, tallies, score, mean, rows, experts, fraction: args.floor }.launch(to, blocks, 0)
}
