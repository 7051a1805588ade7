//! targets.svg and memory.svg.

use lrmoe::memory::Category;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::grid::GIB;
use super::groups::{Group, Spread, groups};
use super::names::{SYMI, is_ours};
use super::panels::{Bars, Drawn, Panel, lighter, svg};
use super::summary::Row;
use super::targets::{LAST, percent};
use crate::experiment::cell::{Cell, PLANNED, PolicyRun, TARGETS};
use crate::failure::Failure;
use crate::plot::{Area, INK, write};

const OURS: RGBColor = RGBColor(213, 94, 0);
const OTHERS: RGBColor = RGBColor(0, 90, 160);
/// Of the targets, from the first to the last.
const SHADES: [f64; 3] = [0.3, 0.55, 1.0];
/// From the bottom of a bar: first those of the subtotal, then the others. Of Okabe and Ito's palette.
const STACK: [(Category, RGBColor); 8] = [
    (Category::Weights, RGBColor(0, 114, 178)),
    (Category::Replicas, RGBColor(86, 180, 233)),
    (Category::TokenBuffers, RGBColor(213, 94, 0)),
    (Category::Stash, RGBColor(230, 159, 0)),
    (Category::Exchange, RGBColor(204, 121, 167)),
    (Category::Scratch, RGBColor(0, 158, 115)),
    (Category::Gradients, RGBColor(176, 176, 184)),
    (Category::Optimizer, RGBColor(214, 214, 220)),
];

/// MoE seconds to each target over those of `symi`, as SVG text.
pub(super) fn targets(cells: &[Cell]) -> Result<String, Failure> {
    svg(&groups(cells), &Targets)
}

/// Bytes of the real model's fullest rank by category, as SVG text.
pub(super) fn memory(cells: &[Cell]) -> Result<String, Failure> {
    svg(&groups(cells), &Memory)
}

/// The modes of a group share a scale, with room for a number above the highest bar. `None` where `mode` has no bar.
fn top(group: &Group<'_>, mode: &str, highest: impl Fn(&str) -> f64) -> Option<f64> {
    (highest(mode) > 0.0).then(|| 1.1 * group.modes().into_iter().map(highest).fold(0.0, f64::max))
}

struct Targets;

impl Bars for Targets {
    fn headline(&self) -> (&str, &str) {
        (
            "MoE seconds to a fixed validation loss, relative to symi",
            "compute: measured (fit); planning: measured (scaled); traffic: modelled; mean over seeds of the ratio within a seed",
        )
    }

    fn legend(&self, area: &Area<'_>, (x, y): (i32, i32)) -> Drawn {
        for (i, (shade, fraction)) in SHADES.into_iter().zip(TARGETS).enumerate() {
            let x = x + 200 * i as i32;
            for (j, color) in [OTHERS, OURS].into_iter().enumerate() {
                let x = x + 16 * j as i32;
                area.draw(&Rectangle::new([(x, y), (x + 14, y + 12)], lighter(color, shade).filled()))?;
            }
            let text = format!("loss at {} of plain steps", percent(fraction));
            write(area, &text, (x + 38, y), 12, HPos::Left, &INK)?;
        }
        let x = x + 620;
        area.draw(&PathElement::new([(x, y), (x, y + 12)], INK.stroke_width(1)))?;
        area.draw(&PathElement::new([(x - 3, y), (x + 3, y)], INK.stroke_width(1)))?;
        area.draw(&PathElement::new([(x - 3, y + 12), (x + 3, y + 12)], INK.stroke_width(1)))?;
        write(
            area,
            "least to most over seeds; n/r: not reached; (2/3): with two of three seeds",
            (x + 12, y),
            12,
            HPos::Left,
            &INK,
        )
    }

    fn unit(&self) -> &str {
        "MoE s over those of symi"
    }

