//! Recordings become command buffers: dispatches bounded in time, grids folded, parameters in one uniform chunk.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Inner;
use super::buffer::WgpuBuffer;
use super::checks::Pending;
use super::context::{Context, Profile};
use super::launch::{Arg, Launch, MAX_STORAGE, base_of, groups_of, u32_of};
use super::pipelines::{GroupKey, PARAM_BYTES};
use super::shader::{Bound, FIXED_PARAMS, Param, Source, Specialisation, View, kinds, source};
use super::timestamps::Timer;
use super::windows::{ALIGNED, bindable, windows};
use crate::backend::Buffer;
use crate::backend::bytes::word_of;
use crate::backend::faults::{CHECKS_PER_COMMAND, Place, WORDS};
use crate::backend::known::Question;
use crate::backend::workspace::Workspace;
use crate::memory::Category;
use crate::tensor::DType;
use crate::{Error, Result};

static FILL: Source = source!("fill");

/// Dispatches of one command buffer: parameters of each lie in one uniform chunk.
const DISPATCHES: usize = 256;

/// Operations of one dispatch at most. A slow integrated GPU of 20 GFLOP/s takes a tenth of a second for the first figure,
/// software on two cores for the second; watchdogs wait two seconds.
const DISPATCH_COST: u64 = 2_000_000_000;
const DISPATCH_COST_SOFTWARE: u64 = 400_000_000;

/// Operations of one command buffer at most, in dispatches of the largest cost.
const SUBMIT_DISPATCHES: u64 = 5;

/// A uniform buffer for the parameters of one command buffer.
#[derive(Debug)]
pub(super) struct Chunk {
    buffer: wgpu::Buffer,
    id: u64,
}

impl Chunk {
    pub(super) fn new(context: &Context) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let descriptor = wgpu::BufferDescriptor {
            label: Some("lrmoe params"),
            size: DISPATCHES as u64 * PARAM_BYTES,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        let buffer = context.scoped("params", || context.device.create_buffer(&descriptor))?;
        Ok(Self { buffer, id: NEXT.fetch_add(1, Ordering::Relaxed) })
    }
}

/// Turns the commands of one recording into command buffers and submits them.
#[derive(Debug)]
pub(crate) struct Encoder<'a> {
    inner: &'a Inner,
    encoder: Option<wgpu::CommandEncoder>,
    pass: Option<wgpu::ComputePass<'static>>,
    command: &'static str,
    chunk: Option<Chunk>,
    params: Vec<u8>,
    cost: u64,
    /// Kept until all is submitted, since others may write what is back in the pool first.
    pub(super) workspace: Workspace<WgpuBuffer>,
    timer: Option<Timer>,
    pub(super) faults: Option<WgpuBuffer>,
    pub(super) places: Vec<Place>,
    pub(super) places_at_most: usize,
    last: Option<wgpu::SubmissionIndex>,
}

/// What is left of a recording when all of it is submitted.
#[derive(Debug)]
pub(super) struct Submitted {
    /// Order of submission.
    pub(super) sequence: u64,
    pub(super) last: Option<wgpu::SubmissionIndex>,
    pub(super) checks: Option<std::sync::Arc<Pending>>,
    pub(super) timer: Option<Timer>,
}

impl<'a> Encoder<'a> {
    pub(super) fn new(inner: &'a Inner, commands: usize, timer: Option<Timer>) -> Self {
        Self {
            inner,
            encoder: None,
            pass: None,
            command: "",
            chunk: None,
            params: Vec::new(),
            cost: 0,
            workspace: Workspace::default(),
            timer,
            faults: None,
            places: Vec::new(),
            places_at_most: commands * CHECKS_PER_COMMAND,
            last: None,
        }
    }

    /// What kernels may count on.
    pub(crate) fn profile(&self) -> &Profile {
        &self.inner.context.profile
    }

