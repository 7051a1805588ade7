//! A context and its stream: calls of the driver, what becomes of their errors, waiting, and memory.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult, CUstreamCaptureStatus};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};

use super::buffer::CudaBuffer;
use super::current::Current;
use super::driver::{self, Gpu, explain, is_lost};
use super::event::{Event, Idle, Point};
use super::host::Mapped;
use super::progress::Progress;
use super::staging::Staging;
use crate::backend::Buffer;
use crate::{Error, Result};

/// How long a wait spins before it sleeps, and sleeps at most at a time.
const SPIN: Duration = Duration::from_micros(50);
const NAP: Duration = Duration::from_micros(500);

/// How long giving something back waits for the device to be done with it. What it is not done with then is left behind.
const PATIENCE: Duration = Duration::from_secs(10);

/// Handle of the stream that is another one in each thread.
const PER_THREAD: usize = 2;

/// One stream of one context.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) stream: ManuallyDrop<Arc<CudaStream>>,
    pub(super) gpu: Gpu,
    /// Tells contexts apart.
    pub(super) id: u64,
    /// Why nothing works any more.
    lost: OnceLock<String>,
    pool: Option<Pool>,
    progress: Progress,
    pub(super) events: Idle,
    pub(super) staging: Staging,
    mapped: Mutex<Vec<Mapped>>,
    /// Held while a recording is launched: commands of two of them do not mix.
    pub(super) launching: Mutex<()>,
}

