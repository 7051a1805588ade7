//! Arguments of a launch: addresses with their element types, and numbers.

use super::buffer::CudaBuffer;
use crate::Result;
pub(in crate::backend) use crate::backend::bytes::{groups_of as blocks_of, u32_of};
use crate::backend::{Buffer, check_len, wrong_type};
use crate::tensor::DType;

/// Where elements lie in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ptr {
    pub(super) address: u64,
    pub(super) dtype: DType,
}

/// One argument.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Arg {
    Pointer(Option<Ptr>),
    U32(u32),
    U64(u64),
    I32(i32),
    F32(f32),
    F64(f64),
}

impl Arg {
    /// Type of a number.
    pub(super) fn c_type(&self) -> Option<&'static str> {
        match self {
            Self::Pointer(_) => None,
            Self::U32(_) => Some("u32"),
            Self::U64(_) => Some("u64"),
            Self::I32(_) => Some("i32"),
            Self::F32(_) => Some("f32"),
            Self::F64(_) => Some("f64"),
        }
    }

    /// The bytes that the driver is pointed at, lowest first.
    pub(super) fn slot(&self) -> u64 {
        match *self {
            Self::Pointer(pointer) => pointer.map_or(0, |pointer| pointer.address),
            Self::U32(value) => value.into(),
            Self::U64(value) => value,
            Self::I32(value) => value.cast_unsigned().into(),
            Self::F32(value) => value.to_bits().into(),
            Self::F64(value) => value.to_bits(),
        }
    }
}

impl Ptr {
    /// The first `elements` of a buffer of any type.
    pub(super) fn any(buffer: &CudaBuffer, elements: usize) -> Result<Self> {
        check_len(buffer, elements)?;
        Ok(Self { address: buffer.address(), dtype: buffer.dtype() })
    }

    /// The first `elements` of an f32 buffer.
    pub(super) fn f32(buffer: &CudaBuffer, elements: usize) -> Result<Self> {
        Self::typed(buffer, elements, DType::F32)
    }

    /// The first `elements` of a u32 buffer.
    pub(super) fn u32(buffer: &CudaBuffer, elements: usize) -> Result<Self> {
        Self::typed(buffer, elements, DType::U32)
    }

    /// The first `elements` of a buffer of any float type.
    pub(super) fn floats(buffer: &CudaBuffer, elements: usize) -> Result<Self> {
        if !buffer.dtype().is_float() {
            return Err(wrong_type(buffer, "f32, bf16 or f16"));
        }
        Self::any(buffer, elements)
    }

    /// [`Ptr::f32`] of a buffer that may be absent.
    pub(super) fn optional_f32(buffer: Option<&CudaBuffer>, elements: usize) -> Result<Option<Self>> {
        buffer.map(|buffer| Self::f32(buffer, elements)).transpose()
    }

    /// [`Ptr::u32`] of a buffer that may be absent.
    pub(super) fn optional_u32(buffer: Option<&CudaBuffer>, elements: usize) -> Result<Option<Self>> {
        buffer.map(|buffer| Self::u32(buffer, elements)).transpose()
    }

    fn typed(buffer: &CudaBuffer, elements: usize, dtype: DType) -> Result<Self> {
        if buffer.dtype() != dtype {
            return Err(wrong_type(buffer, &dtype.to_string()));
        }
        Self::any(buffer, elements)
    }

    /// The same memory from an element on.
    #[must_use]
    pub(super) fn at(self, element: usize) -> Self {
        Self { address: self.address + (element * self.dtype.bytes()) as u64, ..self }
    }

    /// Whether elements can be moved so many bytes at a time.
    pub(super) fn aligned(self, bytes: u64) -> bool {
        self.address.is_multiple_of(bytes)
    }
}
