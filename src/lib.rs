//! Train Mixture-of-Experts layers with an exact forward pass and a scheduled backward pass.
//!
//! # The data flow
//!
//! ```text
//! forward:   gate -> counts -> PLAN -> route -> compact -> grouped GEMM -> combine
//! backward:  score -> select -> route -> compact -> grouped dgrad/wgrad -> reduce -> step
//! ```
//!
//! The forward pass computes every routed token-expert *pair*. While it runs, a planner sets *retention quotas*: how many
//! pairs each expert will back-propagate. In the backward pass a *load recalibration metric* scores each pair's
//! contribution to its expert's update, pairs are selected within the quotas (by default unbiased: a retained pair is
//! weighted by the inverse of its chance, and pairs of similar upstream gradients share the chances evenly, by [systematic
//! sampling](kernel::SelectRule)), and only those are computed, in grouped GEMMs of variable size.
//!
//! # Where things are
//!
//! | module | holds |
//! |---|---|
//! | [`config`], [`tensor`], [`error`] | values: Hugging Face configurations, element types, one error type |
//! | [`plan`] | counts in, plans out: quotas, placement, routes, memory, times, of this policy and its rivals; [explained](plan::guide) |
//! | [`kernel`], [`recording`] | the closed set of kernels, and lists of commands made of them |
//! | [`backend`] | how a recording is run: [`CpuBackend`], with the feature `wgpu` (default) `WgpuBackend`, with `cuda` `CudaBackend` |
//! | [`memory`] | the byte budget of a rank, by category |
//! | [`weights`] | the weights of a layer on the host, and their names in checkpoints |
//! | [`layer`], [`optim`], [`losses`] | [`MoeLayer`] on one rank, decoupled [`AdamW`], router losses |
//! | [`share`] | what one rank of many computes in a step, executed alone and timed by phase |
//! | [`rng`] | the counter-based generator behind selection |
//!
//! # Ten lines
//!
//! ```
//! use lrmoe::{AdamW, AdamWConfig, CpuBackend, ForwardContext, LayerOptions, MoeConfig, MoeLayer, MoeWeights, Tensor};
//! # fn main() -> lrmoe::Result<()> {
//! let backend = CpuBackend::new();
//! let config = MoeConfig::new(64, 32, 8, 2); // hidden size, expert width, experts, experts per token
//! let weights = MoeWeights::init(&config, 0, 0.05)?;
//! let mut layer = MoeLayer::new(&backend, config, weights, LayerOptions::default())?;
//! let mut adamw = AdamW::new(&layer, AdamWConfig::default())?;
//! let x = Tensor::from_f32(&backend, &[0.1; 16 * 64], 16, 64)?;
//! let (y, saved) = layer.forward(&x, &ForwardContext { step: 0, ..Default::default() })?;
//! let gradients = layer.backward(&saved, &y)?; // dL/dy = y for L = |y|^2 / 2
//! adamw.step(&mut layer, 1e-3, 1.0, false)?;
//! assert_eq!(gradients.dx.rows(), 16);
//! # Ok(())
//! # }
//! ```

pub mod backend;
pub mod config;
pub mod error;
pub mod kernel;
pub mod layer;
pub mod losses;
pub mod memory;
mod op;
pub mod optim;
pub mod plan;
mod portable;
pub mod recording;
pub mod rng;
pub mod share;
pub mod tensor;
pub mod weights;

pub use backend::cpu::{CpuBackend, CpuOptions};
#[cfg(feature = "cuda")]
pub use backend::cuda::{CudaBackend, CudaOptions};
#[cfg(feature = "wgpu")]
pub use backend::wgpu::{WgpuBackend, WgpuOptions};
pub use backend::{Backend, Buffer, Caps};
pub use config::{ModelType, MoeConfig, ScoringFunc};
pub use error::{Error, Result};
pub use layer::{
    Activations, ForwardContext, Gradients, LayerOptions, MoeLayer, ParamId, Part, RoutedCall, RouterGradient, Routing,
    SavedForward, Schedule, ScoreStatistics, Selection, Statistics, Trainable,
};
pub use losses::RouterTerms;
pub use optim::{AdamW, AdamWConfig};
pub use plan::{PlanOptions, Retention};
pub use recording::Recording;
pub use tensor::{DType, HostData, Tensor};
pub use weights::MoeWeights;
