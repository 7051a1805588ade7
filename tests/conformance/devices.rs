//! The devices of the table: how to open one, and what its arithmetic is allowed.

use lrmoe::memory::Category;
use lrmoe::recording::Command;
use lrmoe::{Backend, CpuOptions, DType, HostData, Recording, Result};

use crate::support::compare::Comparison;
use crate::support::cuda as support_cuda;
use crate::support::device;
use crate::table::{Case, Slot};

/// Opens a device, or says why it is not here.
pub type Open = fn() -> std::result::Result<Box<dyn Runner>, String>;

/// One column of the table.
pub struct Device {
    /// Last part of the trial names.
    pub name: &'static str,
    /// The device that all cases run on.
    pub open: Open,
    /// Other set-ups that must give the same bits.
    pub variants: Vec<Open>,
}

/// Runs cases, whatever the backend.
pub trait Runner {
    /// What it is, for messages.
    fn label(&self) -> &str;
    /// Factor on every bound: 1 where functions and divisions are as accurate as on the CPU.
    fn factor(&self) -> f64;
    /// What one operation may lose next to zero: the smallest subnormal number, or the smallest normal one where
    /// subnormal numbers are flushed.
    fn tiny(&self) -> f64;
    /// Runs the commands of a case and returns every buffer.
    fn run(&self, case: &Case) -> Result<Vec<HostData>>;
    /// Uploads and reads outside a buffer, or of another type, are refused; those inside do what they say.
    fn ranges(&self) -> std::result::Result<(), String>;
    /// Allocations that no address space holds are refused before anything is reserved.
    fn absurd(&self) -> std::result::Result<(), String>;
    /// The same device with every variant of the grouped GEMMs, and others that must give the same bits.
    fn gemm_variants(&self) -> std::result::Result<Vec<Box<dyn Runner>>, String>;
}

/// Every device that this crate knows, present or not.
pub fn all() -> Vec<Device> {
    vec![
        Device { name: "cpu", open: cpu, variants: vec![|| threads(1), || threads(2)] },
        Device { name: "wgpu", open: wgpu, variants: vec![] },
        Device { name: "cuda", open: cuda, variants: vec![] },
    ]
}

fn wgpu() -> std::result::Result<Box<dyn Runner>, String> {
    Ok(on_wgpu(device::wgpu()?, "wgpu".into(), || {
        let variants = device::wgpu_gemm_variants()?;
        Ok(variants.into_iter().map(|(label, backend)| on_wgpu(backend, label, || Ok(Vec::new()))).collect())
    }))
}

fn cuda() -> std::result::Result<Box<dyn Runner>, String> {
    Ok(on_cuda(support_cuda::cuda()?, "cuda".into(), || {
        let variants = support_cuda::cuda_gemm_variants()?;
        Ok(variants.into_iter().map(|(label, backend)| on_cuda(backend, label, none)).collect())
    }))
}

fn on_cuda(backend: impl Backend, label: String, variants: Variants) -> Box<dyn Runner> {
    Box::new(On { backend, label, factor: support_cuda::CUDA_FACTOR, tiny: SMALLEST_SUBNORMAL, variants })
}

fn on_wgpu(backend: impl Backend, label: String, variants: Variants) -> Box<dyn Runner> {
    Box::new(On { backend, label, factor: device::WGPU_FACTOR, tiny: f32::MIN_POSITIVE.into(), variants })
}

/// The CPU, which every other device is compared with.
pub fn cpu() -> std::result::Result<Box<dyn Runner>, String> {
    Ok(Box::new(On {
        backend: device::cpu(),
        label: "cpu".into(),
        factor: 1.0,
        tiny: SMALLEST_SUBNORMAL,
        variants: none,
    }))
}

fn threads(count: usize) -> std::result::Result<Box<dyn Runner>, String> {
    let backend = device::cpu_with(CpuOptions { threads: Some(count), poison: true, ..CpuOptions::default() });
    Ok(Box::new(On {
        backend,
        label: format!("cpu with {count} threads"),
        factor: 1.0,
        tiny: SMALLEST_SUBNORMAL,
        variants: none,
    }))
}

fn none() -> std::result::Result<Vec<Box<dyn Runner>>, String> {
    Ok(Vec::new())
}

