//! The memory of one rank, before anything is allocated.
//!
//! [`MemoryModel`] lists every buffer ([`MemoryModel::buffers`]), adds them up as the accountant of [`crate::memory`] would report them
//! ([`MemoryModel::rank`]) and finds the largest wave that fits every rank ([`MemoryModel::largest_wave`]).
//!
//! What is counted: everything that the layers of one rank allocate, all of them sharing its budget. Weights, gradients and optimizer
//! state are there for every layer, and so is what forward keeps for backward, because at the end of a model's forward pass every layer
//! waits for its backward. Buffers of one forward, one backward or one optimizer step are live in one layer at a time. Forward and
//! backward never run together, so the rank needs the largest of the three sums, not their total; memory that the others left idle is
//! given up before a budget would be passed. Of what a call returns, y counts while forward runs, dx and the logits' gradient while
//! backward does; afterwards they are the host's, as x and dy are all the time.
//!
//! ```
//! use lrmoe::memory::Category;
//! use lrmoe::plan::{Activations, ClusterSpec, MemoryModel, Ownership, RankLoad, Setup};
//! use lrmoe::{DType, MoeConfig};
//!
//! // H 64, I 32, E 8, k 2 in f32 on one rank: 16 tokens, half of their 32 pairs retained.
//! let config = MoeConfig { dtype: Some(DType::F32), ..MoeConfig::new(64, 32, 8, 2) };
//! let setup = Setup::new(config, ClusterSpec::preset("laptop")?)?;
//! let model = MemoryModel::new(&setup, Ownership::Home, Activations::Stash)?;
//! let memory = model.rank(&RankLoad::alone(8, 2, 16, 16), u64::MAX)?;
//! let parameters = 8 * 3 * 64 * 32 + 8 * 64; // experts and router
//! assert_eq!(memory.reserved[Category::Weights as usize], 4 * parameters);
//! assert_eq!(memory.reserved[Category::Optimizer as usize], 8 * parameters);
//! assert!(memory.used_total() <= memory.total() && memory.fits());
//! # Ok::<(), lrmoe::Error>(())
//! ```

use serde::{Deserialize, Serialize};

use super::buffers::{PlannedBuffer, RankLoad, Shape, Span};
use super::mode::{Activations, Ownership};
use super::setup::Setup;
use crate::memory::{Category, CategoryBytes, size_class};
use crate::{Error, Result};

/// Predicted memory of one rank at the moment its sum is highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankMemory {
    /// What the allocator hands out, in bytes by category: long-lived buffers to the byte, the others rounded to their size class.
    pub reserved: CategoryBytes,
    /// What the buffers ask for, in bytes by category.
    pub used: CategoryBytes,
    /// Limit on the sum of `reserved`.
    pub budget: u64,
}

impl RankMemory {
    /// Bytes reserved: the smallest budget under which this rank works.
    #[must_use]
    pub fn total(&self) -> u64 {
        sum(&self.reserved)
    }

    /// The part of the reserved bytes that published work compares: weights, replicas and what grows with tokens, which is everything but
    /// gradients and optimizer state.
    #[must_use]
    pub fn subtotal(&self) -> u64 {
        let state = [Category::Gradients, Category::Optimizer].map(|category| self.reserved[category as usize]);
        self.total() - state.iter().sum::<u64>()
    }

    /// Bytes asked for, at most [`total`](Self::total).
    #[must_use]
    pub fn used_total(&self) -> u64 {
        sum(&self.used)
    }

    /// Whether the budget holds it.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.total() <= self.budget
    }

    /// [`Error::Infeasible`] for this rank.
    #[must_use]
    pub fn to_error(&self, rank: usize) -> Error {
        let parts = Category::ALL.iter().zip(self.reserved).filter(|(_, bytes)| *bytes > 0);
        let detail: Vec<String> = parts.map(|(category, bytes)| format!("{category} {bytes}")).collect();
        let needed = self.total();
        Error::Infeasible { rank, needed, budget: self.budget, smallest: needed, detail: detail.join(", ") }
    }
}