/// A pool of the driver.
#[derive(Debug)]
struct Pool(sys::CUmemoryPool);

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Pool {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Pool {}

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
        let _current = Current::keep().map_err(failed)?;
        let context = CudaContext::new(index).map_err(failed)?;
        // SAFETY: this handle of the context is ours alone, and no memory of the bindings' own types is made with it, whose use
        // they would track. With it, making a stream would wait for everything that the process has submitted.
        unsafe { context.disable_event_tracking() };
        Self::new(context.new_stream().map_err(failed)?)
    }

    /// Works on a stream of someone's.
    pub(super) fn new(stream: Arc<CudaStream>) -> Result<Arc<Self>> {
        if stream.cu_stream() as usize == PER_THREAD {
            let allowed = "a stream that is the same in every thread";
            return Err(Error::argument("stream", "the per-thread default stream", allowed));
        }
        let unsupported = |why| Error::Unsupported { what: "this CUDA device".into(), why };
        driver::probe().map_err(unsupported)?;
        let gpu = driver::gpu(stream.context().ordinal()).map_err(unsupported)?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut context = Self {
            stream: ManuallyDrop::new(stream),
            gpu,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            lost: OnceLock::new(),
            pool: None,
            progress: Progress::default(),
            events: Idle::default(),
            staging: Staging::default(),
            mapped: Mutex::default(),
            launching: Mutex::default(),
        };
        context.check_not_capturing()?;
        if context.gpu.pools {
            context.pool = Some(context.new_pool()?);
        }
        let word = context.map(1)?;
        // Not every system lets a stream write host memory; the commands' names are all that it is for.
        match context.raw(|| driver::write_word(context.cu_stream(), word.device(), 0)) {
            Ok(()) => context.progress = Progress::new(word),
            Err(_) => context.unmap(word),
        }
        Ok(Arc::new(context))
    }

    /// Refuses a stream that a host is recording into a graph: what is submitted would not run.
    pub(super) fn check_not_capturing(&self) -> Result<()> {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: writes one value.
        let ask = || unsafe { sys::cuStreamIsCapturing(self.cu_stream(), &raw mut status) }.result();
        self.call("submit", ask)?;
        if status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            return Ok(());
        }
        Err(Error::State {
            what: "the stream is being captured into a graph".into(),
            fix: "end the capture before lrmoe works on the stream".into(),
        })
    }

    /// A pool apart from the host's, so that nothing of a host's set-up changes.
    fn new_pool(&self) -> Result<Pool> {
        // SAFETY: all zero is a valid value of this plain struct: no handle types, no security attributes.
        let mut props: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        props.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        props.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        // Versions of the bindings differ in how they call the number behind the type; its place is the same.
        // SAFETY: a location is two integers.
        unsafe { (&raw mut props.location).cast::<i32>().add(1).write(self.stream.context().cu_device()) };
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
        if buffer.context() == self.id {
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

    pub(super) fn raw<T>(
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
        let write = |address, number| self.raw(|| driver::write_word(self.cu_stream(), address, number));
        self.progress.submitted(command, write).map_err(|error| self.failed(command, error))
    }

    /// Whether so many bytes from an address on are one allocation of this device's memory.
    pub(super) fn is_device_memory(&self, address: u64, bytes: u64) -> Result<bool> {
        use sys::CUpointer_attribute as Attribute;
        self.alive()?;
        let ask = |attribute: Attribute| -> std::result::Result<u64, DriverError> {
            // The largest of these attributes is an address.
            let mut value = 0u64;
            // SAFETY: room for any of them.
            unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), attribute, address) }.result()?;
            Ok(value)
        };
        let known = self.raw(|| {
            let memory = ask(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE)?;
            let ordinal = ask(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?;
            // Not told of every kind of allocation.
            let begin = ask(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
            Ok((memory, ordinal, begin.and_then(|begin| Ok((begin, ask(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE)?)))))
        });
        match known {
            Ok((memory, ordinal, range)) => {
                let beyond =
                    range.is_ok_and(|(begin, size)| address.saturating_add(bytes) > begin.saturating_add(size));
                let on_device = memory == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u64;
                Ok(on_device && usize::try_from(ordinal) == Ok(self.stream.context().ordinal()) && !beyond)
            }
            Err(DriverError(CUresult::CUDA_ERROR_INVALID_VALUE)) => Ok(false),
            Err(error) => Err(self.failed("borrow", error)),
        }
    }

    /// Device memory; `None` where there is none left.
    pub(super) fn allocate(&self, bytes: u64) -> Result<Option<u64>> {
        self.alive()?;
        let size = bytes.max(1) as usize;
        let once = || match &self.pool {
            // SAFETY: the pool and the stream are this context's.
            Some(pool) => unsafe { result::mem_pool::alloc_async(pool.0, size, self.cu_stream()) },
            // SAFETY: no requirement but a current context.
            None => unsafe { result::malloc_sync(size) },
        };
        let mut allocated = self.raw(once);
        if let (Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)), Some(pool)) = (&allocated, &self.pool) {
            // What was given back is the pool's until the stream has passed, and then until it is asked for it.
            if self.drain() {
                // SAFETY: the pool is this context's.
                let _ = self.raw(|| unsafe { result::mem_pool::trim_to(pool.0, 0) });
                allocated = self.raw(once);
            }
        }
        match allocated {
            Ok(address) => Ok(Some(address)),
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Ok(None),
            Err(error) => Err(self.failed("alloc", error)),
        }
    }

    /// Waits, with patience, until the stream has passed everything submitted so far; whether it has, or never will.
    pub(super) fn drain(&self) -> bool {
        if self.lost.get().is_some() {
            return true;
        }
        let passed = self.raw(|| {
            let point = Point::record(self.cu_stream())?;
            let begin = Instant::now();
            loop {
                match point.query() {
                    Err(DriverError(CUresult::CUDA_ERROR_NOT_READY)) if begin.elapsed() < PATIENCE => {
                        std::thread::sleep(Duration::from_micros(20));
                    }
                    done => return done,
                }
            }
        });
        passed.is_ok() || passed.is_err_and(is_lost)
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
            match self.raw(|| event.query()) {
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

    /// Gives back what the device is done with; this context is current.
    fn destroy(&mut self, done: bool) {
        let mapped = std::mem::take(self.mapped.get_mut().unwrap_or_else(PoisonError::into_inner));
        let (progress, staging) = (std::mem::take(&mut self.progress), std::mem::take(&mut self.staging));
        self.events.destroy();
        if done {
            drop((mapped, progress, staging));
        } else {
            log::warn!("the device is still busy: host memory that it may write is left behind");
            std::mem::forget((mapped, progress, staging));
        }
        if let Some(Pool(pool)) = self.pool.take() {
            // SAFETY: made by this context; memory of it holds the context, and the driver keeps what is in use.
            let _ = unsafe { result::mem_pool::destroy(pool) };
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let done = self.drain();
        let before = Current::keep();
        let stream = Arc::clone(&self.stream);
        // A context that cannot be made current any more has taken its handles with it.
        if let Ok(_current) = Current::enter(stream.context()) {
            self.destroy(done);
        }
        drop(stream);
        // SAFETY: dropped once, here. Stream and context make themselves current to go, so what was before comes back last.
        unsafe { ManuallyDrop::drop(&mut self.stream) };
        drop(before);
    }
}
