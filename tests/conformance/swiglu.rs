//! SwiGLU forward and backward, and the sigmoid of a shared expert's gate.

use lrmoe::DType::{self, BF16, F32};
use lrmoe::kernel::{GroupedDgrad, GroupedForward, Sigmoid, SigmoidBackward, SwiGlu, SwiGluBackward};

use crate::devices::Runner;
use crate::support::oracle::sigmoid;
use crate::support::rng::Rng;
use crate::table::{Case, EXP, Property, Slot, Want, bits, near, offsets};

/// A sigmoid below the normal range of f32 may be flushed: an absolute 2^-126, here relative to one rounding.
const FLUSHED: f64 = 1.972_152_263_052_53e-31;

struct Shape {
    name: &'static str,
    counts: Vec<usize>,
    width: usize,
    spare: usize,
    index: bool,
    scale: bool,
    special: bool,
}

fn shapes() -> Vec<Shape> {
    let s = |name, counts: &[usize], width| Shape {
        name,
        counts: counts.to_vec(),
        width,
        spare: 0,
        index: false,
        scale: true,
        special: false,
    };
    vec![
        s("typical", &[5, 0, 9], 16),
        s("large", &[130, 0, 199], 40),
        Shape { spare: 3, index: true, ..s("no multiple of four, spare rows, index", &[3, 1], 7) },
        Shape { scale: false, ..s("no scale", &[4, 2], 5) },
        Shape { index: true, ..s("wide", &[3], 1000) },
        Shape { spare: 1, ..s("wider", &[2], 8196) },
        s("one row", &[1], 1),
        s("no rows", &[0, 0], 4),
        Shape { spare: 2, ..s("no groups but spare rows", &[], 4) },
        Shape { special: true, ..s("special values stay in their row", &[4, 12], 6) },
    ]
}

const SPECIAL: [f32; 14] = [
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    -0.0,
    1e-40,
    -1e-40,
    1e30,
    -1e30,
    90.0,
    -90.0,
    -103.9,
    -88.0,
    3e38,
    -3e38,
];

impl Shape {
    fn rows(&self) -> usize {
        self.counts.iter().sum()
    }

    fn total(&self) -> usize {
        self.rows() + self.spare
    }

    fn ab(&self, rng: &mut Rng, rows: usize, used: impl Fn(usize) -> bool) -> Vec<f32> {
        let cols = 2 * self.width;
        let mut ab: Vec<f32> = (0..rows * cols).map(|_| (2.0 * rng.normal()) as f32).collect();
        for row in (0..rows).filter(|&row| !used(row)) {
            ab[row * cols..(row + 1) * cols].fill(f32::NAN);
        }
        if self.special {
            for (row, value) in SPECIAL.into_iter().enumerate() {
                ab[row * cols + row % self.width] = value;
            }
            ab[14 * cols + self.width] = f32::NAN;
            ab[15 * cols + self.width] = f32::INFINITY;
        }
        ab
    }

    fn forward(&self) -> Case {
        let (mut case, rows, width) = (Case::new(self.name), self.rows(), self.width);
        let values = self.ab(&mut Rng::new(21), self.total(), |row| row < rows);
        let args = SwiGlu {
            rows: self.total(),
            width,
            groups: self.counts.len(),
            ab: case.f32("ab", &values),
            offsets: case.u32("offsets", &offsets(&self.counts)),
            h: case.out("h", F32, self.total() * width),
            norm: case.out("norm", F32, self.total()),
        };
        let (h, norm) = (args.h, args.norm);
        case.run(args);
        let silu = |i: usize| activation(&values[i / width * 2 * width..], width, i % width);
        case.want(h, (0..rows * width).map(|i| silu(i).want()).collect());
        let norm_of = |row: usize| {
            let h: Vec<f64> = (0..width).map(|i| silu(row * width + i).h).collect();
            let fits = h.iter().all(|&h| h.is_finite() && (h as f32).is_finite());
            // From here on a scale: squares of h near 1e38 are no problem in f64.
            let norm = if fits { h.iter().map(|h| h * h).sum::<f64>().sqrt() } else { f64::INFINITY };
            let flushed: f64 = (0..width).map(|i| silu(row * width + i).flushed).sum();
            near(norm.min(if fits { f64::from(f32::MAX) } else { norm }), norm + flushed, EXP + 2.0)
        };
        case.want(norm, (0..rows).map(norm_of).collect());
        case
    }

