//! Assignments beside oracles that share nothing with them: bisection over a textbook maximum flow, all assignments of small
//! cases, and a minimum-cost flow over single (source, expert) demands.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::counts::Counts;
use super::super::mode::Ownership;
use super::super::route::tests::{draw, planned, problem};
use super::super::route::{traffic, transport};
use super::*;
use crate::rng::Philox;

/// Edges in pairs: `2 k` and its reverse `2 k + 1`.
struct Network {
    to: Vec<usize>,
    room: Vec<u64>,
    cost: Vec<i64>,
    from: Vec<Vec<usize>>,
}

impl Network {
    fn new(vertices: usize) -> Self {
        Self { to: vec![], room: vec![], cost: vec![], from: vec![vec![]; vertices] }
    }

    fn edge(&mut self, a: usize, b: usize, room: u64, cost: i64) {
        for (a, b, room, cost) in [(a, b, room, cost), (b, a, 0, -cost)] {
            self.from[a].push(self.to.len());
            self.to.push(b);
            self.room.push(room);
            self.cost.push(cost);
        }
    }

    /// Flow and cost of the cheapest maximum flow, by shortest augmenting paths (Bellman-Ford with a queue).
    fn run(&mut self, source: usize, sink: usize) -> (u64, i64) {
        let (mut flow, mut cost) = (0, 0);
        loop {
            let mut best = vec![i64::MAX; self.from.len()];
            let mut by = vec![usize::MAX; self.from.len()];
            let mut queue = VecDeque::from([source]);
            best[source] = 0;
            while let Some(a) = queue.pop_front() {
                for &k in &self.from[a] {
                    let (b, reached) = (self.to[k], best[a] + self.cost[k]);
                    if self.room[k] > 0 && reached < best[b] {
                        (best[b], by[b]) = (reached, k);
                        queue.push_back(b);
                    }
                }
            }
            if best[sink] == i64::MAX {
                return (flow, cost);
            }
            let (mut amount, mut at) = (u64::MAX, sink);
            while at != source {
                amount = amount.min(self.room[by[at]]);
                at = self.to[by[at] ^ 1];
            }
            at = sink;
            while at != source {
                self.room[by[at]] -= amount;
                self.room[by[at] ^ 1] += amount;
                at = self.to[by[at] ^ 1];
            }
            flow += amount;
            cost += amount as i64 * best[sink];
        }
    }
}

/// Whether all pairs find a place under a limit for each rank.
fn fits(sources: &Sources, placement: &Placement, limit: impl Fn(usize) -> u64) -> bool {
    let (experts, ranks) = (placement.experts(), placement.ranks());
    let mut network = Network::new(experts + ranks + 2);
    let (source, sink) = (experts + ranks, experts + ranks + 1);
    for (e, &pairs) in sources.counts().per_expert().iter().enumerate() {
        network.edge(source, e, u64::from(pairs), 0);
        placement.hosts(e).iter().for_each(|&r| network.edge(e, experts + r as usize, u64::MAX, 0));
    }
    (0..ranks).for_each(|r| network.edge(experts + r, sink, limit(r), 0));
    network.run(source, sink).0 == sources.counts().total()
}

/// The least busiest rank by bisection; `None` where even the capacities alone do not hold the pairs.
fn least_busiest(sources: &Sources, placement: &Placement, capacity: Option<&[u64]>) -> Option<u64> {
    let limit = |t: u64| move |r: usize| capacity.map_or(t, |c| t.min(c[r]));
    let (mut low, mut high) = (0, sources.counts().total());
    if !fits(sources, placement, limit(high)) {
        return None;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if fits(sources, placement, limit(middle)) { high = middle } else { low = middle + 1 }
    }
    Some(high)
}

fn rank_loads(placement: &Placement, loads: &[u32]) -> Vec<u64> {
    let mut sums = vec![0; placement.ranks()];
    placement.iter().zip(loads).for_each(|((_, r), &load)| sums[r] += u64::from(load));
    sums
}

