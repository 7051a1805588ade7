//! How far a stream is: the device writes the number of each command that it has finished to host memory, which stays readable
//! when the context has failed. So an error can name its command, and nothing has to be waited for.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::host::Mapped;

/// Numbers of commands in the order of the stream; they wrap.
#[derive(Debug, Default)]
pub(super) struct Progress {
    finished: Option<Mapped>,
    submitted: Mutex<Submitted>,
}

#[derive(Debug, Default)]
struct Submitted {
    last: u32,
    /// Commands that may not have finished, oldest first.
    names: VecDeque<(u32, &'static str)>,
}

impl Progress {
    pub(super) fn new(finished: Mapped) -> Self {
        Self { finished: Some(finished), submitted: Mutex::default() }
    }

    /// Gives a command its number, and lets `write` have the device write it there behind the command. Numbers are written in their order.
    pub(super) fn submitted<E>(
        &self,
        command: &'static str,
        write: impl FnOnce(u64, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(finished) = &self.finished else { return Ok(()) };
        let mut submitted = self.submitted.lock().unwrap_or_else(PoisonError::into_inner);
        submitted.forget(finished.word(0));
        submitted.last = submitted.last.wrapping_add(1);
        let number = submitted.last;
        submitted.names.push_back((number, command));
        write(finished.device(), number)
    }

    /// The command that the stream is at; `None` where that is not known.
    pub(super) fn running(&self) -> Option<String> {
        let done = self.finished.as_ref()?.word(0);
        let mut submitted = self.submitted.lock().unwrap_or_else(PoisonError::into_inner);
        submitted.forget(done);
        submitted.names.front().map(|(_, name)| format!("`{name}`"))
    }
}

impl Submitted {
    fn forget(&mut self, done: u32) {
        // Numbers wrap, so what is finished is what is not ahead of `done`.
        while self.names.front().is_some_and(|(number, _)| done.wrapping_sub(*number) < 1 << 31) {
            self.names.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_wrap() {
        let names = |last: u32| (0..4u32).map(|i| (last.wrapping_add(i), "x")).collect();
        for first in [1, u32::MAX - 1] {
            let mut submitted = Submitted { last: 0, names: names(first) };
            submitted.forget(first.wrapping_sub(1));
            assert_eq!(submitted.names.len(), 4);
            submitted.forget(first.wrapping_add(1));
            assert_eq!(submitted.names.front(), Some(&(first.wrapping_add(2), "x")));
        }
    }
}
