//! Permutation, compaction, combine, norms, dot products, casts.

use half::{bf16, f16};
use rayon::prelude::*;

use super::buffer::CpuBuffer;
use super::expert::{group_offsets, optional_f32, optional_u32, read_optional, used_rows};
use super::gemm::Floats;
use super::math::{ROW_CHUNK, dot, norm_from_squares, vectorised};
use crate::backend::{Buffer, elements};
use crate::kernel::{Cast, Combine, GatherRows, NONE, Permute, RowDots, RowNorms, check_positive};
use crate::tensor::HostData;
use crate::{Error, Result};

/// A float storage type.
pub(super) trait Element: Copy + Send + Sync {
    fn widen(self) -> f32;
    fn narrow(x: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        Self::from_f32(x)
    }
}

impl Element for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        Self::from_f32(x)
    }
}

/// Runs a generic expression on whatever float type a buffer holds.
macro_rules! with_floats {
    ($floats:expr, $name:ident => $body:expr) => {
        match $floats {
            Floats::F32($name) => $body,
            Floats::BF16($name) => $body,
            Floats::F16($name) => $body,
        }
    };
}

pub(super) use with_floats;

fn out_of_range(name: &str, value: u32, limit: usize) -> Error {
    Error::argument(name, value, format!("below {limit}"))
}

pub(super) fn permute(args: &Permute<CpuBuffer>) -> Result<()> {
    let ids = args.ids.read()?;
    let ids = ids.u32(args.pairs)?;
    args.check_pairs()?;
    if let Some(&id) = ids.iter().find(|&&id| id != NONE && id as usize >= args.experts) {
        return Err(out_of_range("ids", id, args.experts));
    }
    let (mut counts, mut offsets) = (args.counts.write()?, args.offsets.write()?);
    let (mut pair_of_row, mut row_of_pair) = (args.pair_of_row.write()?, args.row_of_pair.write()?);
    let counts = counts.u32(args.experts)?;
    let offsets = offsets.u32(args.experts + 1)?;
    let pair_of_row = pair_of_row.u32(args.pairs)?;
    let row_of_pair = row_of_pair.u32(args.pairs)?;
    counts.fill(0);
    for &id in ids.iter().filter(|&&id| id != NONE) {
        counts[id as usize] += 1;
    }
    let mut next = 0;
    for (offset, &count) in offsets.iter_mut().zip(&*counts) {
        *offset = next;
        next += count;
    }
    let mut cursor = offsets[..args.experts].to_vec();
    offsets[args.experts] = next;
    for ((pair, &id), row) in (0u32..).zip(ids).zip(row_of_pair) {
        *row = NONE;
        if id != NONE {
            let cursor = &mut cursor[id as usize];
            pair_of_row[*cursor as usize] = pair;
            *row = *cursor;
            *cursor += 1;
        }
    }
    Ok(())
}

pub(super) fn gather_rows(args: &GatherRows<CpuBuffer>) -> Result<()> {
    let (src, index, offsets) = (args.src.read()?, args.index.read()?, args.offsets.read()?);
    let scale = read_optional(args.scale.as_ref())?;
    let mut dst = args.dst.write()?;
    let offsets = group_offsets(&offsets, args.groups)?;
    let used = used_rows(offsets, args.rows)?;
    let first = offsets[0] as usize;
    let cols = args.cols;
    let stored = args.src.len_rows(cols);
    check_positive("index_div", args.index_div)?;
    let index = index.u32(used)?;
    if let Some(&i) = index[first..].iter().find(|&&i| i as usize / args.index_div >= stored) {
        return Err(out_of_range("index", i, stored * args.index_div));
    }
    if cols == 0 {
        return Ok(());
    }
    let scale = optional_f32(scale.as_ref(), used)?;
    let total = elements("dst", &[used, cols])?;
    let source = |row: usize| index[row] as usize / args.index_div * cols;
    match scale {
        None => {
            let wrong = Error::shape("element type of `dst`", args.dst.dtype(), args.src.dtype());
            if args.dst.len() < total {
                return Err(Error::shape("length of `dst`", args.dst.len(), format!("at least {total}")));
            }
            macro_rules! gather {
                ($($variant:ident),*) => {
                    match (src.data(), dst.data()) {
                        $((HostData::$variant(src), HostData::$variant(dst)) => {
                            dst[first * cols..total].par_chunks_mut(cols).with_min_len(ROW_CHUNK).enumerate().for_each(|(i, dst)| {
                                dst.copy_from_slice(&src[source(first + i)..][..cols]);
                            });
                        })*
                        _ => return Err(wrong),
                    }
                };
            }
            gather!(F32, BF16, F16);
        }
        Some(scale) => {
            let dst = &mut dst.f32(total)?[first * cols..];
            with_floats!(src.floats()?, src => {
                dst.par_chunks_mut(cols).with_min_len(ROW_CHUNK).enumerate().for_each(|(i, dst)| {
                    let src = &src[source(first + i)..][..cols];
                    vectorised(#[inline(always)] || {
                        for (d, s) in dst.iter_mut().zip(src) {
                            *d = scale[first + i] * s.widen();
                        }
                    });
                });
            });
        }
    }
    Ok(())
}