    fn backward(&self) -> Case {
        let (mut case, rows, width) = (Case::new(self.name), self.rows(), self.width);
        let mut rng = Rng::new(22);
        let stored = self.total() + 2;
        let source: Vec<usize> = match self.index {
            true => (0..rows).map(|_| rng.below(stored)).collect(),
            false => (0..rows).collect(),
        };
        let values = self.ab(&mut rng, stored, |row| source.contains(&row));
        let mut upstream: Vec<f32> = (0..self.total() * width).map(|_| rng.normal() as f32).collect();
        upstream[rows * width..].fill(f32::NAN);
        let mut scale: Vec<f32> = (0..self.total()).map(|_| rng.normal() as f32).collect();
        scale[rows..].fill(f32::NAN);
        let mut index: Vec<u32> = source.iter().map(|&row| row as u32).collect();
        index.resize(self.total(), u32::MAX);
        let args = SwiGluBackward {
            rows: self.total(),
            width,
            groups: self.counts.len(),
            ab: case.f32("ab", &values),
            ab_index: case.optional_u32("ab_index", self.index.then_some(&index)),
            u: case.f32("u", &upstream),
            scale: case.optional_f32("scale", self.scale.then_some(&scale)),
            offsets: case.u32("offsets", &offsets(&self.counts)),
            d_ab: case.out("d_ab", F32, self.total() * 2 * width),
            h: case.out("h", F32, self.total() * width),
            dot: case.out("dot", F32, self.total()),
        };
        let (d_ab, h, dot) = (args.d_ab, args.h, args.dot);
        case.run(args);
        let scale = |row: usize| if self.scale { f64::from(scale[row]) } else { 1.0 };
        let silu = |row: usize, i: usize| activation(&values[source[row] * 2 * width..], width, i);
        let d = |at: usize| {
            let (row, column) = (at / (2 * width), at % (2 * width));
            let i = column % width;
            let act = silu(row, i);
            let su = scale(row) * f64::from(upstream[row * width + i]);
            if column >= width {
                return near(su * act.a * act.s, su.abs() * (act.a * act.s).abs() + FLUSHED * (su * act.a).abs(), EXP);
            }
            // Near a = -1.28 the two terms cancel.
            let size = (su * act.b * act.s).abs() * (1.0 + (act.a * (1.0 - act.s)).abs());
            let value = su * act.b * act.s * (1.0 + act.a * (1.0 - act.s));
            near(value, size + FLUSHED * (su * act.b).abs() * (1.0 + act.a.abs()), EXP)
        };
        case.want(d_ab, (0..rows * 2 * width).map(d).collect());
        case.want(h, (0..rows * width).map(|i| silu(i / width, i % width).want()).collect());
        let dot_of = |row: usize| {
            let u = |i: usize| f64::from(upstream[row * width + i]);
            let value: f64 = (0..width).map(|i| u(i) * silu(row, i).h).sum();
            let size = (0..width).map(|i| u(i).abs() * (silu(row, i).h.abs() + silu(row, i).flushed)).sum();
            let overflows = (0..width).any(|i| silu(row, i).h.is_finite() && (silu(row, i).h as f32).is_infinite());
            near(if overflows { f64::INFINITY * value } else { value }, size, EXP + 2.0)
        };
        case.want(dot, (0..rows).map(dot_of).collect());
        case
    }
}

