//! Traces recorded while models trained.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use libtest_mimic::{Completion, Trial};
use lrmoe::plan::trace::TraceReader;
use lrmoe::plan::trace::{regroup, scaled};

use crate::corpus;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = crate::trials("recorded", &[("excerpt", || check(&corpus::file("recorded.jsonl")[..]))]);
    trials.push(Trial::ignorable_test("recorded::whole_traces", || {
        let folder = std::env::var_os("LRMOE_TRACES_DIR")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/traces"), PathBuf::from);
        let traces: Vec<PathBuf> = std::fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
            .collect();
        traces.iter().for_each(|path| check(File::open(path).unwrap()));
        Ok(match traces.len() {
            0 => Completion::ignored_with(format!("no recorded traces in {}", folder.display())),
            _ => Completion::Completed,
        })
    }));
    trials
}

/// A trace reads whole, writes back what it says, and can be played on 2 to 64 ranks with a real batch.
fn check(input: impl Read) {
    let mut text = String::new();
    BufReader::new(input).read_to_string(&mut text).unwrap();
    let entries: Vec<_> = TraceReader::new(text.as_bytes(), "trace").collect::<Result<_, _>>().unwrap();
    assert_eq!(entries.len(), text.lines().count());
    for (entry, line) in entries.iter().zip(text.lines()) {
        let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(json(&entry.to_string()), json(line));
        assert_eq!(entry.counts.ranks(), 8);
        for ranks in [2, 4, 8, 16, 32, 64] {
            let regrouped = regroup(&entry.counts, ranks).unwrap();
            assert_eq!(regrouped.per_expert(), entry.counts.per_expert());
            let (least, most) = (regrouped.per_rank().iter().min(), regrouped.per_rank().iter().max());
            assert_eq!(least, most, "{ranks} ranks share equal batches equally");
            let real = scaled(&regrouped, 65_536).unwrap();
            assert_eq!(real.per_rank(), vec![65_536; ranks]);
        }
    }
}
