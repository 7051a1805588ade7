//! The memory that planning predicts for one rank, against the accountant: equal in every category, and the exact limit of the budgets
//! under which a layer trains.

use libtest_mimic::Trial;
use lrmoe::kernel::Metric;
use lrmoe::memory::{Category, CategoryBytes};
use lrmoe::plan::{ClusterSpec, MemoryModel, Ownership, RankLoad, Setup, Span};
use lrmoe::rng::Philox;
use lrmoe::{
    Activations, AdamW, AdamWConfig, Backend, DType, Error, ForwardContext, HostData, LayerOptions, MoeConfig,
    MoeLayer, MoeWeights, Retention, RouterGradient, Selection, Tensor,
};

use crate::sample::{kind, kinds};
use crate::support::compare::Comparison;
use crate::{Device, Outcome, text, trial};

pub(crate) fn trials<B: Backend>(device: Device<B>) -> Vec<Trial> {
    vec![
        trial(device, "predicted::every_category_to_the_byte", exact),
        trial(device, "predicted::layers_share_what_they_do_not_keep", layers),
        trial(device, "predicted::one_byte_less_is_too_little", tight),
    ]
}

/// A layer with its step, and what planning knows of it.
#[derive(Debug, Clone)]
struct Case {
    config: MoeConfig,
    dtype: DType,
    tokens: usize,
    options: LayerOptions,
}

impl Case {
    fn new(config: MoeConfig, tokens: usize, select: Selection, retention: f64) -> Self {
        let mut options = LayerOptions { select, ..LayerOptions::default() };
        options.plan.retention = Retention::Fraction(retention);
        options.plan.q_min = 2;
        Self { config, dtype: DType::F32, tokens, options }
    }

    fn name(&self) -> String {
        let Self { config, dtype, tokens, options } = self;
        let LayerOptions { select, activations, router_gradient, metric, aux_loss_coef, plan, .. } = options;
        let sizes = [config.hidden_size, config.moe_intermediate_size, config.num_experts, config.num_experts_per_tok];
        let rest = format!("{activations:?}, {router_gradient:?}, {metric:?}, aux {aux_loss_coef}");
        format!("{sizes:?} {tokens} tokens in {dtype}, {select} {}, {rest}", plan.retention)
    }

    fn model(&self, layers: usize, budget: u64) -> Result<MemoryModel, String> {
        let cluster = ClusterSpec { bytes_per_rank: budget, ..ClusterSpec::preset("laptop").map_err(text)? };
        let mut setup = Setup::new(self.config.clone(), cluster).map_err(text)?;
        setup.dtype = self.dtype;
        setup.layers = layers;
        setup.router_gradient = self.options.router_gradient;
        let model = MemoryModel::new(&setup, Ownership::Home, self.options.activations).map_err(text)?;
        Ok(model
            .scored(self.options.select != Selection::All)
            .full_metric(self.options.metric == Metric::Full)
            .router_losses(self.options.aux_loss_coef > 0.0))
    }

    fn load(&self, retained: u64) -> RankLoad {
        let (experts, top_k) = (self.config.num_experts as u64, self.config.num_experts_per_tok as u64);
        RankLoad::alone(experts, top_k, self.tokens as u64, retained)
    }

    fn layer<B: Backend>(&self, backend: &B) -> Result<MoeLayer<B>, Error> {
        let mut weights = MoeWeights::init(&self.config, 5, 0.1)?;
        let round = |data: &mut HostData| -> Result<(), Error> {
            let values = std::mem::replace(data, HostData::U32(Vec::new())).into_f32()?;
            *data = HostData::from_f32(values, self.dtype);
            Ok(())
        };
        round(&mut weights.gate_up)?;
        round(&mut weights.down)?;
        let some =
            [&mut weights.router, &mut weights.shared_gate_up, &mut weights.shared_down, &mut weights.shared_gate];
        some.into_iter().flatten().try_for_each(round)?;
        MoeLayer::new(backend, self.config.clone(), weights, self.options.clone())
    }

