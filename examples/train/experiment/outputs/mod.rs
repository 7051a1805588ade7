//! What comes out of the experiment: files, and the text that is printed.
//!
//! | file | what it holds |
//! |---|---|
//! | `targets.rs` | target losses, and when a run reaches one |
//! | `groups.rs`, `names.rs` | which cells may be averaged, and how; policies that are singled out |
//! | `summary.rs`, `report.rs` | report.json |
//! | `attribution.rs` | where the difference between two policies comes from |
//! | `grid.rs`, `table.rs`, `verdict.rs` | the printed tables |
//! | `panels.rs`, `charts.rs` | targets.svg and memory.svg |
//! | `timeline.rs` | timeline.json |

use std::collections::BTreeSet;
use std::path::Path;

use super::cell::Cell;
use crate::failure::Failure;
use crate::files;

mod attribution;
mod charts;
mod grid;
mod groups;
mod names;
mod panels;
mod report;
#[cfg(test)]
mod sample;
mod summary;
mod table;
pub(crate) mod targets;
mod timeline;
mod verdict;

/// Writes report.json, targets.svg, memory.svg and timeline.json into the folder `out`; returns the text of the tables.
pub(crate) fn write(cells: &[Cell], out: &Path) -> Result<String, Failure> {
    let mut keys = BTreeSet::new();
    if let Some(twice) = cells.iter().find(|cell| !keys.insert(&cell.key)) {
        return Err(Failure::usage(format!("a cell is there twice, and would count twice: {:?}", twice.key)));
    }
    for (name, text) in [
        ("report.json", format!("{:#}", report::json(cells))),
        ("targets.svg", charts::targets(cells)?),
        ("memory.svg", charts::memory(cells)?),
        ("timeline.json", timeline::json(cells).to_string()),
    ] {
        files::write(&out.join(name), &text)?;
    }
    Ok(table::text(cells))
}

#[cfg(test)]
mod tests {
    use super::sample::cell;
    use super::*;

    #[test]
    fn all_files_are_written_and_a_cell_counts_once() {
        let out = std::env::temp_dir().join(format!("lrmoe-outputs-{}", std::process::id()));
        let text = write(&[cell(1), cell(2)], &out).unwrap();
        assert!(text.contains("lrmoe"));
        let mut names: Vec<_> = std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["memory.svg", "report.json", "targets.svg", "timeline.json"]);
        let report = std::fs::read_to_string(out.join("report.json")).unwrap();
        assert!(serde_json::from_str::<serde_json::Value>(&report).unwrap()["cells"].is_array());
        std::fs::remove_dir_all(&out).unwrap();
        assert!(write(&[cell(1), cell(1)], &out).is_err() && !out.exists());
    }
}
