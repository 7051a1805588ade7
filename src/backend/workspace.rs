//! What a recording needs beside its own buffers while it is encoded: workspace that its commands take in turn, and what they
//! have found out.

use super::known::{Known, Question, Same};
use crate::Result;
use crate::tensor::DType;

/// Workspace of one recording. Commands take effect in order, so what one is done with the next may write.
#[derive(Debug)]
pub(super) struct Workspace<Buf> {
    /// Of the current command, of earlier ones, and of all.
    in_use: Vec<Buf>,
    idle: Vec<Buf>,
    kept: Vec<Buf>,
    known: Known<Buf>,
}

impl<Buf> Default for Workspace<Buf> {
    fn default() -> Self {
        Self { in_use: Vec::new(), idle: Vec::new(), kept: Vec::new(), known: Known::default() }
    }
}

impl<Buf: Same> Workspace<Buf> {
    /// Workspace of the current command: idle, or what `alloc` makes.
    pub(super) fn take(&mut self, dtype: DType, len: usize, alloc: impl FnOnce() -> Result<Buf>) -> Result<Buf> {
        let fits = |idle: &Buf| idle.dtype() == dtype && idle.len() >= len && idle.len() / 2 <= len;
        let buffer = match self.idle.iter().position(fits) {
            Some(at) => self.idle.swap_remove(at),
            None => alloc()?,
        };
        self.in_use.push(buffer.clone());
        Ok(buffer)
    }

    /// Keeps a buffer until the end of the recording.
    pub(super) fn keep(&mut self, buffer: Buf) -> Buf {
        self.kept.push(buffer.clone());
        buffer
    }

    /// Ends the current command.
    pub(super) fn end(&mut self) {
        self.idle.append(&mut self.in_use);
    }

    /// What has been made of these buffers before.
    pub(super) fn found(&self, question: Question, about: &[&Buf]) -> Option<Buf> {
        self.known.find(question, about).flatten()
    }

    /// Remembers what has been made of these buffers.
    pub(super) fn remember(&mut self, question: Question, about: &[&Buf], found: &Buf) {
        self.known.add(question, about, Some(found.clone()));
    }

    /// Whether a check has to be made: not twice of buffers that nothing has written since.
    pub(super) fn asks(&mut self, question: Question, about: &[&Buf]) -> bool {
        let new = self.known.find(question, about).is_none();
        if new {
            self.known.add(question, about, None);
        }
        new
    }

    /// Forgets what a command that writes this buffer may have changed.
    pub(super) fn written(&mut self, buffer: &Buf) {
        self.known.written(buffer);
    }
}
