//! The f64 oracle against golden data, finite differences and hand-made cases. The oracle is what later targets trust, so it
//! is tested first; nothing here runs the crate's kernels.

use libtest_mimic::{Arguments, Failed, Trial};

mod support;

#[path = "oracle/differences.rs"]
mod differences;
#[path = "oracle/estimator.rs"]
mod estimator;
#[path = "oracle/golden.rs"]
mod golden;
#[path = "oracle/loader.rs"]
mod loader;
#[path = "oracle/routing.rs"]
mod routing;
#[path = "oracle/sample.rs"]
mod sample;
#[path = "oracle/selection.rs"]
mod selection;

fn main() -> std::process::ExitCode {
    let arguments = Arguments::from_args();
    let mut trials = golden::trials();
    trials.extend(loader::trials());
    trials.extend(differences::trials());
    trials.extend(estimator::trials());
    trials.extend(routing::trials());
    trials.extend(selection::trials());
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A trial from a function that says what is wrong.
fn trial(name: &str, run: impl FnOnce() -> Result<(), String> + Send + 'static) -> Trial {
    Trial::test(name, move || run().map_err(Failed::from))
}
