//! Grouped GEMMs and SwiGLU.

use rayon::prelude::*;

use super::buffer::{CpuBuffer, Read};
use super::gemm::{self, Rows};
use super::math::{ROW_CHUNK, dot, norm_from_squares, sigmoid, vectorised};
use crate::backend::{divisor, elements};
use crate::kernel::{GroupedDgrad, GroupedForward, GroupedWgrad, SwiGlu, SwiGluBackward};
use crate::{Error, Result};

/// Locks an optional buffer.
pub(super) fn read_optional(buffer: Option<&CpuBuffer>) -> Result<Option<Read<'_>>> {
    buffer.map(CpuBuffer::read).transpose()
}

/// The first `len` indices of an optional buffer.
pub(super) fn optional_u32<'a>(guard: Option<&'a Read<'_>>, len: usize) -> Result<Option<&'a [u32]>> {
    guard.map(|g| g.u32(len)).transpose()
}

/// The first `len` values of an optional buffer.
pub(super) fn optional_f32<'a>(guard: Option<&'a Read<'_>>, len: usize) -> Result<Option<&'a [f32]>> {
    guard.map(|g| g.f32(len)).transpose()
}

/// The offsets of this many groups: one entry more.
pub(super) fn group_offsets<'a>(guard: &'a Read<'_>, groups: usize) -> Result<&'a [u32]> {
    guard.u32(elements("groups", &[groups])? + 1)
}

/// Number of rows that are in use: the last offset, checked to be the highest, and against what the buffers hold.
pub(super) fn used_rows(offsets: &[u32], rows: usize) -> Result<usize> {
    if let Some(pair) = offsets.windows(2).find(|pair| pair[0] > pair[1]) {
        return Err(Error::argument("offsets", format!("{} before {}", pair[0], pair[1]), "ascending values"));
    }
    let used = offsets.last().map_or(0, |&last| last as usize);
    if used > rows {
        return Err(Error::shape("last offset", used, format!("at most {rows} rows")));
    }
    Ok(used)
}

pub(super) fn grouped_forward(args: &GroupedForward<CpuBuffer>) -> Result<()> {
    let (x, w, offsets) = (args.x.read()?, args.w.read()?, args.offsets.read()?);
    let index = read_optional(args.index.as_ref())?;
    let mut out = args.out.write()?;
    let rows = Rows {
        data: x.floats()?,
        cols: args.k,
        index: optional_u32(index.as_ref(), args.rows)?,
        index_div: divisor("index_div", args.index_div)?,
        scale: None,
    };
    let out = out.f32(elements("out", &[args.rows, args.n])?)?;
    gemm::forward(group_offsets(&offsets, args.groups)?, rows, w.floats()?, args.n, out)
}

pub(super) fn grouped_dgrad(args: &GroupedDgrad<CpuBuffer>) -> Result<()> {
    let (dy, w, offsets) = (args.dy.read()?, args.w.read()?, args.offsets.read()?);
    let index = read_optional(args.index.as_ref())?;
    let mut out = args.out.write()?;
    let rows = Rows {
        data: dy.floats()?,
        cols: args.n,
        index: optional_u32(index.as_ref(), args.rows)?,
        index_div: divisor("index_div", args.index_div)?,
        scale: None,
    };
    let out = out.f32(elements("out", &[args.rows, args.k])?)?;
    gemm::dgrad(group_offsets(&offsets, args.groups)?, rows, w.floats()?, args.k, out)
}

pub(super) fn grouped_wgrad(args: &GroupedWgrad<CpuBuffer>) -> Result<()> {
    let (dy, x, offsets) = (args.dy.read()?, args.x.read()?, args.offsets.read()?);
    let dy_index = read_optional(args.dy_index.as_ref())?;
    let dy_scale = read_optional(args.dy_scale.as_ref())?;
    let x_index = read_optional(args.x_index.as_ref())?;
    let mut out = args.out.write()?;
    let dy_rows = Rows {
        data: dy.floats()?,
        cols: args.n,
        index: optional_u32(dy_index.as_ref(), args.rows)?,
        index_div: divisor("dy_div", args.dy_div)?,
        scale: optional_f32(dy_scale.as_ref(), args.rows)?,
    };
    let x_rows = Rows {
        data: x.floats()?,
        cols: args.k,
        index: optional_u32(x_index.as_ref(), args.rows)?,
        index_div: divisor("x_div", args.x_div)?,
        scale: None,
    };
    let out = out.f32(elements("out", &[args.groups, args.n, args.k])?)?;
    gemm::wgrad(group_offsets(&offsets, args.groups)?, dy_rows, x_rows, args.accumulate, out)
}

