//! Random routing problems that all tests of routing draw from, and the tests of sources.

use super::*;
use crate::plan::Ownership;
use crate::rng::Philox;

/// A uniform whole number in `range`.
pub(crate) fn draw(rng: &mut Philox, range: std::ops::RangeInclusive<u64>) -> u64 {
    let (first, last) = range.into_inner();
    first + u64::from(rng.next_u32()) % (last - first + 1)
}

/// Counts and a placement: balanced, skewed, one hot expert, expert-local, empty, with idle experts and idle ranks; nodes that need not
/// divide the ranks.
pub(crate) fn problem(rng: &mut Philox, experts: u64, ranks: u64, pairs: u64) -> (Sources, Placement) {
    let (experts, ranks) = (draw(rng, 1..=experts) as usize, draw(rng, 1..=ranks) as usize);
    let kind = draw(rng, 0..=6);
    let weight: Vec<u64> = (0..experts).map(|e| if kind == 1 { 1 + 40 / (1 + e as u64) } else { 1 }).collect();
    let busy: Vec<bool> = (0..ranks).map(|_| kind != 2 || draw(rng, 0..=2) > 0).collect();
    let idle: Vec<bool> = (0..experts).map(|_| kind == 3 && draw(rng, 0..=1) == 0).collect();
    let mut flat = Vec::with_capacity(ranks * experts);
    for (r, &busy) in busy.iter().enumerate() {
        for e in 0..experts {
            let hot = kind == 4 && e == experts / 2;
            let near = kind == 5 && e * ranks / experts == r;
            let most = pairs * weight[e] * if hot || near { 20 } else { 1 };
            flat.push(if busy && !idle[e] && kind != 6 { draw(rng, 0..=most) as u32 } else { 0 });
        }
    }
    let counts = Counts::from_flat(ranks, experts, flat).unwrap();
    (Sources::new(counts, draw(rng, 1..=ranks as u64 + 1) as usize).unwrap(), placement(rng, experts, ranks))
}

/// A placement with few or many copies, crowded on few ranks or not.
pub(crate) fn placement(rng: &mut Philox, experts: usize, ranks: usize) -> Placement {
    let copies = draw(rng, 1..=4);
    let last = if draw(rng, 0..=3) == 0 { ranks.div_ceil(2) } else { ranks } as u64 - 1;
    let hosts: Vec<Vec<u32>> = (0..experts)
        .map(|_| {
            let mut own: Vec<u32> = (0..draw(rng, 1..=copies)).map(|_| draw(rng, 0..=last) as u32).collect();
            own.sort_unstable();
            own.dedup();
            own
        })
        .collect();
    let home = hosts.iter().map(|own| own[0]).collect();
    Placement::new(ranks, &hosts, home, Ownership::Home).unwrap()
}

/// Counts and a placement made for them, with copies of the busiest experts and the ranks loaded evenly: every rank is nearly full, and
/// there is little choice.
pub(crate) fn planned(rng: &mut Philox, experts: u64, ranks: u64, pairs: u64) -> (Sources, Placement) {
    let (experts, ranks) = (draw(rng, 2..=experts) as usize, draw(rng, 2..=ranks) as usize);
    let skew = draw(rng, 0..=3);
    let flat = (0..ranks * experts).map(|k| {
        let near = if (k % experts) * ranks / experts == k / experts { draw(rng, 1..=4) } else { 1 };
        (draw(rng, 0..=pairs * (experts + 1) as u64) * near / (1 + skew * (k % experts) as u64)) as u32
    });
    let counts = Counts::from_flat(ranks, experts, flat.collect()).unwrap();
    let mut copies = vec![1; experts];
    let work = |copies: &[u64], e: usize| u64::from(counts.per_expert()[e]) * 1000 / copies[e];
    for _ in 0..draw(rng, 0..=(experts.max(ranks)) as u64) {
        let open = (0..experts).filter(|&e| copies[e] < ranks as u64);
        let Some(most) = open.max_by_key(|&e| work(&copies, e)) else { break };
        copies[most] += 1;
    }
    let mut order: Vec<usize> = (0..experts).collect();
    order.sort_by_key(|&e| std::cmp::Reverse(work(&copies, e)));
    let (mut sums, mut hosts) = (vec![0; ranks], vec![Vec::new(); experts]);
    for e in order {
        for _ in 0..copies[e] {
            let free = (0..ranks).filter(|&r| !hosts[e].contains(&(r as u32)));
            let least = free.min_by_key(|&r| sums[r]).unwrap();
            sums[least] += work(&copies, e);
            hosts[e].push(least as u32);
        }
    }
    let home = hosts.iter().map(|own| own[0]).collect();
    let placement = Placement::new(ranks, &hosts, home, Ownership::Home).unwrap();
    (Sources::new(counts, draw(rng, 1..=ranks as u64) as usize).unwrap(), placement)
}

/// Loads that add up to each expert's pairs, drawn at random.
pub(crate) fn loads(rng: &mut Philox, sources: &Sources, placement: &Placement) -> Vec<u32> {
    let mut loads = Vec::new();
    for (e, &pairs) in sources.counts().per_expert().iter().enumerate() {
        let mut left = pairs;
        for _ in 1..placement.hosts(e).len() {
            let some = draw(rng, 0..=u64::from(left)) as u32;
            loads.push(some);
            left -= some;
        }
        loads.push(left);
    }
    loads
}

#[test]
fn sums_over_nodes() {
    let mut rng = Philox::new(31, 0);
    for _ in 0..300 {
        let (sources, _) = problem(&mut rng, 9, 9, 5);
        let counts = sources.counts();
        assert_eq!(sources.nodes(), (0..counts.ranks()).map(|r| sources.node_of(r)).max().unwrap() + 1);
        for e in 0..counts.experts() {
            for node in 0..sources.nodes() {
                let inside = (0..counts.ranks()).filter(|r| r / sources.ranks_per_node() == node);
                assert_eq!(sources.per_node(e, node), inside.map(|r| counts.get(r, e)).sum::<u32>());
            }
        }
    }
}

#[test]
fn refuses_nodes_without_ranks() {
    let counts = Counts::new(&[[1], [u32::MAX - 1]]).unwrap();
    assert!(Sources::new(counts.clone(), 0).unwrap_err().to_string().contains("ranks_per_node"));
    assert_eq!(Sources::new(counts, usize::MAX).unwrap().per_node(0, 0), u32::MAX);
}
