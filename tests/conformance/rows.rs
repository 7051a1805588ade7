//! Permutation, compaction, combine, norms and dot products.

use lrmoe::DType::{self, BF16, F16, F32, U32};
use lrmoe::kernel::{Combine, GatherRows, NONE, Permute, RowDots, RowNorms};

use crate::devices::Runner;
use crate::support::rng::Rng;
use crate::table::{Case, Property, Want, bits, integers, near, number, offsets};

fn normals(rng: &mut Rng, len: usize) -> Vec<f32> {
    (0..len).map(|_| rng.normal() as f32).collect()
}

/// The stable order of pairs by expert, by a sort.
fn permute(name: &str, experts: usize, ids: &[u32]) -> Case {
    let mut case = Case::new(name);
    let pairs = ids.len();
    let args = Permute {
        pairs,
        experts,
        ids: case.u32("ids", &[ids, &[u32::MAX - 1; 2]].concat()),
        counts: case.out("counts", U32, experts),
        offsets: case.out("offsets", U32, experts + 1),
        pair_of_row: case.out("pair_of_row", U32, pairs),
        row_of_pair: case.out("row_of_pair", U32, pairs),
    };
    let mut order: Vec<u32> = (0..pairs as u32).filter(|&p| ids[p as usize] != NONE).collect();
    order.sort_by_key(|&p| (ids[p as usize], p));
    let counts: Vec<usize> = (0..experts).map(|e| ids.iter().filter(|&&id| id as usize == e).count()).collect();
    let rows: Vec<u32> =
        (0..pairs as u32).map(|p| order.iter().position(|&q| q == p).map_or(NONE, |row| row as u32)).collect();
    let slots = (args.counts, args.offsets, args.pair_of_row, args.row_of_pair);
    case.run(args);
    case.want(slots.0, integers(&counts.iter().map(|&n| n as u32).collect::<Vec<_>>()));
    case.want(slots.1, integers(&offsets(&counts)));
    case.want(slots.2, integers(&order));
    case.want(slots.3, integers(&rows));
    case
}

fn permutes() -> Vec<Case> {
    let mut rng = Rng::new(41);
    let mut random = |pairs: usize, experts: usize, none: usize| -> Vec<u32> {
        (0..pairs).map(|_| if rng.below(10) < none { NONE } else { rng.below(experts) as u32 }).collect()
    };
    vec![
        permute("typical", 8, &random(60, 8, 0)),
        permute("fault 12 NONE entries are left out", 8, &random(61, 8, 3)),
        permute("large", 128, &random(2000, 128, 1)),
        permute("more experts than pairs", 3000, &random(700, 3000, 2)),
        permute("one expert", 1, &random(13, 1, 2)),
        permute("one pair", 5, &[3]),
        permute("no pairs", 4, &[]),
        permute("no experts", 0, &[]),
        permute("all NONE", 3, &[NONE; 9]),
        permute("all on one expert", 4, &[2; 17]),
        permute("empty first middle last", 6, &[1, 4, 1, 4, 4]),
        permute("k = E", 3, &[2, 1, 0, 0, 1, 2, 1, 0, 2]),
    ]
}

struct Gather {
    name: &'static str,
    counts: Vec<usize>,
    first: u32,
    spare: usize,
    cols: usize,
    div: usize,
    dtype: DType,
    scale: bool,
}

