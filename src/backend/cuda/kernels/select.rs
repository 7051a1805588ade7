//! Selection within the quotas: keys, the last pair that each expert retains, weights, and the retained rows compacted.

use super::rows::offsets_of;
use super::segments::segments;
use super::systematic;
use crate::Result;
use crate::backend::cuda::buffer::CudaBuffer;
use crate::backend::cuda::checks::Index;
use crate::backend::cuda::exec::Exec;
use crate::backend::cuda::launch::{Ptr, u32_of};
use crate::backend::cuda::table::{PLAIN, cuda_kernels};
use crate::backend::{Buffer, elements};
use crate::kernel::{self, NONE, SELECT_STATS, SelectRule};
use crate::tensor::DType;

cuda_kernels! {
    /// Counts of experts, and priorities of rows.
    "select_tally": SelectTally [] in PLAIN, threads 256, registers 40 {
        score: read u32,
        pair_of_row: read u32,
        token_ids: maybe u32,
        offsets: read u32,
        plans: write u32,
        priority: maybe_write u32,
        first_token: value u64,
        rows: value u32,
        experts: value u32,
        top_k: value u32,
        pairs: value u32,
        key_0: value u32,
        key_1: value u32,
    }
    /// One byte of the last key that each expert retains.
    "select_digits": SelectDigits [] in PLAIN, threads 256, registers 32 {
        key: read u32,
        offsets: read u32,
        quotas: read u32,
        plans: read u32,
        digits: write u32,
        states: write u32,
        rows: value u32,
        experts: value u32,
        level: value u32,
        stage: value u32,
        rule: value u32,
        certain: value f32,
    }
    /// Marks rows above the last key, and lists those that have it.
    "select_mark": SelectMark [] in PLAIN, threads 256, registers 40 {
        key: read u32,
        offsets: read u32,
        quotas: read u32,
        plans: write u32,
        digits: read u32,
        states: read u32,
        chosen: write u32,
        ties: write u32,
        priority: maybe_write u32,
        rows: value u32,
        experts: value u32,
        stage: value u32,
        fresh: value u32,
        rule: value u32,
        certain: value f32,
    }
    /// Marks the first of the rows that have the last key, a block an expert.
    "select_ties": SelectTies [] in PLAIN, threads 1024, registers 40 {
        pair_of_row: read u32,
        token_ids: maybe u32,
        offsets: read u32,
        plans: read u32,
        ties: read u32,
        chosen: write u32,
        priority: maybe_write u32,
        first_token: value u64,
        rows: value u32,
        experts: value u32,
        top_k: value u32,
        pairs: value u32,
        stage: value u32,
    }
    /// Retained rows of segments.
    "select_count": SelectCount [] in PLAIN, threads 256, registers 32 {
        chosen: read u32,
        offsets: read u32,
        counts: write u32,
        rows: value u32,
        experts: value u32,
    }
    /// Where retained rows of segments and experts begin, by one block.
    "select_offsets": SelectOffsets [] in PLAIN, threads 1024, registers 32 {
        offsets: read u32,
        counts: write u32,
        kept_offsets: write u32,
        segments: value u32,
        rows: value u32,
        experts: value u32,
    }
    /// The retained rows, and statistics of segments.
    "select_write": SelectWrite [] in PLAIN, threads 256, registers 64 {
        score: read u32,
        mean: read f32,
        pair_of_row: read u32,
        offsets: read u32,
        weights: read f32,
        plans: read u32,
        chosen: read u32,
        starts: read u32,
        row: write u32,
        pair: write u32,
        weight: write f32,
        scale: write f32,
        kept_of_pair: write u32,
        stats: write f64,
        capacity: value u64,
        rows: value u32,
        experts: value u32,
        pairs: value u32,
        rule: value u32,
        cap: value f32,
    }
    /// Statistics of experts, a warp each.
    "select_stats": SelectStats [] in PLAIN, threads 128, registers 40 {
        offsets: read u32,
        of_segments: read f64,
        stats: write f32,
        rows: value u32,
        experts: value u32,
    }
}

// `cuda/lib_stats.h` has it as its own.
const _: () = assert!(SELECT_STATS == 5);

/// Words of an expert's plan, `Plan` of `cuda/lib_plan.h`.
const PLAN_WORDS: usize = 16;

/// Values of a byte of a key, bytes of a key, and words of what is known between them: `cuda/lib_digits.h`.
const DIGITS: usize = 256;
const LEVELS: usize = 4;
const STATE_WORDS: usize = 2;

// Bytes of the shared memory of the kernels, as their files and headers have it.
const DIGITS_SHARED: u32 = 1072;
const TIES_SHARED: u32 = 1184;
const COUNT_SHARED: u32 = 32;
const OFFSETS_SHARED: u32 = 132;
const WRITE_SHARED: u32 = 352;

/// Number of a rule in `cuda/lib_plan.h`, and the fraction that is certain under [`SelectRule::Mixed`].
fn number(rule: SelectRule) -> (u32, f32) {
    match rule {
        SelectRule::Systematic => (1, 0.0),
        SelectRule::Unbiased => (2, 0.0),
        SelectRule::Mixed { certain } if certain < 1.0 => (3, certain.max(0.0)),
        // Retaining the highest scores is what is left where all are certain.
        SelectRule::TopQ | SelectRule::Mixed { .. } => (0, 0.0),
    }
}

