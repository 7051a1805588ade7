//! The three grouped GEMMs.

use lrmoe::DType::{self, BF16, F16, F32};
use lrmoe::kernel::{GroupedDgrad, GroupedForward, GroupedWgrad};

use crate::devices::Runner;
use crate::support::rng::Rng;
use crate::table::{Case, Property, Slot, Want, bits, near, offsets};

/// One problem for all three products; rows of x, dy and of the outputs are grouped.
#[derive(Clone)]
struct Problem {
    name: &'static str,
    counts: Vec<usize>,
    n: usize,
    k: usize,
    dtype: DType,
    /// Element type of weights, and of x where dy is the other one.
    other: DType,
    /// Rows behind the last offset, in every row array.
    spare: usize,
    /// Divisor; with an index into rows in another order.
    index_div: Option<usize>,
    scale: bool,
    accumulate: bool,
    /// Small integers: every sum is exact, whatever its order.
    exact: bool,
}

const PLAIN: Problem = Problem {
    name: "",
    counts: Vec::new(),
    n: 8,
    k: 12,
    dtype: F32,
    other: F32,
    spare: 0,
    index_div: None,
    scale: false,
    accumulate: false,
    exact: false,
};

fn problems() -> Vec<Problem> {
    let p = |name, counts: &[usize]| Problem { name, counts: counts.to_vec(), ..PLAIN };
    vec![
        Problem { n: 24, k: 32, ..p("typical", &[5, 9, 1, 17]) },
        Problem { n: 65, k: 130, ..p("large", &[70, 0, 150, 33]) },
        Problem { n: 7, k: 13, spare: 3, ..p("no multiples of four and spare rows", &[3, 1, 6]) },
        Problem { n: 1, k: 1, ..p("one column", &[2, 3]) },
        p("one row", &[1]),
        p("no rows", &[0, 0, 0]),
        p("no groups", &[]),
        Problem { spare: 4, ..p("no rows but spare ones", &[0, 0]) },
        p("one expert", &[11]),
        p("all rows on one expert", &[0, 0, 19, 0]),
        Problem { accumulate: true, ..p("accumulate", &[4, 0, 5]) },
        Problem { spare: 2, ..p("fault 6 empty first middle last", &[0, 3, 0, 0, 5, 0]) },
        Problem { spare: 2, accumulate: true, ..p("empty groups stay when accumulating", &[0, 3, 0, 0, 5, 0]) },
        Problem { n: 768 / 16, k: 2048 / 64, ..p("fault 7 sizes over eight", &[20, 0, 322, 56, 0, 10]) },
        Problem { index_div: Some(1), spare: 2, ..p("index", &[4, 0, 7]) },
        Problem { index_div: Some(3), ..p("index with divisor", &[4, 0, 7]) },
        Problem { scale: true, ..p("scale", &[4, 2]) },
        Problem { index_div: Some(2), scale: true, accumulate: true, spare: 1, ..p("everything", &[9, 0, 4]) },
        Problem { dtype: BF16, other: BF16, index_div: Some(2), ..p("bf16", &[6, 3]) },
        Problem { dtype: F16, other: F16, scale: true, ..p("f16", &[6, 3]) },
        Problem { other: BF16, n: 72, k: 136, index_div: Some(2), scale: true, ..p("f32 and bf16", &[50, 0, 131]) },
        Problem { dtype: BF16, n: 40, k: 33, scale: true, accumulate: true, ..p("bf16 and f32", &[5, 0, 40]) },
        Problem { other: F16, n: 33, k: 64, spare: 1, ..p("f32 and f16", &[35, 2]) },
        Problem { dtype: F16, n: 24, k: 40, scale: true, ..p("f16 and f32", &[3, 17]) },
        Problem {
            dtype: BF16,
            other: F16,
            n: 19,
            k: 48,
            scale: true,
            index_div: Some(1),
            ..p("bf16 and f16", &[0, 20])
        },
        Problem { dtype: F16, other: BF16, n: 64, k: 21, ..p("f16 and bf16", &[33]) },
        Problem { dtype: BF16, other: BF16, n: 33, k: 70, exact: true, ..p("exact integers bf16", &[40, 0, 31]) },
        Problem { n: 36, k: 60, ..p("weights of 25 KiB in experts of 8", &[3, 0, 5]) },
        Problem { n: 101, k: 60, accumulate: true, ..p("weights of 23 KiB in one expert", &[4]) },
        Problem {
            n: 101,
            k: 61,
            dtype: BF16,
            other: BF16,
            spare: 1,
            ..p("experts of an odd number of halves", &[3, 2, 2])
        },
        Problem { n: 6, k: 2100, ..p("rows of 8 KiB", &[1]) },
        Problem { n: 4, k: 4, exact: true, ..p("a group far above the mean", &[0, 1, 20_000, 0, 0, 0, 0, 3]) },
        // A software driver leaves loops after 65,535 iterations, without a word.
        Problem { n: 1, k: 300_000, exact: true, ..p("a long row", &[1]) },
        Problem { n: 40, k: 300, exact: true, scale: true, index_div: Some(2), ..p("exact integers", &[100, 3, 31]) },
    ]
}

