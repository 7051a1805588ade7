//! The text: where it comes from, how it is split, and which windows of it a step sees.

use std::path::{Path, PathBuf};

use include_dir::{Dir, include_dir};

use crate::failure::Failure;
use crate::rng::Rng;

/// Bytes a training window predicts; the model's context length.
pub(crate) const CONTEXT: usize = 128;
/// Below this a split leaves too little on either side to mean anything.
const MIN_BYTES: usize = 16 * 1024;
/// A larger corpus is a mistake in a program that reads it into memory and trains for minutes.
const MAX_BYTES: u64 = 1 << 30;
/// One block in this many is held out.
const HOLD_OUT: usize = 10;
const MAX_BLOCK: usize = 8 * 1024;
/// Held-out windows evaluated each time, spread evenly over the held-out blocks.
const VALIDATION_WINDOWS: usize = 64;
/// What counts as text among the embedded files. README.md and benches/RESULTS.md are not among them: they quote what this
/// program prints.
const EMBEDDED_EXTENSIONS: [&str; 6] = ["rs", "md", "toml", "wgsl", "cu", "json"];

static SOURCES: [Dir<'_>; 5] = [
    include_dir!("$CARGO_MANIFEST_DIR/src"),
    include_dir!("$CARGO_MANIFEST_DIR/examples"),
    include_dir!("$CARGO_MANIFEST_DIR/tests/conformance"),
    include_dir!("$CARGO_MANIFEST_DIR/tests/oracle"),
    include_dir!("$CARGO_MANIFEST_DIR/tests/support"),
];
static DOCUMENTS: [(&str, &str); 2] =
    [("Cargo.toml", include_str!("../../Cargo.toml")), ("CHANGELOG.md", include_str!("../../CHANGELOG.md"))];

/// The text, its identity, and the two sides of the split.
#[derive(Debug)]
pub(crate) struct Corpus {
    /// "embedded sources" or the paths given.
    pub(crate) name: String,
    /// Files read.
    pub(crate) files: usize,
    /// Files of a folder left out because they are empty or not text.
    pub(crate) skipped: usize,
    /// FNV-1a (64 bits) of the concatenated text.
    pub(crate) checksum: u64,
    text: Vec<u8>,
    /// (start, end) of the stretches of text open to training.
    train: Vec<(usize, usize)>,
    /// Start of each held-out window.
    validation: Vec<usize>,
}

impl Corpus {
    /// The project's own sources and documents, as they were when this example was compiled.
    pub(crate) fn embedded() -> Result<Self, Failure> {
        let mut files = DOCUMENTS.iter().map(|(path, text)| (PathBuf::from(path), text.as_bytes())).collect::<Vec<_>>();
        SOURCES.iter().for_each(|dir| embedded_files(dir, &mut files));
        files.sort();
        let count = files.len();
        let text = files.into_iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        Self::new("embedded sources".into(), count, 0, text)
    }

    /// The text of `paths`, each a file or a folder (read recursively in the order of the names).
    ///
    /// # Errors
    /// A path that is missing or unreadable, a named file that is not text, and a total that is empty, too small or too large.
    pub(crate) fn read(paths: &[PathBuf]) -> Result<Self, Failure> {
        let (mut text, mut files, mut skipped) = (Vec::new(), 0, 0);
        for path in paths {
            let named_file = !std::fs::metadata(path).map_err(|e| unreadable(path, &e))?.is_dir();
            let mut found = Vec::new();
            walk(path, &mut found)?;
            for file in found {
                let size = std::fs::metadata(&file).map_err(|e| unreadable(&file, &e))?.len();
                if text.len() as u64 + size > MAX_BYTES {
                    let file = file.display();
                    return Err(Failure::usage(format!("--corpus: with {file} the text passes the limit of 1 GiB")));
                }
                let bytes = std::fs::read(&file).map_err(|e| unreadable(&file, &e))?;
                if !bytes.is_empty() && !bytes.contains(&0) && std::str::from_utf8(&bytes).is_ok() {
                    text.extend_from_slice(&bytes);
                    files += 1;
                } else if named_file && !bytes.is_empty() {
                    return Err(Failure::usage(format!(
                        "--corpus: {} is not text (UTF-8 without NUL)",
                        file.display()
                    )));
                } else {
                    skipped += 1;
                }
            }
        }
        let name = paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ");
        Self::new(name, files, skipped, text)
    }

