//! What the wgpu backend does beside running kernels: hosts' devices, limits, budgets, lost devices, times. One trial each,
//! ignored with the reason where there is no adapter.

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lrmoe::{WgpuBackend, WgpuOptions};

#[path = "../support/mod.rs"]
mod support;

mod gemm;
mod host;
mod limits;
mod lost;
mod memory;

use support::outcome::Outcome;

fn main() -> std::process::ExitCode {
    let arguments = Arguments::from_args();
    let trials = [gemm::trials(), host::trials(), limits::trials(), lost::trials(), memory::trials()]
        .into_iter()
        .flatten()
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A trial that is ignored where there is no adapter.
fn trial(name: &'static str, run: fn() -> Outcome) -> Trial {
    Trial::ignorable_test(name, move || match support::device::wgpu() {
        Err(reason) => Ok(Completion::ignored_with(reason)),
        Ok(_) => run().map(|()| Completion::Completed).map_err(Failed::from),
    })
}

/// The device that trials share, with options of their own.
fn backend(options: WgpuOptions) -> Result<WgpuBackend, String> {
    support::device::wgpu_with(WgpuOptions { poison: true, ..options })
}
