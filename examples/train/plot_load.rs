//! load.svg: how evenly the experts of the LRMoE run are loaded, forward and backward, over the run.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::failure::Failure;
use crate::load::{LoadHistory, Stretch};
use crate::plot::{Area, INK, RUN_COLORS, chart, legend, mesh, write};
use crate::run::Run;

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Layers drawn at most; a deeper model is sampled evenly.
const MOST_LAYERS: usize = 4;
const COLUMN: u32 = 520;
const KEY: u32 = 96;
const HEADER: u32 = 64;
const MAP: u32 = 250;
const LINES: u32 = 230;
/// Colours run from no pairs to this many times the mean load; above it they stay.
const BRIGHTEST: f64 = 3.0;
/// Backward share of the busiest expert, drawn apart from the forward's.
const BACKWARD: RGBColor = RGBColor(0, 158, 115);
/// Dark to bright, equally far apart to the eye and in grey.
const SCALE: [(f64, f64, f64); 5] =
    [(68.0, 1.0, 84.0), (59.0, 82.0, 139.0), (33.0, 145.0, 140.0), (94.0, 201.0, 98.0), (253.0, 231.0, 37.0)];

/// The picture as SVG text: of the last run, with the first one's load for comparison.
pub(crate) fn load(runs: &[Run]) -> Result<String, Failure> {
    let mut svg = String::new();
    draw(&mut svg, runs).map_err(|e| Failure::run(format!("cannot draw load.svg: {e}")))?;
    Ok(svg)
}

fn draw(svg: &mut String, runs: &[Run]) -> Drawn {
    let layers = runs.last().map_or(0, |r| r.loads.layers.len());
    let shown = layers.min(MOST_LAYERS);
    let size = (COLUMN * shown.max(1) as u32 + KEY, HEADER + 2 * MAP + LINES);
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    root.fill(&WHITE)?;
    let Some(run) = runs.last().filter(|r| r.steps > 0) else {
        write(&root, "Expert load: no step was done", (24, 12), 20, HPos::Left, &INK)?;
        return Ok(root.present()?);
    };
    let (header, rest) = root.split_vertically(HEADER);
    let title = format!("Expert load of the {} run ({}, retain {})", run.policy, run.select, run.retain);
    write(&header, &title, (24, 12), 20, HPos::Left, &INK)?;
    legend(&header, "busiest, forward", (24, 48), RUN_COLORS[runs.len().min(2) - 1])?;
    legend(&header, "busiest, backward", (184, 48), BACKWARD)?;
    if runs.len() > 1 {
        legend(&header, "busiest, forward, plain run", (354, 48), RUN_COLORS[0])?;
    }
    let (columns, key) = rest.split_horizontally(COLUMN * shown as u32);
    draw_key(&key)?;
    for (i, column) in columns.split_evenly((1, shown)).iter().enumerate() {
        draw_layer(column, runs, i * layers / shown)?;
    }
    root.present()?;
    Ok(())
}

fn draw_layer(column: &Area<'_>, runs: &[Run], layer: usize) -> Drawn {
    let Some(run) = runs.last() else { return Ok(()) };
    let (top, rest) = column.split_vertically(MAP);
    let (middle, bottom) = rest.split_vertically(MAP);
    heat_map(&top, &run.loads, layer, &format!("Layer {layer}: routed pairs"), Stretch::load)?;
    heat_map(&middle, &run.loads, layer, &format!("Layer {layer}: quotas of the backward pass"), Stretch::quotas)?;
    let mut lines = vec![
        (&run.loads, Stretch::busiest_forward as fn(&Stretch) -> f64, RUN_COLORS[runs.len().min(2) - 1]),
        (&run.loads, Stretch::busiest_backward, BACKWARD),
    ];
    if runs.len() > 1 {
        lines.insert(0, (&runs[0].loads, Stretch::busiest_forward, RUN_COLORS[0]));
    }
    let points = |(loads, of, color): (&LoadHistory, fn(&Stretch) -> f64, RGBColor)| {
        let centre = |i: usize| (i as f64 + 0.5) * loads.stretch_steps();
        let done = loads.layers[layer].iter().enumerate().filter(|(_, s)| !s.is_empty());
        (done.map(|(i, s)| (centre(i), of(s))).collect::<Vec<_>>(), color)
    };
    let lines = lines.into_iter().map(points).collect::<Vec<_>>();
    let high = lines.iter().flat_map(|(line, _)| line).map(|p| p.1).fold(1.5, f64::max);
    let mut chart = chart(
        &bottom,
        &format!("Layer {layer}: busiest expert"),
        0.0..run.loads.covered_steps(layer),
        0.9..high * 1.05,
    )?;
    mesh(&mut chart, ("training step", 0), ("pairs / mean", 1), true)?;
    for (line, color) in lines {
        chart.draw_series(LineSeries::new(line, color.stroke_width(2)))?;
    }
    Ok(())
}

