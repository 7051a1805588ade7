//! Labels that follow from the input alone.
//!
//! Wherever a plan breaks a tie it takes the lower index. So that renaming experts, or ranks inside a node, renames the plan
//! and changes nothing else, the input is first relabelled by what distinguishes its experts and ranks: a hash of everything a
//! plan reads of each, refined twice over the matrix of counts (B. Weisfeiler, A. Leman 1968). Labels of equal hash keep the order they
//! came in: they are interchangeable but for graphs that this refinement cannot tell apart.

use super::counts::Counts;
use super::demand::{BINS, Demand, DemandParts};
use super::placement::Placement;
use crate::Result;

/// A renaming of experts and of ranks within their nodes: new label of each old one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Labels {
    pub(crate) experts: Vec<u32>,
    pub(crate) ranks: Vec<u32>,
}

impl Labels {
    /// The labels that `counts`, `demand` and `placement`, all of the same sizes, call for.
    pub(crate) fn canonical(
        counts: &Counts,
        demand: Option<&Demand>,
        placement: &Placement,
        ranks_per_node: usize,
    ) -> Self {
        let mut experts: Vec<u64> = counts.per_expert().iter().map(|&n| mix(u64::from(n) ^ 1)).collect();
        if let Some(demand) = demand {
            fingerprints(demand.parts()).zip(&mut experts).for_each(|(print, color)| *color = mix(*color ^ print));
        }
        let node = |rank: usize| mix((rank / ranks_per_node) as u64 ^ 2 << 40);
        let mut ranks: Vec<u64> = (0..counts.ranks()).map(node).collect();
        for _ in 0..2 {
            let mut sums: Vec<u64> = (0..counts.ranks())
                .map(|s| {
                    experts.iter().zip(counts.row(s)).map(|(&color, &n)| entry(color, n)).fold(0, u64::wrapping_add)
                })
                .collect();
            for (i, (e, r)) in placement.iter().enumerate() {
                sums[r] = sums[r].wrapping_add(mix(experts[e] ^ hosting(placement, i, e, r)));
            }
            ranks.iter_mut().zip(sums).for_each(|(color, sum)| *color = mix(*color ^ sum));
            let mut sums = vec![0_u64; counts.experts()];
            for (s, &color) in ranks.iter().enumerate() {
                sums.iter_mut().zip(counts.row(s)).for_each(|(sum, &n)| *sum = sum.wrapping_add(entry(color, n)));
            }
            for (i, (e, r)) in placement.iter().enumerate() {
                sums[e] = sums[e].wrapping_add(mix(ranks[r] ^ hosting(placement, i, e, r)));
            }
            experts.iter_mut().zip(sums).for_each(|(color, sum)| *color = mix(*color ^ sum));
            if distinct(&experts) && distinct(&ranks) {
                break;
            }
        }
        let nodes: Vec<(usize, u64)> =
            ranks.iter().enumerate().map(|(r, &color)| (r / ranks_per_node, color)).collect();
        Self { experts: positions(&experts), ranks: positions(&nodes) }
    }

    /// The renaming that undoes this one.
    pub(crate) fn inverse(&self) -> Self {
        let invert = |labels: &[u32]| {
            let mut inverse = vec![0; labels.len()];
            (0_u32..).zip(labels).for_each(|(old, &new)| inverse[new as usize] = old);
            inverse
        };
        Self { experts: invert(&self.experts), ranks: invert(&self.ranks) }
    }

    /// Values of experts, moved to their new labels.
    pub(crate) fn of_experts<T: Copy + Default>(&self, values: &[T]) -> Vec<T> {
        moved(&self.experts, values)
    }

    pub(crate) fn counts(&self, counts: &Counts) -> Result<Counts> {
        let experts = counts.experts();
        let mut flat = vec![0; counts.flat().len()];
        for (s, &to) in self.ranks.iter().enumerate() {
            let row = &mut flat[to as usize * experts..][..experts];
            self.experts.iter().zip(counts.row(s)).for_each(|(&e, &n)| row[e as usize] = n);
        }
        Counts::from_flat(counts.ranks(), experts, flat)
    }

