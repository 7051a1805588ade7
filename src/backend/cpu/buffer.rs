//! Host memory as a device buffer: reference-counted, pooled, accounted for.

use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use half::{bf16, f16};

use super::gemm::Floats;
use crate::backend::pool::{Piece, Pool};
use crate::backend::{Buffer, check_len, wrong_type};
use crate::memory::Category;
use crate::tensor::{DType, HostData};
use crate::{Error, Result};

/// Memory of the CPU backend.
#[derive(Debug, Clone)]
pub struct CpuBuffer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    len: usize,
    dtype: DType,
    data: RwLock<Piece<HostData>>,
}

impl Buffer for CpuBuffer {
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
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// Overwrites a buffer with what no kernel may use: NaN, or an index out of every range.
fn poison(data: &mut HostData) {
    match data {
        HostData::F32(v) => v.fill(f32::NAN),
        HostData::BF16(v) => v.fill(bf16::NAN),
        HostData::F16(v) => v.fill(f16::NAN),
        HostData::U32(v) => v.fill(u32::MAX - 1),
    }
}

impl CpuBuffer {
    /// Memory of undefined content, or of what no kernel may use.
    pub(super) fn alloc(
        pool: &Arc<Pool<HostData>>,
        poisoned: bool,
        name: &str,
        dtype: DType,
        len: usize,
        category: Category,
    ) -> Result<Self> {
        let mut data = pool.alloc(name, dtype, len, category, |bytes| {
            let capacity = usize::try_from(bytes).unwrap_or(usize::MAX) / dtype.bytes();
            HostData::zeros(name, dtype, capacity)
        })?;
        if poisoned {
            poison(&mut data);
        }
        Ok(Self::new(name, dtype, len, data))
    }

    /// Host memory as it is.
    pub(super) fn import(pool: &Pool<HostData>, name: &str, data: HostData, category: Category) -> Result<Self> {
        let (dtype, len) = (data.dtype(), data.len());
        let data = pool.adopt(name, dtype, (len * dtype.bytes()) as u64, category, data)?;
        Ok(Self::new(name, dtype, len, data))
    }

    fn new(name: &str, dtype: DType, len: usize, data: Piece<HostData>) -> Self {
        Self { shared: Arc::new(Shared { name: name.to_owned(), len, dtype, data: RwLock::new(data) }) }
    }

    fn busy(&self, user: &str) -> Error {
        Error::Busy { buffer: self.shared.name.clone(), user: user.to_owned() }
    }

    /// Locks for reading. Never waits: another user that writes is an error in the order of calls.
    pub(super) fn read(&self) -> Result<Read<'_>> {
        match self.shared.data.try_read() {
            Ok(guard) => Ok(Read { guard, buffer: self }),
            Err(TryLockError::Poisoned(guard)) => Ok(Read { guard: guard.into_inner(), buffer: self }),
            Err(TryLockError::WouldBlock) => Err(self.busy("another thread that writes it")),
        }
    }

    /// Locks for writing, as [`CpuBuffer::read`].
    pub(super) fn write(&self) -> Result<Write<'_>> {
        match self.shared.data.try_write() {
            Ok(guard) => Ok(Write { guard, buffer: self }),
            Err(TryLockError::Poisoned(guard)) => Ok(Write { guard: guard.into_inner(), buffer: self }),
            Err(TryLockError::WouldBlock) => Err(self.busy("another thread")),
        }
    }
}

/// A buffer locked for reading.
#[derive(Debug)]
pub(super) struct Read<'a> {
    guard: RwLockReadGuard<'a, Piece<HostData>>,
    buffer: &'a CpuBuffer,
}

impl Read<'_> {
    /// The first `needed` f32 elements.
    pub(super) fn f32(&self, needed: usize) -> Result<&[f32]> {
        check_len(self.buffer, needed)?;
        match &**self.guard {
            HostData::F32(data) => Ok(&data[..needed]),
            _ => Err(wrong_type(self.buffer, "f32")),
        }
    }

    /// The first `needed` u32 elements.
    pub(super) fn u32(&self, needed: usize) -> Result<&[u32]> {
        check_len(self.buffer, needed)?;
        match &**self.guard {
            HostData::U32(data) => Ok(&data[..needed]),
            _ => Err(wrong_type(self.buffer, "u32")),
        }
    }

    /// All elements of the buffer, of any float type.
    pub(super) fn floats(&self) -> Result<Floats<'_>> {
        let len = self.buffer.len();
        Ok(match &**self.guard {
            HostData::F32(v) => Floats::F32(&v[..len]),
            HostData::BF16(v) => Floats::BF16(&v[..len]),
            HostData::F16(v) => Floats::F16(&v[..len]),
            HostData::U32(_) => {
                return Err(wrong_type(self.buffer, "f32, bf16 or f16"));
            }
        })
    }

    /// All elements of the buffer, whatever the type.
    pub(super) fn data(&self) -> &HostData {
        &self.guard
    }
}

/// A buffer locked for writing.
#[derive(Debug)]
pub(super) struct Write<'a> {
    guard: RwLockWriteGuard<'a, Piece<HostData>>,
    buffer: &'a CpuBuffer,
}

impl Write<'_> {
    /// The first `needed` f32 elements.
    pub(super) fn f32(&mut self, needed: usize) -> Result<&mut [f32]> {
        check_len(self.buffer, needed)?;
        match &mut **self.guard {
            HostData::F32(data) => Ok(&mut data[..needed]),
            _ => Err(wrong_type(self.buffer, "f32")),
        }
    }

    /// The first `needed` u32 elements.
    pub(super) fn u32(&mut self, needed: usize) -> Result<&mut [u32]> {
        check_len(self.buffer, needed)?;
        match &mut **self.guard {
            HostData::U32(data) => Ok(&mut data[..needed]),
            _ => Err(wrong_type(self.buffer, "u32")),
        }
    }

    /// All elements of the buffer, whatever the type.
    pub(super) fn data(&mut self) -> &mut HostData {
        &mut self.guard
    }
}

impl CpuBuffer {
    /// Whole rows of `cols` elements that the buffer holds; 0 for `cols = 0`.
    pub(super) fn len_rows(&self, cols: usize) -> usize {
        self.len().checked_div(cols).unwrap_or(0)
    }
}
