//! The plan of one layer and step.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::cost::Predicted;
use super::counts::Counts;
use super::memory::RankMemory;
use super::mode::Activations;
use super::placement::Placement;
use super::retained::RetentionPlan;
use super::route::Route;
use crate::{Error, Result};

/// What every rank does in one step of one layer, and what that is expected to cost: a plain value that can be stored, printed
/// and hashed. Forward keeps it with the saved context; backward reads that one and never a newer one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", deny_unknown_fields)]
#[non_exhaustive]
pub struct Plan {
    /// Name of the policy that made it.
    pub policy: String,
    /// Pairs computed and pairs back-propagated, of each expert.
    pub retained: RetentionPlan,
    /// `[R, E]` pairs that not even forward computes; only a policy with a forward capacity has any.
    pub dropped: Option<Counts>,
    /// Where this step runs.
    pub placement: Placement,
    /// What forward keeps.
    pub activations: Activations,
    /// Every computed pair's way, by (expert, source).
    pub forward: Vec<Route>,
    /// The way of retained pairs, with the split over sources that is expected before selection.
    pub backward: Vec<Route>,
    /// `c[e][r]` of each instance of `placement`; for each expert their sum is its quota.
    pub capacity: Vec<u32>,
    /// Pairs that one wave may hold on a rank.
    pub wave_rows: u64,
    /// `[R]` bytes, by category.
    pub memory: Vec<RankMemory>,
    /// Time and traffic.
    pub predicted: Predicted,
    /// Placement of the next step.
    pub next: Placement,
    /// Predicted seconds of a step that starts and ends there and brings the same pairs, where the policy foretells them; had ranks no
    /// [limit](super::Limit::RankCapacity) but what is asked for.
    pub next_s: Option<f64>,
}

impl<'de> Deserialize<'de> for Plan {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let plan = Self::deserialize(deserializer)?;
        plan.check().map_err(serde::de::Error::custom)?;
        Ok(plan)
    }
}

impl Serialize for Plan {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl Plan {
    /// R.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.placement.ranks()
    }

    /// E.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.placement.experts()
    }

    /// `[R]` pairs that each rank computes in forward.
    #[must_use]
    pub fn forward_rows(&self) -> Vec<u64> {
        rows(&self.forward, self.ranks())
    }

    /// `[R]` pairs that each rank is expected to back-propagate.
    #[must_use]
    pub fn backward_rows(&self) -> Vec<u64> {
        rows(&self.backward, self.ranks())
    }

    /// Whether every rank stays within its budget.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.memory.iter().all(RankMemory::fits)
    }

    /// Checks the parts against each other: every computed pair has one way, to an instance of its own expert; so has every
    /// retained pair, within the capacities, whose sums are the quotas.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Argument`] naming the first part that contradicts another.
    pub fn check(&self) -> Result<()> {
        let (ranks, experts) = (self.ranks(), self.experts());
        let sizes = [
            ("retained.counts", self.retained.counts.len(), experts),
            ("capacity", self.capacity.len(), self.placement.instances()),
            ("memory", self.memory.len(), ranks),
            ("next experts", self.next.experts(), experts),
            ("next ranks", self.next.ranks(), ranks),
        ];
        if let Some((name, got, expected)) = sizes.into_iter().find(|(_, got, expected)| got != expected) {
            return Err(Error::shape(format!("plan.{name}"), got, expected));
        }
        if let Some(dropped) = &self.dropped {
            dropped.check(ranks, experts)?;
        }
        let forward = self.instance_loads("forward", &self.forward)?;
        self.check_sums("forward", &forward, &self.retained.counts)?;
        self.check_sums("capacity", &widen(&self.capacity), &self.retained.quotas)?;
        if self.wave_rows == 0 {
            return Err(Error::argument("plan.wave_rows", 0, "1 or more"));
        }
        let p = &self.predicted;
        let times = [p.forward_s, p.backward_s, p.exchange_s, p.optimizer_exchange_s, self.next_s.unwrap_or(0.0)];
        if let Some(time) = times.into_iter().find(|time| !(0.0..f64::INFINITY).contains(time)) {
            return Err(Error::argument("plan.predicted", time, "finite times >= 0"));
        }
        self.check_sources()?;
        let backward = self.instance_loads("backward", &self.backward)?;
        self.check_sums("backward", &backward, &self.retained.quotas)?;
        let over = (0..backward.len()).find(|&i| backward[i] > u64::from(self.capacity[i]));
        if let Some(i) = over {
            let name = format!("plan.backward pairs of instance {i}");
            return Err(Error::argument(name, backward[i], format!("at most its capacity {}", self.capacity[i])));
        }
        Ok(())
    }

    /// Checks the order of routes, and that no source back-propagates more than it sent forward: of an expert, and where forward's
    /// activations are stashed, of an instance.
    fn check_sources(&self) -> Result<()> {
        let source = |route: &Route| (route.expert, route.from);
        for (name, routes) in [("forward", &self.forward), ("backward", &self.backward)] {
            if !routes.is_sorted_by_key(source) {
                return Err(Error::argument(format!("plan.{name}"), "out of order", "routes by expert and source"));
            }
        }
        let stash = self.activations == Activations::Stash;
        let mut forward = self.forward.chunk_by(|a, b| source(a) == source(b)).peekable();
        for back in self.backward.chunk_by(|a, b| source(a) == source(b)) {
            while forward.next_if(|out| source(&out[0]) < source(&back[0])).is_some() {}
            let out = forward.peek().filter(|out| source(&out[0]) == source(&back[0])).copied().unwrap_or(&[]);
            let sum = |routes: &[Route], to: Option<u32>| -> u64 {
                routes
                    .iter()
                    .filter(|route| to.is_none_or(|to| route.to == to))
                    .map(|route| u64::from(route.pairs))
                    .sum()
            };
            let over = |to: Option<u32>| sum(back, to) > sum(out, to);
            if over(None) || (stash && back.iter().any(|route| over(Some(route.to)))) {
                let name = format!("plan.backward of expert {} from rank {}", back[0].expert, back[0].from);
                return Err(Error::argument(name, sum(back, None), "at most what forward sent the same way"));
            }
        }
        Ok(())
    }

    /// Pairs of each instance over all its routes.
    fn instance_loads(&self, name: &str, routes: &[Route]) -> Result<Vec<u64>> {
        let mut loads = vec![0; self.placement.instances()];
        for (i, route) in routes.iter().enumerate() {
            let known = (route.expert as usize) < self.experts() && (route.from as usize) < self.ranks();
            let instance = known.then(|| self.placement.find(route.expert as usize, route.to as usize)).flatten();
            match instance {
                Some(instance) if route.pairs > 0 => loads[instance] += u64::from(route.pairs),
                _ => {
                    let allowed = "pairs of a known rank to an instance of their expert, at least one";
                    return Err(Error::argument(format!("plan.{name}[{i}]"), format!("{route:?}"), allowed));
                }
            }
        }
        Ok(loads)
    }

    fn check_sums(&self, name: &str, loads: &[u64], sums: &[u32]) -> Result<()> {
        for (e, &expected) in sums.iter().enumerate() {
            let got: u64 = loads[self.placement.range(e)].iter().sum();
            if got != u64::from(expected) {
                return Err(Error::argument(format!("plan.{name} pairs of expert {e}"), got, expected.to_string()));
            }
        }
        Ok(())
    }

    /// Hash of what the plan makes ranks do: routes, capacities, placements, quotas, activations and wave, not the prediction.
    ///
    /// It is the same on every machine; ranks compare it instead of exchanging plans.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let mut hash = Hasher(1);
        [self.ranks() as u64, self.activations.code(), self.wave_rows, self.retained.hash()]
            .into_iter()
            .for_each(|word| hash.word(word));
        for placement in [&self.placement, &self.next] {
            hash.word(placement.ownership().code());
            [placement.offsets(), placement.host_of_instance(), placement.slots(), placement.home()]
                .into_iter()
                .for_each(|part| hash.words(part));
        }
        hash.words(&self.capacity);
        for routes in [&self.forward, &self.backward] {
            hash.word(routes.len() as u64);
            for route in routes {
                hash.word(u64::from(route.expert) << 32 | u64::from(route.from));
                hash.word(u64::from(route.to) << 32 | u64::from(route.pairs));
            }
        }
        hash.words(self.dropped.as_ref().map_or(&[], Counts::flat));
        hash.0
    }
}

