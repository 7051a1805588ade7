//! The CUDA backend on published layer shapes: grouped GEMMs against one dense product of cuBLAS with the same operations,
//! compaction against a plain copy, and device memory as the driver counts it beside the accountant's figure.
//!
//! `cargo bench --features cuda --bench cuda [-- ROUNDS [RESULTS.json]]`. 8,192 tokens of Qwen3-30B-A3B and GLM-4.5-Air, balanced and uneven
//! loads, all pairs and half of them. Both sides of a comparison run by turns, times are medians of the device's own. cuBLAS is
//! looked for when the program runs; where it is missing its columns are empty.
#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a program for the terminal, on sizes that are known to fit"
)]

use std::ffi::{c_int, c_void};
use std::time::Duration;

use half::bf16;
use lrmoe::backend::cuda::{CudaBuffer, cudarc};
use lrmoe::kernel::{GatherRows, GroupedDgrad, GroupedForward, GroupedWgrad, Kernel};
use lrmoe::memory::Category;
use lrmoe::{Backend, Buffer, CudaBackend, CudaOptions, DType, HostData, Recording};
use serde_json::json;

const TOKENS: usize = 8192;

/// A published layer.
struct Shape {
    name: &'static str,
    hidden: usize,
    width: usize,
    experts: usize,
    top_k: usize,
}

const SHAPES: [Shape; 2] = [
    Shape { name: "Qwen3-30B-A3B", hidden: 2048, width: 768, experts: 128, top_k: 8 },
    Shape { name: "GLM-4.5-Air", hidden: 4096, width: 1408, experts: 128, top_k: 8 },
];

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let rounds = arguments.next().and_then(|argument| argument.parse().ok()).unwrap_or(9);
    let results = arguments.next();
    let backend = match CudaBackend::new(CudaOptions { timings: true, checks: false, ..CudaOptions::default() }) {
        Ok(backend) => backend,
        Err(error) => {
            println!("no CUDA device: {error}");
            // Whoever asked for results does not get them.
            std::process::exit(results.is_some().into());
        }
    };
    println!("{}; medians of {rounds} rounds", backend.caps().device);
    let cublas = Cublas::find(&backend);
    let mut rows = Vec::new();
    println!("shape          load      kept  call               ms       TFLOP/s  cuBLAS ms  TFLOP/s  of cuBLAS");
    for shape in &SHAPES {
        for (load, even) in [("balanced", true), ("uneven", false)] {
            for kept in [1.0, 0.5] {
                let bench = Bench::new(&backend, shape, even, kept);
                for (call, kernel, (m, n, k)) in bench.calls() {
                    let product = || cublas.as_ref().map(|cublas| cublas.product(&backend, m, n, k));
                    let (ours, theirs) = bench.measure(kernel, rounds, product);
                    let rate = |time: f64| 2e-12 * (m * n * k) as f64 / time;
                    let cell = |value: Option<f64>, digits| {
                        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
                    };
                    println!(
                        "{:<14} {load:<9} {kept:<5} {call:<18} {:<8.3} {:<8.1} {:<10} {:<8} {}",
                        shape.name,
                        ours * 1e3,
                        rate(ours),
                        cell(theirs.map(|time| time * 1e3), 3),
                        cell(theirs.map(rate), 1),
                        cell(theirs.map(|time| time / ours), 2),
                    );
                    rows.push(json!({
                        "shape": shape.name, "load": load, "kept": kept, "call": call, "m": m, "n": n, "k": k,
                        "seconds": ours, "tflops": rate(ours), "cublas_seconds": theirs,
                    }));
                }
                rows.push(bench.compaction(shape, load, kept, rounds));
                rows.push(bench.memory(shape, load, kept));
            }
        }
    }
    if let Some(path) = results {
        let all = json!({ "device": backend.caps().device, "rounds": rounds, "rows": rows });
        std::fs::write(&path, format!("{all:#}\n")).expect("the file of results can be written");
        println!("written: {path}");
    }
}

