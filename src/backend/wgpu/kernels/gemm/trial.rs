//! Products of a device's own making: to measure a variant, and to test one whose correctness is the driver's.

use std::time::{Duration, Instant};

use half::f16;

use super::encode::run_with;
use super::product::{Call, Product, Right, Rows, Shape};
use super::variant::{VARIANTS, Variant};
use crate::Result;
use crate::backend::wgpu::Inner;
use crate::backend::wgpu::buffer::WgpuBuffer;
use crate::backend::wgpu::encode::Encoder;
use crate::backend::{Buffer as _, elements};
use crate::memory::Category;
use crate::tensor::{DType, HostData};

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

/// Largest array of a measurement in bytes, and operations of one.
const MEASURED_BYTES: usize = 64 << 20;
const MEASURED_OPERATIONS: usize = 4_000_000_000;

/// Rows of one group at most, and those that smaller matrices make room for.
const MEASURED_ROWS: usize = 1024;
const LEAST_ROWS: usize = 256;

/// Shorter runs are repeated until they take so long.
const LEAST_TIME: Duration = Duration::from_millis(2);

/// Experts, rows of each, n and k of a product like those of the class: of whole tiles and many workgroups, but with arrays of
/// `bytes` at most and few enough operations.
fn representative(shape: &Shape, bytes: usize) -> (usize, usize, usize, usize) {
    let (elements, multiplications) = ((bytes / 4).max(1), MEASURED_OPERATIONS / 2);
    let rows = shape.rows.div_ceil(shape.experts.max(1)).clamp(1, MEASURED_ROWS);
    let (mut n, mut k) = (shape.n, shape.k);
    while n.saturating_mul(k) > elements.min(multiplications / rows.min(LEAST_ROWS)) {
        let longer = if n >= k { &mut n } else { &mut k };
        *longer = (*longer / 2).next_multiple_of(4);
        if *longer <= 4 {
            break;
        }
    }
    let (weights, wide) = (n.saturating_mul(k).max(1), n.max(k).max(1));
    let rows = rows.min(multiplications / weights).min(elements / wide).max(1);
    let most = (multiplications / (weights * rows)).min(elements / weights).min(elements / (rows * wide));
    (shape.experts.min(16).min(most).max(1), rows, n, k)
}

/// Time of one product like those of the class, on zeros.
pub(super) fn measure(inner: &Inner, shape: &Shape, variant: &'static Variant) -> Result<Duration> {
    let binding = usize::try_from(inner.context.profile.binding_bytes).unwrap_or(usize::MAX);
    let (experts, rows_each, n, k) = representative(shape, MEASURED_BYTES.min(binding));
    // What the driver reports of it is no error of the recording that waits for the choice.
    inner.context.scoped("trial", || -> Result<Duration> {
        let sample = Sample::new(inner, &Shape { n, k, ..*shape }, experts, rows_each)?;
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
    })?
}

/// Whether a variant whose arithmetic is the driver's gives exact sums where the sums are exact; tried once a device.
///
/// f32 operands have 13 bits, so that units that drop some of theirs show, and sums need more bits than f16 has.
pub(super) fn passes(inner: &Inner, shape: &Shape, variant: &'static Variant) -> bool {
    let [a, b] = shape.dtypes;
    let what = format!("{} {} {a} {b}", variant.name, shape.call.name());
    inner.tuner.tested(&what, || inner.context.scoped("trial", || sums_are_exact(inner, shape, variant))?)
}

fn sums_are_exact(inner: &Inner, shape: &Shape, variant: &'static Variant) -> Result<bool> {
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
        // A fault that another recording left is for who reads its results.
        results.push(inner.fetch(&sample.c, 0..sample.c.len())?);
    }
    Ok(results[0] == results[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_a_problem_of_a_size_to_measure() {
        for call in Call::ALL {
            for n in [1, 3, 4, 64, 700, 2048, 4096, 14_336, 65_536] {
                for k in [1, 5, 256, 2048, 4096, 7168, 28_672, 1 << 20] {
                    for (rows, experts) in [(0, 0), (1, 1), (1024, 1), (4096, 256), (100_000, 8), (1_000_000, 2)] {
                        let shape = Shape { call, rows, experts, n, k, dtypes: [DType::F32; 2], fours: true };
                        for bytes in [MEASURED_BYTES, 1 << 20] {
                            let (e, r, m, l) = representative(&shape, bytes);
                            assert!(e * r * m * l <= MEASURED_OPERATIONS / 2, "{shape:?}");
                            assert!(e * 4 * (m * l).max(r * m.max(l)) <= bytes, "{shape:?}");
                            assert!(
                                e >= 1 && r >= 1 && m >= n.min(64) && l >= k.min(64) && m <= n && l <= k,
                                "{shape:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn large_products_keep_whole_tiles() {
        let shape = Shape {
            call: Call::Forward,
            rows: 8192,
            experts: 8,
            n: 2048,
            k: 2048,
            dtypes: [DType::F32; 2],
            fours: true,
        };
        assert_eq!(representative(&shape, MEASURED_BYTES), (1, 476, 2048, 2048));
        let huge = Shape { n: 14_336, k: 4096, ..shape };
        assert_eq!(representative(&huge, MEASURED_BYTES), (1, 272, 3584, 2048));
        let small = Shape { rows: 320, experts: 64, n: 512, k: 256, ..shape };
        assert_eq!(representative(&small, MEASURED_BYTES), (16, 5, 512, 256));
    }
}
