//! Cells that differ in nothing but their seed, and what is averaged over them.

use super::targets::{self, Reached};
use crate::experiment::cell::{Cell, PolicyRun};

/// Cells of one model, balancing and batch size, run under one protocol on one machine: the same in all but the seed.
#[derive(Debug)]
pub(super) struct Group<'a> {
    /// Speaks for the others.
    pub(super) first: &'a Cell,
    /// By seed.
    pub(super) cells: Vec<&'a Cell>,
}

/// Over seeds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    pub(super) seeds: usize,
    pub(super) mean: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// `None` of nothing.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let (mut seeds, mut sum, mut min, mut max) = (0, 0.0, f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            (seeds, sum, min, max) = (seeds + 1, sum + value, min.min(value), max.max(value));
        }
        (seeds > 0).then(|| Self { seeds, mean: sum / seeds as f64, min, max })
    }
}

/// Groups in the order of their first cells.
pub(super) fn groups(cells: &[Cell]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for cell in cells {
        match groups.iter_mut().find(|group| group.admits(cell)) {
            Some(group) => group.cells.push(cell),
            None => groups.push(Group { first: cell, cells: vec![cell] }),
        }
    }
    for group in &mut groups {
        group.cells.sort_by_key(|cell| cell.key.seed);
    }
    groups
}

/// Whether a run has numbers at all.
pub(super) fn has_run(run: &PolicyRun) -> bool {
    run.infeasible.is_none() && !run.curve.is_empty()
}

/// Why a run has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopped {
    /// No plan fits the budget.
    NoFit,
    /// Anything else: training diverged.
    Ended,
}

impl Stopped {
    pub(super) const ALL: [Self; 2] = [Self::NoFit, Self::Ended];

    /// `None` of a run to the end.
    pub(super) fn of(run: &PolicyRun) -> Option<Self> {
        let reason = run.infeasible.as_ref()?;
        Some(if reason.contains("budget") { Self::NoFit } else { Self::Ended })
    }

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::NoFit => "no fit",
            Self::Ended => "ended",
        }
    }
}

/// "seeds 1, 2".
pub(super) fn list(seeds: &[u64]) -> String {
    let word = if seeds.len() == 1 { "seed" } else { "seeds" };
    format!("{word} {}", seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", "))
}

/// A run at target number `target`; `None` where the target was not set or not reached.
pub(super) fn at_target(cell: &Cell, run: &PolicyRun, target: usize) -> Option<Reached> {
    let loss = (*targets::losses(cell).get(target)?)?;
    if has_run(run) { targets::reach(run, loss) } else { None }
}

impl<'a> Group<'a> {
    /// Seconds measured on different machines, or under different protocols, have no common mean.
    fn admits(&self, cell: &Cell) -> bool {
        let (a, b) = (&self.first.key, &cell.key);
        (&a.preset, &a.balancing, a.tokens) == (&b.preset, &b.balancing, b.tokens)
            && self.first.protocol == cell.protocol
            && self.first.machine == cell.machine
    }

    pub(super) fn seeds(&self) -> Vec<u64> {
        self.cells.iter().map(|cell| cell.key.seed).collect()
    }

    /// What its cells have in common, and their seeds.
    pub(super) fn title(&self) -> String {
        let key = &self.first.key;
        let seeds = list(&self.seeds());
        format!("{}, {} balancing, {} tokens a step, {seeds}", key.preset, key.balancing, key.tokens)
    }

    /// The model that the small one stands for: the one whose memory is shown.
    pub(super) fn real_model(&self) -> String {
        let Cell { key, protocol, .. } = self.first;
        // Tokens are counted in whole ones for each of the small model's.
        let tokens = key.tokens.div_ceil(protocol.ranks) as f64 * (1.0 / protocol.token_scale).round();
        format!("{} itself, {} layers, {tokens} tokens a rank", key.preset, protocol.real_layers)
    }