/// Name, kernel, and m, n and k of the dense product of as many operations.
type Call = (&'static str, Kernel<CudaBuffer>, (usize, usize, usize));

/// Buffers of one shape and load.
struct Bench<'a> {
    backend: &'a CudaBackend,
    shape: &'a Shape,
    rows: usize,
    /// Device memory in use before anything was allocated.
    before: usize,
    x: CudaBuffer,
    index: CudaBuffer,
    offsets: CudaBuffer,
    /// `[rows, hidden]` and `[rows, width]` in bf16, `[rows, width]` in f32.
    wide: CudaBuffer,
    narrow: CudaBuffer,
    narrow_f32: CudaBuffer,
    gate_up: CudaBuffer,
    down: CudaBuffer,
    /// f32 of the largest result.
    out: CudaBuffer,
}

impl<'a> Bench<'a> {
    fn new(backend: &'a CudaBackend, shape: &'a Shape, even: bool, kept: f64) -> Self {
        let before = used(backend);
        let rows = ((TOKENS * shape.top_k) as f64 * kept) as usize;
        let import = |name, data| backend.import(name, data, Category::Scratch).expect("the device is large enough");
        let halves = |name, len: usize| {
            let pattern: Vec<bf16> = (0..len).map(|i| bf16::from_f32((i % 1021) as f32 / 1021.0 - 0.5)).collect();
            import(name, HostData::BF16(pattern))
        };
        let (hidden, width, experts) = (shape.hidden, shape.width, shape.experts);
        let offsets = offsets(rows, experts, even);
        let index = (0..rows).map(|row| ((row * 7919) % TOKENS) as u32).collect();
        let largest = (rows * hidden.max(2 * width)).max(experts * 2 * width * hidden);
        let narrow_f32 = (0..rows * width).map(|i| (i % 1021) as f32 / 1021.0 - 0.5).collect();
        Self {
            backend,
            shape,
            rows,
            before,
            x: halves("x", TOKENS * hidden),
            index: import("index", HostData::U32(index)),
            offsets: import("offsets", HostData::U32(offsets)),
            wide: halves("wide", rows * hidden),
            narrow: halves("narrow", rows * width),
            narrow_f32: import("narrow", HostData::F32(narrow_f32)),
            gate_up: halves("gate_up", experts * 2 * width * hidden),
            down: halves("down", experts * width * hidden),
            out: backend.alloc("out", DType::F32, largest, Category::Scratch).expect("the device is large enough"),
        }
    }

    fn calls(&self) -> Vec<Call> {
        let (rows, groups, index_div) = (self.rows, self.shape.experts, 1);
        let (hidden, width) = (self.shape.hidden, self.shape.width);
        let forward = |x: &CudaBuffer, index: Option<&CudaBuffer>, w: &CudaBuffer, n, k| {
            let (x, index, w) = (x.clone(), index.cloned(), w.clone());
            let (offsets, out) = (self.offsets.clone(), self.out.clone());
            Kernel::from(GroupedForward { rows, groups, n, k, index_div, x, index, w, offsets, out })
        };
        let dgrad = |index: Option<&CudaBuffer>| {
            let (dy, index, w) = (self.wide.clone(), index.cloned(), self.down.clone());
            let (offsets, out) = (self.offsets.clone(), self.out.clone());
            Kernel::from(GroupedDgrad { rows, groups, n: hidden, k: width, index_div, dy, index, w, offsets, out })
        };
        let wgrad = |x: &CudaBuffer| {
            Kernel::from(GroupedWgrad {
                rows,
                groups,
                n: hidden,
                k: width,
                dy_div: 1,
                x_div: 1,
                accumulate: false,
                dy: self.wide.clone(),
                dy_index: None,
                dy_scale: None,
                x: x.clone(),
                x_index: None,
                offsets: self.offsets.clone(),
                out: self.out.clone(),
            })
        };
        vec![
            (
                "gate_up",
                forward(&self.x, Some(&self.index), &self.gate_up, 2 * width, hidden),
                (rows, 2 * width, hidden),
            ),
            ("down", forward(&self.narrow, None, &self.down, hidden, width), (rows, hidden, width)),
            ("down, f32 rows", forward(&self.narrow_f32, None, &self.down, hidden, width), (rows, hidden, width)),
            ("dgrad", dgrad(None), (rows, width, hidden)),
            ("wgrad", wgrad(&self.narrow), (hidden, width, rows)),
            ("wgrad, f32 rows", wgrad(&self.narrow_f32), (hidden, width, rows)),
        ]
    }

