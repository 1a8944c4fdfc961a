//! Progress of a training: a bar on a terminal, plain lines in a pipe, nothing with `--quiet`.

use crate::output::Output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use stratus_train::{EpochResult, Observer, Standing};

/// Between two changes of the bar.
const REDRAW: Duration = Duration::from_millis(200);
/// Between two plain lines within an epoch.
const LINE: Duration = Duration::from_secs(30);

/// Shows progress on standard error.
#[derive(Debug)]
pub struct Progress {
    output: Output,
    bar: Option<ProgressBar>,
    begun: Instant,
    first: Option<u64>,
    shown: Instant,
}

impl Progress {
    /// Begins to show progress.
    pub fn new(output: Output) -> Self {
        let bar = (!output.quiet() && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{msg}  {wide_bar}") {
                bar.set_style(style.progress_chars("━╸ "));
            }
            bar
        });
        let now = Instant::now();
        Progress { output, bar, begun: now, first: None, shown: now }
    }

    /// After an iteration; cheap where it is not yet time to show anything.
    fn show(&mut self, standing: &Standing) {
        let first = *self.first.get_or_insert(standing.iteration);
        let pause = if self.bar.is_some() { REDRAW } else { LINE };
        if self.output.quiet() || self.shown.elapsed() < pause {
            return;
        }
        self.shown = Instant::now();
        let line = standing_line(standing, remaining(standing, first, self.begun.elapsed()));
        match &self.bar {
            Some(bar) => {
                bar.set_length(standing.iterations);
                bar.set_position(standing.iteration);
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
    fn iteration(&mut self, standing: &Standing) {
        self.show(standing);
    }

    /// A line that stays.
    fn epoch(&mut self, result: &EpochResult) {
        self.tell(&epoch_line(result));
        if self.bar.is_none() {
            self.shown = Instant::now();
        }
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
            bar.finish_and_clear();
        }
    }
}

fn standing_line(standing: &Standing, remaining: Option<Duration>) -> String {
    let left = remaining.map_or_else(|| "?".to_owned(), clock);
    format!(
        "epoch {}/{}  {}/{}  {:.0} img/s  loss {:.4}  top-1 {:.2} %  {left} left",
        standing.epoch,
        standing.epochs,
        standing.iteration,
        standing.iterations,
        standing.images_per_second,
        standing.loss,
        standing.top1 * 100.0
    )
}

fn epoch_line(result: &EpochResult) -> String {
    let validation = result.validation.map_or_else(String::new, |(loss, top1)| {
        format!("  val loss {loss:.4}  val top-1 {:.2} %", top1 * 100.0)
    });
    format!(
        "epoch {}/{}  loss {:.4}  top-1 {:.2} %{validation}  {:.0} img/s  {:.2} s",
        result.epoch,
        result.epochs,
        result.train_loss,
        result.train_top1 * 100.0,
        result.images_per_second,
        result.seconds
    )
}

/// Estimated time left, at the pace since the first iteration seen; validation and checkpoints included.
fn remaining(standing: &Standing, first: u64, elapsed: Duration) -> Option<Duration> {
    let done = standing.iteration.saturating_sub(first);
    if done == 0 {
        return None;
    }
    let left = standing.iterations.saturating_sub(standing.iteration);
    Duration::try_from_secs_f64(elapsed.as_secs_f64() * left as f64 / done as f64).ok()
}

/// A duration as `m:ss` or `h:mm:ss`.
fn clock(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::{EpochResult, Observer, Progress, Standing, clock, epoch_line, remaining, standing_line};
    use crate::output::Output;
    use std::time::Duration;

    const STANDING: Standing = Standing {
        epoch: 2,
        epochs: 50,
        iteration: 60,
        iterations: 2950,
        images_per_second: 41_234.5,
        loss: 0.123_45,
        top1: 0.965_4,
    };

    #[test]
    fn a_line_tells_where_training_stands() {
        let left = remaining(&STANDING, 10, Duration::from_secs(5));
        assert_eq!(left, Some(Duration::from_secs(289)));
        assert_eq!(
            standing_line(&STANDING, left),
            "epoch 2/50  60/2950  41234 img/s  loss 0.1235  top-1 96.54 %  4:49 left"
        );
        assert_eq!(remaining(&STANDING, 60, Duration::from_secs(5)), None);
    }

    #[test]
    fn an_epoch_is_a_line() {
        let result = EpochResult {
            epoch: 1,
            epochs: 3,
            train_loss: 0.5,
            train_top1: 0.9,
            validation: Some((0.25, 0.95)),
            images_per_second: 1000.0,
            seconds: 1.5,
        };
        assert_eq!(
            epoch_line(&result),
            "epoch 1/3  loss 0.5000  top-1 90.00 %  val loss 0.2500  val top-1 95.00 %  1000 img/s  1.50 s"
        );
        let without = EpochResult { validation: None, ..result };
        assert_eq!(epoch_line(&without), "epoch 1/3  loss 0.5000  top-1 90.00 %  1000 img/s  1.50 s");
    }

    #[test]
    fn times_are_clocks() {
        assert_eq!([59, 61, 3661].map(|s| clock(Duration::from_secs(s))), ["0:59", "1:01", "1:01:01"]);
    }

    #[test]
    fn numbers_that_are_none_do_not_panic() {
        let mut progress = Progress::new(Output::new(false, true));
        progress.iteration(&Standing { loss: f64::NAN, images_per_second: f64::INFINITY, ..STANDING });
        assert!(standing_line(&Standing { loss: f64::NAN, ..STANDING }, None).contains("? left"));
    }
}
