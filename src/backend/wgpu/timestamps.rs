//! Times of commands, taken on the device where it can.

use std::time::Duration;

use super::context::Context;
use super::mapping::Mapping;

/// Queries of one set at most.
const QUERIES: u32 = wgpu::QUERY_SET_MAX_QUERIES;

/// Timestamps around the passes of one recording.
#[derive(Debug)]
pub(super) struct Timer {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    staging: wgpu::Buffer,
    /// Commands so far.
    commands: usize,
    /// Command of each pair of queries.
    pairs: Vec<usize>,
    /// A command that found no query left makes the times of all unknown.
    full: bool,
    nanoseconds: f64,
    mapping: Option<Mapping>,
}

impl Timer {
    /// Where the device can take times at the bounds of passes.
    pub(super) fn new(context: &Context) -> Option<Self> {
        if !context.profile.timestamps {
            return None;
        }
        let size = u64::from(QUERIES) * u64::from(wgpu::QUERY_SIZE);
        let buffer = |usage| {
            context.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("lrmoe timestamps"),
                size,
                usage,
                mapped_at_creation: false,
            })
        };
        Some(Self {
            set: context.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("lrmoe timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count: QUERIES,
            }),
            resolved: buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC),
            staging: buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST),
            commands: 0,
            pairs: Vec::new(),
            full: false,
            nanoseconds: context.queue.get_timestamp_period().into(),
            mapping: None,
        })
    }

    /// Begins a command.
    pub(super) fn begin(&mut self) {
        self.commands += 1;
    }

    /// The first query of a new pair for the current command.
    fn pair(&mut self) -> Option<u32> {
        let query = self.pairs.len() as u32 * 2;
        if query + 2 > QUERIES {
            self.full = true;
            return None;
        }
        self.pairs.push(self.commands.saturating_sub(1));
        Some(query)
    }

    /// What a pass of the current command writes.
    pub(super) fn pass(&mut self) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let query = self.pair()?;
        Some(wgpu::ComputePassTimestampWrites {
            query_set: &self.set,
            beginning_of_pass_write_index: Some(query),
            end_of_pass_write_index: Some(query + 1),
        })
    }

    /// Times what is not a pass, between two empty ones.
    pub(super) fn around(&mut self, encoder: &mut wgpu::CommandEncoder, work: impl FnOnce(&mut wgpu::CommandEncoder)) {
        let Some(query) = self.pair() else { return work(encoder) };
        let empty = |encoder: &mut wgpu::CommandEncoder, begin, end| {
            drop(encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: Some("timestamp"),
                timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                    query_set: &self.set,
                    beginning_of_pass_write_index: begin,
                    end_of_pass_write_index: end,
                }),
            }));
        };
        empty(encoder, None, Some(query));
        work(encoder);
        empty(encoder, Some(query + 1), None);
    }

    /// Appends the copy of all times to where the host can read them.
    pub(super) fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        let queries = self.pairs.len() as u32 * 2;
        if queries > 0 {
            encoder.resolve_query_set(&self.set, 0..queries, &self.resolved, 0);
            let size = u64::from(queries) * u64::from(wgpu::QUERY_SIZE);
            encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.staging, 0, size);
        }
    }

    /// Asks for the times of a submitted recording.
    pub(super) fn map(&mut self) {
        self.mapping = Some(Mapping::new(self.staging.clone()));
    }

    /// Time of each command, of a recording that has run; None where not all were measured.
    pub(super) fn times(&self, limit: Duration) -> Option<Vec<Duration>> {
        if self.full {
            return None;
        }
        let mut times = vec![Duration::ZERO; self.commands];
        let stamps = self.mapping.as_ref()?.read(limit, bytemuck::pod_collect_to_vec::<u8, u64>).ok()?;
        for (pair, &command) in stamps.chunks(2).zip(&self.pairs) {
            let ticks = pair.get(1)?.checked_sub(*pair.first()?)?;
            *times.get_mut(command)? += Duration::from_nanos((ticks as f64 * self.nanoseconds) as u64);
        }
        // What had nothing to do took no time.
        Some(times)
    }
}
