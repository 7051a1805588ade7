//! Rows against sets of (token, rank), and what plans foretell where every pair is a row.

use std::collections::HashSet;

use super::*;
use crate::plan::cluster::Link;
use crate::plan::destinations::tests::{Routing, below};
use crate::plan::destinations::{destinations, pair_counts, retain};
use crate::plan::policy::{Fixed, Llep};
use crate::plan::route::Route;
use crate::plan::{Lrmoe, Ownership, Placement, Policy, Retention, optimizer_exchange, selection_exchange};
use crate::rng::Philox;

fn close(got: f64, expected: f64) {
    assert!((got - expected).abs() <= 1e-12 * expected.abs(), "{got} {expected}");
}

#[test]
fn rows_are_distinct_tokens_of_other_ranks() {
    let mut rng = Philox::new(1, 0);
    for _ in 0..600 {
        let (ranks, per_node, top_k) = (1 + below(&mut rng, 7), 1 + below(&mut rng, 4), 1 + below(&mut rng, 5));
        let tokens = below(&mut rng, 50);
        let sources: Vec<u32> = (0..tokens).map(|_| below(&mut rng, ranks) as u32).collect();
        let rank = |_| below(&mut rng, ranks + 1) as u32;
        let to: Vec<u32> = (0..tokens * top_k).map(rank).map(|r| if r == ranks as u32 { NOWHERE } else { r }).collect();
        let rows = ExchangeRows::count(&to, top_k, &sources, ranks, per_node).unwrap();
        let pairs = to.iter().enumerate().filter(|(_, r)| **r != NOWHERE);
        let distinct: HashSet<(usize, usize)> = pairs.map(|(p, &r)| (p / top_k, r as usize)).collect();
        let count = |is: &dyn Fn(usize, usize) -> bool| {
            distinct.iter().filter(|&&(t, to)| is(sources[t] as usize, to)).count() as u64
        };
        for r in 0..ranks {
            assert_eq!(rows.sent[r], count(&|from, to| from == r && to != r));
            assert_eq!(rows.received[r], count(&|from, to| from != r && to == r));
            assert_eq!(rows.local[r], count(&|from, to| from == r && to == r));
        }
        let nodes = ranks.div_ceil(per_node);
        assert_eq!((rows.node_sent.len(), rows.node_received.len()), (nodes, nodes));
        for n in 0..nodes {
            assert_eq!(rows.node_sent[n], count(&|from, to| from / per_node == n && to / per_node != n));
            assert_eq!(rows.node_received[n], count(&|from, to| from / per_node != n && to / per_node == n));
        }
        let (total, crossing) = (rows.total(), rows.crossing_nodes());
        assert_eq!(total, rows.received.iter().sum::<u64>());
        assert_eq!(crossing, rows.node_received.iter().sum::<u64>());
        assert!(crossing <= total && total <= to.iter().filter(|r| **r != NOWHERE).count() as u64);
        assert!(total <= (tokens * (ranks - 1)) as u64);
        if per_node >= ranks {
            assert_eq!(crossing, 0);
        }
    }
}

/// With one expert a token, every pair that leaves its rank is a row: bytes and times foretold are those counted.
#[test]
fn foretold_is_what_is_counted_with_one_pair_a_token() {
    let mut rng = Philox::new(2, 0);
    let (mut crossing, mut selecting) = (0, 0);
    for case in 0..240 {
        let routing = Routing::random(&mut rng, 1);
        let mut setup = routing.setup(&mut rng);
        setup.options.q_min = 1;
        let llep = Llep { min_chunk: 2, ..Llep::default() };
        let policies: [&dyn Policy; 3] = [&Lrmoe::default(), &llep, &Fixed::default()];
        let policy = policies[case % 3];
        // Under Stash, what a part of the pairs moves is foretold with fewer rows than it may take.
        let selects = case % 3 == 0 && case % 2 == 0;
        setup.activations = Some(if selects { Activations::Recompute } else { Activations::ALL[case / 3 % 2] });
        setup.options.retention = Retention::Fraction(if selects { 0.5 } else { 1.0 });
        let plan = routing.plan(&setup, policy);
        let count = |to: &[u32]| {
            let (ranks, per_node) = (setup.cluster.ranks, setup.cluster.ranks_per_node);
            ExchangeRows::count(to, 1, &routing.sources, ranks, per_node).unwrap()
        };
        let kept = routing.first(&plan.backward);
        let out = routing.destinations(&plan.forward, None);
        let back = match plan.activations {
            Activations::Stash => retain(&out, &kept).unwrap(),
            Activations::Recompute => routing.destinations(&plan.backward, Some(&kept)),
        };
        let passes = [
            (count(&out), Direction::Forward, plan.predicted.waves_forward),
            (count(&back), Direction::Backward, plan.predicted.waves_backward),
        ];
        let (mut bytes, mut inter_node, mut seconds) = (0.0, 0.0, 0.0);
        for (rows, direction, waves) in passes {
            let row = 64.0 * f64::from(exchange_rows_per_token(plan.activations, direction));
            bytes += rows.total() as f64 * row;
            inter_node += rows.crossing_nodes() as f64 * row;
            seconds += rows.seconds(&setup.cluster, row, 2.0 * waves as f64).unwrap();
            crossing += rows.crossing_nodes();
        }
        if plan.retained.retained() < plan.retained.pairs() {
            selecting += 1;
            seconds += selection_exchange(&setup).unwrap();
        }
        close(plan.predicted.exchange_bytes, bytes);
        close(plan.predicted.exchange_bytes_inter_node, inter_node);
        close(plan.predicted.exchange_s, seconds);
    }
    assert!(crossing > 1000 && selecting > 20, "{crossing} {selecting}");
}