struct Activation {
    a: f64,
    b: f64,
    s: f64,
    h: f64,
    /// What h may lose where its sigmoid is flushed, as part of a size.
    flushed: f64,
}

impl Activation {
    fn want(&self) -> Want {
        near(self.h, self.h.abs() + self.flushed, EXP)
    }
}

fn activation(ab: &[f32], width: usize, i: usize) -> Activation {
    let (a, b) = (f64::from(ab[i]), f64::from(ab[width + i]));
    let s = sigmoid(a);
    Activation { a, b, s, h: a * s * b, flushed: FLUSHED * (a * b).abs() }
}

fn sigmoids() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut values =
        vec![0.0, -0.0, 1e-40, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 20.0, -20.0, 89.0, -89.0, -104.0];
    // Where the range reduction of e^x has to be exact.
    values.extend([-36.36, -72.43]);
    let mut rng = Rng::new(23);
    values.extend((0..287).map(|_| (3.0 * rng.normal()) as f32));
    for (name, len) in [("special and random values", values.len()), ("one", 1), ("none", 0)] {
        let mut case = Case::new(name);
        let (z, s) = (case.f32("z", &values), case.out("s", F32, len));
        case.run(Sigmoid { len, z, s });
        let want = |z: f32| near(sigmoid(z.into()), sigmoid(z.into()) + FLUSHED, EXP);
        case.want(s, values[..len].iter().map(|&z| want(z)).collect());
        cases.push(case);

        let mut case = Case::new(name);
        let s_of: Vec<f32> = values.iter().map(|&z| sigmoid(z.into()) as f32).collect();
        let up: Vec<f32> = (0..values.len()).map(|i| i as f32 - 7.0).collect();
        let (s, ds) = (case.f32("s", &s_of), case.f32("ds", &up));
        let dz = case.out("dz", F32, len);
        case.run(SigmoidBackward { len, s, ds, dz });
        let want = |i: usize| {
            let s = f64::from(s_of[i]);
            let value = f64::from(up[i]) * s * (1.0 - s);
            near(value, value, 4.0)
        };
        case.want(dz, (0..len).map(want).collect());
        cases.push(case);
    }
    cases
}

