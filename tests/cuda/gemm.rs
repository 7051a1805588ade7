//! Grouped GEMMs: a product and its SwiGLU in one launch, and operands that are rounded first.

use lrmoe::backend::cuda::{CudaBuffer, GemmTile, Operands};
use lrmoe::kernel::{Cast, GroupedDgrad, GroupedForward, GroupedWgrad, Kernel, SwiGlu, SwiGluBackward};
use lrmoe::memory::Category;
use lrmoe::{Backend, Buffer, CudaBackend, CudaOptions, DType, HostData, Recording};

use crate::support::outcome::{Outcome, text};
use crate::support::rng::Rng;
use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        crate::trial("gemm::gate_up_and_swiglu_are_one", gate_up),
        crate::trial("gemm::down_and_swiglu_backward_are_one", down_back),
        crate::trial("gemm::rounded_operands_are_16_bit_operands", rounded),
    ]
}

/// Rows of four experts of which one has none; spare rows behind them.
const COUNTS: [u32; 4] = [70, 0, 33, 5];
const ROWS: usize = 108;
const SPARE: usize = 3;

/// Types of rows and weights, sizes, and the tile.
const SHAPES: [(DType, DType, usize, usize, GemmTile); 6] = [
    (DType::BF16, DType::BF16, 72, 40, GemmTile::Large),
    (DType::F32, DType::BF16, 40, 72, GemmTile::Large),
    (DType::F32, DType::BF16, 37, 21, GemmTile::Small),
    (DType::F16, DType::F16, 130, 16, GemmTile::Small),
    (DType::F32, DType::F16, 19, 33, GemmTile::Large),
    // No kernel does both.
    (DType::F32, DType::F32, 19, 33, GemmTile::Large),
];

struct Bench {
    backend: CudaBackend,
    rng: Rng,
}

impl Bench {
    fn new(operands: Operands, tile: GemmTile) -> Result<Self, String> {
        let options = CudaOptions { operands, gemm_tile: Some(tile), ..CudaOptions::default() };
        Ok(Self { backend: crate::backend(options)?, rng: Rng::new(5) })
    }

    fn import(&self, name: &str, data: HostData) -> Result<CudaBuffer, String> {
        self.backend.import(name, data, Category::Scratch).map_err(text)
    }

    fn floats(&mut self, name: &str, len: usize, dtype: DType) -> Result<CudaBuffer, String> {
        let values: Vec<f32> = (0..len).map(|_| self.rng.normal() as f32).collect();
        let wide = self.import(name, HostData::F32(values))?;
        self.cast(&wide, dtype)
    }

    fn cast(&self, wide: &CudaBuffer, dtype: DType) -> Result<CudaBuffer, String> {
        let dst = self.backend.alloc("cast", dtype, wide.len(), Category::Scratch).map_err(text)?;
        self.run(&[Cast { len: wide.len(), src: wide.clone(), dst: dst.clone() }.into()], false)?;
        Ok(dst)
    }

    fn indices(&mut self, len: usize, below: usize) -> Result<CudaBuffer, String> {
        let values = (0..len).map(|_| self.rng.below(below) as u32).collect();
        self.import("index", HostData::U32(values))
    }

    fn offsets(&self) -> Result<CudaBuffer, String> {
        let ends = COUNTS.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        self.import("offsets", HostData::U32(std::iter::once(0).chain(ends).collect()))
    }

    fn out(&self, len: usize) -> Result<CudaBuffer, String> {
        self.import("out", HostData::F32(vec![7.0; len]))
    }

    /// Runs kernels one behind the other, or with a command between them.
    fn run(&self, kernels: &[Kernel<CudaBuffer>], between: bool) -> Outcome {
        let mut recording = Recording::new();
        let other = self.import("other", HostData::U32(vec![0]))?;
        for kernel in kernels {
            recording.dispatch(kernel.clone()).map_err(text)?;
            if between {
                recording.fill(&other, 1);
            }
        }
        let fence = self.backend.submit(&recording).map_err(text)?;
        self.backend.wait(&fence).map_err(text)
    }

    fn read(&self, buffer: &CudaBuffer) -> Result<Vec<f32>, String> {
        match self.backend.read_blocking(buffer).map_err(text)? {
            HostData::F32(values) => Ok(values),
            other => Err(format!("{} is no f32", other.dtype())),
        }
    }

    /// The bits of all but the last of the buffers are the same, and its elements within a rounding.
    fn same(&self, what: &str, [a, b]: [&[CudaBuffer]; 2]) -> Outcome {
        for (i, (x, y)) in a.iter().zip(b).enumerate() {
            let (x, y) = (self.read(x)?, self.read(y)?);
            let last = i + 1 == a.len();
            let near = |x: f32, y: f32| last && (x - y).abs() <= f32::EPSILON * x.abs();
            if let Some(at) = x.iter().zip(&y).position(|(&x, &y)| x.to_bits() != y.to_bits() && !near(x, y)) {
                return Err(format!("{what}: output {i}, element {at} is {} or {}", x[at], y[at]));
            }
        }
        Ok(())
    }
}

