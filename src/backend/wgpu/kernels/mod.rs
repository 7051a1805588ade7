//! One function a kernel: checks of shapes, then what to launch. The arithmetic is in `shaders/`.

mod demand;
mod experts;
mod score;
mod select;
mod systematic;

use super::buffer::WgpuBuffer;
use super::encode::Encoder;
use crate::kernel::Kernel;
use crate::{Error, Result};

/// Encodes a kernel.
pub(super) fn dispatch(kernel: &Kernel<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    match kernel {
        Kernel::Score(args) => score::score(args, to),
        Kernel::Demand(args) => demand::demand(args, to),
        Kernel::Select(args) => select::select(args, to),
        other => Err(Error::Unsupported {
            what: format!("kernel `{}`", other.name()),
            why: "not written for wgpu yet".into(),
        }),
    }
}
