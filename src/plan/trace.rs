//! Routing traces: the counts of many steps and layers, one JSON object a line.
//!
//! ```text
//! {"counts":[[3,0,1],[2,2,0]],"layer":0,"step":4}
//! ```
//!
//! `counts` holds one row of E whole numbers for each source rank. Fields may stand in any order; every line of a trace has
//! the same number of ranks and experts; only the end may have blank lines. [`TraceReader`] reads one line at a time, so a
//! trace may be longer than memory.
//!
//! A trace is recorded on some number of ranks with some batch: [`regroup`] and [`scaled`] carry it to others.

use std::fmt;
use std::io::{BufRead, Read as _};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};

use super::Counts;
use crate::{Error, Result};

/// Most bytes in one line of a trace: 32 MiB.
pub const MAX_LINE_BYTES: usize = 32 << 20;
/// Most counts, ranks x experts, in one line of a trace or one generated step: 2^22, four times 2,048 ranks x 512 experts.
pub const MAX_COUNTS: usize = 1 << 22;

/// One line of a trace. `Display` writes it, without a line break; lines written by one release read the same in the next.
///
/// ```
/// use lrmoe::plan::{Counts, TraceEntry, TraceReader};
///
/// let entry = TraceEntry { step: 4, layer: 0, counts: Counts::new(&[[3, 0, 1], [2, 2, 0]])? };
/// let line = entry.to_string();
/// assert_eq!(line, r#"{"counts":[[3,0,1],[2,2,0]],"layer":0,"step":4}"#);
/// assert_eq!(TraceReader::new(line.as_bytes(), "a trace").next(), Some(Ok(entry)));
/// # Ok::<(), lrmoe::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEntry {
    /// Pairs of every source rank for every expert.
    pub counts: Counts,
    /// Index of the MoE layer in the model.
    pub layer: u32,
    /// Training step.
    pub step: u64,
}

impl fmt::Display for TraceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{\"counts\":[")?;
        for rank in 0..self.counts.ranks() {
            f.write_str(if rank == 0 { "[" } else { ",[" })?;
            for (e, n) in self.counts.row(rank).iter().enumerate() {
                let comma = if e == 0 { "" } else { "," };
                write!(f, "{comma}{n}")?;
            }
            f.write_str("]")?;
        }
        write!(f, "],\"layer\":{},\"step\":{}}}", self.layer, self.step)
    }
}

/// Iterates over the lines of a trace; ends after the first error.
///
/// # Errors
/// Each item may be an [`Error::Input`] that names the trace, the line (from 1) and the field: what is no JSON, has a field
/// missing, unknown or out of range, another shape than the line before, a blank line before the end, more than
/// [`MAX_LINE_BYTES`] or [`MAX_COUNTS`], or cannot be read.
#[derive(Debug)]
pub struct TraceReader<R> {
    input: R,
    name: String,
    line: u64,
    buffer: Vec<u8>,
    shape: Option<(usize, usize)>,
    blank: Option<u64>,
    ended: bool,
}

impl<R: BufRead> TraceReader<R> {
    /// Reads from `input`; `name` stands in errors.
    pub fn new(input: R, name: impl Into<String>) -> Self {
        Self { input, name: name.into(), line: 0, buffer: Vec::new(), shape: None, blank: None, ended: false }
    }

    /// The line that was read last, from 1; 0 before the first.
    #[must_use]
    pub const fn line(&self) -> u64 {
        self.line
    }

    fn read(&mut self) -> Result<Option<TraceEntry>> {
        while self.read_line()? {
            if self.buffer.trim_ascii().is_empty() {
                self.blank.get_or_insert(self.line);
                continue;
            }
            if let Some(blank) = self.blank {
                return Err(self.error(blank, "is blank; only the end of a trace may have blank lines"));
            }
            return self.parse().map(Some);
        }
        Ok(None)
    }

    /// Fills the buffer with the next line; false at the end.
    fn read_line(&mut self) -> Result<bool> {
        self.buffer.clear();
        let mut limited = (&mut self.input).take(MAX_LINE_BYTES as u64 + 1);
        let read = limited.read_until(b'\n', &mut self.buffer);
        self.line += 1;
        match read {
            Err(e) => Err(self.error(self.line, &format!("cannot be read: {e}"))),
            Ok(n) if n > MAX_LINE_BYTES => {
                Err(self.error(self.line, &format!("is longer than {MAX_LINE_BYTES} bytes")))
            }
            Ok(n) => Ok(n > 0),
        }
    }