    fn top(&self, group: &Group<'_>, mode: &str) -> Result<f64, &'static str> {
        let highest = |mode: &str| {
            let rows = group.policies(mode).into_iter().flat_map(|policy| rows(group, mode, policy));
            rows.filter_map(|row| row.over(SYMI, PLANNED)).map(|s| s.max).fold(0.0, f64::max)
        };
        let was_run = group.runs(SYMI, mode).next().is_some();
        top(group, mode, highest).ok_or(if was_run { "symi reached no target" } else { "symi was not run" })
    }

    fn draw(&self, panel: &Panel<'_, '_>, group: &Group<'_>, mode: &str, policy: &str, index: usize) -> Drawn {
        let (x, width) = panel.slot(index);
        let bar = (width - 16) / 3;
        let color = if is_ours(policy) { OURS } else { OTHERS };
        if index == 0 {
            panel.level((x, x + width * group.policies(mode).len() as i32), 1.0, 1)?;
        }
        if let Some(stopped) = group.stopped(policy, mode) {
            return panel.label(x + width / 2, 0.0, stopped.word());
        }
        for (i, row) in rows(group, mode, policy).into_iter().enumerate() {
            let x = x + 8 + bar * i as i32;
            let middle = x + bar / 2;
            if let Some(s) = row.over(SYMI, PLANNED) {
                panel.bar((x, bar - 1), 0.0, s.mean, lighter(color, SHADES[i]))?;
                if s.seeds > 1 {
                    panel.whisker(middle, s.min, s.max)?;
                }
                if i == LAST {
                    let (seeds, _) = row.seeds();
                    let part = if s.seeds < seeds { format!(" ({}/{seeds})", s.seeds) } else { String::new() };
                    panel.label(middle, panel.clear_of(s.max, 1.0), &format!("{:.2}{part}", s.mean))?;
                }
            } else {
                // Where symi did not get there, nothing is relative to it.
                panel.label(middle, 0.0, if row.step().is_none() { "n/r" } else { "-" })?;
            }
        }
        Ok(())
    }
}

fn rows<'a>(group: &'a Group<'a>, mode: &'a str, policy: &'a str) -> Vec<Row<'a>> {
    (0..TARGETS.len()).map(|target| Row { group, policy, mode, target }).collect()
}

struct Memory;

impl Bars for Memory {
    fn headline(&self) -> (&str, &str) {
        (
            "Memory of the real model's MoE layers: the fullest rank at its fullest step",
            "modelled: reserved by the plans; mean over seeds; the line and its number: the subtotal at the rank and step where that is largest",
        )
    }

    fn legend(&self, area: &Area<'_>, (mut x, y): (i32, i32)) -> Drawn {
        for (category, color) in STACK {
            let name = category.to_string().replace('_', " ");
            area.draw(&Rectangle::new([(x, y), (x + 14, y + 12)], color.filled()))?;
            write(area, &name, (x + 20, y), 12, HPos::Left, &INK)?;
            x += 40 + 7 * name.chars().count() as i32;
        }
        area.draw(&PathElement::new([(x, y + 6), (x + 18, y + 6)], INK.stroke_width(2)))?;
        write(area, "subtotal: the first six", (x + 24, y), 12, HPos::Left, &INK)
    }

    fn title(&self, group: &Group<'_>) -> String {
        format!("{}: {}", group.title(), group.real_model())
    }

    fn unit(&self) -> &str {
        "GiB"
    }

