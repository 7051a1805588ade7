//! Kernels that move 16 bytes at once where they can: on memory of a host's that begins anywhere, results are the same bit by
//! bit, and nothing beside them is written.

use libtest_mimic::Trial;
use lrmoe::DType::{BF16, F16, F32, U32};
use lrmoe::backend::cuda::CudaBuffer;
use lrmoe::kernel::{
    AdamW, AdamWStep, Cast, Combine, GatherRows, Kernel, RowDots, RowKeys, RowNorms, SumSquares, SwiGlu, SwiGluBackward,
};
use lrmoe::memory::Category;
use lrmoe::{Backend, CudaBackend, CudaOptions, DType, HostData, Recording};

use crate::support::outcome::{Outcome, holds, text};
use crate::support::step::values;
use crate::{backend, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("alignment::bits_do_not_depend_on_where_memory_begins", anywhere),
        trial("alignment::nor_do_those_of_nan", nan),
    ]
}

/// Elements behind every array.
const SPARE: usize = 3;
const PAD: f32 = 77.0;

/// Arrays that begin so many elements after a multiple of 16 bytes.
struct Arrays<'a> {
    lrmoe: &'a CudaBackend,
    shift: usize,
    owners: Vec<(CudaBuffer, usize)>,
}

impl Arrays<'_> {
    fn add(&mut self, data: HostData) -> Result<CudaBuffer, String> {
        let (dtype, len) = (data.dtype(), data.len());
        let whole = self.shift + len + SPARE;
        let pad = HostData::from_f32(vec![PAD; whole], if dtype == U32 { F32 } else { dtype });
        let pad = if dtype == U32 { HostData::U32(vec![PAD.to_bits(); whole]) } else { pad };
        let owner = self.lrmoe.import("array", pad, Category::Scratch).map_err(text)?;
        self.lrmoe.upload(&owner, self.shift, &data).map_err(text)?;
        let address = self.lrmoe.address(&owner) + (self.shift * dtype.bytes()) as u64;
        self.owners.push((owner, len));
        // SAFETY: elements of the owner, which is kept until the end.
        unsafe { self.lrmoe.borrow("view", address, dtype, len) }.map_err(text)
    }

    fn floats(&mut self, seed: u64, len: usize, dtype: DType) -> Result<CudaBuffer, String> {
        self.add(HostData::from_f32(values(seed, len), dtype))
    }

    fn f32(&mut self, seed: u64, len: usize) -> Result<CudaBuffer, String> {
        self.floats(seed, len, F32)
    }

    fn u32(&mut self, values: &[u32]) -> Result<CudaBuffer, String> {
        self.add(HostData::U32(values.to_vec()))
    }

    /// What all of them hold, after a look at what lies around them.
    fn bits(&self) -> Result<Vec<Vec<u32>>, String> {
        let content = |(owner, len): &(CudaBuffer, usize)| {
            let bits = bits_of(self.lrmoe.read_blocking(owner).map_err(text)?);
            let inside = self.shift..self.shift + len;
            let pad = bits[0..self.shift].iter().chain(&bits[inside.end..]);
            holds("what lies around an array stays", pad.clone().all(|&bits| bits == PAD.to_bits()))?;
            Ok(bits[inside].to_vec())
        };
        self.owners.iter().map(content).collect()
    }
}

fn bits_of(data: HostData) -> Vec<u32> {
    match data {
        HostData::U32(values) => values,
        HostData::F32(values) => values.into_iter().map(f32::to_bits).collect(),
        HostData::BF16(values) => values.into_iter().map(|x| x.to_f32().to_bits()).collect(),
        HostData::F16(values) => values.into_iter().map(|x| x.to_f32().to_bits()).collect(),
    }
}

const STEP: AdamWStep = AdamWStep {
    lr: 1e-2,
    beta1: 0.9,
    beta2: 0.99,
    eps: 1e-8,
    weight_decay: 0.1,
    correction1: 0.5,
    correction2: 0.5,
    grad_scale: 0.5,
};

