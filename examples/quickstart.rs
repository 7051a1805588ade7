//! The ten-line use of the API: `cargo run --release --example quickstart [-- DEVICE]`.
#![allow(clippy::print_stdout, reason = "an example prints what it finds")]

use lrmoe::backend::{OnBackend, choose};
use lrmoe::{AdamW, AdamWConfig, Backend, ForwardContext, LayerOptions, MoeConfig, MoeLayer, MoeWeights, Tensor};

fn main() -> Result<(), String> {
    // auto, cpu, cuda, cuda:1, wgpu, wgpu:1 or wgpu:radeon; a program for one kind of device names it: `CpuBackend::new()`.
    let device = std::env::args().nth(1).unwrap_or_else(|| "auto".into());
    let backend = choose(&device).and_then(|choice| choice.open()).map_err(|error| error.to_string())?;
    println!("on {}", backend.caps().device);
    backend.with(Quickstart).map_err(|error| error.to_string())
}

struct Quickstart;

impl OnBackend for Quickstart {
    type Output = lrmoe::Result<()>;

    fn run<B: Backend>(self, backend: &B) -> lrmoe::Result<()> {
        let config = MoeConfig::new(64, 32, 8, 2); // hidden size, expert width, experts, experts per token
        let weights = MoeWeights::init(&config, 0, 0.1)?;
        let mut layer = MoeLayer::new(backend, config, weights, LayerOptions::default())?;
        let mut adamw = AdamW::new(&layer, AdamWConfig::default())?;

        // Learn to turn every token round: the loss is |y - target|^2 / 2 a token.
        let tokens = 256;
        let x: Vec<f32> = (0..tokens * 64).map(|i| ((i * i + 7 * i) % 101) as f32 / 50.0 - 1.0).collect();
        let input = Tensor::from_f32(backend, &x, tokens, 64)?;
        for step in 0..100 {
            let (y, saved) = layer.forward(&input, &ForwardContext { step, ..Default::default() })?;
            let dy: Vec<f32> = y.to_f32(backend)?.iter().zip(&x).map(|(y, x)| y + x).collect();
            let loss = dy.iter().map(|d| d * d).sum::<f32>() / (2 * tokens) as f32;
            let gradients = layer.backward(&saved, &Tensor::from_f32(backend, &dy, tokens, 64)?)?;
            if step % 20 == 0 || step == 99 {
                let stats = gradients.stats;
                let (kept, routed) = (stats.retained.iter().sum::<u32>(), stats.counts.iter().sum::<u32>());
                println!("step {step:3}  loss {loss:7.3}  back-propagated {kept} of {routed} pairs");
            }
            adamw.step(&mut layer, 3e-3, 1.0 / tokens as f32, false)?;
            layer.zero_grad();
        }
        Ok(())
    }
}
