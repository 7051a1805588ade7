//! Compiles the CUDA kernels ahead of time, without a GPU: `cargo run --release --features cuda --example cubins -- DIRECTORY`.
//!
//! A machine without NVRTC then runs them with `LRMOE_CUBIN_DIR=DIRECTORY`. Without a directory nothing is written; either way the
//! table shows what each kernel takes. NVRTC is looked for where the system looks for libraries, or where `LRMOE_NVRTC` says.
#![allow(clippy::print_stdout, reason = "an example prints what it finds")]

use std::path::PathBuf;

use lrmoe::backend::cuda::{CUBIN_ARCHS, build_cubins};

fn main() -> Result<(), String> {
    let directory = std::env::args_os().nth(1).map(PathBuf::from);
    let cubins = build_cubins(directory.as_deref(), CUBIN_ARCHS).map_err(|error| error.to_string())?;
    println!("kernel                                   sm   registers  stack  spills");
    for cubin in &cubins {
        for kernel in &cubin.kernels {
            let (name, registers) = (&kernel.name, kernel.registers);
            println!("{name:<40} {:<4} {registers:<10} {:<6} {}", cubin.sm, kernel.stack, kernel.spills);
        }
    }
    let bytes: usize = cubins.iter().map(|cubin| cubin.image.len()).sum();
    let files = cubins.len();
    match directory {
        Some(directory) => println!("{files} files, {} KiB, in {}", bytes >> 10, directory.display()),
        None => println!("{files} files, {} KiB; no directory to write them to", bytes >> 10),
    }
    Ok(())
}
