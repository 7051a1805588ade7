//! The adapters of this machine, and how one is opened.

use super::context::Cooperative;
use crate::backend::Caps;
use crate::tensor::DType;
use crate::{Error, Result};

/// An adapter, for people and for choosing.
#[derive(Debug, Clone)]
pub struct WgpuAdapter {
    /// Its number: `wgpu:N` chooses it.
    pub index: usize,
    /// What the driver says it is.
    pub info: wgpu::AdapterInfo,
    /// What a device of it can have at most.
    pub limits: wgpu::Limits,
    /// What a device of it can have.
    pub features: wgpu::Features,
}

impl WgpuAdapter {
    /// Whether it runs on the host's cores.
    pub fn software(&self) -> bool {
        self.info.device_type == wgpu::DeviceType::Cpu
    }

    /// What a device of it can do.
    pub fn caps(&self) -> Caps {
        caps(&self.info, &self.limits)
    }
}

/// What a device of an adapter can do within limits.
pub(super) fn caps(info: &wgpu::AdapterInfo, limits: &wgpu::Limits) -> Caps {
    let driver = [info.driver.as_str(), info.driver_info.as_str()].map(str::trim).join(" ");
    Caps {
        backend: "wgpu",
        device: format!("{} ({:?}, {})", info.name, info.backend, driver.trim()),
        storage: vec![DType::F32, DType::BF16, DType::F16],
        max_buffer_bytes: limits.max_buffer_size,
    }
}

/// Why there is no device.
pub(in crate::backend) const NO_ADAPTER: &str = "no Vulkan, Metal or DX12 adapter was found";

/// Interfaces that kernels are written for. OpenGL's compute shaders are too slow to be of use.
const BACKENDS: wgpu::Backends = wgpu::Backends::VULKAN.union(wgpu::Backends::METAL).union(wgpu::Backends::DX12);

fn found() -> Vec<wgpu::Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = BACKENDS;
    let instance = wgpu::Instance::new(descriptor);
    let mut found = pollster::block_on(instance.enumerate_adapters(BACKENDS));
    // The same order on every call: discrete, integrated, virtual, other, software.
    let rank = |adapter: &wgpu::Adapter| match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    };
    found.sort_by_key(rank);
    found
}

/// Every adapter, hardware first.
pub fn adapters() -> Vec<WgpuAdapter> {
    found()
        .iter()
        .enumerate()
        .map(|(index, adapter)| WgpuAdapter {
            index,
            info: adapter.get_info(),
            limits: adapter.limits(),
            features: adapter.features(),
        })
        .collect()
}

/// Features that kernels use where they are.
const FEATURES: wgpu::Features = wgpu::Features::SUBGROUP.union(wgpu::Features::TIMESTAMP_QUERY);

/// Features that cooperative kernels use besides.
const COOPERATIVE: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX.union(wgpu::Features::SHADER_F16);

/// Opens the adapter of that number or name, or the first one. Cooperative matrices are an experimental feature: they are
/// enabled only where they are asked for.
pub(super) fn open(wanted: Option<&str>, cooperative: bool) -> Result<(wgpu::Device, wgpu::Queue, Cooperative)> {
    let found = found();
    let names: Vec<String> = found.iter().map(|adapter| adapter.get_info().name).collect();
    let index = pick(wanted, &names)?;
    let adapter = found.get(index).ok_or_else(|| Error::Unsupported { what: "wgpu".into(), why: NO_ADAPTER.into() })?;
    let wanted = if cooperative { FEATURES.union(COOPERATIVE) } else { FEATURES };
    let features = adapter.features() & wanted;
    let experimental = if features.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX) {
        // SAFETY: of the experimental features only cooperative matrices are asked for, and the kernels that use them are
        // compared with plain ones on this device before they are chosen.
        unsafe { wgpu::ExperimentalFeatures::enabled() }
    } else {
        wgpu::ExperimentalFeatures::disabled()
    };
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("lrmoe"),
        required_features: features,
        required_limits: adapter.limits(),
        experimental_features: experimental,
        memory_hints: wgpu::MemoryHints::MemoryUsage,
        trace: wgpu::Trace::Off,
    };
    let opened = pollster::block_on(adapter.request_device(&descriptor)).map_err(|error| Error::Device {
        command: format!("open `{}`", adapter.get_info().name),
        reason: error.to_string(),
    });
    let has = |side, operands| {
        let wanted = |it: &wgpu::CooperativeMatrixProperties| {
            [it.m_size, it.n_size, it.k_size] == [side; 3]
                && it.ab_type == operands
                && it.cr_type == wgpu::CooperativeScalarType::F32
        };
        cooperative && adapter.cooperative_matrix_properties().iter().any(wanted)
    };
    let matrices = Cooperative {
        singles: has(8, wgpu::CooperativeScalarType::F32),
        halves: has(16, wgpu::CooperativeScalarType::F16) && features.contains(wgpu::Features::SHADER_F16),
    };
    opened.map(|(device, queue)| (device, queue, matrices))
}

/// Number of the adapter that a number or a part of a name means.
fn pick(wanted: Option<&str>, names: &[String]) -> Result<usize> {
    let Some(wanted) = wanted else { return Ok(0) };
    let listed = || match names {
        [] => "no adapter was found".to_owned(),
        names => names.iter().enumerate().map(|(i, name)| format!("{i} ({name})")).collect::<Vec<_>>().join(", "),
    };
    let number = wanted.parse::<usize>().ok().filter(|&index| index < names.len());
    // A number that is none of an adapter may be a model: `4090`.
    let position = number.or_else(|| {
        let wanted = wanted.to_lowercase();
        names.iter().position(|name| !wanted.is_empty() && name.to_lowercase().contains(&wanted))
    });
    position.ok_or_else(|| Error::argument("adapter", format!("`{wanted}`"), listed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_picked_by_number_or_part_of_a_name() {
        let names = ["GeForce RTX 4090".to_owned(), "llvmpipe (LLVM 15)".to_owned()];
        assert_eq!(pick(Some("4090"), &names), Ok(0));
        assert_eq!(pick(None, &names), Ok(0));
        assert_eq!(pick(Some("1"), &names), Ok(1));
        assert_eq!(pick(Some("LLVM"), &names), Ok(1));
        for wrong in ["2", "", "radeon"] {
            let refused = pick(Some(wrong), &names).unwrap_err().to_string();
            assert!(refused.contains("0 (GeForce RTX 4090), 1 (llvmpipe (LLVM 15))"), "{refused}");
        }
        assert!(pick(Some("0"), &[]).unwrap_err().to_string().contains("no adapter"));
    }
}