fn gathers() -> Vec<Case> {
    let g = |name, counts: &[usize]| Gather {
        name,
        counts: counts.to_vec(),
        first: 0,
        spare: 0,
        cols: 8,
        div: 1,
        dtype: F32,
        scale: false,
    };
    let table = [
        g("typical", &[3, 0, 5]),
        Gather { cols: 33, spare: 5, scale: true, div: 2, ..g("large", &[200, 0, 131]) },
        Gather { cols: 7, spare: 3, scale: true, ..g("scale", &[3, 2]) },
        Gather { div: 4, spare: 1, ..g("divisor", &[3, 2]) },
        Gather { dtype: BF16, ..g("bf16", &[3, 2]) },
        Gather { dtype: F16, spare: 2, ..g("f16", &[3, 2]) },
        Gather { dtype: BF16, cols: 7, first: 1, spare: 2, ..g("bf16 with an odd number of columns", &[3, 0, 4]) },
        Gather { dtype: F16, cols: 1, first: 1, spare: 1, div: 3, ..g("f16 with one column", &[3, 2]) },
        Gather { dtype: BF16, scale: true, ..g("scaled bf16 gives f32", &[3, 2]) },
        Gather { dtype: F16, scale: true, ..g("scaled f16 gives f32", &[3, 2]) },
        Gather { dtype: BF16, cols: 4104, spare: 1, ..g("wide bf16", &[3]) },
        Gather { cols: 1100, scale: true, ..g("wide and scaled", &[3]) },
        Gather { first: 2, spare: 2, scale: true, ..g("first offset above zero", &[3, 2]) },
        Gather { cols: 1, ..g("one row", &[1]) },
        Gather { spare: 3, ..g("no rows", &[0, 0]) },
        Gather { cols: 0, ..g("no columns", &[]) },
    ];
    let build = |g: &Gather| {
        let (mut case, mut rng) = (Case::new(g.name), Rng::new(42));
        let (first, used) = (g.first as usize, g.counts.iter().sum::<usize>());
        let total = first + used + g.spare;
        let stored = total + 1;
        let source: Vec<usize> = (0..total).map(|_| rng.below(stored)).collect();
        let mut index: Vec<u32> = source.iter().map(|s| (s * g.div + rng.below(g.div)) as u32).collect();
        let mut scale = normals(&mut rng, total);
        let mut values = normals(&mut rng, stored * g.cols);
        for row in (0..stored).filter(|row| !source[first..first + used].contains(row)) {
            values[row * g.cols..(row + 1) * g.cols].fill(f32::NAN);
        }
        if used > 2 {
            values[source[first + 1] * g.cols] = f32::NAN;
            values[source[first + 2] * g.cols + g.cols / 2] = -0.0;
        }
        for unused in (0..first).chain(first + used..total) {
            (index[unused], scale[unused]) = (u32::MAX, f32::NAN);
        }
        let (src, wide) = case.floats("src", &values, g.dtype);
        let out_type = if g.scale { F32 } else { g.dtype };
        let args = GatherRows {
            rows: total,
            cols: g.cols,
            index_div: g.div,
            groups: g.counts.len(),
            src,
            index: case.u32("index", &index),
            scale: case.optional_f32("scale", g.scale.then_some(&scale)),
            offsets: case.u32("offsets", &offsets(&g.counts).iter().map(|o| o + g.first).collect::<Vec<_>>()),
            dst: case.out("dst", out_type, total * g.cols),
        };
        let dst = args.dst;
        case.run(args);
        let source_data = &case.buffers()[src.0].1;
        let element = |i: usize| {
            let (row, col) = (i / g.cols, i % g.cols);
            let at = source[row] * g.cols + col;
            match g.scale {
                _ if row < first => Want::Held,
                // A copy keeps the bits, those of NaN and -0 too.
                false => Want::Bits(bits(source_data, at)),
                true => near(f64::from(scale[row]) * wide[at], 0.0, 1.0),
            }
        };
        let wants = (0..(first + used) * g.cols).map(element).collect();
        case.want(dst, wants);
        case
    };
    table.iter().map(build).collect()
}

struct Sum {
    name: &'static str,
    tokens: usize,
    top_k: usize,
    cols: usize,
    rows: usize,
    none: usize,
    index: bool,
    weights: bool,
    accumulate: bool,
}

