//! The CUDA backend: NVIDIA GPUs from sm_80 on, on a context of its own or on a host application's.
//!
//! Nothing of CUDA is needed to build it: the driver and the compiler are looked for when the program runs, and where one is
//! missing that is a reason, not a failure ([`cuda_devices`]). Kernels (`cuda/`) are compiled for the GPU at hand by NVRTC at first use and kept on
//! disk (`LRMOE_CACHE_DIR`, or the user's cache directory), or built ahead of time with [`build_cubins`] and carried along.
//!
//! A recording is launched on one stream, in order, and nothing waits: results come back only where [`Backend::read`] asks for
//! them. Storage is f32, bf16 or f16; sums are f32.
//!
//! # A host's stream
//!
//! [`CudaBackend::adopt`] works on a stream of the host's, in the primary context that libraries of a process share
//! (`CudaContext::new` of cudarc, as candle and burn use it), and [`CudaBackend::borrow`] makes a range of the host's memory usable without
//! a copy. Commands of both take effect in the order of that stream. The thread's current context is as it was after each call.
//!
//! # Errors
//!
//! What fails while kernels run is reported by the next call that waits, by name: the device notes each command that it has
//! finished in host memory. Such an error is final for the context (a rule of CUDA), so every later call reports the same.
//! A wait that passes [`CudaOptions::time_limit`] is an error as well.

mod buffer;
mod checks;
mod context;
mod cubins;
mod current;
mod driver;
mod event;
mod exec;
mod host;
mod kernels;
mod launch;
mod modules;
mod nvrtc;
mod progress;
mod read;
mod source;
mod staging;
mod table;

use std::path::PathBuf;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

pub use buffer::CudaBuffer;
use buffer::Memory;
use checks::Pending;
use context::Context;
use cubins::Cubins;
pub use cubins::{CUBIN_ARCHS, Cubin, KernelUsage, build_cubins, compile_cubin};
pub use cudarc;
use cudarc::driver::CudaStream;
pub use driver::{CudaDevice, cuda_devices};
use event::Event;
use exec::Exec;
pub use kernels::gemm::{GemmTile, Operands};
use modules::Modules;

use super::bytes::poison_bits;
use super::pending::Unsettled;
use super::pool::Pool;
use super::{Backend, Caps};
use crate::kernel::Kernel;
use crate::memory::{Accountant, Category};
use crate::recording::Command;
use crate::tensor::{DType, HostData};
use crate::{Error, Recording, Result};

/// Options of [`CudaBackend`].
#[derive(Debug, Clone, PartialEq)]
pub struct CudaOptions {
    /// Number of the device in [`cuda_devices`]. Not used with a host's stream.
    pub device: usize,
    /// Byte budget of the accountant; the device decides where absent.
    pub budget: Option<u64>,
    /// Fill every allocation with NaN and indices out of range, so that a kernel that reads what nobody wrote shows.
    pub poison: bool,
    /// Check indices and offsets on the device; what is out of range is an error of `wait` or `read`.
    pub checks: bool,
    /// Take the time of each command. A command that is fused into the one before it has its time there, and next to none of its own.
    pub timings: bool,
    /// Launch a grouped GEMM and the SwiGLU behind it as one kernel where there is one. Sums over the columns of a row may then
    /// differ from those of two launches in the last bit.
    pub fuse: bool,
    /// What grouped GEMMs make of f32 operands.
    pub operands: Operands,
    /// Tiles of grouped GEMMs through weights; the sizes of a product decide where absent. Results have the same bits.
    pub gemm_tile: Option<GemmTile>,
    /// How long a wait may take before it is an error.
    pub time_limit: Duration,
    /// Directory of [`build_cubins`]; what `LRMOE_CUBIN_DIR` names where absent.
    pub cubin_dir: Option<PathBuf>,
    /// Where compiled kernels are kept; `cuda` in `LRMOE_CACHE_DIR` or in the user's cache directory where absent.
    pub cache_dir: Option<PathBuf>,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            device: 0,
            budget: None,
            poison: false,
            checks: true,
            timings: false,
            fuse: true,
            operands: Operands::Full,
            gemm_tile: None,
            time_limit: Duration::from_secs(60),
            cubin_dir: None,
            cache_dir: None,
        }
    }
}

/// Runs recordings on a CUDA stream.
#[derive(Debug, Clone)]
pub struct CudaBackend {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    // Before the context, which their handles are of.
    modules: Arc<Modules>,
    pool: Arc<Pool<Memory>>,
    unsettled: Unsettled<Pending>,
    context: Arc<Context>,
    caps: Caps,
    options: CudaOptions,
    /// Tells backends apart.
    id: u64,
}

/// A submitted recording.
#[derive(Debug)]
pub struct CudaFence {
    /// [`Inner::id`].
    backend: u64,
    /// Order of submission.
    sequence: u64,
    last: Arc<Event>,
    checks: Option<Arc<Pending>>,
    times: Option<Vec<Event>>,
}

