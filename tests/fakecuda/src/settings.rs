//! What can be set, in the environment as `LRMOE_FAKE_CUDA_<NAME>` and by `lrmoe_fake_set`: for all devices, or `name@2` for one.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

/// Devices at most.
pub(crate) const MAX_DEVICES: usize = 8;

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident = $default:expr;)*) => {
        #[derive(Clone, Copy)]
        #[allow(non_camel_case_types, reason = "the names are those of the environment, in small letters")]
        pub(crate) enum Setting { $($(#[$doc])* $name),* }

        const NAMES: &[(&str, i64)] = &[$((stringify!($name), $default)),*];
    };
}

settings! {
    /// Devices there are.
    devices = 1;
    /// Compute capability.
    major = 9;
    minor = 0;
    /// CUDA version of the driver.
    driver = 13_000;
    /// Bytes of a device's memory.
    memory = 4 << 30;
    multiprocessors = 4;
    /// Shared memory that a block may ask for.
    shared = 232_448;
    /// Whether there are stream-ordered pools.
    pools = 1;
    /// Each operation of a stream waits for up to so long, in microseconds.
    jitter_us = 0;
    /// The n-th allocation of device memory from now on fails; 0: none.
    fail_alloc = 0;
    /// And so many after it: 1 is that one alone.
    fail_alloc_count = 1;
    /// The n-th allocation of host memory from now on fails.
    fail_host_alloc = 0;
    /// The n-th kernel launch from now on fails while it runs.
    fail_launch = 0;
    /// With this error: CUDA_ERROR_LAUNCH_FAILED.
    fail_launch_code = 719;
    /// The device is lost after n operations of its streams from now on, that is, at the n-th.
    lose_after = 0;
    /// With this error: CUDA_ERROR_UNKNOWN.
    lose_code = 999;
    /// Whether cubins have to be for the device's architecture.
    check_arch = 1;
}

static VALUES: LazyLock<Vec<[AtomicI64; MAX_DEVICES]>> = LazyLock::new(|| {
    let from_environment = |name: &str, default: i64| {
        let text = std::env::var(format!("LRMOE_FAKE_CUDA_{}", name.to_uppercase())).ok();
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(default)
    };
    NAMES
        .iter()
        .map(|&(name, default)| {
            let value = from_environment(name, default);
            std::array::from_fn(|_| AtomicI64::new(value))
        })
        .collect()
});

impl Setting {
    /// Of a device.
    pub(crate) fn of(self, device: usize) -> i64 {
        VALUES[self as usize][device.min(MAX_DEVICES - 1)].load(SeqCst)
    }

    /// Counts down to an event: true where this call is the one.
    pub(crate) fn due(self, device: usize) -> bool {
        let value = &VALUES[self as usize][device.min(MAX_DEVICES - 1)];
        value.fetch_update(SeqCst, SeqCst, |left| (left > 0).then(|| left - 1)) == Ok(1)
    }
}

fn split(name: &str) -> Option<(usize, Option<usize>)> {
    let (name, device) = match name.split_once('@') {
        Some((name, device)) => (name, Some(device.parse().ok().filter(|&device| device < MAX_DEVICES)?)),
        None => (name, None),
    };
    Some((NAMES.iter().position(|(known, _)| *known == name)?, device))
}

/// Sets by name; false where there is no such setting.
pub(crate) fn set(name: &str, value: i64) -> bool {
    let Some((setting, device)) = split(name) else { return false };
    for (index, slot) in VALUES[setting].iter().enumerate() {
        if device.is_none_or(|device| device == index) {
            slot.store(value, SeqCst);
        }
    }
    true
}

/// By name; of device 0 where it names none.
pub(crate) fn get(name: &str) -> Option<i64> {
    let (setting, device) = split(name)?;
    Some(VALUES[setting][device.unwrap_or(0)].load(SeqCst))
}

/// How many devices there are.
pub(crate) fn devices() -> usize {
    usize::try_from(Setting::devices.of(0)).unwrap_or(0).min(MAX_DEVICES)
}
