//! Offsets that fall, lie beyond the rows or are huge, of more rows than one block takes: the error is about them, whatever kernels
//! that run before it is seen make of them.

use lrmoe::DType::{F32, U32};
use lrmoe::kernel::{
    DEMAND_BINS, DEMAND_COUNTS, DEMAND_SUMS, Demand, GatherRows, GroupedDgrad, GroupedForward, GroupedWgrad, Kernel,
    Metric, SELECT_STATS, Score, Select, SelectRule, SwiGlu, SwiGluBackward,
};
use lrmoe::rng::{PairKey, PairStream};

use crate::table::{Case, Slot};

const ROWS: usize = 5000;
const EXPERTS: usize = 3;
const COLS: usize = 4;

/// Offsets, and what they do.
const OFFSETS: &[(&str, [u32; EXPERTS + 1])] = &[
    ("offsets fall to the first row and rise", [0, 5000, 0, 5000]),
    ("offsets fall within segments", [100, 4999, 3000, 5000]),
    ("offsets begin at the end", [5000, 0, 5000, 0]),
    ("offsets fall from the largest", [0, u32::MAX, 0, 5000]),
    ("offsets of the largest", [u32::MAX; EXPERTS + 1]),
    ("offsets up to the largest", [0, 2000, 1 << 31, u32::MAX]),
    ("offsets one past the rows", [0, 2000, 4000, 5001]),
];

type Build = fn(&mut Case, Slot) -> Kernel<Slot>;

fn ramp(len: usize) -> Vec<f32> {
    (0..len).map(|i| 1.0 + (i % 61) as f32).collect()
}

fn forward(case: &mut Case, offsets: Slot) -> Kernel<Slot> {
    let (rows, groups, n, k) = (ROWS, EXPERTS, COLS, COLS);
    let (x, w) = (case.f32("x", &ramp(rows * k)), case.f32("w", &ramp(groups * n * k)));
    let out = case.out("out", F32, rows * n);
    GroupedForward { rows, groups, n, k, index_div: 1, x, index: None, w, offsets, out }.into()
}

fn dgrad(case: &mut Case, offsets: Slot) -> Kernel<Slot> {
    let (rows, groups, n, k) = (ROWS, EXPERTS, COLS, COLS);
    let (dy, w) = (case.f32("dy", &ramp(rows * n)), case.f32("w", &ramp(groups * n * k)));
    let out = case.out("out", F32, rows * k);
    GroupedDgrad { rows, groups, n, k, index_div: 1, dy, index: None, w, offsets, out }.into()
}

fn wgrad(case: &mut Case, offsets: Slot) -> Kernel<Slot> {
    let (dy, x) = (case.f32("dy", &ramp(ROWS * COLS)), case.f32("x", &ramp(ROWS * COLS)));
    let scale = case.f32("dy_scale", &ramp(ROWS));
    let index: Vec<u32> = (0..ROWS as u32).rev().collect();
    let wgrad = GroupedWgrad {
        rows: ROWS,
        groups: EXPERTS,
        n: COLS,
        k: COLS,
        dy_div: 1,
        x_div: 1,
        accumulate: false,
        dy,
        dy_index: Some(case.u32("dy_index", &index)),
        dy_scale: Some(scale),
        x,
        x_index: None,
        offsets,
        out: case.out("out", F32, EXPERTS * COLS * COLS),
    };
    wgrad.into()
}

fn swiglu(case: &mut Case, offsets: Slot) -> Kernel<Slot> {
    let swiglu = SwiGlu {
        rows: ROWS,
        width: COLS,
        groups: EXPERTS,
        ab: case.f32("ab", &ramp(2 * ROWS * COLS)),
        offsets,
        h: case.out("h", F32, ROWS * COLS),
        norm: case.out("norm", F32, ROWS),
    };
    swiglu.into()
}

fn swiglu_backward(case: &mut Case, offsets: Slot) -> Kernel<Slot> {
    let index: Vec<u32> = (0..ROWS as u32).rev().collect();
    let backward = SwiGluBackward {
        rows: ROWS,
        width: COLS,
        groups: EXPERTS,
        ab: case.f32("ab", &ramp(2 * ROWS * COLS)),
        ab_index: Some(case.u32("ab_index", &index)),
        u: case.f32("u", &ramp(ROWS * COLS)),
        scale: Some(case.f32("scale", &ramp(ROWS))),
        offsets,
        d_ab: case.out("d_ab", F32, 2 * ROWS * COLS),
        h: case.out("h", F32, ROWS * COLS),
        dot: case.out("dot", F32, ROWS),
    };
    backward.into()
}

fn gather(case: &mut Case, offsets: Slot, scale: Option<Slot>) -> Kernel<Slot> {
    let index: Vec<u32> = (0..ROWS as u32).rev().collect();
    let gather = GatherRows {
        rows: ROWS,
        cols: COLS,
        index_div: 1,
        groups: EXPERTS,
        src: case.f32("src", &ramp(ROWS * COLS)),
        index: case.u32("index", &index),
        scale,
        offsets,
        dst: case.out("dst", F32, ROWS * COLS),
    };
    gather.into()
}

