//! How long one plan of `lrmoe` takes, from a laptop's to a large cluster's layer: `cargo bench --bench plan`, or one size by
//! `cargo bench --bench plan -- 128x64`.
//!
//! Every line is a step in the middle of training: skewed counts that changed since the step before, the placement that the
//! step before chose, demand with real score histograms. One core. The least of several runs is printed beside the median, since a
//! shared machine only ever adds time. The chart, `target/plan_speed.svg`, has both axes logarithmic: a straight line of slope
//! 1 is linear growth in (instances + ranks x experts).
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench reports on stdout and stops at the first error")]

use std::time::{Duration, Instant};

use lrmoe::plan::workload::Batch;
use lrmoe::plan::{ClusterSpec, Counts, Demand, Input, Lrmoe, Placement, Plan, Policy, Setup, Workload};
use lrmoe::{MoeConfig, rng::Philox};
use plotters::prelude::*;

/// Experts, ranks.
const SIZES: [(usize, usize); 8] =
    [(32, 8), (128, 8), (128, 16), (128, 64), (256, 256), (512, 512), (512, 1024), (512, 2048)];
const TOP_K: usize = 8;
const TOKENS: u32 = 4096;

struct Case {
    setup: Setup,
    counts: Counts,
    demand: Demand,
    placement: Placement,
}

/// A step of drifting routing on the placement made for the steps before.
fn case(experts: usize, ranks: usize) -> Case {
    let cluster = ClusterSpec::preset("8xh100").unwrap().with_ranks(ranks, 8);
    let config = MoeConfig { num_hidden_layers: 1, ..MoeConfig::new(2048, 768, experts, TOP_K) };
    let setup = Setup::new(config, cluster).unwrap();
    let batch = Batch { ranks, experts, top_k: TOP_K, tokens_per_rank: TOKENS };
    let counts = |step| Workload::Drifting.counts(&batch, 7, step).unwrap();
    let mut placement = Lrmoe::default().start(&setup, &counts(0)).unwrap();
    for step in 0..3 {
        let input = Input { step, counts: &counts(step), demand: None, placement: &placement };
        placement = Lrmoe::default().plan(&setup, &input).unwrap().next;
    }
    Case { demand: demand(counts(2).per_expert()), counts: counts(3), setup, placement }
}

/// Demand with up to 1,000 log-normal scores an expert, scaled to its load.
fn demand(pairs: &[u32]) -> Demand {
    let mut rng = Philox::new(3, 0);
    let mut offsets = vec![0];
    let mut scores = Vec::new();
    for &n in pairs {
        scores.extend((0..n.min(1000)).map(|_| 2_f32.powf(rng.normal() as f32)));
        offsets.push(scores.len() as u32);
    }
    Demand::from_scores(&scores, &offsets).unwrap()
}

fn timed(case: &Case, runs: usize) -> (Plan, Vec<Duration>) {
    let input = Input { step: 3, counts: &case.counts, demand: Some(&case.demand), placement: &case.placement };
    let plan = || Lrmoe::default().plan(&case.setup, &input).unwrap();
    let first = plan();
    let mut times: Vec<Duration> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            std::hint::black_box(plan());
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    (first, times)
}

fn main() {
    println!("experts  ranks  instances  ranks x experts   least ms  median ms  ns per (instance + rank x expert)");
    let mut points = Vec::new();
    let only: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let chosen = |&&(e, r): &&(usize, usize)| only.is_empty() || only.contains(&format!("{e}x{r}"));
    for &(experts, ranks) in SIZES.iter().filter(chosen) {
        let case = case(experts, ranks);
        let (plan, times) = timed(&case, if experts * ranks > 100_000 { 15 } else { 301 });
        let size = plan.placement.instances() + experts * ranks;
        let [least, median] = [times[0], times[times.len() / 2]].map(|time| time.as_secs_f64());
        println!(
            "{experts:>7} {ranks:>6} {:>10} {:>16} {:>10.3} {:>10.3} {:>10.1}",
            plan.placement.instances(),
            experts * ranks,
            1e3 * least,
            1e3 * median,
            1e9 * least / size as f64,
        );
        points.push((size as f64, 1e3 * least));
    }
    if only.is_empty() {
        draw(&points).unwrap();
        println!("chart: target/plan_speed.svg");
    }
}

fn draw(points: &[(f64, f64)]) -> Result<(), Box<dyn std::error::Error>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/target/plan_speed.svg");
    std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/target"))?;
    let root = SVGBackend::new(path, (720, 480)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("time of one plan on one core", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d((100.0..2e6_f64).log_scale(), (0.02..200.0_f64).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("instances + ranks x experts")
        .y_desc("milliseconds")
        .light_line_style(BLACK.mix(0.05))
        .draw()?;
    let linear = |x: f64| points[points.len() - 1].1 * x / points[points.len() - 1].0;
    chart
        .draw_series(DashedLineSeries::new([200.0, 1.5e6].map(|x| (x, linear(x))), 4, 4, BLACK.mix(0.5).into()))?
        .label("linear")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], BLACK.mix(0.5)));
    let color = RGBColor(0, 114, 178);
    chart
        .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?
        .label("lrmoe")
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    chart.draw_series(points.iter().map(|&point| Circle::new(point, 4, color.filled())))?;
    chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).background_style(WHITE).draw()?;
    root.present()?;
    Ok(())
}
