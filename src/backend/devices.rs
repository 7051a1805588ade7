//! Which devices there are, why a backend is not among them, and how one is opened by name.

use super::cpu::{CpuBackend, CpuOptions};
use super::{Backend, Caps};
use crate::{Error, Result};

/// One device of this machine, or why a backend has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Name to choose it by: `cuda`, `wgpu:0`, `cpu`.
    pub name: String,
    /// What it can do, or the reason why it is not there.
    pub caps: std::result::Result<Caps, String>,
    /// Runs on the host's cores through a driver; never chosen by `auto`, since the CPU backend is faster.
    pub software: bool,
}

/// Every device that lrmoe knows, best first.
pub fn devices() -> Vec<Device> {
    let mut devices = cuda_devices();
    devices.extend(wgpu_devices());
    devices.push(Device { name: "cpu".into(), caps: Ok(CpuBackend::new().caps().clone()), software: false });
    devices
}

fn absent(name: &str, reason: &str) -> Device {
    Device { name: name.into(), caps: Err(reason.into()), software: false }
}

#[cfg(feature = "cuda")]
fn cuda_devices() -> Vec<Device> {
    let device = |device: super::cuda::CudaDevice| Device {
        name: format!("cuda:{}", device.index),
        caps: device.caps,
        software: false,
    };
    match super::cuda::cuda_devices() {
        Ok(found) => found.into_iter().map(device).collect(),
        Err(why) => vec![absent("cuda", &why)],
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda_devices() -> Vec<Device> {
    vec![absent("cuda", "built without the feature `cuda`")]
}

#[cfg(feature = "wgpu")]
fn wgpu_devices() -> Vec<Device> {
    let adapters = super::wgpu::adapters();
    if adapters.is_empty() {
        return vec![absent("wgpu", super::wgpu::NO_ADAPTER)];
    }
    let device = |adapter: &super::wgpu::WgpuAdapter| Device {
        name: format!("wgpu:{}", adapter.index),
        caps: Ok(adapter.caps()),
        software: adapter.software(),
    };
    adapters.iter().map(device).collect()
}

#[cfg(not(feature = "wgpu"))]
fn wgpu_devices() -> Vec<Device> {
    vec![absent("wgpu", "built without the feature `wgpu`")]
}

/// A choice of device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The device: `cuda`, `cuda:N`, `wgpu`, `wgpu:N`, `wgpu:NAME` or `cpu`.
    pub name: String,
    /// The better ones that were refused, with the reason.
    pub refused: Vec<(String, String)>,
}

/// `auto`: the best device there is. A name: that one; `cuda:1` is a device by number, `wgpu:1` and `wgpu:radeon` are an adapter by
/// number and by a part of its name.
///
/// # Errors
/// [`Error::Argument`] for an unknown name, [`Error::Unsupported`] for a backend that is not there.
pub fn choose(name: &str) -> Result<Choice> {
    choose_among(devices(), name)
}

fn choose_among(devices: Vec<Device>, name: &str) -> Result<Choice> {
    let mut refused = Vec::new();
    if name == "auto" {
        for device in devices {
            match device.caps {
                Ok(caps) if device.software => {
                    refused.push((device.name, format!("{} is software; the CPU backend is faster", caps.device)));
                }
                Ok(_) => return Ok(Choice { name: device.name, refused }),
                Err(why) => refused.push((device.name, why)),
            }
        }
        return Err(Error::Unsupported { what: "device `auto`".into(), why: "no device is left".into() });
    }
    let backend = name.split(':').next().unwrap_or(name);
    let of_backend = |device: &&Device| device.name.split(':').next() == Some(backend);
    let known: Vec<&Device> = devices.iter().filter(of_backend).collect();
    let numbered = known.iter().any(|device| device.name == name);
    if known.is_empty() || (backend != "wgpu" && backend != name && !numbered) {
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        return Err(Error::argument("device", name, format!("auto, cuda, wgpu, wgpu:NAME, {}", names.join(", "))));
    }
    // A whole backend is there where one of its devices is.
    let asked = known.iter().filter(|device| !numbered || device.name == name);
    let (mut usable, mut reasons) = (None, Vec::new());
    for device in asked {
        match &device.caps {
            Ok(_) => usable = usable.or(Some(device.name.clone())),
            Err(why) => reasons.push(why.as_str()),
        }
    }
    match usable {
        Some(first) if backend == "cuda" => Ok(Choice { name: first, refused }),
        Some(_) => Ok(Choice { name: name.to_owned(), refused }),
        None => Err(Error::Unsupported { what: format!("device `{name}`"), why: reasons.join("; ") }),
    }
}

/// A backend that was chosen while the program ran.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum AnyBackend {
    /// The host's cores.
    Cpu(CpuBackend),
    /// A wgpu adapter.
    #[cfg(feature = "wgpu")]
    Wgpu(super::wgpu::WgpuBackend),
    /// A CUDA device.
    #[cfg(feature = "cuda")]
    Cuda(super::cuda::CudaBackend),
}

/// What to do with a backend, whichever it is.
pub trait OnBackend {
    /// What comes of it.
    type Output;
    /// Does it.
    fn run<B: Backend>(self, backend: &B) -> Self::Output;
}

impl AnyBackend {
    /// Runs on whichever backend this is.
    pub fn with<W: OnBackend>(&self, work: W) -> W::Output {
        match self {
            Self::Cpu(backend) => work.run(backend),
            #[cfg(feature = "wgpu")]
            Self::Wgpu(backend) => work.run(backend),
            #[cfg(feature = "cuda")]
            Self::Cuda(backend) => work.run(backend),
        }
    }

