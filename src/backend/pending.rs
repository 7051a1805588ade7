//! Checks of submitted recordings that nobody has looked at, so that none is lost and none piles up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Result;

/// Recordings at most whose checks nobody has looked at.
const MOST: usize = 256;

/// The checks of a recording.
pub(super) trait Checked {
    /// Order of submission.
    fn sequence(&self) -> u64;
    /// Whether they have been looked at: what they found is known, and told once more to whoever asks.
    fn decided(&self) -> bool;
}

/// Recordings in the order of their submission, and the checks of those that nobody has waited for.
#[derive(Debug)]
pub(super) struct Unsettled<Checks> {
    checks: Mutex<Vec<Arc<Checks>>>,
    sequence: AtomicU64,
}

impl<Checks> Default for Unsettled<Checks> {
    fn default() -> Self {
        Self { checks: Mutex::default(), sequence: AtomicU64::new(0) }
    }
}

impl<Checks: Checked> Unsettled<Checks> {
    /// The next place in the order.
    pub(super) fn next(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }

    fn checks(&self) -> MutexGuard<'_, Vec<Arc<Checks>>> {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn remember(&self, checks: &Arc<Checks>) {
        self.checks().push(Arc::clone(checks));
    }

    /// What `outcome` reports of recordings before `sequence` whose fences are gone: nobody waits for them any more. It stops at the first
    /// report; the others are for the next time, and so is one that could not be looked at.
    pub(super) fn settle(&self, sequence: u64, outcome: impl Fn(&Checks) -> Result<()>) -> Result<()> {
        let mut settled: Vec<_> = {
            let abandoned = |c: &mut Arc<Checks>| c.sequence() < sequence && Arc::strong_count(c) == 1;
            self.checks().extract_if(.., abandoned).collect()
        };
        settled.sort_by_key(|checks| std::cmp::Reverse(checks.sequence()));
        while let Some(checks) = settled.pop() {
            if let Err(error) = outcome(&checks) {
                settled.extend((!checks.decided()).then_some(checks));
                self.checks().extend(settled);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The same of a caller who never waits, once there is much of it: of what was submitted long ago and has run.
    pub(super) fn bound(&self, outcome: impl Fn(&Checks) -> Result<()>) -> Result<()> {
        if self.checks().len() < MOST {
            return Ok(());
        }
        self.settle(self.next().saturating_sub(MOST as u64 / 2), outcome)
    }

    /// What `outcome` reports of checks that someone waits for.
    pub(super) fn wait(&self, own: &Arc<Checks>, outcome: impl FnOnce(&Checks) -> Result<()>) -> Result<()> {
        let outcome = outcome(own);
        if own.decided() {
            self.checks().retain(|checks| !Arc::ptr_eq(checks, own));
        }
        outcome
    }
}
