//! Made-up weights, tokens and optimizer state that outlive a run.

use super::Share;
use crate::Recording;
use crate::Result;
use crate::backend::{Backend, Buffer, elements};
use crate::config::MoeConfig;
use crate::memory::Category;
use crate::op::expert::{Bank, BankGrads};
use crate::rng::Philox;
use crate::tensor::{DType, HostData};

/// Normal numbers that are made up once: prime, so that rows of a usual width do not repeat one another.
const NORMALS: usize = 65_537;

/// A supply of standard normal numbers.
#[derive(Debug)]
pub(super) struct Normals(Vec<f32>);

impl Normals {
    pub(super) fn new(seed: u64) -> Self {
        let mut values = vec![0.0; NORMALS];
        Philox::new(seed, 0).fill_normal(&mut values, 1.0);
        Self(values)
    }

    /// `len` values of the given standard deviation.
    pub(super) fn take(&self, name: &str, len: usize, std_dev: f32) -> Result<Vec<f32>> {
        let mut values = HostData::zeros(name, DType::F32, len)?.into_f32()?;
        for (value, normal) in values.iter_mut().zip(self.0.iter().cycle()) {
            *value = std_dev * normal;
        }
        Ok(values)
    }
}

/// A bank of experts with its gradients.
#[derive(Debug)]
pub(super) struct TrainedBank<Buf> {
    pub(super) bank: Bank<Buf>,
    pub(super) grads: BankGrads<Buf>,
}

/// A `[n, H]` weight with its gradient.
#[derive(Debug)]
pub(super) struct TrainedLinear<Buf> {
    pub(super) weight: Buf,
    pub(super) grad: Buf,
}

/// AdamW state: one element for each parameter.
#[derive(Debug)]
pub(super) struct Optimizer<Buf> {
    pub(super) grad: Buf,
    pub(super) weight: Buf,
    pub(super) m: Buf,
    pub(super) v: Buf,
}

/// Everything that a share reads and that does not depend on its indices.
///
/// Token buffers and optimizer state only grow. The bank of residents is made anew where their number changes, since the
/// kernels take a bank of exactly so many experts. All of it has been written before a command of a share touches it.
#[derive(Debug)]
pub(super) struct Data<B: Backend> {
    backend: B,
    pub(super) normals: Normals,
    pub(super) router: TrainedLinear<B::Buffer>,
    pub(super) correction_bias: Option<B::Buffer>,
    pub(super) shared: Option<TrainedBank<B::Buffer>>,
    pub(super) shared_gate: Option<TrainedLinear<B::Buffer>>,
    pub(super) resident: Option<TrainedBank<B::Buffer>>,
    pub(super) optimizer: Option<Optimizer<B::Buffer>>,
    /// `[T, H]`: x of this rank's tokens.
    pub(super) x: Option<B::Buffer>,
    /// `[T, H]`: dL/dy of this rank's tokens.
    pub(super) dy: Option<B::Buffer>,
    /// `[tokens_in, H]`: x as received, for either pass.
    pub(super) packed_x: Option<B::Buffer>,
    /// `[tokens_in_backward, H]`: dL/dy as received.
    pub(super) packed_d: Option<B::Buffer>,
}

impl<B: Backend> Data<B> {
    pub(super) fn new(backend: &B, config: &MoeConfig, seed: u64) -> Result<Self> {
        let normals = Normals::new(seed);
        let make = Maker { backend, normals: &normals };
        let (hidden, experts) = (config.hidden_size, config.num_experts);
        let router = make.linear("router", experts, hidden)?;
        let correction_bias = match config.correction_bias {
            true => Some(make.normal("correction_bias", &[experts], 1e-3, Category::Weights)?),
            false => None,
        };
        let (shared, shared_gate) = match config.shared_expert_intermediate_size {
            0 => (None, None),
            width => {
                let gate = config.shared_expert_gate.then(|| make.linear("shared_gate", 1, hidden)).transpose()?;
                (Some(make.bank(1, hidden, width)?), gate)
            }
        };
        Ok(Self {
            backend: backend.clone(),
            normals,
            router,
            correction_bias,
            shared,
            shared_gate,
            resident: None,
            optimizer: None,
            x: None,
            dy: None,
            packed_x: None,
            packed_d: None,
        })
    }

