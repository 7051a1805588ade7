//! Checks of index data on the device, and the errors they become once a recording has run.

use std::sync::{Arc, OnceLock};

use super::buffer::WgpuBuffer;
use super::context::Context;
use super::encode::Encoder;
use super::launch::{Arg, Launch, groups_of, u32_of};
use super::mapping::Mapping;
use super::shader::{Constant, Param, Source, source};
use crate::backend::faults::{self, Place, WORDS, first_error, offset_count};
use crate::backend::known::Question;
use crate::backend::pending::Checked;
use crate::tensor::DType;
use crate::{Error, Result};

static CHECK_INDEX: Source = source!("check_index");
static CHECK_OFFSETS: Source = source!("check_offsets");

/// Invocations of a workgroup of checks.
const WORKGROUP: u32 = 64;

/// [`faults::Extent`] of this backend.
pub(crate) type Extent<'a> = faults::Extent<'a, WgpuBuffer>;

/// [`faults::Index`] of this backend.
pub(crate) type Index<'a> = faults::Index<'a, WgpuBuffer>;

/// Checks of one submitted recording, to be looked at when it has run.
#[derive(Debug)]
pub(super) struct Pending {
    sequence: u64,
    /// The last part of the recording.
    last: Option<wgpu::SubmissionIndex>,
    words: Mapping,
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
    /// Asks for the words of a staging buffer that a submitted copy fills.
    pub(super) fn new(
        sequence: u64,
        last: Option<wgpu::SubmissionIndex>,
        staging: wgpu::Buffer,
        places: Vec<Place>,
    ) -> Arc<Self> {
        Arc::new(Self { sequence, last, words: Mapping::new(staging), places, outcome: OnceLock::new() })
    }

    /// Waits for the recording, and says what the checks found.
    pub(super) fn outcome(&self, context: &Context) -> Result<()> {
        if self.outcome.get().is_none() {
            context.wait_for(self.last.clone(), "wait")?;
        }
        let outcome = self.outcome.get_or_init(|| {
            let words = self.words.read(context.time_limit, bytemuck::pod_collect_to_vec::<u8, u32>);
            match words {
                Ok(words) => first_error(&self.places, &words),
                Err(error) => Some(error),
            }
        });
        outcome.clone().map_or(Ok(()), Err)
    }
}

