//! What kernels that go over the rows of experts have in common: blocks take segments of the rows of one expert, see
//! `cuda/lib_segment.h`.

use crate::{Error, Result};

/// Rows of a segment at most, `SEGMENT` of `cuda/lib_segment.h`.
const SEGMENT: usize = 2048;

/// Rows at most: indices of rows stay below 2^32 by more than the rows of a segment.
const MOST_ROWS: usize = 1 << 31;

/// Blocks for the segments of so many rows, wherever the offsets are: some find nothing to do.
pub(super) fn segments(rows: usize, experts: usize) -> Result<usize> {
    if rows > MOST_ROWS {
        return Err(Error::Unsupported {
            what: format!("selection from {rows} rows"),
            why: format!("at most {MOST_ROWS} are counted; use fewer tokens"),
        });
    }
    let blocks = experts.checked_add(rows / SEGMENT + 1);
    blocks.ok_or_else(|| Error::Overflow { what: "segments of rows".into(), detail: format!("{experts} experts") })
}
