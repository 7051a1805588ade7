//! Compaction, combine, norms, keys, dot products, casts.

use super::shape::{TEAM_SHARED, THREADS, grid, spans, team_grid, team_of};
use crate::backend::cuda::buffer::CudaBuffer;
use crate::backend::cuda::checks::Index;
use crate::backend::cuda::exec::Exec;
use crate::backend::cuda::launch::{Ptr, u32_of};
use crate::backend::cuda::table::{FLOAT_PAIRS, FLOATS, PLAIN, cuda_kernels};
use crate::backend::faults::offset_count;
use crate::backend::{Buffer, divisor, elements};
use crate::kernel::{self, check_positive};
use crate::{Error, Result};

cuda_kernels! {
    /// Rows bit by bit.
    "gather_rows": GatherRows [T] in FLOATS, threads 256, registers 40 {
        src: read T,
        index: read u32,
        offsets: read u32,
        dst: write T,
        rows: value u64,
        stored: value u64,
        cols: value u64,
        index_div: value u32,
        groups: value u32,
        spans_per_row: value u32,
        team: value u32,
    }
    /// Rows in f32, each times its scale.
    "gather_scaled": GatherScaled [S] in FLOATS, threads 256, registers 48 {
        src: read S,
        index: read u32,
        scale: read f32,
        offsets: read u32,
        dst: write f32,
        rows: value u64,
        stored: value u64,
        cols: value u64,
        index_div: value u32,
        groups: value u32,
        spans_per_row: value u32,
        team: value u32,
    }
    /// Weighted sum of each token's rows.
    "combine": Combine [] in PLAIN, threads 256, registers 80 {
        rows: read f32,
        row_of_pair: maybe u32,
        weights: maybe f32,
        out: write f32,
        tokens: value u64,
        cols: value u64,
        stored: value u64,
        top_k: value u32,
        accumulate: value u32,
        spans_per_row: value u32,
        team: value u32,
    }
    /// Euclidean norms.
    "row_norms": RowNorms [T] in FLOATS, threads 256, registers 64 {
        x: read T,
        norm: write f32,
        rows: value u64,
        cols: value u64,
        size: value u32,
    }
    /// Sign random projections.
    "row_keys": RowKeys [T] in FLOATS, threads 32, registers 128 {
        x: read T,
        key: write u32,
        rows: value u64,
        cols: value u64,
    }
    /// The same with fewer rows to a warp.
    "row_keys" / "row_keys_few": RowKeysFew [T] in FLOATS, threads 32, registers 64 {
        x: read T,
        key: write u32,
        rows: value u64,
        cols: value u64,
    }
    /// Dot products.
    "row_dots": RowDots [A B] in FLOAT_PAIRS, threads 256, registers 56 {
        a: read A,
        b: read B,
        b_index: maybe u32,
        dot: write f32,
        rows: value u64,
        cols: value u64,
        stored: value u64,
        a_div: value u64,
        size: value u32,
    }
    /// Elements of one float type in another one.
    "cast": Cast [S D] in FLOAT_PAIRS, threads 256, registers 40 {
        src: read S,
        dst: write D,
        len: value u64,
    }
}

/// Bytes that a thread moves at once, and how often before it waits; as `PACKS` in the kernels.
const PACK_BYTES: usize = 16;
const PACKS: usize = 4;

/// The same for each of the slots of `combine`.
const SLOT_PACKS: usize = 2;

/// Columns of f32 that a thread moves at once.
const PACK: usize = PACK_BYTES / size_of::<f32>();

/// Rows of a warp of `row_keys`, and where there are few.
const KEY_ROWS: usize = 32;
const FEW_KEY_ROWS: usize = 8;

/// Its shared memory: a tile of 32 columns of each row, padded by 4, and a hash and a scale a lane.
const fn key_shared(rows: usize) -> u32 {
    ((rows * (32 + 4) + 2 * 32) * size_of::<f32>()) as u32
}

/// Offsets of this many groups: one entry more.
pub(super) fn offsets_of(buffer: &CudaBuffer, groups: usize) -> Result<Ptr> {
    Ptr::u32(buffer, offset_count(groups)?)
}

