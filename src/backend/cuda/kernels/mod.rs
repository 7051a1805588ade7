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
use crate::backend::dispatch;
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
    dispatch::dispatch!(kernel, to)
}
