//! Stream-ordered pools: they reserve memory in large pieces and keep it up to their threshold.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, LazyLock, Mutex, Weak};

use crate::api::{INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, Outcome, api, current, lock, put};
use crate::memory;
use crate::settings::{MAX_DEVICES, Setting, devices};
use crate::stream::{Job, Owned, Registry, stream_of};

/// Pools grow by multiples of it.
const PIECE: usize = 2 << 20;

pub(crate) static POOLS: Registry<Pool> = Registry::new();
/// Of every device: its default pool, and the one that is current.
static DEFAULTS: [Mutex<Option<(usize, usize)>>; MAX_DEVICES] = [const { Mutex::new(None) }; MAX_DEVICES];
/// Every pool there is, those without a handle too: memory of a destroyed pool stays reserved until it is freed.
static ALL: LazyLock<Mutex<Vec<Weak<Pool>>>> = LazyLock::new(Mutex::default);

/// A pool of a device.
pub(crate) struct Pool {
    owner: usize,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    used: usize,
    used_high: usize,
    reserved: usize,
    reserved_high: usize,
    threshold: u64,
    reuse: [c_int; 3],
}

impl Owned for Pool {
    fn owner(&self) -> usize {
        self.owner
    }
}

/// What `cuMemPoolCreate` is told, as the driver's header lays it out.
#[repr(C)]
pub struct Props {
    alloc_type: c_uint,
    handle_types: c_uint,
    location_type: c_uint,
    location_id: c_int,
    security_attributes: *mut c_void,
    max_size: usize,
    usage: u16,
    reserved: [u8; 54],
}

impl Pool {
    fn new(owner: usize) -> Arc<Self> {
        let pool = Arc::new(Self { owner, counts: Mutex::new(Counts { reuse: [1; 3], ..Counts::default() }) });
        lock(&ALL).push(Arc::downgrade(&pool));
        pool
    }

    /// Makes room for an allocation, where the device has it.
    pub(crate) fn grow(&self, bytes: usize, total: usize, used: usize) -> bool {
        let mut counts = lock(&self.counts);
        let Some(needed) = counts.used.checked_add(bytes) else { return false };
        if needed > counts.reserved {
            let more = (needed - counts.reserved).min(total);
            let more = more.next_multiple_of(PIECE);
            // The last piece may be a smaller one.
            let left = total.saturating_sub(used);
            let more = if more > left && needed - counts.reserved <= left { left } else { more };
            if more > left {
                return false;
            }
            counts.reserved += more;
            counts.reserved_high = counts.reserved_high.max(counts.reserved);
        }
        counts.used = needed;
        counts.used_high = counts.used_high.max(needed);
        true
    }

    pub(crate) fn shrink(&self, bytes: usize) {
        let mut counts = lock(&self.counts);
        counts.used = counts.used.saturating_sub(bytes);
    }

    fn trim(&self, keep: usize) {
        let mut counts = lock(&self.counts);
        let least = counts.used.max(keep);
        counts.reserved = counts.reserved.min(least.next_multiple_of(PIECE).max(counts.used));
    }
}

fn all_of(owner: usize) -> Vec<Arc<Pool>> {
    let mut all = lock(&ALL);
    all.retain(|pool| pool.strong_count() > 0);
    all.iter().filter_map(Weak::upgrade).filter(|pool| pool.owner == owner).collect()
}

/// Bytes that the pools of a device hold.
pub(crate) fn reserved(owner: usize) -> usize {
    all_of(owner).iter().map(|pool| lock(&pool.counts).reserved).sum()
}

/// Whoever waits for a stream gives back what pools hold beyond their threshold.
pub(crate) fn trim_all(owner: usize) {
    for pool in all_of(owner) {
        let threshold = lock(&pool.counts).threshold;
        pool.trim(usize::try_from(threshold).unwrap_or(usize::MAX / 2).min(usize::MAX / 2));
    }
}

pub(crate) fn trim_to(owner: usize, keep: usize) {
    for pool in all_of(owner) {
        pool.trim(keep);
    }
}

fn defaults(owner: usize) -> (usize, usize) {
    *lock(&DEFAULTS[owner]).get_or_insert_with(|| {
        let handle = POOLS.add(Pool::new(owner));
        (handle, handle)
    })
}

/// Whether a pool is a device's own, which nobody destroys.
pub(crate) fn own_pools(owner: usize) -> usize {
    usize::from(lock(&DEFAULTS[owner]).is_some())
}

