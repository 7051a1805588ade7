//! Kernels that have been loaded, by name; compiled and loaded at first use, one file at a time.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUfunction_attribute};

use super::context::Context;
use super::cubins::Cubins;
use super::table::Spec;
use crate::{Error, Result};

/// Shared memory of a block that no kernel has to ask for.
const PLAIN_SHARED: u32 = 48 << 10;

/// A kernel of a loaded module, which stays loaded as long as its [`Modules`].
#[derive(Debug)]
pub(super) struct Function {
    pub(super) raw: sys::CUfunction,
    /// Shared memory that blocks of it may have.
    shared: Mutex<u32>,
    /// Blocks that run on the device at once, by their shared memory.
    resident: Mutex<HashMap<u32, u64>>,
}

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Function {}

#[derive(Debug)]
struct Module(sys::CUmodule);

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Module {}

/// The kernels of one context.
#[derive(Debug)]
pub(super) struct Modules {
    context: Arc<Context>,
    cubins: Cubins,
    loaded: Mutex<HashMap<&'static str, Module>>,
    functions: RwLock<HashMap<(&'static str, usize), Arc<Function>>>,
}

impl Modules {
    pub(super) fn new(context: Arc<Context>, cubins: Cubins) -> Self {
        Self { context, cubins, loaded: Mutex::default(), functions: RwLock::default() }
    }

    /// An instance of a kernel.
    ///
    /// # Errors
    /// [`Error::Compile`], and what the driver says of the machine code.
    pub(super) fn get(&self, spec: &'static Spec, instance: usize) -> Result<Arc<Function>> {
        let key = (spec.base, instance);
        if let Some(known) = self.functions.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(Arc::clone(known));
        }
        let name = spec.name(spec.instances.get(instance).copied().unwrap_or_default());
        let module = self.module(spec)?;
        let failed = |_| Error::Compile { kernel: name.clone(), log: "its name holds a zero byte".into() };
        let c_name = CString::new(name.as_str()).map_err(failed)?;
        // SAFETY: the module is loaded, and stays so.
        let raw = self.context.call(spec.base, || unsafe { result::module::get_function(module, c_name) })?;
        let function = Arc::new(Function { raw, shared: Mutex::new(PLAIN_SHARED), resident: Mutex::default() });
        let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(functions.entry(key).or_insert(function)))
    }

    fn module(&self, spec: &'static Spec) -> Result<sys::CUmodule> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = loaded.get(spec.file) {
            return Ok(module.0);
        }
        let cubin = self.cubins.get(spec)?;
        // SAFETY: an ELF image, which tells its size itself; the driver copies it.
        let load = || unsafe { result::module::load_data(cubin.as_ptr().cast::<c_void>()) };
        let module = self.context.call(spec.base, load).map_err(|error| match error {
            Error::Device { command, reason } => {
                Error::Device { command, reason: format!("{reason} (machine code for {})", self.cubins.made_for()) }
            }
            other => other,
        })?;
        loaded.insert(spec.file, Module(module));
        Ok(module)
    }

    /// Lets blocks of a kernel have so much shared memory.
    pub(super) fn allow_shared(&self, spec: &Spec, function: &Function, bytes: u32) -> Result<()> {
        let mut allowed = function.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes <= *allowed {
            return Ok(());
        }
        let most = self.context.gpu.shared_per_block;
        if bytes > most {
            let why = format!("a block of this GPU has at most {most} bytes of shared memory");
            return Err(Error::Unsupported { what: format!("`{}` with {bytes} bytes", spec.base), why });
        }
        let value = i32::try_from(bytes).unwrap_or(i32::MAX);
        // As much of the cache as shared memory as there can be, or fewer blocks would run at once than the driver says.
        let all = 100;
        for (attribute, value) in [
            (CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, value),
            (CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, all),
        ] {
            // SAFETY: the function is loaded.
            let set = || unsafe { result::function::set_function_attribute(function.raw, attribute, value) };
            self.context.call(spec.base, set)?;
        }
        *allowed = bytes;
        Ok(())
    }

    /// Blocks of a kernel that run on the device at once.
    pub(super) fn resident(&self, spec: &'static Spec, instance: usize, shared: u32) -> Result<u64> {
        let function = self.get(spec, instance)?;
        let mut resident = function.resident.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&known) = resident.get(&shared) {
            return Ok(known);
        }
        self.allow_shared(spec, &function, shared)?;
        let threads = i32::try_from(spec.threads).unwrap_or(i32::MAX);
        // SAFETY: the function is loaded.
        let ask = || unsafe {
            result::occupancy::max_active_block_per_multiprocessor(function.raw, threads, shared as usize)
        };
        let blocks = self.context.call(spec.base, ask)?;
        let blocks = u64::from(blocks.unsigned_abs().max(1)) * u64::from(self.context.gpu.sms);
        resident.insert(shared, blocks);
        Ok(blocks)
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        let loaded = std::mem::take(self.loaded.get_mut().unwrap_or_else(PoisonError::into_inner));
        // Their kernels may still run.
        if loaded.is_empty() || !self.context.drain() {
            return;
        }
        for Module(module) in loaded.into_values() {
            // SAFETY: loaded by this struct, and everything launched has run. A lost context has dropped it itself.
            let _ = self.context.call("unload", || unsafe { result::module::unload(module) });
        }
    }
}
