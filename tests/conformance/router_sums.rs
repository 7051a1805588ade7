//! Sums of the router losses, and the estimated gradient of the combine weights.

use lrmoe::DType::F32;
use lrmoe::kernel::{NONE, RouterGrad, RouterLoss};

use crate::router::{Call, SOFTMAX};
use crate::support::oracle::softmax;
use crate::support::rng::Rng;
use crate::table::{Case, Slot, Want, near};

fn loss(call: &Call) -> Case {
    let mut case = Case::new(call.name.clone());
    let sums = case.out("sums", F32, call.experts + 1);
    let logits = case.f32("logits", &[&call.logits[..], &vec![f32::NAN; call.experts]].concat());
    let mask = case.optional_u32("mask", call.mask.as_deref());
    case.run(RouterLoss { tokens: call.tokens, experts: call.experts, logits, mask, sums });
    let mut p_sums = vec![0.0; call.experts];
    let (mut squares, mut squares_size, mut units) = (0.0, 0.0, 0.0f64);
    for t in (0..call.tokens).filter(|&t| call.live(t)) {
        let row = call.row(t);
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log = row.iter().map(|l| (l - top).exp()).sum::<f64>().ln();
        squares += (top + log).powi(2);
        squares_size += (top.abs() + log.abs()).powi(2);
        p_sums.iter_mut().zip(softmax(&row)).for_each(|(sum, p)| *sum += p);
        units = units.max(call.units(t));
    }
    let mut wants: Vec<Want> = p_sums.iter().map(|&sum| near(sum, sum, units)).collect();
    wants.push(near(squares, squares_size, 4.0 + units));
    case.want(sums, wants);
    case
}

struct Estimate {
    name: &'static str,
    tokens: usize,
    top_k: usize,
    /// Of ten pairs, those dropped.
    dropped: usize,
    baseline: bool,
    weight: bool,
    masked: bool,
}

fn estimate(e: &Estimate) -> Case {
    let (mut case, mut rng) = (Case::new(e.name), Rng::new(53));
    let pairs = e.tokens * e.top_k;
    let mut normals = |len: usize| -> Vec<f32> { (0..len).map(|_| rng.normal() as f32).collect() };
    let mut weights: Vec<f32> = normals(pairs).iter().map(|g| g.abs()).collect();
    let (dot, dot_dy) = (normals(pairs), normals(e.tokens));
    let is_masked = |pair: usize| e.masked && pair / e.top_k % 4 == 1;
    let mut kept = vec![NONE; pairs];
    let mut rows = 0;
    for pair in (0..pairs).rev().filter(|&pair| !is_masked(pair)) {
        if rng.below(10) >= e.dropped {
            kept[pair] = rows;
            rows += 1;
        }
    }
    let rows = rows as usize;
    // Whole and broken weights: w = 1 must give the product itself.
    let weight: Vec<f32> = (0..rows).map(|row| if row % 3 == 0 { 1.0 } else { 1.0 + row as f32 * 0.37 }).collect();
    let ids: Vec<u32> = (0..pairs).map(|pair| if is_masked(pair) { NONE } else { pair as u32 % 7 }).collect();
    if e.tokens > 2 {
        weights[2 * e.top_k..3 * e.top_k].fill(0.0);
    }
    let args = RouterGrad {
        tokens: e.tokens,
        top_k: e.top_k,
        weights: case.f32("weights", &weights),
        dot_dy: case.optional_f32("dot_dy", e.baseline.then_some(&dot_dy)),
        dot: case.f32("dot", &dot[..rows]),
        weight: case.optional_f32("weight", e.weight.then_some(&weight)),
        kept_of_pair: case.u32("kept_of_pair", &kept),
        ids: case.u32("ids", &ids),
        d_weights: case.out("d_weights", F32, pairs),
    };
    let d_weights = args.d_weights;
    case.run(args);
    let want = |pair: usize| {
        if ids[pair] == NONE {
            return Want::Bits(0);
        }
        let t = pair / e.top_k;
        let sum: f64 = weights[t * e.top_k..(t + 1) * e.top_k].iter().map(|&g| f64::from(g)).sum();
        let c = if sum == 0.0 || !e.baseline { 0.0 } else { f64::from(dot_dy[t]) / sum };
        let Some(&own) = dot.get(kept[pair] as usize) else { return near(c, c, 2.0) };
        let w = if e.weight { f64::from(weight[kept[pair] as usize]) } else { 1.0 };
        if w == 1.0 {
            return Want::Bits(own.to_bits());
        }
        near(c + w * (f64::from(own) - c), c.abs() + w * (f64::from(own).abs() + c.abs()), 3.0)
    };
    case.want(d_weights, (0..pairs).map(want).collect());
    case
}

