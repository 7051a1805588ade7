//! Unit tests of quotas within capacities. Whether quotas fit is decided here by Hall's condition over all sets of ranks, or by a
//! flow built from scratch, never by the code under test.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::demand::Demand;
use super::super::mode::Ownership;
use super::super::quota::tests::{Case, Oracle, cases, weighted_cost};
use super::super::quota::{QuotaOptions, Quotas, quotas, quotas_within};
use super::*;
use crate::rng::Philox;

#[derive(Debug, Clone)]
struct Ranked {
    case: Case,
    placement: Placement,
    capacity: Vec<u64>,
}

fn placed(ranks: usize, hosts: &[Vec<u32>]) -> Placement {
    Placement::new(ranks, hosts, hosts.iter().map(|h| h[0]).collect(), Ownership::Home).unwrap()
}

/// Experts with one, some or all hosts; capacities from 0 to plenty, all the same or not.
fn ranked(experts: usize, pairs: usize, ranks: usize) -> impl Strategy<Value = Ranked> {
    let masks = prop::collection::vec(prop_oneof![3 => 0..u32::MAX, 1 => Just(u32::MAX), 3 => 0..8_u32], experts);
    let spread = prop::collection::vec(0.0..2.0_f64, ranks);
    let style = prop_oneof![4 => Just(0), 4 => Just(1), 1 => Just(2), 1 => Just(3)];
    (cases(experts, pairs), 1..=ranks, masks, spread, style, 0.0..1.5_f64).prop_map(
        |(mut case, ranks, masks, spread, style, level)| {
            // Floors that leave something to decide.
            case.options.q_min %= 4;
            let mean = case.sum as f64 / ranks as f64;
            let capacity = (0..ranks)
                .map(|r| match style {
                    0 => (spread[r] * mean) as u64,
                    1 => (level * mean).ceil() as u64,
                    2 => 0,
                    _ => u64::MAX,
                })
                .collect();
            let hosts = |e: usize| -> Vec<u32> {
                let few = masks[e] < 8;
                let own: Vec<u32> = (0..ranks as u32).filter(|r| !few && masks[e] >> r & 1 == 1).collect();
                if own.is_empty() { vec![masks[e] % ranks as u32] } else { own }
            };
            let hosts: Vec<Vec<u32>> = (0..case.counts.len()).map(hosts).collect();
            Ranked { placement: placed(ranks, &hosts), case, capacity }
        },
    )
}

fn within(r: &Ranked) -> Quotas {
    quotas_within(&r.case.counts, &r.case.demand, &r.case.options, r.case.sum, &r.placement, &r.capacity).unwrap()
}

/// Hall's condition: the pairs that can only go to some ranks fit them, for every set of ranks.
fn fits(quotas: &[u32], placement: &Placement, capacity: &[u64]) -> bool {
    (0..1_u32 << placement.ranks()).all(|set| {
        let inside = |e: &usize| placement.hosts(*e).iter().all(|r| set >> r & 1 == 1);
        let pairs: u128 = (0..quotas.len()).filter(inside).map(|e| u128::from(quotas[e])).sum();
        let room: u128 = (0..capacity.len()).filter(|r| set >> r & 1 == 1).map(|r| u128::from(capacity[r])).sum();
        pairs <= room
    })
}

fn floors(case: &Case) -> Vec<u32> {
    case.counts.iter().map(|&n| n.min(case.options.q_min)).collect()
}

/// The capacities with which the floors fit, found by trying every level.
fn raised(r: &Ranked) -> Vec<u64> {
    let floors = floors(&r.case);
    let at = |level: u64| -> Vec<u64> { r.capacity.iter().map(|&c| c.max(level)).collect() };
    (0..).map(at).find(|capacity| fits(&floors, &r.placement, capacity)).unwrap()
}

