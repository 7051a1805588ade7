//! Words of host memory that the device can reach: what checks find, how far a stream is, and what is copied from.

use std::ffi::c_void;

use cudarc::driver::{DriverError, result, sys};

/// Page-locked words with an address on the device.
#[derive(Debug)]
pub(super) struct Mapped {
    host: *mut u32,
    device: u64,
    words: usize,
}

// SAFETY: the memory is the struct's own; device and host share it under the rules of `words`.
unsafe impl Send for Mapped {}
// SAFETY: reads are volatile, and the only writer on the host has a unique reference.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// So many zeroed words, of the context that is current.
    pub(super) fn new(words: usize) -> Result<Self, DriverError> {
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: freed by `drop`.
        let host: *mut c_void = unsafe { result::malloc_host(words.max(1) * size_of::<u32>(), flags) }?;
        let mut mapped = Self { host: host.cast(), device: 0, words };
        // SAFETY: `host` was allocated with a mapping just now.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut mapped.device, host, 0) }.result()?;
        mapped.clear();
        Ok(mapped)
    }

    pub(super) fn len(&self) -> usize {
        self.words
    }

    /// Address for kernels.
    pub(super) fn device(&self) -> u64 {
        self.device
    }

    /// Sets all words to zero. Nothing on the device refers to them: whoever maps them anew is the only one.
    pub(super) fn clear(&mut self) {
        // SAFETY: so many words were allocated.
        unsafe { std::ptr::write_bytes(self.host, 0, self.words) };
    }

    /// Sets the first bytes. Nothing on the device refers to them: whoever maps them anew is the only one.
    pub(super) fn fill(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(self.words * size_of::<u32>());
        // SAFETY: so many bytes were allocated, and are not those of the slice.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.host.cast(), len) };
    }

    /// The first bytes, which nothing writes while this is looked at: memory that is copied from.
    pub(super) fn bytes(&self, len: usize) -> &[u8] {
        let len = len.min(self.words * size_of::<u32>());
        // SAFETY: so many bytes were allocated, and set to zero then.
        unsafe { std::slice::from_raw_parts(self.host.cast(), len) }
    }

    /// A word as it is now.
    pub(super) fn word(&self, index: usize) -> u32 {
        let index = index.min(self.words.saturating_sub(1));
        // SAFETY: within the allocation, which has a word at least; volatile, since the device may write it at any time.
        unsafe { std::ptr::read_volatile(self.host.add(index)) }
    }

    /// The first words, as they are now.
    pub(super) fn first(&self, words: usize) -> Vec<u32> {
        (0..words.min(self.words)).map(|index| self.word(index)).collect()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: from `malloc_host`, freed once.
        let _ = unsafe { result::free_host(self.host.cast()) };
    }
}