fn refusals() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut refuse =
        |name: &str, fragment: &'static str, change: fn(&mut Case, &mut SwiGlu<Slot>, &mut SwiGluBackward<Slot>)| {
            for backward in [false, true] {
                let mut case = Case::new(name);
                let (ab, u) = (case.f32("ab", &[1.0; 16]), case.f32("u", &[1.0; 8]));
                let offsets = case.u32("offsets", &[0, 1, 4]);
                let (h, norm) = (case.out("h", F32, 8), case.out("norm", F32, 4));
                let d_ab = case.out("d_ab", F32, 16);
                let mut f = SwiGlu { rows: 4, width: 2, groups: 2, ab, offsets, h, norm };
                let mut b = SwiGluBackward {
                    rows: 4,
                    width: 2,
                    groups: 2,
                    ab,
                    ab_index: None,
                    u,
                    scale: None,
                    offsets,
                    d_ab,
                    h,
                    dot: norm,
                };
                change(&mut case, &mut f, &mut b);
                if backward {
                    case.run(b);
                } else {
                    case.run(f);
                }
                cases.push(case.refused(&[fragment]));
            }
        };
    refuse("offsets past the rows", "offset", |_, f, b| (f.rows, b.rows) = (3, 3));
    refuse("offsets fall", "offsets", |case, f, b| {
        let offsets = case.u32("falling", &[0, 3, 2]);
        (f.offsets, b.offsets) = (offsets, offsets);
    });
    refuse("short ab", "`short`", |case, f, b| {
        let short = case.f32("short", &[1.0; 15]);
        (f.ab, b.ab) = (short, short);
    });
    refuse("short output", "`short`", |case, f, b| {
        let short = case.out_exact("short", F32, 7);
        (f.h, b.h) = (short, short);
    });
    refuse("integer ab", "`wrong` is u32; expected f32", |case, f, b| {
        let wrong = case.u32("wrong", &[1; 16]);
        (f.ab, b.ab) = (wrong, wrong);
    });
    refuse("aliased output", "in use", |_, f, b| (f.h, b.d_ab) = (f.ab, b.ab));
    refuse("width beyond the address space", "", |_, f, b| (f.width, b.width) = (usize::MAX / 2, usize::MAX / 2));
    refuse("width beyond the address space without rows", "", |case, f, b| {
        let offsets = case.u32("empty", &[0, 0, 0]);
        (f.offsets, b.offsets) = (offsets, offsets);
        (f.width, b.width) = (usize::MAX / 2, usize::MAX / 2);
    });
    refuse("groups beyond the address space", "", |_, f, b| (f.groups, b.groups) = (usize::MAX, usize::MAX));
    let mut case = Case::new("index out of range");
    let args = SwiGluBackward {
        rows: 2,
        width: 2,
        groups: 1,
        ab: case.f32("ab", &[1.0; 12]),
        ab_index: Some(case.u32("ab_index", &[0, 3])),
        u: case.f32("u", &[1.0; 4]),
        scale: None,
        offsets: case.u32("offsets", &[0, 2]),
        d_ab: case.out("d_ab", F32, 8),
        h: case.out("h", F32, 4),
        dot: case.out("dot", F32, 2),
    };
    case.run(args);
    cases.push(case.refused(&["ab_index", "3"]));
    let mut case = Case::new("short input");
    let (z, s) = (case.f32("z", &[1.0; 3]), case.out("s", F32, 4));
    case.run(Sigmoid { len: 4, z, s });
    cases.push(case.refused(&["`z`"]));
    let mut case = Case::new("short input");
    let (s, ds, dz) = (case.f32("s", &[1.0; 4]), case.f32("ds", &[1.0; 3]), case.out("dz", F32, 4));
    case.run(SigmoidBackward { len: 4, s, ds, dz });
    cases.push(case.refused(&["`ds`"]));
    cases
}

/// All cases of this family.
pub fn cases() -> Vec<Case> {
    let shapes = shapes();
    let both = shapes.iter().flat_map(|shape| [shape.forward(), shape.backward()]);
    both.chain(sigmoids()).chain(refusals()).collect()
}

/// All properties of this family.
pub fn properties() -> Vec<Property> {
    vec![
        Property { name: "swiglu::recomputed_h_has_the_bits_of_the_stash", check: recompute },
        Property { name: "swiglu::rows_in_front_of_the_first_offset_stay", check: in_front },
    ]
}