/// Kernels of every family, on rows of so many columns.
fn kernels(arrays: &mut Arrays<'_>, cols: usize) -> Result<Vec<Kernel<CudaBuffer>>, String> {
    let (rows, len) = (5, 5 * cols);
    let index = arrays.u32(&[4, 0, 3, 3, 1])?;
    let offsets = arrays.u32(&[0, 2, 4])?;
    let scale = arrays.f32(1, rows)?;
    let mut all: Vec<Kernel<CudaBuffer>> = Vec::new();
    for dtype in [F32, BF16, F16] {
        let x = arrays.floats(2, len, dtype)?;
        let gather = |scale: Option<CudaBuffer>, dst| GatherRows {
            rows,
            cols,
            index_div: 1,
            groups: 2,
            src: x.clone(),
            index: index.clone(),
            scale,
            offsets: offsets.clone(),
            dst,
        };
        all.push(gather(None, arrays.floats(3, len, dtype)?).into());
        all.push(gather(Some(scale.clone()), arrays.f32(3, len)?).into());
        all.push(RowNorms { rows, cols, x: x.clone(), norm: arrays.f32(3, rows)? }.into());
        all.push(RowKeys { rows, cols, x: x.clone(), key: arrays.u32(&[9; 5])? }.into());
        let dot = |b, dot| RowDots { rows, cols, a_div: 1, a: x.clone(), b, b_index: Some(index.clone()), dot };
        all.push(dot(arrays.f32(4, len)?, arrays.f32(3, rows)?).into());
        all.push(dot(arrays.floats(4, len, BF16)?, arrays.f32(3, rows)?).into());
        for to in [F32, BF16, F16] {
            all.push(Cast { len, src: x.clone(), dst: arrays.floats(3, len, to)? }.into());
        }
        let master = if dtype == F32 { None } else { Some(arrays.f32(5, len)?) };
        let (grad, weight, m) = (arrays.f32(6, len)?, arrays.floats(5, len, dtype)?, arrays.f32(7, len)?);
        let v = arrays.add(HostData::F32(values(8, len).into_iter().map(f32::abs).collect()))?;
        all.push(AdamW { len, step: STEP, grad, weight, master, m, v }.into());
    }
    let combine = Combine {
        tokens: 2,
        top_k: 2,
        cols,
        accumulate: true,
        rows: arrays.f32(9, len)?,
        row_of_pair: Some(index.clone()),
        weights: Some(scale.clone()),
        out: arrays.f32(10, 2 * cols)?,
    };
    all.push(combine.into());
    let partial = arrays.f32(3, 2 * len.div_ceil(4096))?;
    all.push(SumSquares { len, x: arrays.f32(11, len)?, partial }.into());
    let ab = arrays.f32(12, 2 * len)?;
    let (h, norm) = (arrays.f32(3, len)?, arrays.f32(3, rows)?);
    all.push(SwiGlu { rows, width: cols, groups: 2, ab: ab.clone(), offsets: offsets.clone(), h, norm }.into());
    let backward = SwiGluBackward {
        rows,
        width: cols,
        groups: 2,
        ab,
        ab_index: Some(index),
        u: arrays.f32(13, len)?,
        scale: Some(scale),
        offsets,
        d_ab: arrays.f32(3, 2 * len)?,
        h: arrays.f32(3, len)?,
        dot: arrays.f32(3, rows)?,
    };
    all.push(backward.into());
    Ok(all)
}

fn anywhere() -> Outcome {
    let lrmoe = backend(CudaOptions::default())?;
    let run = |shift: usize, cols: usize| {
        let mut arrays = Arrays { lrmoe: &lrmoe, shift, owners: Vec::new() };
        let mut recording = Recording::new();
        for kernel in kernels(&mut arrays, cols)? {
            recording.dispatch(kernel).map_err(text)?;
        }
        lrmoe.submit(&recording).map_err(text)?;
        arrays.bits()
    };
    // Packs of all types, of f32 alone, of none; more than a warp takes at once.
    for cols in [64, 8, 12, 9, 1032, 8200] {
        let first: Vec<Vec<u32>> = run(0, cols)?;
        for shift in [1, 2, 4] {
            let shifted = run(shift, cols)?;
            let differing = first.iter().zip(&shifted).position(|(a, b)| a != b);
            holds(format!("{cols} columns, {shift} elements off: array {differing:?}"), differing.is_none())?;
        }
    }
    Ok(())
}

/// Casts keep the bits of a NaN within a type, and give the one of hardware where they make a type narrower.
fn nan() -> Outcome {
    let lrmoe = backend(CudaOptions::default())?;
    let bits = [0x7f80_0001, 0xffc1_2345, 0x7fff_ffff, 0x3f80_0000, 0xff81_0000].map(f32::from_bits).repeat(9);
    let high = |x: &f32| (x.to_bits() >> 16) as u16;
    for shift in [0, 1] {
        let mut arrays = Arrays { lrmoe: &lrmoe, shift, owners: Vec::new() };
        let mut recording = Recording::new();
        let sources = [
            HostData::F32(bits.clone()),
            HostData::BF16(bits.iter().map(|x| half::bf16::from_bits(high(x))).collect()),
            HostData::F16(bits.iter().map(|x| half::f16::from_bits(high(x))).collect()),
        ];
        let mut casts = Vec::new();
        for source in sources {
            let (from, len) = (source.dtype(), source.len());
            let src = arrays.add(source.clone())?;
            for to in [F32, BF16, F16] {
                let dst = arrays.floats(3, len, to)?;
                recording.dispatch(Cast { len, src: src.clone(), dst: dst.clone() }).map_err(text)?;
                casts.push((from, to, source.clone(), dst));
            }
        }
        lrmoe.submit(&recording).map_err(text)?;
        for (from, to, source, dst) in casts {
            let narrow = |data: &HostData| -> Vec<(bool, u16)> {
                match data {
                    HostData::BF16(values) => values.iter().map(|x| (x.is_nan(), x.to_bits())).collect(),
                    HostData::F16(values) => values.iter().map(|x| (x.is_nan(), x.to_bits())).collect(),
                    _ => Vec::new(),
                }
            };
            let got = lrmoe.read_blocking(&dst).map_err(text)?;
            let what = format!("{from} to {to}, {shift} elements off");
            if from == to {
                holds(&what, raw(&got) == raw(&source))?;
            } else {
                holds(&what, narrow(&got).iter().all(|&(is_nan, bits)| !is_nan || bits == 0x7fff))?;
            }
        }
    }
    Ok(())
}

fn raw(data: &HostData) -> Vec<u32> {
    match data {
        HostData::BF16(values) => values.iter().map(|x| x.to_bits().into()).collect(),
        HostData::F16(values) => values.iter().map(|x| x.to_bits().into()).collect(),
        HostData::F32(values) => values.iter().map(|x| x.to_bits()).collect(),
        HostData::U32(values) => values.clone(),
    }
}
