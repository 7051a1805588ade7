//! Weights of one layer in host memory, and their names in Hugging Face checkpoints.

use crate::backend::elements;
use crate::config::{ModelType, MoeConfig};
use crate::rng::Philox;
use crate::tensor::{DType, HostData};
use crate::{Error, Result};

/// Weights of one Mixture-of-Experts layer, in the fused layout of transformers 5: experts stacked, gate before up.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeWeights {
    /// `[E, H]`; absent where the host owns the router.
    pub router: Option<HostData>,
    /// f32 `[E]`: added to the scores for selection.
    pub correction_bias: Option<Vec<f32>>,
    /// `[E, 2 I, H]`: rows of `gate_proj`, then rows of `up_proj`.
    pub gate_up: HostData,
    /// `[E, H, I]`.
    pub down: HostData,
    /// `[2 S, H]`, S the total width of the shared experts.
    pub shared_gate_up: Option<HostData>,
    /// `[H, S]`.
    pub shared_down: Option<HostData>,
    /// `[1, H]`.
    pub shared_gate: Option<HostData>,
}

impl MoeWeights {
    /// Normal random values of standard deviation `std_dev`, zero correction bias. The same seed gives the same weights
    /// whatever the router's owner.
    ///
    /// # Errors
    /// [`Error::Config`] for a bad configuration, [`Error::Argument`] for a bad deviation, [`Error::SystemMemory`].
    pub fn init(config: &MoeConfig, seed: u64, std_dev: f32) -> Result<Self> {
        config.validate()?;
        if !(std_dev.is_finite() && std_dev >= 0.0) {
            return Err(Error::argument("std_dev", std_dev, "a finite number, 0 or more"));
        }
        let shapes = Shapes::of(config)?;
        let zeros = |name: &str, len: usize| HostData::zeros(name, DType::F32, len)?.into_f32();
        let fill = |stream: u64, name: &str, len: usize| -> Result<HostData> {
            let mut values = zeros(name, len)?;
            Philox::new(seed, stream).fill_normal(&mut values, std_dev);
            Ok(HostData::F32(values))
        };
        let fill_some =
            |stream: u64, name: &str, len: Option<usize>| len.map(|len| fill(stream, name, len)).transpose();
        Ok(Self {
            router: Some(fill(0, "router", shapes.router)?),
            correction_bias: config
                .correction_bias
                .then(|| zeros("correction_bias", config.num_experts))
                .transpose()?,
            gate_up: fill(1, "gate_up", shapes.gate_up)?,
            down: fill(2, "down", shapes.down)?,
            shared_gate_up: fill_some(3, "shared_gate_up", shapes.shared_gate_up)?,
            shared_down: fill_some(4, "shared_down", shapes.shared_down)?,
            shared_gate: fill_some(5, "shared_gate", shapes.shared_gate)?,
        })
    }

