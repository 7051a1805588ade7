//! What a kernel asks of the device: a shader, its values and its buffers.

use super::buffer::WgpuBuffer;
use super::context::Profile;
use super::shader::{Constant, Param, Source, View};
pub(in crate::backend) use crate::backend::bytes::{groups_of, u32_of};
use crate::backend::{Buffer, check_len, wrong_type};
use crate::tensor::DType;
use crate::{Error, Result};

/// One shader over a number of workgroups.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) source: &'static Source,
    /// Entry point.
    pub(crate) entry: &'static str,
    /// Invocations of a workgroup.
    pub(crate) workgroup: u32,
    /// Compile-time values: each set of them is a pipeline.
    pub(crate) constants: Vec<(&'static str, Constant)>,
    /// Run-time values.
    pub(crate) params: Vec<(&'static str, Param)>,
    /// Buffers; at most [`MAX_STORAGE`] present.
    pub(crate) args: Vec<Arg<'a>>,
    /// Workgroups; none is nothing to do.
    pub(crate) groups: u64,
    /// Operations or bytes of one workgroup, whichever are more: bounds a dispatch in time.
    pub(crate) cost: u64,
}

/// Storage buffers of a kernel at most: what Metal leaves.
pub(crate) const MAX_STORAGE: usize = 7;

/// A buffer of a launch.
#[derive(Debug, Clone)]
pub(crate) struct Arg<'a> {
    pub(super) name: &'static str,
    pub(super) buffer: Option<&'a WgpuBuffer>,
    pub(super) view: View,
    /// Elements that are bound.
    pub(super) first: usize,
    pub(super) last: usize,
}

impl<'a> Arg<'a> {
    fn new(name: &'static str, buffer: &'a WgpuBuffer, view: View, elements: usize) -> Result<Self> {
        check_len(buffer, elements)?;
        Ok(Self { name, buffer: Some(buffer), view, first: 0, last: elements })
    }

    fn absent(name: &'static str, dtype: DType) -> Self {
        Self { name, buffer: None, view: View::Scalar(dtype), first: 0, last: 0 }
    }

    /// The first `elements` of an f32 buffer.
    ///
    /// # Errors
    /// [`Error::Shape`] for another type or a shorter buffer, as with all of these.
    pub(crate) fn f32(name: &'static str, buffer: &'a WgpuBuffer, elements: usize) -> Result<Self> {
        expect(buffer, DType::F32)?;
        Self::new(name, buffer, View::Scalar(DType::F32), elements)
    }

    /// The first `elements` of a u32 buffer.
    pub(crate) fn u32(name: &'static str, buffer: &'a WgpuBuffer, elements: usize) -> Result<Self> {
        expect(buffer, DType::U32)?;
        Self::new(name, buffer, View::Scalar(DType::U32), elements)
    }

    /// The first `elements` of a buffer of any float type.
    pub(crate) fn floats(name: &'static str, buffer: &'a WgpuBuffer, elements: usize) -> Result<Self> {
        expect_float(buffer)?;
        Self::new(name, buffer, View::Scalar(buffer.dtype()), elements)
    }

    /// The first `elements` of a buffer of any float type, four at a time; see [`WgpuBuffer::vec4_ok`].
    pub(crate) fn vec4(name: &'static str, buffer: &'a WgpuBuffer, elements: usize) -> Result<Self> {
        expect_float(buffer)?;
        Self::new(name, buffer, View::Vec4(buffer.dtype()), elements)
    }

    /// The bits of the first `elements` of a 32-bit type.
    pub(crate) fn bits(name: &'static str, buffer: &'a WgpuBuffer, elements: usize) -> Result<Self> {
        if buffer.dtype().bytes() != 4 {
            return Err(wrong_type(buffer, "f32 or u32"));
        }
        Self::new(name, buffer, View::Bits, elements)
    }

    /// The bits of the first `elements` of an f32 buffer.
    pub(crate) fn f32_bits(name: &'static str, buffer: &'a WgpuBuffer, elements: usize) -> Result<Self> {
        expect(buffer, DType::F32)?;
        Self::new(name, buffer, View::Bits, elements)
    }

