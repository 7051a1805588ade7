//! Selection within the quotas: keys, the last pair that each expert retains, weights, and the retained rows compacted.

use super::experts::{EXPERT_WORKGROUP, ROW_WORKGROUP, check_rows, cost, workgroup_for};
use super::rows::offsets_of;
use super::systematic;
use crate::Result;
use crate::backend::faults::offset_count;
use crate::backend::wgpu::buffer::WgpuBuffer;
use crate::backend::wgpu::checks::Index;
use crate::backend::wgpu::encode::Encoder;
use crate::backend::wgpu::launch::{Arg, Launch, groups_of, u32_of};
use crate::backend::wgpu::shader::{Constant, Param, Source, source};
use crate::backend::{Buffer, elements};
use crate::kernel::{NONE, SELECT_STATS, Select, SelectRule};
use crate::tensor::DType;

static PRIORITY: Source = source!("select_priority", ["lib_wide", "lib_exact", "lib_philox", "lib_place", "lib_plan"]);
static CHOOSE: Source = source!("select_choose", ["lib_wide", "lib_exact", "lib_scan", "lib_place", "lib_plan"]);
static WEIGH: Source = source!("select_weigh", ["lib_wide", "lib_exact", "lib_size", "lib_place", "lib_plan"]);
static OFFSETS: Source = source!("select_offsets", ["lib_scan", "lib_plan"]);
static COMPACT: Source = source!("select_compact", ["lib_scan"]);
static SCALE: Source = source!("select_scale", ["lib_wide", "lib_exact"]);
static STATS: Source = source!("select_stats", ["lib_wide", "lib_exact", "lib_sum"]);

// The shader has it as its own.
const _: () = assert!(SELECT_STATS == 5);

/// Words of an expert's plan, see `lib_plan.wgsl`.
const PLAN_WORDS: usize = 16;

/// Number of a rule in `lib_plan.wgsl`.
fn number(rule: SelectRule) -> u32 {
    match rule {
        SelectRule::TopQ => 0,
        SelectRule::Systematic => 1,
        SelectRule::Unbiased => 2,
        SelectRule::Mixed { .. } => 3,
    }
}

/// Bits of the fraction that is certain under [`SelectRule::Mixed`], never those of a negative zero; 1 for all.
fn certain_bits(rule: SelectRule) -> u32 {
    match rule {
        SelectRule::Mixed { certain } if certain < 1.0 => certain.max(0.0).abs().to_bits(),
        _ => 1.0f32.to_bits(),
    }
}

/// What the launches of one selection share: values, and the arrays that most of them read.
pub(super) struct Parts<'a> {
    pub(super) rows: usize,
    pub(super) experts: usize,
    params: Vec<(&'static str, Param)>,
    pub(super) offsets: Arg<'a>,
    pub(super) score: Arg<'a>,
    pub(super) pair_of_row: Arg<'a>,
    pub(super) token_ids: Arg<'a>,
    /// u32 `[E, PLAN_WORDS]`.
    pub(super) plan: Arg<'a>,
    /// u32 `[R]`: bits of the weights before the cap, 0 where a row is not retained.
    pub(super) chosen: Arg<'a>,
}

impl<'a> Parts<'a> {
    /// A launch with one invocation a row.
    pub(super) fn by_row(&self, source: &'static Source, args: Vec<Arg<'a>>) -> Launch<'a> {
        self.launch(
            source,
            ROW_WORKGROUP,
            groups_of(self.rows, ROW_WORKGROUP as usize),
            u64::from(ROW_WORKGROUP) * 256,
            args,
        )
    }

    /// A launch with one workgroup an expert.
    pub(super) fn by_expert(&self, source: &'static Source, args: Vec<Arg<'a>>) -> Launch<'a> {
        let workgroup = workgroup_for(self.rows, self.experts);
        self.launch(source, workgroup, self.experts as u64, cost(self.rows, self.experts, 1024), args)
    }

    /// The same, with an invocation for each value of a byte.
    pub(super) fn by_expert_and_byte(&self, source: &'static Source, args: Vec<Arg<'a>>) -> Launch<'a> {
        Launch { workgroup: EXPERT_WORKGROUP, ..self.by_expert(source, args) }
    }

    fn launch(
        &self,
        source: &'static Source,
        workgroup: u32,
        groups: u64,
        cost: u64,
        args: Vec<Arg<'a>>,
    ) -> Launch<'a> {
        let (constants, params) = (vec![], self.params.clone());
        Launch { source, entry: "main", workgroup, constants, params, args, groups, cost }
    }
}

