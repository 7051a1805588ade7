//! Compaction, combine, norms, keys, dot products, casts.

use crate::backend::faults::offset_count;
use crate::backend::wgpu::buffer::WgpuBuffer;
use crate::backend::wgpu::checks::Index;
use crate::backend::wgpu::encode::Encoder;
use crate::backend::wgpu::launch::{Arg, Launch, groups_of, u32_of};
use crate::backend::wgpu::shader::{Constant, Param, Source, source};
use crate::backend::wgpu::windows::{ALIGNED, bindable, windows};
use crate::backend::{Buffer, divisor, elements, wrong_type};
use crate::kernel::{Cast, Combine, GatherRows, ROW_KEY_BITS, RowDots, RowKeys, RowNorms, check_positive};
use crate::tensor::DType;
use crate::{Error, Result};

static GATHER_ROWS: Source = source!("gather_rows");
static GATHER_SCALED: Source = source!("gather_scaled");
static COMBINE: Source = source!("combine");
static ROW_NORMS: Source = source!("row_norms", ["lib_reduce", "lib_scale", "lib_norm"]);
static ROW_KEYS: Source = source!("row_keys", ["lib_scale"]);
static ROW_DOTS: Source = source!("row_dots", ["lib_reduce"]);
static CAST: Source = source!("cast");

const WORKGROUP: u32 = 64;

/// Columns, or words, of a row that one workgroup of an element-wise kernel takes.
pub(super) const COLUMNS: usize = 512;

/// Columns at most of a row that one workgroup reduces: its loops stay far below the 65,535 rounds that software drivers run.
const MAX_COLS: usize = 1 << 20;

/// The same for keys, whose sums are one invocation's from end to end.
const MAX_KEY_COLS: usize = 1 << 16;

/// Slots of a token at most, for the same reason: they are added up for each of 8 columns.
const MAX_TOP_K: usize = 1 << 12;

/// A size that loops run over, as kernels count.
fn bounded(what: &str, size: usize, most: usize) -> Result<u32> {
    if size > most {
        return Err(Error::Unsupported { what: format!("{what} of {size}"), why: format!("{most} is the most") });
    }
    u32_of(what, size)
}

/// Columns of a row that one workgroup reduces.
pub(super) fn reduced(cols: usize) -> Result<u32> {
    bounded("a row", cols, MAX_COLS)
}

/// Invocations that reduce a row.
pub(super) fn reducers(cols: usize) -> u32 {
    match cols {
        0..=32 => WORKGROUP / 2,
        33..=1024 => WORKGROUP,
        _ => 4 * WORKGROUP,
    }
}

/// Offsets of this many groups: one entry more.
pub(super) fn offsets_of(buffer: &WgpuBuffer, groups: usize) -> Result<Arg<'_>> {
    Arg::u32("offsets", buffer, offset_count(groups)?)
}

/// Workgroups of an element-wise kernel over rows, and how many there are for each row.
pub(super) fn row_chunks(rows: usize, words: usize) -> Result<(u64, Param)> {
    let chunks = words.div_ceil(COLUMNS);
    let groups = u32_of("workgroups", elements("workgroups", &[rows, chunks])?)?;
    Ok((groups.into(), Param::U32(u32_of("chunks", chunks)?)))
}

