//! Machine code of kernels: carried along, kept on disk from an earlier run, or compiled now.

use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::nvrtc::{Compiled, Nvrtc};
use super::source;
use super::table::Spec;
use crate::backend::bytes::{cache_directory, hash};
use crate::{Error, Result};

/// Architectures that cubins are built for ahead of time: each runs on its major version from its minor one on.
pub const CUBIN_ARCHS: &[u32] = &[80, 90, 100];

/// First bytes of a file.
const MAGIC: &[u8; 8] = b"lrmoecu2";

/// Where machine code comes from.
#[derive(Debug, Clone)]
pub(super) struct Cubins {
    /// Built ahead of time.
    carried: Option<PathBuf>,
    /// Compiled by earlier runs.
    cache: Option<PathBuf>,
    sm: u32,
}

impl Cubins {
    pub(super) fn new(carried: Option<&Path>, cache: Option<&Path>, sm: u32) -> Self {
        let variable = || std::env::var_os("LRMOE_CUBIN_DIR").filter(|value| !value.is_empty()).map(PathBuf::from);
        Self {
            carried: carried.map(Path::to_path_buf).or_else(variable),
            cache: cache.map(Path::to_path_buf).or_else(default_cache),
            sm,
        }
    }

    /// Machine code of a kernel's file.
    ///
    /// # Errors
    /// [`Error::Compile`] where it is neither there nor can be made, with the reason.
    pub(super) fn get(&self, spec: &Spec) -> Result<Vec<u8>> {
        let text = source::text(spec.file, spec.text);
        if let Some(cubin) = self.carried(spec, &text) {
            return Ok(cubin);
        }
        let missing = |why: String| {
            let carried = self.carried.as_ref().map(|carried| format!("; no cubin of it in {}", carried.display()));
            Error::Compile { kernel: spec.file.to_owned(), log: format!("{why}{}", carried.unwrap_or_default()) }
        };
        let nvrtc = Nvrtc::get().map_err(missing)?;
        let sm = target(&nvrtc.archs, self.sm).ok_or_else(|| {
            let (major, minor) = nvrtc.version;
            missing(format!("NVRTC {major}.{minor} does not compile for sm_{}; use a newer one", self.sm))
        })?;
        compile(nvrtc, spec.file, &text, sm, self.cache.as_deref()).map(|compiled| compiled.cubin)
    }

    /// What machine code is for, in words for an error.
    pub(super) fn made_for(&self) -> String {
        let by = Nvrtc::get().map_or_else(
            |_| "carried along".into(),
            |nvrtc| {
                let (major, minor) = nvrtc.version;
                format!("by NVRTC {major}.{minor} unless carried along")
            },
        );
        format!("sm_{}, {by}", self.sm)
    }

    fn carried(&self, spec: &Spec, text: &str) -> Option<Vec<u8>> {
        let carried = self.carried.as_ref()?;
        let candidates = CUBIN_ARCHS.iter().rev().filter(|&&arch| runs_on(arch, self.sm));
        candidates.copied().find_map(|sm| {
            let key = key(text, &source::options(sm), None);
            read(&carried.join(file_name(spec.file, sm, &key)), &key).map(|compiled| compiled.cubin)
        })
    }
}

/// What the compiler makes of a text, or made of it before.
fn compile(nvrtc: &Nvrtc, file: &str, text: &str, sm: u32, cache: Option<&Path>) -> Result<Compiled> {
    let options = source::options(sm);
    let key = key(text, &options, Some(nvrtc.version));
    let path = cache.map(|cache| cache.join(file_name(file, sm, &key)));
    if let Some(compiled) = path.as_ref().and_then(|path| read(path, &key)) {
        return Ok(compiled);
    }
    log::debug!("compiling `{file}` for sm_{sm}");
    let compiled = nvrtc.compile(file, text, &options)?;
    if let Some(path) = path
        && let Err(error) = write(&path, &key, &compiled)
    {
        log::warn!("{} is not written: {error}; the kernel will be compiled again", path.display());
    }
    Ok(compiled)
}

/// Where compiled kernels are kept unless something else is said.
fn default_cache() -> Option<PathBuf> {
    cache_directory().map(|directory| directory.join("cuda"))
}

/// Whether machine code for one architecture runs on another.
fn runs_on(arch: u32, sm: u32) -> bool {
    arch / 10 == sm / 10 && arch <= sm
}

