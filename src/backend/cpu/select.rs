//! The load recalibration metric, demand and selection.

use std::cmp::Reverse;

use rayon::prelude::*;

use super::buffer::CpuBuffer;
use super::expert::{group_offsets, optional_f32, optional_u32, read_optional, used_rows};
use super::math::clamp_positive;
use super::systematic;
use crate::backend::elements;
use crate::kernel::{
    DEMAND_BINS, DEMAND_COUNTS, DEMAND_SUMS, Demand, Metric, NONE, SELECT_STATS, Score, Select, SelectRule,
};
use crate::{Error, Result};

/// Row range of each expert, checked to ascend.
fn segments(offsets: &[u32], rows: usize) -> Result<Vec<std::ops::Range<usize>>> {
    used_rows(offsets, rows)?;
    Ok(offsets.windows(2).map(|pair| pair[0] as usize..pair[1] as usize).collect())
}

/// Splits a slice at the experts' row ranges, so that each can be written by its own task.
fn split_mut<'a, T>(data: &'a mut [T], segments: &[std::ops::Range<usize>]) -> Vec<&'a mut [T]> {
    let first = segments.first().map_or(0, |segment| segment.start);
    let mut rest = &mut data[first..];
    let mut parts = Vec::with_capacity(segments.len());
    for segment in segments {
        let (part, tail) = rest.split_at_mut(segment.len());
        parts.push(part);
        rest = tail;
    }
    parts
}

/// Mean of finite non-negative values in any order: fixed-point sums relative to the largest value. Up to 2^24 - 1 values
/// are added without loss beyond 2^-40 of the largest; of more, each bit of their number takes one of these 40.
fn mean(values: impl Iterator<Item = f32> + Clone) -> f32 {
    let (max, count) = values.clone().fold((0.0f32, 0u64), |(max, count), v| (max.max(v), count + 1));
    if max == 0.0 {
        return 0.0;
    }
    // Each value is at most 2^bits units, and count * 2^bits is below 2^64.
    let bits = count.leading_zeros().min(40);
    let unit = f64::from(max) * (-f64::from(bits)).exp2();
    let sum = values.fold(0u64, |sum, v| sum + (f64::from(v) / unit).round() as u64);
    clamp_positive(sum as f64 * unit / count as f64)
}

pub(super) fn score(args: &Score<CpuBuffer>) -> Result<()> {
    let (weights, d_norm, h_norm) = (args.weights.read()?, args.d_norm.read()?, args.h_norm.read()?);
    let (pair_of_row, offsets) = (args.pair_of_row.read()?, args.offsets.read()?);
    let (x_norm, kappa) = (read_optional(args.x_norm.as_ref())?, read_optional(args.kappa.as_ref())?);
    let (mut score, mut means) = (args.score.write()?, args.mean.write()?);
    let segments = segments(group_offsets(&offsets, args.experts)?, args.rows)?;
    let used = segments.last().map_or(0, |segment| segment.end);
    let first = segments.first().map_or(0, |segment| segment.start);
    let tokens = args.d_norm.len_rows(1);
    let d_norm = d_norm.f32(tokens)?;
    args.check()?;
    let pairs = elements("pairs", &[tokens, args.top_k])?;
    let weights = weights.f32(pairs)?;
    let h_norm = h_norm.f32(used)?;
    let pair_of_row = pair_of_row.u32(used)?;
    if let Some(&pair) = pair_of_row[first..].iter().find(|&&pair| pair as usize >= pairs) {
        return Err(Error::argument("pair_of_row", pair, format!("below {pairs}")));
    }
    let (x_norm, kappa) = (optional_f32(x_norm.as_ref(), tokens)?, optional_f32(kappa.as_ref(), args.experts)?);
    let full = x_norm.zip(kappa);
    let score = split_mut(&mut score.f32(used)?[..], &segments);
    let experts = score.into_par_iter().zip(means.f32(args.experts)?).zip(&segments).enumerate();
    experts.for_each(|(expert, ((score, mean_out), segment))| {
        // |g| and ||d|| of a row; the factor of the metric; whether an input is not finite.
        let factors = |row: usize| {
            let pair = pair_of_row[row] as usize;
            let (g, d) = (f64::from(weights[pair].abs()), f64::from(d_norm[pair / args.top_k]));
            let h = f64::from(h_norm[row]);
            let factor = match args.metric {
                Metric::Product => h,
                Metric::Full => full.map_or(h, |(x_norm, kappa)| {
                    h.hypot(f64::from(kappa[expert]) * f64::from(x_norm[pair / args.top_k]))
                }),
                Metric::GateGrad | Metric::Gate | Metric::Uniform => 1.0,
            };
            (g, d, factor, !(g.is_finite() && d.is_finite() && h.is_finite() && factor.is_finite()))
        };
        for (row, score) in segment.clone().zip(score.iter_mut()) {
            let (g, d, factor, not_finite) = factors(row);
            *score = if not_finite {
                f32::INFINITY
            } else if g == 0.0 || d == 0.0 {
                -1.0
            } else {
                let raw = match args.metric {
                    Metric::Product | Metric::Full | Metric::GateGrad => g * d * factor,
                    Metric::Gate => g,
                    Metric::Uniform => 1.0,
                };
                (raw as f32).min(f32::MAX)
            };
        }
        let is_finite = |s: &f32| *s >= 0.0 && s.is_finite();
        *mean_out = mean(score.iter().copied().filter(is_finite));
        if *mean_out == 0.0 {
            // Every score vanished: fall back to |g| ||d||, and to 1 where that vanishes too.
            for (row, score) in segment.clone().zip(score.iter_mut()) {
                if *score == 0.0 {
                    let (g, d, ..) = factors(row);
                    *score = if (g * d) as f32 == 0.0 { 1.0 } else { clamp_positive(g * d) };
                }
            }
            *mean_out = mean(score.iter().copied().filter(is_finite));
        } else {
            let floor = clamp_positive(f64::from(args.floor) * f64::from(*mean_out));
            for score in score.iter_mut().filter(|s| is_finite(s)) {
                *score = score.max(floor);
            }
        }
        for score in score.iter_mut().filter(|s| **s < 0.0) {
            *score = 0.0;
        }
    });
    Ok(())
}