    /// All words of a buffer of any type; a window of it still counts elements.
    pub(crate) fn words(name: &'static str, buffer: &'a WgpuBuffer) -> Self {
        Self { name, buffer: Some(buffer), view: View::Bits, first: 0, last: buffer.len() }
    }

    /// The first `elements` of a u32 buffer, with atomic operations.
    pub(crate) fn atomic(name: &'static str, buffer: &'a WgpuBuffer, elements: usize) -> Result<Self> {
        expect(buffer, DType::U32)?;
        Self::new(name, buffer, View::Atomic, elements)
    }

    /// [`Arg::f32`] of a buffer that may be absent.
    pub(crate) fn optional_f32(name: &'static str, buffer: Option<&'a WgpuBuffer>, elements: usize) -> Result<Self> {
        buffer.map_or_else(|| Ok(Self::absent(name, DType::F32)), |buffer| Self::f32(name, buffer, elements))
    }

    /// [`Arg::u32`] of a buffer that may be absent.
    pub(crate) fn optional_u32(name: &'static str, buffer: Option<&'a WgpuBuffer>, elements: usize) -> Result<Self> {
        buffer.map_or_else(|| Ok(Self::absent(name, DType::U32)), |buffer| Self::u32(name, buffer, elements))
    }

    /// The same elements of 32 bits, seen as bits.
    #[must_use]
    pub(crate) fn into_bits(mut self) -> Self {
        self.view = View::Bits;
        self
    }

    /// Binds only elements `first..last` of those asked for; the kernel's indices start at `first`.
    ///
    /// 16-bit elements begin at an even one.
    #[must_use]
    pub(crate) fn window(mut self, window: std::ops::Range<usize>) -> Self {
        self.first = window.start.min(self.last);
        self.last = window.end.clamp(self.first, self.last);
        self
    }
}

fn expect(buffer: &WgpuBuffer, dtype: DType) -> Result<()> {
    if buffer.dtype() == dtype { Ok(()) } else { Err(wrong_type(buffer, &dtype.to_string())) }
}

fn expect_float(buffer: &WgpuBuffer) -> Result<()> {
    if buffer.dtype().is_float() { Ok(()) } else { Err(wrong_type(buffer, "f32, bf16 or f16")) }
}

/// Index of a binding's first element, where kernels can count up to its last.
///
/// # Errors
/// [`Error::Overflow`] where the last element's index does not fit 32 bits.
pub(super) fn base_of(name: &str, base: u64, elements: usize) -> Result<u32> {
    let end = base.saturating_add(elements as u64);
    match u32::try_from(base) {
        Ok(base) if end <= 1 << 32 => Ok(base),
        _ => Err(Error::Overflow {
            what: format!("index into `{name}`"),
            detail: format!("{elements} elements from {base} on; kernels count with 32 bits"),
        }),
    }
}

/// Rounds that all loops of an invocation may make together: Mesa's software driver leaves them at 65,535 without a word, and
/// counts the test that ends a loop.
pub(crate) const MAX_ROUNDS: usize = 60_000;

/// Refuses loops of one invocation that a software driver would not run to their end.
///
/// # Errors
/// [`Error::Unsupported`] with the numbers.
pub(crate) fn check_rounds(profile: &Profile, rounds: usize, what: impl FnOnce() -> String) -> Result<()> {
    if !profile.software || rounds <= MAX_ROUNDS {
        return Ok(());
    }
    let why = format!("{rounds} rounds of one invocation's loops; at most {MAX_ROUNDS} are safe on a software driver");
    Err(Error::Unsupported { what: what(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_past_32_bits_are_refused() {
        assert_eq!(base_of("x", 0, 1 << 32), Ok(0));
        assert_eq!(base_of("x", 7, (1 << 32) - 7), Ok(7));
        for (base, elements) in [(1, 1 << 32), (0, (1 << 32) + 1), (1 << 32, 0), (u64::MAX, usize::MAX)] {
            assert!(matches!(base_of("x", base, elements), Err(Error::Overflow { .. })), "{base} {elements}");
        }
    }
}
