//! A host application's device: shared, with buffers at offsets, while others use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libtest_mimic::Trial;
use lrmoe::kernel::{AdamW, AdamWStep, Cast, Combine, GroupedForward, Sigmoid};
use lrmoe::memory::Category;
use lrmoe::{Backend, DType, HostData, Recording, WgpuBackend, WgpuOptions};

use crate::support::outcome::{Outcome, holds, refused, text};
use crate::support::step::{SMALL, bits};
use crate::{backend, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("host::two_users_of_one_device_and_a_thread_that_submits", two_users),
        trial("host::buffers_at_offsets_keep_their_neighbours", at_offsets),
        trial("host::rows_end_before_the_end_of_a_buffer", odd_elements),
        trial("host::ranges_and_usages_that_do_not_fit_are_refused", not_borrowed),
        trial("host::callbacks_stay_the_hosts", callbacks),
        trial("host::a_device_with_default_limits_is_enough", default_limits),
    ]
}

/// A device as a host opens it, with the adapter's limits or the defaults.
pub(crate) fn open(all: bool) -> Result<(wgpu::Device, wgpu::Queue), String> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    let instance = wgpu::Instance::new(descriptor);
    let adapter =
        pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default())).map_err(text)?;
    let device = wgpu::DeviceDescriptor {
        label: Some("host"),
        required_limits: if all { adapter.limits() } else { wgpu::Limits::default() },
        ..wgpu::DeviceDescriptor::default()
    };
    pollster::block_on(adapter.request_device(&device)).map_err(text)
}

const USAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

fn buffer(device: &wgpu::Device, size: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
    device.create_buffer(&wgpu::BufferDescriptor { label: Some("host"), size, usage, mapped_at_creation: false })
}

