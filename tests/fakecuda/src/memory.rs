//! Device memory and page-locked host memory: exact sizes, poisoned when new and when freed, with a fence behind it. Freed memory
//! is kept for a while, so that what still writes to it is found.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, LazyLock, Mutex};

use crate::api::{ILLEGAL_ADDRESS, INVALID_VALUE, OUT_OF_MEMORY, Outcome, lock, violation};
use crate::device::device;
use crate::pool::{self, Pool};
use crate::settings::{MAX_DEVICES, Setting};
use crate::{kernels, stream};

/// New memory holds this, a NaN in every float type.
const NEW: i32 = 0xff;
/// Freed memory this.
const FREED: i32 = 0xdd;
/// And behind it lies this.
const FENCE: i32 = 0xa5;
const FENCE_BYTES: usize = 256;
/// Freed memory that is kept.
const KEPT: usize = 32 << 20;

/// What memory is.
#[derive(Clone)]
pub(crate) enum Kind {
    Device,
    Pool(Arc<Pool>),
    Host,
}

#[derive(Clone)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) bytes: usize,
    pub(crate) device: usize,
    pub(crate) kind: Kind,
    /// Operations in queues that use it.
    pending: usize,
    /// A stream will free it: nothing may use it that is enqueued from now on.
    leaving: bool,
    /// It has been freed while operations still used it; the last of them ends it.
    dead: bool,
}

#[derive(Default)]
struct Memory {
    live: BTreeMap<u64, Allocation>,
    kept: VecDeque<(u64, usize)>,
    kept_bytes: usize,
}

static MEMORY: LazyLock<Mutex<Memory>> = LazyLock::new(Mutex::default);
/// Bytes of each device that are allocated outside pools.
static PLAIN: [AtomicU64; MAX_DEVICES] = [const { AtomicU64::new(0) }; MAX_DEVICES];
/// Allocations of device memory so far.
pub(crate) static ALLOCATIONS: [AtomicU64; MAX_DEVICES] = [const { AtomicU64::new(0) }; MAX_DEVICES];

fn fence_bytes() -> usize {
    // AddressSanitizer has fences of its own.
    if kernels::address_sanitizer() { 0 } else { FENCE_BYTES }
}

/// Whether so many bytes all are this.
fn all_are(base: u64, bytes: usize, byte: i32) -> bool {
    if bytes == 0 {
        return true;
    }
    let first = base as *const u8;
    // SAFETY: the memory is this module's. Comparing it with itself, one byte on, is quick in every build.
    unsafe { i32::from(*first) == byte && libc::memcmp(first.cast(), first.add(1).cast(), bytes - 1) == 0 }
}

pub(crate) fn total(device: usize) -> usize {
    usize::try_from(Setting::memory.of(device)).unwrap_or(0)
}

pub(crate) fn used(device: usize) -> usize {
    usize::try_from(PLAIN[device].load(SeqCst)).unwrap_or(usize::MAX) + pool::reserved(device)
}

/// Device memory outside pools, or of one.
pub(crate) fn allocate(owner: usize, bytes: usize, pool: Option<Arc<Pool>>) -> Outcome<u64> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    if injected(owner) {
        return Err(OUT_OF_MEMORY);
    }
    let room = || match &pool {
        Some(pool) => pool.grow(bytes, total(owner), used(owner)),
        None => {
            let fits = used(owner).checked_add(bytes).is_some_and(|all| all <= total(owner));
            if fits {
                PLAIN[owner].fetch_add(bytes as u64, SeqCst);
            }
            fits
        }
    };
    if !room() {
        // What streams are about to free is there once they have.
        stream::drain(device(owner));
        pool::trim_to(owner, 0);
        if !room() {
            return Err(OUT_OF_MEMORY);
        }
    }
    ALLOCATIONS[owner].fetch_add(1, SeqCst);
    add(owner, bytes, pool.map_or(Kind::Device, Kind::Pool))
}

