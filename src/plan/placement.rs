//! Where the instances of every expert live.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::mode::Ownership;
use crate::{Error, Result};

/// The instances of one layer's experts: every expert on at least one rank, at most once on each.
///
/// Instances are numbered by (expert, rank); arrays "per instance" everywhere in planning follow this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PlacementData", into = "PlacementData")]
pub struct Placement {
    ranks: usize,
    /// `[E + 1]` first instance of each expert.
    offsets: Vec<u32>,
    /// Rank of each instance, ascending within an expert.
    hosts: Vec<u32>,
    /// Expert slots that each instance takes, 1 or more: SYMI and EPLB count copies on one rank, which are one instance here.
    slots: Vec<u32>,
    /// `[E]` rank of the copy that counts as the expert's own; the others are replicas.
    home: Vec<u32>,
    ownership: Ownership,
}

/// A placement as it stands in a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlacementData {
    ranks: usize,
    ownership: Ownership,
    hosts: Vec<Vec<u32>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slots: Option<Vec<u32>>,
    home: Vec<u32>,
}

impl Placement {
    /// One instance an expert: expert `e` of E on rank `floor(e R / E)`, so that every rank owns a run of experts.
    ///
    /// # Errors
    /// [`Error::Argument`] without experts or ranks or with more than 2^32 - 1 of either.
    pub fn contiguous(experts: usize, ranks: usize, ownership: Ownership) -> Result<Self> {
        check_size("experts", experts)?;
        check_size("ranks", ranks)?;
        let home: Vec<u32> = (0..experts as u128).map(|e| (e * ranks as u128 / experts as u128) as u32).collect();
        Ok(Self {
            ranks,
            offsets: (0..=experts as u32).collect(),
            hosts: home.clone(),
            slots: vec![1; experts],
            home,
            ownership,
        })
    }

    /// From the host ranks of each expert, in any order; `home[e]` is one of them.
    ///
    /// # Errors
    /// [`Error::Argument`] naming the expert that has no instance, two on one rank, one on a rank that does not exist, or its
    /// home elsewhere.
    pub fn new<Hosts: AsRef<[u32]>>(
        ranks: usize,
        hosts: &[Hosts],
        home: Vec<u32>,
        ownership: Ownership,
    ) -> Result<Self> {
        let slots = hosts.iter().map(|h| h.as_ref().len()).sum();
        Self::with_slots(ranks, hosts, vec![1; slots], home, ownership)
    }

