//! Load per rank before and after: one panel for each policy, all on the same scale.

use lrmoe::{Error, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::svg::{Area, Drawn, FAINT, FONT, INK, PALETTE, WIDTH, picture, round_up, write};
use super::table::short;

pub(crate) use super::svg::Series;

/// What stands before a policy.
const BEFORE: RGBColor = RGBColor(198, 198, 204);
const AFTER: RGBColor = PALETTE[0];
const HEADER: u32 = 72;
const PANEL: u32 = 230;

/// Bars for each rank.
#[derive(Debug, Clone)]
pub(crate) struct BarChart {
    pub(crate) title: String,
    /// What is counted, with its unit: `pairs computed`.
    pub(crate) quantity: String,
    /// Behind the bars of every panel: `[ranks]`.
    pub(crate) before: Series,
    /// One panel each: `[ranks]`.
    pub(crate) after: Vec<Series>,
}

impl BarChart {
    /// The picture as SVG text.
    ///
    /// # Errors
    /// [`Error::Shape`] without ranks or panels, or where a panel has another number of ranks; [`Error::Argument`] for negative
    /// numbers and such that are not finite.
    pub(crate) fn svg(&self) -> Result<String> {
        let ranks = self.before.values.len();
        if ranks == 0 || self.after.is_empty() {
            let got = format!("{ranks} ranks, {} panels", self.after.len());
            return Err(Error::shape("a bar chart", got, "at least one rank and one panel"));
        }
        std::iter::once(&self.before).chain(&self.after).try_for_each(|series| series.check(ranks))?;
        let columns = self.after.len().min(2);
        let rows = self.after.len().div_ceil(columns);
        picture(HEADER + rows as u32 * PANEL, |root| self.draw(root, rows, columns))
    }

    fn draw(&self, root: &Area<'_>, rows: usize, columns: usize) -> Drawn {
        let (header, panels) = root.split_vertically(HEADER);
        write(&header, &self.title, (24, 24), 20, HPos::Left)?;
        self.legend(&header)?;
        let top = self.after.iter().map(Series::max).fold(self.before.max(), f64::max);
        let top = round_up(top * 1.02);
        for (panel, after) in panels.split_evenly((rows, columns)).iter().zip(&self.after) {
            self.panel(panel, after, top)?;
        }
        Ok(())
    }

    fn legend(&self, header: &Area<'_>) -> Drawn {
        const Y: i32 = 54;
        let mut x = 24;
        for (color, text) in [(BEFORE, self.before.name.as_str()), (AFTER, "the policy of the panel")] {
            header.draw(&Rectangle::new([(x, Y - 6), (x + 22, Y + 6)], color.filled()))?;
            write(header, text, (x + 30, Y), 14, HPos::Left)?;
            x += 60 + 8 * text.chars().count() as i32;
        }
        header.draw(&PathElement::new([(x, Y), (x + 8, Y)], INK.stroke_width(1)))?;
        header.draw(&PathElement::new([(x + 14, Y), (x + 22, Y)], INK.stroke_width(1)))?;
        write(header, "mean of the policy", (x + 30, Y), 14, HPos::Left)?;
        let ranks = self.before.values.len();
        let right = format!("{ranks} {}", if ranks == 1 { "rank" } else { "ranks" });
        write(header, &right, (WIDTH as i32 - 24, 24), 14, HPos::Right)
    }

    fn panel(&self, area: &Area<'_>, after: &Series, top: f64) -> Drawn {
        let ranks = after.values.len();
        let mean = after.values.iter().sum::<f64>() / ranks as f64;
        let busiest = if mean > 0.0 { format!("busiest {:.2} x mean", after.max() / mean) } else { "no load".into() };
        let mut chart = ChartBuilder::on(area)
            .caption(format!("{}: {busiest}", after.name), (FONT, 15, &INK))
            .margin_top(6)
            .margin_right(24)
            .margin_left(12)
            .margin_bottom(6)
            .x_label_area_size(40)
            .y_label_area_size(62)
            .build_cartesian_2d(-0.75..ranks as f64 - 0.25, 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_desc("rank")
            .y_desc(self.quantity.as_str())
            .x_labels(ranks.min(17))
            .y_labels(5)
            .x_label_formatter(&|x| if x.fract() == 0.0 { format!("{x}") } else { String::new() })
            .y_label_formatter(&|y| short(*y))
            .light_line_style(TRANSPARENT)
            .bold_line_style(FAINT)
            .axis_style(INK.mix(0.6))
            .label_style((FONT, 12, &INK))
            .axis_desc_style((FONT, 13, &INK))
            .draw()?;
        for (values, color, half) in [(&self.before.values, BEFORE, 0.44), (&after.values, AFTER, 0.26)] {
            let bar = |(rank, &value): (usize, &f64)| {
                let x = rank as f64;
                Rectangle::new([(x - half, 0.0), (x + half, value)], color.filled())
            };
            chart.draw_series(values.iter().enumerate().map(bar))?;
        }
        let line = [(-0.75, mean), (ranks as f64 - 0.25, mean)];
        chart.draw_series(DashedLineSeries::new(line, 8, 6, INK.stroke_width(1)))?;
        Ok(())
    }
}
