//! Expert load and quotas over a run, averaged over stretches of steps so that their size does not grow with the run.

use crate::moe::MoeStats;

/// Most stretches a run is divided into.
const STRETCHES: u64 = 48;

/// Sums over one stretch of steps of one layer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stretch {
    steps: f64,
    counts: Vec<f64>,
    quotas: Vec<f64>,
    busiest_forward: f64,
    busiest_backward: f64,
}

impl Stretch {
    fn add(&mut self, stats: &MoeStats) {
        let experts = stats.counts.len();
        self.counts.resize(experts, 0.0);
        self.quotas.resize(experts, 0.0);
        self.counts.iter_mut().zip(&stats.counts).for_each(|(sum, n)| *sum += f64::from(*n));
        self.quotas.iter_mut().zip(&stats.quotas).for_each(|(sum, n)| *sum += f64::from(*n));
        self.steps += 1.0;
        self.busiest_forward += busiest(&stats.counts);
        self.busiest_backward += busiest(&stats.retained);
    }

    /// Whether the run got this far.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps == 0.0
    }

    /// Routed pairs of each expert, in units of the mean load.
    pub(crate) fn load(&self) -> Vec<f64> {
        let mean = self.mean_load();
        self.counts.iter().map(|n| n / mean).collect()
    }

    /// Quota of each expert, in units of the mean *forward* load.
    pub(crate) fn quotas(&self) -> Vec<f64> {
        let mean = self.mean_load();
        self.quotas.iter().map(|n| n / mean).collect()
    }

    /// Busiest expert over mean, forward: the mean over the steps.
    pub(crate) fn busiest_forward(&self) -> f64 {
        self.busiest_forward / self.steps
    }

    /// Busiest expert over mean, backward: the mean over the steps.
    pub(crate) fn busiest_backward(&self) -> f64 {
        self.busiest_backward / self.steps
    }

    fn mean_load(&self) -> f64 {
        (self.counts.iter().sum::<f64>() / self.counts.len() as f64).max(f64::MIN_POSITIVE)
    }
}

/// One run's stretches, layer by layer.
#[derive(Debug, Clone)]
pub(crate) struct LoadHistory {
    /// Steps the run was to have.
    pub(crate) steps: u64,
    /// `[layers][stretches]`.
    pub(crate) layers: Vec<Vec<Stretch>>,
}

impl LoadHistory {
    pub(crate) fn new(steps: u64, layers: usize) -> Self {
        Self { steps, layers: vec![vec![Stretch::default(); steps.min(STRETCHES) as usize]; layers] }
    }

    /// Steps in one stretch.
    pub(crate) fn stretch_steps(&self) -> f64 {
        self.steps as f64 / self.steps.min(STRETCHES) as f64
    }

    /// Steps that the stretches of `layer` cover.
    pub(crate) fn covered_steps(&self, layer: usize) -> f64 {
        self.stretch_steps() * self.layers[layer].len() as f64
    }

    /// Adds what `layer` did in `step` (from 0), which may lie past the steps planned.
    pub(crate) fn add(&mut self, step: u64, layer: usize, stats: &MoeStats) {
        let stretches = &mut self.layers[layer];
        let at = (u128::from(step) * u128::from(self.steps.min(STRETCHES)) / u128::from(self.steps)) as usize;
        if at >= stretches.len() {
            stretches.resize_with(at + 1, Stretch::default);
        }
        stretches[at].add(stats);
    }
}

/// Largest over mean; 1 where there is nothing.
pub(crate) fn busiest(pairs: &[u32]) -> f64 {
    lrmoe::Statistics::max_over_mean(pairs).unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_lands_in_one_stretch() {
        for steps in [1, 5, 48, 49, 1000] {
            let mut history = LoadHistory::new(steps, 1);
            let stats =
                MoeStats { counts: vec![3, 1], retained: vec![1, 1], quotas: vec![1, 1], ..MoeStats::default() };
            (0..steps).for_each(|s| history.add(s, 0, &stats));
            let stretches = &history.layers[0];
            assert_eq!(stretches.iter().map(|s| s.steps).sum::<f64>(), steps as f64);
            assert!(
                stretches.iter().all(|s| !s.is_empty() && s.busiest_forward() == 1.5 && s.busiest_backward() == 1.0)
            );
            assert_eq!(stretches[0].load(), [1.5, 0.5]);
            assert_eq!(stretches[0].quotas(), [0.5, 0.5]);
        }
    }

    #[test]
    fn nothing_routed_is_not_an_imbalance() {
        assert_eq!((busiest(&[0, 0]), busiest(&[])), (1.0, 1.0));
    }
}
