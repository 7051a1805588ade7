//! Faults 12 to 14 of the field: offsets of elements that 32 bits do not hold, in kernels compiled for the CPU.

use std::process::Command;

use libtest_mimic::Trial;

use crate::support::kernel_library::{Output, Sanitizer, Unit, build};
use crate::support::outcome::{Outcome, text};
use crate::trial_with;

const SOURCE: &str = include_str!("../shim/trials/offsets.cpp");

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial_with("offsets::faults_12_to_14_above_32_bits", not_asked_for, above_32_bits)]
}

fn not_asked_for() -> Option<String> {
    let asked = std::env::var_os("LRMOE_FAKE_CUDA").is_some_and(|value| value == "1");
    (!asked).then(|| "kernels run on the CPU where LRMOE_FAKE_CUDA=1 asks for it".into())
}

fn above_32_bits() -> Outcome {
    let unit = Unit { name: "offsets".into(), text: SOURCE.into() };
    // Memory of which most does not exist is not for sanitizers, which shadow all of it.
    let program = build(&[unit], Sanitizer::None, Output::Program)?;
    let output = Command::new(program).output().map_err(text)?;
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.success() { Ok(()) } else { Err(format!("{}: {said}", output.status)) }
}
