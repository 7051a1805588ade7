//! Calls that do not fit are refused with the reason, and nothing is written.

use super::*;
use crate::error::{Error, Result};

/// Two groups of two rows; `n` 3, `k` 2.
const OFFSETS: [u32; 3] = [0, 2, 4];

fn rows(data: &[f32], cols: usize) -> Rows<'_> {
    Rows { data: Floats::F32(data), cols, index: None, index_div: 1, scale: None }
}

/// Every call must refuse, say `reason`, and leave its output alone.
fn refused(reason: &str, results: impl IntoIterator<Item = (Result<()>, Vec<f32>)>) {
    for (result, out) in results {
        let error = result.expect_err(reason);
        assert!(matches!(error, Error::Shape { .. } | Error::Argument { .. } | Error::Overflow { .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "`{error}` does not say `{reason}`");
        assert!(out.iter().all(|&x| x == 7.0), "`{error}` came after writing");
    }
}

fn all(
    offsets: &[u32],
    x: Rows<'_>,
    dy: Rows<'_>,
    w: &[f32],
    [n, k]: [usize; 2],
    rows: usize,
) -> [(Result<()>, Vec<f32>); 3] {
    let w = Floats::F32(w);
    let with = |len: usize, call: &dyn Fn(&mut [f32]) -> Result<()>| {
        let mut out = vec![7.0; len];
        (call(&mut out), out)
    };
    [
        with(rows * n, &|out| forward(offsets, x, w, n, out)),
        with(rows * k, &|out| dgrad(offsets, dy, w, k, out)),
        with(2 * n * k, &|out| wgrad(offsets, dy, x, true, out)),
    ]
}

#[test]
fn a_fitting_call_is_accepted() {
    let [a, b, c] = all(&OFFSETS, rows(&[1.0; 8], 2), rows(&[1.0; 12], 3), &[1.0; 12], [3, 2], 4);
    assert!(a.0.is_ok() && b.0.is_ok() && c.0.is_ok());
}

#[test]
fn offsets() {
    for (reason, offsets) in [
        ("is empty", &[][..]),
        ("never decrease", &[0, 3, 2]),
        ("at least the 5", &[0, 2, 5]),
        ("at least the 4294967295", &[0, 2, u32::MAX]),
    ] {
        refused(reason, all(offsets, rows(&[1.0; 8], 2), rows(&[1.0; 12], 3), &[1.0; 12], [3, 2], 4));
    }
}

#[test]
fn lengths() {
    let (x, dy, w) = ([1.0; 8], [1.0; 12], [1.0; 12]);
    refused("whole number", all(&OFFSETS, rows(&x[..7], 2), rows(&dy[..11], 3), &w, [3, 2], 4));
    refused("at least the 4", all(&OFFSETS, rows(&x[..6], 2), rows(&dy[..9], 3), &w, [3, 2], 4));
    let [forward, dgrad, _] = all(&OFFSETS, rows(&x, 2), rows(&dy, 3), &w[..11], [3, 2], 4);
    refused("2 x 3 x 2 = 12", [forward, dgrad]);
    let [forward, dgrad, _] = all(&OFFSETS, rows(&x, 2), rows(&dy, 3), &w, [3, 2], 3);
    refused("3 rows", [forward, dgrad]);
    let mut out = [7.0; 11];
    refused("2 x 3 x 2 = 12", [(wgrad(&OFFSETS, rows(&dy, 3), rows(&x, 2), false, &mut out), out.to_vec())]);
    let result = super::forward(&OFFSETS, rows(&x, 2), Floats::F32(&w), 3, &mut out);
    refused("whole number of rows of 3", [(result, out.to_vec())]);
}

#[test]
fn empty_dimensions_and_overflow() {
    let (x, dy, w) = ([1.0; 8], [1.0; 12], [1.0; 12]);
    let mut out = [7.0; 12];
    for result in [
        forward(&OFFSETS, rows(&x, 0), Floats::F32(&w), 3, &mut out),
        forward(&OFFSETS, rows(&x, 2), Floats::F32(&w), 0, &mut out),
        dgrad(&OFFSETS, rows(&dy, 0), Floats::F32(&w), 2, &mut out),
        dgrad(&OFFSETS, rows(&dy, 3), Floats::F32(&w), 0, &mut out),
        wgrad(&OFFSETS, rows(&dy, 0), rows(&x, 2), false, &mut out),
        wgrad(&OFFSETS, rows(&dy, 3), rows(&x, 0), false, &mut out),
    ] {
        refused("at least 1", [(result, out.to_vec())]);
    }
    let result = forward(&OFFSETS, rows(&x, 2), Floats::F32(&w), usize::MAX / 2, &mut out);
    refused("overflows", [(result, out.to_vec())]);
}

#[test]
fn index_and_scale() {
    let (x, dy, w) = ([1.0; 8], [1.0; 12], [1.0; 12]);
    let given = |index, index_div, scale| {
        let x = Rows { index, index_div, scale, ..rows(&x, 2) };
        let dy = Rows { index, index_div, scale, ..rows(&dy, 3) };
        all(&OFFSETS, x, dy, &w, [3, 2], 4)
    };
    refused("index[2]", given(Some(&[3, 0, 4, 9][..]), 1, None));
    refused("index[3]", given(Some(&[7, 6, 5, 8][..]), 2, None));
    refused("index_div", given(Some(&[0, 1, 2, 3][..]), 0, None));
    refused("index is 3 rows", given(Some(&[0, 1, 2][..]), 1, None));
    refused("scale is 3 rows", given(None, 1, Some(&[1.0; 3][..])));
    assert!(given(Some(&[7, 6, 5, 0][..]), 2, Some(&[1.0; 4][..])).iter().all(|(result, _)| result.is_ok()));
    // Without an index its divisor is not used.
    assert!(given(None, 0, None).iter().all(|(result, _)| result.is_ok()));
}
