//! Planning, with an example small enough to check by hand.
//!
//! A step of a layer is planned while its forward pass runs, from numbers that all ranks have gathered: how many pairs (token,
//! selected expert) each rank routed to each expert. Every rank computes the same plan from them; nobody coordinates, and a
//! [hash](super::Plan::hash) is all that is compared. The plan answers four questions:
//!
//! 1. **Where does each pair go?** To an instance of its own expert, such that the busiest rank gets the least it can
//!    ([`route::assign`](super::route::assign)) and few pairs cross ranks and nodes.
//! 2. **How many pairs does each expert back-propagate?** Its *quota* ([`plan_within`](super::plan_within)): the sum is what
//!    [`Retention`](super::Retention) asks for, the shares minimise the variance of the gradient, and no rank gets more than
//!    `(1 + slack)` times its part of them.
//! 3. **Where do instances live in the next step?** Copies of hot experts are placed where there is room, if the time they save is
//!    more than the traffic they cause.
//! 4. **What fits?** Every buffer is known beforehand ([`MemoryModel`](super::MemoryModel)). Where a rank's pairs do not fit at once, they
//!    run in *waves*; where not even the smallest wave fits, the [error](crate::Error::Infeasible) names the smallest budget that
//!    would do.
//!
//! # The example
//!
//! Four ranks in one node, four experts, one selected expert a token. Expert `e` lives on rank `e`. Every rank routes 60 pairs to expert
//! 0, 20 to expert 1 and 10 each to experts 2 and 3: 400 pairs in all, 100 a rank on average. The network is fast enough to
//! forget. A rank computes one pair a microsecond forward and two backward; it keeps no activations, so computing them again adds two
//! thirds of a microsecond to each retained pair. Half of the pairs are to be retained, and a rank may pass its part of them by 5 %.
//!
//! ```
//! use lrmoe::plan::cluster::Link;
//! use lrmoe::plan::{Activations, ClusterSpec, Counts, Input, Limit, Lrmoe, Ownership, Policy, Setup};
//! use lrmoe::{DType, MoeConfig};
//!
//! let instant = Link { bytes_per_s: 1e30, latency_s: 0.0 };
//! let cluster = ClusterSpec {
//!     ranks: 4,
//!     ranks_per_node: 4,
//!     bytes_per_rank: 1 << 30,
//!     host_reserved_bytes: 0,
//!     gemm_flops: 6.0 * 64.0 * 32.0 * 1e6, // 6 H I operations a pair
//!     copy_bytes_per_s: 1e30,
//!     intra: instant,
//!     inter: instant,
//!     host_bytes_per_s: 1e30,
//!     launch_s: 0.0,
//! };
//! let config = MoeConfig { dtype: Some(DType::F32), ..MoeConfig::new(64, 32, 4, 1) };
//! let mut setup = Setup::new(config, cluster)?;
//! setup.ownership = Some(Ownership::Home);
//! setup.activations = Some(Activations::Recompute);
//! let counts = Counts::new(&[[60, 20, 10, 10]; 4])?;
//! let micros = |seconds: f64| (seconds * 1e6).round();
//!
//! // The first step: one instance an expert.
//! let policy = Lrmoe::new(Some(7));
//! let start = policy.start(&setup, &counts)?;
//! let plan = policy.plan(&setup, &Input { step: 0, counts: &counts, demand: None, placement: &start })?;
//! assert_eq!(plan.forward_rows(), [240, 80, 40, 40]);
//! assert_eq!(micros(plan.predicted.forward_s), 244.0); // and 4 for the gate: 100 tokens x 2 H E operations
//! assert_eq!(plan.retained.requested, 200);
//! assert_eq!(plan.retained.quotas, [53, 53, 40, 40]);
//! assert_eq!(plan.retained.limits, [Limit::RankCapacity]);
//!
//! // The next one: two more copies of expert 0, one of expert 1.
//! let next: Vec<_> = plan.next.iter().collect();
//! assert_eq!(next, [(0, 0), (0, 1), (0, 2), (1, 1), (1, 3), (2, 2), (3, 3)]);
//! let plan = policy.plan(&setup, &Input { step: 1, counts: &counts, demand: None, placement: &plan.next })?;
//! assert_eq!(plan.forward_rows(), [100, 100, 100, 100]);
//! assert_eq!(plan.retained.quotas, [118, 40, 21, 21]);
//! assert_eq!(plan.backward_rows(), [50, 50, 50, 50]);
//! assert_eq!(micros(plan.predicted.forward_s), 104.0);
//! assert_eq!(micros(plan.predicted.backward_s), 142.0); // 50 x 8/3, and 8 for the gate
//! # Ok::<(), lrmoe::Error>(())
//! ```
//!
//! **Step 0.** With one instance an expert there is nothing to choose: rank 0 gets all 240 pairs of expert 0 and the step waits for it.
//! Backward is where the plan can act. Scores are unknown yet and taken as equal, so without limits the 200 retained pairs would be
//! shared in proportion: 120, 40, 20, 20. But each rank may back-propagate no more than `1.05 * 200 / 4 = 52.5`, rounded up to 53. Expert 0 gets
//! 53; what it forfeits goes to the others until they meet the same limit (expert 1) or have no more pairs (experts 2 and 3, with 40
//! each). These are 186, not 200: the plan says that `rank_capacity` bound.
//!
//! **Where copies go.** Three replicas are to be placed (seven instances; `Lrmoe::default()` looks for the best number itself). They are made for
//! what is asked for, not for what this placement lets through: without the limit the quotas are 118, 40, 21 and 21, and the work of an
//! expert, in thirds of a microsecond, `3 n + 8 q`: 1664, 560, 288, 288. Each replica goes to the expert with most work an instance:
//! expert 0, expert 0 again (832 left each), then expert 1, whose 560 are more than `1664 / 3`. The longest work is placed first, on
//! the rank that has least: the copies of expert 1 and 0 end up on three different ranks.
//!
//! **Step 1.** The busiest rank cannot have fewer than `400 / 4 = 100` pairs, and now it has no more: rank 0 takes 100 pairs of expert 0, rank 1
//! takes 80 of it beside 20 of expert 1, rank 2 takes 60 beside its own 40, rank 3 takes the other 60 of expert 1 beside its 40. The
//! limit of 53 binds nobody, and quotas follow the variance alone. That is the variance of 117, 39, 20 and 20 expected pairs, plus the one pair an
//! expert that sets the threshold: hence 118, 40, 21 and 21 rather than exact proportions. Backward is routed anew: a retained pair
//! goes to any copy of its expert, 50 to each rank. The step takes 246 us instead of the 394 of step 0, and retains more.
//!
//! With a real network the plan would also weigh the traffic: the three replicas send their gradients home and get their weights from
//! there once a step ([`Predicted::optimizer_exchange_s`](super::Predicted::optimizer_exchange_s)), and every pair that leaves its
//! rank carries a row there and one back.
