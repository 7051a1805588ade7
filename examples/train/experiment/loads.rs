//! What the ranks do in one step of one layer under one plan: the sizes that are executed and timed, and the traffic that is modelled.

use lrmoe::Error;
use lrmoe::plan::waves::waves;
use lrmoe::plan::{
    Activations, Counts, Direction, ExchangeRows, NOWHERE, Ownership, Placement, Plan, Setup, counts_exchange,
    exchange_rows_per_token, optimizer_exchange, selection_exchange,
};
use lrmoe::share::{Phase, PhaseTimes, Share};
use serde::{Deserialize, Serialize};

use super::memory::{Fullest, Real};

type Result<T, E = Error> = std::result::Result<T, E>;

/// One step of one layer under one plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Loads {
    activations: Activations,
    selects: bool,
    /// `[R]`.
    ranks: Vec<RankSizes>,
    /// Seconds at each of [`NETWORKS`](super::cell::NETWORKS), of forward and of both passes.
    pub(crate) forward_exchange_s: [f64; 3],
    pub(crate) exchange_s: [f64; 3],
    pub(crate) optimizer_exchange_s: [f64; 3],
    /// Wall seconds of planning, and of routing what was retained, on this machine.
    pub(crate) plan_s: f64,
    pub(crate) bytes_inter_node: f64,
    pub(crate) busiest_over_mean: [f64; 2],
    pub(crate) replicas: usize,
    /// Forward and backward.
    pub(crate) waves: [u64; 2],
    /// Of the small model, and of the real one with as many more tokens.
    pub(crate) memory: [Fullest; 2],
    pub(crate) routed: u64,
    /// Pairs that the policy's own plan retains.
    pub(crate) quota: u64,
    /// Pairs that were retained in training: under the plan that drives it.
    pub(crate) retained: u64,
    pub(crate) dropped: u64,
}

/// A [`Share`] without what is the same on all ranks. There are many of them in a file, so they have no field names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RankSizes(usize, Vec<u32>, Vec<u32>, [usize; 6]);

impl RankSizes {
    #[cfg(test)]
    fn new(share: Share) -> Self {
        let Share { tokens_in_forward, tokens_in_backward, sent_forward, sent_backward, retained, .. } = share;
        let sizes =
            [tokens_in_forward, tokens_in_backward, sent_forward, sent_backward, retained, share.optimizer_parameters];
        Self(share.tokens, share.forward, share.backward, sizes)
    }

    fn share(&self, activations: Activations, selects: bool) -> Share {
        let Self(tokens, forward, backward, sizes) = self;
        let [tokens_in_forward, tokens_in_backward, sent_forward, sent_backward, retained, optimizer_parameters] =
            *sizes;
        Share {
            tokens: *tokens,
            forward: forward.clone(),
            backward: backward.clone(),
            tokens_in_forward,
            tokens_in_backward,
            sent_forward,
            sent_backward,
            retained,
            optimizer_parameters,
            activations,
            selects,
        }
    }
}

/// Phases that run wave by wave: of forward, and of backward.
const IN_WAVES: [Phase; 4] = [Phase::Forward, Phase::Recompute, Phase::Dgrad, Phase::Wgrad];

/// One of several waves of a share.
fn wave(share: &Share, waves: u64) -> Share {
    let part = |rows: &[u32]| rows.iter().map(|&n| u64::from(n).div_ceil(waves) as u32).collect::<Vec<_>>();
    let (forward, backward) = (part(&share.forward), part(&share.backward));
    let tokens = |tokens: usize, rows: &[u32]| tokens.min(rows.iter().map(|&n| n as usize).sum());
    Share {
        tokens_in_forward: tokens(share.tokens_in_forward, &forward),
        tokens_in_backward: tokens(share.tokens_in_backward, &backward),
        forward,
        backward,
        ..share.clone()
    }
}

/// Where every pair goes.
pub(crate) struct Moves<'a> {
    /// `[T, k]` experts.
    pub(crate) ids: &'a [u32],
    pub(crate) top_k: usize,
    /// `[T]`.
    pub(crate) source_of_token: &'a [u32],
    /// `[T, k]` ranks, forward.
    pub(crate) out: &'a [u32],
    /// `[T, k]` ranks, backward.
    pub(crate) back: &'a [u32],
    /// What each rank is the source of.
    pub(crate) own: Own,
}

