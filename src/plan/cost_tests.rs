//! Times and bytes worked out by hand, and figures published elsewhere.

use super::*;
use crate::config::MoeConfig;
use crate::plan::cluster::{ClusterSpec, Link};
use crate::plan::counts::Counts;
use crate::plan::policy::{SymiCostInput, symi_cost};
use crate::plan::route::{self, Sources};
use crate::tensor::DType;

/// H 64, I 32, k 1, f32: a pair is 6 * 64 * 32 = 12,288 operations, an expert 24,576 bytes, a row 256.
fn setup(experts: usize, ranks: usize, ranks_per_node: usize) -> Setup {
    let cluster = ClusterSpec {
        ranks,
        ranks_per_node,
        bytes_per_rank: 1 << 40,
        host_reserved_bytes: 0,
        gemm_flops: 12_288.0,
        copy_bytes_per_s: 1e30,
        intra: Link { bytes_per_s: 256.0, latency_s: 0.0 },
        inter: Link { bytes_per_s: 64.0, latency_s: 0.0 },
        host_bytes_per_s: 1e30,
        launch_s: 0.0,
    };
    let config = MoeConfig { num_hidden_layers: 1, dtype: Some(DType::F32), ..MoeConfig::new(64, 32, experts, 1) };
    Setup::new(config, cluster).unwrap()
}

struct Step {
    sources: Sources,
    placement: Placement,
    loads: Vec<u32>,
}

fn step(setup: &Setup, counts: &[Vec<u32>], placement: Placement) -> Step {
    let sources = Sources::new(Counts::new(counts).unwrap(), setup.cluster.ranks_per_node).unwrap();
    let loads = route::assign(&sources, &placement, None).unwrap();
    Step { sources, placement, loads }
}

/// Both passes carry the same pairs.
fn predict(setup: &Setup, step: &Step, activations: Activations, next: &Placement) -> Predicted {
    let traffic = route::traffic(&step.sources, &step.placement, &step.loads).unwrap();
    let work = RankWork::new(&step.placement, &step.loads, traffic);
    let pass = Pass { work: &work, waves: 1 };
    CostModel::new(setup).unwrap().predict(&Priced {
        forward: pass,
        backward: pass,
        pairs: step.sources.counts().total(),
        tokens: 0,
        activations,
        selects: false,
        placements: [&step.placement, &step.placement, next],
    })
}

fn close(got: f64, expected: f64) {
    assert!((got - expected).abs() <= 1e-9 * expected.abs(), "{got} {expected}");
}

#[test]
fn busiest_rank_sets_the_time() {
    // Two ranks of one node, expert e on rank e: 30 and 10 pairs, all of expert 1 from rank 0.
    let setup = setup(2, 2, 2);
    let placement = Placement::contiguous(2, 2, Ownership::Home).unwrap();
    let step = step(&setup, &[vec![30, 10], vec![0, 0]], placement);
    let stash = predict(&setup, &step, Activations::Stash, &step.placement);
    // One second a pair, twice that backward; two thirds more to compute a and b again.
    close(stash.forward_s, 30.0);
    close(stash.backward_s, 60.0);
    close(stash.max_over_mean_forward, 1.5);
    // 10 rows of 256 bytes there and back in both passes, at a row a second.
    close(stash.exchange_s, 40.0);
    close(stash.exchange_bytes, 40.0 * 256.0);
    assert_eq!((stash.exchange_bytes_inter_node, stash.optimizer_exchange_s), (0.0, 0.0));
    assert_eq!(stash.dominant(), Term::Backward);
    close(stash.total_s(), 130.0);
    let recompute = predict(&setup, &step, Activations::Recompute, &step.placement);
    close(recompute.backward_s, 80.0);
    // The tokens cross again.
    close(recompute.exchange_s, 50.0);
}