/// A kernel of the table: what it is called, and with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaKernel {
    /// File in `cuda/`, without `.cu`.
    pub file: &'static str,
    /// Name in the file.
    pub name: String,
    /// Threads of a block.
    pub threads: u32,
    /// Registers of a thread at most.
    pub registers: u32,
    /// Names and C types of the parameters, in order.
    pub params: Vec<(&'static str, String)>,
}

/// Every CUDA kernel of this crate, by its row of the kernel table: to compile them ahead of time or to check them.
pub fn cuda_kernels() -> Vec<CudaKernel> {
    let instances = |spec: &'static table::Spec| spec.instances.iter().map(move |instance| (spec, *instance));
    let kernel = |(spec, instance): (&'static table::Spec, &'static [DType])| CudaKernel {
        file: spec.file,
        name: spec.name(instance),
        threads: spec.threads,
        registers: spec.registers,
        params: spec.params.iter().map(|param| (param.name, spec.c_type(param, instance))).collect(),
    };
    kernels::specs().flat_map(instances).map(kernel).collect()
}

impl CudaBackend {
    /// Opens the primary context of a device, with a stream of its own.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the reason why there is no such device, [`Error::Argument`] for a number that is too high.
    pub fn new(options: CudaOptions) -> Result<Self> {
        Self::with(Context::open(options.device)?, options)
    }

    /// Works on a host application's stream. [`CudaOptions::device`] is not used.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the reason why the device cannot run the kernels, [`Error::Argument`] for the per-thread default
    /// stream, which is another one in each thread, [`Error::State`] while the stream is being captured into a graph.
    pub fn adopt(stream: &Arc<CudaStream>, options: CudaOptions) -> Result<Self> {
        Self::with(Context::new(Arc::clone(stream))?, options)
    }

    fn with(context: Arc<Context>, options: CudaOptions) -> Result<Self> {
        let cubins = Cubins::new(options.cubin_dir.as_deref(), options.cache_dir.as_deref(), context.gpu.sm);
        let modules = Arc::new(Modules::new(Arc::clone(&context), cubins));
        Self::on(context, modules, options)
    }

    /// A second backend on the same stream, with an account, a pool and options of its own: two ranks on one device. Loaded kernels are
    /// shared, and so are their directories. [`CudaOptions::device`] is not used.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub fn beside(&self, options: CudaOptions) -> Result<Self> {
        Self::on(Arc::clone(&self.inner.context), Arc::clone(&self.inner.modules), options)
    }

    fn on(context: Arc<Context>, modules: Arc<Modules>, options: CudaOptions) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        context.alive()?;
        let inner = Inner {
            modules,
            pool: Pool::new(Accountant::new(options.budget)),
            unsettled: Unsettled::default(),
            caps: context.gpu.caps(),
            context,
            options,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The stream that everything runs on, to work beside this backend or to share its buffers.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.inner.context.stream
    }

    /// `len` elements of a host's memory from a device address on, without a copy. The memory is the host's: the accountant does not
    /// count it.
    ///
    /// # Errors
    /// [`Error::Argument`] for an address that is not a multiple of the element's bytes, or not of this device's memory.
    ///
    /// # Safety
    /// So many elements are allocated there, and stay so until everything that was submitted with the buffer has run. What
    /// other streams do with them is ordered with [`CudaBackend::stream`] by events.
    pub unsafe fn borrow(&self, name: &str, address: u64, dtype: DType, len: usize) -> Result<CudaBuffer> {
        let bytes = super::elements(name, &[len, dtype.bytes()])? as u64;
        if !address.is_multiple_of(dtype.bytes() as u64) {
            let allowed = format!("a multiple of {}", dtype.bytes());
            return Err(Error::argument(format!("address of `{name}`"), format!("{address:#x}"), allowed));
        }
        if len > 0 && !self.inner.context.is_device_memory(address, bytes)? {
            let allowed = format!("that of {bytes} bytes in one allocation of this device");
            return Err(Error::argument(format!("address of `{name}`"), format!("{address:#x}"), allowed));
        }
        Ok(CudaBuffer::borrowed(name, dtype, len, address, self.inner.context.id))
    }

    /// Where the elements of a buffer lie in device memory. Other users must not touch what lies outside its bytes, must order
    /// their work with [`CudaBackend::stream`], and the handle must outlive their use.
    pub fn address(&self, buffer: &CudaBuffer) -> u64 {
        buffer.address()
    }
}

impl Inner {
    /// Memory of undefined content, or poisoned.
    fn alloc(&self, name: &str, dtype: DType, len: usize, category: Category) -> Result<CudaBuffer> {
        self.context.alive()?;
        let make = |bytes| Memory::new(&self.context, name, bytes);
        let piece = self.pool.alloc(name, dtype, len, category, make)?;
        let buffer = CudaBuffer::pooled(name, dtype, len, piece);
        if self.options.poison {
            self.fill("poison", &buffer, poison_bits(dtype))?;
        }
        Ok(buffer)
    }

