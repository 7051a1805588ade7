//! Pipelines and bind groups, made once and kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::context::Context;
use super::launch::MAX_STORAGE;
use super::shader::Specialisation;
use crate::{Error, Result};

/// Bytes of a kernel's uniform block at most, and what dynamic offsets are multiples of.
pub(super) const PARAM_BYTES: u64 = 256;

/// Compiled kernels of one device.
#[derive(Debug, Default)]
pub(super) struct Pipelines {
    layouts: [OnceLock<Layout>; MAX_STORAGE + 1],
    made: Mutex<HashMap<Specialisation, wgpu::ComputePipeline>>,
}

#[derive(Debug)]
struct Layout {
    group: wgpu::BindGroupLayout,
    pipeline: wgpu::PipelineLayout,
}

impl Pipelines {
    fn layout(&self, context: &Context, storage: usize) -> &Layout {
        self.layouts[storage].get_or_init(|| {
            let entry = |binding: u32, ty: wgpu::BufferBindingType| {
                let uniform = binding == 0;
                wgpu::BindGroupLayoutEntry {
                    binding,
                    visibility: wgpu::ShaderStages::COMPUTE,
                    ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: uniform, min_binding_size: None },
                    count: None,
                }
            };
            let read_write = wgpu::BufferBindingType::Storage { read_only: false };
            let entries: Vec<_> = std::iter::once(entry(0, wgpu::BufferBindingType::Uniform))
                .chain((1..=storage as u32).map(|binding| entry(binding, read_write)))
                .collect();
            let group = context
                .device
                .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some("lrmoe"), entries: &entries });
            let pipeline = context.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: Some("lrmoe"),
                bind_group_layouts: &[Some(&group)],
                immediate_size: 0,
            });
            Layout { group, pipeline }
        })
    }

    /// The pipeline of a specialisation, compiled at its first use.
    ///
    /// # Errors
    /// [`Error::Unsupported`] before anything is compiled where the device's limits are too small: some drivers lose the
    /// device over it. [`Error::Compile`] with the compiler's output.
    pub(super) fn get(&self, context: &Context, wanted: &Specialisation) -> Result<wgpu::ComputePipeline> {
        if let Some(pipeline) = self.lock().get(wanted) {
            return Ok(pipeline.clone());
        }
        let storage = wanted.slots() as usize;
        check_limits(context, wanted, storage)?;
        let text = wanted.wgsl();
        let compiled = context.scoped(wanted.source.name, || {
            let module = context.device.create_shader_module(wgpu::ShaderModuleDescriptor {
                label: Some(wanted.source.name),
                source: wgpu::ShaderSource::Wgsl(text.as_str().into()),
            });
            context.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(wanted.source.name),
                layout: Some(&self.layout(context, storage).pipeline),
                module: &module,
                entry_point: Some(wanted.entry),
                compilation_options: wgpu::PipelineCompilationOptions {
                    // Every kernel writes its workgroup memory before it reads it.
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: None,
            })
        });
        let pipeline = compiled.map_err(|error| match error {
            Error::Device { command, reason } => Error::Compile { kernel: command, log: reason },
            other => other,
        })?;
        self.lock().insert(wanted.clone(), pipeline.clone());
        Ok(pipeline)
    }

    /// Name and text of every kernel compiled so far.
    pub(super) fn texts(&self) -> Vec<(String, String)> {
        self.lock().keys().map(|made| (format!("{}::{}", made.source.name, made.entry), made.wgsl())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Specialisation, wgpu::ComputePipeline>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_limits(context: &Context, wanted: &Specialisation, storage: usize) -> Result<()> {
    let limits = context.device.limits();
    let refuse = |what: String, limit: u32| {
        let why = format!("this device allows {limit}");
        Err(Error::Unsupported { what: format!("kernel `{}` with {what}", wanted.source.name), why })
    };
    if wanted.workgroup > context.profile.invocations {
        return refuse(format!("workgroups of {}", wanted.workgroup), context.profile.invocations);
    }
    if storage > MAX_STORAGE || storage as u32 > limits.max_storage_buffers_per_shader_stage {
        let limit = limits.max_storage_buffers_per_shader_stage.min(MAX_STORAGE as u32);
        return refuse(format!("{storage} storage buffers"), limit);
    }
    Ok(())
}

/// What a bind group holds: the uniform chunk, then device buffer, offset and size of each binding.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct GroupKey {
    pub(super) chunk: u64,
    pub(super) bindings: Vec<(u64, u64, u64)>,
}

/// Bind groups kept at most: beyond, all are made anew.
const KEPT: usize = 8192;

/// Bind groups of one device, while their buffers live.
#[derive(Debug, Default)]
pub(super) struct BindGroups {
    made: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    groups: HashMap<GroupKey, wgpu::BindGroup>,
    by_buffer: HashMap<u64, Vec<GroupKey>>,
}

impl BindGroups {
    /// The bind group of a key, made at its first use. Errors of the driver come where the caller's scope ends.
    pub(super) fn get(
        self: &Arc<Self>,
        context: &Context,
        pipelines: &Pipelines,
        key: GroupKey,
        chunk: &wgpu::Buffer,
        buffers: &[&wgpu::Buffer],
    ) -> wgpu::BindGroup {
        let mut kept = self.lock();
        if let Some(group) = kept.groups.get(&key) {
            return group.clone();
        }
        let range = |buffer, offset, size| {
            wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size: wgpu::BufferSize::new(size) })
        };
        let storage =
            buffers.iter().zip(&key.bindings).map(|(buffer, (_, offset, size))| range(buffer, *offset, *size));
        let entries: Vec<_> = std::iter::once(range(chunk, 0, PARAM_BYTES))
            .chain(storage)
            .zip(0..)
            .map(|(resource, binding)| wgpu::BindGroupEntry { binding, resource })
            .collect();
        let group = context.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("lrmoe"),
            layout: &pipelines.layout(context, buffers.len()).group,
            entries: &entries,
        });
        if kept.groups.len() >= KEPT {
            *kept = Kept::default();
        }
        for (id, ..) in &key.bindings {
            kept.by_buffer.entry(*id).or_default().push(key.clone());
        }
        kept.groups.insert(key, group.clone());
        group
    }

    /// Drops the groups of a buffer that is gone: they would keep its memory.
    pub(super) fn forget(&self, buffer: u64) {
        let mut kept = self.lock();
        for key in kept.by_buffer.remove(&buffer).unwrap_or_default() {
            kept.groups.remove(&key);
            for (other, ..) in key.bindings.iter().filter(|(other, ..)| *other != buffer) {
                if let Some(keys) = kept.by_buffer.get_mut(other) {
                    keys.retain(|kept| *kept != key);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
