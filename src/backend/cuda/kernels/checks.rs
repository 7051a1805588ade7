//! Kernels that only other kernels' launches need: patterns, and checks of index data.

use super::super::launch::{PLAIN, cuda_kernels};

cuda_kernels! {
    /// Sets words to a pattern.
    "fill": Fill [] in PLAIN, threads 256, registers 32 {
        out: write u32,
        words: value u64,
        pattern: value u32,
        // 1 where half a word follows.
        tail: value u32,
    }
    /// A flag, and the largest index out of range.
    "check_index": CheckIndex [] in PLAIN, threads 256, registers 32 {
        index: read u32,
        offsets: maybe u32,
        faults: write u32,
        groups: value u32,
        rows: value u32,
        limit: value u32,
        none: value u32,
    }
    /// Flags for offsets that fall and for a last one beyond the rows, and the largest of each.
    "check_offsets": CheckOffsets [] in PLAIN, threads 256, registers 24 {
        offsets: read u32,
        faults: write u32,
        groups: value u32,
        rows: value u32,
    }
}
