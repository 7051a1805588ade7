//! Events: places in streams.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use crate::api::{INVALID_HANDLE, NOT_READY, Outcome, api, current, lock, put};
use crate::pool;
use crate::stream::{Job, Owned, Point, Registry, stream_of};

pub(crate) static EVENTS: Registry<Event> = Registry::new();

/// An event, and where it was recorded last.
pub(crate) struct Event {
    owner: usize,
    timed: bool,
    recorded: Mutex<Option<Record>>,
}

#[derive(Clone)]
struct Record {
    point: Point,
    time: Arc<OnceLock<Instant>>,
}

impl Owned for Event {
    fn owner(&self) -> usize {
        self.owner
    }
}

impl Event {
    fn record(&self) -> Option<Record> {
        lock(&self.recorded).clone()
    }
}

fn elapsed(to: *mut f32, from: usize, until: usize) -> Outcome {
    let (from, until) = (EVENTS.get(from)?, EVENTS.get(until)?);
    if !from.timed || !until.timed {
        return Err(INVALID_HANDLE);
    }
    let (from, until) = (from.record().ok_or(INVALID_HANDLE)?, until.record().ok_or(INVALID_HANDLE)?);
    let (Some(begin), Some(end)) = (from.time.get(), until.time.get()) else { return Err(NOT_READY) };
    let sign = if end >= begin { 1.0 } else { -1.0 };
    let time = if end >= begin { *end - *begin } else { *begin - *end };
    // SAFETY: the caller of the driver gives a place for it.
    unsafe { put(to, sign * time.as_secs_f32() * 1e3) }
}

api! {
    fn cuEventCreate(to: *mut usize, flags: c_uint) Context {
        const DISABLE_TIMING: c_uint = 2;
        let event = Event { owner: current()?.ordinal, timed: flags & DISABLE_TIMING == 0, recorded: Mutex::new(None) };
        put(to, EVENTS.add(Arc::new(event)))
    }

    fn cuEventDestroy_v2(handle: usize) Context {
        EVENTS.remove(handle).map(|_| ())
    }

    fn cuEventRecord(handle: usize, stream: usize) Context {
        let (event, stream) = (EVENTS.get(handle)?, stream_of(stream)?);
        if event.owner != stream.owner() {
            return Err(INVALID_HANDLE);
        }
        let time = Arc::new(OnceLock::new());
        let stamp = Arc::clone(&time);
        let point = stream.push(Job::always(move || {
            let _ = stamp.set(Instant::now());
        }))?;
        *lock(&event.recorded) = Some(Record { point, time });
        Ok(())
    }

    fn cuEventQuery(handle: usize) Context {
        match EVENTS.get(handle)?.record() {
            Some(record) if !record.point.reached() => Err(NOT_READY),
            // What went wrong before it shows here.
            _ => current()?.alive(),
        }
    }

    fn cuEventSynchronize(handle: usize) Context {
        if let Some(record) = EVENTS.get(handle)?.record() {
            record.point.wait();
            pool::trim_all(current()?.ordinal);
        }
        current()?.alive()
    }

    fn cuEventElapsedTime(to: *mut f32, from: usize, until: usize) Context {
        elapsed(to, from, until)
    }

    fn cuEventElapsedTime_v2(to: *mut f32, from: usize, until: usize) Context {
        elapsed(to, from, until)
    }

    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) Context {
        let (stream, event) = (stream_of(stream)?, EVENTS.get(event)?);
        if let Some(record) = event.record() {
            stream.push(Job::new(|| ()).after(record.point))?;
        }
        Ok(())
    }
}
