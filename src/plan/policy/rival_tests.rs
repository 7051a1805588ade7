//! What holds for every rival policy, over thousands of random inputs.

use super::super::shared;
use super::*;
use crate::config::MoeConfig;
use crate::plan::apportion::apportion;
use crate::plan::cluster::Link;
use crate::plan::{ClusterSpec, Counts, Decision, Demand, Input, Ownership, Placement, Setup};
use crate::rng::philox4x32;

/// Every policy but this project's own.
fn rivals() -> impl Iterator<Item = &'static str> {
    NAMES.iter().copied().filter(|name| *name != "lrmoe")
}

fn setup(experts: usize, ranks: usize, ranks_per_node: usize) -> Setup {
    let link = |bytes_per_s| Link { bytes_per_s, latency_s: 1e-5 };
    let cluster = ClusterSpec {
        ranks,
        ranks_per_node,
        bytes_per_rank: 80 << 30,
        host_reserved_bytes: 8 << 30,
        gemm_flops: 4e14,
        copy_bytes_per_s: 2e12,
        intra: link(3e11),
        inter: link(4e10),
        host_bytes_per_s: 5e10,
        launch_s: 1e-5,
    };
    Setup::new(MoeConfig::new(64, 32, experts, 8.min(experts)), cluster).unwrap()
}

/// Counts of several kinds: even, skewed, one hot expert, nothing, silent and uneven sources, silent experts.
fn counts(case: u32, ranks: u32, experts: u32) -> Counts {
    let random = |i: u32| philox4x32([case, i, 3, 0], [13, 17]);
    let hot = random(1)[0] % experts;
    let pairs = (0..ranks * experts).map(|i| {
        let [a, b, ..] = random(i + 2);
        let (rank, expert) = (i / experts, i % experts);
        let [source, popular, ..] = philox4x32([case, rank, 4, expert], [13, 17]);
        match case % 7 {
            0 => a % 50,
            1 => (4096 >> (philox4x32([case, expert, 5, 0], [1, 2])[0] % 13)) + a % 8,
            2 => a % 4 + if expert == hot { 20_000 } else { 0 },
            3 => 0,
            4 => (a % 200) >> (philox4x32([case, rank, 6, 0], [1, 2])[0] % 9),
            5 => (source % 100) * u32::from(rank == 0),
            _ => (b % 500) * u32::from(popular % 4 == 0),
        }
    });
    Counts::from_flat(ranks as usize, experts as usize, pairs.collect()).unwrap()
}

/// Sums and places of one decision against its input.
fn check(input: &Input<'_>, decision: &Decision, says: &str) {
    let Decision { retained, dropped, placement, forward, backward, next, .. } = decision;
    let counts = input.counts;
    assert!(retained.keeps_everything(), "{says}");
    assert_eq!(forward, backward, "{says}");
    assert_eq!(forward.len(), placement.instances(), "{says}");
    for e in 0..counts.experts() {
        let gone = dropped.as_ref().map_or(0, |dropped| dropped.per_expert()[e]);
        assert_eq!(retained.counts[e], counts.per_expert()[e] - gone, "{says}, expert {e}");
        let computed: u64 = forward[placement.range(e)].iter().map(|&n| u64::from(n)).sum();
        assert_eq!(computed, u64::from(retained.counts[e]), "{says}, expert {e}");
    }
    if let Some(dropped) = dropped {
        assert!(dropped.total() > 0 && dropped.flat().iter().zip(counts.flat()).all(|(d, n)| d <= n), "{says}");
    }
    for placed in [placement, next] {
        assert_eq!((placed.ranks(), placed.experts()), (counts.ranks(), counts.experts()), "{says}");
        assert_eq!(placed.ownership(), input.placement.ownership(), "{says}");
        // A placement refuses duplicates and homes elsewhere when it is read.
        let json = serde_json::to_string(placed).unwrap();
        assert_eq!(&serde_json::from_str::<Placement>(&json).unwrap(), placed, "{says}");
    }
}

#[test]
fn every_policy_accounts_for_every_pair() {
    for case in 0..1500 {
        let [a, b, c, _] = philox4x32([case, 0, 7, 0], [13, 17]);
        // A few large ones; most are small, so that there are many.
        let (most_experts, most_ranks) = if case % 50 == 0 { (512, 64) } else { (48, 12) };
        let (experts, ranks) = (1 + a % most_experts, 1 + b % most_ranks);
        let setup = setup(experts as usize, ranks as usize, 1 + (c % ranks) as usize);
        let steps: Vec<Counts> = (0..3).map(|step| counts(7 * case + (case + step) % 7, ranks, experts)).collect();
        for name in rivals() {
            let policy = by_name(name).unwrap();
            assert_eq!(policy.name(), name);
            let mut placement = policy.start(&setup, &steps[0]).unwrap();
            let slots: u32 = placement.slots().iter().sum();
            let mut demand: Option<Demand> = None;
            for (step, counts) in (0..).zip(&steps) {
                let input = Input { step: 10 * step, counts, demand: demand.as_ref(), placement: &placement };
                let decision = policy.decide(&setup, &input).unwrap();
                let says = format!("case {case}, {name}, step {step}, {experts} experts on {ranks} ranks");
                check(&input, &decision, &says);
                let again = policy.decide(&setup, &input).unwrap();
                assert_eq!(
                    (&decision.placement, &decision.forward, &decision.next),
                    (&again.placement, &again.forward, &again.next)
                );
                assert_eq!(decision.next.slots().iter().sum::<u32>(), slots, "{says}");
                placement = decision.next;
                demand = Some(Demand::uniform(counts.per_expert()));
            }
        }
    }
}

