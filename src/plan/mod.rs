//! Planning: routing counts in, plans out. Pure arithmetic, usable alone; no device, no I/O.
//!
//! A plan is a pure function of its inputs and comes out bit-identical on every machine: integers, IEEE 754
//! `+ - * /` and square roots only. Ranks compare [`Plan::hash`] instead of exchanging plans.
//!
//! [`guide`] explains planning with an example to check by hand. A [`Setup`] says what is planned for; a [`Policy`], [`Lrmoe`] or one
//! of its rivals in [`policy`], turns the [`Counts`] of a step into a [`Plan`]. On one rank quotas are all there is to plan:
//!
//! ```
//! use lrmoe::plan::{PlanOptions, plan_one_rank};
//!
//! let plan = plan_one_rank(&[100, 20, 4], None, &PlanOptions::default())?;
//! assert_eq!(plan.retained(), 62);
//! assert_eq!(plan.quotas, [48, 10, 4]);
//! # Ok::<(), lrmoe::Error>(())
//! ```

mod apportion;
mod assign;
mod buffers;
mod canonical;
mod capacity;
pub mod cluster;
mod cluster_files;
mod cluster_presets;
mod cluster_scale;
mod cost;
mod counts;
mod curve;
pub mod demand;
mod destinations;
mod evaluate;
mod exchange;
mod flow;
pub mod guide;
mod links;
pub mod memory;
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
pub mod trace;
mod traffic;
mod transport;
mod value;
pub mod waves;
pub mod workload;

pub use buffers::{PlannedBuffer, RankLoad, Span};
pub use cluster::ClusterSpec;
pub use cluster_scale::ScaledCluster;
pub use cost::{Predicted, Term, counts_exchange, optimizer_exchange, selection_exchange};
pub use counts::Counts;
pub use demand::{Demand, DemandParts};
pub use destinations::{NOWHERE, destinations, pair_counts, retain};
pub use exchange::{Direction, ExchangeRows, exchange_rows_per_token};
pub use links::Moved;
pub use memory::{MemoryModel, RankMemory};
pub use mode::{Activations, Ownership, RouterGradient};
pub use options::PlanOptions;
pub use placement::Placement;
pub use policy::{Decision, Input, Lrmoe, Policy};
pub use quota::{Limit, QuotaOptions, Quotas};
pub use retained::{RetentionPlan, plan_one_rank, plan_within, rank_capacity};
pub use retention::Retention;
pub use setup::Setup;
pub use trace::{TraceEntry, TraceReader};
pub use value::Plan;
pub use workload::{Batch, Workload};
