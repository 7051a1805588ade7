//! What a call must do, from the layer's own scores and plan, and everything a call returns in comparable form.

use lrmoe::rng::{PairKey, PairStream};
use lrmoe::{Backend, ForwardContext, MoeLayer, ParamId, SavedForward, Selection, Statistics, Tensor};

use crate::support::compare::Comparison;
use crate::support::layer::{gradients, wide};
use crate::support::oracle::{Forward, Routing, UNROUTED};
use crate::support::oracle_backward::{Gradients, RouterGradient};
use crate::support::oracle_keys::row_keys;
use crate::support::oracle_select::{Candidate, Mode, candidates, select, systematic};
use crate::text;

/// Relative Frobenius bounds on f32 arithmetic against f64: those of the golden data, and twice that where the pair
/// weights amplify the rounding of a difference.
pub(crate) const BOUND: f64 = 4e-6;
/// See [`BOUND`].
pub(crate) const ROUTER_BOUND: f64 = 8e-6;

/// The oracle's mode for a selection that looks at scores and draws of pairs alone.
fn mode(selection: Selection) -> Option<Mode> {
    match selection {
        Selection::All => Some(Mode::All),
        Selection::TopQ => Some(Mode::TopQ),
        Selection::Systematic => None,
        Selection::Unbiased => Some(Mode::Unbiased),
        Selection::Mixed { certain } => Some(Mode::Mixed { certain: f64::from(certain) }),
    }
}

/// Global ids of the tokens of a call.
pub(crate) fn token_ids(context: &ForwardContext<'_>, tokens: usize) -> Vec<u64> {
    match context.token_ids {
        Some(ids) => ids.to_vec(),
        None => (0..tokens as u64).map(|t| context.first_token + t).collect(),
    }
}

/// The pairs that backward must retain, with their weights: the oracle's selection from the layer's scores and quotas.
pub(crate) fn retained<B: Backend>(
    layer: &MoeLayer<B>,
    saved: &SavedForward<B>,
    dy: &Tensor<B>,
    routing: &Routing,
    context: &ForwardContext<'_>,
) -> Result<Vec<(usize, f64)>, String> {
    let scores = layer.scores(saved, dy).map_err(text)?;
    let floored: Vec<Option<f32>> = scores.iter().map(|&score| (score > 0.0).then_some(score)).collect();
    let candidates = candidates(routing, &floored, &token_ids(context, routing.tokens()));
    let quotas: Vec<usize> = saved.plan().quotas.iter().map(|&q| q as usize).collect();
    let stream = PairStream::new(&PairKey {
        seed: context.seed,
        step: context.step,
        call_id: context.call_id,
        layer: context.layer,
    });
    let keeps_all = quotas.iter().zip(routing.counts()).all(|(&quota, count)| quota >= count);
    let mode = if keeps_all { Some(Mode::All) } else { mode(layer.options().select) };
    if let Some(mode) = mode {
        let uniform = |c: &Candidate| stream.uniform(c.expert as u32, c.token_id);
        return Ok(select(mode, routing, &candidates, &quotas, uniform).retained);
    }
    let keys = row_keys(&wide(&dy.to_f32(layer.backend()).map_err(text)?), dy.cols());
    let keys =
        keys.into_iter().collect::<Option<Vec<u32>>>().ok_or("a projection of dy is too near 0 to tell its sign")?;
    let mut retained = Vec::new();
    for (e, &quota) in quotas.iter().enumerate() {
        let own: Vec<Candidate> = candidates.iter().filter(|c| c.expert == e).copied().collect();
        let drawn = systematic(&own, quota, |c| keys[c.pair / routing.top_k], stream.expert_bits(e as u32));
        retained.extend(drawn.into_iter().map(|(c, weight)| (c.pair, weight)));
    }
    retained.sort_by_key(|&(pair, _)| pair);
    Ok(retained)
}

/// Retained pairs per expert.
pub(crate) fn per_expert(routing: &Routing, retained: &[(usize, f64)]) -> Vec<u32> {
    let mut counts = vec![0; routing.logits.cols];
    retained.iter().for_each(|&(p, _)| counts[routing.experts[p]] += 1);
    counts
}

/// The experts that the layer chose are those of the oracle.
pub(crate) fn same_routing<B: Backend>(
    compare: &mut Comparison,
    backend: &B,
    saved: &SavedForward<B>,
    forward: &Forward,
) -> Result<(), String> {
    let ids = saved.routing(backend).map_err(text)?.ids;
    let got: Vec<usize> =
        ids.iter().map(|&id| if id == lrmoe::kernel::NONE { UNROUTED } else { id as usize }).collect();
    compare.equal("experts", &got, &forward.routing.experts);
    Ok(())
}