pub(super) fn select(args: &Select<WgpuBuffer>, to: &mut Encoder<'_>) -> Result<()> {
    let (rows, experts) = (args.rows, args.experts);
    let pairs = args.kept_of_pair.len();
    args.check()?;
    let tokens = pairs.div_ceil(args.top_k);
    check_rows(to, rows)?;
    let outputs = Outputs::new(args, pairs)?;
    let order = Arg::optional_u32("order", args.order.as_ref(), tokens)?;
    let quotas = Arg::u32("quotas", &args.quotas, experts)?;
    let offsets = offsets_of(&args.offsets, experts)?;
    let plan = to.scratch("selection plan", DType::U32, elements("selection plan", &[experts, PLAN_WORDS])?)?;
    let chosen = to.scratch("selection weights", DType::U32, rows)?;
    let parts = Parts {
        rows,
        experts,
        params: params(args)?,
        offsets,
        score: Arg::f32("score", &args.score, rows)?.into_bits(),
        pair_of_row: Arg::u32("pair_of_row", &args.pair_of_row, rows)?,
        token_ids: Arg::optional_u32("token_ids", args.token_ids.as_ref(), elements("token_ids", &[tokens, 2])?)?,
        plan: Arg::u32("plan", &plan, experts * PLAN_WORDS)?,
        chosen: Arg::u32("chosen", &chosen, rows)?,
    };
    to.check_offsets(&args.offsets, experts, rows)?;
    to.check_index(Index::in_use("pair_of_row", &args.pair_of_row, (&args.offsets, experts, rows), pairs))?;

    let drawn_by_priority = matches!(args.rule, SelectRule::Unbiased | SelectRule::Mixed { .. });
    let priority = drawn_by_priority.then(|| to.scratch("priorities", DType::U32, rows)).transpose()?;
    let priority = Arg::optional_u32("priority", priority.as_ref(), rows)?;
    if drawn_by_priority {
        let arrays = [&parts.score, &parts.pair_of_row, &parts.token_ids, &parts.offsets, &priority];
        to.launch(parts.by_row(&PRIORITY, arrays.map(Clone::clone).into()))?;
    }
    let of_row = [&parts.score, &priority, &parts.pair_of_row, &parts.token_ids, &parts.offsets, &parts.plan];
    let of_row = of_row.map(Clone::clone);
    let constants = vec![("RULE", Constant::U32(number(args.rule)))];
    let choose = parts.by_expert_and_byte(&CHOOSE, of_row.iter().cloned().chain([quotas]).collect());
    to.launch(Launch { constants: constants.clone(), ..choose })?;
    let systematic = args.rule == SelectRule::Systematic;
    let lengths =
        systematic.then(|| to.scratch("lengths", DType::U32, elements("lengths", &[rows, 2])?)).transpose()?;
    let length = Arg::optional_u32("length", lengths.as_ref(), 2 * rows)?;
    if systematic {
        systematic::certain(&parts, to)?;
    }
    let weigh = parts.by_row(&WEIGH, of_row.into_iter().chain([parts.chosen.clone(), length.clone()]).collect());
    to.launch(Launch { constants, ..weigh })?;
    if systematic {
        systematic::draw(&parts, order, length, to)?;
    }
    outputs.compact(args, &parts, to)
}

fn params(args: &Select<WgpuBuffer>) -> Result<Vec<(&'static str, Param)>> {
    let [key_0, key_1] = args.stream.key();
    let values = [
        ("rows", u32_of("rows", args.rows)?),
        ("experts", u32_of("experts", args.experts)?),
        ("top_k", u32_of("top_k", args.top_k)?),
        ("capacity", u32_of("capacity", args.capacity.min(args.rows))?),
        ("certain", certain_bits(args.rule)),
        ("cap", args.weight_cap.to_bits()),
        ("key_0", key_0),
        ("key_1", key_1),
        ("first_low", args.first_token as u32),
        ("first_high", (args.first_token >> 32) as u32),
    ];
    Ok(values.map(|(name, value)| (name, Param::U32(value))).into())
}

/// Arrays of the result.
struct Outputs<'a> {
    kept_offsets: Arg<'a>,
    row: Arg<'a>,
    pair: Arg<'a>,
    weight: Arg<'a>,
    scale: Arg<'a>,
    kept_of_pair: Arg<'a>,
    stats: Arg<'a>,
    mean: Arg<'a>,
    weights: Arg<'a>,
    /// Rows that can be retained: all that there are may be fewer than the capacity.
    most: usize,
}

impl<'a> Outputs<'a> {
    fn new(args: &'a Select<WgpuBuffer>, pairs: usize) -> Result<Self> {
        let (experts, capacity) = (args.experts, args.capacity);
        Ok(Self {
            kept_offsets: Arg::u32("kept_offsets", &args.kept_offsets, offset_count(experts)?)?,
            row: Arg::u32("row", &args.row, capacity)?,
            pair: Arg::u32("pair", &args.pair, capacity)?,
            weight: Arg::f32("weight", &args.weight, capacity)?.into_bits(),
            scale: Arg::f32("scale", &args.scale, capacity)?.into_bits(),
            kept_of_pair: Arg::u32("kept_of_pair", &args.kept_of_pair, pairs)?,
            stats: Arg::f32("stats", &args.stats, elements("stats", &[experts, SELECT_STATS])?)?,
            mean: Arg::f32("mean", &args.mean, experts)?.into_bits(),
            weights: Arg::f32("weights", &args.weights, pairs)?.into_bits(),
            most: capacity.min(args.rows),
        })
    }

    fn compact(self, args: &'a Select<WgpuBuffer>, parts: &Parts<'a>, to: &mut Encoder<'_>) -> Result<()> {
        let offsets =
            Launch { groups: 1, ..parts.by_expert(&OFFSETS, vec![parts.plan.clone(), self.kept_offsets.clone()]) };
        to.launch(offsets)?;
        to.check_capacity(&args.kept_offsets, args.experts, args.capacity)?;
        to.launch(parts.by_expert(
            &COMPACT,
            vec![
                parts.chosen.clone(),
                parts.offsets.clone(),
                self.kept_offsets.clone(),
                parts.pair_of_row.clone(),
                self.row.clone(),
                self.pair.clone(),
                self.weight.clone(),
            ],
        ))?;
        to.fill(&args.kept_of_pair, NONE)?;
        let scale =
            vec![self.kept_offsets.clone(), self.pair, self.weight, self.weights, self.scale, self.kept_of_pair];
        to.launch(Launch { groups: groups_of(self.most, ROW_WORKGROUP as usize), ..parts.by_row(&SCALE, scale) })?;
        let (score, chosen) = (parts.score.clone(), parts.chosen.clone());
        to.launch(parts.by_expert(&STATS, vec![self.kept_offsets, self.row, chosen, score, self.mean, self.stats]))
    }
}
