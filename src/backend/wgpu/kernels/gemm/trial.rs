//! Products of a device's own making: to measure a variant, and to test one whose correctness is the driver's.

use std::time::{Duration, Instant};

use half::f16;

use super::encode::run_with;
use super::product::{Call, Product, Right, Rows, Shape};
use super::variant::{VARIANTS, Variant};
use crate::backend::wgpu::Inner;
use crate::backend::wgpu::buffer::WgpuBuffer;
use crate::backend::wgpu::encode::Encoder;
use crate::backend::{Buffer as _, elements};
use crate::memory::Category;
use crate::tensor::{DType, HostData};
use crate::{Error, Result};

/// Operands and result of a product with groups of one size.
struct Sample {
    call: Call,
    experts: usize,
    rows: usize,
    n: usize,
    k: usize,
    a: WgpuBuffer,
    b: WgpuBuffer,
    c: WgpuBuffer,
    offsets: WgpuBuffer,
}

impl Sample {
    /// Memory of undefined content.
    fn new(inner: &Inner, shape: &Shape, experts: usize, rows_each: usize) -> Result<Self> {
        let &Shape { call, n, k, dtypes: [a_type, b_type], .. } = shape;
        let rows = elements("rows", &[experts, rows_each])?;
        let (wide, narrow) = (elements("rows", &[rows, n])?, elements("rows", &[rows, k])?);
        let weights = elements("weights", &[experts, n, k])?;
        let (a, b, c) = match call {
            Call::Forward => (narrow, weights, wide),
            Call::Dgrad => (wide, weights, narrow),
            Call::Wgrad => (wide, narrow, weights),
        };
        let alloc = |dtype, len| inner.alloc("trial", dtype, len, Category::Scratch);
        let offsets = alloc(DType::U32, experts + 1)?;
        let starts = (0..=experts).map(|e| u32::try_from(e * rows_each).unwrap_or(u32::MAX)).collect();
        inner.upload(&offsets, 0, &HostData::U32(starts))?;
        let (a, b, c) = (alloc(a_type, a)?, alloc(b_type, b)?, alloc(DType::F32, c)?);
        Ok(Self { call, experts, rows, n, k, a, b, c, offsets })
    }

    fn product(&self) -> Product<'_> {
        let &Self { call, experts, rows, n, k, .. } = self;
        Product {
            call,
            rows,
            experts,
            n,
            k,
            a: Rows { buffer: &self.a, cols: if call == Call::Forward { k } else { n }, index: None, div: 1 },
            b: match call {
                Call::Forward | Call::Dgrad => Right::Weights(&self.b),
                Call::Wgrad => Right::Rows(Rows { buffer: &self.b, cols: k, index: None, div: 1 }),
            },
            scale: None,
            offsets: &self.offsets,
            c: &self.c,
            accumulate: false,
        }
    }

    /// Runs the product some times, in one submission, and waits. The time of one.
    fn run(&self, inner: &Inner, variant: &'static Variant, times: u32) -> Result<Duration> {
        let start = Instant::now();
        let mut to = Encoder::new(inner, 1, None);
        to.begin("trial");
        for _ in 0..times {
            run_with(&self.product(), variant, &mut to)?;
        }
        let submitted = to.finish()?;
        inner.context.wait_for(submitted.last, "trial")?;
        Ok(start.elapsed() / times)
    }
}

/// Largest array of a measurement in bytes, operations of one, and rows of one group.
const MEASURED_BYTES: usize = 64 << 20;
const MEASURED_OPERATIONS: usize = 4_000_000_000;
const MEASURED_ROWS: usize = 1024;

/// Shorter runs are repeated until they take so long.
const LEAST_TIME: Duration = Duration::from_millis(2);

/// Time of one product like those of the class, on zeros.
pub(super) fn measure(inner: &Inner, shape: &Shape, variant: &'static Variant) -> Result<Duration> {
    let rows_each = shape.rows.div_ceil(shape.experts.max(1)).clamp(1, MEASURED_ROWS);
    let weights = elements("weights", &[shape.n, shape.k])?;
    let operations = elements("operations", &[weights, 2, rows_each])?;
    let most = (MEASURED_OPERATIONS / operations.max(1)).min(MEASURED_BYTES / 4 / weights.max(1));
    if most == 0 {
        let why = format!("matrices of {} x {} are too large", shape.n, shape.k);
        return Err(Error::Unsupported { what: "measuring".into(), why });
    }
    let sample = Sample::new(inner, shape, shape.experts.clamp(1, most.min(16)), rows_each)?;
    let mut to = Encoder::new(inner, 1, None);
    to.fill(&sample.a, 0)?;
    to.fill(&sample.b, 0)?;
    to.finish()?;
    // The first run compiles.
    sample.run(inner, variant, 1)?;
    let once = sample.run(inner, variant, 1)?;
    if once >= LEAST_TIME {
        return Ok(once);
    }
    let times = LEAST_TIME.as_nanos() / once.as_nanos().max(1) + 1;
    sample.run(inner, variant, u32::try_from(times.min(64)).unwrap_or(64))
}

/// Whether a variant whose arithmetic is the driver's gives exact sums where the sums are exact; tried once a device.
///
/// f32 operands have 13 bits, so that units that drop some of theirs show, and sums need more bits than f16 has.
pub(super) fn passes(inner: &Inner, shape: &Shape, variant: &'static Variant) -> bool {
    let what = format!("{} {} {}", variant.name, shape.call.name(), shape.dtypes[0]);
    inner.tuner.tested(&what, || {
        let shape = Shape { n: 40, k: 72, ..*shape };
        let sample = Sample::new(inner, &shape, 3, 37)?;
        let halves = shape.dtypes.contains(&DType::F16);
        // Odd numbers of so many bits.
        let odd = |i: usize, bits: u32| ((i.wrapping_mul(2_654_435_761) >> 8) as u32 % (1 << bits)) | 1;
        let (a_bits, b_bits) = if halves { (4, 4) } else { (13, 2) };
        for (buffer, bits, seed) in [(&sample.a, a_bits, 1), (&sample.b, b_bits, 100_003)] {
            let values = (0..buffer.len()).map(|i| odd(i + seed, bits) as f32);
            let data = match buffer.dtype() {
                DType::F16 => HostData::F16(values.map(f16::from_f32).collect()),
                DType::BF16 => HostData::BF16(values.map(half::bf16::from_f32).collect()),
                DType::F32 | DType::U32 => HostData::F32(values.collect()),
            };
            inner.upload(buffer, 0, &data)?;
        }
        let mut results = Vec::new();
        for variant in [variant, &VARIANTS[VARIANTS.len() - 1]] {
            sample.run(inner, variant, 1)?;
            results.push(inner.read(&sample.c, 0..sample.c.len())?);
        }
        Ok(results[0] == results[1])
    })
}
