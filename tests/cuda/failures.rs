//! What goes wrong on a device, provoked on the test driver: no memory, failed launches, lost devices, drivers that are too old.
//! Each trial has a device of its own, since a CUDA context that has failed stays so.

use std::process::Command;

use libtest_mimic::Trial;
use lrmoe::backend::{choose, devices};
use lrmoe::memory::Category;
use lrmoe::{Backend, CudaBackend, CudaOptions, DType, Error, ForwardContext, Recording, Tensor};

use crate::support::fake_cuda::{Fake, fake};
use crate::support::outcome::{Outcome, holds, refused, text};
use crate::support::step::{SMALL, bits, layer, values};
use crate::trial_with;

/// Set in a process that only tells what devices it sees.
const CHILD: &str = "LRMOE_TEST_CUDA_DEVICES";

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |name, run| trial_with(name, no_fake, run);
    vec![
        trial("fake::out_of_memory_at_each_allocation_in_turn", out_of_memory),
        trial("fake::out_of_host_memory_at_each_allocation_in_turn", out_of_host_memory),
        trial("fake::a_failed_launch_is_told_by_name_and_stays", failed_launch),
        trial("fake::a_lost_device_stays_lost_and_others_go_on", lost_device),
        trial("fake::a_wait_ends_at_its_time_limit_and_delays_change_nothing", || {
            time_limit()?;
            delays()
        }),
        trial("fake::devices_without_pools_and_nothing_left_behind", without_pools),
        trial("fake::a_backend_may_go_while_its_work_runs", gone),
        trial("fake::no_device_is_a_reason", no_device),
        trial("fake::an_old_driver_is_a_reason", old_driver),
        trial("fake::an_old_gpu_is_a_reason", old_gpu),
        trial("fake::a_missing_symbol_is_a_reason", missing_symbol),
    ]
}

/// What the process of [`CHILD`] prints: every device, and what `auto` chooses.
pub(crate) fn child() -> Option<String> {
    std::env::var_os(CHILD)?;
    let installed = crate::support::fake_cuda::install();
    let list = devices().into_iter().map(|device| match device.caps {
        Ok(caps) => format!("{}: {}", device.name, caps.device),
        Err(reason) => format!("{} missing: {reason}", device.name),
    });
    let auto = choose("auto").map_or_else(text, |choice| format!("auto: {} after {:?}", choice.name, choice.refused));
    let cuda = choose("cuda").and_then(|choice| choice.open()).map_or_else(text, |_| "cuda: opened".into());
    Some(format!("{installed:?}\n{}\n{auto}\n{cuda}", list.collect::<Vec<_>>().join("\n")))
}

fn no_fake() -> Option<String> {
    match fake() {
        Ok(Some(_)) => None,
        Ok(None) => Some("LRMOE_FAKE_CUDA=1 asks for the test driver".into()),
        Err(why) => Some(crate::support::cuda::absent(&why)),
    }
}

/// The test driver with a device that no other trial uses.
fn device(number: usize) -> Result<(&'static Fake, CudaOptions), String> {
    let fake = fake()?.ok_or("no test driver")?;
    fake.set("devices", 8)?;
    Ok((fake, CudaOptions { device: number, poison: true, ..CudaOptions::default() }))
}

fn open(options: &CudaOptions) -> Result<CudaBackend, String> {
    CudaBackend::new(options.clone()).map_err(text)
}

/// Every allocation fails once: an error that says so or the same bits, and everything works again.
fn out_of_memory() -> Outcome {
    let (fake, options) = device(1)?;
    let before = fake.get("allocations@1");
    let want = bits(&open(&options)?, SMALL)?;
    let allocations = fake.get("allocations@1") - before;
    holds(format!("{allocations} allocations"), allocations > 10)?;
    for which in 1..=allocations {
        let backend = open(&options)?;
        fake.set("fail_alloc@1", which)?;
        let got = bits(&backend, SMALL);
        holds("the failure has been used up", fake.get("fail_alloc@1") == 0)?;
        match got {
            Ok(got) => holds(format!("allocation {which} failed and was made again"), got == want)?,
            Err(error) => {
                holds(format!("allocation {which}: `{error}` names the bytes"), error.contains("the system has no"))?;
            }
        }
        holds(format!("after allocation {which}"), bits(&backend, SMALL)? == want)?;
        drop(backend);
        holds(format!("allocations left after {which}"), fake.get("live_allocations@1") == 0)?;
    }
    Ok(())
}

