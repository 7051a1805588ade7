//! Streams: threads that do one operation after the other, so that a host which forgets to wait really races.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::time::Duration;

use crate::api::{
    Code, IN_HOST_FUNCTION, INVALID_HANDLE, NOT_READY, OPERATING_SYSTEM, Outcome, api, current, lock, put,
};
use crate::device::{Device, device};
use crate::settings::Setting;
use crate::{kernels, memory, pool};

/// Things with handles that are never used again, so that a stale one is noticed.
pub(crate) struct Registry<T>(LazyLock<Mutex<HashMap<usize, Arc<T>>>>);

/// What belongs to a device.
pub(crate) trait Owned {
    fn owner(&self) -> usize;
}

impl<T: Owned> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self(LazyLock::new(Mutex::default))
    }

    /// Adds one; its handle.
    pub(crate) fn add(&self, object: Arc<T>) -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let handle = 0x1000 + NEXT.fetch_add(1, SeqCst) * 16;
        lock(&self.0).insert(handle, object);
        handle
    }

    pub(crate) fn get(&self, handle: usize) -> Outcome<Arc<T>> {
        lock(&self.0).get(&handle).cloned().ok_or(INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: usize) -> Outcome<Arc<T>> {
        lock(&self.0).remove(&handle).ok_or(INVALID_HANDLE)
    }

    /// All of a device.
    pub(crate) fn of(&self, owner: usize) -> Vec<Arc<T>> {
        lock(&self.0).values().filter(|object| object.owner() == owner).cloned().collect()
    }

    pub(crate) fn count(&self, owner: usize) -> usize {
        lock(&self.0).values().filter(|object| object.owner() == owner).count()
    }

    pub(crate) fn clear(&self, owner: usize, last: impl Fn(&T)) {
        lock(&self.0).retain(|_, object| {
            let keep = object.owner() != owner;
            if !keep {
                last(object);
            }
            keep
        });
    }
}

pub(crate) static STREAMS: Registry<Stream> = Registry::new();

/// A stream of a device.
pub(crate) struct Stream {
    device: &'static Device,
    /// Whether the stream without a handle waits for it and it for that.
    blocking: bool,
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    enqueued: u64,
    completed: u64,
    running: bool,
    closed: bool,
}

/// One operation.
pub(crate) struct Job {
    run: Box<dyn FnOnce() + Send>,
    /// Whether it is done even where the context has failed.
    always: bool,
    after: Vec<Point>,
    /// Allocations that it uses.
    uses: Vec<u64>,
}

/// A place in a stream.
#[derive(Clone)]
pub(crate) struct Point {
    stream: Arc<Stream>,
    number: u64,
}

impl Owned for Stream {
    fn owner(&self) -> usize {
        self.device.ordinal
    }
}

impl Point {
    pub(crate) fn reached(&self) -> bool {
        lock(&self.stream.state).completed >= self.number
    }

