//! Drivers that cannot be used: each is another process, since a process looks for its driver once.

use std::process::{Command, ExitCode};

use libtest_mimic::Trial;
use lrmoe::backend::cuda::cuda_devices;

use crate::support::fake_cuda::install;
use crate::support::outcome::{Outcome, holds, text};
use crate::trial;

/// Set in the processes that only say what devices there are.
const CHILD: &str = "LRMOE_FAKE_CUDA_CHILD";

/// Says it, in such a process.
#[allow(clippy::print_stdout, reason = "what it is for")]
pub(crate) fn child() -> Option<ExitCode> {
    std::env::var_os(CHILD)?;
    let devices = install().and_then(|()| cuda_devices());
    match devices {
        Ok(devices) => devices.iter().for_each(|device| println!("{device:?}")),
        Err(reason) => println!("none: {reason}"),
    }
    Some(ExitCode::SUCCESS)
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("missing::a_function", |_| {
            says(&[("LRMOE_FAKE_CUDA_WITHOUT", "cuMemPoolCreate,cuStreamWriteValue32_v2")], |said| {
                said.contains("none: ") && said.contains("cuMemPoolCreate") && said.contains("cuStreamWriteValue32_v2")
            })
        }),
        trial("missing::an_old_driver", |_| {
            says(&[("LRMOE_FAKE_CUDA_DRIVER", "11020")], |said| said.contains("none: ") && said.contains("11.2"))
        }),
        trial("missing::no_device", |_| says(&[("LRMOE_FAKE_CUDA_DEVICES", "0")], |said| said.contains("none: "))),
        trial("missing::an_old_gpu", |_| {
            says(&[("LRMOE_FAKE_CUDA_MAJOR", "7"), ("LRMOE_FAKE_CUDA_MINOR", "5")], |said| said.contains("sm_75"))
        }),
        trial("missing::nothing", |_| {
            says(&[("LRMOE_FAKE_CUDA_DEVICES", "2")], |said| said.lines().count() == 2 && said.contains("sm_90"))
        }),
    ]
}

fn says(environment: &[(&str, &str)], expected: fn(&str) -> bool) -> Outcome {
    let mut command = Command::new(std::env::current_exe().map_err(text)?);
    command.env(CHILD, "1").envs(environment.iter().copied());
    let output = command.output().map_err(text)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    holds(
        format!("it says so, and ends well: {said}{}", String::from_utf8_lossy(&output.stderr)),
        output.status.success(),
    )?;
    holds(format!("as expected: {said}"), expected(said.trim()))
}
