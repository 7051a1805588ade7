//! Devices and their primary contexts.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use crate::api::{
    CURRENT, Code, INITIALIZED, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, NOT_SUPPORTED, Outcome, api,
    current, lock, put,
};
use crate::settings::{MAX_DEVICES, Setting, devices};
use crate::stream::{self, Stream};
use crate::{event, memory, module, pool};

/// A device. Its address is the handle of its primary context, the only kind there is.
pub(crate) struct Device {
    pub(crate) ordinal: usize,
    users: AtomicUsize,
    /// The error that every call gives from now on.
    dead: AtomicU32,
    /// The stream without a handle.
    legacy: Mutex<Option<Arc<Stream>>>,
    /// Objects that were still there when the last user left.
    pub(crate) leaked: AtomicU64,
}

static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
    let device = |ordinal| Device {
        ordinal,
        users: AtomicUsize::new(0),
        dead: AtomicU32::new(0),
        legacy: Mutex::new(None),
        leaked: AtomicU64::new(0),
    };
    (0..MAX_DEVICES).map(device).collect()
});

pub(crate) fn device(ordinal: usize) -> &'static Device {
    &DEVICES[ordinal]
}

fn existing(ordinal: c_int) -> Outcome<&'static Device> {
    let ordinal = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
    if ordinal < devices() { Ok(device(ordinal)) } else { Err(INVALID_DEVICE) }
}

impl Device {
    pub(crate) fn is_active(&self) -> bool {
        self.users.load(SeqCst) > 0
    }