/// Lower bounds `2^(j / 8)` of the eight bins of an octave.
const OCTAVE: [f32; 8] =
    [1.0, 1.090_507_7, 1.189_207_1, 1.296_839_6, std::f32::consts::SQRT_2, 1.542_210_8, 1.681_792_9, 1.834_008];

/// Bin of a score relative to the mean of its expert; only comparisons, so every backend agrees on the same ratio.
fn bin(ratio: f32) -> usize {
    let exponent = ((ratio.to_bits() >> 23) as i32) - 127;
    let mantissa = f32::from_bits((ratio.to_bits() & 0x007f_ffff) | 0x3f80_0000);
    let step = OCTAVE.iter().filter(|&&bound| mantissa >= bound).count() as i32 - 1;
    (8 * exponent + step + 16).clamp(0, DEMAND_BINS as i32 - 1) as usize
}

pub(super) fn demand(args: &Demand<CpuBuffer>) -> Result<()> {
    let (score, mean, offsets) = (args.score.read()?, args.mean.read()?, args.offsets.read()?);
    let (mut histogram, mut sums, mut counts) = (args.histogram.write()?, args.sums.write()?, args.counts.write()?);
    let segments = segments(group_offsets(&offsets, args.experts)?, args.rows)?;
    let score = score.f32(segments.last().map_or(0, |segment| segment.end))?;
    let mean = mean.f32(args.experts)?;
    let histogram = histogram.u32(elements("histogram", &[args.experts, DEMAND_BINS])?)?.par_chunks_mut(DEMAND_BINS);
    let sums = sums.f32(elements("sums", &[args.experts, DEMAND_SUMS])?)?.par_chunks_mut(DEMAND_SUMS);
    let counts = counts.u32(elements("counts", &[args.experts, DEMAND_COUNTS])?)?.par_chunks_mut(DEMAND_COUNTS);
    histogram.zip(sums).zip(counts).zip(&segments).zip(mean).for_each(
        |((((histogram, sums), counts), segment), &mean)| {
            histogram.fill(0);
            counts.fill(0);
            let mut total = [0.0f64; DEMAND_SUMS];
            for &score in score[segment.clone()].iter().filter(|&&score| score > 0.0) {
                counts[0] += 1;
                if score.is_infinite() {
                    counts[1] += 1;
                    continue;
                }
                let ratio = score / mean;
                let bin = bin(ratio);
                histogram[bin] += 1;
                let ratio = f64::from(ratio);
                total[0] += ratio;
                total[1] += ratio * ratio;
                if bin == DEMAND_BINS - 1 {
                    total[2] += ratio;
                }
            }
            for (out, total) in sums.iter_mut().zip(total) {
                *out = (total as f32).min(f32::MAX);
            }
        },
    );
    Ok(())
}