/// The numbers of one operand as the oracle reads them: row r of the product.
struct Operand {
    values: Vec<f64>,
    cols: usize,
    source: Vec<usize>,
}

impl Operand {
    fn row(&self, r: usize) -> &[f64] {
        &self.values[self.source[r] * self.cols..][..self.cols]
    }
}

impl Problem {
    fn rows(&self) -> usize {
        self.counts.iter().sum()
    }

    fn total(&self) -> usize {
        self.rows() + self.spare
    }

    fn values(&self, rng: &mut Rng, len: usize) -> Vec<f32> {
        (0..len).map(|_| if self.exact { rng.below(9) as f32 - 4.0 } else { rng.normal() as f32 }).collect()
    }

    /// Stores one more row than is needed, NaN in all rows that no used row reads.
    fn operand(
        &self,
        case: &mut Case,
        rng: &mut Rng,
        name: &'static str,
        (cols, dtype): (usize, DType),
    ) -> (Slot, Option<Slot>, Operand) {
        let (rows, total) = (self.rows(), self.total());
        let stored = total + 1;
        let mut source: Vec<usize> = (0..rows).collect();
        let mut index = None;
        if let Some(div) = self.index_div {
            source = (0..rows).map(|_| rng.below(stored)).collect();
            let mut entries: Vec<u32> = source.iter().map(|row| (row * div + rng.below(div)) as u32).collect();
            entries.resize(total, u32::MAX);
            index = Some(case.u32("index", &entries));
        }
        let mut values = self.values(rng, stored * cols);
        for unused in (0..stored).filter(|row| !source.contains(row)) {
            values[unused * cols..(unused + 1) * cols].fill(f32::NAN);
        }
        let (slot, values) = case.floats(name, &values, dtype);
        (slot, index, Operand { values, cols, source })
    }

    fn group_of(&self, row: usize) -> usize {
        offsets(&self.counts)[1..].partition_point(|&end| end as usize <= row)
    }

    fn forward(&self) -> Case {
        let (mut case, mut rng) = (Case::new(self.name), Rng::new(11));
        let (x, index, rows) = self.operand(&mut case, &mut rng, "x", (self.k, self.dtype));
        let weights = self.values(&mut rng, self.counts.len() * self.n * self.k);
        let (w, weights) = case.floats("w", &weights, self.other);
        let offsets = case.u32("offsets", &offsets(&self.counts));
        let out = case.out("out", F32, self.total() * self.n);
        let args = GroupedForward {
            rows: self.total(),
            groups: self.counts.len(),
            n: self.n,
            k: self.k,
            index_div: self.index_div.unwrap_or(1),
            x,
            index,
            w,
            offsets,
            out,
        };
        case.run(args);
        let element = |r: usize, j: usize| {
            let w = &weights[(self.group_of(r) * self.n + j) * self.k..][..self.k];
            self.sum(rows.row(r).iter().zip(w).map(|(x, w)| x * w))
        };
        case.want(out, grid(self.rows(), self.n, element));
        case
    }

    fn dgrad(&self) -> Case {
        let (mut case, mut rng) = (Case::new(self.name), Rng::new(12));
        let (dy, index, rows) = self.operand(&mut case, &mut rng, "dy", (self.n, self.dtype));
        let weights = self.values(&mut rng, self.counts.len() * self.n * self.k);
        let (w, weights) = case.floats("w", &weights, self.other);
        let offsets = case.u32("offsets", &offsets(&self.counts));
        let out = case.out("out", F32, self.total() * self.k);
        let args = GroupedDgrad {
            rows: self.total(),
            groups: self.counts.len(),
            n: self.n,
            k: self.k,
            index_div: self.index_div.unwrap_or(1),
            dy,
            index,
            w,
            offsets,
            out,
        };
        case.run(args);
        let element = |r: usize, j: usize| {
            let e = self.group_of(r);
            self.sum(rows.row(r).iter().enumerate().map(|(i, dy)| dy * weights[(e * self.n + i) * self.k + j]))
        };
        case.want(out, grid(self.rows(), self.k, element));
        case
    }

