//! Devices that go away, many devices at once, and what goes wrong on one.

use libtest_mimic::Trial;
use lrmoe::memory::Category;
use lrmoe::{Backend, DType, Error, ForwardContext, Tensor, WgpuBackend, WgpuOptions};

use crate::support::backend as generic;
use crate::support::outcome::{Outcome, holds, refused, text};
use crate::support::step::{SMALL, bits, layer, values};
use crate::{backend, trial};

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
    let own = || WgpuBackend::new(WgpuOptions { poison: true, ..Default::default() }).map_err(text);
    generic::threads(&backend(WgpuOptions::default())?, 8, own)
}

fn faults() -> Outcome {
    let backend = backend(WgpuOptions::default())?;
    let hasty = WgpuOptions { time_limit: std::time::Duration::from_secs(20), ..Default::default() };
    let beside = backend.beside(hasty).map_err(text)?;
    let unchecked = crate::backend(WgpuOptions { checks: false, ..Default::default() })?;
    generic::faults(&backend, &beside, &unchecked)
}

fn refused_recording() -> Outcome {
    generic::refused_recording(&backend(WgpuOptions::default())?)
}

fn foreign() -> Outcome {
    generic::foreign(&backend(WgpuOptions::default())?, &WgpuBackend::new(WgpuOptions::default()).map_err(text)?)
}
