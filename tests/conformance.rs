//! Every kernel on every device against a separate f64 oracle: one trial per kernel, case and device, all in its name.
//!
//! A case is data ([`table::Case`]): commands on numbered buffers, what the buffers hold, and what they must hold
//! afterwards. Devices know nothing of cases and cases nothing of devices. A device that is not here makes its trials
//! *ignored with the reason*.

#![allow(unreachable_pub, reason = "`pub` marks what other files may use; a test target exports nothing")]

use std::collections::BTreeMap;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lrmoe::kernel::Kernel;

mod support;

#[path = "conformance/buffers.rs"]
mod buffers;
#[path = "conformance/devices.rs"]
mod devices;
#[path = "conformance/gate_backward.rs"]
mod gate_backward;
#[path = "conformance/gemm.rs"]
mod gemm;
#[path = "conformance/keys.rs"]
mod keys;
#[path = "conformance/offsets.rs"]
mod offsets;
#[path = "conformance/optim.rs"]
mod optim;
#[path = "conformance/router.rs"]
mod router;
#[path = "conformance/router_sums.rs"]
mod router_sums;
#[path = "conformance/rows.rs"]
mod rows;
#[path = "conformance/rows_refused.rs"]
mod rows_refused;
#[path = "conformance/score.rs"]
mod score;
#[path = "conformance/select.rs"]
mod select;
#[path = "conformance/select_bits.rs"]
mod select_bits;
#[cfg(feature = "wgpu")]
#[path = "conformance/shaders.rs"]
mod shaders;
#[path = "conformance/swiglu.rs"]
mod swiglu;
#[path = "conformance/table.rs"]
mod table;

use devices::{Device, Runner};
use table::{Case, Property, Slot};

/// Runs of one case that must give the same bits.
const REPEATS: usize = 20;

fn main() -> std::process::ExitCode {
    let arguments = Arguments::from_args();
    let cases: Vec<Arc<Case>> = [
        gemm::cases(),
        swiglu::cases(),
        router::cases(),
        gate_backward::cases(),
        router_sums::cases(),
        rows::cases(),
        rows_refused::cases(),
        keys::cases(),
        score::cases(),
        select::cases(),
        optim::cases(),
        offsets::cases(),
        buffers::cases(),
    ]
    .into_iter()
    .flatten()
    .map(Arc::new)
    .collect();
    let mut trials = vec![Trial::test("every_kernel_has_cases", {
        let cases = cases.clone();
        move || complete(&cases).map_err(Failed::from)
    })];
    #[cfg(feature = "wgpu")]
    trials.extend(shaders::trials(&cases));
    for device in devices::all() {
        let device = Arc::new(device);
        for case in &cases {
            let case = Arc::clone(case);
            trials.push(on(&device, &case.title(), move |runner| case.check(runner)));
        }
        for property in properties() {
            trials.push(on(&device, property.name, property.check));
        }
        let mut by_kernel: BTreeMap<&'static str, Vec<Arc<Case>>> = BTreeMap::new();
        for case in cases.iter().filter(|case| !case.fails()) {
            by_kernel.entry(case.kernel()).or_default().push(Arc::clone(case));
        }
        for (kernel, cases) in by_kernel {
            let variants = Arc::clone(&device);
            trials
                .push(on(&device, &format!("{kernel}::same_bits"), move |runner| same_bits(runner, &variants, &cases)));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// What relates the results of several dispatches.
fn properties() -> Vec<Property> {
    [
        gemm::properties(),
        swiglu::properties(),
        router::properties(),
        rows::properties(),
        select_bits::properties(),
        buffers::properties(),
    ]
    .concat()
}

fn on(
    device: &Arc<Device>,
    title: &str,
    check: impl FnOnce(&dyn Runner) -> Result<(), String> + Send + 'static,
) -> Trial {
    let name = format!("{title}::{}", device.name);
    let device = Arc::clone(device);
    Trial::ignorable_test(name, move || match (device.open)() {
        Ok(runner) => check(&*runner).map(|()| Completion::Completed).map_err(Failed::from),
        Err(reason) => Ok(Completion::ignored_with(reason)),
    })
}

/// The table is complete: every kernel has a case that succeeds and one that is refused, and titles are unique.
fn complete(cases: &[Arc<Case>]) -> Result<(), String> {
    for name in Kernel::<Slot>::NAMES {
        for refused in [false, true] {
            if !cases.iter().any(|case| case.kernel() == *name && case.fails() == refused) {
                return Err(format!(
                    "kernel `{name}` has no case {}",
                    if refused { "that is refused" } else { "at all" }
                ));
            }
        }
    }
    let mut titles: Vec<String> = cases.iter().map(|case| case.title()).collect();
    titles.sort();
    match titles.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("two cases are called {}", pair[0])),
        None => Ok(()),
    }
}

/// Repeats on one device, and one run on each of its variants (other thread counts), give the same bits.
fn same_bits(runner: &dyn Runner, device: &Device, cases: &[Arc<Case>]) -> Result<(), String> {
    let variants = device.variants.iter().map(|open| open()).collect::<Result<Vec<_>, _>>()?;
    for case in cases {
        let first = case.bits(runner)?;
        for repeat in 1..REPEATS {
            if case.bits(runner)? != first {
                return Err(format!("{}: run {repeat} differs from the first", case.title()));
            }
        }
        for variant in &variants {
            if case.bits(&**variant)? != first {
                return Err(format!("{}: differs on {}", case.title(), variant.label()));
            }
        }
    }
    Ok(())
}
