//! Small limits: bindings, grids, budgets, times.

use std::time::Duration;

use libtest_mimic::Trial;
use lrmoe::kernel::{GroupedDgrad, GroupedForward, GroupedWgrad, Sigmoid};
use lrmoe::memory::Category;
use lrmoe::{Backend, DType, Error, HostData, Recording, WgpuBackend, WgpuOptions};

use crate::support::outcome::{Outcome, holds, refused, text};
use crate::support::step::{SMALL, Size, bits, values};
use crate::{backend, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("limits::weights_in_windows_of_16_kib", windows_of_a_step),
        trial("limits::experts_larger_than_a_binding", windows_within_an_expert),
        trial("limits::weights_beyond_128_mib", beyond_128_mib),
        trial("limits::token_buffers_beyond_a_binding_are_refused_with_the_numbers", too_many_rows),
        trial("limits::grids_of_64_workgroups_are_folded", folded),
        trial("limits::impossible_limits_are_refused", impossible),
        trial("limits::a_wait_ends", waits_end),
        trial("limits::times_are_measured_or_absent", times),
        trial("limits::twenty_runs_have_the_same_bits", twenty),
    ]
}

/// Expert weights of 28 KiB, no row buffer above 16 KiB.
const WIDE: Size = Size { tokens: 24, hidden: 32, width: 20, experts: 6, top_k: 2, dtype: DType::F32 };

fn windows_of_a_step() -> Outcome {
    let small = backend(WgpuOptions { binding_bytes: Some(16 << 10), ..Default::default() })?;
    // Not a multiple of what bindings are aligned to.
    let odd = backend(WgpuOptions { binding_bytes: Some((16 << 10) + 132), ..Default::default() })?;
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let size = Size { dtype, ..WIDE };
        let whole = bits(&backend(WgpuOptions::default())?, size)?;
        holds(format!("windows do not change a bit in {dtype}"), bits(&small, size)? == whole)?;
        holds(format!("nor do odd ones in {dtype}"), bits(&odd, size)? == whole)?;
    }
    Ok(())
}

/// One grouped GEMM of each kind.
fn gemms(backend: &WgpuBackend, groups: usize, n: usize, k: usize, rows: usize) -> lrmoe::Result<Vec<HostData>> {
    let upload = |name: &str, data: HostData| backend.import(name, data, Category::Scratch);
    let x = upload("x", HostData::F32(values(1, rows * k)))?;
    let dy = upload("dy", HostData::F32(values(2, rows * n)))?;
    let w = upload("w", HostData::F32(values(3, groups * n * k)))?;
    let offsets: Vec<u32> = (0..=groups).map(|e| (rows * e / groups) as u32).collect();
    let offsets = upload("offsets", HostData::U32(offsets))?;
    let out = backend.alloc("out", DType::F32, rows * n, Category::Scratch)?;
    let dx = backend.alloc("dx", DType::F32, rows * k, Category::Scratch)?;
    let dw = backend.alloc("dw", DType::F32, groups * n * k, Category::Scratch)?;
    let mut recording = Recording::new();
    recording.dispatch(GroupedForward {
        rows,
        groups,
        n,
        k,
        index_div: 1,
        x: x.clone(),
        index: None,
        w: w.clone(),
        offsets: offsets.clone(),
        out: out.clone(),
    })?;
    recording.dispatch(GroupedDgrad {
        rows,
        groups,
        n,
        k,
        index_div: 1,
        dy: dy.clone(),
        index: None,
        w,
        offsets: offsets.clone(),
        out: dx.clone(),
    })?;
    recording.dispatch(GroupedWgrad {
        rows,
        groups,
        n,
        k,
        dy_div: 1,
        x_div: 1,
        accumulate: false,
        dy,
        dy_index: None,
        dy_scale: None,
        x,
        x_index: None,
        offsets,
        out: dw.clone(),
    })?;
    let fence = backend.submit(&recording)?;
    backend.wait(&fence)?;
    [out, dx, dw].iter().map(|buffer| backend.read_blocking(buffer)).collect()
}