/// The best architecture among those that the compiler knows.
fn target(archs: &[u32], sm: u32) -> Option<u32> {
    if archs.is_empty() {
        return Some(sm);
    }
    archs.iter().copied().filter(|&arch| runs_on(arch, sm)).max()
}

/// What machine code depends on.
fn key(text: &str, options: &[String], version: Option<(i32, i32)>) -> String {
    let version = version.map_or_else(|| "any NVRTC".to_owned(), |(major, minor)| format!("NVRTC {major}.{minor}"));
    let about = format!("{version}\n{}", options.join(" "));
    format!("{about}\n{:016x} {} bytes", hash(text.as_bytes()), text.len())
}

fn file_name(file: &str, sm: u32, key: &str) -> String {
    format!("{file}-sm_{sm}-{:016x}.cubin", hash(key.as_bytes()))
}

/// Machine code from a file that is whole and of this key.
fn read(path: &Path, key: &str) -> Option<Compiled> {
    let bytes = std::fs::read(path).ok()?;
    let whole = unpack(&bytes, key);
    if whole.is_none() {
        log::warn!("{} is damaged or another's, and is made again", path.display());
    }
    whole
}

/// Eight bytes each: the hash of the key, that of the rest, and the length of the machine code, before the compiler's output.
fn unpack(bytes: &[u8], key: &str) -> Option<Compiled> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (key_hash, rest) = rest.split_first_chunk::<8>()?;
    let (content_hash, rest) = rest.split_first_chunk::<8>()?;
    let same = u64::from_le_bytes(*key_hash) == hash(key.as_bytes()) && u64::from_le_bytes(*content_hash) == hash(rest);
    let (length, content) = rest.split_first_chunk::<8>().filter(|_| same)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok().filter(|length| *length > 0)?;
    let (cubin, log) = content.split_at_checked(length)?;
    Some(Compiled { cubin: cubin.to_vec(), log: String::from_utf8_lossy(log).into_owned() })
}

/// Writes a file as a whole: other processes see the old one or the new one.
fn write(path: &Path, key: &str, compiled: &Compiled) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    std::fs::create_dir_all(directory)?;
    let length = (compiled.cubin.len() as u64).to_le_bytes();
    let content = [&length[..], &compiled.cubin, compiled.log.as_bytes()].concat();
    let bytes = [&MAGIC[..], &hash(key.as_bytes()).to_le_bytes(), &hash(&content).to_le_bytes(), &content].concat();
    let own = path.with_extension(format!("{}-{:?}.tmp", std::process::id(), std::thread::current().id()));
    std::fs::write(&own, bytes)?;
    std::fs::rename(&own, path).inspect_err(|_| drop(std::fs::remove_file(&own)))
}

/// What the compiler says of one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelUsage {
    /// Name of the kernel.
    pub name: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of a thread's stack frame.
    pub stack: u32,
    /// Bytes that are stored because registers run out.
    pub spills: u32,
}

/// A file of kernels, compiled.
#[derive(Debug, Clone)]
pub struct Cubin {
    /// File in `cuda/`, without `.cu`.
    pub file: String,
    /// Architecture: 80 for sm_80.
    pub sm: u32,
    /// ELF image.
    pub image: Vec<u8>,
    /// Its kernels.
    pub kernels: Vec<KernelUsage>,
    /// Where it was written.
    pub path: Option<PathBuf>,
}

/// Compiles every kernel for some architectures, and writes the machine code to a directory where one is given: carried along and
/// named by [`CudaOptions::cubin_dir`](super::CudaOptions::cubin_dir) or `LRMOE_CUBIN_DIR`, it is used on machines without NVRTC. No GPU is
/// needed, and nothing is compiled that earlier runs have kept.
///
/// # Errors
/// [`Error::Unsupported`] without NVRTC, [`Error::Compile`] with the compiler's output, [`Error::Input`] for a directory that cannot be written.
pub fn build_cubins(directory: Option<&Path>, archs: &[u32]) -> Result<Vec<Cubin>> {
    let nvrtc = nvrtc()?;
    let mut files: Vec<&Spec> = super::kernels::specs().collect();
    files.sort_by_key(|spec| spec.file);
    files.dedup_by_key(|spec| spec.file);
    let cache = default_cache();
    let all: Vec<(&Spec, u32)> = files.iter().flat_map(|spec| archs.iter().map(move |&sm| (*spec, sm))).collect();
    let build = |(spec, sm): (&Spec, u32)| {
        let text = source::text(spec.file, spec.text);
        let compiled = compile(nvrtc, spec.file, &text, sm, cache.as_deref())?;
        let path = directory.map(|directory| {
            let key = key(&text, &source::options(sm), None);
            let path = directory.join(file_name(spec.file, sm, &key));
            let failed =
                |error: std::io::Error| Error::Input { what: path.display().to_string(), reason: error.to_string() };
            write(&path, &key, &compiled).map_err(failed).map(|()| path.clone())
        });
        let kernels = usage(&compiled.log);
        Ok(Cubin { file: spec.file.to_owned(), sm, image: compiled.cubin, kernels, path: path.transpose()? })
    };
    all.into_par_iter().map(build).collect()
}

