//! The three grouped GEMMs: many matrices in one launch, groups found on the device.
//!
//! # Numeric contract
//! The bits of a row depend on nothing but that row and its matrix: not on the rows beside it, nor on the tile that it is in. Sums are f32.
//! Gradients of weights depend on the order of a group's rows, and on the device where few tiles are split over it.
//! - Both operands f32 (forward, dgrad): one chain of fused multiply-adds over the steps in ascending order, without tensor cores.
//! - Both bf16, or both f16: tensor cores, as they accumulate.
//! - All others: tensor cores, on bf16 pieces of the numbers whose products are exact, or nearly (below half a unit in the last place).
//!   Each 16 steps are summed from zero and then added in f32: the error is that of a chain in f32 or less. An f32 number beyond
//!   the range of bf16, such as an infinity, gives NaN. [`Operands::Rounded`] takes one piece of an f32 operand instead.
//!
//! # How it is built
//! [`rows`] is forward and dgrad, whose tiles are rows of groups that `gemm_tiles` finds; [`wgrad`] sums over the rows of a
//! group; [`fused`] are the two commands of forward and of backward that SwiGLU ends. [`table`] are their kernels: one for each pair of element types, a file for each kind.

mod fused;
mod rows;
pub(super) mod table;
mod wgrad;

pub(in crate::backend::cuda) use fused::fused;
pub(super) use rows::{grouped_dgrad, grouped_forward};
pub(super) use wgrad::grouped_wgrad;

use crate::backend::cuda::buffer::CudaBuffer;
use crate::backend::cuda::checks::{Extent, Index};
use crate::backend::cuda::exec::Exec;
use crate::backend::cuda::launch::{Arg, Ptr, u32_of};
use crate::backend::cuda::table::Spec;
use crate::backend::elements;
use crate::tensor::DType;
use crate::{Error, Result};

/// What tensor cores make of an f32 operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Operands {
    /// All of its bits count: two to six times the work. An element that is infinite, or rounds to infinity in bf16, makes its
    /// products NaN.
    #[default]
    Full,
    /// It is rounded to the 16-bit type of the other operand first, as automatic mixed precision does; gradients of weights
    /// round two f32 operands to bf16.
    Rounded,
}

/// How many rows of the batch a block of a grouped GEMM takes at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GemmTile {
    /// 128 rows.
    Large,
    /// 32 rows: for few rows to an expert.
    Small,
}

/// Bytes of shared memory of a block at most, so that two fit on a multiprocessor of 164 KB or more: `Stage` in `lib_gemm_mma.h`.
const SHARED_OF_STAGES: u32 = 75_776;

/// Bytes of the tiles that a block keeps in mind.
const SHARED_OF_SPOTS: u32 = 256;

/// Rows and columns of what one block computes at a time, and steps of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    rows: u32,
    cols: u32,
    steps: u32,
}

impl Tile {
    /// Bytes of shared memory of a block.
    fn shared(self, left: DType, right: DType, scaled: bool) -> u32 {
        let bytes = |dtype: DType| u32::try_from(dtype.bytes()).unwrap_or(4);
        let stage = (self.rows * bytes(left) + self.cols * bytes(right)) * self.steps + if scaled { 128 } else { 0 };
        stage * (SHARED_OF_STAGES / stage).clamp(2, 4) + SHARED_OF_SPOTS
    }
}

/// Rows of the batch, gathered by an index.
#[derive(Clone, Copy)]
struct Rows<'a> {
    buffer: &'a CudaBuffer,
    cols: usize,
    index: Option<(&'static str, &'a CudaBuffer)>,
    div: u32,
}

/// The same as kernels take it.
#[derive(Debug, Clone, Copy)]
struct RowArgs {
    rows: Ptr,
    index: Option<Ptr>,
    div: u64,
    stored: u32,
    /// Whether rows are whole vectors of 16 bytes.
    whole: bool,
}

impl Rows<'_> {
    /// `used` is the number of rows in use at most.
    fn args(&self, used: usize) -> Result<RowArgs> {
        let stored = if self.index.is_some() { self.buffer.len_rows(self.cols) } else { used };
        let rows = Ptr::floats(self.buffer, elements("rows of an operand", &[stored, self.cols])?)?;
        // 2^64 / div, rounded up: the kernel multiplies.
        let div = if self.index.is_some() && self.div > 1 { u64::MAX / u64::from(self.div) + 1 } else { 0 };
        Ok(RowArgs {
            rows,
            index: Ptr::optional_u32(self.index.map(|(_, buffer)| buffer), used)?,
            div,
            // No index names a row behind those.
            stored: u32::try_from(stored).unwrap_or(u32::MAX),
            whole: whole(rows, self.cols),
        })
    }
}

/// Whether rows of so many elements are whole vectors of 16 bytes.
fn whole(rows: Ptr, cols: usize) -> bool {
    rows.aligned(16) && (cols * rows.dtype.bytes()).is_multiple_of(16)
}

/// Whether rows of an f32 output are whole pairs.
fn in_pairs(out: Ptr, cols: usize) -> bool {
    out.aligned(8) && cols.is_multiple_of(2)
}

/// Sizes of a product and the groups that its rows are in.
#[derive(Clone, Copy)]
struct Groups<'a> {
    offsets: &'a CudaBuffer,
    rows: usize,
    groups: usize,
    n: usize,
    k: usize,
}

impl Groups<'_> {
    /// Refuses what is out of range, here or on the device. The number of rows that can be in use.
    fn check(&self, operands: &[Rows<'_>], to: &mut Exec<'_>) -> Result<usize> {
        for (name, size) in [("n", self.n), ("k", self.k)] {
            if size == 0 {
                return Err(Error::argument(name, size, "at least 1"));
            }
            u32_of(name, size)?;
        }
        elements("weights", &[self.groups, self.n, self.k])?;
        elements("rows of a product", &[self.rows, self.n.max(self.k)])?;
        // Without an index, rows in use must be among those that exist.
        let mut rows = self.rows;
        for operand in operands {
            let stored = operand.buffer.len_rows(operand.cols);
            match operand.index {
                None => rows = rows.min(stored),
                Some((name, buffer)) => to.check_index(Index {
                    name,
                    buffer,
                    rows: Extent::Used(self.offsets, self.groups, self.rows),
                    div: operand.div as usize,
                    limit: stored,
                    none: false,
                })?,
            }
        }
        to.check_offsets(self.offsets, self.groups, rows)?;
        u32_of("groups", self.groups)?;
        u32_of("rows", rows)?;
        Ok(rows)
    }
}

/// Launches so many blocks that they fill the device, at most one for each tile.
fn launch(spec: &'static Spec, args: &[Arg], tiles: u64, shared: u32, to: &mut Exec<'_>) -> Result<()> {
    if tiles == 0 {
        return Ok(());
    }
    let resident = to.resident(spec, args, shared)?;
    // Blocks count tiles in 32 bits, to one step beyond the last.
    if tiles + resident > u64::from(u32::MAX) {
        return Err(Error::Overflow { what: format!("tiles of `{}`", spec.base), detail: format!("{tiles}") });
    }
    to.launch(spec, args, tiles.min(resident), shared)
}
