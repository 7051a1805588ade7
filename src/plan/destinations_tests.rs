//! Destinations against routes spelled out pair by pair.

use super::*;
use crate::config::MoeConfig;
use crate::plan::policy::{Fixed, Llep};
use crate::plan::{Activations, ClusterSpec, Input, Lrmoe, Plan, Policy, Retention, Setup};
use crate::rng::Philox;

/// A random whole number below `bound`, which is small.
pub(crate) fn below(rng: &mut Philox, bound: usize) -> usize {
    rng.next_u32() as usize % bound
}

/// Tokens that some ranks may not have, in no order of their ranks, each with up to k different experts.
#[derive(Debug)]
pub(crate) struct Routing {
    pub(crate) ids: Vec<u32>,
    pub(crate) top_k: usize,
    pub(crate) sources: Vec<u32>,
    pub(crate) ranks: usize,
    pub(crate) experts: usize,
}

impl Routing {
    pub(crate) fn random(rng: &mut Philox, top_k: usize) -> Self {
        let (ranks, experts) = (1 + below(rng, 6), top_k + below(rng, 10));
        let (tokens, from) = (below(rng, 80), 1 + below(rng, ranks));
        let mut ids = Vec::with_capacity(tokens * top_k);
        for _ in 0..tokens {
            let mut left: Vec<u32> = (0..experts as u32).collect();
            for _ in 0..top_k {
                // The lower of two draws: low experts are hot.
                let at = below(rng, left.len()).min(below(rng, left.len()));
                let id = left.remove(at);
                ids.push(if below(rng, 12) == 0 { NOWHERE } else { id });
            }
        }
        let sources = (0..tokens).map(|_| below(rng, from) as u32).collect();
        Self { ids, top_k, sources, ranks, experts }
    }

    pub(crate) fn counts(&self, computed: Option<&[bool]>) -> Counts {
        pair_counts(&self.ids, self.top_k, &self.sources, self.ranks, self.experts, computed).unwrap()
    }

    pub(crate) fn destinations(&self, routes: &[Route], computed: Option<&[bool]>) -> Vec<u32> {
        destinations(&self.ids, self.top_k, &self.sources, self.experts, routes, computed).unwrap()
    }

    /// The first pairs of each (source, expert), as many as its routes hold: what backward would compute.
    pub(crate) fn first(&self, routes: &[Route]) -> Vec<bool> {
        let mut left = vec![0; self.ranks * self.experts];
        routes.iter().for_each(|r| left[r.from as usize * self.experts + r.expert as usize] += r.pairs);
        let keep = |(p, &e): (usize, &u32)| {
            let left = left.get_mut(self.sources[p / self.top_k] as usize * self.experts + e as usize);
            left.filter(|left| e != NOWHERE && **left > 0).map(|left| *left -= 1).is_some()
        };
        self.ids.iter().enumerate().map(keep).collect()
    }

    pub(crate) fn setup(&self, rng: &mut Philox) -> Setup {
        let mut cluster = ClusterSpec::preset("8xh100").unwrap().with_ranks(self.ranks, 1 + below(rng, 4));
        // Few pairs: they must take long for copies of experts and selection to be worth their time.
        cluster.gemm_flops = 1e7;
        Setup::new(MoeConfig::new(32, 16, self.experts, self.top_k), cluster).unwrap()
    }

    pub(crate) fn plan(&self, setup: &Setup, policy: &dyn Policy) -> Plan {
        let counts = self.counts(None);
        let mut placement = policy.start(setup, &counts).unwrap();
        // The second plan has the copies that the first one asks for.
        for step in 0..2 {
            let plan =
                policy.plan(setup, &Input { step, counts: &counts, demand: None, placement: &placement }).unwrap();
            if step == 1 {
                return plan;
            }
            placement = plan.next;
        }
        unreachable!()
    }
}

/// Every (source, expert) pair by pair: the destinations in the order of tokens are those of its routes in the order they stand in.
fn check(routing: &Routing, plan: &Plan, routes: &[Route], to: &[u32], computed: Option<&[bool]>) {
    for e in 0..routing.experts as u32 {
        for s in 0..routing.ranks as u32 {
            let own = routes.iter().filter(|r| (r.expert, r.from) == (e, s));
            let expected: Vec<u32> = own.flat_map(|r| vec![r.to; r.pairs as usize]).collect();
            let pairs = (0..to.len()).filter(|&p| routing.ids[p] == e && routing.sources[p / routing.top_k] == s);
            let got: Vec<u32> = pairs.filter(|&p| computed.is_none_or(|c| c[p])).map(|p| to[p]).collect();
            assert_eq!(got, expected, "expert {e} from rank {s}");
            assert!(got.iter().all(|&r| plan.placement.find(e as usize, r as usize).is_some()));
        }
    }
    for (p, &rank) in to.iter().enumerate() {
        let there = routing.ids[p] != NOWHERE && computed.is_none_or(|c| c[p]);
        assert_eq!(rank != NOWHERE, there, "pair {p}");
    }
}

