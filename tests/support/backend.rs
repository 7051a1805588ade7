//! What every backend on a device does beside running kernels: accounts, uploads, faults, refusals.

use lrmoe::kernel::{GatherRows, Sigmoid};
use lrmoe::memory::Category;
use lrmoe::{Backend, DType, Error, ForwardContext, HostData, Recording, Tensor};

use super::outcome::{Outcome, holds, refused, text};
use super::step::{SMALL, bits, layer, values};

/// Every budget either refuses with the numbers or gives the results of no budget at all.
pub fn budgets<B: Backend>(make: impl Fn(Option<u64>) -> Result<B, String>) -> Outcome {
    let free = bits(&make(None)?, SMALL)?;
    let mut refusals = 0;
    for budget in [0, 4, 1 << 10, 4 << 10, 20 << 10, 60 << 10, 120 << 10, 4 << 20] {
        let limited = make(Some(budget))?;
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

/// Backends in so many threads give the bits of a shared one.
pub fn threads<B: Backend>(shared: &B, count: usize, make: fn() -> Result<B, String>) -> Outcome {
    let threads: Vec<_> = (0..count).map(|_| std::thread::spawn(move || bits(&make()?, SMALL))).collect();
    let results: Vec<_> =
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())).collect();
    let one = bits(shared, SMALL)?;
    results.into_iter().try_for_each(|result| holds("all threads get the same bits", result?? == one))
}

/// Recordings that nobody waits for do not pile up, and their faults are told.
pub fn abandoned<B: Backend>(backend: &B) -> Outcome {
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

/// After its first steps a layer allocates nothing more, and nothing else grows that `made` counts.
pub fn steady<B: Backend>(backend: &B, made: impl Fn(&B) -> usize) -> Outcome {
    let (mut layer, mut adamw) = layer(backend, SMALL)?;
    let mut after = Vec::new();
    for step in 0..6 {
        let host = values(step, SMALL.tokens * SMALL.hidden);
        let x = Tensor::from_f32(backend, &host, SMALL.tokens, SMALL.hidden).map_err(text)?;
        let (y, saved) = layer.forward(&x, &ForwardContext { step, ..Default::default() }).map_err(text)?;
        layer.backward(&saved, &y).map_err(text)?;
        adamw.step(&mut layer, 1e-3, 1.0, false).map_err(text)?;
        layer.zero_grad();
        let report = backend.memory().report();
        after.push((report.allocations, made(backend)));
    }
    holds(format!("allocations and kernels after each step: {after:?}"), after[2..].iter().all(|a| *a == after[2]))
}

/// Uploads and reads of 16-bit elements at odd places keep their neighbours.
pub fn odd_halves<B: Backend>(backend: &B) -> Outcome {
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

/// A recording whose indices are out of range by one.
fn out_of_range<B: Backend>(backend: &B, limit: u32) -> lrmoe::Result<Recording<B::Buffer>> {
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

/// A fault is reported by every wait for it, or once by the next wait or read where nobody waits for it.
///
/// `beside` is another backend on the same device, `unchecked` one that checks no indices.
pub fn faults<B: Backend>(backend: &B, beside: &B, unchecked: &B) -> Outcome {
    let other = backend.import("other", HostData::F32(vec![1.0]), Category::Scratch).map_err(text)?;
    let names = |error: Error, value: &str| {
        let text = error.to_string();
        holds(format!("`{text}` names index {value}"), text.contains("index") && text.contains(value))
    };
    let fence = backend.submit(&out_of_range(backend, 5).map_err(text)?).map_err(text)?;
    names(refused("a wait", backend.wait(&fence))?, "5")?;
    names(refused("a second wait", backend.wait(&fence))?, "5")?;
    backend.read_blocking(&other).map_err(text)?;
    // Recordings with nothing to do are waited for together with those before, good ones and bad ones.
    drop(beside.submit(&out_of_range(beside, 8).map_err(text)?).map_err(text)?);
    let nothing = beside.submit(&Recording::new()).map_err(text)?;
    names(refused("a wait for nothing", beside.wait(&nothing))?, "8")?;
    // Nobody waits: the next wait for another recording tells, or the next read.
    drop(backend.submit(&out_of_range(backend, 6).map_err(text)?).map_err(text)?);
    let good = backend.submit(&Recording::new()).map_err(text)?;
    names(refused("a wait for another", backend.wait(&good))?, "6")?;
    backend.wait(&good).map_err(text)?;
    drop(backend.submit(&out_of_range(backend, 7).map_err(text)?).map_err(text)?);
    names(refused("a read", backend.read_blocking(&other))?, "7")?;
    backend.read_blocking(&other).map_err(text)?;
    let fence = unchecked.submit(&out_of_range(unchecked, 5).map_err(text)?).map_err(text)?;
    unchecked.wait(&fence).map_err(text)
}

/// A refused recording leaves the device usable.
pub fn refused_recording<B: Backend>(backend: &B) -> Outcome {
    let before = bits(backend, SMALL)?;
    let mut recording = out_of_range(backend, 5).map_err(text)?;
    let short = backend.alloc("short", DType::F32, 1, Category::Scratch).map_err(text)?;
    recording
        .dispatch(Sigmoid { len: 2, z: short, s: backend.alloc("s", DType::F32, 2, Category::Scratch).map_err(text)? })
        .map_err(text)?;
    let error = refused("a recording with a short buffer", backend.submit(&recording).map(drop))?.to_string();
    holds(format!("`{error}` names the buffer"), error.contains("`short`"))?;
    holds("the next step is as before", bits(backend, SMALL)? == before)
}

/// Buffers and fences of another device are refused.
pub fn foreign<B: Backend>(mine: &B, its: &B) -> Outcome {
    let import = |backend: &B, value| backend.import("x", HostData::F32(vec![value; 4]), Category::Scratch);
    let (a, b) = (import(mine, 1.0).map_err(text)?, import(its, 2.0).map_err(text)?);
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
