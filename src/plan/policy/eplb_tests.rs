//! Tests of EPLB's replication, packing and maps.

use super::*;
use crate::rng::philox4x32;

/// The example of EPLB's README: loads of two layers, and the experts of the 16 slots that it prints.
const README_LOADS: [[u32; 12]; 2] =
    [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]];
const README_SLOTS: [[u32; 16]; 2] =
    [[5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1], [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1]];

#[test]
fn map_of_the_readme() {
    for (loads, slots) in README_LOADS.iter().zip(&README_SLOTS) {
        let loads: Vec<f64> = loads.iter().map(|&l| f64::from(l)).collect();
        let map = eplb_map(&loads, 16, 8, EplbGroups { groups: 4, nodes: 2 }).unwrap();
        assert_eq!(map.concat(), slots);
        assert!(map.iter().all(|rank| rank.len() == 2));
    }
}

#[test]
fn global_map_by_hand() {
    // Copies: 90 -> 45, 45; 60 -> 30, 30; 30; 20. Packed: 45 | 45 | 30, then 30 to rank 2, 30 to rank 0, 20 to rank 1.
    let map = eplb_map(&[90.0, 60.0, 30.0, 20.0], 6, 3, EplbGroups::GLOBAL).unwrap();
    assert_eq!(map, [[0, 1], [0, 3], [1, 2]]);
}

#[test]
fn replication_is_the_published_loop() {
    for case in 0..500 {
        let random = |i: u32| philox4x32([case, i, 1, 0], [3, 5]);
        let [a, b, ..] = random(0);
        let (experts, extra) = (1 + a % 60, b % 100);
        let loads: Vec<f64> = (0..experts).map(|i| f64::from(1 + random(i + 1)[0] % 50)).collect();
        let mut copies = vec![1_u32; experts as usize];
        let mut slots: Vec<u32> = (0..experts).collect();
        for _ in 0..extra {
            let each: Vec<f64> = loads.iter().zip(&copies).map(|(l, &c)| l / f64::from(c)).collect();
            let mut most = 0;
            (1..each.len()).for_each(|e| most = if each[e] > each[most] { e } else { most });
            copies[most] += 1;
            slots.push(most as u32);
        }
        let total = slots.len();
        assert_eq!(eplb_replicate(&loads, total, total).unwrap(), slots, "case {case}");
    }
}

#[test]
fn replication_without_load_is_even_and_bounded() {
    assert_eq!(eplb_replicate(&[0.0; 3], 8, 3).unwrap(), [0, 1, 2, 0, 1, 2, 0, 1]);
    // The only load has all the copies it may have; the others share the rest.
    assert_eq!(eplb_replicate(&[0.0, 9.0, 0.0], 7, 3).unwrap(), [0, 1, 2, 1, 1, 0, 2]);
    assert!(eplb_replicate(&[1.0; 3], 10, 3).is_err());
    assert!(eplb_replicate(&[1.0; 3], 2, 3).is_err());
    assert!(eplb_replicate(&[1.0, f64::NAN], 2, 3).is_err());
}

#[test]
fn packing_keeps_kinds_apart() {
    // Plain packing would put both copies of kind 0 on pack 1: 10 | 4 4.
    let packs = eplb_pack(&[10.0, 4.0, 4.0, 1.0], &[1, 0, 0, 2], &[2, 2]).unwrap();
    assert_eq!(packs, [[0, 2], [1, 3]]);
    // 9 | 2 1 | 2 1, and the last 1 finds room only beside its own kind: the 9 moves there and makes room for it.
    let exchanged = eplb_pack(&[9.0, 2.0, 2.0, 1.0, 1.0, 1.0], &[0, 1, 2, 3, 3, 3], &[1, 3, 2]).unwrap();
    assert_eq!(exchanged, [vec![5], vec![1, 3, 0], vec![2, 4]]);
    assert!(eplb_pack(&[1.0; 3], &[0; 3], &[2, 1]).is_err());
    assert!(eplb_pack(&[1.0; 3], &[0; 2], &[2, 1]).is_err());
    assert!(eplb_pack(&[1.0; 3], &[0, 1, 2], &[2, 2]).is_err());
}

