//! Memory that is allocated and freed at once, and questions about addresses.

use std::ffi::{c_int, c_uint, c_void};

use crate::api::{INVALID_VALUE, Outcome, api, current, put};
use crate::device::device;
use crate::memory::{self, Kind};
use crate::stream::drain;

fn free(address: u64) -> Outcome {
    if address == 0 {
        return Ok(());
    }
    let owner = memory::find(address).map_or(current()?.ordinal, |found| found.device);
    // A free that is not of a stream waits for all of them.
    drain(device(owner));
    memory::leave(address)?;
    memory::free(address)
}

unsafe fn attribute(to: *mut c_void, attribute: c_uint, address: u64) -> Outcome {
    let found = memory::find(address).ok_or(INVALID_VALUE)?;
    let host = matches!(found.kind, Kind::Host);
    // SAFETY: the caller of the driver gives a place of the attribute's size.
    unsafe {
        match attribute {
            1 => put(to.cast::<usize>(), std::ptr::from_ref(device(found.device)) as usize),
            2 => put(to.cast::<c_uint>(), if host { 1 } else { 2 }),
            3 => put(to.cast::<u64>(), address),
            4 if host => put(to.cast::<u64>(), address),
            7 => put(to.cast::<u64>(), found.base),
            8 => put(to.cast::<c_int>(), 0),
            9 => put(to.cast::<c_int>(), c_int::try_from(found.device).unwrap_or(-1)),
            11 => put(to.cast::<u64>(), found.base),
            12 => put(to.cast::<usize>(), found.bytes),
            13 => put(to.cast::<c_int>(), 1),
            _ => Err(INVALID_VALUE),
        }
    }
}

api! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) Context {
        let owner = current()?.ordinal;
        put(free, memory::total(owner).saturating_sub(memory::used(owner)))?;
        put(total, memory::total(owner))
    }

    fn cuMemAlloc_v2(to: *mut u64, bytes: usize) Context {
        put(to, memory::allocate(current()?.ordinal, bytes, None)?)
    }

    fn cuMemFree_v2(address: u64) Context {
        free(address)
    }

    fn cuMemHostAlloc(to: *mut *mut c_void, bytes: usize, _flags: c_uint) Context {
        put(to, memory::allocate_host(current()?.ordinal, bytes)? as *mut c_void)
    }

    fn cuMemAllocHost_v2(to: *mut *mut c_void, bytes: usize) Context {
        put(to, memory::allocate_host(current()?.ordinal, bytes)? as *mut c_void)
    }

    fn cuMemFreeHost(address: *mut c_void) Context {
        let owner = current()?.ordinal;
        drain(device(owner));
        match memory::find(address as u64) {
            Some(found) if found.base == address as u64 && matches!(found.kind, Kind::Host) => memory::free(found.base),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuMemHostGetDevicePointer_v2(to: *mut u64, address: *mut c_void, flags: c_uint) Context {
        match memory::find(address as u64) {
            Some(found) if flags == 0 && matches!(found.kind, Kind::Host) => put(to, address as u64),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) Context {
        let found = memory::find(address).ok_or(INVALID_VALUE)?;
        if !base.is_null() {
            base.write(found.base);
        }
        if !bytes.is_null() {
            bytes.write(found.bytes);
        }
        Ok(())
    }

    fn cuPointerGetAttribute(to: *mut c_void, which: c_uint, address: u64) Driver {
        attribute(to, which, address)
    }

    fn cuPointerGetAttributes(count: c_uint, which: *const c_uint, to: *mut *mut c_void, address: u64) Driver {
        for i in 0..count as usize {
            // Attributes that the address does not have are left at zero.
            let place = *to.add(i);
            if attribute(place, *which.add(i), address).is_err() {
                put(place.cast::<u32>(), 0)?;
            }
        }
        Ok(())
    }
}