fn rows(routes: &[Route], ranks: usize) -> Vec<u64> {
    let mut rows = vec![0; ranks];
    routes.iter().for_each(|route| rows[route.to as usize] += u64::from(route.pairs));
    rows
}

fn widen(values: &[u32]) -> Vec<u64> {
    values.iter().copied().map(u64::from).collect()
}

/// A running 64-bit hash: multiply by a large odd number, fold the upper half down.
#[derive(Debug)]
struct Hasher(u64);

impl Hasher {
    fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }

    /// A length and that many words.
    fn words(&mut self, words: &[u32]) {
        self.word(words.len() as u64);
        words.iter().for_each(|&word| self.word(u64::from(word)));
    }
}

impl fmt::Display for Plan {
    /// Totals, then a line a rank: instances, pairs, retained pairs, bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let predicted = &self.predicted;
        let limits: Vec<&str> = self.retained.limits.iter().map(|limit| limit.name()).collect();
        writeln!(
            f,
            "{}: {} experts, {} instances on {} ranks, {} of {} pairs retained, limits: {}",
            self.policy,
            self.experts(),
            self.placement.instances(),
            self.ranks(),
            self.retained.retained(),
            self.retained.pairs(),
            if limits.is_empty() { "none".to_owned() } else { limits.join(", ") },
        )?;
        write!(
            f,
            "predicted {:.3} ms: forward {:.3}, backward {:.3}, exchange {:.3}, optimizer exchange {:.3}; {}, waves of {} pairs",
            1e3 * predicted.total_s(),
            1e3 * predicted.forward_s,
            1e3 * predicted.backward_s,
            1e3 * predicted.exchange_s,
            1e3 * predicted.optimizer_exchange_s,
            self.activations.name(),
            self.wave_rows,
        )?;
        write!(f, "\n  rank instances      pairs   retained          bytes")?;
        let held = self.placement.instances_per_rank();
        let rows = self.forward_rows().into_iter().zip(self.backward_rows());
        for (r, (forward, backward)) in rows.enumerate() {
            let bytes = self.memory[r].total();
            write!(f, "\n{r:>6} {:>9} {forward:>10} {backward:>10} {bytes:>14}", held[r])?;
        }
        Ok(())
    }
}