#[test]
fn nodes_pool_their_links() {
    // Two nodes of two ranks, expert 0 on rank 0 alone; rank 2 sends it 8 pairs, rank 3 sends 4, rank 1 sends 6.
    let setup = setup(1, 4, 2);
    let placement = Placement::contiguous(1, 4, Ownership::Home).unwrap();
    let step = step(&setup, &[vec![0], vec![6], vec![8], vec![4]], placement);
    let times = predict(&setup, &step, Activations::Stash, &step.placement);
    // 12 rows cross nodes at 2 * 64 bytes a second: 24 s a direction, more than 18 rows at a row a second.
    close(times.exchange_s, 4.0 * 24.0);
    close(times.exchange_bytes_inter_node, 4.0 * 12.0 * 256.0);
    close(times.exchange_bytes, 4.0 * 18.0 * 256.0);
}

#[test]
fn a_token_crosses_once_for_all_its_pairs() {
    // All pairs of rank 1 go to rank 0, which holds both experts: two pairs a token, one row.
    let mut setup = setup(2, 2, 2);
    setup.config.num_experts_per_tok = 2;
    let placement = Placement::new(2, &[vec![0], vec![0]], vec![0, 0], Ownership::Home).unwrap();
    let step = step(&setup, &[vec![0, 0], vec![10, 10]], placement);
    close(predict(&setup, &step, Activations::Stash, &step.placement).exchange_bytes, 4.0 * 10.0 * 256.0);
}

#[test]
fn weights_are_read_however_few_the_pairs() {
    let mut setup = setup(1, 1, 1);
    setup.cluster.copy_bytes_per_s = 24_576.0;
    let step = step(&setup, &[vec![1]], Placement::contiguous(1, 1, Ownership::Home).unwrap());
    let times = predict(&setup, &step, Activations::Stash, &step.placement);
    // One second of arithmetic, one of reading the weights: equal; backward writes their gradient too, again f32.
    let between = |values: f64| 4.0 * (values + 128.0) / 24_576.0;
    close(times.forward_s, 1.0 + between(6.0 * 32.0));
    close(times.backward_s, 2.0 + between(10.0 * 32.0));
}

#[test]
fn replicas_pay_at_home_and_shards_pay_always() {
    let setup = setup(2, 2, 2);
    let single = Placement::contiguous(2, 2, Ownership::Home).unwrap();
    let double = Placement::new(2, &[vec![0, 1], vec![1]], vec![0, 1], Ownership::Home).unwrap();
    let counts = [vec![10, 10], vec![10, 10]];
    let optimizer = |from: &Placement, to: &Placement| {
        predict(&setup, &step(&setup, &counts, from.clone()), Activations::Stash, to).optimizer_exchange_s
    };
    // A replica sends its gradient home and gets its weights: 24,576 bytes each at 256 bytes a second.
    assert_eq!(optimizer(&single, &single), 0.0);
    close(optimizer(&double, &double), 2.0 * 96.0);
    close(optimizer(&double, &single), 96.0);
    close(optimizer(&single, &double), 96.0);
    // Half of every expert's gradient and weights crosses, whatever the placement.
    let sharded = single.clone().owned(Ownership::Sharded);
    close(optimizer(&sharded, &sharded), 2.0 * 48.0);
}

#[test]
fn copies_for_one_step_get_weights_and_return_gradients() {
    let setup = setup(2, 2, 2);
    let model = CostModel::new(&setup).unwrap();
    for ownership in Ownership::ALL {
        let home = Placement::contiguous(2, 2, ownership).unwrap();
        let spill = Placement::new(2, &[vec![0, 1], vec![1]], vec![0, 1], ownership).unwrap();
        let (with, without) = (model.optimizer([&home, &spill, &home]), model.optimizer([&spill, &spill, &home]));
        close(with.seconds - without.seconds, 96.0);
        close(with.bytes - without.bytes, 24_576.0);
    }
    let home = Placement::contiguous(2, 2, Ownership::Home).unwrap();
    let spill = Placement::new(2, &[vec![0, 1], vec![1]], vec![0, 1], Ownership::Home).unwrap();
    close(model.optimizer([&home, &spill, &home]).seconds, 2.0 * 96.0);
}

