//! The run-time compiler, found when it is needed: CUDA C++ to machine code for one architecture.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;

use crate::{Error, Result};

type Program = *mut c_void;
/// Size of something that the program holds.
type SizeOf = unsafe extern "C" fn(Program, *mut usize) -> c_int;
/// Copies it.
type CopyOf = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// The functions of libnvrtc that are used.
#[derive(Debug)]
pub(super) struct Nvrtc {
    /// Major and minor version.
    pub(super) version: (i32, i32),
    /// Architectures that it compiles for, ascending; empty where it does not say.
    pub(super) archs: Vec<u32>,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    log_size: SizeOf,
    log: CopyOf,
    cubin_size: SizeOf,
    cubin: CopyOf,
}

/// Machine code, and what the compiler said: warnings, and with `--ptxas-options=-v` registers and spills of each kernel.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Compiled {
    pub(super) cubin: Vec<u8>,
    pub(super) log: String,
}

/// Destroys a program when dropped.
struct Owned<'a>(Program, &'a Nvrtc);

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `create`, destroyed once.
        unsafe { (self.1.destroy)(&raw mut self.0) };
    }
}

/// File names that the library has on this system, newest first; those that are newer than the driver last, since it may not
/// load what they make.
fn names(driver: Option<i32>) -> Vec<String> {
    let mut majors = [13, 12, 11];
    majors.sort_by_key(|&major| driver.is_some_and(|driver| major > driver / 1000));
    let name = |major| match (cfg!(windows), major) {
        (true, 11) => "nvrtc64_112_0.dll".to_owned(),
        (true, _) => format!("nvrtc64_{major}0_0.dll"),
        (false, 11) => "libnvrtc.so.11.2".to_owned(),
        (false, _) => format!("libnvrtc.so.{major}"),
    };
    let unversioned = (!cfg!(windows)).then(|| "libnvrtc.so".to_owned());
    majors.into_iter().map(name).chain(unversioned).collect()
}

/// Loads what the library looks for by name alone when it compiles, from the directory that it is in.
fn load_builtins(directory: &Path) {
    let prefix = if cfg!(windows) { "nvrtc-builtins" } else { "libnvrtc-builtins.so" };
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with(prefix) || name.contains(".alt.") {
            continue;
        }
        // SAFETY: a library of data that the compiler loads itself otherwise.
        if let Ok(library) = unsafe { Library::new(entry.path()) } {
            std::mem::forget(library);
        }
    }
}

