//! Checks of index data on the device, and the errors they become once a recording has run.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::buffer::CudaBuffer;
use super::context::Context;
use super::event::Event;
use super::exec::Exec;
use super::host::Mapped;
use super::kernels::checks::{CheckIndex, CheckOffsets};
use super::launch::{Ptr, blocks_of, u32_of};
use crate::backend::faults::{self, Place, WORDS, first_error, offset_count};
use crate::backend::known::Question;
use crate::backend::pending::Checked;
use crate::tensor::DType;
use crate::{Error, Result};

/// [`faults::Extent`] of this backend.
pub(super) type Extent<'a> = faults::Extent<'a, CudaBuffer>;

/// [`faults::Index`] of this backend.
pub(super) type Index<'a> = faults::Index<'a, CudaBuffer>;

/// Threads of a block of checks.
const THREADS: usize = 256;

/// Checks of one submitted recording, to be looked at when it has run.
#[derive(Debug)]
pub(super) struct Pending {
    sequence: u64,
    /// Behind the recording; `None` where it could not be had, and so nothing can be said.
    last: Option<Arc<Event>>,
    context: Arc<Context>,
    words: Mutex<Option<Mapped>>,
    places: Vec<Place>,
    outcome: OnceLock<Option<Error>>,
}

impl Checked for Pending {
    fn sequence(&self) -> u64 {
        self.sequence
    }

    fn decided(&self) -> bool {
        self.outcome.get().is_some()
    }
}

impl Pending {
    pub(super) fn new(
        sequence: u64,
        context: &Arc<Context>,
        last: Option<Arc<Event>>,
        words: Mapped,
        places: Vec<Place>,
    ) -> Arc<Self> {
        let (context, words) = (Arc::clone(context), Mutex::new(Some(words)));
        Arc::new(Self { sequence, last, context, words, places, outcome: OnceLock::new() })
    }

    /// Waits for the recording, and says what the checks found.
    pub(super) fn outcome(&self, time_limit: Duration) -> Result<()> {
        if let (None, Some(last)) = (self.outcome.get(), &self.last) {
            self.context.wait_for(last, time_limit)?;
        }
        let outcome = self.outcome.get_or_init(|| {
            self.last.as_ref()?;
            let words = self.words.lock().unwrap_or_else(PoisonError::into_inner).take()?;
            let found = first_error(&self.places, &words.first(self.places.len() * WORDS));
            self.context.unmap(words);
            found
        });
        outcome.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(words) = self.words.get_mut().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let passed = |last: &Arc<Event>| self.context.wait_for(last, Duration::ZERO).is_ok();
        if self.last.as_ref().is_some_and(passed) {
            self.context.unmap(words);
        } else {
            // The device may still write them: freeing host memory does not wait for it.
            std::mem::forget(words);
        }
    }
}

impl Exec<'_> {
    /// Checks that offsets of groups ascend up to `rows` at most. The error comes when the recording has run.
    ///
    /// # Errors
    /// [`Error::Shape`] for a buffer of another type or fewer entries.
    pub(super) fn check_offsets(&mut self, offsets: &CudaBuffer, groups: usize, rows: usize) -> Result<()> {
        let entries = offset_count(groups)?;
        let pointer = Ptr::u32(offsets, entries)?;
        if !self.workspace.asks(Question::Offsets { groups, rows }, &[offsets]) {
            return Ok(());
        }
        let Some(faults) = self.place(Place::Offsets { rows })? else { return Ok(()) };
        let (groups, rows) = (u32_of("groups", groups)?, u32::try_from(rows).unwrap_or(u32::MAX));
        CheckOffsets { offsets: pointer, faults, groups, rows }.launch(self, blocks_of(entries, THREADS), 0)
    }

    /// Checks the entries of an index array. The error comes when the recording has run.
    ///
    /// # Errors
    /// [`Error::Shape`] for a buffer of another type or fewer entries.
    pub(super) fn check_index(&mut self, index: Index<'_>) -> Result<()> {
        let (rows, groups, offsets) = match index.rows {
            Extent::All(rows) => (rows, 0, None),
            Extent::Used(offsets, groups, rows) => (rows, groups, Some(offsets)),
        };
        let entries = Ptr::u32(index.buffer, rows)?;
        let about: Vec<_> = std::iter::once(index.buffer).chain(offsets).collect();
        let offsets = Ptr::optional_u32(offsets, offset_count(groups)?)?;
        let Some(limit) = index.entry_limit() else { return Ok(()) };
        if !self.workspace.asks(Question::Index { rows, groups, limit, none: index.none }, &about) {
            return Ok(());
        }
        let Some(faults) = self.place(Place::Index { name: index.name, limit })? else { return Ok(()) };
        let kernel = CheckIndex {
            index: entries,
            offsets,
            faults,
            groups: u32_of("groups", groups)?,
            rows: u32_of("rows", rows)?,
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
            none: index.none.into(),
        };
        kernel.launch(self, blocks_of(rows, THREADS), 0)
    }

    /// Checks that the last of the offsets of retained rows is within their capacity. The error comes when the recording has run.
    ///
    /// # Errors
    /// [`Error::Shape`] for a buffer of another type or fewer entries.
    pub(super) fn check_capacity(&mut self, kept_offsets: &CudaBuffer, groups: usize, capacity: usize) -> Result<()> {
        let last = Ptr::u32(kept_offsets, offset_count(groups)?)?.at(groups);
        // No sum of 32 bits is beyond such a capacity.
        let Some(limit) = u32::try_from(capacity).ok().and_then(|capacity| capacity.checked_add(1)) else {
            return Ok(());
        };
        let Some(faults) = self.place(Place::Capacity { rows: capacity })? else { return Ok(()) };
        CheckIndex { index: last, offsets: None, faults, groups: 0, rows: 1, limit, none: 0 }.launch(self, 1, 0)
    }

    /// Room for the words of one check, unless checks are off.
    fn place(&mut self, place: Place) -> Result<Option<Ptr>> {
        if !self.inner().options.checks {
            return Ok(None);
        }
        let at = self.places.len();
        if at >= self.places_at_most {
            return Err(Error::Overflow {
                what: "checks of a recording".into(),
                detail: format!("room for {}", self.places_at_most),
            });
        }
        let faults = match &self.faults {
            Some(faults) => faults.device(),
            None => {
                let faults = self.inner().context.map(self.places_at_most * WORDS)?;
                self.faults.insert(faults).device()
            }
        };
        self.places.push(place);
        Ok(Some(Ptr { address: faults, dtype: DType::U32 }.at(at * WORDS)))
    }
}
