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
