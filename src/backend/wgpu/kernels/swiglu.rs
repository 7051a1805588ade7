//! SwiGLU, forward and backward.

use super::rows::{COLUMNS, dots, norms_of, offsets_of, reduced, reducers, row_chunks};
use crate::Result;
use crate::backend::elements;
use crate::backend::wgpu::buffer::WgpuBuffer;
use crate::backend::wgpu::checks::Index;
use crate::backend::wgpu::encode::Encoder;
use crate::backend::wgpu::launch::{Arg, Launch, u32_of};
use crate::backend::wgpu::shader::{Constant, Param, Source, source};
use crate::kernel::{RowDots, SwiGlu, SwiGluBackward};

static SWIGLU: Source = source!("swiglu", ["lib_reduce", "lib_scale", "lib_norm", "lib_sigmoid"]);
static SWIGLU_BACKWARD: Source = source!("swiglu_backward", ["lib_sigmoid"]);

const WORKGROUP: u32 = 64;

/// Elements of `[rows, 2, width]`, which kernels index.
fn pairs_of_columns(name: &str, rows: usize, width: usize) -> Result<usize> {
    u32_of("two rows", elements("two rows", &[2, width])?)?;
    let total = elements(name, &[rows, 2, width])?;
    u32_of(name, total)?;
    Ok(total)
}

pub(crate) fn swiglu(args: &SwiGlu<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let (rows, width) = (args.rows, args.width);
    let total = pairs_of_columns("ab", rows, width)?;
    let buffers = vec![
        Arg::f32("ab", &args.ab, total)?,
        offsets_of(&args.offsets, args.groups)?,
        Arg::f32("h", &args.h, total / 2)?,
        norms_of("norm", &args.norm, rows)?,
    ];
    let params = vec![("width", Param::U32(reduced(width)?)), ("experts", Param::U32(u32_of("groups", args.groups)?))];
    to.check_offsets(&args.offsets, args.groups, rows)?;
    to.launch(Launch {
        source: &SWIGLU,
        entry: "main",
        workgroup: reducers(width),
        constants: vec![],
        params,
        args: buffers,
        groups: rows as u64,
        cost: 48 * (width as u64 + 16),
    })
}

pub(crate) fn swiglu_backward(args: &SwiGluBackward<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let (rows, width) = (args.rows, args.width);
    let total = pairs_of_columns("d_ab", rows, width)?;
    let stored = match &args.ab_index {
        Some(_) => args.ab.len_rows(2 * width),
        None => rows,
    };
    let (groups, chunks) = row_chunks(rows, width)?;
    let launch = Launch {
        source: &SWIGLU_BACKWARD,
        entry: "main",
        workgroup: WORKGROUP,
        constants: vec![("COLUMNS", Constant::U32(COLUMNS as u32))],
        params: vec![
            ("width", Param::U32(u32_of("width", width)?)),
            ("chunks", chunks),
            ("experts", Param::U32(u32_of("groups", args.groups)?)),
        ],
        args: vec![
            Arg::f32("ab", &args.ab, pairs_of_columns("ab", stored, width)?)?,
            Arg::optional_u32("ab_index", args.ab_index.as_ref(), rows)?,
            Arg::f32("u", &args.u, total / 2)?,
            Arg::optional_f32("scale", args.scale.as_ref(), rows)?,
            offsets_of(&args.offsets, args.groups)?,
            Arg::f32("d_ab", &args.d_ab, total)?,
            Arg::f32("h", &args.h, total / 2)?,
        ],
        groups,
        cost: 48 * width.min(COLUMNS) as u64,
    };
    // A launch of its own: with `dot` there would be more buffers than every device binds.
    let products = RowDots {
        rows,
        cols: width,
        a_div: 1,
        a: args.u.clone(),
        b: args.h.clone(),
        b_index: None,
        dot: args.dot.clone(),
    };
    let products_launch = dots(&products, rows, Some((&args.offsets, args.groups)))?;
    to.check_offsets(&args.offsets, args.groups, rows)?;
    if let Some(buffer) = &args.ab_index {
        to.check_index(Index::in_use("ab_index", buffer, (&args.offsets, args.groups, rows), stored))?;
    }
    to.launch(launch)?;
    to.launch(products_launch)
}
