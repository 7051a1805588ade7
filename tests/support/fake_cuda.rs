//! The test driver: libcuda as `tests/fakecuda` plays it, with this crate's kernels compiled for the CPU.
//!
//! Nothing of it is loaded unless `LRMOE_FAKE_CUDA=1` asks for it; without, the same tests run on a real driver. More of its
//! environment: `LRMOE_FAKE_CUDA_SANITIZER` (`thread`, `address`), `LRMOE_FAKE_CUDA_WITHOUT` (functions that the driver lacks, with
//! commas), and what `tests/fakecuda/src/settings.rs` and `tests/shim/launch.cpp` list.

use std::ffi::{CString, c_char};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;
use lrmoe::backend::cuda::{CudaKernel, build_cubins, cuda_kernels};

use super::kernel_library::{Output, Sanitizer, Unit, build};
use super::outcome::text;

/// The driver that has been installed.
#[derive(Debug)]
pub struct Fake {
    set: unsafe extern "C" fn(*const c_char, i64) -> i32,
    get: unsafe extern "C" fn(*const c_char) -> i64,
    kernels: unsafe extern "C" fn(*const c_char) -> i32,
    schedule: unsafe extern "C" fn(u32, u32, u64, u32),
    violation: unsafe extern "C" fn(usize, *mut u8, usize) -> i64,
}

/// Puts the test driver in the place of libcuda where `LRMOE_FAKE_CUDA=1` asks for it.
///
/// # Errors
/// Why it cannot be used.
pub fn install() -> Result<(), String> {
    fake().map(|_| ())
}

/// The test driver, where it was asked for.
///
/// # Errors
/// Why it cannot be used.
pub fn fake() -> Result<Option<&'static Fake>, String> {
    static INSTALLED: OnceLock<Result<Option<Fake>, String>> = OnceLock::new();
    let install = || match std::env::var_os("LRMOE_FAKE_CUDA") {
        Some(value) if value == "1" => Fake::install().map(Some).map_err(|why| format!("the test driver: {why}")),
        _ => Ok(None),
    };
    INSTALLED.get_or_init(install).as_ref().map(Option::as_ref).map_err(Clone::clone)
}

/// Kernels of the table, file by file, each with a line that holds its signature against its row.
pub fn units(kernels: &[CudaKernel]) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    for kernel in kernels {
        if units.last().is_none_or(|unit| unit.name != kernel.file) {
            let text = format!("#include \"{}.cu\"\n#include \"launch.h\"\n", kernel.file);
            units.push(Unit { name: kernel.file.into(), text });
        }
        let Some(unit) = units.last_mut() else { continue };
        let _ = write!(unit.text, "SHIM_KERNEL_OF({}, {}", kernel.name, kernel.threads);
        for (_, ty) in &kernel.params {
            let _ = write!(unit.text, ", {ty}");
        }
        unit.text.push_str(")\n");
    }
    units
}

/// The library that cargo has built beside this program.
fn library() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(text)?;
    let directories =
        program.ancestors().skip(1).take(2).flat_map(|directory| [directory.join("deps"), directory.into()]);
    let found = directories.map(|directory| directory.join("liblrmoe_fake_cuda.so")).find(|path| path.exists());
    found.ok_or_else(|| "liblrmoe_fake_cuda.so is not beside this program; it is for Linux only".into())
}

/// A copy of the library in which these functions have other names.
fn without(library: &Path, names: &str) -> Result<PathBuf, String> {
    let mut bytes = std::fs::read(library).map_err(text)?;
    for name in names.split(',').filter(|name| !name.is_empty()) {
        let wanted = [b"\0", name.as_bytes(), b"\0"].concat();
        let places: Vec<usize> =
            bytes.windows(wanted.len()).enumerate().filter(|(_, window)| *window == wanted).map(|(at, _)| at).collect();
        if places.is_empty() {
            return Err(format!("the test driver has no {name} to leave out"));
        }
        for at in places {
            bytes[at + 1] = b'x';
        }
    }
    let directory = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let copy = directory.join(format!("liblrmoe_fake_cuda-without-{}.so", std::process::id()));
    std::fs::write(&copy, bytes).map_err(text)?;
    Ok(copy)
}

