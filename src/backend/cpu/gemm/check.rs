//! What a call must satisfy before anything is computed.

use super::{Floats, Rows};
use crate::error::{Error, Result};
use std::ops::Range;

/// Offsets must start a nonempty, monotone list. Returns the rows in use.
pub(super) fn offsets(call: &str, offsets: &[u32]) -> Result<Range<usize>> {
    let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else {
        return Err(Error::shape(format!("{call}: offsets"), "empty", "one entry more than there are groups"));
    };
    if let Some(e) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
        let found = format!("{} after {}", offsets[e + 1], offsets[e]);
        return Err(Error::argument(format!("{call}: offsets[{}]", e + 1), found, "offsets that never decrease"));
    }
    Ok(*first as usize..*last as usize)
}

/// The used rows must exist, with their index and scale.
pub(super) fn rows(what: &str, rows: &Rows<'_>, used: &Range<usize>) -> Result<()> {
    positive(what, "columns", rows.cols)?;
    let data_rows = whole_rows(what, rows.data.len(), rows.cols)?;
    if let Some(scale) = rows.scale {
        at_least(&format!("{what}: scale"), scale.len(), used.end)?;
    }
    let Some(index) = rows.index else {
        return at_least(what, data_rows, used.end);
    };
    at_least(&format!("{what}: index"), index.len(), used.end)?;
    if rows.index_div == 0 {
        return Err(Error::argument(format!("{what}: index_div"), 0, "at least 1"));
    }
    let outside = |&i: &u32| (i / rows.index_div) as usize >= data_rows;
    match index[used.clone()].iter().position(outside) {
        None => Ok(()),
        Some(at) => {
            let row = used.start + at;
            let allowed = format!("an index whose quotient by {} is below {data_rows}", rows.index_div);
            Err(Error::argument(format!("{what}: index[{row}]"), index[row], allowed))
        }
    }
}

/// `[E, n, k]` must be what the weights, or their gradient, hold.
pub(super) fn weights(what: &str, w: Floats<'_>, offsets: &[u32], n: usize, k: usize) -> Result<()> {
    positive(what, "n", n)?;
    positive(what, "k", k)?;
    let groups = offsets.len() - 1;
    let Some(len) = n.checked_mul(k).and_then(|size| size.checked_mul(groups)) else {
        return Err(Error::Overflow { what: what.into(), detail: format!("{groups} x {n} x {k} elements") });
    };
    if w.len() == len {
        return Ok(());
    }
    Err(Error::shape(what, format!("{} elements", w.len()), format!("{groups} x {n} x {k} = {len}")))
}

/// The used rows must exist in an output of `cols` columns.
pub(super) fn output_rows(what: &str, len: usize, cols: usize, used: &Range<usize>) -> Result<()> {
    positive(what, "columns", cols)?;
    at_least(what, whole_rows(what, len, cols)?, used.end)
}

fn whole_rows(what: &str, len: usize, cols: usize) -> Result<usize> {
    if len.is_multiple_of(cols) {
        return Ok(len / cols);
    }
    Err(Error::shape(what, format!("{len} elements"), format!("a whole number of rows of {cols}")))
}

fn at_least(what: &str, rows: usize, needed: usize) -> Result<()> {
    if rows >= needed {
        return Ok(());
    }
    Err(Error::shape(what, format!("{rows} rows"), format!("at least the {needed} that the offsets use")))
}

fn positive(what: &str, dimension: &str, value: usize) -> Result<()> {
    if value > 0 {
        return Ok(());
    }
    Err(Error::argument(format!("{what}: {dimension}"), value, "at least 1"))
}
