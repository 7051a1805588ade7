//! The whole layer: backward at retention 0.5 against retention 1, in both activation modes.
//!
//! `cargo bench --bench layer`. Both sides run in turn in one process; medians and their ratio are printed.

#![allow(clippy::print_stdout, reason = "a bench prints its table")]

use std::time::Instant;

use lrmoe::{
    Activations, CpuBackend, ForwardContext, LayerOptions, MoeConfig, MoeLayer, MoeWeights, PlanOptions, Result,
    Retention, Selection, Tensor,
};

const ROUNDS: usize = 21;
const TOKENS: usize = 2048;
const HIDDEN: usize = 512;

/// One side of the comparison.
struct Side {
    layer: MoeLayer<CpuBackend>,
    forward: Vec<f64>,
    backward: Vec<f64>,
    step: u64,
}

impl Side {
    fn new(backend: &CpuBackend, select: Selection, retention: f64, activations: Activations) -> Result<Self> {
        // 8 of 32 experts a token: 16,384 pairs, made uneven by a router with a few strong rows.
        let config = MoeConfig::new(HIDDEN, 256, 32, 8);
        let weights = MoeWeights::init(&config, 7, 0.05)?;
        let options = LayerOptions {
            select,
            plan: PlanOptions { retention: Retention::Fraction(retention), ..PlanOptions::default() },
            activations,
            ..LayerOptions::default()
        };
        let layer = MoeLayer::new(backend, config, weights, options)?;
        Ok(Self { layer, forward: Vec::new(), backward: Vec::new(), step: 0 })
    }

    fn round(&mut self, x: &Tensor<CpuBackend>, dy: &Tensor<CpuBackend>) -> Result<()> {
        let context = ForwardContext { step: self.step, ..ForwardContext::default() };
        self.step += 1;
        let start = Instant::now();
        let (_, saved) = self.layer.forward(x, &context)?;
        let middle = Instant::now();
        self.layer.zero_grad();
        let gradients = self.layer.backward(&saved, dy)?;
        let end = Instant::now();
        std::hint::black_box(gradients.dx.rows());
        self.forward.push((middle - start).as_secs_f64());
        self.backward.push((end - middle).as_secs_f64());
        Ok(())
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn main() -> Result<()> {
    let backend = CpuBackend::new();
    let noise = |seed: u32, len: usize| -> Vec<f32> {
        let mut values = vec![0.0; len];
        lrmoe::rng::Philox::new(u64::from(seed), 0).fill_normal(&mut values, 1.0);
        values
    };
    let x = Tensor::from_f32(&backend, &noise(1, TOKENS * HIDDEN), TOKENS, HIDDEN)?;
    let dy = Tensor::from_f32(&backend, &noise(2, TOKENS * HIDDEN), TOKENS, HIDDEN)?;
    println!(
        "{}; {TOKENS} tokens, hidden {HIDDEN}, 32 experts of width 256, top-8",
        lrmoe::Backend::caps(&backend).device
    );
    println!("mode       forward ms  backward ms at 1  at 0.5  ratio");
    for activations in [Activations::Stash, Activations::Recompute] {
        let mut full = Side::new(&backend, Selection::All, 1.0, activations)?;
        let mut half = Side::new(&backend, LayerOptions::default().select, 0.5, activations)?;
        for _ in 0..ROUNDS {
            full.round(&x, &dy)?;
            half.round(&x, &dy)?;
        }
        let (one, part) = (median(&full.backward), median(&half.backward));
        println!(
            "{:<10} {:>10.1} {:>17.1} {:>7.1} {:>6.3}",
            format!("{activations:?}"),
            1e3 * median(&half.forward),
            1e3 * one,
            1e3 * part,
            part / one
        );
    }
    Ok(())
}
