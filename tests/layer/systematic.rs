//! What systematic selection promises beyond being unbiased: less noise where gradients are alike, and no dependence on row order.

use libtest_mimic::Trial;
use lrmoe::{Backend, ForwardContext, LayerOptions, ParamId, Retention, Selection};

use crate::expect::tensor_bits;
use crate::sample::{Block, kind, narrow, single, steering_logits, tensor};
use crate::support::compare::Comparison;
use crate::support::linear::Mat;
use crate::support::rng::Rng;
use crate::{Device, Outcome, text, trial};

pub(crate) fn trials<B: Backend>(device: Device<B>) -> Vec<Trial> {
    vec![
        trial(device, "systematic::clustered_gradients_have_half_the_variance", clustered),
        trial(device, "systematic::rows_in_any_order", any_order),
        trial(device, "systematic::one_slot_is_unbiased", one_slot),
    ]
}

/// Tokens whose x is one of E directions and whose dy is one of 16, with 10 % noise each.
fn clusters(tokens: usize, experts: usize) -> Block {
    let mut block = Block::new(single(16, 6, experts), tokens, 181);
    let mut rng = Rng::new(182);
    let (bases, directions) = (rng.matrix(experts, 16, 1.0), rng.matrix(16, 16, 1.0));
    for t in 0..tokens {
        let cluster = rng.below(16);
        let noisy = |rng: &mut Rng, base: &[f64]| base.iter().map(|v| v + 0.1 * rng.normal()).collect::<Vec<_>>();
        let (x, dy) = (noisy(&mut rng, bases.row(t % experts)), noisy(&mut rng, directions.row(cluster)));
        block.x.row_mut(t).copy_from_slice(&x);
        block.dy.row_mut(t).copy_from_slice(&dy);
    }
    block
}

/// Squared errors of both weight gradients over 500 seeds, at most half of priority sampling's at the same quotas.
fn clustered<B: Backend>(device: &Device<B>) -> Outcome {
    const EXPERTS: usize = 4;
    let (tokens, backend) = (512, (device.make)());
    let seeds = device.seeds(500);
    let block = clusters(tokens, EXPERTS);
    let (x, dy) = block.tensors(&backend)?;
    let experts: Vec<usize> = (0..tokens).map(|t| t % EXPERTS).collect();
    let logits = tensor(&backend, &steering_logits(&experts, EXPERTS))?;
    let gradients = |layer: &mut lrmoe::MoeLayer<B>, seed: u64| -> Result<[Vec<f32>; 2], String> {
        let context = ForwardContext { seed, ..ForwardContext::default() };
        let (_, saved) = layer.forward_with_logits(&x, &logits, &context).map_err(text)?;
        layer.zero_grad();
        layer.backward(&saved, &dy).map_err(text)?;
        let gradient = |id| layer.gradient(id).map_err(text)?.ok_or_else(|| "no gradient".to_string());
        Ok([gradient(ParamId::GateUp)?, gradient(ParamId::Down)?])
    };
    let options = |select, fraction| {
        let mut options = LayerOptions { select, ..LayerOptions::default() };
        options.plan.retention = Retention::Fraction(fraction);
        options
    };
    let truth = gradients(&mut block.layer(&backend, options(Selection::All, 1.0))?, 0)?;
    let mut compare = Comparison::new();
    for fraction in [0.5, 0.25] {
        let errors = |select| -> Result<[f64; 2], String> {
            let mut layer = block.layer(&backend, options(select, fraction))?;
            let mut errors = [0.0; 2];
            for seed in 0..seeds {
                for ((error, got), want) in errors.iter_mut().zip(gradients(&mut layer, seed)?).zip(&truth) {
                    *error += got.iter().zip(want).map(|(g, w)| f64::from(g - w).powi(2)).sum::<f64>();
                }
            }
            Ok(errors)
        };
        let (systematic, priority) = (errors(Selection::Systematic)?, errors(Selection::Unbiased)?);
        for ((name, systematic), priority) in ["gate_up", "down"].iter().zip(systematic).zip(priority) {
            let ratio = systematic / priority;
            compare.holds(&format!("{name} at {fraction}: {ratio} of the variance"), ratio <= 0.5);
            compare.holds("and there is some", systematic > 0.0);
        }
    }
    compare.finish(8)
}

