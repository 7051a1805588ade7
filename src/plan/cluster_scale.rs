//! Machines slowed down: to another GEMM rate, and to a small model that stands for a real one.

use super::cluster::{ClusterSpec, Link};
use super::cost::{BACKWARD_WIDTHS, FORWARD_WIDTHS, PASS_ROWS};
use crate::config::MoeConfig;
use crate::{Error, Result};

/// A machine for a small model on which times keep the ratios that the real model has on the real machine; see
/// [`ClusterSpec::scaled_to_model`].
#[derive(Debug, Clone, PartialEq)]
pub struct ScaledCluster {
    /// The machine to plan the small model for.
    pub cluster: ClusterSpec,
    /// Seconds there for every second of the real model on the real machine.
    pub time_scale: f64,
    /// Tokens of a step there for every token of the real step: 1/g.
    pub token_scale: f64,
    /// What [`Setup::counter_scale`](super::Setup::counter_scale) has to be there: the ratio of token bytes in a step.
    pub counter_scale: f64,
}

impl ClusterSpec {
    /// The same machine slowed down, or sped up, to another GEMM rate in operations a second: every rate changes by the same factor and
    /// every latency by its inverse, so that all times change alike and their ratios stand. Memory stays as it is.
    ///
    /// # Errors
    /// [`Error::Argument`] for a rate that is not a finite number above 0, or takes another rate out of range.
    pub fn scaled_to(&self, gemm_flops: f64) -> Result<Self> {
        check_rate(gemm_flops)?;
        let slower = self.gemm_flops / gemm_flops;
        self.slowed(gemm_flops, slower, slower, slower)
    }

    /// The machine on which a `small` model with 1/g of the tokens, `g = I_real / I_small`, spends its time as a `real` model does on this
    /// one. `gemm_flops` are the operations a second that the small model's grouped GEMMs reach. Both models have the same experts, experts
    /// per token and compute type, and the small step 1/g of the pairs of every (source, expert).
    ///
    /// With `t = 6 H I / gemm_flops`, the time of a pair, every time is to be `time_scale = t_small / (g t_real)` of the real one:
    ///
    /// - **GEMMs**: 1/g of the pairs at `t_small` instead of `t_real`.
    /// - **Token rows**: 1/g of them, each `H_small / H_real` of the bytes. So links get `H_small / H_real * t_real / t_small`
    ///   of their rates.
    /// - **Weights, gradients and optimizer state**: as many experts, each `H_small I_small / (H_real I_real) = H_small / (H_real g)`
    ///   of the bytes, which is just what token rows come to: over the same links both keep their share. So do copies over the host link.
    /// - **Memory**: kernels read and write `16 I + 4 H` values a pair, both passes together where a and b are kept, so device
    ///   memory gets the ratio of these numbers in place of `H_small / H_real`. Where H / I is the same in both models, this is the links'
    ///   factor, and every pass by itself, and the reading of weights and gradient rows, keep their share too; where it is not, both passes
    ///   together do.
    /// - **Latencies** and the fixed cost of a wave: `time_scale` of their own.
    ///
    /// Two parts do not shrink with the model, since they depend on E, which stays. The gate takes `2 E` operations to `6 k I` of the
    /// experts: g times its share. (A shared expert keeps its share if its width is scaled like I.) The counters of selection would take
    /// `g H_real / H_small` times their share beyond latency, which `counter_scale` takes back.
    ///
    /// Ranks, nodes and bytes of memory stay; `dtype` of the models is not read.
    ///
    /// ```
    /// use lrmoe::MoeConfig;
    /// use lrmoe::plan::ClusterSpec;
    ///
    /// // 1/16 of the width and of the hidden size: 1/256 of the operations a pair, at 1/1000 of the rate.
    /// let (real, small) = (MoeConfig::new(4096, 1536, 128, 8), MoeConfig::new(256, 96, 128, 8));
    /// let machine = ClusterSpec::preset("8xh100")?;
    /// let scaled = machine.scaled_to_model(&real, &small, machine.gemm_flops / 1000.0)?;
    /// let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-12;
    /// // 1/16 of the pairs, so a step takes 1000 / (256 * 16) of its time.
    /// assert!(close(scaled.token_scale, 1.0 / 16.0) && close(scaled.time_scale, 1000.0 / 4096.0));
    /// // 1/16 of the rows with 1/16 of the bytes in that time.
    /// assert!(close(scaled.cluster.intra.bytes_per_s, machine.intra.bytes_per_s / 256.0 * 4096.0 / 1000.0));
    /// # Ok::<(), lrmoe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] for models that do not validate; [`Error::Argument`] where their experts or experts per token differ, for a rate
    /// that is not a finite number above 0, or one that takes another rate out of range.
    pub fn scaled_to_model(&self, real: &MoeConfig, small: &MoeConfig, gemm_flops: f64) -> Result<ScaledCluster> {
        self.validate()?;
        check_rate(gemm_flops)?;
        real.validate()?;
        small.validate()?;
        for (name, theirs, ours) in [
            ("num_experts", real.num_experts, small.num_experts),
            ("num_experts_per_tok", real.num_experts_per_tok, small.num_experts_per_tok),
        ] {
            if theirs != ours {
                return Err(Error::argument(format!("small.{name}"), ours, format!("{theirs}, as the real model has")));
            }
        }
        let g = real.moe_intermediate_size as f64 / small.moe_intermediate_size as f64;
        // t_small / t_real, by operations and by their rates.
        let pair = small.pair_flops()? as f64 / real.pair_flops()? as f64 * (self.gemm_flops / gemm_flops);
        let time_scale = pair / g;
        let bytes = small.hidden_size as f64 / real.hidden_size as f64;
        let kernel_bytes = kernel_values(small) / kernel_values(real);
        let cluster = self.slowed(gemm_flops, pair / bytes, pair / kernel_bytes, time_scale)?;
        Ok(ScaledCluster { cluster, time_scale, token_scale: 1.0 / g, counter_scale: bytes / g })
    }

    /// Links and host by one factor, device memory by another, latencies and launches by a third.
    fn slowed(&self, gemm_flops: f64, links: f64, memory: f64, latencies: f64) -> Result<Self> {
        let link = |link: Link| Link { bytes_per_s: link.bytes_per_s / links, latency_s: link.latency_s * latencies };
        let slowed = Self {
            gemm_flops,
            copy_bytes_per_s: self.copy_bytes_per_s / memory,
            intra: link(self.intra),
            inter: link(self.inter),
            host_bytes_per_s: self.host_bytes_per_s / links,
            launch_s: self.launch_s * latencies,
            ..self.clone()
        };
        slowed.validate()?;
        Ok(slowed)
    }
}

/// Values that kernels between the GEMMs read and write for a pair, both passes together where a and b are kept.
fn kernel_values(config: &MoeConfig) -> f64 {
    let (hidden, width) = (config.hidden_size as f64, config.moe_intermediate_size as f64);
    (FORWARD_WIDTHS + BACKWARD_WIDTHS) * width + 2.0 * PASS_ROWS * hidden
}

fn check_rate(gemm_flops: f64) -> Result<()> {
    if gemm_flops.is_finite() && gemm_flops > 0.0 {
        return Ok(());
    }
    Err(Error::argument("gemm_flops", gemm_flops, "a finite number > 0"))
}

#[cfg(test)]
#[path = "cluster_scale_tests.rs"]
mod tests;
