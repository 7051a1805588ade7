//! Weights and gradients of a layer on the device.

use crate::backend::{Backend, Buffer};
use crate::layer::{Part, Trainable};
use crate::memory::Category;
use crate::tensor::{DType, HostData};
use crate::weights::MoeWeights;
use crate::{Error, Result};

/// One weight tensor of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamId {
    /// `[E, H]`.
    Router,
    /// `[E, 2 I, H]`.
    GateUp,
    /// `[E, H, I]`.
    Down,
    /// `[2 S, H]`.
    SharedGateUp,
    /// `[H, S]`.
    SharedDown,
    /// `[1, H]`.
    SharedGate,
}

impl ParamId {
    /// Every tensor, in the order of reports.
    pub const ALL: [Self; 6] =
        [Self::Router, Self::GateUp, Self::Down, Self::SharedGateUp, Self::SharedDown, Self::SharedGate];

    /// The part that the tensor belongs to.
    pub const fn part(self) -> Part {
        match self {
            Self::Router => Part::Router,
            Self::GateUp | Self::Down => Part::Experts,
            Self::SharedGateUp | Self::SharedDown | Self::SharedGate => Part::Shared,
        }
    }

    /// Field name in [`MoeWeights`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::GateUp => "gate_up",
            Self::Down => "down",
            Self::SharedGateUp => "shared_gate_up",
            Self::SharedDown => "shared_down",
            Self::SharedGate => "shared_gate",
        }
    }
}

/// A weight on the device, with its gradient where it is trained.
#[derive(Debug)]
pub(crate) struct Param<B: Backend> {
    pub(crate) id: ParamId,
    pub(crate) weight: B::Buffer,
    /// f32, as long as the weight.
    pub(crate) grad: Option<B::Buffer>,
    /// Whether `grad` holds a gradient; the next backward overwrites it otherwise.
    pub(crate) has_grad: bool,
}

/// The weights of one layer.
#[derive(Debug)]
pub(crate) struct Params<B: Backend> {
    params: Vec<Param<B>>,
}

impl<B: Backend> Params<B> {
    pub(crate) fn new(backend: &B, weights: MoeWeights, trainable: Trainable) -> Result<Self> {
        let mut params = Vec::with_capacity(6);
        let mut add = |id: ParamId, data: Option<HostData>| -> Result<()> {
            let Some(data) = data else { return Ok(()) };
            let len = data.len();
            let weight = backend.import(id.name(), data, Category::Weights)?;
            let grad = match trainable.has(id.part()) {
                true => Some(backend.alloc(&format!("grad.{}", id.name()), DType::F32, len, Category::Gradients)?),
                false => None,
            };
            params.push(Param { id, weight, grad, has_grad: false });
            Ok(())
        };
        add(ParamId::Router, weights.router)?;
        add(ParamId::GateUp, Some(weights.gate_up))?;
        add(ParamId::Down, Some(weights.down))?;
        add(ParamId::SharedGateUp, weights.shared_gate_up)?;
        add(ParamId::SharedDown, weights.shared_down)?;
        add(ParamId::SharedGate, weights.shared_gate)?;
        Ok(Self { params })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Param<B>> {
        self.params.iter()
    }

    pub(crate) fn find(&self, id: ParamId) -> Option<&Param<B>> {
        self.params.iter().find(|param| param.id == id)
    }

    /// The weight, or what is wrong with the call that needs it.
    pub(crate) fn weight(&self, id: ParamId) -> Result<&B::Buffer> {
        self.find(id).map(|param| &param.weight).ok_or_else(|| Error::State {
            what: format!("this layer has no `{}` weight", id.name()),
            fix: "give it when the layer is made, or use the calls that take logits".into(),
        })
    }

    /// The gradient buffer of a trained weight and whether to add to it.
    pub(crate) fn grad(&self, id: ParamId) -> Option<(B::Buffer, bool)> {
        self.find(id).and_then(|param| param.grad.clone().map(|grad| (grad, param.has_grad)))
    }

    /// Notes that a backward pass has written the gradients of these weights.
    pub(crate) fn mark_grads(&mut self, written: impl Fn(ParamId) -> bool) {
        for param in self.params.iter_mut().filter(|param| param.grad.is_some() && written(param.id)) {
            param.has_grad = true;
        }
    }

    pub(crate) fn zero_grads(&mut self) {
        for param in &mut self.params {
            param.has_grad = false;
        }
    }

    /// Copies the weights to the host.
    pub(crate) fn download(&self, backend: &B, correction_bias: Option<Vec<f32>>) -> Result<MoeWeights> {
        let read = |id: ParamId| self.find(id).map(|param| backend.read_blocking(&param.weight)).transpose();
        Ok(MoeWeights {
            router: read(ParamId::Router)?,
            correction_bias,
            gate_up: backend.read_blocking(self.weight(ParamId::GateUp)?)?,
            down: backend.read_blocking(self.weight(ParamId::Down)?)?,
            shared_gate_up: read(ParamId::SharedGateUp)?,
            shared_down: read(ParamId::SharedDown)?,
            shared_gate: read(ParamId::SharedGate)?,
        })
    }
}

impl<B: Backend> Param<B> {
    pub(crate) fn len(&self) -> usize {
        self.weight.len()
    }
}
