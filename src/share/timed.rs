//! A recording whose commands belong to phases.

use super::{Phase, PhaseTimes};
use crate::backend::{Backend, Buffer};
use crate::kernel::Access;
use crate::recording::Command;
use crate::{Error, Recording, Result};

/// Commands, and the phase of each.
#[derive(Debug)]
pub(super) struct Timed<Buf> {
    pub(super) rec: Recording<Buf>,
    phases: Vec<Phase>,
}

impl<Buf: Buffer> Timed<Buf> {
    pub(super) fn new() -> Self {
        Self { rec: Recording::new(), phases: Vec::new() }
    }

    /// Everything appended since the last mark belongs to `phase`.
    pub(super) fn mark(&mut self, phase: Phase) {
        self.phases.resize(self.rec.commands().len(), phase);
    }

    /// As [`Timed::mark`], by the name of the command.
    pub(super) fn mark_by(&mut self, phase: impl Fn(&str) -> Phase) {
        let new = &self.rec.commands()[self.phases.len()..];
        self.phases.extend(new.iter().map(|command| phase(command.name())));
    }

    /// Fills with zeros every buffer that the commands write, and those of `also`, so that times hold no first touch of
    /// fresh memory. Those of `keep` stay as they are.
    pub(super) fn touch<B: Backend<Buffer = Buf>>(&self, backend: &B, also: &[&Buf], keep: &[&Buf]) -> Result<()> {
        let mut fresh: Vec<&Buf> = also.to_vec();
        for command in self.rec.commands() {
            for buffer in written(command) {
                if !keep.iter().chain(&fresh).any(|other| other.shares_memory(buffer)) {
                    fresh.push(buffer);
                }
            }
        }
        let mut fills = Recording::new();
        for buffer in fresh {
            fills.fill(buffer, 0);
        }
        backend.wait(&backend.submit(&fills)?)
    }

    /// Runs the commands and sums their times by phase.
    pub(super) fn run<B: Backend<Buffer = Buf>>(&self, backend: &B) -> Result<PhaseTimes> {
        let fence = backend.submit(&self.rec)?;
        backend.wait(&fence)?;
        let Some(durations) = backend.timings(&fence) else {
            return Err(Error::Unsupported {
                what: "timing the share of a rank".into(),
                why: format!("backend `{}` does not measure the time of commands", backend.caps().backend),
            });
        };
        if durations.len() != self.phases.len() {
            return Err(Error::shape(
                "times of a recording",
                durations.len(),
                format!("{} commands", self.phases.len()),
            ));
        }
        let mut times = PhaseTimes::default();
        for (&phase, duration) in self.phases.iter().zip(durations) {
            times[phase] += duration.as_secs_f64();
        }
        Ok(times)
    }
}

/// The buffers that a command writes.
fn written<Buf>(command: &Command<Buf>) -> Vec<&Buf> {
    match command {
        Command::Dispatch(kernel) => {
            let written = kernel.bindings().into_iter().filter(|binding| binding.access == Access::Write);
            written.filter_map(|binding| binding.buffer).collect()
        }
        Command::Fill { buffer, .. } | Command::Copy { dst: buffer, .. } => vec![buffer],
    }
}
