//! The test driver.

/// Puts the test driver in the place of libcuda where `LRMOE_FAKE_CUDA=1` asks for it.
///
/// # Errors
/// Why it cannot be used.
pub fn install() -> Result<(), String> {
    match std::env::var_os("LRMOE_FAKE_CUDA") {
        Some(value) if value == "1" => Err("the test driver is not written".into()),
        _ => Ok(()),
    }
}
