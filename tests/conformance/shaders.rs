//! Every shader text that the cases of the table lead to, through the compilers of all platforms, without a device.
//!
//! The cases run on wgpu's device that does nothing. What was compiled for it is validated by naga and translated to SPIR-V,
//! MSL and HLSL, and given to tint where it is on the PATH: it alone refuses barriers in control flow that is not uniform.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use libtest_mimic::{Completion, Failed, Trial};
use lrmoe::{WgpuBackend, WgpuOptions};

use crate::devices::for_shaders;
use crate::table::Case;

/// Texts by name: a shader has as many as it has specialisations.
type Texts = BTreeMap<String, Vec<String>>;

/// All trials of this file.
pub fn trials(cases: &[Arc<Case>]) -> Vec<Trial> {
    let collected = Arc::new(OnceLock::new());
    let texts = {
        let cases = cases.to_vec();
        move || collected.get_or_init(|| collect(&cases)).clone()
    };
    let by_tint = texts.clone();
    vec![
        Trial::test("shaders::naga_validates_and_translates", move || every(&texts()?, by_naga).map_err(Failed::from)),
        Trial::ignorable_test("shaders::tint_validates", move || {
            if Command::new("tint").arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
                return Ok(Completion::ignored_with("tint is not on the PATH"));
            }
            every(&by_tint()?, check_tint).map(|()| Completion::Completed).map_err(Failed::from)
        }),
    ]
}

/// Runs a check on every text; all that fail are named.
fn every(texts: &Texts, check: impl Fn(&str) -> Result<(), String>) -> Result<(), String> {
    let failures: Vec<String> = texts
        .iter()
        .flat_map(|(name, texts)| texts.iter().map(move |text| (name, text)))
        .filter_map(|(name, text)| check(text).err().map(|why| format!("{name}: {why}")))
        .collect();
    let count: usize = texts.values().map(Vec::len).sum();
    if count < lrmoe::kernel::Kernel::<crate::table::Slot>::NAMES.len() {
        return Err(format!("only {count} texts were found"));
    }
    match failures.len() {
        0 => Ok(()),
        n => Err(format!("{n} of {count} texts:\n{}", failures[..n.min(8)].join("\n"))),
    }
}

/// What the cases compile, by every kind of device that chooses kernels of its own.
fn collect(cases: &[Arc<Case>]) -> Result<Texts, String> {
    let mut texts = Texts::new();
    for backend in backends()? {
        let runner = for_shaders(backend.clone());
        for case in cases {
            // Results mean nothing here, but what does not compile is never collected.
            if let Err(why) = case.bits(&runner)
                && why.contains("does not compile")
            {
                return Err(why);
            }
        }
        for (name, text) in backend.shaders() {
            let known = texts.entry(name).or_default();
            if !known.contains(&text) {
                known.push(text);
            }
        }
    }
    Ok(texts)
}

/// Devices that do nothing, one for each set of kernels. Theirs are not subgroups of one size.
fn backends() -> Result<Vec<WgpuBackend>, String> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::NOOP;
    descriptor.backend_options.noop.enable = true;
    let instance = wgpu::Instance::new(descriptor);
    let adapter = pollster::block_on(instance.request_adapter(&wgpu::RequestAdapterOptions::default()))
        .map_err(|error| error.to_string())?;
    let device = wgpu::DeviceDescriptor {
        required_features: wgpu::Features::SUBGROUP,
        required_limits: wgpu::Limits::default(),
        ..wgpu::DeviceDescriptor::default()
    };
    let (device, queue) = pollster::block_on(adapter.request_device(&device)).map_err(|error| error.to_string())?;
    let open = |options| WgpuBackend::adopt(&device, &queue, options).map_err(|error| error.to_string());
    let variant = |name: &str| open(WgpuOptions { gemm_variant: Some(name.to_owned()), ..WgpuOptions::default() });
    let default = std::iter::once(open(WgpuOptions::default()));
    default.chain(WgpuBackend::gemm_variants().into_iter().map(variant)).collect()
}

fn by_naga(text: &str) -> Result<(), String> {
    use naga::back::{hlsl, msl, spv};
    use naga::valid::{Capabilities, ValidationFlags, Validator};
    let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .map_err(|error| error.emit_to_string(text))?;
    spv::write_vec(&module, &info, &spv::Options::default(), None).map_err(|error| format!("SPIR-V: {error}"))?;
    let metal = msl::Options { lang_version: (2, 4), ..msl::Options::default() };
    msl::write_string(&module, &info, &metal, &msl::PipelineOptions::default())
        .map_err(|error| format!("MSL: {error}"))?;
    let direct = hlsl::Options { shader_model: hlsl::ShaderModel::V6_0, ..hlsl::Options::default() };
    let mut written = String::new();
    hlsl::Writer::new(&mut written, &direct, &hlsl::PipelineOptions::default())
        .write(&module, &info, None)
        .map_err(|error| format!("HLSL: {error}"))?;
    Ok(())
}

/// tint reads files only; it needs an `enable` that naga does not know.
fn check_tint(text: &str) -> Result<(), String> {
    if text.contains("coop_mat") {
        return Ok(()); // An extension of naga's.
    }
    let enable = if text.contains("subgroup") { "enable subgroups;\n" } else { "" };
    let mut file = tempfile().map_err(|error| error.to_string())?;
    file.1.write_all(enable.as_bytes()).and_then(|()| file.1.write_all(text.as_bytes())).map_err(|e| e.to_string())?;
    let run = Command::new("tint").args(["--format", "wgsl"]).arg(&file.0).stdout(Stdio::null()).output();
    let _ = std::fs::remove_file(&file.0);
    let output = run.map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn tempfile() -> std::io::Result<(std::path::PathBuf, std::fs::File)> {
    let path = std::env::temp_dir().join(format!("lrmoe-shader-{}.wgsl", std::process::id()));
    let file = std::fs::File::create(&path)?;
    Ok((path, file))
}
