//! A run in a few lines, as printed at its end.

use std::fmt::Write;

use stratus_run::RunDir;
use stratus_run::checkpoint::Best;
use stratus_run::summary::{FirstStage, Forecast, LossScale, Summary};

use crate::text::bytes;
use crate::{Result, status};

/// Columns of the names.
const NAMES: usize = 13;

/// Of so many classes, or fewer, the five likeliest tell nothing: top-5 accuracy is not shown.
pub const FEW_CLASSES: usize = 5;

/// Reads a run's summary and renders it.
pub fn of(run: &RunDir, width: usize) -> Result<String> {
    let mut summary = Summary::read(&run.summary())?;
    summary.status = status(run, &summary);
    Ok(render(&summary, run, width))
}

/// A summary as text. What is not known is left out. Lines are broken where they would be longer than
/// `width`.
#[must_use]
pub fn render(summary: &Summary, run: &RunDir, width: usize) -> String {
    let mut out = String::new();
    let Summary { model, dataset, device, threads, precision, batch_size, .. } = summary;
    let resumed = match summary.resumed {
        0 => String::new(),
        1 => ", continued once".into(),
        n => format!(", continued {n} times"),
    };
    // A string takes every write.
    let _ = writeln!(out, "{model} on {dataset}: {}{resumed}", summary.status.name());
    let mut line = |name: &str, parts: Vec<String>| {
        let mut parts = parts.into_iter();
        let Some(first) = parts.next() else { return };
        let mut text = format!("  {name:<NAMES$} {first}");
        for part in parts {
            text.push(',');
            if text.chars().count() + 1 + part.chars().count() <= width {
                text.push(' ');
            } else {
                let _ = writeln!(out, "{text}");
                text = format!("  {:NAMES$} ", "");
            }
            text.push_str(&part);
        }
        let _ = writeln!(out, "{text}");
    };
    let parts = [device.clone(), count((*threads).into(), "thread"), precision.clone()];
    line("computed by", parts.into_iter().chain([format!("batch size {batch_size}")]).collect());
    line("done", vec![count(summary.epochs.into(), "epoch"), count(summary.iterations, "iteration")]);
    let of_stage = |stage: &FirstStage| {
        vec![stage.model.clone(), count(stage.epochs.into(), "epoch"), format!("{:.2} s", stage.total_s)]
    };
    line("first stage", summary.first_stage.as_ref().map(of_stage).unwrap_or_default());
    line("", summary.stopped_early.iter().map(ToString::to_string).collect());
    let speed = &summary.images_per_second;
    line(
        "images/s",
        some([
            speed.median.map(|v| format!("{v:.0} in the median")),
            speed.p10.map(|v| format!("p10 {v:.0}")),
            speed.p90.map(|v| format!("p90 {v:.0}")),
        ]),
    );
    let last = &summary.last;
    // Of so few classes, five are all or nearly. There are more than are listed where none is.
    let few = (1..=FEW_CLASSES).contains(&summary.classes.len());
    line(
        "loss",
        some([
            last.train_loss.map(|v| format!("training {v:.4}")),
            last.val_loss.map(|v| format!("validation {v:.4}")),
        ]),
    );
    let of_scale = |scale: &LossScale| {
        vec![format!("{}", scale.scale), format!("{} skipped", count(scale.skipped_iterations, "iteration"))]
    };
    line("loss scale", summary.loss_scale.as_ref().map(of_scale).unwrap_or_default());
    line(
        "validation",
        some([
            last.val_top1.map(|v| format!("top-1 {:.2} %", 100.0 * v)),
            last.val_top5.filter(|_| !few).map(|v| format!("top-5 {:.2} %", 100.0 * v)),
            last.val_miou.map(|v| format!("mean IoU {:.2} %", 100.0 * v)),
            last.val_accuracy.map(|v| format!("accuracy {:.2} %", 100.0 * v)),
            last.val_mean_accuracy.map(|v| format!("mean of the classes' {:.2} %", 100.0 * v)),
            last.val_bf.map(|v| format!("boundary F1 {:.2} %", 100.0 * v)),
            last.val_views.map(|views| format!("{views} views of each image")),
            last.val_ema_decay.map(|decay| format!("of averaged weights, decay {decay}")),
        ]),
    );
    let of_best = |best: &Best| {
        let Best { metric, value, epoch, iteration } = best;
        vec![format!("epoch {epoch}"), format!("{metric} {value:.4}"), format!("checkpoint {iteration}")]
    };
    line("best", summary.best.as_ref().map(of_best).unwrap_or_default());
    let time = &summary.time;
    let parts = [
        ("startup", time.startup_s),
        ("training", time.train_s),
        ("data wait", time.data_wait_s),
        ("validation", time.validation_s),
        ("checkpoints", time.checkpoint_s),
        ("unexplained", time.unexplained_s()),
    ];
    // Adding to positive zero removes the sign of a negative one.
    let parts = parts.map(|(name, s)| format!("{name} {:.2}", (s * 100.0).round() / 100.0 + 0.0));
    line("seconds", std::iter::once(format!("{:.2} in all", time.total_s)).chain(parts).collect());
    let accounting = &summary.accounting;
    line(
        "accounted for",
        vec![format!(
            "{:.2} of {:.2} s in iterations, {:.3} % unattributed",
            accounting.attributed_s,
            accounting.iteration_s,
            (accounting.unattributed_percent * 1000.0).round() / 1000.0 + 0.0
        )],
    );
    // The system's own services are no news.
    let others = summary.usage.stolen_percent.filter(|percent| *percent >= 5.0);
    line(
        "shared",
        some(
            [others.map(|percent| format!("{percent:.0} % of the processors' time went to other programs"))],
        ),
    );
    let of_forecast = |forecast: &Forecast| {
        let Forecast { step_s, low_s, high_s, measured_step_s, error_percent, .. } = forecast;
        let ms = |seconds: f64| format!("{:.2}", seconds * 1e3);
        vec![
            format!("a step {} ms ({} to {})", ms(*step_s), ms(*low_s), ms(*high_s)),
            format!("measured {}", measured_step_s.map_or("–".to_owned(), |s| format!("{} ms", ms(s)))),
            format!("off by {}", error_percent.map_or("–".to_owned(), |e| format!("{e:+.1} %"))),
        ]
    };
    line("forecast", summary.forecast.as_ref().map(of_forecast).unwrap_or_default());
    let memory = &summary.memory;
    line(
        "memory",
        some([
            memory.planned_peak_bytes.map(|v| format!("planned {}", bytes(v))),
            memory.measured_peak_rss_bytes.map(|v| format!("resident at most {}", bytes(v))),
            memory.planned_device_bytes.map(|v| format!("planned on the device {}", bytes(v))),
            memory.device_peak_bytes.map(|v| format!("on the device at most {}", bytes(v))),
        ]),
    );
    line("weights' hash", summary.weights_sha256.iter().cloned().collect());
    line("run directory", vec![run.path().display().to_string()]);
    out
}

fn some<const N: usize>(parts: [Option<String>; N]) -> Vec<String> {
    parts.into_iter().flatten().collect()
}

fn count(n: u64, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
