//! Shares executed and timed: where all times come from.

use std::collections::BTreeMap;

use lrmoe::plan::Activations;
use lrmoe::share::{Phase, PhaseTimes, Share, ShareRunner, TimeModel};
use lrmoe::{CpuBackend, MoeConfig, Result};
use serde::{Deserialize, Serialize};

use super::account;
use super::cell::{Event, Key, PLANNED, Sampled, Timeline};
use super::loads::Loads;
use super::runner::NOMINAL_FLOPS;
use super::trained::Trained;

/// Executions of a share of which the least time of each phase counts: what else runs on the machine only ever adds.
const REPEATS: usize = 2;

/// Times of the cells of one model and batch size, taken together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Timing {
    /// Whose shares were executed.
    pub(crate) cells: Vec<Key>,
    pub(crate) machine: serde_json::Value,
    /// The time of a share by its sizes, fitted to all of them.
    pub(crate) model: TimeModel,
    /// Operations a second in the grouped GEMMs of an even share, by the fit.
    pub(crate) gemm_flops: f64,
    sampled: Vec<(Key, String, Activations, Sampled)>,
    /// The last sample of every policy of the first cell.
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
    /// Executes the sampled steps of all cells, policy by policy in turn. `config` is their model.
    pub(crate) fn take(cells: &[Trained], config: &MoeConfig, machine: serde_json::Value) -> Result<Self> {
        let mut groups = groups(cells);
        let mut runner = ShareRunner::new(&CpuBackend::new(), config, 0)?;
        let mut samples: Vec<(Share, PhaseTimes)> = Vec::new();
        for group in &mut groups {
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
        let (tokens, ranks) = cells.first().map_or((0, 1), |cell| (cell.key.tokens, cell.protocol.ranks));
        let gemm_flops = gemm_flops(&model, config, tokens, ranks)?;
        let mut sampled: BTreeMap<(&Key, &str, &str), (Activations, Sampled)> = BTreeMap::new();
        let mut last: BTreeMap<(&str, &str), &Group<'_>> = BTreeMap::new();
        for group in &groups {
            let mode = group.activations.name();
            let (_, sum) =
                sampled.entry((group.key, group.policy, mode)).or_insert((group.activations, Sampled::default()));
            group.add_to(sum, &model);
            if group.key == &cells[0].key {
                last.insert((group.policy, mode), group);
            }
        }
        let seconds = NOMINAL_FLOPS / gemm_flops;
        Ok(Self {
            cells: cells.iter().map(|cell| cell.key.clone()).collect(),
            machine,
            gemm_flops,
            sampled: sampled
                .into_iter()
                .map(|((key, policy, _), (mode, s))| (key.clone(), policy.into(), mode, s))
                .collect(),
            timelines: last.into_values().map(|group| (group.key.clone(), group.timeline(seconds))).collect(),
            model,
        })
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
        for index in 0.. {
            let at = cell.sample(index);
            let ran = cell.runs.iter().filter(|run| run.infeasible.is_none());
            let mut turn: Vec<Group<'_>> = ran
                .filter_map(|run| {
                    let loads = run.loads.get(at.0)?.get(at.1)?;
                    let (policy, activations) = (&run.policy, run.activations);
                    Some(Group { key: &cell.key, policy, activations, at, loads, measured: Vec::new() })
                })
                .collect();
            if turn.is_empty() {
                break;
            }
            let first = index as usize % turn.len();
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

    /// As it would look on all ranks at once: phases one after the other, each begun together, traffic where it comes to an end.
    fn timeline(&self, seconds: f64) -> Timeline {
        let mut events = Vec::new();
        let mut now = 0.0;
        let loads = self.loads;
        let (busiest, _) = account::phases(&self.measured);
        for phase in Phase::ALL {
            let ranks = loads.shares().into_iter().zip(&self.measured).enumerate();
            for (rank, (share, times)) in ranks.filter(|(_, (_, times))| times[phase] > 0.0) {
                events.push(Event {
                    rank,
                    name: phase.name().into(),
                    source: "measured".into(),
                    start_s: now,
                    seconds: times[phase],
                    rows: rows(&share, phase),
                });
            }
            now += busiest[phase];
            let traffic = match phase {
                Phase::RouterBackward => ("exchange", loads.exchange_s[PLANNED] * seconds),
                Phase::Optimizer => ("optimizer exchange", loads.optimizer_exchange_s[PLANNED] * seconds),
                _ => continue,
            };
            for rank in (0..self.measured.len()).filter(|_| traffic.1 > 0.0) {
                let (name, seconds) = traffic;
                let source = "modelled".into();
                events.push(Event { rank, name: name.into(), source, start_s: now, seconds, rows: 0 });
            }
            now += traffic.1;
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

/// What the fit says of the GEMMs of one of `ranks` equal shares of a step of `tokens` tokens that keeps everything.
fn gemm_flops(model: &TimeModel, config: &MoeConfig, tokens: usize, ranks: usize) -> Result<f64> {
    let (tokens, k) = (tokens / ranks, config.num_experts_per_tok);
    let resident = config.num_experts.div_ceil(ranks);
    let rows = vec![(tokens * k / resident).max(1) as u32; resident];
    let share = Share {
        tokens,
        forward: rows.clone(),
        backward: rows,
        tokens_in_forward: tokens * k.min(ranks),
        tokens_in_backward: tokens * k.min(ranks),
        sent_forward: 0,
        sent_backward: 0,
        retained: tokens * k,
        optimizer_parameters: 0,
        activations: Activations::Stash,
        selects: false,
    };
    let times = model.predict(&share);
    let operations = 3 * share.forward_rows() * config.pair_flops()?;
    Ok(operations as f64 / (times[Phase::Forward] + times[Phase::Dgrad] + times[Phase::Wgrad]))
}