impl Encoder<'_> {
    /// Checks that offsets of groups ascend up to `rows` at most. The error comes when the recording has run.
    ///
    /// # Errors
    /// [`Error::Shape`] for a buffer of another type or fewer entries.
    pub(crate) fn check_offsets(&mut self, offsets: &WgpuBuffer, groups: usize, rows: usize) -> Result<()> {
        let entries = offset_count(groups)?;
        let about = offsets;
        let offsets = Arg::u32("offsets", offsets, entries)?;
        if !self.workspace.asks(Question::Offsets { groups, rows }, &[about]) {
            return Ok(());
        }
        let Some((faults, place)) = self.place(Place::Offsets { rows })? else { return Ok(()) };
        self.launch(Launch {
            source: &CHECK_OFFSETS,
            entry: "main",
            workgroup: WORKGROUP,
            constants: vec![],
            params: vec![
                ("place", Param::U32(place)),
                ("experts", Param::U32(u32_of("groups", groups)?)),
                ("rows", Param::U32(u32::try_from(rows).unwrap_or(u32::MAX))),
            ],
            groups: groups_of(entries, WORKGROUP as usize),
            args: vec![offsets, Arg::atomic("faults", &faults, place as usize + WORDS)?],
            cost: u64::from(WORKGROUP) * 8,
        })
    }

    /// Checks the entries of an index array. The error comes when the recording has run.
    ///
    /// # Errors
    /// [`Error::Shape`] for a buffer of another type or fewer entries.
    pub(crate) fn check_index(&mut self, index: Index<'_>) -> Result<()> {
        let (rows, groups, offsets) = match index.rows {
            Extent::All(rows) => (rows, 0, None),
            Extent::Used(offsets, groups, rows) => (rows, groups, Some(offsets)),
        };
        let entries = Arg::u32("index", index.buffer, rows)?;
        let about: Vec<_> = std::iter::once(index.buffer).chain(offsets).collect();
        let offsets = Arg::optional_u32("offsets", offsets, offset_count(groups)?)?;
        let Some(limit) = index.entry_limit() else { return Ok(()) };
        if !self.workspace.asks(Question::Index { rows, groups, limit, none: index.none }, &about) {
            return Ok(());
        }
        let Some((faults, place)) = self.place(Place::Index { name: index.name, limit })? else { return Ok(()) };
        self.launch(Launch {
            source: &CHECK_INDEX,
            entry: "main",
            workgroup: WORKGROUP,
            constants: vec![("NONE_ALLOWED", Constant::Bool(index.none))],
            params: vec![
                ("place", Param::U32(place)),
                ("experts", Param::U32(u32_of("groups", groups)?)),
                ("rows", Param::U32(u32_of("rows", rows)?)),
                ("limit", Param::U32(u32::try_from(limit).unwrap_or(u32::MAX))),
            ],
            groups: groups_of(rows, WORKGROUP as usize),
            args: vec![entries, offsets, Arg::atomic("faults", &faults, place as usize + WORDS)?],
            cost: u64::from(WORKGROUP) * 8,
        })
    }

    /// Checks that the last of the offsets of retained rows is within their capacity. The error comes when the recording has run.
    ///
    /// # Errors
    /// [`Error::Shape`] for a buffer of another type or fewer entries.
    pub(crate) fn check_capacity(&mut self, kept_offsets: &WgpuBuffer, groups: usize, capacity: usize) -> Result<()> {
        let entries = offset_count(groups)?;
        let last = Arg::u32("index", kept_offsets, entries)?.window(groups..entries);
        // No sum of 32 bits is beyond such a capacity.
        let Some(limit) = u32::try_from(capacity).ok().and_then(|capacity| capacity.checked_add(1)) else {
            return Ok(());
        };
        let Some((faults, place)) = self.place(Place::Capacity { rows: capacity })? else { return Ok(()) };
        self.launch(Launch {
            source: &CHECK_INDEX,
            entry: "main",
            workgroup: WORKGROUP,
            constants: vec![("NONE_ALLOWED", Constant::Bool(false))],
            params: vec![
                ("place", Param::U32(place)),
                ("experts", Param::U32(0)),
                ("rows", Param::U32(1)),
                ("limit", Param::U32(limit)),
            ],
            groups: 1,
            args: vec![
                last,
                Arg::optional_u32("offsets", None, 0)?,
                Arg::atomic("faults", &faults, place as usize + WORDS)?,
            ],
            cost: u64::from(WORKGROUP) * 8,
        })
    }

    /// Room for the words of one check, unless checks are off.
    fn place(&mut self, place: Place) -> Result<Option<(WgpuBuffer, u32)>> {
        if !self.checks_on() {
            return Ok(None);
        }
        let faults = match &self.faults {
            Some(faults) => faults.clone(),
            None => {
                let faults = self.scratch_kept("faults", DType::U32, self.places_at_most * WORDS)?;
                // In front of the next submission, so of all that this recording runs from here on.
                let zeros = vec![0; self.places_at_most * WORDS];
                let (memory, at) = (&faults.memory().buffer, faults.offset());
                self.inner().context.queue.write_buffer(memory, at, bytemuck::cast_slice::<u32, u8>(&zeros));
                self.faults = Some(faults.clone());
                faults
            }
        };
        let at = self.places.len();
        if at >= self.places_at_most {
            return Err(Error::Overflow {
                what: "checks of a recording".into(),
                detail: format!("room for {}", self.places_at_most),
            });
        }
        self.places.push(place);
        Ok(Some((faults, u32_of("checks", at * WORDS)?)))
    }
}
