//! Routes: every pair once, to an instance of its own expert, and no closer split.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::mode::Ownership;
use super::super::route::tests::{draw, loads, placement, problem};
use super::super::route::{Traffic, assign, traffic};
use super::*;
use crate::rng::Philox;

/// Every pair exactly once, within the limits, in order.
fn check(sources: &Sources, placement: &Placement, limits: &[u32], routes: &[Route]) {
    let counts = sources.counts();
    let (mut left, mut room) = (counts.flat().to_vec(), limits.to_vec());
    let mut keys = Vec::new();
    for route in routes {
        let (e, s, to) = (route.expert as usize, route.from as usize, route.to as usize);
        assert!(route.pairs > 0);
        let instance = placement.find(e, to).expect("an instance of the expert");
        left[s * counts.experts() + e] -= route.pairs;
        room[instance] -= route.pairs;
        let distance = if s == to { 0 } else { 1 + u8::from(sources.node_of(s) != sources.node_of(to)) };
        keys.push((e, s, distance, to));
    }
    assert!(left.iter().all(|&n| n == 0));
    assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
}

/// Pairs on their own rank, and in their own node, of each expert.
fn kept(sources: &Sources, routes: &[Route]) -> BTreeMap<u32, (u64, u64)> {
    let mut kept = BTreeMap::new();
    for route in routes {
        let sums: &mut (u64, u64) = kept.entry(route.expert).or_default();
        sums.0 += u64::from(route.pairs) * u64::from(route.from == route.to);
        let near = sources.node_of(route.from as usize) == sources.node_of(route.to as usize);
        sums.1 += u64::from(route.pairs) * u64::from(near);
    }
    kept
}

