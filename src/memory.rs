//! The memory accountant of one rank.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Error, Result};

/// What a buffer is for. Budgets and reports are by category.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Parameters in their compute type.
    Weights,
    /// Parameter gradients.
    Gradients,
    /// Copies of experts beyond the first.
    Replicas,
    /// Optimizer moments and f32 masters.
    Optimizer,
    /// Per-token and per-pair buffers of one pass.
    TokenBuffers,
    /// What forward keeps for backward.
    Stash,
    /// Send and receive buffers.
    Exchange,
    /// Short-lived workspace.
    Scratch,
}

impl std::fmt::Display for Category {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Weights => "weights",
            Self::Gradients => "gradients",
            Self::Replicas => "replicas",
            Self::Optimizer => "optimizer",
            Self::TokenBuffers => "token_buffers",
            Self::Stash => "stash",
            Self::Exchange => "exchange",
            Self::Scratch => "scratch",
        })
    }
}

impl Category {
    /// Every category, in the order of reports.
    pub const ALL: [Self; 8] = [
        Self::Weights,
        Self::Gradients,
        Self::Replicas,
        Self::Optimizer,
        Self::TokenBuffers,
        Self::Stash,
        Self::Exchange,
        Self::Scratch,
    ];

    /// Whether buffers of this category live as long as the layer. Such buffers are allocated to the byte; the others
    /// are rounded up to a size class, so that slightly different sizes reuse each other's memory.
    pub const fn long_lived(self) -> bool {
        matches!(self, Self::Weights | Self::Gradients | Self::Replicas | Self::Optimizer)
    }
}

/// Bytes of each category, indexed by `Category as usize`.
pub type CategoryBytes = [u64; 8];

/// What the accountant has seen, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct MemoryReport {
    /// Limit on `reserved`, if there is one.
    pub budget: Option<u64>,
    /// Handed out by the allocator now, idle buffers that wait for reuse included.
    pub reserved: u64,
    /// Part of `reserved` that waits for reuse.
    pub idle: u64,
    /// Asked for by the live buffers; at most `reserved`.
    pub used: u64,
    /// Reserved by live buffers now, by category.
    pub live: CategoryBytes,
    /// Highest value of `live` of each category, whenever it was reached.
    pub peak: CategoryBytes,
    /// `live` at the moment its sum was highest.
    pub at_peak: CategoryBytes,
    /// Allocations made from the system so far; constant in a steady state.
    pub allocations: u64,
}

impl MemoryReport {
    /// Highest simultaneous sum of live buffers.
    pub fn peak_total(&self) -> u64 {
        self.at_peak.iter().sum()
    }
}

#[derive(Debug)]
struct State {
    report: MemoryReport,
}

impl State {
    fn refuse(&self, asked: u64, category: Category, name: &str) -> Error {
        Error::OutOfMemory {
            category,
            name: name.to_owned(),
            asked,
            used: self.report.reserved,
            budget: self.report.budget.unwrap_or(u64::MAX),
        }
    }

    fn make_live(&mut self, category: Category, bytes: u64, used: u64) {
        let report = &mut self.report;
        report.used += used;
        report.live[category as usize] += bytes;
        report.peak[category as usize] = report.peak[category as usize].max(report.live[category as usize]);
        if report.live.iter().sum::<u64>() > report.peak_total() {
            report.at_peak = report.live;
        }
    }
}

/// Enforces the byte budget of one rank before an allocation is made. Clones share one account.
#[derive(Debug, Clone)]
pub struct Accountant {
    state: Arc<Mutex<State>>,
}

impl Accountant {
    /// An account with a budget in bytes, or without limit.
    pub fn new(budget: Option<u64>) -> Self {
        let report = MemoryReport {
            budget,
            reserved: 0,
            idle: 0,
            used: 0,
            live: [0; 8],
            peak: [0; 8],
            at_peak: [0; 8],
            allocations: 0,
        };
        Self { state: Arc::new(Mutex::new(State { report })) }
    }

    /// The current figures.
    pub fn report(&self) -> MemoryReport {
        self.lock().report
    }

    /// Starts new peaks from what is live now.
    pub fn reset_peaks(&self) {
        let mut state = self.lock();
        state.report.peak = state.report.live;
        state.report.at_peak = state.report.live;
    }

