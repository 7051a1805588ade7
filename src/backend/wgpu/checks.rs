//! Checks of index data on the device, and the errors they become once a recording has run.

use std::sync::{Arc, OnceLock};

use super::buffer::WgpuBuffer;
use super::context::Context;
use super::encode::Encoder;
use super::known::Question;
use super::launch::{Arg, Launch, groups_of, u32_of};
use super::mapping::Mapping;
use super::shader::{Constant, Param, Source, source};
use crate::tensor::DType;
use crate::{Error, Result};

static CHECK_INDEX: Source = source!("check_index");
static CHECK_OFFSETS: Source = source!("check_offsets");

/// Invocations of a workgroup of checks.
const WORKGROUP: u32 = 64;

/// Words of one check: flags, and two values.
pub(super) const WORDS: usize = 3;

/// Rows of an index array that are looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Extent<'a> {
    /// So many.
    All(usize),
    /// Those between the first and the last of offsets of so many groups, at most so many rows.
    Used(&'a WgpuBuffer, usize, usize),
}

/// An index array and what it may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Index<'a> {
    /// Field name.
    pub(crate) name: &'static str,
    /// u32.
    pub(crate) buffer: &'a WgpuBuffer,
    /// Which entries.
    pub(crate) rows: Extent<'a>,
    /// Divisor of the index.
    pub(crate) div: usize,
    /// Every `index / div` is below this.
    pub(crate) limit: usize,
    /// Whether [`NONE`](crate::kernel::NONE) may stand there.
    pub(crate) none: bool,
}

/// What one check looks for, for its message.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// Entries below a limit.
    Index { name: &'static str, limit: u64 },
    /// Ascending offsets up to a number of rows.
    Offsets { rows: usize },
    /// Quotas that sum up to a capacity at most.
    Capacity { rows: usize },
}

impl Place {
    /// The error for the words that the device left.
    fn error(self, words: &[u32]) -> Option<Error> {
        let flags = *words.first()?;
        match self {
            _ if flags == 0 => None,
            Self::Index { name, limit } => Some(Error::argument(name, words.get(1)?, format!("below {limit}"))),
            Self::Capacity { rows } => {
                let allowed = format!("at most the capacity of {rows} rows");
                Some(Error::shape("sum of quotas", words.get(1)?, allowed))
            }
            Self::Offsets { .. } if flags & 1 != 0 => Some(Error::argument(
                "offsets",
                format!("{} before a smaller value", words.get(1)?),
                "ascending values",
            )),
            Self::Offsets { rows } => Some(Error::shape("last offset", words.get(2)?, format!("at most {rows} rows"))),
        }
    }
}

/// Checks of one submitted recording, to be looked at when it has run.
#[derive(Debug)]
pub(super) struct Pending {
    /// Order of submission.
    pub(super) sequence: u64,
    /// The last part of the recording.
    last: Option<wgpu::SubmissionIndex>,
    words: Mapping,
    places: Vec<Place>,
    outcome: OnceLock<Option<Error>>,
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
                Ok(words) => self.places.iter().zip(words.chunks(WORDS)).find_map(|(place, words)| place.error(words)),
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
        if !self.asks(Question::Offsets { groups, rows }, &[about]) {
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
        let limit = (index.limit as u64).saturating_mul(index.div as u64);
        if limit > u64::from(u32::MAX) && index.none {
            return Ok(());
        }
        if !self.asks(Question::Index { rows, groups, limit, none: index.none }, &about) {
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

fn offset_count(groups: usize) -> Result<usize> {
    crate::backend::elements("groups", &[groups]).map(|groups| groups + 1)
}
