//! Systematic sampling in proportion to size along an ordered list, see [`SelectRule`](crate::kernel::SelectRule).

use std::cmp::Reverse;

use super::select::{Candidate, partition};

/// Bits of the largest size.
const SIZE_BITS: u32 = 40;

/// A pair of finite score that may be drawn.
struct Listed {
    /// Key of the token, its global id, slot, row: no two are alike, whatever the ids.
    place: (u32, u64, usize, usize),
    size: u128,
}

/// A positive finite f32 as `mantissa * 2^(exponent - 150)`.
fn parts(bits: u32) -> (u128, u32) {
    let (mantissa, exponent) = (bits & 0x007f_ffff, bits >> 23);
    if exponent == 0 { (mantissa.into(), 1) } else { ((mantissa | 0x0080_0000).into(), exponent) }
}

/// `max(1, round(2^40 m / m_max))` from the bits of two positive finite scores, `m <= m_max`. The integer quotient rounds once;
/// a float one would round twice.
fn size(score: u32, largest: u32) -> u128 {
    let ((mantissa, exponent), (top, top_exponent)) = (parts(score), parts(largest));
    let shift = top_exponent - exponent;
    // From 2^(2 SIZE_BITS) on the quotient is 0.
    let (above, below) = match SIZE_BITS.checked_sub(shift) {
        Some(left) => (mantissa << left, top),
        None => (mantissa, top << (shift - SIZE_BITS).min(SIZE_BITS)),
    };
    ((2 * above + below) / (2 * below)).max(1)
}

/// `random * sum / 2^64` rounded down, in two halves: the product may pass 128 bits.
fn offset(random: u64, sum: u128) -> u128 {
    let random = u128::from(random);
    let (high, low) = (sum >> 32, sum & u128::from(u32::MAX));
    (high * random + ((low * random) >> 32)) >> 32
}

/// `a / b` rounded once, for `a > b`: a quotient in f64 would round twice, and devices without f64 could not follow.
fn ratio(a: u128, b: u128) -> f32 {
    const BITS: u32 = 26;
    let (quotient, rest) = ((a << BITS) / b, (a << BITS) % b);
    // A last bit that tells of a rest keeps halves apart from what is just above them.
    (quotient | u128::from(rest != 0)) as f32 / (1u32 << BITS) as f32
}