/// Two nodes of two ranks, a row a second inside a node and half a row a rank between them.
fn nodes() -> ClusterSpec {
    ClusterSpec {
        intra: Link { bytes_per_s: 8.0, latency_s: 0.25 },
        inter: Link { bytes_per_s: 4.0, latency_s: 0.5 },
        ..ClusterSpec::preset("8xh100").unwrap().with_ranks(4, 2)
    }
}

#[test]
fn busiest_rank_or_node_sets_the_time() {
    let seconds = |to: &[u32], sources: &[u32]| {
        ExchangeRows::count(to, 1, sources, 4, 2).unwrap().seconds(&nodes(), 8.0, 2.0).unwrap()
    };
    // Three rows to rank 1 of one node.
    close(seconds(&[1, 1, 1, 0], &[0, 0, 0, 1]), 3.0 + 2.0 * 0.25);
    // Four rows leave the node, two a rank, over two NICs that take two seconds a row.
    close(seconds(&[2, 3, 2, 3], &[0, 0, 1, 1]), 4.0 + 2.0 * 0.5);
    // Nothing leaves its rank, or is computed at all.
    assert_eq!((seconds(&[0, NOWHERE], &[0, 3]), seconds(&[], &[])), (0.0, 0.0));
}

#[test]
fn refuses_other_shapes_and_ranks() {
    let count = |to: &[u32], top_k, sources: &[u32], ranks, per_node| {
        ExchangeRows::count(to, top_k, sources, ranks, per_node).unwrap_err().to_string()
    };
    let rows = ExchangeRows::count(&[1], 1, &[0], 4, 2).unwrap();
    let seconds = |ranks, per_node, bytes, collectives| {
        rows.seconds(&nodes().with_ranks(ranks, per_node), bytes, collectives).unwrap_err().to_string()
    };
    let cases = [
        (count(&[0], 2, &[0], 1, 1), "1 tokens x top_k 2"),
        (count(&[0], 0, &[0], 1, 1), "top_k"),
        (count(&[0], 1, &[0], 0, 1), "`ranks` is 0"),
        (count(&[0], 1, &[0], 1, 0), "ranks_per_node"),
        (count(&[0, 2], 1, &[0, 1], 2, 1), "destinations[1]` is 2"),
        (count(&[0, 0], 1, &[0, 2], 2, 1), "source_of_token[1]` is 2"),
        (seconds(3, 2, 1.0, 1.0), "3 ranks, 2 a node; expected 4 ranks, 2 a node"),
        (seconds(4, 4, 1.0, 1.0), "4 a node"),
        (seconds(4, 0, 1.0, 1.0), "ranks_per_node"),
        (seconds(4, 2, f64::NAN, 1.0), "bytes_per_row"),
        (seconds(4, 2, 1.0, -1.0), "collectives"),
    ];
    for (error, says) in cases {
        assert!(error.contains(says), "{error}, not {says}");
    }
    // A node that is larger than the machine is the machine.
    let whole = ExchangeRows::count(&[1], 1, &[0], 4, 9).unwrap();
    close(whole.seconds(&nodes().with_ranks(4, 4), 8.0, 0.0).unwrap(), 1.0);
}