    /// The error that ended the context, if one did.
    pub(crate) fn alive(&self) -> Outcome {
        match self.dead.load(SeqCst) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Ends the context: the first error stays.
    pub(crate) fn fail(&self, code: Code) {
        let _ = self.dead.compare_exchange(0, code, SeqCst, SeqCst);
    }

    pub(crate) fn legacy(&'static self) -> Arc<Stream> {
        Arc::clone(lock(&self.legacy).get_or_insert_with(|| Stream::new(self, true)))
    }

    /// The same, where it has ever been used.
    pub(crate) fn legacy_if_used(&self) -> Option<Arc<Stream>> {
        lock(&self.legacy).clone()
    }

    fn handle(&'static self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// The last user leaves: everything goes, and what nobody gave back is counted.
    fn reset(&'static self) {
        stream::drain(self);
        let left = memory::live(self.ordinal)
            + stream::STREAMS.count(self.ordinal)
            + event::EVENTS.count(self.ordinal)
            + module::MODULES.count(self.ordinal)
            + pool::POOLS.count(self.ordinal)
            - pool::own_pools(self.ordinal);
        if self.alive().is_ok() {
            self.leaked.fetch_add(left as u64, SeqCst);
        }
        stream::STREAMS.clear(self.ordinal, |stream| stream.close());
        event::EVENTS.clear(self.ordinal, |_| ());
        module::FUNCTIONS.clear(self.ordinal, |_| ());
        module::MODULES.clear(self.ordinal, |_| ());
        if let Some(stream) = lock(&self.legacy).take() {
            stream.close();
        }
        memory::free_all(self.ordinal);
        pool::POOLS.clear(self.ordinal, |_| ());
        pool::forget_default(self.ordinal);
        self.dead.store(0, SeqCst);
    }

    fn attribute(&self, attribute: c_uint) -> c_int {
        let of = |setting: Setting| c_int::try_from(setting.of(self.ordinal)).unwrap_or(c_int::MAX);
        match attribute {
            1..=3 => 1024,
            4 => 64,
            5 => c_int::MAX,
            6 | 7 => 65_535,
            8 => 49_152,
            9 => 65_536,
            10 => 32,
            11 => c_int::MAX,
            12 | 82 => 65_536,
            13 => 1_000_000,
            14 => 512,
            16 => of(Setting::multiprocessors),
            33 => 1 + c_int::try_from(self.ordinal).unwrap_or(0),
            38 => 32 << 20,
            39 => 2048,
            75 => of(Setting::major),
            76 => of(Setting::minor),
            81 => of(Setting::shared) + 1024,
            97 => of(Setting::shared),
            106 => 32,
            111 => 1024,
            115 => of(Setting::pools),
            // Concurrent kernels, mapped host memory, unified addresses, stream memory operations, copy engines.
            15 | 19 | 31 | 40 | 41 | 79 | 80 | 92 | 93 | 94 | 122 | 123 | 124 => 1,
            _ => 0,
        }
    }
}

api! {
    fn cuInit(flags: c_uint) Nothing {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if devices() == 0 {
            return Err(NO_DEVICE);
        }
        INITIALIZED.store(true, SeqCst);
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int) Nothing {
        put(version, c_int::try_from(Setting::driver.of(0)).unwrap_or(0))
    }

    fn cuDeviceGetCount(count: *mut c_int) Driver {
        put(count, c_int::try_from(devices()).unwrap_or(0))
    }

    fn cuDeviceGet(to: *mut c_int, ordinal: c_int) Driver {
        existing(ordinal)?;
        put(to, ordinal)
    }

    fn cuDeviceGetName(to: *mut c_char, bytes: c_int, ordinal: c_int) Driver {
        existing(ordinal)?;
        let name = c"fake GPU whose kernels run on the CPU".to_bytes_with_nul();
        let bytes = usize::try_from(bytes).map_err(|_| INVALID_VALUE)?;
        if to.is_null() || bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let fits = bytes.min(name.len());
        std::ptr::copy_nonoverlapping(name.as_ptr().cast(), to, fits);
        to.add(fits - 1).write(0);
        Ok(())
    }

    fn cuDeviceGetUuid(to: *mut [u8; 16], ordinal: c_int) Driver {
        let device = existing(ordinal)?;
        put(to, [0xfa + u8::try_from(device.ordinal).unwrap_or(0); 16])
    }

    fn cuDeviceGetUuid_v2(to: *mut [u8; 16], ordinal: c_int) Driver {
        let device = existing(ordinal)?;
        put(to, [0xf0 + u8::try_from(device.ordinal).unwrap_or(0); 16])
    }

    fn cuDeviceTotalMem_v2(to: *mut usize, ordinal: c_int) Driver {
        put(to, memory::total(existing(ordinal)?.ordinal))
    }

    fn cuDeviceGetAttribute(to: *mut c_int, attribute: c_uint, ordinal: c_int) Driver {
        put(to, existing(ordinal)?.attribute(attribute))
    }

    fn cuDevicePrimaryCtxRetain(to: *mut usize, ordinal: c_int) Driver {
        let device = existing(ordinal)?;
        device.users.fetch_add(1, SeqCst);
        put(to, device.handle())
    }

    fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) Driver {
        let device = existing(ordinal)?;
        let left = device.users.fetch_update(SeqCst, SeqCst, |users| users.checked_sub(1));
        match left {
            Ok(1) => device.reset(),
            Ok(_) => {}
            Err(_) => return Err(INVALID_CONTEXT),
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(ordinal: c_int, flags: *mut c_uint, active: *mut c_int) Driver {
        let device = existing(ordinal)?;
        put(flags, 0)?;
        put(active, c_int::from(device.is_active()))
    }

    fn cuDevicePrimaryCtxSetFlags_v2(ordinal: c_int, _flags: c_uint) Driver {
        existing(ordinal).map(|_| ())
    }

    fn cuCtxCreate_v4(_to: *mut usize, _params: usize, _flags: c_uint, _ordinal: c_int) Driver {
        Err(NOT_SUPPORTED)
    }

    fn cuCtxGetCurrent(to: *mut usize) Driver {
        put(to, CURRENT.get().map_or(0, |ordinal| device(ordinal).handle()))
    }

    fn cuCtxSetCurrent(handle: usize) Driver {
        if handle == 0 {
            CURRENT.set(None);
            return Ok(());
        }
        let known = DEVICES.iter().find(|device| std::ptr::from_ref(*device) as usize == handle);
        let device = known.ok_or(INVALID_CONTEXT)?;
        if !device.is_active() {
            return Err(INVALID_CONTEXT);
        }
        CURRENT.set(Some(device.ordinal));
        Ok(())
    }

    fn cuCtxGetDevice(to: *mut c_int) Driver {
        put(to, c_int::try_from(current()?.ordinal).unwrap_or(0))
    }

    fn cuCtxGetApiVersion(_handle: usize, to: *mut c_uint) Driver {
        put(to, 3020)
    }

    fn cuCtxSetFlags(_flags: c_uint) Driver {
        current().map(|_| ())
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) Context {
        if !least.is_null() {
            least.write(0);
        }
        if !greatest.is_null() {
            greatest.write(-5);
        }
        Ok(())
    }

    fn cuCtxSynchronize() Context {
        let device = current()?;
        stream::drain(device);
        pool::trim_all(device.ordinal);
        device.alive()
    }
}
