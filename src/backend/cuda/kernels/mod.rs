//! One function a kernel: checks of shapes, then what to launch. The arithmetic is in `cuda/`.

pub(super) mod checks;
mod rows;

use super::buffer::CudaBuffer;
use super::exec::Exec;
use super::table::Spec;
use crate::kernel::Kernel;
use crate::{Error, Result};

/// The kernel table.
pub(super) fn specs() -> impl Iterator<Item = &'static Spec> {
    [checks::SPECS, rows::SPECS].into_iter().flatten().copied()
}

/// Launches a kernel.
pub(super) fn dispatch(kernel: &Kernel<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    match kernel {
        Kernel::Cast(args) => rows::cast(args, to),
        other => Err(Error::Unsupported { what: format!("kernel `{}`", other.name()), why: "not written".into() }),
    }
}