fn out_of_host_memory() -> Outcome {
    let (fake, options) = device(2)?;
    let want = bits(&open(&options)?, SMALL)?;
    for which in 1..=4 {
        fake.set("fail_host_alloc@2", which)?;
        // Also where it fails on opening.
        match open(&options).and_then(|backend| bits(&backend, SMALL)) {
            Ok(got) => holds(format!("host allocation {which}"), got == want)?,
            Err(error) => holds(format!("`{error}` is the driver's"), error.contains("OUT_OF_MEMORY"))?,
        }
        fake.set("fail_host_alloc@2", 0)?;
        holds(format!("after host allocation {which}"), bits(&open(&options)?, SMALL)? == want)?;
    }
    Ok(())
}

/// The command that failed, from everything that waits, and no work afterwards.
fn failed_launch() -> Outcome {
    let (fake, options) = device(3)?;
    let backend = open(&options)?;
    let x = backend.import("x", lrmoe::HostData::F32(vec![1.0; 64]), Category::Scratch).map_err(text)?;
    let (s, d) = (
        backend.alloc("s", DType::F32, 64, Category::Scratch).map_err(text)?,
        backend.alloc("d", DType::BF16, 64, Category::Scratch).map_err(text)?,
    );
    let mut recording = Recording::new();
    recording.dispatch(lrmoe::kernel::Sigmoid { len: 64, z: x.clone(), s: s.clone() }).map_err(text)?;
    recording.dispatch(lrmoe::kernel::Cast { len: 64, src: s.clone(), dst: d.clone() }).map_err(text)?;
    recording.fill(&x, 0);
    backend.submit(&recording).and_then(|fence| backend.wait(&fence)).map_err(text)?;
    // The second launch is the cast.
    fake.set("fail_launch@3", 2)?;
    let waited = backend.submit(&recording).and_then(|fence| backend.wait(&fence));
    let error = refused("a failed launch", waited)?;
    let message = error.to_string();
    let names = message.contains("`cast`") && message.contains("CUDA_ERROR_LAUNCH_FAILED");
    holds(format!("`{message}` names command and error"), names && matches!(error, Error::DeviceLost { .. }))?;
    let again = [
        refused("a read", backend.read_blocking(&d).map(drop))?,
        refused("an allocation", backend.alloc("more", DType::F32, 4, Category::Scratch).map(drop))?,
        refused("an upload", backend.upload(&x, 0, &lrmoe::HostData::F32(vec![0.0])))?,
        refused("a recording", backend.submit(&recording).map(drop))?,
        refused("a backend beside", backend.beside(CudaOptions::default()).map(drop))?,
    ];
    holds(format!("{again:?} say the same"), again.iter().all(|later| later.to_string() == message))
}

fn lost_device() -> Outcome {
    let (fake, options) = device(4)?;
    let backend = open(&options)?;
    let (mut layer, mut adamw) = layer(&backend, SMALL)?;
    let x = values(1, SMALL.tokens * SMALL.hidden);
    let x = Tensor::from_f32(&backend, &x, SMALL.tokens, SMALL.hidden).map_err(text)?;
    let (y, saved) = layer.forward(&x, &ForwardContext::default()).map_err(text)?;
    fake.set("lose_after@4", 20)?;
    let lost = |what: &str, result: lrmoe::Result<()>| -> Outcome {
        let error = refused(what, result)?;
        holds(format!("{what}: `{error}` is a loss"), matches!(error, Error::DeviceLost { .. }))
    };
    lost("backward", layer.backward(&saved, &y).map(drop))?;
    lost("forward", layer.forward(&x, &ForwardContext::default()).map(drop))?;
    lost("step", adamw.step(&mut layer, 1.0, 1.0, false))?;
    lost("read", y.to_f32(&backend).map(drop))?;
    drop((x, y, saved, layer, adamw, backend));
    bits(&crate::backend(CudaOptions::default())?, SMALL).map(drop)
}

fn time_limit() -> Outcome {
    let (fake, options) = device(5)?;
    let backend = open(&CudaOptions { time_limit: std::time::Duration::from_millis(30), ..options })?;
    let x = backend.alloc("x", DType::F32, 4, Category::Scratch).map_err(text)?;
    let mut recording = Recording::new();
    (0..64).for_each(|bits| recording.fill(&x, bits));
    fake.set("jitter_us@5", 20_000)?;
    let fence = backend.submit(&recording).map_err(text)?;
    let error = refused("a long wait", backend.wait(&fence))?.to_string();
    fake.set("jitter_us@5", 0)?;
    holds(format!("`{error}` names command and limit"), error.contains("`fill`") && error.contains("30ms"))?;
    // Nothing is wrong with the device: whoever waits longer gets there.
    let waited = (0..200).find(|_| backend.wait(&fence).is_ok());
    holds("it ends in the end", waited.is_some())
}