    /// Reserves `bytes`, of which `used` (at most all) were asked for, for a new allocation.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the budget would be passed; nothing is reserved then.
    pub fn reserve(&self, category: Category, name: &str, bytes: u64, used: u64) -> Result<Reservation> {
        let mut reservation = self.hold(category, name, bytes)?;
        reservation.allocated(category, used);
        Ok(reservation)
    }

    /// Reserves `bytes` for an allocation that is yet to be made: [`Reservation::allocated`] counts it, and one that fails leaves no
    /// trace.
    ///
    /// # Errors
    /// As [`Accountant::reserve`].
    pub fn hold(&self, category: Category, name: &str, bytes: u64) -> Result<Reservation> {
        let mut state = self.lock();
        let reserved = state.report.reserved.checked_add(bytes).ok_or_else(|| state.refuse(bytes, category, name))?;
        if state.report.budget.is_some_and(|budget| reserved > budget) {
            return Err(state.refuse(bytes, category, name));
        }
        state.report.reserved = reserved;
        state.report.idle += bytes;
        Ok(Reservation { account: self.clone(), bytes, live: None })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes held in an account; given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    account: Accountant,
    bytes: u64,
    live: Option<(Category, u64)>,
}

impl Reservation {
    /// Reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Marks the bytes as idle: still reserved, waiting for reuse.
    pub fn park(&mut self) {
        if let Some((category, used)) = self.live.take() {
            let mut state = self.account.lock();
            state.report.live[category as usize] -= self.bytes;
            state.report.used -= used;
            state.report.idle += self.bytes;
        }
    }

    /// Takes held bytes into use for the first time: an allocation from the system.
    pub fn allocated(&mut self, category: Category, used: u64) {
        self.reuse(category, used);
        self.account.lock().report.allocations += 1;
    }

    /// Takes idle bytes into use again, of which `used` (at most all) were asked for.
    pub fn reuse(&mut self, category: Category, used: u64) {
        self.park();
        let used = used.min(self.bytes);
        let mut state = self.account.lock();
        state.report.idle -= self.bytes;
        state.make_live(category, self.bytes, used);
        drop(state);
        self.live = Some((category, used));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.park();
        let mut state = self.account.lock();
        state.report.idle -= self.bytes;
        state.report.reserved -= self.bytes;
    }
}

/// Rounds up to a size class: eight classes an octave, at least 256 bytes. None on overflow.
pub fn size_class(bytes: u64) -> Option<u64> {
    let bytes = bytes.max(256);
    let step = (bytes.checked_next_power_of_two()? / 16).max(32);
    bytes.checked_next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_enforced_before_and_freed_after() {
        let account = Accountant::new(Some(1000));
        let a = account.reserve(Category::Weights, "a", 600, 600).unwrap();
        let refused = account.reserve(Category::Scratch, "b", 401, 401).unwrap_err();
        assert_eq!(
            refused,
            Error::OutOfMemory { category: Category::Scratch, name: "b".into(), asked: 401, used: 600, budget: 1000 }
        );
        let mut b = account.reserve(Category::Scratch, "b", 400, 399).unwrap();
        assert_eq!((account.report().reserved, account.report().used), (1000, 999));
        b.park();
        assert_eq!((account.report().reserved, account.report().used, account.report().idle), (1000, 600, 400));
        b.reuse(Category::Stash, 10);
        assert_eq!(account.report().live[Category::Stash as usize], 400);
        drop((a, b));
        let end = account.report();
        assert_eq!((end.reserved, end.used, end.idle, end.allocations), (0, 0, 0, 2));
        assert_eq!(end.peak_total(), 1000);
        assert!(account.reserve(Category::Scratch, "c", u64::MAX, 0).is_err());
        let mut greedy = [0; 2].map(|_| account.reserve(Category::Scratch, "d", 1, u64::MAX).unwrap());
        greedy[0].reuse(Category::Stash, u64::MAX);
        assert_eq!(account.report().used, 2);
    }

    #[test]
    fn classes_waste_at_most_an_eighth() {
        for bytes in (1..200_000u64).chain([1 << 40, (1 << 40) + 1]) {
            let class = size_class(bytes).unwrap();
            assert!(class >= bytes && (bytes < 256 || (class - bytes) * 8 <= bytes), "{bytes} -> {class}");
            assert_eq!(size_class(class), Some(class));
        }
        assert_eq!(size_class(u64::MAX), None);
    }
}
