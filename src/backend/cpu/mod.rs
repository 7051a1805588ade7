//! The CPU backend: always there, needs nothing installed. Rows and groups run in parallel with rayon.
//!
//! Results do not depend on the number of threads: every output element is computed by one task in a fixed order.

mod buffer;
mod expert;
mod gemm;
mod keys;
mod math;
mod optim;
mod router;
mod rows;
mod select;
mod systematic;

use std::sync::Arc;
use std::time::{Duration, Instant};

use half::{bf16, f16};

pub use buffer::CpuBuffer;

use super::pool::Pool;
use super::{Backend, Buffer, Caps, check_upload, range_len};
use crate::kernel::Kernel;
use crate::memory::{Accountant, Category};
use crate::recording::Command;
use crate::tensor::{DType, HostData};
use crate::{Error, Recording, Result};

/// Options of [`CpuBackend`].
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuOptions {
    /// Worker threads; the global rayon pool where absent.
    pub threads: Option<usize>,
    /// Byte budget of the accountant.
    pub budget: Option<u64>,
    /// Fill every allocation with NaN and indices out of range, so that a kernel that reads what nobody wrote shows.
    pub poison: bool,
}

/// Runs recordings on the host's cores, in the calling thread's time: `submit` returns when all is done.
#[derive(Debug, Clone)]
pub struct CpuBackend {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    caps: Caps,
    pool: Arc<Pool<HostData>>,
    poison: bool,
    threads: Option<rayon::ThreadPool>,
}

/// A recording that has run, with the time of each command.
#[derive(Debug)]
pub struct CpuFence {
    times: Vec<Duration>,
}

impl Default for CpuBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl CpuBackend {
    /// Without budget, on the global thread pool.
    pub fn new() -> Self {
        Self::build(CpuOptions::default(), None)
    }

    /// With options.
    ///
    /// # Errors
    /// [`Error::Argument`] for zero threads, [`Error::Unsupported`] where threads cannot be started.
    pub fn with_options(options: CpuOptions) -> Result<Self> {
        let threads = match options.threads {
            None => None,
            Some(0) => return Err(Error::argument("threads", 0, "1 or more")),
            Some(n) => {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build();
                Some(pool.map_err(|e| Error::Unsupported { what: format!("{n} threads"), why: e.to_string() })?)
            }
        };
        Ok(Self::build(options, threads))
    }

    fn build(options: CpuOptions, threads: Option<rayon::ThreadPool>) -> Self {
        let count = threads.as_ref().map_or_else(rayon::current_num_threads, rayon::ThreadPool::current_num_threads);
        let caps = Caps {
            backend: "cpu",
            device: format!("{}, {count} threads", math::instruction_set()),
            storage: vec![DType::F32, DType::BF16, DType::F16],
            max_buffer_bytes: isize::MAX as u64,
        };
        let pool = Pool::new(Accountant::new(options.budget));
        Self { inner: Arc::new(Inner { caps, pool, poison: options.poison, threads }) }
    }

    fn run(recording: &Recording<CpuBuffer>) -> Result<CpuFence> {
        let mut times = Vec::with_capacity(recording.commands().len());
        for command in recording.commands() {
            let start = Instant::now();
            match command {
                Command::Dispatch(kernel) => dispatch(kernel)?,
                Command::Fill { buffer, bits } => fill(buffer.write()?.data(), *bits),
                Command::Copy { src, dst } => copy(src.read()?.data(), dst.write()?.data(), 0, src.len())?,
            }
            let time = start.elapsed();
            log::trace!("{}: {time:?}", command.name());
            times.push(time);
        }
        Ok(CpuFence { times })
    }
}