/// An expert of 50 KiB is bound in windows of its own rows.
fn windows_within_an_expert() -> Outcome {
    let (groups, n, k, rows) = (3, 72, 180, 20);
    let whole = gemms(&backend(WgpuOptions::default())?, groups, n, k, rows).map_err(text)?;
    let small = backend(WgpuOptions { binding_bytes: Some(16 << 10), ..Default::default() })?;
    holds("windows do not change a bit", gemms(&small, groups, n, k, rows).map_err(text)? == whole)
}

/// 132 MiB of weights: more than one binding of many devices.
fn beyond_128_mib() -> Outcome {
    let (groups, n, k, rows) = (33, 1024, 1024, 34);
    let shared = backend(WgpuOptions { binding_bytes: Some(128 << 20), ..Default::default() })?;
    let few = gemms(&shared, groups, n, k, rows).map_err(text)?;
    let (x, dy, w) = (values(1, rows * k), values(2, rows * n), values(3, groups * n * k));
    let numbers = |data: &HostData| data.clone().into_f32().map_err(text);
    let (out, dx, dw) = (numbers(&few[0])?, numbers(&few[1])?, numbers(&few[2])?);
    let near = |what: &str, got: f32, want: f64| {
        holds(format!("{what}: {got} is {want}"), (f64::from(got) - want).abs() < 1e-3)
    };
    let sum = |terms: &mut dyn Iterator<Item = (f32, f32)>| terms.map(|(a, b)| f64::from(a) * f64::from(b)).sum();
    // The last group lies in the last window; both of its rows are its own.
    for (rows_of, group) in [(0..1, 0), (rows - 2..rows, groups - 1)] {
        for j in [0, n - 1] {
            for row in rows_of.clone() {
                let weight = |i: usize| w[(group * n + j) * k + i];
                near("out", out[row * n + j], sum(&mut (0..k).map(|i| (x[row * k + i], weight(i)))))?;
                let column = |i: usize| w[(group * n + i) * k + j];
                near("dx", dx[row * k + j], sum(&mut (0..n).map(|i| (dy[row * n + i], column(i)))))?;
            }
            let products = &mut rows_of.clone().map(|row| (dy[row * n + j], x[row * k + j]));
            near("dw", dw[(group * n + j) * k + j], sum(products))?;
        }
    }
    Ok(())
}

fn too_many_rows() -> Outcome {
    let small = backend(WgpuOptions { binding_bytes: Some(16 << 10), ..Default::default() })?;
    let error = refused("x of 32 KiB", gemms(&small, 2, 8, 64, 128).map(drop))?.to_string();
    holds(format!("`{error}` names both sizes"), error.contains("32768") && error.contains("16384"))
}

fn folded() -> Outcome {
    let whole = bits(&backend(WgpuOptions::default())?, SMALL)?;
    let narrow = backend(WgpuOptions { grid: Some(64), ..Default::default() })?;
    holds("a narrow grid does not change a bit", bits(&narrow, SMALL)? == whole)?;
    // More workgroups than 64 x 64: several dispatches.
    let len = 64 * 64 * 64 * 3 + 5;
    let z = narrow.import("z", HostData::F32(vec![0.0; len]), Category::Scratch).map_err(text)?;
    let s = narrow.alloc("s", DType::F32, len, Category::Scratch).map_err(text)?;
    let mut recording = Recording::new();
    recording.dispatch(Sigmoid { len, z, s: s.clone() }).map_err(text)?;
    narrow.submit(&recording).map_err(text)?;
    let got = narrow.read_blocking(&s).and_then(HostData::into_f32).map_err(text)?;
    holds("every element is written", got.iter().all(|&s| s == 0.5))
}

fn impossible() -> Outcome {
    let shared = backend(WgpuOptions::default())?;
    for options in [
        WgpuOptions { grid: Some(0), ..Default::default() },
        WgpuOptions { binding_bytes: Some(1000), ..Default::default() },
    ] {
        let error = refused("a limit", shared.beside(options))?;
        holds(format!("`{error}` is about an argument"), matches!(error, Error::Argument { .. }))?;
    }
    for adapter in ["no such adapter", "4000"] {
        let error = refused(
            "an adapter",
            WgpuBackend::new(WgpuOptions { adapter: Some(adapter.into()), ..Default::default() }),
        )?;
        holds(format!("`{error}` names it"), error.to_string().contains(adapter))?;
    }
    Ok(())
}

