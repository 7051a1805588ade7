//! Which token each row belongs to: made up, but shaped like a real permutation.

use crate::kernel::NONE;
use crate::rng::Philox;

/// Uniform below `n`, which is at least 1.
fn below(rng: &mut Philox, n: usize) -> usize {
    ((u64::from(rng.next_u32()) * n as u64) >> 32) as usize
}

/// The token of each row. The rows of a group are distinct tokens in ascending order; every token has as many rows as any
/// other, or one more. No group has more rows than there are tokens.
pub(super) fn tokens_of_rows(rng: &mut Philox, groups: impl Iterator<Item = usize>, tokens: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0u32..).take(tokens).collect();
    for last in (1..tokens).rev() {
        order.swap(last, below(rng, last + 1));
    }
    let mut next = order.iter().copied().cycle();
    let mut rows = Vec::new();
    for group in groups {
        let first = rows.len();
        rows.extend(next.by_ref().take(group));
        rows[first..].sort_unstable();
    }
    rows
}

/// `rows` rows in groups that hold no token twice: what goes to other ranks, one group for each use of the tokens.
pub(super) fn rounds(rows: usize, tokens: usize) -> impl Iterator<Item = usize> {
    (0..rows).step_by(tokens.max(1)).map(move |first| tokens.min(rows - first))
}

/// `[tokens, slots]`: the rows of each token, then [`NONE`].
pub(super) fn rows_of_tokens(rows: &[u32], tokens: usize, slots: usize) -> Vec<u32> {
    let mut used = vec![0; tokens];
    let mut table = vec![NONE; tokens * slots];
    for (row, &token) in (0u32..).zip(rows) {
        let slot = &mut used[token as usize];
        table[token as usize * slots + *slot] = row;
        *slot += 1;
    }
    table
}

/// `[groups + 1]`, from 0.
pub(super) fn offsets(counts: &[u32]) -> Vec<u32> {
    let mut offsets = Vec::with_capacity(counts.len() + 1);
    let mut next = 0;
    offsets.push(next);
    for &count in counts {
        next += count;
        offsets.push(next);
    }
    offsets
}

/// Forward row of each backward row: of every expert a random subset in ascending order (selection sampling, Knuth
/// volume 2, algorithm 3.4.2 S). `kept[e] <= rows[e]`.
pub(super) fn retained_rows(rng: &mut Philox, rows: &[u32], kept: &[u32]) -> Vec<u32> {
    let mut out = Vec::new();
    for ((&first, &rows), &kept) in offsets(rows).iter().zip(rows).zip(kept) {
        let mut wanted = kept;
        for row in 0..rows {
            if below(rng, (rows - row) as usize) < wanted as usize {
                out.push(first + row);
                wanted -= 1;
            }
        }
    }
    out
}

/// Quotas in proportion to the counts, each at most its count, that sum to `total`, which is at most the sum of the counts.
pub(super) fn quotas(counts: &[u32], total: usize) -> Vec<u32> {
    let sum = counts.iter().copied().map(u64::from).sum::<u64>().max(1);
    let mut quotas: Vec<u32> =
        counts.iter().map(|&n| (u128::from(n) * total as u128 / u128::from(sum)) as u32).collect();
    let mut rest = total as u64 - quotas.iter().copied().map(u64::from).sum::<u64>();
    for (quota, &count) in quotas.iter_mut().zip(counts) {
        let more = rest.min(u64::from(count - *quota)).min(1);
        *quota += more as u32;
        rest -= more;
    }
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_group_ascend_and_tokens_are_used_evenly() {
        let mut rng = Philox::new(3, 0);
        let groups = [5usize, 0, 7, 7, 1, 3];
        let rows = tokens_of_rows(&mut rng, groups.into_iter(), 7);
        let mut first = 0;
        for n in groups {
            assert!(rows[first..first + n].windows(2).all(|pair| pair[0] < pair[1]), "{rows:?}");
            first += n;
        }
        let mut uses = [0; 7];
        rows.iter().for_each(|&token| uses[token as usize] += 1);
        assert!(uses.iter().all(|&n| n == 3 || n == 4), "{uses:?}");

        let table = rows_of_tokens(&rows, 7, 4);
        let mut seen: Vec<u32> = table.iter().copied().filter(|&row| row != NONE).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..23).collect::<Vec<u32>>());
        for (token, slots) in (0u32..).zip(table.chunks(4)) {
            assert!(slots.iter().all(|&row| row == NONE || rows[row as usize] == token));
        }
    }

    #[test]
    fn rounds_cover_the_rows() {
        assert_eq!(rounds(0, 5).sum::<usize>(), 0);
        assert_eq!(rounds(0, 0).count(), 0);
        assert_eq!(rounds(13, 5).collect::<Vec<_>>(), [5, 5, 3]);
        assert_eq!(rounds(10, 5).collect::<Vec<_>>(), [5, 5]);
    }

    #[test]
    fn retained_rows_are_subsets_of_each_expert() {
        let mut rng = Philox::new(5, 1);
        let (rows, kept) = ([6, 0, 9, 4], [6, 0, 3, 0]);
        let picked = retained_rows(&mut rng, &rows, &kept);
        assert_eq!(picked[..6], [0, 1, 2, 3, 4, 5]);
        assert_eq!(picked.len(), 9);
        assert!(picked.windows(2).all(|pair| pair[0] < pair[1]) && picked[6..].iter().all(|row| (6..15).contains(row)));
    }

    #[test]
    fn quotas_sum_to_the_total_and_fit() {
        let counts = [10, 0, 3, 7, 1];
        for total in 0..=21 {
            let quotas = quotas(&counts, total);
            assert_eq!(quotas.iter().sum::<u32>() as usize, total, "{quotas:?}");
            assert!(quotas.iter().zip(&counts).all(|(q, n)| q <= n), "{quotas:?}");
        }
    }
}
