//! LLEP, Least-Loaded Expert Parallelism (Nguyen et al., arXiv 2601.17111): what passes a rank's share of the step is spilled to
//! the least loaded ranks, which get copies of the weights for this step alone.

use std::cmp::Reverse;

use super::{Decision, Input, Policy, shared};
use crate::plan::counts::Counts;
use crate::plan::placement::Placement;
use crate::plan::setup::Setup;
use crate::{Error, Result};

/// LLEP's policy; the defaults are the paper's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Llep {
    /// Load cap of a rank over the mean load of ranks; finite, above 0. The cap is soft: what nobody has room for goes to the least
    /// loaded rank.
    pub alpha: f64,
    /// m: the smallest number of pairs worth a copy of the weights, unless it is all that is left.
    pub min_chunk: u32,
    /// Plain expert parallelism runs where the largest load of an expert over the mean is below this; finite, at least 0. (The
    /// authors' code compares loads of ranks instead; this is the paper's rule.)
    pub lambda: f64,
}

impl Default for Llep {
    fn default() -> Self {
        Self { alpha: 1.0, min_chunk: 1024, lambda: 1.3 }
    }
}

impl Policy for Llep {
    fn name(&self) -> &str {
        "llep"
    }

    fn start(&self, setup: &Setup, counts: &Counts) -> Result<Placement> {
        shared::contiguous(setup, counts)
    }

    /// Owners are the homes of the current placement, and the next placement is these homes alone.
    fn decide(&self, setup: &Setup, input: &Input<'_>) -> Result<Decision> {
        shared::check(setup, input)?;
        let (pairs, ranks) = (input.counts.per_expert(), input.placement.ranks());
        let homes = input.placement.home();
        let spread = self.spread(pairs, homes, ranks)?;
        let hosts: Vec<Vec<u32>> = spread.iter().map(|parts| parts.iter().map(|&(rank, _)| rank).collect()).collect();
        let forward = spread.iter().flatten().map(|&(_, n)| n).collect();
        let ownership = input.placement.ownership();
        let placement = Placement::new(ranks, &hosts, homes.to_vec(), ownership)?;
        let alone: Vec<[u32; 1]> = homes.iter().map(|&home| [home]).collect();
        let next = Placement::new(ranks, &alone, homes.to_vec(), ownership)?;
        shared::keep_all(setup, pairs, placement, forward, next)
    }
}

impl Llep {
    /// `[E]` the `(rank, pairs)` of each expert, ranks ascending, its owner always among them.
    ///
    /// Experts are visited by falling load, ties to the lower index. *Pending* are a rank's own experts not visited yet, so
    /// that nothing is spilled to a rank that will be busy with those.
    fn spread(&self, pairs: &[u32], owners: &[u32], ranks: usize) -> Result<Vec<Vec<(u32, u32)>>> {
        if !(self.alpha.is_finite() && self.alpha > 0.0) {
            return Err(Error::argument("alpha", self.alpha, "a finite number > 0"));
        }
        if !(self.lambda.is_finite() && self.lambda >= 0.0) {
            return Err(Error::argument("lambda", self.lambda, "a finite number >= 0"));
        }
        let total: u64 = pairs.iter().map(|&n| u64::from(n)).sum();
        let largest = pairs.iter().copied().max().unwrap_or(0);
        let mut spread: Vec<Vec<(u32, u32)>> = owners.iter().zip(pairs).map(|(&owner, &n)| vec![(owner, n)]).collect();
        let balanced = f64::from(largest) * (pairs.len() as f64) < self.lambda * total as f64;
        if total == 0 || balanced || ranks == 1 {
            return Ok(spread);
        }
        // As the authors' code rounds it; the cast saturates.
        let cap = ((self.alpha * (total / ranks as u64) as f64) as u64).max(1);
        // Assigned and pending pairs of each rank together: visiting an expert moves its pairs from one to the other.
        let mut busy = vec![0_u64; ranks];
        owners.iter().zip(pairs).for_each(|(&owner, &n)| busy[owner as usize] += u64::from(n));
        let mut order: Vec<usize> = (0..pairs.len()).collect();
        order.sort_by_key(|&e| Reverse(pairs[e]));
        let mut helpers: Vec<u32> = Vec::with_capacity(ranks);
        for e in order {
            let (owner, load) = (owners[e], u64::from(pairs[e]));
            busy[owner as usize] -= load;
            let kept = load.min(cap.saturating_sub(busy[owner as usize]));
            busy[owner as usize] += kept;
            let mut left = load - kept;
            if left == 0 {
                continue;
            }
            let parts = &mut spread[e];
            parts[0].1 = kept as u32;
            helpers.clear();
            helpers.extend((0..ranks as u32).filter(|&rank| rank != owner));
            helpers.sort_by_key(|&rank| busy[rank as usize]);
            for &rank in &helpers {
                let load = &mut busy[rank as usize];
                let chunk = left.min(cap.saturating_sub(*load));
                // The ranks that follow have no more room, so a chunk that is too small ends the search.
                if chunk == 0 || (chunk < u64::from(self.min_chunk) && chunk < left) {
                    break;
                }
                *load += chunk;
                left -= chunk;
                parts.push((rank, chunk as u32));
            }
            if left > 0 {
                helpers.sort_by_key(|&rank| busy[rank as usize]);
                let rank = helpers[0];
                busy[rank as usize] += left;
                match parts.iter_mut().find(|(host, _)| *host == rank) {
                    Some((_, chunk)) => *chunk += left as u32,
                    None => parts.push((rank, left as u32)),
                }
            }
            parts.sort_unstable();
        }
        Ok(spread)
    }
}

#[cfg(test)]
#[path = "llep_tests.rs"]
mod tests;