/// Grants pairs one by one as long as `gain` is positive, forfeiting what does not fit.
fn grant_greedily(q: &mut [u32], sum: u64, placement: &Placement, capacity: &[u64], gain: impl Fn(usize, u32) -> f64) {
    let mut open = vec![true; q.len()];
    while total(q) < sum {
        let mut best = (0.0, None);
        for e in (0..q.len()).filter(|&e| open[e]) {
            let gain = gain(e, q[e]);
            if gain > best.0 {
                best = (gain, Some(e));
            }
        }
        let Some(e) = best.1 else { break };
        q[e] += 1;
        if !fits(q, placement, capacity) {
            q[e] -= 1;
            open[e] = false;
        }
    }
}

fn check_against_grants(r: &Ranked) -> std::result::Result<(), TestCaseError> {
    let Ranked { case, placement, .. } = r;
    let result = within(r);
    let plain = quotas(&case.counts, &case.demand, &case.options, case.sum).unwrap();
    let mut q = floors(case);
    if total(&q) > case.sum {
        prop_assert_eq!(&result, &plain);
        prop_assert_eq!(&result.limits, &[Limit::Floor]);
        return Ok(());
    }
    let capacity = raised(r);
    let solver = Solver::new(&case.counts, &case.demand, &case.options).unwrap();
    let gain = |e: usize, quota| if quota < solver.ceilings[e] { solver.gain(e, quota) } else { 0.0 };
    grant_greedily(&mut q, case.sum, placement, &capacity, gain);
    let useful: Vec<u32> = result.q.iter().zip(&solver.ceilings).map(|(&q, &end)| q.min(end)).collect();
    prop_assert_eq!(&useful, &q, "{:?}", result);
    grant_greedily(&mut q, case.sum, placement, &capacity, |e, quota| f64::from(u8::from(quota < case.counts[e])));
    prop_assert_eq!(total(&result.q), total(&q));
    prop_assert!(fits(&result.q, placement, &capacity), "{result:?}");
    prop_assert!(result.q.iter().zip(&case.counts).all(|(q, n)| q <= n));
    let mut limits = Vec::new();
    if capacity != r.capacity {
        limits.push(Limit::Floor);
    }
    if result.q != plain.q {
        limits.push(Limit::RankCapacity);
    } else {
        prop_assert_eq!((&result.tau, result.eta.to_bits()), (&plain.tau, plain.eta.to_bits()));
    }
    prop_assert!(total(&result.q) == case.sum || result.limits.contains(&Limit::RankCapacity));
    prop_assert_eq!(&result.limits, &limits);
    prop_assert_eq!(result.requested, case.sum);
    prop_assert_eq!(within(r), result, "not the same the second time");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8000))]

    #[test]
    fn equals_unit_grants_that_fit(r in ranked(7, 24, 5)) {
        check_against_grants(&r)?;
    }

    /// Most pairs gain nothing: what is shared in proportion is shared anew whenever ranks fill up.
    #[test]
    fn leftovers_of_many_experts(mut r in ranked(7, 60, 5), useful in 0..4_usize) {
        let counts = &r.case.counts;
        let scores: Vec<f32> =
            counts.iter().flat_map(|&n| (0..n as usize).map(move |i| if i < useful { 1.0 } else { 0.0 })).collect();
        let mut offsets = vec![0];
        counts.iter().for_each(|n| offsets.push(offsets.last().unwrap() + n));
        r.case.demand = Demand::from_scores(&scores, &offsets).unwrap();
        check_against_grants(&r)?;
    }

    #[test]
    fn many_ranks_and_few_pairs(r in ranked(8, 8, 8)) {
        check_against_grants(&r)?;
    }

    #[test]
    fn ample_capacities_change_nothing(mut r in ranked(8, 40, 8)) {
        r.capacity.fill(total(&r.case.counts));
        let plain = quotas(&r.case.counts, &r.case.demand, &r.case.options, r.case.sum).unwrap();
        prop_assert_eq!(within(&r), plain.clone());
        r.capacity.fill(u64::MAX);
        prop_assert_eq!(within(&r), plain);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// No other quotas that fit cost less, whatever their sum.
    #[test]
    fn equals_full_enumeration(mut r in ranked(4, 7, 3)) {
        let floors = floors(&r.case);
        r.case.sum = r.case.sum.max(total(&floors));
        let case = &r.case;
        let capacity = raised(&r);
        let oracles = Oracle::of(&case.demand, &case.counts);
        let result = within(&r);
        let found = weighted_cost(&oracles, &result.q, case.options.alpha);
        let mut q = floors.clone();
        loop {
            if total(&q) <= case.sum && fits(&q, &r.placement, &capacity) {
                prop_assert!(total(&q) <= total(&result.q), "{q:?} fits beside {:?}", result.q);
                let other = weighted_cost(&oracles, &q, case.options.alpha);
                prop_assert!(found <= other * (1.0 + 1e-9) + 1e-300, "{:?} costs {found}, {q:?} {other}", result.q);
            }
            let Some(e) = (0..q.len()).find(|&e| q[e] < case.counts[e]) else { break };
            q[e] += 1;
            q[..e].copy_from_slice(&floors[..e]);
        }
    }

    /// Granting stops later for a larger sum, so nothing useful is taken back. Pairs that gain nothing are shared anew and may move.
    #[test]
    fn useful_quotas_are_nested(mut r in ranked(5, 20, 4)) {
        let ceilings = Solver::new(&r.case.counts, &r.case.demand, &r.case.options).unwrap().ceilings;
        let useful = |q: &[u32]| -> Vec<u32> { q.iter().zip(&ceilings).map(|(&q, &end)| q.min(end)).collect() };
        let mut last: Option<Quotas> = None;
        for sum in 0..=total(&r.case.counts) {
            r.case.sum = sum;
            let next = within(&r);
            if let Some(last) = last {
                let (old, new) = (useful(&last.q), useful(&next.q));
                prop_assert!(old.iter().zip(&new).all(|(old, new)| old <= new), "{sum}: {new:?} after {old:?}");
                prop_assert!(next.tau.iter().zip(&last.tau).all(|(new, old)| new <= old));
                prop_assert!(next.eta <= last.eta && total(&next.q) >= total(&last.q));
            }
            last = Some(next);
        }
    }
}