    fn wgrad(&self) -> Case {
        let (mut case, mut rng) = (Case::new(self.name), Rng::new(13));
        let (dy, dy_index, dy_rows) = self.operand(&mut case, &mut rng, "dy", (self.n, self.dtype));
        let (x, x_index, x_rows) = self.operand(&mut case, &mut rng, "x", (self.k, self.other));
        let mut scale = self.values(&mut rng, self.rows());
        scale.resize(self.total(), f32::NAN);
        let dy_scale = self.scale.then(|| case.f32("dy_scale", &scale));
        let starts = offsets(&self.counts);
        let offsets = case.u32("offsets", &starts);
        let len = self.counts.len() * self.n * self.k;
        let before = self.values(&mut rng, len);
        let out = if self.accumulate { case.in_out("out", &before, F32) } else { case.out("out", F32, len) };
        let div = self.index_div.unwrap_or(1);
        let args = GroupedWgrad {
            rows: self.total(),
            groups: self.counts.len(),
            n: self.n,
            k: self.k,
            dy_div: div,
            x_div: div,
            accumulate: self.accumulate,
            dy,
            dy_index,
            dy_scale,
            x,
            x_index,
            offsets,
            out,
        };
        case.run(args);
        let element = |at: usize| {
            let (e, i, j) = (at / (self.n * self.k), at / self.k % self.n, at % self.k);
            if self.counts[e] == 0 {
                return if self.accumulate { Want::Held } else { Want::Bits(0) };
            }
            let rows = starts[e] as usize..starts[e + 1] as usize;
            let scale = |r: usize| if self.scale { f64::from(scale[r]) } else { 1.0 };
            let products = rows.map(|r| scale(r) * dy_rows.row(r)[i] * x_rows.row(r)[j]);
            self.sum(self.accumulate.then(|| f64::from(before[at])).into_iter().chain(products))
        };
        case.want(out, (0..len).map(element).collect());
        case
    }

    /// One rounding for each term, and one for a scaled factor.
    fn sum(&self, terms: impl Iterator<Item = f64>) -> Want {
        let (mut value, mut size, mut count) = (0.0, 0.0, 1.0);
        for term in terms {
            value += term;
            size += term.abs();
            count += 1.0;
        }
        near(value, size, if self.exact { 0.0 } else { count })
    }
}

fn grid(rows: usize, cols: usize, element: impl Fn(usize, usize) -> Want) -> Vec<Want> {
    (0..rows * cols).map(|i| element(i / cols, i % cols)).collect()
}

/// The buffers of the refusals: 4 rows, 2 groups, n 3, k 2.
struct Small {
    case: Case,
    x: Slot,
    dy: Slot,
    w: Slot,
    offsets: Slot,
    by_n: Slot,
    by_k: Slot,
    grad: Slot,
}

impl Small {
    fn new(name: &str, offsets: &[u32]) -> Self {
        let mut case = Case::new(name);
        let x = case.f32("x", &[1.0; 8]);
        let dy = case.f32("dy", &[1.0; 12]);
        let w = case.f32("w", &[1.0; 12]);
        let offsets = case.u32("offsets", offsets);
        let by_n = case.out("out_by_n", F32, 12);
        let by_k = case.out("out_by_k", F32, 8);
        let grad = case.out("grad", F32, 12);
        Self { case, x, dy, w, offsets, by_n, by_k, grad }
    }

    fn forward(&self) -> GroupedForward<Slot> {
        let &Self { x, w, offsets, by_n: out, .. } = self;
        GroupedForward { rows: 4, groups: 2, n: 3, k: 2, index_div: 1, x, index: None, w, offsets, out }
    }

    fn dgrad(&self) -> GroupedDgrad<Slot> {
        let &Self { dy, w, offsets, by_k: out, .. } = self;
        GroupedDgrad { rows: 4, groups: 2, n: 3, k: 2, index_div: 1, dy, index: None, w, offsets, out }
    }