/// A candidate in the order of choice: key bits falling, then token, then slot.
pub(super) type Candidate = (Reverse<u32>, u64, usize, usize);

/// Puts the best `count` candidates first and returns the key of the next one, 0 where there is none.
pub(super) fn partition(candidates: &mut [Candidate], count: usize) -> f32 {
    if count >= candidates.len() {
        return 0.0;
    }
    let (_, next, _) = candidates.select_nth_unstable(count);
    f32::from_bits(next.0.0)
}

/// What one expert keeps, in row order.
struct Kept {
    rows: Vec<(usize, f32)>,
    stats: [f64; SELECT_STATS],
}

impl Kept {
    /// From rows in any order with their weights before the cap.
    fn new(args: &Select<CpuBuffer>, mut rows: Vec<(usize, f32)>, score: &[f32], mean: f32) -> Self {
        rows.sort_unstable_by_key(|&(row, _)| row);
        let relative = |row: usize| f64::from(score[row] / mean);
        let mut removed = 0.0;
        for (row, weight) in &mut rows {
            let capped = weight.min(args.weight_cap);
            if capped < *weight {
                removed += f64::from(*weight - capped) * relative(*row);
                *weight = capped;
            }
        }
        let finite = rows.iter().filter(|(row, _)| score[*row].is_finite());
        let sum = |f: fn(f64) -> f64| rows.iter().map(|&(_, w)| f(f64::from(w))).sum::<f64>();
        let stats = [
            finite.map(|&(row, _)| relative(row)).sum(),
            sum(|w| w),
            sum(|w| w * w),
            rows.iter().fold(0.0, |max, &(_, w)| f64::from(w).max(max)),
            removed,
        ];
        Self { rows, stats }
    }
}

pub(super) fn select(args: &Select<CpuBuffer>) -> Result<()> {
    let (score, mean, quotas) = (args.score.read()?, args.mean.read()?, args.quotas.read()?);
    let (pair_of_row, offsets, weights) = (args.pair_of_row.read()?, args.offsets.read()?, args.weights.read()?);
    let token_ids = read_optional(args.token_ids.as_ref())?;
    let order = read_optional(args.order.as_ref())?;
    let (experts, top_k) = (args.experts, args.top_k);
    let segments = segments(group_offsets(&offsets, experts)?, args.rows)?;
    let used = segments.last().map_or(0, |segment| segment.end);
    let (score, pair_of_row) = (score.f32(used)?, pair_of_row.u32(used)?);
    let (quotas, mean) = (quotas.u32(experts)?, mean.f32(experts)?);
    let pairs = args.kept_of_pair.len_rows(1);
    let weights = weights.f32(pairs)?;
    let first = segments.first().map_or(0, |segment| segment.start);
    if let Some(&pair) = pair_of_row[first..].iter().find(|&&pair| pair as usize >= pairs) {
        return Err(Error::argument("pair_of_row", pair, format!("below {pairs}")));
    }
    args.check()?;
    let tokens = pairs.div_ceil(top_k);
    let token_ids = optional_u32(token_ids.as_ref(), elements("token_ids", &[tokens, 2])?)?;
    let order = optional_u32(order.as_ref(), tokens)?.unwrap_or_default();
    let token_id = |pair: usize| match (pair / top_k, token_ids) {
        (token, Some(ids)) => u64::from(ids[2 * token]) | u64::from(ids[2 * token + 1]) << 32,
        (token, None) => args.first_token.wrapping_add(token as u64),
    };
    let candidate = |row: usize, key: f32| -> Candidate {
        let pair = pair_of_row[row] as usize;
        (Reverse(key.to_bits()), token_id(pair), pair % top_k, row)
    };
    let kept: Vec<Kept> = (0..experts)
        .into_par_iter()
        .map(|expert| {
            let priority = |row: usize| {
                let u = args.stream.uniform(expert as u32, token_id(pair_of_row[row] as usize));
                if score[row].is_infinite() { f32::INFINITY } else { clamp_positive(f64::from(score[row] / u)) }
            };
            let mut candidates: Vec<Candidate> = segments[expert]
                .clone()
                .filter(|&row| score[row] > 0.0)
                .map(|row| candidate(row, score[row]))
                .collect();
            let quota = (quotas[expert] as usize).min(candidates.len());
            if args.rule == SelectRule::Systematic && quota < candidates.len() {
                let key = |row: usize| order[pair_of_row[row] as usize / top_k];
                let drawn = systematic::draw(candidates, quota, key, args.stream.expert_bits(expert as u32));
                return Kept::new(args, drawn, score, mean[expert]);
            }
            let certain = match args.rule {
                SelectRule::TopQ | SelectRule::Systematic => quota,
                SelectRule::Unbiased => 0,
                SelectRule::Mixed { certain } if certain < 1.0 && quota < candidates.len() => {
                    // Two sampled slots at least: with one the variance is infinite.
                    let certain = (f64::from(certain.max(0.0)) * quota as f64).floor() as usize;
                    certain.min(quota.saturating_sub(2))
                }
                SelectRule::Mixed { .. } => quota,
            };
            if certain > 0 {
                partition(&mut candidates, certain);
            }
            let (sure, rest) = candidates.split_at_mut(certain);
            for candidate in rest.iter_mut() {
                candidate.0 = Reverse(priority(candidate.3).to_bits());
            }
            let tau = partition(rest, quota - certain);
            let weight = |row: usize| if score[row].is_infinite() { 1.0 } else { (tau / score[row]).max(1.0) };
            let sure = sure.iter().map(|candidate| (candidate.3, 1.0));
            let drawn = rest[..quota - certain].iter().map(|candidate| (candidate.3, weight(candidate.3)));
            Kept::new(args, sure.chain(drawn).collect(), score, mean[expert])
        })
        .collect();
    write_kept(args, &kept, pair_of_row, weights)
}

