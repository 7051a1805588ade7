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

/// Factor on the CPU's bounds: WGSL leaves division, roots and exponentials a few units in the last place more, and devices may
/// flush subnormal numbers.
pub const WGPU_FACTOR: f64 = 4.0;

/// What a build without wgpu has instead: nothing that can be made.
#[cfg(not(feature = "wgpu"))]
pub type WgpuBackend = CpuBackend;

/// The first wgpu adapter, with poisoned allocations and an account of its own. All tests of a target share one device.
///
/// # Errors
/// Why there is none. With `LRMOE_REQUIRE_WGPU` set that is a failure of the test.
#[cfg(feature = "wgpu")]
pub fn wgpu() -> Result<WgpuBackend, String> {
    wgpu_with(poisoned())
}

#[cfg(feature = "wgpu")]
fn poisoned() -> WgpuOptions {
    WgpuOptions { poison: true, ..WgpuOptions::default() }
}

/// As [`wgpu`], with options of a test's own.
///
/// # Errors
/// As [`wgpu`].
#[cfg(feature = "wgpu")]
pub fn wgpu_with(options: WgpuOptions) -> Result<WgpuBackend, String> {
    static OPENED: std::sync::OnceLock<Result<WgpuBackend, String>> = std::sync::OnceLock::new();
    let opened = OPENED.get_or_init(|| WgpuBackend::new(WgpuOptions::default()).map_err(|error| error.to_string()));
    let opened = opened.as_ref().map_err(|reason| absent(reason))?;
    opened.beside(options).map_err(|error| error.to_string())
}

/// The device of [`wgpu`], where a trial has made sure that there is one.
#[allow(clippy::expect_used, reason = "a test without its device cannot go on")]
pub fn wgpu_here() -> WgpuBackend {
    wgpu().expect("trials on a missing device are ignored")
}

/// [`wgpu_here`] with a byte budget.
#[cfg(feature = "wgpu")]
#[allow(clippy::expect_used, reason = "a test without its device cannot go on")]
pub fn wgpu_within(budget: u64) -> WgpuBackend {
    let options = WgpuOptions { poison: true, budget: Some(budget), ..WgpuOptions::default() };
    wgpu_with(options).expect("trials on a missing device are ignored")
}

/// Nothing: there is no device.
#[cfg(not(feature = "wgpu"))]
pub fn wgpu_within(_budget: u64) -> WgpuBackend {
    wgpu_here()
}

/// The device of [`wgpu`] with each variant of the grouped GEMMs, and with bindings so small that weights take several.
///
/// # Errors
/// As [`wgpu`].
#[cfg(feature = "wgpu")]
pub fn wgpu_gemm_variants() -> Result<Vec<(String, WgpuBackend)>, String> {
    let mut all = vec![("small bindings".to_owned(), WgpuOptions { binding_bytes: Some(16 << 10), ..poisoned() })];
    let named = |name: &str| WgpuOptions { gemm_variant: Some(name.to_owned()), ..poisoned() };
    all.extend(WgpuBackend::gemm_variants().into_iter().map(|name| (name.to_owned(), named(name))));
    all.into_iter().map(|(label, options)| wgpu_with(options).map(|backend| (label, backend))).collect()
}

/// Nothing: there is no device.
///
/// # Errors
/// None.
#[cfg(not(feature = "wgpu"))]
pub fn wgpu_gemm_variants() -> Result<Vec<(String, WgpuBackend)>, String> {
    Ok(Vec::new())
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
