//! Launches of one product: for each window of weights, and for each stretch of the steps.

use std::ops::Range;

use super::choice::choose;
use super::product::{Call, Product, Right, Shape};
use super::variant::{Strategy, Variant};
use super::window::{Weights, Window};
use crate::Result;
use crate::backend::known::Question;
use crate::backend::wgpu::buffer::WgpuBuffer;
use crate::backend::wgpu::encode::Encoder;
use crate::backend::wgpu::launch::{Arg, Launch, check_rounds, u32_of};
use crate::backend::wgpu::shader::{Param, Source, source};
use crate::backend::{Buffer as _, elements};

static STARTS: Source = source!("gemm_starts");

/// Invocations of the one workgroup that counts tiles.
const STARTS_WORKGROUP: u32 = 64;

/// Shaders of each strategy.
struct Sources {
    direct: Source,
    tiled: Source,
    subgroup: Option<Source>,
    cooperative: Source,
}

static FORWARD: Sources = Sources {
    direct: source!("grouped_forward", ["lib_gemm", "lib_gemm_rows", "lib_gemm_direct"]),
    tiled: source!("grouped_forward", ["lib_gemm", "lib_gemm_rows", "lib_gemm_tiled"]),
    subgroup: Some(source!("grouped_forward", ["lib_gemm", "lib_gemm_rows", "lib_gemm_subgroup"])),
    cooperative: source!("grouped_forward", ["lib_gemm", "lib_gemm_rows", "lib_gemm_cooperative"]),
};

static DGRAD: Sources = Sources {
    direct: source!("grouped_dgrad", ["lib_gemm", "lib_gemm_rows", "lib_gemm_direct"]),
    tiled: source!("grouped_dgrad", ["lib_gemm", "lib_gemm_rows", "lib_gemm_tiled"]),
    subgroup: Some(source!("grouped_dgrad", ["lib_gemm", "lib_gemm_rows", "lib_gemm_subgroup"])),
    cooperative: source!("grouped_dgrad", ["lib_gemm", "lib_gemm_rows", "lib_gemm_cooperative"]),
};

static WGRAD: Sources = Sources {
    direct: source!("grouped_wgrad", ["lib_gemm", "lib_gemm_direct"]),
    tiled: source!("grouped_wgrad", ["lib_gemm", "lib_gemm_tiled"]),
    subgroup: None,
    cooperative: source!("grouped_wgrad", ["lib_gemm", "lib_gemm_cooperative"]),
};

/// Text and entry point.
pub(super) fn shader(call: Call, strategy: Strategy) -> (&'static Source, &'static str) {
    let sources = match call {
        Call::Forward => &FORWARD,
        Call::Dgrad => &DGRAD,
        Call::Wgrad => &WGRAD,
    };
    match (strategy, &sources.subgroup) {
        (Strategy::Tiled, _) => (&sources.tiled, "tiled"),
        (Strategy::Cooperative, _) => (&sources.cooperative, "cooperative"),
        (Strategy::Subgroup, Some(subgroup)) => (subgroup, "subgroup"),
        (Strategy::Direct | Strategy::Subgroup, _) => (&sources.direct, "direct"),
    }
}

/// Rows of a group that one dispatch of a weight gradient adds up at most, where the mean is no more: bounds its time.
const LEAST_STRETCH: usize = 16_384;

/// Groups are taken to have at most so many times the mean of rows when the time of a dispatch is estimated.
const SKEW: usize = 4;

/// One product on its way to the device.
struct Plan<'a> {
    product: &'a Product<'a>,
    variant: &'static Variant,
    /// What is bound in windows: weights, or their gradient.
    weights: Weights<'a>,
    /// First tile of each group, where they are rows of the batch.
    starts: Option<WgpuBuffer>,
}

