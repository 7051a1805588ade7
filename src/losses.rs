//! Router losses: load balancing as Hugging Face computes it, and the z-loss.

use crate::{Error, Result};

/// What the router losses need of one or more layers, from the tokens that took part.
///
/// Terms add up: over the ranks or micro-batches of one layer they give that layer's loss over all tokens; over layers
/// they give the loss of Hugging Face's `load_balancing_loss_func`, which joins the logits of all layers. The covered
/// tokens are counted, so that a reader can tell the two apart.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterTerms {
    /// `[E]`: pairs routed to each expert.
    pub counts: Vec<u64>,
    /// `[E]`: sum over tokens of the softmax probability of each expert.
    pub probability: Vec<f64>,
    /// Sum over tokens of `logsumexp(logits)^2`.
    pub z: f64,
    /// Tokens that took part, each layer's counted.
    pub tokens: u64,
}

impl RouterTerms {
    /// Adds terms up.
    ///
    /// # Errors
    /// [`Error::Shape`] for none, or for different numbers of experts; [`Error::Overflow`] where a count passes 64 bits.
    pub fn combine<'a>(terms: impl IntoIterator<Item = &'a Self>) -> Result<Self> {
        let mut terms = terms.into_iter();
        let mut all = terms.next().cloned().ok_or_else(|| Error::shape("router terms", "none", "one or more"))?;
        all.check_experts(all.counts.len())?;
        for term in terms {
            term.check_experts(all.counts.len())?;
            for (sum, &add) in all.counts.iter_mut().zip(&term.counts) {
                *sum = add_counts("counts of router terms", *sum, add)?;
            }
            for (sum, add) in all.probability.iter_mut().zip(&term.probability) {
                *sum += add;
            }
            all.z += term.z;
            all.tokens = add_counts("tokens of router terms", all.tokens, term.tokens)?;
        }
        Ok(all)
    }

    /// Whether both lists are of this many experts.
    pub(crate) fn check_experts(&self, experts: usize) -> Result<()> {
        for (name, len) in [("counts", self.counts.len()), ("probability", self.probability.len())] {
            if len != experts {
                return Err(Error::shape(format!("`{name}` of router terms"), len, format!("{experts} experts")));
            }
        }
        Ok(())
    }

    /// `E sum_e (counts_e / T) (probability_e / T)`: k when balanced. 0 without tokens.
    ///
    /// Source: `load_balancing_loss_func` of Hugging Face transformers, after Fedus et al. 2021, equations 4 to 6.
    pub fn load_balancing(&self) -> f64 {
        if self.tokens == 0 {
            return 0.0;
        }
        let tokens = self.tokens as f64;
        let sum =
            self.counts.iter().zip(&self.probability).map(|(&n, p)| n as f64 / tokens * (p / tokens)).sum::<f64>();
        self.counts.len() as f64 * sum
    }

    /// Mean of `logsumexp^2` (Zoph et al. 2022, equation 5). 0 without tokens.
    pub fn z_loss(&self) -> f64 {
        if self.tokens == 0 { 0.0 } else { self.z / self.tokens as f64 }
    }

    /// `coef * d load_balancing / d probability(t, e)`, the same for every token: `coef E counts_e / T^2`.
    pub(crate) fn load_balancing_gradient(&self, coef: f64) -> Vec<f32> {
        let tokens = self.tokens.max(1) as f64;
        let factor = coef * self.counts.len() as f64 / (tokens * tokens);
        self.counts.iter().map(|&n| (factor * n as f64) as f32).collect()
    }

    /// `coef` over the tokens that the z-loss averages.
    pub(crate) fn z_scale(&self, coef: f64) -> f32 {
        (coef / self.tokens.max(1) as f64) as f32
    }
}

fn add_counts(what: &str, a: u64, b: u64) -> Result<u64> {
    a.checked_add(b)
        .ok_or_else(|| Error::Overflow { what: what.into(), detail: format!("{a} + {b} pass {}", u64::MAX) })
}

/// The auxiliary-loss-free balancing step: `bias_e += step * sign(mean load - load_e)`.
///
/// `counts` may be summed over ranks, micro-batches and steps. Source: Wang et al. 2024, "Auxiliary-Loss-Free Load
/// Balancing Strategy for Mixture-of-Experts", algorithm 1.
///
/// # Errors
/// [`Error::Shape`] for different lengths, [`Error::Argument`] for a step that is negative or not finite.
pub fn correction_bias_step(bias: &mut [f32], counts: &[u64], step: f32) -> Result<()> {
    if bias.len() != counts.len() {
        return Err(Error::shape("counts", counts.len(), format!("{} experts", bias.len())));
    }
    if !step.is_finite() || step < 0.0 {
        return Err(Error::argument("step", step, "a finite number, 0 or more"));
    }
    // Compared as integers times E, so that no mean is rounded.
    let total = counts.iter().map(|&n| u128::from(n)).sum::<u128>();
    let experts = counts.len() as u128;
    for (bias, &count) in bias.iter_mut().zip(counts) {
        match total.cmp(&(u128::from(count) * experts)) {
            std::cmp::Ordering::Greater => *bias += step,
            std::cmp::Ordering::Less => *bias -= step,
            std::cmp::Ordering::Equal => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balanced_routing_gives_k() {
        let terms = RouterTerms { counts: vec![4; 8], probability: vec![2.0; 8], z: 32.0, tokens: 16 };
        assert_eq!(terms.load_balancing(), 2.0); // 32 pairs of 16 tokens: k = 2
        assert_eq!(terms.z_loss(), 2.0);
        let twice = RouterTerms::combine([&terms, &terms]).unwrap();
        assert_eq!((twice.load_balancing(), twice.tokens), (2.0, 32));
        assert!(RouterTerms::combine([]).is_err());
    }

    #[test]
    fn terms_that_do_not_add_up_are_refused() {
        let terms = RouterTerms { counts: vec![4; 8], probability: vec![2.0; 8], z: 32.0, tokens: 16 };
        let ragged = RouterTerms { probability: vec![2.0; 7], ..terms.clone() };
        for pair in [[&terms, &ragged], [&ragged, &terms]] {
            let refused = RouterTerms::combine(pair).unwrap_err();
            assert_eq!(refused, Error::shape("`probability` of router terms", 7, "8 experts"));
        }
        let many = RouterTerms { tokens: u64::MAX, ..terms.clone() };
        assert!(matches!(RouterTerms::combine([&terms, &many]), Err(Error::Overflow { .. })));
        let busy = RouterTerms { counts: vec![u64::MAX; 8], ..terms.clone() };
        assert!(matches!(RouterTerms::combine([&terms, &busy]), Err(Error::Overflow { .. })));
    }

    #[test]
    fn bias_moves_towards_the_mean() {
        let mut bias = vec![0.0; 4];
        correction_bias_step(&mut bias, &[0, 10, 5, 5], 0.5).unwrap();
        assert_eq!(bias, [0.5, -0.5, 0.0, 0.0]);
        assert!(correction_bias_step(&mut bias, &[1], 0.5).is_err());
        assert!(correction_bias_step(&mut bias, &[1; 4], f32::NAN).is_err());
    }
}
