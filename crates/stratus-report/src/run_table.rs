//! The summary of a run in a few lines, as printed at its end.

use std::fmt::Write;

use stratus_run::checkpoint::BestCheckpoint;
use stratus_run::forecast::{PartForecast, largest_error};
use stratus_run::git::GitCommit;
use stratus_run::labels::RunLabels;
use stratus_run::summary::{FirstStageSummary, Forecast, LossScaleSummary, Summary};
use stratus_run::{RunDir, data_label};

use crate::collect::read_configuration;
use crate::text::{self, energy_parts};
use crate::{Result, remote, status};
use stratus_base::text::significant;
use stratus_base::text::{bytes, counted};

/// Width of the labels.
const LABEL_WIDTH: usize = 13;

/// Maximum length of a note in characters.
const MAX_NOTE_CHARS: usize = 400;

/// Maximum number of classes for which top-5 accuracy is meaningless and not shown.
pub const MAX_CLASSES_WITHOUT_TOP5: usize = 5;

/// Reads the summary of a run and renders it.
pub fn render_run(run: &RunDir, width: usize) -> Result<String> {
    let mut summary = Summary::read(&run.summary())?;
    summary.status = status(run, &summary);
    Ok(render(&summary, run, width))
}

/// The name of a run's data set, see [`data_label`].
fn data_set(name: &str, run: &RunDir) -> String {
    let configuration = read_configuration(run).ok();
    let path = configuration.as_ref().and_then(|keys| keys.get("data")?.get("path")?.as_str());
    data_label(name, path)
}

