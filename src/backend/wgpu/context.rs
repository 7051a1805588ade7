//! A device and what is known about it: limits, errors, loss.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use super::buffer::WgpuBuffer;
use crate::backend::Buffer;
use crate::{Error, Result};

/// What kernels may count on: a device's own limits, not its adapter's.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Profile {
    /// Runs on the host's cores.
    pub(crate) software: bool,
    /// Invocations of a subgroup, where the device has subgroups of one size.
    pub(crate) subgroup: Option<u32>,
    /// Largest storage binding in bytes.
    pub(crate) binding_bytes: u64,
    /// Workgroup memory in bytes.
    pub(crate) workgroup_bytes: u32,
    /// Invocations of a workgroup.
    pub(crate) invocations: u32,
    /// Workgroups of a dispatch in one dimension.
    pub(crate) grid: u32,
    /// Bytes that the offset of a binding is a multiple of.
    pub(crate) alignment: u64,
    /// Which small matrices the device multiplies cooperatively.
    pub(crate) cooperative: Cooperative,
    /// Whether times can be taken on the device.
    pub(crate) timestamps: bool,
}

/// Cooperative matrices with sums in f32. A host's device does not tell what it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cooperative {
    /// 8 x 8 of f32.
    pub(crate) singles: bool,
    /// 16 x 16 of f16.
    pub(crate) halves: bool,
}

/// A device, its queue, and whether it still works. Clones are the same device.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) info: wgpu::AdapterInfo,
    pub(crate) profile: Profile,
    /// Opened by this crate, so that callbacks are ours to set and speed is ours to measure.
    pub(crate) owned: bool,
    /// How long a wait may take.
    pub(crate) time_limit: Duration,
    /// Tells devices apart: wgpu counts buffers for each instance, so one of another device may look like one of ours.
    pub(crate) id: u64,
    lost: Arc<OnceLock<String>>,
    /// A buffer that nobody uses: it can be mapped at any time, unless the device is lost.
    probe: Arc<Mutex<wgpu::Buffer>>,
}

/// Limits that a test or a cautious user sets below the device's own.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bounds {
    pub(crate) binding_bytes: Option<u64>,
    pub(crate) grid: Option<u32>,
}

impl Profile {
    fn new(device: &wgpu::Device, info: &wgpu::AdapterInfo, bounds: Bounds) -> Self {
        let (limits, features) = (device.limits(), device.features());
        let subgroup = (features.contains(wgpu::Features::SUBGROUP)
            && info.subgroup_min_size == info.subgroup_max_size
            && info.subgroup_min_size > 0)
            .then_some(info.subgroup_min_size);
        let binding = limits.max_storage_buffer_binding_size;
        Self {
            software: info.device_type == wgpu::DeviceType::Cpu,
            subgroup,
            binding_bytes: bounds.binding_bytes.map_or(binding, |bound| bound.min(binding)),
            workgroup_bytes: limits.max_compute_workgroup_storage_size,
            invocations: limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x),
            grid: bounds.grid.map_or(u32::MAX, |bound| bound.max(1)).min(limits.max_compute_workgroups_per_dimension),
            alignment: limits.min_storage_buffer_offset_alignment.into(),
            cooperative: Cooperative::default(),
            timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
        }
    }
}

impl Context {
    pub(crate) fn new(
        device: wgpu::Device,
        queue: wgpu::Queue,
        owned: bool,
        time_limit: Duration,
        bounds: Bounds,
    ) -> Result<Self> {
        let info = device.adapter_info();
        let profile = Profile::new(&device, &info, bounds);
        let lost = Arc::new(OnceLock::new());
        if owned {
            let reason = Arc::clone(&lost);
            device.set_device_lost_callback(move |kind, message| {
                let _ = reason.set(format!("{kind:?}: {message}"));
            });
        }
        let descriptor = wgpu::BufferDescriptor {
            label: Some("lrmoe probe"),
            size: 4,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        let (probe, error) = in_scopes(&device, || device.create_buffer(&descriptor));
        if let Some(error) = error {
            return Err(Error::Device { command: "open".into(), reason: error.to_string() });
        }
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self { device, queue, info, profile, owned, time_limit, id, lost, probe: Arc::new(Mutex::new(probe)) })
    }