/// Every expert somewhere, none twice on a rank, all slots used that can be.
fn check_map(loads: &[f64], slots: usize, ranks: usize, grouping: EplbGroups) {
    let map = eplb_map(loads, slots, ranks, grouping).unwrap();
    let says = || format!("{slots} slots, {ranks} ranks, {grouping:?}, {loads:?}: {map:?}");
    assert_eq!(map.len(), ranks, "{}", says());
    let mut seen = vec![false; loads.len()];
    for rank in &map {
        let mut own = rank.clone();
        own.sort_unstable();
        assert!(own.windows(2).all(|pair| pair[0] < pair[1]), "{}", says());
        own.iter().for_each(|&e| seen[e as usize] = true);
    }
    assert!(seen.iter().all(|&seen| seen), "{}", says());
    let used: usize = map.iter().map(Vec::len).sum();
    assert_eq!(used, slots.min(loads.len() * ranks / grouping.nodes), "{}", says());
    let fullest = map.iter().map(Vec::len).max().unwrap();
    assert!(fullest - map.iter().map(Vec::len).min().unwrap() <= 1, "{}", says());
}

#[test]
fn no_expert_twice_on_a_rank() {
    // 256 experts and 32 spare slots on 32 ranks: one expert with nearly all load, and a hot rank with all its experts copied.
    let hot = |hottest: usize| (0..256).map(|e| if e < hottest { 1000.0 } else { 1.0 }).collect::<Vec<f64>>();
    for hottest in [0, 1, 2, 8, 9, 255, 256] {
        check_map(&hot(hottest), 288, 32, EplbGroups::GLOBAL);
        check_map(&hot(hottest), 288, 32, EplbGroups { groups: 8, nodes: 4 });
    }
    check_map(&vec![0.0; 256], 288, 32, EplbGroups::GLOBAL);
    for case in 0..3000 {
        let random = |i: u32| philox4x32([case, i, 2, 0], [3, 5]);
        let [a, b, c, d] = random(0);
        let nodes = 1 + a as usize % 4;
        let (experts, ranks) = (nodes * (1 + b as usize % 12), nodes * (1 + c as usize % 8));
        let slots = experts + nodes * (d as usize % (3 * experts));
        let load = |i: u32| match (case % 4, random(i)) {
            (0, [a, ..]) => a % 100,
            (1, [a, b, ..]) => (a % 1000) >> (b % 10),
            (2, [a, ..]) => {
                if i == 1 {
                    10_000
                } else {
                    a % 3
                }
            }
            (_, [a, b, ..]) => (a % 100) * u32::from(b % 4 == 0),
        };
        let loads: Vec<f64> = (1..=experts as u32).map(|i| f64::from(load(i))).collect();
        check_map(&loads, slots, ranks, EplbGroups::GLOBAL);
        check_map(&loads, slots, ranks, EplbGroups { groups: experts, nodes });
        check_map(&loads, slots, ranks, EplbGroups { groups: nodes, nodes });
    }
}

#[test]
fn maps_refuse_what_does_not_divide() {
    let refuse = |slots, ranks, groups, nodes| {
        eplb_map(&[1.0; 12], slots, ranks, EplbGroups { groups, nodes }).unwrap_err().to_string()
    };
    assert!(refuse(11, 4, 1, 1).contains("12 experts"));
    assert!(refuse(12, 0, 1, 1).contains("ranks"));
    for (slots, ranks, groups, nodes) in
        [(16, 8, 5, 1), (16, 8, 4, 3), (15, 8, 4, 2), (16, 9, 4, 2), (16, 8, 0, 1), (16, 8, 4, 0)]
    {
        let error = refuse(slots, ranks, groups, nodes);
        assert!(error.contains("grouping"), "{error}");
    }
}