    fn rows<B: Backend>(&self, backend: &B, seed: u64) -> Result<Tensor<B>, Error> {
        let mut values = vec![0.0; self.tokens * self.config.hidden_size];
        Philox::new(seed, 0).fill_normal(&mut values, 1.0);
        Tensor::from_f32(backend, &values, self.tokens, self.config.hidden_size)
    }
}

/// What the accountant saw of some steps, without the host's own x and dy.
struct Seen {
    /// At the peak.
    at_peak: CategoryBytes,
    /// Asked for between forward and backward.
    waiting: u64,
    /// Pairs retained at most.
    retained: u64,
    /// Bytes of the host.
    host: u64,
}

/// Two steps of `layers` equal layers, each with its optimizer.
fn steps<B: Backend>(case: &Case, backend: &B, layers: usize) -> Result<Seen, Error> {
    let mut model = Vec::new();
    for _ in 0..layers {
        let layer = case.layer(backend)?;
        let adamw = AdamW::new(&layer, AdamWConfig::default())?;
        model.push((layer, adamw));
    }
    let before = backend.memory().report();
    let (x, dy) = (case.rows(backend, 1)?, case.rows(backend, 2)?);
    let after = backend.memory().report();
    let (host, host_used) = (after.reserved - before.reserved, after.used - before.used);
    backend.memory().reset_peaks();
    let (mut waiting, mut retained) = (0, 0);
    for step in 0..2 {
        let context = ForwardContext { step, ..ForwardContext::default() };
        let mut saved = Vec::new();
        for (layer, _) in &model {
            let (_, kept) = layer.forward(&x, &context)?;
            retained = retained.max(kept.plan().retained());
            saved.push(kept);
        }
        waiting = backend.memory().report().used - host_used;
        for (layer, _) in model.iter_mut().rev() {
            layer.zero_grad();
            if let Some(kept) = saved.pop() {
                layer.backward(&kept, &dy)?;
            }
        }
        for (layer, adamw) in &mut model {
            layer.grad_norm_sq()?;
            adamw.step(layer, 1e-3, 1.0, false)?;
        }
    }
    let mut at_peak = backend.memory().report().at_peak;
    at_peak[Category::TokenBuffers as usize] -= host;
    Ok(Seen { at_peak, waiting, retained, host })
}

/// Prediction and account of one case; the span that was live at the peak.
fn check<B: Backend>(compare: &mut Comparison, device: &Device<B>, case: &Case, layers: usize) -> Result<Span, String> {
    let seen = steps(case, &(device.make)(), layers).map_err(text)?;
    let (model, load) = (case.model(layers, u64::MAX)?, case.load(seen.retained));
    let predicted = model.rank(&load, u64::MAX).map_err(text)?;
    let what = format!("{layers} layers, {}", case.name());
    compare.equal(&format!("{what}: reserved at the peak"), &predicted.reserved, &seen.at_peak);
    // Waves of exactly the pairs there are hold as much.
    let exactly = model.rank(&load, load.pairs).map_err(text)?;
    compare.holds(&format!("{what}: a wave of all pairs"), exactly == predicted);
    let buffers = model.buffers(&load, u64::MAX).map_err(text)?;
    let of = |span: Span| buffers.iter().filter(|b| b.span == span).map(|b| b.bytes).sum::<u64>();
    let resting = (of(Span::Layer) + of(Span::Saved)) * layers as u64;
    compare.equal(&format!("{what}: asked for between the passes"), &[resting], &[seen.waiting]);
    let spans = [Span::Forward, Span::Backward, Span::Step];
    let used = |span: Span| match span {
        Span::Step => of(Span::Layer) * layers as u64 + of(span),
        _ => resting + of(span),
    };
    spans.into_iter().find(|&span| used(span) == predicted.used_total()).ok_or(format!("{what}: no such moment"))
}

fn modes() -> Vec<(Selection, f64)> {
    vec![(Selection::All, 1.0), (Selection::Unbiased, 1.0), (Selection::Unbiased, 0.5), (Selection::TopQ, 0.1)]
}

