//! What the planning examples share: reading loads, printing tables, drawing charts.
#![allow(dead_code, reason = "each example, and the tests of the readers, use a part")]

pub(crate) mod bars;
mod csv;
mod json;
pub(crate) mod lines;
pub(crate) mod loads;
mod npy;
mod svg;
pub(crate) mod table;
mod tensors;