fn estimates() -> Vec<Case> {
    let e =
        |name, tokens, top_k| Estimate { name, tokens, top_k, dropped: 5, baseline: true, weight: true, masked: false };
    [
        e("typical", 12, 2),
        Estimate { masked: true, ..e("large", 400, 8) },
        Estimate { dropped: 0, baseline: false, weight: false, ..e("all kept", 12, 2) },
        Estimate { dropped: 10, ..e("all dropped", 12, 3) },
        Estimate { weight: false, ..e("no weights", 12, 3) },
        Estimate { baseline: false, ..e("no baseline", 12, 3) },
        Estimate { masked: true, ..e("mask", 13, 3) },
        e("one token", 1, 1),
        e("no tokens", 0, 4),
    ]
    .iter()
    .map(estimate)
    .collect()
}

fn refusals() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut refuse =
        |name: &str, fragments: &[&'static str], change: fn(&mut Case, RouterGrad<Slot>) -> RouterGrad<Slot>| {
            let mut case = Case::new(name);
            let args = RouterGrad {
                tokens: 2,
                top_k: 2,
                weights: case.f32("weights", &[1.0; 4]),
                dot_dy: None,
                dot: case.f32("dot", &[1.0; 3]),
                weight: None,
                kept_of_pair: case.u32("kept_of_pair", &[0, 1, 2, NONE]),
                ids: case.u32("ids", &[0, 1, 2, 1]),
                d_weights: case.out("d_weights", F32, 4),
            };
            let args = change(&mut case, args);
            case.run(args);
            cases.push(case.refused(fragments));
        };
    refuse("row out of range", &["kept_of_pair", "3"], |case, a| RouterGrad {
        kept_of_pair: case.u32("kept_of_pair", &[0, 1, 3, NONE]),
        ..a
    });
    refuse("short weights of rows", &["`weight`"], |case, a| RouterGrad {
        weight: Some(case.f32("weight", &[1.0; 2])),
        ..a
    });
    refuse("short ids", &["`ids`"], |case, a| RouterGrad { ids: case.u32("ids", &[0, 1, 2]), ..a });
    refuse("short baseline", &["`dot_dy`"], |case, a| RouterGrad { dot_dy: Some(case.f32("dot_dy", &[1.0])), ..a });
    refuse("in place", &["in use"], |_, a| RouterGrad { d_weights: a.weights, ..a });
    refuse("tokens beyond the address space", &["pairs"], |_, a| RouterGrad { tokens: usize::MAX, ..a });
    let mut refuse = |name: &str, fragments: &[&'static str], tokens: usize, experts: usize, in_place: bool| {
        let mut case = Case::new(name);
        let (logits, sums) = (case.f32("logits", &[0.0; 6]), case.out_exact("sums", F32, 4));
        let sums = if in_place { logits } else { sums };
        case.run(RouterLoss { tokens, experts, logits, mask: None, sums });
        cases.push(case.refused(fragments));
    };
    refuse("short logits", &["`logits`"], 3, 3, false);
    refuse("short sums", &["`sums`"], 1, 6, false);
    refuse("in place", &["in use"], 2, 3, true);
    refuse("tokens beyond the address space", &["logits"], usize::MAX, 3, false);
    refuse("experts beyond the address space", &[""], 0, usize::MAX, false);
    cases
}

/// All cases of this family.
pub fn cases() -> Vec<Case> {
    let c = |name: &'static str, tokens, experts| Call::random(name, tokens, experts, 1, SOFTMAX);
    let nan = |name: &'static str| {
        let mut call = c(name, 9, 4);
        call.logits[4 * 4 + 1] = f32::NAN;
        call
    };
    let mut huge = c("huge and tiny logits", 2, 3);
    huge.logits = vec![1e15, -1e15, 0.0, 1e-40, -1e-40, 0.0];
    let losses = [
        c("typical", 30, 8),
        c("fault 19 large", 1000, 65),
        c("fault 27 mask", 64, 8).masked(),
        c("thousands of experts", 70, 5000),
        c("one token", 1, 5),
        c("one expert", 7, 1),
        c("no tokens", 0, 3),
        nan("NaN is seen"),
        huge,
    ];
    losses.iter().map(loss).chain(estimates()).chain(refusals()).collect()
}
