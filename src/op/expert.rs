//! A bank of SwiGLU experts, forward and backward. The routed experts are one bank; the shared expert is a bank of one.

use super::{Arena, Rows};
use crate::backend::Backend;
use crate::kernel::{Combine, GroupedDgrad, GroupedForward, GroupedWgrad, SwiGlu, SwiGluBackward};
use crate::memory::Category;
use crate::{Recording, Result};

/// Weights of a bank: `gate_up [groups, 2 width, hidden]` (gate rows first), `down [groups, hidden, width]`.
#[derive(Debug, Clone)]
pub(crate) struct Bank<Buf> {
    pub(crate) gate_up: Buf,
    pub(crate) down: Buf,
    pub(crate) groups: usize,
    pub(crate) hidden: usize,
    pub(crate) width: usize,
}

/// What the forward pass of a bank leaves.
#[derive(Debug, Clone)]
pub(crate) struct Activated<Buf> {
    /// f32 `[rows, 2 width]`: a and b.
    pub(crate) ab: Buf,
    /// f32 `[rows]`: `||h||`.
    pub(crate) h_norm: Buf,
    /// f32 `[rows, hidden]`.
    pub(crate) out: Buf,
}

/// Where the backward pass finds a and b.
#[derive(Debug, Clone)]
pub(crate) enum Activations<Buf> {
    /// Kept by forward; the index gives each retained row's forward row.
    Stashed { ab: Buf, index: Option<Buf> },
    /// Computed again from x.
    Recompute,
}

/// Weight gradients to be written.
#[derive(Debug, Clone)]
pub(crate) struct BankGrads<Buf> {
    pub(crate) gate_up: Buf,
    pub(crate) down: Buf,
    pub(crate) accumulate: bool,
}

/// Inputs of [`backward`].
#[derive(Debug)]
pub(crate) struct Backward<'a, Buf> {
    /// Tokens, `[T, hidden]`.
    pub(crate) x: &'a Buf,
    /// Upstream gradient, `[T, hidden]`.
    pub(crate) dy: &'a Buf,
    /// Retained rows.
    pub(crate) rows: &'a Rows<Buf>,
    pub(crate) activations: Activations<Buf>,
    /// f32 `[rows]`: `w_p g_p`; 1 where absent.
    pub(crate) scale: Option<Buf>,
    pub(crate) grads: Option<BankGrads<Buf>>,
}

/// Results of [`backward`].
#[derive(Debug, Clone)]
pub(crate) struct BankGradient<Buf> {
    /// f32 `[rows, hidden]`.
    pub(crate) dx_rows: Buf,
    /// f32 `[rows]`: `<u, h>`, the gradient of the pair's combine weight.
    pub(crate) dot: Buf,
    /// f32 `[rows, 2 width]`: `[da | db]`, pair scale included.
    pub(crate) d_ab: Buf,
}

fn gate_up<B: Backend>(
    rec: &mut Recording<B::Buffer>,
    arena: Arena<'_, B>,
    bank: &Bank<B::Buffer>,
    x: &B::Buffer,
    rows: &Rows<B::Buffer>,
    category: Category,
) -> Result<B::Buffer> {
    let out = arena.f32("ab", &[rows.count, 2, bank.width], category)?;
    rec.dispatch(GroupedForward {
        rows: rows.count,
        groups: bank.groups,
        n: 2 * bank.width,
        k: bank.hidden,
        index_div: rows.div,
        x: x.clone(),
        index: rows.index.clone(),
        w: bank.gate_up.clone(),
        offsets: rows.offsets.clone(),
        out: out.clone(),
    })?;
    Ok(out)
}

/// `out = W_down (silu(W_gate x) * W_up x)` for every row. `keep_ab` and `keep_out` say what those are charged to.
pub(crate) fn forward<B: Backend>(
    rec: &mut Recording<B::Buffer>,
    arena: Arena<'_, B>,
    bank: &Bank<B::Buffer>,
    x: &B::Buffer,
    rows: &Rows<B::Buffer>,
    (keep_ab, keep_out): (Category, Category),
) -> Result<Activated<B::Buffer>> {
    let ab = gate_up(rec, arena, bank, x, rows, keep_ab)?;
    let h = arena.f32("h", &[rows.count, bank.width], Category::TokenBuffers)?;
    let h_norm = arena.f32("h_norm", &[rows.count], Category::Stash)?;
    rec.dispatch(SwiGlu {
        rows: rows.count,
        width: bank.width,
        groups: bank.groups,
        ab: ab.clone(),
        offsets: rows.offsets.clone(),
        h: h.clone(),
        norm: h_norm.clone(),
    })?;
    let out = arena.f32("expert_out", &[rows.count, bank.hidden], keep_out)?;
    rec.dispatch(GroupedForward {
        rows: rows.count,
        groups: bank.groups,
        n: bank.hidden,
        k: bank.width,
        index_div: 1,
        x: h,
        index: None,
        w: bank.down.clone(),
        offsets: rows.offsets.clone(),
        out: out.clone(),
    })?;
    Ok(Activated { ab, h_norm, out })
}

