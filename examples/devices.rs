//! Every backend, or why it is missing: `cargo run --release --example devices`.
#![allow(clippy::print_stdout, reason = "an example prints what it finds")]

fn main() {
    for device in lrmoe::backend::devices() {
        match device.caps {
            Ok(caps) => {
                let storage: Vec<String> = caps.storage.iter().map(ToString::to_string).collect();
                println!("{:<5} {}; stores {}", device.name, caps.device, storage.join(", "));
                kernels(&device.name);
            }
            Err(reason) => println!("{:<5} missing: {reason}", device.name),
        }
    }
}

/// Which variant of each kernel a wgpu device uses, as far as that is known before it has run any.
#[cfg(feature = "wgpu")]
fn kernels(device: &str) {
    let Some(adapter) = device.strip_prefix("wgpu:") else { return };
    let options = lrmoe::WgpuOptions { adapter: Some(adapter.to_owned()), ..lrmoe::WgpuOptions::default() };
    match lrmoe::WgpuBackend::new(options) {
        Ok(backend) => {
            for choice in backend.chosen_variants() {
                println!("      {}: {} ({:?})", choice.what, choice.variant, choice.source);
            }
        }
        Err(error) => println!("      cannot be opened: {error}"),
    }
}

#[cfg(not(feature = "wgpu"))]
fn kernels(_device: &str) {}