pub(super) fn gather_rows(args: &kernel::GatherRows<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (rows, cols) = (args.rows, args.cols);
    let offsets = offsets_of(&args.offsets, args.groups)?;
    let index_div = divisor("index_div", args.index_div)?;
    let index = Ptr::u32(&args.index, rows)?;
    let total = elements("dst", &[rows, cols])?;
    let src = Ptr::floats(&args.src, args.src.len())?;
    let (scale, dst) = match &args.scale {
        Some(scale) => (Some(Ptr::f32(scale, rows)?), Ptr::f32(&args.dst, total)?),
        None if args.dst.dtype() != src.dtype => {
            return Err(Error::shape("element type of `dst`", args.dst.dtype(), src.dtype));
        }
        None => (None, Ptr::floats(&args.dst, total)?),
    };
    let stored = args.src.len_rows(cols);
    to.check_offsets(&args.offsets, args.groups, rows)?;
    let in_use = Index::in_use("index", &args.index, (&args.offsets, args.groups, rows), stored);
    to.check_index(Index { div: args.index_div, ..in_use })?;
    let groups = u32_of("groups", args.groups)?;
    let pack = if scale.is_some() { PACK } else { PACK_BYTES / src.dtype.bytes() };
    let shape = spans(rows, cols, pack, PACKS)?;
    let (rows, stored, cols) = (rows as u64, stored as u64, cols as u64);
    let (spans_per_row, team) = (shape.per_row, shape.team);
    match scale {
        Some(scale) => {
            GatherScaled { src, index, scale, offsets, dst, rows, stored, cols, index_div, groups, spans_per_row, team }
                .launch(to, shape.blocks, 0)
        }
        None => GatherRows { src, index, offsets, dst, rows, stored, cols, index_div, groups, spans_per_row, team }
            .launch(to, shape.blocks, 0),
    }
}

pub(super) fn combine(args: &kernel::Combine<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (tokens, top_k, cols) = (args.tokens, args.top_k, args.cols);
    let pairs = elements("pairs", &[tokens, top_k])?;
    let stored = args.rows.len_rows(cols);
    let row_of_pair = Ptr::optional_u32(args.row_of_pair.as_ref(), pairs)?;
    let weights = Ptr::optional_f32(args.weights.as_ref(), pairs)?;
    args.check_rows(stored)?;
    let rows = Ptr::f32(&args.rows, elements("rows", &[stored, cols])?)?;
    let out = Ptr::f32(&args.out, elements("out", &[tokens, cols])?)?;
    if let Some(buffer) = &args.row_of_pair {
        to.check_index(Index::or_none("row_of_pair", buffer, pairs, stored))?;
    }
    let shape = spans(tokens, cols, PACK, SLOT_PACKS)?;
    let kernel = Combine {
        rows,
        row_of_pair,
        weights,
        out,
        tokens: tokens as u64,
        cols: cols as u64,
        stored: stored as u64,
        top_k: u32_of("slots of a token", top_k)?,
        accumulate: args.accumulate.into(),
        spans_per_row: shape.per_row,
        team: shape.team,
    };
    kernel.launch(to, shape.blocks, 0)
}

pub(super) fn row_norms(args: &kernel::RowNorms<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (rows, cols) = (args.rows, args.cols);
    let x = Ptr::floats(&args.x, elements("x", &[rows, cols])?)?;
    let norm = Ptr::f32(&args.norm, rows)?;
    RowNorms { x, norm, rows: rows as u64, cols: cols as u64, size: team_of(cols) }.launch(
        to,
        team_grid(rows, cols),
        TEAM_SHARED,
    )
}

pub(super) fn row_keys(args: &kernel::RowKeys<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (rows, cols) = (args.rows, args.cols);
    let x = Ptr::floats(&args.x, elements("x", &[rows, cols])?)?;
    let key = Ptr::u32(&args.key, rows)?;
    // A warp for each of the four schedulers of a multiprocessor, at least. A row's key is the same either way.
    let few = rows.div_ceil(KEY_ROWS) < 4 * to.gpu().sms as usize;
    let (count, cols) = (rows as u64, cols as u64);
    if few {
        RowKeysFew { x, key, rows: count, cols }.launch(to, grid(rows, FEW_KEY_ROWS), key_shared(FEW_KEY_ROWS))
    } else {
        RowKeys { x, key, rows: count, cols }.launch(to, grid(rows, KEY_ROWS), key_shared(KEY_ROWS))
    }
}

pub(super) fn row_dots(args: &kernel::RowDots<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (rows, cols) = (args.rows, args.cols);
    check_positive("a_div", args.a_div)?;
    let stored = match &args.b_index {
        Some(_) => args.b.len_rows(cols),
        None => rows,
    };
    let kernel = RowDots {
        a: Ptr::floats(&args.a, elements("a", &[rows.div_ceil(args.a_div), cols])?)?,
        b: Ptr::floats(&args.b, elements("b", &[stored, cols])?)?,
        b_index: Ptr::optional_u32(args.b_index.as_ref(), rows)?,
        dot: Ptr::f32(&args.dot, rows)?,
        rows: rows as u64,
        cols: cols as u64,
        stored: stored as u64,
        a_div: args.a_div as u64,
        size: team_of(cols),
    };
    if let Some(buffer) = &args.b_index {
        to.check_index(Index::or_none("b_index", buffer, rows, stored))?;
    }
    kernel.launch(to, team_grid(rows, cols), TEAM_SHARED)
}

pub(super) fn cast(args: &kernel::Cast<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (src, dst) = (Ptr::floats(&args.src, args.len)?, Ptr::floats(&args.dst, args.len)?);
    let pack = PACK_BYTES / src.dtype.bytes().max(dst.dtype.bytes());
    Cast { src, dst, len: args.len as u64 }.launch(to, grid(args.len, THREADS * PACKS * pack), 0)
}
