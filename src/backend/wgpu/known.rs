//! What earlier commands of a recording have found out about buffers: most commands of a layer ask the same of the same offsets.

use super::buffer::WgpuBuffer;
use crate::backend::Buffer;

/// A question about the content of buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// Whether entries are below a limit, or none where that is allowed.
    Index { rows: usize, groups: usize, limit: u64, none: bool },
    /// Whether offsets ascend up to so many rows.
    Offsets { groups: usize, rows: usize },
    /// First tile of each group.
    Tiles { groups: usize, rows: usize, tile_rows: u32 },
}

/// Answers that hold as long as nothing writes what they are about.
#[derive(Debug, Default)]
pub(super) struct Known {
    answers: Vec<Answer>,
}

#[derive(Debug)]
struct Answer {
    question: Question,
    about: Vec<WgpuBuffer>,
    /// Where it is, unless it is an error or nothing.
    found: Option<WgpuBuffer>,
}

impl Known {
    /// Whether this has been asked before, and where the answer is.
    pub(super) fn find(&self, question: Question, about: &[&WgpuBuffer]) -> Option<Option<WgpuBuffer>> {
        let same = |answer: &&Answer| {
            let pairs = answer.about.iter().zip(about);
            answer.question == question
                && answer.about.len() == about.len()
                && pairs.into_iter().all(|(known, asked)| known.is(asked))
        };
        self.answers.iter().find(same).map(|answer| answer.found.clone())
    }

    pub(super) fn add(&mut self, question: Question, about: &[&WgpuBuffer], found: Option<WgpuBuffer>) {
        let about = about.iter().map(|&buffer| buffer.clone()).collect();
        self.answers.push(Answer { question, about, found });
    }

    /// Forgets what a command that writes this buffer may have changed.
    pub(super) fn written(&mut self, buffer: &WgpuBuffer) {
        self.answers.retain(|answer| !answer.about.iter().any(|about| about.shares_memory(buffer)));
    }
}