    fn new(name: String, files: usize, skipped: usize, text: Vec<u8>) -> Result<Self, Failure> {
        if text.is_empty() {
            return Err(Failure::usage(format!(
                "--corpus: {name} holds no text ({skipped} files are empty or not text)"
            )));
        }
        if text.len() < MIN_BYTES {
            let len = text.len();
            return Err(Failure::usage(format!(
                "--corpus: {name} holds {len} bytes of text; at least {MIN_BYTES} are needed"
            )));
        }
        let (train, validation) = split(text.len());
        Ok(Self { name, files, skipped, checksum: fnv1a(&text), text, train, validation })
    }

    /// Bytes of text.
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// Bytes open to training.
    pub(crate) fn train_len(&self) -> usize {
        self.train.iter().map(|(start, end)| end - start).sum()
    }

    /// `batch` windows of `CONTEXT + 1` bytes for one step: a function of (seed, step) alone.
    pub(crate) fn training_windows(&self, seed: u64, step: u64, batch: usize) -> Vec<&[u8]> {
        let mut rng = Rng::new(seed, "batch", step);
        let starts = |(start, end): &(usize, usize)| end - start - CONTEXT;
        let total = self.train.iter().map(starts).sum();
        (0..batch)
            .map(|_| {
                let mut at = rng.below(total);
                for stretch in &self.train {
                    if at < starts(stretch) {
                        return self.window(stretch.0 + at);
                    }
                    at -= starts(stretch);
                }
                self.window(self.train[0].0)
            })
            .collect()
    }

    /// The held-out windows, always the same ones.
    pub(crate) fn validation_windows(&self) -> Vec<&[u8]> {
        self.validation.iter().map(|start| self.window(*start)).collect()
    }

    fn window(&self, start: usize) -> &[u8] {
        &self.text[start..start + CONTEXT + 1]
    }
}

/// FNV-1a, 64 bits: enough to tell whether two reports used the same text.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// Cuts `len` bytes into contiguous blocks and holds out every tenth, so that both sides see every part of the text and share no byte.
/// Returns the training stretches and the starts of the held-out windows.
fn split(len: usize) -> (Vec<(usize, usize)>, Vec<usize>) {
    let block = (len / HOLD_OUT).min(MAX_BLOCK);
    let (mut train, mut windows) = (Vec::<(usize, usize)>::new(), Vec::new());
    for (index, start) in (0..len).step_by(block).enumerate() {
        let end = (start + block).min(len);
        if index % HOLD_OUT == HOLD_OUT - 1 {
            windows.extend((start..end).step_by(CONTEXT).filter(|s| s + CONTEXT < end));
        } else {
            match train.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => train.push((start, end)),
            }
        }
    }
    train.retain(|(start, end)| end - start > CONTEXT);
    let keep = windows.len().min(VALIDATION_WINDOWS);
    let spread = (0..keep).map(|i| windows[i * windows.len() / keep]).collect();
    (train, spread)
}

fn embedded_files<'a>(dir: &'a Dir<'a>, into: &mut Vec<(PathBuf, &'a [u8])>) {
    for file in dir.files() {
        let is_text =
            file.path().extension().and_then(|e| e.to_str()).is_some_and(|e| EMBEDDED_EXTENSIONS.contains(&e));
        if is_text {
            into.push((file.path().to_path_buf(), file.contents()));
        }
    }
    dir.dirs().for_each(|sub| embedded_files(sub, into));
}

