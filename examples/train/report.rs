//! report.json and the table at the end: the same numbers, one for programs, one for people.

use lrmoe::Retention;
use lrmoe::backend::Choice;
use lrmoe::memory::Category;
use serde_json::{Map, Value, json};

use crate::cli::Options;
use crate::corpus::Corpus;
use crate::run::{Run, TARGET, target_step};

/// Everything a report is made of.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    pub(crate) options: &'a Options,
    pub(crate) corpus: &'a Corpus,
    pub(crate) device: &'a Choice,
    pub(crate) runs: &'a [Run],
    /// Whether every run that was asked for ended.
    pub(crate) complete: bool,
}

/// The loss the runs are timed to; `None` as long as the plain run did not get far enough to set it.
pub(crate) fn target_loss(options: &Options, runs: &[Run]) -> Option<f64> {
    let from_plain = || runs.first()?.at(target_step(options.steps, TARGET)).map(|p| p.val_loss);
    options.target_loss.or_else(from_plain)
}

impl Report<'_> {
    /// See [`target_loss`].
    pub(crate) fn target_loss(&self) -> Option<f64> {
        target_loss(self.options, self.runs)
    }

    /// The text of report.json. What was not reached or not measured is null.
    pub(crate) fn to_json(&self) -> Value {
        let o = self.options;
        json!({
            "machine": machine(),
            "complete": self.complete,
            "corpus": {
                "name": self.corpus.name, "files": self.corpus.files, "bytes": self.corpus.len(),
                "train_bytes": self.corpus.train_len(), "fnv1a64": format!("{:016x}", self.corpus.checksum),
            },
            "model": {
                "hidden": o.hidden, "intermediate": o.hidden, "layers": o.layers, "experts": o.experts(), "top_k": o.top_k(),
                "batch": o.batch(), "context": crate::corpus::CONTEXT, "planned_steps": o.steps, "alpha": o.alpha,
            },
            "runs": self.runs.iter().map(|r| self.run_json(r)).collect::<Vec<_>>(),
        })
    }

    fn run_json(&self, run: &Run) -> Value {
        let target = self.target_loss();
        let reached = target.and_then(|t| run.reached(t));
        let measured = (run.steps > 0).then_some(());
        let retain = match run.retain {
            Retention::Fraction(f) => json!(f),
            noise @ Retention::Noise { .. } => json!(noise.to_string()),
        };
        let bytes = |category: Category| run.peak.map(|peak| peak.at_peak[category as usize]);
        let peak = Category::ALL.map(|category| (category.to_string(), json!(bytes(category))));
        json!({
            "policy": run.policy,
            "select": run.select.to_string(),
            "retain": retain,
            "seed": self.options.seed,
            "device": self.device.name,
            "steps": run.steps,
            "target_loss": target,
            "reached_step": reached.map(|p| p.step),
            "moe_s_to_target": reached.map(crate::run::CurvePoint::moe_s),
            "moe_forward_s": measured.map(|()| run.moe.forward),
            "moe_backward_s": measured.map(|()| run.moe.backward),
            "routed_pairs": measured.map(|()| run.routed_pairs),
            "backward_pairs": measured.map(|()| run.backward_pairs),
            "peak_bytes": peak.into_iter().collect::<Map<_, _>>(),
            "final_val_loss": run.curve.last().map(|p| p.val_loss),
            "curve": run.curve.iter()
                .map(|p| json!({"step": p.step, "val_loss": p.val_loss, "moe_s": p.moe_s()}))
                .collect::<Vec<_>>(),
        })
    }

    /// The table, and beneath it one sentence for each run that did not reach the target.
    pub(crate) fn to_table(&self) -> String {
        let target = self.target_loss();
        let head = [
            "run",
            "select",
            "retain",
            "steps*",
            "MoE s* (fwd + bwd)",
            "steps",
            "MoE s",
            "backward pairs",
            "peak",
            "val loss",
        ];
        let mut rows = vec![head.map(String::from)];
        let mut notes = String::new();
        for run in self.runs {
            let reached = target.and_then(|t| run.reached(t));
            let to_target = reached.map(|p| format!("{:.1} ({:.1} + {:.1})", p.moe_s(), p.moe.forward, p.moe.backward));
            let loss = run.curve.last().map(|p| p.val_loss);
            rows.push([
                run.policy.into(),
                run.select.to_string(),
                run.retain.to_string(),
                reached.map_or("not reached".into(), |p| p.step.to_string()),
                to_target.unwrap_or("-".into()),
                run.steps.to_string(),
                format!("{:.1}", run.moe.forward + run.moe.backward),
                share(run.backward_pairs, run.routed_pairs),
                run.peak.map_or("-".into(), |peak| mebibytes(peak.peak_total())),
                loss.map_or("-".into(), |l| format!("{l:.4}")),
            ]);
            if let (None, Some(target), Some(loss)) = (reached, target, loss) {
                let best = run.curve.iter().map(|p| p.val_loss).fold(loss, f64::min);
                let (policy, steps) = (run.policy, run.steps);
                notes += &format!(
                    "\n{policy} did not reach {target:.4} in {steps} steps; its best validation loss was {best:.4}."
                );
            }
        }
        let target = match (target, self.options.target_loss) {
            (Some(t), Some(_)) => format!("a validation loss of {t:.4} (--target-loss)"),
            (Some(t), None) => format!("a validation loss of {t:.4}, the plain run's at 95 % of its steps"),
            (None, _) => "a target that was not set: the plain run did not get to 95 % of its steps".into(),
        };
        format!("{}* to {target}{notes}", align(&rows))
    }
}

