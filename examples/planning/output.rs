//! Where results go: standard output, and files that appear only when they are complete.

use std::io::{ErrorKind, Write};
use std::path::Path;

use lrmoe::{Error, Result};

/// Writes text and a line break to standard output.
///
/// # Errors
/// [`Error::Input`] where it cannot be written. A reader that has seen enough is no error.
pub(crate) fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", text.trim_end_matches('\n')).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Error::Input { what: "standard output".into(), reason: format!("cannot be written: {e}") })
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard error: what a reader should know, but no result.
pub(crate) fn note(text: &str) {
    // Nobody could be told.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Writes a whole file by way of a temporary one beside it, and the folder it is in.
///
/// # Errors
/// [`Error::Input`] naming the path.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<()> {
    let failed = |e: std::io::Error| Error::Input {
        what: path.display().to_string(),
        reason: format!("cannot be written: {e}"),
    };
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let written = std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // Only a leftover.
        let _ = std::fs::remove_file(&temporary);
    }
    written.map_err(failed)
}