    /// Collects the weights of one layer from a checkpoint by name.
    ///
    /// `prefix` ends with a dot: `model.layers.3.mlp.`, or `model.layers.3.block_sparse_moe.` for Mixtral. `get` returns
    /// the tensor of a name, or `None` if there is none. Hub names (one tensor per expert and projection) and the fused
    /// names of transformers 5 are understood.
    ///
    /// # Errors
    /// [`Error::Input`] naming a missing tensor, [`Error::Shape`] for a wrong length, and what `get` returns.
    pub fn from_named(
        config: &MoeConfig,
        prefix: &str,
        mut get: impl FnMut(&str) -> Result<Option<HostData>>,
    ) -> Result<Self> {
        config.validate()?;
        let shapes = Shapes::of(config)?;
        let experts = config.num_experts;
        let fused_name = format!("{prefix}experts.gate_up_proj");
        let fused = get(&fused_name)?;
        let mut need = |name: &str, len: usize| -> Result<HostData> {
            let name = format!("{prefix}{name}");
            let data = get(&name)?.ok_or_else(|| Error::Input {
                what: format!("tensor `{name}`"),
                reason: "not in the checkpoint".into(),
            })?;
            check_len(&name, &data, len)?;
            Ok(data)
        };
        let router = need("gate.weight", shapes.router)?;
        let correction_bias = match config.correction_bias {
            true => Some(need("gate.e_score_correction_bias", experts)?.into_f32()?),
            false => None,
        };
        let (gate_up, down) = match fused {
            Some(gate_up) => {
                check_len(&fused_name, &gate_up, shapes.gate_up)?;
                (gate_up, need("experts.down_proj", shapes.down)?)
            }
            None => {
                let [gate, up, down] = match config.model_type {
                    ModelType::Mixtral => ["w1", "w3", "w2"],
                    _ => ["gate_proj", "up_proj", "down_proj"],
                };
                let one = shapes.down / experts;
                let mut projection = |e: usize, name: &str| {
                    let name = format!("experts.{e}.{name}.weight");
                    need(&name, one).map(|data| (format!("{prefix}{name}"), data))
                };
                let mut gate_up_parts = Vec::with_capacity(2 * experts);
                let mut down_parts = Vec::with_capacity(experts);
                for e in 0..experts {
                    gate_up_parts.push(projection(e, gate)?);
                    gate_up_parts.push(projection(e, up)?);
                    down_parts.push(projection(e, down)?);
                }
                (concat(gate_up_parts)?, concat(down_parts)?)
            }
        };
        let (mut shared_gate_up, mut shared_down, mut shared_gate) = (None, None, None);
        if let Some(len) = shapes.shared_down {
            let folder = if config.model_type == ModelType::Qwen2Moe { "shared_expert" } else { "shared_experts" };
            let [gate, up] = ["gate_proj", "up_proj"].map(|name| format!("{folder}.{name}.weight"));
            let parts = [need(&gate, len)?, need(&up, len)?];
            let names = [gate, up].map(|name| format!("{prefix}{name}"));
            shared_gate_up = Some(concat(names.into_iter().zip(parts))?);
            shared_down = Some(need(&format!("{folder}.down_proj.weight"), len)?);
        }
        if let Some(len) = shapes.shared_gate {
            shared_gate = Some(need("shared_expert_gate.weight", len)?);
        }
        Ok(Self { router: Some(router), correction_bias, gate_up, down, shared_gate_up, shared_down, shared_gate })
    }

    /// Rounds every weight to a storage type. The correction bias stays f32.
    ///
    /// # Errors
    /// [`Error::Argument`] for a type that is not a float.
    pub fn to_dtype(self, dtype: DType) -> Result<Self> {
        if !dtype.is_float() {
            return Err(Error::argument("dtype", dtype, "f32, bf16 or f16"));
        }
        let convert = |data: HostData| -> Result<HostData> {
            if data.dtype() == dtype { Ok(data) } else { Ok(HostData::from_f32(data.into_f32()?, dtype)) }
        };
        Ok(Self {
            router: self.router.map(convert).transpose()?,
            correction_bias: self.correction_bias,
            gate_up: convert(self.gate_up)?,
            down: convert(self.down)?,
            shared_gate_up: self.shared_gate_up.map(convert).transpose()?,
            shared_down: self.shared_down.map(convert).transpose()?,
            shared_gate: self.shared_gate.map(convert).transpose()?,
        })
    }

