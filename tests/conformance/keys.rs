//! Keys of rows, against signs of f64 sums.

use lrmoe::DType::{self, BF16, F16, F32, U32};
use lrmoe::kernel::{ROW_KEY_BITS, RowKeys};

use crate::support::oracle_keys::{BITS, row_keys};
use crate::support::rng::Rng;
use crate::table::{Case, integers};

fn build(name: &str, cols: usize, dtype: DType, values: &[f32]) -> Case {
    let mut case = Case::new(name);
    // A row of NaN behind the last one, which nothing may read.
    let (x, wide) = case.floats("x", &[values, &vec![f32::NAN; cols]].concat(), dtype);
    let rows = values.len() / cols;
    let key = case.out("key", U32, rows);
    case.run(RowKeys { rows, cols, x, key });
    let keys: Vec<u32> = row_keys(&wide[..rows * cols], cols).into_iter().flatten().collect();
    assert_eq!(keys.len(), rows, "{name}: a sum too near 0 to tell its sign");
    case.want(key, integers(&keys));
    case
}

/// All cases of this family.
pub fn cases() -> Vec<Case> {
    assert_eq!(BITS, ROW_KEY_BITS);
    let mut rng = Rng::new(61);
    let mut random = |len: usize| -> Vec<f32> { (0..len).map(|_| rng.normal() as f32).collect() };
    let special = [
        [0.0, -0.0, 0.0],
        [f32::NAN, 1.0, 2.0],
        [1.0, 2.0, f32::INFINITY],
        [f32::NEG_INFINITY, f32::INFINITY, 0.0],
        [f32::NEG_INFINITY, 0.0, 5.0],
        [3e38, 3e38, -3e38],
        [-3e38, 3.1e38, 3.2e38],
        [1e30, 1.0, 0.0],
        [1e-30, -1.5e-30, 1e-30],
        [1e-40, 0.0, 0.0],
        [f32::from_bits(1), 0.0, -0.0],
        [1.0, -1.0, 0.0],
        [3.0, 4.0, 5.0],
        [-3.0, -4.0, -5.0],
    ];
    // Runs of partial sums that pass the largest f32 and come back.
    let overflow: Vec<f32> =
        random(9 * 300).iter().enumerate().map(|(i, v)| if i % 300 < 150 { 1e38 * v } else { -1.1e38 * v }).collect();
    let (a, b, c, d) = (random(41 * 9), random(300 * 65), random(13 * 33), random(6 * 1031));
    let e: Vec<f32> = random(80 * 5);
    let f = random(600 * 9);
    let mut cases = vec![
        build("typical", 9, F32, &a),
        build("large", 65, F32, &b),
        build("as many rows as fill small devices", 9, F32, &f),
        build("as many rows as fill small devices in bf16", 9, BF16, &f),
        build("wide", 1031, F32, &d),
        build("bf16", 33, BF16, &c),
        build("f16", 33, F16, &c),
        build("one column", 1, F32, &[-2.0, 3.0, 0.0]),
        build("one row", 7, F32, &a[..7]),
        build("no rows", 4, F32, &[]),
        build("special values stay in their row", 3, F32, special.as_flattened()),
        build("sums that overflow", 300, F32, &overflow),
        build("tiny", 5, F32, &e.iter().map(|v| v * 1e-30).collect::<Vec<_>>()),
    ];
    let mut case = Case::new("no columns");
    let (x, key) = (case.f32("x", &[]), case.out("key", U32, 3));
    case.run(RowKeys { rows: 3, cols: 0, x, key });
    case.want(key, integers(&[0; 3]));
    cases.push(case);
    cases.extend(refusals());
    cases
}

fn refusals() -> Vec<Case> {
    let refuse = |name: &str, fragments: &[&'static str], change: fn(&mut Case) -> RowKeys<_>| {
        let mut case = Case::new(name);
        let args = change(&mut case);
        case.run(args);
        case.refused(fragments)
    };
    vec![
        refuse("short x", &["`x`", "6", "8"], |case| {
            let (x, key) = (case.f32("x", &[1.0; 6]), case.out("key", U32, 4));
            RowKeys { rows: 4, cols: 2, x, key }
        }),
        refuse("short key", &["`key`"], |case| {
            let (x, key) = (case.f32("x", &[1.0; 8]), case.out_exact("key", U32, 3));
            RowKeys { rows: 4, cols: 2, x, key }
        }),
        refuse("float key", &["`key`", "u32"], |case| {
            let (x, key) = (case.f32("x", &[1.0; 8]), case.out("key", F32, 4));
            RowKeys { rows: 4, cols: 2, x, key }
        }),
        refuse("integer x", &["`wrong` is u32"], |case| {
            let (x, key) = (case.u32("wrong", &[1; 8]), case.out("key", U32, 4));
            RowKeys { rows: 4, cols: 2, x, key }
        }),
        refuse("rows beyond the address space", &[""], |case| {
            let (x, key) = (case.f32("x", &[1.0; 6]), case.out("key", U32, 4));
            RowKeys { rows: 1 << 40, cols: 1 << 40, x, key }
        }),
    ]
}