/// What the ranks of a setup need, for one owner of the optimizer state and one treatment of activations.
#[derive(Debug, Clone)]
pub struct MemoryModel {
    shape: Shape,
    layers: u64,
    ranks: u64,
    budget: u64,
}

impl MemoryModel {
    /// The model of a setup whose layers are trained in every part. Pairs are taken to be scored unless its retention is the fraction 1,
    /// selection to be [ordered](Self::ordered), router losses to be tracked where the config has a coefficient for them; what else a call may ask for is off.
    ///
    /// # Errors
    /// [`Error::Overflow`] for a setup that was not validated.
    pub fn new(setup: &Setup, ownership: Ownership, activations: Activations) -> Result<Self> {
        Ok(Self {
            shape: Shape::new(setup, ownership, activations)?,
            layers: setup.layers as u64,
            ranks: setup.cluster.ranks as u64,
            budget: setup.cluster.budget(),
        })
    }

    /// Whether pairs are scored even where none is dropped; a plan that drops pairs always scores them.
    #[must_use]
    pub const fn scored(mut self, scored: bool) -> Self {
        self.shape.scores = scored;
        self
    }

    /// Whether pairs that are dropped are chosen along an order of the tokens, as [`crate::Selection::Systematic`] does. The other
    /// selections need 4 bytes a token less, and over several ranks 2,048 bytes an expert.
    #[must_use]
    pub const fn ordered(mut self, ordered: bool) -> Self {
        self.shape.ordered = ordered;
        self
    }

    /// Whether scores take the `W_gate` and `W_up` part in ([`crate::kernel::Metric::Full`]).
    #[must_use]
    pub const fn full_metric(mut self, full: bool) -> Self {
        self.shape.full_metric = full;
        self
    }

    /// Whether backward adds a load-balancing loss or z-loss.
    #[must_use]
    pub const fn router_losses(mut self, tracked: bool) -> Self {
        self.shape.router_losses = tracked;
        self
    }

    /// Whether calls come with a mask. Every token is taken to take part, so that masked ones leave something over.
    #[must_use]
    pub const fn masked(mut self, masked: bool) -> Self {
        self.shape.masked = masked;
        self
    }

    /// Whether calls come with global token ids of their own.
    #[must_use]
    pub const fn token_ids(mut self, given: bool) -> Self {
        self.shape.token_ids = given;
        self
    }

    /// The budget of every rank in bytes.
    #[must_use]
    pub const fn budget(&self) -> u64 {
        self.budget
    }

    /// Every buffer of one layer on a rank whose waves send and compute at most `wave_rows` pairs. Buffers without bytes still take the
    /// smallest size class unless they live as long as the layer.
    ///
    /// # Errors
    /// As [`MemoryModel::rank`].
    pub fn buffers(&self, load: &RankLoad, wave_rows: u64) -> Result<Vec<PlannedBuffer>> {
        self.check(load, None)?;
        let mut buffers = Vec::new();
        self.shape.visit(load, wave_rows, &mut |buffer| buffers.push(buffer));
        Ok(buffers)
    }

    /// Memory of a rank whose waves send and compute at most `wave_rows` pairs. Its total never falls as `wave_rows`, or any field of
    /// `load`, grows.
    ///
    /// # Errors
    /// [`Error::Argument`] where the load contradicts itself, [`Error::Overflow`] where the bytes pass 64 bits.
    pub fn rank(&self, load: &RankLoad, wave_rows: u64) -> Result<RankMemory> {
        self.check(load, None)?;
        self.peak(load, wave_rows)
    }

    /// The largest wave of at most `ceiling` pairs for which every rank fits the budget.
    ///
    /// It is never less than [`smallest_wave`]; where not even that fits, there is no wave.
    ///
    /// # Errors
    /// [`Error::Infeasible`] for the rank that needs most at the smallest wave, with the budget that would do there;
    /// [`Error::Argument`] naming the rank whose load contradicts itself, and for loads of another number of ranks;
    /// [`Error::Overflow`].
    pub fn largest_wave(&self, loads: &[RankLoad], ceiling: u64) -> Result<u64> {
        self.wave_between(loads, smallest_wave(self.ranks, ceiling), ceiling)
    }