/// A limit that nothing meets is an error that says so; with another the device still works.
fn waits_end() -> Outcome {
    let hasty = backend(WgpuOptions { time_limit: Duration::ZERO, poison: false, ..Default::default() })?;
    let len = 1 << 22;
    let z = hasty.alloc("z", DType::F32, len, Category::Scratch).map_err(text)?;
    let s = hasty.alloc("s", DType::F32, len, Category::Scratch).map_err(text)?;
    let mut recording = Recording::new();
    for _ in 0..20 {
        recording.dispatch(Sigmoid { len, z: z.clone(), s: s.clone() }).map_err(text)?;
    }
    // A thread that gets no processor for long enough finds the work done; not many times in a row.
    let mut error = None;
    for _ in 0..100 {
        let fence = hasty.submit(&recording).map_err(text)?;
        error = hasty.wait(&fence).err().map(text);
        if error.is_some() {
            break;
        }
    }
    let error = error.ok_or("a hundred waits of no time were long enough")?;
    holds(format!("`{error}` names the option"), error.contains("time_limit"))?;
    let patient = backend(WgpuOptions::default())?;
    bits(&patient, SMALL).map(drop)
}

fn times() -> Outcome {
    let run = |options: WgpuOptions| -> Result<Option<Vec<Duration>>, String> {
        let backend = backend(options)?;
        let len = 1 << 20;
        let z = backend.import("z", HostData::F32(vec![0.0; len]), Category::Scratch).map_err(text)?;
        let s = backend.alloc("s", DType::F32, len, Category::Scratch).map_err(text)?;
        let mut recording = Recording::new();
        recording.dispatch(Sigmoid { len: 0, z: z.clone(), s: s.clone() }).map_err(text)?;
        recording.fill(&s, 0);
        recording.dispatch(Sigmoid { len, z: z.clone(), s: s.clone() }).map_err(text)?;
        recording.copy(&s, &z).map_err(text)?;
        let fence = backend.submit(&recording).map_err(text)?;
        backend.wait(&fence).map_err(text)?;
        Ok(backend.timings(&fence))
    };
    holds("not asked for is absent", run(WgpuOptions::default())?.is_none())?;
    let features = backend(WgpuOptions::default())?.device().features();
    let times = run(WgpuOptions { timings: true, ..Default::default() })?;
    if !features.contains(wgpu::Features::TIMESTAMP_QUERY) {
        return holds("what cannot be measured is absent", times.is_none());
    }
    let times = times.ok_or("a device with timestamps measured nothing")?;
    holds("one time a command, also of one with nothing to do", times.len() == 4 && times[0].is_zero())?;
    holds(format!("a million exponentials take time: {times:?}"), times[2] > Duration::from_nanos(100))?;
    // A recording that is so long that its last command is submitted before its end.
    let backend = backend(WgpuOptions { timings: true, checks: false, ..Default::default() })?;
    let len = 1 << 22;
    let z = backend.import("z", HostData::F32(vec![0.0; len]), Category::Scratch).map_err(text)?;
    let s = backend.alloc("s", DType::F32, len, Category::Scratch).map_err(text)?;
    let mut recording = Recording::new();
    for _ in 0..70 {
        recording.dispatch(Sigmoid { len, z: z.clone(), s: s.clone() }).map_err(text)?;
    }
    let fence = backend.submit(&recording).map_err(text)?;
    let times = backend.timings(&fence).ok_or("nothing was measured")?;
    holds("every command of a long recording takes time", times.iter().all(|time| !time.is_zero()))
}

fn twenty() -> Outcome {
    let backend = backend(WgpuOptions::default())?;
    let first = bits(&backend, SMALL)?;
    for run in 1..20 {
        holds(format!("run {run} has the bits of the first"), bits(&backend, SMALL)? == first)?;
    }
    Ok(())
}
