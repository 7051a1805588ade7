//! Recordings become launches on a stream, in order.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::Inner;
use super::buffer::CudaBuffer;
use super::checks::Pending;
use super::driver::Gpu;
use super::event::Event;
use super::host::Mapped;
use super::launch::Arg;
use super::table::Spec;
use crate::backend::Buffer;
use crate::backend::bytes::word_of;
use crate::backend::faults::{CHECKS_PER_COMMAND, Place};
use crate::backend::known::Question;
use crate::backend::workspace::Workspace;
use crate::kernel::{Access, Kernel};
use crate::memory::Category;
use crate::tensor::DType;
use crate::{Error, Result};

/// Parameters of a kernel at most.
const MOST_PARAMS: usize = 48;

/// Blocks of a launch at most.
const MOST_BLOCKS: u64 = i32::MAX as u64;

/// Launches the commands of one recording.
#[derive(Debug)]
pub(super) struct Exec<'a> {
    inner: &'a Inner,
    command: &'static str,
    /// Kept until all is submitted, since others may write what is back in the pool first.
    pub(super) workspace: Workspace<CudaBuffer>,
    pub(super) faults: Option<Mapped>,
    pub(super) places: Vec<Place>,
    pub(super) places_at_most: usize,
    /// Before the first command, and behind each.
    times: Option<Vec<Event>>,
}

/// What is left of a recording when all of it is submitted.
#[derive(Debug)]
pub(super) struct Submitted {
    pub(super) sequence: u64,
    pub(super) last: Arc<Event>,
    pub(super) checks: Option<Arc<Pending>>,
    pub(super) times: Option<Vec<Event>>,
}

impl<'a> Exec<'a> {
    pub(super) fn new(inner: &'a Inner, commands: usize, timed: bool) -> Result<Self> {
        let begin = if timed { Some(vec![Event::record(&inner.context, true)?]) } else { None };
        Ok(Self {
            inner,
            command: "",
            workspace: Workspace::default(),
            faults: None,
            places: Vec::new(),
            places_at_most: commands * CHECKS_PER_COMMAND,
            times: begin,
        })
    }

