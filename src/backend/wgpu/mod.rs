//! The wgpu backend: Vulkan, Metal and DX12, on a device of its own or on a host application's.
//!
//! Kernels are WGSL files (`shaders/`), specialised by a generated header, compiled at first use and kept. A recording
//! becomes command buffers whose dispatches are bounded in time; results come back only where [`Backend::read`] asks for
//! them. Storage is f32, bf16 or f16, arithmetic f32.
//!
//! # A host's device
//!
//! [`WgpuBackend::adopt`] shares the host's `Device` and `Queue`: its error and lost-device callbacks stay as they are, and
//! what goes wrong in a call of this crate is caught by error scopes and returned. [`WgpuBackend::borrow`] makes a range of a
//! host's buffer usable without a copy. Commands of both users take effect in the order of their submissions.
//!
//! # Limits
//!
//! Expert weights may be larger than a storage binding: grouped GEMMs, optimizer and norms bind them in windows, with the same
//! bits. Arrays of tokens and pairs are bound whole; one that is too large is refused with both sizes. What kernels need for
//! themselves (sort histograms, selection keys: tens of bytes a pair) is scratch of the accountant, so a step needs that much
//! more than planning predicts for its own buffers.
//!
//! Work is cut into dispatches of bounded size, so that no watchdog ends one, but a queue may still be long: a wait that passes
//! [`WgpuOptions::time_limit`] is an error, and so is whatever the driver reports, at the call or at the next one that waits.
//!
//! # Results
//!
//! The same inputs on the same device and driver give the same bits, whatever the variant of a kernel (those of
//! [`WgpuOptions::cooperative`] excepted), the limits and the windows. Given the same score bits, selection retains the same
//! pairs as the CPU backend, with the same weights. Sums and functions agree within rounding: WGSL leaves division, square
//! roots and exponentials a few units in the last place, and drivers that compile for fast arithmetic (Metal's does) may
//! reorder sums.
//!
//! On DX12 kernels need the DXC compiler (`dxcompiler.dll`): the older one refuses barriers that it cannot prove to be uniform.

mod adapter;
mod buffer;
mod checks;
mod context;
mod encode;
mod kernels;
mod launch;
mod mapping;
mod pipelines;
mod read;
mod shader;
mod timestamps;
mod tuning;
mod unroll;
mod windows;

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(super) use adapter::NO_ADAPTER;
pub use adapter::{WgpuAdapter, adapters};
use buffer::Memory;
pub use buffer::WgpuBuffer;
use checks::Pending;
use context::{Bounds, Context, Cooperative, Profile};
use encode::{Chunk, Encoder};
use pipelines::{BindGroups, Pipelines};
use timestamps::Timer;
pub use tuning::{ChoiceSource, ChosenVariant, Tune};
use tuning::{Findings, Tuner};

use super::pending::Unsettled;
use super::pool::Pool;
use super::{Backend, Caps};
use crate::kernel::Access;
use crate::memory::{Accountant, Category};
use crate::recording::Command;
use crate::tensor::{DType, HostData};
use crate::{Error, Recording, Result};

/// Options of [`WgpuBackend`].
#[derive(Debug, Clone, PartialEq)]
pub struct WgpuOptions {
    /// Which adapter: its number in [`adapters`], or a part of its name; the first one where absent, and hardware
    /// comes before software.
    pub adapter: Option<String>,
    /// Byte budget of the accountant. Drivers accept more than there is: without a budget the system decides.
    pub budget: Option<u64>,
    /// Fill every allocation with NaN and indices out of range, so that a kernel that reads what nobody wrote shows.
    pub poison: bool,
    /// Check indices and offsets on the device; what is out of range is an error of `wait` or `read`.
    pub checks: bool,
    /// Take the time of each command, where the device can: of recordings of up to 2,048 commands.
    pub timings: bool,
    /// How long a wait may take before it is an error.
    pub time_limit: Duration,
    /// Largest storage binding in bytes, where the device's own limit is to be undercut; 16 KiB at least.
    pub binding_bytes: Option<u64>,
    /// Workgroups of a dispatch in one dimension, where the device's own limit is to be undercut.
    pub grid: Option<u32>,
    /// Whether kernel variants are chosen by measured time.
    pub tune: Tune,
    /// Where measured choices are kept; `lrmoe` in the user's cache directory where absent.
    pub cache_dir: Option<PathBuf>,
    /// Variant of the grouped GEMMs, one of [`WgpuBackend::gemm_variants`], wherever device and shape allow it. One with matrix
    /// units needs `cooperative` too.
    pub gemm_variant: Option<String>,
    /// Use matrix units for the grouped GEMMs: with f16 operands on Vulkan, with f32 on Metal. Their sums round in another
    /// order than the bits of other variants, and the feature is experimental in wgpu: results of the first use are compared
    /// with a plain kernel, and a device that fails goes without, as does one that has none.
    ///
    /// The feature has to be enabled when the device is opened. So this has no effect with [`WgpuBackend::adopt`], since a
    /// host's device does not tell what its matrix units can do, nor with [`WgpuBackend::beside`] where the first backend was
    /// made without it. [`WgpuBackend::chosen_variants`] says what is in use.
    pub cooperative: bool,
}

