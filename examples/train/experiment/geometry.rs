//! The small models that stand for the published ones.

use lrmoe::plan::{Activations, ClusterSpec, MemoryModel, Ownership, RankLoad, Setup};
use lrmoe::{MoeConfig, PlanOptions};

use super::cell::{Key, NETWORKS, Protocol};
use super::memory::Real;
use super::options::{Balancing, Budget};
use crate::cli::Options;
use crate::corpus::Corpus;
use crate::failure::Failure;

/// Expert slots of symi over experts. From 1 to 2, more were faster on a seed that is not reported, by 3 to 4 % in all. EPLB, whose
/// replicas cost optimizer traffic in every step, was fastest, or within 2 %, with as many slots as experts.
const SYMI_SLOTS: usize = 2;
/// A budget that nothing passes.
pub(crate) const NO_LIMIT: u64 = 1 << 50;
/// Operations a second that plans take a rank's GEMMs to do. Any number does: every rate and latency of a scaled machine goes with it,
/// so that plans stay the same, and modelled times are turned into those of the processor afterwards.
const NOMINAL_FLOPS: f64 = 1e10;

/// A published model, perhaps with other experts, and the small one that keeps its routing and proportions.
#[derive(Debug, Clone)]
pub(crate) struct Geometry {
    pub(crate) real: MoeConfig,
    pub(crate) small: MoeConfig,
    /// Coefficient of the load balancing loss.
    pub(crate) aux_coef: f64,
    /// Step of the correction bias, where the router has one.
    pub(crate) bias_step: f32,
}

/// What DeepSeek-V3 (arXiv 2412.19437) moves an expert's bias by in a step; GLM-4.5 takes the same (arXiv 2508.06471).
const BIAS_STEP: f32 = 1e-3;

impl Geometry {
    /// The model `preset` at the options' width: experts keep their width relative to the model's, to the nearest multiple of four.
    pub(crate) fn new(preset: &str, balancing: Balancing, options: &Options) -> Result<Self, Failure> {
        let published = MoeConfig::preset(preset)?;
        let real = MoeConfig {
            num_experts: options.experts.unwrap_or(published.num_experts),
            num_experts_per_tok: options.top_k.unwrap_or(published.num_experts_per_tok),
            ..published
        };
        let of_four = |width: usize| (width * options.hidden + 2 * real.hidden_size) / (4 * real.hidden_size);
        let scaled = |width: usize| 4 * of_four(width).max(1);
        let small = MoeConfig {
            hidden_size: options.hidden,
            moe_intermediate_size: scaled(real.moe_intermediate_size),
            shared_expert_intermediate_size: match real.shared_expert_intermediate_size {
                0 => 0,
                width => scaled(width),
            },
            num_hidden_layers: options.layers,
            first_k_dense_replace: 0,
            intermediate_size: None,
            ..real.clone()
        };
        small.validate().map_err(|e| Failure::usage(format!("--experts, --top-k: {e}")))?;
        let (loss, bias) = match balancing {
            Balancing::Usual => (1.0, 1.0),
            Balancing::Weak => (0.01, 0.1),
        };
        let bias_step = if real.correction_bias { BIAS_STEP * bias } else { 0.0 };
        Ok(Self { aux_coef: real.router_aux_loss_coef * loss, bias_step, small, real })
    }

