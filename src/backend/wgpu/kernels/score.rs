//! The load recalibration metric: raw scores by row, then mean and floor by expert.

use super::experts::{ROW_WORKGROUP, check_rows, cost, workgroup_for};
use super::rows::offsets_of;
use crate::Result;
use crate::backend::wgpu::buffer::WgpuBuffer;
use crate::backend::wgpu::checks::Index;
use crate::backend::wgpu::encode::Encoder;
use crate::backend::wgpu::launch::{Arg, Launch, groups_of, u32_of};
use crate::backend::wgpu::shader::{Constant, Param, Source, source};
use crate::backend::{Buffer, elements};
use crate::kernel::{Metric, Score};
use crate::tensor::DType;

static FACTOR: Source = source!("score_factor", ["lib_wide", "lib_exact"]);
static RAW: Source = source!("score", ["lib_wide", "lib_exact"]);
static MEAN: Source = source!("score_mean", ["lib_wide", "lib_exact", "lib_size"]);
static FLOOR: Source = source!("score_floor");

pub(super) fn score(args: &Score<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let (rows, experts) = (args.rows, args.experts);
    let tokens = args.d_norm.len();
    args.check()?;
    let pairs = elements("pairs", &[tokens, args.top_k])?;
    let full = args.x_norm.as_ref().zip(args.kappa.as_ref()).filter(|_| args.metric == Metric::Full);
    check_rows(to, rows)?;
    let params = vec![
        ("rows", Param::U32(u32_of("rows", rows)?)),
        ("experts", Param::U32(u32_of("experts", experts)?)),
        ("top_k", Param::U32(u32_of("top_k", args.top_k)?)),
    ];
    let offsets = offsets_of(&args.offsets, experts)?;
    let pair_of_row = Arg::u32("pair_of_row", &args.pair_of_row, rows)?;
    let weights = Arg::f32("weights", &args.weights, pairs)?.into_bits();
    let d_norm = Arg::f32("d_norm", &args.d_norm, tokens)?.into_bits();
    let h_norm = Arg::f32("h_norm", &args.h_norm, rows)?.into_bits();
    let score = Arg::f32("score", &args.score, rows)?.into_bits();
    let mean = Arg::f32("mean", &args.mean, experts)?.into_bits();
    to.check_offsets(&args.offsets, experts, rows)?;
    to.check_index(Index::in_use("pair_of_row", &args.pair_of_row, (&args.offsets, experts, rows), pairs))?;

    let factors = full.map(|_| to.scratch("score factors", DType::U32, elements("score factors", &[rows, 2])?));
    let factors = factors.transpose()?;
    let by_row = |source, constants, args| Launch {
        source,
        entry: "main",
        workgroup: ROW_WORKGROUP,
        constants,
        params: params.clone(),
        args,
        groups: groups_of(rows, ROW_WORKGROUP as usize),
        cost: u64::from(ROW_WORKGROUP) * 128,
    };
    if let (Some((x_norm, kappa)), Some(factors)) = (full, &factors) {
        to.launch(by_row(
            &FACTOR,
            vec![],
            vec![
                h_norm.clone(),
                Arg::f32("x_norm", x_norm, tokens)?.into_bits(),
                Arg::f32("kappa", kappa, experts)?.into_bits(),
                pair_of_row.clone(),
                offsets.clone(),
                Arg::u32("factor", factors, 2 * rows)?,
            ],
        ))?;
    }
    to.launch(by_row(
        &RAW,
        vec![("METRIC", Constant::U32(args.metric.number()))],
        vec![
            weights.clone(),
            d_norm.clone(),
            h_norm,
            Arg::optional_u32("factor", factors.as_ref(), 2 * rows)?,
            pair_of_row.clone(),
            offsets.clone(),
            score.clone(),
        ],
    ))?;
    let floors = to.scratch("score floors", DType::U32, experts)?;
    let floors = Arg::u32("floors", &floors, experts)?;
    let floor = ("floor", Param::U32(args.floor.max(0.0).to_bits()));
    to.launch(Launch {
        source: &MEAN,
        entry: "main",
        workgroup: workgroup_for(rows, experts),
        constants: vec![],
        params: params.iter().copied().chain([floor]).collect(),
        args: vec![score.clone(), offsets.clone(), mean, floors.clone(), weights, d_norm, pair_of_row],
        groups: experts as u64,
        cost: cost(rows, experts, 128),
    })?;
    to.launch(by_row(&FLOOR, vec![], vec![score, offsets, floors]))
}
