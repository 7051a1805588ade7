//! One model being trained, a step at a time.

use lrmoe::Backend;

use crate::corpus::Corpus;
use crate::failure::Failure;
use crate::model::Model;
use crate::moe::MoeSpec;
use crate::moe_op::Pass;
use crate::optim::{JointAdamW, learning_rate};

/// How the message of a run begins whose loss or gradients are no numbers any more.
pub(crate) const DIVERGED: &str = "training diverged";

/// A model with its optimizer and its place in the data.
#[derive(Debug)]
pub(crate) struct Trainer {
    pub(crate) model: Model,
    optimizer: JointAdamW,
    seed: u64,
    /// Sequences of a step.
    batch: usize,
    /// Steps that the learning rate is planned for.
    planned: u64,
    /// Steps done.
    done: u64,
}

/// What a step tells of itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progressed {
    pub(crate) loss: f64,
    pub(crate) lr: f64,
    pub(crate) grad_norm: f64,
}

impl Trainer {
    /// `layers` MoE layers as `spec` describes them.
    pub(crate) fn new(
        layers: usize,
        spec: &MoeSpec,
        backend: &impl Backend,
        batch: usize,
        planned: u64,
    ) -> Result<Self, Failure> {
        let model = Model::new(layers, spec, backend)?;
        let optimizer = JointAdamW::new(&model)?;
        Ok(Self { model, optimizer, seed: spec.seed, batch, planned, done: 0 })
    }

    /// Trains on the windows of the next step.
    pub(crate) fn step(&mut self, corpus: &Corpus) -> Result<Progressed, Failure> {
        let step = self.done;
        let windows = corpus.training_windows(self.seed, step, self.batch);
        let loss = self.model.loss(&windows, Pass::Train { step })?;
        let value = finite(f64::from(loss.to_scalar::<f32>()?), "loss", step)?;
        let lr = learning_rate(step, self.planned);
        let grad_norm = self.optimizer.step(&self.model, &mut loss.backward()?, lr)?;
        self.done += 1;
        Ok(Progressed { loss: value, lr, grad_norm })
    }

    /// Mean loss of the held-out windows.
    pub(crate) fn validate(&self, corpus: &Corpus) -> Result<f64, Failure> {
        let windows = corpus.validation_windows();
        let mut total = 0.0;
        for chunk in windows.chunks(self.batch) {
            total += f64::from(self.model.loss(chunk, Pass::Evaluate)?.to_scalar::<f32>()?) * chunk.len() as f64;
        }
        finite(total / windows.len() as f64, "validation loss", self.done)
    }
}

fn finite(x: f64, what: &str, step: u64) -> Result<f64, Failure> {
    if x.is_finite() { Ok(x) } else { Err(Failure::run(format!("{DIVERGED}: the {what} at step {step} is {x}"))) }
}
