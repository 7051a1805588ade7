//! Host memory to the device and back.

use cudarc::driver::result;

use super::Inner;
use super::buffer::CudaBuffer;
use super::context::Event;
use crate::backend::bytes::{bytes_of, from_bytes};
use crate::backend::{Buffer, check_range, range_len};
use crate::tensor::HostData;
use crate::{Error, Result};

impl Inner {
    /// Overwrites elements from `offset` on.
    pub(super) fn upload(&self, buffer: &CudaBuffer, offset: usize, data: &HostData) -> Result<()> {
        self.context.check_own(buffer)?;
        check_range(buffer, offset, data.len())?;
        if buffer.dtype() != data.dtype() {
            return Err(Error::shape("element type of a copy", data.dtype(), buffer.dtype()));
        }
        if data.is_empty() {
            return Ok(());
        }
        let address = buffer.address() + (offset * buffer.dtype().bytes()) as u64;
        let bytes = bytes_of(data);
        // SAFETY: the range lies within the buffer. Host memory that is not page-locked has been read when the call returns.
        let copy = || unsafe { result::memcpy_htod_async(address, bytes, self.context.cu_stream()) };
        self.context.call("upload", copy)
    }

    /// Copies elements to the host, after everything submitted before, and reports what nobody waited for.
    pub(super) fn read(&self, buffer: &CudaBuffer, range: std::ops::Range<usize>) -> Result<HostData> {
        let before = self.unsettled.next();
        self.context.check_own(buffer)?;
        let len = range_len(buffer, &range)?;
        let dtype = buffer.dtype();
        let mut bytes = vec![0u8; len * dtype.bytes()];
        let done = Event::record(&self.context, false)?;
        self.context.wait_for(&done, self.options.time_limit)?;
        if len > 0 {
            let address = buffer.address() + (range.start * dtype.bytes()) as u64;
            // SAFETY: the range lies within the buffer. Host memory that is not page-locked has been written when the call returns.
            let copy = || unsafe { result::memcpy_dtoh_async(&mut bytes, address, self.context.cu_stream()) };
            self.context.call("read", copy)?;
        }
        self.settle(before)?;
        Ok(from_bytes(dtype, &bytes))
    }
}
