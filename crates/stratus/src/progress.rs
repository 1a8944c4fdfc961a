//! Progress of a training: a bar on a terminal, plain lines in a pipe, nothing with `--quiet`.

use crate::output::Output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stratus_engine::phases;
use stratus_run::csv::Task;
use stratus_train::{EpochResult, Observer, TrainingProgress, Validated};

/// Between two changes of the bar.
const REDRAW: Duration = Duration::from_millis(200);
/// Between two plain lines within an epoch.
const LINE: Duration = Duration::from_secs(30);

/// Shows progress on standard error.
#[derive(Debug)]
pub struct Progress {
    output: Output,
    bar: Option<ProgressBar>,
    shown: Instant,
    /// Whether the columns of epochs have their heading.
    headed: bool,
}

impl Progress {
    /// Begins to show progress: until the first iteration, which phase of its start the backend is in.
    pub fn new(output: Output) -> Self {
        let bar = (!output.quiet() && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{msg}  {wide_bar}") {
                bar.set_style(style.progress_chars("━╸ "));
            }
            let until_then = bar.clone();
            phases::listen(Some(Arc::new(move |phase: &str| until_then.set_message(phase.to_owned()))));
            bar
        });
        let now = Instant::now();
        Progress { output, bar, shown: now, headed: false }
    }

    /// After an iteration; cheap where it is not yet time to show anything.
    fn show(&mut self, progress: &TrainingProgress) {
        let pause = if self.bar.is_some() { REDRAW } else { LINE };
        if self.output.quiet() || self.shown.elapsed() < pause {
            return;
        }
        self.shown = Instant::now();
        let line = progress_line(progress);
        match &self.bar {
            Some(bar) => {
                bar.set_length(progress.iterations);
                bar.set_position(progress.iteration);
                bar.set_message(line);
            }
            None => self.output.message(&line),
        }
    }

    fn tell(&self, text: &str) {
        if self.output.quiet() {
            return;
        }
        match &self.bar {
            Some(bar) => bar.suspend(|| self.output.message(text)),
            None => self.output.message(text),
        }
    }

    fn caution(&self, text: &str) {
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

    /// A line that stays: on a terminal a row of a table, elsewhere one that can be read by itself.
    fn epoch(&mut self, result: &EpochResult) {
        if self.bar.is_none() {
            self.tell(&epoch_line(result));
            self.shown = Instant::now();
            return;
        }
        if !self.headed {
            self.tell(&epoch_heading(result.task));
            self.headed = true;
        }
        self.tell(&epoch_row(result));
    }

    fn say(&mut self, text: &str) {
        self.tell(text);
    }

    /// Said even where quiet.
    fn warn(&mut self, text: &str) {
        self.caution(text);
    }
}

impl Drop for Progress {
    /// The bar goes; what was said stays.
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            phases::listen(None);
            bar.finish_and_clear();
        }
    }
}

fn progress_line(progress: &TrainingProgress) -> String {
    let left = progress.left_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let left = left.map_or_else(|| "?".to_owned(), clock);
    format!(
        "epoch {}/{}  {}/{}  {} img/s  loss {}  {} {:.2} %  {left} left",
        progress.epoch,
        progress.epochs,
        progress.iteration,
        progress.iterations,
        rate(progress.images_per_second),
        loss(progress.loss),
        progress.task.accuracy_name(),
        progress.accuracy * 100.0
    )
}

/// The columns of [`epoch_row`].
fn epoch_heading(task: Task) -> String {
    let accuracy = task.accuracy_name();
    let miou = match task {
        Task::Classification => String::new(),
        Task::Segmentation => format!("{:>10}", "mean IoU"),
    };
    format!(
        "{:<9}{:>9}{accuracy:>10}{:>10}{:>10}{miou}{:>10}{:>10}",
        "epoch",
        "loss",
        "val loss",
        match task {
            Task::Classification => "val top-1",
            Task::Segmentation => "val acc.",
        },
        "img/s",
        "time"
    )
}

fn epoch_row(result: &EpochResult) -> String {
    let percent =
        |share: Option<f64>| share.map_or("–".to_owned(), |share| format!("{:.2} %", share * 100.0));
    let validation = result.validation;
    let miou = match result.task {
        Task::Classification => String::new(),
        Task::Segmentation => format!("{:>10}", percent(validation.and_then(|measured| measured.miou))),
    };
    format!(
        "{:<9}{:>9}{:>10}{:>10}{:>10}{miou}{:>10}{:>10}",
        format!("{}/{}", result.epoch, result.epochs),
        loss(result.train_loss),
        percent(Some(result.train_accuracy)),
        validation.map_or("–".to_owned(), |measured| loss(measured.loss)),
        percent(validation.and_then(|measured| measured.accuracy)),
        rate(result.images_per_second),
        seconds(result.seconds)
    )
}

