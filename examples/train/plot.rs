//! loss.svg: validation loss against steps and against seconds in MoE layers.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::failure::Failure;
use crate::run::{CurvePoint, Run};

/// Colours of the plain and of the LRMoE run; distinct to colour-blind readers and in grey.
pub(crate) const RUN_COLORS: [RGBColor; 2] = [RGBColor(0, 90, 160), RGBColor(213, 94, 0)];
pub(crate) const INK: RGBColor = RGBColor(40, 40, 46);
pub(crate) const FAINT: RGBColor = RGBColor(226, 226, 230);
const TARGET: RGBColor = RGBColor(120, 120, 128);
const SIZE: (u32, u32) = (1080, 460);
const HEADER: i32 = 64;
/// The curve is drawn from this share of the run on: before it, loss falls so far that the rest would be a flat line.
const DRAWN_FROM: f64 = 0.08;

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The picture as SVG text.
pub(crate) fn loss(runs: &[Run], target: Option<f64>) -> Result<String, Failure> {
    let mut svg = String::new();
    draw(&mut svg, runs, target).map_err(|e| Failure::run(format!("cannot draw loss.svg: {e}")))?;
    Ok(svg)
}

fn draw(svg: &mut String, runs: &[Run], target: Option<f64>) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (header, panels) = root.split_vertically(HEADER);
    write(&header, "Validation loss", (24, 12), 20, HPos::Left, &INK)?;
    for (i, (run, color)) in runs.iter().zip(RUN_COLORS).enumerate() {
        let last = run.curve.last().map_or(String::new(), |p| format!(", {:.3} at the end", p.val_loss));
        let text = format!("{} ({}, retain {}){last}", run.policy, run.select, run.retain);
        legend(&header, &text, (24 + 400 * i as i32, 48), color)?;
    }
    if let Some(target) = target {
        legend(&header, &format!("target {target:.3} (dot: reached)"), (24 + 800, 48), TARGET)?;
    }
    let (left, right) = panels.split_horizontally(SIZE.0 / 2);
    panel(&left, runs, target, "training step", |p| p.step as f64)?;
    panel(&right, runs, target, "seconds in MoE layers, forward and backward", CurvePoint::moe_s)?;
    root.present()?;
    Ok(())
}

fn panel(
    area: &Area<'_>,
    runs: &[Run],
    target: Option<f64>,
    x_label: &str,
    x: impl Fn(&CurvePoint) -> f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let drawn = runs.iter().map(|r| drawn(&r.curve)).collect::<Vec<_>>();
    let x_max = drawn.iter().copied().flatten().map(&x).fold(0.0, f64::max);
    let losses = drawn.iter().copied().flatten().map(|p| p.val_loss);
    let range = padded(losses.chain(target));
    let end = if x_max > 0.0 { x_max * 1.02 } else { 1.0 };
    let mut chart = chart(area, "", 0.0..end, range.clone())?;
    mesh(&mut chart, (x_label, usize::from(end < 5.0)), ("nats a byte", 2), true)?;
    if let Some(target) = target {
        chart.draw_series(DashedLineSeries::new([(0.0, target), (end, target)], 6, 4, TARGET.stroke_width(1)))?;
    }
    for ((points, run), color) in drawn.iter().zip(runs).zip(RUN_COLORS) {
        chart.draw_series(LineSeries::new(points.iter().map(|p| (x(p), p.val_loss)), color.stroke_width(2)))?;
        if let Some(p) = target.and_then(|t| run.reached(t)).filter(|p| range.contains(&p.val_loss)) {
            chart.draw_series([Circle::new((x(p), p.val_loss), 5, color.filled())])?;
        }
    }
    Ok(())
}

/// The part of a curve worth drawing: all of it while it is short.
fn drawn(curve: &[CurvePoint]) -> &[CurvePoint] {
    let last = curve.last().map_or(0, |p| p.step) as f64;
    let from = curve.iter().position(|p| p.step as f64 >= last * DRAWN_FROM).unwrap_or(0);
    &curve[from..]
}

/// A range around the values with room above and below.
fn padded(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    if low > high {
        return 0.0..1.0;
    }
    let room = (0.06 * (high - low)).max(1e-3);
    low - room..high + room
}

/// A chart with room for its labels, and for a title unless that is empty.
pub(crate) fn chart<'a, 'b>(
    area: &'a Area<'b>,
    title: &str,
    x: Range<f64>,
    y: Range<f64>,
) -> Result<Chart<'a, 'b>, Box<dyn std::error::Error>> {
    let mut builder = ChartBuilder::on(area);
    builder.margin_top(10).margin_right(24).margin_left(12).margin_bottom(8);
    builder.x_label_area_size(44).y_label_area_size(58);
    if !title.is_empty() {
        builder.caption(title, ("sans-serif", 15, &INK));
    }
    Ok(builder.build_cartesian_2d(x, y)?)
}

/// Axes in the style of all pictures, each as (title, decimals of its ticks), and a grid where it hides nothing.
pub(crate) fn mesh(
    chart: &mut Chart<'_, '_>,
    (x, x_decimals): (&str, usize),
    (y, y_decimals): (&str, usize),
    grid: bool,
) -> Result<(), Box<dyn std::error::Error>> {
    let grid = if grid { FAINT.to_rgba() } else { TRANSPARENT.to_rgba() };
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .x_labels(6)
        .y_labels(6)
        .x_label_formatter(&|v| format!("{v:.x_decimals$}"))
        .y_label_formatter(&|v| format!("{v:.y_decimals$}"))
        .light_line_style(TRANSPARENT)
        .bold_line_style(grid)
        .axis_style(INK.mix(0.6))
        .label_style(("sans-serif", 13, &INK))
        .axis_desc_style(("sans-serif", 14, &INK))
        .draw()?;
    Ok(())
}

/// Text at a pixel, vertically by its top.
pub(crate) fn write(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: i32,
    align: HPos,
    color: &RGBColor,
) -> Result<(), Box<dyn std::error::Error>> {
    let style = TextStyle::from(("sans-serif", size).into_font()).color(color).pos(Pos::new(align, VPos::Top));
    area.draw(&Text::new(text.to_string(), at, style))?;
    Ok(())
}

/// A stroke of `color` and what it stands for; `at` is the middle of the stroke's left end.
pub(crate) fn legend(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    color: RGBColor,
) -> Result<(), Box<dyn std::error::Error>> {
    area.draw(&PathElement::new([at, (at.0 + 22, at.1)], color.stroke_width(3)))?;
    write(area, text, (at.0 + 30, at.1 - 7), 14, HPos::Left, &INK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moe_op::MoeSeconds;

    #[test]
    fn the_steep_beginning_is_left_out_and_short_curves_are_whole() {
        let point = |step| CurvePoint { step, val_loss: 1.0, moe: MoeSeconds::default() };
        let curve = (0..=40).map(|i| point(i * 10)).collect::<Vec<_>>();
        assert_eq!(drawn(&curve)[0].step, 40);
        assert_eq!(drawn(&curve[..1]).len(), 1);
        assert!(drawn(&[]).is_empty());
    }

    #[test]
    fn nothing_to_draw_is_still_a_picture() {
        let svg = loss(&[], None).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    }
}
