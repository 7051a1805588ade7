//! The kernels themselves: libraries that `tests/shim` was compiled into, found by name.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{LazyLock, Mutex};

use crate::api::{lock, violation};

/// What the libraries export.
struct Library {
    find: unsafe extern "C" fn(*const c_char) -> *const c_void,
    threads: unsafe extern "C" fn(*const c_void) -> u32,
    param_count: unsafe extern "C" fn(*const c_void) -> u32,
    param_size: unsafe extern "C" fn(*const c_void, u32) -> u32,
    launch: unsafe extern "C" fn(*const c_void, u32, u32, u32, *mut *mut c_void) -> *const c_char,
    configure: unsafe extern "C" fn(u32, u32, u64, u32),
    order: unsafe extern "C" fn(),
}

/// A kernel of one of them.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    library: &'static Library,
    kernel: usize,
}

#[derive(Default)]
struct Loaded {
    libraries: Vec<(String, &'static Library)>,
    wanted: Vec<String>,
}

static LOADED: LazyLock<Mutex<Loaded>> = LazyLock::new(|| {
    let paths = std::env::var("LRMOE_FAKE_CUDA_KERNELS").unwrap_or_default();
    Mutex::new(Loaded {
        libraries: Vec::new(),
        wanted: paths.split(':').filter(|path| !path.is_empty()).map(Into::into).collect(),
    })
});

impl Library {
    fn open(path: &str) -> Result<&'static Self, String> {
        let c_path = CString::new(path).map_err(|error| error.to_string())?;
        // SAFETY: a library of this project, whose initialisers register kernels; its symbols have these types.
        unsafe {
            let handle = libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if handle.is_null() {
                return Err(CStr::from_ptr(libc::dlerror()).to_string_lossy().into_owned());
            }
            let symbol = |name: &CStr| {
                let found = libc::dlsym(handle, name.as_ptr());
                if found.is_null() { Err(format!("it lacks {name:?}")) } else { Ok(found) }
            };
            Ok(Box::leak(Box::new(Self {
                find: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> *const c_void>(symbol(
                    c"shim_find",
                )?),
                threads: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_void) -> u32>(symbol(
                    c"shim_threads",
                )?),
                param_count: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_void) -> u32>(symbol(
                    c"shim_param_count",
                )?),
                param_size: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_void, u32) -> u32>(
                    symbol(c"shim_param_size")?,
                ),
                launch: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*const c_void, u32, u32, u32, *mut *mut c_void) -> *const c_char,
                >(symbol(c"shim_launch")?),
                configure: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u32, u32, u64, u32)>(symbol(
                    c"shim_configure",
                )?),
                order: std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(symbol(c"shim_host_order")?),
            })))
        }
    }
}

/// Kernels are looked for in this library too, before the others.
pub(crate) fn add(path: &str) -> Result<(), String> {
    let mut loaded = lock(&LOADED);
    if loaded.libraries.iter().any(|(known, _)| known == path) {
        return Ok(());
    }
    let library = Library::open(path)?;
    loaded.libraries.insert(0, (path.to_owned(), library));
    Ok(())
}

fn libraries() -> Vec<&'static Library> {
    let wanted = std::mem::take(&mut lock(&LOADED).wanted);
    for path in wanted {
        if let Err(why) = add(&path) {
            violation(format!("{path}: {why}"));
        }
    }
    lock(&LOADED).libraries.iter().map(|(_, library)| *library).collect()
}

/// How threads take turns from now on: see `tests/shim/launch.h`.
pub(crate) fn configure(schedule: u32, copies: u32, seed: u64, threads: u32) {
    for library in libraries() {
        // SAFETY: numbers.
        unsafe { (library.configure)(schedule, copies, seed, threads) };
    }
}

/// Tells ThreadSanitizer, which does not see this library's locks, that all that was done before comes before all that follows.
pub(crate) fn host_order() {
    if thread_sanitizer() {
        for library in libraries() {
            // SAFETY: it takes nothing.
            unsafe { (library.order)() };
        }
    }
}

fn loaded_symbol(name: &CStr) -> bool {
    // SAFETY: it only looks.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.is_null()
}

fn thread_sanitizer() -> bool {
    static THERE: LazyLock<bool> = LazyLock::new(|| loaded_symbol(c"__tsan_init"));
    *THERE
}

pub(crate) fn address_sanitizer() -> bool {
    static THERE: LazyLock<bool> = LazyLock::new(|| loaded_symbol(c"__asan_init"));
    *THERE
}

pub(crate) fn find(name: &CStr) -> Option<Kernel> {
    libraries().into_iter().find_map(|library| {
        // SAFETY: a name in, a kernel or null out.
        let kernel = unsafe { (library.find)(name.as_ptr()) } as usize;
        (kernel != 0).then_some(Kernel { library, kernel })
    })
}

impl Kernel {
    fn raw(self) -> *const c_void {
        self.kernel as *const c_void
    }

    /// Threads of a block, as its table row says; 0 where there is none.
    pub(crate) fn threads(self) -> u32 {
        // SAFETY: a kernel of this library.
        unsafe { (self.library.threads)(self.raw()) }
    }

    pub(crate) fn sizes(self) -> Vec<usize> {
        // SAFETY: as above.
        unsafe {
            let count = (self.library.param_count)(self.raw());
            (0..count).map(|i| (self.library.param_size)(self.raw(), i) as usize).collect()
        }
    }

    /// Runs it, on this thread; why it failed.
    pub(crate) unsafe fn launch(
        self,
        blocks: u32,
        threads: u32,
        shared: u32,
        params: *mut *mut c_void,
    ) -> Result<(), String> {
        // SAFETY: the caller gives one address for each parameter.
        let why = unsafe { (self.library.launch)(self.raw(), blocks, threads, shared, params) };
        if why.is_null() {
            return Ok(());
        }
        // SAFETY: the text stays until this thread's next launch.
        Err(unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned())
    }
}