/// 2^-149, the smallest subnormal number of f32.
const SMALLEST_SUBNORMAL: f64 = f64::from_bits(0x36a0_0000_0000_0000);

/// Runs cases on a backend for what happens on the way; results mean nothing.
#[cfg(feature = "wgpu")]
pub fn for_shaders(backend: lrmoe::WgpuBackend) -> impl Runner {
    On { backend, label: "no device".into(), factor: 1.0, tiny: 0.0, variants: none }
}

type Variants = fn() -> std::result::Result<Vec<Box<dyn Runner>>, String>;

struct On<B> {
    backend: B,
    label: String,
    factor: f64,
    tiny: f64,
    variants: Variants,
}

impl<B: Backend> Runner for On<B> {
    fn label(&self) -> &str {
        &self.label
    }

    fn factor(&self) -> f64 {
        self.factor
    }

    fn tiny(&self) -> f64 {
        self.tiny
    }

    fn run(&self, case: &Case) -> Result<Vec<HostData>> {
        let mut buffers = Vec::new();
        for (name, data) in case.buffers() {
            let buffer = self.backend.alloc(name, data.dtype(), data.len(), Category::Scratch)?;
            self.backend.upload(&buffer, 0, data)?;
            buffers.push(buffer);
        }
        let buffer = |slot: &Slot| buffers[slot.0].clone();
        let mut recording = Recording::new();
        for command in case.commands() {
            match command {
                Command::Dispatch(kernel) => recording.dispatch(kernel.clone().rebind(|slot| buffer(&slot)))?,
                Command::Fill { buffer: target, bits } => recording.fill(&buffer(target), *bits),
                Command::Copy { src, dst } => recording.copy(&buffer(src), &buffer(dst))?,
            }
        }
        let fence = self.backend.submit(&recording)?;
        self.backend.wait(&fence)?;
        buffers.iter().map(|buffer| self.backend.read_blocking(buffer)).collect()
    }

    fn gemm_variants(&self) -> std::result::Result<Vec<Box<dyn Runner>>, String> {
        (self.variants)()
    }

    fn ranges(&self) -> std::result::Result<(), String> {
        let mut compare = Comparison::new();
        let text = |e: lrmoe::Error| e.to_string();
        let buffer = self.backend.alloc("four", DType::F32, 4, Category::Scratch).map_err(text)?;
        let upload = |offset, data| self.backend.upload(&buffer, offset, &data);
        let read = |range| pollster::block_on(self.backend.read(&buffer, range));
        upload(0, HostData::F32(vec![1.0; 4])).map_err(text)?;
        upload(1, HostData::F32(vec![2.0, 3.0])).map_err(text)?;
        upload(4, HostData::F32(Vec::new())).map_err(text)?;
        let all = self.backend.read_blocking(&buffer).map_err(text)?;
        compare.equal("elements", &[all], &[HostData::F32(vec![1.0, 2.0, 3.0, 1.0])]);
        let part = read(1..3).map_err(text)?;
        compare.equal("a range", &[part], &[HostData::F32(vec![2.0, 3.0])]);
        let refused = |result: Result<()>| result.is_err_and(|e| matches!(e, lrmoe::Error::Shape { .. }));
        compare.holds("upload past the end is refused", refused(upload(3, HostData::F32(vec![0.0; 2]))));
        let far = upload(usize::MAX, HostData::F32(vec![0.0; 2]));
        compare.holds("upload at an offset that wraps is refused", refused(far));
        compare.holds("upload of another type is refused", refused(upload(0, HostData::U32(vec![0; 2]))));
        compare.holds("read past the end is refused", refused(read(2..5).map(drop)));
        let reversed = std::ops::Range { start: 3, end: 1 };
        compare.holds("read of a reversed range is refused", refused(read(reversed).map(drop)));
        compare.finish(7)
    }

    fn absurd(&self) -> std::result::Result<(), String> {
        let mut compare = Comparison::new();
        let before = self.backend.memory().report();
        for (dtype, len) in [(DType::F32, usize::MAX), (DType::BF16, usize::MAX / 2), (DType::U32, usize::MAX / 4)] {
            let refused = self.backend.alloc("absurd", dtype, len, Category::Scratch);
            compare.holds(&format!("{len} x {dtype} is refused"), refused.is_err());
        }
        compare.equal("memory", &[self.backend.memory().report()], &[before]);
        compare.finish(4)
    }
}
