//! How much noise the ways of selecting pairs add to weight gradients, and what they cost.
//!
//! `cargo bench --bench selection`. A layer is trained for a while on tokens of 64 words; then, for one batch and one set of quotas, its
//! gradients are estimated with many seeds. Printed is the mean squared error over the squared norm of the full gradient.

#![allow(clippy::print_stdout, reason = "a bench prints its table")]

use std::time::Instant;

use lrmoe::plan::{PlanOptions, Retention, RetentionPlan, plan_one_rank};
use lrmoe::rng::Philox;
use lrmoe::{
    AdamW, AdamWConfig, CpuBackend, ForwardContext, LayerOptions, MoeConfig, MoeLayer, MoeWeights, ParamId, Result,
    Schedule, Selection, Tensor,
};

const TOKENS: usize = 2048;
const HIDDEN: usize = 64;
const WORDS: usize = 64;
const STEPS: u64 = 150;
const SEEDS: u64 = 48;

/// Words, what follows each, and a fixed head that reads the answer off the residual stream.
struct Task {
    words: Vec<f32>,
    head: Vec<f32>,
    rng: Philox,
}

/// A batch: x `[T, H]` and the word that each token should answer.
struct Batch {
    x: Vec<f32>,
    answers: Vec<usize>,
}

impl Task {
    fn new() -> Self {
        let mut rng = Philox::new(11, 0);
        let mut normal = |len: usize, std_dev: f32| {
            let mut values = vec![0.0; len];
            rng.fill_normal(&mut values, std_dev);
            values
        };
        let (words, head) = (normal(WORDS * HIDDEN, 1.0), normal(WORDS * HIDDEN, 0.3));
        Self { words, head, rng }
    }

    /// Words by Zipf's law, in noise; one answer in five is any word.
    fn batch(&mut self) -> Batch {
        let mut x = vec![0.0; TOKENS * HIDDEN];
        self.rng.fill_normal(&mut x, 0.2);
        let mut answers = Vec::with_capacity(TOKENS);
        for row in x.chunks_exact_mut(HIDDEN) {
            let word = ((WORDS as f32).powf(self.rng.uniform()) as usize - 1).min(WORDS - 1);
            let own = &self.words[word * HIDDEN..][..HIDDEN];
            row.iter_mut().zip(own).for_each(|(x, w)| *x += w);
            let any = (self.rng.uniform() * WORDS as f32) as usize % WORDS;
            answers.push(if self.rng.uniform() < 0.2 { any } else { (7 * word + 3) % WORDS });
        }
        Batch { x, answers }
    }

    /// Mean cross-entropy of the head on x + y, and its gradient by y.
    fn loss(&self, batch: &Batch, y: &[f32]) -> (f64, Vec<f32>) {
        let mut dy = vec![0.0; y.len()];
        let mut sum = 0.0;
        for (t, &answer) in batch.answers.iter().enumerate() {
            let at = t * HIDDEN..(t + 1) * HIDDEN;
            let stream: Vec<f32> = batch.x[at.clone()].iter().zip(&y[at.clone()]).map(|(x, y)| x + y).collect();
            let dot = |row: &[f32]| f64::from(row.iter().zip(&stream).map(|(w, s)| w * s).sum::<f32>());
            let logits: Vec<f64> = self.head.chunks_exact(HIDDEN).map(dot).collect();
            let most = logits.iter().copied().fold(f64::MIN, f64::max);
            let total: f64 = logits.iter().map(|l| (l - most).exp()).sum();
            sum += total.ln() + most - logits[answer];
            for (word, row) in self.head.chunks_exact(HIDDEN).enumerate() {
                let p = (logits[word] - most).exp() / total - f64::from(u8::from(word == answer));
                let p = (p / TOKENS as f64) as f32;
                dy[at.clone()].iter_mut().zip(row).for_each(|(d, w)| *d += p * w);
            }
        }
        (sum / TOKENS as f64, dy)
    }
}

fn layer(backend: &CpuBackend, weights: MoeWeights, select: Selection) -> Result<MoeLayer<CpuBackend>> {
    let config = MoeConfig::new(HIDDEN, 32, 32, 4);
    MoeLayer::new(backend, config, weights, LayerOptions { select, ..LayerOptions::default() })
}

