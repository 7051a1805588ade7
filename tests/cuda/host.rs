//! A host application's context, stream and memory.

use libtest_mimic::Trial;
use lrmoe::backend::cuda::cudarc::driver::{CudaContext, DevicePtr, result};
use lrmoe::kernel::Sigmoid;
use lrmoe::{Backend, CudaBackend, CudaOptions, DType, HostData, Recording};

use crate::support::backend as generic;
use crate::support::outcome::{Outcome, holds, refused, text};
use crate::support::step::{SMALL, bits};
use crate::{backend, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("host::memory_of_the_hosts_is_used_in_place", in_place),
        trial("host::streams_in_threads_give_the_same_bits", threads),
        trial("host::the_threads_context_stays_the_hosts", current_context),
        trial("host::addresses_that_do_not_fit_are_refused", not_borrowed),
        trial("host::the_per_thread_stream_is_refused", per_thread),
    ]
}

/// Kernels read and write a host's allocation between the host's own commands on its stream, at odd offsets, and nothing else.
fn in_place() -> Outcome {
    let context = CudaContext::new(0).map_err(text)?;
    for stream in [context.default_stream(), context.new_stream().map_err(text)?] {
        let lrmoe = CudaBackend::adopt(&stream, CudaOptions::default()).map_err(text)?;
        let before: Vec<f32> = (0..200).map(|i| i as f32 / 100.0 - 1.0).collect();
        let memory = stream.clone_htod(&before).map_err(text)?;
        let (address, guard) = memory.device_ptr(&stream);
        // SAFETY: both parts lie in the allocation, which lives until the end.
        let (z, s) = unsafe {
            let z = lrmoe.borrow("z", address + 4 * 3, DType::F32, 37).map_err(text)?;
            (z, lrmoe.borrow("s", address + 4 * 101, DType::F32, 37).map_err(text)?)
        };
        let mut recording = Recording::new();
        recording.dispatch(Sigmoid { len: 37, z: z.clone(), s: s.clone() }).map_err(text)?;
        lrmoe.submit(&recording).map_err(text)?;
        drop(guard);
        let after = stream.clone_dtoh(&memory).map_err(text)?;
        for (i, (before, after)) in before.iter().zip(&after).enumerate().filter(|(i, _)| !(101..138).contains(i)) {
            holds(format!("element {i} stays"), before == after)?;
        }
        for i in 0..37 {
            let want = 1.0 / (1.0 + (-before[3 + i]).exp());
            holds(format!("sigmoid {i}: {} is {want}", after[101 + i]), (after[101 + i] - want).abs() < 1e-6)?;
        }
        holds("the account knows nothing of it", lrmoe.memory().report().reserved == 0)?;
        // SAFETY: as above.
        let overlapping = unsafe { lrmoe.borrow("overlapping", address + 4 * 4, DType::F32, 37) }.map_err(text)?;
        refused("a copy onto itself", recording.copy(&z, &overlapping))?;
        recording.copy(&z, &s).map_err(text)?;
    }
    Ok(())
}

/// A backend a thread, each on a stream of its own in the one context.
fn threads() -> Outcome {
    let own = || CudaBackend::new(CudaOptions { poison: true, ..Default::default() }).map_err(text);
    generic::threads(&backend(CudaOptions::default())?, 3, own)
}

fn current_context() -> Outcome {
    std::thread::spawn(|| {
        let current = || result::ctx::get_current().map_err(text);
        let none = current()?;
        holds("a new thread has no context", none.is_none())?;
        let lrmoe = CudaBackend::new(CudaOptions::default()).map_err(text)?;
        bits(&lrmoe, SMALL)?;
        holds("it has none afterwards", current()?.is_none())?;
        drop(lrmoe);
        holds("nor when the backend is gone", current()?.is_none())?;
        let context = CudaContext::new(0).map_err(text)?;
        context.bind_to_thread().map_err(text)?;
        let mine = current()?;
        let adopted = CudaBackend::adopt(&context.default_stream(), CudaOptions::default()).map_err(text)?;
        bits(&adopted, SMALL)?;
        holds("the host's is current afterwards", current()? == mine && mine.is_some())?;
        drop(adopted);
        holds("and when the backend is gone", current()? == mine)
    })
    .join()
    .map_err(|_| "the thread panicked".to_owned())?
}

fn not_borrowed() -> Outcome {
    let lrmoe = backend(CudaOptions::default())?;
    let ours = lrmoe.import("ours", HostData::F32(vec![0.0; 64]), lrmoe::memory::Category::Scratch).map_err(text)?;
    let address = lrmoe.address(&ours);
    let on_the_host = vec![0.0f32; 64];
    for (address, dtype, len, part) in [
        (address + 2, DType::F32, 4, "multiple of 4"),
        (address + 1, DType::BF16, 4, "multiple of 2"),
        (on_the_host.as_ptr() as u64, DType::F32, 4, "one allocation of this device"),
        (0, DType::F32, 4, "one allocation of this device"),
        (address, DType::F32, 1 << 30, "one allocation of this device"),
        (address, DType::F32, usize::MAX, "address space"),
    ] {
        // SAFETY: refused, so nothing is ever read or written there.
        let error = refused("an address", unsafe { lrmoe.borrow("part", address, dtype, len) })?.to_string();
        holds(format!("`{error}` says {part}"), error.contains(part) && error.contains("part"))?;
    }
    Ok(())
}

fn per_thread() -> Outcome {
    let context = CudaContext::new(0).map_err(text)?;
    let adopted = CudaBackend::adopt(&context.per_thread_stream(), CudaOptions::default());
    let error = refused("a stream for each thread", adopted)?.to_string();
    holds(format!("`{error}` says so"), error.contains("per-thread"))
}