/// Encodes all of a product with the variant chosen for it.
pub(super) fn run(product: &Product<'_>, to: &mut Encoder<'_>) -> Result<()> {
    let windows = weights(product, to).windows()?;
    let &Product { call, rows, experts, n, k, .. } = product;
    let (a, b) = (product.a.buffer, product.b.buffer());
    let aligned = |Window { lanes, .. }: &Window| lanes.start.is_multiple_of(4) && lanes.end.is_multiple_of(4);
    let shape = Shape {
        call,
        rows,
        experts,
        n,
        k,
        dtypes: [a.dtype(), b.dtype()],
        fours: Shape::divides_by_four(call, n, k)
            && a.vec4_ok()
            && b.vec4_ok()
            && (call == Call::Forward || windows.iter().all(aligned)),
    };
    run_with(product, choose(&shape, to)?, to)
}

/// Encodes all of a product with a variant that supports it.
pub(super) fn run_with(product: &Product<'_>, variant: &'static Variant, to: &mut Encoder<'_>) -> Result<()> {
    let &Product { call, rows, experts, k, .. } = product;
    let mut plan = Plan { product, variant, weights: weights(product, to), starts: None };
    if call != Call::Wgrad {
        plan.starts = Some(plan.count_tiles(to)?);
    }
    let most = variant.steps_at_most(to.profile());
    for window in &plan.weights.windows()? {
        let (steps, most) = match call {
            Call::Forward => (0..k, most),
            Call::Dgrad => (window.lanes.clone(), most),
            Call::Wgrad => (0..rows.max(1), most.min(LEAST_STRETCH.max(SKEW * rows.div_ceil(experts)))),
        };
        for start in steps.clone().step_by(most) {
            plan.launch(window, start..steps.end.min(start.saturating_add(most)), to)?;
        }
    }
    Ok(())
}

/// What is bound in windows: weights, or their gradient.
fn weights<'a>(product: &Product<'a>, to: &Encoder<'_>) -> Weights<'a> {
    let (name, buffer) = if product.call == Call::Wgrad { ("out", product.c) } else { ("w", product.b.buffer()) };
    Weights {
        name,
        experts: product.experts,
        n: product.n,
        k: product.k,
        element: buffer.dtype().bytes(),
        binding: to.profile().binding_bytes,
        alignment: to.profile().alignment,
    }
}