/// What the launches of one selection share: values, and the arrays that most of them read.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) rows: u32,
    pub(super) experts: u32,
    pub(super) top_k: u32,
    pub(super) pairs: u32,
    pub(super) first_token: u64,
    pub(super) keys: [u32; 2],
    /// Blocks for the segments of all experts.
    pub(super) blocks: u64,
    rule: u32,
    certain: f32,
    pub(super) offsets: Ptr,
    pub(super) quotas: Ptr,
    pub(super) score: Ptr,
    pub(super) pair_of_row: Ptr,
    pub(super) token_ids: Option<Ptr>,
    /// `[E, PLAN_WORDS]`.
    pub(super) plans: Ptr,
    /// `[R]`: what becomes of a row.
    pub(super) chosen: Ptr,
    /// `[R]`: rows of which the key does not decide, by expert.
    pub(super) ties: Ptr,
}

/// Workspace of so many words.
pub(super) fn workspace(to: &mut Exec<'_>, name: &str, shape: &[usize]) -> Result<Ptr> {
    let words = elements(name, shape)?;
    Ptr::u32(&to.scratch(name, DType::U32, words)?, words)
}

/// The same, of zeros.
pub(super) fn zeros(to: &mut Exec<'_>, name: &str, shape: &[usize]) -> Result<Ptr> {
    let words = elements(name, shape)?;
    let buffer = to.scratch(name, DType::U32, words)?;
    to.fill(&buffer, 0)?;
    Ptr::u32(&buffer, words)
}

impl Parts {
    fn new(args: &kernel::Select<CudaBuffer>, to: &mut Exec<'_>) -> Result<Self> {
        let (rows, experts) = (args.rows, args.experts);
        let pairs = args.kept_of_pair.len();
        let tokens = pairs.div_ceil(args.top_k);
        let (rule, certain) = number(args.rule);
        Ok(Self {
            // Where there are no pairs, no row has one.
            rows: if pairs == 0 { 0 } else { u32_of("rows", rows)? },
            experts: u32_of("experts", experts)?,
            top_k: u32_of("top_k", args.top_k)?,
            // Entries of `pair_of_row` have 32 bits: pairs beyond are in no row.
            pairs: u32::try_from(pairs).unwrap_or(u32::MAX),
            first_token: args.first_token,
            keys: args.stream.key(),
            blocks: segments(rows, experts)? as u64,
            rule,
            certain,
            offsets: offsets_of(&args.offsets, experts)?,
            quotas: Ptr::u32(&args.quotas, experts)?,
            score: Ptr::f32(&args.score, rows)?,
            pair_of_row: Ptr::u32(&args.pair_of_row, rows)?,
            token_ids: Ptr::optional_u32(args.token_ids.as_ref(), elements("token_ids", &[tokens, 2])?)?,
            plans: zeros(to, "selection plans", &[experts, PLAN_WORDS])?,
            chosen: workspace(to, "chosen rows", &[rows])?,
            ties: workspace(to, "tied rows", &[rows])?,
        })
    }

    fn tally(&self, priority: Option<Ptr>, to: &mut Exec<'_>) -> Result<()> {
        let tally = SelectTally {
            score: self.score,
            pair_of_row: self.pair_of_row,
            token_ids: self.token_ids,
            offsets: self.offsets,
            plans: self.plans,
            priority,
            first_token: self.first_token,
            rows: self.rows,
            experts: self.experts,
            top_k: self.top_k,
            pairs: self.pairs,
            key_0: self.keys[0],
            key_1: self.keys[1],
        };
        tally.launch(to, self.blocks, 0)
    }

    /// Retains by one key: the score in stage 0, the priority in stage 1. The first stage of a rule decides about every row; where another
    /// one follows, what it retains loses its `priority`.
    fn retain(&self, stage: u32, fresh: bool, key: Ptr, priority: Option<Ptr>, to: &mut Exec<'_>) -> Result<()> {
        let digits = zeros(to, "digits of keys", &[LEVELS, self.experts as usize, DIGITS])?;
        let states = workspace(to, "states of digits", &[LEVELS - 1, self.experts as usize, STATE_WORDS])?;
        for level in 0..LEVELS as u32 {
            let count = SelectDigits {
                key,
                offsets: self.offsets,
                quotas: self.quotas,
                plans: self.plans,
                digits,
                states,
                rows: self.rows,
                experts: self.experts,
                level,
                stage,
                rule: self.rule,
                certain: self.certain,
            };
            count.launch(to, self.blocks, DIGITS_SHARED)?;
        }
        let mark = SelectMark {
            key,
            offsets: self.offsets,
            quotas: self.quotas,
            plans: self.plans,
            digits,
            states,
            chosen: self.chosen,
            ties: self.ties,
            priority,
            rows: self.rows,
            experts: self.experts,
            stage,
            fresh: fresh.into(),
            rule: self.rule,
            certain: self.certain,
        };
        mark.launch(to, self.blocks, DIGITS_SHARED)?;
        self.break_ties(stage, priority, to)
    }