    /// What the device can do.
    pub(super) fn gpu(&self) -> &'a Gpu {
        &self.inner.context.gpu
    }

    /// The backend that this launches for.
    pub(super) fn inner(&self) -> &'a Inner {
        self.inner
    }

    /// Begins a command: its name stands in errors and at its time.
    pub(super) fn begin(&mut self, command: &'static str) {
        self.command = command;
    }

    /// Ends the current command.
    pub(super) fn end(&mut self) -> Result<()> {
        self.workspace.end();
        self.inner.context.mark(self.command)?;
        if let Some(times) = &mut self.times {
            times.push(Event::record(&self.inner.context, true)?);
        }
        Ok(())
    }

    /// Forgets what a kernel may have changed.
    pub(super) fn written(&mut self, kernel: &Kernel<CudaBuffer>) {
        let written = kernel.bindings().into_iter().filter(|binding| binding.access == Access::Write);
        written.filter_map(|binding| binding.buffer).for_each(|buffer| self.workspace.written(buffer));
    }

    /// Workspace of the current command, of undefined content.
    ///
    /// # Errors
    /// As [`Backend::alloc`](crate::Backend::alloc).
    pub(super) fn scratch(&mut self, name: &str, dtype: DType, len: usize) -> Result<CudaBuffer> {
        let alloc = || self.inner.alloc(name, dtype, len, Category::Scratch);
        self.workspace.take(dtype, len, alloc)
    }

    /// Workspace until the end of the recording.
    pub(super) fn scratch_kept(&mut self, name: &str, dtype: DType, len: usize) -> Result<CudaBuffer> {
        self.inner.alloc(name, dtype, len, Category::Scratch).map(|buffer| self.workspace.keep(buffer))
    }

    /// What `find` makes of buffers in workspace of that many words, or made of them before in this recording.
    ///
    /// # Errors
    /// Those of `find` and of the allocation.
    pub(super) fn derived(
        &mut self,
        question: Question,
        about: &[&CudaBuffer],
        (name, words): (&str, usize),
        find: impl FnOnce(&mut Self, &CudaBuffer) -> Result<()>,
    ) -> Result<CudaBuffer> {
        if let Some(found) = self.workspace.found(question, about) {
            return Ok(found);
        }
        let found = self.scratch_kept(name, DType::U32, words)?;
        find(self, &found)?;
        self.workspace.remember(question, about, &found);
        Ok(found)
    }

    /// Sets every word, or every element of 16 bits, to a pattern.
    ///
    /// # Errors
    /// What the driver reports.
    pub(super) fn fill(&mut self, buffer: &CudaBuffer, bits: u32) -> Result<()> {
        self.inner.fill(self.command, buffer, bits)
    }

    /// Copies all elements of one buffer to another of the same length and type.
    pub(super) fn copy(&mut self, src: &CudaBuffer, dst: &CudaBuffer) -> Result<()> {
        let context = &self.inner.context;
        context.check_own(src)?;
        context.check_own(dst)?;
        if src.bytes() == 0 {
            return Ok(());
        }
        // SAFETY: both hold so many bytes and are kept until the stream has passed: memory is given back in its order.
        let copy =
            || unsafe { result::memcpy_dtod_async(dst.address(), src.address(), src.bytes(), context.cu_stream()) };
        context.call(self.command, copy)
    }

    /// Launches a kernel of the table.
    ///
    /// # Errors
    /// [`Error::Overflow`] for more blocks than a grid has, [`Error::Unsupported`] for arguments without an instance, and what
    /// the driver reports.
    pub(super) fn launch(&mut self, spec: &'static Spec, args: &[Arg], blocks: u64, shared: u32) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        let grid = u32::try_from(blocks).ok().filter(|_| blocks <= MOST_BLOCKS).ok_or_else(|| Error::Overflow {
            what: format!("grid of `{}`", spec.base),
            detail: format!("{blocks} blocks; {MOST_BLOCKS} are the most"),
        })?;
        let instance = instance(spec, args)?;
        let modules = &self.inner.modules;
        let function = modules.get(spec, instance)?;
        modules.allow_shared(spec, &function, shared)?;
        let mut slots = [0u64; MOST_PARAMS];
        let mut pointers = [std::ptr::null_mut::<c_void>(); MOST_PARAMS];
        for ((slot, pointer), arg) in slots.iter_mut().zip(&mut pointers).zip(args) {
            *slot = arg.slot();
            *pointer = std::ptr::from_mut(slot).cast();
        }
        let context = &self.inner.context;
        // SAFETY: number and types of the arguments are those of the kernel, by its row of the table; buffers were checked for
        // their length where the pointers were made, and their memory is given back in the order of the stream.
        let launch = || unsafe {
            let block = (spec.threads, 1, 1);
            let params = &mut pointers[..args.len()];
            result::launch_kernel(function.raw, (grid, 1, 1), block, shared, context.cu_stream(), params)
        };
        context.call(self.command, launch)
    }

    /// Blocks of a kernel that the device runs at once.
    ///
    /// # Errors
    /// As [`Exec::launch`].
    pub(super) fn resident(&self, spec: &'static Spec, args: &[Arg], shared: u32) -> Result<u64> {
        self.inner.modules.resident(spec, instance(spec, args)?, shared)
    }

    /// Submits what belongs behind the last command.
    pub(super) fn finish(mut self) -> Result<Submitted> {
        let context = &self.inner.context;
        let sequence = self.inner.unsettled.next();
        let last = Arc::new(Event::record(context, false)?);
        let checks = self.faults.take().map(|words| {
            let places = std::mem::take(&mut self.places);
            Pending::new(sequence, context, Some(Arc::clone(&last)), words, places)
        });
        if let Some(pending) = &checks {
            self.inner.unsettled.remember(pending);
        }
        Ok(Submitted { sequence, last, checks, times: self.times.take() })
    }
}

fn instance(spec: &Spec, args: &[Arg]) -> Result<usize> {
    let found = match spec.instance(args) {
        Ok(instance) if args.len() <= MOST_PARAMS => Ok(instance),
        Ok(_) => Err(format!("{} parameters; {MOST_PARAMS} are the most", args.len())),
        Err(why) => Err(why),
    };
    found.map_err(|why| Error::Unsupported { what: format!("this launch of `{}`", spec.base), why })
}

impl Drop for Exec<'_> {
    /// What was launched before an error may still write what it found.
    fn drop(&mut self) {
        let Some(words) = self.faults.take() else { return };
        let context = &self.inner.context;
        let last = Event::record(context, false).ok().map(Arc::new);
        let pending = Pending::new(self.inner.unsettled.next(), context, last, words, Vec::new());
        self.inner.unsettled.remember(&pending);
    }
}

impl Inner {
    /// Sets every word, or every element of 16 bits, to a pattern.
    pub(super) fn fill(&self, command: &str, buffer: &CudaBuffer, bits: u32) -> Result<()> {
        let context = &self.context;
        context.check_own(buffer)?;
        if buffer.is_empty() {
            return Ok(());
        }
        let (address, len, stream) = (buffer.address(), buffer.len(), context.cu_stream());
        let word = word_of(buffer.dtype(), bits);
        // SAFETY: the buffer holds so many elements; its memory is given back in the order of the stream.
        context.call(command, || unsafe {
            match buffer.dtype().bytes() {
                2 => sys::cuMemsetD16Async(address, word as u16, len, stream).result(),
                _ => sys::cuMemsetD32Async(address, word, len, stream).result(),
            }
        })
    }
}
