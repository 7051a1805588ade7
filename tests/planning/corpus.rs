//! The files in `corpus/`.

use std::path::Path;

/// Name and content of every file, by name.
pub(crate) fn files() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/planning/corpus");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap())
    };
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(read).collect();
    files.sort();
    files
}

/// The content of one file.
pub(crate) fn file(name: &str) -> Vec<u8> {
    files().into_iter().find(|(other, _)| other == name).expect(name).1
}
