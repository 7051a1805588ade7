//! Whole shares of a whole.

use std::cmp::Reverse;

/// Splits `total` in proportion to `weights`, by largest remainder, ties to the lower index. Writes into `shares`, of the same
/// length; all zero where the weights are.
///
/// No share passes its weight while `total` is at most their sum.
pub(crate) fn apportion(total: u64, weights: &[u32], shares: &mut [u32]) {
    let sum: u64 = weights.iter().copied().map(u64::from).sum();
    if sum == 0 {
        shares.fill(0);
        return;
    }
    if let ([share], [_]) = (&mut *shares, weights) {
        *share = total as u32;
        return;
    }
    let product = |weight: u32| u128::from(total) * u128::from(weight);
    let mut left = total;
    for (share, &weight) in shares.iter_mut().zip(weights) {
        *share = (product(weight) / u128::from(sum)) as u32;
        left -= u64::from(*share);
    }
    if left == 0 {
        return;
    }
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|&i| Reverse(product(weights[i]) % u128::from(sum)));
    order.into_iter().take(left as usize).for_each(|i| shares[i] += 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(total: u64, weights: &[u32]) -> Vec<u32> {
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
        assert_eq!(split(u64::from(u32::MAX), &[u32::MAX, 0]), [u32::MAX, 0]);
    }

    #[test]
    fn shares_add_up_and_stay_below_weights() {
        for seed in 0..2000_u64 {
            let weights: Vec<u32> = (0..1 + seed % 9).map(|i| ((seed * 37 + i * i * 11) % 23) as u32).collect();
            let sum: u64 = weights.iter().copied().map(u64::from).sum();
            let total = if sum == 0 { 0 } else { seed * 7919 % (sum + 1) };
            let shares = split(total, &weights);
            assert_eq!(shares.iter().copied().map(u64::from).sum::<u64>(), total);
            assert!(shares.iter().zip(&weights).all(|(s, w)| s <= w), "{total} {weights:?} {shares:?}");
        }
    }
}
