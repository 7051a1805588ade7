//! Comparisons that collect every failure of a trial and refuse to pass when nothing was compared.

/// The comparisons of one trial.
#[derive(Debug, Default)]
pub struct Comparison {
    compared: usize,
    failures: Vec<String>,
    /// The largest error seen, in units of its bound, and where.
    worst: Option<(f64, String)>,
}

/// ||got - want|| / ||want||; where the reference is all zero: 0 if `got` is too, infinity otherwise.
/// NaN anywhere gives NaN.
pub fn relative_frobenius(got: &[f64], want: &[f64]) -> f64 {
    let difference: Vec<f64> = got.iter().zip(want).map(|(g, w)| g - w).collect();
    let error = frobenius(&difference);
    if error == 0.0 { 0.0 } else { error / frobenius(want) }
}

/// Scaled by the largest element, so that the squares of tiny differences do not vanish.
fn frobenius(values: &[f64]) -> f64 {
    let top = values.iter().fold(0.0, |top: f64, v| if v.is_nan() { f64::NAN } else { top.max(v.abs()) });
    let sum: f64 = values.iter().map(|v| (v / top) * (v / top)).sum();
    if top == 0.0 { 0.0 } else { top * sum.sqrt() }
}

impl Comparison {
    /// Nothing compared yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// `got` within `bound` of `want`, in relative Frobenius norm. An all-zero reference asks for exact zeros.
    pub fn relative(&mut self, what: &str, got: &[f64], want: &[f64], bound: f64) {
        self.compared += 1;
        if got.len() != want.len() {
            return self.failures.push(format!("{what}: {} elements, expected {}", got.len(), want.len()));
        }
        let error = relative_frobenius(got, want);
        // Written so that a NaN error fails.
        let within = error <= bound;
        if !within {
            let at = (0..got.len()).max_by(|&i, &j| {
                let off = |i: usize| if got[i].is_finite() { (got[i] - want[i]).abs() } else { f64::INFINITY };
                off(i).total_cmp(&off(j))
            });
            let detail = at.map_or(String::new(), |i| format!("; worst at {i}: got {}, expected {}", got[i], want[i]));
            self.failures.push(format!("{what}: relative Frobenius error {error:.3e}, bound {bound:.1e}{detail}"));
        }
        let ratio = if error == 0.0 { 0.0 } else { error / bound };
        if self.worst.as_ref().is_none_or(|(worst, _)| ratio.is_nan() || ratio > *worst) {
            self.worst = Some((ratio, format!("{what} {error:.2e}")));
        }
    }

    /// Two numbers, relative to the size of the expected one.
    pub fn number(&mut self, what: &str, got: f64, want: f64, bound: f64) {
        self.relative(what, &[got], &[want], bound);
    }

    /// Equal in every element.
    pub fn equal<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, got: &[T], want: &[T]) {
        self.compared += 1;
        if got.len() != want.len() {
            self.failures.push(format!("{what}: {} elements, expected {}", got.len(), want.len()));
        } else if let Some(i) = (0..got.len()).find(|&i| got[i] != want[i]) {
            self.failures.push(format!("{what}: element {i} is {:?}, expected {:?}", got[i], want[i]));
        }
    }

    /// A condition, with what it says.
    pub fn holds(&mut self, what: &str, condition: bool) {
        self.compared += 1;
        if !condition {
            self.failures.push(format!("does not hold: {what}"));
        }
    }

    /// The largest error so far in units of its bound, and where it was.
    pub fn worst(&self) -> Option<&(f64, String)> {
        self.worst.as_ref()
    }

    /// Fails with every failed comparison, or if fewer than `at_least` things were compared.
    pub fn finish(self, at_least: usize) -> Result<(), String> {
        if self.compared < at_least.max(1) {
            return Err(format!("only {} comparisons were made, at least {at_least} expected", self.compared));
        }
        if self.failures.is_empty() {
            return Ok(());
        }
        let shown: Vec<_> = self.failures.iter().take(20).map(String::as_str).collect();
        Err(format!("{} of {} comparisons failed:\n  {}", self.failures.len(), self.compared, shown.join("\n  ")))
    }
}
