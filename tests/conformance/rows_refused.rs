//! What the row kernels refuse.

use lrmoe::DType::{BF16, F32, U32};
use lrmoe::kernel::{Combine, GatherRows, Kernel, NONE, Permute, RowDots, RowNorms};

use crate::table::{Case, Slot};

/// All cases of this file.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut refuse = |name: &str, fragments: &[&'static str], build: fn(&mut Case) -> Kernel<Slot>| {
        let mut case = Case::new(name);
        let kernel = build(&mut case);
        case.run(kernel);
        cases.push(case.refused(fragments));
    };
    fn sort(case: &mut Case, pairs: usize, experts: usize) -> Permute<Slot> {
        Permute {
            pairs,
            experts,
            ids: case.u32("ids", &[0, 1, 2, 1]),
            counts: case.out_exact("counts", U32, 3),
            offsets: case.out_exact("offsets", U32, 4),
            pair_of_row: case.out_exact("pair_of_row", U32, 4),
            row_of_pair: case.out_exact("row_of_pair", U32, 4),
        }
    }
    refuse("expert out of range", &["ids", "2", "below 2"], |case| {
        let args = sort(case, 4, 2);
        args.into()
    });
    refuse("more pairs than ids", &["`ids`"], |case| {
        let args = sort(case, 5, 3);
        args.into()
    });
    refuse("more experts than counts", &["`counts`"], |case| {
        let args = sort(case, 4, 4);
        args.into()
    });
    refuse("experts beyond the address space", &[""], |case| {
        let args = sort(case, 4, usize::MAX);
        args.into()
    });
    refuse("float ids", &["`floats`", "u32"], |case| {
        let ids = case.f32("floats", &[0.0; 4]);
        let args = sort(case, 4, 3);
        Permute { ids, ..args }.into()
    });
    refuse("aliased outputs", &["in use"], |case| {
        let args = sort(case, 4, 3);
        Permute { pair_of_row: args.row_of_pair, ..args }.into()
    });

    fn compact(case: &mut Case, offsets: &[u32], index: &[u32]) -> GatherRows<Slot> {
        GatherRows {
            rows: 4,
            cols: 2,
            index_div: 1,
            groups: offsets.len() - 1,
            src: case.f32("src", &[1.0; 6]),
            index: case.u32("index", index),
            scale: None,
            offsets: case.u32("offsets", offsets),
            dst: case.out_exact("dst", F32, 8),
        }
    }
    refuse("index out of range", &["index", "3", "below 3"], |case| {
        let args = compact(case, &[0, 4], &[0, 1, 3, 2]);
        args.into()
    });
    refuse("NONE as index", &["index", "below 3"], |case| {
        let args = compact(case, &[0, 4], &[0, 1, NONE, 2]);
        args.into()
    });
    refuse("offsets fall", &["offsets"], |case| {
        let args = compact(case, &[0, 3, 2], &[0; 4]);
        args.into()
    });
    refuse("offsets start past their end", &["offsets"], |case| {
        let args = compact(case, &[4, 1], &[0; 4]);
        args.into()
    });
    refuse("offsets past the rows", &["offset"], |case| {
        let args = compact(case, &[0, 5], &[0; 5]);
        args.into()
    });
    refuse("zero divisor", &["index_div", "0"], |case| {
        let args = compact(case, &[0, 4], &[0; 4]);
        GatherRows { index_div: 0, ..args }.into()
    });
    refuse("divisor beyond the address space", &[""], |case| {
        let args = compact(case, &[0, 4], &[0, 1, NONE, 2]);
        GatherRows { index_div: usize::MAX, src: case.f32("one", &[1.0]), ..args }.into()
    });
    refuse("narrow target", &["`dst`", "bf16", "f32"], |case| {
        let args = compact(case, &[0, 4], &[0; 4]);
        GatherRows { dst: case.out("dst", BF16, 8), ..args }.into()
    });
    refuse("narrow target with scale", &["`dst`", "bf16", "f32"], |case| {
        let args = compact(case, &[0, 4], &[0; 4]);
        let scale = Some(case.f32("scale", &[1.0; 4]));
        GatherRows { dst: case.out("dst", BF16, 8), scale, ..args }.into()
    });
    refuse("short target", &["`dst`", "7", "8"], |case| {
        let args = compact(case, &[0, 4], &[0; 4]);
        GatherRows { dst: case.out_exact("dst", F32, 7), ..args }.into()
    });
    refuse("columns beyond the address space", &[""], |case| {
        let args = compact(case, &[0, 4], &[0; 4]);
        GatherRows { cols: usize::MAX, ..args }.into()
    });
    refuse("groups beyond the address space", &[""], |case| {
        let args = compact(case, &[0, 4], &[0; 4]);
        GatherRows { groups: usize::MAX, ..args }.into()
    });

    fn sum(case: &mut Case, row_of_pair: &[u32]) -> Combine<Slot> {
        Combine {
            tokens: 2,
            top_k: 2,
            cols: 2,
            accumulate: false,
            rows: case.f32("rows", &[1.0; 6]),
            row_of_pair: Some(case.u32("row_of_pair", row_of_pair)),
            weights: None,
            out: case.out_exact("out", F32, 4),
        }
    }
    refuse("row out of range", &["row_of_pair", "3", "below 3"], |case| {
        let args = sum(case, &[0, 1, 3, 2]);
        args.into()
    });
    refuse("short row index", &["`row_of_pair`"], |case| {
        let args = sum(case, &[0, 1, 2]);
        args.into()
    });
    refuse("two slots without index", &["row_of_pair", "top_k 2"], |case| {
        let args = sum(case, &[0; 4]);
        Combine { row_of_pair: None, ..args }.into()
    });
    refuse("tokens beyond the address space", &[""], |case| {
        let args = sum(case, &[0; 4]);
        Combine { tokens: 1 << 62, ..args }.into()
    });
    refuse("in place", &["in use"], |case| {
        let args = sum(case, &[0; 4]);
        Combine { out: args.rows, ..args }.into()
    });

    refuse("short x", &["`x`", "6", "8"], |case| {
        let (x, norm) = (case.f32("x", &[1.0; 6]), case.out("norm", F32, 4));
        RowNorms { rows: 4, cols: 2, x, norm }.into()
    });
    refuse("rows beyond the address space", &[""], |case| {
        let (x, norm) = (case.f32("x", &[1.0; 6]), case.out("norm", F32, 4));
        RowNorms { rows: 1 << 40, cols: 1 << 40, x, norm }.into()
    });
    fn products(case: &mut Case) -> RowDots<Slot> {
        RowDots {
            rows: 3,
            cols: 2,
            a_div: 1,
            a: case.f32("a", &[1.0; 6]),
            b: case.f32("b", &[1.0; 6]),
            b_index: None,
            dot: case.out_exact("dot", F32, 3),
        }
    }
    refuse("zero divisor", &["a_div", "0"], |case| {
        let args = products(case);
        RowDots { a_div: 0, ..args }.into()
    });
    refuse("index out of range", &["b_index", "3"], |case| {
        let args = products(case);
        RowDots { b_index: Some(case.u32("b_index", &[0, 3, 1])), ..args }.into()
    });
    refuse("short b", &["`b`"], |case| {
        let args = products(case);
        RowDots { b: case.f32("b", &[1.0; 5]), ..args }.into()
    });
    refuse("integer a", &["`wrong` is u32"], |case| {
        let args = products(case);
        RowDots { a: case.u32("wrong", &[1; 6]), ..args }.into()
    });
    cases
}
