//! Points in a stream, whose handles are used again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cudarc::driver::{DriverError, result, sys};

use super::context::Context;
use crate::Result;

/// Handles that nobody uses: with times, and without.
#[derive(Debug, Default)]
pub(super) struct Idle {
    timed: Mutex<Vec<Handle>>,
    plain: Mutex<Vec<Handle>>,
}

#[derive(Debug, Clone, Copy)]
struct Handle(sys::CUevent);

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Handle {}

/// A point in a stream.
#[derive(Debug)]
pub(super) struct Event {
    handle: Handle,
    timed: bool,
    context: Arc<Context>,
}

impl Drop for Event {
    fn drop(&mut self) {
        self.context.events.put(self.handle, self.timed);
    }
}

impl Idle {
    fn list(&self, timed: bool) -> &Mutex<Vec<Handle>> {
        if timed { &self.timed } else { &self.plain }
    }

    fn put(&self, handle: Handle, timed: bool) {
        self.list(timed).lock().unwrap_or_else(PoisonError::into_inner).push(handle);
    }

    fn take(&self, timed: bool) -> Option<Handle> {
        self.list(timed).lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Destroys them; their context is current.
    pub(super) fn destroy(&self) {
        while let Some(Handle(event)) = self.take(true).or_else(|| self.take(false)) {
            // SAFETY: made by `record`, and used by nothing: an `Event` holds its context.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}

fn create(timed: bool) -> std::result::Result<Handle, DriverError> {
    let flags = if timed { sys::CUevent_flags::CU_EVENT_DEFAULT } else { sys::CUevent_flags::CU_EVENT_DISABLE_TIMING };
    result::event::create(flags).map(Handle)
}

impl Event {
    /// The point behind everything submitted so far.
    pub(super) fn record(context: &Arc<Context>, timed: bool) -> Result<Self> {
        let handle = match context.events.take(timed) {
            Some(handle) => handle,
            None => context.call("event", || create(timed))?,
        };
        let event = Self { handle, timed, context: Arc::clone(context) };
        // SAFETY: the event lives, the stream is of its context.
        context.call("event", || unsafe { result::event::record(event.handle.0, context.cu_stream()) })?;
        Ok(event)
    }

    /// Whether the stream has passed it; its context is current.
    pub(super) fn query(&self) -> std::result::Result<(), DriverError> {
        // SAFETY: the event lives.
        unsafe { result::event::query(self.handle.0) }
    }

    /// Time from an earlier event to this one, both timed and passed; `None` where the driver does not tell.
    pub(super) fn since(&self, earlier: &Self) -> Option<Duration> {
        let elapsed = super::driver::elapsed()?;
        let mut ms = 0f32;
        // SAFETY: both live, and the function has this signature in every driver.
        self.context.raw(|| unsafe { elapsed(&raw mut ms, earlier.handle.0, self.handle.0) }.result()).ok()?;
        Duration::try_from_secs_f64(f64::from(ms) / 1e3).ok()
    }
}

/// A point in a stream that only its context waits for.
#[derive(Debug)]
pub(super) struct Point(Handle);

impl Point {
    /// Behind everything submitted to a stream whose context is current.
    pub(super) fn record(stream: sys::CUstream) -> std::result::Result<Self, DriverError> {
        let point = Self(create(false)?);
        // SAFETY: both live.
        unsafe { result::event::record(point.0.0, stream) }.map(|()| point)
    }

    /// Whether the stream has passed it; its context is current.
    pub(super) fn query(&self) -> std::result::Result<(), DriverError> {
        // SAFETY: the event lives.
        unsafe { result::event::query(self.0.0) }
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        // SAFETY: made by `record`, destroyed once; a context that is gone has taken it with it.
        let _ = unsafe { result::event::destroy(self.0.0) };
    }
}