/// Left-aligned first column, right-aligned others.
fn align(rows: &[[String; 10]]) -> String {
    let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(i, cell)| {
            let width = width(i);
            if i == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text += &cells.collect::<Vec<_>>().join("  ");
        text += "\n";
    }
    text
}

fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".into();
    }
    format!("{part} ({:.0} %)", 100.0 * part as f64 / whole as f64)
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// What the timings were taken on.
pub(crate) fn machine() -> Value {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        info.lines().find(|l| l.starts_with("model name")).and_then(|l| l.split_once(": ")).map(|(_, name)| name);
    json!({
        "cpu": name, "threads": rayon::current_num_threads(),
        "arch": std::env::consts::ARCH, "os": std::env::consts::OS,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use lrmoe::memory::Accountant;

    use super::*;
    use crate::moe_op::MoeSeconds;
    use crate::run::CurvePoint;

    const RUN_KEYS: [&str; 16] = [
        "policy",
        "select",
        "retain",
        "seed",
        "device",
        "steps",
        "target_loss",
        "reached_step",
        "moe_s_to_target",
        "moe_forward_s",
        "moe_backward_s",
        "routed_pairs",
        "backward_pairs",
        "peak_bytes",
        "final_val_loss",
        "curve",
    ];
    const PEAK_KEYS: [&str; 8] =
        ["weights", "gradients", "replicas", "optimizer", "token_buffers", "stash", "exchange", "scratch"];

    fn run(policy: &'static str, retain: Retention, losses: &[(u64, f64)], options: &Options) -> Run {
        let mut run = Run::new(policy, lrmoe::Selection::Unbiased, retain, options);
        let moe = |step: u64| MoeSeconds { forward: step as f64, backward: 2.0 * step as f64 };
        run.curve = losses
            .iter()
            .map(|(step, val_loss)| CurvePoint { step: *step, val_loss: *val_loss, moe: moe(*step) })
            .collect();
        run.steps = losses.last().map_or(0, |l| l.0);
        run.moe = moe(run.steps);
        (run.routed_pairs, run.backward_pairs) = (run.steps * 8, run.steps * 4);
        run
    }

    fn report(args: &[&str], make: impl Fn(&Options) -> Vec<Run>) -> (Value, String) {
        let options = Options::try_parse_from(["train"].iter().chain(args)).unwrap();
        let runs = make(&options);
        let device = Choice { name: "cpu".into(), refused: Vec::new() };
        let corpus = Corpus::embedded().unwrap();
        let report = Report { options: &options, corpus: &corpus, device: &device, runs: &runs, complete: true };
        (report.to_json(), report.to_table())
    }

    #[test]
    fn the_schema_is_exact() {
        let (report, _) =
            report(&["--steps", "100"], |o| vec![run("plain", Retention::Fraction(1.0), &[(0, 5.0), (95, 2.0)], o)]);
        let run = report["runs"][0].as_object().unwrap();
        assert_eq!(run.keys().map(String::as_str).collect::<std::collections::BTreeSet<_>>(), RUN_KEYS.into());
        let peak = run["peak_bytes"].as_object().unwrap();
        assert_eq!(peak.keys().map(String::as_str).collect::<std::collections::BTreeSet<_>>(), PEAK_KEYS.into());
        assert_eq!(run["curve"][1], json!({"step": 95, "val_loss": 2.0, "moe_s": 285.0}));
        assert!(report["machine"].is_object() && report["corpus"]["bytes"].as_u64().unwrap() > 0);
        assert_eq!(report["corpus"]["fnv1a64"].as_str().unwrap().len(), 16);
    }

    #[test]
    fn a_target_reached_gives_numbers_one_not_reached_gives_nulls() {
        let (report, table) = report(&["--steps", "100"], |o| {
            let plain = run("plain", Retention::Fraction(1.0), &[(0, 5.0), (50, 3.0), (95, 2.0), (100, 1.9)], o);
            let lrmoe = run("lrmoe", Retention::noise(0.3), &[(0, 5.0), (50, 3.1), (95, 2.2), (100, 2.1)], o);
            vec![plain, lrmoe]
        });
        let [plain, lrmoe] = [&report["runs"][0], &report["runs"][1]];
        assert_eq!((&plain["target_loss"], &lrmoe["target_loss"]), (&json!(2.0), &json!(2.0)));
        assert_eq!((&plain["reached_step"], &plain["moe_s_to_target"]), (&json!(95), &json!(285.0)));
        assert_eq!((&lrmoe["reached_step"], &lrmoe["moe_s_to_target"]), (&Value::Null, &Value::Null));
        assert_eq!((&plain["retain"], &lrmoe["retain"]), (&json!(1.0), &json!("noise:0.3")));
        assert!(table.contains("not reached") && table.contains("lrmoe did not reach 2.0000 in 100 steps"), "{table}");
        assert!(table.contains("285.0 (95.0 + 190.0)"), "{table}");
    }

    #[test]
    fn what_was_not_measured_is_null_not_zero() {
        let (report, table) = report(&["--steps", "100"], |o| vec![run("plain", Retention::Fraction(1.0), &[], o)]);
        let plain = &report["runs"][0];
        for key in ["target_loss", "reached_step", "moe_s_to_target", "moe_forward_s", "moe_backward_s", "routed_pairs"]
        {
            assert!(plain[key].is_null(), "{key} is {}", plain[key]);
        }
        assert!(plain["backward_pairs"].is_null() && plain["final_val_loss"].is_null());
        assert!(PEAK_KEYS.iter().all(|k| plain["peak_bytes"][k].is_null()));
        assert!(table.contains("a target that was not set"), "{table}");
    }

    #[test]
    fn measured_peaks_are_reported_and_the_target_can_be_given() {
        let (report, _) = report(&["--steps", "10", "--target-loss", "3"], |o| {
            let account = Accountant::new(None);
            let _stash = account.reserve(Category::Stash, "stash", 7, 7).unwrap();
            vec![Run {
                peak: Some(account.report()),
                ..run("plain", Retention::Fraction(1.0), &[(0, 5.0), (4, 3.0), (10, 1.0)], o)
            }]
        });
        let plain = &report["runs"][0];
        assert_eq!((&plain["target_loss"], &plain["reached_step"]), (&json!(3.0), &json!(4)));
        assert_eq!((&plain["peak_bytes"]["stash"], &plain["peak_bytes"]["replicas"]), (&json!(7), &json!(0)));
    }
}