fn injected(owner: usize) -> bool {
    static FAILING: [AtomicU64; MAX_DEVICES] = [const { AtomicU64::new(0) }; MAX_DEVICES];
    if Setting::fail_alloc.due(owner) {
        let more = Setting::fail_alloc_count.of(owner).max(1) - 1;
        FAILING[owner].store(u64::try_from(more).unwrap_or(0), SeqCst);
        return true;
    }
    // A setting made anew ends what the last one began.
    if Setting::fail_alloc.of(owner) > 0 {
        FAILING[owner].store(0, SeqCst);
    }
    FAILING[owner].fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
}

pub(crate) fn allocate_host(owner: usize, bytes: usize) -> Outcome<u64> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    if Setting::fail_host_alloc.due(owner) {
        return Err(OUT_OF_MEMORY);
    }
    add(owner, bytes, Kind::Host)
}

fn add(owner: usize, bytes: usize, kind: Kind) -> Outcome<u64> {
    let mut place = std::ptr::null_mut();
    let fence = fence_bytes();
    // SAFETY: a plain allocation, filled within its bounds.
    unsafe {
        let whole = bytes.checked_add(fence).ok_or(OUT_OF_MEMORY)?;
        if libc::posix_memalign(&raw mut place, 512, whole) != 0 {
            return Err(OUT_OF_MEMORY);
        }
        libc::memset(place, NEW, bytes);
        libc::memset(place.byte_add(bytes), FENCE, fence);
    }
    kernels::host_order();
    let base = place as u64;
    let new = Allocation { base, bytes, device: owner, kind, pending: 0, leaving: false, dead: false };
    lock(&MEMORY).live.insert(base, new);
    Ok(base)
}

/// The allocation that an address lies in.
pub(crate) fn find(address: u64) -> Option<Allocation> {
    let memory = lock(&MEMORY);
    let (_, found) = memory.live.range(..=address).next_back()?;
    (address - found.base < found.bytes as u64 && !found.dead).then(|| found.clone())
}

/// The base of the allocation that a range lies in. It is a violation if there is none, or if it is about to be freed.
pub(crate) fn check(what: &str, address: u64, bytes: usize) -> Outcome<u64> {
    let found = find(address);
    let inside = |found: &Allocation| bytes as u64 <= found.base + found.bytes as u64 - address;
    match found {
        Some(found) if found.leaving => {
            violation(format!("{what}: memory is used after its free has been enqueued"));
            Err(INVALID_VALUE)
        }
        Some(found) if inside(&found) => Ok(found.base),
        Some(found) => {
            let at = address - found.base;
            violation(format!("{what}: {bytes} bytes at byte {at} of an allocation of {} bytes", found.bytes));
            Err(INVALID_VALUE)
        }
        None => {
            violation(format!("{what}: {address:#x} is no address of an allocation"));
            Err(INVALID_VALUE)
        }
    }
}

pub(crate) fn begin_use(bases: &[u64]) {
    if bases.is_empty() {
        return;
    }
    let mut memory = lock(&MEMORY);
    for base in bases {
        if let Some(found) = memory.live.get_mut(base) {
            found.pending += 1;
        }
    }
}

pub(crate) fn end_use(bases: &[u64]) {
    if bases.is_empty() {
        return;
    }
    let mut memory = lock(&MEMORY);
    for base in bases {
        let Some(found) = memory.live.get_mut(base) else { continue };
        found.pending = found.pending.saturating_sub(1);
        if found.dead && found.pending == 0 {
            let found = found.clone();
            memory.live.remove(base);
            memory.bury(&found);
        }
    }
}

/// A free is enqueued: from now on nothing may use the memory.
pub(crate) fn leave(base: u64) -> Outcome {
    match lock(&MEMORY).live.get_mut(&base) {
        Some(found) if !found.leaving && !found.dead && !matches!(found.kind, Kind::Host) => {
            found.leaving = true;
            Ok(())
        }
        _ => {
            violation(format!("free of {base:#x}, which is no allocation, or is freed already"));
            Err(INVALID_VALUE)
        }
    }
}

