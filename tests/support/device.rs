//! The devices that a test target runs on. A device that is not here makes its trials *ignored with the reason*.

use lrmoe::{CpuBackend, CpuOptions};

/// The CPU backend with poisoned allocations: what nobody wrote is NaN or an index out of range.
pub fn cpu() -> CpuBackend {
    cpu_with(CpuOptions { poison: true, ..CpuOptions::default() })
}

/// The CPU backend with options of a test's own.
#[allow(clippy::expect_used, reason = "a test without its device cannot go on")]
pub fn cpu_with(options: CpuOptions) -> CpuBackend {
    CpuBackend::with_options(options).expect("the CPU backend needs nothing")
}