    /// As [`Placement::new`] with the slots that each instance takes, in the order of `hosts`.
    ///
    /// # Errors
    /// As [`Placement::new`], and for an instance without a slot.
    pub fn with_slots<Hosts: AsRef<[u32]>>(
        ranks: usize,
        hosts: &[Hosts],
        slots: Vec<u32>,
        home: Vec<u32>,
        ownership: Ownership,
    ) -> Result<Self> {
        check_size("experts", hosts.len())?;
        check_size("ranks", ranks)?;
        if home.len() != hosts.len() {
            return Err(Error::shape("placement home", home.len(), format!("{} experts", hosts.len())));
        }
        let instances: usize = hosts.iter().map(|h| h.as_ref().len()).sum();
        if slots.len() != instances {
            return Err(Error::shape("placement slots", slots.len(), format!("{instances} instances")));
        }
        check_size("instances", instances)?;
        let mut placed = Self {
            ranks,
            offsets: Vec::with_capacity(hosts.len() + 1),
            hosts: Vec::with_capacity(instances),
            slots: Vec::with_capacity(instances),
            home,
            ownership,
        };
        placed.offsets.push(0);
        let mut taken = 0;
        for (e, own) in hosts.iter().enumerate() {
            let own = own.as_ref();
            let mut order: Vec<(u32, u32)> = own.iter().copied().zip(slots[taken..].iter().copied()).collect();
            taken += own.len();
            order.sort_unstable();
            let bad = |value: String, allowed: &str| Error::argument(format!("hosts of expert {e}"), value, allowed);
            if order.is_empty() {
                return Err(bad("none".into(), "at least one rank"));
            }
            if let Some(pair) = order.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return Err(bad(format!("rank {} twice", pair[0].0), "each rank once"));
            }
            if let Some((rank, _)) = order.iter().find(|(rank, _)| *rank as usize >= ranks) {
                return Err(bad(format!("rank {rank}"), &format!("ranks below {ranks}")));
            }
            if order.iter().any(|(_, slots)| *slots == 0) {
                return Err(bad("an instance of 0 slots".into(), "1 slot or more"));
            }
            if !own.contains(&placed.home[e]) {
                let allowed = format!("one of its hosts {own:?}");
                return Err(Error::argument(format!("home of expert {e}"), placed.home[e], allowed));
            }
            placed.hosts.extend(order.iter().map(|(rank, _)| rank));
            placed.slots.extend(order.iter().map(|(_, slots)| slots));
            placed.offsets.push(placed.hosts.len() as u32);
        }
        Ok(placed)
    }

    /// From parts that keep the invariant by construction: hosts ascending within each expert, homes among them.
    pub(crate) fn from_parts(
        ranks: usize,
        offsets: Vec<u32>,
        hosts: Vec<u32>,
        home: Vec<u32>,
        ownership: Ownership,
    ) -> Self {
        debug_assert!((0..home.len()).all(|e| {
            let own = &hosts[offsets[e] as usize..offsets[e + 1] as usize];
            own.is_sorted_by(|a, b| a < b) && own.contains(&home[e])
        }));
        Self { ranks, slots: vec![1; hosts.len()], offsets, hosts, home, ownership }
    }

    /// E, at least 1.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.home.len()
    }

    /// R, at least 1.
    #[must_use]
    pub const fn ranks(&self) -> usize {
        self.ranks
    }

    /// Number of instances, at least E.
    #[must_use]
    pub fn instances(&self) -> usize {
        self.hosts.len()
    }

    /// The instances of one expert, `expert < experts()`.
    #[must_use]
    pub fn range(&self, expert: usize) -> Range<usize> {
        self.offsets[expert] as usize..self.offsets[expert + 1] as usize
    }

    /// The ranks that host one expert, ascending; `expert < experts()`.
    #[must_use]
    pub fn hosts(&self, expert: usize) -> &[u32] {
        &self.hosts[self.range(expert)]
    }

    /// Rank of each instance.
    #[must_use]
    pub fn host_of_instance(&self) -> &[u32] {
        &self.hosts
    }

    /// `[E + 1]` first instance of each expert.
    #[must_use]
    pub fn offsets(&self) -> &[u32] {
        &self.offsets
    }

    /// Slots of each instance.
    #[must_use]
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// `[E]` home ranks.
    #[must_use]
    pub fn home(&self) -> &[u32] {
        &self.home
    }

    /// Who owns the optimizer state.
    #[must_use]
    pub const fn ownership(&self) -> Ownership {
        self.ownership
    }

    /// The same instances under another owner of the optimizer state.
    #[must_use]
    pub fn owned(mut self, ownership: Ownership) -> Self {
        self.ownership = ownership;
        self
    }

    /// `(expert, rank)` of every instance, in order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..self.experts()).flat_map(|e| self.hosts(e).iter().map(move |&r| (e, r as usize)))
    }

    /// The instance of an expert on a rank, if there is one.
    #[must_use]
    pub fn find(&self, expert: usize, rank: usize) -> Option<usize> {
        let range = self.range(expert);
        self.hosts[range.clone()].binary_search(&(rank as u32)).ok().map(|i| range.start + i)
    }

    /// `[R]` instances on each rank.
    #[must_use]
    pub fn instances_per_rank(&self) -> Vec<u32> {
        let mut held = vec![0; self.ranks];
        self.hosts.iter().for_each(|&r| held[r as usize] += 1);
        held
    }

    /// `[R]` experts whose home each rank is.
    #[must_use]
    pub fn homes_per_rank(&self) -> Vec<u32> {
        let mut owned = vec![0; self.ranks];
        self.home.iter().for_each(|&r| owned[r as usize] += 1);
        owned
    }

    /// Refuses a placement of another number of ranks or experts.
    pub(crate) fn check(&self, name: &str, ranks: usize, experts: usize) -> Result<()> {
        if (self.ranks, self.experts()) == (ranks, experts) {
            return Ok(());
        }
        let got = format!("{} ranks x {} experts", self.ranks, self.experts());
        Err(Error::shape(name, got, format!("{ranks} ranks x {experts} experts")))
    }
}