/// ALGORITHM section 3.5 for the retained rows: dgrad, SwiGLU backward with the pair scale, wgrad.
pub(crate) fn backward<B: Backend>(
    rec: &mut Recording<B::Buffer>,
    arena: Arena<'_, B>,
    bank: &Bank<B::Buffer>,
    args: Backward<'_, B::Buffer>,
) -> Result<BankGradient<B::Buffer>> {
    let rows = args.rows;
    let (count, width, hidden, groups) = (rows.count, bank.width, bank.hidden, bank.groups);
    let (ab, ab_index) = match args.activations {
        Activations::Stashed { ab, index } => (ab, index),
        Activations::Recompute => (gate_up(rec, arena, bank, args.x, rows, Category::Scratch)?, None),
    };
    let u = arena.f32("u", &[count, width], Category::Scratch)?;
    rec.dispatch(GroupedDgrad {
        rows: count,
        groups,
        n: hidden,
        k: width,
        index_div: rows.div,
        dy: args.dy.clone(),
        index: rows.index.clone(),
        w: bank.down.clone(),
        offsets: rows.offsets.clone(),
        out: u.clone(),
    })?;
    let d_ab = arena.f32("d_ab", &[count, 2, width], Category::Scratch)?;
    let h = arena.f32("h_again", &[count, width], Category::Scratch)?;
    let dot = arena.f32("dot", &[count], Category::Scratch)?;
    rec.dispatch(SwiGluBackward {
        rows: count,
        width,
        groups,
        ab,
        ab_index,
        u,
        scale: args.scale.clone(),
        offsets: rows.offsets.clone(),
        d_ab: d_ab.clone(),
        h: h.clone(),
        dot: dot.clone(),
    })?;
    if let Some(grads) = args.grads {
        rec.dispatch(GroupedWgrad {
            rows: count,
            groups,
            n: hidden,
            k: width,
            dy_div: rows.div,
            x_div: 1,
            accumulate: grads.accumulate,
            dy: args.dy.clone(),
            dy_index: rows.index.clone(),
            dy_scale: args.scale,
            x: h,
            x_index: None,
            offsets: rows.offsets.clone(),
            out: grads.down,
        })?;
        rec.dispatch(GroupedWgrad {
            rows: count,
            groups,
            n: 2 * width,
            k: hidden,
            dy_div: 1,
            x_div: rows.div,
            accumulate: grads.accumulate,
            dy: d_ab.clone(),
            dy_index: None,
            dy_scale: None,
            x: args.x.clone(),
            x_index: rows.index.clone(),
            offsets: rows.offsets.clone(),
            out: grads.gate_up,
        })?;
    }
    let dx_rows = arena.f32("dx_rows", &[count, hidden], Category::Scratch)?;
    rec.dispatch(GroupedDgrad {
        rows: count,
        groups,
        n: 2 * width,
        k: hidden,
        index_div: 1,
        dy: d_ab.clone(),
        index: None,
        w: bank.gate_up.clone(),
        offsets: rows.offsets.clone(),
        out: dx_rows.clone(),
    })?;
    Ok(BankGradient { dx_rows, dot, d_ab })
}

/// Sums rows into tokens: `out[t] (+)= sum_j weights[t, j] rows[row_of_pair[t, j]]`.
#[derive(Debug)]
pub(crate) struct Sum<'a, Buf> {
    pub(crate) tokens: usize,
    pub(crate) slots: usize,
    pub(crate) cols: usize,
    pub(crate) rows: &'a Buf,
    pub(crate) row_of_pair: Option<&'a Buf>,
    pub(crate) weights: Option<&'a Buf>,
    pub(crate) accumulate: bool,
    pub(crate) out: &'a Buf,
}

/// Appends the [`Combine`] of a [`Sum`].
pub(crate) fn combine<Buf: crate::backend::Buffer>(rec: &mut Recording<Buf>, sum: Sum<'_, Buf>) -> Result<()> {
    rec.dispatch(Combine {
        tokens: sum.tokens,
        top_k: sum.slots,
        cols: sum.cols,
        accumulate: sum.accumulate,
        rows: sum.rows.clone(),
        row_of_pair: sum.row_of_pair.cloned(),
        weights: sum.weights.cloned(),
        out: sum.out.clone(),
    })
}
