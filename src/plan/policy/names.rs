//! Policies by the names that options and reports use.

use super::{Eplb, Fixed, Llep, Lrmoe, Policy, Symi};
use crate::{Error, Result};

/// Names that [`by_name`] knows.
pub const NAMES: &[&str] = &["lrmoe", "fixed", "fixed-waves", "symi", "symi-drop", "eplb", "eplb-hierarchical", "llep"];

/// A policy with its default options; its [`Policy::name`] is `name`.
///
/// # Errors
/// [`Error::Argument`] listing [`NAMES`] for any other name.
pub fn by_name(name: &str) -> Result<Box<dyn Policy>> {
    Ok(match name {
        "lrmoe" => Box::new(Lrmoe::default()),
        "fixed" | "fixed-waves" => Box::new(Fixed { waves: name == "fixed-waves" }),
        "symi" | "symi-drop" => Box::new(Symi { drop: name == "symi-drop", ..Symi::default() }),
        "eplb" | "eplb-hierarchical" => Box::new(Eplb { hierarchical: name == "eplb-hierarchical", ..Eplb::default() }),
        "llep" => Box::new(Llep::default()),
        _ => return Err(Error::argument("policy", name, NAMES.join(", "))),
    })
}

#[cfg(test)]
#[path = "rival_tests.rs"]
mod tests;
