//! Scores, floors, retained sets and pair weights of the oracle.

use libtest_mimic::Trial;

use super::sample::{Sample, config, sample};
use crate::support::compare::Comparison;
use crate::support::linear::Mat;
use crate::support::oracle::Routing;
use crate::support::oracle_config::{OracleConfig, Scoring};
use crate::support::oracle_select::{
    Candidate, Mode, ScoreRule, candidates, floored_scores, ordered_bits, pair_scores, pair_weight, priority, select,
};
use crate::support::rng::Rng;
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("selection::retained_by_counting", by_counting),
        trial("selection::ties_by_token_then_slot", ties),
        trial("selection::full_quotas_keep_everything", full_quotas),
        trial("selection::ineligible_pairs_take_no_quota", ineligible),
        trial("selection::floors", floors),
        trial("selection::infinite_scores", infinite_scores),
        trial("selection::keys", keys),
        trial("selection::mixed_keeps_the_top_for_certain", mixed),
        trial("selection::weights_average_to_one", weights_average),
    ]
}

/// Every token goes to expert 0 (k = 1), or to experts 0 and 1 (k = 2).
fn routing(tokens: usize, top_k: usize) -> Routing {
    let experts: Vec<usize> = (0..tokens).flat_map(|_| 0..top_k).collect();
    Routing {
        top_k,
        logits: Mat::zeros(tokens, 2),
        scores: Mat::zeros(tokens, 2),
        weights: vec![1.0; experts.len()],
        experts,
        mask: vec![true; tokens],
    }
}

/// One candidate of expert 0 per score, by token.
fn one_expert(scores: &[f32]) -> (Routing, Vec<Candidate>) {
    let routing = routing(scores.len(), 1);
    let floored: Vec<Option<f32>> = scores.iter().copied().map(Some).collect();
    let token_ids: Vec<u64> = (0..scores.len() as u64).collect();
    let candidates = candidates(&routing, &floored, &token_ids);
    (routing, candidates)
}

fn pairs(retained: &[(usize, f64)]) -> Vec<usize> {
    retained.iter().map(|&(p, _)| p).collect()
}

/// A pair is retained exactly if fewer than q candidates of its expert come before it; no sorting here.
fn by_counting() -> Result<(), String> {
    let mut compare = Comparison::new();
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let routing = routing(12, 2);
        // Few distinct values, so that ties are common; tokens in no order.
        let floored: Vec<Option<f32>> =
            (0..24).map(|_| (rng.below(6) > 0).then(|| 0.5 * (1 + rng.below(4)) as f32)).collect();
        let token_ids: Vec<u64> = (0..12).map(|t| (t * 7 + 3) % 12).collect();
        let all = candidates(&routing, &floored, &token_ids);
        let quotas = [rng.below(12), rng.below(12)];
        let u = |c: &Candidate| Rng::new(c.pair as u64 + 1000 * seed).uniform_f32().max(0.25);
        for mode in [Mode::TopQ, Mode::Unbiased] {
            let key = |c: &Candidate| if mode == Mode::TopQ { c.score } else { priority(c.score, u(c)) };
            let selection = select(mode, &routing, &all, &quotas, u);
            let mut want = Vec::new();
            for c in &all {
                let rivals = all.iter().filter(|r| r.expert == c.expert && r.pair != c.pair);
                let before =
                    rivals.filter(|r| key(r) > key(c) || (key(r) == key(c) && r.token_id < c.token_id)).count();
                if before < quotas[c.expert] {
                    want.push(c.pair);
                }
            }
            compare.equal(&format!("{mode:?} retained"), &pairs(&selection.retained), &want);
            for (e, &quota) in quotas.iter().enumerate() {
                let own: Vec<&Candidate> = all.iter().filter(|c| c.expert == e).collect();
                let kept = want.iter().filter(|&&p| p % 2 == e).count();
                compare.equal("min(quota, eligible)", &[kept], &[quota.min(own.len())]);
                let dropped = own.iter().filter(|c| !want.contains(&c.pair));
                let tau = if mode == Mode::TopQ { 0.0 } else { dropped.map(|c| key(c)).fold(0.0, f32::max) };
                compare.equal("tau", &[selection.tau[e]], &[tau]);
            }
            for &(p, w) in &selection.retained {
                let score = floored[p].unwrap_or(f32::NAN);
                let want = (f64::from(selection.tau[p % 2]) / f64::from(score)).max(1.0);
                compare.number("pair weight", w, want, 0.0);
            }
        }
    }
    compare.finish(40 * 2 * 5)
}

fn ties() -> Result<(), String> {
    let (routing, mut all) = one_expert(&[1.0; 4]);
    let mut compare = Comparison::new();
    for (c, id) in all.iter_mut().zip([30, 10, 40, 20]) {
        c.token_id = id;
    }
    let selection = select(Mode::TopQ, &routing, &all, &[2, 0], |_| 1.0);
    compare.equal("lowest token ids", &pairs(&selection.retained), &[1, 3]);
    for (c, slot) in all.iter_mut().zip([3, 2, 1, 0]) {
        (c.token_id, c.slot) = (u64::MAX, slot);
    }
    let selection = select(Mode::Unbiased, &routing, &all, &[3, 0], |_| 0.5);
    compare.equal("lowest slots", &pairs(&selection.retained), &[1, 2, 3]);
    compare.equal("tau is the tied key", &selection.tau, &[2.0, 0.0]);
    compare.equal("weights", &selection.retained.iter().map(|r| r.1).collect::<Vec<_>>(), &[2.0; 3]);
    compare.finish(4)
}

