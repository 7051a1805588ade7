//! Host memory to the device and back.

use std::sync::atomic::Ordering;

use super::Inner;
use super::buffer::WgpuBuffer;
use super::encode::Encoder;
use super::mapping::Mapping;
use crate::Result;
use crate::backend::bytes::{bytes_of, from_bytes, poison_bits, word_of};
use crate::backend::{Buffer, check_upload, range_len};
use crate::tensor::HostData;

/// Bytes of uploads that are not waited for at most: the queue copies what it is given, and keeps the copy until the device has it.
const UPLOAD_BYTES: usize = 64 << 20;

/// Bytes of a buffer that is poisoned by a write, which waits for the next submission; a submission of its own costs more than
/// the bytes, as long as they are few.
const POISON_BYTES: usize = 64 << 10;

impl Inner {
    /// Overwrites elements from `offset` on.
    pub(super) fn upload(&self, buffer: &WgpuBuffer, offset: usize, data: &HostData) -> Result<()> {
        self.context.check_own(buffer)?;
        check_upload(buffer, offset, data)?;
        if data.is_empty() {
            return Ok(());
        }
        let element = buffer.dtype().bytes();
        let first = buffer.offset() + (offset * element) as u64;
        let bytes = bytes_of(data);
        // Half words at the ends: of 16-bit elements that begin or end at an odd one.
        let head = (first % 4) as usize;
        let tail = (bytes.len() - head) % 4;
        let whole = &bytes[head..bytes.len() - tail];
        for (part, at) in whole.chunks(UPLOAD_BYTES).zip((0..).step_by(UPLOAD_BYTES)) {
            let at = first + head as u64 + at as u64;
            self.context.scoped("upload", || self.context.queue.write_buffer(&buffer.memory().buffer, at, part))?;
            self.bound_uploads(part.len() as u64)?;
        }
        if head + tail == 0 {
            return Ok(());
        }
        let half = |at: usize| u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        self.context.scoped("upload", || -> Result<()> {
            let mut encoder = Encoder::new(self, 0, None);
            encoder.begin("upload");
            if head > 0 {
                encoder.half(buffer, offset, half(0))?;
            }
            if tail > 0 {
                encoder.half(buffer, offset + data.len() - 1, half(bytes.len() - 2))?;
            }
            encoder.finish().map(drop)
        })?
    }

    /// Waits for the device where it has been given more than it should hold at once.
    fn bound_uploads(&self, bytes: u64) -> Result<()> {
        if self.uploaded.fetch_add(bytes, Ordering::Relaxed) + bytes < UPLOAD_BYTES as u64 {
            return Ok(());
        }
        self.uploaded.store(0, Ordering::Relaxed);
        let last = self.context.scoped("upload", || self.context.queue.submit([]))?;
        self.context.wait_for(Some(last), "upload")
    }

    /// Fills a buffer with what no kernel may use: NaN, or an index out of every range.
    pub(super) fn poison(&self, buffer: &WgpuBuffer) -> Result<()> {
        let bits = poison_bits(buffer.dtype());
        let bytes = (buffer.len() * buffer.dtype().bytes()).next_multiple_of(4);
        if bytes <= POISON_BYTES {
            let words = vec![word_of(buffer.dtype(), bits); bytes / 4];
            let (memory, at) = (&buffer.memory().buffer, buffer.offset());
            let write = || self.context.queue.write_buffer(memory, at, bytemuck::cast_slice(&words));
            self.context.scoped("poison", write)?;
            return self.bound_uploads(bytes as u64);
        }
        self.context.scoped("poison", || -> Result<()> {
            let mut encoder = Encoder::new(self, 0, None);
            encoder.begin("poison");
            encoder.fill(buffer, bits)?;
            encoder.finish().map(drop)
        })?
    }

    /// Copies elements to the host, after everything submitted before, and reports what nobody waited for.
    pub(super) fn read(&self, buffer: &WgpuBuffer, range: std::ops::Range<usize>) -> Result<HostData> {
        let before = self.unsettled.next();
        let elements = self.fetch(buffer, range)?;
        self.settle(before).map(|()| elements)
    }

    /// Copies elements to the host, after everything submitted before.
    pub(super) fn fetch(&self, buffer: &WgpuBuffer, range: std::ops::Range<usize>) -> Result<HostData> {
        self.context.check_own(buffer)?;
        let len = range_len(buffer, &range)?;
        let dtype = buffer.dtype();
        let context = &self.context;
        context.check_alive()?;
        let element = dtype.bytes();
        let first = buffer.offset() + (range.start * element) as u64;
        let begin = first - first % 4;
        let end = (first + (len * element) as u64).next_multiple_of(4);
        let descriptor = wgpu::BufferDescriptor {
            label: Some("lrmoe read"),
            size: (end - begin).max(4),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        let (mapping, last) = context.scoped("read", || {
            let staging = context.device.create_buffer(&descriptor);
            let mut encoder =
                context.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("lrmoe read") });
            if end > begin {
                encoder.copy_buffer_to_buffer(&buffer.memory().buffer, begin, &staging, 0, end - begin);
            }
            let last = context.queue.submit([encoder.finish()]);
            (Mapping::new(staging), last)
        })?;
        context.wait_for(Some(last), "read")?;
        let skip = (first - begin) as usize;
        let elements = |bytes: &[u8]| from_bytes(dtype, &bytes[skip..skip + len * element]);
        mapping.read(context.time_limit, elements).or_else(|error| context.check_alive().and(Err(error)))
    }
}