    /// Median seconds of a kernel and of another call, by turns.
    fn measure(
        &self,
        kernel: Kernel<CudaBuffer>,
        rounds: usize,
        mut other: impl FnMut() -> Option<f64>,
    ) -> (f64, Option<f64>) {
        let mut recording = Recording::new();
        recording.dispatch(kernel).expect("no buffer is bound twice");
        // The first of each compiles or makes up its mind.
        let mut both: Vec<(f64, Option<f64>)> = (0..=rounds).map(|_| (self.run(&recording), other())).collect();
        both.remove(0);
        (median(both.iter().map(|both| both.0)), both.iter().map(|both| both.1).collect::<Option<Vec<_>>>().map(median))
    }

    /// Seconds of a recording of one command.
    fn run(&self, recording: &Recording<CudaBuffer>) -> f64 {
        let fence = self.backend.submit(recording).expect("valid");
        self.backend.wait(&fence).expect("valid");
        self.backend.timings(&fence).unwrap_or_default().iter().sum::<Duration>().as_secs_f64()
    }

    /// Rows gathered, against a copy of as many bytes.
    fn compaction(&self, shape: &Shape, load: &str, kept: f64, rounds: usize) -> serde_json::Value {
        let (rows, cols, groups, index_div) = (self.rows, shape.hidden, shape.experts, 1);
        let (src, index, offsets, dst) = (self.x.clone(), self.index.clone(), self.offsets.clone(), self.wide.clone());
        let gather = GatherRows { rows, cols, index_div, groups, src, index, scale: None, offsets, dst };
        let alike = self.backend.alloc("copy", DType::BF16, rows * cols, Category::Scratch).expect("large enough");
        let mut copy = Recording::new();
        copy.copy(&self.wide, &alike).expect("alike");
        let (ours, plain) = self.measure(gather.into(), rounds, || Some(self.run(&copy)));
        let plain = plain.unwrap_or(f64::NAN);
        let rate = |seconds: f64| 4e-9 * (rows * cols) as f64 / seconds;
        println!(
            "{:<14} {load:<9} {kept:<5} compaction         {:<8.3} {:.0} GB/s, {:.2} of a copy's {:.0} GB/s",
            shape.name,
            ours * 1e3,
            rate(ours),
            plain / ours,
            rate(plain)
        );
        json!({ "shape": shape.name, "load": load, "kept": kept, "call": "compaction", "seconds": ours,
            "gb_per_second": rate(ours), "copy_seconds": plain, "copy_gb_per_second": rate(plain) })
    }

    /// What the driver says is in use, beside what the accountant has handed out.
    fn memory(&self, shape: &Shape, load: &str, kept: f64) -> serde_json::Value {
        let (driver, account) =
            (used(self.backend).saturating_sub(self.before), self.backend.memory().report().reserved);
        println!(
            "{:<14} {load:<9} {kept:<5} memory             driver {} MiB, accountant {} MiB",
            shape.name,
            driver >> 20,
            account >> 20
        );
        json!({ "shape": shape.name, "load": load, "kept": kept, "call": "memory",
            "driver_bytes": driver, "accountant_bytes": account })
    }
}

