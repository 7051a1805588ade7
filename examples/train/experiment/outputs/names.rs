//! Policies that outputs single out.

pub(super) use crate::experiment::options::ONE_COPY;

/// The policy that is explained.
pub(super) const OURS: &str = "lrmoe";
/// Where MoE seconds are compared with.
pub(super) const SYMI: &str = "symi";
/// Ownership that never moves.
pub(super) const FIXED: &str = "fixed";
/// The same in as many waves as its memory asks for.
pub(super) const FIXED_WAVES: &str = "fixed-waves";

/// Whether a policy is [`OURS`] or a variant of it.
pub(super) fn is_ours(policy: &str) -> bool {
    policy.split('-').next() == Some(OURS)
}