/// The sanitizer's own library has to be in the process from the beginning.
fn check_loaded(sanitizer: Sanitizer) -> Result<(), String> {
    let symbol: &[u8] = match sanitizer {
        Sanitizer::None => return Ok(()),
        Sanitizer::Thread => b"__tsan_init",
        Sanitizer::Address => b"__asan_init",
    };
    // SAFETY: the symbol is only looked for.
    #[cfg(unix)]
    let found = unsafe { libloading::os::unix::Library::this().get::<unsafe extern "C" fn()>(symbol) }.is_ok();
    #[cfg(not(unix))]
    let found = symbol.is_empty();
    if found {
        Ok(())
    } else {
        Err(format!("{sanitizer:?} sanitizer: it has to be preloaded, as scripts/cuda_sanitize.sh does"))
    }
}

impl Fake {
    fn install() -> Result<Self, String> {
        let sanitizer = Sanitizer::from_environment()?;
        check_loaded(sanitizer)?;
        build_cubins(None, &[]).map_err(text)?;
        // Rows of a file need not stand together.
        let mut kernels = cuda_kernels();
        kernels.sort_by_key(|kernel| kernel.file);
        let kernels = build(&units(&kernels), sanitizer, Output::Library)?;
        let mut path = library()?;
        if let Ok(names) = std::env::var("LRMOE_FAKE_CUDA_WITHOUT") {
            path = without(&path, &names)?;
        }
        // SAFETY: this project's own library, whose symbols have these types. It stays loaded.
        let fake = unsafe {
            let library = Library::new(&path).map_err(text)?;
            let fake = Self {
                set: *library.get(b"lrmoe_fake_set").map_err(text)?,
                get: *library.get(b"lrmoe_fake_get").map_err(text)?,
                kernels: *library.get(b"lrmoe_fake_kernels").map_err(text)?,
                schedule: *library.get(b"lrmoe_fake_schedule").map_err(text)?,
                violation: *library.get(b"lrmoe_fake_violation").map_err(text)?,
            };
            std::mem::forget(library);
            fake
        };
        fake.add_kernels(&kernels)?;
        Ok(fake)
    }

    /// Adds a library of kernels, which are found before those that are there.
    ///
    /// # Errors
    /// That it cannot be loaded.
    pub fn add_kernels(&self, path: &Path) -> Result<(), String> {
        let c_path = CString::new(path.to_string_lossy().as_ref()).map_err(text)?;
        // SAFETY: a string.
        let failed = unsafe { (self.kernels)(c_path.as_ptr()) } != 0;
        if failed { Err(format!("{} cannot be loaded", path.display())) } else { Ok(()) }
    }

    /// Sets a number: see `tests/fakecuda/src/settings.rs`. `name@2` is device 2's alone.
    ///
    /// # Errors
    /// That there is no such setting.
    pub fn set(&self, name: &str, value: i64) -> Result<(), String> {
        let c_name = CString::new(name).map_err(text)?;
        // SAFETY: a string and a number.
        let failed = unsafe { (self.set)(c_name.as_ptr(), value) } != 0;
        if failed { Err(format!("the test driver has no setting `{name}`")) } else { Ok(()) }
    }

    /// A setting or a count (`tests/fakecuda/src/control.rs`); -1 where there is none.
    pub fn get(&self, name: &str) -> i64 {
        let Ok(c_name) = CString::new(name) else { return -1 };
        // SAFETY: a string.
        unsafe { (self.get)(c_name.as_ptr()) }
    }

    /// How threads take turns from now on, as numbers of the enums in `tests/shim/launch.h`.
    pub fn schedule(&self, schedule: u32, copies: u32, seed: u64, threads: u32) {
        // SAFETY: numbers.
        unsafe { (self.schedule)(schedule, copies, seed, threads) };
    }

    /// What a real driver would have let pass, so far.
    pub fn violations(&self) -> Vec<String> {
        let _ = self.get("violations");
        let violation = |number| {
            let mut bytes = vec![0u8; 1024];
            // SAFETY: so many bytes.
            let len = usize::try_from(unsafe { (self.violation)(number, bytes.as_mut_ptr(), bytes.len()) }).ok()?;
            bytes.truncate(len);
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        (0..).map_while(violation).collect()
    }
}