/// A loss, with a power of ten where it is out of hand.
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
    let validation =
        result.validation.map_or_else(String::new, |Validated { loss, accuracy: share, miou }| {
            let percent = |share: Option<f64>| {
                share.map_or("–".to_owned(), |share| format!("{:.2} %", share * 100.0))
            };
            let miou = match result.task {
                Task::Classification => String::new(),
                Task::Segmentation => format!("  mean IoU {}", percent(miou)),
            };
            format!("  val loss {}  val {accuracy} {}{miou}", self::loss(loss), percent(share))
        });
    format!(
        "epoch {}/{}  loss {}  {accuracy} {:.2} %{validation}  {} img/s  {:.2} s",
        result.epoch,
        result.epochs,
        loss(result.train_loss),
        result.train_accuracy * 100.0,
        rate(result.images_per_second),
        result.seconds
    )
}

/// Images per second, with a decimal where there are few.
fn rate(images_per_second: f64) -> String {
    if images_per_second < 99.5 {
        format!("{images_per_second:.1}")
    } else {
        format!("{images_per_second:.0}")
    }
}

/// A duration as `m:ss` or `h:mm:ss`.
/// Hours, minutes and seconds: `1:02:03`, `2:03`.
pub(crate) fn clock(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::{
        EpochResult, Observer, Progress, Task, TrainingProgress, Validated, clock, epoch_heading, epoch_line,
        epoch_row, progress_line,
    };
    use crate::output::Output;
    use std::time::Duration;

    const PROGRESS: TrainingProgress = TrainingProgress {
        epoch: 2,
        epochs: 50,
        iteration: 60,
        iterations: 2950,
        images_per_second: 41_234.5,
        left_s: Some(289.4),
        loss: 0.123_45,
        task: Task::Classification,
        accuracy: 0.965_4,
    };

    #[test]
    fn a_line_tells_where_training_stands() {
        assert_eq!(
            progress_line(&PROGRESS),
            "epoch 2/50  60/2950  41234 img/s  loss 0.1235  top-1 96.54 %  4:49 left"
        );
    }

    #[test]
    fn an_epoch_is_a_line() {
        let result = EpochResult {
            epoch: 1,
            epochs: 3,
            train_loss: 0.5,
            task: Task::Classification,
            train_accuracy: 0.9,
            validation: Some(Validated { loss: 0.25, accuracy: Some(0.95), miou: None }),
            images_per_second: 1000.0,
            seconds: 1.5,
        };
        assert_eq!(
            epoch_line(&result),
            "epoch 1/3  loss 0.5000  top-1 90.00 %  val loss 0.2500  val top-1 95.00 %  1000 img/s  1.50 s"
        );
        let without = EpochResult { validation: None, ..result };
        assert_eq!(epoch_line(&without), "epoch 1/3  loss 0.5000  top-1 90.00 %  1000 img/s  1.50 s");
        let pixels = Validated { loss: 0.25, accuracy: Some(0.875), miou: Some(0.5) };
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
    fn on_a_terminal_epochs_are_rows_of_a_narrow_table() {
        let result = EpochResult {
            epoch: 100,
            epochs: 150,
            train_loss: 158_713_371_290_386.2,
            task: Task::Segmentation,
            train_accuracy: 0.9,
            validation: Some(Validated { loss: 0.25, accuracy: Some(1.0), miou: None }),
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
    fn times_are_clocks() {
        assert_eq!([59, 61, 3661].map(|s| clock(Duration::from_secs(s))), ["0:59", "1:01", "1:01:01"]);
    }

    #[test]
    fn numbers_that_are_none_do_not_panic() {
        let mut progress = Progress::new(Output::new(false, true));
        progress.iteration(&TrainingProgress {
            loss: f64::NAN,
            images_per_second: f64::INFINITY,
            ..PROGRESS
        });
        for left_s in [None, Some(f64::NAN), Some(f64::INFINITY), Some(-1.0)] {
            let line = progress_line(&TrainingProgress { loss: f64::NAN, left_s, ..PROGRESS });
            assert!(line.contains("? left"), "{line}");
        }
    }
}