fn dispatch(kernel: &Kernel<CpuBuffer>) -> Result<()> {
    match kernel {
        Kernel::Gate(args) => router::gate(args),
        Kernel::GateBackward(args) => router::gate_backward(args),
        Kernel::RouterLoss(args) => router::router_loss(args),
        Kernel::RouterGrad(args) => router::router_grad(args),
        Kernel::Sigmoid(args) => router::sigmoid(args),
        Kernel::SigmoidBackward(args) => router::sigmoid_backward(args),
        Kernel::GroupedForward(args) => expert::grouped_forward(args),
        Kernel::GroupedDgrad(args) => expert::grouped_dgrad(args),
        Kernel::GroupedWgrad(args) => expert::grouped_wgrad(args),
        Kernel::SwiGlu(args) => expert::swiglu(args),
        Kernel::SwiGluBackward(args) => expert::swiglu_backward(args),
        Kernel::Permute(args) => rows::permute(args),
        Kernel::GatherRows(args) => rows::gather_rows(args),
        Kernel::Combine(args) => rows::combine(args),
        Kernel::RowNorms(args) => rows::row_norms(args),
        Kernel::RowKeys(args) => keys::row_keys(args),
        Kernel::RowDots(args) => rows::row_dots(args),
        Kernel::Cast(args) => rows::cast(args),
        Kernel::Score(args) => select::score(args),
        Kernel::Demand(args) => select::demand(args),
        Kernel::Select(args) => select::select(args),
        Kernel::AdamW(args) => optim::adamw(args),
        Kernel::SumSquares(args) => optim::sum_squares(args),
    }
}

fn fill(data: &mut HostData, bits: u32) {
    let low = bits as u16;
    match data {
        HostData::F32(v) => v.fill(f32::from_bits(bits)),
        HostData::BF16(v) => v.fill(bf16::from_bits(low)),
        HostData::F16(v) => v.fill(f16::from_bits(low)),
        HostData::U32(v) => v.fill(bits),
    }
}

/// Copies the first `len` elements of `src` to `dst[offset..]`.
fn copy(src: &HostData, dst: &mut HostData, offset: usize, len: usize) -> Result<()> {
    let range = offset..offset + len;
    match (src, dst) {
        (HostData::F32(s), HostData::F32(d)) => d[range].copy_from_slice(&s[..len]),
        (HostData::BF16(s), HostData::BF16(d)) => d[range].copy_from_slice(&s[..len]),
        (HostData::F16(s), HostData::F16(d)) => d[range].copy_from_slice(&s[..len]),
        (HostData::U32(s), HostData::U32(d)) => d[range].copy_from_slice(&s[..len]),
        (s, d) => return Err(Error::shape("element type of a copy", s.dtype(), d.dtype())),
    }
    Ok(())
}

impl Backend for CpuBackend {
    type Buffer = CpuBuffer;
    type Fence = CpuFence;

    fn caps(&self) -> &Caps {
        &self.inner.caps
    }

    fn memory(&self) -> &Accountant {
        self.inner.pool.account()
    }

    fn alloc(&self, name: &str, dtype: DType, len: usize, category: Category) -> Result<CpuBuffer> {
        CpuBuffer::alloc(&self.inner.pool, self.inner.poison, name, dtype, len, category)
    }

    fn import(&self, name: &str, data: HostData, category: Category) -> Result<CpuBuffer> {
        CpuBuffer::import(&self.inner.pool, name, data, category)
    }

    fn upload(&self, buffer: &CpuBuffer, offset: usize, data: &HostData) -> Result<()> {
        check_upload(buffer, offset, data)?;
        copy(data, buffer.write()?.data(), offset, data.len())
    }

    fn submit(&self, recording: &Recording<CpuBuffer>) -> Result<CpuFence> {
        match &self.inner.threads {
            Some(pool) => pool.install(|| Self::run(recording)),
            None => Self::run(recording),
        }
    }

    fn wait(&self, _fence: &CpuFence) -> Result<()> {
        Ok(())
    }

    async fn read(&self, buffer: &CpuBuffer, range: std::ops::Range<usize>) -> Result<HostData> {
        let len = range_len(buffer, &range)?;
        let range = range.start..range.start + len;
        Ok(match buffer.read()?.data() {
            HostData::F32(v) => HostData::F32(v[range].to_vec()),
            HostData::BF16(v) => HostData::BF16(v[range].to_vec()),
            HostData::F16(v) => HostData::F16(v[range].to_vec()),
            HostData::U32(v) => HostData::U32(v[range].to_vec()),
        })
    }

    fn timings(&self, fence: &CpuFence) -> Option<Vec<Duration>> {
        Some(fence.times.clone())
    }
}