/// The gradients of gate and up, and of down, for one seed; seconds of the backward pass.
fn gradients(
    layer: &mut MoeLayer<CpuBackend>,
    (x, dy): (&Tensor<CpuBackend>, &Tensor<CpuBackend>),
    plan: &RetentionPlan,
    seed: u64,
) -> Result<([Vec<f32>; 2], f64)> {
    let context = ForwardContext { seed, ..ForwardContext::default() };
    let schedule = Schedule { retained: plan.clone(), dropped: None };
    let (_, saved) = layer.forward_scheduled(x, None, &context, |_| Ok(schedule))?;
    layer.zero_grad();
    let start = Instant::now();
    layer.backward(&saved, dy)?;
    let seconds = start.elapsed().as_secs_f64();
    let of = |id| Ok::<_, lrmoe::Error>(layer.gradient(id)?.unwrap_or_default());
    Ok(([of(ParamId::GateUp)?, of(ParamId::Down)?], seconds))
}

fn main() -> Result<()> {
    let backend = CpuBackend::new();
    let mut task = Task::new();
    let start = MoeWeights::init(&MoeConfig::new(HIDDEN, 32, 32, 4), 5, 0.12)?;
    let mut trained = layer(&backend, start, Selection::All)?;
    let mut adamw = AdamW::new(&trained, AdamWConfig::default())?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let batch = task.batch();
        let x = Tensor::from_f32(&backend, &batch.x, TOKENS, HIDDEN)?;
        let (y, saved) = trained.forward(&x, &ForwardContext { step, ..ForwardContext::default() })?;
        let (loss, dy) = task.loss(&batch, &y.to_f32(&backend)?);
        losses.push(loss);
        trained.backward(&saved, &Tensor::from_f32(&backend, &dy, TOKENS, HIDDEN)?)?;
        adamw.step(&mut trained, 3e-3, 1.0, false)?;
        trained.zero_grad();
    }
    let weights = trained.weights()?;
    let batch = task.batch();
    let x = Tensor::from_f32(&backend, &batch.x, TOKENS, HIDDEN)?;
    let (y, saved) = trained.forward(&x, &ForwardContext::default())?;
    let counts = saved.counts().to_vec();
    let dy = Tensor::from_f32(&backend, &task.loss(&batch, &y.to_f32(&backend)?).1, TOKENS, HIDDEN)?;
    let device = &lrmoe::Backend::caps(&backend).device;
    println!("{device}; {TOKENS} tokens, 32 experts, top-4; loss {:.3} to {:.3}", losses[0], losses[losses.len() - 1]);
    println!("retain  select      error of gate, up      of down   backward ms");
    for fraction in [0.5, 0.25] {
        let everything = plan_one_rank(&counts, None, &retain(1.0))?;
        // Quotas from the scores of this very batch, the same for all.
        let mut scored = layer(&backend, weights.clone(), Selection::Unbiased)?;
        gradients(&mut scored, (&x, &dy), &everything, 0)?;
        let plan = plan_one_rank(&counts, scored.demand(), &retain(fraction))?;
        let mut full = layer(&backend, weights.clone(), Selection::All)?;
        let (exact, _) = gradients(&mut full, (&x, &dy), &everything, 0)?;
        for select in [Selection::Unbiased, Selection::Systematic, Selection::TopQ] {
            let mut layer = layer(&backend, weights.clone(), select)?;
            let (mut errors, mut seconds) = ([0.0; 2], Vec::new());
            for seed in 0..SEEDS {
                let (estimate, took) = gradients(&mut layer, (&x, &dy), &plan, seed)?;
                seconds.push(took);
                for (error, (estimate, exact)) in errors.iter_mut().zip(estimate.iter().zip(&exact)) {
                    let squared =
                        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum() };
                    let norm = squared(exact, &vec![0.0; exact.len()]);
                    *error += squared(estimate, exact) / norm / SEEDS as f64;
                }
            }
            seconds.sort_by(f64::total_cmp);
            println!(
                "{fraction:<7} {:<11} {:>18.4} {:>12.4} {:>13.2}",
                select.to_string(),
                errors[0],
                errors[1],
                1e3 * seconds[seconds.len() / 2]
            );
        }
    }
    Ok(())
}

fn retain(fraction: f64) -> PlanOptions {
    PlanOptions { retention: Retention::Fraction(fraction), ..PlanOptions::default() }
}