    /// The backend that this encodes for.
    pub(crate) fn inner(&self) -> &'a Inner {
        self.inner
    }

    pub(super) fn checks_on(&self) -> bool {
        self.inner.options.checks
    }

    /// Begins a command: its name stands in errors and at its time.
    pub(super) fn begin(&mut self, command: &'static str) {
        self.end();
        self.command = command;
        if let Some(timer) = &mut self.timer {
            timer.begin();
        }
    }

    /// Ends the current command.
    pub(super) fn end(&mut self) {
        self.pass = None;
        self.workspace.end();
    }

    /// Workspace of the current command, of undefined content.
    ///
    /// # Errors
    /// As [`Backend::alloc`](crate::Backend::alloc).
    pub(crate) fn scratch(&mut self, name: &str, dtype: DType, len: usize) -> Result<WgpuBuffer> {
        let alloc = || self.inner.alloc(name, dtype, len, Category::Scratch);
        self.workspace.take(dtype, len, alloc)
    }

    /// Workspace until the end of the recording.
    pub(super) fn scratch_kept(&mut self, name: &str, dtype: DType, len: usize) -> Result<WgpuBuffer> {
        self.inner.alloc(name, dtype, len, Category::Scratch).map(|buffer| self.workspace.keep(buffer))
    }

    /// What `find` makes of buffers in workspace of that many words, or made of them before in this recording.
    ///
    /// # Errors
    /// Those of `find` and of the allocation.
    pub(crate) fn derived(
        &mut self,
        question: Question,
        about: &[&WgpuBuffer],
        (name, words): (&str, usize),
        find: impl FnOnce(&mut Self, &WgpuBuffer) -> Result<()>,
    ) -> Result<WgpuBuffer> {
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
    /// What the device reports.
    pub(crate) fn fill(&mut self, buffer: &WgpuBuffer, bits: u32) -> Result<()> {
        let per_word = 4 / buffer.dtype().bytes();
        for window in windows(buffer.len(), ALIGNED, bindable(&[buffer], self.profile())) {
            let odd = window.len() % per_word != 0;
            self.set(buffer, window, bits, if odd { 0xffff_0000 } else { 0 })?;
        }
        Ok(())
    }

    /// Sets one 16-bit element and keeps its neighbour in the word.
    ///
    /// # Errors
    /// What the device reports.
    pub(super) fn half(&mut self, buffer: &WgpuBuffer, element: usize, bits: u32) -> Result<()> {
        let even = element - element % 2;
        let keep = if even == element { 0xffff_0000 } else { 0xffff };
        self.set(buffer, even..even + 2, bits, keep)
    }

    /// Sets the words of some elements to a pattern; the last one keeps some of its bits.
    fn set(&mut self, buffer: &WgpuBuffer, elements: Range<usize>, bits: u32, keep: u32) -> Result<()> {
        let words = (elements.len() * buffer.dtype().bytes()).div_ceil(4);
        self.launch(Launch {
            source: &FILL,
            entry: "main",
            workgroup: 64,
            constants: vec![],
            params: vec![
                ("words", Param::U32(u32_of("words", words)?)),
                ("pattern", Param::U32(word_of(buffer.dtype(), bits))),
                ("keep", Param::U32(keep)),
            ],
            args: vec![Arg::words("buffer", buffer).window(elements)],
            groups: groups_of(words, 64),
            cost: 64 * 8,
        })
    }

    /// Copies all elements of one buffer to another of the same length and type.
    pub(super) fn copy(&mut self, src: &WgpuBuffer, dst: &WgpuBuffer) -> Result<()> {
        self.inner.context.check_own(src)?;
        self.inner.context.check_own(dst)?;
        let bytes = src.bytes();
        let size = (bytes.end - bytes.start).next_multiple_of(4);
        if size == 0 {
            return Ok(());
        }
        self.pass = None;
        let (from, to) = (&src.memory().buffer, &dst.memory().buffer);
        // A copy within one buffer is not allowed, also of parts that do not overlap.
        let by_way_of = if from == to { Some(self.scratch("copy", src.dtype(), src.len())?) } else { None };
        let encoder = Self::encoder(&mut self.encoder, self.inner);
        let copy = |encoder: &mut wgpu::CommandEncoder| match &by_way_of {
            Some(between) => {
                let (between, begin) = (&between.memory().buffer, between.offset());
                encoder.copy_buffer_to_buffer(from, src.offset(), between, begin, size);
                encoder.copy_buffer_to_buffer(between, begin, to, dst.offset(), size);
            }
            None => encoder.copy_buffer_to_buffer(from, src.offset(), to, dst.offset(), size),
        };
        match &mut self.timer {
            Some(timer) => timer.around(encoder, copy),
            None => copy(encoder),
        }
        Ok(())
    }

    /// Runs a shader over its workgroups, in as many dispatches as time and grid limits ask for.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device's limits are too small, with the numbers; what the compiler reports.
    pub(crate) fn launch(&mut self, launch: Launch<'_>) -> Result<()> {
        if launch.groups == 0 {
            return Ok(());
        }
        let bound = bind(&launch, &self.inner.context)?;
        let wanted = Specialisation {
            source: launch.source,
            entry: launch.entry,
            workgroup: launch.workgroup,
            constants: launch.constants,
            params: kinds(&launch.params),
            bound: bound.names,
        };
        let pipeline = self.inner.pipelines.get(&self.inner.context, &wanted)?;
        let profile = self.profile();
        let grid = u64::from(profile.grid);
        let most = if profile.software { DISPATCH_COST_SOFTWARE } else { DISPATCH_COST };
        let per_dispatch = (most / launch.cost.max(1)).clamp(1, grid.saturating_mul(grid));
        let values: Vec<u32> = bound.bases.iter().copied().chain(launch.params.iter().map(|(_, v)| v.bits())).collect();
        let mut first = 0;
        while first < launch.groups {
            let last = launch.groups.min(first.saturating_add(per_dispatch));
            let x = (last - first).min(grid);
            let y = (last - first).div_ceil(x);
            let fixed = [
                u32_of("workgroups", first as usize)?,
                u32_of("workgroups", last as usize)?,
                x as u32,
                f32::INFINITY.to_bits(),
            ];
            self.dispatch(&pipeline, &bound.buffers, &bound.ranges, &fixed, &values, (x as u32, y as u32))?;
            self.cost = self.cost.saturating_add((last - first).saturating_mul(launch.cost));
            if self.cost > most.saturating_mul(SUBMIT_DISPATCHES) {
                self.flush()?;
            }
            first = last;
        }
        Ok(())
    }

    fn dispatch(
        &mut self,
        pipeline: &wgpu::ComputePipeline,
        buffers: &[&wgpu::Buffer],
        ranges: &[(u64, u64, u64)],
        fixed: &[u32; FIXED_PARAMS.len()],
        values: &[u32],
        (x, y): (u32, u32),
    ) -> Result<()> {
        if (fixed.len() + values.len()) as u64 * 4 > PARAM_BYTES {
            return Err(Error::Overflow {
                what: format!("parameters of `{}`", self.command),
                detail: format!("{} words; {} fit", fixed.len() + values.len(), PARAM_BYTES / 4),
            });
        }
        if self.params.len() >= DISPATCHES * PARAM_BYTES as usize {
            self.flush()?;
        }
        let chunk = match self.chunk.take() {
            Some(chunk) => chunk,
            None => self.inner.take_chunk()?,
        };
        let key = GroupKey { chunk: chunk.id, bindings: ranges.to_vec() };
        let inner = self.inner;
        let group = inner.groups.get(&inner.context, &inner.pipelines, key, &chunk.buffer, buffers);
        self.chunk = Some(chunk);
        let offset = self.params.len();
        self.params.extend_from_slice(bytemuck::cast_slice(fixed));
        self.params.extend_from_slice(bytemuck::cast_slice(values));
        self.params.resize(offset + PARAM_BYTES as usize, 0);
        let pass = match &mut self.pass {
            Some(pass) => pass,
            none => {
                let encoder = Self::encoder(&mut self.encoder, inner);
                let timestamp_writes = self.timer.as_mut().and_then(Timer::pass);
                let descriptor = wgpu::ComputePassDescriptor { label: Some(self.command), timestamp_writes };
                none.insert(encoder.begin_compute_pass(&descriptor).forget_lifetime())
            }
        };
        pass.set_pipeline(pipeline);
        pass.set_bind_group(0, &group, &[u32_of("parameters", offset)?]);
        pass.dispatch_workgroups(x, y, 1);
        Ok(())
    }

    fn encoder<'e>(encoder: &'e mut Option<wgpu::CommandEncoder>, inner: &Inner) -> &'e mut wgpu::CommandEncoder {
        encoder.get_or_insert_with(|| {
            let descriptor = wgpu::CommandEncoderDescriptor { label: Some("lrmoe") };
            inner.context.device.create_command_encoder(&descriptor)
        })
    }

    /// Submits what has been encoded so far.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.pass = None;
        let Some(encoder) = self.encoder.take() else { return Ok(()) };
        let context = &self.inner.context;
        let chunk = self.chunk.take();
        if let Some(chunk) = &chunk {
            context.queue.write_buffer(&chunk.buffer, 0, &self.params);
        }
        self.params.clear();
        self.cost = 0;
        self.last = Some(context.queue.submit([encoder.finish()]));
        // Writes and submissions of one queue take effect in order, so the chunk may be written again at once.
        self.inner.give_chunk(chunk);
        Ok(())
    }

    /// Submits the rest.
    pub(super) fn finish(mut self) -> Result<Submitted> {
        self.end();
        let mut checks = None;
        let context = &self.inner.context;
        if let (Some(faults), false) = (&self.faults, self.places.is_empty()) {
            let size = (self.places.len() * WORDS * 4) as u64;
            let staging = context.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("lrmoe checks"),
                size,
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            });
            let encoder = Self::encoder(&mut self.encoder, self.inner);
            encoder.copy_buffer_to_buffer(&faults.memory().buffer, faults.offset(), &staging, 0, size);
            checks = Some(staging);
        }
        if let Some(timer) = &self.timer {
            timer.resolve(Self::encoder(&mut self.encoder, self.inner));
        }
        self.flush()?;
        let sequence = self.inner.unsettled.next();
        let checks = checks.map(|staging| {
            let pending = Pending::new(sequence, self.last.clone(), staging, std::mem::take(&mut self.places));
            self.inner.unsettled.remember(&pending);
            pending
        });
        Ok(Submitted { sequence, last: self.last.take(), checks, timer: self.timer.take() })
    }
}

