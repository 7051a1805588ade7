//! Everything is compared bit for bit with [`Case::expected`], three plain loops of `f32::mul_add`.

mod contract;
mod refusals;

use super::{Floats, Rows, dgrad, forward, wgrad};
use half::{bf16, f16};

/// SplitMix64.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Both signs, magnitudes over many binades, some zeros of both signs: sums round, and their order shows.
    fn float(&mut self) -> f32 {
        let sign = if self.next() & 1 == 0 { 1.0 } else { -1.0 };
        match self.below(16) {
            0 => 0.0 * sign,
            _ => sign * (1.0 + self.below(1 << 20) as f32 / (1 << 20) as f32) * 2f32.powi(self.below(13) as i32 - 6),
        }
    }

    fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float()).collect()
    }
}

/// Owned elements of one storage type.
#[derive(Clone, Debug)]
enum Store {
    F32(Vec<f32>),
    BF16(Vec<bf16>),
    F16(Vec<f16>),
}

impl Store {
    fn new(kind: usize, values: Vec<f32>) -> Self {
        match kind % 3 {
            0 => Self::F32(values),
            1 => Self::BF16(values.into_iter().map(bf16::from_f32).collect()),
            _ => Self::F16(values.into_iter().map(f16::from_f32).collect()),
        }
    }

    fn floats(&self) -> Floats<'_> {
        match self {
            Self::F32(data) => Floats::F32(data),
            Self::BF16(data) => Floats::BF16(data),
            Self::F16(data) => Floats::F16(data),
        }
    }

    fn at(&self, i: usize) -> f32 {
        match self {
            Self::F32(data) => data[i],
            Self::BF16(data) => data[i].to_f32(),
            Self::F16(data) => data[i].to_f32(),
        }
    }

    fn set(&mut self, i: usize, value: f32) {
        match self {
            Self::F32(data) => data[i] = value,
            Self::BF16(data) => data[i] = bf16::from_f32(value),
            Self::F16(data) => data[i] = f16::from_f32(value),
        }
    }
}

/// Owned [`Rows`].
#[derive(Clone, Debug)]
struct Matrix {
    data: Store,
    cols: usize,
    index: Option<Vec<u32>>,
    index_div: u32,
    scale: Option<Vec<f32>>,
}

impl Matrix {
    /// `rows` logical rows; with an index, they come from fewer data rows, several times and in any order.
    fn new(random: &mut Random, rows: usize, cols: usize, form: Form) -> Self {
        let index_div = if form.gathered { 1 + random.below(3) as u32 } else { 1 };
        let data_rows = if form.gathered { rows / 2 + 1 } else { rows };
        let index =
            form.gathered.then(|| (0..rows).map(|_| random.below(data_rows * index_div as usize) as u32).collect());
        let scale = form.scaled.then(|| random.floats(rows));
        Self { data: Store::new(form.store, random.floats(data_rows * cols)), cols, index, index_div, scale }
    }

    fn rows(&self) -> Rows<'_> {
        let (index, scale) = (self.index.as_deref(), self.scale.as_deref());
        Rows { data: self.data.floats(), cols: self.cols, index, index_div: self.index_div, scale }
    }

    fn at(&self, row: usize, col: usize) -> f32 {
        let data_row = self.index.as_ref().map_or(row, |index| (index[row] / self.index_div) as usize);
        let value = self.data.at(data_row * self.cols + col);
        self.scale.as_ref().map_or(value, |scale| value * scale[row])
    }
}

/// How a matrix is given.
#[derive(Clone, Copy, Debug)]
struct Form {
    store: usize,
    gathered: bool,
    scaled: bool,
}

const PLAIN: Form = Form { store: 0, gathered: false, scaled: false };

/// Inputs of all three calls.
#[derive(Clone, Debug)]
struct Case {
    offsets: Vec<u32>,
    /// Rows that exist; the offsets may use fewer.
    total: usize,
    x: Matrix,
    dy: Matrix,
    w: Store,
    n: usize,
    k: usize,
}

/// What one call gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Forward,
    Dgrad,
    Wgrad,
    WgradAccumulate,
}

