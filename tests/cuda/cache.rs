//! Compiled kernels on disk: kept, made again where damaged, and carried to machines without a compiler.

use std::path::Path;

use libtest_mimic::Trial;
use lrmoe::backend::cuda::{CUBIN_ARCHS, build_cubins};
use lrmoe::kernel::Sigmoid;
use lrmoe::memory::Category;
use lrmoe::{Backend, CudaBackend, CudaOptions, DType, HostData, Recording};

use crate::support::outcome::{Outcome, holds, refused, text};
use crate::{directory, support, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("cache::kernels_are_kept_and_damaged_ones_made_again", kept),
        trial("cache::carried_kernels_need_no_compiler", carried),
        trial("cache::a_directory_that_cannot_be_written_is_no_failure", unwritable),
    ]
}

/// A sigmoid of 0 on a backend whose kernels nobody has loaded yet.
fn run(options: CudaOptions) -> Result<(), String> {
    let shared = support::cuda::cuda()?;
    let backend = CudaBackend::adopt(shared.stream(), options).map_err(text)?;
    let z = backend.import("z", HostData::F32(vec![0.0; 5]), Category::Scratch).map_err(text)?;
    let s = backend.alloc("s", DType::F32, 5, Category::Scratch).map_err(text)?;
    let mut recording = Recording::new();
    recording.dispatch(Sigmoid { len: 5, z, s: s.clone() }).map_err(text)?;
    let fence = backend.submit(&recording).map_err(text)?;
    backend.wait(&fence).map_err(text)?;
    let values = backend.read_blocking(&s).and_then(HostData::into_f32).map_err(text)?;
    holds(format!("{values:?} are halves"), values == [0.5; 5])
}

fn files(directory: &Path) -> Result<Vec<(std::path::PathBuf, Vec<u8>)>, String> {
    let entries = std::fs::read_dir(directory).map_err(text)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>().map_err(text)?;
    paths.into_iter().map(|path| std::fs::read(&path).map(|bytes| (path, bytes)).map_err(text)).collect()
}

fn kept() -> Outcome {
    let cache = directory("cache")?;
    let options = || CudaOptions { cache_dir: Some(cache.clone()), ..CudaOptions::default() };
    run(options())?;
    let first = files(&cache)?;
    holds(format!("{} files are kept", first.len()), first.len() == 1)?;
    let (path, whole) = &first[0];
    let modified = || std::fs::metadata(path).and_then(|data| data.modified()).map_err(text);
    let before = modified()?;
    run(options())?;
    holds("a kept kernel is used", modified()? == before)?;
    for damage in [&whole[..whole.len() / 2], &[], b"something else"] {
        std::fs::write(path, damage).map_err(text)?;
        run(options())?;
        holds("a damaged kernel is made again", files(&cache)? == first)?;
    }
    std::fs::remove_dir_all(cache).map_err(text)
}

fn carried() -> Outcome {
    let (carried, cache) = (directory("carried")?, directory("no-cache")?);
    let built = build_cubins(Some(&carried), CUBIN_ARCHS).map_err(text)?;
    holds("all are written", built.iter().all(|cubin| cubin.path.as_ref().is_some_and(|path| path.exists())))?;
    let options =
        CudaOptions { cubin_dir: Some(carried.clone()), cache_dir: Some(cache.clone()), ..Default::default() };
    run(options)?;
    holds("nothing was compiled", files(&cache)?.is_empty())?;
    std::fs::remove_dir_all(carried).map_err(text)?;
    std::fs::remove_dir_all(cache).map_err(text)
}

fn unwritable() -> Outcome {
    let directory = directory("unwritable")?;
    let file = directory.join("a file");
    std::fs::write(&file, "x").map_err(text)?;
    run(CudaOptions { cache_dir: Some(file.join("below")), ..CudaOptions::default() })?;
    let error = refused("a directory below a file", build_cubins(Some(&file.join("below")), &[80]).map(drop))?;
    holds(format!("`{error}` names it"), error.to_string().contains("a file"))?;
    std::fs::remove_dir_all(directory).map_err(text)
}