fn delays() -> Outcome {
    let (fake, options) = device(5)?;
    let want = bits(&open(&options)?, SMALL)?;
    fake.set("jitter_us@5", 300)?;
    let got = bits(&open(&options)?, SMALL);
    fake.set("jitter_us@5", 0)?;
    holds("the same bits", got? == want)
}

/// When the last backend of a device is gone, so are its memory, streams, events, modules and pools.
fn without_pools() -> Outcome {
    let (fake, options) = device(7)?;
    let names =
        ["live_allocations", "live_host_allocations", "live_streams", "live_events", "live_modules", "live_pools"];
    let counts = || names.map(|name| fake.get(&format!("{name}@7")));
    let before = counts();
    let want = bits(&open(&options)?, SMALL)?;
    for (timings, pools) in [(false, 1), (true, 1), (false, 0)] {
        fake.set("pools@7", pools)?;
        let backend = open(&CudaOptions { timings, ..options.clone() });
        fake.set("pools@7", 1)?;
        let backend = backend?;
        holds("the same bits", bits(&backend, SMALL)? == want)?;
        let events = fake.get("live_events@7");
        bits(&backend, SMALL)?;
        holds("steps use the same events again", fake.get("live_events@7") == events)?;
        drop(backend);
        let after = counts();
        holds(format!("{names:?}: {before:?} before, {after:?} after"), before == after)?;
    }
    Ok(())
}

/// A backend that is dropped behind a recording, with its buffers and its fence, takes nothing away that is in use.
fn gone() -> Outcome {
    let (fake, options) = device(6)?;
    fake.set("jitter_us@6", 2000)?;
    for _ in 0..5 {
        let backend = open(&options)?;
        let z = backend.import("z", lrmoe::HostData::F32(vec![0.5; 300]), Category::Scratch).map_err(text)?;
        let s = backend.alloc("s", DType::F32, 300, Category::Scratch).map_err(text)?;
        let mut recording = Recording::new();
        recording.dispatch(lrmoe::kernel::Sigmoid { len: 300, z, s }).map_err(text)?;
        drop(backend.submit(&recording).map_err(text)?);
    }
    fake.set("jitter_us@6", 0)
}

/// What a process of its own says of its devices.
fn report(environment: &[(&str, &str)]) -> Result<String, String> {
    let program = std::env::current_exe().map_err(text)?;
    let output = Command::new(program).env(CHILD, "1").envs(environment.iter().copied()).output().map_err(text)?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    holds(format!("the process ends well: {out}{err}"), output.status.success() && !err.contains("panicked"))?;
    Ok(out.into_owned())
}

/// The reason stands in the list of devices, in the report of `auto`, and in the error of whoever asks for CUDA.
fn reason(environment: &[(&str, &str)], why: &str) -> Outcome {
    let report = report(environment)?;
    let lines = report.lines().filter(|line| line.contains(why)).count();
    holds(format!("three lines of\n{report}\nsay `{why}`"), lines == 3)?;
    holds(format!("auto goes on in\n{report}"), report.contains("auto: cpu") || report.contains("auto: wgpu"))
}

fn no_device() -> Outcome {
    reason(&[("LRMOE_FAKE_CUDA_DEVICES", "0")], "CUDA_ERROR_NO_DEVICE")
}

fn old_driver() -> Outcome {
    reason(&[("LRMOE_FAKE_CUDA_DRIVER", "11040")], "the driver supports CUDA 11.4; 11.7 or newer is needed")
}

fn old_gpu() -> Outcome {
    let environment = [("LRMOE_FAKE_CUDA_MAJOR", "7"), ("LRMOE_FAKE_CUDA_MINOR", "5")];
    reason(&environment, "is sm_75; the kernels need sm_80 or newer")
}

fn missing_symbol() -> Outcome {
    for symbol in ["cuStreamWriteValue32_v2", "cuMemAllocFromPoolAsync", "cuGetErrorString"] {
        let why = format!("the CUDA driver is too old: it lacks {symbol}");
        reason(&[("LRMOE_FAKE_CUDA_WITHOUT", symbol)], &why)?;
    }
    Ok(())
}
