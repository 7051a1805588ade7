//! Loads in JSON.

use lrmoe::Result;
use serde::Deserialize;

use super::loads::{Matrix, Source};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    counts: Vec<Vec<f64>>,
    scores: Option<Vec<f64>>,
}

/// The matrix and the scores.
pub(super) fn parse(source: &Source<'_>, bytes: &[u8]) -> Result<(Matrix, Option<Vec<f64>>)> {
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(source.error("is no JSON object with `counts`"));
    }
    let file: File = serde_json::from_slice(bytes).map_err(|e| source.error(e.to_string()))?;
    let columns = file.counts.first().map_or(0, Vec::len);
    if let Some(row) = file.counts.iter().position(|row| row.len() != columns) {
        let got = file.counts[row].len();
        return Err(source.error(format!("row {row} has {got} columns; row 0 has {columns}")));
    }
    let matrix = Matrix::collect(source, (file.counts.len(), columns), |row, column| file.counts[row][column])?;
    Ok((matrix, file.scores))
}