/// Buffers of a launch as bindings.
struct Bindings<'a> {
    names: Vec<Bound>,
    bases: Vec<u32>,
    buffers: Vec<&'a wgpu::Buffer>,
    /// Buffer id, offset and size in bytes.
    ranges: Vec<(u64, u64, u64)>,
}

fn bind<'a>(launch: &Launch<'a>, context: &Context) -> Result<Bindings<'a>> {
    let profile = &context.profile;
    let mut bindings = Bindings { names: Vec::new(), bases: Vec::new(), buffers: Vec::new(), ranges: Vec::new() };
    let mut views: Vec<View> = Vec::new();
    for arg in &launch.args {
        let Some(buffer) = arg.buffer else {
            bindings.names.push(Bound { name: arg.name, view: arg.view, slot: None });
            bindings.bases.push(0);
            continue;
        };
        context.check_own(buffer)?;
        let element = buffer.dtype().bytes() as u64;
        let begin = buffer.offset() + arg.first as u64 * element;
        let end = buffer.offset() + (arg.last as u64 * element).next_multiple_of(4);
        let offset = begin - begin % profile.alignment;
        // At least one word, and whole vectors: owned memory is that long, and what is borrowed is checked by the driver.
        let unit = if let View::Vec4(_) = arg.view { 4 * element } else { 4 };
        let size = (end.max(begin + 4) - offset).next_multiple_of(unit);
        if size > profile.binding_bytes {
            return Err(Error::Unsupported {
                what: format!("`{}` of {} bytes in kernel `{}`", buffer.name(), end - begin, launch.source.name),
                why: format!("this device binds at most {} bytes at once; use fewer rows", profile.binding_bytes),
            });
        }
        let range = (buffer.memory().id, offset, size);
        let same = bindings.ranges.iter().zip(&views).position(|(other, view)| *other == range && *view == arg.view);
        let slot = match same {
            Some(slot) => slot,
            None => {
                bindings.ranges.push(range);
                views.push(arg.view);
                bindings.buffers.push(&buffer.memory().buffer);
                bindings.ranges.len() - 1
            }
        };
        bindings.names.push(Bound { name: arg.name, view: arg.view, slot: Some(u32_of("bindings", slot)?) });
        let unit = if let View::Bits | View::Atomic = arg.view { 4 } else { element };
        bindings.bases.push(base_of(buffer.name(), (begin - offset) / unit, arg.last - arg.first)?);
    }
    if bindings.ranges.len() > MAX_STORAGE {
        return Err(Error::Unsupported {
            what: format!("kernel `{}` with {} buffers", launch.source.name, bindings.ranges.len()),
            why: format!("{MAX_STORAGE} is the most that every device binds"),
        });
    }
    Ok(bindings)
}