/// Frees memory now. What other streams still have to do with it is a violation.
pub(crate) fn free(base: u64) -> Outcome {
    kernels::host_order();
    let mut memory = lock(&MEMORY);
    let Some(found) = memory.live.get_mut(&base).filter(|found| !found.dead) else {
        drop(memory);
        violation(format!("free of {base:#x}, which is no allocation"));
        return Err(INVALID_VALUE);
    };
    let gone = found.clone();
    match &gone.kind {
        Kind::Device => {
            PLAIN[gone.device].fetch_sub(gone.bytes as u64, SeqCst);
        }
        Kind::Pool(pool) => pool.shrink(gone.bytes),
        Kind::Host => {}
    }
    if gone.pending > 0 {
        found.dead = true;
        // SAFETY: the memory lives until the last operation that uses it has ended.
        unsafe { libc::memset(base as *mut _, FREED, gone.bytes) };
        drop(memory);
        violation(format!("{} bytes are freed while {} operations still use them", gone.bytes, gone.pending));
        device(gone.device).fail(ILLEGAL_ADDRESS);
        return Ok(());
    }
    memory.live.remove(&base);
    memory.bury(&gone);
    Ok(())
}

impl Memory {
    fn bury(&mut self, gone: &Allocation) {
        let fence = fence_bytes();
        if !all_are(gone.base + gone.bytes as u64, fence, FENCE) {
            violation(format!("memory behind an allocation of {} bytes was overwritten", gone.bytes));
            device(gone.device).fail(ILLEGAL_ADDRESS);
        }
        // SAFETY: nothing uses the memory any more.
        unsafe { libc::memset(gone.base as *mut _, FREED, gone.bytes) };
        if fence == 0 {
            // AddressSanitizer keeps it itself.
            // SAFETY: allocated by `add`.
            unsafe { libc::free(gone.base as *mut _) };
            return;
        }
        self.kept.push_back((gone.base, gone.bytes));
        self.kept_bytes += gone.bytes;
        while self.kept_bytes > KEPT {
            let Some((base, bytes)) = self.kept.pop_front() else { break };
            self.kept_bytes -= bytes;
            unwritten(base, bytes);
            // SAFETY: allocated by `add`.
            unsafe { libc::free(base as *mut _) };
        }
    }
}

fn unwritten(base: u64, bytes: usize) {
    if !all_are(base, bytes, FREED) {
        violation(format!("freed memory of {bytes} bytes was written"));
    }
}

/// Looks at everything that is freed and everything that is not.
pub(crate) fn audit() {
    let memory = lock(&MEMORY);
    for &(base, bytes) in &memory.kept {
        unwritten(base, bytes);
    }
    for found in memory.live.values() {
        if !all_are(found.base + found.bytes as u64, fence_bytes(), FENCE) {
            violation(format!("memory behind an allocation of {} bytes is overwritten", found.bytes));
        }
    }
}

/// Allocations of a device, of host memory too.
pub(crate) fn live(owner: usize) -> usize {
    lock(&MEMORY).live.values().filter(|found| found.device == owner && !found.dead).count()
}

/// Bytes of a device's memory that are allocated.
pub(crate) fn live_bytes(owner: usize) -> usize {
    let memory = lock(&MEMORY);
    let of =
        memory.live.values().filter(|found| found.device == owner && !found.dead && !matches!(found.kind, Kind::Host));
    of.map(|found| found.bytes).sum()
}

pub(crate) fn live_host(owner: usize) -> usize {
    let memory = lock(&MEMORY);
    memory.live.values().filter(|found| found.device == owner && matches!(found.kind, Kind::Host)).count()
}

/// The context ends: its memory goes.
pub(crate) fn free_all(owner: usize) {
    let mut memory = lock(&MEMORY);
    let gone: Vec<Allocation> = memory.live.values().filter(|found| found.device == owner).cloned().collect();
    for found in gone {
        memory.live.remove(&found.base);
        memory.bury(&found);
    }
    PLAIN[owner].store(0, SeqCst);
}