/// What each rank is the source of, in one layer and step.
#[derive(Debug, Clone)]
pub(crate) struct Own {
    /// `[R]`.
    pub(crate) tokens: Vec<usize>,
    /// `[R, E]` pairs that are computed anywhere.
    pub(crate) computed: Counts,
    /// `[R]` pairs that are retained.
    pub(crate) retained: Vec<u64>,
}

/// A plan, where the experts were before it, and what it is priced with.
pub(crate) struct Priced<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) before: &'a Placement,
    pub(crate) setups: &'a [Setup; 3],
    pub(crate) real: &'a Real,
    pub(crate) plan_s: f64,
}

impl Loads {
    /// # Errors
    /// [`Error::Argument`] where a retained pair has nowhere to be computed, or not where its expert is.
    pub(crate) fn new(moves: &Moves<'_>, priced: &Priced<'_>) -> Result<Self> {
        let Priced { plan, before, setups, real, plan_s } = *priced;
        let (ranks, per_node) = (plan.ranks(), setups[0].cluster.ranks_per_node);
        let Moves { top_k, source_of_token, .. } = *moves;
        let count = |to: &[u32]| ExchangeRows::count(to, top_k, source_of_token, ranks, per_node);
        let rows = [count(moves.out)?, count(moves.back)?];
        let loads = [moves.instances(plan, moves.out)?, moves.instances(plan, moves.back)?];
        let kept = moves.own.retained.iter().sum();
        let [computed, back] = loads.each_ref().map(|loads| loads.iter().map(|&n| u64::from(n)).sum::<u64>());
        if back != kept {
            return Err(Error::argument("backward pairs", back, format!("the {kept} that were retained")));
        }
        // A policy that looks on may have planned otherwise than the one whose pairs were retained.
        let selects = kept < computed;
        let in_waves = |loads: &[u32]| {
            let busiest = by_rank(plan, loads)
                .into_iter()
                .chain(moves.own.computed.per_rank().iter().copied())
                .max()
                .unwrap_or(0);
            waves(busiest, plan.wave_rows, ranks as u64)
        };
        let waves = [in_waves(&loads[0])?, in_waves(&loads[1])?];
        let row_bytes = |direction| {
            let row = setups[0].config.hidden_size * setups[0].dtype.bytes();
            row as f64 * f64::from(exchange_rows_per_token(plan.activations, direction))
        };
        let passes = [Direction::Forward, Direction::Backward];
        let pass =
            |setup: &Setup, i: usize| rows[i].seconds(&setup.cluster, row_bytes(passes[i]), 2.0 * waves[i] as f64);
        let placements = [before, &plan.placement, &plan.next];
        let (mut forward_exchange_s, mut exchange_s, mut optimizer_exchange_s) = ([0.0; 3], [0.0; 3], [0.0; 3]);
        let mut crossing = 0.0;
        for (i, setup) in setups.iter().enumerate() {
            forward_exchange_s[i] = counts_exchange(setup)? + pass(setup, 0)?;
            let selection = if selects { selection_exchange(setup)? } else { 0.0 };
            exchange_s[i] = forward_exchange_s[i] + selection + pass(setup, 1)?;
            let optimizer = optimizer_exchange(setup, placements)?;
            optimizer_exchange_s[i] = optimizer.seconds;
            // The same on every network.
            crossing = optimizer.inter_node_bytes;
        }
        for (pass, rows) in passes.into_iter().zip(&rows) {
            crossing += rows.crossing_nodes() as f64 * row_bytes(pass);
        }
        Ok(Self {
            activations: plan.activations,
            selects,
            ranks: (0..ranks).map(|r| moves.rank_sizes(r, plan, &loads, &rows, &setups[0])).collect::<Result<_>>()?,
            forward_exchange_s,
            exchange_s,
            optimizer_exchange_s,
            plan_s,
            bytes_inter_node: crossing,
            busiest_over_mean: loads.each_ref().map(|loads| busiest_over_mean(plan, loads)),
            replicas: plan.placement.instances() - plan.experts(),
            waves,
            memory: [Fullest::of(&plan.memory)?, Fullest::of(&real.memory(plan, moves, &loads[0], selects)?)?],
            routed: moves.ids.iter().filter(|&&e| e != NOWHERE).count() as u64,
            quota: plan.retained.retained(),
            retained: kept,
            dropped: moves.ids.iter().zip(moves.out).filter(|(e, to)| **e != NOWHERE && **to == NOWHERE).count() as u64,
        })
    }