impl Plan<'_> {
    /// The number of row tiles in front of each group.
    fn count_tiles(&self, to: &mut Encoder<'_>) -> Result<WgpuBuffer> {
        let &Product { rows, experts, offsets, .. } = self.product;
        let entries = elements("groups", &[experts])? + 1;
        let [tile_rows, _] = self.variant.tile(to.profile());
        // Each invocation goes over its groups twice, and over what the others have counted.
        let lanes = STARTS_WORKGROUP as usize;
        let rounds = experts.div_ceil(lanes).saturating_mul(2).saturating_add(lanes);
        check_rounds(to.profile(), rounds, || format!("{} of {experts} groups", self.product.call.name()))?;
        let question = Question::Tiles { groups: experts, rows, tile_rows };
        to.derived(question, &[offsets], ("starts", entries), |to, starts| {
            to.launch(Launch {
                source: &STARTS,
                entry: "main",
                workgroup: STARTS_WORKGROUP,
                constants: vec![],
                params: vec![
                    ("rows", Param::U32(u32_of("rows", rows)?)),
                    ("experts", Param::U32(u32_of("groups", experts)?)),
                    ("tile_rows", Param::U32(tile_rows)),
                ],
                args: vec![Arg::u32("offsets", offsets, entries)?, Arg::u32("starts", starts, entries)?],
                groups: u64::from(experts > 0),
                cost: experts as u64 * 16,
            })
        })
    }

    /// One window over some of the steps: of the columns, or of the rows of each group.
    fn launch(&self, window: &Window, steps: Range<usize>, to: &mut Encoder<'_>) -> Result<()> {
        let &Self { product, variant, .. } = self;
        let &Product { call, rows, experts, n, k, .. } = product;
        let [tile_rows, tile_cols] = variant.tile(to.profile());
        let cols = if call == Call::Forward { window.lanes.len() } else { k };
        let col_tiles = cols.div_ceil(tile_cols as usize) as u64;
        let experts_here = window.experts.len();
        let (row_tiles, resume) = match call {
            // No group has more than one tile that is not full.
            Call::Forward | Call::Dgrad => {
                ((rows / tile_rows as usize + experts_here.min(rows)) as u64, steps.start > 0)
            }
            Call::Wgrad => {
                let each = window.lanes.len().div_ceil(tile_rows as usize);
                (elements("tiles", &[experts_here, each])? as u64, product.accumulate || steps.start > 0)
            }
        };
        let depth = match call {
            Call::Forward | Call::Dgrad => steps.len(),
            Call::Wgrad => steps.len().min(SKEW * rows.div_ceil(experts)),
        };
        // Windows begin at whole vectors; what is in front of their first element is skipped by the kernel.
        let bound = self.weights.elements(window);
        let (first, shift) = (bound.start - bound.start % 4, bound.start % 4);
        let number = |name, value| Ok((name, Param::U32(u32_of(name, value)?)));
        let mut params = vec![
            number("rows", rows)?,
            number("group_first", window.experts.start)?,
            number("group_end", window.experts.end)?,
            number("lane_first", window.lanes.start)?,
            number("lane_end", window.lanes.end)?,
            number("step_first", steps.start)?,
            number("step_end", steps.end)?,
            number("shift", shift)?,
            number("cols", cols)?,
            number("col_tiles", cols.div_ceil(tile_cols as usize))?,
            number("a_cols", product.a.cols)?,
            ("a_div", Param::U32(product.a.div)),
        ];
        let a_len = product.a.elements(rows);
        let b_len = if let Right::Rows(x) = product.b { x.elements(rows) } else { bound.len() };
        u32_of("elements of an operand", a_len.max(b_len))?;
        let floats = if variant.fours { Arg::vec4 } else { Arg::floats };
        // The left operand of a subgroup is read one step an invocation.
        let left = if variant.strategy == Strategy::Subgroup { Arg::floats } else { floats };
        let offsets = Arg::u32("offsets", product.offsets, experts + 1)?;
        let a_index = Arg::optional_u32("a_index", product.a.index.map(|(_, buffer)| buffer), rows)?;
        let a = left("a", product.a.buffer, a_len)?;
        let args = match product.b {
            Right::Weights(w) => {
                params.push(number("c_cols", if call == Call::Forward { n } else { k })?);
                let w = floats("b", w, elements("w", &[experts, n, k])?)?.window(first..bound.end);
                let cols = if call == Call::Forward { n } else { k };
                let c = Arg::f32("c", product.c, elements("out", &[rows, cols])?)?;
                let starts = Arg::optional_u32("starts", self.starts.as_ref(), experts + 1)?;
                vec![a, a_index, w, offsets, starts, c]
            }
            Right::Rows(x) => {
                params.push(number("row_tiles", window.lanes.len().div_ceil(tile_rows as usize))?);
                params.push(("b_div", Param::U32(x.div)));
                let b_index = Arg::optional_u32("b_index", x.index.map(|(_, buffer)| buffer), rows)?;
                let scale = Arg::optional_f32("scale", product.scale, rows)?;
                let c = Arg::f32("c", product.c, elements("out", &[experts, n, k])?)?.window(first..bound.end);
                vec![a, a_index, scale, floats("b", x.buffer, b_len)?, b_index, offsets, c]
            }
        };
        let (source, entry) = shader(call, variant.strategy);
        to.launch(Launch {
            source,
            entry,
            workgroup: variant.workgroup(to.profile()),
            constants: variant.constants(to.profile(), call, resume),
            params,
            args,
            groups: row_tiles.saturating_mul(col_tiles),
            cost: 2 * u64::from(tile_rows) * u64::from(tile_cols) * depth.max(1) as u64,
        })
    }
}
