//! Memory that is reused: idle pieces by size, and the account they are charged to. Shared by the backends.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::elements;
use crate::memory::{Accountant, Category, Reservation, size_class};
use crate::tensor::DType;
use crate::{Error, Result};

/// Idle memory by what makes two pieces interchangeable.
type Free<M> = HashMap<Key, Vec<(M, Reservation)>>;

/// Element type and bytes of a piece.
type Key = (DType, u64);

/// Free memory of one device.
#[derive(Debug)]
pub(super) struct Pool<M> {
    account: Accountant,
    free: Mutex<Free<M>>,
}

/// Memory from a pool; goes back to it when dropped.
#[derive(Debug)]
pub(super) struct Piece<M> {
    memory: ManuallyDrop<M>,
    reservation: Option<Reservation>,
    home: Weak<Pool<M>>,
    key: Key,
}

impl<M> Pool<M> {
    pub(super) fn new(account: Accountant) -> Arc<Self> {
        Arc::new(Self { account, free: Mutex::new(HashMap::new()) })
    }

    pub(super) fn account(&self) -> &Accountant {
        &self.account
    }

    /// Idle memory of the right size, or what `make` makes of that many bytes: a size class, or, for what lives as long as
    /// the layer, what was asked for. `make` is tried again without idle memory where the system has none.
    pub(super) fn alloc(
        self: &Arc<Self>,
        name: &str,
        dtype: DType,
        len: usize,
        category: Category,
        make: impl Fn(u64) -> Result<M>,
    ) -> Result<Piece<M>> {
        let used = elements(name, &[len, dtype.bytes()])? as u64;
        let bytes = if category.long_lived() { used } else { size_class(used).unwrap_or(u64::MAX) };
        let key = (dtype, bytes);
        let parked = self.free().get_mut(&key).and_then(Vec::pop);
        let (memory, reservation) = match parked {
            Some((memory, mut reservation)) => {
                reservation.reuse(category, used);
                (memory, reservation)
            }
            None => {
                let mut reservation = self.hold(category, name, bytes)?;
                let memory = match make(bytes) {
                    Err(Error::SystemMemory { .. }) if self.give_up_idle() => make(bytes),
                    memory => memory,
                }?;
                reservation.allocated(category, used);
                (memory, reservation)
            }
        };
        Ok(Piece { memory: ManuallyDrop::new(memory), reservation: Some(reservation), home: Arc::downgrade(self), key })
    }

    /// Memory that came from elsewhere, charged to the account while it lives.
    pub(super) fn adopt(
        &self,
        name: &str,
        dtype: DType,
        bytes: u64,
        category: Category,
        memory: M,
    ) -> Result<Piece<M>> {
        let mut reservation = self.hold(category, name, bytes)?;
        reservation.allocated(category, bytes);
        Ok(Piece {
            memory: ManuallyDrop::new(memory),
            reservation: Some(reservation),
            home: Weak::new(),
            key: (dtype, bytes),
        })
    }

    /// Reserves bytes, giving idle memory up for them where they do not fit otherwise.
    fn hold(&self, category: Category, name: &str, bytes: u64) -> Result<Reservation> {
        loop {
            match self.account.hold(category, name, bytes) {
                // Again as long as there is idle memory: another thread may have given some back in between.
                Err(Error::OutOfMemory { .. }) if self.give_up_idle() => {}
                held => return held,
            }
        }
    }

    /// Whether there was any.
    fn give_up_idle(&self) -> bool {
        let idle = std::mem::take(&mut *self.free());
        idle.values().any(|pieces| !pieces.is_empty())
    }

    fn free(&self) -> MutexGuard<'_, Free<M>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M> Deref for Piece<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.memory
    }
}

impl<M> DerefMut for Piece<M> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.memory
    }
}

impl<M> Drop for Piece<M> {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used afterwards.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        if let (Some(home), Some(mut reservation)) = (self.home.upgrade(), self.reservation.take()) {
            reservation.park();
            home.free().entry(self.key).or_default().push((memory, reservation));
        } else {
            drop(memory);
        }
    }
}
