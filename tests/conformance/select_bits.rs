//! Selection is integer arithmetic on the bits of scores: every device retains the pairs that the CPU does, with its weights, bit for
//! bit. The cases are larger than an oracle that sorts u128 sizes would like, and full of ties.

use lrmoe::DType::{F32, U32};
use lrmoe::kernel::{DEMAND_BINS, DEMAND_COUNTS, DEMAND_SUMS, Demand, SELECT_STATS, Select, SelectRule};
use lrmoe::rng::{PairKey, PairStream};

use crate::devices::{Runner, cpu};
use crate::support::rng::Rng;
use crate::table::{Case, Property, offsets};

const COUNTS: [usize; 6] = [1700, 0, 1, 257, 256, 900];

/// Experts so small that what is certain decides, and that their scores may share all but a few bits.
const SMALL_COUNTS: [usize; 6] = [11, 33, 3, 13, 2, 8];

/// Experts whose rows are more than one workgroup or block takes at once.
const LARGE_COUNTS: [usize; 4] = [5000, 3, 0, 2049];
const TOP_K: usize = 4;

/// One positive score.
type Draw = fn(&mut Rng) -> f32;

/// Quota of an expert of so many rows.
type Quota = fn(usize) -> usize;

/// Kinds of scores; some of each are then infinite or 0.
const KINDS: [(&str, Draw); 6] = [
    ("typical", |rng| rng.normal().exp() as f32),
    ("equal", |_| 1.0),
    ("few values", |rng| [0.1, 0.5, 0.75, 3.0][rng.below(4)]),
    ("any exponent", |rng| f32::from_bits(1 + rng.below(0x7f7f_ffff) as u32)),
    ("subnormal", |rng| f32::from_bits(1 + rng.below(0x0080_0010) as u32)),
    ("heavy tail", |rng| (8.0 * rng.normal()).exp() as f32),
];

const RULES: [SelectRule; 5] = [
    SelectRule::TopQ,
    SelectRule::Systematic,
    SelectRule::Unbiased,
    SelectRule::Mixed { certain: 0.3 },
    SelectRule::Mixed { certain: 0.999 },
];

fn scores(rng: &mut Rng, counts: &[usize], draw: Draw, special: bool) -> Vec<f32> {
    let mut one = |_| match rng.below(40) {
        0 if special => f32::INFINITY,
        1 if special => 0.0,
        _ => draw(rng),
    };
    (0..counts.iter().sum()).map(&mut one).collect()
}

/// A selection, with the quotas as a function of the load; every other pair of seeds brings ids of which many are equal, every other four
/// rows in the order of token and slot within each expert, as a layer has them.
fn select(seed: u64, counts: &[usize], rule: SelectRule, draw: Draw, quota: Quota) -> Case {
    let (mut case, mut rng) = (Case::new("bits"), Rng::new(seed));
    let (rows, experts) = (counts.iter().sum::<usize>(), counts.len());
    let scores = scores(&mut rng, counts, draw, seed.is_multiple_of(2));
    let own_ids = (seed / 2).is_multiple_of(2);
    let tokens = rows.div_ceil(TOP_K) + 1;
    let pairs = tokens * TOP_K;
    let mut pair_of_row: Vec<u32> = (0..pairs as u32).collect();
    (1..pairs).rev().for_each(|i| pair_of_row.swap(i, rng.below(i + 1)));
    pair_of_row.truncate(rows);
    let mut ids: Vec<u64> = (0..tokens).map(|_| rng.below(5) as u64 | (rng.below(3) as u64) << 32).collect();
    if (seed / 4).is_multiple_of(2) {
        ids.sort_unstable();
        let mut rest = &mut pair_of_row[..];
        for &count in counts {
            let (own, others) = rest.split_at_mut(count);
            own.sort_unstable();
            rest = others;
        }
    }
    let ids: Vec<u32> = ids.into_iter().flat_map(|id| [id as u32, (id >> 32) as u32]).collect();
    let keys: Vec<u32> = (0..tokens).map(|_| rng.below(7) as u32).collect();
    let g: Vec<f32> = (0..pairs).map(|_| rng.normal() as f32).collect();
    let quotas: Vec<u32> = counts.iter().map(|&count| quota(count) as u32).collect();
    let capacity = quotas.iter().sum::<u32>() as usize;
    let args = Select {
        rows,
        experts,
        top_k: TOP_K,
        capacity,
        rule,
        weight_cap: if seed.is_multiple_of(3) { 2.5 } else { f32::INFINITY },
        stream: PairStream::new(&PairKey { seed, step: 11, call_id: 0, layer: 5 }),
        first_token: u64::from(u32::MAX) - 100,
        score: case.f32("score", &scores),
        mean: case.f32("mean", &vec![1.0; experts]),
        quotas: case.u32("quotas", &quotas),
        pair_of_row: case.u32("pair_of_row", &pair_of_row),
        offsets: case.u32("offsets", &offsets(counts)),
        weights: case.f32("weights", &g),
        token_ids: case.optional_u32("token_ids", own_ids.then_some(&ids)),
        order: case.optional_u32("order", (rule == SelectRule::Systematic).then_some(&keys)),
        kept_offsets: case.out("kept_offsets", U32, experts + 1),
        row: case.out("row", U32, capacity),
        pair: case.out("pair", U32, capacity),
        weight: case.out("weight", F32, capacity),
        scale: case.out("scale", F32, capacity),
        kept_of_pair: case.out_exact("kept_of_pair", U32, pairs),
        stats: case.out("stats", F32, experts * SELECT_STATS),
    };
    case.run(args);
    case
}

