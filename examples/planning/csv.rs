//! Loads as comma-separated values.
//!
//! One line for each rank, one column for each expert. If no cell of the first line starts as a number does, it is taken as
//! names, whatever they are. Blank lines are skipped; spaces around cells, CRLF and a byte order mark are allowed; whole numbers
//! may be written as floating-point numbers do (`1.0`, `2e3`).

use lrmoe::Result;
use lrmoe::plan::trace::MAX_COUNTS;

use super::loads::{ALLOWED, Matrix, Source, whole};

pub(super) fn parse(source: &Source<'_>, bytes: &[u8]) -> Result<Matrix> {
    let text = std::str::from_utf8(bytes).map_err(|e| source.error(format!("is not UTF-8 text: {e}")))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut matrix = Matrix { rows: 0, columns: 0, counts: Vec::new() };
    let numbered = text.lines().enumerate().map(|(i, line)| (i + 1, line));
    for (i, (number, line)) in numbered.filter(|(_, line)| !line.trim().is_empty()).enumerate() {
        let columns = line.split(',').count();
        if i == 0 {
            matrix.columns = columns;
            if line.split(',').all(is_name) {
                continue;
            }
        } else if columns != matrix.columns {
            let expected = matrix.columns;
            return Err(source.error(format!("line {number} has {columns} columns; the first has {expected}")));
        }
        if matrix.counts.len() + columns > MAX_COUNTS {
            return Err(source.error(format!("has more than {MAX_COUNTS} numbers at line {number}")));
        }
        for (column, cell) in line.split(',').enumerate() {
            let count = cell.trim().parse().ok().and_then(whole);
            let count = count.ok_or_else(|| {
                let cell: String = cell.trim().chars().take(40).collect();
                source.error(format!("line {number}, column {} is {cell:?}; allowed: {ALLOWED}", column + 1))
            })?;
            matrix.counts.push(count);
        }
        matrix.rows += 1;
    }
    Matrix::check_size(source, matrix.rows, matrix.columns)?;
    Ok(matrix)
}

/// Whether a cell of the first line can be the name of a column.
fn is_name(cell: &str) -> bool {
    let cell = cell.trim();
    !cell.is_empty()
        && !cell.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
        && cell.parse::<f64>().is_err()
}
