//! A share from sizes to seconds.

use super::data::Data;
use super::source::Source;
use super::timed::Timed;
use super::{PhaseTimes, Share, destination};
use crate::backend::Backend;
use crate::config::MoeConfig;
use crate::kernel::SelectRule;
use crate::layer::{LayerOptions, Selection};
use crate::memory::Category;
use crate::op::Arena;
use crate::op::router::Sizes;
use crate::rng::Philox;
use crate::{Error, Result};

/// How pairs are scored and chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Selecting {
    pub(super) rule: SelectRule,
    pub(super) score_floor: f32,
}

impl Selecting {
    fn new(select: Selection, score_floor: f32) -> Result<Self> {
        LayerOptions { select, score_floor, ..LayerOptions::default() }.validate()?;
        let Some(rule) = select.rule() else {
            let allowed = "a selection within quotas; a share that keeps all pairs says so with `selects`";
            return Err(Error::argument("select", select, allowed));
        };
        Ok(Self { rule, score_floor })
    }
}

/// What every stage of one run looks at.
#[derive(Debug)]
pub(super) struct Context<'a, B: Backend> {
    pub(super) arena: Arena<'a, B>,
    pub(super) config: &'a MoeConfig,
    pub(super) selection: Selecting,
    pub(super) share: &'a Share,
    pub(super) data: &'a Data<B>,
}

impl<B: Backend> Clone for Context<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Context<'_, B> {}

impl<B: Backend> Context<'_, B> {
    pub(super) fn sizes(&self) -> Sizes {
        Sizes::new(self.config, self.share.tokens)
    }

    /// Indices of this run.
    pub(super) fn indices(&self, name: &str, values: Vec<u32>) -> Result<B::Buffer> {
        self.arena.upload_u32(name, values, Category::Scratch)
    }

    /// Standard normal numbers, f32 `[len]`.
    pub(super) fn normals(&self, name: &str, len: usize) -> Result<B::Buffer> {
        self.arena.upload_f32(name, self.data.normals.take(name, len, 1.0)?, Category::Scratch)
    }

    /// Magnitudes of standard normal numbers, at least the smallest normal f32: f32 `[len]`.
    pub(super) fn magnitudes(&self, name: &str, len: usize) -> Result<B::Buffer> {
        let values = self.data.normals.take(name, len, 1.0)?;
        let values = values.into_iter().map(|v| v.abs().max(f32::MIN_POSITIVE)).collect();
        self.arena.upload_f32(name, values, Category::Scratch)
    }
}

/// Runs shares of one layer configuration on one backend.
///
/// Weights, token buffers and optimizer state are kept from run to run.
#[derive(Debug)]
pub struct ShareRunner<B: Backend> {
    backend: B,
    config: MoeConfig,
    selection: Selecting,
    pub(super) data: Data<B>,
    seed: u64,
    runs: u64,
}

impl<B: Backend> ShareRunner<B> {
    /// A runner without resident experts; the first [`ShareRunner::run`] makes them. `seed` gives values and indices. Shares that select
    /// do so as [`LayerOptions::default`] does.
    ///
    /// # Errors
    /// [`crate::Error::Config`], [`crate::Error::Overflow`], [`crate::Error::OutOfMemory`].
    pub fn new(backend: &B, config: &MoeConfig, seed: u64) -> Result<Self> {
        config.validate()?;
        let LayerOptions { select, score_floor, .. } = LayerOptions::default();
        let selection = Selecting::new(select, score_floor)?;
        let data = Data::new(backend, config, seed)?;
        Ok(Self { backend: backend.clone(), config: config.clone(), selection, data, seed, runs: 0 })
    }

    /// The same runner, whose shares select by these two options of [`LayerOptions`].
    ///
    /// # Errors
    /// [`crate::Error::Argument`] for values that a layer refuses, and for [`Selection::All`], which selects nothing: that is what
    /// [`Share::selects`] says.
    pub fn with_selection(mut self, select: Selection, score_floor: f32) -> Result<Self> {
        self.selection = Selecting::new(select, score_floor)?;
        Ok(self)
    }

    /// Runs every phase of `share` once, alone on the backend, and returns their times. Blocks.
    ///
    /// A phase without tokens, rows or parameters launches nothing and takes exactly 0 s; resident experts without rows
    /// launch their kernels, as in a real step. The first run on a backend may warm up threads and caches: discard it.
    ///
    /// # Errors
    /// As [`Share::validate`]; [`crate::Error::Unsupported`] where the backend does not time its commands;
    /// [`crate::Error::OutOfMemory`], [`crate::Error::SystemMemory`] and what the device reports.
    pub fn run(&mut self, share: &Share) -> Result<PhaseTimes> {
        share.validate(&self.config)?;
        self.data.fit(&self.config, share)?;
        self.runs += 1;
        let mut rng = Philox::new(self.seed, self.runs);
        let arena = Arena { backend: &self.backend };
        let context = Context { arena, config: &self.config, selection: self.selection, share, data: &self.data };

        // As in the layer, the counts come back to the host before anything else is recorded: quotas depend on them.
        let mut times = PhaseTimes::default();
        let mut gate = Timed::new();
        let source = Source::route(context, &mut gate)?;
        times += self.measure(&gate, &[])?;

        let mut timed = Timed::new();
        let mut zeros = Vec::new();
        if let Some(source) = &source {
            zeros.extend([source.y(), source.dx()]);
            let sent = source.send_forward(&mut timed, &mut rng)?;
            let activated = destination::forward(context, &mut timed, &mut rng)?;
            source.receive(&mut timed, sent.as_ref(), source.y())?;
            let shared = source.shared_forward(&mut timed)?;
            let kept = source.choose(&mut timed)?;
            let sent = source.send_backward(&mut timed, &mut rng)?;
            destination::backward(context, &mut timed, &mut rng, activated)?;
            source.receive(&mut timed, sent.as_ref(), source.dx())?;
            source.router_backward(&mut timed, &kept)?;
            source.shared_backward(&mut timed, shared)?;
        } else {
            let activated = destination::forward(context, &mut timed, &mut rng)?;
            destination::backward(context, &mut timed, &mut rng, activated)?;
        }
        destination::step(context, &mut timed)?;
        times += self.measure(&timed, &zeros)?;
        Ok(times)
    }

    /// Times of the commands, in memory that has been written before. `zeros` start as 0.
    fn measure(&self, timed: &Timed<B::Buffer>, zeros: &[&B::Buffer]) -> Result<PhaseTimes> {
        timed.touch(&self.backend, zeros, &self.data.written())?;
        timed.run(&self.backend)
    }
}