/// Checks an assignment against the bisection; returns the busiest rank.
fn check(sources: &Sources, placement: &Placement, capacity: Option<&[u64]>) -> Option<u64> {
    let expected = least_busiest(sources, placement, capacity);
    let found = assign(sources, placement, capacity);
    let Some(expected) = expected else {
        let error = found.unwrap_err().to_string();
        assert!(error.contains("capacity") && error.contains("expert"), "{error}");
        return None;
    };
    let loads = found.unwrap();
    assert_eq!(loads.len(), placement.instances());
    for (e, &pairs) in sources.counts().per_expert().iter().enumerate() {
        assert_eq!(loads[placement.range(e)].iter().sum::<u32>(), pairs, "expert {e}");
    }
    let sums = rank_loads(placement, &loads);
    assert_eq!(sums.iter().copied().max(), Some(expected), "{placement:?} {sources:?}");
    if let Some(capacity) = capacity {
        assert!(sums.iter().zip(capacity).all(|(sum, cap)| sum <= cap), "{sums:?} {capacity:?}");
    }
    assert_eq!(assign(sources, placement, capacity).unwrap(), loads);
    Some(expected)
}

fn capacities(rng: &mut Philox, sources: &Sources, tightness: u64) -> Vec<u64> {
    let counts = sources.counts();
    let mean = counts.total() / counts.ranks() as u64;
    (0..counts.ranks()).map(|_| draw(rng, 0..=1 + mean * tightness)).collect()
}

#[test]
fn busiest_rank_is_least() {
    let mut rng = Philox::new(41, 0);
    let (mut bound, mut refused) = (0, 0);
    for _ in 0..3000 {
        let (sources, placement) = problem(&mut rng, 12, 9, 6);
        check(&sources, &placement, None);
        let (balanced, own) = planned(&mut rng, 12, 9, 6);
        check(&balanced, &own, None);
        let tightness = draw(&mut rng, 1..=6);
        let capacity = capacities(&mut rng, &sources, tightness);
        match check(&sources, &placement, Some(&capacity)) {
            Some(busiest) => bound += usize::from(capacity.iter().any(|&c| c < busiest)),
            None => refused += 1,
        }
    }
    assert!(bound > 100 && refused > 100, "capacities bound {bound} times and were refused {refused} times");
}

#[test]
fn busiest_rank_is_least_at_size() {
    let mut rng = Philox::new(42, 0);
    for _ in 0..60 {
        let (sources, placement) = problem(&mut rng, 512, 64, 30);
        check(&sources, &placement, None);
        let capacity = capacities(&mut rng, &sources, 4);
        check(&sources, &placement, Some(&capacity));
    }
}

/// All ways of dividing the experts' pairs over their instances.
fn brute_force(sources: &Sources, placement: &Placement) -> u64 {
    fn place(at: usize, left: u32, sums: &mut [u64], supply: &[u32], placement: &Placement, best: &mut u64) {
        let instances = placement.host_of_instance();
        if at == instances.len() {
            *best = (*best).min(sums.iter().copied().max().unwrap());
            return;
        }
        let e = (0..supply.len()).find(|&e| placement.range(e).contains(&at)).unwrap();
        let left = if placement.range(e).start == at { supply[e] } else { left };
        let last = placement.range(e).end == at + 1;
        for some in if last { left..=left } else { 0..=left } {
            sums[instances[at] as usize] += u64::from(some);
            place(at + 1, left - some, sums, supply, placement, best);
            sums[instances[at] as usize] -= u64::from(some);
        }
    }
    let mut best = u64::MAX;
    place(0, 0, &mut vec![0; placement.ranks()], sources.counts().per_expert(), placement, &mut best);
    best
}