/// The oracle's router gradient for a mode of the crate.
pub(crate) fn router_mode(router: lrmoe::RouterGradient) -> RouterGradient {
    match router {
        lrmoe::RouterGradient::Estimated => RouterGradient::Estimated,
        lrmoe::RouterGradient::Exact => RouterGradient::Exact,
    }
}

/// Every gradient of a layer against the oracle's.
pub(crate) fn compare_gradients<B: Backend>(
    compare: &mut Comparison,
    what: &str,
    layer: &MoeLayer<B>,
    got: &lrmoe::Gradients<B>,
    want: &Gradients,
    factor: f64,
) -> Result<(), String> {
    let backend = layer.backend();
    let d_logits = wide(&got.d_logits.to_f32(backend).map_err(text)?);
    compare.relative(
        &format!("{what}: dx"),
        &wide(&got.dx.to_f32(backend).map_err(text)?),
        &want.dx.data,
        factor * BOUND,
    );
    compare.relative(&format!("{what}: d_logits"), &d_logits, &want.d_router_logits.data, factor * ROUTER_BOUND);
    for ((name, got), (_, want)) in gradients(layer)?.named().iter().zip(want.weights.named()) {
        let bound = if name == "router" { ROUTER_BOUND } else { BOUND };
        compare.relative(&format!("{what}: {name}"), got, &want.data, factor * bound);
    }
    Ok(())
}

/// Everything that a forward and a backward return, to the bit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bits {
    pub(crate) y: Vec<u32>,
    pub(crate) dx: Vec<u32>,
    pub(crate) d_logits: Vec<u32>,
    pub(crate) weights: Vec<(ParamId, Vec<u32>)>,
    pub(crate) stats: Statistics,
}

/// The bits of f32 values.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The bits of a tensor.
pub(crate) fn tensor_bits<B: Backend>(backend: &B, tensor: &Tensor<B>) -> Result<Vec<u32>, String> {
    Ok(bits(&tensor.to_f32(backend).map_err(text)?))
}

/// The bits of every weight gradient.
pub(crate) fn gradient_bits<B: Backend>(layer: &MoeLayer<B>) -> Result<Vec<(ParamId, Vec<u32>)>, String> {
    let mut all = Vec::new();
    for id in ParamId::ALL {
        if let Some(values) = layer.gradient(id).map_err(text)? {
            all.push((id, bits(&values)));
        }
    }
    Ok(all)
}

/// Forward and backward of one call, with the gradients of that call alone.
pub(crate) fn run<B: Backend>(
    layer: &mut MoeLayer<B>,
    x: &Tensor<B>,
    dy: &Tensor<B>,
    context: &ForwardContext<'_>,
) -> Result<Bits, String> {
    let (y, saved) = layer.forward(x, context).map_err(text)?;
    finish(layer, &y, &saved, dy)
}

/// As [`run`], with the host's logits.
pub(crate) fn run_with_logits<B: Backend>(
    layer: &mut MoeLayer<B>,
    x: &Tensor<B>,
    logits: &Tensor<B>,
    dy: &Tensor<B>,
    context: &ForwardContext<'_>,
) -> Result<Bits, String> {
    let (y, saved) = layer.forward_with_logits(x, logits, context).map_err(text)?;
    finish(layer, &y, &saved, dy)
}

/// What is left of a call after its forward pass.
pub(crate) fn finish<B: Backend>(
    layer: &mut MoeLayer<B>,
    y: &Tensor<B>,
    saved: &SavedForward<B>,
    dy: &Tensor<B>,
) -> Result<Bits, String> {
    layer.zero_grad();
    let gradients = layer.backward(saved, dy).map_err(text)?;
    let backend = layer.backend();
    Ok(Bits {
        y: tensor_bits(backend, y)?,
        dx: tensor_bits(backend, &gradients.dx)?,
        d_logits: tensor_bits(backend, &gradients.d_logits)?,
        weights: gradient_bits(layer)?,
        stats: gradients.stats,
    })
}

impl Bits {
    /// Compares everything but the statistics.
    pub(crate) fn same(&self, compare: &mut Comparison, what: &str, other: &Self) {
        compare.equal(&format!("{what}: y"), &self.y, &other.y);
        compare.equal(&format!("{what}: dx"), &self.dx, &other.dx);
        compare.equal(&format!("{what}: d_logits"), &self.d_logits, &other.d_logits);
        compare.equal(&format!("{what}: weight gradients"), &self.weights, &other.weights);
    }
}
