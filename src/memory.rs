//! The memory accountant of one rank.

/// What a buffer is for. Budgets and reports are by category.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Parameters in their compute type.
    Weights,
    /// Parameter gradients.
    Gradients,
    /// Copies of experts beyond the first.
    Replicas,
    /// Optimizer moments and f32 masters.
    Optimizer,
    /// Per-token and per-pair buffers of one pass.
    TokenBuffers,
    /// What forward keeps for backward.
    Stash,
    /// Send and receive buffers.
    Exchange,
    /// Short-lived workspace.
    Scratch,
}

impl std::fmt::Display for Category {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Weights => "weights",
            Self::Gradients => "gradients",
            Self::Replicas => "replicas",
            Self::Optimizer => "optimizer",
            Self::TokenBuffers => "token_buffers",
            Self::Stash => "stash",
            Self::Exchange => "exchange",
            Self::Scratch => "scratch",
        })
    }
}