    fn wgrad(&self) -> GroupedWgrad<Slot> {
        let &Self { x, dy, offsets, grad: out, .. } = self;
        GroupedWgrad {
            rows: 4,
            groups: 2,
            n: 3,
            k: 2,
            dy_div: 1,
            x_div: 1,
            accumulate: false,
            dy,
            dy_index: None,
            dy_scale: None,
            x,
            x_index: None,
            offsets,
            out,
        }
    }
}

type Change = fn(&mut Small, &mut GroupedForward<Slot>, &mut GroupedDgrad<Slot>, &mut GroupedWgrad<Slot>);

fn refusals() -> Vec<Case> {
    let changes: [(&str, [u32; 3], &'static str, Change); 11] = [
        ("offsets fall", [0, 3, 2], "offsets", |_, _, _, _| {}),
        ("offsets past the rows", [0, 3, 5], "", |_, _, _, _| {}),
        ("short offsets", [0, 2, 4], "offsets", |_, f, d, w| (f.groups, d.groups, w.groups) = (3, 3, 3)),
        ("groups beyond the address space", [0, 2, 4], "", |_, f, d, w| {
            (f.groups, d.groups, w.groups) = (usize::MAX, usize::MAX, usize::MAX);
        }),
        ("zero divisor", [0, 2, 4], "div", |_, f, d, w| (f.index_div, d.index_div, w.x_div) = (0, 0, 0)),
        ("index out of range", [0, 2, 4], "index", |s, f, d, w| {
            let index = Some(s.case.u32("index", &[0, 1, 4, 2]));
            (f.index, d.index, w.x_index) = (index, index, index);
        }),
        ("short index", [0, 2, 4], "index", |s, f, d, w| {
            let index = Some(s.case.u32("index", &[0, 1, 2]));
            (f.index, d.index, w.x_index) = (index, index, index);
        }),
        ("integer operand", [0, 2, 4], "u32", |s, f, d, w| {
            let wrong = s.case.u32("wrong", &[0; 12]);
            (f.x, d.dy, w.dy) = (wrong, wrong, wrong);
        }),
        ("short output", [0, 2, 4], "short", |s, f, d, w| {
            let short = s.case.out_exact("short", F32, 6);
            (f.out, d.out, w.out) = (short, short, short);
        }),
        ("aliased output", [0, 2, 4], "in use", |_, f, d, w| (f.out, d.out, w.out) = (f.x, d.dy, w.x)),
        // 2^33 rows of 2^31 columns pass 2^64, which must not wrap to something small.
        ("faults 12 13 14 sizes pass the address space", [0, 2, 4], "", |_, f, d, w| {
            (f.rows, f.n, d.rows, d.k) = (1 << 33, 1 << 31, 1 << 33, 1 << 31);
            (w.n, w.k) = (1 << 33, 1 << 31);
        }),
    ];
    let mut cases = Vec::new();
    for (name, offsets, fragment, change) in changes {
        for which in 0..3 {
            let mut small = Small::new(name, &offsets);
            let (mut f, mut d, mut w) = (small.forward(), small.dgrad(), small.wgrad());
            change(&mut small, &mut f, &mut d, &mut w);
            match which {
                0 => small.case.run(f),
                1 => small.case.run(d),
                _ => small.case.run(w),
            }
            cases.push(small.case.refused(&[fragment]));
        }
    }
    cases
}

/// What is not finite stays within its row.
fn extremes() -> Vec<Case> {
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -0.0, f32::MIN_POSITIVE, 3e38];
    let (n, k, rows) = (3, 5, special.len() + 1);
    let mut rng = Rng::new(14);
    let mut x: Vec<f32> = (0..rows * k).map(|_| rng.normal() as f32).collect();
    for (row, &value) in special.iter().enumerate() {
        x[row * k + row % k] = value;
    }
    let w: Vec<f32> = (0..n * k).map(|_| rng.normal() as f32).collect();
    let mut case = Case::new("special values stay in their row");
    let args = GroupedForward {
        rows,
        groups: 1,
        n,
        k,
        index_div: 1,
        x: case.f32("x", &x),
        index: None,
        w: case.f32("w", &w),
        offsets: case.u32("offsets", &offsets(&[rows])),
        out: case.out("out", F32, rows * n),
    };
    let out = args.out;
    case.run(args);
    let element = |r: usize, j: usize| {
        let terms = (0..k).map(|i| f64::from(x[r * k + i]) * f64::from(w[j * k + i]));
        PLAIN.sum(terms)
    };
    case.want(out, grid(rows, n, element));
    vec![case]
}

