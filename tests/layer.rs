//! Properties of the layer, its optimizer and its memory, and the faults that users of other systems reported: one trial
//! per property and device, both in its name. `fault_NN` trials carry the number of the report.

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lrmoe::{Backend, CpuBackend, CpuOptions};

mod support;

use support::{cuda, device};

#[path = "layer/demand.rs"]
mod demand;
#[path = "layer/edges.rs"]
mod edges;
#[path = "layer/expect.rs"]
mod expect;
#[path = "layer/faults_rows.rs"]
mod faults_rows;
#[path = "layer/faults_values.rs"]
mod faults_values;
#[path = "layer/forward.rs"]
mod forward;
#[path = "layer/gradients.rs"]
mod gradients;
#[path = "layer/losses.rs"]
mod losses;
#[path = "layer/memory.rs"]
mod memory;
#[path = "layer/optimizer.rs"]
mod optimizer;
#[path = "layer/predicted.rs"]
mod predicted;
#[path = "layer/sample.rs"]
mod sample;
#[path = "layer/schedule.rs"]
mod schedule;
#[path = "layer/selection.rs"]
mod selection;
#[path = "layer/systematic.rs"]
mod systematic;
#[path = "layer/training.rs"]
mod training;
#[path = "layer/unbiased.rs"]
mod unbiased;

fn main() -> std::process::ExitCode {
    let arguments = Arguments::from_args();
    let cpu = Device {
        name: "cpu",
        factor: 1.0,
        missing: || None,
        make: device::cpu,
        budget: |bytes| device::cpu_with(CpuOptions { poison: true, budget: Some(bytes), threads: None }),
        sample: 1.0,
        workspace: false,
        threads: Some(|n| device::cpu_with(CpuOptions { poison: true, budget: None, threads: Some(n) })),
    };
    let wgpu = Device {
        name: "wgpu",
        factor: device::WGPU_FACTOR,
        missing: || device::wgpu().err(),
        make: device::wgpu_here,
        budget: device::wgpu_within,
        sample: 0.1,
        workspace: true,
        threads: None,
    };
    let cuda = Device {
        name: "cuda",
        factor: cuda::CUDA_FACTOR,
        missing: || cuda::cuda().err(),
        make: cuda::cuda_here,
        budget: cuda::cuda_within,
        sample: 0.1,
        workspace: true,
        threads: None,
    };
    let trials = on_device::<CpuBackend>(cpu).into_iter().chain(on_device(wgpu)).chain(on_device(cuda)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Result of a trial: what is wrong, in words.
type Outcome = Result<(), String>;

/// How a device is made for a trial.
#[derive(Debug)]
struct Device<B> {
    /// Last part of the trials' names.
    name: &'static str,
    /// Multiplies every bound on rounding.
    factor: f64,
    /// Why it is not here, if it is not.
    missing: fn() -> Option<String>,
    /// As it comes, with poisoned allocations where the device can do that.
    make: fn() -> B,
    /// With a byte budget.
    budget: fn(u64) -> B,
    /// Part of the seeds that trials on statistics take: a device that selects the CPU's pairs bit for bit, as `conformance` shows, does
    /// not need as many again.
    sample: f64,
    /// Whether its kernels allocate workspace of their own, beside what layers ask for.
    workspace: bool,
    /// With a number of threads, where that means something.
    threads: Option<fn(usize) -> B>,
}

impl<B> Clone for Device<B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Device<B> {}

impl<B> Device<B> {
    /// Seeds of a trial that takes so many on the CPU.
    fn seeds(&self, all: u64) -> u64 {
        (all as f64 * self.sample).ceil() as u64
    }
}

fn on_device<B: Backend>(device: Device<B>) -> Vec<Trial> {
    [
        gradients::trials(device),
        unbiased::trials(device),
        systematic::trials(device),
        selection::trials(device),
        forward::trials(device),
        demand::trials(device),
        edges::trials(device),
        optimizer::trials(device),
        losses::trials(device),
        memory::trials(device),
        predicted::trials(device),
        training::trials(device),
        schedule::trials(device),
        faults_rows::trials(device),
        faults_values::trials(device),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// One trial on one device.
fn trial<B: Backend>(
    device: Device<B>,
    name: impl std::fmt::Display,
    run: impl FnOnce(&Device<B>) -> Outcome + Send + 'static,
) -> Trial {
    trial_if(device, name, |_| None, run)
}

/// One trial that is ignored, with the reason, where the device is not here or lacks what it needs.
fn trial_if<B: Backend>(
    device: Device<B>,
    name: impl std::fmt::Display,
    lacking: impl FnOnce(&Device<B>) -> Option<String> + Send + 'static,
    run: impl FnOnce(&Device<B>) -> Outcome + Send + 'static,
) -> Trial {
    Trial::ignorable_test(format!("{name}::{}", device.name), move || {
        match (device.missing)().or_else(|| lacking(&device)) {
            Some(reason) => Ok(Completion::ignored_with(reason)),
            None => run(&device).map(|()| Completion::Completed).map_err(Failed::from),
        }
    })
}

/// Why a trial of this storage type cannot run.
fn no_storage<B: Backend>(device: &Device<B>, dtype: lrmoe::DType) -> Option<String> {
    let caps = (device.make)().caps().clone();
    (!caps.storage.contains(&dtype)).then(|| format!("{} stores no {dtype}", caps.backend))
}

/// Why a trial over thread counts cannot run.
fn no_threads<B: Backend>(device: &Device<B>) -> Option<String> {
    device.threads.is_none().then(|| "the device has no threads to choose".to_string())
}

fn text(error: lrmoe::Error) -> String {
    error.to_string()
}
