//! Text tables whose columns stand in captioned groups, and numbers as they stand in them.

use std::fmt;

use super::groups::Spread;

/// Rows of cells. The first column is aligned to the left, all others to the right; a bar stands between groups of columns.
#[derive(Debug)]
pub(super) struct Grid {
    /// Caption and number of columns of each group.
    groups: Vec<(String, usize)>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// Groups by caption, each with the names of its columns.
    pub(super) fn new<Name: ToString>(groups: impl IntoIterator<Item = (impl ToString, Vec<Name>)>) -> Self {
        let mut grid = Self { groups: Vec::new(), rows: vec![Vec::new()] };
        for (caption, names) in groups {
            grid.groups.push((caption.to_string(), names.len()));
            grid.rows[0].extend(names.iter().map(Name::to_string));
        }
        grid
    }

    /// Appends a row; missing cells at its end are empty.
    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Of every column; the last of a group takes what its caption needs beyond the columns.
    fn widths(&self) -> Vec<usize> {
        let width = |column: usize| self.rows.iter().map(|row| chars(row.get(column))).max().unwrap_or(0);
        let mut widths: Vec<usize> = Vec::new();
        for (caption, columns) in &self.groups {
            let from = widths.len();
            widths.extend((from..from + columns).map(width));
            let inner = span(&widths[from..]);
            if let Some(last) = widths.last_mut() {
                *last += caption.chars().count().saturating_sub(inner);
            }
        }
        widths
    }
}

fn chars(cell: Option<&String>) -> usize {
    cell.map_or(0, |cell| cell.chars().count())
}

/// Columns and the two spaces between them.
fn span(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)
}

impl fmt::Display for Grid {
    /// Lines without trailing spaces, a rule under the header, a line break after the last.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let mut starts = Vec::with_capacity(self.groups.len());
        let mut captions = Vec::with_capacity(self.groups.len());
        let mut rules = Vec::with_capacity(self.groups.len());
        let mut from = 0;
        for (caption, columns) in &self.groups {
            let width = span(&widths[from..from + columns]);
            captions.push(format!("{caption:^width$}"));
            rules.push("-".repeat(width));
            starts.push(from..from + columns);
            from += columns;
        }
        if self.groups.iter().any(|(caption, _)| !caption.is_empty()) {
            writeln!(f, "{}", captions.join(" | ").trim_end())?;
        }
        for (i, row) in self.rows.iter().enumerate() {
            let group = |columns: &std::ops::Range<usize>| {
                let cells = columns.clone().map(|column| {
                    let (cell, width) = (row.get(column).map_or("", String::as_str), widths[column]);
                    if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                });
                cells.collect::<Vec<_>>().join("  ")
            };
            writeln!(f, "{}", starts.iter().map(group).collect::<Vec<_>>().join(" | ").trim_end())?;
            if i == 0 {
                writeln!(f, "{}", rules.join("-+-"))?;
            }
        }
        Ok(())
    }
}

pub(super) const MIB: f64 = 1_048_576.0;
pub(super) const GIB: f64 = 1024.0 * MIB;

/// What is written where there is no number.
pub(super) const NOTHING: &str = "-";

/// The mean with some decimals.
pub(super) fn mean(spread: Option<Spread>, decimals: usize) -> String {
    spread.map_or(NOTHING.into(), |s| format!("{:.decimals$}", s.mean))
}

/// Ratios as percent more or less than 1: the mean, and of several seeds `[least..most]`.
pub(super) fn change(ratio: Option<Spread>) -> String {
    let percent = |ratio: f64| signed(100.0 * (ratio - 1.0), 1);
    ratio.map_or(NOTHING.into(), |s| ranged(s, percent))
}

/// Shares as percent, in the same form.
pub(super) fn share(share: Option<Spread>) -> String {
    share.map_or(NOTHING.into(), |s| ranged(s, |share| signed(100.0 * share, 1)))
}

/// The range stands only where it is one.
fn ranged(s: Spread, text: impl Fn(f64) -> String) -> String {
    let [mean, least, most] = [s.mean, s.min, s.max].map(text);
    if least == most { mean } else { format!("{mean} [{least}..{most}]") }
}

/// Always with a sign, except for what rounds to zero.
pub(super) fn signed(x: f64, decimals: usize) -> String {
    let zero = format!("{:.decimals$}", 0.0);
    let text = format!("{x:+.decimals$}");
    if text[1..] == zero { zero } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captions_stand_over_their_columns() {
        let mut grid = Grid::new([("", vec!["policy"]), ("a long caption", vec!["a", "b"]), ("c", vec!["value"])]);
        grid.row(["symi", "1", "22", "3"].map(String::from).to_vec());
        grid.row(vec!["fixed-waves".into()]);
        let text = grid.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        let bars = |line: &str| {
            line.char_indices().filter(|(_, c)| matches!(c, '|' | '+')).map(|(i, _)| i).collect::<Vec<_>>()
        };
        assert!(lines[..4].iter().all(|line| bars(line) == bars(lines[0])), "{text}");
        assert_eq!(lines[0], "            | a long caption |   c");
        assert_eq!(lines[1], "policy      | a            b | value");
        assert_eq!(lines[2], "------------+----------------+------");
        assert_eq!(lines[3], "symi        | 1           22 |     3");
        assert_eq!(lines[4].trim_end(), lines[4]);
    }

    #[test]
    fn numbers_are_written_with_their_range_only_where_there_is_one() {
        let one = Spread::of([0.75]);
        assert_eq!((change(one), share(one), mean(one, 2)), ("-25.0".into(), "+75.0".into(), "0.75".into()));
        assert_eq!(change(Spread::of([0.5, 1.0, 1.25])), "-8.3 [-50.0..+25.0]");
        assert_eq!(change(Spread::of([1.0, 1.0])), "0.0");
        assert_eq!((change(None), share(None), mean(None, 1)), ("-".into(), "-".into(), "-".into()));
        assert_eq!([-0.04, 0.04, 0.06, -0.06, 12.3].map(|x| signed(x, 1)), ["0.0", "0.0", "+0.1", "-0.1", "+12.3"]);
        assert_eq!([-0.0004, 0.0006].map(|x| signed(x, 3)), ["0.000", "+0.001"]);
    }
}
