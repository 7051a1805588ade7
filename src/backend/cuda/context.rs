//! A context and its stream: calls of the driver, what becomes of their errors, waiting, and memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};

use super::buffer::CudaBuffer;
use super::driver::{self, Gpu, explain, is_lost};
use super::host::Mapped;
use super::progress::Progress;
use crate::backend::Buffer;
use crate::{Error, Result};

/// How long a wait spins before it sleeps, and sleeps at most at a time.
const SPIN: Duration = Duration::from_micros(50);
const NAP: Duration = Duration::from_micros(500);

/// One stream of one context.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) stream: Arc<CudaStream>,
    pub(super) gpu: Gpu,
    /// Tells contexts apart.
    pub(super) device: u64,
    /// Why nothing works any more.
    lost: OnceLock<String>,
    pool: Option<Pool>,
    progress: Progress,
    events: Mutex<Vec<RawEvent>>,
    mapped: Mutex<Vec<Mapped>>,
}

/// A pool of the driver.
#[derive(Debug)]
struct Pool(sys::CUmemoryPool);

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Pool {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Pool {}

#[derive(Debug)]
struct RawEvent(sys::CUevent);

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for RawEvent {}

/// A point in the stream; its handle is used again when it is dropped.
#[derive(Debug)]
pub(super) struct Event {
    raw: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        self.context.events.lock().unwrap_or_else(PoisonError::into_inner).push(RawEvent(self.raw));
    }
}

/// Makes a context current, and the one before it again when dropped.
struct Current {
    before: sys::CUcontext,
    changed: bool,
}

impl Current {
    fn enter(context: &CudaContext) -> std::result::Result<Self, DriverError> {
        let before = result::ctx::get_current()?.unwrap_or(std::ptr::null_mut());
        let changed = before != context.cu_ctx();
        if changed {
            // SAFETY: the handle lives as long as `context`.
            unsafe { result::ctx::set_current(context.cu_ctx()) }?;
        }
        Ok(Self { before, changed })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.changed {
            // SAFETY: it was current before, so the thread's owner keeps it alive. An error shows at the owner's next call.
            let _ = unsafe { result::ctx::set_current(self.before) };
        }
    }
}

impl Context {
    /// Opens the primary context of a device, which all libraries of the process share, with a stream of its own.
    pub(super) fn open(index: usize) -> Result<Arc<Self>> {
        let unsupported = |why: String| Error::Unsupported { what: format!("device `cuda:{index}`"), why };
        let count = driver::probe().map_err(unsupported)?;
        if index >= count {
            return Err(Error::argument("device", index, format!("below {count}, the number of CUDA devices")));
        }
        driver::gpu(index).map_err(unsupported)?;
        let failed = |error: DriverError| Error::Device { command: "open".into(), reason: explain(error) };
        let before = result::ctx::get_current().map_err(failed)?;
        let context = CudaContext::new(index).map_err(failed)?;
        let stream = context.new_stream().map_err(failed);
        // SAFETY: this thread's context as it was before.
        let _ = unsafe { result::ctx::set_current(before.unwrap_or(std::ptr::null_mut())) };
        Self::new(stream?)
    }

    /// Works on a stream of someone's.
    pub(super) fn new(stream: Arc<CudaStream>) -> Result<Arc<Self>> {
        let unsupported = |why| Error::Unsupported { what: "this CUDA device".into(), why };
        driver::probe().map_err(unsupported)?;
        let gpu = driver::gpu(stream.context().ordinal()).map_err(unsupported)?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut context = Self {
            stream,
            gpu,
            device: NEXT.fetch_add(1, Ordering::Relaxed),
            lost: OnceLock::new(),
            pool: None,
            progress: Progress::default(),
            events: Mutex::default(),
            mapped: Mutex::default(),
        };
        if context.gpu.pools {
            context.pool = Some(context.new_pool()?);
        }
        let word = context.map(1)?;
        // Not every system lets a stream write host memory; the commands' names are all that it is for.
        if context.write(word.device(), 0).is_ok() {
            context.progress = Progress::new(word);
        }
        Ok(Arc::new(context))
    }

