//! Device memory: pooled, or borrowed from a host application at an offset.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::context::Context;
use super::pipelines::BindGroups;
use crate::backend::Buffer;
use crate::backend::known::Same;
use crate::backend::pool::Piece;
use crate::tensor::DType;
use crate::{Error, Result};

/// Memory of the wgpu backend.
#[derive(Debug, Clone)]
pub struct WgpuBuffer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    len: usize,
    dtype: DType,
    /// Byte at which the elements begin.
    offset: u64,
    memory: Owner,
}

#[derive(Debug)]
enum Owner {
    Pool(Piece<Memory>),
    Host(Memory),
}

/// A buffer of the device.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) buffer: wgpu::Buffer,
    /// Tells buffers apart in keys of bind groups.
    pub(super) id: u64,
    /// [`Context::id`] of its device.
    pub(super) device: u64,
    groups: Weak<BindGroups>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(groups) = self.groups.upgrade() {
            groups.forget(self.id);
        }
    }
}

/// What owned buffers may be used for.
pub(super) const USAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

static NEXT: AtomicU64 = AtomicU64::new(0);

impl Memory {
    /// New memory of whole words.
    pub(super) fn new(context: &Context, groups: &Arc<BindGroups>, name: &str, bytes: u64) -> Result<Self> {
        let limit = context.device.limits().max_buffer_size;
        let size = bytes.max(4).checked_next_multiple_of(16).filter(|&size| size <= limit).ok_or_else(|| {
            let why = format!("buffers of this device hold at most {limit} bytes");
            Error::Unsupported { what: format!("`{name}` of {bytes} bytes"), why }
        })?;
        let descriptor = wgpu::BufferDescriptor { label: Some(name), size, usage: USAGE, mapped_at_creation: false };
        let made = context.scoped("alloc", || context.device.create_buffer(&descriptor));
        let buffer = made.map_err(|error| match error {
            Error::Device { reason, .. } if reason.to_lowercase().contains("memory") => {
                Error::SystemMemory { name: name.to_owned(), asked: bytes }
            }
            other => other,
        })?;
        Ok(Self::of(buffer, context, groups))
    }

    pub(super) fn of(buffer: wgpu::Buffer, context: &Context, groups: &Arc<BindGroups>) -> Self {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { buffer, id, device: context.id, groups: Arc::downgrade(groups) }
    }
}

impl Buffer for WgpuBuffer {
    fn len(&self) -> usize {
        self.shared.len
    }

    fn dtype(&self) -> DType {
        self.shared.dtype
    }

    fn name(&self) -> &str {
        &self.shared.name
    }

    fn shares_memory(&self, other: &Self) -> bool {
        let (a, b) = (self.bytes(), other.bytes());
        let (mine, its) = (self.memory(), other.memory());
        mine.device == its.device && mine.buffer == its.buffer && a.start < b.end && b.start < a.end
    }
}

impl Same for WgpuBuffer {
    fn is(&self, other: &Self) -> bool {
        self.memory().id == other.memory().id && self.bytes() == other.bytes()
    }
}

impl WgpuBuffer {
    pub(super) fn pooled(name: &str, dtype: DType, len: usize, piece: Piece<Memory>) -> Self {
        Self::new(name, dtype, len, 0, Owner::Pool(piece))
    }

    pub(super) fn borrowed(name: &str, dtype: DType, len: usize, offset: u64, memory: Memory) -> Self {
        Self::new(name, dtype, len, offset, Owner::Host(memory))
    }

    fn new(name: &str, dtype: DType, len: usize, offset: u64, memory: Owner) -> Self {
        Self { shared: Arc::new(Shared { name: name.to_owned(), len, dtype, offset, memory }) }
    }

    pub(super) fn memory(&self) -> &Memory {
        match &self.shared.memory {
            Owner::Pool(piece) => piece,
            Owner::Host(memory) => memory,
        }
    }

    /// Byte at which the elements begin.
    pub(super) fn offset(&self) -> u64 {
        self.shared.offset
    }

    /// Bytes of the elements within the device's buffer.
    pub(super) fn bytes(&self) -> std::ops::Range<u64> {
        let bytes = (self.shared.len * self.shared.dtype.bytes()) as u64;
        self.shared.offset..self.shared.offset + bytes
    }

    /// Whether four elements can be loaded at once from element 0 on.
    pub(crate) fn vec4_ok(&self) -> bool {
        self.shared.len >= 4 && self.shared.offset.is_multiple_of(4 * self.shared.dtype.bytes() as u64)
    }

    /// Whole rows of `cols` elements that the buffer holds; 0 for `cols = 0`.
    pub(crate) fn len_rows(&self, cols: usize) -> usize {
        self.len().checked_div(cols).unwrap_or(0)
    }
}