    /// Everything that is fixed before a cell runs, the machine included.
    pub(crate) fn protocol(&self, options: &Options, corpus: &Corpus, key: &Key) -> Result<Protocol, Failure> {
        let args = &options.experiment;
        let real = ClusterSpec::preset(&args.cluster)?;
        let ranks = args.ranks.map_or(real.ranks, usize::from);
        let ranks_per_node = args.ranks_per_node.map_or(real.ranks_per_node, usize::from);
        if key.tokens < ranks {
            return Err(Failure::usage(format!(
                "--ranks is {ranks}; allowed: at most the {} tokens of a step",
                key.tokens
            )));
        }
        let real = real.with_ranks(ranks, ranks_per_node);
        let scaled = real.scaled_to_model(&self.real, &self.small, NOMINAL_FLOPS)?;
        let plan = options.plan_options();
        let small = &self.small;
        let [even, real_even] = [
            (small, key.tokens.div_ceil(ranks) as f64),
            (&self.real, key.tokens.div_ceil(ranks) as f64 / scaled.token_scale),
        ]
        .map(|(config, tokens)| even_bytes(config, self.real_layers(), &scaled.cluster, tokens));
        let (even, real_even) = (even?, real_even?);
        let (budget, small_budget) = match args.budget {
            None => (None, NO_LIMIT),
            Some(Budget::Factor(factor)) => (Some((factor * real_even) as u64), (factor * even) as u64),
            Some(Budget::Bytes(bytes)) => (Some(bytes), (bytes as f64 / real_even * even) as u64),
        };
        Ok(Protocol {
            ranks,
            ranks_per_node,
            cluster: args.cluster.clone(),
            scaled: ClusterSpec { bytes_per_rank: small_budget, host_reserved_bytes: 0, ..scaled.cluster },
            token_scale: scaled.token_scale,
            time_scale: scaled.time_scale,
            counter_scale: scaled.counter_scale,
            budget,
            real_layers: self.real_layers(),
            symi_slots: SYMI_SLOTS * small.num_experts.div_ceil(ranks),
            eplb_slots: small.num_experts.div_ceil(ranks),
            steps: options.steps,
            layers: options.layers,
            hidden: small.hidden_size,
            intermediate: small.moe_intermediate_size,
            experts: small.num_experts,
            top_k: small.num_experts_per_tok,
            policies: args.policy.to_string(),
            activations: args.activations.modes().iter().map(|mode| mode.name()).collect::<Vec<_>>().join(","),
            select: options.select.to_string(),
            retain: options.retain.to_string(),
            alpha: plan.alpha,
            slack: plan.slack,
            q_min: plan.q_min,
            smoothing: plan.smoothing,
            score_floor: f64::from(options.score_floor),
            time_every: args.time_every,
            corpus: format!("{:016x}", corpus.checksum),
        })
    }

    fn real_layers(&self) -> usize {
        self.real.moe_layers().count()
    }

    /// What a policy plans for, on each of [`NETWORKS`].
    pub(crate) fn setups(
        &self,
        protocol: &Protocol,
        plan: PlanOptions,
        activations: Activations,
    ) -> Result<[Setup; 3], Failure> {
        let mut setup = Setup::new(self.small.clone(), protocol.scaled.clone())?;
        setup.options = plan;
        // The budget is that of the real model, which has so many.
        setup.layers = protocol.real_layers;
        setup.activations = Some(activations);
        setup.counter_scale = protocol.counter_scale;
        Ok(NETWORKS.map(|factor| {
            let mut setup = setup.clone();
            setup.cluster.intra.bytes_per_s *= factor;
            setup.cluster.inter.bytes_per_s *= factor;
            setup
        }))
    }

    /// The model that the small one stands for, without a limit on its memory.
    pub(crate) fn real(
        &self,
        protocol: &Protocol,
        plan: PlanOptions,
        activations: Activations,
    ) -> Result<Real, Failure> {
        let Protocol { ranks, ranks_per_node, token_scale, .. } = *protocol;
        let cluster = ClusterSpec::preset(&protocol.cluster)?.with_ranks(ranks, ranks_per_node);
        let mut setup = Setup::new(self.real.clone(), ClusterSpec { bytes_per_rank: NO_LIMIT, ..cluster })?;
        setup.options = plan;
        setup.activations = Some(activations);
        Ok(Real { setup, tokens: (1.0 / token_scale).round().max(1.0) as u64 })
    }
}

/// Bytes of a rank where every rank has its even share of experts and of pairs, nothing is replicated, and everything is kept.
fn even_bytes(config: &MoeConfig, layers: usize, cluster: &ClusterSpec, tokens: f64) -> Result<f64, Failure> {
    let mut setup = Setup::new(config.clone(), cluster.clone())?;
    setup.layers = layers;
    let tokens = tokens.round() as u64;
    let pairs = tokens * config.num_experts_per_tok as u64;
    let load = RankLoad {
        tokens,
        pairs,
        owned: config.num_experts.div_ceil(cluster.ranks) as u64,
        replicas: 0,
        forward_rows: pairs,
        backward_rows: pairs,
        retained: pairs,
        drops: false,
    };
    let model = MemoryModel::new(&setup, Ownership::Home, Activations::Stash)?.scored(false);
    Ok(model.rank(&load, u64::MAX)?.total() as f64)
}
