//! Gradient of the router, through combine weights, auxiliary loss and z-loss.

use lrmoe::DType::F32;
use lrmoe::config::ScoringFunc;
use lrmoe::kernel::{GateBackward, GateRule, NONE};

use crate::router::{Call, SIGMOID, SOFTMAX};
use crate::support::linear::{Mat, dot};
use crate::support::oracle::{Routing, UNROUTED, combine_weights, softmax};
use crate::support::oracle_backward;
use crate::support::rng::Rng;
use crate::table::{Case, Slot, Want, near, wide};

#[derive(Clone, Copy, PartialEq)]
enum Losses {
    None,
    Aux,
    Z,
    Both,
}

fn log_sum_exp(logits: &[f64]) -> (f64, f64) {
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log = logits.iter().map(|l| (l - top).exp()).sum::<f64>().ln();
    (top + log, top.abs() + log.abs())
}

/// The gradient with the sum of magnitudes of its terms.
fn case(call: &Call, losses: Losses) -> Case {
    let (tokens, experts, top_k) = (call.tokens, call.experts, call.top_k);
    let mut rng = Rng::new(52);
    let mut case = Case::new(call.name.clone());
    let z_scale = if matches!(losses, Losses::Z | Losses::Both) { 0.125f32 } else { 0.0 };
    let aux: Option<Vec<f32>> =
        matches!(losses, Losses::Aux | Losses::Both).then(|| (0..experts).map(|_| rng.normal() as f32).collect());
    let mut routed = Routing {
        top_k,
        logits: Mat::new(tokens, experts, wide(&call.logits)),
        scores: Mat::zeros(tokens, experts),
        experts: vec![UNROUTED; tokens * top_k],
        weights: vec![0.0; tokens * top_k],
        mask: (0..tokens).map(|t| call.live(t)).collect(),
    };
    for t in (0..tokens).filter(|&t| call.live(t)) {
        let (scores, selected) = (call.scores(t), call.selected(t));
        routed.weights[t * top_k..(t + 1) * top_k].copy_from_slice(&combine_weights(
            &call.config(),
            &scores,
            &selected,
        ));
        routed.experts[t * top_k..(t + 1) * top_k].copy_from_slice(&selected);
        routed.scores.row_mut(t).copy_from_slice(&scores);
    }
    let ids: Vec<u32> = routed.experts.iter().map(|&e| if e == UNROUTED { NONE } else { e as u32 }).collect();
    let d_weights: Vec<f32> =
        (0..tokens * top_k).map(|p| if ids[p] == NONE { f32::NAN } else { rng.normal() as f32 }).collect();
    let d_logits = case.out("d_logits", F32, tokens * experts);
    let args = GateBackward {
        tokens,
        experts,
        top_k,
        rule: call.rule,
        z_scale,
        logits: case.f32("logits", &call.logits),
        ids: case.u32("ids", &ids),
        d_weights: case.f32("d_weights", &d_weights),
        aux: case.optional_f32("aux", aux.as_deref()),
        d_logits,
    };
    case.run(args);
    let from_gate = oracle_backward::gate_backward(&call.config(), &routed, &wide(&d_weights));
    let aux = aux.map_or(vec![0.0; experts], |aux| wide(&aux));
    let mut wants = Vec::new();
    for t in 0..tokens {
        if !call.live(t) {
            wants.extend(vec![Want::Bits(0); experts]);
            continue;
        }
        let p = softmax(&call.row(t));
        let (lse, lse_size) = log_sum_exp(&call.row(t));
        let expected = dot(&p, &aux);
        // Magnitudes of dL/dscore: what the normalisation adds and takes away.
        let (scores, slots) = (routed.scores.row(t), t * top_k..(t + 1) * top_k);
        let d = |p: usize| f64::from(d_weights[p]).abs();
        let sum: f64 = slots.clone().map(|p| scores[routed.experts[p]]).sum();
        let mean: f64 = slots.clone().map(|p| d(p) * scores[routed.experts[p]] / sum).sum();
        let mut magnitude = vec![0.0; experts];
        for p in slots {
            let own = if call.rule.normalise { (d(p) + mean) / sum } else { d(p) };
            magnitude[routed.experts[p]] = f64::from(call.rule.scaling) * own;
        }
        let spread: f64 = scores.iter().zip(&magnitude).map(|(s, m)| s * m).sum();
        let aux_size: f64 = p.iter().zip(&aux).map(|(p, a)| p * a.abs()).sum();
        for e in 0..experts {
            let z = 2.0 * f64::from(z_scale);
            let value = from_gate.row(t)[e] + p[e] * (aux[e] - expected) + z * lse * p[e];
            let gate = match call.rule.scoring {
                ScoringFunc::Softmax => scores[e] * (magnitude[e] + spread),
                ScoringFunc::Sigmoid => scores[e] * magnitude[e],
            };
            let size = gate + p[e] * (aux[e].abs() + aux_size + z * lse_size);
            wants.push(near(value, size + 1e-30, 2.0 * call.units(t)));
        }
    }
    case.want(d_logits, wants);
    case
}