/// The same tokens with the same ids in another order: dx follows its token to the bit, so the retained set and the weights do.
fn any_order<B: Backend>(device: &Device<B>) -> Outcome {
    const TOKENS: usize = 90;
    let backend = (device.make)();
    let block = Block::new(kind("softmax"), TOKENS, 183);
    let h = block.config.hidden_size;
    let mut rng = Rng::new(184);
    let mut compare = Comparison::new();
    for select in [Selection::TopQ, Selection::Systematic, Selection::Unbiased, Selection::Mixed { certain: 0.4 }] {
        let dx = |order: &[usize]| -> Result<Vec<u32>, String> {
            let of = |mat: &Mat| Mat::new(TOKENS, h, order.iter().flat_map(|&t| mat.row(t).to_vec()).collect());
            let (x, dy) = (tensor(&backend, &of(&block.x))?, tensor(&backend, &of(&block.dy))?);
            let ids: Vec<u64> = order.iter().map(|&t| t as u64 * 3 + 7).collect();
            let mut layer = block.layer(&backend, LayerOptions { select, ..LayerOptions::default() })?;
            let context = ForwardContext { seed: 5, token_ids: Some(&ids), ..ForwardContext::default() };
            let (_, saved) = layer.forward(&x, &context).map_err(text)?;
            let dx = tensor_bits(&backend, &layer.backward(&saved, &dy).map_err(text)?.dx)?;
            let mut by_token = vec![0; TOKENS * h];
            order.iter().zip(dx.chunks(h)).for_each(|(t, row)| by_token[t * h..][..h].copy_from_slice(row));
            Ok(by_token)
        };
        let mut order: Vec<usize> = (0..TOKENS).collect();
        let want = dx(&order)?;
        for shuffle in 0..5 {
            (1..TOKENS).rev().for_each(|i| order.swap(i, rng.below(i + 1)));
            compare.equal(&format!("{select}, order {shuffle}"), &dx(&order)?, &want);
        }
    }
    compare.finish(20)
}

/// One slot an expert: the mean over seeds is the sum over all pairs, within five standard errors.
fn one_slot<B: Backend>(device: &Device<B>) -> Outcome {
    let seeds = device.seeds(3000);
    let backend = (device.make)();
    let block = Block::new(single(6, 5, 3), 30, 185);
    let (x, dy) = block.tensors(&backend)?;
    let mut options = LayerOptions { select: Selection::Systematic, ..LayerOptions::default() };
    (options.plan.retention, options.plan.q_min) = (Retention::Fraction(0.0), 1);
    let mut layer = block.layer(&backend, options)?;
    let forward = block.forward(None);
    let everything = crate::support::oracle_backward::all_pairs(&forward.routing);
    let want = block.oracle.expert_backward(&block.x, &forward, &block.dy, &everything).dx;
    let truth = narrow(&want.data);
    let (mut sum, mut squares) = (vec![0.0; truth.len()], vec![0.0; truth.len()]);
    for seed in 0..seeds {
        let (_, saved) = layer.forward(&x, &ForwardContext { seed, ..ForwardContext::default() }).map_err(text)?;
        let gradients = layer.backward(&saved, &dy).map_err(text)?;
        let counts = &gradients.stats.counts;
        if gradients.stats.retained.iter().zip(counts).any(|(&kept, &n)| kept != n.min(1)) {
            return Err(format!("seed {seed}: {:?} pairs retained of {counts:?}", gradients.stats.retained));
        }
        for (i, dx) in gradients.dx.to_f32(&backend).map_err(text)?.into_iter().enumerate() {
            sum[i] += f64::from(dx);
            squares[i] += f64::from(dx).powi(2);
        }
    }
    let n = seeds as f64;
    let mut compare = Comparison::new();
    for (i, want) in truth.iter().copied().map(f64::from).enumerate() {
        let mean = sum[i] / n;
        let error = ((squares[i] / n - mean * mean).max(0.0) / n).sqrt();
        compare.holds(&format!("mean {i} is {mean}, truth {want}"), (mean - want).abs() <= 5.0 * error + 1e-5);
    }
    compare.finish(180)
}
