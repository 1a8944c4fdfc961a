//! Progress of a training run: a bar on a terminal, plain lines in a pipe, nothing with `--quiet`.

use crate::output::{Output, terminal_columns};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stratus_base::text::significant;
use stratus_engine::StartupMonitor;
use stratus_engine::phases::PhaseListener;
use stratus_run::csv::Task;
use stratus_train::{EpochResult, Observer, TrainingProgress, ValidationResult};

/// The time between two updates of the bar.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
/// The time between two plain lines within an epoch.
const LINE_INTERVAL: Duration = Duration::from_secs(30);
/// The minimum width of the bar in columns; the text next to it is shortened before the bar is.
const MIN_BAR_COLUMNS: usize = 12;
/// The width of a terminal that does not tell it, in columns.
const DEFAULT_COLUMNS: usize = 80;

/// Shows progress on standard error.
#[derive(Debug)]
pub struct Progress {
    output: Output,
    bar: Option<ProgressBar>,
    last_shown_at: Instant,
    /// True once the heading of the table of epochs was printed.
    heading_shown: bool,
}

impl Progress {
    /// Starts to show progress.
    pub fn new(output: Output) -> Self {
        let bar = (!output.quiet() && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            // Until the first iteration there are only phases.
            if let Ok(style) = ProgressStyle::with_template("{msg}") {
                bar.set_style(style);
            }
            bar
        });
        let now = Instant::now();
        Progress { output, bar, last_shown_at: now, heading_shown: false }
    }

    /// Shows the startup phases of a backend in the bar, until the first iteration.
    pub fn startup_monitor(&self) -> StartupMonitor {
        let listener = self.bar.clone().map(|bar| -> PhaseListener {
            Arc::new(move |phase: &str| {
                // The backend may outlive the bar.
                if !bar.is_finished() {
                    bar.set_message(phase.to_owned());
                }
            })
        });
        StartupMonitor { listener, stop: None }
    }

    /// Updates the bar or prints a line, at most once per interval.
    fn show(&mut self, progress: &TrainingProgress) {
        let interval = if self.bar.is_some() { REDRAW_INTERVAL } else { LINE_INTERVAL };
        if self.output.quiet() || self.last_shown_at.elapsed() < interval {
            return;
        }
        self.last_shown_at = Instant::now();
        match &self.bar {
            Some(bar) => {
                if bar.length().is_none()
                    && let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {msg}")
                {
                    bar.set_style(style.progress_chars("━╸─"));
                }
                let columns = terminal_columns(&std::io::stderr()).unwrap_or(DEFAULT_COLUMNS);
                let (prefix, message) = bar_texts(progress, columns);
                bar.set_length(progress.iterations);
                bar.set_position(progress.iteration);
                bar.set_prefix(prefix);
                bar.set_message(message);
            }
            None => self.output.message(&progress_line(progress)),
        }
    }

    fn print_line(&self, text: &str) {
        if self.output.quiet() {
            return;
        }
        match &self.bar {
            Some(bar) => bar.suspend(|| self.output.message(text)),
            None => self.output.message(text),
        }
    }

    fn print_warning(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.output.warning(text)),
            None => self.output.warning(text),
        }
    }
}

impl Observer for Progress {
    fn iteration(&mut self, progress: &TrainingProgress) {
        self.show(progress);
    }

    /// Prints a permanent line: on a terminal a row of a table, elsewhere a self-contained line.
    fn epoch(&mut self, result: &EpochResult) {
        if self.bar.is_none() {
            self.print_line(&epoch_line(result));
            self.last_shown_at = Instant::now();
            return;
        }
        if !self.heading_shown {
            self.print_line(&epoch_heading(result.task));
            self.heading_shown = true;
        }
        self.print_line(&epoch_row(result));
    }

    fn info(&mut self, text: &str) {
        self.print_line(text);
    }

    /// Warnings are printed even with `--quiet`.
    fn warn(&mut self, text: &str) {
        self.print_warning(text);
    }
}