fn combine(s: &Sum) -> Case {
    let (mut case, mut rng) = (Case::new(s.name), Rng::new(43));
    let pairs = s.tokens * s.top_k;
    let row_of: Vec<u32> = (0..pairs)
        .map(|p| match s.index {
            true if rng.below(10) < s.none => NONE,
            true => rng.below(s.rows) as u32,
            false => p as u32,
        })
        .collect();
    let mut rows = normals(&mut rng, s.rows * s.cols);
    for row in (0..s.rows).filter(|&row| !row_of.contains(&(row as u32))) {
        rows[row * s.cols..(row + 1) * s.cols].fill(f32::NAN);
    }
    let mut weights = normals(&mut rng, pairs);
    for (weight, _) in weights.iter_mut().zip(&row_of).filter(|(_, row)| **row == NONE) {
        *weight = f32::NAN;
    }
    let before = normals(&mut rng, s.tokens * s.cols);
    let args = Combine {
        tokens: s.tokens,
        top_k: s.top_k,
        cols: s.cols,
        accumulate: s.accumulate,
        rows: case.f32("rows", &rows),
        row_of_pair: case.optional_u32("row_of_pair", s.index.then_some(&row_of)),
        weights: case.optional_f32("weights", s.weights.then_some(&weights)),
        out: if s.accumulate { case.in_out("out", &before, F32) } else { case.out("out", F32, before.len()) },
    };
    let out = args.out;
    case.run(args);
    let element = |i: usize| {
        let (t, col) = (i / s.cols, i % s.cols);
        let start = if s.accumulate { f64::from(before[i]) } else { 0.0 };
        let (mut value, mut size) = (start, start.abs());
        for p in (t * s.top_k..(t + 1) * s.top_k).filter(|&p| row_of[p] != NONE) {
            let weight = if s.weights { f64::from(weights[p]) } else { 1.0 };
            let term = weight * f64::from(rows[row_of[p] as usize * s.cols + col]);
            value += term;
            size += term.abs();
        }
        near(value, size, s.top_k as f64 + 1.0)
    };
    case.want(out, (0..before.len()).map(element).collect());
    case
}

fn combines() -> Vec<Case> {
    let s = |name, tokens, top_k, cols, rows| Sum {
        name,
        tokens,
        top_k,
        cols,
        rows,
        none: 0,
        index: true,
        weights: true,
        accumulate: false,
    };
    let mut cases: Vec<Case> = [
        s("typical", 6, 2, 8, 20),
        Sum { none: 2, ..s("large", 150, 8, 33, 1200) },
        Sum { none: 4, ..s("NONE adds nothing", 9, 3, 7, 40) },
        Sum { none: 10, ..s("a token without rows gets zeros", 3, 2, 5, 4) },
        Sum { none: 10, accumulate: true, ..s("a token without rows stays when accumulating", 3, 2, 5, 4) },
        Sum { none: 2, ..s("wide", 3, 6, 1100, 9) },
        Sum { weights: false, ..s("no weights", 6, 2, 8, 20) },
        Sum { index: false, ..s("row t itself", 6, 1, 8, 6) },
        Sum { index: false, weights: false, accumulate: true, ..s("add rows", 6, 1, 8, 7) },
        Sum { accumulate: true, none: 1, ..s("accumulate", 6, 4, 9, 20) },
        s("fault 17 duplicate rows", 5, 8, 4, 2),
        s("one token", 1, 1, 1, 1),
        s("no tokens", 0, 2, 4, 3),
        Sum { none: 10, ..s("no rows", 3, 2, 4, 0) },
        s("no columns", 3, 1, 0, 3),
        s("no slots", 3, 0, 4, 3),
    ]
    .iter()
    // A buffer without columns holds no rows to point at.
    .filter(|s| s.cols > 0)
    .map(combine)
    .collect();
    cases.push(cancelling());
    cases
}

/// Eight slots whose values cancel: the sum is exact in f32, and lost where it is kept in a narrower type.
fn cancelling() -> Case {
    let mut case = Case::new("fault 20 cancelling slots are added in f32");
    let values = [1024.0f32, 1.0 / 1024.0, -1024.0, 3.0, 512.0, -3.0, -512.0, 1.0 / 4096.0];
    let args = Combine {
        tokens: 1,
        top_k: 8,
        cols: 1,
        accumulate: false,
        rows: case.f32("rows", &values),
        row_of_pair: Some(case.u32("row_of_pair", &[0, 1, 2, 3, 4, 5, 6, 7])),
        weights: Some(case.f32("weights", &[1.0; 8])),
        out: case.out("out", F32, 1),
    };
    let out = args.out;
    case.run(args);
    // Slot by slot in f32 every partial sum is exact, so the result is.
    case.want(out, vec![near(1.0 / 1024.0 + 1.0 / 4096.0, 0.0, 0.0)]);
    case
}

