//! Shares executed and timed: where all times come from.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use lrmoe::plan::policy::{Fixed, Input};
use lrmoe::plan::{Activations, Counts, Policy, Setup};
use lrmoe::share::{Phase, PhaseTimes, Share, ShareRunner, TimeModel};
use lrmoe::{CpuBackend, MoeConfig, Result, Retention, Selection};
use serde::{Deserialize, Serialize};

use super::account;
use super::cell::{Event, Key, PLANNED, Protocol, Sampled, Timeline};
use super::geometry::NO_LIMIT;
use super::loads::Loads;
use super::trained::Trained;

/// Executions of a share of which the least time of each phase counts: what else runs on the machine only ever adds.
const REPEATS: usize = 2;

/// Times of the cells of one model and batch size, taken together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Timing {
    /// Whose shares were executed.
    pub(crate) cells: Vec<(Key, Protocol)>,
    pub(crate) machine: serde_json::Value,
    /// Of this crate, whose kernels were executed.
    pub(crate) version: String,
    /// The time of a share by its sizes, fitted to all of them.
    pub(crate) model: TimeModel,
    /// Seconds of this machine for each second of the one that plans were made for: what an even share takes, over what that machine is
    /// predicted to take for it. All modelled times are turned into this machine's by it.
    pub(crate) seconds: f64,
    sampled: Vec<(Key, String, Activations, Sampled)>,
    /// Every policy's last sample in the first cell that it came to its end in.
    pub(crate) timelines: Vec<(Key, Timeline)>,
}

/// Shares of one step and layer under one policy, with what each took.
struct Group<'a> {
    key: &'a Key,
    policy: &'a str,
    activations: Activations,
    at: (usize, usize),
    loads: &'a Loads,
    /// `[R]`.
    measured: Vec<PhaseTimes>,
}

impl Timing {
    /// Executes the sampled steps of all cells, policy by policy in turn. `config` is their model. `None` where `stop` was set before
    /// the end, or there is nothing to execute.
    pub(crate) fn take(
        cells: &[Trained],
        config: &MoeConfig,
        machine: serde_json::Value,
        stop: &AtomicBool,
    ) -> Result<Option<Self>> {
        let mut groups = groups(cells);
        let Some(first) = cells.first().filter(|_| !groups.is_empty()) else { return Ok(None) };
        let mut runner = ShareRunner::new(&CpuBackend::new(), config, 0)?;
        // Every policy that selects is timed with the kernels of lrmoe's way of it.
        let select: Selection = first.protocol.select.parse()?;
        if select != Selection::All {
            runner = runner.with_selection(select, first.protocol.score_floor as f32)?;
        }
        let mut samples: Vec<(Share, PhaseTimes)> = Vec::new();
        for group in &mut groups {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            group.measured = group.loads.times(|share| {
                let mut least = runner.run(share)?;
                for _ in 1..REPEATS {
                    let again = runner.run(share)?;
                    Phase::ALL.iter().for_each(|&phase| least[phase] = least[phase].min(again[phase]));
                }
                samples.push((share.clone(), least));
                Ok::<_, lrmoe::Error>(least)
            })?;
        }
        let model = TimeModel::fit(&samples)?;
        let seconds = seconds(&model, config, first)?;
        let mut sampled: BTreeMap<(&Key, &str, &str), (Activations, Sampled)> = BTreeMap::new();
        let mut last: BTreeMap<(&str, &str), &Group<'_>> = BTreeMap::new();
        for group in &groups {
            let mode = group.activations.name();
            let (_, sum) =
                sampled.entry((group.key, group.policy, mode)).or_insert((group.activations, Sampled::default()));
            group.add_to(sum, &model);
            let newest = last.entry((group.policy, mode)).or_insert(group);
            if newest.key == group.key {
                *newest = group;
            }
        }
        let prices = [seconds, first.protocol.time_scale * seconds];
        Ok(Some(Self {
            cells: cells.iter().map(|cell| (cell.key.clone(), cell.protocol.clone())).collect(),
            machine,
            version: env!("CARGO_PKG_VERSION").into(),
            seconds,
            sampled: sampled
                .into_iter()
                .map(|((key, policy, _), (mode, s))| (key.clone(), policy.into(), mode, s))
                .collect(),
            timelines: last.into_values().map(|group| (group.key.clone(), group.timeline(prices))).collect(),
            model,
        }))
    }

    /// What the samples of one policy took in all, and what the fit says of the same shares.
    pub(crate) fn sampled(&self, key: &Key, policy: &str, activations: Activations) -> Sampled {
        let mine = |(k, p, a, _): &&(Key, String, Activations, Sampled)| k == key && p == policy && *a == activations;
        self.sampled.iter().find(mine).map(|(.., sampled)| *sampled).unwrap_or_default()
    }
}

