//! Every variant's text through the compilers of all platforms, for a device that has everything. The conformance table runs
//! those that a real one has.

use std::process::{Command, Stdio};

use naga::valid::{Capabilities, ValidationFlags, Validator};

use super::encode::shader;
use super::product::{Call, Shape};
use super::variant::{Strategy, VARIANTS, Variant};
use crate::backend::wgpu::context::{Cooperative, Profile};
use crate::backend::wgpu::launch::check_rounds;
use crate::backend::wgpu::shader::{Bound, Specialisation, View};
use crate::tensor::DType;

const PROFILE: Profile = Profile {
    software: false,
    subgroup: Some(32),
    binding_bytes: 1 << 30,
    workgroup_bytes: 16 << 10,
    invocations: 256,
    grid: 65_535,
    alignment: 256,
    cooperative: Cooperative { singles: true, halves: true },
    timestamps: false,
};

const PARAMS: [&str; 15] = [
    "rows",
    "group_first",
    "group_end",
    "lane_first",
    "lane_end",
    "step_first",
    "step_end",
    "shift",
    "cols",
    "col_tiles",
    "a_cols",
    "a_div",
    "c_cols",
    "row_tiles",
    "b_div",
];

fn shape(call: Call, dtype: DType, fours: bool) -> Shape {
    Shape { call, rows: 1000, experts: 8, n: 64, k: 64, dtypes: [dtype; 2], fours }
}

fn text(call: Call, variant: &Variant, dtype: DType, resume: bool) -> String {
    let (source, entry) = shader(call, variant.strategy);
    let floats = if variant.fours { View::Vec4(dtype) } else { View::Scalar(dtype) };
    let left = if variant.strategy == Strategy::Subgroup { View::Scalar(dtype) } else { floats };
    let (index, single) = (View::Scalar(DType::U32), View::Scalar(DType::F32));
    let weights =
        [("a", left), ("a_index", index), ("b", floats), ("offsets", index), ("starts", index), ("c", single)];
    let gradient = [
        ("a", left),
        ("a_index", index),
        ("scale", single),
        ("b", floats),
        ("b_index", index),
        ("offsets", index),
        ("c", single),
    ];
    let buffers = if call == Call::Wgrad { gradient.as_slice() } else { weights.as_slice() };
    let bound = buffers.iter().zip(0..).map(|(&(name, view), slot)| Bound { name, view, slot: Some(slot) });
    Specialisation {
        source,
        entry,
        workgroup: variant.workgroup(&PROFILE),
        constants: variant.constants(&PROFILE, call, resume),
        params: PARAMS.iter().map(|&name| (name, "u32")).collect(),
        bound: bound.collect(),
    }
    .wgsl()
}

/// `hlsl`: whether naga has a translation for DX12.
fn validate(text: &str, hlsl: bool) -> Result<(), String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .map_err(|error| error.emit_to_string(text))?;
    naga::back::spv::write_vec(&module, &info, &naga::back::spv::Options::default(), None)
        .map_err(|error| format!("SPIR-V: {error}"))?;
    let metal = naga::back::msl::Options { lang_version: (2, 4), ..naga::back::msl::Options::default() };
    naga::back::msl::write_string(&module, &info, &metal, &naga::back::msl::PipelineOptions::default())
        .map_err(|error| format!("MSL: {error}"))?;
    if hlsl {
        use naga::back::hlsl;
        let direct = hlsl::Options { shader_model: hlsl::ShaderModel::V6_0, ..hlsl::Options::default() };
        hlsl::Writer::new(&mut String::new(), &direct, &hlsl::PipelineOptions::default())
            .write(&module, &info, None)
            .map_err(|error| format!("HLSL: {error}"))?;
    }
    Ok(())
}

/// Every variant with every element type it takes, first and resumed: its name and text.
fn all_texts() -> Vec<(&'static Variant, String, String)> {
    let mut all = Vec::new();
    for call in Call::ALL {
        for variant in &VARIANTS {
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                if variant.supported(&PROFILE, &shape(call, dtype, variant.fours)).is_err() {
                    continue;
                }
                for resume in [false, true] {
                    let name = format!("{} of {call:?} {dtype}", variant.name);
                    all.push((variant, name, text(call, variant, dtype, resume)));
                }
            }
        }
    }
    all
}

#[test]
fn all_variants_compile() {
    let texts = all_texts();
    for (variant, name, text) in &texts {
        assert_eq!(validate(text, !variant.is_cooperative()), Ok(()), "{name}");
    }
    // Of all element types but for one that is f16 alone; without subgroups and f16 matrices for weight gradients.
    let (by_rows, by_weights) = (11 * 3 + 1, 9 * 3);
    assert_eq!(texts.len(), 2 * (by_rows + by_rows + by_weights));
}

/// Variants with subgroups through tint, where it is on the PATH: it alone refuses barriers and shuffles in control flow that
/// is not uniform. The conformance table gives it the others.
#[test]
fn subgroup_variants_are_uniform() {
    let tint = |file: &str| Command::new("tint").args(["--format", "wgsl", file]).stdout(Stdio::null()).output();
    if tint("--help").is_err() {
        return;
    }
    let path = std::env::temp_dir().join(format!("lrmoe-subgroup-{}.wgsl", std::process::id()));
    for (_, name, text) in all_texts().iter().filter(|(variant, ..)| variant.strategy == Strategy::Subgroup) {
        // naga does not know this line.
        std::fs::write(&path, format!("enable subgroups;\n{text}")).unwrap();
        let output = tint(&path.to_string_lossy()).unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn only_software_drivers_bound_loops() {
    let what = || "a product of 7 groups".to_owned();
    assert_eq!(check_rounds(&PROFILE, usize::MAX, what), Ok(()));
    let software = Profile { software: true, ..PROFILE };
    assert_eq!(check_rounds(&software, 60_000, what), Ok(()));
    let text = check_rounds(&software, 60_001, what).unwrap_err().to_string();
    assert!(text.contains("7 groups") && text.contains("60001 rounds") && text.contains("60000"), "{text}");
}

#[test]
fn the_last_variant_needs_nothing() {
    let least =
        Profile { subgroup: None, workgroup_bytes: 0, invocations: 8, cooperative: Cooperative::default(), ..PROFILE };
    for call in Call::ALL {
        for fours in [false, true] {
            let shape = shape(call, DType::BF16, fours);
            assert_eq!(VARIANTS[VARIANTS.len() - 1].supported(&least, &shape), Ok(()));
        }
        assert!(VARIANTS[0].supported(&least, &shape(call, DType::F32, false)).unwrap_err().contains("four"));
    }
}
