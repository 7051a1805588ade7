//! Operations: each appends the commands of one stage to a recording and allocates what the stage writes.
//!
//! They know the algorithm and no device. Names follow the map in the crate documentation.

pub(crate) mod expert;
pub(crate) mod router;
pub(crate) mod select;

use crate::Result;
use crate::backend::{Backend, elements};
use crate::memory::Category;
use crate::tensor::{DType, HostData};

/// Allocates the buffers of one pass.
#[derive(Debug)]
pub(crate) struct Arena<'a, B: Backend> {
    pub(crate) backend: &'a B,
}

impl<B: Backend> Clone for Arena<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Arena<'_, B> {}

impl<B: Backend> Arena<'_, B> {
    /// f32 array.
    pub(crate) fn f32(&self, name: &str, shape: &[usize], category: Category) -> Result<B::Buffer> {
        self.backend.alloc(name, DType::F32, elements(name, shape)?, category)
    }

    /// u32 array.
    pub(crate) fn u32(&self, name: &str, shape: &[usize], category: Category) -> Result<B::Buffer> {
        self.backend.alloc(name, DType::U32, elements(name, shape)?, category)
    }

    /// u32 array with host values.
    pub(crate) fn upload_u32(&self, name: &str, values: Vec<u32>, category: Category) -> Result<B::Buffer> {
        let buffer = self.backend.alloc(name, DType::U32, values.len(), category)?;
        self.backend.upload(&buffer, 0, &HostData::U32(values))?;
        Ok(buffer)
    }

    /// f32 array with host values.
    pub(crate) fn upload_f32(&self, name: &str, values: Vec<f32>, category: Category) -> Result<B::Buffer> {
        let buffer = self.backend.alloc(name, DType::F32, values.len(), category)?;
        self.backend.upload(&buffer, 0, &HostData::F32(values))?;
        Ok(buffer)
    }
}

/// The rows that enter a bank of experts: grouped by expert, each taken from row `index[r] / div` of the tokens.
#[derive(Debug, Clone)]
pub(crate) struct Rows<Buf> {
    /// Rows at most.
    pub(crate) count: usize,
    /// u32 `[groups + 1]`.
    pub(crate) offsets: Buf,
    /// u32 `[count]`; row r itself where absent.
    pub(crate) index: Option<Buf>,
    /// k where the index holds pairs, 1 where it holds tokens.
    pub(crate) div: usize,
}