/// Two backends and a thread of the host's on one device: everybody gets what they get alone.
fn two_users() -> Outcome {
    let (device, queue) = open(true)?;
    let alone = bits(&WgpuBackend::adopt(&device, &queue, WgpuOptions::default()).map_err(text)?, SMALL)?;
    let stop = Arc::new(AtomicBool::new(false));
    let hosts = {
        let (device, queue, stop) = (device.clone(), queue.clone(), Arc::clone(&stop));
        std::thread::spawn(move || {
            let (from, to) = (buffer(&device, 4096, USAGE), buffer(&device, 4096, USAGE));
            let mut submitted = 0u32;
            while !stop.load(Ordering::Relaxed) {
                queue.write_buffer(&from, 0, &submitted.to_le_bytes());
                let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
                encoder.copy_buffer_to_buffer(&from, 0, &to, 0, 4096);
                queue.submit([encoder.finish()]);
                submitted += 1;
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            submitted
        })
    };
    let user = |device: &wgpu::Device, queue: &wgpu::Queue| {
        let (device, queue) = (device.clone(), queue.clone());
        std::thread::spawn(move || {
            let backend = WgpuBackend::adopt(&device, &queue, WgpuOptions { poison: true, ..Default::default() });
            let backend = backend.map_err(text)?;
            (0..3).map(|_| bits(&backend, SMALL)).collect::<Result<Vec<_>, String>>()
        })
    };
    let users = [user(&device, &queue), user(&device, &queue)];
    let results: Vec<_> = users.into_iter().map(|user| user.join().map_err(|_| "a user panicked".to_owned())).collect();
    stop.store(true, Ordering::Relaxed);
    let submitted = hosts.join().map_err(|_| "the host's thread panicked")?;
    holds("the host submitted meanwhile", submitted > 0)?;
    for result in results {
        holds("both users have the bits of one alone", result??.iter().all(|bits| *bits == alone))?;
    }
    Ok(())
}

/// Kernels on parts of one host buffer, at offsets no binding could begin at, write their elements and nothing else.
fn at_offsets() -> Outcome {
    let (device, queue) = open(true)?;
    let backend = WgpuBackend::adopt(&device, &queue, WgpuOptions::default()).map_err(text)?;
    let host = buffer(&device, 4096, USAGE);
    let before: Vec<u32> = (0..1024).map(|i| 0x3f80_0000 + i * 1001).collect();
    queue.write_buffer(&host, 0, bytemuck::cast_slice(&before));
    let borrow = |name: &str, word: u64, dtype, len| backend.borrow(name, &host, word * 4, dtype, len).map_err(text);
    let z = borrow("z", 3, DType::F32, 37)?;
    let s = borrow("s", 41, DType::F32, 37)?;
    let narrow = borrow("narrow", 101, DType::BF16, 38)?;
    let rows = borrow("rows", 203, DType::F32, 38)?;
    let out = borrow("out", 307, DType::F32, 38)?;
    let mut recording = Recording::new();
    recording.dispatch(Sigmoid { len: 37, z: z.clone(), s: s.clone() }).map_err(text)?;
    recording.dispatch(Cast { len: 37, src: z.clone(), dst: narrow.clone() }).map_err(text)?;
    recording
        .dispatch(Combine {
            tokens: 19,
            top_k: 1,
            cols: 2,
            accumulate: false,
            rows: rows.clone(),
            row_of_pair: None,
            weights: None,
            out: out.clone(),
        })
        .map_err(text)?;
    let fence = backend.submit(&recording).map_err(text)?;
    backend.wait(&fence).map_err(text)?;
    let whole = borrow("whole", 0, DType::U32, 1024)?;
    let after = backend.read_blocking(&whole).and_then(HostData::into_u32).map_err(text)?;
    for (word, (before, after)) in before.iter().zip(&after).enumerate() {
        let written = [41..78, 101..120, 307..345].iter().any(|range| range.contains(&word));
        if !written {
            holds(format!("word {word} stays"), before == after)?;
        }
    }
    let float = |word: usize| f32::from_bits(before[word]);
    for i in 0..37 {
        let want = 1.0 / (1.0 + (-float(3 + i)).exp());
        holds(format!("sigmoid {i}"), (f32::from_bits(after[41 + i]) - want).abs() < 1e-6)?;
        let half = (after[101 + i / 2] >> (16 * (i % 2))) & 0xffff;
        holds(format!("bf16 {i}"), half == u32::from(half::bf16::from_f32(float(3 + i)).to_bits()))?;
    }
    holds("the last half word stays", after[119] >> 16 == before[119] >> 16)?;
    holds("rows are copied", after[307..345] == before[203..241])?;
    // Parts of one buffer that do not overlap are different memory; those that do are the same.
    let mut apart = Recording::new();
    apart.copy(&z, &s).map_err(text)?;
    let fence = backend.submit(&apart).map_err(text)?;
    backend.wait(&fence).map_err(text)?;
    let copied = backend.read_blocking(&s).map_err(text)?;
    holds("parts of one buffer are copied", copied == backend.read_blocking(&z).map_err(text)?)?;
    let overlapping = borrow("overlapping", 4, DType::F32, 37)?;
    refused("a copy onto itself", apart.copy(&z, &overlapping))?;
    let step = AdamWStep {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.0,
        correction1: 0.1,
        correction2: 0.01,
        grad_scale: 1.0,
    };
    let m = backend.alloc("m", DType::F32, 37, Category::Optimizer).map_err(text)?;
    let v = backend.alloc("v", DType::F32, 37, Category::Optimizer).map_err(text)?;
    let update = AdamW { len: 37, step, grad: z, weight: overlapping, master: None, m, v };
    refused("a kernel that writes what it reads", apart.dispatch(update)).map(drop)
}

/// Elements behind the last row are not read, though they are less than a vector of four and the buffer ends with them.
fn odd_elements() -> Outcome {
    let (device, queue) = open(true)?;
    let backend = WgpuBackend::adopt(&device, &queue, WgpuOptions::default()).map_err(text)?;
    let (rows, n, k) = (24, 8, 4);
    let host = buffer(&device, 404, USAGE);
    let values: Vec<f32> = (0..101).map(|i| i as f32).collect();
    queue.write_buffer(&host, 0, bytemuck::cast_slice(&values));
    let x = backend.borrow("x", &host, 0, DType::F32, 101).map_err(text)?;
    let import = |name: &str, data| backend.import(name, data, Category::Scratch).map_err(text);
    let (offsets, ones) = (import("offsets", HostData::U32(vec![0, rows as u32]))?, HostData::F32(vec![1.0; n * k]));
    let w = import("w", ones)?;
    let out = backend.alloc("out", DType::F32, rows * n, Category::Scratch).map_err(text)?;
    let last_first = import("index", HostData::U32((0..rows as u32).rev().collect()))?;
    for index in [None, Some(last_first)] {
        let row_of = |row: usize| if index.is_some() { rows - 1 - row } else { row };
        let sum = |row: usize| (0..k).map(|i| values[row_of(row) * k + i]).sum::<f32>();
        let want: Vec<f32> = (0..rows * n).map(|at| sum(at / n)).collect();
        let (x, w, offsets, out) = (x.clone(), w.clone(), offsets.clone(), out.clone());
        let mut recording = Recording::new();
        let product = GroupedForward { rows, groups: 1, n, k, index_div: 1, x, index, w, offsets, out: out.clone() };
        recording.dispatch(product).map_err(text)?;
        backend.submit(&recording).and_then(|fence| backend.wait(&fence)).map_err(text)?;
        let got = backend.read_blocking(&out).and_then(HostData::into_f32).map_err(text)?;
        holds("rows of a buffer of 101 elements", got == want)?;
    }
    Ok(())
}

fn not_borrowed() -> Outcome {
    let backend = backend(WgpuOptions::default())?;
    let host = buffer(backend.device(), 64, USAGE);
    for (offset, dtype, len, part) in [
        (2, DType::F32, 4, "multiples of 4"),
        (0, DType::BF16, 3, "multiples of 4"),
        (4, DType::F32, 16, "64 bytes"),
        (0, DType::F32, 0, "64 bytes"),
        (u64::MAX - 3, DType::F32, 4, "64 bytes"),
        (0, DType::F32, usize::MAX, "address space"),
    ] {
        let error = refused("a range", backend.borrow("part", &host, offset, dtype, len))?.to_string();
        holds(format!("`{error}` says {part}"), error.contains(part) && error.contains("part"))?;
    }
    let narrow = buffer(backend.device(), 64, wgpu::BufferUsages::STORAGE);
    let error = refused("a buffer that cannot be copied", backend.borrow("part", &narrow, 0, DType::F32, 4))?;
    holds(format!("`{error}` names usages"), error.to_string().contains("COPY_SRC"))
}

/// What goes wrong in the backend's calls is returned, not handed to the host, and the host's own errors still reach it.
fn callbacks() -> Outcome {
    let (device, queue) = open(true)?;
    let (errors, losses) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, lost) = (Arc::clone(&errors), Arc::clone(&losses));
    device.on_uncaptured_error(Arc::new(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    }));
    device.set_device_lost_callback(move |_, _| {
        lost.fetch_add(1, Ordering::SeqCst);
    });
    let backend = WgpuBackend::adopt(&device, &queue, WgpuOptions::default()).map_err(text)?;
    let limit = usize::try_from(device.limits().max_buffer_size).map_err(text)?;
    refused("a buffer beyond the limit", backend.alloc("huge", DType::F32, limit / 2, Category::Scratch))?;
    bits(&backend, SMALL)?;
    holds("no error of the backend's reaches the host", errors.load(Ordering::SeqCst) == 0)?;
    buffer(&device, 16, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::STORAGE);
    holds("an error of the host's does", errors.load(Ordering::SeqCst) == 1)?;
    device.destroy();
    let _ = device.poll(wgpu::PollType::wait_indefinitely());
    let error = refused("work on a destroyed device", bits_error(&backend))?;
    holds(format!("`{error}` says that the device is lost"), matches!(error, lrmoe::Error::DeviceLost { .. }))?;
    holds("the host hears of the loss", losses.load(Ordering::SeqCst) == 1)
}

fn bits_error(backend: &WgpuBackend) -> lrmoe::Result<()> {
    let buffer = backend.alloc("after", DType::F32, 16, Category::Scratch)?;
    backend.upload(&buffer, 0, &HostData::F32(vec![1.0; 16]))?;
    backend.read_blocking(&buffer).map(drop)
}

/// No feature and the default limits of WebGPU.
fn default_limits() -> Outcome {
    let (device, queue) = open(false)?;
    let adopted = WgpuBackend::adopt(&device, &queue, WgpuOptions::default()).map_err(text)?;
    let own = backend(WgpuOptions::default())?;
    holds("a step has the bits of a device of our own", bits(&adopted, SMALL)? == bits(&own, SMALL)?)
}
