//! Backends: how a [`Recording`] is run. They know nothing of Mixture-of-Experts layers.

#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod bytes;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod devices;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod dispatch;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod faults;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod known;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod pending;
mod pool;
#[cfg(feature = "wgpu")]
pub mod wgpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod workspace;

pub use devices::{AnyBackend, Choice, Device, OnBackend, choose, devices};

use std::future::Future;
use std::time::Duration;

use crate::memory::{Accountant, Category};
use crate::tensor::{DType, HostData};
use crate::{Error, Recording, Result};

/// What a backend can do. Absence is said with a reason, not found out by a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caps {
    /// Backend name: `cpu`, `wgpu`, `cuda`.
    pub backend: &'static str,
    /// Device, instruction set, threads, driver: for people.
    pub device: String,
    /// Element types that weights and activations may be stored in.
    pub storage: Vec<DType>,
    /// Largest buffer in bytes.
    pub max_buffer_bytes: u64,
}

/// Handle of device memory: a cheap clone that knows its length and element type.
pub trait Buffer: Clone + Send + Sync + std::fmt::Debug + 'static {
    /// Elements.
    fn len(&self) -> usize;
    /// Element type.
    fn dtype(&self) -> DType;
    /// What the buffer was allocated as.
    fn name(&self) -> &str;
    /// Whether the two handles have an element in common.
    fn shares_memory(&self, other: &Self) -> bool;
    /// Whether there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Executes recordings on one device.
///
/// All calls may come from any thread. Commands of one recording take effect in order; two recordings that touch the
/// same buffer must be submitted one after the other.
pub trait Backend: Clone + Send + Sync + std::fmt::Debug + 'static {
    /// Device memory.
    type Buffer: Buffer;
    /// A submitted recording.
    type Fence: Send + std::fmt::Debug;

    /// What this device can do.
    fn caps(&self) -> &Caps;

    /// The account of every byte this backend has handed out.
    fn memory(&self) -> &Accountant;

    /// Memory of undefined content.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] before the budget is passed, [`Error::SystemMemory`] where the system has less than the
    /// budget, [`Error::Overflow`] for absurd sizes.
    fn alloc(&self, name: &str, dtype: DType, len: usize, category: Category) -> Result<Self::Buffer>;

    /// Takes over host memory, without a copy where the device can use it in place.
    ///
    /// # Errors
    /// As [`Backend::alloc`].
    fn import(&self, name: &str, data: HostData, category: Category) -> Result<Self::Buffer>;

    /// Overwrites elements `offset..offset + data.len()`.
    ///
    /// # Errors
    /// [`Error::Shape`] where type or range do not fit.
    fn upload(&self, buffer: &Self::Buffer, offset: usize, data: &HostData) -> Result<()>;

    /// Starts a recording. It may still run when this returns; errors come here or at the next call that waits.
    ///
    /// # Errors
    /// [`Error::Shape`] where a buffer does not fit its kernel, and whatever the device reports.
    fn submit(&self, recording: &Recording<Self::Buffer>) -> Result<Self::Fence>;

    /// Waits until a recording has run.
    ///
    /// # Errors
    /// What went wrong while it ran.
    fn wait(&self, fence: &Self::Fence) -> Result<()>;

    /// Copies elements to the host, after everything submitted before.
    ///
    /// # Errors
    /// [`Error::Shape`] for a range outside the buffer, and what went wrong on the device.
    fn read(
        &self,
        buffer: &Self::Buffer,
        range: std::ops::Range<usize>,
    ) -> impl Future<Output = Result<HostData>> + Send;

    /// Time of each command of a finished recording; `None` where it was not measured.
    fn timings(&self, fence: &Self::Fence) -> Option<Vec<Duration>>;

    /// [`Backend::read`] of the whole buffer, blocking.
    ///
    /// # Errors
    /// As [`Backend::read`].
    fn read_blocking(&self, buffer: &Self::Buffer) -> Result<HostData> {
        pollster::block_on(self.read(buffer, 0..buffer.len()))
    }
}

/// Elements of a row-major array, checked against overflow.
///
/// # Errors
/// [`Error::Overflow`] naming the array and its factors.
pub(crate) fn elements(what: &str, factors: &[usize]) -> Result<usize> {
    factors
        .iter()
        .try_fold(1usize, |product, &factor| product.checked_mul(factor))
        .filter(|&product| product <= isize::MAX as usize / 8)
        .ok_or_else(|| Error::Overflow {
            what: what.to_owned(),
            detail: format!("{factors:?} multiplied do not fit the address space"),
        })
}

/// Refuses elements `offset..offset + len` that are not all in the buffer.
fn check_range(buffer: &impl Buffer, offset: usize, len: usize) -> Result<()> {
    if offset.checked_add(len).is_none_or(|end| end > buffer.len()) {
        return Err(Error::shape(
            format!("range of `{}`", buffer.name()),
            format!("{offset}..{offset}+{len}"),
            format!("within 0..{}", buffer.len()),
        ));
    }
    Ok(())
}

/// Refuses elements for `offset..` that are not all in the buffer, or of another type.
fn check_upload(buffer: &impl Buffer, offset: usize, data: &HostData) -> Result<()> {
    check_range(buffer, offset, data.len())?;
    if buffer.dtype() != data.dtype() {
        return Err(Error::shape("element type of a copy", data.dtype(), buffer.dtype()));
    }
    Ok(())
}

/// Length of a range of elements that lies within the buffer.
fn range_len(buffer: &impl Buffer, range: &std::ops::Range<usize>) -> Result<usize> {
    let Some(len) = range.end.checked_sub(range.start) else {
        let what = format!("range of `{}`", buffer.name());
        return Err(Error::shape(what, format!("{range:?}"), "a start not above its end"));
    };
    check_range(buffer, range.start, len)?;
    Ok(len)
}

/// Refuses a buffer of fewer elements.
fn check_len(buffer: &impl Buffer, needed: usize) -> Result<()> {
    if buffer.len() < needed {
        let what = format!("length of `{}`", buffer.name());
        return Err(Error::shape(what, buffer.len(), format!("at least {needed}")));
    }
    Ok(())
}

/// The error for a buffer of another element type.
fn wrong_type(buffer: &impl Buffer, expected: &str) -> Error {
    Error::shape(format!("element type of `{}`", buffer.name()), buffer.dtype(), expected)
}

/// What rows of an index are divided by.
fn divisor(name: &str, value: usize) -> Result<u32> {
    match u32::try_from(value) {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(Error::argument(name, value, "1 to 2^32 - 1")),
    }
}
