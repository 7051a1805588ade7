//! Streams and events of the test driver: threads that really run beside each other.

use libtest_mimic::Trial;
use lrmoe::backend::cuda::cudarc::driver::sys::{self, CUresult};

use crate::opened::{Opened, gives, ok};
use crate::support::fake_cuda::Fake;
use crate::support::outcome::{Outcome, holds};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("streams::one_does_not_wait_for_another", beside),
        trial("streams::events_order_them", events),
        trial("streams::events_take_times", times),
        trial("streams::the_stream_without_a_handle_waits_for_blocking_ones", legacy),
        trial("streams::memory_freed_while_another_stream_uses_it", used_after_free),
        trial("streams::host_functions_may_not_call", host_functions),
    ]
}

/// Delays that make what is not ordered happen in the wrong order.
const SLOW: i64 = 20_000;

fn fill(address: u64, value: u32, stream: sys::CUstream) -> Outcome {
    // SAFETY: the test driver checks the range.
    ok("a fill", unsafe { sys::cuMemsetD32Async(address, value, 16, stream) })
}

/// A host function that takes its time.
unsafe extern "C" fn sleep(_: *mut std::ffi::c_void) {
    std::thread::sleep(std::time::Duration::from_millis(30));
}

fn pause(stream: sys::CUstream) -> Outcome {
    // SAFETY: the function takes nothing.
    ok("a pause", unsafe { sys::cuLaunchHostFunc(stream, Some(sleep), std::ptr::null_mut()) })
}

fn query(stream: sys::CUstream) -> CUresult {
    // SAFETY: the stream is there.
    unsafe { sys::cuStreamQuery(stream) }
}

fn beside(fake: &'static Fake) -> Outcome {
    let device = Opened::new(fake)?;
    let other = device.another_stream()?;
    pause(other)?;
    gives("the paused stream", query(other), CUresult::CUDA_ERROR_NOT_READY)?;
    ok("the other", device.synchronize())?;
    gives("the paused stream still", query(other), CUresult::CUDA_ERROR_NOT_READY)?;
    // SAFETY: a context is current.
    ok("all of them", unsafe { sys::cuCtxSynchronize() })?;
    gives("the paused stream then", query(other), CUresult::CUDA_SUCCESS)
}

fn events(fake: &'static Fake) -> Outcome {
    let device = Opened::new(fake)?;
    let other = device.another_stream()?;
    device.set("jitter_us", SLOW / 10)?;
    let mut event = std::ptr::null_mut();
    // SAFETY: a place for a handle, and handles.
    unsafe {
        ok("an event", sys::cuEventCreate(&raw mut event, 2))?;
        ok("one that was never recorded", sys::cuEventQuery(event))?;
        for round in 0..10 {
            let words = device.words(16)?;
            fill(words, round, device.stream)?;
            ok("a record", sys::cuEventRecord(event, device.stream))?;
            ok("a wait", sys::cuStreamWaitEvent(other, event, 0))?;
            fill(words, round + 100, other)?;
            ok("a record", sys::cuEventRecord(event, other))?;
            ok("a wait", sys::cuStreamWaitEvent(device.stream, event, 0))?;
            holds("the later fill", device.read(words, 16)? == [round + 100; 16])?;
            device.free(words)?;
        }
        pause(other)?;
        ok("a record", sys::cuEventRecord(event, other))?;
        gives("not yet", sys::cuEventQuery(event), CUresult::CUDA_ERROR_NOT_READY)?;
        ok("a wait", sys::cuEventSynchronize(event))?;
        ok("then", sys::cuEventQuery(event))?;
    }
    holds(format!("nothing was wrong: {:?}", fake.violations()), fake.violations().is_empty())
}

fn times(fake: &'static Fake) -> Outcome {
    let device = Opened::new(fake)?;
    let (mut begin, mut end, mut untimed) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: places for handles and a number.
    unsafe {
        ok("an event", sys::cuEventCreate(&raw mut begin, 0))?;
        ok("an event", sys::cuEventCreate(&raw mut end, 0))?;
        ok("an event", sys::cuEventCreate(&raw mut untimed, 2))?;
        ok("a record", sys::cuEventRecord(begin, device.stream))?;
        pause(device.stream)?;
        ok("a record", sys::cuEventRecord(end, device.stream))?;
        ok("a record", sys::cuEventRecord(untimed, device.stream))?;
        let mut ms = 0.0;
        let mut elapsed = |until| sys::cuEventElapsedTime_v2(&raw mut ms, begin, until);
        gives("too early", elapsed(end), CUresult::CUDA_ERROR_NOT_READY)?;
        ok("the end", device.synchronize())?;
        gives("an event without times", elapsed(untimed), CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        ok("the time", elapsed(end))?;
        holds(format!("{ms} ms"), (29.0..2000.0).contains(&ms))
    }
}

fn legacy(fake: &'static Fake) -> Outcome {
    let device = Opened::new(fake)?;
    let (mut blocking, none) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: a place for a handle.
    ok("a stream", unsafe { sys::cuStreamCreate(&raw mut blocking, 0) })?;
    let words = device.words(16)?;
    pause(blocking)?;
    fill(words, 1, blocking)?;
    fill(words, 2, none)?;
    pause(none)?;
    fill(words, 3, blocking)?;
    // SAFETY: handles.
    unsafe {
        ok("the stream without a handle", sys::cuStreamSynchronize(none))?;
        ok("the other", sys::cuStreamSynchronize(blocking))?;
    }
    holds("the last fill", device.read(words, 16)? == [3; 16])
}

fn used_after_free(fake: &'static Fake) -> Outcome {
    let device = Opened::new(fake)?;
    let other = device.another_stream()?;
    let words = device.words(16)?;
    pause(other)?;
    fill(words, 1, other)?;
    device.free(words)?;
    gives("the free", device.synchronize(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)?;
    let told = fake.violations();
    holds(format!("{told:?}"), told.iter().any(|text| text.contains("are freed while 1 operations still use them")))
}

unsafe extern "C" fn calls(_: *mut std::ffi::c_void) {
    // SAFETY: a context or none.
    unsafe { sys::cuCtxSynchronize() };
}

fn host_functions(fake: &'static Fake) -> Outcome {
    let device = Opened::new(fake)?;
    // SAFETY: the function takes nothing.
    ok("the function", unsafe { sys::cuLaunchHostFunc(device.stream, Some(calls), std::ptr::null_mut()) })?;
    ok("its end", device.synchronize())?;
    holds(
        "it is told",
        fake.violations().iter().any(|text| text.contains("cuCtxSynchronize is called in a host function")),
    )
}
