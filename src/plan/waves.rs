//! Waves: parts of a phase that each fit the buffers of a rank.

use std::ops::Range;

use crate::{Error, Result};

/// Waves of a phase whose busiest rank sends or computes `max_degree` pairs, `wave_rows` of which fit its buffers.
///
/// One wave where all fit; otherwise `W = ceil(max_degree / (wave_rows - ranks))`, and every wave fits. Proof: in each wave every (source,
/// destination) block of b pairs has its share ([`share`]) of at most `ceil(b / W) < b / W + 1` pairs. A rank's blocks, one
/// for each of the `ranks` it sends to or receives from, hold at most `max_degree` pairs together, so a wave holds less than
/// `max_degree / W + ranks <= (wave_rows - ranks) + ranks` of them.
///
/// ```
/// use lrmoe::plan::waves::waves;
///
/// assert_eq!(waves(4096, 4096, 8)?, 1);
/// assert_eq!(waves(4097, 4096, 8)?, 2);
/// assert_eq!(waves(8177, 4096, 8)?, 3); // 2 (4096 - 8) = 8176
/// # Ok::<(), lrmoe::Error>(())
/// ```
///
/// # Errors
/// [`Error::Argument`] where more than one wave is needed and `wave_rows` is not above `ranks`.
pub fn waves(max_degree: u64, wave_rows: u64, ranks: u64) -> Result<u64> {
    if max_degree <= wave_rows {
        return Ok(1);
    }
    match wave_rows.checked_sub(ranks) {
        Some(rows @ 1..) => Ok(max_degree.div_ceil(rows)),
        _ => {
            Err(Error::argument("wave_rows", wave_rows, format!("more than {ranks} ranks, or all {max_degree} pairs")))
        }
    }
}

/// The pairs of a block of `pairs` that go in wave `wave` of `waves` (`wave < waves`): consecutive ranges that cover the block, none longer
/// than `ceil(pairs / waves)`.
#[must_use]
pub const fn share(pairs: u64, wave: u64, waves: u64) -> Range<u64> {
    let (part, longer) = (pairs / waves, pairs % waves);
    let start = part * wave + if wave < longer { wave } else { longer };
    start..start + part + (wave < longer) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Blocks of a random matrix, dealt out wave by wave: nothing is lost, and no rank ever sends or receives too much.
        #[test]
        fn every_wave_fits(
            ranks in 1_usize..12,
            slack in 1_u64..40,
            seed in proptest::collection::vec(0_u64..200, 144),
            sparse in 1_u64..8,
        ) {
            let block = |from: usize, to: usize| {
                let n = seed[from * ranks + to];
                if n.is_multiple_of(sparse) { n } else { 0 }
            };
            let sent = |of: &dyn Fn(usize, usize) -> u64, rank: usize| (0..ranks).map(|to| of(rank, to)).sum::<u64>();
            let received = |of: &dyn Fn(usize, usize) -> u64, rank: usize| (0..ranks).map(|from| of(from, rank)).sum::<u64>();
            let degree = |of: &dyn Fn(usize, usize) -> u64| {
                (0..ranks).map(|rank| sent(of, rank).max(received(of, rank))).max().unwrap()
            };
            let rows = ranks as u64 + slack;
            let count = waves(degree(&block), rows, ranks as u64).unwrap();
            for wave in 0..count {
                let part = |from, to| {
                    let range = share(block(from, to), wave, count);
                    range.end - range.start
                };
                prop_assert!(degree(&part) <= rows);
            }
            for from in 0..ranks {
                for to in 0..ranks {
                    let mut next = 0;
                    for wave in 0..count {
                        let range = share(block(from, to), wave, count);
                        prop_assert_eq!(range.start, next);
                        next = range.end;
                    }
                    prop_assert_eq!(next, block(from, to));
                }
            }
        }

        #[test]
        fn larger_waves_are_never_more(degree in 0_u64..10_000, rows in 1_u64..500, ranks in 1_u64..64) {
            if let Ok(few) = waves(degree, rows, ranks) {
                prop_assert!(waves(degree, rows + 1, ranks).unwrap() <= few);
            }
        }
    }

    #[test]
    fn refuses_waves_that_rounding_fills() {
        assert_eq!(waves(0, 0, 8).unwrap(), 1);
        assert_eq!(waves(7, 7, 8).unwrap(), 1);
        for rows in [0, 7, 8] {
            let refused = waves(9, rows, 8).unwrap_err().to_string();
            assert!(refused.contains("wave_rows") && refused.contains("8 ranks"), "{refused}");
        }
        assert_eq!(waves(u64::MAX, 9, 8).unwrap(), u64::MAX);
        assert_eq!(share(u64::MAX, u64::MAX - 1, u64::MAX), u64::MAX - 1..u64::MAX);
    }
}
