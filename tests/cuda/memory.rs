//! Budgets, pools, faults, and what is kept.

use libtest_mimic::Trial;
use lrmoe::kernel::{GroupedDgrad, GroupedForward, SwiGlu, SwiGluBackward};
use lrmoe::memory::Category;
use lrmoe::{Backend, CudaBackend, CudaOptions, DType, Error, HostData, Recording};

use crate::support::backend as generic;
use crate::support::outcome::{Outcome, holds, refused, text};
use crate::support::step::{SMALL, bits, values};
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
        trial("memory::fused_commands_leave_what_single_ones_leave", fused),
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
    generic::foreign(&backend(CudaOptions::default())?, &CudaBackend::new(CudaOptions::default()).map_err(text)?)
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

/// Every buffer of a product and its SwiGLU, forward and backward, gathered and scaled: products and what goes through SwiGLU bit by bit,
/// sums over rows within a rounding.
fn fused() -> Outcome {
    let (rows, groups, hidden, width) = (150, 3, 40, 36);
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        let run = |fuse: bool| -> Result<Vec<Vec<f32>>, String> {
            let backend = backend(CudaOptions { fuse, ..Default::default() })?;
            let floats = |seed, len| HostData::F32(values(seed, len));
            let import = |name, data| backend.import(name, data, Category::Scratch).map_err(text);
            let alloc = |name, len| backend.alloc(name, DType::F32, len, Category::Scratch).map_err(text);
            let stored = |seed, len| HostData::from_f32(values(seed, len), dtype);
            let (x, dy) = (import("x", floats(1, 80 * hidden))?, import("dy", floats(2, 80 * hidden))?);
            let index = import("index", HostData::U32((0..rows as u32).map(|row| (row * 7) % 160).collect()))?;
            let (w, down) = (
                import("w", stored(3, groups * 2 * width * hidden))?,
                import("down", stored(4, groups * width * hidden))?,
            );
            let offsets = import("offsets", HostData::U32(vec![0, 70, 70, 141]))?;
            let (ab, h, norm) = (alloc("ab", rows * 2 * width)?, alloc("h", rows * width)?, alloc("norm", rows)?);
            let (u, d_ab) = (alloc("u", rows * width)?, alloc("d_ab", rows * 2 * width)?);
            let (again, dot) = (alloc("again", rows * width)?, alloc("dot", rows)?);
            let scale = import("scale", floats(5, rows))?;
            let ab_index = import("ab_index", HostData::U32((0..rows as u32).rev().map(|row| row % 141).collect()))?;
            let mut recording = Recording::new();
            // What lies behind the last group is left alone, whatever it was.
            [&ab, &h, &norm, &u, &d_ab, &again, &dot].into_iter().for_each(|buffer| recording.fill(buffer, 0));
            let forward = GroupedForward {
                rows,
                groups,
                n: 2 * width,
                k: hidden,
                index_div: 2,
                x,
                index: Some(index.clone()),
                w,
                offsets: offsets.clone(),
                out: ab.clone(),
            };
            let swiglu = SwiGlu {
                rows,
                width,
                groups,
                ab: ab.clone(),
                offsets: offsets.clone(),
                h: h.clone(),
                norm: norm.clone(),
            };
            let (n, k) = (hidden, width);
            let dgrad = GroupedDgrad {
                rows,
                groups,
                n,
                k,
                index_div: 2,
                dy,
                index: Some(index),
                w: down,
                offsets: offsets.clone(),
                out: u.clone(),
            };
            let backward = SwiGluBackward {
                rows,
                width,
                groups,
                ab: ab.clone(),
                ab_index: Some(ab_index),
                u: u.clone(),
                scale: Some(scale),
                offsets,
                d_ab: d_ab.clone(),
                h: again.clone(),
                dot: dot.clone(),
            };
            recording.dispatch(forward).map_err(text)?;
            recording.dispatch(swiglu).map_err(text)?;
            recording.dispatch(dgrad).map_err(text)?;
            recording.dispatch(backward).map_err(text)?;
            backend.submit(&recording).and_then(|fence| backend.wait(&fence)).map_err(text)?;
            let read = |buffer| backend.read_blocking(buffer).and_then(HostData::into_f32).map_err(text);
            [&ab, &h, &u, &d_ab, &again, &norm, &dot].into_iter().map(read).collect()
        };
        let (one, two) = (run(true)?, run(false)?);
        for (name, (one, two)) in ["ab", "h", "u", "d_ab", "h again"].iter().zip(one.iter().zip(&two)) {
            let differing = one.iter().zip(two).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            holds(format!("{dtype}: {differing} of {} elements of {name} differ", one.len()), differing == 0)?;
        }
        for (name, (one, two)) in ["norm", "dot"].iter().zip(one[5..].iter().zip(&two[5..])) {
            let largest = two.iter().fold(0f32, |largest, x| largest.max(x.abs()));
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 4.0 * f32::EPSILON * largest;
            holds(format!("{dtype}: {name}: {one:?} is {two:?}"), one.iter().zip(two).all(close))?;
        }
    }
    Ok(())
}