    pub(crate) fn demand(&self, demand: &Demand) -> Demand {
        let p = demand.parts();
        let mut histogram = vec![0.0; p.histogram.len()];
        for (old, &new) in p.histogram.chunks_exact(BINS).zip(&self.experts) {
            histogram[new as usize * BINS..][..BINS].copy_from_slice(old);
        }
        Demand::from_checked(DemandParts {
            load: self.of_experts(&p.load),
            infinite: self.of_experts(&p.infinite),
            score_sum: self.of_experts(&p.score_sum),
            reference: self.of_experts(&p.reference),
            histogram,
            top_sum: self.of_experts(&p.top_sum),
        })
    }

    /// The renamed placement, and for each of its instances the one it was.
    pub(crate) fn placement(&self, placement: &Placement) -> Result<(Placement, Vec<u32>)> {
        let back = self.inverse();
        let mut instances: Vec<u32> = Vec::with_capacity(placement.instances());
        let mut hosts: Vec<Vec<u32>> = Vec::with_capacity(placement.experts());
        for &old in &back.experts {
            let mut own: Vec<(u32, u32)> = (placement.range(old as usize))
                .map(|i| (self.ranks[placement.host_of_instance()[i] as usize], i as u32))
                .collect();
            own.sort_unstable();
            instances.extend(own.iter().map(|(_, i)| i));
            hosts.push(own.into_iter().map(|(rank, _)| rank).collect());
        }
        let slots = instances.iter().map(|&i| placement.slots()[i as usize]).collect();
        let home = self.of_experts(placement.home()).into_iter().map(|r| self.ranks[r as usize]).collect();
        Ok((Placement::with_slots(placement.ranks(), &hosts, slots, home, placement.ownership())?, instances))
    }
}

/// A hash of everything that demand holds of each expert.
fn fingerprints(p: &DemandParts) -> impl Iterator<Item = u64> + '_ {
    let fold = |hash: u64, value: &f64| mix(hash ^ value.to_bits());
    p.histogram.chunks_exact(BINS).enumerate().map(move |(e, bins)| {
        let own = [p.load[e], p.infinite[e], p.score_sum[e], p.reference[e], p.top_sum[e]];
        // Most bins are empty: those add nothing but their place.
        let bins = bins.iter().enumerate().filter(|(_, count)| **count != 0.0);
        bins.fold(own.iter().fold(0, fold), |hash, (bin, count)| fold(hash.wrapping_add(bin as u64), count))
    })
}

fn moved<T: Copy + Default>(labels: &[u32], values: &[T]) -> Vec<T> {
    let mut moved = vec![T::default(); values.len()];
    labels.iter().zip(values).for_each(|(&to, &value)| moved[to as usize] = value);
    moved
}

/// Rank of each value among all; equal ones in the order they stand in.
fn positions<T: Ord + Copy>(values: &[T]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    order.sort_by_key(|&i| values[i as usize]);
    let mut positions = vec![0; values.len()];
    (0_u32..).zip(order).for_each(|(position, i)| positions[i as usize] = position);
    positions
}

fn distinct(colors: &[u64]) -> bool {
    let mut sorted = colors.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1])
}

/// What a pair count adds to the hash of its row or column: nothing where there is none.
fn entry(color: u64, pairs: u32) -> u64 {
    let product = (color ^ u64::from(pairs)).wrapping_mul(u64::from(pairs) | 1 << 32);
    if pairs == 0 { 0 } else { product ^ product >> 29 }
}

/// What hosting adds: slots, and whether it is the expert's home.
fn hosting(placement: &Placement, instance: usize, expert: usize, rank: usize) -> u64 {
    let home = u64::from(placement.home()[expert] as usize == rank);
    (u64::from(placement.slots()[instance]) << 1 | home) << 16 | 0xa5a5
}

/// Finaliser of SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
