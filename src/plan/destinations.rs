//! Which rank computes each pair of a step.

use super::counts::Counts;
use super::route::Route;
use crate::{Error, Result};

/// The rank of a pair that no rank computes, and the expert of one that is not routed: the same number as
/// [`kernel::NONE`](crate::kernel::NONE).
pub const NOWHERE: u32 = u32::MAX;

/// `[T, k]` rank that computes each pair, [`NOWHERE`] for a pair that is not routed or not computed.
///
/// `ids` are the experts of the pairs, `[T, k]`, [`NOWHERE`] for a pair that is not routed; `source_of_token`, `[T]`, are the ranks that
/// the tokens come from; only pairs that `computed`, `[T, k]`, names are routed, all without it. As [`Route`] says, the pairs of a
/// (source, expert) are numbered by token, then slot, and its routes take consecutive ranges of these numbers in the order they
/// stand in; routes of different (source, expert) may stand in any order.
///
/// For the backward pass of a plan that stashes, mask the destinations of its forward with [`retain`]: a retained pair stays where its
/// forward ran. Where a and b are computed again, call this with the routes of the retained pairs.
///
/// ```
/// use lrmoe::plan::{self, Counts, NOWHERE, Ownership, Placement, route};
///
/// // Three tokens of rank 0 and one of rank 1, two experts each; expert 0 lives on both ranks, expert 1 on rank 1.
/// let ids = [0, 1, 0, NOWHERE, 0, 1, 1, 0];
/// let sources = [0, 0, 0, 1];
/// let counts = plan::pair_counts(&ids, 2, &sources, 2, 2, None)?;
/// assert_eq!(counts, Counts::new(&[[3, 2], [1, 1]])?);
/// let placement = Placement::new(2, &[vec![0, 1], vec![1]], vec![0, 1], Ownership::Home)?;
/// // Of the four pairs of expert 0, rank 0 computes two and rank 1 two.
/// let routes = route::transport(&route::Sources::new(counts, 2)?, &placement, &[2, 2, 3])?;
/// let ranks = plan::destinations(&ids, 2, &sources, 2, &routes, None)?;
/// assert_eq!(ranks, [0, 1, 0, NOWHERE, 1, 1, 1, 1]);
/// # Ok::<(), lrmoe::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] where the lists differ in length; [`Error::Argument`] for `top_k` 0, an expert that does not exist, or a (source,
/// expert) whose routes hold more or fewer pairs than there are.
pub fn destinations(
    ids: &[u32],
    top_k: usize,
    source_of_token: &[u32],
    experts: usize,
    routes: &[Route],
    computed: Option<&[bool]>,
) -> Result<Vec<u32>> {
    let pairs = Pairs::new(ids, top_k, source_of_token, experts, computed)?;
    if let Some(route) = routes.iter().find(|route| route.expert as usize >= experts || route.to == NOWHERE) {
        let allowed = format!("experts below {experts}, to a rank below {NOWHERE}");
        return Err(Error::argument("routes", format!("{route:?}"), allowed));
    }
    let key = |route: &Route| (route.expert, route.from);
    let mut sorted = routes.to_vec();
    // Stable: routes of one (expert, source) keep their order.
    sorted.sort_by_key(key);
    let mut ways: Vec<Way<'_>> = sorted.chunk_by(|a, b| key(a) == key(b)).map(Way::new).collect();
    let mut to = vec![NOWHERE; ids.len()];
    let differ = |expert: u32, source: u32| {
        let there = pairs.iter().filter(|pair| pair.expert == expert && pair.source == source).count();
        let own = routes.iter().filter(|route| key(route) == (expert, source));
        let hold: u64 = own.map(|route| u64::from(route.pairs)).sum();
        let name = format!("routes of expert {expert} from rank {source}");
        Error::argument(name, format!("{hold} pairs"), format!("{there} pairs, as many as are computed"))
    };
    for Pair { at, expert, source } in pairs.iter() {
        let way = ways.binary_search_by_key(&(expert, source), |way| key(way.first)).ok();
        let rank = way.and_then(|way| ways[way].next());
        to[at] = rank.ok_or_else(|| differ(expert, source))?;
    }
    match ways.iter_mut().find_map(|way| way.next().map(|_| way.first)) {
        Some(unused) => Err(differ(unused.expert, unused.from)),
        None => Ok(to),
    }
}

/// Destinations of the pairs that are `retained`, [`NOWHERE`] for the others. Both are `[T, k]`.
///
/// # Errors
/// [`Error::Shape`] where they differ in length.
pub fn retain(destinations: &[u32], retained: &[bool]) -> Result<Vec<u32>> {
    if destinations.len() != retained.len() {
        return Err(Error::shape("retained", retained.len(), format!("{} destinations", destinations.len())));
    }
    Ok(destinations.iter().zip(retained).map(|(&rank, &kept)| if kept { rank } else { NOWHERE }).collect())
}

