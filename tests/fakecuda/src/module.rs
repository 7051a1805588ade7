//! Modules, their functions, and launches.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

use crate::api::{
    Code, FILE_NOT_FOUND, ILLEGAL_ADDRESS, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, LAUNCH_FAILED,
    LAUNCH_OUT_OF_RESOURCES, MISALIGNED_ADDRESS, NO_BINARY_FOR_GPU, NOT_FOUND, NOT_SUPPORTED, Outcome, api, current,
    put, violation,
};
use crate::image::{Described, Image};
use crate::kernels::{self, Kernel};
use crate::memory;
use crate::settings::{MAX_DEVICES, Setting};
use crate::stream::{Job, Owned, Registry, stream_of};

pub(crate) static MODULES: Registry<Module> = Registry::new();
pub(crate) static FUNCTIONS: Registry<Function> = Registry::new();
/// Launches of each device so far.
pub(crate) static LAUNCHES: [AtomicU64; MAX_DEVICES] = [const { AtomicU64::new(0) }; MAX_DEVICES];

/// A loaded image.
pub(crate) struct Module {
    owner: usize,
    image: Image,
    /// Handles of its functions by name.
    functions: std::sync::Mutex<Vec<(String, usize)>>,
}

/// A kernel of a module.
pub(crate) struct Function {
    owner: usize,
    name: String,
    kernel: Kernel,
    described: Described,
    sizes: Vec<usize>,
    /// Shared memory that blocks may have.
    shared: AtomicI32,
}

impl Owned for Module {
    fn owner(&self) -> usize {
        self.owner
    }
}

impl Owned for Function {
    fn owner(&self) -> usize {
        self.owner
    }
}

fn load(to: *mut usize, image: Option<Image>) -> Outcome {
    let owner = current()?.ordinal;
    let image = image.ok_or(INVALID_IMAGE)?;
    let own = u32::try_from(10 * Setting::major.of(owner) + Setting::minor.of(owner)).unwrap_or(0);
    // Machine code runs on its own architecture and later ones of the same major version.
    let fits = |sm: u32| sm / 10 == own / 10 && sm <= own;
    if Setting::check_arch.of(owner) > 0 && !image.sm().is_none_or(fits) {
        return Err(NO_BINARY_FOR_GPU);
    }
    let module = Module { owner, image, functions: std::sync::Mutex::default() };
    // SAFETY: the caller of the driver gives a place for it.
    unsafe { put(to, MODULES.add(Arc::new(module))) }
}

fn function(module: usize, name: &CStr) -> Outcome<usize> {
    let module = MODULES.get(module)?;
    let text = name.to_str().map_err(|_| NOT_FOUND)?;
    let mut known = crate::api::lock(&module.functions);
    if let Some((_, handle)) = known.iter().find(|(known, _)| known == text) {
        return Ok(*handle);
    }
    let described = module.image.kernel(text).ok_or(NOT_FOUND)?;
    let Some(kernel) = kernels::find(name) else {
        violation(format!("kernel {text} is in the module but not among those built for the CPU"));
        return Err(NOT_FOUND);
    };
    let sizes = kernel.sizes();
    if described.params.iter().map(|&(_, bytes)| bytes).ne(sizes.iter().copied()) {
        let params: Vec<usize> = described.params.iter().map(|&(_, bytes)| bytes).collect();
        violation(format!(
            "kernel {text}: its parameters have {params:?} bytes in the module, {sizes:?} in the build for the CPU"
        ));
        return Err(INVALID_IMAGE);
    }
    if described.max_threads != 0 && kernel.threads() != 0 && described.max_threads != kernel.threads() {
        violation(format!(
            "kernel {text}: {} threads in the module, {} in its table row",
            described.max_threads,
            kernel.threads()
        ));
        return Err(INVALID_IMAGE);
    }
    const WITHOUT_ASKING: i32 = 49_152;
    let function = Function {
        owner: module.owner,
        name: text.into(),
        kernel,
        described,
        sizes,
        shared: AtomicI32::new(WITHOUT_ASKING),
    };
    let handle = FUNCTIONS.add(Arc::new(function));
    known.push((text.to_owned(), handle));
    Ok(handle)
}