fn row_norms() -> Vec<Case> {
    let build = |name: &str, cols: usize, dtype: DType, values: &[f32]| {
        let mut case = Case::new(name);
        let (x, wide) = case.floats("x", &[values, &vec![f32::NAN; cols]].concat(), dtype);
        let rows = values.len() / cols;
        let norm = case.out("norm", F32, rows);
        case.run(RowNorms { rows, cols, x, norm });
        let of = |row: &[f64]| {
            // Scaled, so that the squares of the oracle do not matter.
            let top = row.iter().fold(0.0, |top: f64, x| if x.is_finite() { top.max(x.abs()) } else { f64::INFINITY });
            let exact = row.iter().map(|x| (x / top).powi(2)).sum::<f64>().sqrt() * top;
            let norm = if top == 0.0 {
                0.0
            } else if top.is_infinite() {
                top
            } else {
                exact.min(f32::MAX.into())
            };
            near(norm, norm, 2.0)
        };
        case.want(norm, wide.chunks(cols).take(rows).map(of).collect());
        case
    };
    let mut rng = Rng::new(44);
    let mut random = |len| normals(&mut rng, len);
    let (a, b, c, wide) = (random(40 * 9), random(300 * 65), random(12 * 33), random(2 * 8200));
    let special = [
        [0.0, -0.0, 0.0],
        [f32::NAN, 1.0, 2.0],
        [1.0, 2.0, f32::INFINITY],
        [f32::NEG_INFINITY, f32::INFINITY, 0.0],
        [3e38, 3e38, -3e38],
        [1e30, 1.0, 0.0],
        [1e-30, -1e-30, 1e-30],
        [1e-40, 0.0, 0.0],
        [f32::from_bits(1), 0.0, -0.0],
        [3.0, 4.0, 0.0],
    ];
    let mut cases = vec![
        build("typical", 9, F32, &a),
        build("large", 65, F32, &b),
        build("bf16", 33, BF16, &c),
        build("f16", 33, F16, &c),
        build("wide", 8200, F32, &wide),
        build("one element", 1, F32, &[-2.0]),
        build("no rows", 4, F32, &[]),
        build("special values stay in their row", 3, F32, special.as_flattened()),
    ];
    let mut case = Case::new("no columns");
    let (x, norm) = (case.f32("x", &[]), case.out("norm", F32, 3));
    case.run(RowNorms { rows: 3, cols: 0, x, norm });
    case.want(norm, vec![Want::Bits(0); 3]);
    cases.push(case);
    cases
}

struct Dots {
    name: &'static str,
    rows: usize,
    cols: usize,
    div: usize,
    types: (DType, DType),
    none: usize,
    index: bool,
}

fn row_dots() -> Vec<Case> {
    let d = |name, rows, cols| Dots { name, rows, cols, div: 1, types: (F32, F32), none: 0, index: false };
    let table = [
        d("typical", 9, 16),
        Dots { div: 4, index: true, none: 2, ..d("large", 300, 65) },
        Dots { div: 3, index: true, none: 4, ..d("divisor, index and NONE", 10, 7) },
        Dots { types: (BF16, F32), ..d("bf16 by f32", 5, 9) },
        Dots { types: (F16, BF16), index: true, ..d("f16 by bf16", 5, 9) },
        Dots { types: (BF16, BF16), ..d("wide bf16", 2, 8200) },
        Dots { index: true, none: 10, ..d("all NONE", 4, 3) },
        d("one", 1, 1),
        d("none", 0, 5),
        d("no columns", 3, 0),
    ];
    let build = |d: &Dots| {
        let (mut case, mut rng) = (Case::new(d.name), Rng::new(45));
        let a_rows = d.rows.div_ceil(d.div);
        let stored = d.rows + 2;
        let index: Vec<u32> = (0..d.rows)
            .map(|i| match d.index {
                true if rng.below(10) < d.none => NONE,
                true => rng.below(stored) as u32,
                false => i as u32,
            })
            .collect();
        let mut b = normals(&mut rng, stored * d.cols);
        for row in (0..stored).filter(|&row| !index.contains(&(row as u32))) {
            b[row * d.cols..(row + 1) * d.cols].fill(f32::NAN);
        }
        let values = [normals(&mut rng, a_rows * d.cols), vec![f32::NAN; d.cols]].concat();
        let (a, a_wide) = case.floats("a", &values, d.types.0);
        let (b, b_wide) = case.floats("b", &b, d.types.1);
        let b_index = case.optional_u32("b_index", d.index.then_some(&index));
        let dot = case.out("dot", F32, d.rows);
        case.run(RowDots { rows: d.rows, cols: d.cols, a_div: d.div, a, b, b_index, dot });
        let of = |i: usize| {
            if index[i] == NONE {
                return Want::Bits(0);
            }
            let (a, b) = (i / d.div * d.cols, index[i] as usize * d.cols);
            let terms = || (0..d.cols).map(|c| a_wide[a + c] * b_wide[b + c]);
            near(terms().sum(), terms().map(f64::abs).sum(), d.cols as f64 + 1.0)
        };
        case.want(dot, (0..d.rows).map(of).collect());
        case
    };
    let mut cases: Vec<Case> = table.iter().map(build).collect();
    let mut case = Case::new("special values stay in their row");
    let a = [f32::NAN, 1.0, f32::INFINITY, 1.0, f32::INFINITY, 1.0, 1e30, -0.0, 1.0, 1.0];
    let b = [1.0, 1.0, 2.0, 1.0, 0.0, 1.0, 1e30, 1.0, 2.0, 3.0];
    let args = RowDots {
        rows: 5,
        cols: 2,
        a_div: 1,
        a: case.f32("a", &a),
        b: case.f32("b", &b),
        b_index: None,
        dot: case.out("dot", F32, 5),
    };
    let dot = args.dot;
    case.run(args);
    case.want(dot, [f64::NAN, f64::INFINITY, f64::NAN, f64::INFINITY, 5.0].map(|x| near(x, x, 3.0)).to_vec());
    cases.push(case);
    cases
}

