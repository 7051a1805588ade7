//! lrmoe
#![forbid(unsafe_op_in_unsafe_fn)]
pub mod error;
pub mod memory;
pub mod tensor;

pub use error::{Error, Result};
pub use tensor::DType;
