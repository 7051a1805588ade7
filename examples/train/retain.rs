//! How much the backward pass keeps: per layer, and over the run.

use std::fmt;
use std::str::FromStr;

use lrmoe::{Error, Retention};

/// `--retain`: one retention, or one for each layer, each constant or moving in equal steps from one fraction to another.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Retain(Vec<Span>);

#[derive(Debug, Clone, Copy, PartialEq)]
struct Span {
    from: Retention,
    to: Retention,
}

impl Retain {
    /// The same for every layer and step.
    pub(crate) fn constant(retention: Retention) -> Self {
        Self(vec![Span { from: retention, to: retention }])
    }

    /// The retention that never changes; `None` where it does, or where layers differ.
    pub(crate) fn as_constant(&self) -> Option<Retention> {
        match self.0[..] {
            [Span { from, to }] if from == to => Some(from),
            _ => None,
        }
    }

    /// Layers that are told apart; 1 where all are alike.
    pub(crate) fn layers(&self) -> usize {
        self.0.len()
    }

    /// What `layer` retains in `step` (from 0) of `steps`; the end value afterwards.
    pub(crate) fn at(&self, layer: usize, step: u64, steps: u64) -> Retention {
        let span = self.0[layer.min(self.0.len() - 1)];
        match (span.from, span.to) {
            (Retention::Fraction(from), Retention::Fraction(to)) if from != to => {
                let done = if steps > 1 { (step as f64 / (steps - 1) as f64).min(1.0) } else { 1.0 };
                Retention::Fraction(from + (to - from) * done)
            }
            (from, _) => from,
        }
    }
}

impl FromStr for Retain {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let malformed = || {
            let allowed =
                "FRACTION, noise:THETA[:MIN:MAX], FRACTION..FRACTION over the run, or one of these a layer with commas";
            Error::argument("retain", format!("{text:?}"), allowed)
        };
        let positive = |retention: Retention| match retention {
            Retention::Fraction(fraction) if fraction <= 0.0 => Err(malformed()),
            other => Ok(other),
        };
        let span = |text: &str| match text.split_once("..") {
            None => text.parse().map_err(|_| malformed()).and_then(positive).map(|both| Span { from: both, to: both }),
            Some((from, to)) => {
                let fraction = |text: &str| match text.parse().map_err(|_| malformed()).and_then(positive)? {
                    retention @ Retention::Fraction(_) => Ok(retention),
                    Retention::Noise { .. } => Err(malformed()),
                };
                Ok(Span { from: fraction(from)?, to: fraction(to)? })
            }
        };
        text.split(',').map(span).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Retain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, span) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match span.from == span.to {
                true => write!(f, "{comma}{}", span.from)?,
                false => write!(f, "{comma}{}..{}", span.from, span.to)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_parses_back() {
        for text in ["0.5", "1", "noise:0.3", "noise:0.3:0.2:0.8", "0.3..0.7", "0.4,0.6", "0.4..0.5,noise:0.3"] {
            assert_eq!(text.parse::<Retain>().unwrap().to_string(), text);
        }
        for text in ["", "0", "1.5", "NaN", "noise:-1", "noise:inf", "0.5..", "noise:1..0.5", "0.5,", "0.5..0.6..0.7"] {
            let message = text.parse::<Retain>().unwrap_err().to_string();
            assert!(message.contains("retain") && message.contains(text), "{message}");
        }
    }

    #[test]
    fn spans_move_in_equal_steps_and_stay_at_their_end() {
        let retain: Retain = "0.4,0.2..0.6".parse().unwrap();
        assert_eq!((retain.layers(), retain.as_constant()), (2, None));
        let at = |layer, step| match retain.at(layer, step, 5) {
            Retention::Fraction(fraction) => fraction,
            Retention::Noise { .. } => f64::NAN,
        };
        assert_eq!([at(0, 0), at(0, 9)], [0.4, 0.4]);
        for (step, expected) in [(0, 0.2), (1, 0.3), (2, 0.4), (4, 0.6), (9, 0.6)] {
            assert!((at(1, step) - expected).abs() < 1e-12);
        }
        // Layers beyond the last named one are as that one.
        assert_eq!(at(7, 4), at(1, 4));
        assert_eq!("0.5".parse::<Retain>().unwrap().as_constant(), Some(Retention::Fraction(0.5)));
    }
}