    fn top(&self, group: &Group<'_>, mode: &str) -> Result<f64, &'static str> {
        let highest = |mode: &str| {
            let bytes = |run: &PolicyRun| {
                let memory = &run.real_memory;
                memory.peak_bytes.values().sum::<u64>().max(memory.subtotal_bytes) as f64
            };
            let spread = |policy| group.spread(policy, mode, |_, run| Some(bytes(run) / GIB));
            group.policies(mode).into_iter().filter_map(spread).map(|s| s.mean).fold(0.0, f64::max)
        };
        top(group, mode, highest).ok_or("no policy ran to its end")
    }

    fn draw(&self, panel: &Panel<'_, '_>, group: &Group<'_>, mode: &str, policy: &str, index: usize) -> Drawn {
        let (x, width) = panel.slot(index);
        if let Some(stopped) = group.stopped(policy, mode) {
            return panel.label(x + width / 2, 0.0, stopped.word());
        }
        let gibibytes = |of: &dyn Fn(&PolicyRun) -> u64| -> Option<Spread> {
            group.spread(policy, mode, |_, run| Some(of(run) as f64 / GIB))
        };
        let mut from = 0.0;
        for (category, color) in STACK {
            let name = category.to_string();
            let bytes = gibibytes(&|run| run.real_memory.peak_bytes.get(&name).copied().unwrap_or(0));
            let to = from + bytes.map_or(0.0, |s| s.mean);
            panel.bar((x + 14, width - 28), from, to, color)?;
            from = to;
        }
        match gibibytes(&|run| run.real_memory.subtotal_bytes) {
            Some(s) => {
                panel.level((x + 8, x + width - 8), s.mean, 2)?;
                panel.label(x + width / 2, from.max(s.mean), &format!("{:.1}", s.mean))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::cell;
    use super::*;

    fn count(text: &str, what: &str) -> usize {
        text.matches(what).count()
    }

    #[test]
    fn every_policy_and_group_is_named_and_what_is_missing_is_said() {
        let mut cells = vec![cell(1), cell(2), cell(3)];
        cells[2].key.tokens = 1152;
        for svg in [targets(&cells).unwrap(), memory(&cells).unwrap()] {
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
            for policy in ["fixed-waves", "symi", "lrmoe-1copy", "lrmoe"] {
                // Two groups of two modes.
                assert_eq!(count(&svg, &format!("\n{policy}\n")), 4, "{policy}");
            }
            assert!(svg.contains("seeds 1, 2") && svg.contains("seed 3") && svg.contains("1152 tokens"));
            assert_eq!((count(&svg, "\nno fit\n"), count(&svg, "modelled")), (2, 1));
        }
        let svg = targets(&cells).unwrap();
        // Both lrmoe policies under Recompute, three targets, two groups.
        assert_eq!(count(&svg, "\nn/r\n"), 12);
        assert_eq!(count(&svg, "\n1.00\n"), 4);
        // With one of the two seeds of the first group, symi stops before the last target.
        cells[0].runs.iter_mut().filter(|r| r.policy == "symi").for_each(|r| r.curve.truncate(18));
        let svg = targets(&cells).unwrap();
        assert_eq!((count(&svg, "\n1.00 (1/2)\n"), count(&svg, "\n-\n")), (2, 0));
        cells[1].runs.iter_mut().filter(|r| r.policy == "symi").for_each(|r| r.curve.truncate(18));
        let svg = targets(&cells).unwrap();
        // fixed-waves in both modes, fixed under Recompute, and both lrmoe policies under Stash.
        assert_eq!((count(&svg, "\n-\n"), count(&svg, "\nn/r\n")), (5, 14));
    }

    #[test]
    fn bars_are_as_high_as_their_numbers() {
        let cells = [cell(1)];
        let svg = memory(&cells).unwrap();
        // Eight categories for each of the nine runs that fit.
        let heights: Vec<f64> = svg
            .lines()
            .filter(|line| line.starts_with("<rect") && line.contains(&format!("width=\"{}\"", 80 - 28)))
            .filter_map(|line| line.split("height=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(heights.len(), 8 * 9);
        // The sample's categories take 1 to 8 MiB in the order of reports; weights are first and optimizer is last.
        let run = &heights[8..16];
        assert!((run[7] / run[0] - 4.0).abs() < 0.5, "{run:?}");
    }

    #[test]
    fn memory_is_that_of_the_real_model() {
        let mut cells = [cell(1)];
        let svg = memory(&cells).unwrap();
        assert!(svg.contains("qwen3-30b-a3b itself, 48 layers, 36864 tokens a rank") && svg.contains("stash: GiB"));
        // The subtotal of eight runs, and that of fixed-waves under Stash.
        assert_eq!((count(&svg, "\n20.0\n"), count(&svg, "\n40.0\n")), (8, 1));
        cells[0].runs.iter_mut().for_each(|run| run.memory.subtotal_bytes *= 7);
        assert_eq!(memory(&cells).unwrap(), svg);
    }

    #[test]
    fn what_ended_is_told_from_what_does_not_fit_and_names_with_slots_have_room() {
        let mut cells = [cell(1)];
        cells[0].runs[0].infeasible = Some("diverged".into());
        let slots = PolicyRun { policy: "eplb-hierarchical:20".into(), ..cells[0].runs[2].clone() };
        cells[0].runs.insert(3, slots);
        for svg in [targets(&cells).unwrap(), memory(&cells).unwrap()] {
            assert_eq!((count(&svg, "\nended\n"), count(&svg, "\nno fit\n")), (1, 0));
            assert_eq!(count(&svg, "\neplb-hierarchical:20\n"), 1);
        }
    }

    #[test]
    fn nothing_to_draw_is_still_a_picture() {
        for svg in [targets(&[]).unwrap(), memory(&[]).unwrap()] {
            assert!(svg.contains("no cell is complete"));
        }
        let mut cells = [cell(1)];
        cells[0].runs.retain(|run| run.policy == "fixed" && run.activations == "stash");
        assert!(targets(&cells).unwrap().contains("symi was not run"));
        assert!(memory(&cells).unwrap().contains("no policy ran to its end"));
        let mut cells = [cell(1)];
        cells[0].runs.iter_mut().for_each(|run| run.curve.truncate(2));
        assert!(targets(&cells).unwrap().contains("symi reached no target"));
    }
}
