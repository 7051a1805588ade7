//! Choices among kernel variants that give the same bits: by the kind of device, or by measured time.
//!
//! Measured choices are kept in a file for each adapter, driver and version of this crate, so a program that runs again
//! measures nothing. The file is a convenience: one that cannot be read is ignored, one that cannot be written is logged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::backend::bytes::{cache_directory, hash};

/// Whether kernel variants are chosen by measured time. Results do not depend on it: only variants that give the same bits
/// are compared. On a host's device nothing is ever measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Tune {
    /// Measure on hardware, where the best tile differs between GPUs by a factor and finding it takes a fraction of a second
    /// once. Not on software, which is there for tests: compiling every variant would take longer than using any.
    #[default]
    Auto,
    /// Defaults by the kind of device.
    Off,
    /// Measure at the first use of each kernel and class of shapes, on software too.
    Measure,
}

/// A kernel variant in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenVariant {
    /// Kernel, and the class of element types and shapes that the choice is for.
    pub what: String,
    /// Name of the variant.
    pub variant: String,
    /// Where the choice comes from.
    pub source: ChoiceSource,
}

/// Where the choice of a variant comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChoiceSource {
    /// The kind of device.
    Default,
    /// Its time, now or in an earlier run.
    Measured,
    /// [`WgpuOptions::gemm_variant`](super::WgpuOptions::gemm_variant) or
    /// [`WgpuOptions::cooperative`](super::WgpuOptions::cooperative).
    Option,
}

/// Time that measuring may take in one process; what is not measured then uses defaults.
const BUDGET: Duration = Duration::from_secs(2);

/// The choices of one backend. What was found out about the device is shared by the backends on it.
#[derive(Debug)]
pub(super) struct Tuner {
    measures: bool,
    file: Option<ChoiceFile>,
    device: Arc<Mutex<Findings>>,
    /// Classes of shapes for which nothing was measured, and their defaults.
    defaults: Mutex<BTreeMap<String, String>>,
}

/// What was measured and tested on one device.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Files that have been read.
    read: BTreeSet<PathBuf>,
    measured: BTreeMap<String, String>,
    tested: BTreeMap<String, bool>,
    spent: Duration,
}

impl Tuner {
    /// Defaults only, or measurements with a file of choices for `identity`: adapter and driver.
    pub(super) fn new(measures: bool, directory: Option<&Path>, identity: &str, device: Arc<Mutex<Findings>>) -> Self {
        let directory = || directory.map(Path::to_path_buf).or_else(cache_directory);
        let file = measures.then(directory).flatten().map(|directory| ChoiceFile::new(&directory, identity));
        Self { measures, file, device, defaults: Mutex::default() }
    }

    /// What another backend on the device begins with.
    pub(super) fn findings(&self) -> Arc<Mutex<Findings>> {
        Arc::clone(&self.device)
    }

