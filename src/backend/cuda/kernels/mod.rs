//! One function a kernel: checks of shapes, then what to launch. The arithmetic is in `cuda/`.

pub(super) mod checks;
mod demand;
pub(super) mod gemm;
mod optim;
mod permute;
mod router;
mod router_loss;
mod rows;
mod score;
mod segments;
mod select;
mod shape;
mod swiglu;
mod systematic;

pub(super) use gemm::fused;

use super::buffer::CudaBuffer;
use super::exec::Exec;
use super::table::Spec;
use crate::Result;
use crate::kernel::Kernel;

/// The kernel table.
pub(super) fn specs() -> impl Iterator<Item = &'static Spec> {
    let tables = [
        checks::SPECS,
        demand::SPECS,
        gemm::table::SPECS,
        gemm::table::ROWS_SPECS,
        gemm::table::GATE_UP_SPECS,
        gemm::table::DOWN_BACK_SPECS,
        gemm::table::WGRAD_SPECS,
        optim::SPECS,
        permute::SPECS,
        router::SPECS,
        router_loss::SPECS,
        rows::SPECS,
        score::SPECS,
        select::SPECS,
        swiglu::SPECS,
        systematic::SPECS,
    ];
    tables.into_iter().flatten().copied()
}

/// Launches a kernel.
pub(super) fn dispatch(kernel: &Kernel<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    match kernel {
        Kernel::Permute(args) => permute::permute(args, to),
        Kernel::GatherRows(args) => rows::gather_rows(args, to),
        Kernel::Combine(args) => rows::combine(args, to),
        Kernel::RowNorms(args) => rows::row_norms(args, to),
        Kernel::RowKeys(args) => rows::row_keys(args, to),
        Kernel::RowDots(args) => rows::row_dots(args, to),
        Kernel::Cast(args) => rows::cast(args, to),
        Kernel::SwiGlu(args) => swiglu::swiglu(args, to),
        Kernel::SwiGluBackward(args) => swiglu::swiglu_backward(args, to),
        Kernel::Gate(args) => router::gate(args, to),
        Kernel::GateBackward(args) => router::gate_backward(args, to),
        Kernel::RouterLoss(args) => router_loss::router_loss(args, to),
        Kernel::RouterGrad(args) => router::router_grad(args, to),
        Kernel::Sigmoid(args) => router::sigmoid(args, to),
        Kernel::SigmoidBackward(args) => router::sigmoid_backward(args, to),
        Kernel::AdamW(args) => optim::adamw(args, to),
        Kernel::SumSquares(args) => optim::sum_squares(args, to),
        Kernel::GroupedForward(args) => gemm::grouped_forward(args, to),
        Kernel::GroupedDgrad(args) => gemm::grouped_dgrad(args, to),
        Kernel::GroupedWgrad(args) => gemm::grouped_wgrad(args, to),
        Kernel::Score(args) => score::score(args, to),
        Kernel::Demand(args) => demand::demand(args, to),
        Kernel::Select(args) => select::select(args, to),
    }
}