    pub(crate) fn wait(&self) {
        let mut state = lock(&self.stream.state);
        while state.completed < self.number {
            state = self.stream.done.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

impl Job {
    pub(crate) fn new(run: impl FnOnce() + Send + 'static) -> Self {
        Self { run: Box::new(run), always: false, after: Vec::new(), uses: Vec::new() }
    }

    /// Is done even where the context has failed.
    pub(crate) fn always(run: impl FnOnce() + Send + 'static) -> Self {
        Self { always: true, ..Self::new(run) }
    }

    pub(crate) fn after(mut self, point: Point) -> Self {
        self.after.push(point);
        self
    }

    pub(crate) fn using(mut self, uses: Vec<u64>) -> Self {
        self.uses = uses;
        self
    }
}

impl Stream {
    pub(crate) fn new(device: &'static Device, blocking: bool) -> Arc<Self> {
        Arc::new(Self { device, blocking, state: Mutex::default(), work: Condvar::new(), done: Condvar::new() })
    }

    pub(crate) fn device(&self) -> &'static Device {
        self.device
    }

    /// The end of what has been enqueued.
    pub(crate) fn last(self: &Arc<Self>) -> Point {
        Point { stream: Arc::clone(self), number: lock(&self.state).enqueued }
    }

    /// Puts an operation at the end; the place behind it.
    pub(crate) fn push(self: &Arc<Self>, mut job: Job) -> Outcome<Point> {
        if let Some(legacy) = self.device.legacy_if_used() {
            if Arc::ptr_eq(&legacy, self) {
                let others = STREAMS.of(self.device.ordinal);
                job.after.extend(others.iter().filter(|other| other.blocking).map(Self::last));
            } else if self.blocking {
                job.after.push(legacy.last());
            }
        }
        memory::begin_use(&job.uses);
        let mut state = lock(&self.state);
        if !state.running {
            state.running = true;
            let stream = Arc::clone(self);
            let thread = std::thread::Builder::new().name("fake CUDA stream".into());
            thread.spawn(move || stream.serve()).map_err(|_| OPERATING_SYSTEM)?;
        }
        state.queue.push_back(job);
        state.enqueued += 1;
        let point = Point { stream: Arc::clone(self), number: state.enqueued };
        self.work.notify_one();
        Ok(point)
    }

    /// No more comes: the thread ends when it has done what there is.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.work.notify_one();
    }

    fn serve(&self) {
        let mut random = std::ptr::from_ref(self) as u64 | 1;
        loop {
            let mut state = lock(&self.state);
            let job = loop {
                if let Some(job) = state.queue.pop_front() {
                    break job;
                }
                if state.closed {
                    return;
                }
                state = self.work.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
            };
            drop(state);
            job.after.iter().for_each(Point::wait);
            self.delay(&mut random);
            if !job.always && Setting::lose_after.due(self.device.ordinal) {
                self.device.fail(Code::try_from(Setting::lose_code.of(self.device.ordinal)).unwrap_or(999));
            }
            if job.always || self.device.alive().is_ok() {
                kernels::host_order();
                (job.run)();
                kernels::host_order();
            }
            memory::end_use(&job.uses);
            lock(&self.state).completed += 1;
            self.done.notify_all();
        }
    }

    fn delay(&self, random: &mut u64) {
        let most = u64::try_from(Setting::jitter_us.of(self.device.ordinal)).unwrap_or(0);
        if most > 0 {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            std::thread::sleep(Duration::from_micros((*random >> 33) % (most + 1)));
        }
    }
}

/// The stream of a handle, which has to be of the context that is current.
pub(crate) fn stream_of(handle: usize) -> Outcome<Arc<Stream>> {
    let device = current()?;
    // 0 and 1 are the stream without a handle, 2 that of the thread.
    if handle <= 2 {
        return Ok(device.legacy());
    }
    let stream = STREAMS.get(handle)?;
    if std::ptr::eq(stream.device, device) { Ok(stream) } else { Err(INVALID_HANDLE) }
}

/// Waits for all streams of a device.
pub(crate) fn drain(device: &'static Device) {
    let streams = STREAMS.of(device.ordinal).into_iter().chain(device.legacy_if_used());
    for stream in streams {
        stream.last().wait();
    }
}

/// A pointer that goes to another thread.
pub(crate) struct Address(pub(crate) u64);

fn create(to: *mut usize, flags: c_uint) -> Outcome {
    const NON_BLOCKING: c_uint = 1;
    let stream = Stream::new(device(current()?.ordinal), flags & NON_BLOCKING == 0);
    // SAFETY: the caller of the driver gives a place for it.
    unsafe { put(to, STREAMS.add(stream)) }
}

api! {
    fn cuStreamCreate(to: *mut usize, flags: c_uint) Context {
        create(to, flags)
    }

    fn cuStreamCreateWithPriority(to: *mut usize, flags: c_uint, _priority: c_int) Context {
        create(to, flags)
    }

    fn cuStreamDestroy_v2(handle: usize) Context {
        STREAMS.remove(handle)?.close();
        Ok(())
    }

    fn cuStreamSynchronize(handle: usize) Context {
        let stream = stream_of(handle)?;
        stream.last().wait();
        pool::trim_all(stream.device.ordinal);
        stream.device.alive()
    }

    fn cuStreamQuery(handle: usize) Context {
        if stream_of(handle)?.last().reached() { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuStreamIsCapturing(handle: usize, to: *mut c_uint) Context {
        stream_of(handle)?;
        put(to, 0)
    }

    fn cuStreamGetCtx(handle: usize, to: *mut usize) Context {
        put(to, std::ptr::from_ref(stream_of(handle)?.device) as usize)
    }

    fn cuStreamGetFlags(handle: usize, to: *mut c_uint) Context {
        put(to, c_uint::from(!stream_of(handle)?.blocking))
    }

    fn cuLaunchHostFunc(handle: usize, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) Context {
        let data = Address(data as u64);
        stream_of(handle)?.push(Job::new(move || {
            let data = data;
            IN_HOST_FUNCTION.set(true);
            // SAFETY: the caller of the driver has given a function and what it takes.
            unsafe { function(data.0 as *mut c_void) };
            IN_HOST_FUNCTION.set(false);
        }))?;
        Ok(())
    }
}
