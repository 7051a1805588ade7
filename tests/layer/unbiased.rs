//! `Systematic`, `Unbiased` and `Mixed` over thousands of seeds: sizes of the retained sets, mean pair weights, mean gradients.
//!
//! A false alarm of a whole trial has probability below 1e-6: with N comparisons each mean may be off by z standard errors,
//! N exp(-z^2 / 2) = 1e-6 (a Gaussian tail bound, corrected for N). That the check can fail is shown on biased selections.

use libtest_mimic::Trial;
use lrmoe::{Backend, ForwardContext, LayerOptions, MoeConfig, MoeLayer, RouterGradient, Selection, Tensor};

use crate::sample::{Block, single};
use crate::support::compare::Comparison;
use crate::support::layer::wide;
use crate::{Device, Outcome, text, trial};

const SEEDS: u64 = 3000;
const FALSE_ALARM: f64 = 1e-6;
/// Rounding of f32 sums, relative to the root mean square of the truth.
const ROUNDING: f64 = 1e-5;

pub(crate) fn trials<B: Backend>(device: Device<B>) -> Vec<Trial> {
    let mut trials = Vec::new();
    let mixed = [0.5, 0.9].map(|certain| Selection::Mixed { certain });
    for select in [Selection::Systematic, Selection::Unbiased].into_iter().chain(mixed) {
        trials.push(trial(device, format!("unbiased::pair_weights::{select}"), move |d| pair_weights(d, select)));
        for router in [RouterGradient::Estimated, RouterGradient::Exact] {
            let name = format!("unbiased::mean_gradients::{select}::{router:?}").to_lowercase();
            let options = LayerOptions { select, router_gradient: router, ..LayerOptions::default() };
            trials.push(trial(device, name, move |d| mean_gradients(d, options)?.finish(1)));
        }
    }
    let top_q = LayerOptions { select: Selection::TopQ, ..LayerOptions::default() };
    let capped = LayerOptions { weight_cap: Some(1.0), ..LayerOptions::default() };
    for (name, options) in [("topq", top_q), ("weights_left_out", capped)] {
        trials.push(trial(device, format!("unbiased::bias_is_found::{name}"), move |d| {
            match mean_gradients(d, options)?.finish(1) {
                Err(_) => Ok(()),
                Ok(()) => Err("a biased selection passes the check".to_string()),
            }
        }));
    }
    trials
}

/// Mean and variance of many numbers at once, by Welford's update.
struct Moments {
    samples: f64,
    mean: Vec<f64>,
    squares: Vec<f64>,
}

impl Moments {
    fn new(len: usize) -> Self {
        Self { samples: 0.0, mean: vec![0.0; len], squares: vec![0.0; len] }
    }

    fn add(&mut self, values: &[f64]) {
        self.samples += 1.0;
        for ((mean, square), value) in self.mean.iter_mut().zip(&mut self.squares).zip(values) {
            let off = value - *mean;
            *mean += off / self.samples;
            *square += off * (value - *mean);
        }
    }

    /// How many elements vary.
    fn varying(&self) -> usize {
        self.squares.iter().filter(|&&square| square > 0.0).count()
    }

    /// Every mean is the truth, up to z standard errors and rounding.
    fn check(&self, compare: &mut Comparison, what: &str, truth: &[f64]) {
        let z = (2.0 * (truth.len() as f64 / FALSE_ALARM).ln()).sqrt();
        let rms = (truth.iter().map(|v| v * v).sum::<f64>() / truth.len() as f64).sqrt();
        for (i, want) in truth.iter().enumerate() {
            let error = (self.squares[i] / (self.samples - 1.0) / self.samples).sqrt();
            let off = (self.mean[i] - want).abs();
            let holds = off <= z * error + ROUNDING * rms;
            compare
                .holds(&format!("{what}: mean {i} is {}, truth {want}, standard error {error}", self.mean[i]), holds);
        }
    }
}

fn context(seed: u64) -> ForwardContext<'static> {
    ForwardContext { seed, step: 7, layer: 2, ..ForwardContext::default() }
}

