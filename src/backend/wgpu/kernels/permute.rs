//! Permutation of pairs by expert.

use crate::backend::elements;
use crate::backend::wgpu::buffer::WgpuBuffer;
use crate::backend::wgpu::checks::Index;
use crate::backend::wgpu::encode::Encoder;
use crate::backend::wgpu::launch::{Arg, Launch, groups_of, u32_of};
use crate::backend::wgpu::shader::{Param, Source, source};
use crate::kernel::Permute;
use crate::tensor::DType;
use crate::{Error, Result};

static PERMUTE: Source = source!("permute", ["lib_scan"]);

const WORKGROUP: u32 = 64;

/// Invocations of the one workgroup that sums over experts, and the most experts, so that it sums for less than the 65,535
/// rounds that software drivers run.
const SUM_WORKGROUP: u32 = 256;
const MAX_EXPERTS: usize = 1 << 22;

/// Pairs of a block at least and at most: a workgroup moves them 64 at a time, each in 17 rounds.
const MIN_BLOCK: usize = 256;
const MAX_BLOCK: usize = 1 << 17;

/// Blocks at most, for the workgroup that sums over those of an expert.
const MAX_BLOCKS: usize = 1 << 15;

/// Pairs of a block, such that the counts of every expert in every block are no more than a few for each pair.
fn block_len(pairs: usize, experts: usize) -> usize {
    let wanted = (experts / 4).max(pairs.div_ceil(MAX_BLOCKS));
    wanted.clamp(MIN_BLOCK, MAX_BLOCK).next_power_of_two()
}

pub(crate) fn permute(args: &Permute<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let (pairs, experts) = (args.pairs, args.experts);
    let ids = Arg::u32("ids", &args.ids, pairs)?;
    let counts = Arg::u32("counts", &args.counts, experts)?;
    args.check_pairs()?;
    if experts > MAX_EXPERTS {
        return Err(Error::Unsupported {
            what: format!("`permute` with {experts} experts"),
            why: format!("{MAX_EXPERTS} is the most"),
        });
    }
    let offsets = Arg::u32("offsets", &args.offsets, experts + 1)?;
    let pair_of_row = Arg::u32("pair_of_row", &args.pair_of_row, pairs)?;
    let row_of_pair = Arg::u32("row_of_pair", &args.row_of_pair, pairs)?;
    let block = block_len(pairs, experts);
    let blocks = pairs.div_ceil(block);
    let cells = elements("table", &[experts, blocks])?;
    let params = vec![
        ("pairs", Param::U32(u32_of("pairs", pairs)?)),
        ("experts", Param::U32(u32_of("experts", experts)?)),
        ("block", Param::U32(u32_of("block", block)?)),
        ("blocks", Param::U32(u32_of("blocks", blocks)?)),
    ];
    u32_of("table", cells)?;
    to.check_index(Index::or_none("ids", &args.ids, pairs, experts))?;
    let table = to.scratch("table", DType::U32, cells)?;
    to.fill(&table, 0)?;
    let args = vec![ids, Arg::atomic("table", &table, cells)?, counts, offsets, pair_of_row, row_of_pair];
    let mut launch = |entry, workgroup, groups, cost| {
        let (params, args) = (params.clone(), args.clone());
        to.launch(Launch { source: &PERMUTE, entry, workgroup, constants: vec![], params, args, groups, cost })
    };
    let round = u64::from(WORKGROUP) * 8;
    launch("count", WORKGROUP, groups_of(pairs, WORKGROUP as usize), round)?;
    launch("sum_blocks", WORKGROUP, experts as u64, 12 * round + 8 * blocks as u64)?;
    launch("sum_experts", SUM_WORKGROUP, 1, 16 * round + 8 * experts as u64)?;
    launch("move_pairs", WORKGROUP, blocks as u64, 20 * round * groups_of(block, WORKGROUP as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::NONE;

    #[test]
    fn blocks_keep_loops_short_and_counts_few() {
        for pairs in [0, 1, 255, 256, 2_000, 800_000, 1 << 26, NONE as usize - 1] {
            for experts in [0, 1, 8, 256, 1_000, 65_536, MAX_EXPERTS] {
                let block = block_len(pairs, experts);
                let blocks = pairs.div_ceil(block);
                assert!(block.is_multiple_of(WORKGROUP as usize) && block <= MAX_BLOCK, "{pairs} {experts}: {block}");
                assert!(blocks <= MAX_BLOCKS, "{pairs} {experts}: {blocks} blocks");
                let rounds = block / WORKGROUP as usize * 17;
                assert!(rounds < 60_000, "{pairs} {experts}: {rounds} rounds");
                if experts <= 4 * MAX_BLOCK {
                    assert!(blocks * experts <= 4 * pairs + experts, "{pairs} {experts}: {blocks} blocks");
                }
            }
        }
    }
}