pub(super) fn combine(args: &Combine<CpuBuffer>) -> Result<()> {
    let rows = args.rows.read()?;
    let row_of_pair = read_optional(args.row_of_pair.as_ref())?;
    let weights = read_optional(args.weights.as_ref())?;
    let mut out = args.out.write()?;
    let (cols, top_k) = (args.cols, args.top_k);
    let pairs = elements("pairs", &[args.tokens, top_k])?;
    let row_of_pair = optional_u32(row_of_pair.as_ref(), pairs)?;
    let weights = optional_f32(weights.as_ref(), pairs)?;
    let stored = args.rows.len_rows(cols);
    args.check_rows(stored)?;
    let outside = |row: u32| row != NONE && row as usize >= stored;
    if let Some(&row) = row_of_pair.and_then(|index| index.iter().find(|&&row| outside(row))) {
        return Err(out_of_range("row_of_pair", row, stored));
    }
    let rows = rows.f32(elements("rows", &[stored, cols])?)?;
    let out = out.f32(elements("out", &[args.tokens, cols])?)?;
    if cols == 0 {
        return Ok(());
    }
    out.par_chunks_mut(cols).with_min_len(16).enumerate().for_each(|(token, out)| {
        if !args.accumulate {
            out.fill(0.0);
        }
        for pair in token * top_k..(token + 1) * top_k {
            let row = row_of_pair.map_or(pair, |index| index[pair] as usize);
            if row == NONE as usize {
                continue;
            }
            let row = &rows[row * cols..(row + 1) * cols];
            let weight = weights.map_or(1.0, |weights| weights[pair]);
            vectorised(
                #[inline(always)]
                || {
                    for (o, r) in out.iter_mut().zip(row) {
                        *o += weight * r;
                    }
                },
            );
        }
    });
    Ok(())
}

pub(super) fn row_norms(args: &RowNorms<CpuBuffer>) -> Result<()> {
    let x = args.x.read()?;
    let mut norm = args.norm.write()?;
    let (cols, total) = (args.cols, elements("x", &[args.rows, args.cols])?);
    let norm = norm.f32(args.rows)?;
    require_len("x", &args.x, total)?;
    with_floats!(x.floats()?, x => {
        norm.par_iter_mut().with_min_len(16).enumerate().for_each(|(row, norm)| {
            let x = &x[row * cols..(row + 1) * cols];
            *norm = vectorised(#[inline(always)] || {
                norm_from_squares(dot(cols, |i| x[i].widen(), |i| x[i].widen()))
            });
        });
    });
    Ok(())
}

pub(super) fn require_len(name: &str, buffer: &CpuBuffer, needed: usize) -> Result<()> {
    if buffer.len() < needed {
        return Err(Error::shape(format!("length of `{name}`"), buffer.len(), format!("at least {needed}")));
    }
    Ok(())
}

pub(super) fn row_dots(args: &RowDots<CpuBuffer>) -> Result<()> {
    let (a, b) = (args.a.read()?, args.b.read()?);
    let b_index = read_optional(args.b_index.as_ref())?;
    let mut out = args.dot.write()?;
    let cols = args.cols;
    let out = out.f32(args.rows)?;
    check_positive("a_div", args.a_div)?;
    require_len("a", &args.a, elements("a", &[args.rows.div_ceil(args.a_div), cols])?)?;
    let b_index = optional_u32(b_index.as_ref(), args.rows)?;
    let stored = args.b.len_rows(cols);
    match b_index {
        Some(index) => {
            if let Some(&row) = index.iter().find(|&&row| row != NONE && row as usize >= stored) {
                return Err(out_of_range("b_index", row, stored));
            }
        }
        None => require_len("b", &args.b, elements("b", &[args.rows, cols])?)?,
    }
    with_floats!(a.floats()?, a => with_floats!(b.floats()?, b => {
        out.par_iter_mut().with_min_len(16).enumerate().for_each(|(i, out)| {
            let row = b_index.map_or(i, |index| index[i] as usize);
            if row == NONE as usize {
                *out = 0.0;
                return;
            }
            let a = &a[i / args.a_div * cols..][..cols];
            let b = &b[row * cols..][..cols];
            *out = vectorised(#[inline(always)] || dot(cols, |i| a[i].widen(), |i| b[i].widen())) as f32;
        });
    }));
    Ok(())
}

pub(super) fn cast(args: &Cast<CpuBuffer>) -> Result<()> {
    let src = args.src.read()?;
    let mut dst = args.dst.write()?;
    require_len("src", &args.src, args.len)?;
    require_len("dst", &args.dst, args.len)?;
    with_floats!(src.floats()?, src => match dst.data() {
        HostData::F32(dst) => convert(&src[..args.len], dst),
        HostData::BF16(dst) => convert(&src[..args.len], dst),
        HostData::F16(dst) => convert(&src[..args.len], dst),
        HostData::U32(_) => return Err(Error::shape("element type of `dst`", args.dst.dtype(), "f32, bf16 or f16")),
    });
    Ok(())
}

fn convert<S: Element, D: Element>(src: &[S], dst: &mut [D]) {
    dst.par_chunks_mut(4096).zip(src.par_chunks(4096)).for_each(|(dst, src)| {
        for (d, s) in dst.iter_mut().zip(src) {
            *d = D::narrow(s.widen());
        }
    });
}
