//! Arrays that are larger than a binding, in parts that fit one.

use std::ops::Range;

use super::buffer::WgpuBuffer;
use super::context::Profile;

/// Every window begins at a multiple of this: of 512 bytes at least, where bindings may begin on any device.
pub(super) const ALIGNED: usize = 128;

/// Bytes of these buffers that can be bound at once, wherever a host's buffers begin.
pub(super) fn bindable(buffers: &[&WgpuBuffer], profile: &Profile) -> u64 {
    let ahead = buffers.iter().map(|buffer| buffer.offset() % profile.alignment).max().unwrap_or(0);
    profile.binding_bytes.saturating_sub(ahead)
}

/// Cuts `len` elements of up to 32 bits into windows of whole granules that fit these bytes.
pub(super) fn windows(len: usize, granule: usize, bytes: u64) -> impl Iterator<Item = Range<usize>> {
    let most = usize::try_from(bytes / 4).unwrap_or(usize::MAX).min(1 << 30);
    let size = (most / granule).max(1) * granule;
    (0..len.div_ceil(size)).map(move |window| window * size..len.min((window + 1) * size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_fit_and_cover() {
        for (len, granule, bytes) in [(0, 128, 16384), (1, 128, 16384), (9001, 4096, 16384), (9001, 128, 16380)] {
            let windows: Vec<_> = windows(len, granule, bytes).collect();
            assert_eq!(windows.iter().map(Range::len).sum::<usize>(), len);
            assert!(windows.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(windows.iter().all(|w| w.start % granule == 0 && w.len() as u64 * 4 <= bytes));
        }
    }
}