/// Registers of a block, as they are allocated: each warp's in pieces of 256.
fn block_registers(function: &Function, threads: u32) -> u64 {
    u64::from(threads.div_ceil(32)) * (u64::from(function.described.registers.max(1)) * 32).next_multiple_of(256)
}

fn resident(to: *mut c_int, function: usize, threads: c_int, shared: usize) -> Outcome {
    let function = FUNCTIONS.get(function)?;
    let threads = u32::try_from(threads).ok().filter(|&threads| threads > 0 && threads <= 1024).ok_or(INVALID_VALUE)?;
    let all_shared = usize::try_from(Setting::shared.of(function.owner)).unwrap_or(0) + 1024;
    let by_shared = all_shared / (shared + 1024);
    let by_threads = 2048 / (threads.next_multiple_of(32) as usize);
    let by_registers = usize::try_from(65_536 / block_registers(&function, threads)).unwrap_or(0);
    let fits = by_shared.min(by_threads).min(by_registers).min(32);
    // SAFETY: the caller of the driver gives a place for it.
    unsafe { put(to, c_int::try_from(fits).unwrap_or(0)) }
}

#[derive(Clone, Copy)]
struct Shape {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
}

fn check_shape(function: &Function, shape: Shape) -> Outcome<u32> {
    let Shape { grid, block, shared } = shape;
    let threads = block.iter().try_fold(1u32, |all, &side| all.checked_mul(side)).ok_or(INVALID_VALUE)?;
    let fine = grid.iter().chain(&block).all(|&side| side > 0)
        && grid[0] <= i32::MAX as u32
        && grid[1..].iter().all(|&side| side <= 65_535)
        && threads <= 1024
        && block[2] <= 64
        && i64::from(shared) <= i64::from(function.shared.load(SeqCst));
    if !fine {
        return Err(INVALID_VALUE);
    }
    let described = &function.described;
    if (described.max_threads != 0 && threads > described.max_threads) || block_registers(function, threads) > 65_536 {
        return Err(LAUNCH_OUT_OF_RESOURCES);
    }
    if grid[1..] != [1, 1] || block[1..] != [1, 1] {
        violation(format!("kernel {}: launched in more than one dimension", function.name));
        return Err(NOT_SUPPORTED);
    }
    Ok(threads)
}

/// Copies the arguments, and finds the memory that they point to.
unsafe fn arguments(function: &Function, params: *mut *mut c_void) -> Outcome<(Vec<Vec<u64>>, Vec<u64>)> {
    let (mut arguments, mut uses) = (Vec::new(), Vec::new());
    for (i, &bytes) in function.sizes.iter().enumerate() {
        let mut words = vec![0u64; bytes.div_ceil(8)];
        // SAFETY: the caller of the driver gives an address for each parameter.
        unsafe {
            let from = if params.is_null() { std::ptr::null_mut() } else { *params.add(i) };
            if from.is_null() {
                return Err(INVALID_VALUE);
            }
            std::ptr::copy_nonoverlapping(from.cast::<u8>(), words.as_mut_ptr().cast(), bytes);
        }
        if let [word] = words[..]
            && bytes == 8
            && let Some(found) = memory::find(word)
        {
            uses.push(memory::check(&format!("kernel {}", function.name), word, 1).map(|_| found.base)?);
        }
        arguments.push(words);
    }
    Ok((arguments, uses))
}

