//! What kernels with a workgroup per expert have in common: the rows of one expert may be any number of them.

use crate::backend::wgpu::encode::Encoder;
use crate::{Error, Result};

/// Invocations of a workgroup where each takes a row.
pub(super) const ROW_WORKGROUP: u32 = 64;

/// Invocations of a workgroup that takes an expert: as many as a byte has values, for radix selection.
pub(super) const EXPERT_WORKGROUP: u32 = 256;

/// Invocations of a workgroup that takes an expert: fewer where loads are small, since they are what a barrier costs. There must be few
/// rows in all as well, because one expert may have them all.
pub(super) fn workgroup_for(rows: usize, experts: usize) -> u32 {
    let small = rows <= MOST_ROWS_SMALL && rows.div_ceil(experts.max(1)) <= EXPERT_WORKGROUP as usize;
    if small { ROW_WORKGROUP } else { EXPERT_WORKGROUP }
}

/// Rows at most for which an expert gets a small workgroup.
const MOST_ROWS_SMALL: usize = 1 << 15;

/// Rows at most: all of them may be one expert's, and its workgroup is not to run for longer than watchdogs wait. Sizes of 40 bits
/// summed over so many stay below 2^64.
const MOST_ROWS: usize = 1 << 22;

/// Rows at most where a workgroup may not loop on: software adapters end an invocation's loops without a word after 65535 turns,
/// and selection takes up to 50 for every 256 rows.
const MOST_ROWS_SOFTWARE: usize = 1 << 18;

/// Refuses more rows than one expert's workgroup can take: all of them may be one expert's.
pub(super) fn check_rows(to: &Encoder<'_>, rows: usize) -> Result<()> {
    let most = if to.profile().software { MOST_ROWS_SOFTWARE } else { MOST_ROWS };
    if rows <= most {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: format!("selection from {rows} rows"),
        why: format!("this device takes at most {most} at once; use fewer tokens"),
    })
}

/// Cost of the workgroup of an expert of average load, at so many operations a row: all of them together take what all rows do.
pub(super) fn cost(rows: usize, experts: usize, operations: u64) -> u64 {
    (rows.div_ceil(experts.max(1)) as u64).saturating_mul(operations).max(1)
}
