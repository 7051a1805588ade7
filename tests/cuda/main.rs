//! What the CUDA backend does beside running kernels: compiled kernels, hosts' streams, memory, failures. One trial each,
//! ignored with the reason where what it needs is not here.

#![allow(clippy::print_stdout, reason = "a child process tells what it sees")]

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lrmoe::{CudaBackend, CudaOptions};

#[path = "../support/mod.rs"]
mod support;

/// The test driver's.
#[allow(dead_code, reason = "the test driver uses more of it")]
#[path = "../fakecuda/src/image.rs"]
mod image;

mod alignment;
mod cache;
mod cubins;
mod failures;
mod gemm;
mod host;
mod memory;
mod offsets;
mod wrappers;

use support::outcome::{Outcome, text};

fn main() -> std::process::ExitCode {
    if let Some(report) = failures::child() {
        println!("{report}");
        return std::process::ExitCode::SUCCESS;
    }
    let arguments = Arguments::from_args();
    let trials = [
        alignment::trials(),
        cubins::trials(),
        failures::trials(),
        gemm::trials(),
        cache::trials(),
        host::trials(),
        memory::trials(),
        offsets::trials(),
        wrappers::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    // What a real driver would have let pass, or left undefined.
    let violations = support::fake_cuda::fake().ok().flatten().map(|fake| fake.violations()).unwrap_or_default();
    violations.iter().for_each(|violation| println!("violation: {violation}"));
    if violations.is_empty() { conclusion.exit_code() } else { std::process::ExitCode::FAILURE }
}

/// A trial that is ignored where there is no device.
fn trial(name: &'static str, run: fn() -> Outcome) -> Trial {
    trial_with(name, || support::cuda::cuda().err(), run)
}

/// A trial that is ignored where something is missing.
fn trial_with(name: &'static str, missing: fn() -> Option<String>, run: fn() -> Outcome) -> Trial {
    Trial::ignorable_test(name, move || match missing() {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => run().map(|()| Completion::Completed).map_err(Failed::from),
    })
}

/// The device that trials share, with options of their own.
fn backend(options: CudaOptions) -> Result<CudaBackend, String> {
    support::cuda::cuda_with(CudaOptions { poison: true, ..options })
}

/// An empty directory of a trial's own.
fn directory(name: &str) -> Result<std::path::PathBuf, String> {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cuda-{name}-{}", std::process::id()));
    if path.exists() {
        std::fs::remove_dir_all(&path).map_err(text)?;
    }
    std::fs::create_dir_all(&path).map_err(text)?;
    Ok(path)
}