unsafe fn launch(
    function: usize,
    shape: Shape,
    stream: usize,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Outcome {
    let device = current()?;
    let function = FUNCTIONS.get(function)?;
    let stream = stream_of(stream)?;
    if function.owner != device.ordinal {
        return Err(INVALID_HANDLE);
    }
    if !extra.is_null() {
        return Err(NOT_SUPPORTED);
    }
    let threads = check_shape(&function, shape)?;
    // SAFETY: as the driver's.
    let (mut arguments, uses) = unsafe { arguments(&function, params) }?;
    LAUNCHES[device.ordinal].fetch_add(1, SeqCst);
    let fails = Setting::fail_launch.due(device.ordinal);
    let code = Code::try_from(Setting::fail_launch_code.of(device.ordinal)).unwrap_or(LAUNCH_FAILED);
    let job = Job::new(move || {
        if fails {
            device.fail(code);
            return;
        }
        let mut params: Vec<*mut c_void> = arguments.iter_mut().map(|words| words.as_mut_ptr().cast()).collect();
        // SAFETY: one address for each parameter.
        let ran = unsafe { function.kernel.launch(shape.grid[0], threads, shape.shared, params.as_mut_ptr()) };
        if let Err(why) = ran {
            let code = if why.contains("aligned") {
                MISALIGNED_ADDRESS
            } else if why.contains("illegal address") {
                ILLEGAL_ADDRESS
            } else {
                LAUNCH_FAILED
            };
            violation(format!("kernel {}: {why}", function.name));
            device.fail(code);
        }
    });
    stream.push(job.using(uses)).map(|_| ())
}

api! {
    fn cuModuleLoadData(to: *mut usize, image: *const c_void) Context {
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        load(to, Image::copy(image))
    }

    fn cuModuleLoad(to: *mut usize, path: *const c_char) Context {
        let path = CStr::from_ptr(path).to_str().map_err(|_| FILE_NOT_FOUND)?;
        load(to, Image::new(std::fs::read(path).map_err(|_| FILE_NOT_FOUND)?))
    }

    fn cuModuleUnload(handle: usize) Context {
        let module = MODULES.remove(handle)?;
        for (_, function) in crate::api::lock(&module.functions).drain(..) {
            let _ = FUNCTIONS.remove(function);
        }
        Ok(())
    }

    fn cuModuleGetFunction(to: *mut usize, module: usize, name: *const c_char) Context {
        put(to, function(module, CStr::from_ptr(name))?)
    }

    fn cuFuncGetAttribute(to: *mut c_int, attribute: c_uint, handle: usize) Context {
        let function = FUNCTIONS.get(handle)?;
        let described = &function.described;
        let value = match attribute {
            0 => c_int::try_from(if described.max_threads == 0 { 1024 } else { described.max_threads }).unwrap_or(0),
            1..=3 => 0,
            4 => c_int::try_from(described.registers).unwrap_or(0),
            5 | 6 => c_int::try_from(10 * Setting::major.of(function.owner) + Setting::minor.of(function.owner)).unwrap_or(0),
            8 => function.shared.load(SeqCst),
            _ => 0,
        };
        put(to, value)
    }

    fn cuFuncSetAttribute(handle: usize, attribute: c_uint, value: c_int) Context {
        const MAX_DYNAMIC_SHARED: c_uint = 8;
        let function = FUNCTIONS.get(handle)?;
        if attribute == MAX_DYNAMIC_SHARED {
            if value < 0 || i64::from(value) > Setting::shared.of(function.owner) {
                return Err(INVALID_VALUE);
            }
            function.shared.store(value, SeqCst);
        }
        Ok(())
    }

    fn cuFuncSetCacheConfig(handle: usize, _config: c_uint) Context {
        FUNCTIONS.get(handle).map(|_| ())
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(to: *mut c_int, handle: usize, threads: c_int, shared: usize) Context {
        resident(to, handle, threads, shared)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        to: *mut c_int,
        handle: usize,
        threads: c_int,
        shared: usize,
        _flags: c_uint,
    ) Context {
        resident(to, handle, threads, shared)
    }

    fn cuLaunchKernel(
        handle: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: usize,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) Context {
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        launch(handle, shape, stream, params, extra)
    }
}
