//! The numeric contract, and that nothing depends on what stands beside a row.

use super::super::block::{Block, Workspace};
use super::super::mat::MatMut;
use super::super::operand::{Operand, RowsAre};
use super::super::{dense, operand};
use super::*;
use proptest::prelude::*;

#[test]
fn every_tile_height_and_column_tail() {
    for rows in 1..=14 {
        for cols in [1, 2, 3, 7, 8, 9, 15, 16, 17, 23, 24, 31, 32, 33] {
            Case::plain(rows as u64, &[rows], [cols, 5]).check();
            Case::plain(rows as u64, &[rows], [5, cols]).check();
        }
    }
}

#[test]
fn depth_blocks_continue_the_chains() {
    for depth in [1, 2, 7, 8, 9, 255, 256, 257, 511, 512, 513, 700, 1_025] {
        Case::plain(1, &[3, 8], [depth, 19]).check();
        Case::plain(2, &[3, 8], [19, depth]).check();
        Case::plain(3, &[depth, 0, 5], [19, 7]).check();
    }
}

#[test]
fn more_rows_and_columns_than_one_block() {
    Case::plain(1, &[241, 500], [40, 3]).check();
    Case::plain(2, &[3], [1_030, 6]).check();
    Case::plain(3, &[3], [6, 1_030]).check();
    Case::plain(4, &[3], [500, 1_050]).check();
}

#[test]
fn large_enough_to_be_cut_into_tasks() {
    Case::plain(1, &[700, 3, 0, 40, 1], [100, 130]).check();
    Case::plain(2, &[16], [600, 512]).check();
}

#[test]
fn empty_groups_no_rows_and_no_groups() {
    Case::plain(1, &[0, 0, 5, 0], [4, 6]).check();
    Case::plain(2, &[0], [4, 6]).check();
    Case::plain(3, &[], [4, 6]).check();
    Case::plain(4, &[0, 0, 0, 64, 0], [33, 17]).check();
}

#[test]
fn an_empty_group_has_a_positive_zero_gradient() {
    let case = Case::plain(1, &[0, 2], [3, 5]);
    assert!(case.run(Call::Wgrad)[..15].iter().all(|x| x.to_bits() == 0));
    assert_same(&case.run(Call::WgradAccumulate)[..15], &case.before(Call::WgradAccumulate)[..15], "accumulated");
}

#[test]
fn storage_gather_and_scale() {
    for code in 0..27 {
        for (gathered, scaled) in [(false, false), (true, false), (false, true), (true, true)] {
            let form = |store| Form { store, gathered, scaled };
            let forms = [form(code % 3), form(code / 3 % 3), form(code / 9)];
            Case::new(code as u64, 2, &[5, 0, 9, 1], 3, [18, 37], forms).check();
            Case::new(code as u64, 0, &[300], 0, [9, 270], forms).check();
        }
    }
}

#[test]
fn half_precision_is_widened_exactly() {
    // Every finite bf16 and f16, times one: x * 1 + 0 is x, but for -0, which becomes +0.
    let bits = || 0..=u16::MAX;
    let a: Vec<bf16> = bits().map(bf16::from_bits).filter(|x| x.is_finite()).collect();
    let b: Vec<f16> = bits().map(f16::from_bits).filter(|x| x.is_finite()).collect();
    for (x, expected) in [
        (Floats::BF16(&a), a.iter().map(|x| x.to_f32() + 0.0).collect::<Vec<_>>()),
        (Floats::F16(&b), b.iter().map(|x| x.to_f32() + 0.0).collect()),
    ] {
        let mut out = vec![f32::NAN; x.len()];
        forward(&[0, x.len() as u32], dense(x, 1), Floats::F32(&[1.0]), 1, &mut out).unwrap();
        assert_same(&out, &expected, "widened");
    }
}

#[test]
fn row_bits_do_not_depend_on_neighbours() {
    let case = Case::plain(5, &[57, 0, 313], [70, 300]);
    let (y, dx) = (case.run(Call::Forward), case.run(Call::Dgrad));
    for row in [0, 1, 31, 56, 57, 58, 200, 369] {
        let e = usize::from(row >= 57) * 2;
        let only = |m: &Matrix| match m.data.floats() {
            Floats::F32(data) => data[row * m.cols..(row + 1) * m.cols].to_vec(),
            _ => unreachable!("plain cases are f32"),
        };
        let (x, dy) = (only(&case.x), only(&case.dy));
        let w: Vec<f32> = (e * 70 * 300..(e + 1) * 70 * 300).map(|i| case.w.at(i)).collect();
        let (mut y1, mut dx1) = (vec![f32::NAN; 70], vec![f32::NAN; 300]);
        forward(&[0, 1], dense(Floats::F32(&x), 300), Floats::F32(&w), 70, &mut y1).unwrap();
        dgrad(&[0, 1], dense(Floats::F32(&dy), 70), Floats::F32(&w), 300, &mut dx1).unwrap();
        assert_same(&y1, &y[row * 70..(row + 1) * 70], "forward alone");
        assert_same(&dx1, &dx[row * 300..(row + 1) * 300], "dgrad alone");
    }
}

