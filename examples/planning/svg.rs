//! What the charts have in common: colours, text, checks of what they are given.

use std::error::Error as StdError;

use lrmoe::{Error, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(super) const INK: RGBColor = RGBColor(40, 40, 46);
pub(super) const FAINT: RGBColor = RGBColor(226, 226, 230);
pub(super) const WIDTH: u32 = 1080;
pub(super) const FONT: &str = "sans-serif";

/// Colours for up to eight kinds, of Okabe and Ito's palette: told apart by colour-blind readers.
pub(super) const PALETTE: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(40, 40, 46),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(130, 130, 138),
];

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Drawn<T = ()> = std::result::Result<T, Box<dyn StdError>>;

/// Numbers with a name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) values: Vec<f64>,
}

impl Series {
    pub(crate) fn new(name: impl Into<String>, values: Vec<f64>) -> Self {
        Self { name: name.into(), values }
    }

    /// Refuses another number of values than `length`, and values that are negative or not finite.
    pub(super) fn check(&self, length: usize) -> Result<()> {
        if self.values.len() != length {
            return Err(Error::shape(format!("values of `{}`", self.name), self.values.len(), length));
        }
        match self.values.iter().position(|v| !(v.is_finite() && *v >= 0.0)) {
            Some(i) => Err(Error::argument(format!("{}[{i}]", self.name), self.values[i], "finite numbers >= 0")),
            None => Ok(()),
        }
    }

    pub(super) fn max(&self) -> f64 {
        self.values.iter().copied().fold(0.0, f64::max)
    }
}

/// The picture as SVG text.
pub(super) fn picture(height: u32, draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String> {
    let mut svg = String::new();
    let drawn = {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE).map_err(Into::into).and_then(|()| draw(&root)).and_then(|()| Ok(root.present()?))
    };
    drawn.map_err(|e| Error::Input { what: "a chart".into(), reason: format!("cannot be drawn: {e}") })?;
    Ok(svg)
}

/// Text at a pixel, vertically by its middle.
pub(super) fn write(area: &Area<'_>, text: &str, at: (i32, i32), size: i32, align: HPos) -> Drawn {
    let style = TextStyle::from((FONT, size).into_font()).color(&INK).pos(Pos::new(align, VPos::Center));
    area.draw(&Text::new(text.to_string(), at, style))?;
    Ok(())
}

/// The least round number (1, 1.5, 2, 3, 4, 5, 6 or 8 times a power of ten) that is not below `x`; 1 for 0.
pub(super) fn round_up(x: f64) -> f64 {
    if x <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(x.log10().floor());
    [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0].into_iter().map(|m| m * power).find(|&r| r >= x).unwrap_or(10.0 * power)
}