/// The expert that reached a rank, and the rank that one was reached by.
type Reached = Option<(usize, Option<usize>)>;

/// A flow from scratch: pairs of each expert on each rank, as much of a supply as fits.
struct Sent {
    at: Vec<Vec<u64>>,
    rank_loads: Vec<u64>,
}

impl Sent {
    fn new(supply: &[u64], placement: &Placement, capacity: &[u64]) -> Self {
        let mut sent =
            Self { at: vec![vec![0; placement.ranks()]; supply.len()], rank_loads: vec![0; placement.ranks()] };
        for (e, &supply) in supply.iter().enumerate() {
            let mut left = supply;
            while left > 0 {
                let (from, end) = sent.reach(e, placement, capacity);
                let Some(end) = end else { break };
                let mut path = vec![(end, from[end].unwrap().0)];
                while let Some((expert, Some(rank))) = path.last().map(|&(rank, by)| (by, from[rank].unwrap().1)) {
                    assert_ne!(expert, e);
                    path.push((rank, from[rank].unwrap().0));
                }
                let moved = path.windows(2).map(|w| sent.at[w[0].1][w[1].0]);
                let amount = moved.chain([left, capacity[end] - sent.rank_loads[end]]).min().unwrap();
                for w in path.windows(2) {
                    sent.at[w[0].1][w[1].0] -= amount;
                }
                for &(rank, expert) in &path {
                    sent.at[expert][rank] += amount;
                }
                sent.rank_loads[end] += amount;
                left -= amount;
            }
        }
        sent
    }

    fn total(&self) -> u64 {
        self.rank_loads.iter().sum()
    }

    /// How each rank is reached from an expert, and a rank with room, where the search ends.
    fn reach(&self, start: usize, placement: &Placement, capacity: &[u64]) -> (Vec<Reached>, Option<usize>) {
        let mut from = vec![None; placement.ranks()];
        let mut seen = vec![false; placement.experts()];
        seen[start] = true;
        let mut queue = VecDeque::from([(start, None)]);
        while let Some((e, by)) = queue.pop_front() {
            for rank in placement.hosts(e).iter().map(|&r| r as usize) {
                if from[rank].is_some() {
                    continue;
                }
                from[rank] = Some((e, by));
                if self.rank_loads[rank] < capacity[rank] {
                    return (from, Some(rank));
                }
                for (other, seen) in seen.iter_mut().enumerate() {
                    if !*seen && self.at[other][rank] > 0 {
                        *seen = true;
                        queue.push_back((other, Some(rank)));
                    }
                }
            }
        }
        (from, None)
    }
}

