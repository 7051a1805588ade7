//! Copies and fills, in the order of a stream. Ranges have to lie in allocations.

use std::ffi::{c_uint, c_void};

use crate::api::{INVALID_VALUE, Outcome, api, lock, violation};
use crate::device::device;
use crate::memory::{self, Kind};
use crate::stream::{Address, Job, Owned, stream_of};

/// Host memory that a copy may read or write after the call.
fn pinned(address: u64, bytes: usize) -> bool {
    let fits = |base: u64, len: usize| address - base + bytes as u64 <= len as u64;
    memory::find(address).is_some_and(|found| matches!(found.kind, Kind::Host) && fits(found.base, found.bytes))
        || lock(&REGISTERED).iter().any(|&(base, len)| address >= base && fits(base, len))
}

/// Host memory that was page-locked where it was.
static REGISTERED: std::sync::Mutex<Vec<(u64, usize)>> = std::sync::Mutex::new(Vec::new());

unsafe fn copy(to: &Address, from: &Address, bytes: usize) {
    // SAFETY: both ranges have been checked, and live until the operation has ended.
    unsafe { libc::memmove(to.0 as *mut c_void, from.0 as *const c_void, bytes) };
}

fn to_device(to: u64, from: *const c_void, bytes: usize, stream: usize) -> Outcome {
    let stream = stream_of(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let mut uses = vec![memory::check("copy to the device", to, bytes)?];
    let to = Address(to);
    let job = if pinned(from as u64, bytes) {
        let from = Address(from as u64);
        uses.extend(memory::find(from.0).map(|found| found.base));
        Job::new(move || {
            let (to, from) = (to, from);
            // SAFETY: see there.
            unsafe { copy(&to, &from, bytes) };
        })
    } else {
        // Memory that is not page-locked has been read when the call returns.
        // SAFETY: the caller of the driver says that there are so many bytes.
        let staged = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) }.to_vec();
        Job::new(move || {
            let to = to;
            // SAFETY: see there.
            unsafe { copy(&to, &Address(staged.as_ptr() as u64), bytes) };
        })
    };
    stream.push(job.using(uses)).map(|_| ())
}

fn to_host(to: *mut c_void, from: u64, bytes: usize, stream: usize, wait: bool) -> Outcome {
    let stream = stream_of(stream)?;
    if bytes == 0 {
        return stream.device().alive();
    }
    let mut uses = vec![memory::check("copy to the host", from, bytes)?];
    let wait = wait || !pinned(to as u64, bytes);
    let (to, from) = (Address(to as u64), Address(from));
    if !wait {
        uses.extend(memory::find(to.0).map(|found| found.base));
    }
    let job = Job::new(move || {
        let (to, from) = (to, from);
        // SAFETY: see there; host memory that is not page-locked is waited for.
        unsafe { copy(&to, &from, bytes) };
    });
    let end = stream.push(job.using(uses))?;
    if wait {
        end.wait();
        return device(stream.owner()).alive();
    }
    Ok(())
}

fn on_device(to: u64, from: u64, bytes: usize, stream: usize) -> Outcome {
    let stream = stream_of(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let uses = vec![memory::check("copy on the device", from, bytes)?, memory::check("copy on the device", to, bytes)?];
    if to < from + bytes as u64 && from < to + bytes as u64 {
        violation("copy on the device: the ranges overlap".into());
        return Err(INVALID_VALUE);
    }
    let (to, from) = (Address(to), Address(from));
    let job = Job::new(move || {
        let (to, from) = (to, from);
        // SAFETY: see there.
        unsafe { copy(&to, &from, bytes) };
    });
    stream.push(job.using(uses)).map(|_| ())
}

/// Fills with a value of 1, 2 or 4 bytes.
fn fill(to: u64, value: u32, width: usize, count: usize, stream: usize) -> Outcome {
    let stream = stream_of(stream)?;
    if count == 0 {
        return Ok(());
    }
    if !to.is_multiple_of(width as u64) {
        return Err(INVALID_VALUE);
    }
    let bytes = count.checked_mul(width).ok_or(INVALID_VALUE)?;
    let uses = vec![memory::check("fill", to, bytes)?];
    let to = Address(to);
    let job = Job::new(move || {
        let to = to;
        let pattern = value.to_le_bytes();
        if pattern[..width].iter().all(|byte| *byte == pattern[0]) {
            // SAFETY: the range has been checked and lives until the operation has ended.
            unsafe { libc::memset(to.0 as *mut c_void, i32::from(pattern[0]), bytes) };
            return;
        }
        for i in 0..count {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(pattern.as_ptr(), (to.0 as *mut u8).add(i * width), width) };
        }
    });
    stream.push(job.using(uses)).map(|_| ())
}

api! {
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize) Context {
        to_device(to, from, bytes, stream)
    }

    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) Context {
        to_device(to, from, bytes, 0)?;
        let stream = stream_of(0)?;
        stream.last().wait();
        stream.device().alive()
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: usize) Context {
        to_host(to, from, bytes, stream, false)
    }

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) Context {
        to_host(to, from, bytes, 0, true)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) Context {
        on_device(to, from, bytes, stream)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) Context {
        on_device(to, from, bytes, 0)
    }

    fn cuMemcpyPeerAsync(to: u64, _to_context: usize, from: u64, _from_context: usize, bytes: usize, stream: usize) Context {
        on_device(to, from, bytes, stream)
    }

    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) Context {
        fill(to, value.into(), 1, count, stream)
    }

    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: usize) Context {
        fill(to, value.into(), 2, count, stream)
    }

    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: usize) Context {
        fill(to, value, 4, count, stream)
    }

    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) Context {
        fill(to, value.into(), 1, count, 0)
    }

    fn cuMemsetD32_v2(to: u64, value: u32, count: usize) Context {
        fill(to, value, 4, count, 0)
    }

    fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, _flags: c_uint) Context {
        lock(&REGISTERED).push((address as u64, bytes));
        Ok(())
    }

    fn cuMemHostUnregister(address: *mut c_void) Context {
        let mut registered = lock(&REGISTERED);
        let at = registered.iter().position(|&(base, _)| base == address as u64).ok_or(INVALID_VALUE)?;
        registered.swap_remove(at);
        Ok(())
    }

    fn cuStreamWriteValue32_v2(stream: usize, address: u64, value: u32, _flags: c_uint) Context {
        let stream = stream_of(stream)?;
        if !address.is_multiple_of(4) {
            return Err(INVALID_VALUE);
        }
        let uses = vec![memory::check("write of a word", address, 4)?];
        let address = Address(address);
        stream.push(Job::new(move || {
            let address = address;
            // SAFETY: the word has been checked; whoever reads it meanwhile does so as volatile.
            unsafe { (*(address.0 as *const std::sync::atomic::AtomicU32)).store(value, std::sync::atomic::Ordering::SeqCst) };
        }).using(uses))?;
        Ok(())
    }
}
