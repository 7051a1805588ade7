//! Lines over steps, one for each policy, each with its name and last value at its end.

use lrmoe::{Error, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::svg::{Area, Drawn, FAINT, FONT, INK, PALETTE, WIDTH, picture, round_up, write};
use super::table::short;

pub(crate) use super::svg::Series;

const HEIGHT: u32 = 460;
const HEADER: u32 = 48;
/// Room for the names at the lines' ends.
const NAMES: u32 = 220;
/// Pixels between the names of lines that end close together.
const SPACING: i32 = 18;
/// Pixels drawn and left out; lines that share a colour differ in these, and most others do too.
const DASHES: [(u32, u32); 4] = [(1, 0), (10, 4), (3, 4), (16, 8)];

/// Lines over the steps `first..first + N`.
#[derive(Debug, Clone)]
pub(crate) struct LineChart {
    pub(crate) title: String,
    /// Title of the x axis: `step`.
    pub(crate) x_label: String,
    /// Title of the y axis with its unit: `cumulative time in MoE layers (s)`.
    pub(crate) y_label: String,
    /// Where the first value of every line stands.
    pub(crate) first: f64,
    /// All of the same length, at least 1.
    pub(crate) lines: Vec<Series>,
    /// How the value at a line's end is written.
    pub(crate) format: fn(f64) -> String,
}

impl LineChart {
    /// The picture as SVG text.
    ///
    /// # Errors
    /// [`Error::Shape`] without lines or values, or where lines differ in length; [`Error::Argument`] for negative numbers and
    /// such that are not finite.
    pub(crate) fn svg(&self) -> Result<String> {
        let steps = self.lines.first().map_or(0, |line| line.values.len());
        if steps == 0 {
            return Err(Error::shape("a line chart", "nothing", "at least one line of at least one value"));
        }
        self.lines.iter().try_for_each(|line| line.check(steps))?;
        picture(HEIGHT, |root| self.draw(root))
    }

    fn draw(&self, root: &Area<'_>) -> Drawn {
        let (header, body) = root.split_vertically(HEADER);
        write(&header, &self.title, (24, 24), 20, HPos::Left)?;
        let (plot, names) = body.split_horizontally(WIDTH - NAMES);
        let steps = self.lines.iter().map(|line| line.values.len()).max().unwrap_or(0);
        let last = self.first + steps.saturating_sub(1) as f64;
        let right = if last > self.first { last } else { self.first + 1.0 };
        let top = round_up(self.lines.iter().map(Series::max).fold(0.0, f64::max) * 1.02);
        let mut chart = ChartBuilder::on(&plot)
            .margin_top(6)
            .margin_left(12)
            .margin_bottom(8)
            .x_label_area_size(44)
            .y_label_area_size(66)
            .build_cartesian_2d(self.first..right, 0.0..top)?;
        chart
            .configure_mesh()
            .x_desc(self.x_label.as_str())
            .y_desc(self.y_label.as_str())
            .x_labels(8)
            .y_labels(6)
            .x_label_formatter(&|x| if x.fract() == 0.0 { short(*x) } else { String::new() })
            .y_label_formatter(&|y| short(*y))
            .light_line_style(TRANSPARENT)
            .bold_line_style(FAINT)
            .axis_style(INK.mix(0.6))
            .label_style((FONT, 13, &INK))
            .axis_desc_style((FONT, 14, &INK))
            .draw()?;
        for (i, line) in self.lines.iter().enumerate() {
            let points = line.values.iter().enumerate().map(|(step, &y)| (self.first + step as f64, y));
            let style = PALETTE[i % PALETTE.len()].stroke_width(2);
            let (on, off) = dash(i);
            if off == 0 {
                chart.draw_series(LineSeries::new(points, style))?;
            } else {
                chart.draw_series(DashedLineSeries::new(points, on, off, style))?;
            }
            if steps == 1 {
                chart.draw_series([Circle::new((self.first, line.values[0]), 4, style.filled())])?;
            }
        }
        let ends = self.lines.iter().map(|line| line.values.last().copied().unwrap_or(0.0));
        let ends: Vec<i32> = ends.map(|y| chart.backend_coord(&(last, y)).1 - HEADER as i32).collect();
        let bottom = (HEIGHT - HEADER) as i32 - 52;
        self.write_names(&names, &ends, &apart(&ends, 12, bottom))
    }

    /// Names at the heights `at`, each joined to where its line ends.
    fn write_names(&self, area: &Area<'_>, ends: &[i32], at: &[i32]) -> Drawn {
        for (i, line) in self.lines.iter().enumerate() {
            let color = PALETTE[i % PALETTE.len()];
            area.draw(&PathElement::new([(2, ends[i]), (16, at[i])], color.mix(0.5).stroke_width(1)))?;
            let (on, off) = dash(i);
            let mut x = 18_u32;
            while x < 42 {
                let to = if off == 0 { 42 } else { (x + on).min(42) };
                area.draw(&PathElement::new([(x as i32, at[i]), (to as i32, at[i])], color.stroke_width(3)))?;
                x = to + off;
            }
            let value = line.values.last().copied().unwrap_or(0.0);
            write(area, &format!("{}: {}", line.name, (self.format)(value)), (50, at[i]), 14, HPos::Left)?;
        }
        Ok(())
    }
}

fn dash(line: usize) -> (u32, u32) {
    DASHES[(line + line / PALETTE.len()) % DASHES.len()]
}

/// Heights near `ends`, in the same order from top to bottom, [`SPACING`] apart and between `top` and `bottom` where there is
/// room for all.
fn apart(ends: &[i32], top: i32, bottom: i32) -> Vec<i32> {
    let mut order: Vec<usize> = (0..ends.len()).collect();
    order.sort_by_key(|&i| (ends[i], i));
    // Pushing all down and pushing all up are both far enough apart, so halfway between is too.
    let (mut down, mut up) = (ends.to_vec(), ends.to_vec());
    push(&mut down, &order, top, 1);
    order.reverse();
    push(&mut up, &order, -bottom, -1);
    let mut at: Vec<i32> = down.iter().zip(&up).map(|(d, u)| (d + u).div_euclid(2)).collect();
    push(&mut at, &order, -bottom, -1);
    order.reverse();
    push(&mut at, &order, top, 1);
    at
}

/// Moves heights down (`sign` 1) or up (-1), in `order`, to at least `free` and [`SPACING`] beyond the one before.
fn push(at: &mut [i32], order: &[usize], mut free: i32, sign: i32) {
    for &i in order {
        let height = (sign * at[i]).max(free);
        at[i] = sign * height;
        free = height + SPACING;
    }
}
