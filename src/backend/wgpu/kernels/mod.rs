//! One function a kernel: checks of shapes, then what to launch. The arithmetic is in `shaders/`.

mod demand;
mod experts;
mod gemm;
mod optim;
mod permute;
mod router;
mod router_loss;
mod rows;
mod score;
mod select;
mod swiglu;
mod systematic;

pub(super) use gemm::{check_variant, chosen_variants, gemm_variants};

use super::buffer::WgpuBuffer;
use super::encode::Encoder;
use crate::Result;
use crate::backend::dispatch;
use crate::kernel::Kernel;

/// Encodes a kernel.
pub(super) fn dispatch(kernel: &Kernel<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    dispatch::dispatch!(kernel, to)
}