impl Nvrtc {
    /// The library: in the directory that `LRMOE_NVRTC` names, or where the system looks for libraries.
    ///
    /// # Errors
    /// What was looked for and not found, or why it cannot be used.
    pub(super) fn get() -> std::result::Result<&'static Self, String> {
        static FOUND: OnceLock<std::result::Result<Nvrtc, String>> = OnceLock::new();
        FOUND.get_or_init(Self::find).as_ref().map_err(Clone::clone)
    }

    fn find() -> std::result::Result<Self, String> {
        let directory = std::env::var_os("LRMOE_NVRTC").filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(directory) = &directory {
            load_builtins(directory);
        }
        let mut tried = Vec::new();
        let driver = super::driver::probe().and_then(|_| super::driver::version()).ok();
        for name in names(driver) {
            let path = directory.as_ref().map_or_else(|| PathBuf::from(&name), |directory| directory.join(&name));
            // SAFETY: loading the compiler runs its initialisers, which is what every program that uses it does.
            match unsafe { Library::new(&path) } {
                Ok(library) => match Self::load(library) {
                    Ok(found) => return Ok(found),
                    Err(why) => tried.push(format!("{} ({why})", path.display())),
                },
                Err(_) => tried.push(path.display().to_string()),
            }
        }
        Err(format!("NVRTC is not there, or not usable: {}; LRMOE_NVRTC can name its directory", tried.join(", ")))
    }

    fn load(library: Library) -> std::result::Result<Self, String> {
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the function has had this signature in every version of the library.
                *unsafe { library.get($name) }.map_err(|error| error.to_string())?
            };
        }
        let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int = symbol!(b"nvrtcVersion");
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two integers.
        if unsafe { version(&raw mut major, &raw mut minor) } != 0 {
            return Err("it does not tell its version".into());
        }
        let found = Self {
            version: (major, minor),
            archs: archs(&library),
            create: symbol!(b"nvrtcCreateProgram"),
            compile: symbol!(b"nvrtcCompileProgram"),
            destroy: symbol!(b"nvrtcDestroyProgram"),
            log_size: symbol!(b"nvrtcGetProgramLogSize"),
            log: symbol!(b"nvrtcGetProgramLog"),
            cubin_size: symbol!(b"nvrtcGetCUBINSize"),
            cubin: symbol!(b"nvrtcGetCUBIN"),
        };
        // The functions are used as long as the program runs.
        std::mem::forget(library);
        Ok(found)
    }

    /// Compiles a source text.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's output.
    pub(super) fn compile(&self, name: &str, text: &str, options: &[String]) -> Result<Compiled> {
        let failed = |log: String| Error::Compile { kernel: name.to_owned(), log };
        let c_string = |text: &str| CString::new(text).map_err(|_| failed("the text holds a zero byte".into()));
        let (source, file) = (c_string(text)?, c_string(&format!("{name}.cu"))?);
        let options: Vec<CString> = options.iter().map(|option| c_string(option)).collect::<Result<_>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = std::ptr::null_mut();
        // SAFETY: strings end in zero and outlive the program.
        let created = unsafe {
            (self.create)(&raw mut program, source.as_ptr(), file.as_ptr(), 0, std::ptr::null(), std::ptr::null())
        };
        if created != 0 {
            return Err(failed(format!("NVRTC error {created} when the program was created")));
        }
        let program = Owned(program, self);
        let count = c_int::try_from(pointers.len()).unwrap_or(0);
        // SAFETY: so many strings that end in zero.
        let compiled = unsafe { (self.compile)(program.0, count, pointers.as_ptr()) };
        let log = self.fetch(&program, self.log_size, self.log).unwrap_or_default();
        // How long it took is another thing each time.
        let log = String::from_utf8_lossy(&log);
        let lines = log.trim_end_matches('\0').lines().filter(|line| !line.contains("Compile time"));
        let log = lines.collect::<Vec<_>>().join("\n");
        if compiled != 0 {
            return Err(failed(if log.is_empty() { format!("NVRTC error {compiled}") } else { log }));
        }
        match self.fetch(&program, self.cubin_size, self.cubin) {
            Some(cubin) if !cubin.is_empty() => Ok(Compiled { cubin, log }),
            _ => Err(failed("NVRTC gave no machine code".into())),
        }
    }

    fn fetch(&self, program: &Owned<'_>, size_of: SizeOf, copy: CopyOf) -> Option<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program lives.
        if unsafe { size_of(program.0, &raw mut size) } != 0 {
            return None;
        }
        let mut bytes = vec![0u8; size];
        // SAFETY: so many bytes are there.
        (unsafe { copy(program.0, bytes.as_mut_ptr().cast()) } == 0).then_some(bytes)
    }
}

/// Architectures that a version compiles for.
fn archs(library: &Library) -> Vec<u32> {
    type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
    type List = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: both have had these signatures since they came.
    let found =
        unsafe { (library.get::<Count>(b"nvrtcGetNumSupportedArchs"), library.get::<List>(b"nvrtcGetSupportedArchs")) };
    let (Ok(count_of), Ok(list_of)) = found else { return Vec::new() };
    let mut count = 0;
    // SAFETY: writes one integer.
    if unsafe { count_of(&raw mut count) } != 0 {
        return Vec::new();
    }
    let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: so many integers are there.
    if unsafe { list_of(archs.as_mut_ptr()) } != 0 {
        return Vec::new();
    }
    archs.sort_unstable();
    archs.into_iter().map(i32::unsigned_abs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilers_newer_than_the_driver_come_last() {
        let first = |driver| names(driver).swap_remove(0);
        let with = |part: &str, name: String| assert!(name.contains(part), "{name}");
        with("13", first(None));
        with("13", first(Some(13_000)));
        with("12", first(Some(12_040)));
        with("11", first(Some(11_080)));
    }
}