fn write_kept(args: &Select<CpuBuffer>, kept: &[Kept], pair_of_row: &[u32], weights: &[f32]) -> Result<()> {
    let total = kept.iter().map(|kept| kept.rows.len()).sum::<usize>();
    if total > args.capacity {
        return Err(Error::shape("sum of quotas", total, format!("at most the capacity of {} rows", args.capacity)));
    }
    let (mut offsets, mut rows, mut pairs) = (args.kept_offsets.write()?, args.row.write()?, args.pair.write()?);
    let (mut weight_out, mut scale) = (args.weight.write()?, args.scale.write()?);
    let (mut kept_of_pair, mut stats) = (args.kept_of_pair.write()?, args.stats.write()?);
    let offsets = offsets.u32(args.experts + 1)?;
    let (rows, pairs) = (rows.u32(total)?, pairs.u32(total)?);
    let (weight_out, scale) = (weight_out.f32(total)?, scale.f32(total)?);
    let kept_of_pair = kept_of_pair.u32(weights.len())?;
    let stats = stats.f32(elements("stats", &[args.experts, SELECT_STATS])?)?;
    kept_of_pair.fill(NONE);
    let mut at = 0;
    offsets[0] = 0;
    for ((kept, offset), stats) in kept.iter().zip(&mut offsets[1..]).zip(stats.chunks_exact_mut(SELECT_STATS)) {
        for &(row, weight) in &kept.rows {
            let pair = pair_of_row[row];
            rows[at] = row as u32;
            pairs[at] = pair;
            weight_out[at] = weight;
            scale[at] = weight * weights[pair as usize];
            kept_of_pair[pair as usize] = at as u32;
            at += 1;
        }
        *offset = at as u32;
        for (out, &value) in stats.iter_mut().zip(&kept.stats) {
            *out = value as f32;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::mean;

    #[test]
    fn means_of_any_number_of_values_do_not_overflow() {
        for count in [1, (1 << 24) - 1, 1 << 24, (1 << 24) + 1, 3 << 24] {
            assert_eq!(mean(std::iter::repeat_n(1.5, count)), 1.5, "{count} values");
        }
    }

    #[test]
    fn bins_are_those_of_the_planner() {
        for octave in -30..30 {
            for step in 0..1000 {
                // Between the edges, which the two hold in different precision.
                let ratio = (1.0 + (step as f32 + 0.5) / 1000.0) * (octave as f32).exp2();
                assert_eq!(super::bin(ratio), crate::plan::demand::bin(f64::from(ratio)), "{ratio}");
            }
        }
    }
}
