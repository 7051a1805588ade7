//! What devices check of index data while a recording runs, and the errors that come of it.

use crate::Error;

/// Words of one check: flags, and two values.
pub(super) const WORDS: usize = 3;

/// Checks of one command at most.
pub(super) const CHECKS_PER_COMMAND: usize = 6;

/// Rows of an index array that are looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Extent<'a, Buf> {
    /// So many.
    All(usize),
    /// Those between the first and the last of offsets of so many groups, at most so many rows.
    Used(&'a Buf, usize, usize),
}

/// An index array and what it may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Index<'a, Buf> {
    /// Field name.
    pub(crate) name: &'static str,
    /// u32.
    pub(crate) buffer: &'a Buf,
    /// Which entries.
    pub(crate) rows: Extent<'a, Buf>,
    /// Divisor of the index.
    pub(crate) div: usize,
    /// Every `index / div` is below this.
    pub(crate) limit: usize,
    /// Whether [`NONE`](crate::kernel::NONE) may stand there.
    pub(crate) none: bool,
}

impl<'a, Buf> Index<'a, Buf> {
    /// So many entries below a limit, or [`NONE`](crate::kernel::NONE).
    pub(crate) fn or_none(name: &'static str, buffer: &'a Buf, rows: usize, limit: usize) -> Self {
        Self { name, buffer, rows: Extent::All(rows), div: 1, limit, none: true }
    }

    /// Entries below a limit, of rows in use: by offsets of so many groups, at most so many rows.
    pub(crate) fn in_use(
        name: &'static str,
        buffer: &'a Buf,
        (offsets, groups, rows): (&'a Buf, usize, usize),
        limit: usize,
    ) -> Self {
        Self { name, buffer, rows: Extent::Used(offsets, groups, rows), div: 1, limit, none: false }
    }

    /// Entries themselves are below this; `None` where every one of 32 bits is.
    pub(crate) fn entry_limit(&self) -> Option<u64> {
        let limit = (self.limit as u64).saturating_mul(self.div as u64);
        (limit <= u64::from(u32::MAX) || !self.none).then_some(limit)
    }
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
    pub(super) fn error(self, words: &[u32]) -> Option<Error> {
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

/// The first error that the words of several checks tell of.
pub(super) fn first_error(places: &[Place], words: &[u32]) -> Option<Error> {
    places.iter().zip(words.chunks(WORDS)).find_map(|(place, words)| place.error(words))
}

/// Entries of offsets of so many groups.
pub(super) fn offset_count(groups: usize) -> crate::Result<usize> {
    super::elements("groups", &[groups]).map(|groups| groups + 1)
}