    /// Checks that exactly the tensors that `config` asks for are there, each of the right length and a float type.
    pub(crate) fn check(&self, config: &MoeConfig) -> Result<()> {
        let shapes = Shapes::of(config)?;
        let optional = |name: &str, data: Option<&HostData>, len: Option<usize>| match (data, len) {
            (Some(data), Some(len)) => check_len(name, data, len),
            (None, None) => Ok(()),
            (None, Some(len)) => Err(Error::shape(format!("weights.{name}"), "missing", format!("{len} elements"))),
            (Some(data), None) => {
                Err(Error::shape(format!("weights.{name}"), format!("{} elements", data.len()), "none in this config"))
            }
        };
        if let Some(router) = &self.router {
            check_len("router", router, shapes.router)?;
        }
        check_len("gate_up", &self.gate_up, shapes.gate_up)?;
        check_len("down", &self.down, shapes.down)?;
        optional("shared_gate_up", self.shared_gate_up.as_ref(), shapes.shared_gate_up)?;
        optional("shared_down", self.shared_down.as_ref(), shapes.shared_down)?;
        optional("shared_gate", self.shared_gate.as_ref(), shapes.shared_gate)?;
        let bias = self.correction_bias.as_ref().map(Vec::len);
        let expected = config.correction_bias.then_some(config.num_experts);
        if bias != expected {
            return Err(Error::shape("weights.correction_bias", format!("{bias:?}"), format!("{expected:?} elements")));
        }
        Ok(())
    }
}

fn check_len(name: &str, data: &HostData, len: usize) -> Result<()> {
    if !data.dtype().is_float() {
        return Err(Error::shape(format!("element type of `{name}`"), data.dtype(), "f32, bf16 or f16"));
    }
    if data.len() != len {
        return Err(Error::shape(format!("length of `{name}`"), data.len(), len));
    }
    Ok(())
}

/// Joins named tensors of one type.
fn concat(parts: impl IntoIterator<Item = (String, HostData)>) -> Result<HostData> {
    let mut parts = parts.into_iter();
    let Some((first, mut all)) = parts.next() else {
        return Ok(HostData::F32(Vec::new()));
    };
    for (name, part) in parts {
        match (&mut all, part) {
            (HostData::F32(all), HostData::F32(part)) => all.extend(part),
            (HostData::BF16(all), HostData::BF16(part)) => all.extend(part),
            (HostData::F16(all), HostData::F16(part)) => all.extend(part),
            (all, part) => {
                let expected = format!("{}, as `{first}`", all.dtype());
                return Err(Error::shape(format!("element type of `{name}`"), part.dtype(), expected));
            }
        }
    }
    Ok(all)
}

/// Elements of each tensor.
struct Shapes {
    router: usize,
    gate_up: usize,
    down: usize,
    shared_gate_up: Option<usize>,
    shared_down: Option<usize>,
    shared_gate: Option<usize>,
}

impl Shapes {
    fn of(config: &MoeConfig) -> Result<Self> {
        let (h, i, e) = (config.hidden_size, config.moe_intermediate_size, config.num_experts);
        let s = config.shared_expert_intermediate_size;
        Ok(Self {
            router: elements("router", &[e, h])?,
            gate_up: elements("gate_up", &[e, 2, i, h])?,
            down: elements("down", &[e, h, i])?,
            shared_gate_up: (s > 0).then(|| elements("shared_gate_up", &[2, s, h])).transpose()?,
            shared_down: (s > 0).then(|| elements("shared_down", &[h, s])).transpose()?,
            shared_gate: (s > 0 && config.shared_expert_gate).then_some(h),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projections_of_different_types_are_named() {
        let config = MoeConfig::new(4, 3, 2, 1);
        let refused = MoeWeights::from_named(&config, "mlp.", |name| {
            let len = if name.ends_with("gate.weight") { 8 } else { 12 };
            let odd = name == "mlp.experts.1.up_proj.weight";
            let dtype = if odd { DType::F16 } else { DType::BF16 };
            Ok((!name.ends_with("gate_up_proj")).then(|| HostData::from_f32(vec![0.0; len], dtype)))
        });
        let what = "element type of `mlp.experts.1.up_proj.weight`";
        assert_eq!(refused, Err(Error::shape(what, "f16", "bf16, as `mlp.experts.0.gate_proj.weight`")));
    }
}
