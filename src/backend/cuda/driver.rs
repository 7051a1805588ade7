//! Whether there is a CUDA driver that this backend can use, and what its errors mean.
//!
//! The bindings panic where the library or one of its symbols is missing, so both are looked for before the first call.

use std::ffi::CStr;
use std::sync::OnceLock;

use cudarc::driver::DriverError;
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdevice_attribute, CUevent, CUresult, CUstream};

use crate::backend::Caps;
use crate::tensor::DType;

/// Oldest driver that runs the kernels: CUDA 11.7's stream memory operations.
const OLDEST: i32 = 11_070;

/// Oldest architecture: `cp.async` and `mma` of bf16.
const OLDEST_SM: u32 = 80;

/// Every symbol that this backend and the context and stream types of the bindings call.
const SYMBOLS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamIsCapturing",
    "cuStreamWriteValue32_v2",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventDestroy_v2",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolTrimTo",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD16Async",
    "cuMemsetD32Async",
    "cuPointerGetAttribute",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// What a GPU can do.
#[derive(Debug, Clone)]
pub(super) struct Gpu {
    pub(super) name: String,
    /// Compute capability: 80 for 8.0.
    pub(super) sm: u32,
    /// Multiprocessors.
    pub(super) sms: u32,
    /// Bytes of shared memory that a block may ask for.
    pub(super) shared_per_block: u32,
    pub(super) memory_bytes: u64,
    /// Version that the driver supports: 13000 for CUDA 13.0.
    pub(super) driver: i32,
    /// Whether there are stream-ordered pools.
    pub(super) pools: bool,
}

/// A CUDA device of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaDevice {
    /// Number to choose it by.
    pub index: usize,
    /// What it can do, or the reason why it cannot be used.
    pub caps: Result<Caps, String>,
}

/// Every CUDA device of this machine, usable or not.
///
/// # Errors
/// The reason why there is none: no driver, one that is too old or lacks a function, no device.
pub fn cuda_devices() -> Result<Vec<CudaDevice>, String> {
    let count = probe()?;
    let device = |index| CudaDevice { index, caps: gpu(index).map(|gpu| gpu.caps()) };
    Ok((0..count).map(device).collect())
}

/// Functions that versions of the bindings have under different names, or not at all.
#[derive(Debug, Clone, Copy)]
struct Functions {
    write_word: WriteWord,
    elapsed: Option<Elapsed>,
}

type WriteWord = unsafe extern "C" fn(CUstream, u64, u32, u32) -> CUresult;
/// Milliseconds between two events.
type Elapsed = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;

/// What has been found. That there is nothing is not kept: a host may load a driver later.
static DRIVER: OnceLock<Functions> = OnceLock::new();

fn functions() -> Option<Functions> {
    DRIVER.get().copied()
}

/// Time between two events, where the driver tells it.
pub(super) fn elapsed() -> Option<Elapsed> {
    functions().and_then(|functions| functions.elapsed)
}

/// Writes a word of mapped host memory behind everything submitted to a stream so far. Nothing else is ordered with it.
pub(super) fn write_word(stream: CUstream, address: u64, value: u32) -> Result<(), DriverError> {
    let Some(functions) = functions() else { return Err(DriverError(CUresult::CUDA_ERROR_NOT_INITIALIZED)) };
    let no_memory_barrier = 1;
    // SAFETY: the function was found with this name, whose signature is this; the stream lives, and so does the word: the caller's
    // context has it.
    unsafe { (functions.write_word)(stream, address, value, no_memory_barrier) }.result()
}

/// Looks for the driver, and counts its devices.
pub(super) fn probe() -> Result<usize, String> {
    if DRIVER.get().is_none() {
        let found = find()?;
        DRIVER.get_or_init(|| found);
    }
    // SAFETY: the library is there with this symbol.
    text(unsafe { sys::cuInit(0) }.result(), "cuInit")?;
    let version = version()?;
    if version < OLDEST {
        let (is, needed) = (spelled(version), spelled(OLDEST));
        return Err(format!("the driver supports CUDA {is}; {needed} or newer is needed"));
    }
    match text(result::device::get_count(), "cuDeviceGetCount")? {
        count if count > 0 => Ok(count.unsigned_abs() as usize),
        _ => Err("the CUDA driver has no device".into()),
    }
}

