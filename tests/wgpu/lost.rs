//! Devices that go away, many devices at once, and what goes wrong on one.

use libtest_mimic::Trial;
use lrmoe::kernel::GatherRows;
use lrmoe::memory::Category;
use lrmoe::{Backend, DType, Error, ForwardContext, HostData, Recording, Tensor, WgpuBackend, WgpuOptions};

use crate::step::{SMALL, bits, layer, values};
use crate::{Outcome, backend, holds, refused, text, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("lost::a_device_destroyed_in_mid_run", destroyed),
        trial("lost::eight_devices_in_eight_threads", eight),
        trial("lost::a_fault_is_reported_once_by_wait_and_by_read", faults),
        trial("lost::buffers_and_fences_of_another_device_are_refused", foreign),
        trial("lost::a_refused_recording_leaves_the_device_usable", refused_recording),
    ]
}

/// Between forward and backward: an error that says so, at every later call, and no panic. Other devices go on.
fn destroyed() -> Outcome {
    let backend = WgpuBackend::new(WgpuOptions::default()).map_err(text)?;
    let (mut layer, mut adamw) = layer(&backend, SMALL)?;
    let x = Tensor::from_f32(&backend, &values(1, SMALL.tokens * SMALL.hidden), SMALL.tokens, SMALL.hidden);
    let x = x.map_err(text)?;
    let (y, saved) = layer.forward(&x, &ForwardContext::default()).map_err(text)?;
    backend.device().destroy();
    let lost = |what: &str, result: lrmoe::Result<()>| -> Outcome {
        let error = refused(what, result)?;
        holds(format!("{what}: `{error}` is a loss"), matches!(error, Error::DeviceLost { .. }))
    };
    lost("backward", layer.backward(&saved, &y).map(drop))?;
    lost("forward", layer.forward(&x, &ForwardContext::default()).map(drop))?;
    lost("step", adamw.step(&mut layer, 1.0, 1.0, false))?;
    lost("read", y.to_f32(&backend).map(drop))?;
    lost("alloc", backend.alloc("b", DType::F32, 4, Category::Scratch).map(drop))?;
    lost("beside", backend.beside(WgpuOptions::default()).map(drop))?;
    drop((x, y, saved, layer, adamw, backend));
    bits(&crate::backend(WgpuOptions::default())?, SMALL).map(drop)
}

fn eight() -> Outcome {
    let threads: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(|| {
                let backend = WgpuBackend::new(WgpuOptions { poison: true, ..Default::default() }).map_err(text)?;
                bits(&backend, SMALL)
            })
        })
        .collect();
    let results: Vec<_> =
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())).collect();
    let first = bits(&backend(WgpuOptions::default())?, SMALL)?;
    results.into_iter().try_for_each(|result| holds("all devices give the same bits", result?? == first))
}

/// A recording whose indices are out of range by one.
fn out_of_range(backend: &WgpuBackend, limit: u32) -> lrmoe::Result<Recording<lrmoe::backend::wgpu::WgpuBuffer>> {
    let import = |name, data| backend.import(name, data, Category::Scratch);
    let mut recording = Recording::new();
    recording.dispatch(GatherRows {
        rows: 3,
        cols: 2,
        index_div: 1,
        groups: 1,
        src: import("src", HostData::F32(vec![1.0; 2 * limit as usize]))?,
        index: import("index", HostData::U32(vec![0, limit, 1]))?,
        scale: None,
        offsets: import("offsets", HostData::U32(vec![0, 3]))?,
        dst: backend.alloc("dst", DType::F32, 6, Category::Scratch)?,
    })?;
    Ok(recording)
}

