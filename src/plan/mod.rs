//! Planning: routing counts in, plans out. Pure arithmetic, usable alone; no device, no I/O.
//!
//! A plan is a pure function of its inputs and comes out bit-identical on every machine: integers, IEEE 754
//! `+ - * /` and square roots only. Ranks compare [`RetentionPlan::hash`] instead of exchanging plans.
//!
//! ```
//! use lrmoe::plan::{PlanOptions, plan_one_rank};
//!
//! let plan = plan_one_rank(&[100, 20, 4], None, &PlanOptions::default())?;
//! assert_eq!(plan.retained(), 62);
//! assert_eq!(plan.quotas, [48, 10, 4]);
//! # Ok::<(), lrmoe::Error>(())
//! ```

mod assign;
pub mod cluster;
mod counts;
mod curve;
pub mod demand;
mod flow;
mod mode;
mod options;
mod placement;
pub mod policy;
pub mod quota;
mod refine;
mod retained;
mod retention;
pub mod route;
mod setup;
mod traffic;
mod transport;

pub use cluster::ClusterSpec;
pub use counts::Counts;
pub use demand::{Demand, DemandParts};
pub use mode::{Activations, Ownership, RouterGradient};
pub use options::PlanOptions;
pub use placement::Placement;
pub use policy::{Decision, Input, Policy};
pub use quota::{Limit, QuotaOptions, Quotas};
pub use retained::{RetentionPlan, plan_one_rank};
pub use retention::Retention;
pub use setup::Setup;
