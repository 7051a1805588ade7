//! Budgets, pools, faults, and what is kept.

use libtest_mimic::Trial;
use lrmoe::memory::Category;
use lrmoe::{Backend, CudaBackend, CudaOptions, DType, Error, Recording};

use crate::support::backend as generic;
use crate::support::outcome::{Outcome, holds, refused, text};
use crate::support::step::{SMALL, bits};
use crate::{backend, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("memory::a_budget_of_a_few_kib", budgets),
        trial("memory::more_than_the_device_has_is_refused", absurd),
        trial("memory::a_steady_state_allocates_nothing", steady),
        trial("memory::recordings_that_nobody_waits_for_do_not_pile_up", abandoned),
        trial("memory::sixteen_bit_uploads_keep_their_neighbours", odd_halves),
        trial("memory::a_fault_is_reported_once_by_wait_and_by_read", faults),
        trial("memory::a_refused_recording_leaves_the_device_usable", refused_recording),
        trial("memory::buffers_and_fences_of_another_device_are_refused", foreign),
        trial("memory::times_are_there_for_every_command", times),
    ]
}

fn budgets() -> Outcome {
    generic::budgets(|budget| backend(CudaOptions { budget, ..Default::default() }))
}

fn absurd() -> Outcome {
    let free = backend(CudaOptions::default())?;
    let beyond = usize::try_from(free.caps().max_buffer_bytes).map_err(text)? / 2;
    let error = refused("more than there is", free.alloc("huge", DType::F32, beyond, Category::Weights))?;
    holds(format!("`{error}` is the system's"), matches!(error, Error::SystemMemory { .. }))?;
    let report = free.memory().report();
    holds("nothing stays of it", (report.reserved, report.peak_total(), report.allocations) == (0, 0, 0))?;
    bits(&free, SMALL).map(drop)
}

fn steady() -> Outcome {
    generic::steady(&backend(CudaOptions::default())?, |_| 0)
}

fn abandoned() -> Outcome {
    generic::abandoned(&backend(CudaOptions::default())?)
}

fn odd_halves() -> Outcome {
    generic::odd_halves(&backend(CudaOptions::default())?)
}

fn faults() -> Outcome {
    let backend = backend(CudaOptions::default())?;
    let beside = backend.beside(CudaOptions::default()).map_err(text)?;
    let unchecked = crate::backend(CudaOptions { checks: false, ..Default::default() })?;
    generic::faults(&backend, &beside, &unchecked)
}

fn refused_recording() -> Outcome {
    generic::refused_recording(&backend(CudaOptions::default())?)
}

fn foreign() -> Outcome {
    let mine = backend(CudaOptions::default())?;
    generic::foreign(&mine, &CudaBackend::new(CudaOptions::default()).map_err(text)?)?;
    // On the same stream, accounts and fences are still each backend's own.
    let beside = mine.beside(CudaOptions { timings: true, ..Default::default() }).map_err(text)?;
    let fence = beside.submit(&Recording::new()).map_err(text)?;
    refused("a wait beside", mine.wait(&fence))?;
    holds("no times of another's", mine.timings(&fence).is_none())?;
    beside.wait(&fence).map_err(text)
}

fn times() -> Outcome {
    let timed = backend(CudaOptions { timings: true, ..Default::default() })?;
    let x = timed.alloc("x", DType::F32, 1 << 16, Category::Scratch).map_err(text)?;
    let mut recording = Recording::new();
    (0..3).for_each(|bits| recording.fill(&x, bits));
    let fence = timed.submit(&recording).map_err(text)?;
    let times = timed.timings(&fence).ok_or("no times")?;
    holds(format!("{times:?} are three"), times.len() == 3)?;
    let untimed = backend(CudaOptions::default())?;
    let fence = untimed.submit(&Recording::new()).map_err(text)?;
    holds("not measured is not zero", untimed.timings(&fence).is_none())
}
