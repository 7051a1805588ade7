//! Host memory to the device and back.

use cudarc::driver::result;

use super::Inner;
use super::buffer::CudaBuffer;
use super::event::Event;
use crate::Result;
use crate::backend::bytes::{bytes_of, from_bytes};
use crate::backend::{Buffer, check_upload, range_len};
use crate::tensor::HostData;

impl Inner {
    fn wait_until(&self, event: &Event) -> Result<()> {
        self.context.wait_for(event, self.options.time_limit)
    }

    /// Overwrites elements from `offset` on.
    pub(super) fn upload(&self, buffer: &CudaBuffer, offset: usize, data: &HostData) -> Result<()> {
        self.context.check_own(buffer)?;
        check_upload(buffer, offset, data)?;
        if data.is_empty() {
            return Ok(());
        }
        let address = buffer.address() + (offset * buffer.dtype().bytes()) as u64;
        self.context.copy_in(address, bytes_of(data), self.options.time_limit)
    }

    /// Copies elements to the host, after everything submitted before, and reports what nobody waited for.
    pub(super) fn read(&self, buffer: &CudaBuffer, range: std::ops::Range<usize>) -> Result<HostData> {
        let before = self.unsettled.next();
        self.context.check_own(buffer)?;
        let len = range_len(buffer, &range)?;
        let dtype = buffer.dtype();
        let mut bytes = vec![0u8; len * dtype.bytes()];
        let done = Event::record(&self.context, false)?;
        self.wait_until(&done)?;
        if len > 0 {
            let address = buffer.address() + (range.start * dtype.bytes()) as u64;
            // SAFETY: the range lies within the buffer, and the host's memory stays until the copy has passed, or for good.
            let copy = || unsafe { result::memcpy_dtoh_async(&mut bytes, address, self.context.cu_stream()) };
            self.context.call("read", copy)?;
            let passed = Event::record(&self.context, false).and_then(|event| self.wait_until(&event));
            if let Err(error) = passed {
                // The device may still write there.
                std::mem::forget(bytes);
                return Err(error);
            }
        }
        self.settle(before)?;
        Ok(from_bytes(dtype, &bytes))
    }
}
