//! What the two charts share: a column of panels for each activation mode, a row for each group, bars for each policy.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::groups::Group;
use crate::failure::Failure;
use crate::plot::{Area, FAINT, INK, write};

pub(super) type Drawn = Result<(), Box<dyn std::error::Error>>;

const HEADER: i32 = 96;
const TITLE: i32 = 30;
const PLOT: i32 = 220;
const NAMES: i32 = 54;
const LEFT: i32 = 56;
const RIGHT: i32 = 20;
/// The least width of a policy's place, and what a character of its name takes.
const SLOT: i32 = 80;
const CHARACTER: i32 = 7;
/// From the top of a number to what it stands on.
const LABEL: i32 = 15;
const TICKS: f64 = 5.0;

/// A place for bars: from 0 to `top` upwards, policies to the right.
pub(super) struct Panel<'a, 'b> {
    area: &'a Area<'b>,
    left: i32,
    /// The pixel of 0.
    base: i32,
    /// Of a policy's place.
    slot: i32,
    top: f64,
}

impl Panel<'_, '_> {
    fn y(&self, value: f64) -> i32 {
        self.base - (f64::from(PLOT) * (value / self.top).min(1.05)).round() as i32
    }

    /// The left end and the width of a policy's place.
    pub(super) fn slot(&self, policy: usize) -> (i32, i32) {
        (self.left + self.slot * policy as i32, self.slot)
    }

    /// A bar from one value to another.
    pub(super) fn bar(&self, (x, width): (i32, i32), from: f64, to: f64, color: RGBColor) -> Drawn {
        Ok(self.area.draw(&Rectangle::new([(x, self.y(to)), (x + width, self.y(from))], color.filled()))?)
    }

    /// A line over a bar: upright with ends from `least` to `most`.
    pub(super) fn whisker(&self, x: i32, least: f64, most: f64) -> Drawn {
        let (low, high) = (self.y(least), self.y(most));
        for line in [[(x, low), (x, high)], [(x - 3, low), (x + 3, low)], [(x - 3, high), (x + 3, high)]] {
            self.area.draw(&PathElement::new(line, INK.stroke_width(1)))?;
        }
        Ok(())
    }

    /// A line across, from pixel to pixel.
    pub(super) fn level(&self, (from, to): (i32, i32), value: f64, width: u32) -> Drawn {
        let y = self.y(value);
        Ok(self.area.draw(&PathElement::new([(from, y), (to, y)], INK.stroke_width(width)))?)
    }

    /// `value`, or `line` where text just above `value` would stand on a line there.
    pub(super) fn clear_of(&self, value: f64, line: f64) -> f64 {
        let above = self.y(value) - self.y(line);
        if (0..LABEL).contains(&above) { line } else { value }
    }

    /// Text with its middle at `x`, just above `value`.
    pub(super) fn label(&self, x: i32, value: f64, text: &str) -> Drawn {
        write(self.area, text, (x, self.y(value) - LABEL), 11, HPos::Center, &INK)
    }
}

