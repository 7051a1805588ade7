//! Inputs of planning, and what the planning examples read and draw.
//!
//! The readers' fuzz bodies run over a fixed corpus and seeded mutations of it. Recorded traces are read where they are:
//! in the folder that `LRMOE_TRACES_DIR` names, or beside the checkout.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is how a trial fails")]

use libtest_mimic::{Arguments, Completion, Trial};

#[path = "../../examples/planning/mod.rs"]
mod planning;

mod charts;
mod corpus;
mod fuzz;
mod loads;
mod recorded;
mod write;

fn main() -> std::process::ExitCode {
    let arguments = Arguments::from_args();
    let trials =
        [charts::trials(), fuzz::trials(), loads::trials(), recorded::trials()].into_iter().flatten().collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A check that panics where something is wrong.
type Check = fn();

/// One trial for each named check.
fn trials(group: &str, checks: &[(&str, Check)]) -> Vec<Trial> {
    let trial = |&(name, check): &(&str, Check)| {
        Trial::ignorable_test(format!("{group}::{name}"), move || {
            check();
            Ok(Completion::Completed)
        })
    };
    checks.iter().map(trial).collect()
}
