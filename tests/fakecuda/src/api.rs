//! What every entry point does first: counts the call, looks whether the driver is ready and the context alive, and keeps panics in.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::{self, Device};

pub(crate) type Code = u32;
pub(crate) type Outcome<T = ()> = Result<T, Code>;

pub(crate) const OK: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const NOT_INITIALIZED: Code = 3;
pub(crate) const NO_DEVICE: Code = 100;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_IMAGE: Code = 200;
pub(crate) const INVALID_CONTEXT: Code = 201;
pub(crate) const NO_BINARY_FOR_GPU: Code = 209;
pub(crate) const FILE_NOT_FOUND: Code = 301;
pub(crate) const OPERATING_SYSTEM: Code = 304;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const NOT_FOUND: Code = 500;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const ILLEGAL_ADDRESS: Code = 700;
pub(crate) const LAUNCH_OUT_OF_RESOURCES: Code = 701;
pub(crate) const CONTEXT_IS_DESTROYED: Code = 709;
pub(crate) const MISALIGNED_ADDRESS: Code = 716;
pub(crate) const LAUNCH_FAILED: Code = 719;
pub(crate) const NOT_PERMITTED: Code = 800;
pub(crate) const NOT_SUPPORTED: Code = 801;
pub(crate) const UNKNOWN: Code = 999;

/// What an entry point needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing, not even `cuInit`.
    Nothing,
    /// `cuInit`.
    Driver,
    /// A context that is current and has not failed.
    Context,
}

pub(crate) static INITIALIZED: AtomicBool = AtomicBool::new(false);
static CALLS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());
static VIOLATIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

thread_local! {
    /// The contexts that this thread has made current, the topmost last: devices, since only primary contexts are known.
    pub(crate) static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
    /// Whether this thread runs a host function of a stream, in which no call is allowed.
    pub(crate) static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// A lock that a panic elsewhere does not close.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs an entry point.
pub(crate) fn enter(name: &'static str, needs: Needs, body: impl FnOnce() -> Outcome) -> Code {
    let run = || {
        *lock(&CALLS).entry(name).or_insert(0) += 1;
        if IN_HOST_FUNCTION.get() && needs != Needs::Nothing {
            violation(format!("{name} is called in a host function of a stream"));
            return Err(NOT_PERMITTED);
        }
        if needs != Needs::Nothing && !INITIALIZED.load(SeqCst) {
            return Err(NOT_INITIALIZED);
        }
        if needs == Needs::Context {
            current()?.alive()?;
        }
        body()
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => OK,
        Ok(Err(code)) => code,
        Err(_) => {
            violation(format!("{name} panicked"));
            UNKNOWN
        }
    }
}

/// The device whose context is current.
pub(crate) fn current() -> Outcome<&'static Device> {
    let device = device::device(CURRENT.get().ok_or(INVALID_CONTEXT)?);
    if device.is_active() { Ok(device) } else { Err(CONTEXT_IS_DESTROYED) }
}

/// Notes what a real driver would have let pass.
pub(crate) fn violation(text: String) {
    eprintln!("fake CUDA: {text}");
    lock(&VIOLATIONS).push(text);
}

/// Everything noted so far.
pub(crate) fn violations() -> Vec<String> {
    lock(&VIOLATIONS).clone()
}

pub(crate) fn forget_violations() {
    lock(&VIOLATIONS).clear();
}

/// How often an entry point was called; all of them without a name.
pub(crate) fn calls(name: &str) -> u64 {
    let calls = lock(&CALLS);
    if name.is_empty() { calls.values().sum() } else { calls.get(name).copied().unwrap_or(0) }
}

/// Writes through a pointer that a caller has given; null is refused.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Outcome {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller of the driver gives a place for it.
    unsafe { to.write(value) };
    Ok(())
}

/// Entry points: `fn name(arguments) Needs { body }`, the body giving an [`Outcome`].
macro_rules! api {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $needs:ident $body:block)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::api::Code {
            $crate::api::enter(stringify!($name), $crate::api::Needs::$needs, || {
                // SAFETY: whoever calls the driver keeps its rules.
                #[allow(unused_unsafe, reason = "not every body needs it")]
                unsafe { $body }
            })
        }
    )* };
}
pub(crate) use api;
