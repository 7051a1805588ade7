//! Whole shares of a whole.

use std::cmp::Reverse;

/// Splits `amount` in proportion to `weights`: whole parts first, then one more for each of the largest remainders, ties to the
/// lower index. Writes into `parts`, of the same length. A weight of 0 gets nothing; without any weight nothing is given.
///
/// No part passes its weight while `amount` is at most their sum.
pub(crate) fn apportion(amount: u32, weights: &[u32], parts: &mut [u32]) {
    if let ([weight], [part]) = (weights, &mut *parts) {
        *part = if *weight > 0 { amount } else { 0 };
        return;
    }
    let total: u64 = weights.iter().map(|&w| u64::from(w)).sum();
    parts.fill(0);
    if total == 0 {
        return;
    }
    let mut remainders: Vec<(Reverse<u64>, usize)> = Vec::with_capacity(weights.len());
    let mut left = u64::from(amount);
    for (i, (&weight, part)) in weights.iter().zip(parts.iter_mut()).enumerate() {
        // Two 32-bit factors, and the quotient is at most `amount`.
        let share = u64::from(amount) * u64::from(weight);
        *part = (share / total) as u32;
        left -= u64::from(*part);
        remainders.push((Reverse(share % total), i));
    }
    // The remainders sum to `left` totals and are each less than one: more than `left` of them are not 0, unless all are.
    let left = left as usize;
    remainders.select_nth_unstable(left);
    remainders[..left].iter().for_each(|&(_, i)| parts[i] += 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(total: u32, weights: &[u32]) -> Vec<u32> {
        let mut shares = vec![9; weights.len()];
        apportion(total, weights, &mut shares);
        shares
    }

    #[test]
    fn rounds_by_largest_remainder() {
        assert_eq!(split(7, &[1, 1, 1]), [3, 2, 2]);
        assert_eq!(split(10, &[5, 3, 2]), [5, 3, 2]);
        assert_eq!(split(3, &[5, 4, 1]), [2, 1, 0]);
        assert_eq!(split(5, &[0, 0]), [0, 0]);
        assert_eq!(split(5, &[3]), [5]);
        assert_eq!(split(5, &[0]), [0]);
        assert_eq!(split(u32::MAX, &[u32::MAX, 0]), [u32::MAX, 0]);
    }

    #[test]
    fn shares_add_up_and_stay_below_weights() {
        for seed in 0..2000_u64 {
            let weights: Vec<u32> = (0..1 + seed % 9).map(|i| ((seed * 37 + i * i * 11) % 23) as u32).collect();
            let sum: u64 = weights.iter().copied().map(u64::from).sum();
            let total = if sum == 0 { 0 } else { seed * 7919 % (sum + 1) };
            let shares = split(total as u32, &weights);
            assert_eq!(shares.iter().copied().map(u64::from).sum::<u64>(), total);
            assert!(shares.iter().zip(&weights).all(|(s, w)| s <= w), "{total} {weights:?} {shares:?}");
        }
    }
}