#[test]
fn busiest_rank_is_that_of_brute_force() {
    let mut rng = Philox::new(43, 0);
    let mut tried = 0;
    while tried < 400 {
        let (sources, placement) = problem(&mut rng, 3, 4, 1);
        if sources.counts().per_expert().iter().any(|&n| n > 9) || placement.instances() > 7 {
            continue;
        }
        tried += 1;
        let loads = assign(&sources, &placement, None).unwrap();
        let busiest = rank_loads(&placement, &loads).into_iter().max();
        assert_eq!(busiest, Some(brute_force(&sources, &placement)), "{sources:?} {placement:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn busiest_rank_is_least_for_any_seed(seed: u64, experts in 1..24_u64, ranks in 1..16_u64, pairs in 0..40_u64) {
        let (sources, placement) = problem(&mut Philox::new(seed, 1), experts, ranks, pairs);
        check(&sources, &placement, None);
    }
}

/// The least pairs across nodes, and the least across ranks with it, under a limit for each rank.
fn least_crossing(sources: &Sources, placement: &Placement, limit: impl Fn(usize) -> u64) -> [u64; 2] {
    // More than all pairs together across ranks.
    const NODE: i64 = 1 << 32;
    let (counts, instances) = (sources.counts(), placement.instances());
    let (experts, ranks) = (counts.experts(), counts.ranks());
    let demand = |s: usize, e: usize| instances + ranks + s * experts + e;
    let (source, sink) = (demand(ranks, 0), demand(ranks, 1));
    let mut network = Network::new(sink + 1);
    for s in 0..ranks {
        network.edge(instances + s, sink, limit(s), 0);
        for e in 0..experts {
            network.edge(source, demand(s, e), u64::from(counts.get(s, e)), 0);
        }
    }
    for (i, (e, r)) in placement.iter().enumerate() {
        network.edge(i, instances + r, u64::MAX, 0);
        for s in 0..ranks {
            let cost = i64::from(s != r) + NODE * i64::from(sources.node_of(s) != sources.node_of(r));
            network.edge(demand(s, e), i, u64::MAX, cost);
        }
    }
    let (flow, cost) = network.run(source, sink);
    assert_eq!(flow, counts.total());
    [(cost / NODE) as u64, (cost % NODE) as u64]
}

/// How far assignments stay above the least crossing, over many cases.
#[derive(Debug, Default)]
struct Gap {
    cases: u32,
    least: u32,
    /// Pairs across nodes beyond the least, their sum and the largest part of a case's pairs.
    beyond: u64,
    worst: f64,
    pairs: u64,
}

impl Gap {
    /// Where the capacity holds the pairs.
    fn measure(&mut self, sources: &Sources, placement: &Placement, capacity: Option<&[u64]>, passes: usize) {
        let Ok((loads, proven)) = assign_within(passes, sources, placement, capacity) else { return };
        let busiest = rank_loads(placement, &loads).into_iter().max().unwrap();
        let moved = traffic(sources, placement, &loads).unwrap();
        let found = [moved.crossing_nodes(), moved.crossing_ranks()];
        let least = least_crossing(sources, placement, |r| capacity.map_or(busiest, |c| busiest.min(c[r])));
        assert!(found >= least, "{found:?} below the least {least:?}: {sources:?} {placement:?}");
        assert!(!proven || found == least, "{found:?} is not the least {least:?}: {sources:?} {placement:?}");
        let total = sources.counts().total();
        self.cases += 1;
        self.least += u32::from(found == least);
        self.pairs += total;
        self.beyond += found[0] - least[0];
        self.worst = self.worst.max((found[0] - least[0]) as f64 / total.max(1) as f64);
    }
}

/// `cargo test --release --lib plan::assign::tests::crossing -- --nocapture` prints the gap to the least crossing. The fill and
/// augmenting paths alone send 0.08 % of all pairs too many across nodes where placements are made for the counts, at worst
/// 7.3 % of a case's pairs, and find the least in 878 of 1,000 cases; the passes over the instances find it in every case.
#[test]
fn crossing_is_the_least() {
    for passes in [0, 4, PASSES] {
        let mut rng = Philox::new(44, 0);
        let (mut any, mut tied, mut made) = (Gap::default(), Gap::default(), Gap::default());
        for _ in 0..1000 {
            let (sources, placement) = problem(&mut rng, 8, 8, 12);
            any.measure(&sources, &placement, None, passes);
            let capacity = capacities(&mut rng, &sources, 4);
            tied.measure(&sources, &placement, Some(&capacity), passes);
            let (sources, placement) = planned(&mut rng, 16, 8, 12);
            made.measure(&sources, &placement, None, passes);
        }
        for (what, gap) in [("any placement", &any), ("with capacities", &tied), ("made for the counts", &made)] {
            println!(
                "{passes} passes, {what}: least in {} of {} cases; across nodes beyond the least {:.4} % of all pairs, at worst {:.2} %",
                gap.least,
                gap.cases,
                100.0 * gap.beyond as f64 / gap.pairs as f64,
                100.0 * gap.worst
            );
            assert!(gap.cases > 100);
            assert!(passes < PASSES || gap.least == gap.cases, "{gap:?}");
        }
    }
}

/// At sizes out of reach of the oracle, beside what is found when the passes end by themselves, with no negative cycle left: the
/// same in 114 of 120 cases, 0.0014 % of all pairs too many across nodes in the whole. The command above prints it.
#[test]
fn crossing_at_size_is_near_the_proven_least() {
    let mut rng = Philox::new(45, 0);
    let (mut proven, mut beyond, mut pairs, mut cases, mut worst) = (0, 0, 0, 0, 0.0_f64);
    for _ in 0..60 {
        for (sources, placement) in [problem(&mut rng, 512, 64, 30), planned(&mut rng, 256, 64, 30)] {
            let crossing = |passes: usize| {
                let (loads, proven) = assign_within(passes, &sources, &placement, None).unwrap();
                let moved = traffic(&sources, &placement, &loads).unwrap();
                ([moved.crossing_nodes(), moved.crossing_ranks()], proven)
            };
            let ((found, ended), (least, true)) = (crossing(PASSES), crossing(usize::MAX)) else {
                panic!("the passes did not end")
            };
            assert!(found >= least && (!ended || found == least));
            cases += 1;
            proven += u32::from(ended);
            let (more, total) = (found[0] - least[0], sources.counts().total());
            beyond += more;
            pairs += total;
            worst = worst.max(more as f64 / total.max(1) as f64);
        }
    }
    println!(
        "at size: proven in {proven} of {cases} cases; across nodes beyond the least {beyond} of {pairs} pairs, at worst {:.3} %",
        100.0 * worst
    );
    // A hundredth of a percent; nothing proves more.
    assert!(beyond * 10_000 <= pairs, "{beyond} of {pairs}");
}

#[test]
fn local_pairs_stay_where_nothing_forbids_it() {
    // Every expert everywhere and balanced sources: nothing needs to move.
    let counts = Counts::new(&[[5, 3, 2], [2, 5, 3], [3, 2, 5]]).unwrap();
    let placement = Placement::new(3, &[[0, 1, 2], [0, 1, 2], [0, 1, 2]], vec![0, 1, 2], Ownership::Sharded).unwrap();
    let sources = Sources::new(counts, 2).unwrap();
    let loads = assign(&sources, &placement, None).unwrap();
    assert_eq!(loads, [5, 2, 3, 3, 5, 2, 2, 3, 5]);
    assert!(transport(&sources, &placement, &loads).unwrap().iter().all(|route| route.from == route.to));
}

#[test]
fn refuses_what_does_not_fit() {
    let counts = Counts::new(&[[6, 1], [4, 3]]).unwrap();
    let placement = Placement::new(2, &[vec![0, 1], vec![1]], vec![0, 1], Ownership::Home).unwrap();
    let sources = Sources::new(counts.clone(), 1).unwrap();
    let says = |capacity: &[u64]| assign(&sources, &placement, Some(capacity)).unwrap_err().to_string();
    assert!(matches!(assign(&sources, &placement, Some(&[1])), Err(Error::Shape { .. })));
    let error = says(&[100, 3]);
    assert!(error.contains("3 pairs on ranks 1") && error.contains("1 more: experts 1 have 4 pairs"), "{error}");
    let error = says(&[6, 7]);
    assert!(error.contains("13 pairs on ranks 0, 1") && error.contains("1 more: experts 0, 1"), "{error}");
    assert_eq!(assign(&sources, &placement, Some(&[7, 7])).unwrap(), [7, 3, 4]);
    assert_eq!(assign(&sources, &placement, Some(&[5, u64::MAX])).unwrap(), [5, 5, 4]);
    let other = Placement::contiguous(3, 2, Ownership::Home).unwrap();
    assert!(matches!(assign(&sources, &other, None), Err(Error::Shape { .. })));
    let other = Placement::contiguous(2, 3, Ownership::Home).unwrap();
    assert!(matches!(assign(&sources, &other, None), Err(Error::Shape { .. })));
}

#[test]
fn carries_the_largest_counts() {
    let counts = Counts::new(&[vec![u32::MAX; 40]]).unwrap();
    let placement = Placement::contiguous(40, 1, Ownership::Home).unwrap();
    let sources = Sources::new(counts, 1).unwrap();
    assert_eq!(assign(&sources, &placement, None).unwrap(), [u32::MAX; 40]);
}