fn full_quotas() -> Result<(), String> {
    let (routing, all) = one_expert(&[1.0, 2.0, 3.0]);
    let mut compare = Comparison::new();
    for mode in [Mode::All, Mode::TopQ, Mode::Unbiased, Mode::Mixed { certain: 0.5 }] {
        // One pair is not eligible; with full quotas it is kept all the same.
        let selection = select(mode, &routing, &all[..2], &[3, 0], |_| 0.1);
        compare.equal(&format!("{mode:?}"), &selection.retained, &[(0, 1.0), (1, 1.0), (2, 1.0)]);
    }
    compare.finish(4)
}

fn scored(case: &Sample, routing: Routing, floor: f64) -> (Vec<Option<f64>>, Vec<Option<f32>>) {
    let forward = case.layer.forward(&case.x, routing);
    let scores = pair_scores(&case.layer, &case.x, &forward, &case.d, &ScoreRule::OutputNorm);
    let floored = floored_scores(&forward, &case.d, &scores, floor);
    (scores, floored)
}

fn ineligible() -> Result<(), String> {
    let mut case = sample(&config(Scoring::Softmax, true), 4, 21);
    case.d.row_mut(0).fill(-0.0);
    let mut routing = case.layer.route(&case.x, Some(&case.mask));
    routing.weights[2 * 3] = 0.0;
    let (scores, floored) = scored(&case, routing.clone(), 0.25);
    // Token 0 has no gradient, token 1 is masked, the first pair of token 2 has g = 0.
    let want: Vec<bool> = (0..12).map(|p| p >= 7).collect();
    let mut compare = Comparison::new();
    compare.equal("eligible", &scores.iter().map(Option::is_some).collect::<Vec<_>>(), &want);
    compare.equal("eligible after the floor", &floored.iter().map(Option::is_some).collect::<Vec<_>>(), &want);
    let all = candidates(&routing, &floored, &[0, 1, 2, 3]);
    let mut quotas = routing.counts();
    let idle = all[0].expert;
    quotas[idle] -= 1;
    let selection = select(Mode::Unbiased, &routing, &all, &quotas, |_| 0.5);
    let eligible_elsewhere = all.iter().filter(|c| c.expert != idle).count();
    let kept = selection.retained.iter().filter(|r| routing.experts[r.0] != idle).count();
    compare.equal("only eligible pairs elsewhere", &[kept], &[eligible_elsewhere]);
    compare.finish(3)
}

fn floors() -> Result<(), String> {
    // k = E = 1: scores of one expert, all in one mean.
    let one = OracleConfig { num_experts: 1, top_k: 1, ..config(Scoring::Softmax, false) };
    let mut case = sample(&one, 5, 31);
    case.layer.weights.correction_bias = None;
    case.x.row_mut(0).fill(0.0);
    let routing = case.layer.route(&case.x, None);
    let mut compare = Comparison::new();
    let (scores, floored) = scored(&case, routing.clone(), 0.25);
    let raw: Vec<f64> = scores.iter().flatten().copied().collect();
    let mean = raw.iter().sum::<f64>() / 5.0;
    compare.equal("h = 0 scores 0", &raw[..1], &[0.0]);
    let want: Vec<f64> = raw.iter().map(|&m| m.max(0.25 * mean)).collect();
    let got: Vec<f64> = floored.iter().flatten().map(|&m| f64::from(m)).collect();
    compare.relative("a quarter of the mean", &got, &want, 1e-7);
    compare.holds("a floor was used", got[0] > 0.0);

    // Infinite scores are outside the mean.
    let mut with_infinity = scores.clone();
    with_infinity[1] = Some(f64::INFINITY);
    let forward = case.layer.forward(&case.x, routing.clone());
    let floored = floored_scores(&forward, &case.d, &with_infinity, 1.0);
    let finite_mean = (mean * 5.0 - raw[1]) / 4.0;
    compare.equal("infinity stays", &[floored[1]], &[Some(f32::INFINITY)]);
    compare.number("mean of the others", f64::from(floored[0].unwrap_or(0.0)), finite_mean, 1e-7);

    // h = 0 everywhere: |g| ||d||.
    case.x.data.fill(0.0);
    let (scores, floored) = scored(&case, case.layer.route(&case.x, None), 0.25);
    compare.holds("every score is 0", scores.iter().all(|&m| m == Some(0.0)));
    let want: Vec<f64> = (0..5).map(|t| case.d.row(t).iter().map(|v| v * v).sum::<f64>().sqrt()).collect();
    let got: Vec<f64> = floored.iter().flatten().map(|&m| f64::from(m)).collect();
    compare.relative("|g| ||d||", &got, &want, 1e-7);

    // Even that vanishes: squares of 1e-200 are 0.
    case.d.data.fill(1e-200);
    let (_, floored) = scored(&case, case.layer.route(&case.x, None), 0.25);
    compare.equal("1", &floored, &[Some(1.0); 5]);
    compare.finish(8)
}