    /// What the device can do.
    pub fn caps(&self) -> &Caps {
        match self {
            Self::Cpu(backend) => backend.caps(),
            #[cfg(feature = "wgpu")]
            Self::Wgpu(backend) => backend.caps(),
            #[cfg(feature = "cuda")]
            Self::Cuda(backend) => backend.caps(),
        }
    }
}

impl Choice {
    /// Opens the device with default options.
    ///
    /// # Errors
    /// What opening it reports, and [`Error::Argument`] for an adapter that is not there.
    pub fn open(&self) -> Result<AnyBackend> {
        self.open_within(None)
    }

    /// Opens the device with a byte budget, or without.
    ///
    /// # Errors
    /// As [`Choice::open`].
    pub fn open_within(&self, budget: Option<u64>) -> Result<AnyBackend> {
        match self.name.as_str() {
            "cpu" => CpuBackend::with_options(CpuOptions { budget, ..CpuOptions::default() }).map(AnyBackend::Cpu),
            name if name.starts_with("cuda") => open_cuda(name, budget),
            name => open_wgpu(name, budget),
        }
    }
}

#[cfg(feature = "cuda")]
fn open_cuda(name: &str, budget: Option<u64>) -> Result<AnyBackend> {
    let device = match name.strip_prefix("cuda:") {
        Some(number) => number.parse().map_err(|_| Error::argument("device", name, "cuda or cuda:NUMBER"))?,
        None => 0,
    };
    let options = super::cuda::CudaOptions { device, budget, ..Default::default() };
    super::cuda::CudaBackend::new(options).map(AnyBackend::Cuda)
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(name: &str, _budget: Option<u64>) -> Result<AnyBackend> {
    Err(Error::Unsupported { what: format!("device `{name}`"), why: "built without the feature `cuda`".into() })
}

#[cfg(feature = "wgpu")]
fn open_wgpu(name: &str, budget: Option<u64>) -> Result<AnyBackend> {
    let adapter = name.strip_prefix("wgpu:").map(str::to_owned);
    let options = super::wgpu::WgpuOptions { adapter, budget, ..Default::default() };
    super::wgpu::WgpuBackend::new(options).map(AnyBackend::Wgpu)
}

#[cfg(not(feature = "wgpu"))]
fn open_wgpu(name: &str, _budget: Option<u64>) -> Result<AnyBackend> {
    Err(Error::Unsupported { what: format!("device `{name}`"), why: "built without the feature `wgpu`".into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(name: &str, software: bool) -> Device {
        let caps = Caps { backend: "test", device: format!("a {name}"), storage: Vec::new(), max_buffer_bytes: 1 };
        Device { name: name.into(), caps: Ok(caps), software }
    }

    #[test]
    fn auto_takes_hardware_and_explains_what_it_refused() {
        let missing = || absent("cuda", "no driver");
        let names = |choice: &Choice| choice.refused.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let laptop = vec![missing(), here("wgpu:0", false), here("wgpu:1", true), here("cpu", false)];
        let choice = choose_among(laptop, "auto").unwrap();
        assert_eq!((choice.name.as_str(), names(&choice)), ("wgpu:0", vec!["cuda".to_owned()]));
        let server = vec![missing(), here("wgpu:0", true), here("cpu", false)];
        let choice = choose_among(server, "auto").unwrap();
        assert_eq!((choice.name.as_str(), names(&choice)), ("cpu", vec!["cuda".to_owned(), "wgpu:0".to_owned()]));
        assert!(choice.refused[1].1.contains("a wgpu:0 is software"), "{choice:?}");
    }

    #[test]
    fn names_are_backends_adapters_or_refused() {
        let devices = || vec![absent("cuda", "no driver"), here("wgpu:0", true), here("cpu", false)];
        for name in ["wgpu", "wgpu:0", "wgpu:radeon", "cpu"] {
            assert_eq!(choose_among(devices(), name), Ok(Choice { name: name.into(), refused: vec![] }));
        }
        let refused = choose_among(devices(), "cuda").unwrap_err();
        assert_eq!(refused, Error::Unsupported { what: "device `cuda`".into(), why: "no driver".into() });
        for name in ["tpu", "", "cpu:0", "autos", "cuda:0"] {
            let refused = choose_among(devices(), name).unwrap_err();
            assert!(
                matches!(&refused, Error::Argument { allowed, .. } if allowed.contains("wgpu:0, cpu")),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_backend_is_its_first_device_that_works() {
        let old = || Device { name: "cuda:0".into(), caps: Err("sm_70".into()), software: false };
        let devices = || vec![old(), here("cuda:1", false), here("cpu", false)];
        for name in ["cuda", "cuda:1", "auto"] {
            let choice = choose_among(devices(), name).unwrap();
            assert_eq!(choice.name, "cuda:1");
        }
        let refused = choose_among(devices(), "cuda:0").unwrap_err();
        assert_eq!(refused, Error::Unsupported { what: "device `cuda:0`".into(), why: "sm_70".into() });
        assert!(choose_among(devices(), "cuda:2").is_err());
        assert!(choose_among(vec![old(), here("cpu", false)], "cuda").is_err());
    }

    #[test]
    fn this_machine_has_a_cpu() {
        assert!(matches!(choose("cpu").unwrap().open(), Ok(AnyBackend::Cpu(_))));
        assert!(choose("auto").unwrap().open().is_ok());
    }
}
