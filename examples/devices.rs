//! Every backend, or why it is missing: `cargo run --release --example devices`.
#![allow(clippy::print_stdout, reason = "an example prints what it finds")]

fn main() {
    for device in lrmoe::backend::devices() {
        match device.caps {
            Ok(caps) => {
                let storage: Vec<String> = caps.storage.iter().map(ToString::to_string).collect();
                println!("{:<5} {}; stores {}", device.name, caps.device, storage.join(", "));
                details(&device.name);
            }
            Err(reason) => println!("{:<5} missing: {reason}", device.name),
        }
    }
}

/// Limits and features of a wgpu adapter, and which variant of each kernel a device of it uses, as far as that is known before it
/// has run any.
#[cfg(feature = "wgpu")]
fn details(device: &str) {
    let Some(number) = device.strip_prefix("wgpu:") else { return };
    let adapters = lrmoe::backend::wgpu::adapters();
    if let Some(adapter) = adapters.iter().find(|adapter| adapter.index.to_string() == number) {
        let (limits, info) = (&adapter.limits, &adapter.info);
        println!(
            "      limits: buffer {} MiB, storage binding {} MiB, workgroup {} invocations and {} KiB, grid {}",
            limits.max_buffer_size >> 20,
            limits.max_storage_buffer_binding_size >> 20,
            limits.max_compute_invocations_per_workgroup,
            limits.max_compute_workgroup_storage_size >> 10,
            limits.max_compute_workgroups_per_dimension,
        );
        let used = [
            ("subgroups", wgpu::Features::SUBGROUP),
            ("f16", wgpu::Features::SHADER_F16),
            ("timestamps", wgpu::Features::TIMESTAMP_QUERY),
            ("cooperative matrices", wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX),
        ];
        let (with, without): (Vec<_>, Vec<_>) = used.into_iter().partition(|(_, f)| adapter.features.contains(*f));
        let names = |features: Vec<(&'static str, wgpu::Features)>| {
            let names: Vec<&str> = features.into_iter().map(|(name, _)| name).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        let sizes = format!("{} to {}", info.subgroup_min_size, info.subgroup_max_size);
        println!("      features: {}; not: {}; subgroups of {sizes}", names(with), names(without));
    }
    let options = lrmoe::WgpuOptions { adapter: Some(number.to_owned()), ..lrmoe::WgpuOptions::default() };
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
fn details(_device: &str) {}