const CALLS: [Call; 4] = [Call::Forward, Call::Dgrad, Call::Wgrad, Call::WgradAccumulate];

impl Case {
    /// `skip` unused rows, the groups, then `tail` unused rows.
    fn new(seed: u64, skip: usize, counts: &[usize], tail: usize, [n, k]: [usize; 2], forms: [Form; 3]) -> Self {
        let mut random = Random(seed);
        let mut offsets = vec![skip as u32];
        for &count in counts {
            offsets.push(offsets[offsets.len() - 1] + count as u32);
        }
        let total = skip + counts.iter().sum::<usize>() + tail;
        let x = Matrix::new(&mut random, total, k, forms[0]);
        let dy = Matrix::new(&mut random, total, n, forms[1]);
        let w = Store::new(forms[2].store, random.floats(counts.len() * n * k));
        Self { offsets, total, x, dy, w, n, k }
    }

    fn plain(seed: u64, counts: &[usize], shape: [usize; 2]) -> Self {
        Self::new(seed, 0, counts, 0, shape, [PLAIN; 3])
    }

    fn groups(&self) -> usize {
        self.offsets.len() - 1
    }

    fn group(&self, e: usize) -> std::ops::Range<usize> {
        self.offsets[e] as usize..self.offsets[e + 1] as usize
    }

    /// What the output holds before the call: poison, or for the accumulating call something to add to.
    fn before(&self, call: Call) -> Vec<f32> {
        match call {
            Call::Forward => vec![f32::NAN; self.total * self.n],
            Call::Dgrad => vec![f32::NAN; self.total * self.k],
            Call::Wgrad => vec![f32::NAN; self.groups() * self.n * self.k],
            Call::WgradAccumulate => Random(99).floats(self.groups() * self.n * self.k),
        }
    }

    fn run(&self, call: Call) -> Vec<f32> {
        let mut out = self.before(call);
        let (x, dy, w) = (self.x.rows(), self.dy.rows(), self.w.floats());
        match call {
            Call::Forward => forward(&self.offsets, x, w, self.n, &mut out),
            Call::Dgrad => dgrad(&self.offsets, dy, w, self.k, &mut out),
            Call::Wgrad => wgrad(&self.offsets, dy, x, false, &mut out),
            Call::WgradAccumulate => wgrad(&self.offsets, dy, x, true, &mut out),
        }
        .unwrap();
        out
    }

    fn expected(&self, call: Call) -> Vec<f32> {
        let (n, k) = (self.n, self.k);
        let mut out = self.before(call);
        let weight = |e: usize, i: usize, j: usize| self.w.at((e * n + i) * k + j);
        for e in 0..self.groups() {
            match call {
                Call::Forward => {
                    for (r, i) in self.group(e).flat_map(|r| (0..n).map(move |i| (r, i))) {
                        out[r * n + i] = (0..k).fold(0.0, |acc, j| self.x.at(r, j).mul_add(weight(e, i, j), acc));
                    }
                }
                Call::Dgrad => {
                    for (r, j) in self.group(e).flat_map(|r| (0..k).map(move |j| (r, j))) {
                        out[r * k + j] = (0..n).fold(0.0, |acc, i| self.dy.at(r, i).mul_add(weight(e, i, j), acc));
                    }
                }
                Call::Wgrad | Call::WgradAccumulate => {
                    for (i, j) in (0..n).flat_map(|i| (0..k).map(move |j| (i, j))) {
                        let out = &mut out[(e * n + i) * k + j];
                        let start = if call == Call::Wgrad { 0.0 } else { *out };
                        let add = |acc, r| f32::mul_add(self.dy.at(r, i), self.x.at(r, j), acc);
                        *out = self.group(e).fold(start, add);
                    }
                }
            }
        }
        out
    }

    fn check(&self) {
        for call in CALLS {
            assert_same(&self.run(call), &self.expected(call), &format!("{call:?} of {:?}", self.shape()));
        }
    }

    fn shape(&self) -> (&[u32], usize, usize) {
        (&self.offsets, self.n, self.k)
    }
}

/// Equal bits; one NaN is as good as another.
fn assert_same(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
        assert!(same, "{what}: element {i} is {got:e}, expected {expected:e}");
    }
}