fn wide(q: &[u32]) -> Vec<u64> {
    q.iter().map(|&q| u64::from(q)).collect()
}

/// A layer with log-normal loads, idle experts, perhaps one hot expert, copies for the loaded ones.
fn random_layer(rng: &mut Philox) -> Ranked {
    let mut below = |n: usize| ((f64::from(rng.uniform()) * n as f64) as usize).min(n - 1);
    let (experts, ranks, style) = (1 + below(512), 1 + below(64), below(6));
    let (copies, pairs) = (1 + below(3), 1 + below(200));
    let skew = 0.5 * below(5) as f64;
    let mut counts: Vec<u32> = (0..experts)
        .map(|e| if e % 7 == 3 { 0 } else { (pairs as f64 * (skew * rng.normal()).exp()) as u32 })
        .collect();
    if style == 0 {
        counts[experts / 2] = 20_000;
    }
    let (mut scores, mut offsets) = (Vec::new(), vec![0]);
    for &n in &counts {
        let scale = rng.normal().exp();
        scores.extend((0..n.min(50)).map(|_| (scale * rng.normal().exp()) as f32));
        offsets.push(scores.len() as u32);
    }
    let demand = Demand::from_scores(&scores, &offsets).unwrap();
    let hosts: Vec<Vec<u32>> = (0..experts)
        .map(|e| {
            let wanted = if style == 1 && e % 5 == 0 { ranks } else { copies.min(ranks) };
            let first = (f64::from(rng.uniform()) * ranks as f64) as usize;
            let step = if ranks % 2 == 1 { 2 } else { 1 };
            let mut own: Vec<u32> = (0..wanted).map(|i| ((first + i * step) % ranks) as u32).collect();
            own.sort_unstable();
            own.dedup();
            own
        })
        .collect();
    let sum = (f64::from(rng.uniform()) * total(&counts) as f64) as u64;
    let mean = sum as f64 / ranks as f64;
    let slack = [0.0, 0.05, 0.5, -0.5, -0.9, 0.2][style];
    let capacity = (0..ranks)
        .map(|r| {
            if style == 5 {
                (f64::from(rng.uniform()) * 3.0 * mean) as u64
            } else {
                (mean * (1.0 + slack)).ceil() as u64 + r as u64 % 2
            }
        })
        .collect();
    let options = QuotaOptions { alpha: [0.0, 0.5, 1.0][experts % 3], q_min: [0, 2, 8][ranks % 3] };
    Ranked { placement: placed(ranks, &hosts), case: Case { demand, counts, options, sum }, capacity }
}

