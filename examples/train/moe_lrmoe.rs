//! The MoE layer by lrmoe. The router's weight is the host's, so the layer starts from logits.

use lrmoe::{
    AdamW, AdamWConfig, CpuBackend, ForwardContext, LayerOptions, MoeConfig, MoeLayer, MoeWeights, PlanOptions,
    Retention, SavedForward, Selection, Tensor,
};

use crate::cli::{Retain, Select};
use crate::failure::Failure;
use crate::moe::{MoeBlock, MoeSpec, MoeStats};

/// One layer with its optimizer state.
pub(crate) struct LrmoeBlock {
    spec: MoeSpec,
    layer: MoeLayer<CpuBackend>,
    optimizer: AdamW<CpuBackend>,
    saved: Option<SavedForward<CpuBackend>>,
    stats: MoeStats,
}

impl LrmoeBlock {
    /// A layer with experts drawn from the seed.
    pub(crate) fn new(spec: &MoeSpec, backend: &CpuBackend) -> Result<Self, Failure> {
        let config = MoeConfig::new(spec.hidden, spec.intermediate, spec.experts, spec.top_k);
        let std_dev = 1.0 / (spec.hidden as f32).sqrt();
        let seed = spec.seed.wrapping_mul(1 << 16).wrapping_add(spec.layer as u64);
        let weights = MoeWeights { router: None, ..MoeWeights::init(&config, seed, std_dev)? };
        let retention = match spec.retain {
            Retain::Fraction(fraction) => Retention::Fraction(fraction),
            Retain::Noise(theta) => Retention::noise(theta),
        };
        let select = match spec.select {
            Select::All => Selection::All,
            Select::TopQ => Selection::TopQ,
            Select::Unbiased => Selection::Unbiased,
            Select::Mixed(certain) => Selection::Mixed { certain: certain as f32 },
        };
        let options = LayerOptions {
            select,
            plan: PlanOptions { retention, alpha: spec.alpha, ..PlanOptions::default() },
            aux_loss_coef: spec.aux_coef,
            ..LayerOptions::default()
        };
        let layer = MoeLayer::new(backend, config, weights, options)?;
        let adamw = AdamWConfig {
            beta1: spec.adamw.beta1 as f32,
            beta2: spec.adamw.beta2 as f32,
            eps: spec.adamw.eps as f32,
            decay_experts: spec.adamw.weight_decay as f32,
            ..AdamWConfig::default()
        };
        let optimizer = AdamW::new(&layer, adamw)?;
        Ok(Self { spec: *spec, layer, optimizer, saved: None, stats: MoeStats::default() })
    }

    fn tensor(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<CpuBackend>, Failure> {
        Ok(Tensor::from_f32(self.layer.backend(), values, rows, cols)?)
    }

    fn context(&self, step: u64) -> ForwardContext<'static> {
        ForwardContext { seed: self.spec.seed, step, layer: self.spec.layer as u32, ..ForwardContext::default() }
    }
}

impl MoeBlock for LrmoeBlock {
    fn forward(&mut self, x: &[f32], logits: &[f32], tokens: usize, step: u64) -> Result<Vec<f32>, Failure> {
        let x = self.tensor(x, tokens, self.spec.hidden)?;
        let logits = self.tensor(logits, tokens, self.spec.experts)?;
        let (y, saved) = self.layer.forward_with_logits(&x, &logits, &self.context(step))?;
        self.stats.aux_loss = saved.router_terms().map(lrmoe::RouterTerms::load_balancing);
        self.saved = Some(saved);
        Ok(y.to_f32(self.layer.backend())?)
    }

    fn backward(&mut self, dy: &[f32]) -> Result<(Vec<f32>, Vec<f32>), Failure> {
        let saved = self.saved.take().ok_or_else(|| Failure::run("backward without forward"))?;
        let dy = self.tensor(dy, dy.len() / self.spec.hidden, self.spec.hidden)?;
        let gradients = self.layer.backward(&saved, &dy)?;
        let scores = gradients.stats.scores.as_ref();
        self.stats = MoeStats {
            kept_score: scores.map(|s| s.kept_score_mass),
            eta: scores.map(|s| s.eta),
            ess: scores.map(|s| s.effective_sample_size),
            max_weight: scores.map(|s| s.max_pair_weight),
            nan_seen: Some(gradients.stats.nan_seen),
            aux_loss: self.stats.aux_loss,
            counts: gradients.stats.counts,
            quotas: gradients.stats.quotas,
            retained: gradients.stats.retained,
        };
        let backend = self.layer.backend();
        Ok((gradients.dx.to_f32(backend)?, gradients.d_logits.to_f32(backend)?))
    }

    fn evaluate(&mut self, x: &[f32], logits: &[f32], tokens: usize) -> Result<Vec<f32>, Failure> {
        let x = self.tensor(x, tokens, self.spec.hidden)?;
        let logits = self.tensor(logits, tokens, self.spec.experts)?;
        let y = self.layer.evaluate_with_logits(&x, &logits, &self.context(0))?;
        Ok(y.to_f32(self.layer.backend())?)
    }

    fn grad_norm_sq(&mut self) -> Result<f64, Failure> {
        Ok(self.layer.grad_norm_sq()?)
    }

    fn step(&mut self, lr: f64, grad_scale: f64) -> Result<(), Failure> {
        self.optimizer.step(&mut self.layer, lr as f32, grad_scale as f32, false)?;
        self.layer.zero_grad();
        Ok(())
    }

    fn stats(&self) -> &MoeStats {
        &self.stats
    }
}
