//! What the planning examples share: options of the setup, reading loads, printing tables, drawing charts.
#![allow(dead_code, reason = "each example, and the tests of the readers, use a part")]

pub(crate) mod bars;
mod csv;
mod json;
pub(crate) mod lines;
pub(crate) mod loads;
mod npy;
pub(crate) mod output;
pub(crate) mod setup;
mod svg;
pub(crate) mod table;
mod tensors;