/// Rows in front of the first offset keep what they held, of SwiGLU alone and behind a product, and the others their bits.
fn in_front(runner: &dyn Runner) -> Result<(), String> {
    let (rows, width, k, groups) = (9, 20, 8, 2);
    let mut rng = Rng::new(25);
    let mut random = |len: usize| -> Vec<f32> { (0..len).map(|_| rng.normal() as f32).collect() };
    let (x, w, down) = (random(rows * k), random(groups * 2 * width * k), random(groups * k * width));
    let (ab, u) = (random(2 * rows * width), random(rows * width));
    let run = |starts: [u32; 3], product: bool, dtype: DType| {
        let mut case = Case::new("rows");
        let offsets = case.u32("offsets", &starts);
        let (x, ab) = (case.f32("x", &x), case.in_out("ab", &ab, F32));
        let (w, down) = (case.floats("w", &w, dtype).0, case.floats("down", &down, dtype).0);
        let u = case.in_out("u", &u, F32);
        let (h, norm) = (case.out("h", F32, rows * width), case.out("norm", F32, rows));
        let d_ab = case.out("d_ab", F32, 2 * rows * width);
        let (again, dot) = (case.out("again", F32, rows * width), case.out("dot", F32, rows));
        if product {
            let n = 2 * width;
            case.run(GroupedForward { rows, groups, n, k, index_div: 1, x, index: None, w, offsets, out: ab });
        }
        case.run(SwiGlu { rows, width, groups, ab, offsets, h, norm });
        if product {
            let (n, k, out) = (k, width, u);
            case.run(GroupedDgrad { rows, groups, n, k, index_div: 1, dy: x, index: None, w: down, offsets, out });
        }
        case.run(SwiGluBackward {
            rows,
            width,
            groups,
            ab,
            ab_index: None,
            u,
            scale: None,
            offsets,
            d_ab,
            h: again,
            dot,
        });
        let after = runner.run(&case).map_err(|e| e.to_string())?;
        let slots = [(h, width), (norm, 1), (d_ab, 2 * width), (again, width), (dot, 1)];
        let row = |r: usize, (slot, cols): (Slot, usize)| -> Vec<u32> {
            (r * cols..(r + 1) * cols).map(|i| bits(&after[slot.0], i)).collect()
        };
        let rows: Vec<_> = (0..rows).map(|r| slots.map(|slot| row(r, slot))).collect();
        Ok::<_, String>((rows, slots.map(|(slot, _)| bits(&case.buffers()[slot.0].1, 0))))
    };
    for (product, dtype) in [(false, F32), (true, F32), (true, BF16)] {
        let (all, held) = run([0, 5, 8], product, dtype)?;
        let (some, _) = run([3, 5, 8], product, dtype)?;
        for (r, (all, some)) in all.iter().zip(&some).enumerate() {
            let stays = |(row, held): (&Vec<u32>, &u32)| row.iter().all(|bits| bits == held);
            let right = if (3..8).contains(&r) { all == some } else { some.iter().zip(&held).all(stays) };
            if !right {
                return Err(format!("row {r} with a product: {product}, of {dtype}"));
            }
        }
    }
    Ok(())
}

/// h of the backward pass, and of a row alone, is h of the forward pass.
fn recompute(runner: &dyn Runner) -> Result<(), String> {
    let (rows, width) = (130, 37);
    let mut rng = Rng::new(24);
    let values: Vec<f32> = (0..rows * 2 * width).map(|_| (3.0 * rng.normal()) as f32).collect();
    let forward = |values: &[f32]| -> Result<Vec<u32>, String> {
        let (mut case, rows) = (Case::new("rows"), values.len() / (2 * width));
        let ab = case.f32("ab", values);
        let offsets = case.u32("offsets", &offsets(&[rows]));
        let (h, norm) = (case.out("h", F32, rows * width), case.out("norm", F32, rows));
        case.run(SwiGlu { rows, width, groups: 1, ab, offsets, h, norm });
        let after = runner.run(&case).map_err(|e| e.to_string())?;
        Ok((0..rows * width).map(|i| bits(&after[h.0], i)).collect())
    };
    let stash = forward(&values)?;
    let mut case = Case::new("backward");
    let (ab, u) = (case.f32("ab", &values), case.f32("u", &vec![1.0; rows * width]));
    let offsets = case.u32("offsets", &offsets(&[rows]));
    let d_ab = case.out("d_ab", F32, 2 * rows * width);
    let (h, dot) = (case.out("h", F32, rows * width), case.out("dot", F32, rows));
    case.run(SwiGluBackward { rows, width, groups: 1, ab, ab_index: None, u, scale: None, offsets, d_ab, h, dot });
    let after = runner.run(&case).map_err(|e| e.to_string())?;
    let differs = |&(i, stash): &(usize, &u32)| bits(&after[h.0], i) != *stash;
    if let Some((i, _)) = stash.iter().enumerate().find(differs) {
        return Err(format!("element {i} differs in the backward pass"));
    }
    for row in [0, 64, rows - 1] {
        let alone = forward(&values[row * 2 * width..(row + 1) * 2 * width])?;
        if alone != stash[row * width..(row + 1) * width] {
            return Err(format!("row {row} alone differs"));
        }
    }
    Ok(())
}
