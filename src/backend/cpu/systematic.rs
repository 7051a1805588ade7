//! Systematic sampling in proportion to size along an ordered list, see [`SelectRule`](crate::kernel::SelectRule).

use std::cmp::Reverse;

use super::select::{Candidate, partition};

/// Bits of the largest size.
const SIZE_BITS: u32 = 40;

/// A pair of finite score that may be drawn.
struct Listed {
    /// Key of the token, its global id, slot.
    place: (u32, u64, usize),
    size: u128,
    row: usize,
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
    (high * random + (low * random >> 32)) >> 32
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
        place: (key(row), token, slot),
        size: size(bits, largest),
        row,
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
                rows.push((pair.row, 1.0));
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
            rows.push((pair.row, (sum as f64 / length as f64) as f32));
        }
    }
    rows
}