/// All cases of this family.
pub fn cases() -> Vec<Case> {
    let problems = problems();
    let forward = problems.iter().map(Problem::forward);
    let rest = problems.iter().map(Problem::dgrad).chain(problems.iter().map(Problem::wgrad));
    forward.chain(rest).chain(refusals()).chain(extremes()).collect()
}

/// All properties of this family.
pub fn properties() -> Vec<Property> {
    vec![
        Property { name: "grouped_forward::row_bits_stand_alone", check: |runner| stand_alone(runner, false) },
        Property { name: "grouped_dgrad::row_bits_stand_alone", check: |runner| stand_alone(runner, true) },
        Property { name: "grouped_forward::variants", check: |runner| variants(runner, Problem::forward) },
        Property { name: "grouped_dgrad::variants", check: |runner| variants(runner, Problem::dgrad) },
        Property { name: "grouped_wgrad::variants", check: |runner| variants(runner, Problem::wgrad) },
    ]
}

/// Every variant of a device, and weights bound in windows, give the same bits.
fn variants(runner: &dyn Runner, case: fn(&Problem) -> Case) -> Result<(), String> {
    let variants = runner.gemm_variants()?;
    let mut compared = 0;
    for problem in problems() {
        let case = case(&problem);
        let expected = case.bits(runner)?;
        for variant in &variants {
            match case.bits(&**variant) {
                Ok(bits) if bits == expected => compared += 1,
                Ok(_) => return Err(format!("{} has other bits with {}", problem.name, variant.label())),
                // Rows of the batch are not bound in windows.
                Err(why) if variant.label() == "small bindings" && why.contains("binds at most 16384 bytes") => {}
                Err(why) => return Err(format!("{} with {}: {why}", problem.name, variant.label())),
            }
        }
    }
    let least = problems().len() * variants.len().saturating_sub(1);
    if compared < least { Err(format!("only {compared} of {least} comparisons were made")) } else { Ok(()) }
}

/// A row has the same bits alone, within many rows, in another order, and beside a row of NaN.
fn stand_alone(runner: &dyn Runner, dgrad: bool) -> Result<(), String> {
    let (n, k, rows) = (37, 61, 150);
    let mut rng = Rng::new(15);
    let cols = if dgrad { n } else { k };
    let out_cols = n + k - cols;
    let mut x: Vec<f32> = (0..rows * cols).map(|_| rng.normal() as f32).collect();
    x[4 * cols] = f32::NAN;
    let w: Vec<f32> = (0..n * k).map(|_| rng.normal() as f32).collect();
    let run = |order: &[u32]| -> Result<Vec<Vec<u32>>, String> {
        let mut case = Case::new("rows");
        let (x, w) = (case.f32("x", &x), case.f32("w", &w));
        let index = Some(case.u32("index", order));
        let (rows, offsets) = (order.len(), case.u32("offsets", &offsets(&[order.len()])));
        let out = case.out("out", F32, rows * out_cols);
        match dgrad {
            true => case.run(GroupedDgrad { rows, groups: 1, n, k, index_div: 1, dy: x, index, w, offsets, out }),
            false => case.run(GroupedForward { rows, groups: 1, n, k, index_div: 1, x, index, w, offsets, out }),
        }
        let after = runner.run(&case).map_err(|e| e.to_string())?;
        let row = |r: usize| (0..out_cols).map(|j| bits(&after[out.0], r * out_cols + j)).collect();
        Ok((0..rows).map(row).collect())
    };
    let together = run(&(0..rows as u32).collect::<Vec<_>>())?;
    let backwards = run(&(0..rows as u32).rev().collect::<Vec<_>>())?;
    for row in (0..rows).filter(|&row| row != 4) {
        if backwards[rows - 1 - row] != together[row] {
            return Err(format!("row {row} depends on the order of rows"));
        }
        for beside in [1, 2, 3, 5, 8, 17] {
            let few: Vec<u32> = (0..beside).map(|i| ((row + i) % rows) as u32).collect();
            if run(&few)?[0] != together[row] {
                return Err(format!("row {row} of {rows} differs among {beside} rows"));
            }
        }
    }
    Ok(())
}
