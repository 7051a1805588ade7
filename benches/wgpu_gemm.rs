//! Grouped GEMMs of the wgpu backend: every variant that the device supports, the fastest ones by measured time, and the
//! CPU backend for comparison.
//!
//! `cargo bench --bench wgpu_gemm [-- ROUNDS [VARIANT]]`. 32 groups of 3 to 294 rows (4,737 together), k = 256, n = 512, f32.
//! Times are of the first round, which compiles, and the best of the others, of which there are more where they are short. A software driver runs on the host's cores:
//! there, the last column counts operations a second of processor time of all threads (Linux only), which does not depend on
//! what else the machine does.
#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a program for the terminal, on sizes that are known to fit"
)]

use std::time::Instant;

use lrmoe::backend::wgpu::Tune;
use lrmoe::kernel::{GroupedDgrad, GroupedForward, GroupedWgrad, Kernel};
use lrmoe::memory::Category;
use lrmoe::{Backend, CpuBackend, HostData, Recording, WgpuBackend, WgpuOptions};

const GROUPS: usize = 32;
const K: usize = 256;
const N: usize = 512;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let rounds = arguments.next().and_then(|argument| argument.parse().ok()).unwrap_or(5);
    let wanted = arguments.next();
    println!("variant          call     first ms  ms      GFLOP/s  GFLOP/CPU-s");
    for name in WgpuBackend::gemm_variants() {
        if wanted.as_ref().is_some_and(|wanted| wanted != name) {
            continue;
        }
        let options = WgpuOptions { gemm_variant: Some(name.to_owned()), ..WgpuOptions::default() };
        match WgpuBackend::new(options) {
            Ok(backend) => {
                // Where it is not supported, another one would run.
                let chosen = backend.chosen_variants().into_iter();
                let calls: Vec<_> = chosen.filter(|choice| choice.variant == name).map(|choice| choice.what).collect();
                run(&backend, name, rounds, |call| calls.iter().any(|supported| supported.ends_with(call)));
            }
            Err(error) => return println!("no wgpu device: {error}"),
        }
    }
    let directory = std::env::temp_dir().join(format!("lrmoe-bench-{}", std::process::id()));
    let options = WgpuOptions { tune: Tune::Measure, cache_dir: Some(directory.clone()), ..WgpuOptions::default() };
    if let Ok(backend) = WgpuBackend::new(options) {
        run(&backend, "by measured time", rounds, |_| true);
        for choice in backend.chosen_variants() {
            println!("    {}: {} ({:?})", choice.what, choice.variant, choice.source);
        }
    }
    let _ = std::fs::remove_dir_all(directory);
    run(&CpuBackend::new(), "cpu", rounds, |_| true);
}

fn run(backend: &impl Backend, name: &str, rounds: usize, supported: impl Fn(&str) -> bool) {
    let starts = starts();
    let rows = starts[GROUPS] as usize;
    let import = |data| backend.import("bench", data, Category::Scratch).expect("no budget");
    let floats = |len: usize| import(HostData::F32((0..len).map(|i| (i % 1021) as f32 / 1021.0 - 0.5).collect()));
    let offsets = import(HostData::U32(starts));
    let (x, dy, w) = (floats(rows * K), floats(rows * N), floats(GROUPS * N * K));
    let (y, dx, dw) = (floats(rows * N), floats(rows * K), floats(GROUPS * N * K));
    let (groups, n, k, index_div, index) = (GROUPS, N, K, 1, None);
    let calls: [(&str, Kernel<_>); 3] = [
        ("forward", {
            let (x, w, offsets) = (x.clone(), w.clone(), offsets.clone());
            GroupedForward { rows, groups, n, k, index_div, x, index, w, offsets, out: y }.into()
        }),
        ("dgrad", {
            let (dy, offsets) = (dy.clone(), offsets.clone());
            GroupedDgrad { rows, groups, n, k, index_div, dy, index: None, w, offsets, out: dx }.into()
        }),
        ("wgrad", {
            let (dy_div, x_div, accumulate) = (1, 1, false);
            let (dy_index, dy_scale, x_index) = (None, None, None);
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
                out: dw,
            }
            .into()
        }),
    ];
    let operations = 2e-9 * (rows * N * K) as f64;
    for (call, kernel) in calls.into_iter().filter(|(call, _)| supported(call)) {
        let mut recording = Recording::new();
        recording.dispatch(kernel).expect("no buffer is bound twice");
        let once = || {
            let start = Instant::now();
            backend.submit(&recording).and_then(|fence| backend.wait(&fence)).expect("valid");
            start.elapsed().as_secs_f64()
        };
        // The first run compiles.
        let first = once();
        let (mut wall, mut runs, start) = (f64::INFINITY, 0, processor_seconds());
        let busy = loop {
            wall = wall.min(once());
            runs += 1;
            let busy = processor_seconds() - start;
            // Processor time is told in steps: enough of them, where it is told at all.
            if runs >= rounds && (busy.is_nan() || busy >= 0.5) {
                break busy;
            }
        };
        let rate = operations * runs as f64 / busy;
        let rate = if rate.is_finite() { format!("{rate:.2}") } else { "-".into() };
        println!("{name:<16} {call:<8} {:<9.0} {:<7.1} {:<8.2} {rate}", first * 1e3, wall * 1e3, operations / wall);
    }
}

/// User and system time of all threads so far, in steps of 10 ms; NaN where the system does not tell.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks = |field: &str| field.parse::<f64>().unwrap_or(f64::NAN);
    let times: Vec<f64> = fields.skip(11).take(2).map(ticks).collect();
    if times.len() == 2 { times.iter().sum::<f64>() / 100.0 } else { f64::NAN }
}

/// Offsets of groups whose sizes rise from 3 to 294 rows.
fn starts() -> Vec<u32> {
    let size = |e: usize| 3 + (e * 291 / (GROUPS - 1)) as u32;
    let mut total = 0;
    let mut starts = vec![0];
    for e in 0..GROUPS {
        total += size(e);
        starts.push(total);
    }
    starts
}
