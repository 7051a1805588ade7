//! Choices that a plan prices: what forward keeps, how the router learns, who owns the optimizer state.

use serde::{Deserialize, Serialize};

/// What forward keeps of a pair's activations for backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activations {
    /// a and b of every pair: `2 I` f32 values a pair.
    #[default]
    Stash,
    /// Only `||h||`; a and b of retained pairs are computed again, at 2/3 of a forward each.
    Recompute,
}

impl Activations {
    /// Both modes.
    pub const ALL: [Self; 2] = [Self::Stash, Self::Recompute];

    /// The name in files and options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stash => "stash",
            Self::Recompute => "recompute",
        }
    }

    /// A number that never changes, for hashes.
    pub(crate) const fn code(self) -> u64 {
        match self {
            Self::Stash => 0,
            Self::Recompute => 1,
        }
    }
}

/// How the router's gradient is found for pairs that are not retained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterGradient {
    /// Unbiased estimate with the token's mean output as baseline, ALGORITHM section 3.7.
    #[default]
    Estimated,
    /// Exact: expert outputs of every pair are kept, `k H` f32 values a token.
    Exact,
}

/// Who keeps the f32 masters and moments of the experts, ALGORITHM section 6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ownership {
    /// Cut evenly over all ranks, never moved: gradients go to the shards and weights come from them every step, so a
    /// new placement costs no traffic of its own.
    Sharded,
    /// Whole, at the expert's home rank: a copy at home moves nothing, every other copy sends its gradient home and gets
    /// its weights from there.
    #[default]
    Home,
}

impl Ownership {
    /// Both forms.
    pub const ALL: [Self; 2] = [Self::Sharded, Self::Home];

    /// The name in files and options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sharded => "sharded",
            Self::Home => "home",
        }
    }

    /// A number that never changes, for hashes.
    pub(crate) const fn code(self) -> u64 {
        match self {
            Self::Sharded => 0,
            Self::Home => 1,
        }
    }
}