pub(crate) fn gather_rows(args: &GatherRows<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let (rows, cols) = (args.rows, args.cols);
    let (src, dst) = (&args.src, &args.dst);
    let offsets = offsets_of(&args.offsets, args.groups)?;
    let index_div = divisor("index_div", args.index_div)?;
    let index = Arg::u32("index", &args.index, rows)?;
    let total = elements("dst", &[rows, cols])?;
    let all = u32_of("dst", total)?;
    if !src.dtype().is_float() {
        return Err(wrong_type(src, "f32, bf16 or f16"));
    }
    let halves = src.dtype().bytes() == 2;
    let (source, entry, buffers) = match &args.scale {
        Some(scale) => {
            let scale = Arg::f32("scale", scale, rows)?;
            (&GATHER_SCALED, "main", vec![Arg::floats("src", src, src.len())?, scale, Arg::f32("dst", dst, total)?])
        }
        None if dst.dtype() != src.dtype() => {
            return Err(Error::shape("element type of `dst`", dst.dtype(), src.dtype()));
        }
        None => {
            // Checked as what it is, then copied as words.
            Arg::floats("dst", dst, total)?;
            let narrow = cols < WORKGROUP as usize && total <= (u32::MAX as usize) - COLUMNS;
            let entry = match (halves, narrow) {
                (true, _) => "halves",
                (false, true) => "narrow",
                (false, false) => "whole",
            };
            (&GATHER_ROWS, entry, vec![Arg::words("src", src), Arg::words("dst", dst)])
        }
    };
    to.check_offsets(&args.offsets, args.groups, rows)?;
    let in_use = Index::in_use("index", &args.index, (&args.offsets, args.groups, rows), src.len_rows(cols));
    to.check_index(Index { div: args.index_div, ..in_use })?;
    let words = if entry == "halves" { cols.div_ceil(2) } else { cols };
    let (by_row, chunks) = row_chunks(rows, words)?;
    let groups = if entry == "narrow" { groups_of(total, COLUMNS) } else { by_row };
    to.launch(Launch {
        source,
        entry,
        workgroup: WORKGROUP,
        constants: vec![("COLUMNS", Constant::U32(COLUMNS as u32))],
        params: vec![
            ("cols", Param::U32(u32_of("cols", cols)?)),
            ("chunks", chunks),
            ("index_div", Param::U32(index_div)),
            ("total", Param::U32(all)),
            ("experts", Param::U32(u32_of("groups", args.groups)?)),
        ],
        args: [vec![index, offsets], buffers].concat(),
        groups,
        cost: 8 * if entry == "narrow" { COLUMNS } else { words.min(COLUMNS) } as u64,
    })
}

pub(crate) fn combine(args: &Combine<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let (tokens, top_k, cols) = (args.tokens, args.top_k, args.cols);
    let pairs = elements("pairs", &[tokens, top_k])?;
    u32_of("pairs", pairs)?;
    let stored = args.rows.len_rows(cols);
    let row_of_pair = Arg::optional_u32("row_of_pair", args.row_of_pair.as_ref(), pairs)?;
    let weights = Arg::optional_f32("weights", args.weights.as_ref(), pairs)?;
    args.check_rows(stored)?;
    let rows = Arg::f32("rows", &args.rows, elements("rows", &[stored, cols])?)?;
    let total = elements("out", &[tokens, cols])?;
    u32_of("out", total)?;
    let out = Arg::f32("out", &args.out, total)?;
    let slots = bounded("slots of a token", top_k, MAX_TOP_K)?;
    if let Some(buffer) = &args.row_of_pair {
        to.check_index(Index::or_none("row_of_pair", buffer, pairs, stored))?;
    }
    let (groups, chunks) = row_chunks(tokens, cols)?;
    to.launch(Launch {
        source: &COMBINE,
        entry: "main",
        workgroup: WORKGROUP,
        constants: vec![("COLUMNS", Constant::U32(COLUMNS as u32)), ("ACCUMULATE", Constant::Bool(args.accumulate))],
        params: vec![
            ("cols", Param::U32(u32_of("cols", cols)?)),
            ("chunks", chunks),
            ("top_k", Param::U32(slots)),
            ("stored", Param::U32(u32_of("rows", stored)?)),
        ],
        args: vec![rows, row_of_pair, weights, out],
        groups,
        cost: 8 * (top_k + 1) as u64 * cols.min(COLUMNS) as u64,
    })
}

pub(crate) fn row_norms(args: &RowNorms<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let (rows, cols) = (args.rows, args.cols);
    let total = elements("x", &[rows, cols])?;
    u32_of("x", total)?;
    to.launch(Launch {
        source: &ROW_NORMS,
        entry: "main",
        workgroup: reducers(cols),
        constants: vec![],
        params: vec![("cols", Param::U32(reduced(cols)?))],
        args: vec![Arg::floats("x", &args.x, total)?, norms_of("norm", &args.norm, rows)?],
        groups: rows as u64,
        cost: 16 * (cols as u64 + 64),
    })
}

