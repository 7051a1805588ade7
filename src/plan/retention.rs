//! How much to retain: a fraction of the pairs, or as much as a noise budget takes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::quota::check_theta;
use crate::{Error, Result};

/// How many pairs the backward pass may keep. Written `0.5`, `noise:0.3` or `noise:0.3:0.1:1`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Retention {
    /// This fraction of all pairs, in [0, 1].
    Fraction(f64),
    /// The smallest fraction for which the predicted noise [`eta`](super::quota::eta) is at most theta.
    Noise {
        /// Noise budget, 0 or more: selection may act as if the batch were `1 + theta` times smaller.
        theta: f64,
        /// Never less than this fraction; in [0, 1].
        min_fraction: f64,
        /// Never more than this fraction; in [0, 1], at least `min_fraction`.
        max_fraction: f64,
    },
}

impl Retention {
    /// The noise budget `theta` within the default fractions, 0.1 and 1.
    #[must_use]
    pub const fn noise(theta: f64) -> Self {
        Self::Noise { theta, min_fraction: 0.1, max_fraction: 1.0 }
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`Error::Argument`] for a fraction outside [0, 1] or NaN, fractions in the wrong order, a theta that is negative or not
    /// finite.
    pub fn validate(&self) -> Result<()> {
        match *self {
            Self::Fraction(fraction) => check_fraction("retention", fraction),
            Self::Noise { theta, min_fraction, max_fraction } => {
                check_theta(theta)?;
                check_fraction("retention min_fraction", min_fraction)?;
                check_fraction("retention max_fraction", max_fraction)?;
                if min_fraction > max_fraction {
                    let allowed = format!("at most max_fraction {max_fraction}");
                    return Err(Error::argument("retention min_fraction", min_fraction, allowed));
                }
                Ok(())
            }
        }
    }
}

fn check_fraction(name: &str, fraction: f64) -> Result<()> {
    if (0.0..=1.0).contains(&fraction) {
        return Ok(());
    }
    Err(Error::argument(name, fraction, "a number in [0, 1]"))
}

impl FromStr for Retention {
    type Err = Error;

    /// Reads `FRACTION`, `noise:THETA` or `noise:THETA:MIN:MAX`.
    fn from_str(text: &str) -> Result<Self> {
        let malformed =
            || Error::argument("retention", format!("{text:?}"), "FRACTION, noise:THETA or noise:THETA:MIN:MAX");
        let number = |s: &str| s.trim().parse::<f64>().map_err(|_| malformed());
        let parts: Vec<&str> = text.trim().split(':').collect();
        let retention = match parts[..] {
            [fraction] => Self::Fraction(number(fraction)?),
            ["noise", theta] => Self::noise(number(theta)?),
            ["noise", theta, min, max] => {
                Self::Noise { theta: number(theta)?, min_fraction: number(min)?, max_fraction: number(max)? }
            }
            _ => return Err(malformed()),
        };
        retention.validate()?;
        Ok(retention)
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Fraction(fraction) => write!(f, "{fraction}"),
            Self::Noise { theta, .. } if *self == Self::noise(theta) => write!(f, "noise:{theta}"),
            Self::Noise { theta, min_fraction, max_fraction } => {
                write!(f, "noise:{theta}:{min_fraction}:{max_fraction}")
            }
        }
    }
}

impl TryFrom<String> for Retention {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Retention> for String {
    fn from(retention: Retention) -> Self {
        retention.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let custom = Retention::Noise { theta: 0.25, min_fraction: 0.2, max_fraction: 0.75 };
        for (text, value) in [
            ("0.5", Retention::Fraction(0.5)),
            ("0", Retention::Fraction(0.0)),
            ("1", Retention::Fraction(1.0)),
            ("noise:0.3", Retention::noise(0.3)),
            ("noise:0.25:0.2:0.75", custom),
        ] {
            assert_eq!(text.parse(), Ok(value));
            assert_eq!(value.to_string(), text);
            let json = serde_json::to_string(&value).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Retention>(&json).unwrap(), value);
        }
        assert_eq!(" 0.5 ".parse(), Ok(Retention::Fraction(0.5)));
    }

    #[test]
    fn refuses_nonsense_and_names_it() {
        for text in ["", "x", "nan", "inf", "-0.1", "1.0001", "noise", "noise:", "noise:-1", "noise:inf", "noise:nan"] {
            assert!(text.parse::<Retention>().is_err(), "{text}");
        }
        for text in
            ["noise:0.3:0.5", "noise:0.3:0.9:0.1", "noise:0.3:0:2", "noise:0.3:-1:1", "noise:0.3:0:1:1", "0.5:1"]
        {
            assert!(text.parse::<Retention>().is_err(), "{text}");
        }
        let message = "half".parse::<Retention>().unwrap_err().to_string();
        assert!(message.contains("half") && message.contains("noise:THETA"), "{message}");
        assert!(serde_json::from_str::<Retention>("\"2\"").is_err());
    }
}
