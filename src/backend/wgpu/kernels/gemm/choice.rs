//! Which variant computes a product: the one an option names, the fastest measured, or the default of the device's kind.

use std::time::{Duration, Instant};

use super::encode::run_with;
use super::product::{Call, Product, Right, Rows, Shape};
use super::variant::{Strategy, VARIANTS, Variant};
use crate::backend::elements;
use crate::backend::wgpu::encode::Encoder;
use crate::backend::wgpu::tuning::{ChoiceSource, ChosenVariant};
use crate::backend::wgpu::{Inner, Profile};
use crate::memory::Category;
use crate::tensor::{DType, HostData};
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
    let profile = &inner.context.profile;
    let forced = inner.options.gemm_variant.as_deref().and_then(Variant::named);
    let usual = Call::ALL.into_iter().filter_map(|call| {
        let shape =
            Shape { call, rows: 4096, experts: 8, n: 1024, k: 1024, dtypes: [DType::F32, DType::F32], fours: true };
        let named = forced.filter(|variant| variant.supported(profile, &shape).is_ok());
        let source = if named.is_some() { ChoiceSource::Option } else { ChoiceSource::Default };
        let variant = named.or_else(|| candidates(profile, &shape).first().copied())?;
        Some(ChosenVariant { what: call.name().to_owned(), variant: variant.name.to_owned(), source })
    });
    usual.chain(inner.tuner.chosen()).collect()
}

/// The variant for a product.
pub(super) fn choose(shape: &Shape, to: &Encoder<'_>) -> Result<&'static Variant> {
    let (inner, profile) = (to.inner(), to.profile());
    let named = inner.options.gemm_variant.as_deref().and_then(Variant::named);
    if let Some(variant) = named.filter(|variant| variant.supported(profile, shape).is_ok()) {
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

/// Largest array of a measurement in bytes, operations of one, and rows of one group.
const MEASURED_BYTES: usize = 64 << 20;
const MEASURED_OPERATIONS: usize = 4_000_000_000;
const MEASURED_ROWS: usize = 1024;

/// Shorter runs are repeated until they take so long.
const LEAST_TIME: Duration = Duration::from_millis(2);

/// Time of one product like those of the class, on zeros.
fn measure(inner: &Inner, shape: &Shape, variant: &'static Variant) -> Result<Duration> {
    let &Shape { call, n, k, dtypes: [a_type, b_type], .. } = shape;
    let mean = shape.rows.div_ceil(shape.experts.max(1)).clamp(1, MEASURED_ROWS);
    let weights = elements("weights", &[n, k])?;
    let operations = elements("operations", &[weights, 2 * mean])?;
    let most = (MEASURED_OPERATIONS / operations.max(1)).min(MEASURED_BYTES / 4 / weights.max(1));
    if most == 0 {
        return Err(Error::Unsupported {
            what: "measuring".into(),
            why: format!("matrices of {n} x {k} are too large"),
        });
    }
    let experts = shape.experts.clamp(1, most.min(16));
    let rows = elements("rows", &[experts, mean])?;
    let alloc = |name, dtype, len| inner.alloc(name, dtype, len, Category::Scratch);
    let (wide, narrow) = (elements("rows", &[rows, n])?, elements("rows", &[rows, k])?);
    let all_weights = elements("weights", &[experts, weights])?;
    let (a_len, b_len, c_len) = match call {
        Call::Forward => (narrow, all_weights, wide),
        Call::Dgrad => (wide, all_weights, narrow),
        Call::Wgrad => (wide, narrow, all_weights),
    };
    let (a, b) = (alloc("measured", a_type, a_len)?, alloc("measured", b_type, b_len)?);
    let (c, offsets) = (alloc("measured", DType::F32, c_len)?, alloc("measured", DType::U32, experts + 1)?);
    let starts = (0..=experts).map(|e| u32::try_from(e * mean).unwrap_or(u32::MAX)).collect();
    inner.upload(&offsets, 0, &HostData::U32(starts))?;
    let product = Product {
        call,
        rows,
        experts,
        n,
        k,
        a: Rows { buffer: &a, cols: if call == Call::Forward { k } else { n }, index: None, div: 1 },
        b: match call {
            Call::Forward | Call::Dgrad => Right::Weights(&b),
            Call::Wgrad => Right::Rows(Rows { buffer: &b, cols: k, index: None, div: 1 }),
        },
        scale: None,
        offsets: &offsets,
        c: &c,
        accumulate: false,
    };
    let run = |fill: bool, times: u32| -> Result<Duration> {
        let start = Instant::now();
        let mut to = Encoder::new(inner, 1, None);
        to.begin("measure");
        if fill {
            to.fill(&a, 0)?;
            to.fill(&b, 0)?;
        }
        for _ in 0..times {
            run_with(&product, variant, &mut to)?;
        }
        let submitted = to.finish()?;
        inner.context.wait_for(submitted.last, "measure")?;
        Ok(start.elapsed() / times)
    };
    run(true, 1)?;
    let once = run(false, 1)?;
    if once >= LEAST_TIME {
        return Ok(once);
    }
    let times = LEAST_TIME.as_nanos() / once.as_nanos().max(1) + 1;
    run(false, u32::try_from(times.min(64)).unwrap_or(64))
}
