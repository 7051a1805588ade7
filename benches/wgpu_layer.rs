//! The whole layer on the wgpu backend, against its grouped GEMMs alone, and where the rest of the time goes.
//!
//! `cargo bench --bench wgpu_layer [-- ROUNDS [large|small]]`. Forward and backward with the time of every command, taken on the
//! device, and without: a round of each in turn, medians. `ratio` is the whole wall time over the device time of the GEMMs, of the
//! timed step itself and of the one next to it, so that it depends little on what else the machine does.
//! Then steps so small that only overhead is left, as tests run them: on a backend that is new, poisoned and checked.
#![allow(clippy::print_stdout, reason = "a bench prints its table")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lrmoe::backend::Caps;
use lrmoe::backend::wgpu::{WgpuBuffer, WgpuFence};
use lrmoe::memory::{Accountant, Category};
use lrmoe::recording::Command;
use lrmoe::{
    Backend, DType, ForwardContext, HostData, LayerOptions, MoeConfig, MoeLayer, MoeWeights, PlanOptions, Recording,
    Result, Retention, Selection, Tensor, WgpuBackend, WgpuOptions,
};

/// Commands that are grouped GEMMs.
const GEMMS: [&str; 3] = ["grouped_forward", "grouped_dgrad", "grouped_wgrad"];

/// What a step did.
#[derive(Debug, Default)]
struct Log {
    submitted: Vec<(Vec<&'static str>, Arc<WgpuFence>)>,
    /// Host time and number of calls of each kind.
    calls: BTreeMap<&'static str, (Duration, usize)>,
}

/// Passes everything on, and keeps what there is to look at afterwards.
#[derive(Debug, Clone)]
struct Watched {
    inner: WgpuBackend,
    log: Arc<Mutex<Log>>,
}

impl Watched {
    fn new(inner: WgpuBackend) -> Self {
        Self { inner, log: Arc::default() }
    }

    fn log<T>(&self, with: impl FnOnce(&mut Log) -> T) -> T {
        with(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn clocked<T>(&self, kind: &'static str, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let value = call();
        let spent = start.elapsed();
        self.log(|log| {
            let (time, calls) = log.calls.entry(kind).or_default();
            (*time, *calls) = (*time + spent, *calls + 1);
        });
        value
    }
}

impl Backend for Watched {
    type Buffer = WgpuBuffer;
    type Fence = Arc<WgpuFence>;

    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn memory(&self) -> &Accountant {
        self.inner.memory()
    }

    fn alloc(&self, name: &str, dtype: DType, len: usize, category: Category) -> Result<WgpuBuffer> {
        self.clocked("alloc", || self.inner.alloc(name, dtype, len, category))
    }

    fn import(&self, name: &str, data: HostData, category: Category) -> Result<WgpuBuffer> {
        self.clocked("import", || self.inner.import(name, data, category))
    }

    fn upload(&self, buffer: &WgpuBuffer, offset: usize, data: &HostData) -> Result<()> {
        self.clocked("upload", || self.inner.upload(buffer, offset, data))
    }

    fn submit(&self, recording: &Recording<WgpuBuffer>) -> Result<Self::Fence> {
        let fence = Arc::new(self.clocked("submit", || self.inner.submit(recording))?);
        let names = recording.commands().iter().map(Command::name).collect();
        self.log(|log| log.submitted.push((names, Arc::clone(&fence))));
        Ok(fence)
    }

    fn wait(&self, fence: &Self::Fence) -> Result<()> {
        self.clocked("wait", || self.inner.wait(fence))
    }

    async fn read(&self, buffer: &WgpuBuffer, range: std::ops::Range<usize>) -> Result<HostData> {
        self.clocked("read", || pollster::block_on(self.inner.read(buffer, range)))
    }

    fn timings(&self, fence: &Self::Fence) -> Option<Vec<Duration>> {
        self.inner.timings(fence)
    }
}

/// Sizes of a layer and of its input.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    tokens: usize,
    hidden: usize,
    width: usize,
    experts: usize,
    top_k: usize,
}

/// A layer on a watched backend, with its input.
struct Side {
    backend: Watched,
    layer: MoeLayer<Watched>,
    x: Tensor<Watched>,
    dy: Tensor<Watched>,
    step: u64,
}

fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut values = vec![0.0; len];
    lrmoe::rng::Philox::new(seed, 0).fill_normal(&mut values, 1.0);
    values
}

impl Side {
    fn new(backend: WgpuBackend, sizes: Sizes, select: Selection) -> Result<Self> {
        let backend = Watched::new(backend);
        let config = MoeConfig::new(sizes.hidden, sizes.width, sizes.experts, sizes.top_k);
        let weights = MoeWeights::init(&config, 7, 0.05)?;
        let plan = PlanOptions { retention: Retention::Fraction(0.5), ..PlanOptions::default() };
        let options = LayerOptions { select, plan, ..LayerOptions::default() };
        let tensor =
            |seed| Tensor::from_f32(&backend, &noise(seed, sizes.tokens * sizes.hidden), sizes.tokens, sizes.hidden);
        let (x, dy) = (tensor(1)?, tensor(2)?);
        let layer = MoeLayer::new(&backend, config, weights, options)?;
        Ok(Self { backend, layer, x, dy, step: 0 })
    }

