use super::*;
use crate::config::MoeConfig;
use crate::plan::cluster::Link;
use crate::plan::ClusterSpec;
use crate::rng::Philox;

fn cluster(ranks: usize, ranks_per_node: usize) -> ClusterSpec {
    ClusterSpec {
        ranks,
        ranks_per_node,
        bytes_per_rank: 1 << 40,
        host_reserved_bytes: 0,
        gemm_flops: 4e14,
        copy_bytes_per_s: 2.5e12,
        intra: Link { bytes_per_s: 3.5e11, latency_s: 1e-5 },
        inter: Link { bytes_per_s: 4.5e10, latency_s: 2e-5 },
        host_bytes_per_s: 5e10,
        launch_s: 5e-5,
    }
}

fn setup(experts: usize, top_k: usize, ranks: usize, ranks_per_node: usize) -> Setup {
    let config = MoeConfig { num_hidden_layers: 1, ..MoeConfig::new(256, 128, experts, top_k) };
    Setup::new(config, cluster(ranks, ranks_per_node)).unwrap()
}

#[test]
fn timing() {
    for (e, r, m) in [(128, 64, 8), (512, 2048, 8)] {
        let mut rng = Philox::new(1, 2);
        let hot: Vec<u32> = (0..e).map(|i| if i % 11 == 3 { 400 } else { 40 }).collect();
        let rows: Vec<Vec<u32>> = (0..r).map(|_| hot.iter().map(|h| h + rng.next_u32() % 40).collect()).collect();
        let counts = Counts::new(&rows).unwrap();
        let setup = setup(e, 8, r, m);
        let policy = Lrmoe::default();
        let mut placement = policy.start(&setup, &counts).unwrap();
        for step in 0..4 {
            let t = std::time::Instant::now();
            let plan: Plan = policy.plan(&setup, &Input { step, counts: &counts, demand: None, placement: &placement }).unwrap();
            let t = t.elapsed();
            plan.check().unwrap();
            println!("{e} {r} {t:?} {:?} {:?} {}", plan.placement.instances(), plan.predicted, plan.placement.ownership().name());
            placement = plan.next;
        }
    }
}

#[test]
fn parts() {
    use crate::plan::evaluate::Evaluator;
    use std::time::Instant;
    for (e, r, m) in [(128, 64, 8), (512, 2048, 8)] {
        let mut rng = Philox::new(1, 2);
        let hot: Vec<u32> = (0..e).map(|i| if i % 11 == 3 { 400 } else { 40 }).collect();
        let rows: Vec<Vec<u32>> = (0..r).map(|_| hot.iter().map(|h| h + rng.next_u32() % 40).collect()).collect();
        let counts = Counts::new(&rows).unwrap();
        let setup = setup(e, 8, r, m);
        let policy = Lrmoe::default();
        let mut placement = policy.start(&setup, &counts).unwrap();
        for step in 0..3 {
            placement = policy.plan(&setup, &Input { step, counts: &counts, demand: None, placement: &placement }).unwrap().next;
        }
        for _ in 0..2 {
            let mut last = Instant::now();
            let mut lap = |name: &str| { println!("  {name}: {:?}", last.elapsed()); last = Instant::now(); };
            let input = Input { step: 3, counts: &counts, demand: None, placement: &placement };
            let canonical = Canonical::new(&setup, &input).unwrap();
            lap("canonical");
            let input = canonical.input(3);
            let retained = plan_within(input.counts.per_expert(), input.demand, &setup.options, input.placement).unwrap();
            lap("quotas");
            let clone = input.counts.clone();
            lap("clone");
            let evaluator = Evaluator::new(&setup, clone, &retained.quotas, true).unwrap();
            lap("evaluator");
            let forward = route::assign(&evaluator.forward, input.placement, None).unwrap();
            lap("assign");
            let backward = route::assign(&evaluator.backward, input.placement, None).unwrap();
            lap("assign");
            let modes = allowed(&setup, None);
            let o = evaluator.best([input.placement; 3], &forward, &backward, &modes).unwrap();
            lap("best outcome");
            let search = Search { setup: &setup, evaluator: &evaluator, current: input.placement, instances: None, modes: &modes };
            let c = search.candidates().unwrap();
            lap("candidates");
            println!("{}", c.len());
            let _n = search.best(&forward, &backward).unwrap();
            lap("search");
            let _ = route::transport(&evaluator.forward, input.placement, &forward).unwrap();
            lap("transport");
            let _ = route::transport(&evaluator.backward, input.placement, &o.capacity).unwrap();
            lap("transport");
            let _ev = evaluator.renamed(&canonical.labels.inverse()).unwrap();
            lap("renamed");
        }
    }
}
