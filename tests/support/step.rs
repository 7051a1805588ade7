//! A training step of a small layer, as bits.

use lrmoe::{
    Activations, AdamW, AdamWConfig, Backend, DType, ForwardContext, HostData, LayerOptions, MoeConfig, MoeLayer,
    MoeWeights, Tensor,
};

use super::rng::Rng;

/// Sizes of a step.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub tokens: usize,
    pub hidden: usize,
    pub width: usize,
    pub experts: usize,
    pub top_k: usize,
    /// Of the expert weights.
    pub dtype: DType,
}

pub const SMALL: Size = Size { tokens: 40, hidden: 16, width: 12, experts: 6, top_k: 2, dtype: DType::F32 };

/// Normal values of a seed.
pub fn values(seed: u64, len: usize) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.normal() as f32).collect()
}

/// A layer and its optimizer.
pub fn layer<B: Backend>(backend: &B, size: Size) -> Result<(MoeLayer<B>, AdamW<B>), String> {
    let config = MoeConfig::new(size.hidden, size.width, size.experts, size.top_k);
    let mut weights = MoeWeights::init(&config, 7, 0.2).map_err(text)?;
    for part in [&mut weights.gate_up, &mut weights.down] {
        let values = std::mem::replace(part, HostData::U32(Vec::new())).into_f32().map_err(text)?;
        *part = HostData::from_f32(values, size.dtype);
    }
    let options = LayerOptions { activations: Activations::Recompute, ..LayerOptions::default() };
    let layer = MoeLayer::new(backend, config, weights, options).map_err(text)?;
    let adamw = AdamW::new(&layer, AdamWConfig::default()).map_err(text)?;
    Ok((layer, adamw))
}

/// Two steps with systematic selection: outputs, input gradients and weights, bit by bit.
pub fn bits<B: Backend>(backend: &B, size: Size) -> Result<Vec<u32>, String> {
    let (mut layer, mut adamw) = layer(backend, size)?;
    let mut all = Vec::new();
    for step in 0..2 {
        let x = tensor(backend, 2 * step + 1, size)?;
        let dy = tensor(backend, 2 * step + 2, size)?;
        let context = ForwardContext { step, ..ForwardContext::default() };
        let (y, saved) = layer.forward(&x, &context).map_err(text)?;
        let gradients = layer.backward(&saved, &dy).map_err(text)?;
        adamw.step(&mut layer, 1e-2, 1.0, false).map_err(text)?;
        layer.zero_grad();
        for tensor in [&y, &gradients.dx, &gradients.d_logits] {
            all.extend(tensor.to_f32(backend).map_err(text)?);
        }
        all.extend(gradients.stats.retained.iter().map(|&n| n as f32));
    }
    let weights = layer.weights().map_err(text)?;
    all.extend(weights.gate_up.into_f32().map_err(text)?);
    all.extend(weights.down.into_f32().map_err(text)?);
    if all.iter().any(|x| !x.is_finite()) {
        return Err("a value is not finite".into());
    }
    Ok(all.into_iter().map(f32::to_bits).collect())
}

fn tensor<B: Backend>(backend: &B, seed: u64, size: Size) -> Result<Tensor<B>, String> {
    let host = values(seed, size.tokens * size.hidden);
    Tensor::from_f32(backend, &host, size.tokens, size.hidden).map_err(text)
}

fn text(error: lrmoe::Error) -> String {
    error.to_string()
}