    pub(super) fn break_ties(&self, stage: u32, priority: Option<Ptr>, to: &mut Exec<'_>) -> Result<()> {
        let ties = SelectTies {
            pair_of_row: self.pair_of_row,
            token_ids: self.token_ids,
            offsets: self.offsets,
            plans: self.plans,
            ties: self.ties,
            chosen: self.chosen,
            priority,
            first_token: self.first_token,
            rows: self.rows,
            experts: self.experts,
            top_k: self.top_k,
            pairs: self.pairs,
            stage,
        };
        ties.launch(to, self.experts.into(), TIES_SHARED)
    }
}

pub(super) fn select(args: &kernel::Select<CudaBuffer>, to: &mut Exec<'_>) -> Result<()> {
    args.check()?;
    let order = Ptr::optional_u32(args.order.as_ref(), args.kept_of_pair.len().div_ceil(args.top_k))?;
    let order = order.filter(|_| args.rule == SelectRule::Systematic);
    let outputs = Outputs::new(args)?;
    let parts = Parts::new(args, to)?;
    to.check_offsets(&args.offsets, args.experts, args.rows)?;
    to.check_index(Index::in_use(
        "pair_of_row",
        &args.pair_of_row,
        (&args.offsets, args.experts, args.rows),
        args.kept_of_pair.len(),
    ))?;

    let by_priority = matches!(args.rule, SelectRule::Unbiased | SelectRule::Mixed { .. }) && parts.rule != 0;
    let priority = by_priority.then(|| workspace(to, "priorities", &[args.rows])).transpose()?;
    parts.tally(priority, to)?;
    match (order, priority) {
        (Some(order), _) => systematic::retain(&parts, order, to)?,
        (None, Some(priority)) if args.rule == SelectRule::Unbiased => parts.retain(1, true, priority, None, to)?,
        (None, Some(priority)) => {
            parts.retain(0, true, parts.score, Some(priority), to)?;
            parts.retain(1, false, priority, None, to)?;
        }
        (None, None) => parts.retain(0, true, parts.score, None, to)?,
    }
    outputs.write(args, &parts, to)
}

/// Arrays of the result.
struct Outputs {
    kept_offsets: Ptr,
    row: Ptr,
    pair: Ptr,
    weight: Ptr,
    scale: Ptr,
    kept_of_pair: Ptr,
    stats: Ptr,
    mean: Ptr,
    weights: Ptr,
}

impl Outputs {
    fn new(args: &kernel::Select<CudaBuffer>) -> Result<Self> {
        let (experts, capacity, pairs) = (args.experts, args.capacity, args.kept_of_pair.len());
        Ok(Self {
            kept_offsets: offsets_of(&args.kept_offsets, experts)?,
            row: Ptr::u32(&args.row, capacity)?,
            pair: Ptr::u32(&args.pair, capacity)?,
            weight: Ptr::f32(&args.weight, capacity)?,
            scale: Ptr::f32(&args.scale, capacity)?,
            kept_of_pair: Ptr::u32(&args.kept_of_pair, pairs)?,
            stats: Ptr::f32(&args.stats, elements("stats", &[experts, SELECT_STATS])?)?,
            mean: Ptr::f32(&args.mean, experts)?,
            weights: Ptr::f32(&args.weights, pairs)?,
        })
    }

    fn write(self, args: &kernel::Select<CudaBuffer>, parts: &Parts, to: &mut Exec<'_>) -> Result<()> {
        let Parts { rows, experts, pairs, offsets, chosen, rule, blocks, .. } = *parts;
        let counts = workspace(to, "retained rows of segments", &[blocks as usize])?;
        SelectCount { chosen, offsets, counts, rows, experts }.launch(to, blocks, COUNT_SHARED)?;
        let starts = SelectOffsets {
            offsets,
            counts,
            kept_offsets: self.kept_offsets,
            segments: u32_of("segments", blocks as usize)?,
            rows,
            experts,
        };
        starts.launch(to, 1, OFFSETS_SHARED)?;
        to.check_capacity(&args.kept_offsets, args.experts, args.capacity)?;
        to.fill(&args.kept_of_pair, NONE)?;
        let stats = workspace(to, "statistics of segments", &[blocks as usize, SELECT_STATS, 2])?;
        let write = SelectWrite {
            score: parts.score,
            mean: self.mean,
            pair_of_row: parts.pair_of_row,
            offsets,
            weights: self.weights,
            plans: parts.plans,
            chosen,
            starts: counts,
            row: self.row,
            pair: self.pair,
            weight: self.weight,
            scale: self.scale,
            kept_of_pair: self.kept_of_pair,
            stats,
            capacity: args.capacity as u64,
            rows,
            experts,
            pairs,
            rule,
            cap: args.weight_cap,
        };
        write.launch(to, blocks, WRITE_SHARED)?;
        SelectStats { offsets, of_segments: stats, stats: self.stats, rows, experts }.launch(
            to,
            u64::from(experts).div_ceil(4),
            0,
        )
    }
}
