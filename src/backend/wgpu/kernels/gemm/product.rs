//! The three grouped products as one: `c[i, j] = sum over s of a(i, s) b(s, j)`, for each expert.

use crate::backend::wgpu::buffer::WgpuBuffer;
use crate::tensor::DType;

/// Which of the three products of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Call {
    /// `out[r] = x[r] W[e]^T`: a = x, b = W, steps are columns k.
    Forward,
    /// `out[r] = dy[r] W[e]`: a = dy, b = W, steps are columns n.
    Dgrad,
    /// `out[e] = dy^T x`: a = dy, b = x, steps are the rows of the group.
    Wgrad,
}

impl Call {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Forward, Self::Dgrad, Self::Wgrad];

    /// The kernel's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Forward => "grouped_forward",
            Self::Dgrad => "grouped_dgrad",
            Self::Wgrad => "grouped_wgrad",
        }
    }

    /// Whether a row of a's storage is one step, rather than all steps of one row of c.
    pub(super) const fn a_rows_are_steps(self) -> bool {
        matches!(self, Self::Wgrad)
    }

    /// Whether a row of b's storage is one step, rather than all steps of one column of c.
    pub(super) const fn b_rows_are_steps(self) -> bool {
        !matches!(self, Self::Forward)
    }
}

/// Rows of the batch, gathered by an index.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) buffer: &'a WgpuBuffer,
    pub(super) cols: usize,
    pub(super) index: Option<(&'static str, &'a WgpuBuffer)>,
    pub(super) div: u32,
}

impl Rows<'_> {
    /// Elements that rows of the batch may be read from: whole rows only, so that they are whole vectors where a row is. `rows`
    /// is the number of rows in use.
    pub(super) fn elements(&self, rows: usize) -> usize {
        let stored = self.buffer.len_rows(self.cols);
        let reached = if self.index.is_some() { stored } else { rows.min(stored) };
        reached * self.cols
    }
}

/// The other operand: weights, or rows again.
#[derive(Debug, Clone, Copy)]
pub(super) enum Right<'a> {
    Weights(&'a WgpuBuffer),
    Rows(Rows<'a>),
}

impl<'a> Right<'a> {
    pub(super) const fn buffer(&self) -> &'a WgpuBuffer {
        match self {
            Self::Weights(buffer) => buffer,
            Self::Rows(rows) => rows.buffer,
        }
    }
}

/// One product over all experts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Product<'a> {
    pub(super) call: Call,
    pub(super) rows: usize,
    pub(super) experts: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: Rows<'a>,
    pub(super) b: Right<'a>,
    pub(super) scale: Option<&'a WgpuBuffer>,
    pub(super) offsets: &'a WgpuBuffer,
    pub(super) c: &'a WgpuBuffer,
    pub(super) accumulate: bool,
}

/// What a choice among kernel variants may depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) call: Call,
    pub(crate) rows: usize,
    pub(crate) experts: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Element types of a and b.
    pub(crate) dtypes: [DType; 2],
    /// Whether both operands can be read four elements at a time.
    pub(crate) fours: bool,
}

impl Shape {
    /// Whether rows of both operands are whole vectors of four.
    pub(super) fn divides_by_four(call: Call, n: usize, k: usize) -> bool {
        k.is_multiple_of(4) && (call == Call::Forward || n.is_multiple_of(4))
    }

    /// Shapes that are taken to have the same fastest variant: sizes within a power of two.
    pub(super) fn class(&self) -> String {
        let floor = |size: usize| if size == 0 { 0 } else { 1usize << size.ilog2() };
        let [a, b] = self.dtypes;
        format!(
            "{} {a} {b}, {} experts, {} rows each, n {}, k {}{}",
            self.call.name(),
            floor(self.experts.min(16)),
            floor(self.rows / self.experts.max(1)),
            floor(self.n),
            floor(self.k),
            if self.fours { "" } else { ", unaligned" }
        )
    }

    /// Rows of one expert's c, on average.
    pub(crate) fn mean_rows(&self) -> usize {
        match self.call {
            Call::Forward | Call::Dgrad => self.rows.div_ceil(self.experts.max(1)),
            Call::Wgrad => self.n,
        }
    }
}
