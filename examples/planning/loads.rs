//! `--loads FILE`: the pairs of every source rank for every expert in one layer, in four formats.
//!
//! | extension | content |
//! |---|---|
//! | `.json` | `{"counts": [[pairs of rank 0 per expert], ...], "scores": [S_e per expert]}`, scores optional |
//! | `.csv` | one line of E numbers for each rank, after an optional line of names |
//! | `.npy` | a 2-D array `[ranks, experts]`, see [`super::npy`] |
//! | `.safetensors` | a 2-D tensor `counts` (or the only one besides `scores`) and an optional 1-D tensor `scores` |
//!
//! Counts are whole numbers from 0 to 2^32 - 1, however they are written. Scores are finite and not negative.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use lrmoe::plan::demand::{BINS, bin};
use lrmoe::plan::trace::MAX_COUNTS;
use lrmoe::plan::{Counts, Demand, DemandParts};
use lrmoe::{Error, Result};

use super::{csv, json, npy, tensors};

/// Largest file that is read: 64 MiB.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The load of one layer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Loads {
    /// Pairs of every source rank for every expert.
    pub(crate) counts: Counts,
    /// `[E]` sum of the scores of each expert's pairs over all ranks.
    pub(crate) scores: Option<Vec<f64>>,
}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Csv,
    Npy,
    Safetensors,
}

impl Format {
    /// By extension, in either case.
    ///
    /// # Errors
    /// [`Error::Input`] for any other.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        match extension.as_deref() {
            Some("json") => Ok(Self::Json),
            Some("csv") => Ok(Self::Csv),
            Some("npy") => Ok(Self::Npy),
            Some("safetensors") => Ok(Self::Safetensors),
            _ => Err(Source(&path.display()).error("has another extension than .json, .csv, .npy or .safetensors")),
        }
    }
}

impl Loads {
    /// Reads a file in the format of its extension.
    ///
    /// # Errors
    /// [`Error::Input`] naming the file and what is wrong: it cannot be read, has more than 64 MiB, or as [`Loads::parse`].
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let format = Format::of(path)?;
        let name = path.display();
        let source = Source(&name);
        let failed = |e: std::io::Error| source.error(format!("cannot be read: {e}"));
        let mut bytes = Vec::new();
        File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)).map_err(failed)?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(source.error(format!("has more than {MAX_FILE_BYTES} bytes")));
        }
        Self::parse(&source, format, &bytes)
    }

    /// Reads the content of a file.
    ///
    /// # Errors
    /// [`Error::Input`] naming the file, the row (rank), the column (expert) and the value, both from 0 except for CSV lines:
    /// what is not in the format, or not a matrix, has no rows or columns or more than [`MAX_COUNTS`] numbers, has a count that
    /// is NaN, infinite, negative, fractional or above 2^32 - 1 (also summed over the ranks), or scores that are not E finite
    /// numbers >= 0.
    pub(crate) fn parse(source: &Source<'_>, format: Format, bytes: &[u8]) -> Result<Self> {
        let (matrix, scores) = match format {
            Format::Json => json::parse(source, bytes)?,
            Format::Csv => (csv::parse(source, bytes)?, None),
            Format::Npy => (npy::parse(source, bytes)?, None),
            Format::Safetensors => tensors::parse(source, bytes)?,
        };
        let counts = Counts::from_flat(matrix.rows, matrix.columns, matrix.counts)
            .map_err(|e| source.error(format!("cannot be used: {e}")))?;
        let loads = Self { counts, scores };
        loads.check_scores(source)?;
        Ok(loads)
    }

    /// What the planner is to know of scores: all pairs of an expert share its score sum equally. Without scores, all pairs are
    /// equal; an expert with pairs but a score sum of 0 has none that are worth retaining.
    ///
    /// # Errors
    /// [`Error::Argument`] for scores so small or so large that they are no products of f32 numbers.
    pub(crate) fn demand(&self) -> Result<Demand> {
        let load = self.counts.per_expert();
        let Some(scores) = &self.scores else {
            return Ok(Demand::uniform(load));
        };
        let zeros = vec![0.0; load.len()];
        let mut parts = DemandParts {
            load: load.iter().map(|&n| f64::from(n)).collect(),
            infinite: zeros.clone(),
            score_sum: scores.clone(),
            reference: zeros.clone(),
            histogram: vec![0.0; load.len() * BINS],
            top_sum: zeros,
        };
        for (e, &sum) in scores.iter().enumerate().filter(|(_, sum)| **sum > 0.0) {
            parts.reference[e] = sum / parts.load[e];
            parts.histogram[e * BINS + bin(1.0)] = parts.load[e];
        }
        Demand::try_from(parts)
    }

    fn check_scores(&self, source: &Source<'_>) -> Result<()> {
        let Some(scores) = &self.scores else { return Ok(()) };
        let load = self.counts.per_expert();
        if scores.len() != load.len() {
            return Err(source.error(format!("`scores` has {} entries for {} experts", scores.len(), load.len())));
        }
        for (e, (&score, &pairs)) in scores.iter().zip(load).enumerate() {
            if !(score.is_finite() && score >= 0.0) {
                return Err(source.error(format!("scores[{e}] is {score}; allowed: finite numbers >= 0")));
            }
            if score > 0.0 && pairs == 0 {
                return Err(source.error(format!("scores[{e}] is {score}, but expert {e} has no pairs; allowed: 0")));
            }
        }
        Ok(())
    }
}

/// Names the file in errors.
pub(crate) struct Source<'a>(pub(crate) &'a dyn Display);

impl Source<'_> {
    pub(super) fn error(&self, reason: impl Into<String>) -> Error {
        Error::Input { what: self.0.to_string(), reason: reason.into() }
    }
}

/// A row-major matrix of counts in the making.
#[derive(Debug)]
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) counts: Vec<u32>,
}

impl Matrix {
    /// Reads `[rows, columns]` numbers, `get(row, column)` each. Integers beyond 2^53 need not be exact: they are refused.
    pub(super) fn collect(
        source: &Source<'_>,
        (rows, columns): (usize, usize),
        get: impl Fn(usize, usize) -> f64,
    ) -> Result<Self> {
        let size = Self::check_size(source, rows, columns)?;
        let mut counts = Vec::with_capacity(size);
        for row in 0..rows {
            for column in 0..columns {
                let value = get(row, column);
                counts.push(whole(value).ok_or_else(|| {
                    source.error(format!("row {row}, column {column} is {value}; allowed: {ALLOWED}"))
                })?);
            }
        }
        Ok(Self { rows, columns, counts })
    }

    /// Numbers in the matrix, before memory is taken for them.
    pub(super) fn check_size(source: &Source<'_>, rows: usize, columns: usize) -> Result<usize> {
        let size = rows.checked_mul(columns).filter(|size| (1..=MAX_COUNTS).contains(size));
        size.ok_or_else(|| {
            source.error(format!(
                "has {rows} rows x {columns} columns; allowed: at least 1 x 1, at most {MAX_COUNTS} numbers"
            ))
        })
    }
}

/// What a count may be.
pub(super) const ALLOWED: &str = "whole numbers from 0 to 4294967295";

/// The number as a count, if it is one.
pub(super) fn whole(value: f64) -> Option<u32> {
    let count = value as u32;
    (f64::from(count) == value).then_some(count)
}