/// Every kind of router and shared expert in every mode, and sizes at the edge.
fn exact<B: Backend>(device: &Device<B>) -> Outcome {
    let mut compare = Comparison::new();
    let mut spans = Vec::new();
    let wide = MoeConfig { shared_expert_intermediate_size: 40, ..MoeConfig::new(96, 48, 16, 4) };
    let mut configs: Vec<(MoeConfig, usize)> = kinds().into_iter().map(|(_, config)| (config, 37)).collect();
    configs.extend([
        (wide, 200),
        (kind("softmax_shared_gate"), 0),
        (MoeConfig::new(8, 4, 64, 2), 1),
        (MoeConfig::new(16, 256, 2, 1), 300),
        (MoeConfig::new(256, 8, 4, 2), 300),
    ]);
    for (config, tokens) in configs {
        for (select, retention) in modes() {
            for activations in Activations::ALL {
                for router_gradient in [RouterGradient::Estimated, RouterGradient::Exact] {
                    for dtype in [DType::F32, DType::BF16] {
                        let mut case = Case::new(config.clone(), tokens, select, retention);
                        case.dtype = dtype;
                        case.options.activations = activations;
                        case.options.router_gradient = router_gradient;
                        // The rest in turn, or the grid would grow fourfold.
                        case.options.aux_loss_coef = if spans.len() % 3 == 0 { 0.1 } else { 0.0 };
                        case.options.metric = if spans.len() % 5 == 0 { Metric::Full } else { Metric::Product };
                        spans.push(check(&mut compare, device, &case, 1)?);
                    }
                }
            }
        }
    }
    // So few tokens beside so many parameters that the norm of the gradient takes most.
    spans.push(check(&mut compare, device, &Case::new(MoeConfig::new(1024, 1024, 2, 1), 0, Selection::All, 1.0), 1)?);
    for span in [Span::Forward, Span::Backward, Span::Step] {
        compare.holds(&format!("{span:?} is the peak somewhere"), spans.contains(&span));
    }
    compare.finish(spans.len() * 3 + 3)
}

fn some() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, tokens) in [("softmax_shared_gate", 90), ("sigmoid_groups_bias_shared", 33), ("softmax", 64)] {
        for (select, retention) in [(Selection::All, 1.0), (Selection::Unbiased, 0.5), (Selection::TopQ, 0.1)] {
            for activations in Activations::ALL {
                let mut case = Case::new(kind(name), tokens, select, retention);
                case.options.activations = activations;
                cases.push(case);
            }
        }
    }
    cases
}

fn layers<B: Backend>(device: &Device<B>) -> Outcome {
    let mut compare = Comparison::new();
    let cases = some();
    for case in &cases {
        check(&mut compare, device, case, 3)?;
    }
    compare.finish(cases.len() * 3)
}

/// The predicted bytes, with the host's, are the smallest budget under which the steps run.
fn tight<B: Backend>(device: &Device<B>) -> Outcome {
    let mut compare = Comparison::new();
    let cases = some();
    for case in &cases {
        let seen = steps(case, &(device.make)(), 2).map_err(text)?;
        let needed = case.model(2, u64::MAX)?.rank(&case.load(seen.retained), u64::MAX).map_err(text)?.total();
        let enough = steps(case, &(device.budget)(needed + seen.host), 2);
        compare.holds(&format!("{}: {:?}", case.name(), enough.as_ref().err()), enough.is_ok());
        let less = steps(case, &(device.budget)(needed + seen.host - 1), 2);
        compare.holds(&format!("{}: a byte less", case.name()), matches!(less, Err(Error::OutOfMemory { .. })));
        // Planning says the same of the same budget.
        let loads = [case.load(seen.retained)];
        let fits = case.model(2, needed)?.largest_wave(&loads, loads[0].pairs).map_err(text)?;
        compare.equal(&format!("{}: one wave", case.name()), &[fits], &[loads[0].pairs]);
    }
    compare.finish(cases.len() * 3)
}
