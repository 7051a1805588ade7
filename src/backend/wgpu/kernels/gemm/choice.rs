//! Which variant computes a product: the one an option names, the fastest measured, or the default of the device's kind.

use super::product::{Call, Shape};
use super::trial::{measure, passes};
use super::variant::{Strategy, VARIANTS, Variant};
use crate::backend::wgpu::encode::Encoder;
use crate::backend::wgpu::tuning::{ChoiceSource, ChosenVariant};
use crate::backend::wgpu::{Inner, Profile};
use crate::tensor::DType;
use crate::{Error, Result};

/// Refuses a name that no variant has.
pub(crate) fn check_variant(name: Option<&str>) -> Result<()> {
    match name {
        Some(name) if Variant::named(name).is_none() => {
            Err(Error::argument("gemm_variant", name, gemm_variants().join(", ")))
        }
        _ => Ok(()),
    }
}

/// Names of all variants.
pub(crate) fn gemm_variants() -> Vec<&'static str> {
    VARIANTS.iter().map(|variant| variant.name).collect()
}

/// What has been chosen so far on a device, behind what it would choose for large groups of aligned rows.
pub(crate) fn chosen_variants(inner: &Inner) -> Vec<ChosenVariant> {
    let usual = |call: Call, dtype: DType| {
        let shape = Shape { call, rows: 4096, experts: 8, n: 1024, k: 1024, dtypes: [dtype; 2], fours: true };
        match asked_for(inner, &shape) {
            Some(variant) => Some((variant, ChoiceSource::Option)),
            None => candidates(&inner.context.profile, &shape).first().map(|&variant| (variant, ChoiceSource::Default)),
        }
    };
    let mut chosen = Vec::new();
    let mut push = |what: String, (variant, source): (&Variant, ChoiceSource)| {
        chosen.push(ChosenVariant { what, variant: variant.name.to_owned(), source });
    };
    for call in Call::ALL {
        let (singles, halves) = (usual(call, DType::F32), usual(call, DType::F16));
        // Matrix units are for some element types only.
        let differs = halves.filter(|_| halves != singles);
        singles.into_iter().for_each(|choice| push(call.name().to_owned(), choice));
        differs.into_iter().for_each(|choice| push(format!("{} {}", call.name(), DType::F16), choice));
    }
    chosen.extend(inner.tuner.chosen());
    chosen
}

/// The variant that options ask for: the named one, or else one with matrix units. None where the device cannot run it on such
/// a product, or failed its test.
fn asked_for(inner: &Inner, shape: &Shape) -> Option<&'static Variant> {
    let options = &inner.options;
    let named = options.gemm_variant.as_deref().and_then(Variant::named);
    let cooperative = VARIANTS.iter().filter(|variant| options.cooperative && variant.is_cooperative());
    named.into_iter().chain(cooperative).find(|variant| {
        variant.supported(&inner.context.profile, shape).is_ok()
            && (!variant.is_cooperative() || (options.cooperative && passes(inner, shape, variant)))
    })
}

/// The variant for a product.
pub(super) fn choose(shape: &Shape, to: &Encoder<'_>) -> Result<&'static Variant> {
    let (inner, profile) = (to.inner(), to.profile());
    if let Some(variant) = asked_for(inner, shape) {
        return Ok(variant);
    }
    let candidates: Vec<_> = candidates(profile, shape).into_iter().map(|variant| (variant.name, variant)).collect();
    let chosen = inner.tuner.choose(&shape.class(), &candidates, |variant| measure(inner, shape, variant));
    chosen.ok_or_else(|| {
        let reasons: Vec<_> = VARIANTS
            .iter()
            .filter_map(|variant| variant.supported(profile, shape).err().map(|why| format!("{}: {why}", variant.name)))
            .collect();
        Error::Unsupported { what: shape.call.name().to_owned(), why: reasons.join("; ") }
    })
}

/// Variants worth a measurement, the default of this kind of device first.
fn candidates(profile: &Profile, shape: &Shape) -> Vec<&'static Variant> {
    let rows = shape.mean_rows();
    let default = match (profile.software, shape.fours) {
        // A tile that is mostly empty costs as much as a full one.
        (true, true) if rows > 8 => "subgroup-16x4",
        (true, true) if rows > 4 => "direct-8x64",
        (true, true) => "direct-4x64",
        (true, false) => "direct-8x64x1",
        (false, true) if rows >= 128 => "tiled-128x64",
        (false, true) if rows > 16 => "tiled-64x64",
        (false, true) => "tiled-16x64",
        (false, false) if rows > 16 => "tiled-64x64x1",
        (false, false) => "tiled-16x64x1",
    };
    // Workgroup memory costs more than it saves on a CPU, and a GPU's vectors are longer than eight. Elements one at a time
    // are for rows that cannot be read otherwise.
    let likely = |variant: &&'static Variant| {
        variant.fours == shape.fours
            && match variant.strategy {
                Strategy::Direct => profile.software,
                Strategy::Tiled => !profile.software,
                Strategy::Subgroup => true,
                // Has other bits.
                Strategy::Cooperative => false,
            }
    };
    let supported = |variant: &&'static Variant| variant.supported(profile, shape).is_ok();
    let mut all: Vec<_> = VARIANTS.iter().filter(likely).filter(supported).collect();
    all.sort_by_key(|variant| variant.name != default);
    if all.is_empty() {
        all.extend(VARIANTS.iter().rev().find(supported));
    }
    all
}
