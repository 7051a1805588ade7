//! A buffer that the host waits to read.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::{Error, Result};

/// A buffer whose content the host has asked for.
///
/// Any thread that polls the device may be the one that is told about the mapping, perhaps a moment after the thread that waits
/// for the submission has returned: so the answer is waited for by itself.
#[derive(Debug)]
pub(super) struct Mapping {
    buffer: wgpu::Buffer,
    answers: Mutex<Receiver<bool>>,
    answer: OnceLock<bool>,
}

impl Mapping {
    /// Asks for a buffer's content, as the submissions so far leave it.
    pub(super) fn new(buffer: wgpu::Buffer) -> Self {
        let (sender, answers): (Sender<bool>, _) = channel();
        buffer.map_async(wgpu::MapMode::Read, .., move |result| {
            // Fails where nobody is left to be told.
            let _ = sender.send(result.is_ok());
        });
        Self { buffer, answers: Mutex::new(answers), answer: OnceLock::new() }
    }

    /// The content, once the submissions before have run.
    ///
    /// # Errors
    /// [`Error::Device`] where the buffer cannot be mapped.
    pub(super) fn read<T>(&self, limit: Duration, take: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let failed = |reason: String| Error::Device { command: "read".into(), reason };
        let mapped = *self.answer.get_or_init(|| {
            let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            answers.recv_timeout(limit).unwrap_or(false)
        });
        if !mapped {
            return Err(failed("the result cannot be mapped".into()));
        }
        let view = self.buffer.get_mapped_range(..).map_err(|error| failed(error.to_string()))?;
        Ok(take(&view))
    }
}