/// All cases of this family.
pub fn cases() -> Vec<Case> {
    [permutes(), gathers(), combines(), row_norms(), row_dots()].into_iter().flatten().collect()
}

/// All properties of this family.
pub fn properties() -> Vec<Property> {
    vec![
        Property { name: "combine::faults_16_17_hundred_runs", check: hundred_runs },
        Property { name: "combine::token_bits_stand_alone_in_slot_order", check: token_bits },
    ]
}

/// A hundred runs of a sum with duplicate rows have the same bits.
fn hundred_runs(runner: &dyn Runner) -> Result<(), String> {
    let sum = Sum {
        name: "runs",
        tokens: 64,
        top_k: 8,
        cols: 37,
        rows: 40,
        none: 1,
        index: true,
        weights: true,
        accumulate: false,
    };
    let case = combine(&sum);
    let first = case.bits(runner)?;
    match (1..100).find(|_| case.bits(runner).as_ref() != Ok(&first)) {
        Some(run) => Err(format!("run {run} differs")),
        None => Ok(()),
    }
}

/// The sum of a token does not depend on the tokens beside it, and slots are added in ascending order.
fn token_bits(runner: &dyn Runner) -> Result<(), String> {
    let mut rng = Rng::new(46);
    let (tokens, top_k, cols) = (40, 8, 5);
    let rows = normals(&mut rng, tokens * top_k * cols);
    let run = |index: &[u32]| -> Result<Vec<f64>, String> {
        let mut case = Case::new("tokens");
        let (rows, row_of_pair) = (case.f32("rows", &rows), Some(case.u32("row_of_pair", index)));
        let tokens = index.len() / top_k;
        let out = case.out("out", F32, tokens * cols);
        case.run(Combine { tokens, top_k, cols, accumulate: false, rows, row_of_pair, weights: None, out });
        let after = runner.run(&case).map_err(|e| e.to_string())?;
        Ok((0..tokens * cols).map(|i| number(&after[out.0], i)).collect())
    };
    let index: Vec<u32> = (0..(tokens * top_k) as u32).collect();
    let together = run(&index)?;
    for t in 0..tokens {
        let own = &index[t * top_k..(t + 1) * top_k];
        let alone = run(own)?;
        let ordered: Vec<f64> = (0..cols)
            .map(|c| own.iter().fold(0.0f32, |sum, &row| sum + rows[row as usize * cols + c]).into())
            .collect();
        if alone != together[t * cols..(t + 1) * cols] || alone != ordered {
            return Err(format!("token {t}: alone {alone:?}, in slot order {ordered:?}"));
        }
    }
    Ok(())
}