/// Experts upwards, steps to the right, one rectangle for each expert and stretch of steps.
fn heat_map(
    area: &Area<'_>,
    loads: &LoadHistory,
    layer: usize,
    title: &str,
    values: fn(&Stretch) -> Vec<f64>,
) -> Drawn {
    let stretches = &loads.layers[layer];
    let columns = stretches.iter().map(|s| if s.is_empty() { Vec::new() } else { values(s) }).collect::<Vec<_>>();
    let experts = columns.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let width = loads.stretch_steps();
    let mut chart = chart(area, title, 0.0..loads.covered_steps(layer), 0.0..experts as f64)?;
    for (i, column) in columns.iter().enumerate() {
        let (left, right) = (i as f64 * width, (i + 1) as f64 * width);
        chart.draw_series(column.iter().enumerate().map(|(expert, value)| {
            let low = expert as f64;
            Rectangle::new([(left, low), (right, low + 1.0)], color_of(*value).filled())
        }))?;
    }
    mesh(&mut chart, ("", 0), ("expert", 0), false)
}

/// What the colours of the maps mean.
fn draw_key(area: &Area<'_>) -> Drawn {
    let (left, right, top, bottom) = (8, 26, 40, 2 * MAP as i32 - 60);
    write(area, "pairs /", (left, 2), 13, HPos::Left, &INK)?;
    write(area, "mean load", (left, 17), 13, HPos::Left, &INK)?;
    let value = |y: i32| BRIGHTEST * f64::from(bottom - y) / f64::from(bottom - top);
    for y in top..bottom {
        area.draw(&Rectangle::new([(left, y), (right, y + 1)], color_of(value(y)).filled()))?;
    }
    for tick in 0..=BRIGHTEST as i32 {
        let y = bottom - (f64::from(bottom - top) * f64::from(tick) / BRIGHTEST) as i32;
        area.draw(&PathElement::new([(right, y), (right + 5, y)], INK.stroke_width(1)))?;
        let text = if f64::from(tick) < BRIGHTEST { tick.to_string() } else { format!("{tick}+") };
        write(area, &text, (right + 9, y - 7), 13, HPos::Left, &INK)?;
    }
    Ok(())
}

/// The colour of `value` on [`SCALE`].
fn color_of(value: f64) -> RGBColor {
    let last = SCALE.len() - 1;
    let at = (value / BRIGHTEST).clamp(0.0, 1.0) * last as f64;
    let i = (at as usize).min(last - 1);
    let (from, to, t) = (SCALE[i], SCALE[i + 1], at - i as f64);
    let mix = |a: f64, b: f64| (a + (b - a) * t).round() as u8;
    RGBColor(mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_ends_where_it_says_and_never_steps_back() {
        assert_eq!(color_of(-1.0), color_of(0.0));
        assert_eq!(color_of(BRIGHTEST), color_of(100.0));
        assert_eq!(color_of(BRIGHTEST), RGBColor(253, 231, 37));
        let grey = |v: f64| {
            let RGBColor(r, g, b) = color_of(v);
            0.2126 * f64::from(r) + 0.7152 * f64::from(g) + 0.0722 * f64::from(b)
        };
        assert!((0..300).map(|i| grey(f64::from(i) / 100.0)).collect::<Vec<_>>().is_sorted_by(|a, b| *a <= *b + 1.0));
    }

    #[test]
    fn no_run_is_still_a_picture() {
        assert!(load(&[]).unwrap().contains("no step was done"));
    }
}
