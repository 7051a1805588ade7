//! Row-major f64 matrices and the few plain loops the oracle is made of.

/// A row-major f64 matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Mat {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Elements, row after row.
    pub data: Vec<f64>,
}

impl Mat {
    /// All zeros.
    pub fn zeros(rows: usize, cols: usize) -> Self {
        Self { rows, cols, data: vec![0.0; rows * cols] }
    }

    /// From elements in row-major order. Their number must be `rows * cols`.
    pub fn new(rows: usize, cols: usize, data: Vec<f64>) -> Self {
        assert_eq!(data.len(), rows * cols, "a {rows} x {cols} matrix needs rows * cols elements");
        Self { rows, cols, data }
    }

    /// Zeros in the shape of this one.
    pub fn zeros_like(&self) -> Self {
        Self::zeros(self.rows, self.cols)
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.data[i * self.cols..(i + 1) * self.cols]
    }

    /// Row `i`, for writing.
    pub fn row_mut(&mut self, i: usize) -> &mut [f64] {
        &mut self.data[i * self.cols..(i + 1) * self.cols]
    }

    /// W v.
    pub fn apply(&self, v: &[f64]) -> Vec<f64> {
        (0..self.rows).map(|i| dot(self.row(i), v)).collect()
    }

    /// W^T v.
    pub fn apply_transposed(&self, v: &[f64]) -> Vec<f64> {
        assert_eq!(v.len(), self.rows, "W^T v needs one element per row of W");
        let mut out = vec![0.0; self.cols];
        for (i, &vi) in v.iter().enumerate() {
            add_scaled(&mut out, vi, self.row(i));
        }
        out
    }

    /// self += scale * column row^T.
    pub fn add_outer(&mut self, scale: f64, column: &[f64], row: &[f64]) {
        assert_eq!(column.len(), self.rows, "an outer product needs one element per row");
        for (i, &c) in column.iter().enumerate() {
            add_scaled(self.row_mut(i), scale * c, row);
        }
    }
}

/// <a, b>.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "dot product of vectors of different length");
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Euclidean norm. Squares of values that come from f32 neither overflow nor vanish in f64.
pub fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

/// a += scale * b.
pub fn add_scaled(a: &mut [f64], scale: f64, b: &[f64]) {
    assert_eq!(a.len(), b.len(), "sum of vectors of different length");
    for (x, y) in a.iter_mut().zip(b) {
        *x += scale * y;
    }
}