impl Drop for Progress {
    /// Removes the bar; printed lines stay.
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The texts before and after the bar. Those after it are left out, the least important first, until the bar
/// has its minimum width.
fn bar_texts(progress: &TrainingProgress, columns: usize) -> (String, String) {
    let prefix = format!("epoch {}/{}", progress.epoch, progress.epochs);
    // In the order in which they are shown; the last ones are left out first.
    let mut parts = vec![
        format!("{} left", remaining(progress)),
        format!("loss {}", loss(progress.loss)),
        format!("{} img/s", rate(progress.images_per_second)),
        format!("{} {}", progress.task.accuracy_name(), score(progress.task, progress.accuracy)),
        format!("{}/{}", progress.iteration, progress.iterations),
    ];
    let room = columns.saturating_sub(prefix.chars().count() + MIN_BAR_COLUMNS + 2);
    while parts.join("  ").chars().count() > room && parts.len() > 1 {
        parts.pop();
    }
    (prefix, parts.join("  "))
}

/// The remaining time, `?` if it is unknown.
fn remaining(progress: &TrainingProgress) -> String {
    let remaining = progress.remaining_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    remaining.map_or_else(|| "?".to_owned(), clock)
}

fn progress_line(progress: &TrainingProgress) -> String {
    let remaining = remaining(progress);
    format!(
        "epoch {}/{}  {}/{}  {} img/s  loss {}  {} {}  {remaining} left",
        progress.epoch,
        progress.epochs,
        progress.iteration,
        progress.iterations,
        rate(progress.images_per_second),
        loss(progress.loss),
        progress.task.accuracy_name(),
        score(progress.task, progress.accuracy)
    )
}

/// A measure of training and validation: a fraction in percent, R² as a number.
fn score(task: Task, value: f64) -> String {
    match task {
        Task::Classification | Task::Segmentation | Task::MultiLabel => format!("{:.2} %", value * 100.0),
        Task::Regression => format!("{value:.4}"),
    }
}

/// The secondary metric of a validation: its name and its text.
fn secondary_metric(task: Task, value: Option<f64>) -> Option<(&'static str, String)> {
    let percent = || value.map_or("–".to_owned(), |value| format!("{:.2} %", value * 100.0));
    match task {
        Task::Classification => None,
        Task::Segmentation => Some(("mean IoU", percent())),
        Task::MultiLabel => Some(("mAP", percent())),
        Task::Regression => Some(("RMSE", value.map_or("–".to_owned(), significant))),
    }
}

/// The columns of [`epoch_row`].
fn epoch_heading(task: Task) -> String {
    // The full name of the accuracy of labels is wider than a column.
    let accuracy = if task == Task::MultiLabel { "accuracy" } else { task.accuracy_name() };
    let second = secondary_metric(task, None).map_or(String::new(), |(name, _)| format!("{name:>10}"));
    format!(
        "{:<9}{:>9}{accuracy:>10}{:>10}{:>10}{second}{:>10}{:>10}",
        "epoch",
        "loss",
        "val loss",
        match task {
            Task::Classification => "val top-1",
            Task::Segmentation | Task::MultiLabel => "val acc.",
            Task::Regression => "val R²",
        },
        "img/s",
        "time"
    )
}

fn epoch_row(result: &EpochResult) -> String {
    let text = |value: Option<f64>| value.map_or("–".to_owned(), |value| score(result.task, value));
    let validation = result.validation;
    let second = secondary_metric(result.task, validation.and_then(|validation| validation.secondary_metric));
    let second = second.map_or(String::new(), |(_, text)| format!("{text:>10}"));
    format!(
        "{:<9}{:>9}{:>10}{:>10}{:>10}{second}{:>10}{:>10}",
        format!("{}/{}", result.epoch, result.epochs),
        loss(result.train_loss),
        text(Some(result.train_accuracy)),
        validation.map_or("–".to_owned(), |validation| loss(validation.loss)),
        text(validation.and_then(|validation| validation.accuracy)),
        rate(result.images_per_second),
        seconds(result.seconds)
    )
}

/// Formats a loss, in scientific notation from 10⁴ on.
fn loss(loss: f64) -> String {
    if loss.abs() < 1e4 { format!("{loss:.4}") } else { format!("{loss:.2e}") }
}

fn seconds(seconds: f64) -> String {
    if seconds < 600.0 {
        format!("{seconds:.2} s")
    } else {
        clock(Duration::try_from_secs_f64(seconds).unwrap_or_default())
    }
}

fn epoch_line(result: &EpochResult) -> String {
    let accuracy = result.task.accuracy_name();
    let validation = result.validation.map_or_else(
        String::new,
        |ValidationResult { loss, accuracy: value, secondary_metric: second }| {
            let value = value.map_or("–".to_owned(), |value| score(result.task, value));
            let second = secondary_metric(result.task, second);
            let second = second.map_or(String::new(), |(name, text)| format!("  {name} {text}"));
            format!("  val loss {}  val {accuracy} {value}{second}", self::loss(loss))
        },
    );
    format!(
        "epoch {}/{}  loss {}  {accuracy} {}{validation}  {} img/s  {:.2} s",
        result.epoch,
        result.epochs,
        loss(result.train_loss),
        score(result.task, result.train_accuracy),
        rate(result.images_per_second),
        result.seconds
    )
}

/// Formats images per second, with one decimal below 100.
fn rate(images_per_second: f64) -> String {
    if images_per_second < 99.5 {
        format!("{images_per_second:.1}")
    } else {
        format!("{images_per_second:.0}")
    }
}

/// Formats a duration as `m:ss` or `h:mm:ss`.
pub(crate) fn clock(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::{
        EpochResult, MIN_BAR_COLUMNS, Observer, Progress, Task, TrainingProgress, ValidationResult,
        bar_texts, clock, epoch_heading, epoch_line, epoch_row, progress_line,
    };
    use crate::output::Output;
    use std::time::Duration;

    const PROGRESS: TrainingProgress = TrainingProgress {
        epoch: 2,
        epochs: 50,
        iteration: 60,
        iterations: 2950,
        images_per_second: 41_234.5,
        remaining_s: Some(289.4),
        loss: 0.123_45,
        task: Task::Classification,
        accuracy: 0.965_4,
    };

    #[test]
    fn progress_line_shows_epoch_speed_loss_and_time_left() {
        assert_eq!(
            progress_line(&PROGRESS),
            "epoch 2/50  60/2950  41234 img/s  loss 0.1235  top-1 96.54 %  4:49 left"
        );
    }

    #[test]
    fn bar_stays_visible_on_narrow_terminals() {
        let line = |columns| {
            let (prefix, message) = bar_texts(&PROGRESS, columns);
            let bar = columns.saturating_sub(prefix.chars().count() + message.chars().count() + 2);
            (format!("{prefix} … {message}"), bar)
        };
        let all = "epoch 2/50 … 4:49 left  loss 0.1235  41234 img/s  top-1 96.54 %  60/2950";
        assert_eq!(line(100), (all.to_owned(), 29));
        assert_eq!(line(80), (all.replace("  60/2950", ""), 18));
        assert_eq!(line(60), ("epoch 2/50 … 4:49 left  loss 0.1235  41234 img/s".to_owned(), 13));
        assert_eq!(line(40).0, "epoch 2/50 … 4:49 left");
        let wide =
            TrainingProgress { loss: f64::NAN, remaining_s: Some(1e9), images_per_second: 1e9, ..PROGRESS };
        for columns in 40..200 {
            assert!(line(columns).1 >= MIN_BAR_COLUMNS, "{columns}");
            let (prefix, message) = bar_texts(&wide, columns);
            assert!(prefix.len() + message.len() + 2 <= columns, "{columns}: {message}");
        }
    }

    #[test]
    fn epoch_line_shows_training_and_validation() {
        let result = EpochResult {
            epoch: 1,
            epochs: 3,
            train_loss: 0.5,
            task: Task::Classification,
            train_accuracy: 0.9,
            validation: Some(ValidationResult { loss: 0.25, accuracy: Some(0.95), secondary_metric: None }),
            images_per_second: 1000.0,
            seconds: 1.5,
        };
        assert_eq!(
            epoch_line(&result),
            "epoch 1/3  loss 0.5000  top-1 90.00 %  val loss 0.2500  val top-1 95.00 %  1000 img/s  1.50 s"
        );
        let without = EpochResult { validation: None, ..result };
        assert_eq!(epoch_line(&without), "epoch 1/3  loss 0.5000  top-1 90.00 %  1000 img/s  1.50 s");
        let pixels = ValidationResult { loss: 0.25, accuracy: Some(0.875), secondary_metric: Some(0.5) };
        let result = EpochResult {
            task: Task::Segmentation,
            validation: Some(pixels),
            images_per_second: 4.26,
            ..result
        };
        assert_eq!(
            epoch_line(&result),
            "epoch 1/3  loss 0.5000  accuracy 90.00 %  val loss 0.2500  val accuracy 87.50 %  \
             mean IoU 50.00 %  4.3 img/s  1.50 s"
        );
    }

    #[test]
    fn epoch_rows_align_with_their_heading_within_79_columns() {
        let result = EpochResult {
            epoch: 100,
            epochs: 150,
            train_loss: 158_713_371_290_386.2,
            task: Task::Segmentation,
            train_accuracy: 0.9,
            validation: Some(ValidationResult { loss: 0.25, accuracy: Some(1.0), secondary_metric: None }),
            images_per_second: 41_234.5,
            seconds: 4000.0,
        };
        for task in [Task::Segmentation, Task::Classification] {
            let result = EpochResult { task, ..result };
            let (heading, row) = (epoch_heading(task), epoch_row(&result));
            assert_eq!(heading.chars().count(), row.chars().count());
            assert!(row.chars().count() <= 79, "{row}");
        }
        assert_eq!(
            epoch_row(&result),
            "100/150    1.59e14   90.00 %    0.2500  100.00 %         –     41234   1:06:40"
        );
        let unmeasured = EpochResult { validation: None, task: Task::Classification, seconds: 1.5, ..result };
        assert_eq!(
            epoch_row(&unmeasured),
            "100/150    1.59e14   90.00 %         –         –     41234    1.50 s"
        );
    }

    #[test]
    fn durations_are_minutes_and_seconds_or_hours() {
        assert_eq!([59, 61, 3661].map(|s| clock(Duration::from_secs(s))), ["0:59", "1:01", "1:01:01"]);
    }

    #[test]
    fn nan_and_infinity_do_not_panic() {
        let mut progress = Progress::new(Output::new(false, true));
        progress.iteration(&TrainingProgress {
            loss: f64::NAN,
            images_per_second: f64::INFINITY,
            ..PROGRESS
        });
        for left_s in [None, Some(f64::NAN), Some(f64::INFINITY), Some(-1.0)] {
            let line = progress_line(&TrainingProgress { loss: f64::NAN, remaining_s: left_s, ..PROGRESS });
            assert!(line.contains("? left"), "{line}");
        }
    }
}
