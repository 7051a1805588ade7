//! Element types and shaped tensors.

/// Element type of a buffer. Arithmetic is always f32; bf16 and f16 are storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// bfloat16: the upper half of an f32.
    BF16,
    /// IEEE 754 binary16.
    F16,
    /// Unsigned 32-bit integer: indices, counts, offsets.
    U32,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::BF16 | Self::F16 => 2,
        }
    }

    /// Whether this is one of the floating-point types.
    pub const fn is_float(self) -> bool {
        !matches!(self, Self::U32)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::BF16 => "bf16",
            Self::F16 => "f16",
            Self::U32 => "u32",
        })
    }
}

use bytemuck::allocation::try_zeroed_vec;
use half::{bf16, f16};

use crate::backend::{Backend, Buffer, elements};
use crate::memory::Category;
use crate::{Error, Result};

/// Elements in host memory.
#[derive(Debug, Clone, PartialEq)]
pub enum HostData {
    /// f32 elements.
    F32(Vec<f32>),
    /// bf16 elements.
    BF16(Vec<bf16>),
    /// f16 elements.
    F16(Vec<f16>),
    /// u32 elements.
    U32(Vec<u32>),
}

impl HostData {
    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::BF16(_) => DType::BF16,
            Self::F16(_) => DType::F16,
            Self::U32(_) => DType::U32,
        }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(v) => v.len(),
            Self::BF16(v) => v.len(),
            Self::F16(v) => v.len(),
            Self::U32(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Zeros (bit pattern 0) of a type, for a buffer of this name.
    ///
    /// # Errors
    /// [`Error::SystemMemory`] where the system refuses so many.
    pub fn zeros(name: &str, dtype: DType, len: usize) -> Result<Self> {
        match dtype {
            DType::F32 => try_zeroed_vec(len).map(Self::F32),
            DType::BF16 => try_zeroed_vec(len).map(Self::BF16),
            DType::F16 => try_zeroed_vec(len).map(Self::F16),
            DType::U32 => try_zeroed_vec(len).map(Self::U32),
        }
        .map_err(|()| Error::SystemMemory {
            name: name.to_owned(),
            asked: (len as u64).saturating_mul(dtype.bytes() as u64),
        })
    }

    /// f32 values rounded to a float type, to nearest even. `DType::U32` keeps f32.
    pub fn from_f32(values: Vec<f32>, dtype: DType) -> Self {
        match dtype {
            DType::F32 | DType::U32 => Self::F32(values),
            DType::BF16 => Self::BF16(values.into_iter().map(bf16::from_f32).collect()),
            DType::F16 => Self::F16(values.into_iter().map(f16::from_f32).collect()),
        }
    }

    /// Float elements widened to f32.
    ///
    /// # Errors
    /// [`Error::Shape`] for u32 elements.
    pub fn into_f32(self) -> Result<Vec<f32>> {
        match self {
            Self::F32(v) => Ok(v),
            Self::BF16(v) => Ok(v.into_iter().map(bf16::to_f32).collect()),
            Self::F16(v) => Ok(v.into_iter().map(f16::to_f32).collect()),
            Self::U32(_) => Err(Error::shape("element type", DType::U32, "f32, bf16 or f16")),
        }
    }

    /// The elements of a u32 buffer.
    ///
    /// # Errors
    /// [`Error::Shape`] for float elements.
    pub fn into_u32(self) -> Result<Vec<u32>> {
        match self {
            Self::U32(v) => Ok(v),
            other => Err(Error::shape("element type", other.dtype(), DType::U32)),
        }
    }
}

/// A row-major matrix on a backend.
#[derive(Debug, Clone)]
pub struct Tensor<B: Backend> {
    buffer: B::Buffer,
    rows: usize,
    cols: usize,
}

impl<B: Backend> Tensor<B> {
    /// Views a buffer as `[rows, cols]`.
    ///
    /// # Errors
    /// [`Error::Shape`] where the length is not `rows * cols`.
    pub fn new(buffer: B::Buffer, rows: usize, cols: usize) -> Result<Self> {
        if elements(buffer.name(), &[rows, cols])? != buffer.len() {
            return Err(Error::shape(
                format!("length of `{}`", buffer.name()),
                buffer.len(),
                format!("{rows} x {cols}"),
            ));
        }
        Ok(Self { buffer, rows, cols })
    }

    /// Copies host values into memory that the backend reuses, so that inputs made anew each step allocate nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] where the length is not `rows * cols`; allocation errors.
    pub fn from_host(backend: &B, data: HostData, rows: usize, cols: usize) -> Result<Self> {
        if elements("tensor", &[rows, cols])? != data.len() {
            return Err(Error::shape("tensor length", data.len(), format!("{rows} x {cols}")));
        }
        let buffer = backend.alloc("tensor", data.dtype(), data.len(), Category::TokenBuffers)?;
        backend.upload(&buffer, 0, &data)?;
        Self::new(buffer, rows, cols)
    }

    /// Copies f32 values.
    ///
    /// # Errors
    /// As [`Tensor::from_host`].
    pub fn from_f32(backend: &B, values: &[f32], rows: usize, cols: usize) -> Result<Self> {
        Self::from_host(backend, HostData::F32(values.to_vec()), rows, cols)
    }

    /// Reads the values back as f32, blocking.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn to_f32(&self, backend: &B) -> Result<Vec<f32>> {
        backend.read_blocking(&self.buffer)?.into_f32()
    }

    /// The memory.
    pub fn buffer(&self) -> &B::Buffer {
        &self.buffer
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.buffer.dtype()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MoeConfig, MoeWeights};

    /// 2^60 bytes: more than an address can reach, so no system grants them.
    #[test]
    fn memory_that_no_system_has_is_an_error() {
        let refused = Error::SystemMemory { name: "x".into(), asked: 1 << 60 };
        assert_eq!(HostData::zeros("x", DType::F32, 1 << 58), Err(refused));
        assert!(matches!(HostData::zeros("x", DType::BF16, usize::MAX), Err(Error::SystemMemory { .. })));
        assert_eq!(HostData::zeros("x", DType::U32, 2), Ok(HostData::U32(vec![0; 2])));
        let weights = MoeWeights::init(&MoeConfig::new(1 << 7, 1 << 30, 1 << 18, 1), 0, 0.1);
        assert!(matches!(weights, Err(Error::SystemMemory { name, .. }) if name == "gate_up"));
    }
}