#[test]
fn every_policy_refuses_other_shapes() {
    let setup = setup(8, 4, 2);
    let fits = Counts::from_flat(4, 8, vec![1; 32]).unwrap();
    let placed = Placement::contiguous(8, 4, Ownership::Home).unwrap();
    let other = [Counts::from_flat(2, 8, vec![1; 16]).unwrap(), Counts::from_flat(4, 4, vec![1; 16]).unwrap()];
    let elsewhere =
        [Placement::contiguous(8, 2, Ownership::Home).unwrap(), Placement::contiguous(4, 4, Ownership::Home).unwrap()];
    let demand = Demand::uniform(&[1; 4]);
    for name in rivals() {
        let policy = by_name(name).unwrap();
        let decide = |counts, placement, demand| policy.decide(&setup, &Input { step: 0, counts, demand, placement });
        assert!(decide(&fits, &placed, None).is_ok());
        for counts in &other {
            assert!(policy.start(&setup, counts).is_err() && decide(counts, &placed, None).is_err(), "{name}");
        }
        for placement in &elsewhere {
            assert!(decide(&fits, placement, None).unwrap_err().to_string().contains("placement"), "{name}");
        }
        assert!(decide(&fits, &placed, Some(&demand)).unwrap_err().to_string().contains("demand"), "{name}");
    }
    let unknown = by_name("symmi").unwrap_err().to_string();
    assert!(NAMES.iter().all(|name| unknown.contains(name)), "{unknown}");
}

#[test]
fn ownership_and_slots_follow_the_setup() {
    let mut setup = setup(12, 8, 4);
    let counts = Counts::from_flat(8, 12, vec![5; 96]).unwrap();
    let start = |setup: &Setup, name: &str| by_name(name).unwrap().start(setup, &counts).unwrap();
    for name in rivals() {
        let own = if name.starts_with("symi") { Ownership::Sharded } else { Ownership::Home };
        assert_eq!(start(&setup, name).ownership(), own, "{name}");
        for ownership in Ownership::ALL {
            let asked = Setup { ownership: Some(ownership), ..setup.clone() };
            assert_eq!(start(&asked, name).ownership(), ownership);
        }
    }
    let slots = |setup: &Setup| start(setup, "symi").slots().iter().sum::<u32>();
    assert_eq!(slots(&setup), 8 * 4);
    // With the budget they grow from the two that the experts take.
    let slot = (setup.weight_bytes().unwrap() + setup.gradient_bytes().unwrap()) * setup.layers as u64;
    setup.cluster.host_reserved_bytes = 0;
    let seen: Vec<u32> = (0..80)
        .map(|quarters| {
            setup.cluster.bytes_per_rank = quarters * slot / 4;
            slots(&setup)
        })
        .collect();
    assert!(seen.is_sorted(), "{seen:?}");
    assert!([8 * 2, 8 * 3, 8 * 4].iter().all(|n| seen.contains(n)), "{seen:?}");
    let few = Symi { slots_per_rank: Some(1), ..Symi::default() }.start(&setup, &counts).unwrap_err().to_string();
    assert!(few.contains("slots_per_rank") && few.contains("12 experts"), "{few}");
    let many = Eplb { slots_per_rank: Some(40), ..Eplb::default() }.start(&setup, &counts).unwrap();
    assert_eq!(many.instances(), 12 * 8);
}

#[test]
fn symi_drops_at_capacity_and_follows_the_last_step() {
    let setup = setup(4, 4, 4);
    let policy = Symi { drop: true, slots_per_rank: Some(2), ..Symi::default() };
    let counts = Counts::from_flat(4, 4, [50, 30, 15, 5].repeat(4)).unwrap();
    let placement = policy.start(&setup, &counts).unwrap();
    assert_eq!(placement.host_of_instance(), [0, 1, 2, 3]);
    assert_eq!(placement.slots(), [2; 4]);
    let input = Input { step: 0, counts: &counts, demand: None, placement: &placement };
    let decision = policy.decide(&setup, &input).unwrap();
    // 400 pairs on 8 slots: 100 an expert.
    assert_eq!(decision.forward, [100, 100, 60, 20]);
    assert_eq!(decision.dropped.unwrap().per_expert(), [100, 20, 0, 0]);
    assert_eq!(decision.next.slots(), [2, 2, 2, 1, 1]);
    let input = Input { step: 1, counts: &counts, demand: None, placement: &decision.next };
    let decision = policy.decide(&setup, &input).unwrap();
    assert_eq!(decision.forward, [100, 100, 100, 50, 20]);
    assert!(Symi { capacity_factor: f64::NAN, ..policy }.decide(&setup, &input).is_err());
}