pub(crate) fn forget_default(owner: usize) {
    *lock(&DEFAULTS[owner]) = None;
}

fn supported(owner: usize) -> Outcome {
    if Setting::pools.of(owner) > 0 { Ok(()) } else { Err(NOT_SUPPORTED) }
}

fn existing(ordinal: c_int) -> Outcome<usize> {
    let ordinal = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
    if ordinal >= devices() {
        return Err(INVALID_DEVICE);
    }
    supported(ordinal)?;
    Ok(ordinal)
}

fn allocate(to: *mut u64, bytes: usize, pool: usize, stream: usize) -> Outcome {
    let stream = stream_of(stream)?;
    supported(stream.owner())?;
    let pool = POOLS.get(pool)?;
    if pool.owner != stream.owner() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller of the driver gives a place for it.
    unsafe { put(to, memory::allocate(stream.owner(), bytes, Some(pool))?) }
}

api! {
    fn cuMemPoolCreate(to: *mut usize, props: *const Props) Context {
        let device = current()?;
        supported(device.ordinal)?;
        if props.is_null() {
            return Err(INVALID_VALUE);
        }
        let props = &*props;
        const PINNED: c_uint = 1;
        const ON_DEVICE: c_uint = 1;
        if props.alloc_type != PINNED || props.location_type != ON_DEVICE || props.reserved.iter().any(|&byte| byte != 0) {
            return Err(INVALID_VALUE);
        }
        put(to, POOLS.add(Pool::new(existing(props.location_id)?)))
    }

    fn cuMemPoolDestroy(pool: usize) Context {
        if (0..devices()).any(|owner| lock(&DEFAULTS[owner]).is_some_and(|(default, _)| default == pool)) {
            return Err(INVALID_VALUE);
        }
        POOLS.remove(pool).map(|_| ())
    }

    fn cuMemPoolTrimTo(pool: usize, keep: usize) Context {
        POOLS.get(pool)?.trim(keep);
        Ok(())
    }

    fn cuMemPoolSetAttribute(pool: usize, attribute: c_uint, value: *mut c_void) Context {
        let pool = POOLS.get(pool)?;
        if value.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut counts = lock(&pool.counts);
        match attribute {
            1..=3 => counts.reuse[attribute as usize - 1] = value.cast::<c_int>().read(),
            4 => counts.threshold = value.cast::<u64>().read(),
            // High-water marks can be reset, and nothing else.
            6 if value.cast::<u64>().read() == 0 => counts.reserved_high = counts.reserved,
            8 if value.cast::<u64>().read() == 0 => counts.used_high = counts.used,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: usize, attribute: c_uint, value: *mut c_void) Context {
        let pool = POOLS.get(pool)?;
        let counts = lock(&pool.counts);
        match attribute {
            1..=3 => put(value.cast(), counts.reuse[attribute as usize - 1]),
            4 => put(value.cast(), counts.threshold),
            5 => put(value.cast(), counts.reserved as u64),
            6 => put(value.cast(), counts.reserved_high as u64),
            7 => put(value.cast(), counts.used as u64),
            8 => put(value.cast(), counts.used_high as u64),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuDeviceGetDefaultMemPool(to: *mut usize, ordinal: c_int) Driver {
        put(to, defaults(existing(ordinal)?).0)
    }

    fn cuDeviceGetMemPool(to: *mut usize, ordinal: c_int) Driver {
        put(to, defaults(existing(ordinal)?).1)
    }

    fn cuDeviceSetMemPool(ordinal: c_int, pool: usize) Driver {
        let owner = existing(ordinal)?;
        if POOLS.get(pool)?.owner != owner {
            return Err(INVALID_VALUE);
        }
        let default = defaults(owner).0;
        *lock(&DEFAULTS[owner]) = Some((default, pool));
        Ok(())
    }

    fn cuMemAllocFromPoolAsync(to: *mut u64, bytes: usize, pool: usize, stream: usize) Context {
        allocate(to, bytes, pool, stream)
    }

    fn cuMemAllocAsync(to: *mut u64, bytes: usize, stream: usize) Context {
        let owner = current()?.ordinal;
        supported(owner)?;
        allocate(to, bytes, defaults(owner).1, stream)
    }

    fn cuMemFreeAsync(address: u64, stream: usize) Context {
        let stream = stream_of(stream)?;
        memory::leave(address)?;
        stream.push(Job::always(move || {
            let _ = memory::free(address);
        }))?;
        Ok(())
    }
}