fn gate_up() -> Outcome {
    for (rows_type, weights, width, hidden, tile) in SHAPES {
        let mut bench = Bench::new(Operands::Full, tile)?;
        let (total, groups) = (ROWS + SPARE, COUNTS.len());
        let x = bench.floats("x", 50 * hidden, rows_type)?;
        let index = bench.indices(total, 100)?;
        let w = bench.floats("w", groups * 2 * width * hidden, weights)?;
        let offsets = bench.offsets()?;
        let mut outputs = Vec::new();
        for between in [false, true] {
            let out = [bench.out(total * 2 * width)?, bench.out(total * width)?, bench.out(total)?];
            let [ab, h, norm] = out.clone();
            let up = GroupedForward {
                rows: total,
                groups,
                n: 2 * width,
                k: hidden,
                index_div: 2,
                x: x.clone(),
                index: Some(index.clone()),
                w: w.clone(),
                offsets: offsets.clone(),
                out: ab.clone(),
            };
            let act = SwiGlu { rows: total, width, groups, ab, offsets: offsets.clone(), h, norm };
            bench.run(&[up.into(), act.into()], between)?;
            outputs.push(out);
        }
        bench.same(&format!("{rows_type} {weights}"), [&outputs[0], &outputs[1]])?;
    }
    Ok(())
}

fn down_back() -> Outcome {
    for (rows_type, weights, width, hidden, tile) in SHAPES {
        for with in [false, true] {
            let mut bench = Bench::new(Operands::Full, tile)?;
            let (total, groups) = (ROWS + SPARE, COUNTS.len());
            let dy = bench.floats("dy", total * hidden, rows_type)?;
            let w = bench.floats("w", groups * hidden * width, weights)?;
            let ab = bench.floats("ab", 120 * 2 * width, DType::F32)?;
            let ab_index = if with { Some(bench.indices(total, 120)?) } else { None };
            let scale = if with { Some(bench.floats("scale", total, DType::F32)?) } else { None };
            let offsets = bench.offsets()?;
            let mut outputs = Vec::new();
            for between in [false, true] {
                let pairs = total * width;
                let out = [bench.out(pairs)?, bench.out(2 * pairs)?, bench.out(pairs)?, bench.out(total)?];
                let [u, d_ab, h, dot] = out.clone();
                let down = GroupedDgrad {
                    rows: total,
                    groups,
                    n: hidden,
                    k: width,
                    index_div: 1,
                    dy: dy.clone(),
                    index: None,
                    w: w.clone(),
                    offsets: offsets.clone(),
                    out: u.clone(),
                };
                let (ab, ab_index, scale) = (ab.clone(), ab_index.clone(), scale.clone());
                let offsets = offsets.clone();
                let act = SwiGluBackward { rows: total, width, groups, ab, ab_index, u, scale, offsets, d_ab, h, dot };
                bench.run(&[down.into(), act.into()], between)?;
                outputs.push(out);
            }
            bench.same(&format!("{rows_type} {weights}"), [&outputs[0], &outputs[1]])?;
        }
    }
    Ok(())
}

/// An f32 operand that is rounded in the kernel gives the bits of one that was rounded before.
fn rounded() -> Outcome {
    for dtype in [DType::BF16, DType::F16] {
        for tile in [GemmTile::Large, GemmTile::Small] {
            let mut bench = Bench::new(Operands::Rounded, tile)?;
            let (groups, n, k) = (COUNTS.len(), 72, 40);
            let wide = bench.floats("x", (ROWS + SPARE) * n.max(k), DType::F32)?;
            let single = bench.floats("w", groups * n * k, DType::F32)?;
            let [narrow, half] = [bench.cast(&wide, dtype)?, bench.cast(&single, dtype)?];
            let offsets = bench.offsets()?;
            let mut outputs = Vec::new();
            for (x, w) in [(&narrow, &half), (&wide, &half), (&narrow, &single)] {
                let out = [bench.out(ROWS * n)?, bench.out(ROWS * k)?, bench.out(groups * n * k)?, bench.out(1)?];
                let [forward, dgrad, wgrad, _] = out.clone();
                let (rows, offsets) = (ROWS, offsets.clone());
                let kernels = [
                    GroupedForward {
                        rows,
                        groups,
                        n,
                        k,
                        index_div: 1,
                        x: x.clone(),
                        index: None,
                        w: w.clone(),
                        offsets: offsets.clone(),
                        out: forward,
                    }
                    .into(),
                    GroupedDgrad {
                        rows,
                        groups,
                        n,
                        k,
                        index_div: 1,
                        dy: x.clone(),
                        index: None,
                        w: w.clone(),
                        offsets: offsets.clone(),
                        out: dgrad,
                    }
                    .into(),
                    GroupedWgrad {
                        rows,
                        groups,
                        n,
                        k,
                        dy_div: 1,
                        x_div: 1,
                        accumulate: false,
                        dy: x.clone(),
                        dy_index: None,
                        dy_scale: None,
                        x: w.clone(),
                        x_index: None,
                        offsets,
                        out: wgrad,
                    }
                    .into(),
                ];
                bench.run(&kernels, false)?;
                outputs.push(out);
            }
            for other in &outputs[1..] {
                bench.same(&format!("{dtype}"), [&outputs[0], other])?;
            }
        }
    }
    Ok(())
}
