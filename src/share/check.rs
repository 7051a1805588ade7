//! What the sizes of a share must satisfy.

use super::Share;
use crate::backend::elements;
use crate::config::MoeConfig;
use crate::kernel::NONE;
use crate::plan::Activations;
use crate::{Error, Result};

/// Rows of one pass at the destination.
struct Pass<'a> {
    name: &'static str,
    rows: &'a [u32],
    tokens_name: &'static str,
    tokens: usize,
}

impl Share {
    /// Checks the sizes against each other, the configuration and the index type of the kernels.
    ///
    /// `config` must have passed [`MoeConfig::validate`].
    ///
    /// # Errors
    /// [`Error::Shape`] for lists of different lengths, [`Error::Argument`] for sizes that no routing gives,
    /// [`Error::Overflow`]; all name the field.
    pub fn validate(&self, config: &MoeConfig) -> Result<()> {
        let resident = self.forward.len();
        if self.backward.len() != resident {
            let expected = format!("{resident}, as `forward`: one entry for each resident expert");
            return Err(Error::shape("length of `backward`", self.backward.len(), expected));
        }
        if resident > config.num_experts {
            let expected = format!("at most {} experts", config.num_experts);
            return Err(Error::shape("length of `forward`", resident, expected));
        }
        let forward = Pass {
            name: "forward",
            rows: &self.forward,
            tokens_name: "tokens_in_forward",
            tokens: self.tokens_in_forward,
        };
        let backward = Pass {
            name: "backward",
            rows: &self.backward,
            tokens_name: "tokens_in_backward",
            tokens: self.tokens_in_backward,
        };
        forward.validate(config)?;
        backward.validate(config)?;
        if self.activations == Activations::Stash
            && let Some(e) = (0..resident).find(|&e| self.backward[e] > self.forward[e])
        {
            let allowed = format!("at most the {} forward rows, whose activations are stashed", self.forward[e]);
            return Err(Error::argument(format!("backward[{e}]"), self.backward[e], allowed));
        }
        self.validate_source(config)?;
        elements("optimizer_parameters", &[self.optimizer_parameters])?;
        elements("forward", &[resident, 3, config.hidden_size, config.moe_intermediate_size])?;
        Ok(())
    }

    fn validate_source(&self, config: &MoeConfig) -> Result<()> {
        let k = config.num_experts_per_tok;
        let widest = config.hidden_size.max(config.num_experts).max(config.shared_expert_intermediate_size);
        elements("tokens", &[self.tokens, 2, widest])?;
        let pairs = elements("tokens", &[self.tokens, k])?;
        below_limit("tokens", pairs as u64, "pairs")?;
        for (name, sent) in [("sent_forward", self.sent_forward), ("sent_backward", self.sent_backward)] {
            if sent > pairs {
                let allowed = format!("at most {pairs}, the pairs of {} tokens", self.tokens);
                return Err(Error::argument(name, sent, allowed));
            }
            elements(name, &[sent, config.hidden_size])?;
        }
        if self.selects && self.retained > pairs {
            let allowed = format!("at most {pairs}, the pairs of {} tokens", self.tokens);
            return Err(Error::argument("retained", self.retained, allowed));
        }
        Ok(())
    }
}

impl Pass<'_> {
    fn validate(&self, config: &MoeConfig) -> Result<()> {
        let rows = self.rows.iter().copied().map(u64::from).sum::<u64>();
        below_limit(self.name, rows, "rows")?;
        elements(self.name, &[rows as usize, 2, config.hidden_size.max(config.moe_intermediate_size)])?;
        elements(self.tokens_name, &[self.tokens, config.num_experts_per_tok.max(config.hidden_size)])?;
        below_limit(self.tokens_name, self.tokens as u64, "tokens")?;
        if let Some((e, &n)) = self.rows.iter().enumerate().find(|&(_, &n)| n as usize > self.tokens) {
            let allowed = format!("at most {} = `{}`: a token has one row of an expert", self.tokens, self.tokens_name);
            return Err(Error::argument(format!("{}[{e}]", self.name), n, allowed));
        }
        let most = self.tokens as u64 * config.num_experts_per_tok as u64;
        if rows > most || self.tokens as u64 > rows {
            let least = rows.div_ceil(config.num_experts_per_tok.max(1) as u64);
            let allowed = format!("{least} to {rows} for {rows} rows in `{}`", self.name);
            return Err(Error::argument(self.tokens_name, self.tokens, allowed));
        }
        below_limit(self.tokens_name, most, "slots")?;
        Ok(())
    }
}

/// Indices are u32, and [`NONE`] is none of them.
fn below_limit(name: &str, count: u64, unit: &str) -> Result<()> {
    if count >= u64::from(NONE) {
        let detail = format!("{count} {unit} do not fit 32-bit indices");
        return Err(Error::Overflow { what: name.to_owned(), detail });
    }
    Ok(())
}
