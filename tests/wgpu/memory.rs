//! Budgets, pools and what is kept.

use libtest_mimic::Trial;
use lrmoe::kernel::GatherRows;
use lrmoe::memory::Category;
use lrmoe::{Backend, DType, Error, ForwardContext, HostData, Recording, Tensor, WgpuOptions};

use crate::step::{SMALL, bits, layer, values};
use crate::{Outcome, backend, holds, refused, text, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("memory::a_budget_of_a_few_kib", few_kib),
        trial("memory::the_budget_refuses_before_the_driver", absurd),
        trial("memory::a_steady_state_allocates_nothing", steady),
        trial("memory::recordings_that_nobody_waits_for_do_not_pile_up", abandoned),
        trial("memory::sixteen_bit_uploads_keep_their_neighbours", odd_halves),
    ]
}

/// Every budget either refuses with the numbers or gives the results of no budget at all.
fn few_kib() -> Outcome {
    let free = bits(&backend(WgpuOptions::default())?, SMALL)?;
    let mut refusals = 0;
    for budget in [0, 4, 1 << 10, 4 << 10, 20 << 10, 60 << 10, 120 << 10, 4 << 20] {
        let limited = backend(WgpuOptions { budget: Some(budget), ..Default::default() })?;
        match bits(&limited, SMALL) {
            Ok(got) => holds(format!("{budget} bytes give the same bits"), got == free)?,
            Err(error) => {
                refusals += 1;
                let numbers = error.contains("budget") && error.contains(&budget.to_string());
                holds(format!("`{error}` names the budget of {budget}"), numbers)?;
            }
        }
        holds("the budget was kept", limited.memory().report().reserved <= budget)?;
    }
    holds("small budgets are refused and large ones are enough", (3..8).contains(&refusals))
}

fn absurd() -> Outcome {
    let limited = backend(WgpuOptions { budget: Some(1 << 20), ..Default::default() })?;
    let error = refused("80 GB", limited.alloc("huge", DType::F32, 20 << 30, Category::Weights))?;
    holds(format!("`{error}` is the budget's"), matches!(error, Error::OutOfMemory { .. }))?;
    let free = backend(WgpuOptions::default())?;
    let beyond = usize::try_from(free.caps().max_buffer_bytes).map_err(text)? / 2;
    let error = refused("a buffer beyond the limit", free.alloc("huge", DType::F32, beyond, Category::Weights))?;
    let numbers = error.to_string().contains(&free.caps().max_buffer_bytes.to_string());
    holds(format!("`{error}` names the limit"), numbers)?;
    let report = free.memory().report();
    holds("nothing stays of it", (report.reserved, report.peak_total(), report.allocations) == (0, 0, 0))?;
    bits(&free, SMALL).map(drop)
}

/// Recordings that nobody waits for do not pile up, and their faults are told.
fn abandoned() -> Outcome {
    let backend = backend(WgpuOptions::default())?;
    let import = |name, data| backend.import(name, data, Category::Scratch).map_err(text);
    let recording = |index: u32| -> Result<Recording<_>, String> {
        let mut recording = Recording::new();
        let args = GatherRows {
            rows: 1,
            cols: 1,
            index_div: 1,
            groups: 1,
            src: import("src", HostData::F32(vec![1.0; 3]))?,
            index: import("index", HostData::U32(vec![index]))?,
            scale: None,
            offsets: import("offsets", HostData::U32(vec![0, 1]))?,
            dst: backend.alloc("dst", DType::F32, 1, Category::Scratch).map_err(text)?,
        };
        recording.dispatch(args).map_err(text)?;
        Ok(recording)
    };
    let (good, bad) = (recording(2)?, recording(3)?);
    drop(backend.submit(&bad).map_err(text)?);
    let error = (0..1000).find_map(|_| backend.submit(&good).err()).ok_or("the fault was never told")?.to_string();
    holds(format!("`{error}` is the fault"), error.contains("index") && error.contains("below 3"))
}

fn steady() -> Outcome {
    let backend = backend(WgpuOptions::default())?;
    let (mut layer, mut adamw) = layer(&backend, SMALL)?;
    let mut after = Vec::new();
    for step in 0..6 {
        let host = values(step, SMALL.tokens * SMALL.hidden);
        let x = Tensor::from_f32(&backend, &host, SMALL.tokens, SMALL.hidden).map_err(text)?;
        let (y, saved) = layer.forward(&x, &ForwardContext { step, ..Default::default() }).map_err(text)?;
        layer.backward(&saved, &y).map_err(text)?;
        adamw.step(&mut layer, 1e-3, 1.0, false).map_err(text)?;
        layer.zero_grad();
        let report = backend.memory().report();
        after.push((report.allocations, backend.shaders().len()));
    }
    holds(format!("allocations and kernels after each step: {after:?}"), after[2..].iter().all(|a| *a == after[2]))
}

fn odd_halves() -> Outcome {
    let backend = backend(WgpuOptions::default())?;
    let halves = |range: std::ops::Range<u16>| HostData::BF16(range.map(half::bf16::from_bits).collect());
    let buffer = backend.alloc("halves", DType::BF16, 11, Category::Scratch).map_err(text)?;
    backend.upload(&buffer, 0, &halves(100..111)).map_err(text)?;
    let mut want: Vec<u16> = (100..111).collect();
    for (offset, len) in [(1, 1), (2, 1), (3, 5), (4, 6), (10, 1), (0, 3)] {
        let start = 1000 * (offset as u16 + 1);
        backend.upload(&buffer, offset, &halves(start..start + len as u16)).map_err(text)?;
        (0..len).for_each(|i| want[offset + i] = start + i as u16);
        let HostData::BF16(got) = backend.read_blocking(&buffer).map_err(text)? else { return Err("not bf16".into()) };
        let got: Vec<u16> = got.iter().map(|half| half.to_bits()).collect();
        holds(format!("{len} from {offset} on: {got:?}, {want:?}"), got == want)?;
        let part = pollster::block_on(backend.read(&buffer, offset..offset + len)).map_err(text)?;
        holds("a part is read", part == halves(start..start + len as u16))?;
    }
    Ok(())
}
