//! A device of the test driver, opened for one trial at a time, and images for it.

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lrmoe::backend::cuda::cudarc::driver::sys::{self, CUresult};

use crate::support::fake_cuda::Fake;
use crate::support::outcome::Outcome;

/// What a call gave.
pub(crate) fn ok(what: &str, result: CUresult) -> Outcome {
    gives(what, result, CUresult::CUDA_SUCCESS)
}

/// A call gave what it should.
pub(crate) fn gives(what: &str, found: CUresult, expected: CUresult) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("{what} gave {found:?}, not {expected:?}")) }
}

/// The last device, with its primary context current on this thread and a stream.
pub(crate) struct Opened {
    pub(crate) fake: &'static Fake,
    pub(crate) stream: sys::CUstream,
    released: bool,
    _one: MutexGuard<'static, ()>,
}

/// Devices that the driver has in these trials, and the one that they use: others belong to the backend's trials.
const DEVICES: i64 = 4;
pub(crate) const DEVICE: i32 = 3;

impl Opened {
    pub(crate) fn new(fake: &'static Fake) -> Result<Self, String> {
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        fake.set("devices", DEVICES)?;
        fake.set("forget_violations", 0)?;
        for name in ["fail_alloc", "fail_host_alloc", "fail_launch", "lose_after", "jitter_us"] {
            fake.set(&format!("{name}@{DEVICE}"), 0)?;
        }
        let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: calls of the driver with places for what they return.
        unsafe {
            ok("cuInit", sys::cuInit(0))?;
            ok("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&raw mut context, DEVICE))?;
            ok("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
            ok("cuStreamCreate", sys::cuStreamCreate(&raw mut stream, 1))?;
        }
        Ok(Self { fake, stream, released: false, _one: one })
    }

    /// Sets a number of this device.
    pub(crate) fn set(&self, name: &str, value: i64) -> Outcome {
        self.fake.set(&format!("{name}@{DEVICE}"), value)
    }

    /// A count of this device.
    pub(crate) fn get(&self, name: &str) -> i64 {
        self.fake.get(&format!("{name}@{DEVICE}"))
    }

    pub(crate) fn another_stream(&self) -> Result<sys::CUstream, String> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: a place for what it returns.
        ok("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut stream, 1) })?;
        Ok(stream)
    }

    /// Memory of so many words.
    pub(crate) fn words(&self, count: usize) -> Result<u64, String> {
        let mut address = 0;
        // SAFETY: a place for what it returns.
        ok("cuMemAllocAsync", unsafe { sys::cuMemAllocAsync(&raw mut address, count * 4, self.stream) })?;
        Ok(address)
    }

    pub(crate) fn free(&self, address: u64) -> Outcome {
        // SAFETY: whatever the address is, the test driver checks it.
        ok("cuMemFreeAsync", unsafe { sys::cuMemFreeAsync(address, self.stream) })
    }

    /// The words, after everything before.
    pub(crate) fn read(&self, address: u64, count: usize) -> Result<Vec<u32>, String> {
        let mut words = vec![0u32; count];
        // SAFETY: so many words.
        let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(words.as_mut_ptr().cast(), address, count * 4, self.stream) };
        ok("cuMemcpyDtoHAsync", copied)?;
        Ok(words)
    }

    pub(crate) fn synchronize(&self) -> CUresult {
        // SAFETY: the stream is there.
        unsafe { sys::cuStreamSynchronize(self.stream) }
    }

    /// A kernel of an image.
    pub(crate) fn function(&self, image: &[u8], name: &str) -> Result<sys::CUfunction, CUresult> {
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        let name = std::ffi::CString::new(name).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: an image that says how long it is, and places for what the calls return.
        unsafe {
            match sys::cuModuleLoadData(&raw mut module, image.as_ptr().cast()) {
                CUresult::CUDA_SUCCESS => {}
                error => return Err(error),
            }
            match sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) {
                CUresult::CUDA_SUCCESS => Ok(function),
                error => Err(error),
            }
        }
    }

