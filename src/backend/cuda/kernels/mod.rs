//! One function a kernel: checks of shapes, then what to launch. The arithmetic is in `cuda/`.

pub(super) mod checks;
mod optim;
mod permute;
mod rows;
mod shape;
mod swiglu;

use super::buffer::CudaBuffer;
use super::exec::Exec;
use super::table::Spec;
use crate::kernel::Kernel;
use crate::{Error, Result};

/// The kernel table.
pub(super) fn specs() -> impl Iterator<Item = &'static Spec> {
    [checks::SPECS, optim::SPECS, permute::SPECS, rows::SPECS, swiglu::SPECS].into_iter().flatten().copied()
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
        Kernel::AdamW(args) => optim::adamw(args, to),
        Kernel::SumSquares(args) => optim::sum_squares(args, to),
        other => Err(Error::Unsupported { what: format!("kernel `{}`", other.name()), why: "not written".into() }),
    }
}