#[test]
fn thread_count_does_not_matter() {
    let case = Case::plain(6, &[400, 1, 0, 150, 30], [130, 257]);
    for call in CALLS {
        let with =
            |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| case.run(call));
        let one = with(1);
        for threads in [2, 3, 8] {
            assert_same(&with(threads), &one, &format!("{call:?} on {threads} threads"));
        }
    }
}

#[test]
fn instruction_sets_and_tile_shapes_agree() {
    fn run<S: pulp::Simd, const M: usize, const NV: usize>(simd: S, case: &Case, call: Call) -> Vec<f32> {
        let mut out = case.before(call);
        let mut workspace = Workspace::default();
        let w = dense(case.w.floats(), case.k);
        let of = |rows, rows_are| Operand::new(rows, 0, rows_are);
        let (x, dy, lanes, steps) = (case.x.rows(), case.dy.rows(), RowsAre::Lanes, RowsAre::Steps);
        let (a, b, depth, cols) = match call {
            Call::Forward => (of(x, lanes), of(w, lanes), case.k, case.n),
            Call::Dgrad => (of(dy, lanes), of(w, steps), case.n, case.k),
            Call::Wgrad | Call::WgradAccumulate => (of(dy, steps), of(x, steps), case.total, case.k),
        };
        let accumulate = call == Call::WgradAccumulate;
        let block = Block { a, b, depth, accumulate, c: MatMut::new(&mut out, cols), workspace: &mut workspace };
        block.run::<S, M, NV>(simd);
        out
    }
    for shape in [[35, 520], [520, 35], [66, 20]] {
        for rows in [1, 11, 25, 530] {
            let case = Case::plain(rows as u64, &[rows], shape);
            for call in CALLS {
                let expected = case.expected(call);
                assert_same(&run::<_, 6, 2>(pulp::Scalar::new(), &case, call), &expected, "scalar");
                assert_same(&run::<_, 6, 4>(pulp::Scalar128b, &case, call), &expected, "4 lanes, 32 registers");
                assert_same(&run::<_, 6, 2>(pulp::Scalar256b, &case, call), &expected, "8 lanes, 16 registers");
                assert_same(&run::<_, 12, 2>(pulp::Scalar512b, &case, call), &expected, "16 lanes, 32 registers");
            }
        }
    }
}

#[test]
fn the_workspace_is_bounded() {
    let case = Case::new(1, 0, &[600], 0, [1_024, 1_024], [Form { store: 1, gathered: true, scaled: true }; 3]);
    let (a, b) = (Operand::new(case.dy.rows(), 0, RowsAre::Steps), Operand::new(case.x.rows(), 0, RowsAre::Steps));
    let (mut out, mut workspace) = (vec![0.0; 1_024 * 1_024], Workspace::default());
    let c = MatMut::new(&mut out, 1_024);
    pulp::Arch::new().dispatch(Block { a, b, depth: 600, accumulate: false, c, workspace: &mut workspace });
    assert!((1 << 20..=5 << 19).contains(&workspace.bytes()), "{} bytes", workspace.bytes());
}