/// Layers of real size. Quotas are optimal if no pair can be swapped for a better one that fits: the feasible quotas of one sum are
/// an M-convex set, where a local optimum is a global one.
#[test]
fn large_layers_fit_and_no_swap_gains() {
    let mut rng = Philox::new(21, 0);
    let (mut bound, mut short, mut swaps) = (0, 0, 0_u64);
    for _ in 0..150 {
        let r = random_layer(&mut rng);
        let Ranked { case, placement, .. } = &r;
        let result = within(&r);
        let plain = quotas(&case.counts, &case.demand, &case.options, case.sum).unwrap();
        let floors = floors(case);
        if total(&floors) > case.sum {
            assert_eq!(result, plain);
            continue;
        }
        let flows = |level: u64| {
            let capacity: Vec<u64> = r.capacity.iter().map(|&c| c.max(level)).collect();
            let fits = Sent::new(&wide(&floors), placement, &capacity).total() == total(&floors);
            (fits, capacity)
        };
        let level = (0..=total(&floors)).collect::<Vec<_>>().partition_point(|&level| !flows(level).0);
        let capacity = flows(level as u64).1;
        assert_eq!(result.limits.contains(&Limit::Floor), capacity != r.capacity);
        assert_eq!(result.limits.contains(&Limit::RankCapacity), result.q != plain.q);

        let sent = Sent::new(&wide(&result.q), placement, &capacity);
        assert_eq!(sent.total(), total(&result.q), "the ranks cannot carry these quotas");
        let most = Sent::new(&wide(&case.counts), placement, &capacity).total();
        assert_eq!(total(&result.q), case.sum.min(most));
        bound += u32::from(result.q != plain.q);
        short += u32::from(most < case.sum);

        let solver = Solver::new(&case.counts, &case.demand, &case.options).unwrap();
        let gain = |e: usize, quota: u32| if quota < solver.ceilings[e] { solver.gain(e, quota) } else { 0.0 };
        for e in 0..case.counts.len() {
            let up = gain(e, result.q[e]);
            if up <= 0.0 {
                continue;
            }
            let (from, room) = sent.reach(e, placement, &capacity);
            assert!(room.is_none() || total(&result.q) == case.sum);
            for other in (0..case.counts.len()).filter(|&o| o != e && result.q[o] > floors[o]) {
                let frees = (0..placement.ranks()).any(|rank| from[rank].is_some() && sent.at[other][rank] > 0);
                if room.is_some() || frees {
                    let down = gain(other, result.q[other] - 1);
                    assert!(up <= down * (1.0 + 1e-12), "expert {e} gains {up}, {other} loses {down}");
                    swaps += 1;
                }
            }
        }
    }
    assert!(bound > 60 && short > 20 && swaps > 100_000, "{bound} bound, {short} short, {swaps} swaps tried");
}

/// The same, many more times, without the search for swaps.
#[test]
fn random_layers_stay_within_their_ranks() {
    let mut rng = Philox::new(22, 0);
    for _ in 0..1500 {
        let r = random_layer(&mut rng);
        let result = within(&r);
        let named = |limit| result.limits.contains(&limit);
        let floors = floors(&r.case);
        assert!((0..result.q.len()).all(|e| floors[e] <= result.q[e] && result.q[e] <= r.case.counts[e]));
        match total(&result.q) {
            sum if sum > r.case.sum => assert!(named(Limit::Floor)),
            sum if sum < r.case.sum => assert!(named(Limit::RankCapacity)),
            _ => {}
        }
        if !named(Limit::Floor) {
            let sent = Sent::new(&wide(&result.q), &r.placement, &r.capacity);
            assert_eq!(sent.total(), total(&result.q));
        }
        let plain = quotas(&r.case.counts, &r.case.demand, &r.case.options, r.case.sum).unwrap();
        assert_eq!(named(Limit::RankCapacity), plain.q != result.q);
        if plain.q == result.q {
            assert_eq!((plain.eta.to_bits(), plain.tau), (result.eta.to_bits(), result.tau));
        }
    }
}

/// Worked by hand: the hot expert's ranks hold 8 of its 30 pairs, the others take the rest in proportion to their loads.
#[test]
fn what_a_hot_expert_forfeits_goes_to_the_others() {
    let counts = [30, 10, 10, 0];
    let placement = placed(3, &[vec![0, 1], vec![2], vec![2], vec![1]]);
    let run = |sum, capacity: [u64; 3]| {
        let options = QuotaOptions { alpha: 1.0, q_min: 0 };
        let result = quotas_within(&counts, &Demand::uniform(&counts), &options, sum, &placement, &capacity).unwrap();
        (result.q, result.limits)
    };
    assert_eq!(run(20, [4, 4, 100]), (vec![8, 6, 6, 0], vec![Limit::RankCapacity]));
    // More than everything that fits: the sum falls short.
    assert_eq!(run(40, [4, 4, 100]), (vec![8, 10, 10, 0], vec![Limit::RankCapacity]));
    assert_eq!(run(20, [0, 0, 0]), (vec![0; 4], vec![Limit::RankCapacity]));
    assert_eq!(run(0, [0, 0, 0]), (vec![0; 4], vec![]));
    assert_eq!(run(50, [15, 15, 20]), (counts.to_vec(), vec![]));
}

