//! One function a kernel: checks of shapes, then what to launch. The arithmetic is in `shaders/`.

use super::buffer::WgpuBuffer;
use super::encode::Encoder;
use crate::kernel::Kernel;
use crate::{Error, Result};

/// Encodes a kernel.
pub(super) fn dispatch(kernel: &Kernel<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let _ = to;
    match kernel {
        other => Err(Error::Unsupported {
            what: format!("kernel `{}`", other.name()),
            why: "not written for wgpu yet".into(),
        }),
    }
}
