//! Which configs can exist.

use super::MoeConfig;
use crate::error::{Error, Result};

/// Largest size of one dimension: kernels index rows and columns with 32 bits, signed on some devices.
pub(super) const MAX_SIZE: usize = i32::MAX as usize;

/// Deeper than any published model by far; it bounds every loop over layers.
const MAX_LAYERS: usize = 4096;

/// Bytes of weight, gradient and AdamW state per parameter when training in mixed precision.
const TRAINING_BYTES: u128 = 16;

/// How a file spells the fields whose name differs between writers; everything else keeps its name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spelling {
    pub(super) num_experts: &'static str,
    pub(super) moe_intermediate_size: &'static str,
}

impl Spelling {
    const FIELDS: Self = Self { num_experts: "num_experts", moe_intermediate_size: "moe_intermediate_size" };
}

impl MoeConfig {
    /// Checks that such a block can exist and that all its sizes can be computed with.
    ///
    /// # Errors
    /// [`Error::Config`] naming the first offending field, its value and what is allowed: a zero or absurdly large size,
    /// k above E or above the experts of the allowed groups, groups that do not divide E or hold fewer than two
    /// experts, a scaling factor that is not a positive finite f32, a shared gate without shared experts, layers that
    /// do not exist, no MoE layer at all, a dense layer of unknown width, or weights whose training state would pass
    /// 2^63 bytes.
    pub fn validate(&self) -> Result<()> {
        self.validate_as(&Spelling::FIELDS)
    }

    /// [`validate`](Self::validate) with the field names of the file the config came from.
    pub(super) fn validate_as(&self, names: &Spelling) -> Result<()> {
        self.check_sizes(names)?;
        self.check_groups(names)?;
        self.check_factors()?;
        self.check_layers()?;
        self.check_footprint(names)
    }

    fn check_sizes(&self, names: &Spelling) -> Result<()> {
        in_range("hidden_size", self.hidden_size, 1, MAX_SIZE)?;
        in_range(names.moe_intermediate_size, self.moe_intermediate_size, 1, MAX_SIZE)?;
        in_range(names.num_experts, self.num_experts, 1, MAX_SIZE)?;
        in_range("shared_expert_intermediate_size", self.shared_expert_intermediate_size, 0, MAX_SIZE)?;
        if let Some(size) = self.intermediate_size {
            in_range("intermediate_size", size, 1, MAX_SIZE)?;
        }
        if let Some(size) = self.vocab_size {
            in_range("vocab_size", size, 1, MAX_SIZE)?;
        }
        if !(1..=self.num_experts).contains(&self.num_experts_per_tok) {
            let allowed = format!("1..={}, the value of {}", self.num_experts, names.num_experts);
            return Err(Error::config("num_experts_per_tok", self.num_experts_per_tok, allowed));
        }
        if self.shared_expert_gate && self.shared_expert_intermediate_size == 0 {
            let allowed = "false where shared_expert_intermediate_size is 0: there is no shared output to gate";
            return Err(Error::config("shared_expert_gate", true, allowed));
        }
        Ok(())
    }

    fn check_groups(&self, names: &Spelling) -> Result<()> {
        let Some(group) = self
            .num_experts
            .checked_div(self.n_group)
            .filter(|g| g.checked_mul(self.n_group) == Some(self.num_experts))
        else {
            let allowed = format!("a divisor of {} ({})", names.num_experts, self.num_experts);
            return Err(Error::config("n_group", self.n_group, allowed));
        };
        if self.n_group > 1 && group < 2 {
            let allowed = format!(
                "1, or groups of at least 2 of the {} experts ({}), since a group's score is the sum of its two best",
                self.num_experts, names.num_experts
            );
            return Err(Error::config("n_group", self.n_group, allowed));
        }
        if !(1..=self.n_group).contains(&self.topk_group) {
            return Err(Error::config(
                "topk_group",
                self.topk_group,
                format!("1..={}, the value of n_group", self.n_group),
            ));
        }
        // Cannot overflow: topk_group <= n_group and group * n_group is E.
        let reachable = self.topk_group.saturating_mul(group);
        if self.num_experts_per_tok > reachable {
            let allowed = format!("1..={reachable}: topk_group ({}) groups hold {group} experts each", self.topk_group);
            return Err(Error::config("num_experts_per_tok", self.num_experts_per_tok, allowed));
        }
        Ok(())
    }