#[test]
fn optimizer_traffic_is_that_of_the_plan() {
    let mut rng = Philox::new(3, 0);
    let mut moving = 0;
    for case in 0..60 {
        let routing = Routing::random(&mut rng, 2);
        let mut setup = routing.setup(&mut rng);
        setup.ownership = Some(Ownership::ALL[case % 2]);
        setup.optimizer_offload = case % 3 == 0;
        let llep = Llep { min_chunk: 2, ..Llep::default() };
        let policies: [&dyn Policy; 2] = [&Lrmoe::default(), &llep];
        let policy = policies[case / 2 % 2];
        let counts = routing.counts(None);
        let before = policy.start(&setup, &counts).unwrap();
        let input = crate::plan::Input { step: 0, counts: &counts, demand: None, placement: &before };
        let plan = policy.plan(&setup, &input).unwrap();
        let moved = optimizer_exchange(&setup, [&before, &plan.placement, &plan.next]).unwrap();
        let predicted = &plan.predicted;
        assert_eq!(moved.seconds, predicted.optimizer_exchange_s);
        assert_eq!(moved.bytes, predicted.optimizer_bytes);
        assert_eq!(moved.inter_node_bytes, predicted.optimizer_bytes_inter_node);
        moving += u32::from(moved.bytes > 0.0);
        // Links of half the rate take twice as long, latencies apart.
        if !setup.optimizer_offload {
            for link in [&mut setup.cluster.intra, &mut setup.cluster.inter] {
                *link = Link { bytes_per_s: link.bytes_per_s / 2.0, latency_s: link.latency_s * 2.0 };
            }
            let slow = optimizer_exchange(&setup, [&before, &plan.placement, &plan.next]).unwrap();
            assert_eq!((slow.seconds, slow.bytes), (2.0 * moved.seconds, moved.bytes));
        }
    }
    assert!(moving > 20, "{moving}");
}

#[test]
fn refuses_placements_of_another_setup() {
    let mut rng = Philox::new(4, 0);
    let routing = Routing { ids: vec![], top_k: 1, sources: vec![], ranks: 2, experts: 4 };
    let mut setup = routing.setup(&mut rng);
    let placed = |experts, ranks, owner| Placement::contiguous(experts, ranks, owner).unwrap();
    let fits = placed(4, 2, Ownership::Home);
    let others = [placed(4, 3, Ownership::Home), placed(3, 2, Ownership::Home), placed(4, 2, Ownership::Sharded)];
    for other in &others {
        let at = [[other, &fits, &fits], [&fits, other, &fits], [&fits, &fits, other]];
        assert!(at.into_iter().all(|placements| optimizer_exchange(&setup, placements).is_err()));
    }
    assert_eq!(optimizer_exchange(&setup, [&fits; 3]).unwrap(), links::Moved::default());
    assert!(selection_exchange(&setup).unwrap() > 0.0);
    setup.cluster = setup.cluster.with_ranks(1, 1);
    assert_eq!(selection_exchange(&setup).unwrap(), 0.0);
    setup.layers = 0;
    assert!(selection_exchange(&setup).is_err() && optimizer_exchange(&setup, [&fits; 3]).is_err());
}

#[test]
fn retained_pairs_of_a_token_share_rows() {
    // Rank 1 holds experts 0 and 1; both pairs of a token go there in one row, and in none where neither is retained.
    let routes = [Route { expert: 0, from: 0, to: 1, pairs: 2 }, Route { expert: 1, from: 0, to: 1, pairs: 2 }];
    let to = destinations(&[0, 1, 1, 0], 2, &[0, 0], 2, &routes, None).unwrap();
    let rows = |kept: [bool; 4]| ExchangeRows::count(&retain(&to, &kept).unwrap(), 2, &[0, 0], 2, 2).unwrap().total();
    assert_eq!([rows([true; 4]), rows([true, false, true, true]), rows([false, false, true, false])], [2, 2, 1]);
}

#[test]
fn absurd_numbers_of_ranks_are_refused_before_memory_is_asked_for() {
    let refused = |ranks| ExchangeRows::count(&[0], 1, &[0], ranks, 8).unwrap_err().to_string();
    assert!(refused(usize::MAX).contains("rows of ranks") && refused((1 << 32) + 1).contains("4294967297"));
    let refused = pair_counts(&[1], 1, &[0], 1 << 50, 2, None).unwrap_err().to_string();
    assert!(refused.contains("counts"), "{refused}");
}