#[test]
fn rows_out_of_use_are_neither_read_nor_written() {
    let forms = [Form { store: 0, gathered: true, scaled: true }; 3];
    let mut case = Case::new(8, 7, &[5, 0, 13], 9, [21, 19], forms);
    let used = 7..25;
    for matrix in [&mut case.x, &mut case.dy] {
        for row in (0..case.total).filter(|row| !used.contains(row)) {
            // An index far outside: it must not even be looked at.
            matrix.index.as_mut().unwrap()[row] = u32::MAX;
            matrix.scale.as_mut().unwrap()[row] = f32::NAN;
        }
    }
    for (call, cols) in [(Call::Forward, case.n), (Call::Dgrad, case.k)] {
        let out = case.run(call);
        assert_same(&out, &case.expected(call), "gathered");
        let (head, tail) = (&out[..7 * cols], &out[25 * cols..]);
        assert!(head.iter().chain(tail).all(|x| x.is_nan()), "{call:?} wrote outside");
        assert!(out[7 * cols..25 * cols].iter().all(|x| !x.is_nan()), "{call:?} read poison");
    }
    for call in [Call::Wgrad, Call::WgradAccumulate] {
        let out = case.run(call);
        assert_same(&out, &case.expected(call), "gathered");
        assert!(out.iter().all(|x| !x.is_nan()), "{call:?} read poison");
    }
    let mut plain = Case::new(9, 7, &[5, 0, 13], 9, [21, 19], [PLAIN; 3]);
    for row in (0..plain.total).filter(|row| !used.contains(row)) {
        (0..plain.k).for_each(|j| plain.x.data.set(row * plain.k + j, f32::NAN));
        (0..plain.n).for_each(|i| plain.dy.data.set(row * plain.n + i, f32::NAN));
    }
    plain.check();
    assert!(plain.run(Call::Wgrad).iter().all(|x| !x.is_nan()));
}

#[test]
fn one_nan_stays_where_it_belongs() {
    let mut case = Case::plain(10, &[13, 20], [37, 50]);
    case.x.data.set(15 * 50 + 20, f32::NAN);
    let bad = |row: usize, cols: usize| row * cols..(row + 1) * cols;
    let y = case.run(Call::Forward);
    assert!(y.iter().enumerate().all(|(i, y)| y.is_nan() == bad(15, 37).contains(&i)));
    let dw = case.run(Call::Wgrad);
    assert!(dw.iter().enumerate().all(|(i, dw)| dw.is_nan() == (i >= 37 * 50 && i % 50 == 20)));
    // A weight of the second expert: its column of the second group, nothing of the first.
    let mut case = Case::plain(10, &[13, 20], [37, 50]);
    case.w.set((37 + 3) * 50 + 7, f32::INFINITY);
    case.dy.data.set(14 * 37 + 3, f32::NAN);
    case.check();
    let dx = case.run(Call::Dgrad);
    assert!(dx.iter().enumerate().all(|(i, dx)| dx.is_finite() || i >= 13 * 50));
    assert!(
        dx.iter().enumerate().all(|(i, dx)| dx.is_nan() == (bad(14, 50).contains(&i) || dx.is_nan() && i % 50 == 7))
    );
}

#[test]
fn close_to_double_precision() {
    let case = Case::plain(11, &[100, 28], [64, 600]);
    let y = case.run(Call::Forward);
    for (row, e) in [(0, 0), (50, 0), (99, 0), (100, 1), (127, 1)] {
        for i in 0..64 {
            let terms = (0..600).map(|j| f64::from(case.x.at(row, j)) * f64::from(case.w.at((e * 64 + i) * 600 + j)));
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size): (f64, f64), t| (sum + t, size + t.abs()));
            // n roundings of 2^-24 each, relative to the sum of magnitudes.
            let error = (f64::from(y[row * 64 + i]) - sum).abs();
            assert!(error <= 600.0 * size * 2f64.powi(-24), "row {row} column {i}: {error:e} of {size:e}");
            assert!(error <= 3e-7 * size * 8.0, "errors of a random walk stay far below the bound");
        }
    }
}

#[test]
fn lanes_and_steps_name_the_same_elements() {
    let data: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let rows = dense(Floats::F32(&data), 4);
    let read = |are: operand::RowsAre| {
        let part = Operand::new(rows, 1, are).skip_lanes(1);
        part.read(0, 0..2, &mut [0.0; 4]).to_vec()
    };
    assert_eq!(read(RowsAre::Lanes), [8.0, 9.0]);
    assert_eq!(read(RowsAre::Steps), [5.0, 6.0]);
}

fn form() -> impl Strategy<Value = Form> {
    (0..3usize, any::<bool>(), any::<bool>()).prop_map(|(store, gathered, scaled)| Form { store, gathered, scaled })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_shape(
        seed in any::<u64>(),
        (skip, tail) in (0..4usize, 0..4usize),
        counts in prop::collection::vec(prop_oneof![Just(0usize), 1..4usize, 0..80usize], 1..6),
        (n, k) in (1..70usize, 1..70usize),
        forms in [form(), form(), form()],
    ) {
        Case::new(seed, skip, &counts, tail, [n, k], forms).check();
    }
}