#[test]
fn every_pair_goes_to_one_instance_of_its_expert() {
    let mut rng = Philox::new(5, 0);
    let (mut split, mut moved) = (0, 0);
    for case in 0..240 {
        let routing = Routing::random(&mut rng, 1 + case % 4);
        let mut setup = routing.setup(&mut rng);
        setup.activations = Some(Activations::ALL[case % 2]);
        setup.options.retention = Retention::Fraction([0.5, 0.25, 1.0][case % 3]);
        setup.options.q_min = 1;
        let llep = Llep { min_chunk: 2, ..Llep::default() };
        let policies: [&dyn Policy; 3] = [&Lrmoe::default(), &llep, &Fixed::default()];
        for policy in policies {
            let plan = routing.plan(&setup, policy);
            let forward = routing.destinations(&plan.forward, None);
            check(&routing, &plan, &plan.forward, &forward, None);
            split += plan.forward.windows(2).filter(|r| (r[0].expert, r[0].from) == (r[1].expert, r[1].from)).count();
            let kept = routing.first(&plan.backward);
            let (had, has) = (plan.retained.retained(), routing.counts(Some(&kept)).total());
            assert_eq!(had, has);
            if plan.activations == Activations::Recompute {
                let backward = routing.destinations(&plan.backward, Some(&kept));
                check(&routing, &plan, &plan.backward, &backward, Some(&kept));
                moved += backward.iter().zip(&forward).filter(|(b, f)| **b != NOWHERE && b != f).count();
            }
            let stays = retain(&forward, &kept).unwrap();
            for ((&stays, &forward), kept) in stays.iter().zip(&forward).zip(kept) {
                assert_eq!(stays, if kept { forward } else { NOWHERE });
            }
        }
    }
    // The cases have experts whose pairs part, and pairs that backward computes elsewhere.
    assert!(split > 100 && moved > 100, "{split} {moved}");
}

#[test]
fn routes_may_stand_in_any_order_of_their_sources() {
    let route = |expert, from, to, pairs| Route { expert, from, to, pairs };
    let routes = [route(1, 7, 2, 1), route(0, 0, 3, 1), route(0, 7, 1, 2), route(0, 0, 0, 1), route(0, 7, 1, 0)];
    let (ids, sources) = ([0, 0, 1, 0, 0], [7, 0, 7, 0, 7]);
    assert_eq!(destinations(&ids, 1, &sources, 2, &routes, None).unwrap(), [1, 3, 2, 0, 1]);
    let computed = [true, true, true, true, false];
    let error = destinations(&ids, 1, &sources, 2, &routes, Some(&computed)).unwrap_err().to_string();
    assert!(
        error.contains("expert 0 from rank 7") && error.contains("2 pairs") && error.contains("1 pairs"),
        "{error}"
    );
}

#[test]
fn refuses_what_does_not_fit_together() {
    let route = |expert, from, pairs| Route { expert, from, to: 0, pairs };
    let all = |ids: &[u32], top_k, sources: &[u32], routes: &[Route], computed: Option<&[bool]>| {
        destinations(ids, top_k, sources, 2, routes, computed).unwrap_err().to_string()
    };
    let cases = [
        (all(&[0, 1], 1, &[0, 0], &[route(0, 0, 1)], None), "routes of expert 1 from rank 0` is 0 pairs"),
        (all(&[0, 0], 1, &[0, 0], &[route(0, 0, 1)], None), "routes of expert 0 from rank 0` is 1 pairs"),
        (all(&[0, 0], 1, &[0, 0], &[route(0, 0, 3)], None), "is 3 pairs; allowed: 2 pairs"),
        (all(&[0], 1, &[0], &[route(0, 0, 1), route(1, 4, 9)], None), "expert 1 from rank 4` is 9 pairs; allowed: 0"),
        (all(&[0], 1, &[0], &[route(0, 0, 1), route(2, 0, 1)], None), "experts below 2"),
        (all(&[0, 2], 2, &[0], &[], None), "ids[1]` is 2"),
        (all(&[0, 1, 1], 2, &[0], &[], None), "1 tokens x top_k 2"),
        (all(&[0, 1], 1, &[0, 0], &[], Some(&[true])), "computed is 1"),
        (all(&[], 0, &[], &[], None), "top_k"),
        (all(&[], usize::MAX, &[0, 0], &[], None), "ids is 0"),
        (retain(&[0, 1], &[true]).unwrap_err().to_string(), "retained is 1"),
    ];
    for (error, says) in cases {
        assert!(error.contains(says), "{error}, not {says}");
    }
    assert_eq!(destinations(&[], 3, &[], 2, &[], None).unwrap(), [0; 0]);
    assert_eq!(destinations(&[NOWHERE; 2], 2, &[0], 0, &[], None).unwrap(), [NOWHERE; 2]);
}

#[test]
fn counts_are_those_of_computed_pairs() {
    let mut rng = Philox::new(6, 0);
    for case in 0..100 {
        let routing = Routing::random(&mut rng, 1 + case % 3);
        let computed: Vec<bool> = routing.ids.iter().map(|_| below(&mut rng, 3) > 0).collect();
        for mask in [None, Some(computed.as_slice())] {
            let counts = routing.counts(mask);
            for (s, e) in (0..routing.ranks).flat_map(|s| (0..routing.experts).map(move |e| (s, e))) {
                let is_one = |&p: &usize| {
                    let (source, id) = (routing.sources[p / routing.top_k] as usize, routing.ids[p]);
                    (source, id) == (s, e as u32) && mask.is_none_or(|mask| mask[p])
                };
                assert_eq!(counts.get(s, e) as usize, (0..routing.ids.len()).filter(is_one).count());
            }
        }
    }
    assert_eq!(pair_counts(&[], 2, &[], 3, 4, None).unwrap().total(), 0);
    assert!(pair_counts(&[0], 1, &[3], 3, 4, None).unwrap_err().to_string().contains("source_of_token[0]` is 3"));
    assert!(pair_counts(&[4], 1, &[0], 3, 4, None).unwrap_err().to_string().contains("ids[0]` is 4"));
    assert!(matches!(pair_counts(&[], 1, &[], usize::MAX, 2, None), Err(Error::Overflow { .. })));
    assert!(pair_counts(&[], 1, &[], 0, 2, None).is_err());
}