/// What a chart puts into its panels.
pub(super) trait Bars {
    /// Title of the whole, and a line beneath it.
    fn headline(&self) -> (&str, &str);
    /// Symbols and words, from the left end of the header's last line.
    fn legend(&self, area: &Area<'_>, at: (i32, i32)) -> Drawn;
    /// What stands above the panels of a group.
    fn title(&self, group: &Group<'_>) -> String {
        group.title()
    }
    /// What the height of a bar is, with its unit.
    fn unit(&self) -> &str;
    /// Highest value of a panel, or why there is nothing to draw.
    fn top(&self, group: &Group<'_>, mode: &str) -> Result<f64, &'static str>;
    /// The bars of one policy.
    fn draw(&self, panel: &Panel<'_, '_>, group: &Group<'_>, mode: &str, policy: &str, index: usize) -> Drawn;
}

/// The picture as SVG text.
pub(super) fn svg(groups: &[Group<'_>], bars: &dyn Bars) -> Result<String, Failure> {
    let mut svg = String::new();
    draw(&mut svg, groups, bars).map_err(|e| Failure::run(format!("cannot draw `{}`: {e}", bars.headline().0)))?;
    Ok(svg)
}

fn draw(svg: &mut String, groups: &[Group<'_>], bars: &dyn Bars) -> Drawn {
    let panels =
        || groups.iter().flat_map(|group| group.modes().into_iter().map(move |mode| group.policies(mode).len()));
    let columns = groups.iter().map(|group| group.modes().len()).max().unwrap_or(0).max(1) as i32;
    let names = groups.iter().flat_map(Group::all_policies).map(|policy| policy.chars().count());
    let slot = SLOT.max(CHARACTER * names.max().unwrap_or(0) as i32);
    let column = LEFT + RIGHT + slot * panels().max().unwrap_or(0).max(1) as i32;
    let row = TITLE + PLOT + NAMES;
    let size = ((columns * column).max(1000) as u32, (HEADER + row * groups.len().max(1) as i32) as u32);
    let area = SVGBackend::with_string(svg, size).into_drawing_area();
    area.fill(&WHITE)?;
    let (title, subtitle) = bars.headline();
    write(&area, title, (24, 10), 20, HPos::Left, &INK)?;
    write(&area, subtitle, (24, 38), 13, HPos::Left, &INK)?;
    bars.legend(&area, (24, 70))?;
    if groups.is_empty() {
        write(&area, "no cell is complete", (24, HEADER + TITLE), 14, HPos::Left, &INK)?;
    }
    for (i, group) in groups.iter().enumerate() {
        let y = HEADER + row * i as i32;
        write(&area, &format!("[{}] {}", i + 1, bars.title(group)), (24, y), 14, HPos::Left, &INK)?;
        for (j, mode) in group.modes().into_iter().enumerate() {
            panel(&area, (column * j as i32, y + TITLE), slot, (group, mode), bars)?;
        }
    }
    Ok(area.present()?)
}

fn panel(area: &Area<'_>, (x, y): (i32, i32), slot: i32, (group, mode): (&Group<'_>, &str), bars: &dyn Bars) -> Drawn {
    let policies = group.policies(mode);
    let (left, base) = (x + LEFT, y + PLOT);
    let right = left + slot * policies.len() as i32;
    let (top, step) = match bars.top(group, mode) {
        Ok(top) => ticks(top),
        Err(reason) => {
            write(area, &format!("{mode}: {reason}"), (left, y + PLOT / 2), 13, HPos::Left, &INK)?;
            return Ok(());
        }
    };
    let panel = Panel { area, left, base, slot, top };
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    for tick in 0..=(top / step).round() as i32 {
        let value = f64::from(tick) * step;
        let at = panel.y(value);
        area.draw(&PathElement::new([(left, at), (right, at)], FAINT.stroke_width(1)))?;
        write(area, &format!("{value:.decimals$}"), (left - 8, at - 6), 11, HPos::Right, &INK)?;
    }
    for (i, policy) in policies.iter().enumerate() {
        bars.draw(&panel, group, mode, policy, i)?;
        let (start, width) = panel.slot(i);
        write(area, policy, (start + width / 2, base + 6), 12, HPos::Center, &INK)?;
    }
    area.draw(&PathElement::new([(left, base), (right, base)], INK.stroke_width(1)))?;
    write(area, &format!("{mode}: {}", bars.unit()), (left, base + 24), 12, HPos::Left, &INK)
}

/// The end of the axis and the distance of its ticks: at least `top`, in round numbers.
fn ticks(top: f64) -> (f64, f64) {
    let raw = if top > 0.0 { top / TICKS } else { 0.2 };
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().map(|m| m * power).find(|step| *step >= raw).unwrap_or(10.0 * power);
    ((top / step).ceil().max(1.0) * step, step)
}

/// `color` mixed with white: `part` of it.
pub(super) fn lighter(color: RGBColor, part: f64) -> RGBColor {
    let mix = |c: u8| (255.0 - part * (255.0 - f64::from(c))).round() as u8;
    RGBColor(mix(color.0), mix(color.1), mix(color.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers_at_or_above_the_highest_bar() {
        for (top, expected) in
            [(1.0, (1.0, 0.2)), (1.05, (1.5, 0.5)), (87.0, (100.0, 20.0)), (0.3, (0.3, 0.1)), (0.0, (0.2, 0.2))]
        {
            let (end, step) = ticks(top);
            assert!((end - expected.0).abs() < 1e-9 && (step - expected.1).abs() < 1e-9, "{top}: {end}, {step}");
            assert!(end >= top * (1.0 - 1e-12));
        }
    }

    #[test]
    fn colours_go_from_white_to_themselves() {
        let color = RGBColor(10, 20, 30);
        assert_eq!((lighter(color, 0.0), lighter(color, 1.0)), (WHITE, color));
    }
}