/// Renders a summary as text, without unknown values. Lines are wrapped at `width`.
#[must_use]
pub fn render(summary: &Summary, run: &RunDir, width: usize) -> String {
    let mut out = String::new();
    let Summary { model, dataset, device, threads, precision, batch_size, .. } = summary;
    let resumed = match summary.resumed {
        0 => String::new(),
        1 => ", resumed once".into(),
        n => format!(", resumed {n} times"),
    };
    // Writing to a String cannot fail.
    let optimised = if run.is_optimised() { ", optimised," } else { "" };
    let _ =
        writeln!(out, "{model}{optimised} on {}: {}{resumed}", data_set(dataset, run), summary.status.name());
    let mut line = |name: &str, parts: Vec<String>| {
        let mut parts = parts.into_iter();
        let Some(first) = parts.next() else { return };
        let mut text = format!("  {name:<LABEL_WIDTH$} {first}");
        for part in parts {
            text.push(',');
            if text.chars().count() + 1 + part.chars().count() <= width {
                text.push(' ');
            } else {
                let _ = writeln!(out, "{text}");
                text = format!("  {:LABEL_WIDTH$} ", "");
            }
            text.push_str(&part);
        }
        let _ = writeln!(out, "{text}");
    };
    // A damaged file of labels is reported by the commands that list runs.
    let labels = RunLabels::read(&run.labels()).unwrap_or_default();
    line("name", labels.name.iter().cloned().collect());
    line("tags", labels.tags.clone());
    line("note", labels.note_line(MAX_NOTE_CHARS).into_iter().collect());
    line("commit", labels.git.iter().flat_map(commit_parts).collect());
    let parts = remote(run).map(|remote| vec![remote.description(), text::fetched_ago(&remote)]);
    line("trained on", parts.unwrap_or_default());
    let parts = [device.clone(), counted((*threads).into(), "thread"), precision.clone()];
    line("device", parts.into_iter().chain([format!("batch size {batch_size}")]).collect());
    line("progress", vec![counted(summary.epochs.into(), "epoch"), counted(summary.iterations, "iteration")]);
    let stage_parts = |stage: &FirstStageSummary| {
        vec![stage.model.clone(), counted(stage.epochs.into(), "epoch"), format!("{:.2} s", stage.total_s)]
    };
    line("pre-training", summary.first_stage.as_ref().map(stage_parts).unwrap_or_default());
    line("", summary.stopped_early.iter().map(ToString::to_string).collect());
    let speed = &summary.images_per_second;
    line(
        "images/s",
        some([
            speed.median.map(|v| format!("median {v:.0}")),
            speed.p10.map(|v| format!("p10 {v:.0}")),
            speed.p90.map(|v| format!("p90 {v:.0}")),
        ]),
    );
    let last = &summary.final_metrics;
    // An empty list means that there are more classes than are listed.
    let few = (1..=MAX_CLASSES_WITHOUT_TOP5).contains(&summary.outputs.len());
    line(
        "loss",
        some([
            last.train_loss.map(|v| format!("training {v:.4}")),
            last.val_loss.map(|v| format!("validation {v:.4}")),
        ]),
    );
    let scale_parts = |scale: &LossScaleSummary| {
        vec![
            format!("{}", scale.scale),
            format!("{} skipped", counted(scale.skipped_iterations, "iteration")),
        ]
    };
    line("loss scale", summary.loss_scale.as_ref().map(scale_parts).unwrap_or_default());
    line(
        "validation",
        some([
            last.val_top1.map(|v| format!("top-1 {:.2} %", 100.0 * v)),
            last.val_top5.filter(|_| !few).map(|v| format!("top-5 {:.2} %", 100.0 * v)),
            last.val_miou.map(|v| format!("mean IoU {:.2} %", 100.0 * v)),
            last.val_accuracy.map(|v| format!("accuracy {:.2} %", 100.0 * v)),
            last.val_mean_accuracy.map(|v| format!("mean class accuracy {:.2} %", 100.0 * v)),
            last.val_bf.map(|v| format!("boundary F1 {:.2} %", 100.0 * v)),
            last.labels.val_map.map(|v| format!("mean average precision {:.2} %", 100.0 * v)),
            last.labels.val_auc.map(|v| format!("mean AUC {:.2} %", 100.0 * v)),
            last.labels.val_f1.map(|v| format!("mean F1 {:.2} %", 100.0 * v)),
            last.labels.val_exact_match.map(|v| format!("exact match {:.2} %", 100.0 * v)),
            last.val_label_accuracy.map(|v| format!("label accuracy {:.2} %", 100.0 * v)),
            last.val_r2.map(|v| format!("R² {v:.4}")),
            last.numbers.val_mae.map(|v| format!("mean absolute error {}", significant(v))),
            last.numbers.val_rmse.map(|v| format!("RMSE {}", significant(v))),
            last.val_views.map(|views| format!("{views} views per image")),
            last.val_ema_decay.map(|decay| format!("averaged weights, decay {decay}")),
        ]),
    );
    let best_parts = |best: &BestCheckpoint| {
        let BestCheckpoint { metric, value, epoch, iteration } = best;
        vec![format!("epoch {epoch}"), format!("{metric} {value:.4}"), format!("checkpoint {iteration}")]
    };
    line("best", summary.best.as_ref().map(best_parts).unwrap_or_default());
    let time = &summary.time;
    let parts = [
        ("startup", time.startup_s),
        ("training", time.train_s),
        ("data wait", time.data_wait_s),
        ("validation", time.validation_s),
        ("checkpoints", time.checkpoint_s),
        ("unattributed", time.unexplained_s()),
    ];
    // Adding positive zero removes the sign of negative zero.
    let parts = parts.map(|(name, s)| format!("{name} {:.2}", (s * 100.0).round() / 100.0 + 0.0));
    line("seconds", std::iter::once(format!("total {:.2}", time.total_s)).chain(parts).collect());
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
    // Small loads, such as system services, are not reported.
    let others = summary.usage.stolen_percent.filter(|percent| *percent >= 5.0);
    line("shared", some([others.map(|percent| format!("other programs used {percent:.0} % of CPU time"))]));
    let forecast_parts = |forecast: &Forecast| {
        let Forecast { step_s, low_s, high_s, measured_step_s, error_percent, .. } = forecast;
        let ms = |seconds: f64| format!("{:.2}", seconds * 1e3);
        vec![
            format!("step {} ms ({} to {})", ms(*step_s), ms(*low_s), ms(*high_s)),
            format!("measured {}", measured_step_s.map_or("–".to_owned(), |s| format!("{} ms", ms(s)))),
            format!("error {}", error_percent.map_or("–".to_owned(), |e| format!("{e:+.1} %"))),
        ]
    };
    line("forecast", summary.forecast.as_ref().map(forecast_parts).unwrap_or_default());
    for parts in compared_parts(&summary.forecast_parts()) {
        line("", parts);
    }
    let mut energy = energy_parts(&summary.energy);
    if !energy.is_empty() {
        energy.push("including other programs".to_owned());
    }
    line("energy", energy);
    let memory = &summary.memory;
    line(
        "memory",
        some([
            memory.planned_peak_bytes.map(|v| format!("planned {}", bytes(v))),
            memory.measured_peak_rss_bytes.map(|v| format!("peak resident {}", bytes(v))),
            memory.planned_device_bytes.map(|v| format!("planned on device {}", bytes(v))),
            memory.device_peak_bytes.map(|v| format!("peak on device {}", bytes(v))),
        ]),
    );
    line("weights hash", summary.weights_sha256.iter().cloned().collect());
    line("run directory", vec![run.path().display().to_string()]);
    out
}

/// The total of the run and its parts, forecast and measured, and the part with the largest error: a line
/// each.
fn compared_parts(parts: &[PartForecast]) -> Vec<Vec<String>> {
    let line = |part: &PartForecast| {
        let percent = part.error_percent.map_or(String::new(), |percent| format!(" ({percent:+.1} %)"));
        vec![
            format!("{} {:.2} s", part.part.name(), part.forecast_s),
            format!("measured {:.2} s", part.measured_s),
            format!("error {:+.2} s{percent}", part.error_s()),
        ]
    };
    let Some((total, others)) = parts.split_last() else { return Vec::new() };
    let largest = largest_error(parts).map(|part| vec![format!("largest error: {}", part.part.name())]);
    std::iter::once(total).chain(others).map(line).chain(largest).collect()
}

/// The commit of a run, and its branch.
fn commit_parts(git: &GitCommit) -> Vec<String> {
    std::iter::once(git.short()).chain(git.branch.iter().map(|branch| format!("branch {branch}"))).collect()
}

fn some<const N: usize>(parts: [Option<String>; N]) -> Vec<String> {
    parts.into_iter().flatten().collect()
}