/// Loads the library and looks for every symbol. It stays loaded: handles of the driver are valid only as long.
fn find() -> Result<Functions, String> {
    let names: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so", "libcuda.so.1"] };
    // SAFETY: loading a driver runs its initialisers, which is what every program that uses it does.
    let library = names.iter().find_map(|name| unsafe { libloading::Library::new(*name) }.ok());
    let Some(library) = library else {
        return Err(format!("no CUDA driver: {} is not there", names.join(" and ")));
    };
    // SAFETY: the symbol is only looked for, never called as this type.
    let missing = |name: &&&str| unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err();
    let missing: Vec<&str> = SYMBOLS.iter().filter(missing).copied().collect();
    if !missing.is_empty() {
        return Err(format!("the CUDA driver is too old: it lacks {}", missing.join(", ")));
    }
    // SAFETY: the driver's functions of these names have these signatures.
    let functions = unsafe {
        Functions {
            write_word: *library.get(b"cuStreamWriteValue32_v2").map_err(|error| error.to_string())?,
            elapsed: [&b"cuEventElapsedTime_v2"[..], b"cuEventElapsedTime"]
                .into_iter()
                .find_map(|name| library.get::<Elapsed>(name).ok())
                .map(|symbol| *symbol),
        }
    };
    std::mem::forget(library);
    Ok(functions)
}

/// CUDA version of the driver: 13000 for 13.0. [`probe`] has found it.
pub(super) fn version() -> Result<i32, String> {
    let mut version = 0;
    // SAFETY: the library is there with this symbol, and writes one integer.
    text(unsafe { sys::cuDriverGetVersion(&raw mut version) }.result(), "cuDriverGetVersion")?;
    Ok(version)
}

fn spelled(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Properties of a device, where it can run the kernels. [`probe`] has found the driver.
pub(super) fn gpu(index: usize) -> Result<Gpu, String> {
    let ordinal = i32::try_from(index).map_err(|_| format!("there is no device {index}"))?;
    let device = text(result::device::get(ordinal), "cuDeviceGet")?;
    let attribute = |attribute: CUdevice_attribute| -> Result<u32, String> {
        // SAFETY: `device` is a device of this driver.
        let value = unsafe { result::device::get_attribute(device, attribute) };
        text(value, "cuDeviceGetAttribute").map(i32::unsigned_abs)
    };
    let name = text(result::device::get_name(device), "cuDeviceGetName")?;
    let sm = 10 * attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
        + attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    if sm < OLDEST_SM {
        return Err(format!("{name} is sm_{sm}; the kernels need sm_{OLDEST_SM} or newer"));
    }
    // SAFETY: `device` is a device of this driver.
    let memory = text(unsafe { result::device::total_mem(device) }, "cuDeviceTotalMem")?;
    Ok(Gpu {
        name,
        sm,
        sms: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1),
        shared_per_block: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        memory_bytes: memory as u64,
        driver: version()?,
        pools: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? > 0,
    })
}

impl Gpu {
    pub(super) fn caps(&self) -> Caps {
        Caps {
            backend: "cuda",
            device: format!(
                "{}, sm_{}, {} multiprocessors, CUDA {}",
                self.name,
                self.sm,
                self.sms,
                spelled(self.driver)
            ),
            storage: vec![DType::F32, DType::BF16, DType::F16],
            max_buffer_bytes: self.memory_bytes,
        }
    }
}

/// What the driver calls an error, and what it says of it.
pub(super) fn explain(error: DriverError) -> String {
    let said = |text: Result<&CStr, DriverError>| {
        text.map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
    };
    format!("{}: {}", said(error.error_name()), said(error.error_string()))
}

fn text<T>(result: Result<T, DriverError>, call: &str) -> Result<T, String> {
    result.map_err(|error| format!("{call} failed: {}", explain(error)))
}

/// Errors after which a context can do nothing any more. As numbers, since versions of the bindings do not know all of them: uncorrectable
/// memory (214) and link (220) errors, the device unavailable (46), deinitialised (4) or its context gone (709), an illegal address
/// (700), a launch that took too long (702), a failed assertion (710), faults of the hardware's stack (714), of an instruction (715), of
/// alignment (716), of the address space (717), of the program counter (718), of the launch (719), and an unknown one (999).
const LOST: [u32; 15] = [4, 46, 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999];

/// Whether the context can do nothing any more.
pub(super) fn is_lost(error: DriverError) -> bool {
    LOST.contains(&(error.0 as u32))
}
