//! One function a kernel: checks of shapes, then what to launch. The arithmetic is in `cuda/`.

pub(super) mod checks;
mod demand;
mod router;
mod router_loss;
mod rows;
mod score;
mod segments;
mod select;
mod systematic;

use super::buffer::CudaBuffer;
use super::exec::Exec;
use super::table::Spec;
use crate::kernel::Kernel;
use crate::{Error, Result};

/// The kernel table.
pub(super) fn specs() -> impl Iterator<Item = &'static Spec> {
    [
        checks::SPECS,
        rows::SPECS,
        router::SPECS,
        router_loss::SPECS,
        score::SPECS,
        demand::SPECS,
        select::SPECS,
        systematic::SPECS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// Launches a kernel.
pub(super) fn dispatch(kernel: &Kernel<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    match kernel {
        Kernel::Cast(args) => rows::cast(args, to),
        Kernel::Gate(args) => router::gate(args, to),
        Kernel::GateBackward(args) => router::gate_backward(args, to),
        Kernel::RouterLoss(args) => router_loss::router_loss(args, to),
        Kernel::RouterGrad(args) => router::router_grad(args, to),
        Kernel::Sigmoid(args) => router::sigmoid(args, to),
        Kernel::SigmoidBackward(args) => router::sigmoid_backward(args, to),
        Kernel::Score(args) => score::score(args, to),
        Kernel::Demand(args) => demand::demand(args, to),
        Kernel::Select(args) => select::select(args, to),
        other => Err(Error::Unsupported { what: format!("kernel `{}`", other.name()), why: "not written".into() }),
    }
}