    /// Pairs of a wave such that a phase whose busiest rank sends or computes `degree` pairs takes as few waves as the budget of every rank
    /// allows; no more pairs than that number of waves needs.
    ///
    /// # Errors
    /// As [`MemoryModel::largest_wave`].
    pub fn fewest_waves(&self, loads: &[RankLoad], degree: u64) -> Result<u64> {
        let smallest = smallest_wave(self.ranks, degree);
        // What a wave holds when there are so many, see [`waves`](super::waves::waves).
        let rows = |waves: u64| match waves {
            0 | 1 => degree,
            _ => degree.div_ceil(waves).saturating_add(self.ranks).clamp(smallest, degree),
        };
        let fits = |waves: u64| self.shrink(loads, rows(waves), rows(waves)).is_some();
        self.check_all(loads)?;
        let mut enough = 1;
        while !fits(enough) {
            if rows(enough) == smallest {
                return self.wave_between(loads, smallest, smallest);
            }
            enough *= 2;
        }
        let mut few = enough / 2;
        while enough - few > 1 {
            let middle = few + (enough - few) / 2;
            if fits(middle) {
                enough = middle;
            } else {
                few = middle;
            }
        }
        Ok(rows(enough))
    }

    /// Checks that every rank fits the budget when its waves send and compute at most `wave_rows` pairs.
    ///
    /// # Errors
    /// As [`MemoryModel::largest_wave`], with this wave as the smallest.
    pub fn require(&self, loads: &[RankLoad], wave_rows: u64) -> Result<()> {
        self.wave_between(loads, wave_rows, wave_rows).map(|_| ())
    }

    fn check_all(&self, loads: &[RankLoad]) -> Result<()> {
        if loads.len() as u64 != self.ranks {
            return Err(Error::shape("loads", loads.len(), format!("{} ranks", self.ranks)));
        }
        loads.iter().enumerate().try_for_each(|(rank, load)| self.check(load, Some(rank)))
    }

    fn wave_between(&self, loads: &[RankLoad], smallest: u64, ceiling: u64) -> Result<u64> {
        self.check_all(loads)?;
        if let Some(wave) = self.shrink(loads, smallest, ceiling) {
            return Ok(wave);
        }
        let mut worst = (0, self.peak(&loads[0], smallest)?);
        for (rank, load) in loads.iter().enumerate().skip(1) {
            let memory = self.peak(load, smallest)?;
            if memory.total() > worst.1.total() {
                worst = (rank, memory);
            }
        }
        Err(worst.1.to_error(worst.0))
    }

    /// The largest wave from `low` to `high` that all these ranks fit, if there is one.
    ///
    /// A rank with the largest of every field needs at least what any of them does: where it fits, so do they, and one look replaces
    /// many. Otherwise each half is searched on its own, the second one below what the first one left.
    fn shrink(&self, loads: &[RankLoad], low: u64, high: u64) -> Option<u64> {
        let (first, rest) = loads.split_first()?;
        let most = rest.iter().fold(*first, |most, load| most.max(load));
        if self.fits(&most, high) {
            return Some(high);
        }
        if !rest.is_empty() {
            let (left, right) = loads.split_at(loads.len() / 2);
            let high = self.shrink(left, low, high)?;
            return self.shrink(right, low, high);
        }
        if !self.fits(first, low) {
            return None;
        }
        let (mut fits, mut fails) = (low, high);
        while fails - fits > 1 {
            let middle = fits + (fails - fits) / 2;
            if self.fits(first, middle) {
                fits = middle;
            } else {
                fails = middle;
            }
        }
        Some(fits)
    }

