//! Golden cases as layers of the crate.

use std::collections::BTreeMap;

use half::bf16;
use lrmoe::config::ModelType;
use lrmoe::{Backend, HostData, LayerOptions, MoeConfig, MoeLayer, MoeWeights, ParamId, Tensor};
use safetensors::Dtype;

use super::block::{BlockWeights, Swiglu};
use super::golden::BlockCase;
use super::store;

/// A stored tensor in the crate's storage types: f64 is rounded to f32, the rest stays as it is.
pub fn host(tensor: &store::Tensor) -> Result<HostData, String> {
    Ok(match tensor.dtype {
        Dtype::BF16 => HostData::BF16(tensor.f32()?.into_iter().map(bf16::from_f32).collect()),
        _ => HostData::F32(tensor.f32()?),
    })
}

/// The weights of a case under the names that Hugging Face gives them.
pub fn hub_names(config: &MoeConfig, weights: &BlockWeights<store::Tensor>) -> BTreeMap<String, store::Tensor> {
    let mut named = BTreeMap::new();
    named.insert("gate.weight".to_string(), weights.router.clone());
    if let Some(bias) = &weights.correction_bias {
        named.insert("gate.e_score_correction_bias".to_string(), bias.clone());
    }
    let mut expert = |prefix: String, names: [&str; 3], expert: &Swiglu<store::Tensor>| {
        for (name, tensor) in names.iter().zip([&expert.gate, &expert.up, &expert.down]) {
            named.insert(format!("{prefix}.{name}.weight"), tensor.clone());
        }
    };
    let long = ["gate_proj", "up_proj", "down_proj"];
    let names = if config.model_type == ModelType::Mixtral { ["w1", "w3", "w2"] } else { long };
    for (e, weights) in weights.experts.iter().enumerate() {
        expert(format!("experts.{e}"), names, weights);
    }
    if let Some(shared) = &weights.shared {
        let one = config.model_type == ModelType::Qwen2Moe;
        expert(if one { "shared_expert" } else { "shared_experts" }.to_string(), long, shared);
    }
    if let Some(gate) = &weights.shared_gate {
        named.insert("shared_expert_gate.weight".to_string(), gate.clone());
    }
    named
}

/// A layer with the weights of a case.
pub fn layer<B: Backend>(backend: &B, case: &BlockCase, options: LayerOptions) -> Result<MoeLayer<B>, String> {
    let config = MoeConfig::from_hf_json(&case.config_text).map_err(|e| e.to_string())?;
    let named = hub_names(&config, &case.weights);
    let weights = MoeWeights::from_named(&config, &case.prefix, |name| {
        let tensor = name.strip_prefix(&case.prefix).and_then(|name| named.get(name));
        tensor.map(host).transpose().map_err(|reason| lrmoe::Error::Input { what: format!("tensor `{name}`"), reason })
    });
    MoeLayer::new(backend, config, weights.map_err(|e| e.to_string())?, options).map_err(|e| e.to_string())
}

/// A `[tokens, hidden]` tensor of a case on the device.
pub fn tensor<B: Backend>(backend: &B, case: &BlockCase, data: &store::Tensor) -> Result<Tensor<B>, String> {
    Tensor::from_host(backend, host(data)?, case.tokens, case.hidden_size).map_err(|e| e.to_string())
}

/// Every weight gradient of a layer, taken apart into projections; absent ones are zeros.
pub fn gradients<B: Backend>(layer: &MoeLayer<B>) -> Result<BlockWeights<Vec<f64>>, String> {
    let config = layer.config();
    let (h, i, s) = (config.hidden_size, config.moe_intermediate_size, config.shared_expert_intermediate_size);
    let read = |id: ParamId| -> Result<Option<Vec<f64>>, String> {
        let gradient = layer.gradient(id).map_err(|e| e.to_string())?;
        Ok(gradient.map(|values| values.into_iter().map(f64::from).collect()))
    };
    let need = |id: ParamId| read(id)?.ok_or_else(|| format!("no gradient of {}", id.name()));
    let split = |gate_up: &[f64], down: &[f64], width: usize| Swiglu {
        gate: gate_up[..width * h].to_vec(),
        up: gate_up[width * h..].to_vec(),
        down: down.to_vec(),
    };
    let (gate_up, down) = (need(ParamId::GateUp)?, need(ParamId::Down)?);
    let experts = gate_up.chunks(2 * i * h).zip(down.chunks(h * i)).map(|(gate_up, down)| split(gate_up, down, i));
    let shared = match s {
        0 => None,
        _ => Some(split(&need(ParamId::SharedGateUp)?, &need(ParamId::SharedDown)?, s)),
    };
    Ok(BlockWeights {
        router: need(ParamId::Router)?,
        correction_bias: None,
        experts: experts.collect(),
        shared,
        shared_gate: read(ParamId::SharedGate)?,
    })
}

/// f32 values as f64.
pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}