/// Appends `path`, or every file below it that is not hidden, in the order of the names.
fn walk(path: &Path, into: &mut Vec<PathBuf>) -> Result<(), Failure> {
    if !path.is_dir() {
        into.push(path.to_path_buf());
        return Ok(());
    }
    let mut entries =
        std::fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(|e| unreadable(path, &e))?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        // A link could lead back up and never end.
        let kind = entry.file_type().map_err(|e| unreadable(&entry.path(), &e))?;
        if !kind.is_symlink() && !entry.file_name().to_string_lossy().starts_with('.') {
            walk(&entry.path(), into)?;
        }
    }
    Ok(())
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("--corpus: cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_split_shares_no_byte_and_loses_none() {
        for len in [MIN_BYTES, MIN_BYTES + 1, 81_919, 81_920, 82_000, 1_000_003] {
            let (train, windows) = split(len);
            let mut owner = vec![0_u8; len];
            for (start, end) in &train {
                owner[*start..*end].iter_mut().for_each(|o| *o += 1);
            }
            let trained = owner.iter().filter(|o| **o == 1).count();
            assert!(trained * 100 >= len * 85 && trained < len, "len {len}: {trained} bytes to train on");
            assert!(!windows.is_empty() && windows.len() <= VALIDATION_WINDOWS);
            for start in windows {
                assert!(
                    owner[start..=start + CONTEXT].iter().all(|o| *o == 0),
                    "len {len}: window at {start} is trained on"
                );
            }
        }
    }

    #[test]
    fn training_windows_stay_on_their_side_and_repeat() {
        let text = (0..200_000_usize).map(|i| (i % 251) as u8).collect::<Vec<_>>();
        let corpus = Corpus::new("test".into(), 1, 0, text).unwrap();
        let base = corpus.text.as_ptr() as usize;
        for step in 0..200 {
            for window in corpus.training_windows(5, step, 8) {
                let start = window.as_ptr() as usize - base;
                assert!(corpus.train.iter().any(|(a, b)| start >= *a && start + CONTEXT < *b));
            }
        }
        assert_eq!(corpus.training_windows(5, 3, 8), corpus.training_windows(5, 3, 8));
        assert_ne!(corpus.training_windows(5, 3, 8), corpus.training_windows(6, 3, 8));
    }

    #[test]
    fn the_embedded_text_is_this_project() {
        let corpus = Corpus::embedded().unwrap();
        let text = String::from_utf8(corpus.text.clone()).unwrap();
        assert!(text.contains("fn the_embedded_text_is_this_project"));
        assert!(text.contains("name = \"lrmoe\""));
        assert_eq!(corpus.checksum, Corpus::embedded().unwrap().checksum);
    }

    #[test]
    fn bad_paths_are_named() {
        let dir = std::env::temp_dir().join(format!("lrmoe-corpus-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let message = |paths: &[PathBuf]| Corpus::read(paths).unwrap_err().to_string();
        let missing = dir.join("missing.txt");
        assert!(message(std::slice::from_ref(&missing)).contains("missing.txt"));
        assert!(message(std::slice::from_ref(&dir)).contains("no text"));
        std::fs::write(dir.join("small.txt"), "too small").unwrap();
        assert!(message(std::slice::from_ref(&dir)).contains("9 bytes"));
        std::fs::write(dir.join("binary"), [0_u8; 64]).unwrap();
        assert!(message(&[dir.join("binary")]).contains("not text"));
        std::fs::write(dir.join("b.txt"), vec![b'b'; MIN_BYTES]).unwrap();
        std::fs::write(dir.join("a.txt"), vec![b'a'; MIN_BYTES]).unwrap();
        let corpus = Corpus::read(std::slice::from_ref(&dir)).unwrap();
        assert_eq!((corpus.files, corpus.skipped, corpus.text[0]), (3, 1, b'a'));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
