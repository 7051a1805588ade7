//! From what the ranks did to what it took.

use std::collections::BTreeMap;

use lrmoe::memory::Category;
use lrmoe::share::{Phase, Share, TimeModel};

use super::cell::{Cost, PLANNED, Point, PolicyRun, Sampled};
use super::loads::Loads;
use super::trajectory::Trajectory;

/// Seconds of one step of one layer: each phase lasts as long as its busiest rank.
pub(crate) fn add_step(cost: &mut Cost, loads: &Loads, model: &TimeModel, time_scale: f64) {
    let (busiest, mean) = phases(&loads.shares, |share| model.predict(share));
    for (phase, (busiest, mean)) in Phase::ALL.iter().zip(busiest.into_iter().zip(mean)) {
        *cost.phases.entry(phase.name().into()).or_default() += busiest;
        *cost.mean.entry(phase.name().into()).or_default() += mean;
    }
    for network in 0..cost.exchange_s.len() {
        cost.exchange_s[network] += loads.exchange_s[network];
        cost.optimizer_exchange_s[network] += loads.optimizer_exchange_s[network];
    }
    cost.plan_s += loads.plan_s * time_scale;
}

/// Of each phase, the busiest rank's seconds and those of the mean rank.
pub(crate) fn phases(
    shares: &[Share],
    mut time: impl FnMut(&Share) -> lrmoe::share::PhaseTimes,
) -> (Vec<f64>, Vec<f64>) {
    let (mut busiest, mut sum) = (vec![0.0_f64; Phase::ALL.len()], vec![0.0; Phase::ALL.len()]);
    for share in shares {
        let times = time(share);
        for (i, &phase) in Phase::ALL.iter().enumerate() {
            busiest[i] = busiest[i].max(times[phase]);
            sum[i] += times[phase];
        }
    }
    let ranks = shares.len().max(1) as f64;
    (busiest, sum.into_iter().map(|sum| sum / ranks).collect())
}

/// Follower number `index` of a run.
pub(crate) fn policy_run(
    run: &Trajectory,
    index: usize,
    model: &TimeModel,
    time_scale: f64,
    sampled: Sampled,
) -> PolicyRun {
    let (policy, activations) = &run.followed[index];
    let steps = &run.loads[index];
    let infeasible = run.infeasible[index].clone();
    let mut cost = Cost::default();
    let mut done = 0;
    let mut curve = Vec::new();
    for &(step, val_loss) in run.curve.iter().filter(|_| infeasible.is_none()) {
        for layers in &steps[done..step as usize] {
            layers.iter().for_each(|loads| add_step(&mut cost, loads, model, time_scale));
        }
        done = step as usize;
        curve.push(Point { step, val_loss, cost: cost.clone() });
    }
    let all = || steps.iter().flatten().filter(|_| infeasible.is_none());
    let count = all().count().max(1) as f64;
    let mean = |value: fn(&Loads) -> f64| all().map(value).sum::<f64>() / count;
    let peak = all().max_by_key(|loads| loads.peak.total()).map(|loads| loads.peak);
    let by_category = |peak: lrmoe::plan::RankMemory| -> BTreeMap<String, u64> {
        Category::ALL.iter().map(|&category| (category.to_string(), peak.reserved[category as usize])).collect()
    };
    PolicyRun {
        policy: policy.clone(),
        activations: activations.name().into(),
        trajectory: run.name.clone(),
        steps: if infeasible.is_none() { run.steps } else { 0 },
        curve,
        routed_pairs: all().map(|loads| loads.routed).sum(),
        backward_pairs: all().map(|loads| loads.retained).sum(),
        dropped_pairs: all().map(|loads| loads.dropped).sum(),
        busiest_over_mean_forward: mean(|loads| loads.busiest_over_mean[0]),
        busiest_over_mean_backward: mean(|loads| loads.busiest_over_mean[1]),
        replicas_mean: mean(|loads| loads.replicas as f64),
        bytes_inter_node: all().map(|loads| loads.bytes_inter_node).sum(),
        waves: all().map(|loads| loads.waves).max().unwrap_or(0),
        peak_bytes: peak.map(by_category).unwrap_or_default(),
        subtotal_bytes: all().map(|loads| loads.subtotal_bytes).max().unwrap_or(0),
        sampled,
        infeasible,
    }
}

/// Modelled traffic of one step at the planned network.
pub(crate) fn traffic_s(loads: &Loads) -> [f64; 2] {
    [loads.exchange_s[PLANNED], loads.optimizer_exchange_s[PLANNED]]
}
