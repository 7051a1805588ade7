//! The MoE layer by lrmoe. The router's weight is the host's, so the layer starts from logits.

use std::sync::PoisonError;

use lrmoe::{AdamW, AdamWConfig, Backend, ForwardContext, MoeLayer, MoeWeights, SavedForward, Tensor};

use crate::failure::Failure;
use crate::moe::{MoeBlock, MoeSpec, MoeStats, SharedPlanner};

/// One layer with its optimizer state.
pub(crate) struct LrmoeBlock<B: Backend> {
    spec: MoeSpec,
    layer: MoeLayer<B>,
    optimizer: AdamW<B>,
    planner: Option<SharedPlanner>,
    saved: Option<SavedForward<B>>,
    stats: MoeStats,
}

impl<B: Backend> LrmoeBlock<B> {
    /// A layer with experts drawn from the seed.
    pub(crate) fn new(spec: &MoeSpec, backend: &B) -> Result<Self, Failure> {
        let config = spec.config.clone();
        let std_dev = 1.0 / (config.hidden_size as f32).sqrt();
        let seed = spec.seed.wrapping_mul(1 << 16).wrapping_add(spec.layer as u64);
        let weights = MoeWeights { router: None, ..MoeWeights::init(&config, seed, std_dev)? };
        let layer = MoeLayer::new(backend, config, weights, spec.options.clone())?;
        let adamw = AdamWConfig {
            beta1: spec.adamw.beta1 as f32,
            beta2: spec.adamw.beta2 as f32,
            eps: spec.adamw.eps as f32,
            decay_experts: spec.adamw.weight_decay as f32,
            ..AdamWConfig::default()
        };
        let optimizer = AdamW::new(&layer, adamw)?;
        Ok(Self { spec: spec.clone(), layer, optimizer, planner: None, saved: None, stats: MoeStats::default() })
    }

    fn tensor(&self, values: &[f32], rows: usize, cols: usize) -> Result<Tensor<B>, Failure> {
        Ok(Tensor::from_f32(self.layer.backend(), values, rows, cols)?)
    }

    fn inputs(&self, x: &[f32], logits: &[f32], tokens: usize) -> Result<(Tensor<B>, Tensor<B>), Failure> {
        let config = &self.spec.config;
        Ok((self.tensor(x, tokens, config.hidden_size)?, self.tensor(logits, tokens, config.num_experts)?))
    }

    fn context(&self, step: u64) -> ForwardContext<'static> {
        ForwardContext { seed: self.spec.seed, step, layer: self.spec.layer as u32, ..ForwardContext::default() }
    }
}

impl<B: Backend> MoeBlock for LrmoeBlock<B> {
    fn forward(&mut self, x: &[f32], logits: &[f32], tokens: usize, step: u64) -> Result<Vec<f32>, Failure> {
        let (x, logits) = self.inputs(x, logits, tokens)?;
        let context = self.context(step);
        let (y, saved) = match &self.planner {
            None => self.layer.forward_with_logits(&x, &logits, &context)?,
            Some(planner) => {
                let mut planner = planner.lock().unwrap_or_else(PoisonError::into_inner);
                self.layer.forward_scheduled(&x, Some(&logits), &context, |call| planner.schedule(step, call))?
            }
        };
        self.stats.aux_loss = saved.router_terms().map(lrmoe::RouterTerms::load_balancing);
        self.saved = Some(saved);
        Ok(y.to_f32(self.layer.backend())?)
    }

    fn backward(&mut self, dy: &[f32]) -> Result<(Vec<f32>, Vec<f32>), Failure> {
        let saved = self.saved.take().ok_or_else(|| Failure::run("backward without forward"))?;
        let hidden = self.spec.config.hidden_size;
        let dy = self.tensor(dy, dy.len() / hidden, hidden)?;
        let gradients = self.layer.backward(&saved, &dy)?;
        if let Some(planner) = &self.planner {
            let pairs = gradients.retained_pairs(self.layer.backend())?;
            planner.lock().unwrap_or_else(PoisonError::into_inner).retained(&pairs)?;
        }
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
        let (x, logits) = self.inputs(x, logits, tokens)?;
        let y = self.layer.evaluate_with_logits(&x, &logits, &self.context(0))?;
        Ok(y.to_f32(self.layer.backend())?)
    }

    fn grad_norm_sq(&mut self) -> Result<f64, Failure> {
        Ok(self.layer.grad_norm_sq()?)
    }

    fn step(&mut self, lr: f64, grad_scale: f64) -> Result<(), Failure> {
        self.optimizer.step(&mut self.layer, lr as f32, grad_scale as f32, false)?;
        self.layer.zero_grad();
        if self.spec.config.correction_bias {
            let counts: Vec<u64> = self.stats.counts.iter().map(|&n| u64::from(n)).collect();
            self.layer.update_correction_bias(&counts, self.spec.bias_step)?;
        }
        Ok(())
    }

    fn plan_with(&mut self, planner: SharedPlanner) {
        self.planner = Some(planner);
    }

    fn stats(&self) -> &MoeStats {
        &self.stats
    }
}
