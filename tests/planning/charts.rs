//! Tables and charts of the planning examples. `LRMOE_CHARTS_DIR` names a folder to look at the charts in.

use libtest_mimic::Trial;

use crate::planning::bars::BarChart;
use crate::planning::lines::{LineChart, Series};
use crate::planning::table::{Table, bytes, seconds, short, whole};

pub(crate) fn trials() -> Vec<Trial> {
    crate::trials(
        "charts",
        &[
            ("numbers_have_units", numbers_have_units),
            ("tables_align", tables_align),
            ("bars_of_all_sizes", bars_of_all_sizes),
            ("lines_of_all_sizes", lines_of_all_sizes),
            ("what_cannot_be_drawn_is_refused", what_cannot_be_drawn_is_refused),
        ],
    )
}

fn numbers_have_units() {
    let found = [0, 1023, 1024, 1536, 24 << 30, (1 << 20) - 1, u64::MAX].map(bytes);
    assert_eq!(found, ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "24.00 GiB", "1.00 MiB", "16.00 EiB"]);
    let found =
        [0.0, 1.234e-9, 2.5e-5, 0.000_999_9, 0.001_23, 0.9999, 1.5, 119.4, 125.0, 3599.6, 12_000.0].map(seconds);
    let expected = ["0 s", "1.234 ns", "25.000 us", "1.000 ms", "1.230 ms", "1.000 s", "1.500 s", "119.400 s"];
    assert_eq!(found[..8], expected);
    assert_eq!(found[8..], ["2 min 5 s", "1 h 0 min", "3 h 20 min"]);
    assert_eq!([0, 999, 1000, 1_234_567].map(whole), ["0", "999", "1,000", "1,234,567"]);
    let found = [0.0, 2.5e-7, 0.012, 0.25, 12.0, 999.6, 1234.0, 65_536.0, 2e6].map(short);
    assert_eq!(found, ["0", "2.5e-7", "0.012", "0.25", "12", "1k", "1.23k", "65.5k", "2M"]);
}

fn tables_align() {
    let mut table = Table::new(["policy", "time"]);
    table.row(["fixed", "12.5 ms"]);
    table.row(["lrmoe", "3 ms"]);
    table.row(["symi"]);
    let expected = "policy     time\n---------------\nfixed   12.5 ms\nlrmoe      3 ms\nsymi\n";
    assert_eq!(table.to_string(), expected);
}

/// Loads that fall off slowly, as those of ranks do.
fn loads(ranks: usize, skew: f64) -> Vec<f64> {
    (0..ranks).map(|r| 65_536.0 * (1.0 + skew * ((r * 7 % ranks) as f64 / ranks as f64 - 0.5))).collect()
}

fn bars_of_all_sizes() {
    for (ranks, names) in [(1, 1), (8, 2), (64, 5)] {
        let policies = ["fixed", "lrmoe", "eplb", "symi", "llep"];
        let skews = [1.8, 0.02, 0.3, 0.6, 0.2];
        let after = policies.iter().zip(skews).take(names).map(|(name, skew)| Series::new(*name, loads(ranks, skew)));
        let chart = BarChart {
            title: "Load per rank, forward".into(),
            quantity: "pairs computed".into(),
            before: Series::new("before: contiguous owners", loads(ranks, 1.8)),
            after: after.collect(),
        };
        keep(
            &format!("bars_{ranks}"),
            &chart.svg().unwrap(),
            &["rank", "pairs computed", "fixed: busiest", "before: "],
        );
    }
    let nothing = Series::new("none", vec![0.0; 3]);
    let chart =
        BarChart { title: String::new(), quantity: String::new(), before: nothing.clone(), after: vec![nothing] };
    assert!(chart.svg().unwrap().contains("no load"));
}

fn lines(steps: usize, names: usize) -> LineChart {
    let policies = ["fixed", "lrmoe", "symi", "symi-drop", "eplb", "eplb-hier", "llep", "eighth", "ninth"];
    let value = |i: usize, step: usize| (step + 1) as f64 * (0.012 + 0.0007 * (i * 5 % 9) as f64);
    let line = |i: usize| Series::new(policies[i], (0..steps).map(|step| value(i, step)).collect());
    LineChart {
        title: "Predicted time in MoE layers".into(),
        x_label: "step".into(),
        y_label: "cumulative time (s)".into(),
        first: 1.0,
        lines: (0..names).map(line).collect(),
        format: seconds,
    }
}

fn lines_of_all_sizes() {
    for (steps, names) in [(1, 1), (2, 3), (400, 7), (1000, 9)] {
        let svg = lines(steps, names).svg().unwrap();
        keep(&format!("lines_{steps}"), &svg, &["step", "cumulative time (s)", "fixed: "]);
    }
}

fn what_cannot_be_drawn_is_refused() {
    assert!(lines(0, 1).svg().is_err() && lines(5, 0).svg().is_err());
    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        let mut chart = lines(5, 2);
        chart.lines[1].values[3] = bad;
        let error = chart.svg().unwrap_err().to_string();
        assert!(error.contains("lrmoe[3]"), "{error}");
    }
    let mut chart = lines(5, 2);
    chart.lines[1].values.pop();
    assert!(chart.svg().is_err());
}

fn keep(name: &str, svg: &str, texts: &[&str]) {
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for text in texts {
        assert!(svg.contains(text), "{name} lacks {text:?}");
    }
    if let Some(folder) = std::env::var_os("LRMOE_CHARTS_DIR") {
        std::fs::write(std::path::Path::new(&folder).join(format!("{name}.svg")), svg).unwrap();
    }
}
