//! Tests of shares: what is launched, what is timed, what is refused, what is fitted.

mod fit;
mod refused;
mod runner;
mod spy;

use super::Share;
use crate::plan::Activations;

/// A middle rank of a cluster with odd sizes: k = 2, three residents, one of them idle.
fn odd_share(activations: Activations, selects: bool) -> Share {
    Share {
        tokens: 37,
        forward: vec![19, 0, 24],
        backward: vec![11, 0, 5],
        tokens_in_forward: 31,
        tokens_in_backward: 13,
        sent_forward: 41,
        sent_backward: 23,
        retained: 29,
        optimizer_parameters: 1237,
        activations,
        selects,
    }
}

/// Nothing at all.
fn empty_share(activations: Activations, selects: bool) -> Share {
    Share {
        tokens: 0,
        forward: vec![],
        backward: vec![],
        tokens_in_forward: 0,
        tokens_in_backward: 0,
        sent_forward: 0,
        sent_backward: 0,
        retained: 0,
        optimizer_parameters: 0,
        activations,
        selects,
    }
}
