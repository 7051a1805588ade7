//! What tests call: settings, counts, and what went wrong.

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering::SeqCst;

use crate::{api, device, event, kernels, memory, module, pool, settings, stream};

unsafe fn text<'a>(name: *const c_char) -> &'a str {
    // SAFETY: the caller gives a string.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("")
}

fn count(name: &str) -> Option<u64> {
    if let Some(call) = name.strip_prefix("calls:") {
        return Some(api::calls(call));
    }
    let (name, owner) = match name.split_once('@') {
        Some((name, owner)) => (name, owner.parse().ok().filter(|&owner: &usize| owner < settings::MAX_DEVICES)?),
        None => (name, 0),
    };
    let size = match name {
        "live_allocations" => memory::live(owner) - memory::live_host(owner),
        "live_host_allocations" => memory::live_host(owner),
        "live_bytes" => memory::live_bytes(owner),
        "used_bytes" => memory::used(owner),
        "live_streams" => stream::STREAMS.count(owner),
        "live_events" => event::EVENTS.count(owner),
        "live_modules" => module::MODULES.count(owner),
        "live_pools" => pool::POOLS.count(owner) - pool::own_pools(owner),
        "allocations" => return Some(memory::ALLOCATIONS[owner].load(SeqCst)),
        "launches" => return Some(module::LAUNCHES[owner].load(SeqCst)),
        "leaked" => return Some(device::device(owner).leaked.load(SeqCst)),
        "active" => usize::from(device::device(owner).is_active()),
        "error" => return Some(device::device(owner).alive().err().unwrap_or(0).into()),
        "violations" => {
            memory::audit();
            api::violations().len()
        }
        _ => return None,
    };
    Some(size as u64)
}

/// Sets a number, for all devices or for one (`fail_alloc@2`); `forget_violations` forgets them. 0, or 1 where there is no such name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lrmoe_fake_set(name: *const c_char, value: i64) -> i32 {
    // SAFETY: see there.
    let name = unsafe { text(name) };
    if name == "forget_violations" {
        api::forget_violations();
        return 0;
    }
    i32::from(!settings::set(name, value))
}

/// A setting or a count, of device 0 or of the one it names; -1 where there is no such name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lrmoe_fake_get(name: *const c_char) -> i64 {
    // SAFETY: see there.
    let name = unsafe { text(name) };
    settings::get(name).or_else(|| count(name).and_then(|count| i64::try_from(count).ok())).unwrap_or(-1)
}

/// Adds a library of kernels. 0, or 1 where it cannot be loaded: why is on the standard error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lrmoe_fake_kernels(path: *const c_char) -> i32 {
    // SAFETY: see there.
    match kernels::add(unsafe { text(path) }) {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("fake CUDA: {why}");
            1
        }
    }
}

/// How threads take turns from now on, in all libraries of kernels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lrmoe_fake_schedule(schedule: u32, copies: u32, seed: u64, threads: u32) {
    kernels::configure(schedule, copies, seed, threads);
}

/// The n-th violation, at most so many bytes of it; its whole length, or -1 where there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lrmoe_fake_violation(number: usize, to: *mut u8, bytes: usize) -> i64 {
    let all = api::violations();
    let Some(found) = all.get(number) else { return -1 };
    let fits = found.len().min(bytes);
    // SAFETY: the caller gives so many bytes.
    unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), to, fits) };
    i64::try_from(found.len()).unwrap_or(-1)
}