fn demand(seed: u64, counts: &[usize], draw: Draw) -> Case {
    let (mut case, mut rng) = (Case::new("bits"), Rng::new(seed));
    let experts = counts.len();
    let scores = scores(&mut rng, counts, draw, true);
    let means: Vec<f32> = (0..experts).map(|_| draw(&mut rng)).collect();
    let args = Demand {
        rows: scores.len(),
        experts,
        score: case.f32("score", &scores),
        mean: case.f32("mean", &means),
        offsets: case.u32("offsets", &offsets(counts)),
        histogram: case.out("histogram", U32, experts * DEMAND_BINS),
        sums: case.out("sums", F32, experts * DEMAND_SUMS),
        counts: case.out("counts", U32, experts * DEMAND_COUNTS),
    };
    case.run(args);
    case
}

/// Bits of all buffers but `except`, which is floating-point sums, equal those of the CPU.
fn agree(case: &Case, except: &str, runner: &dyn Runner) -> Result<(), String> {
    let (got, want) = (case.bits(runner)?, case.bits(&*cpu()?)?);
    for (((name, _), got), want) in
        case.buffers().iter().zip(&got).zip(&want).filter(|((buffer, _), _)| buffer.0 != except)
    {
        if let Some(i) = (0..got.len()).find(|&i| got[i] != want[i]) {
            return Err(format!("`{name}`[{i}] is {:#x}, on the CPU {:#x}", got[i], want[i]));
        }
    }
    Ok(())
}

fn selections(runner: &dyn Runner) -> Result<(), String> {
    let quotas: [(&str, Quota); 5] = [
        ("half", |count| count / 2),
        ("one", |count| count.min(1)),
        ("nearly all", |count| count - count / 16),
        ("three quarters", |count| count - count / 4),
        ("a twentieth", |count| count.div_ceil(20)),
    ];
    let mut seed = 0;
    for (kind, draw) in KINDS {
        for rule in RULES {
            for (label, quota) in quotas {
                for counts in [&COUNTS, &SMALL_COUNTS] {
                    seed += 1;
                    let case = select(seed, counts, rule, draw, quota);
                    agree(&case, "stats", runner).map_err(|why| format!("{kind}, {rule:?}, {label}: {why}"))?;
                }
            }
        }
    }
    for ((kind, draw), quota) in KINDS.into_iter().zip(quotas.iter().cycle()) {
        for rule in RULES {
            seed += 3;
            let case = select(seed, &LARGE_COUNTS, rule, draw, quota.1);
            agree(&case, "stats", runner).map_err(|why| format!("{kind}, {rule:?}, {}, large: {why}", quota.0))?;
        }
    }
    Ok(())
}

fn histograms(runner: &dyn Runner) -> Result<(), String> {
    KINDS.into_iter().zip(0..).try_for_each(|((kind, draw), seed)| {
        [&COUNTS[..], &LARGE_COUNTS[..]].into_iter().try_for_each(|counts| {
            agree(&demand(seed, counts, draw), "sums", runner).map_err(|why| format!("{kind}: {why}"))
        })
    })
}

/// Properties of this family.
pub fn properties() -> Vec<Property> {
    vec![
        Property { name: "select::bits_are_those_of_the_cpu", check: selections },
        Property { name: "demand::histograms_are_those_of_the_cpu", check: histograms },
    ]
}