fn faults() -> Outcome {
    let backend = backend(WgpuOptions::default())?;
    let other = backend.import("other", HostData::F32(vec![1.0]), Category::Scratch).map_err(text)?;
    let names = |error: Error, value: &str| {
        let text = error.to_string();
        holds(format!("`{text}` names index {value}"), text.contains("index") && text.contains(value))
    };
    let fence = backend.submit(&out_of_range(&backend, 5).map_err(text)?).map_err(text)?;
    names(refused("a wait", backend.wait(&fence))?, "5")?;
    names(refused("a second wait", backend.wait(&fence))?, "5")?;
    backend.read_blocking(&other).map_err(text)?;
    // Recordings with nothing to do are waited for together with those before, good ones and bad ones.
    let hasty = backend.beside(WgpuOptions { time_limit: std::time::Duration::from_secs(20), ..Default::default() });
    let hasty = hasty.map_err(text)?;
    drop(hasty.submit(&out_of_range(&hasty, 8).map_err(text)?).map_err(text)?);
    let nothing = hasty.submit(&Recording::new()).map_err(text)?;
    names(refused("a wait for nothing", hasty.wait(&nothing))?, "8")?;
    // Nobody waits: the next wait for another recording tells, or the next read.
    drop(backend.submit(&out_of_range(&backend, 6).map_err(text)?).map_err(text)?);
    let good = backend.submit(&Recording::new()).map_err(text)?;
    names(refused("a wait for another", backend.wait(&good))?, "6")?;
    backend.wait(&good).map_err(text)?;
    drop(backend.submit(&out_of_range(&backend, 7).map_err(text)?).map_err(text)?);
    names(refused("a read", backend.read_blocking(&other))?, "7")?;
    backend.read_blocking(&other).map_err(text)?;
    let unchecked = crate::backend(WgpuOptions { checks: false, ..Default::default() })?;
    let fence = unchecked.submit(&out_of_range(&unchecked, 5).map_err(text)?).map_err(text)?;
    unchecked.wait(&fence).map_err(text)
}

fn refused_recording() -> Outcome {
    let backend = backend(WgpuOptions::default())?;
    let before = bits(&backend, SMALL)?;
    let mut recording = out_of_range(&backend, 5).map_err(text)?;
    let short = backend.alloc("short", DType::F32, 1, Category::Scratch).map_err(text)?;
    recording
        .dispatch(lrmoe::kernel::Sigmoid {
            len: 2,
            z: short,
            s: backend.alloc("s", DType::F32, 2, Category::Scratch).map_err(text)?,
        })
        .map_err(text)?;
    let error = refused("a recording with a short buffer", backend.submit(&recording).map(drop))?.to_string();
    holds(format!("`{error}` names the buffer"), error.contains("`short`"))?;
    holds("the next step is as before", bits(&backend, SMALL)? == before)
}

fn foreign() -> Outcome {
    let (mine, its) = (backend(WgpuOptions::default())?, WgpuBackend::new(WgpuOptions::default()).map_err(text)?);
    let import = |backend: &WgpuBackend, value| backend.import("x", HostData::F32(vec![value; 4]), Category::Scratch);
    let (a, b) = (import(&mine, 1.0).map_err(text)?, import(&its, 2.0).map_err(text)?);
    let named = |what: &str, result: lrmoe::Result<()>| {
        let error = refused(what, result)?.to_string();
        holds(format!("{what}: `{error}` says whose it is"), error.contains("another device"))
    };
    named("read", its.read_blocking(&a).map(drop))?;
    named("upload", its.upload(&a, 0, &HostData::F32(vec![9.0; 4])))?;
    let mut copy = Recording::new();
    copy.copy(&a, &b).map_err(text)?;
    named("copy", its.submit(&copy).map(drop))?;
    let mut fill = Recording::new();
    fill.fill(&a, 0);
    named("fill", its.submit(&fill).map(drop))?;
    let fence = mine.submit(&fill).map_err(text)?;
    named("wait", its.wait(&fence))?;
    mine.wait(&fence).map_err(text)?;
    let kept = its.read_blocking(&b).map_err(text)?;
    holds("nothing was written", kept == HostData::F32(vec![2.0; 4]))
}
