//! Host memory as a device buffer: reference-counted, pooled, accounted for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, Weak};

use half::{bf16, f16};

use super::gemm::Floats;
use crate::backend::{Buffer, elements};
use crate::memory::{Accountant, Category, Reservation, size_class};
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
    data: RwLock<HostData>,
    reservation: Option<Reservation>,
    pool: Weak<Pool>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let (Some(pool), Some(reservation)) = (self.pool.upgrade(), self.reservation.take()) {
            let data = self.data.get_mut().unwrap_or_else(PoisonError::into_inner);
            pool.give_back(std::mem::replace(data, HostData::U32(Vec::new())), reservation);
        }
    }
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

/// Idle memory by element type and capacity in elements.
type Free = HashMap<(DType, usize), Vec<(HostData, Reservation)>>;

/// Free buffers, and the account they are charged to.
#[derive(Debug)]
pub(super) struct Pool {
    account: Accountant,
    poison: bool,
    free: Mutex<Free>,
}

impl Pool {
    pub(super) fn new(account: Accountant, poison: bool) -> Arc<Self> {
        Arc::new(Self { account, poison, free: Mutex::new(HashMap::new()) })
    }

    pub(super) fn account(&self) -> &Accountant {
        &self.account
    }

    pub(super) fn alloc(
        self: &Arc<Self>,
        name: &str,
        dtype: DType,
        len: usize,
        category: Category,
    ) -> Result<CpuBuffer> {
        let used = (elements(name, &[len, dtype.bytes()])?) as u64;
        let bytes = if category.long_lived() { used } else { size_class(used).unwrap_or(u64::MAX) };
        let capacity = usize::try_from(bytes).unwrap_or(usize::MAX) / dtype.bytes();
        let parked = self.free().get_mut(&(dtype, capacity)).and_then(Vec::pop);
        let (mut data, reservation) = match parked {
            Some((data, mut reservation)) => {
                reservation.reuse(category, used);
                (data, reservation)
            }
            None => {
                let reservation = self.reserve(category, name, bytes, used)?;
                let data = match HostData::zeros(name, dtype, capacity) {
                    Err(Error::SystemMemory { .. }) if self.give_up_idle() => HostData::zeros(name, dtype, capacity),
                    data => data,
                };
                (data?, reservation)
            }
        };
        if self.poison {
            poison(&mut data);
        }
        Ok(self.buffer(name, data, len, Some(reservation), Arc::downgrade(self)))
    }

    pub(super) fn import(self: &Arc<Self>, name: &str, data: HostData, category: Category) -> Result<CpuBuffer> {
        let bytes = (data.len() * data.dtype().bytes()) as u64;
        let reservation = self.reserve(category, name, bytes, bytes)?;
        let len = data.len();
        Ok(self.buffer(name, data, len, Some(reservation), Weak::new()))
    }

    /// Reserves bytes, giving idle memory up for them where they do not fit otherwise.
    fn reserve(&self, category: Category, name: &str, bytes: u64, used: u64) -> Result<Reservation> {
        loop {
            match self.account.reserve(category, name, bytes, used) {
                // Again as long as there is idle memory: another thread may have given some back in between.
                Err(Error::OutOfMemory { .. }) if self.give_up_idle() => {}
                reserved => return reserved,
            }
        }
    }

    /// Whether there was any.
    fn give_up_idle(&self) -> bool {
        let idle = std::mem::take(&mut *self.free());
        idle.values().any(|buffers| !buffers.is_empty())
    }

    fn buffer(
        &self,
        name: &str,
        data: HostData,
        len: usize,
        reservation: Option<Reservation>,
        pool: Weak<Self>,
    ) -> CpuBuffer {
        let dtype = data.dtype();
        let shared = Shared { name: name.to_owned(), len, dtype, data: RwLock::new(data), reservation, pool };
        CpuBuffer { shared: Arc::new(shared) }
    }

    fn give_back(&self, data: HostData, mut reservation: Reservation) {
        reservation.park();
        self.free().entry((data.dtype(), data.len())).or_default().push((data, reservation));
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn wrong_type(&self, expected: &str) -> Error {
        Error::shape(format!("element type of `{}`", self.shared.name), self.shared.dtype, expected)
    }

    fn check_len(&self, needed: usize) -> Result<()> {
        if self.shared.len < needed {
            let what = format!("length of `{}`", self.shared.name);
            return Err(Error::shape(what, self.shared.len, format!("at least {needed}")));
        }
        Ok(())
    }
}

/// A buffer locked for reading.
#[derive(Debug)]
pub(super) struct Read<'a> {
    guard: RwLockReadGuard<'a, HostData>,
    buffer: &'a CpuBuffer,
}

impl Read<'_> {
    /// The first `needed` f32 elements.
    pub(super) fn f32(&self, needed: usize) -> Result<&[f32]> {
        self.buffer.check_len(needed)?;
        match &*self.guard {
            HostData::F32(data) => Ok(&data[..needed]),
            _ => Err(self.buffer.wrong_type("f32")),
        }
    }

    /// The first `needed` u32 elements.
    pub(super) fn u32(&self, needed: usize) -> Result<&[u32]> {
        self.buffer.check_len(needed)?;
        match &*self.guard {
            HostData::U32(data) => Ok(&data[..needed]),
            _ => Err(self.buffer.wrong_type("u32")),
        }
    }

    /// All elements of the buffer, of any float type.
    pub(super) fn floats(&self) -> Result<Floats<'_>> {
        let len = self.buffer.len();
        Ok(match &*self.guard {
            HostData::F32(v) => Floats::F32(&v[..len]),
            HostData::BF16(v) => Floats::BF16(&v[..len]),
            HostData::F16(v) => Floats::F16(&v[..len]),
            HostData::U32(_) => {
                return Err(self.buffer.wrong_type("f32, bf16 or f16"));
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
    guard: RwLockWriteGuard<'a, HostData>,
    buffer: &'a CpuBuffer,
}

impl Write<'_> {
    /// The first `needed` f32 elements.
    pub(super) fn f32(&mut self, needed: usize) -> Result<&mut [f32]> {
        self.buffer.check_len(needed)?;
        match &mut *self.guard {
            HostData::F32(data) => Ok(&mut data[..needed]),
            _ => Err(self.buffer.wrong_type("f32")),
        }
    }

    /// The first `needed` u32 elements.
    pub(super) fn u32(&mut self, needed: usize) -> Result<&mut [u32]> {
        self.buffer.check_len(needed)?;
        match &mut *self.guard {
            HostData::U32(data) => Ok(&mut data[..needed]),
            _ => Err(self.buffer.wrong_type("u32")),
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