    fn parse(&mut self) -> Result<TraceEntry> {
        let text = self.buffer.trim_ascii();
        if !text.starts_with(b"{") {
            // The parser would take a list of the fields' values as well.
            return Err(self.error(self.line, "is no JSON object"));
        }
        let fields: Fields = serde_json::from_slice(text).map_err(|e| {
            // A line is one line to the parser too, so only its column says something.
            let text = e.to_string();
            let place = format!(" at line {} column {}", e.line(), e.column());
            let reason = text.strip_suffix(&place).unwrap_or(&text);
            self.error(self.line, &format!("column {}: {reason}", e.column()))
        })?;
        let Rows { ranks, experts, pairs } = fields.counts;
        let (first_ranks, first_experts) = *self.shape.get_or_insert((ranks, experts));
        if (first_ranks, first_experts) != (ranks, experts) {
            let reason = format!(
                "`counts` has {ranks} ranks x {experts} experts; the lines before it have {first_ranks} x {first_experts}"
            );
            return Err(self.error(self.line, &reason));
        }
        let counts = Counts::from_flat(ranks, experts, pairs)
            .map_err(|e| self.error(self.line, &format!("`counts` cannot be used: {e}")))?;
        Ok(TraceEntry { counts, layer: fields.layer, step: fields.step })
    }

    fn error(&self, line: u64, reason: &str) -> Error {
        Error::Input { what: format!("{}, line {line}", self.name), reason: reason.to_string() }
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<TraceEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = self.read().transpose();
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }
}

/// The same pairs on another number of source ranks: every expert keeps its pairs, every new rank gets equal parts of the
/// old ones.
///
/// With `g = gcd(R, ranks)`, each old rank is cut into `ranks / g` parts, and each new rank takes `R / g` consecutive parts.
/// Cutting deals the pairs of a rank out one by one in expert order, so that neither two parts' totals nor their pairs of
/// one expert differ by more than one. Parts of one rank look alike: ranks of a real run this large would differ more.
///
/// # Errors
/// [`Error::Argument`] for no ranks, or more than [`MAX_COUNTS`] ranks x experts.
pub fn regroup(counts: &Counts, ranks: usize) -> Result<Counts> {
    let experts = counts.experts();
    let size = ranks.checked_mul(experts).filter(|size| (1..=MAX_COUNTS).contains(size));
    let Some(size) = size else {
        let allowed = format!("1 to {} ranks of {experts} experts", MAX_COUNTS / experts);
        return Err(Error::argument("ranks", ranks, allowed));
    };
    let divisor = gcd(counts.ranks(), ranks);
    let (parts, merged) = (ranks / divisor, counts.ranks() / divisor);
    let mut pairs = vec![0_u32; size];
    for rank in 0..counts.ranks() {
        let first = rank * parts;
        // The part that the next pair is dealt to.
        let mut next = 0;
        for (e, &n) in counts.row(rank).iter().enumerate() {
            let (each, rest) = (n / parts as u32, n as usize % parts);
            for part in 0..parts {
                let extra = (part + parts - next) % parts < rest;
                // Cannot overflow: no sum passes the expert's pairs.
                pairs[(first + part) / merged * experts + e] += each + u32::from(extra);
            }
            next = (next + rest) % parts;
        }
    }
    Counts::from_flat(ranks, experts, pairs)
}

/// The same routing of a batch of `pairs_per_rank` pairs on average: ranks keep their shares of all pairs, experts theirs of
/// each rank, both rounded by largest remainder (ties to the lower index). Counts without pairs stay as they are.
///
/// # Errors
/// [`Error::Overflow`] where all pairs pass 2^64 - 1, or those of one expert 2^32 - 1.
pub fn scaled(counts: &Counts, pairs_per_rank: u64) -> Result<Counts> {
    let overflow = |detail: String| Error::Overflow { what: "scaled counts".into(), detail };
    let total = (counts.ranks() as u64)
        .checked_mul(pairs_per_rank)
        .ok_or_else(|| overflow(format!("{} ranks x {pairs_per_rank} pairs pass {}", counts.ranks(), u64::MAX)))?;
    let mut pairs = Vec::with_capacity(counts.flat().len());
    for (rank, total) in apportion(counts.per_rank(), total).into_iter().enumerate() {
        let row: Vec<u64> = counts.row(rank).iter().map(|&n| u64::from(n)).collect();
        for n in apportion(&row, total) {
            pairs.push(u32::try_from(n).map_err(|_| overflow(format!("{n} pairs of rank {rank} pass {}", u32::MAX)))?);
        }
    }
    Counts::from_flat(counts.ranks(), counts.experts(), pairs)
}

