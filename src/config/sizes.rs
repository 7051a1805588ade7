//! Parameter and work counts of a config.

use super::MoeConfig;
use crate::error::{Error, Result};

/// A field that takes part in a product.
type Factor = (&'static str, usize);

/// `coefficient` times all `factors`.
fn product(what: &str, coefficient: u64, factors: &[Factor]) -> Result<u64> {
    factors
        .iter()
        .try_fold(coefficient, |acc, &(_, n)| acc.checked_mul(u64::try_from(n).ok()?))
        .ok_or_else(|| overflow(what, coefficient, factors))
}

fn sum(what: &str, terms: &[u64]) -> Result<u64> {
    terms.iter().try_fold(0_u64, |acc, &term| acc.checked_add(term)).ok_or_else(|| Error::Overflow {
        what: what.to_owned(),
        detail: format!("the sum of {terms:?} passes {}", u64::MAX),
    })
}

fn overflow(what: &str, coefficient: u64, factors: &[Factor]) -> Error {
    let factors: String = factors.iter().map(|(name, n)| format!(" * {name} ({n})")).collect();
    Error::Overflow { what: what.to_owned(), detail: format!("{coefficient}{factors} passes {}", u64::MAX) }
}

/// Counts of parameters (elements) and floating-point operations. Each fails with [`Error::Overflow`] where the count
/// passes u64, which no config that [`validate`](MoeConfig::validate) accepts does.
impl MoeConfig {
    /// Parameters of one routed expert: gate and up `[I, H]`, down `[H, I]`, so 3 H I.
    pub fn expert_parameters(&self) -> Result<u64> {
        product("expert_parameters", 3, &[self.hidden(), self.width()])
    }

    /// Parameters of the shared experts of one layer with their gate `[1, H]`; 0 where there are none.
    pub fn shared_expert_parameters(&self) -> Result<u64> {
        let what = "shared_expert_parameters";
        let shared = ("shared_expert_intermediate_size", self.shared_expert_intermediate_size);
        let gate = product(what, u64::from(self.shared_expert_gate), &[self.hidden()])?;
        sum(what, &[product(what, 3, &[self.hidden(), shared])?, gate])
    }

    /// Parameters of one layer's router weight `[E, H]`. The correction bias is a buffer, not a parameter.
    pub fn router_parameters(&self) -> Result<u64> {
        product("router_parameters", 1, &[self.experts(), self.hidden()])
    }

    /// Parameters of one MoE layer: routed experts, shared experts and router.
    pub fn layer_parameters(&self) -> Result<u64> {
        let routed = product("layer_parameters", 3, &[self.experts(), self.hidden(), self.width()])?;
        sum("layer_parameters", &[routed, self.shared_expert_parameters()?, self.router_parameters()?])
    }

    /// Parameters of the routed experts of all MoE layers.
    pub fn routed_parameters(&self) -> Result<u64> {
        let layers = ("MoE layers", self.moe_layers().count());
        product("routed_parameters", 3, &[layers, self.experts(), self.hidden(), self.width()])
    }

    /// Floating-point operations (a multiply and an add count 2) of one token in one routed expert, forward: 6 H I.
    /// Backward costs twice that.
    pub fn pair_flops(&self) -> Result<u64> {
        product("pair_flops", 6, &[self.hidden(), self.width()])
    }

    const fn hidden(&self) -> Factor {
        ("hidden_size", self.hidden_size)
    }

    const fn width(&self) -> Factor {
        ("moe_intermediate_size", self.moe_intermediate_size)
    }

    const fn experts(&self) -> Factor {
        ("num_experts", self.num_experts)
    }
}
