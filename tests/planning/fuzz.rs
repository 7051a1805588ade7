//! Fuzz bodies of the readers: no input makes them panic, and what they accept is written and read back the same.

use std::path::Path;

use libtest_mimic::Trial;
use lrmoe::plan::trace::TraceReader;
use lrmoe::rng::Philox;

use crate::corpus;
use crate::planning::loads::{Format, Loads, Source};
use crate::write::write;

/// Mutants of each file of the corpus.
const MUTANTS: usize = 3000;

pub(crate) fn trials() -> Vec<Trial> {
    crate::trials(
        "fuzz",
        &[
            ("trace", || over_corpus(&["jsonl"], trace)),
            ("loads_json", || over_corpus(&["json"], |data| loads(data, Format::Json))),
            ("loads_csv", || over_corpus(&["csv"], |data| loads(data, Format::Csv))),
            ("loads_npy", || over_corpus(&["npy"], |data| loads(data, Format::Npy))),
            ("loads_safetensors", || over_corpus(&["safetensors"], |data| loads(data, Format::Safetensors))),
        ],
    )
}

/// Reads a trace; whether all of it was accepted.
fn trace(data: &[u8]) -> bool {
    let items: Vec<_> = TraceReader::new(data, "fuzz").collect();
    let entries: Vec<_> = items.iter().flatten().cloned().collect();
    let text: String = entries.iter().map(|entry| format!("{entry}\n")).collect();
    let again: Vec<_> = TraceReader::new(text.as_bytes(), "again").collect::<Result<_, _>>().unwrap();
    assert_eq!(again, entries);
    entries.len() == items.len()
}

/// Reads loads; whether they were accepted.
fn loads(data: &[u8], format: Format) -> bool {
    let read = |data: &[u8]| Loads::parse(&Source(&"fuzz"), format, data);
    let Ok(loads) = read(data) else { return false };
    let written = write(&loads, format);
    let again = read(&written).unwrap();
    assert_eq!(again, loads);
    assert_eq!(write(&again, format), written);
    if let Ok(demand) = loads.demand() {
        assert_eq!(demand.experts(), loads.counts.experts());
    }
    true
}

/// Runs a body over every file of the corpus with one of the extensions, and over mutants of it.
fn over_corpus(extensions: &[&str], body: impl Fn(&[u8]) -> bool) {
    let mine = |name: &str| extensions.iter().any(|e| Path::new(name).extension().is_some_and(|x| x == *e));
    let files: Vec<_> = corpus::files().into_iter().filter(|(name, _)| mine(name)).collect();
    let mut accepted = 0;
    for (i, (_, data)) in files.iter().enumerate() {
        body(data);
        let mut rng = Philox::new(0xF022, i as u64);
        for _ in 0..MUTANTS {
            let other = &files[below(files.len(), &mut rng)].1;
            accepted += usize::from(body(&mutant(data, other, &mut rng)));
        }
    }
    // A body that accepts nothing, or everything, tests half of what it should.
    let all = files.len() * MUTANTS;
    assert!(accepted > all / 100 && accepted < all * 99 / 100, "{accepted} of {all} accepted");
}

/// What readers have tripped over.
const TOKENS: [&[u8]; 24] = [
    b"-1",
    b"-0",
    b"0.5",
    b"1e400",
    b"1e19",
    b"4294967295",
    b"4294967296",
    b"9007199254740993",
    b"18446744073709551616",
    b"NaN",
    b"inf",
    b"null",
    b"\"",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b"\n",
    b"\r\n",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
];

/// One to four changes: flipped bits, pieces cut, repeated or taken from `other`, numbers and tokens replaced. A third of the
/// mutants only have flipped bits, so that binary files keep the length that their header promises.
fn mutant(data: &[u8], other: &[u8], rng: &mut Philox) -> Vec<u8> {
    let mut bytes = data.to_vec();
    let kinds = if below(3, rng) == 0 { 1 } else { 7 };
    for _ in 0..=below(4, rng) {
        let at = below(bytes.len() + 1, rng);
        let span = at..at + below((bytes.len() - at).min(16) + 1, rng);
        match below(kinds, rng) {
            0 if at < bytes.len() => bytes[at] ^= 1 << below(8, rng),
            1 => bytes.truncate(at),
            2 => drop(bytes.drain(span)),
            3 => {
                let copy = bytes[span].to_vec();
                bytes.splice(at..at, copy);
            }
            4 => {
                let from = below(other.len() + 1, rng);
                let piece = &other[from..from + below((other.len() - from).min(32) + 1, rng)];
                bytes.splice(span, piece.iter().copied());
            }
            5 => drop(bytes.splice(number(&bytes, at), TOKENS[below(12, rng)].iter().copied())),
            _ => drop(bytes.splice(at..at, TOKENS[below(TOKENS.len(), rng)].iter().copied())),
        }
    }
    bytes
}

/// The run of digits at or after `at`; empty at the end.
fn number(bytes: &[u8], at: usize) -> std::ops::Range<usize> {
    let find = |from: usize, digit: bool| {
        bytes[from..].iter().position(|b| b.is_ascii_digit() == digit).map_or(bytes.len(), |i| from + i)
    };
    let start = find(at, true);
    start..find(start, false)
}

fn below(n: usize, rng: &mut Philox) -> usize {
    ((u64::from(rng.next_u32()) * n as u64) >> 32) as usize
}