/// Two floors of 8 on one rank that may hold 5: it holds 16, and so may every other rank.
#[test]
fn floors_raise_every_rank_to_one_level() {
    let counts = [20, 20, 40];
    let placement = placed(3, &[vec![0], vec![0], vec![1, 2]]);
    let (demand, options) = (Demand::uniform(&counts), QuotaOptions::default());
    let run = |sum| quotas_within(&counts, &demand, &options, sum, &placement, &[5, 3, 18]).unwrap();
    let result = run(44);
    assert_eq!((result.q, result.limits), (vec![8, 8, 28], vec![Limit::Floor, Limit::RankCapacity]));
    let result = run(60);
    assert_eq!((result.q, result.limits), (vec![8, 8, 34], vec![Limit::Floor, Limit::RankCapacity]));
    // The sum is less than the floors: they are the quotas, and the ranks play no part.
    let result = run(23);
    assert_eq!((result.q, result.limits), (vec![8, 8, 8], vec![Limit::Floor]));
    assert_eq!(least_level(vec![5, 3, 18], 29), 6);
    assert_eq!(least_level(vec![5, 3, 18], 55), 19);
    assert_eq!(least_level(vec![0; 3], 1), 1);
    assert_eq!(least_level(vec![2, 7], 14), 7);
}

/// What gains nothing obeys the capacities too, and is shared in proportion within them.
#[test]
fn leftovers_obey_capacities() {
    let scores = [[1.0; 10].as_slice(), &[0.0; 90], &[1.0; 10], &[0.0; 30]].concat();
    let demand = Demand::from_scores(&scores, &[0, 100, 140]).unwrap();
    let placement = placed(2, &[vec![0], vec![1]]);
    let run = |capacity: [u64; 2]| {
        quotas_within(&[100, 40], &demand, &QuotaOptions::default(), 60, &placement, &capacity).unwrap()
    };
    assert_eq!(run([40, 20]).q, [40, 20]);
    assert_eq!((run([25, 60]).q, run([25, 60]).eta), (vec![25, 35], 0.0));
    assert_eq!((run([25, 30]).q, run([25, 30]).limits), (vec![25, 30], vec![Limit::RankCapacity]));
}

#[test]
fn counts_at_the_end_of_their_type() {
    let counts = [u32::MAX, u32::MAX, 3];
    let placement = placed(2, &[vec![0], vec![0, 1], vec![1]]);
    let sum = 2 * u64::from(u32::MAX);
    let result = quotas_within(
        &counts,
        &Demand::uniform(&counts),
        &QuotaOptions::default(),
        sum,
        &placement,
        &[u64::MAX, 1 << 20],
    )
    .unwrap();
    assert_eq!((total(&result.q), result.limits.len()), (sum, 0));
    let short = quotas_within(
        &counts,
        &Demand::uniform(&counts),
        &QuotaOptions::default(),
        sum,
        &placement,
        &[1 << 31, 1 << 31],
    )
    .unwrap();
    assert_eq!((total(&short.q), short.limits), (1 << 32, vec![Limit::RankCapacity]));
}

#[test]
fn refuses_other_sizes() {
    let placement = placed(2, &[vec![0], vec![1]]);
    let run = |counts: &[u32], demand: &[u32], sum, capacity: &[u64]| {
        quotas_within(counts, &Demand::uniform(demand), &QuotaOptions::default(), sum, &placement, capacity)
    };
    assert!(run(&[4, 6], &[4, 6], 10, &[5, 5]).is_ok());
    for error in [
        run(&[4, 6, 1], &[4, 6, 1], 5, &[5, 5]),
        run(&[4, 6], &[4, 6, 1], 5, &[5, 5]),
        run(&[4, 6], &[4, 6], 5, &[5]),
        run(&[4, 6], &[4, 6], 5, &[5; 3]),
    ] {
        assert!(matches!(error, Err(Error::Shape { .. })), "{error:?}");
    }
    assert!(matches!(run(&[4, 6], &[4, 6], 11, &[5, 5]), Err(Error::Argument { .. })));
    let bad = QuotaOptions { alpha: 2.0, q_min: 2 };
    assert!(quotas_within(&[4, 6], &Demand::uniform(&[4, 6]), &bad, 5, &placement, &[5, 5]).is_err());
}
