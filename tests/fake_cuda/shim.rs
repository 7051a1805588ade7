//! Kernels of `tests/shim/trials`, called without a driver.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::Library;

use crate::support::kernel_library::{Output, Sanitizer, Unit, build};
use crate::support::outcome::text;

/// Kernels of a file and the threads of their blocks.
type Kernels = &'static [(&'static str, u32)];

const WRAPPERS: Kernels = &[
    ("trial_mma_bf16", 32),
    ("trial_mma_f16", 32),
    ("trial_ldmatrix", 32),
    ("trial_copies", 32),
    ("trial_shuffles", 32),
    ("trial_votes", 32),
    ("trial_bits", 1),
    ("trial_halves", 256),
    ("trial_atomics", 64),
    ("trial_sum", 0),
    ("trial_order", 64),
    ("trial_poison", 64),
    ("trial_moves", 32),
];

const FAULTS: Kernels = &[
    ("fault_deadlock", 64),
    ("fault_sites", 64),
    ("fault_masks", 32),
    ("fault_ldmatrix", 32),
    ("fault_copy", 32),
    ("fault_copy_outside", 32),
    ("fault_vector", 32),
    ("fault_wide", 32),
    ("fault_shared", 32),
    ("fault_address", 32),
];

/// The library of them.
#[derive(Debug)]
pub(crate) struct Shim {
    find: unsafe extern "C" fn(*const c_char) -> *const c_void,
    launch: unsafe extern "C" fn(*const c_void, u32, u32, u32, *mut *mut c_void) -> *const c_char,
    configure: unsafe extern "C" fn(u32, u32, u64, u32),
}

/// How threads and blocks take turns, and when copies arrive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    pub(crate) schedule: u32,
    pub(crate) copies: u32,
    pub(crate) seed: u64,
    pub(crate) threads: u32,
}

pub(crate) const FIRST_FIRST: u32 = 0;
pub(crate) const LAST_FIRST: u32 = 1;
pub(crate) const RANDOM: u32 = 2;
pub(crate) const LATE: u32 = 0;
pub(crate) const EARLY: u32 = 1;

/// Every schedule with every order of copies, on one OS thread and on two.
pub(crate) fn orders() -> Vec<Order> {
    let mut all = Vec::new();
    for schedule in [FIRST_FIRST, LAST_FIRST, RANDOM] {
        for copies in [LATE, EARLY, 2] {
            for threads in [1, 2] {
                all.push(Order { schedule, copies, seed: u64::from(7 + copies), threads });
            }
        }
    }
    all
}

fn unit(file: &str, kernels: Kernels) -> Unit {
    let registered: String =
        kernels.iter().map(|(name, threads)| format!("SHIM_KERNEL({name}, {threads})\n")).collect();
    let text = format!("#include \"{file}.cu\"\n#include \"launch.h\"\n{registered}");
    Unit { name: file.into(), text }
}

/// The library, for one caller at a time: the order is the same for all launches.
pub(crate) fn shim() -> Result<(&'static Shim, MutexGuard<'static, ()>), String> {
    static LOADED: OnceLock<Result<Shim, String>> = OnceLock::new();
    static ONE: Mutex<()> = Mutex::new(());
    let shim = LOADED.get_or_init(Shim::load).as_ref().map_err(Clone::clone)?;
    Ok((shim, ONE.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// The library's path.
pub(crate) fn library() -> Result<PathBuf, String> {
    let units = [unit("trials/wrappers", WRAPPERS), unit("trials/faults", FAULTS)];
    build(&units, Sanitizer::None, Output::Library)
}

impl Shim {
    fn load() -> Result<Self, String> {
        let path = library()?;
        // SAFETY: built just now; its symbols have these types. It stays loaded.
        unsafe {
            let library = Library::new(&path).map_err(text)?;
            let shim = Self {
                find: *library.get(b"shim_find").map_err(text)?,
                launch: *library.get(b"shim_launch").map_err(text)?,
                configure: *library.get(b"shim_configure").map_err(text)?,
            };
            std::mem::forget(library);
            Ok(shim)
        }
    }

    pub(crate) fn order(&self, order: Order) {
        // SAFETY: numbers.
        unsafe { (self.configure)(order.schedule, order.copies, order.seed, order.threads) };
    }

    /// Runs a kernel; its parameters have at most 8 bytes each. Why it failed.
    pub(crate) fn run(
        &self,
        name: &str,
        blocks: u32,
        threads: u32,
        shared: usize,
        arguments: &[u64],
    ) -> Result<(), String> {
        let c_name = CString::new(name).map_err(text)?;
        let mut values = arguments.to_vec();
        let mut places: Vec<*mut c_void> = values.iter_mut().map(|value| (&raw mut *value).cast()).collect();
        let shared = u32::try_from(shared).map_err(text)?;
        // SAFETY: the caller gives what the kernel takes, and memory of the size that it writes.
        let why = unsafe {
            let kernel = (self.find)(c_name.as_ptr());
            if kernel.is_null() {
                return Err(format!("there is no kernel {name}"));
            }
            (self.launch)(kernel, blocks, threads, shared, places.as_mut_ptr())
        };
        if why.is_null() {
            return Ok(());
        }
        // SAFETY: the text stays until this thread's next launch.
        Err(unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned())
    }
}

/// Words at an address that is good for every vector.
#[derive(Debug, Clone)]
pub(crate) struct Words(Vec<u128>);

impl Words {
    pub(crate) fn new(len: usize, value: u32) -> Self {
        let mut words = Self(vec![0; len.div_ceil(4)]);
        words.all_mut().fill(value);
        words
    }

    pub(crate) fn from(values: impl IntoIterator<Item = u32>) -> Self {
        let values: Vec<u32> = values.into_iter().collect();
        let mut words = Self::new(values.len(), 0);
        words.all_mut()[..values.len()].copy_from_slice(&values);
        words
    }

    pub(crate) fn all(&self) -> &[u32] {
        bytemuck::cast_slice(&self.0)
    }

    pub(crate) fn all_mut(&mut self) -> &mut [u32] {
        bytemuck::cast_slice_mut(&mut self.0)
    }

    pub(crate) fn address(&mut self) -> u64 {
        self.0.as_mut_ptr() as u64
    }
}

/// Numbers that look random and are the same each time.
pub(crate) fn random(seed: u64) -> impl FnMut() -> u32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as u32
    }
}