    /// A pool apart from the host's, so that nothing of a host's set-up changes.
    fn new_pool(&self) -> Result<Pool> {
        // SAFETY: all zero is a valid value of this plain struct: no handle types, no security attributes.
        let mut props: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        props.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        props.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        props.location.__bindgen_anon_1.id = self.stream.context().cu_device();
        // SAFETY: `props` is valid during the call.
        self.call("open", || unsafe { result::mem_pool::create(&raw const props) }).map(Pool)
    }

    /// Refuses every call once the context can do nothing.
    pub(super) fn alive(&self) -> Result<()> {
        match self.lost.get() {
            Some(reason) => Err(Error::DeviceLost { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Refuses a buffer of another context.
    pub(super) fn check_own(&self, buffer: &CudaBuffer) -> Result<()> {
        if buffer.device() == self.device {
            return Ok(());
        }
        Err(Error::State {
            what: format!("buffer `{}` belongs to another device", buffer.name()),
            fix: "use buffers of one backend; `CudaBackend::beside` makes a second one on the same stream".into(),
        })
    }

    /// Calls the driver with this context current. What it reports becomes an error that names the command.
    pub(super) fn call<T>(
        &self,
        command: &str,
        calls: impl FnOnce() -> std::result::Result<T, DriverError>,
    ) -> Result<T> {
        self.alive()?;
        self.raw(calls).map_err(|error| self.failed(command, error))
    }

    fn raw<T>(
        &self,
        calls: impl FnOnce() -> std::result::Result<T, DriverError>,
    ) -> std::result::Result<T, DriverError> {
        let _current = Current::enter(self.stream.context())?;
        calls()
    }

    fn failed(&self, command: &str, error: DriverError) -> Error {
        if !is_lost(error) {
            return Error::Device { command: command.to_owned(), reason: explain(error) };
        }
        let at = self.progress.running().unwrap_or_else(|| format!("`{command}` or before"));
        let reason = || format!("{}, at {at}", explain(error));
        Error::DeviceLost { reason: self.lost.get_or_init(reason).clone() }
    }

    pub(super) fn cu_stream(&self) -> sys::CUstream {
        self.stream.cu_stream()
    }

    /// Notes that a command has been submitted: its name stands in errors until it has run.
    pub(super) fn mark(&self, command: &'static str) -> Result<()> {
        let Some((address, value)) = self.progress.submitted(command) else { return Ok(()) };
        self.write(address, value).map_err(|error| self.failed(command, error))
    }

    /// Writes a word of mapped host memory behind everything submitted so far.
    fn write(&self, address: u64, value: u32) -> std::result::Result<(), DriverError> {
        // SAFETY: the address is mapped host memory that lives as long as this context.
        self.raw(|| unsafe { sys::cuStreamWriteValue32_v2(self.cu_stream(), address, value, 0) }.result())
    }

    /// Whether an address is one of this device's memory.
    pub(super) fn is_device_memory(&self, address: u64) -> Result<bool> {
        self.alive()?;
        let mut ordinal = -1i32;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: this attribute is one integer.
        let ask = || unsafe { sys::cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address) }.result();
        match self.raw(ask) {
            Ok(()) => Ok(usize::try_from(ordinal) == Ok(self.stream.context().ordinal())),
            Err(DriverError(CUresult::CUDA_ERROR_INVALID_VALUE)) => Ok(false),
            Err(error) => Err(self.failed("borrow", error)),
        }
    }

    /// Device memory; `None` where there is none left.
    pub(super) fn allocate(&self, bytes: u64) -> Result<Option<u64>> {
        self.alive()?;
        let size = bytes.max(1) as usize;
        let allocated = self.raw(|| match &self.pool {
            // SAFETY: the pool and the stream are this context's.
            Some(pool) => unsafe { result::mem_pool::alloc_async(pool.0, size, self.cu_stream()) },
            // SAFETY: no requirement but a current context.
            None => unsafe { result::malloc_sync(size) },
        });
        match allocated {
            Ok(address) => Ok(Some(address)),
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Ok(None),
            Err(error) => Err(self.failed("alloc", error)),
        }
    }

    /// Gives memory back behind all that has been submitted.
    pub(super) fn release(&self, address: u64) {
        if self.lost.get().is_some() {
            return;
        }
        let freed = self.raw(|| match &self.pool {
            // SAFETY: from `allocate`, and released once.
            Some(_) => unsafe { result::free_async(address, self.cu_stream()) },
            // SAFETY: as above; this call waits for the device.
            None => unsafe { result::free_sync(address) },
        });
        if let Err(error) = freed {
            // Whoever calls next is told, where it is a loss.
            let error = self.failed("free", error);
            log::warn!("memory is not given back: {error}");
        }
    }

    /// Host memory that kernels can reach, zeroed.
    pub(super) fn map(&self, words: usize) -> Result<Mapped> {
        let idle = {
            let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = mapped.iter().position(|idle| idle.len() >= words);
            fits.map(|at| mapped.swap_remove(at))
        };
        match idle {
            Some(mut idle) => {
                idle.clear();
                Ok(idle)
            }
            None => self.call("map", || Mapped::new(words.next_power_of_two())),
        }
    }

    /// Takes back what nothing on the device refers to any more.
    pub(super) fn unmap(&self, mapped: Mapped) {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner).push(mapped);
    }

    /// Waits until the stream has passed a point.
    pub(super) fn wait_for(&self, event: &Event, time_limit: Duration) -> Result<()> {
        let begin = Instant::now();
        let mut nap = Duration::from_micros(10);
        loop {
            self.alive()?;
            // SAFETY: the event lives.
            match self.raw(|| unsafe { result::event::query(event.raw) }) {
                Ok(()) => return Ok(()),
                Err(DriverError(CUresult::CUDA_ERROR_NOT_READY)) => {}
                Err(error) => return Err(self.failed("wait", error)),
            }
            let waited = begin.elapsed();
            if waited > time_limit {
                return Err(Error::Device {
                    command: self.progress.running().unwrap_or_else(|| "wait".into()),
                    reason: format!(
                        "not finished after {time_limit:?}; raise `time_limit` where that is to be expected"
                    ),
                });
            }
            if waited < SPIN {
                std::thread::yield_now();
            } else {
                std::thread::sleep(nap.min(time_limit.saturating_sub(waited)));
                nap = (2 * nap).min(NAP);
            }
        }
    }

    fn destroy(&mut self) {
        let events = std::mem::take(self.events.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.mapped.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        self.progress = Progress::default();
        for RawEvent(event) in events {
            // SAFETY: made by this context, and used by nothing: an `Event` holds the context.
            let _ = unsafe { result::event::destroy(event) };
        }
        if let Some(Pool(pool)) = self.pool.take() {
            // SAFETY: made by this context; memory of it holds the context.
            let _ = unsafe { result::mem_pool::destroy(pool) };
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let stream = Arc::clone(&self.stream);
        // A context that cannot be made current any more has taken its handles with it.
        if let Ok(_current) = Current::enter(stream.context()) {
            self.destroy();
        }
    }
}

impl Event {
    /// The point behind everything submitted so far.
    pub(super) fn record(context: &Arc<Context>, timed: bool) -> Result<Self> {
        let flags =
            if timed { sys::CUevent_flags::CU_EVENT_DEFAULT } else { sys::CUevent_flags::CU_EVENT_DISABLE_TIMING };
        let idle = || context.events.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let raw = match if timed { None } else { idle() } {
            Some(RawEvent(raw)) => raw,
            None => context.call("event", || result::event::create(flags))?,
        };
        let event = Self { raw, context: Arc::clone(context) };
        // SAFETY: the event lives, the stream is of its context.
        context.call("event", || unsafe { result::event::record(raw, context.cu_stream()) })?;
        Ok(event)
    }

    /// Time from an earlier event to this one, both timed and passed.
    pub(super) fn since(&self, earlier: &Self) -> Option<Duration> {
        // SAFETY: both live; that the symbol is there has been looked for.
        let ms = self.context.raw(|| unsafe { result::event::elapsed(earlier.raw, self.raw) }).ok()?;
        Duration::try_from_secs_f64(f64::from(ms) / 1e3).ok()
    }
}