    /// Forward and backward, all of it done: wall time, and what happened in it.
    fn round(&mut self) -> Result<(Duration, Log)> {
        self.backend.log(|log| *log = Log::default());
        let context = ForwardContext { step: self.step, ..ForwardContext::default() };
        self.step += 1;
        let start = Instant::now();
        let (_, saved) = self.layer.forward(&self.x, &context)?;
        self.layer.zero_grad();
        let gradients = self.layer.backward(&saved, &self.dy)?;
        let last = self.backend.log(|log| log.submitted.last().map(|(_, fence)| Arc::clone(fence)));
        if let Some(fence) = last {
            self.backend.wait(&fence)?;
        }
        let wall = start.elapsed();
        std::hint::black_box(gradients.dx.rows());
        Ok((wall, self.backend.log(std::mem::take)))
    }
}

/// Device time of each command by name, with their number.
fn device_times(backend: &WgpuBackend, log: &Log) -> Option<BTreeMap<&'static str, (Duration, usize)>> {
    let mut times: BTreeMap<_, (Duration, usize)> = BTreeMap::new();
    for (names, fence) in &log.submitted {
        for (name, spent) in names.iter().zip(backend.timings(fence)?) {
            let (time, calls) = times.entry(*name).or_default();
            (*time, *calls) = (*time + spent, *calls + 1);
        }
    }
    Some(times)
}