/// [`Counts`] of the pairs: `ids`, `source_of_token` and `computed` are those of [`destinations`].
///
/// # Errors
/// As [`Counts::from_flat`]; [`Error::Shape`] where the lists differ in length; [`Error::Argument`] for `top_k` 0, or an expert or
/// rank that does not exist.
pub fn pair_counts(
    ids: &[u32],
    top_k: usize,
    source_of_token: &[u32],
    ranks: usize,
    experts: usize,
    computed: Option<&[bool]>,
) -> Result<Counts> {
    let pairs = Pairs::new(ids, top_k, source_of_token, experts, computed)?;
    check_ranks("source_of_token", source_of_token, ranks)?;
    let Some(size) = ranks.checked_mul(experts) else {
        let detail = format!("{ranks} ranks * {experts} experts passes {}", usize::MAX);
        return Err(Error::Overflow { what: "counts".into(), detail });
    };
    check_size("counts", size)?;
    let mut counts = vec![0_u32; size];
    for Pair { expert, source, .. } in pairs.iter() {
        let count = &mut counts[source as usize * experts + expert as usize];
        *count = count.checked_add(1).ok_or_else(|| Error::Overflow {
            what: format!("pairs of expert {expert} from rank {source}"),
            detail: format!("they pass {}", u32::MAX),
        })?;
    }
    Counts::from_flat(ranks, experts, counts)
}

/// Refuses tokens of ranks that do not exist.
pub(crate) fn check_ranks(name: &str, of_tokens: &[u32], ranks: usize) -> Result<()> {
    match of_tokens.iter().position(|&rank| rank as usize >= ranks) {
        Some(t) => Err(Error::argument(format!("{name}[{t}]"), of_tokens[t], format!("ranks below {ranks}"))),
        None => Ok(()),
    }
}

/// Refuses a list that has not `top_k` entries, one or more, for each token.
pub(crate) fn check_pairs(name: &str, len: usize, tokens: usize, top_k: usize) -> Result<()> {
    if top_k == 0 {
        return Err(Error::argument("top_k", 0, "1 or more"));
    }
    if tokens.checked_mul(top_k) != Some(len) {
        return Err(Error::shape(name, len, format!("{tokens} tokens x top_k {top_k}")));
    }
    Ok(())
}

/// A computed pair, its index, and where it comes from.
#[derive(Debug, Clone, Copy)]
struct Pair {
    at: usize,
    expert: u32,
    source: u32,
}

/// The computed pairs of a step.
#[derive(Debug, Clone, Copy)]
struct Pairs<'a> {
    ids: &'a [u32],
    top_k: usize,
    source_of_token: &'a [u32],
    computed: Option<&'a [bool]>,
}

impl<'a> Pairs<'a> {
    fn new(
        ids: &'a [u32],
        top_k: usize,
        source_of_token: &'a [u32],
        experts: usize,
        computed: Option<&'a [bool]>,
    ) -> Result<Self> {
        check_pairs("ids", ids.len(), source_of_token.len(), top_k)?;
        if let Some(computed) = computed {
            check_pairs("computed", computed.len(), source_of_token.len(), top_k)?;
        }
        if let Some(p) = ids.iter().position(|&id| id != NOWHERE && id as usize >= experts) {
            let allowed = format!("experts below {experts}, or {NOWHERE} for none");
            return Err(Error::argument(format!("ids[{p}]"), ids[p], allowed));
        }
        Ok(Self { ids, top_k, source_of_token, computed })
    }

    /// By token, then slot.
    fn iter(self) -> impl Iterator<Item = Pair> {
        let Self { ids, top_k, source_of_token, computed } = self;
        let pair = move |(at, &expert)| Pair { at, expert, source: source_of_token[at / top_k] };
        let is_computed = move |pair: &Pair| pair.expert != NOWHERE && computed.is_none_or(|of| of[pair.at]);
        ids.iter().enumerate().map(pair).filter(is_computed)
    }
}

/// The routes of one (expert, source), and how far they are used.
#[derive(Debug)]
struct Way<'a> {
    first: &'a Route,
    rest: std::slice::Iter<'a, Route>,
    to: u32,
    left: u32,
}

impl<'a> Way<'a> {
    /// Of one route or more.
    fn new(routes: &'a [Route]) -> Self {
        Self { first: &routes[0], rest: routes.iter(), to: NOWHERE, left: 0 }
    }

    /// The rank of the next pair.
    fn next(&mut self) -> Option<u32> {
        while self.left == 0 {
            let route = self.rest.next()?;
            (self.to, self.left) = (route.to, route.pairs);
        }
        self.left -= 1;
        Some(self.to)
    }
}

/// Refuses lists of numbers that no cluster needs, before memory is asked for.
pub(super) fn check_size(what: &str, numbers: usize) -> Result<()> {
    const MOST: usize = 1 << 32;
    if numbers <= MOST {
        return Ok(());
    }
    Err(Error::Overflow { what: what.into(), detail: format!("{numbers} numbers; at most {MOST} are held") })
}

#[cfg(test)]
#[path = "destinations_tests.rs"]
pub(crate) mod tests;
