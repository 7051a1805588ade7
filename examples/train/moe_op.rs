//! The MoE layer as a candle operation of (x, router logits), and the one place that builds it from lrmoe.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};
use lrmoe::Backend;

use crate::failure::Failure;
use crate::moe::{MoeBlock, MoeSpec};
use crate::moe_lrmoe::LrmoeBlock;

/// Whether a pass is one to learn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Forward now and backward later, in this step.
    Train { step: u64 },
    /// Forward only; nothing is kept or timed.
    Evaluate,
}

/// Seconds spent inside a layer during training.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MoeSeconds {
    pub(crate) forward: f64,
    pub(crate) backward: f64,
}

struct State {
    block: Box<dyn MoeBlock>,
    seconds: MoeSeconds,
}

/// A shared handle: candle keeps one inside its graph until the backward pass, the training loop another.
#[derive(Clone)]
pub(crate) struct MoeLayer(Arc<Mutex<State>>);

impl fmt::Debug for MoeLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MoeLayer").finish_non_exhaustive()
    }
}

impl MoeLayer {
    /// A layer with freshly drawn experts.
    pub(crate) fn new(spec: &MoeSpec, backend: &impl Backend) -> Result<Self, Failure> {
        let block = Box::new(LrmoeBlock::new(spec, backend)?);
        Ok(Self(Arc::new(Mutex::new(State { block, seconds: MoeSeconds::default() }))))
    }

    /// y `[tokens, hidden]`; differentiable in `x` `[tokens, hidden]` and `logits` `[tokens, experts]` when training.
    pub(crate) fn apply(&self, x: &Tensor, logits: &Tensor, pass: Pass) -> candle_core::Result<Tensor> {
        let op = MoeOp { layer: self.clone(), pass };
        let (x, logits) = (x.contiguous()?, logits.contiguous()?);
        match pass {
            Pass::Train { .. } => x.apply_op2(&logits, op),
            Pass::Evaluate => x.apply_op2_no_bwd(&logits, &op),
        }
    }

    /// Runs `f` on the layer itself.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut dyn MoeBlock) -> R) -> R {
        f(self.lock().block.as_mut())
    }

    /// Training time so far.
    pub(crate) fn seconds(&self) -> MoeSeconds {
        self.lock().seconds
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock means another thread panicked, which ends the program anyway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The candle side: hands slices to the block and times it.
struct MoeOp {
    layer: MoeLayer,
    pass: Pass,
}

impl CustomOp2 for MoeOp {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        logits: &CpuStorage,
        logits_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let tokens = x_layout.shape().dims2()?.0;
        let (x, logits) = (slice(x, x_layout)?, slice(logits, logits_layout)?);
        let state = &mut *self.layer.lock();
        let y = match self.pass {
            Pass::Train { step } => {
                let start = Instant::now();
                let y = state.block.forward(x, logits, tokens, step);
                state.seconds.forward += start.elapsed().as_secs_f64();
                y
            }
            Pass::Evaluate => state.block.evaluate(x, logits, tokens),
        };
        Ok((CpuStorage::F32(y.map_err(to_candle)?), x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        logits: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let dy = dy.contiguous()?;
        let (storage, layout) = dy.storage_and_layout();
        let candle_core::Storage::Cpu(storage) = &*storage else {
            candle_core::bail!("the gradient of the moe operation is not on the CPU");
        };
        let state = &mut *self.layer.lock();
        let start = Instant::now();
        let grads = state.block.backward(slice(storage, layout)?);
        state.seconds.backward += start.elapsed().as_secs_f64();
        let (dx, d_logits) = grads.map_err(to_candle)?;
        let dx = Tensor::from_vec(dx, x.shape(), x.device())?;
        let d_logits = Tensor::from_vec(d_logits, logits.shape(), logits.device())?;
        Ok((Some(dx), Some(d_logits)))
    }
}

fn slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> candle_core::Result<&'a [f32]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        candle_core::bail!("the moe operation needs contiguous arguments, not {layout:?}");
    };
    Ok(&storage.as_slice::<f32>()?[start..end])
}

fn to_candle(failure: Failure) -> candle_core::Error {
    candle_core::Error::Msg(failure.to_string())
}