    /// Reports what the checks found of recordings before `sequence` that nobody waits for any more.
    fn settle(&self, sequence: u64) -> Result<()> {
        self.unsettled.settle(sequence, |pending| pending.outcome(self.options.time_limit))
    }

    /// Launches all commands.
    fn submit(&self, recording: &Recording<CudaBuffer>) -> Result<CudaFence> {
        self.context.check_not_capturing()?;
        self.unsettled.bound(|pending| pending.outcome(self.options.time_limit))?;
        let _launching = self.context.launching.lock().unwrap_or_else(PoisonError::into_inner);
        let commands = recording.commands();
        let mut exec = Exec::new(self, commands.len(), self.options.timings)?;
        let mut rest = commands;
        while let [command, behind @ ..] = rest {
            rest = behind;
            exec.begin(command.name());
            match command {
                Command::Dispatch(kernel) => {
                    self.check_own(kernel)?;
                    match behind {
                        [Command::Dispatch(next), behind @ ..] if self.fused(kernel, next, &mut exec)? => {
                            rest = behind;
                            exec.written(kernel);
                            exec.end()?;
                            exec.begin(next.name());
                            exec.written(next);
                        }
                        _ => {
                            kernels::dispatch(kernel, &mut exec)?;
                            exec.written(kernel);
                        }
                    }
                }
                Command::Fill { buffer, bits } => {
                    exec.fill(buffer, *bits)?;
                    exec.workspace.written(buffer);
                }
                Command::Copy { src, dst } => {
                    exec.copy(src, dst)?;
                    exec.workspace.written(dst);
                }
            }
            exec.end()?;
        }
        let submitted = exec.finish()?;
        Ok(CudaFence {
            backend: self.id,
            sequence: submitted.sequence,
            last: submitted.last,
            checks: submitted.checks,
            times: submitted.times,
        })
    }

    fn check_own(&self, kernel: &Kernel<CudaBuffer>) -> Result<()> {
        kernel.bindings().iter().filter_map(|binding| binding.buffer).try_for_each(|b| self.context.check_own(b))
    }

    /// Launches two commands as one, where that is wanted and there is a kernel for it.
    fn fused(&self, kernel: &Kernel<CudaBuffer>, next: &Kernel<CudaBuffer>, exec: &mut Exec<'_>) -> Result<bool> {
        if !self.options.fuse {
            return Ok(false);
        }
        self.check_own(next)?;
        kernels::fused(kernel, next, exec)
    }

    fn wait(&self, fence: &CudaFence) -> Result<()> {
        self.context.alive()?;
        if fence.backend != self.id {
            return Err(Error::State {
                what: "the fence is of another device, or of another backend on this one".into(),
                fix: "wait where it was submitted".into(),
            });
        }
        self.context.wait_for(&fence.last, self.options.time_limit)?;
        if let Some(own) = &fence.checks {
            self.unsettled.wait(own, |checks| checks.outcome(self.options.time_limit))?;
        }
        // Recordings before that nobody waits for are reported here.
        self.settle(fence.sequence)
    }
}

impl Backend for CudaBackend {
    type Buffer = CudaBuffer;
    type Fence = CudaFence;

    fn caps(&self) -> &Caps {
        &self.inner.caps
    }

    fn memory(&self) -> &Accountant {
        self.inner.pool.account()
    }

    fn alloc(&self, name: &str, dtype: DType, len: usize, category: Category) -> Result<CudaBuffer> {
        self.inner.alloc(name, dtype, len, category)
    }

    fn import(&self, name: &str, data: HostData, category: Category) -> Result<CudaBuffer> {
        let buffer = self.inner.alloc(name, data.dtype(), data.len(), category)?;
        self.inner.upload(&buffer, 0, &data)?;
        Ok(buffer)
    }

    fn upload(&self, buffer: &CudaBuffer, offset: usize, data: &HostData) -> Result<()> {
        self.inner.upload(buffer, offset, data)
    }

    fn submit(&self, recording: &Recording<CudaBuffer>) -> Result<CudaFence> {
        self.inner.submit(recording)
    }

    fn wait(&self, fence: &CudaFence) -> Result<()> {
        self.inner.wait(fence)
    }

    /// Blocks until the device has run what was submitted before.
    async fn read(&self, buffer: &CudaBuffer, range: std::ops::Range<usize>) -> Result<HostData> {
        self.inner.read(buffer, range)
    }

    fn timings(&self, fence: &CudaFence) -> Option<Vec<Duration>> {
        let times = fence.times.as_ref().filter(|_| fence.backend == self.inner.id)?;
        self.inner.context.wait_for(&fence.last, self.inner.options.time_limit).ok()?;
        times.windows(2).map(|pair| pair[1].since(&pair[0])).collect()
    }
}