    fn check(&self, load: &RankLoad, rank: Option<usize>) -> Result<()> {
        let bad = |field: &str, value: u64, allowed: String| {
            let of_rank = rank.map_or(String::new(), |rank| format!(" of rank {rank}"));
            Err(Error::argument(format!("load{of_rank}: {field}"), value, allowed))
        };
        let slots = load.tokens.saturating_mul(self.shape.top_k());
        if load.pairs > slots {
            return bad("pairs", load.pairs, format!("at most k times its {} tokens: {slots}", load.tokens));
        }
        if load.retained > load.pairs {
            return bad("retained", load.retained, format!("at most its {} pairs", load.pairs));
        }
        if load.owned.saturating_add(load.replicas) > self.shape.experts() {
            let allowed = format!("with {} owned at most {} experts", load.owned, self.shape.experts());
            return bad("replicas", load.replicas, allowed);
        }
        Ok(())
    }

    fn fits(&self, load: &RankLoad, wave_rows: u64) -> bool {
        let total = sum(&self.sums(load, wave_rows).reserved);
        total <= self.budget && total < u64::MAX
    }

    fn peak(&self, load: &RankLoad, wave_rows: u64) -> Result<RankMemory> {
        let Sums { reserved, used } = self.sums(load, wave_rows);
        if sum(&reserved) == u64::MAX {
            return Err(Error::Overflow {
                what: "bytes of a rank".into(),
                detail: format!("{load:?} with {} layers passes {} bytes", self.layers, u64::MAX),
            });
        }
        Ok(RankMemory { reserved, used, budget: self.budget })
    }

    /// The sums at the moment when they are highest.
    fn sums(&self, load: &RankLoad, wave_rows: u64) -> Sums {
        let mut spans = [Sums::default(); 5];
        self.shape.visit(load, wave_rows, &mut |buffer| spans[buffer.span as usize].add(&buffer));
        let of = |span: Span| &spans[span as usize];
        let mut resting = *of(Span::Layer);
        let mut waiting = resting;
        waiting.join(of(Span::Saved));
        resting.repeat(self.layers);
        waiting.repeat(self.layers);
        // In the order of a step: where two moments tie, the accountant reports the first.
        let mut peak = Sums::default();
        for (mut moment, span) in [(waiting, Span::Forward), (waiting, Span::Backward), (resting, Span::Step)] {
            moment.join(of(span));
            if sum(&moment.reserved) > sum(&peak.reserved) {
                peak = moment;
            }
        }
        peak
    }
}

/// The smallest wave that [`MemoryModel::largest_wave`] returns: `ranks + 256` pairs, or `ceiling` where that is less. Below it most of a
/// wave would be the rounding of its blocks, see [`waves`](super::waves::waves).
#[must_use]
pub const fn smallest_wave(ranks: u64, ceiling: u64) -> u64 {
    let wave = ranks.saturating_add(256);
    if wave < ceiling { wave } else { ceiling }
}

/// Bytes of some buffers by category. They stay at `u64::MAX` once they have reached it.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    reserved: CategoryBytes,
    used: CategoryBytes,
}

impl Sums {
    fn add(&mut self, buffer: &PlannedBuffer) {
        let (category, bytes) = (buffer.category, buffer.bytes);
        let reserved = if category.long_lived() { bytes } else { size_class(bytes).unwrap_or(u64::MAX) };
        let slot = category as usize;
        self.reserved[slot] = self.reserved[slot].saturating_add(reserved);
        self.used[slot] = self.used[slot].saturating_add(bytes);
    }

    fn join(&mut self, other: &Self) {
        for (sum, other) in [(&mut self.reserved, &other.reserved), (&mut self.used, &other.used)] {
            sum.iter_mut().zip(other).for_each(|(sum, &bytes)| *sum = sum.saturating_add(bytes));
        }
    }

    fn repeat(&mut self, times: u64) {
        for bytes in self.reserved.iter_mut().chain(&mut self.used) {
            *bytes = bytes.saturating_mul(times);
        }
    }
}

fn sum(bytes: &CategoryBytes) -> u64 {
    bytes.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
