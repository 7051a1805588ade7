//! The two ways this program fails, and the exit code of each.

use std::fmt;

/// Why the program stops early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The user asked for something impossible: exit code 2.
    Usage(String),
    /// Training or writing results went wrong: exit code 1.
    Run(String),
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    pub(crate) fn run(message: impl Into<String>) -> Self {
        Self::Run(message.into())
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Run(_) => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(message) | Self::Run(message)) = self;
        f.write_str(message)
    }
}

impl From<candle_core::Error> for Failure {
    fn from(error: candle_core::Error) -> Self {
        Self::Run(error.to_string())
    }
}

impl From<lrmoe::Error> for Failure {
    fn from(error: lrmoe::Error) -> Self {
        Self::Run(error.to_string())
    }
}
