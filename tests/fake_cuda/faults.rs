//! What the engine refuses, and what the sanitizers find in it: kernels with one fault each, and the same kernels without.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libtest_mimic::Trial;

use crate::shim::{Words, orders, shim};
use crate::support::fake_cuda::Fake;
use crate::support::kernel_library::{Output, Sanitizer, Unit, build, root};
use crate::support::outcome::{Outcome, holds, text};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("faults::deadlock", |_| refused("fault_deadlock", 64, ": 64 of 64 threads have not ended")),
        trial("faults::barriers_at_different_places", |_| refused("fault_sites", 64, "__syncthreads here, but thread")),
        trial("faults::masks_that_disagree", |_| refused("fault_masks", 32, "names the lanes")),
        trial("faults::misaligned_ldmatrix", |_| refused("fault_ldmatrix", 32, "is not 16-byte aligned")),
        trial("faults::misaligned_copy", |_| refused("fault_copy", 32, "is not 16-byte aligned")),
        trial("faults::copy_outside_shared_memory", |_| refused("fault_copy_outside", 32, "is not in shared memory")),
        trial("faults::misaligned_vector", |_| refused("fault_vector", 32, "is not 16-byte aligned")),
        trial("faults::misaligned_word", |_| refused("fault_wide", 32, "is not 8-byte aligned (faults.cu:")),
        trial("faults::past_shared_memory", |_| refused("fault_shared", 32, "outside its")),
        trial("faults::wild_address", |_| refused("fault_address", 32, "illegal address")),
        trial("faults::launches_that_no_table_row_has", launches),
        trial("faults::missing_barrier_is_a_race", |_| races("fault_no_barrier", 1, 64)),
        trial("faults::missing_second_barrier_is_a_race", |_| races("fault_no_second_barrier", 1, 64)),
        trial("faults::copies_without_a_barrier_are_a_race", |_| races("fault_copy_no_barrier", 1, 64)),
        trial("faults::a_shuffle_is_no_barrier", |_| races("fault_shuffle_no_order", 1, 32)),
        trial("faults::blocks_that_write_one_word_are_a_race", |_| races("fault_blocks", 3, 32)),
        trial("faults::a_missing_fence_is_a_race", |_| races("fault_no_fence", 3, 32)),
        trial("faults::past_global_memory", |_| out_of_bounds("fault_bounds", 32)),
        trial("faults::past_shared_memory_by_its_line", |_| out_of_bounds("fault_shared", 32)),
        trial("faults::copy_past_shared_memory_by_its_line", |_| out_of_bounds("fault_copy_outside", 128)),
    ]
}

/// Room for what every kernel of `faults.cu` touches.
const WORDS: usize = 512;

fn refused(kernel: &str, threads: u32, why: &str) -> Outcome {
    let (shim, _one) = shim()?;
    for order in orders() {
        shim.order(order);
        let mut out = Words::new(WORDS, 0);
        // The engine goes on after a failure: sound launches before and after it.
        for fault in [0, 1, 0, 1, 0] {
            let shared = if kernel.contains("shared") { threads * 4 } else { threads * 16 };
            let shared = if kernel == "fault_ldmatrix" { shared + 8 } else { shared };
            let result = shim.run(kernel, 2, threads, shared as usize, &[out.address(), fault]);
            match (fault, result) {
                (0, Ok(())) => {}
                (1, Err(found)) => holds(format!("`{why}` is in `{found}`, {order:?}"), found.contains(why))?,
                (_, result) => return Err(format!("{kernel} with fault {fault}, {order:?}: {result:?}")),
            }
        }
    }
    Ok(())
}

fn launches(_: &Fake) -> Outcome {
    let (shim, _one) = shim()?;
    let mut out = Words::new(WORDS, 0);
    let refused = |blocks, threads| shim.run("fault_bounds", blocks, threads, 0, &[0, 0]).is_err();
    holds("no such kernel", shim.run("fault_nothing", 1, 32, 0, &[out.address(), 0]).is_err())?;
    holds("no blocks", refused(0, 32))?;
    holds("no threads", refused(1, 0))?;
    holds("more threads than a block may have", refused(1, 1025))?;
    let why = shim.run("fault_address", 1, 64, 0, &[out.address(), 0]).err().unwrap_or_default();
    holds(format!("64 threads for a kernel of 32: {why}"), why.contains("its table row says 32"))
}

/// The program that runs one kernel of `faults.cu`, with a sanitizer.
fn program(sanitizer: Sanitizer) -> Result<PathBuf, String> {
    static BUILT: [OnceLock<Result<PathBuf, String>>; 2] = [OnceLock::new(), OnceLock::new()];
    let built = &BUILT[usize::from(sanitizer == Sanitizer::Thread)];
    let build = || {
        let main = root().join("tests/shim/trials/program.cpp");
        let unit = std::fs::read_to_string(main).map_err(text)?.replace("\"faults.cu\"", "\"trials/faults.cu\"");
        build(&[Unit { name: "program".into(), text: unit }], sanitizer, Output::Program)
    };
    built.get_or_init(build).clone()
}

/// What it says. A sanitizer's report goes to the standard error.
fn say(program: &Path, arguments: &[&str], schedule: &str) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).env("LRMOE_SHIM_SCHEDULE", schedule).env_remove("LD_PRELOAD");
    command.env("TSAN_OPTIONS", "exitcode=0").env("ASAN_OPTIONS", "detect_leaks=0:exitcode=0");
    let output = command.output().map_err(text)?;
    Ok(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
}

/// ThreadSanitizer reports the kernel with its fault, in every schedule, and nothing without it.
fn races(kernel: &str, blocks: u32, threads: u32) -> Outcome {
    let program = program(Sanitizer::Thread)?;
    let (blocks, threads) = (blocks.to_string(), threads.to_string());
    for schedule in ["first", "last", "random"] {
        for fault in ["0", "1"] {
            let said = say(&program, &[kernel, &blocks, &threads, "256", "256", fault], schedule)?;
            let found = said.contains("data race") && said.contains("faults.cu");
            holds(format!("{schedule} first, fault {fault}:\n{said}"), found == (fault == "1"))?;
            holds(format!("{schedule} first: the launch succeeds: {said}"), !said.contains("failed:"))?;
        }
    }
    Ok(())
}

/// AddressSanitizer does.
fn out_of_bounds(kernel: &str, words: u32) -> Outcome {
    let program = program(Sanitizer::Address)?;
    let words = words.to_string();
    for schedule in ["first", "last", "random"] {
        for fault in ["0", "1"] {
            let shared = if kernel == "fault_shared" { "128" } else { "512" };
            let said = say(&program, &[kernel, "1", "32", shared, &words, fault], schedule)?;
            let found = said.contains("heap-buffer-overflow") && said.contains("faults.cu");
            holds(format!("{schedule} first, fault {fault}:\n{said}"), found == (fault == "1"))?;
        }
    }
    Ok(())
}
