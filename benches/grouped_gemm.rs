//! Grouped GEMMs of the CPU backend against one dense product of the `gemm` crate with the same number of operations.
//!
//! `cargo bench --bench grouped_gemm [-- ROUNDS]`. Both run in the same process, by turns, on all threads of the pool; a row
//! gives medians. A ratio above 1 means that the grouped GEMM is the slower one. `roof` is the larger of two times at the
//! best rates seen in this run: all operations at the dense rate, and all bytes (each operand once) at the copy rate.
#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a program for the terminal, on sizes that are known to fit"
)]

use std::time::Instant;

use lrmoe::kernel::{GroupedDgrad, GroupedForward, GroupedWgrad, Kernel};
use lrmoe::memory::Category;
use lrmoe::{Backend, Buffer, CpuBackend, HostData, Recording};

/// Sizes of one comparison.
struct Case {
    experts: usize,
    pairs: usize,
    even: bool,
    k: usize,
    n: usize,
}

const CASES: [Case; 6] = [
    Case { experts: 32, pairs: 16_384, even: false, k: 512, n: 256 },
    Case { experts: 32, pairs: 16_384, even: false, k: 512, n: 512 },
    Case { experts: 128, pairs: 4_096, even: true, k: 512, n: 256 },
    Case { experts: 128, pairs: 4_096, even: true, k: 512, n: 512 },
    Case { experts: 8, pairs: 4_096, even: false, k: 1_024, n: 1_024 },
    Case { experts: 1, pairs: 4_096, even: true, k: 512, n: 512 },
];

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(15);
    let backend = CpuBackend::new();
    let copy_rate = copy_rate();
    println!("{}; medians of {rounds} rounds; copies run at {:.1} GB/s", backend.caps().device, copy_rate * 1e-9);
    println!(
        "experts  pairs     k     n  call     grouped ms  dense ms  ratio  roof ms  grouped GFLOP/s  dense GFLOP/s"
    );
    for case in &CASES {
        run(&backend, case, rounds, copy_rate);
    }
}

/// Bytes read and written a second by copies that do not fit a cache.
fn copy_rate() -> f64 {
    let source = vec![1.0f32; 1 << 25];
    let mut target = vec![0.0f32; 1 << 25];
    let copy = |_| {
        time(|| {
            target.copy_from_slice(std::hint::black_box(&source));
            std::hint::black_box(&mut target);
        })
    };
    let seconds = (0..5).map(copy);
    (2 * size_of_val(&*source)) as f64 / seconds.fold(f64::INFINITY, f64::min)
}