fn scaled(case: &mut Case, offsets: Slot) -> Kernel<Slot> {
    let scale = case.f32("scale", &ramp(ROWS));
    gather(case, offsets, Some(scale))
}

fn score(case: &mut Case, offsets: Slot) -> Kernel<Slot> {
    let pairs: Vec<u32> = (0..ROWS as u32).collect();
    let score = Score {
        rows: ROWS,
        experts: EXPERTS,
        top_k: 2,
        metric: Metric::Full,
        floor: 0.1,
        weights: case.f32("weights", &ramp(ROWS)),
        d_norm: case.f32("d_norm", &ramp(ROWS / 2)),
        h_norm: case.f32("h_norm", &ramp(ROWS)),
        x_norm: Some(case.f32("x_norm", &ramp(ROWS / 2))),
        kappa: Some(case.f32("kappa", &ramp(EXPERTS))),
        pair_of_row: case.u32("pair_of_row", &pairs),
        offsets,
        score: case.out("score", F32, ROWS),
        mean: case.out("mean", F32, EXPERTS),
    };
    score.into()
}

fn demand(case: &mut Case, offsets: Slot) -> Kernel<Slot> {
    let demand = Demand {
        rows: ROWS,
        experts: EXPERTS,
        score: case.f32("score", &ramp(ROWS)),
        mean: case.f32("mean", &ramp(EXPERTS)),
        offsets,
        histogram: case.out("histogram", U32, EXPERTS * DEMAND_BINS),
        sums: case.out("sums", F32, EXPERTS * DEMAND_SUMS),
        counts: case.out("counts", U32, EXPERTS * DEMAND_COUNTS),
    };
    demand.into()
}

/// Rows are in the order of their places unless they are reversed.
fn select(case: &mut Case, offsets: Slot, rule: SelectRule, key: fn(u32) -> u32, reversed: bool) -> Kernel<Slot> {
    let mut pairs: Vec<u32> = (0..ROWS as u32).collect();
    if reversed {
        pairs.reverse();
    }
    let order: Vec<u32> = (0..ROWS as u32 / 2).map(key).collect();
    let select = Select {
        rows: ROWS,
        experts: EXPERTS,
        top_k: 2,
        capacity: ROWS,
        rule,
        weight_cap: f32::INFINITY,
        stream: PairStream::new(&PairKey { seed: 7, step: 3, call_id: 1, layer: 2 }),
        first_token: 0,
        score: case.f32("score", &ramp(ROWS)),
        mean: case.f32("mean", &ramp(EXPERTS)),
        quotas: case.u32("quotas", &[1000, 500, 1000]),
        pair_of_row: case.u32("pair_of_row", &pairs),
        offsets,
        weights: case.f32("weights", &ramp(ROWS)),
        token_ids: None,
        order: Some(case.u32("order", &order)),
        kept_offsets: case.out("kept_offsets", U32, EXPERTS + 1),
        row: case.out("row", U32, ROWS),
        pair: case.out("pair", U32, ROWS),
        weight: case.out("weight", F32, ROWS),
        scale: case.out("scale", F32, ROWS),
        kept_of_pair: case.out_exact("kept_of_pair", U32, ROWS),
        stats: case.out("stats", F32, EXPERTS * SELECT_STATS),
    };
    select.into()
}

/// All cases of this file.
pub fn cases() -> Vec<Case> {
    let builds: &[(&str, Build)] = &[
        ("", forward),
        ("", dgrad),
        ("", wgrad),
        ("", swiglu),
        ("", swiglu_backward),
        ("", |case, offsets| gather(case, offsets, None)),
        ("scaled", scaled),
        ("", score),
        ("", demand),
        ("top", |case, offsets| select(case, offsets, SelectRule::TopQ, |_| 0, false)),
        ("unbiased", |case, offsets| select(case, offsets, SelectRule::Unbiased, |_| 0, true)),
        ("mixed", |case, offsets| select(case, offsets, SelectRule::Mixed { certain: 0.5 }, |_| 0, false)),
        // One that is far from the first.
        ("systematic", |case, offsets| select(case, offsets, SelectRule::Systematic, |_| 200, false)),
        ("systematic unordered", |case, offsets| {
            select(case, offsets, SelectRule::Systematic, |token| token.wrapping_mul(0x9e37_79b9), true)
        }),
    ];
    let mut cases = Vec::new();
    for &(kind, build) in builds {
        for &(what, offsets) in OFFSETS {
            let mut case = Case::new(format!("{kind} {what}").trim());
            let offsets = case.u32("offsets", &offsets);
            let kernel = build(&mut case, offsets);
            case.run(kernel);
            cases.push(case.refused(&["offset"]));
        }
    }
    cases
}
