//! What the test targets share: golden data, an independent f64 oracle, comparisons and test randomness.
//!
//! Only `backend`, `cuda`, `device`, `fake_cuda`, `layer`, `outcome` and `step` use the crate under test; the rest does not, so that an agreement means something.
#![allow(dead_code, reason = "every test target uses a different part")]
#![allow(unreachable_pub, reason = "`pub` marks what test targets may use; a test target exports nothing")]

pub mod backend;
pub mod block;
pub mod compare;
pub mod cuda;
pub mod device;
#[cfg(feature = "cuda")]
pub mod fake_cuda;
pub mod golden;
pub mod golden_checkpoint;
#[cfg(feature = "cuda")]
pub mod kernel_library;
pub mod layer;
pub mod linear;
pub mod oracle;
pub mod oracle_backward;
pub mod oracle_config;
pub mod oracle_keys;
pub mod oracle_losses;
pub mod oracle_select;
pub mod outcome;
pub mod rng;
pub mod step;
pub mod store;