/// One expert per token, so that dx shows the pair weight.
fn pair_weights<B: Backend>(device: &Device<B>, select: Selection) -> Outcome {
    const TOKENS: usize = 36;
    const FLOOR: u32 = 4;
    let backend = (device.make)();
    let mut block = Block::new(single(6, 5, 3), TOKENS, 21);
    for t in [3, 11, 19] {
        block.dy.row_mut(t).fill(0.0);
    }
    let (x, dy) = block.tensors(&backend)?;
    let mut options = LayerOptions { select, ..LayerOptions::default() };
    options.plan.q_min = FLOOR;
    let mut layer = block.layer(&backend, options)?;
    let forward = block.forward(None);
    let everything = crate::support::oracle_backward::all_pairs(&forward.routing);
    let full = block.oracle.expert_backward(&block.x, &forward, &block.dy, &everything).dx;

    let mut compare = Comparison::new();
    let mut moments = Moments::new(TOKENS);
    for seed in 0..device.seeds(SEEDS) {
        let (_, saved) = layer.forward(&x, &context(seed)).map_err(text)?;
        let gradients = layer.backward(&saved, &dy).map_err(text)?;
        let dx = wide(&gradients.dx.to_f32(&backend).map_err(text)?);
        let weights = pair_weight_of_each_token(&dx, &full);
        let quotas = &saved.plan().quotas;
        let mut kept = vec![0; quotas.len()];
        let mut eligible = vec![0; quotas.len()];
        for (t, &weight) in weights.iter().enumerate() {
            let e = forward.routing.experts[t];
            kept[e] += u32::from(weight != 0.0);
            eligible[e] += u32::from(block.dy.row(t).iter().any(|&d| d != 0.0));
        }
        let want: Vec<u32> = quotas.iter().zip(&eligible).map(|(&q, &n)| q.min(n)).collect();
        if kept != want || gradients.stats.retained != want {
            let got = &gradients.stats.retained;
            return Err(format!("seed {seed}: {kept:?} pairs retained, {got:?} reported, {want:?} expected"));
        }
        if quotas.iter().any(|&q| q < FLOOR) {
            return Err(format!("quotas {quotas:?} below the floor"));
        }
        if let Some(w) = weights.iter().find(|&&w| w != 0.0 && w < 1.0 - 1e-5) {
            return Err(format!("seed {seed}: a pair weight of {w}, below 1"));
        }
        moments.add(&weights);
    }
    let truth: Vec<f64> = full.data.chunks(full.cols).map(|row| f64::from(row.iter().any(|&v| v != 0.0))).collect();
    moments.check(&mut compare, "pair weight", &truth);
    compare.holds("most pairs are dropped sometimes", moments.varying() > TOKENS / 2);
    compare.finish(TOKENS)
}

/// `<dx, full> / <full, full>` of every row: what multiplies the one pair of the token.
pub(crate) fn pair_weight_of_each_token(dx: &[f64], full: &crate::support::linear::Mat) -> Vec<f64> {
    let weight = |(dx, full): (&[f64], &[f64])| {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let square = dot(full, full);
        if square == 0.0 { 0.0 } else { dot(dx, full) / square }
    };
    dx.chunks(full.cols).zip(full.data.chunks(full.cols)).map(weight).collect()
}

/// dx, d_logits and every weight gradient, end to end.
fn all_gradients<B: Backend>(
    layer: &mut MoeLayer<B>,
    x: &Tensor<B>,
    dy: &Tensor<B>,
    seed: u64,
) -> Result<Vec<f64>, String> {
    let (_, saved) = layer.forward(x, &context(seed)).map_err(text)?;
    layer.zero_grad();
    let gradients = layer.backward(&saved, dy).map_err(text)?;
    let mut all = wide(&gradients.dx.to_f32(layer.backend()).map_err(text)?);
    all.extend(wide(&gradients.d_logits.to_f32(layer.backend()).map_err(text)?));
    for id in lrmoe::ParamId::ALL {
        all.extend(layer.gradient(id).map_err(text)?.iter().flat_map(|values| wide(values)));
    }
    Ok(all)
}

fn mean_gradients<B: Backend>(device: &Device<B>, mut options: LayerOptions) -> Result<Comparison, String> {
    let backend = (device.make)();
    let block = Block::new(MoeConfig::new(4, 3, 4, 2), 20, 22);
    let (x, dy) = block.tensors(&backend)?;
    let plain = LayerOptions { select: Selection::All, ..LayerOptions::default() };
    let truth = all_gradients(&mut block.layer(&backend, plain)?, &x, &dy, 0)?;
    options.plan.q_min = 4;
    let mut layer = block.layer(&backend, options)?;
    let mut moments = Moments::new(truth.len());
    for seed in 0..device.seeds(SEEDS) {
        moments.add(&all_gradients(&mut layer, &x, &dy, seed)?);
    }
    let mut compare = Comparison::new();
    moments.check(&mut compare, "gradient", &truth);
    Ok(compare)
}
