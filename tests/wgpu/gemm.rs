//! Variants of the grouped GEMMs: which one runs, and that element types are read alike by all.

use half::f16;
use libtest_mimic::Trial;
use lrmoe::backend::wgpu::{ChoiceSource, Tune};
use lrmoe::kernel::GroupedForward;
use lrmoe::memory::Category;
use lrmoe::{Backend, DType, HostData, Recording, WgpuBackend, WgpuOptions};

use crate::support::outcome::{Outcome, holds, text};
use crate::{backend, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("gemm::every_f16_number_is_exact_in_every_variant", f16_numbers),
        trial("gemm::chosen_variants_are_those_that_run", chosen),
        trial("gemm::backends_on_one_device_measure_once", measured_once),
    ]
}

/// One group of rows of k columns.
struct Forward {
    rows: usize,
    n: usize,
    k: usize,
}

impl Forward {
    fn run(&self, backend: &WgpuBackend, x: HostData, w: HostData) -> lrmoe::Result<Vec<f32>> {
        let &Self { rows, n, k } = self;
        let import = |name: &str, data| backend.import(name, data, Category::Scratch);
        let out = backend.alloc("out", DType::F32, rows * n, Category::Scratch)?;
        let mut recording = Recording::new();
        recording.dispatch(GroupedForward {
            rows,
            groups: 1,
            n,
            k,
            index_div: 1,
            x: import("x", x)?,
            index: None,
            w: import("w", w)?,
            offsets: import("offsets", HostData::U32(vec![0, rows as u32]))?,
            out: out.clone(),
        })?;
        backend.wait(&backend.submit(&recording)?)?;
        backend.read_blocking(&out)?.into_f32()
    }
}

/// Row i of the weights is the number with the bits i in one column and zeros in the others; rows of x pick columns.
fn f16_numbers() -> Outcome {
    let (n, k) = (1 << 16, 4);
    let mut w = vec![f16::ZERO; n * k];
    (0..n).for_each(|i| w[i * k + i % k] = f16::from_bits(i as u16));
    let x: Vec<f32> = (0..k * k).map(|at| if at / k == at % k { 1.0 } else { 0.0 }).collect();
    for variant in WgpuBackend::gemm_variants() {
        let backend = backend(WgpuOptions { gemm_variant: Some(variant.to_owned()), ..Default::default() })?;
        let forward = Forward { rows: k, n, k };
        let out = forward.run(&backend, HostData::F32(x.clone()), HostData::F16(w.clone())).map_err(text)?;
        for i in 0..n {
            let (got, want) = (out[i % k * n + i], f16::from_bits(i as u16).to_f32());
            let same = got == want || got.is_nan() && want.is_nan();
            holds(format!("{variant}: f16 of bits {i:04x} is {want:e}, not {got:e}"), same)?;
        }
    }
    Ok(())
}

/// What options ask for is reported as in use where it is, and not where the device cannot run it.
fn chosen() -> Outcome {
    let forward = |options| -> Result<(String, ChoiceSource), String> {
        let chosen = backend(options)?.chosen_variants();
        let choice = chosen.into_iter().find(|choice| choice.what == "grouped_forward").ok_or("no choice")?;
        Ok((choice.variant, choice.source))
    };
    let default = forward(WgpuOptions::default())?;
    holds("the default is no option's", default.1 == ChoiceSource::Default)?;
    let named = |name: &str| WgpuOptions { gemm_variant: Some(name.to_owned()), ..Default::default() };
    let direct = forward(named("direct-4x64"))?;
    holds(format!("{direct:?} is the named one"), direct == ("direct-4x64".to_owned(), ChoiceSource::Option))?;
    // The device was opened without matrix units.
    for cooperative in [false, true] {
        for name in [Some("cooperative-f16".to_owned()), Some("cooperative-f32".to_owned()), None] {
            let got = forward(WgpuOptions { gemm_variant: name, cooperative, ..Default::default() })?;
            holds(format!("{got:?} is the default"), got == default)?;
        }
        let both = forward(WgpuOptions { cooperative, ..named("direct-4x64") })?;
        holds(format!("{both:?} is the named one"), both == direct)?;
    }
    Ok(())
}

fn measured_once() -> Outcome {
    let directory = std::env::temp_dir().join(format!("lrmoe-gemm-{}", std::process::id()));
    let options = |tune| WgpuOptions { tune, cache_dir: Some(directory.clone()), ..Default::default() };
    let first = backend(options(Tune::Measure))?;
    let measured = |backend: &WgpuBackend| -> Vec<_> {
        let chosen = backend.chosen_variants().into_iter();
        chosen.filter(|choice| choice.source == ChoiceSource::Measured).collect()
    };
    let (rows, n, k) = (20, 64, 32);
    let run = |backend: &WgpuBackend| {
        let [x, w] = [rows * k, n * k].map(|len| HostData::F32(vec![0.5; len]));
        Forward { rows, n, k }.run(backend, x, w).map_err(text)
    };
    let out = run(&first)?;
    holds("the product is right", out.iter().all(|&sum| sum == 8.0))?;
    let choices = measured(&first);
    holds(format!("{choices:?} is one choice"), choices.len() == 1)?;
    let beside = |tune| first.beside(options(tune)).map_err(text);
    holds("a second backend knows it", measured(&beside(Tune::Measure)?) == choices)?;
    let plain = beside(Tune::Off)?;
    holds("the bits are those of the default", run(&plain)? == out)?;
    holds("a backend of defaults does not use it", measured(&plain).is_empty())?;
    std::fs::remove_dir_all(directory).map_err(text)
}