#[test]
fn every_pair_once_and_as_near_as_can_be() {
    let mut rng = Philox::new(51, 0);
    for round in 0..3000 {
        let (sources, placement) =
            if round % 100 == 0 { problem(&mut rng, 512, 64, 9) } else { problem(&mut rng, 10, 10, 9) };
        let counts = sources.counts();
        let loads = loads(&mut rng, &sources, &placement);
        let routes = transport(&sources, &placement, &loads).unwrap();
        check(&sources, &placement, &loads, &routes);
        let kept = kept(&sources, &routes);
        for e in (0..counts.experts()).filter(|&e| counts.per_expert()[e] > 0) {
            let mut in_node = vec![0_u64; sources.nodes()];
            let mut local = 0;
            for (i, &r) in placement.range(e).zip(placement.hosts(e)) {
                local += u64::from(loads[i].min(counts.get(r as usize, e)));
                in_node[sources.node_of(r as usize)] += u64::from(loads[i]);
            }
            let near = (0..sources.nodes()).map(|n| in_node[n].min(u64::from(sources.per_node(e, n)))).sum();
            assert_eq!(kept[&(e as u32)], (local, near), "expert {e}");
        }
        // Looser limits keep no less.
        let looser: Vec<u32> = loads.iter().map(|c| c + draw(&mut rng, 0..=3) as u32).collect();
        let wide = transport(&sources, &placement, &looser).unwrap();
        check(&sources, &placement, &looser, &wide);
        for (e, (local, _)) in self::kept(&sources, &wide) {
            assert!(local >= kept[&e].0, "expert {e}");
        }
        assert_eq!(transport(&sources, &placement, &loads).unwrap(), routes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn what_is_assigned_is_routed(seed: u64, experts in 1..40_u64, ranks in 1..24_u64, pairs in 0..60_u64) {
        let (sources, placement) = problem(&mut Philox::new(seed, 2), experts, ranks, pairs);
        let loads = assign(&sources, &placement, None).unwrap();
        let routes = transport(&sources, &placement, &loads).unwrap();
        check(&sources, &placement, &loads, &routes);
        let of_routes = Traffic::of_routes(&routes, sources.counts().ranks(), sources.ranks_per_node()).unwrap();
        prop_assert_eq!(traffic(&sources, &placement, &loads).unwrap(), of_routes);
    }
}

#[test]
fn backward_routes_fewer_than_there_is_room_for() {
    let mut rng = Philox::new(52, 0);
    for _ in 0..1000 {
        let (sources, placement) = problem(&mut rng, 20, 12, 9);
        let counts = sources.counts();
        let quotas: Vec<u32> = counts.per_expert().iter().map(|&n| draw(&mut rng, 0..=u64::from(n)) as u32).collect();
        let expected = Sources::new(expected_retained(counts, &quotas).unwrap(), sources.ranks_per_node()).unwrap();
        let capacity = loads(&mut rng, &expected, &placement);
        // Fewer than the quota in one expert of two.
        let fewer = |e: usize, n: u32| if e.is_multiple_of(2) { n - n / 3 } else { n };
        let kept = expected.counts().flat().iter().enumerate().map(|(k, &n)| fewer(k % counts.experts(), n)).collect();
        let kept = Counts::from_flat(counts.ranks(), counts.experts(), kept).unwrap();
        let routes = route_backward(&kept, sources.ranks_per_node(), &placement, &capacity).unwrap();
        check(&Sources::new(kept, sources.ranks_per_node()).unwrap(), &placement, &capacity, &routes);
    }
}

#[test]
fn expected_shares_are_exact_but_for_rounding() {
    let mut rng = Philox::new(53, 0);
    for _ in 0..2000 {
        let (sources, _) = problem(&mut rng, 12, 12, 9);
        let counts = sources.counts();
        let quotas: Vec<u32> = counts.per_expert().iter().map(|&n| draw(&mut rng, 0..=u64::from(n)) as u32).collect();
        let expected = expected_retained(counts, &quotas).unwrap();
        assert_eq!(expected.per_expert(), quotas);
        for (e, &quota) in quotas.iter().enumerate() {
            let all = u64::from(counts.per_expert()[e]);
            let (mut seen, mut given) = (0, 0);
            for s in 0..counts.ranks() {
                let (n, got) = (u64::from(counts.get(s, e)), u64::from(expected.get(s, e)));
                seen += n;
                given += got;
                assert_eq!(given, (seen * u64::from(quota)).checked_div(all).unwrap_or(0));
                assert!(got <= n);
                // Numerators of the exact share and the given one.
                assert!((got * all).abs_diff(n * u64::from(quota)) < all.max(1));
            }
        }
    }
    let counts = Counts::new(&[[u32::MAX - 2], [1], [1]]).unwrap();
    assert_eq!(expected_retained(&counts, &[u32::MAX - 1]).unwrap().flat(), [u32::MAX - 3, 1, 1]);
    assert_eq!(expected_retained(&counts, &[u32::MAX]).unwrap(), counts);
    let says = |quotas: &[u32]| expected_retained(&Counts::new(&[[3, 4]]).unwrap(), quotas).unwrap_err().to_string();
    assert!(says(&[3, 5]).contains("quotas[1]") && says(&[3, 5]).contains("its count 4"));
    assert!(says(&[3]).contains("2 experts"));
}

#[test]
fn divides_as_the_machine_does() {
    let mut rng = Philox::new(56, 0);
    for _ in 0..200_000 {
        let b = 1 + (u64::from(rng.next_u32()) >> draw(&mut rng, 0..=31));
        let quotient = u64::from(rng.next_u32()) >> draw(&mut rng, 0..=31);
        for a in [quotient * b, quotient * b + b - 1, quotient * b + draw(&mut rng, 0..=b - 1)] {
            assert_eq!(divide(a, b), a / b, "{a} / {b}");
        }
    }
    let most = u64::from(u32::MAX);
    assert_eq!((divide(most * most, most), divide(most * most - 1, most)), (most, most - 1));
}

#[test]
fn retained_pairs_stay_with_their_forward() {
    let mut rng = Philox::new(54, 0);
    for _ in 0..500 {
        let (sources, placement) = problem(&mut rng, 10, 10, 9);
        let loads = loads(&mut rng, &sources, &placement);
        let forward = transport(&sources, &placement, &loads).unwrap();
        let kept: Vec<u32> = forward.iter().map(|route| draw(&mut rng, 0..=u64::from(route.pairs)) as u32).collect();
        let routes = follow(&forward, &kept).unwrap();
        assert!(routes.iter().all(|route| route.pairs > 0));
        let mut next = routes.iter();
        for (route, &pairs) in forward.iter().zip(&kept).filter(|(_, pairs)| **pairs > 0) {
            assert_eq!(next.next(), Some(&Route { pairs, ..*route }));
        }
        assert_eq!(next.next(), None);
    }
    let route = Route { expert: 7, from: 2, to: 3, pairs: 4 };
    let error = follow(&[route], &[5]).unwrap_err().to_string();
    assert!(error.contains("expert 7 from rank 2 on rank 3` is 5") && error.contains("at most 4"), "{error}");
    assert!(matches!(follow(&[route], &[]), Err(Error::Shape { .. })));
}

#[test]
fn refuses_limits_that_hold_too_little() {
    let counts = Counts::new(&[[6, 1], [4, 3]]).unwrap();
    let placement = Placement::new(2, &[vec![0, 1], vec![1]], vec![0, 1], Ownership::Home).unwrap();
    let sources = Sources::new(counts.clone(), 1).unwrap();
    let error = transport(&sources, &placement, &[4, 5, 4]).unwrap_err().to_string();
    assert!(error.contains("limits of expert 0 on ranks [0, 1]` is [4, 5], in all 9"), "{error}");
    assert!(error.contains("10 or more"), "{error}");
    let error = route_backward(&counts, 1, &placement, &[4, 6, 3]).unwrap_err().to_string();
    assert!(error.contains("backward capacity of expert 1 on ranks [1]"), "{error}");
    assert!(route_backward(&counts, 0, &placement, &[4, 6, 4]).is_err());
    assert!(matches!(transport(&sources, &placement, &[4, 6]), Err(Error::Shape { .. })));
    let other = self::placement(&mut Philox::new(55, 0), 3, 2);
    assert!(matches!(transport(&sources, &other, &vec![9; other.instances()]), Err(Error::Shape { .. })));
    // Limits far above need no sum that fits 32 bits.
    assert_eq!(transport(&sources, &placement, &[u32::MAX; 3]).unwrap().len(), 4);
}