    /// Makes room for a share.
    pub(super) fn fit(&mut self, config: &MoeConfig, share: &Share) -> Result<()> {
        let make = Maker { backend: &self.backend, normals: &self.normals };
        let (hidden, width, groups) = (config.hidden_size, config.moe_intermediate_size, share.forward.len());
        if self.resident.as_ref().map_or(0, |resident| resident.bank.groups) != groups {
            // Given back before the next is asked for, so that the two need not fit together.
            self.resident = None;
            if groups > 0 {
                self.resident = Some(make.bank(groups, hidden, width)?);
            }
        }
        make.grow("x", &mut self.x, share.tokens, hidden)?;
        make.grow("dy", &mut self.dy, share.tokens, hidden)?;
        make.grow("packed_x", &mut self.packed_x, share.tokens_in_forward.max(share.tokens_in_backward), hidden)?;
        make.grow("packed_d", &mut self.packed_d, share.tokens_in_backward, hidden)?;
        let parameters = share.optimizer_parameters;
        if self.optimizer.as_ref().map_or(0, |optimizer| optimizer.weight.len()) < parameters {
            self.optimizer = None;
            let normal = |name: &str| make.normal(name, &[parameters], 1.0, Category::Optimizer);
            // Second moments are squares.
            let squares = make.normals.take("v", parameters, 1.0)?.into_iter().map(|v| v * v).collect();
            let v = self.backend.import("v", HostData::F32(squares), Category::Optimizer)?;
            self.optimizer = Some(Optimizer { grad: normal("grad")?, weight: normal("weight")?, m: normal("m")?, v });
        }
        Ok(())
    }

    /// What commands write and later runs read again.
    pub(super) fn written(&self) -> Vec<&B::Buffer> {
        let banks = self.shared.iter().chain(&self.resident).flat_map(|bank| [&bank.grads.gate_up, &bank.grads.down]);
        let linears = self.shared_gate.iter().chain([&self.router]).map(|linear| &linear.grad);
        let optimizer = self.optimizer.iter().flat_map(|state| [&state.weight, &state.m, &state.v]);
        banks.chain(linears).chain(optimizer).collect()
    }
}

/// Makes buffers whose memory has been written. All are imported: memory that no longer fits goes back to the system
/// instead of waiting for a buffer of the same size.
struct Maker<'a, B: Backend> {
    backend: &'a B,
    normals: &'a Normals,
}

impl<B: Backend> Maker<'_, B> {
    fn normal(&self, name: &str, shape: &[usize], std_dev: f32, category: Category) -> Result<B::Buffer> {
        let values = self.normals.take(name, elements(name, shape)?, std_dev)?;
        self.backend.import(name, HostData::F32(values), category)
    }

    /// Of a standard deviation that keeps products of the size of their input.
    fn weight(&self, name: &str, shape: &[usize], inputs: usize) -> Result<B::Buffer> {
        self.normal(name, shape, 1.0 / (inputs as f32).sqrt(), Category::Weights)
    }

    fn grad(&self, name: &str, len: usize) -> Result<B::Buffer> {
        let grad = self.backend.import(name, HostData::zeros(name, DType::F32, len)?, Category::Gradients)?;
        let mut rec = Recording::new();
        rec.fill(&grad, 0);
        self.backend.submit(&rec)?;
        Ok(grad)
    }

    fn linear(&self, name: &str, n: usize, hidden: usize) -> Result<TrainedLinear<B::Buffer>> {
        let weight = self.weight(name, &[n, hidden], hidden)?;
        let grad = self.grad(&format!("grad.{name}"), weight.len())?;
        Ok(TrainedLinear { weight, grad })
    }

    fn bank(&self, groups: usize, hidden: usize, width: usize) -> Result<TrainedBank<B::Buffer>> {
        let gate_up = self.weight("gate_up", &[groups, 2, width, hidden], hidden)?;
        let down = self.weight("down", &[groups, hidden, width], width)?;
        let grads = BankGrads {
            gate_up: self.grad("grad.gate_up", gate_up.len())?,
            down: self.grad("grad.down", down.len())?,
            accumulate: false,
        };
        Ok(TrainedBank { bank: Bank { gate_up, down, groups, hidden, width }, grads })
    }

    /// A slot of at least so many rows, and of one where that is 0.
    fn grow(&self, name: &str, slot: &mut Option<B::Buffer>, rows: usize, cols: usize) -> Result<()> {
        let shape = &[rows.max(1), cols];
        if slot.as_ref().map_or(0, Buffer::len) < elements(name, shape)? {
            *slot = None;
            *slot = Some(self.normal(name, shape, 1.0, Category::TokenBuffers)?);
        }
        Ok(())
    }
}
