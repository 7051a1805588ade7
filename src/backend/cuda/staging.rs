//! Host memory that copies to the device read from, so that neither the caller's memory has to stay nor anybody to wait.
//!
//! From memory that is not page-locked, a copy may read after the call has returned where the GPU can reach all of the host's memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cudarc::driver::result;

use super::context::Context;
use super::event::Event;
use super::host::Mapped;
use crate::Result;

/// Bytes of one copy that is staged; a larger one is waited for.
const MOST_BYTES: usize = 1 << 20;

/// Copies that are under way at most.
const MOST_COPIES: usize = 64;

/// Memory of copies under way, oldest first.
#[derive(Debug, Default)]
pub(super) struct Staging {
    copies: Mutex<VecDeque<(Passed, Mapped)>>,
}

/// The point behind a copy. It holds the context only while it is looked at: the context holds it.
type Passed = super::event::Point;

impl Staging {
    /// Takes back what copies are done with; the oldest is waited for where there are too many.
    fn reclaim(&self, context: &Context) {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((passed, _)) = copies.front() {
            let done = context.raw(|| passed.query()).is_ok();
            if !done && copies.len() < MOST_COPIES {
                return;
            }
            if !done {
                std::thread::sleep(Duration::from_micros(20));
                if context.alive().is_err() {
                    return;
                }
                continue;
            }
            if let Some((passed, memory)) = copies.pop_front() {
                // Its handle is destroyed with the context current.
                let _ = context.raw(|| {
                    drop(passed);
                    Ok(())
                });
                context.unmap(memory);
            }
        }
    }
}

impl Context {
    /// Copies bytes to an address of the device, behind everything submitted so far.
    pub(super) fn copy_in(self: &Arc<Self>, address: u64, bytes: &[u8], time_limit: Duration) -> Result<()> {
        if bytes.len() > MOST_BYTES {
            // SAFETY: the caller's range lies within a buffer, and its memory stays until the copy has passed.
            self.call("upload", || unsafe { result::memcpy_htod_async(address, bytes, self.cu_stream()) })?;
            let done = Event::record(self, false)?;
            return self.wait_for(&done, time_limit);
        }
        self.staging.reclaim(self);
        let mut memory = self.map(bytes.len().div_ceil(size_of::<u32>()))?;
        memory.fill(bytes);
        // SAFETY: the range lies within a buffer, and the staging memory stays until the copy has passed.
        let copy = || unsafe { result::memcpy_htod_async(address, memory.bytes(bytes.len()), self.cu_stream()) };
        self.call("upload", copy)?;
        match self.call("upload", || Passed::record(self.cu_stream())) {
            Ok(passed) => {
                let mut copies = self.staging.copies.lock().unwrap_or_else(PoisonError::into_inner);
                copies.push_back((passed, memory));
                Ok(())
            }
            Err(error) => {
                // The copy may still read it.
                std::mem::forget(memory);
                Err(error)
            }
        }
    }
}