pub(super) fn swiglu(args: &SwiGlu<CpuBuffer>) -> Result<()> {
    let (ab, offsets) = (args.ab.read()?, args.offsets.read()?);
    let (mut h, mut norm) = (args.h.write()?, args.norm.write()?);
    let width = args.width;
    let offsets = group_offsets(&offsets, args.groups)?;
    let used = used_rows(offsets, args.rows)?;
    let first = offsets[0] as usize;
    elements("rows of one task", &[ROW_CHUNK, 2, width])?;
    let ab = &ab.f32(elements("ab", &[used, 2, width])?)?[2 * width * first..];
    let h = &mut h.f32(elements("h", &[used, width])?)?[width * first..];
    let norm = &mut norm.f32(used)?[first..];
    if width == 0 {
        norm.fill(0.0);
        return Ok(());
    }
    let chunks = h.par_chunks_mut(ROW_CHUNK * width).zip(norm.par_chunks_mut(ROW_CHUNK));
    chunks.zip(ab.par_chunks(ROW_CHUNK * 2 * width)).for_each(|((h, norm), ab)| {
        vectorised(
            #[inline(always)]
            || {
                for ((h, norm), ab) in h.chunks_exact_mut(width).zip(norm).zip(ab.chunks_exact(2 * width)) {
                    let (a, b) = ab.split_at(width);
                    for ((h, &a), &b) in h.iter_mut().zip(a).zip(b) {
                        *h = a * sigmoid(a) * b;
                    }
                    *norm = norm_from_squares(dot(width, |i| h[i], |i| h[i]));
                }
            },
        );
    });
    Ok(())
}

pub(super) fn swiglu_backward(args: &SwiGluBackward<CpuBuffer>) -> Result<()> {
    let (ab, u, offsets) = (args.ab.read()?, args.u.read()?, args.offsets.read()?);
    let index = read_optional(args.ab_index.as_ref())?;
    let scale = read_optional(args.scale.as_ref())?;
    let (mut d_ab, mut h, mut dots) = (args.d_ab.write()?, args.h.write()?, args.dot.write()?);
    let width = args.width;
    let offsets = group_offsets(&offsets, args.groups)?;
    let used = used_rows(offsets, args.rows)?;
    let begin = offsets[0] as usize;
    let index = optional_u32(index.as_ref(), used)?;
    let scale = optional_f32(scale.as_ref(), used)?;
    let u = u.f32(elements("u", &[used, width])?)?;
    let dots = &mut dots.f32(used)?[begin..];
    if width == 0 {
        dots.fill(0.0);
        return Ok(());
    }
    elements("rows of one task", &[ROW_CHUNK, 2, width])?;
    let stored = args.ab.len_rows(2 * width);
    if let Some(&row) = index.and_then(|index| index[begin..].iter().find(|&&row| row as usize >= stored)) {
        return Err(Error::argument("ab_index", row, format!("below {stored} rows")));
    }
    let ab = ab.f32(elements("ab", &[if index.is_some() { stored } else { used }, 2, width])?)?;
    let d_ab = &mut d_ab.f32(elements("d_ab", &[used, 2, width])?)?[2 * width * begin..];
    let h = &mut h.f32(elements("h", &[used, width])?)?[width * begin..];
    let chunks = d_ab
        .par_chunks_mut(ROW_CHUNK * 2 * width)
        .zip(h.par_chunks_mut(ROW_CHUNK * width))
        .zip(dots.par_chunks_mut(ROW_CHUNK))
        .enumerate();
    chunks.for_each(|(chunk, ((d_ab, h), dots))| {
        let first = begin + chunk * ROW_CHUNK;
        vectorised(
            #[inline(always)]
            || {
                let rows = d_ab.chunks_exact_mut(2 * width).zip(h.chunks_exact_mut(width)).zip(dots);
                for (row, ((d_ab, h), out)) in (first..).zip(rows) {
                    let source = index.map_or(row, |index| index[row] as usize);
                    let (a, b) = ab[2 * width * source..2 * width * (source + 1)].split_at(width);
                    let u = &u[width * row..width * (row + 1)];
                    let (da, db) = d_ab.split_at_mut(width);
                    let scale = scale.map_or(1.0, |scale| scale[row]);
                    for i in 0..width {
                        let s = sigmoid(a[i]);
                        let silu = a[i] * s;
                        let su = scale * u[i];
                        h[i] = silu * b[i];
                        da[i] = su * b[i] * (s * (1.0 + a[i] * (1.0 - s)));
                        db[i] = su * silu;
                    }
                    *out = dot(width, |i| u[i], |i| h[i]) as f32;
                }
            },
        );
    });
    Ok(())
}
