//! The CPU backend, noting what it runs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::backend::cpu::{CpuBuffer, CpuFence};
use crate::backend::{Backend, Caps};
use crate::kernel::Kernel;
use crate::memory::{Accountant, Category};
use crate::recording::Command;
use crate::tensor::{DType, HostData};
use crate::{CpuBackend, Recording, Result};

/// Name of a command and, for those whose work is rows, its sizes.
pub(super) type Launch = (&'static str, Vec<usize>);

#[derive(Debug, Default)]
struct Log {
    launches: Vec<Launch>,
    timed: Vec<Duration>,
}

#[derive(Debug, Clone)]
pub(super) struct Spy {
    cpu: CpuBackend,
    log: Arc<Mutex<Log>>,
    times: bool,
}

impl Spy {
    pub(super) fn new(times: bool) -> Self {
        Self { cpu: CpuBackend::new(), log: Arc::default(), times }
    }

    /// All commands but fills since the last call.
    pub(super) fn launches(&self) -> Vec<Launch> {
        std::mem::take(&mut self.log.lock().unwrap().launches)
    }

    /// All times handed out since the last call.
    pub(super) fn timed(&self) -> Vec<Duration> {
        std::mem::take(&mut self.log.lock().unwrap().timed)
    }
}

fn launch(command: &Command<CpuBuffer>) -> Option<Launch> {
    let sizes = match command {
        Command::Fill { .. } => return None,
        Command::Dispatch(Kernel::GroupedForward(a)) => vec![a.rows, a.groups, a.n, a.k],
        Command::Dispatch(Kernel::GroupedDgrad(a)) => vec![a.rows, a.groups, a.n, a.k],
        Command::Dispatch(Kernel::GroupedWgrad(a)) => vec![a.rows, a.groups, a.n, a.k],
        Command::Dispatch(Kernel::SwiGlu(a)) => vec![a.rows, a.width],
        Command::Dispatch(Kernel::SwiGluBackward(a)) => vec![a.rows, a.width],
        Command::Dispatch(Kernel::GatherRows(a)) => vec![a.rows, a.cols],
        Command::Dispatch(Kernel::Combine(a)) => vec![a.tokens, a.top_k, a.cols],
        Command::Dispatch(Kernel::Select(a)) => vec![a.rows, a.capacity],
        Command::Dispatch(Kernel::AdamW(a)) => vec![a.len],
        _ => vec![],
    };
    Some((command.name(), sizes))
}

impl Backend for Spy {
    type Buffer = CpuBuffer;
    type Fence = CpuFence;

    fn caps(&self) -> &Caps {
        self.cpu.caps()
    }

    fn memory(&self) -> &Accountant {
        self.cpu.memory()
    }

    fn alloc(&self, name: &str, dtype: DType, len: usize, category: Category) -> Result<CpuBuffer> {
        self.cpu.alloc(name, dtype, len, category)
    }

    fn import(&self, name: &str, data: HostData, category: Category) -> Result<CpuBuffer> {
        self.cpu.import(name, data, category)
    }

    fn upload(&self, buffer: &CpuBuffer, offset: usize, data: &HostData) -> Result<()> {
        self.cpu.upload(buffer, offset, data)
    }

    fn submit(&self, recording: &Recording<CpuBuffer>) -> Result<CpuFence> {
        self.log.lock().unwrap().launches.extend(recording.commands().iter().filter_map(launch));
        self.cpu.submit(recording)
    }

    fn wait(&self, fence: &CpuFence) -> Result<()> {
        self.cpu.wait(fence)
    }

    async fn read(&self, buffer: &CpuBuffer, range: std::ops::Range<usize>) -> Result<HostData> {
        self.cpu.read(buffer, range).await
    }

    fn timings(&self, fence: &CpuFence) -> Option<Vec<Duration>> {
        let times = self.cpu.timings(fence).filter(|_| self.times)?;
        self.log.lock().unwrap().timed.extend(&times);
        Some(times)
    }
}
