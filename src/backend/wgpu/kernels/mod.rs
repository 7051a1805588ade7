//! One function a kernel: checks of shapes, then what to launch. The arithmetic is in `shaders/`.

mod gemm;

use super::buffer::WgpuBuffer;
use super::encode::Encoder;
use crate::kernel::Kernel;
use crate::{Error, Result};

/// Encodes a kernel.
pub(super) fn dispatch(kernel: &Kernel<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    match kernel {
        Kernel::GroupedForward(args) => gemm::grouped_forward(args, to),
        Kernel::GroupedDgrad(args) => gemm::grouped_dgrad(args, to),
        Kernel::GroupedWgrad(args) => gemm::grouped_wgrad(args, to),
        other => Err(Error::Unsupported {
            what: format!("kernel `{}`", other.name()),
            why: "not written for wgpu yet".into(),
        }),
    }
}
