//! Shares executed and timed: the samples that all times come from.

use std::collections::BTreeMap;

use lrmoe::share::{Phase, PhaseTimes, Share, ShareRunner, TimeModel};
use lrmoe::{CpuBackend, MoeConfig, Result};

use super::account;
use super::cell::{Event, Sampled, Timeline};
use super::loads::Loads;

/// Executions of a share of which the least time of each phase counts: what else runs on the machine only ever adds.
const REPEATS: usize = 2;
/// Executions that the GEMM rate is the median of.
const RATE_RUNS: usize = 15;

/// Times shares, and remembers what they took.
pub(crate) struct Clock {
    runner: ShareRunner<CpuBackend>,
    samples: Vec<(Share, PhaseTimes)>,
    /// For each policy and mode: which samples are its, in groups of one step and layer.
    groups: BTreeMap<(String, String), Vec<std::ops::Range<usize>>>,
}

impl Clock {
    pub(crate) fn new(config: &MoeConfig, seed: u64) -> Result<Self> {
        let runner = ShareRunner::new(&CpuBackend::new(), config, seed)?;
        Ok(Self { runner, samples: Vec::new(), groups: BTreeMap::new() })
    }

    /// Operations a second in the grouped GEMMs of one of `ranks` equal shares of a step of `tokens` tokens.
    pub(crate) fn gemm_flops(&mut self, config: &MoeConfig, tokens: usize, ranks: usize) -> Result<f64> {
        let share = even_share(config, tokens, ranks);
        let pairs: u64 = share.forward.iter().map(|&n| u64::from(n)).sum();
        let operations = 3 * pairs * config.pair_flops()?;
        let mut rates = Vec::with_capacity(RATE_RUNS);
        for _ in 0..RATE_RUNS {
            let times = self.runner.run(&share)?;
            let gemms = [Phase::Forward, Phase::Dgrad, Phase::Wgrad].iter().map(|&phase| times[phase]).sum::<f64>();
            rates.push(operations as f64 / gemms);
        }
        rates.sort_by(f64::total_cmp);
        Ok(rates[RATE_RUNS / 2])
    }

    /// Executes all shares of one step and layer under one policy.
    pub(crate) fn sample(&mut self, policy: &str, activations: &str, loads: &Loads) -> Result<()> {
        let first = self.samples.len();
        for share in &loads.shares {
            let mut least = self.runner.run(share)?;
            for _ in 1..REPEATS {
                let again = self.runner.run(share)?;
                Phase::ALL.iter().for_each(|&phase| least[phase] = least[phase].min(again[phase]));
            }
            self.samples.push((share.clone(), least));
        }
        let key = (policy.to_owned(), activations.to_owned());
        self.groups.entry(key).or_default().push(first..self.samples.len());
        Ok(())
    }

    /// The time of a share by its sizes, fitted to all samples.
    pub(crate) fn model(&self) -> Result<TimeModel> {
        TimeModel::fit(&self.samples)
    }

    /// What the samples of one policy took in all, and what `model` says of the same shares.
    pub(crate) fn sampled(&self, policy: &str, activations: &str, model: &TimeModel) -> Sampled {
        let groups = self.groups.get(&(policy.to_owned(), activations.to_owned()));
        let mut sampled = Sampled::default();
        for group in groups.into_iter().flatten() {
            let samples = &self.samples[group.clone()];
            let shares: Vec<Share> = samples.iter().map(|(share, _)| share.clone()).collect();
            let mut measured = samples.iter().map(|(_, times)| *times);
            let (busiest, _) = account::phases(&shares, |_| measured.next().unwrap_or_default());
            let (fitted, _) = account::phases(&shares, |share| model.predict(share));
            sampled.count += 1;
            sampled.measured_s += busiest.iter().sum::<f64>();
            sampled.fitted_s += fitted.iter().sum::<f64>();
        }
        sampled
    }

    /// The last sample of a policy as it would look on all ranks at once: phases one after the other, each begun together.
    pub(crate) fn timeline(&self, policy: &str, activations: &str, (step, layer): (u64, usize), loads: &Loads) -> Timeline {
        let group = self.groups.get(&(policy.to_owned(), activations.to_owned())).and_then(|groups| groups.last());
        let samples = group.map_or(&[][..], |group| &self.samples[group.clone()]);
        let mut events = Vec::new();
        let mut now = 0.0;
        let [exchange, optimizer] = account::traffic_s(loads);
        for (i, &phase) in Phase::ALL.iter().enumerate() {
            let longest = samples.iter().map(|(_, times)| times[phase]).fold(0.0, f64::max);
            for (rank, (share, times)) in samples.iter().enumerate().filter(|(_, (_, times))| times[phase] > 0.0) {
                let backward = i > Phase::ALL.iter().position(|&p| p == Phase::Combine).unwrap_or(0);
                let rows = if backward { &share.backward } else { &share.forward };
                events.push(Event {
                    rank,
                    name: phase.name().into(),
                    source: "measured".into(),
                    start_s: now,
                    seconds: times[phase],
                    rows: rows.iter().map(|&n| u64::from(n)).sum(),
                });
            }
            now += longest;
            let after = match phase {
                Phase::RouterBackward => Some(("exchange", exchange)),
                Phase::Optimizer => Some(("optimizer exchange", optimizer)),
                _ => None,
            };
            let Some((name, seconds)) = after.filter(|(_, seconds)| *seconds > 0.0) else { continue };
            events.extend((0..samples.len()).map(|rank| Event {
                rank,
                name: name.into(),
                source: "modelled".into(),
                start_s: now,
                seconds,
                rows: 0,
            }));
            now += seconds;
        }
        Timeline { policy: policy.into(), activations: activations.into(), step, layer, events }
    }
}

/// What each rank has to do where everything is even and all is kept.
fn even_share(config: &MoeConfig, tokens: usize, ranks: usize) -> Share {
    let (tokens, k) = (tokens / ranks, config.num_experts_per_tok);
    let resident = config.num_experts.div_ceil(ranks);
    let rows = vec![(tokens * k / resident).max(1) as u32; resident];
    Share {
        tokens,
        forward: rows.clone(),
        backward: rows,
        tokens_in_forward: tokens * k.min(ranks),
        tokens_in_backward: tokens * k.min(ranks),
        sent_forward: 0,
        sent_backward: 0,
        retained: tokens * k,
        optimizer_parameters: 0,
        activations: lrmoe::Activations::Stash,
        selects: false,
    }
}
