//! Weights beyond the largest binding are bound in windows: whole experts, or rows n of one expert.

use std::ops::Range;

use crate::{Error, Result};

/// Part of an array `[experts, n, k]` that is bound at once: all rows of some experts, or some rows of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) experts: Range<usize>,
    /// Rows n of each.
    pub(super) lanes: Range<usize>,
}

/// An array of weights and what a device binds of it at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) name: &'a str,
    pub(super) experts: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    /// Bytes of an element.
    pub(super) element: usize,
    /// Bytes of one binding at most, and what its offset is a multiple of.
    pub(super) binding: u64,
    pub(super) alignment: u64,
}

/// Rows of partial windows are multiples of this where the binding allows it: then they can still be read four at a time.
const UNIT: usize = 4;

impl Weights<'_> {
    /// Windows in ascending order that cover the array.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where a binding does not hold a single row.
    pub(super) fn windows(&self) -> Result<Vec<Window>> {
        let &Self { experts, n, k, element, .. } = self;
        // A window may begin anywhere behind an aligned offset, and ends with a whole vector of four.
        let slack = self.alignment.saturating_add((UNIT * element) as u64);
        let limit = usize::try_from(self.binding.saturating_sub(slack)).unwrap_or(usize::MAX) / element;
        let each = n.saturating_mul(k);
        if each <= limit {
            let step = limit.checked_div(each).unwrap_or(experts).max(1);
            let windows = (0..experts).step_by(step);
            return Ok(windows
                .map(|e| Window { experts: e..experts.min(e.saturating_add(step)), lanes: 0..n })
                .collect());
        }
        let most = limit / k.max(1);
        let step = if most < UNIT { most } else { most - most % UNIT };
        if step == 0 {
            return Err(Error::Unsupported {
                what: format!("`{}` with rows of {} bytes", self.name, k.saturating_mul(element)),
                why: format!("this device binds at most {} bytes at once, {slack} of them for alignment", self.binding),
            });
        }
        let lanes = (0..n).step_by(step).map(|i| i..n.min(i + step));
        let windows = (0..experts).flat_map(|e| lanes.clone().map(move |lanes| Window { experts: e..e + 1, lanes }));
        Ok(windows.collect())
    }

    /// The elements of a window.
    pub(super) fn elements(&self, window: &Window) -> Range<usize> {
        let first = (window.experts.start * self.n + window.lanes.start) * self.k;
        let last = (window.experts.end - 1) * self.n + window.lanes.end;
        first..last * self.k
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Weights<'_> =
        Weights { name: "w", experts: 5, n: 6, k: 10, element: 4, binding: 16 << 10, alignment: 256 };

    /// Windows are in order, without gaps, and each fits the binding wherever it begins.
    fn covered(weights: &Weights<'_>) -> Vec<Window> {
        let windows = weights.windows().unwrap();
        let mut next = 0;
        for window in &windows {
            let elements = weights.elements(window);
            assert_eq!(elements.start, next, "{window:?}");
            assert!(elements.len() as u64 * 4 + weights.alignment <= weights.binding, "{window:?}");
            assert!(window.experts.len() == 1 || window.lanes == (0..weights.n), "{window:?}");
            next = elements.end;
        }
        assert_eq!(next, weights.experts * weights.n * weights.k);
        windows
    }

    #[test]
    fn all_in_one_where_it_fits() {
        assert_eq!(covered(&SMALL).len(), 1);
        assert_eq!(Weights { experts: 0, ..SMALL }.windows(), Ok(vec![]));
    }

    #[test]
    fn whole_experts_then_rows_of_one() {
        let windows = covered(&Weights { n: 30, k: 40, ..SMALL });
        assert_eq!(windows.iter().map(|w| w.experts.len()).collect::<Vec<_>>(), [3, 2]);
        let windows = covered(&Weights { experts: 2, n: 30, k: 400, ..SMALL });
        assert_eq!(windows[0], Window { experts: 0..1, lanes: 0..8 });
        assert_eq!(windows.len(), 8);
        let windows = covered(&Weights { experts: 2, n: 3, k: 2000, ..SMALL });
        assert_eq!(windows[1], Window { experts: 0..1, lanes: 2..3 });
    }

    #[test]
    fn a_row_beyond_the_binding_is_refused_with_the_numbers() {
        let text = Weights { k: 5000, ..SMALL }.windows().unwrap_err().to_string();
        assert!(text.contains("`w` with rows of 20000 bytes") && text.contains("16384 bytes"), "{text}");
    }
}
