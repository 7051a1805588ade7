//! Pairs of every source rank for every expert.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// `n[s][e]`: pairs from source rank `s` to expert `e`, row-major `[R, E]`, with its sums.
///
/// ```
/// use lrmoe::plan::Counts;
///
/// let counts = Counts::new(&[vec![3, 0, 1], vec![2, 2, 0]])?;
/// assert_eq!((counts.ranks(), counts.experts(), counts.total()), (2, 3, 8));
/// assert_eq!(counts.per_expert(), [5, 2, 1]);
/// assert_eq!(counts.per_rank(), [4, 4]);
/// # Ok::<(), lrmoe::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Vec<u32>>", into = "Vec<Vec<u32>>")]
pub struct Counts {
    experts: usize,
    pairs: Vec<u32>,
    per_expert: Vec<u32>,
    per_rank: Vec<u64>,
}

impl Counts {
    /// From one row of E counts for each rank.
    ///
    /// # Errors
    /// As [`Counts::from_flat`].
    pub fn new<Row: AsRef<[u32]>>(rows: &[Row]) -> Result<Self> {
        let experts = rows.first().map_or(0, |row| row.as_ref().len());
        if let Some(rank) = rows.iter().position(|row| row.as_ref().len() != experts) {
            let got = rows[rank].as_ref().len();
            return Err(Error::shape(
                format!("counts of rank {rank}"),
                got,
                format!("{experts} experts, as rank 0 has"),
            ));
        }
        let pairs: Vec<u32> = rows.iter().flat_map(|row| row.as_ref().iter().copied()).collect();
        Self::from_flat(rows.len(), experts, pairs)
    }

    /// From row-major `[ranks, experts]` numbers.
    ///
    /// # Errors
    /// [`Error::Argument`] without ranks or experts, [`Error::Shape`] for a wrong length, [`Error::Overflow`] where the pairs of
    /// one expert pass 2^32 - 1.
    pub fn from_flat(ranks: usize, experts: usize, pairs: Vec<u32>) -> Result<Self> {
        if ranks == 0 || experts == 0 {
            let allowed = "at least one rank and one expert";
            return Err(Error::argument("counts", format!("{ranks} ranks x {experts} experts"), allowed));
        }
        if ranks.checked_mul(experts) != Some(pairs.len()) {
            return Err(Error::shape("counts", pairs.len(), format!("{ranks} ranks x {experts} experts")));
        }
        let mut sums = vec![0_u64; experts];
        let mut per_rank = Vec::with_capacity(ranks);
        for row in pairs.chunks_exact(experts) {
            let mut total = 0;
            for (sum, &n) in sums.iter_mut().zip(row) {
                *sum += u64::from(n);
                total += u64::from(n);
            }
            per_rank.push(total);
        }
        let narrow = |(e, sum): (usize, u64)| {
            u32::try_from(sum).map_err(|_| Error::Overflow {
                what: format!("pairs of expert {e}"),
                detail: format!("{sum} passes {}", u32::MAX),
            })
        };
        let per_expert = sums.into_iter().enumerate().map(narrow).collect::<Result<_>>()?;
        Ok(Self { experts, pairs, per_expert, per_rank })
    }

    /// R, at least 1.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.per_rank.len()
    }

    /// E, at least 1.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// The counts of one source rank, `[E]`; `rank < ranks()`.
    #[must_use]
    pub fn row(&self, rank: usize) -> &[u32] {
        &self.pairs[rank * self.experts..][..self.experts]
    }

    /// Pairs of one source rank for one expert, both in range.
    #[must_use]
    pub fn get(&self, rank: usize, expert: usize) -> u32 {
        self.row(rank)[expert]
    }

    /// `[E]` pairs of each expert.
    #[must_use]
    pub fn per_expert(&self) -> &[u32] {
        &self.per_expert
    }

    /// `[R]` pairs of each source rank.
    #[must_use]
    pub fn per_rank(&self) -> &[u64] {
        &self.per_rank
    }

    /// N: all pairs.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.per_rank.iter().sum()
    }

    /// `[R, E]` row-major.
    #[must_use]
    pub fn flat(&self) -> &[u32] {
        &self.pairs
    }

    /// Refuses counts of another number of ranks or experts.
    pub(crate) fn check(&self, ranks: usize, experts: usize) -> Result<()> {
        if (self.ranks(), self.experts()) == (ranks, experts) {
            return Ok(());
        }
        let got = format!("{} ranks x {} experts", self.ranks(), self.experts());
        Err(Error::shape("counts", got, format!("{ranks} ranks x {experts} experts")))
    }
}

impl TryFrom<Vec<Vec<u32>>> for Counts {
    type Error = Error;

    fn try_from(rows: Vec<Vec<u32>>) -> Result<Self> {
        Self::new(&rows)
    }
}

impl From<Counts> for Vec<Vec<u32>> {
    fn from(counts: Counts) -> Self {
        counts.pairs.chunks_exact(counts.experts).map(<[u32]>::to_vec).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_no_matrix() {
        assert!(Counts::new::<Vec<u32>>(&[]).is_err());
        assert!(Counts::new(&[Vec::new()]).is_err());
        let ragged = Counts::new(&[vec![1, 2], vec![3]]).unwrap_err().to_string();
        assert!(ragged.contains("rank 1") && ragged.contains('2'), "{ragged}");
        assert!(Counts::from_flat(2, 2, vec![1; 3]).is_err());
        assert!(matches!(Counts::new(&[vec![u32::MAX], vec![1]]), Err(Error::Overflow { .. })));
        assert!(Counts::from_flat(usize::MAX, 2, vec![]).is_err());
    }

    #[test]
    fn stands_in_files_as_rows() {
        let counts = Counts::new(&[[1, 2], [3, 4]]).unwrap();
        let json = serde_json::to_string(&counts).unwrap();
        assert_eq!(json, "[[1,2],[3,4]]");
        assert_eq!(serde_json::from_str::<Counts>(&json).unwrap(), counts);
        assert!(serde_json::from_str::<Counts>("[[1],[2,3]]").is_err());
    }
}
