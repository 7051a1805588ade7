//! The one error type of the crate. Every message names what was wrong, its value and what is allowed.

use crate::memory::Category;

/// Result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong, worded so that the reader knows what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field of a model configuration is missing, contradictory or absurd.
    #[error("config field `{field}` is {value}; allowed: {allowed}")]
    Config {
        /// Name as it stands in `config.json`.
        field: String,
        /// The offending value, or "missing".
        value: String,
        /// What would be accepted.
        allowed: String,
    },
    /// An argument of a call is out of range.
    #[error("argument `{name}` is {value}; allowed: {allowed}")]
    Argument {
        /// Parameter name.
        name: String,
        /// The offending value.
        value: String,
        /// What would be accepted.
        allowed: String,
    },
    /// A tensor or buffer has the wrong shape, length or element type.
    #[error("{what} is {got}; expected {expected}")]
    Shape {
        /// Which tensor, in which operation.
        what: String,
        /// What was given.
        got: String,
        /// What is needed.
        expected: String,
    },
    /// A size does not fit the index type of the kernels.
    #[error("{what} overflows: {detail}")]
    Overflow {
        /// Which quantity.
        what: String,
        /// The factors and the limit.
        detail: String,
    },
    /// The memory budget of this rank would be exceeded. Nothing was allocated.
    #[error(
        "out of memory: {asked} bytes of {category} for `{name}` on top of {used} reserved would pass the budget of {budget} bytes"
    )]
    OutOfMemory {
        /// Category of the refused allocation.
        category: Category,
        /// Name of the buffer.
        name: String,
        /// Bytes asked for.
        asked: u64,
        /// Bytes reserved already.
        used: u64,
        /// The budget.
        budget: u64,
    },
    /// No plan fits the memory of a rank. The budget is its memory less what the host keeps.
    #[error(
        "rank {rank} needs {needed} bytes, {} more than its budget of {budget}: {detail}; the smallest budget that would do is {smallest} bytes",
        needed.saturating_sub(*budget)
    )]
    Infeasible {
        /// The rank that needs most.
        rank: usize,
        /// Bytes it needs at least.
        needed: u64,
        /// Bytes it may use.
        budget: u64,
        /// The smallest budget in bytes with which every rank would do.
        smallest: u64,
        /// The bytes needed, by category.
        detail: String,
    },
    /// The system refused memory that the budget allows.
    #[error("the system has no {asked} bytes for `{name}`; use smaller sizes")]
    SystemMemory {
        /// Name of the buffer.
        name: String,
        /// Bytes asked for.
        asked: u64,
    },
    /// This backend, kernel or option cannot do what was asked.
    #[error("{what} is not supported: {why}")]
    Unsupported {
        /// Kernel, option or backend.
        what: String,
        /// The reason.
        why: String,
    },
    /// A call in the wrong order, or with state that belongs to something else.
    #[error("{what}: {fix}")]
    State {
        /// What is inconsistent.
        what: String,
        /// What to do instead.
        fix: String,
    },
    /// Two users of one buffer at the same time, at least one of them writing.
    #[error("buffer `{buffer}` is in use by {user}; finish that use first")]
    Busy {
        /// Name of the buffer.
        buffer: String,
        /// Who holds it.
        user: String,
    },
    /// The device stopped working; every later call reports the same reason.
    #[error("device lost: {reason}")]
    DeviceLost {
        /// What the driver said.
        reason: String,
    },
    /// The device or its driver refused or failed a command.
    #[error("the device failed at `{command}`: {reason}")]
    Device {
        /// Command, kernel or call.
        command: String,
        /// What the driver said.
        reason: String,
    },
    /// A kernel could not be compiled.
    #[error("kernel `{kernel}` does not compile: {log}")]
    Compile {
        /// Kernel name.
        kernel: String,
        /// Compiler output.
        log: String,
    },
    /// A file or text could not be read or parsed.
    #[error("{what}: {reason}")]
    Input {
        /// File or text.
        what: String,
        /// Why it could not be used.
        reason: String,
    },
}

impl Error {
    /// [`Error::Config`] from anything printable.
    pub fn config(field: impl Into<String>, value: impl ToString, allowed: impl Into<String>) -> Self {
        Self::Config { field: field.into(), value: value.to_string(), allowed: allowed.into() }
    }

    /// [`Error::Argument`] from anything printable.
    pub fn argument(name: impl Into<String>, value: impl ToString, allowed: impl Into<String>) -> Self {
        Self::Argument { name: name.into(), value: value.to_string(), allowed: allowed.into() }
    }

    /// [`Error::Shape`] from anything printable.
    pub fn shape(what: impl Into<String>, got: impl ToString, expected: impl ToString) -> Self {
        Self::Shape { what: what.into(), got: got.to_string(), expected: expected.to_string() }
    }
}
