//! Permutation of pairs by expert.

use super::shape::{THREADS, grid};
use crate::Result;
use crate::backend::cuda::buffer::CudaBuffer;
use crate::backend::cuda::checks::Index;
use crate::backend::cuda::exec::Exec;
use crate::backend::cuda::launch::{Ptr, u32_of};
use crate::backend::cuda::table::{PLAIN, cuda_kernels};
use crate::backend::elements;
use crate::kernel;
use crate::tensor::DType;

cuda_kernels! {
    /// How many pairs of each segment go to each expert.
    "permute_count": PermuteCount [] in PLAIN, threads 128, registers 32 {
        ids: read u32,
        table: write u32,
        pairs: value u64,
        experts: value u32,
        length: value u32,
        segments: value u32,
    }
    /// Sums of each expert's counts over the segments in front of each.
    "permute_segments": PermuteSegments [] in PLAIN, threads 256, registers 40 {
        table: write u32,
        counts: write u32,
        experts: value u32,
        segments: value u32,
    }
    /// Sums of counts over the experts in front of each.
    "permute_offsets": PermuteOffsets [] in PLAIN, threads 1024, registers 32 {
        counts: read u32,
        offsets: write u32,
        experts: value u32,
    }
    /// Where each pair goes.
    "permute_move": PermuteMove [] in PLAIN, threads 128, registers 64 {
        ids: read u32,
        table: write u32,
        offsets: read u32,
        pair_of_row: write u32,
        row_of_pair: write u32,
        pairs: value u64,
        experts: value u32,
        length: value u32,
        segments: value u32,
    }
}

/// Segments of a block of 128 threads: a warp has one.
const SEGMENTS: usize = 4;

/// Pairs of a segment at least: what a warp reads at once.
const MIN_LENGTH: usize = 256;

/// Pairs of a segment at most, unless there would be too many of them.
const MAX_LENGTH: usize = 1 << 17;

/// Segments at most: several for every warp that a GPU runs at once.
const MOST_SEGMENTS: usize = 1 << 14;

/// Bytes of shared memory: a word for each warp of a block.
const SCAN_SHARED: u32 = (THREADS / 32 * size_of::<u32>()) as u32;
const OFFSETS_SHARED: u32 = (1024 / 32 * size_of::<u32>()) as u32;

/// Pairs of a segment, such that the counts of every expert in every segment are no more than a few for each pair.
fn segment_len(pairs: usize, experts: usize) -> usize {
    let few_counts = (experts / 4).clamp(MIN_LENGTH, MAX_LENGTH);
    few_counts.max(pairs.div_ceil(MOST_SEGMENTS)).next_power_of_two()
}

pub(super) fn permute(args: &kernel::Permute<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let pairs = args.pairs;
    let ids = Ptr::u32(&args.ids, pairs)?;
    let counts = Ptr::u32(&args.counts, args.experts)?;
    args.check_pairs()?;
    let experts = u32_of("experts", args.experts)?;
    let offsets = Ptr::u32(&args.offsets, args.experts + 1)?;
    let pair_of_row = Ptr::u32(&args.pair_of_row, pairs)?;
    let row_of_pair = Ptr::u32(&args.row_of_pair, pairs)?;
    let length = segment_len(pairs, args.experts);
    let segments = pairs.div_ceil(length);
    let cells = elements("table", &[args.experts, segments])?;
    to.check_index(Index::or_none("ids", &args.ids, pairs, args.experts))?;
    let table = to.scratch("table", DType::U32, cells)?;
    to.fill(&table, 0)?;
    let table = Ptr::u32(&table, cells)?;
    let blocks = grid(segments, SEGMENTS);
    let (pairs, length, segments) = (pairs as u64, u32_of("segment", length)?, u32_of("segments", segments)?);
    PermuteCount { ids, table, pairs, experts, length, segments }.launch(to, blocks, 0)?;
    PermuteSegments { table, counts, experts, segments }.launch(to, grid(args.experts, 1), SCAN_SHARED)?;
    PermuteOffsets { counts, offsets, experts }.launch(to, 1, OFFSETS_SHARED)?;
    PermuteMove { ids, table, offsets, pair_of_row, row_of_pair, pairs, experts, length, segments }
        .launch(to, blocks, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::NONE;

    #[test]
    fn segments_are_many_and_their_counts_few() {
        for pairs in [0, 1, 255, 256, 2_000, 800_000, 1 << 26, NONE as usize - 1] {
            for experts in [0, 1, 8, 256, 1_000, 65_536, 1 << 22] {
                let length = segment_len(pairs, experts);
                let segments = pairs.div_ceil(length);
                assert!(length.is_multiple_of(32), "{pairs} {experts}: {length}");
                assert!(segments <= MOST_SEGMENTS, "{pairs} {experts}: {segments} segments");
                if experts <= 4 * MAX_LENGTH {
                    assert!(segments * experts <= 4 * pairs + experts, "{pairs} {experts}: {segments} segments");
                }
            }
        }
    }
}
