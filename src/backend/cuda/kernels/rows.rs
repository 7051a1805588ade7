//! Compaction, combine, norms, keys, dot products, casts.

use crate::Result;
use crate::backend::cuda::buffer::CudaBuffer;
use crate::backend::cuda::exec::Exec;
use crate::backend::cuda::launch::{Ptr, blocks_of};
use crate::backend::cuda::table::{FLOAT_PAIRS, cuda_kernels};
use crate::kernel;

cuda_kernels! {
    /// Elements of one float type in another one.
    "cast": Cast [S D] in FLOAT_PAIRS, threads 256, registers 24 {
        src: read S,
        dst: write D,
        len: value u64,
    }
}

pub(super) fn cast(args: &kernel::Cast<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    let (src, dst) = (Ptr::floats(&args.src, args.len)?, Ptr::floats(&args.dst, args.len)?);
    Cast { src, dst, len: args.len as u64 }.launch(to, blocks_of(args.len, 256), 0)
}
