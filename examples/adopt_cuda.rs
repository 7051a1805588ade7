//! A host application's CUDA stream and memory, shared: `cargo run --release --features cuda --example adopt_cuda`.
//!
//! The host opens the primary context with cudarc, as candle and burn do, and keeps its allocations. lrmoe runs on the host's
//! stream, so its kernels take their turn with the host's own, and reads and writes the host's memory in place.
#![allow(clippy::print_stdout, reason = "an example prints what it finds")]

use lrmoe::backend::cuda::cuda_devices;
use lrmoe::backend::cuda::cudarc::driver::{CudaContext, DevicePtr};
use lrmoe::kernel::RowNorms;
use lrmoe::{Backend, CudaBackend, CudaOptions, DType, Recording};

const ROWS: usize = 4;
const COLS: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The bindings panic where there is no driver, so a host asks first.
    if let Err(reason) = cuda_devices() {
        println!("no CUDA device: {reason}");
        return Ok(());
    }
    let stream = CudaContext::new(0)?.new_stream()?;
    let x: Vec<f32> = (0..ROWS * COLS).map(|i| (i / COLS) as f32).collect();
    let (x, norms) = (stream.clone_htod(&x)?, stream.alloc_zeros::<f32>(ROWS)?);

    let backend = CudaBackend::adopt(&stream, CudaOptions::default())?;
    let ((x_at, _x), (norms_at, _norms)) = (x.device_ptr(&stream), norms.device_ptr(&stream));
    // SAFETY: both allocations hold so many elements and live until the host has read them.
    let (rows_in_place, norms_in_place) = unsafe {
        let rows = backend.borrow("x", x_at, DType::F32, ROWS * COLS)?;
        (rows, backend.borrow("norms", norms_at, DType::F32, ROWS)?)
    };
    let mut recording = Recording::new();
    recording.dispatch(RowNorms { rows: ROWS, cols: COLS, x: rows_in_place, norm: norms_in_place })?;
    backend.submit(&recording)?;

    // The host's own read, on the same stream: behind the kernel.
    println!("on {}: norms {:?}", backend.caps().device, stream.clone_dtoh(&norms)?);
    println!("bytes on lrmoe's account: {}", backend.memory().report().reserved);
    Ok(())
}