/// Compiles a text of kernels of someone's own, which may include `dev.h` and the other headers of `cuda/`.
///
/// # Errors
/// As [`build_cubins`].
pub fn compile_cubin(file: &str, text: &str, sm: u32) -> Result<Cubin> {
    let compiled = nvrtc()?.compile(file, &source::text(file, text), &source::options(sm))?;
    Ok(Cubin { file: file.to_owned(), sm, image: compiled.cubin, kernels: usage(&compiled.log), path: None })
}

fn nvrtc() -> Result<&'static Nvrtc> {
    Nvrtc::get().map_err(|why| Error::Unsupported { what: "compiling CUDA kernels".into(), why })
}

/// Reads `--ptxas-options=-v`.
fn usage(log: &str) -> Vec<KernelUsage> {
    let mut kernels: Vec<KernelUsage> = Vec::new();
    let before = |line: &str, what: &str| -> Option<u32> {
        line.split(what).next()?.rsplit(|c: char| !c.is_ascii_digit()).find(|word| !word.is_empty())?.parse().ok()
    };
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or_default().to_owned();
            kernels.push(KernelUsage { name, registers: 0, stack: 0, spills: 0 });
        }
        let Some(kernel) = kernels.last_mut() else { continue };
        if line.contains(" bytes stack frame") {
            kernel.stack = before(line, " bytes stack frame").unwrap_or(u32::MAX);
            kernel.spills = before(line, " bytes spill stores").unwrap_or(u32::MAX);
        }
        if line.contains(" registers") {
            kernel.registers = before(line, " registers").unwrap_or(u32::MAX);
        }
    }
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_is_not_machine_code() {
        let directory = std::env::temp_dir().join(format!("lrmoe-cubins-{}", std::process::id()));
        let path = directory.join("x.cubin");
        let compiled = Compiled { cubin: b"machine code".to_vec(), log: "14 registers".into() };
        write(&path, "key", &compiled).unwrap();
        assert_eq!(read(&path, "key").as_ref(), Some(&compiled));
        assert_eq!(read(&path, "another key"), None);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            assert_eq!(unpack(&whole[..cut], "key"), None, "cut at {cut}");
        }
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 4;
            assert_eq!(unpack(&bad, "key"), None, "byte {at}");
        }
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn keys_tell_everything_apart() {
        let options = |sm| source::options(sm);
        let keys = [
            key("a", &options(80), Some((13, 0))),
            key("b", &options(80), Some((13, 0))),
            key("a", &options(90), Some((13, 0))),
            key("a", &options(80), Some((12, 9))),
            key("a", &options(80), None),
        ];
        for (i, a) in keys.iter().enumerate() {
            assert!(keys[i + 1..].iter().all(|b| a != b), "{a}");
        }
    }

    #[test]
    fn machine_code_runs_on_later_minor_versions() {
        assert!(runs_on(80, 86) && runs_on(90, 90) && !runs_on(86, 80) && !runs_on(80, 90));
        assert_eq!(target(&[75, 80, 86, 90], 89), Some(86));
        assert_eq!(target(&[75, 80, 86, 90], 100), None);
        assert_eq!(target(&[], 90), Some(90));
    }

    #[test]
    fn usage_is_read_from_the_log() {
        let log = "ptxas info    : Compiling entry function 'cast_f32_bf16' for 'sm_90'\n\
                   ptxas info    : Function properties for cast_f32_bf16\n    0 bytes stack frame, 16 bytes spill stores, 8 bytes spill loads\n\
                   ptxas info    : Used 14 registers, used 0 barriers\n";
        let expected = KernelUsage { name: "cast_f32_bf16".into(), registers: 14, stack: 0, spills: 16 };
        assert_eq!(usage(log), [expected]);
    }
}
