//! Device memory: pooled, or borrowed from a host application.

use std::sync::Arc;

use super::context::Context;
use crate::backend::Buffer;
use crate::backend::known::Same;
use crate::backend::pool::Piece;
use crate::tensor::DType;
use crate::{Error, Result};

/// Memory of the CUDA backend.
#[derive(Debug, Clone)]
pub struct CudaBuffer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    len: usize,
    dtype: DType,
    address: u64,
    /// [`Context::id`].
    context: u64,
    /// Kept for its drop; none where the memory is a host's.
    _memory: Option<Piece<Memory>>,
}

/// An allocation of the device, given back in the order of the stream.
#[derive(Debug)]
pub(super) struct Memory {
    address: u64,
    context: Arc<Context>,
}

impl Memory {
    pub(super) fn new(context: &Arc<Context>, name: &str, bytes: u64) -> Result<Self> {
        let too_large = || Error::SystemMemory { name: name.to_owned(), asked: bytes };
        // The driver says "invalid value" for what no device has.
        if bytes > context.gpu.memory_bytes {
            return Err(too_large());
        }
        let address = context.allocate(bytes)?.ok_or_else(too_large)?;
        Ok(Self { address, context: Arc::clone(context) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.context.release(self.address);
    }
}

impl CudaBuffer {
    pub(super) fn pooled(name: &str, dtype: DType, len: usize, piece: Piece<Memory>) -> Self {
        let (address, context) = (piece.address, piece.context.id);
        Self { shared: Arc::new(Shared { name: name.to_owned(), len, dtype, address, context, _memory: Some(piece) }) }
    }

    pub(super) fn borrowed(name: &str, dtype: DType, len: usize, address: u64, context: u64) -> Self {
        Self { shared: Arc::new(Shared { name: name.to_owned(), len, dtype, address, context, _memory: None }) }
    }

    /// Address of the first element in device memory.
    pub(super) fn address(&self) -> u64 {
        self.shared.address
    }

    /// The context that the memory is of.
    pub(super) fn context(&self) -> u64 {
        self.shared.context
    }

    /// Bytes of the elements.
    pub(super) fn bytes(&self) -> usize {
        self.shared.len * self.shared.dtype.bytes()
    }

    /// Whole rows of `cols` elements that the buffer holds; 0 for `cols = 0`.
    pub(super) fn len_rows(&self, cols: usize) -> usize {
        self.shared.len.checked_div(cols).unwrap_or(0)
    }

    fn range(&self) -> std::ops::Range<u64> {
        self.shared.address..self.shared.address + self.bytes() as u64
    }
}

impl Buffer for CudaBuffer {
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
        let (a, b) = (self.range(), other.range());
        self.context() == other.context() && a.start < b.end && b.start < a.end
    }
}

impl Same for CudaBuffer {
    fn is(&self, other: &Self) -> bool {
        self.context() == other.context() && self.range() == other.range()
    }
}