    /// The same device with other limits.
    pub(crate) fn bounded(&self, time_limit: Duration, bounds: Bounds) -> Self {
        let cooperative = self.profile.cooperative;
        let profile = Profile { cooperative, ..Profile::new(&self.device, &self.info, bounds) };
        Self { profile, time_limit, ..self.clone() }
    }

    /// Refuses every call once the device is lost.
    pub(crate) fn alive(&self) -> Result<()> {
        match self.lost.get() {
            Some(reason) => Err(Error::DeviceLost { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Refuses a buffer of another device.
    pub(crate) fn check_own(&self, buffer: &WgpuBuffer) -> Result<()> {
        if buffer.memory().device == self.id {
            return Ok(());
        }
        Err(Error::State {
            what: format!("buffer `{}` belongs to another device", buffer.name()),
            fix: "use buffers of one backend; `WgpuBackend::beside` makes a second one on the same device".into(),
        })
    }

    /// Records the loss of the device, found out by a call.
    pub(crate) fn lose(&self, reason: impl Into<String>) -> Error {
        let reason = reason.into();
        Error::DeviceLost { reason: self.lost.get_or_init(|| reason).clone() }
    }

    /// Asks the device itself: a lost one drops commands without a word, and a host's keeps its callback to itself.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.alive()?;
        // Where another thread asks, or a host's callback that this very call has led to, the answer is theirs.
        let Ok(probe) = self.probe.try_lock() else { return Ok(()) };
        let answer = Arc::new(OnceLock::new());
        let heard = Arc::clone(&answer);
        probe.map_async(wgpu::MapMode::Read, .., move |mapped| {
            let _ = heard.set(mapped.is_ok());
        });
        let polled = self.poll(wgpu::PollType::Poll);
        if answer.get() == Some(&false) {
            return Err(self.lose("the device was destroyed or has failed"));
        }
        // Also where it is not mapped yet: then the queue is busy, so the device is there.
        probe.unmap();
        match polled? {
            Ok(_) => Ok(()),
            Err(error) => Err(self.failed("poll", &error.to_string())),
        }
    }

    /// Polls the device. wgpu panics where the driver fails in a wait, as it does when a GPU hangs: that is a loss of the device.
    fn poll(&self, poll: wgpu::PollType) -> Result<std::result::Result<wgpu::PollStatus, wgpu::PollError>> {
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.device.poll(poll)));
        polled.map_err(|_| self.lose("the driver failed while it was waited for"))
    }

    /// Runs calls of the driver; what they report becomes an error that names the command.
    pub(crate) fn scoped<T>(&self, command: &str, calls: impl FnOnce() -> T) -> Result<T> {
        self.alive()?;
        match in_scopes(&self.device, calls) {
            (value, None) => self.alive().map(|()| value),
            // On a lost device whatever is made is invalid, and that is what is reported.
            (_, Some(error)) => self.check_alive().and_then(|()| Err(self.failed(command, &error.to_string()))),
        }
    }

    /// An error of the driver as one of ours.
    fn failed(&self, command: &str, reason: &str) -> Error {
        let lower = reason.to_lowercase();
        if lower.contains("device is lost") || lower.contains("device lost") {
            return self.lose(reason);
        }
        Error::Device { command: command.to_owned(), reason: reason.trim().to_owned() }
    }

    /// Waits until a submission has run.
    pub(crate) fn wait_for(&self, submission: Option<wgpu::SubmissionIndex>, command: &str) -> Result<()> {
        self.alive()?;
        let wait = wgpu::PollType::Wait { submission_index: submission, timeout: Some(self.time_limit) };
        match self.poll(wait)? {
            // A host's device does not tell this crate of its loss.
            Ok(_) => self.check_alive(),
            Err(wgpu::PollError::Timeout) => Err(Error::Device {
                command: command.to_owned(),
                reason: format!(
                    "not finished after {:?}; raise `time_limit` where that is to be expected",
                    self.time_limit
                ),
            }),
            Err(error) => Err(self.failed(command, &error.to_string())),
        }
    }
}

/// Runs calls of the driver and catches what this thread's calls report.
fn in_scopes<T>(device: &wgpu::Device, calls: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
    let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
    let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let value = calls();
    // All three are popped, in the reverse order, before any is looked at.
    let errors = [validation, memory, internal].map(|scope| pollster::block_on(scope.pop()));
    (value, errors.into_iter().flatten().next())
}