impl Default for WgpuOptions {
    fn default() -> Self {
        Self {
            adapter: None,
            budget: None,
            poison: false,
            checks: true,
            timings: false,
            time_limit: Duration::from_secs(60),
            binding_bytes: None,
            grid: None,
            tune: Tune::Auto,
            cache_dir: None,
            gemm_variant: None,
            cooperative: false,
        }
    }
}

/// Smallest value of [`WgpuOptions::binding_bytes`].
const LEAST_BINDING: u64 = 16 << 10;

/// Runs recordings on a wgpu device.
#[derive(Debug, Clone)]
pub struct WgpuBackend {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    context: Context,
    caps: Caps,
    options: WgpuOptions,
    pool: Arc<Pool<Memory>>,
    groups: Arc<BindGroups>,
    pipelines: Arc<Pipelines>,
    tuner: Tuner,
    chunks: Mutex<Vec<Chunk>>,
    unsettled: Unsettled<Pending>,
    /// Bytes of uploads since the last one that was waited for.
    uploaded: AtomicU64,
}

/// A submitted recording.
#[derive(Debug)]
pub struct WgpuFence {
    device: u64,
    /// Order of submission.
    sequence: u64,
    last: Option<wgpu::SubmissionIndex>,
    checks: Option<Arc<Pending>>,
    timer: Option<Timer>,
}

fn bounds(options: &WgpuOptions) -> Result<Bounds> {
    if let Some(bytes) = options.binding_bytes.filter(|&bytes| bytes < LEAST_BINDING) {
        return Err(Error::argument("binding_bytes", bytes, format!("{LEAST_BINDING} or more")));
    }
    if options.grid == Some(0) {
        return Err(Error::argument("grid", 0, "1 or more"));
    }
    kernels::check_variant(options.gemm_variant.as_deref())?;
    Ok(Bounds { binding_bytes: options.binding_bytes, grid: options.grid })
}

impl WgpuBackend {
    /// Opens a device of its own.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where there is no such adapter, [`Error::Device`] where it cannot be opened.
    pub fn new(options: WgpuOptions) -> Result<Self> {
        let (device, queue, matrices) = adapter::open(options.adapter.as_deref(), options.cooperative)?;
        Self::build(device, queue, Some(matrices), options)
    }

    /// Works on a host application's device. Neither its callbacks nor its state are touched, and nothing is measured on it.
    ///
    /// Limits and features are the device's: ask for the adapter's limits and for `SUBGROUP` when it is opened to get the
    /// fast kernels. [`WgpuOptions::adapter`] is not used.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] where the device does not work, [`Error::Argument`] for limits that are too small.
    pub fn adopt(device: &wgpu::Device, queue: &wgpu::Queue, options: WgpuOptions) -> Result<Self> {
        Self::build(device.clone(), queue.clone(), None, options)
    }

    /// `owned`: what only the one who opened the device knows of it.
    fn build(
        device: wgpu::Device,
        queue: wgpu::Queue,
        owned: Option<Cooperative>,
        options: WgpuOptions,
    ) -> Result<Self> {
        let mut context = Context::new(device, queue, owned.is_some(), options.time_limit, bounds(&options)?)?;
        context.profile.cooperative = owned.unwrap_or_default();
        Self::with(context, options, Arc::default(), Arc::default(), Arc::default())
    }

    /// A second backend on the same device, with an account, a pool and options of its own: two ranks on one device. Compiled
    /// kernels are shared, and so is what was measured. [`WgpuOptions::adapter`] is not used.
    ///
    /// # Errors
    /// As [`WgpuBackend::adopt`].
    pub fn beside(&self, options: WgpuOptions) -> Result<Self> {
        let context = self.inner.context.bounded(options.time_limit, bounds(&options)?);
        let (pipelines, groups) = (Arc::clone(&self.inner.pipelines), Arc::clone(&self.inner.groups));
        Self::with(context, options, pipelines, groups, self.inner.tuner.findings())
    }

