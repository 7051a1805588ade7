//! Systematic sampling: which pairs are certain, the list in order, and the draw along it.

use super::select::Parts;
use crate::Result;
use crate::backend::elements;
use crate::backend::wgpu::encode::Encoder;
use crate::backend::wgpu::launch::{Arg, u32_of};
use crate::backend::wgpu::shader::{Param, Source, source};
use crate::tensor::DType;

static CERTAIN: Source = source!("systematic_certain", ["lib_wide", "lib_exact", "lib_size", "lib_plan"]);
static MERGE: Source = source!("systematic_merge", ["lib_wide", "lib_place"]);
static DRAW: Source = source!("systematic_draw", ["lib_wide", "lib_philox", "lib_plan"]);

/// Finds the scores that are certain, and what they leave of slots and sizes.
pub(super) fn certain(parts: &Parts<'_>, to: &mut Encoder<'_>) -> Result<()> {
    let arrays = [&parts.score, &parts.offsets, &parts.plan].map(Clone::clone);
    to.launch(parts.by_expert_and_byte(&CERTAIN, arrays.into()))
}

/// Sorts the rows of every expert by the keys of their tokens and draws along the list.
pub(super) fn draw(parts: &Parts<'_>, order: Arg<'_>, length: Arg<'_>, to: &mut Encoder<'_>) -> Result<()> {
    let rows = parts.rows;
    elements("sorted rows", &[rows, 2])?;
    let lists = [to.scratch("sorted rows", DType::U32, rows)?, to.scratch("merged rows", DType::U32, rows)?];
    let mut width = 1;
    let mut sorted = None;
    // An expert may have all rows. One pass at least: the first makes the list.
    for pass in 0.. {
        let merged = &lists[pass % 2];
        let arrays = vec![
            Arg::optional_u32("sorted", sorted, rows)?,
            Arg::u32("merged", merged, rows)?,
            parts.pair_of_row.clone(),
            order.clone(),
            parts.token_ids.clone(),
            parts.offsets.clone(),
        ];
        let mut launch = parts.by_row(&MERGE, arrays);
        launch.params.push(("width", Param::U32(u32_of("width", width)?)));
        to.launch(launch)?;
        sorted = Some(merged);
        width *= 2;
        if width >= rows {
            break;
        }
    }
    let sorted = Arg::optional_u32("sorted", sorted, rows)?;
    to.launch(
        parts.by_expert(&DRAW, vec![sorted, length, parts.chosen.clone(), parts.offsets.clone(), parts.plan.clone()]),
    )
}
