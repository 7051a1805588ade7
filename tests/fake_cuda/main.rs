//! The test driver and the shim themselves: every wrapper against what the manual says of the instruction, every check against a
//! kernel with that fault, and the driver's answers. One trial each; all of them only with `LRMOE_FAKE_CUDA=1`, and a C++ compiler.

use libtest_mimic::{Arguments, Completion, Failed, Trial};

#[path = "../support/mod.rs"]
mod support;

mod driver;
mod faults;
mod opened;
mod shim;
mod streams;
mod wrappers;

use support::fake_cuda::{Fake, fake};
use support::outcome::Outcome;

fn main() -> std::process::ExitCode {
    let arguments = Arguments::from_args();
    let all = [wrappers::trials(), faults::trials(), driver::trials(), streams::trials()];
    libtest_mimic::run(&arguments, all.into_iter().flatten().collect()).exit_code()
}

/// A trial that is ignored where the test driver was not asked for or cannot be used; the latter fails with `LRMOE_REQUIRE_CUDA`.
fn trial(name: &'static str, run: fn(&'static Fake) -> Outcome) -> Trial {
    Trial::ignorable_test(name, move || match fake() {
        Ok(Some(fake)) => run(fake).map(|()| Completion::Completed).map_err(Failed::from),
        Ok(None) => Ok(Completion::ignored_with("LRMOE_FAKE_CUDA is not 1")),
        Err(reason) => Ok(Completion::ignored_with(support::cuda::absent(&reason))),
    })
}