fn run(backend: &CpuBackend, case: &Case, rounds: usize, copy_rate: f64) {
    let Case { experts, pairs, k, n, .. } = *case;
    let mut random = Random(7);
    let offsets = offsets(case, &mut random);
    let (x, dy) = (random.floats(pairs * k), random.floats(pairs * n));
    let w = random.floats(experts * n * k);
    let import = |data: HostData| backend.import("bench", data, Category::Scratch).expect("no budget");
    let (offsets, index) = (import(HostData::U32(offsets)), import(HostData::U32(random.permutation(pairs))));
    let floats = |values: &[f32]| import(HostData::F32(values.to_vec()));
    let (x_buffer, dy_buffer, w_buffer) = (floats(&x), floats(&dy), floats(&w));
    let (mut y, mut dx, mut dw) = (vec![0.0; pairs * n], vec![0.0; pairs * k], vec![0.0; experts * n * k]);
    let (rows, groups) = (pairs, experts);
    let kernels: [(&str, Kernel<_>); 3] = [
        ("forward", {
            let (x, w, offsets, index) = (x_buffer.clone(), w_buffer.clone(), offsets.clone(), Some(index.clone()));
            GroupedForward { rows, groups, n, k, index_div: 1, x, index, w, offsets, out: floats(&y) }.into()
        }),
        ("dgrad", {
            let (dy, w, offsets) = (dy_buffer.clone(), w_buffer, offsets.clone());
            GroupedDgrad { rows, groups, n, k, index_div: 1, dy, index: None, w, offsets, out: floats(&dx) }.into()
        }),
        ("wgrad", {
            let (x, dy, x_index) = (x_buffer, dy_buffer, Some(index));
            let (dy_div, x_div, accumulate, out) = (1, 1, false, floats(&dw));
            let (dy_index, dy_scale) = (None, None);
            GroupedWgrad {
                rows,
                groups,
                n,
                k,
                dy_div,
                x_div,
                accumulate,
                dy,
                dy_index,
                dy_scale,
                x,
                x_index,
                offsets,
                out,
            }
            .into()
        }),
    ];
    let recordings = kernels.map(|(name, kernel)| {
        let mut recording = Recording::new();
        let bytes: usize = kernel.bindings().iter().filter_map(|b| b.buffer).map(|b| b.len() * 4).sum();
        recording.dispatch(kernel).expect("no buffer is bound twice");
        (name, recording, bytes)
    });
    let mut times = [(); 3].map(|()| (Vec::new(), Vec::new()));
    for round in 0..=rounds {
        let mut dense = [
            time(|| dense_product([pairs, n, k], &mut y, (&x, [k, 1]), (&w, [1, k]))),
            time(|| dense_product([pairs, k, n], &mut dx, (&dy, [n, 1]), (&w, [k, 1]))),
            time(|| dense_product([n, k, pairs], &mut dw, (&dy, [1, n]), (&x, [k, 1]))),
        ]
        .into_iter();
        for ((_, recording, _), (grouped, other)) in recordings.iter().zip(&mut times) {
            let seconds = time(|| {
                backend.submit(recording).expect("valid");
            });
            // The first round warms up.
            if let (Some(dense), true) = (dense.next(), round > 0) {
                grouped.push(seconds);
                other.push(dense);
            }
        }
    }
    let operations = 2.0 * (pairs * k * n) as f64;
    for ((name, _, bytes), (grouped, dense)) in recordings.iter().zip(times) {
        let (grouped, dense) = (median(grouped), median(dense));
        let roof = dense.max(*bytes as f64 / copy_rate);
        println!(
            "{experts:>7} {pairs:>6} {k:>5} {n:>5}  {name:<8} {:>10.2} {:>9.2} {:>6.2} {:>8.2} {:>16.1} {:>14.1}",
            grouped * 1e3,
            dense * 1e3,
            grouped / dense,
            roof * 1e3,
            operations / grouped * 1e-9,
            operations / dense * 1e-9
        );
    }
}

/// `c [m, n] = a b` with one call of the `gemm` crate, strides as (row, column).
fn dense_product([m, n, k]: [usize; 3], c: &mut [f32], a: (&[f32], [usize; 2]), b: (&[f32], [usize; 2])) {
    let inside =
        |len: usize, rows: usize, cols: usize, [row, col]: [usize; 2]| len > (rows - 1) * row + (cols - 1) * col;
    assert!(inside(c.len(), m, n, [n, 1]) && inside(a.0.len(), m, k, a.1) && inside(b.0.len(), k, n, b.1));
    let stride = |s: usize| isize::try_from(s).expect("small");
    // SAFETY: all three matrices lie within their slices, as just checked.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            stride(n),
            false,
            a.0.as_ptr(),
            stride(a.1[1]),
            stride(a.1[0]),
            b.0.as_ptr(),
            stride(b.1[1]),
            stride(b.1[0]),
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::Rayon(0),
        );
    }
}

fn time(call: impl FnOnce()) -> f64 {
    let start = Instant::now();
    call();
    start.elapsed().as_secs_f64()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Rows of every group: equal, or each pair draws its expert with a popularity that falls linearly to a fifth.
fn offsets(case: &Case, random: &mut Random) -> Vec<u32> {
    let mut counts = vec![0u32; case.experts];
    let weight = |e: usize| if case.even { 1.0 } else { 1.0 - 0.8 * e as f64 / case.experts as f64 };
    let total: f64 = (0..case.experts).map(weight).sum();
    for pair in 0..case.pairs {
        let mut at = random.unit() * total;
        let drawn = (0..case.experts).find(|&e| {
            at -= weight(e);
            at < 0.0
        });
        counts[if case.even { pair % case.experts } else { drawn.unwrap_or(0) }] += 1;
    }
    std::iter::once(0)
        .chain(counts.into_iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        }))
        .collect()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit() as f32 - 0.5).collect()
    }

    fn permutation(&mut self, len: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..u32::try_from(len).expect("small")).collect();
        for i in (1..len).rev() {
            order.swap(i, (self.unit() * (i + 1) as f64) as usize);
        }
        order
    }
}