fn refusals() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut refuse =
        |name: &str, fragments: &[&'static str], change: fn(&mut Case, GateBackward<Slot>) -> GateBackward<Slot>| {
            let mut case = Case::new(name);
            let args = GateBackward {
                tokens: 2,
                experts: 3,
                top_k: 2,
                rule: SOFTMAX,
                z_scale: 0.0,
                logits: case.f32("logits", &[0.0; 6]),
                ids: case.u32("ids", &[0, 1, 2, 1]),
                d_weights: case.f32("d_weights", &[1.0; 4]),
                aux: None,
                d_logits: case.out("d_logits", F32, 6),
            };
            let args = change(&mut case, args);
            case.run(args);
            cases.push(case.refused(fragments));
        };
    refuse("expert out of range", &["ids", "3"], |case, a| GateBackward { ids: case.u32("ids", &[0, 1, 3, 1]), ..a });
    refuse("short ids", &["`ids`"], |case, a| GateBackward { ids: case.u32("ids", &[0, 1, 2]), ..a });
    refuse("short aux", &["`aux`"], |case, a| GateBackward { aux: Some(case.f32("aux", &[1.0; 2])), ..a });
    refuse("integer gradient", &["`d_weights`", "f32"], |case, a| GateBackward {
        d_weights: case.u32("d_weights", &[1; 4]),
        ..a
    });
    refuse("k above E", &["top_k"], |_, a| GateBackward { top_k: 4, ..a });
    refuse("in place", &["in use"], |_, a| GateBackward { d_logits: a.logits, ..a });
    refuse("tokens beyond the address space", &["logits"], |_, a| GateBackward { tokens: usize::MAX / 2, ..a });
    refuse("experts beyond the address space without tokens", &[""], |_, a| GateBackward {
        tokens: 0,
        experts: usize::MAX,
        ..a
    });
    cases
}

/// All cases of this family.
pub fn cases() -> Vec<Case> {
    let c = Call::random;
    let normalised = GateRule { normalise: true, scaling: 1.3, ..SOFTMAX };
    let table = [
        (c("softmax", 20, 8, 2, SOFTMAX), Losses::None),
        (c("softmax normalised", 20, 8, 3, normalised), Losses::None),
        (c("large", 200, 65, 8, normalised), Losses::Both),
        (c("sigmoid", 20, 8, 2, SIGMOID), Losses::None),
        (c("sigmoid not normalised", 20, 8, 2, GateRule { normalise: false, ..SIGMOID }), Losses::None),
        (c("sigmoid with aux loss", 20, 8, 2, SIGMOID), Losses::Aux),
        (c("sigmoid with both losses", 20, 7, 2, SIGMOID), Losses::Both),
        (c("softmax with aux loss", 20, 8, 2, SOFTMAX), Losses::Aux),
        (c("softmax with z loss", 20, 8, 2, SOFTMAX), Losses::Z),
        (c("normalised with both losses", 20, 9, 4, normalised), Losses::Both),
        (c("fault 27 mask", 20, 8, 2, normalised).masked(), Losses::Both),
        (c("masked sigmoid", 20, 8, 2, SIGMOID).masked(), Losses::Both),
        (c("k = E", 9, 5, 5, normalised), Losses::Aux),
        (c("thousands of experts", 3, 5000, 6, normalised), Losses::Both),
        (c("one expert", 3, 1, 1, normalised), Losses::Both),
        (c("one token", 1, 6, 2, SOFTMAX), Losses::Both),
        (c("no tokens", 0, 6, 2, SOFTMAX), Losses::Both),
    ];
    let mut cases: Vec<Case> = table.iter().map(|(call, losses)| case(call, *losses)).collect();
    let nan = [[f32::NAN, 1.0, 2.0], [0.5, 1.0, 2.0]].concat();
    cases.push(case(&Call { logits: nan, ..c("NaN stays in its row", 2, 3, 2, SOFTMAX) }, Losses::Both));
    cases.extend(refusals());
    cases
}
