//! Every variant's text through naga, for a device that has everything. The conformance table runs those that a real one has.

use naga::valid::{Capabilities, ValidationFlags, Validator};

use super::encode::shader;
use super::product::{Call, Shape};
use super::variant::{Strategy, VARIANTS, Variant};
use crate::backend::wgpu::context::{Cooperative, Profile};
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

fn validate(text: &str) -> Result<(), String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .map_err(|error| error.emit_to_string(text))?;
    naga::back::spv::write_vec(&module, &info, &naga::back::spv::Options::default(), None)
        .map_err(|error| format!("SPIR-V: {error}"))?;
    let metal = naga::back::msl::Options { lang_version: (2, 4), ..naga::back::msl::Options::default() };
    naga::back::msl::write_string(&module, &info, &metal, &naga::back::msl::PipelineOptions::default())
        .map_err(|error| format!("MSL: {error}"))?;
    Ok(())
}

#[test]
fn all_variants_compile() {
    let mut count = 0;
    for call in Call::ALL {
        for variant in &VARIANTS {
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                if variant.supported(&PROFILE, &shape(call, dtype, variant.fours)).is_err() {
                    continue;
                }
                for resume in [false, true] {
                    let checked = validate(&text(call, variant, dtype, resume));
                    assert!(checked.is_ok(), "{} of {call:?} {dtype}: {}", variant.name, checked.unwrap_err());
                    count += 1;
                }
            }
        }
    }
    // Of all element types but for one that is f16 alone; without subgroups and f16 matrices for weight gradients.
    let (by_rows, by_weights) = (11 * 3 + 1, 9 * 3);
    assert_eq!(count, 2 * (by_rows + by_rows + by_weights));
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