fn check_size(name: &str, size: usize) -> Result<()> {
    if size >= 1 && u32::try_from(size).is_ok() {
        return Ok(());
    }
    Err(Error::argument(name, size, format!("1 to {}", u32::MAX)))
}

impl TryFrom<PlacementData> for Placement {
    type Error = Error;

    fn try_from(data: PlacementData) -> Result<Self> {
        let PlacementData { ranks, ownership, hosts, slots, home } = data;
        match slots {
            Some(slots) => Self::with_slots(ranks, &hosts, slots, home, ownership),
            None => Self::new(ranks, &hosts, home, ownership),
        }
    }
}

impl From<Placement> for PlacementData {
    fn from(placement: Placement) -> Self {
        Self {
            ranks: placement.ranks,
            ownership: placement.ownership,
            hosts: (0..placement.experts()).map(|e| placement.hosts(e).to_vec()).collect(),
            slots: placement.slots.iter().any(|&s| s != 1).then(|| placement.slots.clone()),
            home: placement.home,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_runs_cover_all_ranks() {
        let placed = Placement::contiguous(5, 3, Ownership::Home).unwrap();
        assert_eq!(placed.host_of_instance(), [0, 0, 1, 1, 2]);
        let few = Placement::contiguous(2, 4, Ownership::Home).unwrap();
        assert_eq!((few.host_of_instance(), few.instances_per_rank()), ([0, 2].as_slice(), vec![1, 0, 1, 0]));
        assert!(Placement::contiguous(0, 1, Ownership::Home).is_err());
        assert!(Placement::contiguous(1, 0, Ownership::Home).is_err());
    }

    #[test]
    fn refuses_what_breaks_the_invariant() {
        let new = |hosts: &[&[u32]], home: &[u32]| Placement::new(3, hosts, home.to_vec(), Ownership::Sharded);
        let placed = new(&[&[2, 0], &[1]], &[2, 1]).unwrap();
        assert_eq!((placed.hosts(0), placed.find(0, 2), placed.find(1, 0)), ([0, 2].as_slice(), Some(1), None));
        assert_eq!(placed.iter().collect::<Vec<_>>(), [(0, 0), (0, 2), (1, 1)]);
        type Case<'a> = (&'a [&'a [u32]], &'a [u32], &'a str);
        let cases: [Case<'_>; 5] = [
            (&[&[], &[1]], &[0, 1], "expert 0"),
            (&[&[1, 1], &[0]], &[1, 0], "twice"),
            (&[&[3], &[0]], &[3, 0], "rank 3"),
            (&[&[1], &[0]], &[1, 2], "home of expert 1"),
            (&[&[1]], &[1, 1], "home"),
        ];
        for (hosts, home, says) in cases {
            let error = new(hosts, home).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(Placement::with_slots(2, &[[0_u32]], vec![0], vec![0], Ownership::Home).is_err());
    }

    #[test]
    fn reads_what_it_writes() {
        let placed =
            Placement::with_slots(3, &[vec![2, 0], vec![1]], vec![2, 1, 1], vec![0, 1], Ownership::Home).unwrap();
        assert_eq!(placed.slots(), [1, 2, 1]);
        let json = serde_json::to_string(&placed).unwrap();
        assert_eq!(serde_json::from_str::<Placement>(&json).unwrap(), placed);
        assert!(serde_json::from_str::<Placement>(&json.replace("\"home\":[0", "\"home\":[1")).is_err());
    }
}