    /// Launches on this stream.
    pub(crate) fn launch(
        &self,
        function: sys::CUfunction,
        blocks: u32,
        threads: u32,
        shared: u32,
        arguments: &[u64],
    ) -> CUresult {
        let mut values = arguments.to_vec();
        let mut places: Vec<*mut c_void> = values.iter_mut().map(|value| (&raw mut *value).cast()).collect();
        // SAFETY: an address for each parameter.
        unsafe {
            sys::cuLaunchKernel(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                shared,
                self.stream,
                places.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
    }

    /// Gives the context back.
    pub(crate) fn release(&mut self) {
        if !self.released {
            // SAFETY: retained by `new`.
            unsafe { sys::cuDevicePrimaryCtxRelease_v2(DEVICE) };
            self.released = true;
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.release();
    }
}

/// A kernel as an image describes it.
pub(crate) struct Described {
    pub(crate) name: &'static str,
    pub(crate) threads: u32,
    pub(crate) params: &'static [u32],
}

/// As much of a cubin as the driver reads: sections of code and information.
pub(crate) fn cubin(sm: u32, kernels: &[Described]) -> Vec<u8> {
    let mut sections: Vec<(String, Vec<u8>)> = vec![(String::new(), Vec::new())];
    for kernel in kernels {
        let mut info = Vec::new();
        let mut attribute = |number: u8, words: &[u32]| {
            info.extend([4, number]);
            info.extend(u16::try_from(words.len() * 4).unwrap_or(0).to_le_bytes());
            info.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        };
        let mut offset = 0;
        for (ordinal, bytes) in (0u32..).zip(kernel.params) {
            attribute(0x17, &[0, ordinal | offset << 16, bytes << 18 | 0x1f000]);
            offset += bytes.next_multiple_of(8);
        }
        attribute(0x05, &[kernel.threads, 1, 1]);
        sections.push((format!(".nv.info.{}", kernel.name), info));
        sections.push((format!(".text.{}", kernel.name), vec![0; 128]));
    }
    sections.push((".shstrtab".into(), Vec::new()));
    let mut names = Vec::new();
    let places: Vec<usize> = sections
        .iter()
        .map(|(name, _)| {
            let at = names.len();
            names.extend(name.bytes().chain([0]));
            at
        })
        .collect();
    if let Some((_, bytes)) = sections.last_mut() {
        *bytes = names;
    }
    let mut image = vec![0u8; 64];
    image[..9].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 65, 8]);
    let ranges: Vec<(usize, usize)> = sections
        .iter()
        .map(|(_, bytes)| {
            let begin = image.len();
            image.extend(bytes);
            (begin, bytes.len())
        })
        .collect();
    let table = image.len();
    for (place, (begin, len)) in places.iter().zip(ranges) {
        let mut head = [0u8; 64];
        head[..4].copy_from_slice(&u32::try_from(*place).unwrap_or(0).to_le_bytes());
        head[4..8].copy_from_slice(&1u32.to_le_bytes());
        head[24..32].copy_from_slice(&(begin as u64).to_le_bytes());
        head[32..40].copy_from_slice(&(len as u64).to_le_bytes());
        image.extend(head);
    }
    image[40..48].copy_from_slice(&(table as u64).to_le_bytes());
    image[48..52].copy_from_slice(&(sm << 8).to_le_bytes());
    image[58..60].copy_from_slice(&64u16.to_le_bytes());
    let count = u16::try_from(sections.len()).unwrap_or(0);
    image[60..62].copy_from_slice(&count.to_le_bytes());
    image[62..64].copy_from_slice(&(count - 1).to_le_bytes());
    image
}

/// The kernels of `tests/shim/trials/wrappers.cu` that these trials launch.
pub(crate) fn image() -> Vec<u8> {
    cubin(
        90,
        &[
            Described { name: "trial_poison", threads: 64, params: &[8] },
            Described { name: "trial_moves", threads: 32, params: &[8, 8] },
            Described { name: "trial_sum", threads: 0, params: &[8, 8, 8] },
            Described { name: "trial_order", threads: 64, params: &[8, 8] },
        ],
    )
}
