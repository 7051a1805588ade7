//! How rows are shared among threads: by their columns, never by their number, so that a row's bits are the same in any batch.

use crate::Result;
use crate::backend::cuda::launch::u32_of;
use crate::backend::elements;

/// Threads of a block.
pub(super) const THREADS: usize = 256;

/// Threads of a warp.
const WARP: usize = 32;

/// Columns up to which a warp sums up a row; a block does from there on.
const WARP_COLUMNS: usize = 8192;

/// Blocks of a grid at most; kernels go on where it ends.
const MOST_BLOCKS: u64 = i32::MAX as u64;

/// Bytes of shared memory of kernels that sum up rows: a value of each warp.
pub(super) const TEAM_SHARED: u32 = (THREADS / WARP * size_of::<f64>()) as u32;

/// Blocks for so many items, `per` each.
pub(super) fn grid(items: usize, per: usize) -> u64 {
    (items.div_ceil(per.max(1)) as u64).min(MOST_BLOCKS)
}

/// Threads that sum up a row.
pub(super) fn team_of(cols: usize) -> u32 {
    if cols <= WARP_COLUMNS { WARP as u32 } else { THREADS as u32 }
}

/// Blocks for so many rows that are summed up.
pub(super) fn team_grid(rows: usize, cols: usize) -> u64 {
    grid(rows, THREADS / team_of(cols) as usize)
}

/// How rows are split that are worked on column by column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spans {
    /// Threads that take a span of columns together, a power of two.
    pub(super) team: u32,
    /// Spans of a row.
    pub(super) per_row: u32,
    pub(super) blocks: u64,
}

/// Spans of rows of which a thread takes `packs` times `pack` columns at once.
pub(super) fn spans(rows: usize, cols: usize, pack: usize, packs: usize) -> Result<Spans> {
    let team = cols.div_ceil(pack).next_power_of_two().min(WARP);
    let per_row = cols.div_ceil(team * packs * pack);
    let threads = elements("threads", &[rows, per_row, team])?;
    Ok(Spans { team: team as u32, per_row: u32_of("spans of a row", per_row)?, blocks: grid(threads, THREADS) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_every_column_once() {
        for cols in [1, 2, 3, 4, 5, 31, 32, 33, 127, 128, 129, 1000, 4096, 7168, 1 << 20] {
            for (pack, packs) in [(4, 2), (4, 4), (8, 4)] {
                let spans = spans(3, cols, pack, packs).expect("small");
                let width = spans.team as usize * pack * packs;
                assert!(spans.team.is_power_of_two() && spans.team <= 32, "{cols}: {spans:?}");
                assert!(spans.per_row as usize * width >= cols, "{cols}: {spans:?}");
                assert!((spans.per_row as usize - 1) * width < cols, "{cols}: {spans:?}");
                assert!(spans.blocks as usize * THREADS >= 3 * spans.per_row as usize * spans.team as usize);
            }
        }
        assert_eq!(spans(0, 7, 4, 4).expect("small").blocks, 0);
        assert_eq!(spans(7, 0, 4, 4).expect("small").blocks, 0);
    }

    #[test]
    fn how_a_row_is_shared_depends_on_columns_alone() {
        for cols in [1, 1024, 8192, 8193] {
            let of = |rows| spans(rows, cols, 4, 4).map(|spans| (spans.team, spans.per_row)).expect("small");
            assert!([1, 2, 1000, 1 << 30].into_iter().all(|rows| of(rows) == of(5)), "{cols}");
        }
    }
}