    /// Activation modes in the order of the runs.
    pub(super) fn modes(&self) -> Vec<&'a str> {
        self.distinct(|run| Some(run.activations.as_str()))
    }

    /// Policies of one activation mode in the order of the runs.
    pub(super) fn policies(&self, mode: &str) -> Vec<&'a str> {
        self.distinct(|run| (run.activations == mode).then_some(run.policy.as_str()))
    }

    /// Policies of any activation mode.
    pub(super) fn all_policies(&self) -> Vec<&'a str> {
        self.distinct(|run| Some(run.policy.as_str()))
    }

    fn distinct(&self, of: impl Fn(&'a PolicyRun) -> Option<&'a str>) -> Vec<&'a str> {
        let mut found = Vec::new();
        for name in self.cells.iter().flat_map(|cell| &cell.runs).filter_map(of) {
            if !found.contains(&name) {
                found.push(name);
            }
        }
        found
    }

    /// Runs of a policy, those that stopped included.
    pub(super) fn runs(&self, policy: &str, mode: &str) -> impl Iterator<Item = (&'a Cell, &'a PolicyRun)> {
        self.cells.iter().filter_map(move |cell| Some((*cell, find(cell, policy, mode)?)))
    }

    /// Why a policy has numbers with no seed; `None` where it has some, or was not run.
    pub(super) fn stopped(&self, policy: &str, mode: &str) -> Option<Stopped> {
        let mut found = None;
        for (_, run) in self.runs(policy, mode) {
            let stopped = Stopped::of(run)?;
            if found != Some(Stopped::Ended) {
                found = Some(stopped);
            }
        }
        found
    }

    /// Seeds with which a policy stopped for this reason, and the reason of the first of them.
    pub(super) fn stopped_seeds(&self, policy: &str, mode: &str, why: Stopped) -> (Vec<u64>, Option<&'a str>) {
        let runs = self.runs(policy, mode).filter(|(_, run)| Stopped::of(run) == Some(why));
        let (seeds, reasons): (Vec<u64>, Vec<_>) = runs.map(|(cell, run)| (cell.key.seed, &run.infeasible)).unzip();
        (seeds, reasons.first().and_then(|reason| reason.as_deref()))
    }

    /// `of` each seed's run that has numbers; seeds without a value do not count.
    pub(super) fn spread(
        &self,
        policy: &str,
        mode: &str,
        of: impl Fn(&Cell, &PolicyRun) -> Option<f64>,
    ) -> Option<Spread> {
        Spread::of(self.runs(policy, mode).filter(|(_, run)| has_run(run)).filter_map(|(cell, run)| of(cell, run)))
    }

    /// `of` each seed's run over that of `rival` in the same cell and mode: first the ratio, then its mean. Only seeds where both
    /// have a value count.
    pub(super) fn ratio(
        &self,
        policy: &str,
        mode: &str,
        rival: &str,
        of: impl Fn(&Cell, &PolicyRun) -> Option<f64>,
    ) -> Option<Spread> {
        self.spread(policy, mode, |cell, run| {
            let base = find(cell, rival, mode).filter(|rival| has_run(rival)).and_then(|rival| of(cell, rival))?;
            (base > 0.0).then_some(of(cell, run)? / base)
        })
    }
}

/// The run of a policy in one activation mode.
pub(super) fn find<'a>(cell: &'a Cell, policy: &str, mode: &str) -> Option<&'a PolicyRun> {
    cell.runs.iter().find(|run| run.policy == policy && run.activations == mode)
}

#[cfg(test)]
mod tests {
    use super::super::sample::cell;
    use super::*;

    #[test]
    fn cells_of_different_protocols_or_machines_are_never_mixed() {
        let mut cells = vec![cell(3), cell(1), cell(2), cell(4), cell(5)];
        cells[2].protocol.budget = None;
        cells[3].machine["threads"] = 64.into();
        cells[4].key.tokens += 1;
        let groups = groups(&cells);
        let seeds: Vec<Vec<u64>> = groups.iter().map(Group::seeds).collect();
        assert_eq!(seeds, [vec![1, 3], vec![2], vec![4], vec![5]]);
        assert!(groups[0].title().ends_with("seeds 1, 3") && groups[1].title().ends_with("seed 2"));
    }