/// `total` in proportion to `shares` by largest remainder; all 0 where the shares are.
fn apportion(shares: &[u64], total: u64) -> Vec<u64> {
    let sum: u128 = shares.iter().map(|&n| u128::from(n)).sum();
    if sum == 0 {
        return vec![0; shares.len()];
    }
    let products = || shares.iter().map(|&n| u128::from(n) * u128::from(total));
    // No quotient passes the total.
    let mut parts: Vec<u64> = products().map(|p| (p / sum) as u64).collect();
    let remainders: Vec<u128> = products().map(|p| p % sum).collect();
    let missing = (remainders.iter().sum::<u128>() / sum) as usize;
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(remainders[i]), i));
    order[..missing].iter().for_each(|&i| parts[i] += 1);
    parts
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A line as it stands in the file; the fields' own readers put the name of the field into errors.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    #[serde(deserialize_with = "step")]
    step: u64,
    #[serde(deserialize_with = "layer")]
    layer: u32,
    #[serde(deserialize_with = "rows")]
    counts: Rows,
}

/// Row-major `[ranks, experts]`.
struct Rows {
    ranks: usize,
    experts: usize,
    pairs: Vec<u32>,
}

fn step<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<u64, D::Error> {
    Whole { name: Name::Field("step"), max: u64::MAX }.deserialize(deserializer)
}

fn layer<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<u32, D::Error> {
    Whole { name: Name::Field("layer"), max: u32::MAX.into() }.deserialize(deserializer).map(|n| n as u32)
}

fn rows<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Rows, D::Error> {
    let rows = deserializer.deserialize_seq(RowsVisitor)?;
    if rows.pairs.is_empty() {
        return Err(D::Error::custom("`counts` is empty; expected at least one rank and one expert"));
    }
    Ok(rows)
}

/// A whole number from 0 to `max`.
struct Whole {
    name: Name,
    max: u64,
}

/// What a number is called in errors.
enum Name {
    Field(&'static str),
    Count { rank: usize, expert: usize },
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, "`{name}`"),
            Self::Count { rank, expert } => write!(f, "`counts[{rank}][{expert}]`"),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Whole {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<u64, D::Error> {
        deserializer.deserialize_u64(self)
    }
}

impl Visitor<'_> for Whole {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to be a whole number from 0 to {}", self.name, self.max)
    }

    fn visit_u64<E: serde::de::Error>(self, n: u64) -> std::result::Result<u64, E> {
        if n > self.max {
            return Err(E::invalid_value(serde::de::Unexpected::Unsigned(n), &self));
        }
        Ok(n)
    }
}

struct RowsVisitor;

impl<'de> Visitor<'de> for RowsVisitor {
    type Value = Rows;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`counts` to be a list with one list of counts for each rank")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> std::result::Result<Rows, A::Error> {
        let mut rows = Rows { ranks: 0, experts: 0, pairs: Vec::new() };
        while sequence.next_element_seed(Row(&mut rows))?.is_some() {
            let experts = rows.pairs.len() - rows.ranks * rows.experts;
            if rows.ranks > 0 && experts != rows.experts {
                let (rank, expected) = (rows.ranks, rows.experts);
                return Err(A::Error::custom(format!("`counts[{rank}]` has {experts} experts; rank 0 has {expected}")));
            }
            if experts == 0 {
                return Err(A::Error::custom(format!("`counts[{}]` has no experts", rows.ranks)));
            }
            rows.experts = experts;
            rows.ranks += 1;
        }
        Ok(rows)
    }
}

/// Appends one row of counts.
struct Row<'a>(&'a mut Rows);

impl<'de> DeserializeSeed<'de> for Row<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Row<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`counts[{}]` to be a list with one count for each expert", self.0.ranks)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> std::result::Result<(), A::Error> {
        let rows = self.0;
        let start = rows.pairs.len();
        loop {
            let name = Name::Count { rank: rows.ranks, expert: rows.pairs.len() - start };
            let Some(n) = sequence.next_element_seed(Whole { name, max: u32::MAX.into() })? else {
                return Ok(());
            };
            if rows.pairs.len() == MAX_COUNTS {
                return Err(A::Error::custom(format!("`counts` has more than {MAX_COUNTS} numbers")));
            }
            rows.pairs.push(n as u32);
        }
    }
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