/// All sampled steps: sample by sample, and in it policy by policy, beginning with another one each time.
fn groups(cells: &[Trained]) -> Vec<Group<'_>> {
    let mut groups = Vec::new();
    for cell in cells {
        for (index, at) in cell.samples().enumerate() {
            let ran = cell.runs.iter().filter(|run| run.infeasible.is_none());
            let mut turn: Vec<Group<'_>> = ran
                .filter_map(|run| {
                    let loads = run.loads.get(at.0)?.get(at.1)?;
                    let (policy, activations) = (&run.policy, run.activations);
                    Some(Group { key: &cell.key, policy, activations, at, loads, measured: Vec::new() })
                })
                .collect();
            let first = index % turn.len().max(1);
            turn.rotate_left(first);
            groups.extend(turn);
        }
    }
    groups
}

impl Group<'_> {
    fn add_to(&self, sampled: &mut Sampled, model: &TimeModel) {
        let (busiest, _) = account::phases(&self.measured);
        let (fitted, _) = account::phases(&account::fitted(self.loads, model));
        sampled.count += 1;
        sampled.measured_s += busiest.total();
        sampled.fitted_s += fitted.total();
    }

    /// As it would look on all ranks at once: phases one after the other, each begun together; they add up to the time of the step.
    fn timeline(&self, prices: [f64; 2]) -> Timeline {
        let [seconds, time_scale] = prices;
        let loads = self.loads;
        let (busiest, _) = account::phases(&self.measured);
        let forward_exchange = loads.forward_exchange_s[PLANNED] * seconds;
        let exchange = loads.exchange_s[PLANNED] * seconds - forward_exchange;
        let optimizer = loads.optimizer_exchange_s[PLANNED] * seconds;
        let (mut events, mut now) = (Vec::new(), 0.0);
        let mut everywhere = |now: &mut f64, name: &str, source: &str, seconds: f64| {
            for rank in (0..self.measured.len()).filter(|_| seconds > 0.0) {
                let (name, source) = (name.into(), source.into());
                events.push(Event { rank, name, source, start_s: *now, seconds, rows: 0 });
            }
            *now += seconds;
        };
        everywhere(&mut now, "plan", "measured", loads.plan_s * time_scale);
        let mut phases = Vec::new();
        for phase in Phase::ALL {
            match phase {
                Phase::Forward => everywhere(&mut now, "exchange, forward", "modelled", forward_exchange),
                Phase::Recompute => everywhere(&mut now, "exchange, backward", "modelled", exchange),
                _ => {}
            }
            phases.push((phase, now));
            now += busiest[phase];
        }
        everywhere(&mut now, "optimizer exchange", "modelled", optimizer);
        let shares = loads.shares();
        for (phase, start_s) in phases {
            for (rank, times) in self.measured.iter().enumerate().filter(|(_, times)| times[phase] > 0.0) {
                let (name, source) = (phase.name().into(), "measured".into());
                events.push(Event {
                    rank,
                    name,
                    source,
                    start_s,
                    seconds: times[phase],
                    rows: rows(&shares[rank], phase),
                });
            }
        }
        let (step, layer) = self.at;
        let (policy, activations) = (self.policy.into(), self.activations.name().into());
        Timeline { policy, activations, step: step as u64, layer, events }
    }
}

/// Rows that a phase works on.
fn rows(share: &Share, phase: Phase) -> u64 {
    match phase {
        Phase::Forward => share.forward_rows(),
        Phase::Recompute | Phase::Dgrad | Phase::Wgrad => share.backward_rows(),
        Phase::Compact => share.packed_rows(),
        Phase::Select => share.retained as u64,
        Phase::Optimizer => 0,
        Phase::Combine | Phase::Gate | Phase::Shared | Phase::Score | Phase::RouterBackward => share.tokens as u64,
    }
}

/// See [`Timing::seconds`]. An even share keeps all its pairs and has no traffic.
fn seconds(model: &TimeModel, config: &MoeConfig, cell: &Trained) -> Result<f64> {
    let (ranks, experts, k) = (cell.protocol.ranks, config.num_experts, config.num_experts_per_tok);
    let tokens = cell.key.tokens / ranks;
    let rows = ((tokens * k).div_ceil(experts)).max(1) as u32;
    let mut setup = Setup::new(config.clone(), cell.protocol.scaled.clone())?;
    setup.cluster.bytes_per_rank = NO_LIMIT;
    setup.options.retention = Retention::Fraction(1.0);
    setup.activations = Some(Activations::Stash);
    let counts = Counts::from_flat(ranks, experts, vec![rows; ranks * experts])?;
    let policy = Fixed::default();
    let placement = policy.start(&setup, &counts)?;
    let plan = policy.plan(&setup, &Input { step: 0, counts: &counts, demand: None, placement: &placement })?;
    let resident = experts.div_ceil(ranks);
    let rows = vec![rows * ranks as u32; resident];
    let pairs: usize = rows.iter().map(|&n| n as usize).sum();
    let share = Share {
        tokens: pairs.div_ceil(k),
        forward: rows.clone(),
        backward: rows,
        tokens_in_forward: pairs.div_ceil(k).max(pairs / resident),
        tokens_in_backward: pairs.div_ceil(k).max(pairs / resident),
        sent_forward: 0,
        sent_backward: 0,
        retained: pairs,
        optimizer_parameters: 0,
        activations: Activations::Stash,
        selects: false,
    };
    Ok(model.predict(&share).total() / (plan.predicted.forward_s + plan.predicted.backward_s))
}