fn ms(time: Duration) -> f64 {
    1e3 * time.as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Rounds of tables by name: median and calls of each.
fn medians(rounds: &[BTreeMap<&'static str, (Duration, usize)>]) -> Vec<(&'static str, f64, usize)> {
    let Some(first) = rounds.first() else { return Vec::new() };
    let of =
        |name: &str| median(rounds.iter().filter_map(|round| round.get(name)).map(|&(time, _)| ms(time)).collect());
    let mut all: Vec<_> = first.iter().map(|(&name, &(_, calls))| (name, of(name), calls)).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

fn line(kind: &str, all: &[(&str, f64, usize)]) {
    let parts: Vec<_> = all.iter().map(|(name, time, calls)| format!("{name} x{calls} {time:.2}")).collect();
    println!("  {kind}: {}", parts.join(", "));
}

/// The layer with and without times of commands, by turns.
fn compare(device: &WgpuBackend, sizes: Sizes, select: Selection, rounds: usize) -> Result<()> {
    let mut plain = Side::new(device.beside(WgpuOptions::default())?, sizes, select)?;
    let mut timed = Side::new(device.beside(WgpuOptions { timings: true, ..WgpuOptions::default() })?, sizes, select)?;
    // The first rounds compile and fill pools; the first plan knows no demand.
    for _ in 0..2 {
        plain.round()?;
        timed.round()?;
    }
    let (mut walls, mut timed_walls, mut calls, mut commands) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (wall, log) = plain.round()?;
        walls.push(ms(wall));
        calls.push(log.calls);
        let (wall, log) = timed.round()?;
        timed_walls.push(ms(wall));
        match device_times(&timed.backend.inner, &log) {
            Some(times) => commands.push(times),
            None => {
                println!("this device takes no times");
                return Ok(());
            }
        }
    }
    let sum = |round: &BTreeMap<&'static str, (Duration, usize)>, gemms: bool| -> f64 {
        round.iter().filter(|(name, _)| !gemms || GEMMS.contains(name)).map(|(_, &(time, _))| ms(time)).sum()
    };
    let own: Vec<f64> = commands.iter().map(|round| sum(round, true)).collect();
    let ratio = |walls: &[f64]| median(walls.iter().zip(&own).map(|(wall, gemms)| wall / gemms).collect());
    let (timed, beside) = (ratio(&timed_walls), ratio(&walls));
    let gemms = median(own.clone());
    let device = median(commands.iter().map(|round| sum(round, false)).collect());
    let wall = median(walls);
    let Sizes { tokens, hidden, width, experts, top_k } = sizes;
    println!("{tokens} tokens, hidden {hidden}, {experts} experts of width {width}, top-{top_k}, {select}");
    println!(
        "  whole {wall:.1} ms, on the device {device:.1}, grouped GEMMs {gemms:.1}; ratio {timed:.2}, {beside:.2} untimed"
    );
    line("device ms", &medians(&commands));
    line("host ms", &medians(&calls));
    Ok(())
}

/// Steps of next to no work: one backend for all of them, or a new one for each as tests have it.
fn small(device: &WgpuBackend, select: Selection, rounds: usize, fresh: bool) -> Result<()> {
    let sizes = Sizes { tokens: 36, hidden: 8, width: 8, experts: 8, top_k: 2 };
    let options = || WgpuOptions { poison: fresh, ..WgpuOptions::default() };
    let mut side = Side::new(device.beside(options())?, sizes, select)?;
    side.round()?;
    side.round()?;
    let mut timed = Side::new(device.beside(WgpuOptions { timings: true, ..WgpuOptions::default() })?, sizes, select)?;
    let (mut walls, mut calls, mut commands) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (_, log) = timed.round()?;
        commands.extend(device_times(&timed.backend.inner, &log));
        let start = Instant::now();
        if fresh {
            side = Side::new(device.beside(options())?, sizes, select)?;
        }
        let made = start.elapsed();
        let (wall, log) = side.round()?;
        walls.push(ms(made + wall));
        calls.push(log.calls);
    }
    println!("  {select}, {}: {:.2} ms", if fresh { "new and poisoned" } else { "kept" }, median(walls));
    line("  host ms", &medians(&calls));
    if !fresh {
        line("  device ms", &medians(&commands));
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let rounds = arguments.next().and_then(|argument| argument.parse().ok()).unwrap_or(11);
    let part = arguments.next();
    let wanted = |name: &str| part.as_ref().is_none_or(|part| part == name);
    let device = match WgpuBackend::new(WgpuOptions::default()) {
        Ok(device) => device,
        Err(error) => {
            println!("no wgpu device: {error}");
            return Ok(());
        }
    };
    println!("{}; medians of {rounds} rounds", device.caps().device);
    let selections = [Selection::All, Selection::Systematic];
    let broad = Sizes { tokens: 2048, hidden: 256, width: 256, experts: 32, top_k: 4 };
    let fine = Sizes { tokens: 1024, hidden: 512, width: 128, experts: 64, top_k: 8 };
    for sizes in [broad, fine].into_iter().filter(|_| wanted("large")) {
        for select in selections {
            compare(&device, sizes, select, rounds)?;
        }
    }
    if !wanted("small") {
        return Ok(());
    }
    println!("36 tokens, hidden 8, 8 experts of width 8, top-2");
    for select in selections {
        small(&device, select, 10 * rounds, false)?;
        small(&device, select, 10 * rounds, true)?;
    }
    Ok(())
}
