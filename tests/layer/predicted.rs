//! The memory that planning predicts for one rank, against the accountant: equal in every category, and the exact limit of the budgets
//! under which a layer trains.

use libtest_mimic::Trial;
use lrmoe::kernel::Metric;
use lrmoe::memory::{Category, CategoryBytes, size_class};
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
        trial(device, "predicted::masks_need_no_more", masks),
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
    /// Global token ids and a mask that leaves out every token that this divides; 0 for neither.
    mask: usize,
}

impl Case {
    fn new(config: MoeConfig, tokens: usize, select: Selection, retention: f64) -> Self {
        let mut options = LayerOptions { select, ..LayerOptions::default() };
        options.plan.retention = Retention::Fraction(retention);
        options.plan.q_min = 2;
        Self { config, dtype: DType::F32, tokens, options, mask: 0 }
    }

    fn name(&self) -> String {
        let Self { config, dtype, tokens, options, mask } = self;
        let LayerOptions { select, activations, router_gradient, metric, aux_loss_coef, plan, .. } = options;
        let sizes = [config.hidden_size, config.moe_intermediate_size, config.num_experts, config.num_experts_per_tok];
        let rest = format!("{activations:?}, {router_gradient:?}, {metric:?}, aux {aux_loss_coef}, mask {mask}");
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
            .ordered(self.options.select == Selection::Systematic)
            .full_metric(self.options.metric == Metric::Full)
            .router_losses(self.options.aux_loss_coef > 0.0)
            .masked(self.mask > 0)
            .token_ids(self.mask > 0))
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

/// What the accountant saw of the last of some steps, without the host's own x and dy.
struct Seen {
    /// At the peak of forward, of backward, and of what follows up to the optimizer's step.
    at_peak: [CategoryBytes; 3],
    /// Asked for between forward and backward.
    waiting: u64,
    /// Pairs retained.
    retained: u64,
    /// Bytes of the host.
    host: u64,
}

impl Seen {
    fn highest(&self) -> u64 {
        self.at_peak.iter().map(|bytes| bytes.iter().sum()).max().unwrap_or(0)
    }
}

/// Two steps of `layers` equal layers, each with its optimizer.
fn steps<B: Backend>(case: &Case, backend: &B, layers: usize) -> Result<Seen, Error> {
    let mut model = Vec::new();
    for _ in 0..layers {
        let layer = case.layer(backend)?;
        let adamw = AdamW::new(&layer, AdamWConfig::default())?;
        model.push((layer, adamw));
    }
    let account = backend.memory();
    let before = account.report();
    let (x, dy) = (case.rows(backend, 1)?, case.rows(backend, 2)?);
    let after = account.report();
    let (host, host_used) = (after.reserved - before.reserved, after.used - before.used);
    let peak = || {
        let mut at_peak = account.report().at_peak;
        at_peak[Category::TokenBuffers as usize] -= host;
        account.reset_peaks();
        at_peak
    };
    let mask: Vec<bool> = (1..=case.tokens).map(|t| case.mask == 0 || !t.is_multiple_of(case.mask)).collect();
    let ids: Vec<u64> = (0..case.tokens as u64).rev().collect();
    let (mask, token_ids) = if case.mask > 0 { (Some(mask.as_slice()), Some(ids.as_slice())) } else { (None, None) };
    let mut seen = Seen { at_peak: [[0; 8]; 3], waiting: 0, retained: 0, host };
    for step in 0..2 {
        let context = ForwardContext { step, mask, token_ids, ..ForwardContext::default() };
        let mut saved = Vec::new();
        account.reset_peaks();
        for (layer, _) in &model {
            let (_, kept) = layer.forward(&x, &context)?;
            seen.retained = kept.plan().retained();
            saved.push(kept);
        }
        seen.at_peak[0] = peak();
        seen.waiting = account.report().used - host_used;
        for (layer, _) in model.iter_mut().rev() {
            layer.zero_grad();
            if let Some(kept) = saved.pop() {
                layer.backward(&kept, &dy)?;
            }
        }
        seen.at_peak[1] = peak();
        for (layer, adamw) in &mut model {
            layer.grad_norm_sq()?;
            adamw.step(layer, 1e-3, 1.0, false)?;
        }
        seen.at_peak[2] = peak();
    }
    Ok(seen)
}

/// Prediction and account of one case; which of the three moments was the peak.
fn check<B: Backend>(
    compare: &mut Comparison,
    device: &Device<B>,
    case: &Case,
    layers: usize,
) -> Result<usize, String> {
    let seen = steps(case, &(device.make)(), layers).map_err(text)?;
    let (model, load) = (case.model(layers, u64::MAX)?, case.load(seen.retained));
    let what = format!("{layers} layers, {}", case.name());
    let buffers = model.buffers(&load, u64::MAX).map_err(text)?;
    let reserved = |spans: &[Span], times: u64| -> CategoryBytes {
        let mut sum = [0; 8];
        for buffer in buffers.iter().filter(|buffer| spans.contains(&buffer.span)) {
            let rounded = size_class(buffer.bytes).unwrap_or(u64::MAX);
            sum[buffer.category as usize] += times * if buffer.category.long_lived() { buffer.bytes } else { rounded };
        }
        sum
    };
    let moments = [
        ([Span::Layer, Span::Saved].as_slice(), Span::Forward),
        (&[Span::Layer, Span::Saved], Span::Backward),
        (&[Span::Layer], Span::Step),
    ];
    let total = |bytes: &CategoryBytes| bytes.iter().sum::<u64>();
    let mut peak = 0;
    let mut at_peak = seen.at_peak;
    for (moment, (resting, span)) in moments.into_iter().enumerate() {
        let mut want = reserved(resting, layers as u64);
        want.iter_mut().zip(reserved(&[span], 1)).for_each(|(sum, bytes)| *sum += bytes);
        at_peak[moment] = without_workspace(device, &at_peak[moment], &want);
        compare.equal(&format!("{what}: reserved at the peak of {span:?}"), &at_peak[moment], &want);
        if total(&at_peak[moment]) > total(&at_peak[peak]) {
            peak = moment;
        }
    }
    let predicted = model.rank(&load, u64::MAX).map_err(text)?;
    compare.equal(&format!("{what}: reserved at the peak"), &predicted.reserved, &at_peak[peak]);
    // Waves of exactly the pairs there are hold as much.
    let exactly = model.rank(&load, load.pairs).map_err(text)?;
    compare.holds(&format!("{what}: a wave of all pairs"), exactly == predicted);
    let waiting = buffers.iter().filter(|b| [Span::Layer, Span::Saved].contains(&b.span)).map(|b| b.bytes).sum::<u64>();
    compare.equal(&format!("{what}: asked for between the passes"), &[layers as u64 * waiting], &[seen.waiting]);
    Ok(peak)
}

/// The bytes of a moment without what kernels of the device need for themselves, which no plan knows: scratch beyond what was
/// predicted, if there is any.
fn without_workspace<B>(device: &Device<B>, got: &CategoryBytes, want: &CategoryBytes) -> CategoryBytes {
    let scratch = Category::Scratch as usize;
    let mut got = *got;
    if device.workspace {
        got[scratch] = got[scratch].min(want[scratch]);
    }
    got
}

fn modes() -> Vec<(Selection, f64)> {
    vec![(Selection::All, 1.0), (Selection::Systematic, 1.0), (Selection::Systematic, 0.5), (Selection::TopQ, 0.1)]
}

/// Every kind of router and shared expert in every mode, and sizes at the edge.
fn exact<B: Backend>(device: &Device<B>) -> Outcome {
    let mut compare = Comparison::new();
    let mut peaks = Vec::new();
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
                        case.options.aux_loss_coef = if peaks.len() % 3 == 0 { 0.1 } else { 0.0 };
                        case.options.metric = if peaks.len() % 5 == 0 { Metric::Full } else { Metric::Product };
                        peaks.push(check(&mut compare, device, &case, 1)?);
                    }
                }
            }
        }
    }
    // So few tokens beside so many parameters that the norm of the gradient takes most.
    peaks.push(check(&mut compare, device, &Case::new(MoeConfig::new(1024, 1024, 2, 1), 0, Selection::All, 1.0), 1)?);
    for moment in 0..3 {
        compare.holds(&format!("moment {moment} is the peak somewhere"), peaks.contains(&moment));
    }
    compare.finish(peaks.len() * 6 + 3)
}