/// Norms as bits.
pub(super) fn norms_of<'a>(name: &'static str, buffer: &'a WgpuBuffer, rows: usize) -> Result<Arg<'a>> {
    if buffer.dtype() != DType::F32 {
        return Err(wrong_type(buffer, "f32"));
    }
    Arg::bits(name, buffer, rows)
}

pub(crate) fn row_keys(args: &RowKeys<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let (rows, cols) = (args.rows, args.cols);
    let total = elements("x", &[rows, cols])?;
    u32_of("x", total)?;
    let together = WORKGROUP as usize / ROW_KEY_BITS;
    to.launch(Launch {
        source: &ROW_KEYS,
        entry: "main",
        workgroup: WORKGROUP,
        constants: vec![("BITS", Constant::U32(ROW_KEY_BITS as u32))],
        params: vec![
            ("rows", Param::U32(u32_of("rows", rows)?)),
            ("cols", Param::U32(bounded("a row", cols, MAX_KEY_COLS)?)),
        ],
        args: vec![Arg::floats("x", &args.x, total)?, Arg::u32("key", &args.key, rows)?],
        groups: groups_of(rows, together),
        cost: u64::from(WORKGROUP) * 16 * (cols as u64 + 16),
    })
}

pub(crate) fn row_dots(args: &RowDots<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    check_positive("a_div", args.a_div)?;
    let stored = match &args.b_index {
        Some(_) => args.b.len_rows(args.cols),
        None => args.rows,
    };
    // Before the index is looked at, so that a shape is refused before data is.
    let launch = dots(args, stored, None)?;
    if let Some(buffer) = &args.b_index {
        to.check_index(Index::or_none("b_index", buffer, args.rows, stored))?;
    }
    to.launch(launch)
}

/// Products of rows of `a` and `b`, of which `stored` are there; only of rows below the last of these offsets, if any.
pub(super) fn dots<'a>(
    args: &'a RowDots<WgpuBuffer>,
    stored: usize,
    offsets: Option<(&'a WgpuBuffer, usize)>,
) -> Result<Launch<'a>> {
    let (rows, cols) = (args.rows, args.cols);
    let a = elements("a", &[rows.div_ceil(args.a_div), cols])?;
    let b = elements("b", &[stored, cols])?;
    u32_of("a", a)?;
    u32_of("b", b)?;
    let (offsets, groups) = match offsets {
        Some((buffer, groups)) => (offsets_of(buffer, groups)?, groups),
        None => (Arg::optional_u32("offsets", None, 0)?, 0),
    };
    Ok(Launch {
        source: &ROW_DOTS,
        entry: "main",
        workgroup: reducers(cols),
        constants: vec![],
        params: vec![
            ("cols", Param::U32(reduced(cols)?)),
            ("a_div", Param::U32(u32_of("a_div", args.a_div)?)),
            ("stored", Param::U32(u32_of("rows of b", stored)?)),
            ("experts", Param::U32(u32_of("groups", groups)?)),
        ],
        args: vec![
            Arg::floats("a", &args.a, a)?,
            Arg::floats("b", &args.b, b)?,
            Arg::optional_u32("b_index", args.b_index.as_ref(), rows)?,
            offsets,
            Arg::f32("dot", &args.dot, rows)?,
        ],
        groups: rows as u64,
        cost: 8 * (cols as u64 + 64),
    })
}

pub(crate) fn cast(args: &Cast<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let len = args.len;
    let per_word = 4 / args.dst.dtype().bytes();
    let (src, dst) = (Arg::floats("src", &args.src, len)?, Arg::floats("dst", &args.dst, len)?);
    for window in windows(len, ALIGNED, bindable(&[&args.src, &args.dst], to.profile())) {
        to.launch(Launch {
            source: &CAST,
            entry: "main",
            workgroup: WORKGROUP,
            constants: vec![("WORDS", Constant::U32(COLUMNS as u32))],
            params: vec![("len", Param::U32(u32_of("len", window.len())?))],
            groups: groups_of(window.len(), per_word * COLUMNS),
            args: vec![src.clone().window(window.clone()), dst.clone().window(window)],
            cost: 16 * COLUMNS as u64,
        })?;
    }
    Ok(())
}
