//! The devices that a test target runs on. A device that is not here makes its trials *ignored with the reason*.

use lrmoe::{CpuBackend, CpuOptions};
#[cfg(feature = "wgpu")]
use lrmoe::{WgpuBackend, WgpuOptions};

/// The CPU backend with poisoned allocations: what nobody wrote is NaN or an index out of range.
pub fn cpu() -> CpuBackend {
    cpu_with(CpuOptions { poison: true, ..CpuOptions::default() })
}

/// The CPU backend with options of a test's own.
#[allow(clippy::expect_used, reason = "a test without its device cannot go on")]
pub fn cpu_with(options: CpuOptions) -> CpuBackend {
    CpuBackend::with_options(options).expect("the CPU backend needs nothing")
}

/// What a build without wgpu has instead: nothing that can be made.
#[cfg(not(feature = "wgpu"))]
pub type WgpuBackend = CpuBackend;

/// A device on the first wgpu adapter, with poisoned allocations; one for all tests of a target.
///
/// # Errors
/// Why there is none. With `LRMOE_REQUIRE_WGPU` set that is a failure of the test.
#[cfg(feature = "wgpu")]
pub fn wgpu() -> Result<WgpuBackend, String> {
    static OPENED: std::sync::OnceLock<Result<WgpuBackend, String>> = std::sync::OnceLock::new();
    OPENED.get_or_init(|| wgpu_with(WgpuOptions { poison: true, ..WgpuOptions::default() })).clone()
}

/// As [`wgpu`], with options of a test's own.
///
/// # Errors
/// As [`wgpu`].
#[cfg(feature = "wgpu")]
pub fn wgpu_with(options: WgpuOptions) -> Result<WgpuBackend, String> {
    WgpuBackend::new(options).map_err(|error| absent(&error.to_string()))
}

/// As with the feature, but there never is one.
///
/// # Errors
/// Always.
#[cfg(not(feature = "wgpu"))]
pub fn wgpu() -> Result<WgpuBackend, String> {
    Err(absent("built without the feature `wgpu`"))
}

/// The reason why a device is not here, unless it has to be.
#[allow(clippy::panic, reason = "a device that has to be there and is not fails the test")]
fn absent(reason: &str) -> String {
    match std::env::var_os("LRMOE_REQUIRE_WGPU") {
        Some(value) if value != "0" => panic!("LRMOE_REQUIRE_WGPU is set, but: {reason}"),
        _ => reason.to_owned(),
    }
}
