//! Every kernel as machine code, without a GPU: registers, spills, and the instructions that are meant.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::OnceLock;

use libtest_mimic::Trial;
use lrmoe::backend::cuda::{CUBIN_ARCHS, Cubin, build_cubins, cuda_kernels};

use crate::image::Image;
use crate::support::outcome::{Outcome, holds, text};
use crate::{directory, support, trial_with};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial_with("cubins::every_kernel_of_the_table_and_no_other", no_nvrtc, all_there),
        trial_with("cubins::no_spills_and_registers_within_their_ceilings", no_nvrtc, registers),
        trial_with("cubins::threads_and_parameters_are_the_tables", no_nvrtc, signatures),
        trial_with("cubins::grouped_gemms_use_tensor_cores", no_disassembler, instructions),
    ]
}

/// Every file for every architecture.
fn cubins() -> Result<&'static [Cubin], String> {
    static BUILT: OnceLock<Result<Vec<Cubin>, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build_cubins(None, CUBIN_ARCHS).map_err(text));
    built.as_ref().map(Vec::as_slice).map_err(Clone::clone)
}

/// Why nothing can be compiled; what a kernel's text causes is not a reason.
pub(crate) fn no_nvrtc() -> Option<String> {
    match build_cubins(None, &[]) {
        Ok(_) => None,
        Err(error) => Some(support::cuda::absent(&error.to_string())),
    }
}

fn disassembler() -> Command {
    Command::new(std::env::var_os("LRMOE_NVDISASM").unwrap_or_else(|| "nvdisasm".into()))
}

fn no_disassembler() -> Option<String> {
    let there = disassembler().arg("--version").output().is_ok_and(|output| output.status.success());
    let missing = || support::cuda::absent("nvdisasm is not there; LRMOE_NVDISASM can name it");
    no_nvrtc().or_else(|| (!there).then(missing))
}

fn all_there() -> Outcome {
    let mut expected: Vec<String> = cuda_kernels().into_iter().map(|kernel| kernel.name).collect();
    expected.sort();
    holds("names in the table are unique", expected.windows(2).all(|pair| pair[0] != pair[1]))?;
    for &sm in CUBIN_ARCHS {
        let of_arch = cubins()?.iter().filter(|cubin| cubin.sm == sm);
        let mut found: Vec<String> =
            of_arch.flat_map(|cubin| &cubin.kernels).map(|kernel| kernel.name.clone()).collect();
        found.sort();
        let only = |a: &[String], b: &[String]| a.iter().find(|name| !b.contains(name)).cloned();
        if let Some(name) = only(&expected, &found) {
            return Err(format!("`{name}` is in the table and not in the cubins of sm_{sm}"));
        }
        if let Some(name) = only(&found, &expected) {
            return Err(format!("`{name}` is in the cubins of sm_{sm} and not in the table"));
        }
    }
    Ok(())
}

fn registers() -> Outcome {
    let ceilings: BTreeMap<String, u32> =
        cuda_kernels().into_iter().map(|kernel| (kernel.name, kernel.registers)).collect();
    let (mut wrong, mut largest) = (Vec::new(), BTreeMap::new());
    for cubin in cubins()? {
        for kernel in &cubin.kernels {
            let ceiling = ceilings.get(&kernel.name).copied().unwrap_or(0);
            if kernel.spills > 0 || kernel.stack > 0 || kernel.registers > ceiling {
                wrong.push(format!(
                    "{} on sm_{}: {} registers of {ceiling}, {} bytes of stack, {} spilled",
                    kernel.name, cubin.sm, kernel.registers, kernel.stack, kernel.spills
                ));
            }
            let most = largest.entry(kernel.name.clone()).or_insert(0);
            *most = kernel.registers.max(*most);
        }
    }
    // A ceiling that nobody comes near says nothing.
    for (name, registers) in largest {
        let ceiling = ceilings.get(&name).copied().unwrap_or(0);
        if registers * 2 < ceiling && ceiling > 40 {
            wrong.push(format!("{name}: ceiling {ceiling} for {registers} registers"));
        }
    }
    holds(wrong.join("\n"), wrong.is_empty())
}

fn bytes_of(c_type: &str) -> usize {
    match c_type {
        "u64" | "f64" => 8,
        pointer if pointer.ends_with('*') => 8,
        _ => 4,
    }
}

fn signatures() -> Outcome {
    let kernels = cuda_kernels();
    for cubin in cubins()? {
        let image = Image::new(cubin.image.clone()).ok_or_else(|| format!("{}: no image", cubin.file))?;
        for kernel in kernels.iter().filter(|kernel| kernel.file == cubin.file) {
            let described = image.kernel(&kernel.name);
            let described = described.ok_or_else(|| format!("{} on sm_{}: not in the image", kernel.name, cubin.sm))?;
            let sizes: Vec<usize> = described.params.iter().map(|&(_, bytes)| bytes).collect();
            let expected: Vec<usize> = kernel.params.iter().map(|(_, c_type)| bytes_of(c_type)).collect();
            holds(format!("{}: sizes {sizes:?} are {expected:?}", kernel.name), sizes == expected)?;
            let (name, threads) = (&kernel.name, described.max_threads);
            holds(format!("{name}: threads {threads} are {}", kernel.threads), threads == kernel.threads)?;
        }
    }
    Ok(())
}

/// Instructions of each kernel in machine code.
fn disassemble(cubin: &Cubin) -> Result<BTreeMap<String, Vec<String>>, String> {
    let directory = directory(&format!("sass-{}-{}", cubin.file, cubin.sm))?;
    let path = directory.join("kernel.cubin");
    std::fs::write(&path, &cubin.image).map_err(text)?;
    let output = disassembler().arg(&path).output().map_err(text)?;
    holds(String::from_utf8_lossy(&output.stderr), output.status.success())?;
    std::fs::remove_dir_all(directory).map_err(text)?;
    let mut kernels = BTreeMap::new();
    let mut name = String::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some(section) = line.trim().strip_prefix(".text.").and_then(|rest| rest.strip_suffix(':')) {
            name = section.to_owned();
        }
        if let Some((_, code)) = line.split_once("*/") {
            let instruction = code.trim_start().trim_start_matches(['@', '!']).to_owned();
            kernels.entry(name.clone()).or_insert_with(Vec::new).push(instruction);
        }
    }
    Ok(kernels)
}

fn instructions() -> Outcome {
    let mut checked = 0;
    for cubin in cubins()?.iter().filter(|cubin| cubin.file.starts_with("grouped_")) {
        for (name, code) in disassemble(cubin)? {
            let count = |what: &str| code.iter().filter(|instruction| instruction.contains(what)).count();
            if !name.starts_with("grouped_") || !name.contains("16") {
                continue;
            }
            checked += 1;
            let counts = ["HMMA", "LDSM", "LDGSTS"].map(count);
            let what = format!("{name} on sm_{}: HMMA, LDSM, LDGSTS {counts:?}", cubin.sm);
            holds(what, counts.iter().all(|&count| count > 0))?;
        }
    }
    holds(format!("{checked} kernels with tensor cores"), checked > 0)
}
