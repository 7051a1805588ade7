//! Host arrays as bytes, sizes as kernels count them, and where files are kept between runs.

use std::path::PathBuf;

use half::{bf16, f16};

use crate::tensor::{DType, HostData};
use crate::{Error, Result};

/// Bytes of a host array.
pub(super) fn bytes_of(data: &HostData) -> &[u8] {
    match data {
        HostData::F32(v) => bytemuck::cast_slice(v),
        HostData::BF16(v) => bytemuck::cast_slice(v),
        HostData::F16(v) => bytemuck::cast_slice(v),
        HostData::U32(v) => bytemuck::cast_slice(v),
    }
}

/// A host array of bytes.
pub(super) fn from_bytes(dtype: DType, bytes: &[u8]) -> HostData {
    match dtype {
        DType::F32 => HostData::F32(bytemuck::pod_collect_to_vec(bytes)),
        DType::BF16 => HostData::BF16(bytemuck::pod_collect_to_vec::<u8, bf16>(bytes)),
        DType::F16 => HostData::F16(bytemuck::pod_collect_to_vec::<u8, f16>(bytes)),
        DType::U32 => HostData::U32(bytemuck::pod_collect_to_vec(bytes)),
    }
}

/// The word that has a pattern in every element.
pub(super) fn word_of(dtype: DType, bits: u32) -> u32 {
    if dtype.bytes() == 2 { (bits & 0xffff) * 0x1_0001 } else { bits }
}

/// What no kernel may use: NaN, or an index out of every range.
pub(super) fn poison_bits(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => f32::NAN.to_bits(),
        DType::BF16 => bf16::NAN.to_bits().into(),
        DType::F16 => f16::NAN.to_bits().into(),
        DType::U32 => u32::MAX - 1,
    }
}

/// A size as kernels count.
///
/// # Errors
/// [`Error::Overflow`] where it does not fit 32 bits.
pub(super) fn u32_of(what: &str, size: usize) -> Result<u32> {
    u32::try_from(size)
        .map_err(|_| Error::Overflow { what: what.to_owned(), detail: format!("{size} does not fit 32 bits") })
}

/// Workgroups or blocks that cover `items`, `per` each.
pub(super) fn groups_of(items: usize, per: usize) -> u64 {
    items.div_ceil(per.max(1)) as u64
}

/// Where what can be made again is kept: `LRMOE_CACHE_DIR`, or the user's cache directory; nowhere if the environment does not say.
pub(super) fn cache_directory() -> Option<PathBuf> {
    if let Some(directory) = std::env::var_os("LRMOE_CACHE_DIR").filter(|value| !value.is_empty()) {
        return Some(PathBuf::from(directory));
    }
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = if cfg!(windows) {
        variable("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        variable("HOME").map(|home| home.join("Library/Caches"))
    } else {
        variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")))
    };
    base.map(|base| base.join("lrmoe"))
}

/// FNV-1a: names of files of which the content says whose it is.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
