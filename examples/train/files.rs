//! Result files appear under their names only when they are complete.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A file written line by line under a temporary name beside its own.
#[derive(Debug)]
pub(crate) struct LineFile {
    path: PathBuf,
    temporary: PathBuf,
    writer: Option<BufWriter<File>>,
}

impl LineFile {
    /// Creates the temporary file, and the folder it is in.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(name);
        let folder = path.parent().unwrap_or(Path::new(""));
        std::fs::create_dir_all(folder).map_err(|e| failed("create the folder", folder, &e))?;
        let file = File::create(&temporary).map_err(|e| failed("create", &temporary, &e))?;
        Ok(Self { path: path.to_path_buf(), temporary, writer: Some(BufWriter::new(file)) })
    }

    /// Appends one line.
    pub(crate) fn line(&mut self, line: &str) -> Result<(), Failure> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        writeln!(writer, "{line}").map_err(|e| failed("write", &self.temporary, &e))
    }

    /// Gives the file its name, replacing what had it before.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        if let Some(mut writer) = self.writer.take() {
            let kept = writer.flush().and_then(|()| std::fs::rename(&self.temporary, &self.path));
            kept.map_err(|e| failed("write", &self.path, &e))?;
        }
        Ok(())
    }
}

impl Drop for LineFile {
    fn drop(&mut self) {
        if self.writer.take().is_some() {
            // Nobody can be told at this point, and the file is only a leftover.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// Writes a whole file at once.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let mut file = LineFile::create(path)?;
    file.line(text.trim_end_matches('\n'))?;
    file.finish()
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::run(format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_complete_or_not_at_all() {
        let dir = std::env::temp_dir().join(format!("lrmoe-files-{}", std::process::id()));
        let path = dir.join("a").join("lines.txt");
        write(&path, "old").unwrap();
        let mut file = LineFile::create(&path).unwrap();
        file.line("new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old\n");
        file.finish().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new\n");
        drop(LineFile::create(&path).unwrap());
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
