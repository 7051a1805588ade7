//! Grouped GEMMs of the wgpu backend, every variant that the device supports.
//!
//! `cargo bench --bench wgpu_gemm [-- ROUNDS]`. 32 groups of 3 to 294 rows (4,582 together), k = 256, n = 512, f32. On a
//! software driver the device is the host's cores, so the last column counts operations a second of processor time of all
//! threads; it does not depend on what else the machine does.
#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a program for the terminal, on sizes that are known to fit"
)]

fn main() {}