    /// The variant for a class of shapes: one of `candidates`, which begin with the default.
    ///
    /// `measure` gives the time of one; a class whose measurement fails uses the default.
    pub(super) fn choose<T: Copy>(
        &self,
        what: &str,
        candidates: &[(&'static str, T)],
        measure: impl FnMut(T) -> Result<Duration>,
    ) -> Option<T> {
        let &(default, first) = candidates.first()?;
        let named = |name: &String| candidates.iter().find(|(candidate, _)| candidate == name).map(|&(_, value)| value);
        if !self.measures || candidates.len() < 2 {
            return self.default(what, default, first);
        }
        // Held while measuring: two measurements at once would disturb each other.
        let mut device = self.lock();
        if let Some(known) = device.measured.get(what).and_then(named) {
            return Some(known);
        }
        if device.spent >= BUDGET || self.defaults().contains_key(what) {
            return self.default(what, default, first);
        }
        let start = Instant::now();
        let best = fastest(candidates, measure);
        device.spent += start.elapsed();
        let Some((name, value)) = best else {
            log::warn!("{what}: {default}, since no variant can be measured");
            return self.default(what, default, first);
        };
        log::debug!("{what}: {name}, measured in {:?}", start.elapsed());
        device.measured.insert(what.to_owned(), name.to_owned());
        if let Some(file) = &self.file {
            file.write(&device.measured);
        }
        Some(value)
    }

    /// The default, noted.
    fn default<T>(&self, what: &str, name: &str, value: T) -> Option<T> {
        self.defaults().entry(what.to_owned()).or_insert_with(|| name.to_owned());
        Some(value)
    }

    /// Whether a variant whose results are the driver's business has passed its test, which runs once.
    pub(super) fn tested(&self, what: &str, test: impl FnOnce() -> Result<bool>) -> bool {
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&passed) = device.tested.get(what) {
            return passed;
        }
        let result = test();
        match &result {
            Ok(true) => {}
            Ok(false) => log::warn!("{what} is not used: its results are wrong on this device"),
            Err(error) => log::warn!("{what} is not used: it cannot be tested: {error}"),
        }
        let passed = result.unwrap_or(false);
        device.tested.insert(what.to_owned(), passed);
        passed
    }

    /// What has been chosen so far, in earlier runs too where that was by time.
    pub(super) fn chosen(&self) -> Vec<ChosenVariant> {
        let all = |choices: &BTreeMap<String, String>, source| -> Vec<_> {
            let choice = |(what, variant): (&String, &String)| ChosenVariant {
                what: what.clone(),
                variant: variant.clone(),
                source,
            };
            choices.iter().map(choice).collect()
        };
        let mut chosen = if self.measures { all(&self.lock().measured, ChoiceSource::Measured) } else { vec![] };
        chosen.extend(all(&self.defaults(), ChoiceSource::Default));
        chosen
    }

    fn defaults(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.defaults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device's findings, with what earlier runs have measured.
    fn lock(&self) -> MutexGuard<'_, Findings> {
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &self.file
            && device.read.insert(file.path.clone())
        {
            for (what, variant) in file.read() {
                device.measured.entry(what).or_insert(variant);
            }
        }
        device
    }
}

/// The candidate of the shortest time; none where nothing can be measured.
fn fastest<T: Copy>(
    candidates: &[(&'static str, T)],
    mut measure: impl FnMut(T) -> Result<Duration>,
) -> Option<(&'static str, T)> {
    let start = Instant::now();
    let mut best: Option<(Duration, &'static str, T)> = None;
    for &(name, value) in candidates {
        if start.elapsed() >= BUDGET {
            break;
        }
        match measure(value) {
            Ok(time) => {
                log::trace!("{name}: {time:?}");
                if best.as_ref().is_none_or(|(shortest, ..)| time < *shortest) {
                    best = Some((time, name, value));
                }
            }
            Err(error) => log::debug!("{name} cannot be measured: {error}"),
        }
    }
    best.map(|(_, name, value)| (name, value))
}

/// Measured choices of one adapter, driver and version of this crate.
#[derive(Debug)]
struct ChoiceFile {
    path: PathBuf,
    identity: String,
}

/// What the file holds.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    identity: String,
    choices: BTreeMap<String, String>,
}

impl ChoiceFile {
    fn new(directory: &Path, identity: &str) -> Self {
        let identity = format!("lrmoe {}: {identity}", env!("CARGO_PKG_VERSION"));
        // Two identities that share a file would take turns in it.
        let hash = hash(identity.as_bytes());
        Self { path: directory.join(format!("wgpu-{hash:016x}.json")), identity }
    }

    /// What an earlier run measured; nothing where the file is absent, of another version, or not ours.
    fn read(&self) -> BTreeMap<String, String> {
        let content = std::fs::read(&self.path).ok().and_then(|bytes| serde_json::from_slice::<Content>(&bytes).ok());
        content.filter(|content| content.identity == self.identity).map(|content| content.choices).unwrap_or_default()
    }

    /// Adds choices to the file, which is replaced as a whole: readers see the old or the new one.
    fn write(&self, choices: &BTreeMap<String, String>) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut all = self.read();
        all.extend(choices.clone());
        let content = Content { identity: self.identity.clone(), choices: all };
        let unique = format!("{}-{}.tmp", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let temporary = self.path.with_extension(unique);
        let written = self.path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| {
            std::fs::write(&temporary, serde_json::to_vec_pretty(&content).map_err(std::io::Error::other)?)?;
            std::fs::rename(&temporary, &self.path)
        });
        if let Err(error) = written {
            let _ = std::fs::remove_file(&temporary);
            log::warn!("measured kernel choices are not kept: {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
#[path = "tuning_tests.rs"]
mod tests;