    fn with(
        context: Context,
        options: WgpuOptions,
        pipelines: Arc<Pipelines>,
        groups: Arc<BindGroups>,
        findings: Arc<Mutex<Findings>>,
    ) -> Result<Self> {
        context.check_alive()?;
        let caps = adapter::caps(&context.info, &context.device.limits());
        let measures = match options.tune {
            Tune::Auto => context.owned && !context.profile.software,
            Tune::Off => false,
            Tune::Measure => context.owned,
        };
        let inner = Inner {
            tuner: Tuner::new(measures, options.cache_dir.as_deref(), &caps.device, findings),
            caps,
            context,
            pool: Pool::new(Accountant::new(options.budget)),
            options,
            groups,
            pipelines,
            chunks: Mutex::default(),
            unsettled: Unsettled::default(),
            uploaded: AtomicU64::new(0),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Names of the variants of the grouped GEMMs, for [`WgpuOptions::gemm_variant`].
    pub fn gemm_variants() -> Vec<&'static str> {
        kernels::gemm_variants()
    }

    /// The variants of kernels: for large aligned shapes, as long as nothing is measured, then what was chosen for the classes
    /// of shapes that have been run, or measured in earlier runs.
    pub fn chosen_variants(&self) -> Vec<ChosenVariant> {
        kernels::chosen_variants(&self.inner)
    }

    /// The device, to work beside this backend or to share its buffers.
    pub fn device(&self) -> &wgpu::Device {
        &self.inner.context.device
    }

    /// The queue of [`WgpuBackend::device`].
    pub fn queue(&self) -> &wgpu::Queue {
        &self.inner.context.queue
    }

    /// Every kernel compiled so far, specialised: `file::entry point` and the whole WGSL text. To look at, or to check with
    /// another compiler.
    pub fn shaders(&self) -> Vec<(String, String)> {
        self.inner.pipelines.texts()
    }

    /// `len` elements of a host's buffer from byte `offset` on, without a copy. The memory is the host's: the accountant does
    /// not count it.
    ///
    /// # Errors
    /// [`Error::Argument`] for a range that is outside the buffer or not of whole 32-bit words, or a buffer without
    /// `STORAGE`, `COPY_SRC` and `COPY_DST` usage.
    pub fn borrow(
        &self,
        name: &str,
        buffer: &wgpu::Buffer,
        offset: u64,
        dtype: DType,
        len: usize,
    ) -> Result<WgpuBuffer> {
        let usage = buffer::USAGE;
        if !buffer.usage().contains(usage) {
            return Err(Error::argument(
                format!("usage of `{name}`"),
                format!("{:?}", buffer.usage()),
                format!("{usage:?}"),
            ));
        }
        let bytes = super::elements(name, &[len, dtype.bytes()])? as u64;
        if !offset.is_multiple_of(4) || !bytes.is_multiple_of(4) {
            let value = format!("{bytes} bytes from byte {offset} on");
            return Err(Error::argument(format!("range of `{name}`"), value, "multiples of 4"));
        }
        if bytes == 0 || offset.checked_add(bytes).is_none_or(|end| end > buffer.size()) {
            let value = format!("{bytes} bytes from byte {offset} on");
            return Err(Error::argument(format!("range of `{name}`"), value, format!("1 to {} bytes", buffer.size())));
        }
        let memory = Memory::of(buffer.clone(), &self.inner.context, &self.inner.groups);
        Ok(WgpuBuffer::borrowed(name, dtype, len, offset, memory))
    }

    /// Where the elements of a buffer lie: a buffer of [`WgpuBackend::device`] and a range of bytes. Other users must not
    /// touch what lies outside the range, and the handle must outlive their use.
    pub fn resource<'a>(&self, buffer: &'a WgpuBuffer) -> (&'a wgpu::Buffer, std::ops::Range<u64>) {
        (&buffer.memory().buffer, buffer.bytes())
    }
}

impl Inner {
    /// Memory of undefined content, or poisoned.
    fn alloc(&self, name: &str, dtype: DType, len: usize, category: Category) -> Result<WgpuBuffer> {
        self.context.alive()?;
        let make = |bytes| Memory::new(&self.context, &self.groups, name, bytes);
        let piece = self.pool.alloc(name, dtype, len, category, make)?;
        let buffer = WgpuBuffer::pooled(name, dtype, len, piece);
        if self.options.poison {
            self.poison(&buffer)?;
        }
        Ok(buffer)
    }