    #[test]
    fn ratios_are_taken_within_a_cell_and_then_averaged() {
        let mut cells = [cell(1), cell(2)];
        for (cell, waves) in cells.iter_mut().zip([[2, 10], [30, 20]]) {
            for (policy, waves) in [("lrmoe", waves[0]), ("symi", waves[1])] {
                let run = cell.runs.iter_mut().find(|r| r.policy == policy && r.activations == "stash").unwrap();
                run.waves = waves;
            }
        }
        let groups = groups(&cells);
        let waves = |_: &Cell, run: &PolicyRun| Some(run.waves as f64);
        let ratio = groups[0].ratio("lrmoe", "stash", "symi", waves).unwrap();
        // (2 / 10 + 30 / 20) / 2, not (2 + 30) / (10 + 20).
        assert_eq!((ratio.seeds, ratio.min, ratio.max), (2, 0.2, 1.5));
        assert!((ratio.mean - 0.85).abs() < 1e-12);
        let spread = groups[0].spread("lrmoe", "stash", waves).unwrap();
        assert_eq!(spread, Spread { seeds: 2, mean: 16.0, min: 2.0, max: 30.0 });
    }

    #[test]
    fn runs_that_stopped_have_no_numbers() {
        let cells = [cell(1)];
        let groups = groups(&cells);
        let group = &groups[0];
        assert!(group.runs("fixed", "stash").any(|(_, run)| run.infeasible.is_some()));
        assert_eq!(group.spread("fixed", "stash", |_, _| Some(1.0)), None);
        assert_eq!(group.ratio("lrmoe", "stash", "fixed", |_, _| Some(1.0)), None);
        assert_eq!(group.ratio("lrmoe", "stash", "nobody", |_, _| Some(1.0)), None);
        assert_eq!(group.ratio("lrmoe", "stash", "symi", |_, _| Some(0.0)), None);
        assert_eq!(Spread::of([]), None);
        assert_eq!(group.modes(), ["stash", "recompute"]);
        let policies = ["fixed", "fixed-waves", "symi", "lrmoe-1copy", "lrmoe"];
        assert_eq!((group.policies("recompute"), group.all_policies()), (policies.to_vec(), policies.to_vec()));
    }

    #[test]
    fn what_has_nothing_to_do_with_the_budget_ended() {
        let mut cells = [cell(1), cell(2)];
        let stopped = |cells: &[Cell], policy| groups(cells)[0].stopped(policy, "stash");
        assert_eq!((stopped(&cells, "fixed"), stopped(&cells, "symi")), (Some(Stopped::NoFit), None));
        assert_eq!(stopped(&cells, "nobody"), None);
        for (i, reason) in ["diverged", "another budget of 3 bytes"].into_iter().enumerate() {
            cells[i].runs[0].infeasible = Some(reason.into());
        }
        assert_eq!(stopped(&cells, "fixed"), Some(Stopped::Ended));
        {
            let groups = groups(&cells);
            let seeds = |why| groups[0].stopped_seeds("fixed", "stash", why);
            assert_eq!(seeds(Stopped::Ended), (vec![1], Some("diverged")));
            assert_eq!(seeds(Stopped::NoFit), (vec![2], Some("another budget of 3 bytes")));
        }
        cells[1].runs[0] = PolicyRun { policy: "fixed".into(), ..cells[1].runs[2].clone() };
        assert_eq!(stopped(&cells, "fixed"), None);
    }

    #[test]
    fn the_real_model_has_its_own_layers_and_tokens() {
        let cells = [cell(1)];
        // 4608 tokens on two ranks, each of which stands for 16.
        assert_eq!(groups(&cells)[0].real_model(), "qwen3-30b-a3b itself, 48 layers, 36864 tokens a rank");
    }
}
