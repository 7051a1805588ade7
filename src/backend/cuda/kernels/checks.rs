//! Kernels that check index data, for [`checks`](crate::backend::cuda::checks).

use crate::backend::cuda::table::{PLAIN, cuda_kernels};

cuda_kernels! {
    /// A flag, and the largest index out of range.
    "check_index": CheckIndex [] in PLAIN, threads 256, registers 40 {
        index: read u32,
        offsets: maybe u32,
        faults: write u32,
        groups: value u32,
        rows: value u32,
        limit: value u32,
        none: value u32,
    }
    /// Flags for offsets that fall and for a last one beyond the rows, and the largest of each.
    "check_offsets": CheckOffsets [] in PLAIN, threads 256, registers 48 {
        offsets: read u32,
        faults: write u32,
        groups: value u32,
        rows: value u32,
    }
}