    fn take_chunk(&self) -> Result<Chunk> {
        let idle = self.chunks.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| Chunk::new(&self.context), Ok)
    }

    fn give_chunk(&self, chunk: Option<Chunk>) {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner).extend(chunk);
    }

    /// Reports what the checks found of recordings before `sequence` that nobody waits for any more.
    fn settle(&self, sequence: u64) -> Result<()> {
        self.unsettled.settle(sequence, |pending| pending.outcome(&self.context))
    }

    /// Encodes and submits.
    fn submit(&self, recording: &Recording<WgpuBuffer>) -> Result<WgpuFence> {
        self.unsettled.bound(|pending| pending.outcome(&self.context))?;
        let commands = recording.commands();
        let timer = if self.options.timings { Timer::new(&self.context) } else { None };
        let mut encoder = Encoder::new(self, commands.len(), timer);
        for command in commands {
            encoder.begin(command.name());
            match command {
                Command::Dispatch(kernel) => {
                    kernels::dispatch(kernel, &mut encoder)?;
                    let written = kernel.bindings().into_iter().filter(|binding| binding.access == Access::Write);
                    written.filter_map(|binding| binding.buffer).for_each(|buffer| encoder.workspace.written(buffer));
                }
                Command::Fill { buffer, bits } => {
                    encoder.fill(buffer, *bits)?;
                    encoder.workspace.written(buffer);
                }
                Command::Copy { src, dst } => {
                    encoder.copy(src, dst)?;
                    encoder.workspace.written(dst);
                }
            }
        }
        let mut submitted = encoder.finish()?;
        if let Some(timer) = &mut submitted.timer {
            timer.map();
        }
        Ok(WgpuFence {
            device: self.context.id,
            sequence: submitted.sequence,
            last: submitted.last,
            checks: submitted.checks,
            timer: submitted.timer,
        })
    }
}

impl Backend for WgpuBackend {
    type Buffer = WgpuBuffer;
    type Fence = WgpuFence;

    fn caps(&self) -> &Caps {
        &self.inner.caps
    }

    fn memory(&self) -> &Accountant {
        self.inner.pool.account()
    }

    fn alloc(&self, name: &str, dtype: DType, len: usize, category: Category) -> Result<WgpuBuffer> {
        self.inner.alloc(name, dtype, len, category)
    }

    fn import(&self, name: &str, data: HostData, category: Category) -> Result<WgpuBuffer> {
        let buffer = self.inner.alloc(name, data.dtype(), data.len(), category)?;
        self.inner.upload(&buffer, 0, &data)?;
        Ok(buffer)
    }

    fn upload(&self, buffer: &WgpuBuffer, offset: usize, data: &HostData) -> Result<()> {
        self.inner.upload(buffer, offset, data)
    }

    fn submit(&self, recording: &Recording<WgpuBuffer>) -> Result<WgpuFence> {
        self.inner.context.scoped("submit", || self.inner.submit(recording))?
    }

    fn wait(&self, fence: &WgpuFence) -> Result<()> {
        let inner = &self.inner;
        inner.context.check_alive()?;
        if fence.device != inner.context.id {
            return Err(Error::State {
                what: "the fence is of another device".into(),
                fix: "wait where it was submitted".into(),
            });
        }
        if let Some(last) = &fence.last {
            inner.context.wait_for(Some(last.clone()), "wait")?;
        }
        let own = fence
            .checks
            .as_ref()
            .map_or(Ok(()), |checks| inner.unsettled.wait(checks, |checks| checks.outcome(&inner.context)));
        own.or_else(|error| inner.context.check_alive().and(Err(error)))?;
        // Recordings before that nobody waits for are reported here.
        inner.settle(fence.sequence)
    }

    /// Blocks until the device has run what was submitted before.
    async fn read(&self, buffer: &WgpuBuffer, range: std::ops::Range<usize>) -> Result<HostData> {
        self.inner.read(buffer, range)
    }

    fn timings(&self, fence: &WgpuFence) -> Option<Vec<Duration>> {
        fence.timer.as_ref()?;
        self.inner.context.wait_for(fence.last.clone(), "timings").ok()?;
        fence.timer.as_ref()?.times(self.inner.options.time_limit)
    }
}
