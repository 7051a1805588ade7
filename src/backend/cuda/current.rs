//! The context that is current on a thread: made so for a call, and put back afterwards.

use cudarc::driver::sys::CUcontext;
use cudarc::driver::{CudaContext, DriverError, result};

/// Puts back what was current before when it is dropped.
#[derive(Debug)]
pub(super) struct Current {
    before: CUcontext,
}

impl Current {
    /// What is current now will be so again.
    pub(super) fn keep() -> Result<Self, DriverError> {
        Ok(Self { before: result::ctx::get_current()?.unwrap_or(std::ptr::null_mut()) })
    }

    /// Makes a context current.
    pub(super) fn enter(context: &CudaContext) -> Result<Self, DriverError> {
        let current = Self::keep()?;
        if current.before != context.cu_ctx() {
            // SAFETY: the handle lives as long as `context`, which outlives the calls that this is for.
            unsafe { result::ctx::set_current(context.cu_ctx()) }?;
        }
        Ok(current)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if result::ctx::get_current() != Ok(Some(self.before).filter(|before| !before.is_null())) {
            // SAFETY: it was current before, so the thread's owner keeps it alive. An error shows at the owner's next call.
            let _ = unsafe { result::ctx::set_current(self.before) };
        }
    }
}