#[test]
fn a_new_home_gets_moments_and_weights() {
    let setup = setup(2, 2, 2);
    let model = CostModel::new(&setup).unwrap();
    let (old, new) = (Placement::contiguous(2, 2, Ownership::Home).unwrap(), [vec![1], vec![1]]);
    let new = Placement::new(2, &new, vec![1, 1], Ownership::Home).unwrap();
    // Three times 24,576 bytes at 256 bytes a second.
    close(model.moving_s(&old, &new), 288.0);
    close(model.optimizer([&old, &old, &new]).seconds, 288.0);
    assert_eq!(model.moving_s(&old, &old), 0.0);
}

#[test]
fn outputs_kept_apart_come_back_apart() {
    let mut setup = setup(2, 2, 2);
    setup.config.num_experts_per_tok = 2;
    setup.router_gradient = RouterGradient::Exact;
    let placement = Placement::new(2, &[vec![0], vec![0]], vec![0, 0], Ownership::Home).unwrap();
    let step = step(&setup, &[vec![0, 0], vec![10, 10]], placement);
    // Out 10 tokens, back 20 pairs; backward 10 each way.
    close(predict(&setup, &step, Activations::Stash, &step.placement).exchange_bytes, 50.0 * 256.0);
}

/// The closed form of the SYMI paper (its section on cost): `(s N - s) / N` expert sizes a rank and phase.
#[test]
fn shards_cost_what_symi_says() {
    let (experts, ranks) = (64, 32);
    let mut setup = setup(experts, ranks, 1);
    setup.cluster.intra.bytes_per_s = setup.cluster.inter.bytes_per_s;
    let placement = Placement::contiguous(experts, ranks, Ownership::Sharded).unwrap();
    let step = step(&setup, &vec![vec![1; experts]; ranks], placement);
    let times = predict(&setup, &step, Activations::Stash, &step.placement);
    let bytes = 24_576.0;
    let published = symi_cost(&SymiCostInput {
        ranks,
        slots_per_rank: 2,
        experts,
        gradient_bytes: bytes,
        weight_bytes: bytes,
        host_bytes_per_s: f64::INFINITY,
        network_bytes_per_s: setup.cluster.inter.bytes_per_s,
    });
    close(times.optimizer_exchange_s, published.unwrap().symi_s);
}

/// ALGORITHM section 6: on 8 ranks GLM-4.5-Air's sharding moves 1.35 GiB a rank, layer and step, its token traffic at 8,192 tokens a
/// rank about 1.15 GiB.
#[test]
fn published_model_moves_what_was_worked_out() {
    const GIB: f64 = (1_u64 << 30) as f64;
    let cluster = ClusterSpec::preset("8xh100").unwrap();
    let setup = Setup::new(MoeConfig::preset("glm-4.5-air").unwrap(), cluster).unwrap();
    let placement = Placement::contiguous(128, 8, Ownership::Sharded).unwrap();
    let step = step(&setup, &vec![vec![512; 128]; 8], placement);
    let times = predict(&setup, &step, Activations::Stash, &step.placement);
    let (shards, tokens) = (times.optimizer_bytes / 8.0 / GIB, times.exchange_bytes / 8.0 / GIB);
    assert!((shards - 1.35).abs() < 0.01 && (tokens - 1.15).abs() < 0.01, "{shards} {tokens}");
}

/// One expert on two ranks: four rounds of 256 counts and sums and the per-expert figures go round twice, the scan once, and every rank's
/// count comes; at 256 bytes a second and 1/8 second for each of nine collectives.
#[test]
fn selection_by_hand() {
    let mut setup = setup(1, 2, 2);
    let bytes = 2.0 * (4.0 * 256.0 * 12.0 + 16.0 + 66.0 * 8.0) + 256.0 * 8.0 + 2.0 * 4.0;
    close(selection_exchange(&setup).unwrap(), bytes / 256.0);
    setup.cluster.intra.latency_s = 0.125;
    close(selection_exchange(&setup).unwrap(), bytes / 256.0 + 9.0 * 0.125);
    setup.cluster = setup.cluster.with_ranks(1, 1);
    assert_eq!(selection_exchange(&setup).unwrap(), 0.0);
}