#[test]
fn eplb_places_at_its_interval_from_all_sources() {
    let setup = setup(8, 4, 2);
    let policy = Eplb { interval: 3, slots_per_rank: Some(3), ..Eplb::default() };
    let hot = [400, 40, 40, 40, 4, 4, 4, 4];
    let first = Counts::from_flat(4, 8, [hot.to_vec(), vec![0; 24]].concat()).unwrap();
    let spread = Counts::from_flat(4, 8, hot.map(|n| n / 4).repeat(4)).unwrap();
    let placement = policy.start(&setup, &first).unwrap();
    let next = |step, counts: &Counts, demand: Option<&Demand>| {
        policy.decide(&setup, &Input { step, counts, demand, placement: &placement }).unwrap().next
    };
    assert_eq!(next(1, &first, None), placement);
    assert_eq!(next(2, &first, None), placement);
    let placed = next(3, &first, None);
    assert_eq!(placed.hosts(0), [0, 1, 2, 3]);
    // All load at source 0 is the same as load everywhere, and demand goes before counts.
    assert_eq!(next(0, &spread, None), placed);
    let flat = Counts::from_flat(4, 8, vec![1; 32]).unwrap();
    assert_eq!(next(0, &flat, Some(&Demand::uniform(&hot))), placed);
    assert!(
        Eplb { interval: 0, ..policy }
            .decide(&setup, &Input { step: 0, counts: &first, demand: None, placement: &placement })
            .is_err()
    );
}

#[test]
fn hierarchical_experts_stay_on_one_node() {
    // Two nodes of four ranks; groups 0: the router has one group, so each expert is its own.
    let setup = setup(12, 8, 4);
    let policy = Eplb { hierarchical: true, slots_per_rank: Some(3), ..Eplb::default() };
    let counts = Counts::from_flat(8, 12, (0..96).map(|i| 1000 / (1 + i % 12)).collect()).unwrap();
    let placement = policy.start(&setup, &counts).unwrap();
    let input = Input { step: 0, counts: &counts, demand: None, placement: &placement };
    let one_node = |placed: &Placement| (0..12).all(|e| placed.hosts(e).windows(2).all(|h| h[0] / 4 == h[1] / 4));
    let placed = policy.decide(&setup, &input).unwrap().next;
    assert!(one_node(&placed) && placed.hosts(0).len() == 4, "{placed:?}");
    let global = Eplb { hierarchical: false, ..policy }.decide(&setup, &input).unwrap().next;
    assert!(!one_node(&global));
    // Three groups do not divide by two nodes: the global form.
    let fallback = Eplb { groups: 3, ..policy }.decide(&setup, &input).unwrap().next;
    assert_eq!(fallback, global);
}

#[test]
fn llep_copies_are_for_one_step() {
    let setup = setup(4, 4, 4);
    let counts = Counts::from_flat(4, 4, [2000, 100, 100, 100].repeat(4)).unwrap();
    let policy = Llep::default();
    let placement = policy.start(&setup, &counts).unwrap();
    let input = Input { step: 0, counts: &counts, demand: None, placement: &placement };
    let decision = policy.decide(&setup, &input).unwrap();
    // Cap 2300; 5700 spill, 1900 to each other rank.
    assert_eq!(decision.placement.hosts(0), [0, 1, 2, 3]);
    assert_eq!(decision.forward, [2300, 1900, 1900, 1900, 400, 400, 400]);
    assert_eq!(decision.next, placement);
}

#[test]
fn only_waves_of_fixed_are_waves() {
    let setup = setup(8, 4, 2);
    let counts = Counts::from_flat(4, 8, vec![1; 32]).unwrap();
    for name in rivals() {
        let policy = by_name(name).unwrap();
        let placement = policy.start(&setup, &counts).unwrap();
        let input = Input { step: 0, counts: &counts, demand: None, placement: &placement };
        assert_eq!(policy.decide(&setup, &input).unwrap().waves, name == "fixed-waves");
    }
}

#[test]
fn even_splits_and_homes_by_hand() {
    let split = |amount, weights: &[u32]| {
        let mut parts = vec![9; weights.len()];
        apportion(amount, weights, &mut parts);
        parts
    };
    assert_eq!(split(10, &[1, 1, 1]), [4, 3, 3]);
    assert_eq!(split(10, &[1, 2]), [3, 7]);
    assert_eq!(split(7, &[3, 0, 3, 1]), [3, 0, 3, 1]);
    assert_eq!((split(5, &[0, 0]), split(0, &[2, 1])), (vec![0, 0], vec![0, 0]));
    assert_eq!(split(u32::MAX, &[u32::MAX, u32::MAX]), [u32::MAX / 2 + 1, u32::MAX / 2]);
    // Expert 1 stays on rank 0; expert 0 lost rank 2 and goes to the rank without a home; expert 2 to the lower of two with one.
    let hosts = [vec![0, 1], vec![0, 2], vec![0, 1]];
    assert_eq!(shared::homes(3, &hosts, &[2, 0, 2]), [1, 0, 0]);
}
