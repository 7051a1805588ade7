//! What earlier commands of a recording have found out about buffers: most commands of a layer ask the same of the same offsets.

use super::Buffer;

/// A question about the content of buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Question {
    /// Whether entries are below a limit, or none where that is allowed.
    Index { rows: usize, groups: usize, limit: u64, none: bool },
    /// Whether offsets ascend up to so many rows.
    Offsets { groups: usize, rows: usize },
    /// First tile of each group.
    Tiles { groups: usize, rows: usize, tile_rows: u32 },
}

/// A buffer that can tell whether another handle is of the same elements.
pub(super) trait Same: Buffer {
    fn is(&self, other: &Self) -> bool;
}

/// Answers that hold as long as nothing writes what they are about.
#[derive(Debug)]
pub(super) struct Known<Buf> {
    answers: Vec<Answer<Buf>>,
}

#[derive(Debug)]
struct Answer<Buf> {
    question: Question,
    about: Vec<Buf>,
    /// Where it is, unless it is an error or nothing.
    found: Option<Buf>,
}

impl<Buf> Default for Known<Buf> {
    fn default() -> Self {
        Self { answers: Vec::new() }
    }
}

impl<Buf: Same> Known<Buf> {
    /// Whether this has been asked before, and where the answer is.
    pub(super) fn find(&self, question: Question, about: &[&Buf]) -> Option<Option<Buf>> {
        let same = |answer: &&Answer<Buf>| {
            let pairs = answer.about.iter().zip(about);
            answer.question == question
                && answer.about.len() == about.len()
                && pairs.into_iter().all(|(known, asked)| known.is(asked))
        };
        self.answers.iter().find(same).map(|answer| answer.found.clone())
    }

    pub(super) fn add(&mut self, question: Question, about: &[&Buf], found: Option<Buf>) {
        let about = about.iter().map(|&buffer| buffer.clone()).collect();
        self.answers.push(Answer { question, about, found });
    }

    /// Forgets what a command that writes this buffer may have changed.
    pub(super) fn written(&mut self, buffer: &Buf) {
        self.answers.retain(|answer| !answer.about.iter().any(|about| about.shares_memory(buffer)));
    }
}