    /// `[R]` what each rank computes.
    pub(crate) fn shares(&self) -> Vec<Share> {
        self.ranks.iter().map(|sizes| sizes.share(self.activations, self.selects)).collect()
    }

    /// Ranks of the step.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// What each rank takes if `time` is what a share takes: a wave has its part of every expert's rows, and reads all weights anew.
    pub(crate) fn times<E>(&self, mut time: impl FnMut(&Share) -> Result<PhaseTimes, E>) -> Result<Vec<PhaseTimes>, E> {
        let of_rank = |share: Share| {
            let mut times = time(&share)?;
            for (waves, phases) in self.waves.into_iter().zip([&IN_WAVES[..1], &IN_WAVES[1..]]) {
                if waves > 1 {
                    let once = time(&wave(&share, waves))?;
                    phases.iter().for_each(|&phase| times[phase] = waves as f64 * once[phase]);
                }
            }
            Ok(times)
        };
        self.shares().into_iter().map(of_rank).collect()
    }

    /// Other ranks with the same traffic.
    #[cfg(test)]
    pub(crate) fn with_shares(self, shares: Vec<Share>) -> Self {
        Self { ranks: shares.into_iter().map(RankSizes::new).collect(), ..self }
    }
}

impl Moves<'_> {
    /// Pairs of each instance.
    fn instances(&self, plan: &Plan, to: &[u32]) -> Result<Vec<u32>> {
        let mut loads = vec![0; plan.placement.instances()];
        for (&expert, &rank) in self.ids.iter().zip(to).filter(|(_, rank)| **rank != NOWHERE) {
            let instance = plan.placement.find(expert as usize, rank as usize).ok_or_else(|| {
                Error::argument(format!("rank of a pair of expert {expert}"), rank, "one that holds the expert")
            })?;
            loads[instance] += 1;
        }
        Ok(loads)
    }

    /// What rank `r` computes.
    fn rank_sizes(
        &self,
        r: usize,
        plan: &Plan,
        loads: &[Vec<u32>; 2],
        rows: &[ExchangeRows; 2],
        setup: &Setup,
    ) -> Result<RankSizes> {
        let hosts = plan.placement.host_of_instance();
        let resident = |loads: &[u32]| -> Vec<u32> {
            hosts.iter().zip(loads).filter(|(host, _)| **host as usize == r).map(|(_, &load)| load).collect()
        };
        let parameters = setup.config.expert_parameters()? as usize;
        let here = |rows: &ExchangeRows| (rows.received()[r] + rows.local()[r]) as usize;
        let sent = |rows: &ExchangeRows| rows.sent()[r] as usize;
        // The owner also adds up the gradients of all instances. That costs no more than a step of AdamW on each.
        let optimizer_parameters = match plan.next.ownership() {
            Ownership::Sharded => (plan.placement.instances() * parameters).div_ceil(plan.ranks()),
            Ownership::Home => {
                let homes = plan.placement.home().iter().enumerate().filter(|(_, home)| **home as usize == r);
                homes.map(|(e, _)| plan.placement.hosts(e).len() * parameters).sum()
            }
        };
        let [out, back] = rows;
        let sizes = [here(out), here(back), sent(out), sent(back), self.own.retained[r] as usize, optimizer_parameters];
        Ok(RankSizes(self.own.tokens[r], resident(&loads[0]), resident(&loads[1]), sizes))
    }
}

/// `[R]` sums of what each instance of the plan's placement has.
pub(crate) fn by_rank(plan: &Plan, loads: &[u32]) -> Vec<u64> {
    let mut ranks = vec![0; plan.ranks()];
    for (&rank, &load) in plan.placement.host_of_instance().iter().zip(loads) {
        ranks[rank as usize] += u64::from(load);
    }
    ranks
}

/// Pairs of the busiest rank over the mean; 1 without pairs.
fn busiest_over_mean(plan: &Plan, loads: &[u32]) -> f64 {
    // A step's pairs fit 32 bits.
    let ranks: Vec<u32> = by_rank(plan, loads).into_iter().map(|pairs| pairs as u32).collect();
    lrmoe::Statistics::max_over_mean(&ranks).unwrap_or(1.0)
}
