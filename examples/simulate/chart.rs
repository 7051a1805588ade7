//! Cumulative time of the policies over the steps.

use lrmoe::Result;

use crate::planning::lines::{LineChart, Series};
use crate::planning::table::seconds;
use crate::report::CaseReport;

/// A line for each feasible policy; nothing where none is.
///
/// # Errors
/// As [`LineChart::svg`].
pub(crate) fn svg(case: &CaseReport) -> Result<Option<String>> {
    let line = |report: &crate::report::PolicyReport| {
        let run = report.run.as_ref()?;
        let mut sum = 0.0;
        let cumulative = run.series.iter().flatten().map(|step| {
            sum += run.extra_steps * step.seconds;
            sum
        });
        Some(Series::new(report.policy.clone(), cumulative.collect()))
    };
    let lines: Vec<Series> = case.policies.iter().filter_map(line).collect();
    if lines.is_empty() {
        return Ok(None);
    }
    let chart = LineChart {
        title: format!("{}, {}, {} ranks", case.routing, case.model, case.ranks),
        x_label: "steps".into(),
        y_label: "predicted time of one MoE layer, cumulative (s)".into(),
        first: 1.0,
        lines,
        format: seconds,
    };
    chart.svg().map(Some)
}

/// A file name that says which case it is.
pub(crate) fn file_name(case: &CaseReport) -> String {
    let model = std::path::Path::new(&case.model).with_extension("");
    let model = if case.model.ends_with(".json") { model.to_string_lossy().into_owned() } else { case.model.clone() };
    let text = format!("{}-{model}-{}ranks", case.routing, case.ranks);
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '_' { c } else { '-' };
    format!("{}.svg", text.chars().map(plain).collect::<String>().trim_start_matches(['-', '.']))
}
