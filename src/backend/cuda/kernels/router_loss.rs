//! Sums of the router losses.

use crate::Result;
use crate::backend::cuda::buffer::CudaBuffer;
use crate::backend::cuda::exec::Exec;
use crate::backend::cuda::launch::{Ptr, u32_of};
use crate::backend::cuda::table::{PLAIN, cuda_kernels};
use crate::backend::elements;
use crate::kernel;
use crate::tensor::DType;

cuda_kernels! {
    /// Sums over chunks of tokens, a block a chunk.
    "router_loss": RouterLoss [] in PLAIN, threads 256, registers 40 {
        logits: read f32,
        mask: maybe u32,
        partial: write f64,
        tokens: value u64,
        experts: value u32,
    }
    /// Sums over chunks, 32 columns a block.
    "router_loss_total": RouterLossTotal [] in PLAIN, threads 1024, registers 32 {
        partial: read f64,
        sums: write f32,
        chunks: value u64,
        columns: value u64,
    }
}

/// Tokens of a chunk, `CHUNK` of `cuda/router_loss.cu`.
const CHUNK: usize = 32;

/// Columns of a block of `router_loss_total`, and a sum for each of them and of its 32 warps.
const TOTAL_COLUMNS: u64 = 32;
const TOTAL_SHARED: u32 = 32 * 32 * 8;

/// Bytes of the softmax of a token.
const SOFTMAX_BYTES: usize = 16;

pub(super) fn router_loss(args: &kernel::RouterLoss<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (experts, columns) = (args.experts, elements("sums", &[args.experts])? + 1);
    let logits = Ptr::f32(&args.logits, elements("logits", &[args.tokens, experts])?)?;
    let mask = Ptr::optional_u32(args.mask.as_ref(), args.tokens)?;
    let sums = Ptr::f32(&args.sums, columns)?;
    let experts = u32_of("experts", experts)?;
    // Without experts there is nothing to sum over tokens.
    let tokens = if experts == 0 { 0 } else { args.tokens };
    let chunks = tokens.div_ceil(CHUNK);
    let words = elements("sums of chunks", &[chunks, columns, 2])?.max(2);
    let partial = Ptr::any(&to.scratch("sums of chunks", DType::U32, words)?, words)?;
    let shared = u32_of("softmax", CHUNK * SOFTMAX_BYTES)?;
    RouterLoss { logits, mask, partial, tokens: tokens as u64, experts }.launch(to, chunks as u64, shared)?;
    let (chunks, columns) = (chunks as u64, columns as u64);
    let total = RouterLossTotal { partial, sums, chunks, columns };
    total.launch(to, columns.div_ceil(TOTAL_COLUMNS), TOTAL_SHARED)
}