fn some() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, tokens) in [("softmax_shared_gate", 90), ("sigmoid_groups_bias_shared", 33), ("softmax", 64)] {
        for (select, retention) in [(Selection::All, 1.0), (Selection::Systematic, 0.5), (Selection::Unbiased, 0.1)] {
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
    compare.finish(cases.len() * 6)
}

/// The predicted bytes, with the host's, are the smallest budget under which the steps run.
fn tight<B: Backend>(device: &Device<B>) -> Outcome {
    let mut compare = Comparison::new();
    let cases = some();
    for case in &cases {
        let seen = steps(case, &(device.make)(), 2).map_err(text)?;
        let needed = case.model(2, u64::MAX)?.rank(&case.load(seen.retained), u64::MAX).map_err(text)?.total();
        let highest = if device.workspace { seen.highest() } else { needed };
        let enough = steps(case, &(device.budget)(highest + seen.host), 2);
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

/// A mask that masks nothing is predicted to the byte; one that does needs no more.
fn masks<B: Backend>(device: &Device<B>) -> Outcome {
    let mut compare = Comparison::new();
    let cases = some();
    for case in &cases {
        check(&mut compare, device, &Case { mask: case.tokens + 1, ..case.clone() }, 2)?;
        let masked = Case { mask: 3, ..case.clone() };
        let seen = steps(&masked, &(device.make)(), 2).map_err(text)?;
        let predicted = masked.model(2, u64::MAX)?.rank(&case.load(seen.retained), u64::MAX).map_err(text)?;
        for got in &seen.at_peak {
            let got = without_workspace(device, got, &predicted.reserved);
            let room = predicted.total().checked_sub(got.iter().sum());
            compare.holds(&format!("{}: {room:?} to spare", masked.name()), room.is_some());
        }
    }
    compare.finish(cases.len() * 9)
}
