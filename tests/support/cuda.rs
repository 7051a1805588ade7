//! The CUDA device of a test target: a real one, or with `LRMOE_FAKE_CUDA=1` the driver that runs kernels on the CPU.

#[cfg(not(feature = "cuda"))]
use lrmoe::CpuBackend;
#[cfg(feature = "cuda")]
use lrmoe::backend::cuda::GemmTile;
#[cfg(feature = "cuda")]
use lrmoe::{CudaBackend, CudaOptions};

/// Factor on the CPU's bounds: exponentials are a few units in the last place worse, and sums are in another order.
pub const CUDA_FACTOR: f64 = 4.0;

/// What a build without CUDA has instead: nothing that can be made.
#[cfg(not(feature = "cuda"))]
pub type CudaBackend = CpuBackend;

/// The first CUDA device, with poisoned allocations and an account of its own. All tests of a target share one stream.
///
/// # Errors
/// Why there is none. With `LRMOE_REQUIRE_CUDA` set that is a failure of the test.
#[cfg(feature = "cuda")]
pub fn cuda() -> Result<CudaBackend, String> {
    cuda_with(CudaOptions { poison: true, ..CudaOptions::default() })
}

/// As [`cuda`], with options of a test's own.
///
/// # Errors
/// As [`cuda`].
#[cfg(feature = "cuda")]
pub fn cuda_with(options: CudaOptions) -> Result<CudaBackend, String> {
    static OPENED: std::sync::OnceLock<Result<CudaBackend, String>> = std::sync::OnceLock::new();
    let open = || {
        super::fake_cuda::install()?;
        CudaBackend::new(CudaOptions::default()).map_err(|error| error.to_string())
    };
    let opened = OPENED.get_or_init(open).as_ref().map_err(|reason| absent(reason))?;
    opened.beside(options).map_err(|error| error.to_string())
}

/// The device of [`cuda`], where a trial has made sure that there is one.
#[allow(clippy::expect_used, reason = "a test without its device cannot go on")]
pub fn cuda_here() -> CudaBackend {
    cuda().expect("trials on a missing device are ignored")
}

/// The same device with either tile of the grouped GEMMs, which must give the same bits.
///
/// # Errors
/// As [`cuda`].
#[cfg(feature = "cuda")]
pub fn cuda_gemm_variants() -> Result<Vec<(String, CudaBackend)>, String> {
    let variants = [("large tiles", GemmTile::Large), ("small tiles", GemmTile::Small)];
    let open = |(label, tile): (&str, GemmTile)| {
        let options = CudaOptions { poison: true, gemm_tile: Some(tile), ..CudaOptions::default() };
        cuda_with(options).map(|backend| (label.to_owned(), backend))
    };
    variants.into_iter().map(open).collect()
}

/// None: there is no device.
///
/// # Errors
/// Never.
#[cfg(not(feature = "cuda"))]
pub fn cuda_gemm_variants() -> Result<Vec<(String, CudaBackend)>, String> {
    Ok(Vec::new())
}

/// [`cuda_here`] with a byte budget.
#[cfg(feature = "cuda")]
#[allow(clippy::expect_used, reason = "a test without its device cannot go on")]
pub fn cuda_within(budget: u64) -> CudaBackend {
    let options = CudaOptions { poison: true, budget: Some(budget), ..CudaOptions::default() };
    cuda_with(options).expect("trials on a missing device are ignored")
}

/// Nothing: there is no device.
#[cfg(not(feature = "cuda"))]
pub fn cuda_within(_budget: u64) -> CudaBackend {
    cuda_here()
}

/// As with the feature, but there never is one.
///
/// # Errors
/// Always.
#[cfg(not(feature = "cuda"))]
pub fn cuda() -> Result<CudaBackend, String> {
    Err(absent("built without the feature `cuda`"))
}

/// The reason why a device is not here, unless it has to be.
#[allow(clippy::panic, reason = "a device that has to be there and is not fails the test")]
pub fn absent(reason: &str) -> String {
    match std::env::var_os("LRMOE_REQUIRE_CUDA") {
        Some(value) if value != "0" => panic!("LRMOE_REQUIRE_CUDA is set, but: {reason}"),
        _ => reason.to_owned(),
    }
}