/// Device memory in use, as the driver says.
fn used(backend: &CudaBackend) -> usize {
    let (free, total) = backend.stream().context().mem_get_info().expect("the context works");
    total - free
}

fn median(times: impl IntoIterator<Item = f64>) -> f64 {
    let mut times: Vec<f64> = times.into_iter().collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Offsets of groups that are alike, or of which an eighth has half of the rows.
fn offsets(rows: usize, experts: usize, even: bool) -> Vec<u32> {
    let weight = |e: usize| if even || !e.is_multiple_of(8) { 1.0 } else { 7.0 };
    let total: f64 = (0..experts).map(weight).sum();
    let mut offsets = vec![0];
    let mut sum = 0.0;
    for e in 0..experts {
        sum += weight(e);
        offsets.push((sum / total * rows as f64).round() as u32);
    }
    offsets
}

/// A dense product of bf16 with f32 sums.
struct Cublas {
    library: libloading::Library,
    handle: *mut c_void,
}

type GemmEx = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const f32,
    u64,
    c_int,
    c_int,
    u64,
    c_int,
    c_int,
    *const f32,
    u64,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

impl Cublas {
    fn find(backend: &CudaBackend) -> Option<Self> {
        let names = ["libcublas.so.13", "libcublas.so.12", "libcublas.so", "cublas64_13.dll", "cublas64_12.dll"];
        // SAFETY: loading cuBLAS runs its initialisers, which is what every program that uses it does.
        let library = names.iter().find_map(|name| unsafe { libloading::Library::new(*name) }.ok());
        let Some(library) = library else {
            println!("cuBLAS is not here: none of {}", names.join(", "));
            return None;
        };
        backend.stream().context().bind_to_thread().ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: both have had these signatures in every version; the stream lives as long as the backend.
        unsafe {
            let create: libloading::Symbol<'_, unsafe extern "C" fn(*mut *mut c_void) -> c_int> =
                library.get(b"cublasCreate_v2").ok()?;
            let set_stream: libloading::Symbol<'_, unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int> =
                library.get(b"cublasSetStream_v2").ok()?;
            if create(&raw mut handle) != 0 || set_stream(handle, backend.stream().cu_stream().cast()) != 0 {
                return None;
            }
        }
        Some(Self { library, handle })
    }

    /// Seconds of one product, m x k by k x n.
    fn product(&self, backend: &CudaBackend, m: usize, n: usize, k: usize) -> f64 {
        let alloc = |len| backend.alloc("dense", DType::BF16, len, Category::Scratch).expect("large enough");
        let (a, b, c) = (alloc(m * k), alloc(n * k), alloc(m * n));
        let address = |buffer: &CudaBuffer| if buffer.is_empty() { 0 } else { backend.address(buffer) };
        let (context, stream) = (backend.stream().context(), backend.stream());
        let event = || {
            let flags = cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
            let event = context.new_event(Some(flags)).expect("the context works");
            event.record(stream).expect("the context works");
            event
        };
        let (one, zero) = (1.0f32, 0.0f32);
        let int = |size: usize| size as c_int;
        let start = event();
        // SAFETY: the buffers hold so many elements. Columns of cuBLAS are rows here: transposed b by a.
        let status = unsafe {
            let gemm: libloading::Symbol<'_, GemmEx> = self.library.get(b"cublasGemmEx").expect("it is there");
            let (bf16, f32_sums, default) = (14, 68, -1);
            gemm(
                self.handle,
                1,
                0,
                int(n),
                int(m),
                int(k),
                &raw const one,
                address(&b),
                bf16,
                int(k),
                address(&a),
                bf16,
                int(k),
                &raw const zero,
                address(&c),
                bf16,
                int(n),
                f32_sums,
                default,
            )
        };
        let end = event();
        end.synchronize().expect("the context works");
        let ms = start.elapsed_ms(&end).expect("both have passed");
        if status == 0 { f64::from(ms) / 1e3 } else { f64::NAN }
    }
}