/// The rows retained of `candidates`, by score, with their weights: exactly `quota` of them, which must be below the number of candidates.
pub(super) fn draw(
    candidates: Vec<Candidate>,
    quota: usize,
    key: impl Fn(usize) -> u32,
    random: u64,
) -> Vec<(usize, f32)> {
    let (mut infinite, finite): (Vec<Candidate>, Vec<Candidate>) =
        candidates.into_iter().partition(|&(Reverse(bits), ..)| bits == f32::INFINITY.to_bits());
    partition(&mut infinite, quota);
    let mut rows: Vec<(usize, f32)> = infinite.iter().take(quota).map(|&(.., row)| (row, 1.0)).collect();
    let mut slots = (quota - rows.len()) as u128;
    if slots == 0 {
        return rows;
    }
    let largest = finite.iter().map(|&(Reverse(bits), ..)| bits).max().unwrap_or(0);
    let listed = |(Reverse(bits), token, slot, row): Candidate| Listed {
        place: (key(row), token, slot, row),
        size: size(bits, largest),
    };
    let mut rest: Vec<Listed> = finite.into_iter().map(listed).collect();
    let mut sum = rest.iter().map(|pair| pair.size).sum::<u128>();
    // Whatever is certain with the slots and sizes of now stays so when others that are certain have taken theirs. More pairs than slots
    // are left, so they never take the last slot.
    loop {
        let (listed, bar, total) = (rest.len(), slots, sum);
        rest.retain(|pair| {
            let certain = pair.size * bar >= total;
            if certain {
                rows.push((pair.place.3, 1.0));
                slots -= 1;
                sum -= pair.size;
            }
            !certain
        });
        if rest.len() == listed {
            break;
        }
    }
    rest.sort_unstable_by_key(|pair| pair.place);
    // `at` is (C slots + U) modulo the sum: no size passes two marks.
    let mut at = offset(random, sum);
    for pair in &rest {
        let length = pair.size * slots;
        at += length;
        if at >= sum {
            at -= sum;
            rows.push((pair.place.3, ratio(sum, length)));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Philox;

    /// Candidates of these scores: row i is slot 0 of token i.
    fn candidates(scores: &[f32]) -> Vec<Candidate> {
        scores.iter().enumerate().map(|(i, score)| (Reverse(score.to_bits()), i as u64, 0, i)).collect()
    }

    /// Scores over six octaves, some of them equal.
    fn scores(rng: &mut Philox, len: usize) -> Vec<f32> {
        (0..len).map(|i| if i % 5 == 0 { 1.0 } else { (2.0 * rng.normal()).exp2() as f32 }).collect()
    }

    #[test]
    fn sizes_are_the_rounded_ratio() {
        let unit = |m: f32, top: f32| size(m.to_bits(), top.to_bits());
        assert_eq!(unit(3.0, 3.0), 1 << 40);
        assert_eq!(unit(f32::from_bits(1), f32::from_bits(1)), 1 << 40);
        assert_eq!(unit(f32::from_bits(1), f32::from_bits(3)), ((1u128 << 41) + 3) / 6);
        assert_eq!(unit(1.0, (1u64 << 40) as f32), 1);
        assert_eq!(unit(1.5, (1u64 << 40) as f32), 2, "halves are rounded up");
        assert_eq!(unit(f32::from_bits(1), f32::MAX), 1);
        assert_eq!(unit(2f32.powi(-60), 1.0), 1);
        let mut rng = Philox::new(1, 0);
        for _ in 0..10_000 {
            let (a, b) = (rng.uniform(), rng.uniform() * (8.0 * rng.normal()).exp2() as f32);
            let (m, top) = (a.min(b), a.max(b));
            let exact = f64::from(m) / f64::from(top) * (1u64 << 40) as f64;
            assert!((unit(m, top) as f64 - exact.max(1.0)).abs() <= 0.5001, "{m} of {top}");
        }
    }

    #[test]
    fn offsets_do_not_overflow() {
        for (random, sum) in [(0, 5), (u64::MAX, 5), (1 << 63, 7), (0x1234_5678_9abc_def0, 987_654_321_987)] {
            assert_eq!(offset(random, sum), (u128::from(random) * sum) >> 64);
        }
        let large = 3u128 << 70;
        assert_eq!(offset(1 << 63, large), large / 2);
        assert_eq!(offset(1 << 62, large), large / 4);
        assert!(offset(u64::MAX, large) < large);
    }

    /// Every pair is retained with probability 1 / weight, by an even grid of draws: the draws that retain a pair are one interval of the
    /// circle, so a grid of N is off by at most 2 / N.
    #[test]
    fn inclusion_probabilities_are_exact() {
        const GRID: u64 = 1 << 12;
        let mut rng = Philox::new(2, 0);
        for quota in [1, 2, 7, 20, 39] {
            let scores = scores(&mut rng, 40);
            let keys: Vec<u32> = (0..40).map(|_| rng.next_u32() % 4).collect();
            let (mut times, mut weights) = ([0u64; 40], [0.0f32; 40]);
            for i in 0..GRID {
                let rows = draw(candidates(&scores), quota, |row| keys[row], i * (u64::MAX / GRID + 1));
                assert_eq!(rows.len(), quota);
                for (row, weight) in rows {
                    assert!(times[row] == 0 || weights[row] == weight, "a weight does not depend on the draw");
                    (times[row], weights[row]) = (times[row] + 1, weight);
                }
            }
            // Proportional to the score below 1, by one factor for all.
            let drawn = weights.iter().zip(&scores).find(|(weight, _)| **weight > 1.0);
            let tau = drawn.map(|(weight, score)| f64::from(weight * score)).unwrap();
            for ((times, weight), score) in times.into_iter().zip(weights).zip(&scores) {
                let (chance, want) = (times as f64 / GRID as f64, (f64::from(*score) / tau).min(1.0));
                assert!((chance - want).abs() <= 2.0 / GRID as f64 + 1e-6, "{chance} of a score {score} below {tau}");
                assert!(times == 0 || (f64::from(weight) * want - 1.0).abs() < 1e-6, "weight {weight}, chance {want}");
            }
        }
    }

    /// Certain pairs aside, a retained pair stands for the same share of the score: the estimate of its sum has no variance.
    #[test]
    fn the_sum_of_scores_is_exact() {
        let mut rng = Philox::new(3, 0);
        for seed in 0..200u64 {
            let scores = scores(&mut rng, 60);
            let rows = draw(candidates(&scores), 13, |row| row as u32 % 3, seed << 55);
            let estimate: f64 = rows.iter().map(|&(row, w)| f64::from(w) * f64::from(scores[row])).sum();
            let truth: f64 = scores.iter().copied().map(f64::from).sum();
            assert!((estimate / truth - 1.0).abs() < 1e-6, "{estimate} {truth}");
        }
    }

    #[test]
    fn the_order_of_the_input_does_not_matter() {
        let mut rng = Philox::new(4, 0);
        let mut scores = scores(&mut rng, 50);
        for infinite in [0, 3, 12, 50] {
            scores[..infinite].fill(f32::INFINITY);
            let draw = |candidates| {
                let mut rows = draw(candidates, 12, |row| row as u32 % 4, 0x89ab_cdef_0123_4567);
                rows.sort_unstable_by_key(|&(row, _)| row);
                rows
            };
            let want = draw(candidates(&scores));
            for _ in 0..20 {
                let mut shuffled = candidates(&scores);
                (1..50).rev().for_each(|i| shuffled.swap(i, rng.next_u32() as usize % (i + 1)));
                assert_eq!(draw(shuffled), want);
            }
        }
    }

    #[test]
    fn pairs_of_one_id_and_slot_are_listed_by_row() {
        let mut alike = candidates(&[0.7; 12]);
        alike.iter_mut().for_each(|candidate| candidate.1 = 3);
        alike.reverse();
        let rows = draw(alike, 4, |_| 0, 1 << 62);
        assert_eq!(rows, [(2, 3.0), (5, 3.0), (8, 3.0), (11, 3.0)]);
    }

    #[test]
    fn ratios_are_rounded_once() {
        assert_eq!(ratio(3, 2), 1.5);
        // Next to halfway between 1 and the next number: f64 would not see the rest, and an even result would be 1.
        let unit = 1u128 << 60;
        assert_eq!(ratio(unit + (unit >> 24), unit), 1.0);
        assert_eq!(ratio(unit + (unit >> 24) + 1, unit), 1.0 + f32::EPSILON);
        let mut rng = Philox::new(5, 0);
        for _ in 0..10_000 {
            let (a, b) = (u128::from(rng.next_u32()) << 30 | 1, u128::from(rng.next_u32()) | 1);
            let exact = a as f64 / b as f64;
            assert!((f64::from(ratio(a, b)) / exact - 1.0).abs() <= 6e-8, "{a} / {b}");
        }
    }

    #[test]
    fn equal_scores_give_every_qth_of_the_list() {
        let rows = draw(candidates(&[0.7; 12]), 4, |row| 11 - row as u32, 1 << 62);
        // The marks stand a quarter of a step in, counted from the end of a list of falling keys.
        assert_eq!(rows, [(9, 3.0), (6, 3.0), (3, 3.0), (0, 3.0)]);
    }
}