fn infinite_scores() -> Result<(), String> {
    let mut case = sample(&config(Scoring::Softmax, true), 3, 41);
    case.d.row_mut(0)[2] = f64::NAN;
    case.d.row_mut(2)[0] = f64::NEG_INFINITY;
    let (scores, floored) = scored(&case, case.layer.route(&case.x, None), 0.25);
    let mut compare = Comparison::new();
    for p in [0, 1, 2, 6, 7, 8] {
        compare.equal("NaN or infinity in d", &[scores[p]], &[Some(f64::INFINITY)]);
        compare.equal("and after the floor", &[floored[p]], &[Some(f32::INFINITY)]);
    }
    compare.holds("the others are finite", (3..6).all(|p| floored[p].is_some_and(f32::is_finite)));
    let (routing, all) = one_expert(&[1.0, f32::INFINITY, 2.0, f32::INFINITY, 3.0]);
    let selection = select(Mode::Unbiased, &routing, &all, &[3, 0], |c| if c.pair == 0 { 1e-7 } else { 1.0 });
    compare.equal("retained", &pairs(&selection.retained), &[0, 1, 3]);
    compare.equal("infinite scores weigh 1", &[selection.retained[1].1, selection.retained[2].1], &[1.0, 1.0]);
    let selection = select(Mode::Unbiased, &routing, &all, &[1, 0], |_| 0.5);
    compare.equal("more of them than quota: lowest token", &selection.retained, &[(1, 1.0)]);
    compare.finish(16)
}

fn keys() -> Result<(), String> {
    let mut compare = Comparison::new();
    compare.equal("-0 is +0", &[ordered_bits(-0.0)], &[0]);
    compare.equal("NaN is infinity", &[ordered_bits(f32::NAN)], &[f32::INFINITY.to_bits()]);
    compare
        .holds("order", ordered_bits(1e-40) < ordered_bits(1e-38) && ordered_bits(2.0) < ordered_bits(f32::INFINITY));
    compare.equal("priorities stay finite", &[priority(f32::MAX, 1e-7)], &[f32::MAX]);
    compare.equal("and normal", &[priority(1e-40, 1.0)], &[f32::MIN_POSITIVE]);
    compare.equal("infinity stays", &[priority(f32::INFINITY, 0.5)], &[f32::INFINITY]);
    compare.equal("weights", &[pair_weight(2.0, 3.0), pair_weight(2.0, 1.0)], &[1.5, 1.0]);
    compare.finish(7)
}

fn mixed() -> Result<(), String> {
    let (routing, all) = one_expert(&[1.0, 8.0, 2.0, 4.0, 3.0, 5.0]);
    // f q = 1.6: one for certain. Then keys 10, _, 2, 4, 3, 5: pairs 0, 5, 3, and 3 is the next.
    let u = |c: &Candidate| if c.pair == 0 { 0.1 } else { 1.0 };
    let selection = select(Mode::Mixed { certain: 0.4 }, &routing, &all, &[4, 0], u);
    let mut compare = Comparison::new();
    compare.equal("retained", &pairs(&selection.retained), &[0, 1, 3, 5]);
    compare.equal("tau", &selection.tau, &[3.0, 0.0]);
    compare.equal("weights", &selection.retained.iter().map(|r| r.1).collect::<Vec<_>>(), &[3.0, 1.0, 1.0, 1.0]);
    compare.finish(3)
}

/// Mean of w_p * retained over 40,000 draws is 1 for every pair. Bound: 5 standard errors of the worst of 9 means.
fn weights_average() -> Result<(), String> {
    const DRAWS: usize = 40_000;
    let scores = [0.3, 0.3, 0.5, 1.0, 1.0, 2.0, 3.0, 7.0, 20.0];
    let (routing, all) = one_expert(&scores);
    let mut rng = Rng::new(51);
    let mut compare = Comparison::new();
    for mode in [Mode::Unbiased, Mode::Mixed { certain: 0.25 }] {
        let (mut sum, mut squares) = ([0.0; 9], [0.0; 9]);
        for _ in 0..DRAWS {
            let draws: Vec<f32> = scores.iter().map(|_| rng.uniform_f32()).collect();
            for (p, w) in select(mode, &routing, &all, &[4, 0], |c| draws[c.pair]).retained {
                sum[p] += w;
                squares[p] += w * w;
            }
        }
        for p in 0..scores.len() {
            let mean = sum[p] / DRAWS as f64;
            let error = ((squares[p] / DRAWS as f64 - mean * mean).max(0.0) / DRAWS as f64).sqrt();
            compare.holds(&format!("{mode:?} pair {p}: {mean} +- {error}"), (mean - 1.0).abs() <= 5.0 * error + 1e-12);
            compare.holds("the bound means something", error < 0.05);
        }
    }
    compare.finish(36)
}
