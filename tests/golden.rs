//! The layer on every device against golden data: one trial per case and device, both in its name.
//!
//! Bounds are those that the golden README suggests for f32, times the device's factor.

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lrmoe::kernel::Metric;
use lrmoe::{
    Activations, Backend, ForwardContext, LayerOptions, RouterGradient, RouterTerms, Selection, Tensor, Trainable,
};

mod support;

use support::block::BlockWeights;
use support::compare::Comparison;
use support::golden::{self, BlockCase};
use support::layer::{self, wide};
use support::{cuda, device};

fn main() -> std::process::ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = on_device("cpu", 1.0, || Ok(device::cpu()));
    trials.extend(on_device("wgpu", device::WGPU_FACTOR, device::wgpu));
    trials.extend(on_device("cuda", cuda::CUDA_FACTOR, cuda::cuda));
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn on_device<B: Backend>(device: &'static str, factor: f64, make: fn() -> Result<B, String>) -> Vec<Trial> {
    let trial = |(name, case): golden::Found| {
        Trial::ignorable_test(format!("{name}::{device}"), move || match make() {
            Ok(backend) => check(&backend, &*case?, factor).map(|()| Completion::Completed).map_err(Failed::from),
            Err(reason) => Ok(Completion::ignored_with(reason)),
        })
    };
    golden::cases().into_iter().map(trial).collect()
}

/// Relative Frobenius bounds of the golden README.
struct Bounds {
    logits: f64,
    weights: f64,
    y: f64,
    dx: f64,
    d_logits: f64,
    router: f64,
    experts: f64,
    shared: f64,
}

const BOUNDS: Bounds = Bounds {
    logits: 1e-6,
    weights: 1e-6,
    y: 2e-6,
    dx: 2e-6,
    d_logits: 3e-6,
    router: 3e-6,
    experts: 4e-6,
    shared: 3e-6,
};

fn text(error: lrmoe::Error) -> String {
    error.to_string()
}

fn check<B: Backend>(backend: &B, case: &BlockCase, factor: f64) -> Result<(), String> {
    let mut compare = Comparison::new();
    plain(backend, case, factor, &mut compare, (Activations::Stash, RouterGradient::Estimated))?;
    plain(backend, case, factor, &mut compare, (Activations::Recompute, RouterGradient::Exact))?;
    scores(backend, case, factor, &mut compare)?;
    auxiliary(backend, case, factor, &mut compare)?;
    compare.finish(20)
}

/// The whole block with every pair back-propagated.
fn plain<B: Backend>(
    backend: &B,
    case: &BlockCase,
    factor: f64,
    compare: &mut Comparison,
    (activations, router_gradient): (Activations, RouterGradient),
) -> Result<(), String> {
    let mode = format!("{activations:?}, {router_gradient:?}");
    let options = LayerOptions { select: Selection::All, activations, router_gradient, ..LayerOptions::default() };
    let mut layer = layer::layer(backend, case, options)?;
    let x = layer::tensor(backend, case, &case.x)?;
    let dy = layer::tensor(backend, case, &case.dy)?;
    let (y, saved) = layer.forward(&x, &ForwardContext::default()).map_err(text)?;
    let gradients = layer.backward(&saved, &dy).map_err(text)?;
    let routing = saved.routing(backend).map_err(text)?;
    let want = &case.expected;
    let mut relative = |what: &str, got: &[f64], want: &[f64], bound: f64| {
        compare.relative(&format!("{what} ({mode})"), got, want, factor * bound);
    };

    let ids: Vec<usize> = routing.ids.iter().map(|&id| id as usize).collect();
    let order = want.align(&ids, case.top_k)?;
    let aligned: Vec<f64> = order.iter().map(|&pair| want.topk_weights[pair]).collect();
    relative("router_logits", &wide(&routing.logits), &want.router_logits, BOUNDS.logits);
    relative("topk_weights", &wide(&routing.weights), &aligned, BOUNDS.weights);
    relative("y", &wide(&y.to_f32(backend).map_err(text)?), &want.y, BOUNDS.y);
    relative("dx", &wide(&gradients.dx.to_f32(backend).map_err(text)?), &want.dx, BOUNDS.dx);
    if let Some(d_logits) = &want.d_router_logits {
        let got = wide(&gradients.d_logits.to_f32(backend).map_err(text)?);
        relative("d_router_logits", &got, d_logits, BOUNDS.d_logits);
    }
    let got: BlockWeights<Vec<f64>> = layer::gradients(&layer)?;
    for ((name, got), (_, want)) in got.named().iter().zip(want.grads.named()) {
        let bound = match name.split('.').next() {
            Some("router") => BOUNDS.router,
            Some("experts") => BOUNDS.experts,
            _ => BOUNDS.shared,
        };
        relative(&format!("grad {name}"), got, want, bound);
    }
    if let Some(counts) = &want.expert_counts {
        let got: Vec<usize> = gradients.stats.counts.iter().map(|&n| n as usize).collect();
        compare.equal("expert counts", &got, counts);
    }
    compare.equal("retained", &gradients.stats.retained, saved.counts());
    Ok(())
}

/// The score of a pair is the norm of its contribution to the gradient of W_down.
fn scores<B: Backend>(backend: &B, case: &BlockCase, factor: f64, compare: &mut Comparison) -> Result<(), String> {
    let options = LayerOptions { score_floor: 0.0, metric: Metric::Product, ..LayerOptions::default() };
    let layer = layer::layer(backend, case, options)?;
    let x = layer::tensor(backend, case, &case.x)?;
    let dy = layer::tensor(backend, case, &case.dy)?;
    let (_, saved) = layer.forward(&x, &ForwardContext::default()).map_err(text)?;
    let ids: Vec<usize> = saved.routing(backend).map_err(text)?.ids.iter().map(|&id| id as usize).collect();
    let order = case.expected.align(&ids, case.top_k)?;
    let want: Vec<f64> = order.iter().map(|&pair| case.expected.pair_norms.down[pair]).collect();
    compare.relative("scores", &wide(&layer.scores(&saved, &dy).map_err(text)?), &want, factor * BOUNDS.y);
    Ok(())
}

/// The auxiliary loss alone: with dy = 0 its gradient is all that reaches the logits.
fn auxiliary<B: Backend>(backend: &B, case: &BlockCase, factor: f64, compare: &mut Comparison) -> Result<(), String> {
    let Some(want) = &case.expected.aux_loss else { return Ok(()) };
    let options = LayerOptions {
        select: Selection::All,
        aux_loss_coef: 1.0,
        trainable: Trainable::NONE,
        ..LayerOptions::default()
    };
    let mut layer = layer::layer(backend, case, options)?;
    let x = layer::tensor(backend, case, &case.x)?;
    let zeros = vec![0.0; case.tokens * case.hidden_size];
    let dy = Tensor::from_f32(backend, &zeros, case.tokens, case.hidden_size).map_err(text)?;
    let (_, saved) = layer.forward(&x, &ForwardContext::default()).map_err(text)?;
    let terms: &RouterTerms = saved.router_terms().ok_or("no router terms")?;
    compare.number("aux_loss", terms.load_balancing(), want.value, factor * 1e-6);
    let gradients = layer.backward(&saved, &dy).map_err(text)?;
    let got = wide(&gradients.d_logits.to_f32(backend).map_err(text)?);
    compare.relative("aux_loss_d_router_logits", &got, &want.d_router_logits, factor * BOUNDS.d_logits);
    Ok(())
}
