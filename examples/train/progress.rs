//! What the user sees while a run trains: a bar on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

/// Prints a line; a reader that has gone away is no reason to stop training.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Shows how far one run is.
#[derive(Debug)]
pub(crate) enum Progress {
    /// On a terminal.
    Bar { bar: ProgressBar, val_loss: f64 },
    /// Anywhere else, one line for each validation.
    Lines { run: &'static str, steps: u64, start: Instant },
}

impl Progress {
    pub(crate) fn new(run: &'static str, steps: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines { run, steps, start: Instant::now() };
        }
        let bar = ProgressBar::new(steps);
        let style = ProgressStyle::with_template("{prefix:6} {bar:30} {pos:>5}/{len}  {msg}  ETA {eta}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(run);
        Self::Bar { bar, val_loss: f64::NAN }
    }

    /// After `done` steps.
    pub(crate) fn step(&self, done: u64, train_loss: f64) {
        if let Self::Bar { bar, val_loss } = self {
            bar.set_message(format!("loss {train_loss:.3}  validation {val_loss:.3}"));
            bar.set_length(bar.length().unwrap_or(0).max(done));
            bar.set_position(done);
        }
    }

    /// After a validation at `done` steps.
    pub(crate) fn validated(&mut self, done: u64, train_loss: Option<f64>, loss: f64) {
        match self {
            Self::Bar { val_loss, .. } => *val_loss = loss,
            Self::Lines { run, steps, start } => {
                let elapsed = start.elapsed().as_secs_f64();
                let eta = match done {
                    0 => String::new(),
                    done if done < *steps => eta(elapsed, done, *steps),
                    done if done == *steps => String::new(),
                    _ => "  going on until the target is reached".into(),
                };
                let train = train_loss.map_or("      ".into(), |l| format!("{l:6.3}"));
                say(&format!("{run:6} step {done:>5}/{steps}  loss {train}  validation {loss:6.3}{eta}"));
            }
        }
    }

    /// Leaves the last state of the bar on the screen.
    pub(crate) fn finish(&self) {
        if let Self::Bar { bar, .. } = self {
            bar.abandon();
        }
    }
}

fn eta(elapsed: f64, done: u64, steps: u64) -> String {
    format!("  ETA {:.0} s", elapsed * steps.saturating_sub(done) as f64 / done as f64)
}
