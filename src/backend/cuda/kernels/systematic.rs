//! Systematic sampling: which pairs are certain, the list in order, and the draw along it.

use super::select::{Parts, workspace, zeros};
use crate::Result;
use crate::backend::cuda::exec::Exec;
use crate::backend::cuda::launch::Ptr;
use crate::backend::cuda::table::{PLAIN, cuda_kernels};

cuda_kernels! {
    /// Pairs and sizes by one byte of the score.
    "systematic_ranges": SystematicRanges [] in PLAIN, threads 256, registers 56 {
        score: read u32,
        offsets: read u32,
        quotas: read u32,
        plans: read u32,
        counts: write u64,
        states: write u64,
        rows: value u32,
        experts: value u32,
        round: value u32,
    }
    /// Marks the rows that are certain.
    "systematic_mark": SystematicMark [] in PLAIN, threads 256, registers 48 {
        score: read u32,
        offsets: read u32,
        quotas: read u32,
        plans: write u32,
        counts: read u64,
        states: read u64,
        chosen: write u32,
        ties: write u32,
        rows: value u32,
        experts: value u32,
    }
    /// Rows of segments by key, and whether one pass sorts them.
    "systematic_keys": SystematicKeys [] in PLAIN, threads 256, registers 40 {
        pair_of_row: read u32,
        token_ids: maybe u32,
        order: read u32,
        offsets: read u32,
        plans: write u32,
        counts: write u32,
        first_token: value u64,
        rows: value u32,
        experts: value u32,
        top_k: value u32,
        pairs: value u32,
    }
    /// Where rows of segments and keys begin in the list, or the list itself; a block an expert.
    "systematic_sort": SystematicSort [] in PLAIN, threads 256, registers 96 {
        pair_of_row: read u32,
        token_ids: maybe u32,
        order: read u32,
        offsets: read u32,
        plans: read u32,
        counts: write u32,
        list: write u32,
        spare: write u32,
        first_token: value u64,
        rows: value u32,
        experts: value u32,
        top_k: value u32,
        pairs: value u32,
    }
    /// The list, where one pass sorts it.
    "systematic_scatter": SystematicScatter [] in PLAIN, threads 256, registers 48 {
        pair_of_row: read u32,
        order: read u32,
        offsets: read u32,
        plans: read u32,
        starts: read u32,
        list: write u32,
        rows: value u32,
        experts: value u32,
        top_k: value u32,
        pairs: value u32,
    }
    /// Lengths of segments of the list.
    "systematic_sums": SystematicSums [] in PLAIN, threads 256, registers 40 {
        score: read u32,
        list: read u32,
        offsets: read u32,
        plans: read u32,
        sums: write u64,
        rows: value u32,
        experts: value u32,
    }
    /// Where segments of the list begin on the circle; a block an expert.
    "systematic_starts": SystematicStarts [] in PLAIN, threads 256, registers 40 {
        offsets: read u32,
        plans: read u32,
        sums: write u64,
        rows: value u32,
        experts: value u32,
        key_0: value u32,
        key_1: value u32,
    }
    /// Marks the rows that are drawn.
    "systematic_draw": SystematicDraw [] in PLAIN, threads 256, registers 56 {
        score: read u32,
        list: read u32,
        offsets: read u32,
        plans: read u32,
        starts: read u64,
        chosen: write u32,
        rows: value u32,
        experts: value u32,
    }
}

/// Bytes of a score, words of what is counted of one by expert, and of what is known between them: `cuda/lib_ranges.h`.
const ROUNDS: usize = 4;
const COUNT_WORDS: usize = 3 * 256 * 2;
const STATE_WORDS: usize = 8;

/// Values of a key for which one pass sorts.
const KEYS: usize = 256;

/// Words of a number of 128 bits.
const WIDE_WORDS: usize = 4;

// Bytes of the shared memory of the kernels, as their files and headers have it.
const RANGES_SHARED: u32 = 3328;
const KEYS_SHARED: u32 = 1024;
const SORT_SHARED: u32 = 9264;
const CIRCLE_SHARED: u32 = 128;
const STARTS_SHARED: u32 = 144;

/// Retains rows by this rule.
pub(super) fn retain(parts: &Parts, order: Ptr, to: &mut Exec<'_>) -> Result<()> {
    certain(parts, to)?;
    parts.break_ties(0, None, to)?;
    let list = list(parts, order, to)?;
    draw(parts, list, to)
}

/// Finds the scores that are certain, and what they leave of slots and sizes.
fn certain(parts: &Parts, to: &mut Exec<'_>) -> Result<()> {
    let Parts { rows, experts, score, offsets, quotas, plans, chosen, ties, blocks, .. } = *parts;
    let counts = zeros(to, "ranges of scores", &[ROUNDS, experts as usize, COUNT_WORDS])?;
    let states = workspace(to, "states of ranges", &[ROUNDS - 1, experts as usize, STATE_WORDS])?;
    for round in 0..ROUNDS as u32 {
        let ranges = SystematicRanges { score, offsets, quotas, plans, counts, states, rows, experts, round };
        ranges.launch(to, blocks, RANGES_SHARED)?;
    }
    let mark = SystematicMark { score, offsets, quotas, plans, counts, states, chosen, ties, rows, experts };
    mark.launch(to, blocks, RANGES_SHARED)
}

/// Sorts the rows of every expert by the keys of their tokens.
fn list(parts: &Parts, order: Ptr, to: &mut Exec<'_>) -> Result<Ptr> {
    let Parts { rows, experts, top_k, pairs, first_token, pair_of_row, token_ids, offsets, plans, blocks, .. } = *parts;
    let counts = workspace(to, "keys of segments", &[blocks as usize, KEYS])?;
    let list = workspace(to, "sorted rows", &[rows as usize])?;
    // Rows that are tied are marked by now.
    let spare = parts.ties;
    let keys = SystematicKeys {
        pair_of_row,
        token_ids,
        order,
        offsets,
        plans,
        counts,
        first_token,
        rows,
        experts,
        top_k,
        pairs,
    };
    keys.launch(to, blocks, KEYS_SHARED)?;
    let sort = SystematicSort {
        pair_of_row,
        token_ids,
        order,
        offsets,
        plans,
        counts,
        list,
        spare,
        first_token,
        rows,
        experts,
        top_k,
        pairs,
    };
    sort.launch(to, experts.into(), SORT_SHARED)?;
    let scatter =
        SystematicScatter { pair_of_row, order, offsets, plans, starts: counts, list, rows, experts, top_k, pairs };
    scatter.launch(to, blocks, SORT_SHARED)?;
    Ok(list)
}

/// Draws along the list.
fn draw(parts: &Parts, list: Ptr, to: &mut Exec<'_>) -> Result<()> {
    let Parts { rows, experts, score, offsets, plans, chosen, blocks, keys: [key_0, key_1], .. } = *parts;
    let sums = workspace(to, "lengths of segments", &[blocks as usize, WIDE_WORDS])?;
    SystematicSums { score, list, offsets, plans, sums, rows, experts }.launch(to, blocks, CIRCLE_SHARED)?;
    SystematicStarts { offsets, plans, sums, rows, experts, key_0, key_1 }.launch(to, experts.into(), STARTS_SHARED)?;
    SystematicDraw { score, list, offsets, plans, starts: sums, chosen, rows, experts }.launch(
        to,
        blocks,
        CIRCLE_SHARED,
    )
}
