//! Text tables, and numbers as a reader wants them.

use std::fmt;

/// Rows of cells under a header; the first column is aligned to the left, all others to the right.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<Cell: ToString>(header: impl IntoIterator<Item = Cell>) -> Self {
        Self { rows: vec![cells(header)] }
    }

    /// Appends a row; missing cells at its end are empty.
    pub(crate) fn row<Cell: ToString>(&mut self, row: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells(row));
    }
}

fn cells<Cell: ToString>(row: impl IntoIterator<Item = Cell>) -> Vec<String> {
    row.into_iter().map(|cell| cell.to_string()).collect()
}

impl fmt::Display for Table {
    /// Lines without trailing spaces, a rule under the header, a line break after the last.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
        let width = |column| self.rows.iter().map(|row| cell(row, column).chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (i, row) in self.rows.iter().enumerate() {
            let padded = widths.iter().enumerate().map(|(column, &width)| match column {
                0 => format!("{:<width$}", cell(row, column)),
                _ => format!("{:>width$}", cell(row, column)),
            });
            writeln!(f, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
            if i == 0 {
                writeln!(f, "{}", "-".repeat(widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1)))?;
            }
        }
        Ok(())
    }
}

/// `1536` as `1.50 KiB`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (n as f64, 0);
    // 1023.995 would be written as 1024.00.
    while value >= 1023.995 {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.2} {}", UNITS[unit]) }
}

/// `0.00123` as `1.230 ms`; from minutes on as `2 min 5 s` and `3 h 20 min`.
pub(crate) fn seconds(s: f64) -> String {
    let size = s.abs();
    if !size.is_finite() || size == 0.0 {
        return format!("{s} s");
    }
    if size >= 3599.5 {
        let minutes = (s / 60.0).round();
        return format!("{} h {} min", (minutes / 60.0).trunc(), (minutes % 60.0).abs());
    }
    if size >= 119.5 {
        let whole = s.round();
        return format!("{} min {} s", (whole / 60.0).trunc(), (whole % 60.0).abs());
    }
    // The thousand of one unit is written as the one of the next.
    [(1.0, "s"), (1e-3, "ms"), (1e-6, "us")]
        .into_iter()
        .find(|(unit, _)| size >= 0.9995 * unit)
        .map_or_else(|| format!("{:.3} ns", s / 1e-9), |(unit, name)| format!("{:.3} {name}", s / unit))
}

/// `1234567` as `1,234,567`.
pub(crate) fn whole(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1234567.0` as `1.23M`, for axes: three digits and, from 1000 on, a power of 1000.
pub(crate) fn short(x: f64) -> String {
    const UNITS: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let (mut value, mut unit) = (x, 0);
    while value.abs() >= 999.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    let decimals = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 1.0 || v == 0.0 => 2,
        v if v >= 1e-6 => 2 - v.log10().floor() as i32,
        _ => return format!("{x:.1e}"),
    };
    let decimals = decimals as usize;
    let text = format!("{value:.decimals$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{}", UNITS[unit])
}