    /// Kernels compute in f32, so what counts is the value there.
    fn check_factors(&self) -> Result<()> {
        let scaling = self.routed_scaling_factor as f32;
        if !(scaling.is_finite() && scaling >= f32::MIN_POSITIVE) {
            let allowed = "a finite number above 0, normal as f32";
            return Err(Error::config("routed_scaling_factor", self.routed_scaling_factor, allowed));
        }
        let coef = self.router_aux_loss_coef;
        if !((coef as f32).is_finite() && coef >= 0.0) {
            return Err(Error::config("router_aux_loss_coef", coef, "a finite number, 0 or above"));
        }
        Ok(())
    }

    fn check_layers(&self) -> Result<()> {
        let layers = self.num_hidden_layers;
        in_range("num_hidden_layers", layers, 1, MAX_LAYERS)?;
        if self.first_k_dense_replace >= layers {
            let allowed = format!("0..{layers}: of num_hidden_layers ({layers}), one must be an MoE layer");
            return Err(Error::config("first_k_dense_replace", self.first_k_dense_replace, allowed));
        }
        in_range("decoder_sparse_step", self.decoder_sparse_step, 1, layers)?;
        if let Some(&layer) = self.mlp_only_layers.iter().find(|&&layer| layer >= layers) {
            let allowed = format!("entries in 0..{layers}, the value of num_hidden_layers");
            return Err(Error::config("mlp_only_layers", format!("a list with {layer}"), allowed));
        }
        let moe_layers = self.moe_layers().count();
        if moe_layers == 0 {
            let value = format!("{:?}", self.mlp_only_layers);
            let allowed = format!(
                "a list that leaves an MoE layer among num_hidden_layers ({layers}), first_k_dense_replace ({}) and \
                 decoder_sparse_step ({})",
                self.first_k_dense_replace, self.decoder_sparse_step
            );
            return Err(Error::config("mlp_only_layers", value, allowed));
        }
        if moe_layers < layers && self.intermediate_size.is_none() {
            let allowed = format!("the width of the {} dense layers", layers - moe_layers);
            return Err(Error::config("intermediate_size", "missing", allowed));
        }
        Ok(())
    }

    /// Bytes of weights and their training state are added up in 64 bits everywhere else.
    fn check_footprint(&self, names: &Spelling) -> Result<()> {
        let layers = self.moe_layers().count() as u128;
        let (hidden, width, experts) = (self.hidden_size, self.moe_intermediate_size, self.num_experts);
        // At most 2^4 * 2^12 * 2^31 * (3 * 2^31 + 2) * 2^31 by the checks above, far below 2^128.
        let columns = 3 * (experts as u128 * width as u128 + self.shared_expert_intermediate_size as u128);
        let other = experts as u128 + u128::from(self.shared_expert_gate);
        let bytes = TRAINING_BYTES * layers * hidden as u128 * (columns + other);
        if bytes <= i64::MAX as u128 {
            return Ok(());
        }
        let sizes = [("hidden_size", hidden), (names.moe_intermediate_size, width), (names.num_experts, experts)];
        let (field, value) = sizes.into_iter().fold(sizes[0], |max, size| if size.1 > max.1 { size } else { max });
        let allowed = format!(
            "sizes whose weights and optimizer state ({bytes} bytes for {layers} layers of {experts} experts of 3 * \
             {hidden} * {width}) stay below 2^63 bytes"
        );
        Err(Error::config(field, value, allowed))
    }
}

fn in_range(field: &str, value: usize, min: usize, max: usize) -> Result<()> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(Error::config(field, value, format!("{min}..={max}"))) }
}
