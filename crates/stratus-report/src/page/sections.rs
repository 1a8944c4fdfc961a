//! The sections of the page.

use stratus_run::csv::Task;
use stratus_run::labels::RunLabels;
use stratus_run::timeline::Phase;

use super::html::{Cell, Html};
use super::{charts, checkpoints, forecast, gpus, layer_table, network, optimised, side_by_side};
use crate::collect::flatten;
use crate::report::{Comparison, MAX_BLOCKS, Problem, Repetitions, RooflineData, RunReport, Score};
use crate::text::{self, energy_parts};
use stratus_base::text::{bytes, counted, duration, significant};
use stratus_engine::memory_map::MemoryMap;

/// Maximum number of values of the arena that the page lists.
const MAX_LISTED_VALUES: usize = 12;
/// The meaning of the bands of the comparison.
const BAND_NOTE: &str = "Repetitions are drawn as one line, their mean, with a band from the lowest to the \
                         highest of the runs that have reached a point.";

/// The meaning of the curves of labels.
const LABEL_NOTE: &str = "Label accuracy is the share of correct yes-or-no answers, at a probability of 0.5.";
/// The meaning of the curves of R².
const R2_NOTE: &str = "1 is perfect, 0 is no better than the mean of the true numbers. Of several targets, \
                       the mean.";

/// Adds the section of a run; `alone` is true if the report has no other run.
pub(super) fn run(html: &mut Html, run: &RunReport, number: usize, alone: bool) {
    html.open("section", "run");
    html.part("summary", |html| overview(html, run, alone));
    html.part("training", |html| curves(html, run, number));
    html.part("validation", |html| super::validation::section(html, run, number));
    html.part("optimised", |html| optimised::section(html, run));
    html.part("time", |html| time(html, run, number));
    html.part("network", |html| network::section(html, run, number));
    html.part("roofline", |html| run.work.iter().for_each(|work| roofline(html, work)));
    html.part("memory", |html| run.memory.iter().for_each(|map| memory(html, map)));
    html.part("utilisation", |html| usage(html, run, number));
    html.part("checkpoints", |html| checkpoints::table(html, &run.checkpoints));
    html.part("facts", |html| facts(html, run));
    html.close("section");
}

/// Adds the title, the figures, suggestions and the forecast.
fn overview(html: &mut Html, run: &RunReport, alone: bool) {
    let summary = run.record.summary.as_ref();
    let title =
        summary.map_or(run.label.clone(), |summary| format!("{} on {}", summary.model, summary.dataset));
    html.element(if alone { "h1" } else { "h2" }, "", &if alone { title.clone() } else { run.label.clone() });
    html.open("p", "lead");
    html.element("span", "status", run.record.status.name());
    let subtitle = if alone { &run.label } else { &title };
    html.element("span", "muted", subtitle);
    if run.optimised.is_some() {
        html.element("span", "muted", "optimised");
    }
    if let Some(remote) = &run.record.remote {
        let trained = format!("trained on {}, {}", remote.description(), text::fetched_at(remote));
        html.element("span", "muted", &trained);
    }
    html.close("p");
    labels(html, &run.record.labels);
    html.element("p", "headline", &run.headline);
    tiles(html, run);
    if !run.advice.is_empty() {
        html.element("h3", "", "Suggestions");
        html.open("ol", "");
        run.advice.iter().for_each(|line| html.element("li", "", line));
        html.close("ol");
    }
    if let Some(summary) = summary {
        forecast::table(html, summary);
    }
}

/// Adds the name, the tags, the note and the commit of a run.
fn labels(html: &mut Html, labels: &RunLabels) {
    let RunLabels { name, note, tags, git } = labels;
    name.iter().for_each(|name| html.element("p", "name", name));
    if !tags.is_empty() || git.is_some() {
        html.open("p", "lead");
        tags.iter().for_each(|tag| html.element("span", "tag", tag));
        if let Some(git) = git {
            let branch = git.branch.as_ref().map_or(String::new(), |branch| format!(" on {branch}"));
            html.element("span", "muted", &format!("commit {}{branch}", git.short()));
        }
        html.close("p");
    }
    note.iter().for_each(|note| html.element("p", "remark", note));
}

fn tiles(html: &mut Html, run: &RunReport) {
    let best = run.epochs.iter().filter_map(|epoch| epoch.val_score).reduce(f64::max);
    let best_name = format!("best validation {}", Score::Of(run.task).name());
    let summary = run.record.summary.as_ref();
    let errors = run.epochs.iter().rev().find(|epoch| epoch.val_loss.is_some()).map(|epoch| epoch.numbers);
    let speed = summary.and_then(|summary| summary.images_per_second.median);
    let memory = summary
        .and_then(|summary| summary.memory.device_peak_bytes.or(summary.memory.measured_peak_rss_bytes));
    let counted = run.accounting.iterations > 0;
    let energy = summary.map(|summary| energy_parts(&summary.energy)).filter(|parts| !parts.is_empty());
    let energy = energy.map(|parts| parts.join(", "));
    let tiles = [
        (best_name.as_str(), best.map(|best| Score::Of(run.task).text(best))),
        ("mean absolute error, last", errors.and_then(|errors| errors.val_mae).map(significant)),
        ("RMSE, last", errors.and_then(|errors| errors.val_rmse).map(significant)),
        (
            "validation loss",
            summary.and_then(|summary| summary.final_metrics.val_loss).map(|loss| format!("{loss:.4}")),
        ),
        ("images/s, median", speed.map(|speed| format!("{speed:.0}"))),
        ("iteration, median", counted.then(|| format!("{:.2} ms", run.accounting.wall.median_ms))),
        (
            "step, forecast and measured",
            summary.and_then(|summary| summary.forecast.as_ref()).map(forecast::step),
        ),
        ("total time", summary.map(|summary| duration(summary.time.total_s))),
        ("energy, with other programs", energy),
        (
            "stopped early",
            summary
                .and_then(|summary| summary.stopped_early.as_ref())
                .map(|stopped| format!("after epoch {}", stopped.epoch)),
        ),
        (
            "best epoch",
            summary
                .and_then(|summary| summary.best.as_ref())
                .map(|best| format!("{}, {} {:.4}", best.epoch, best.metric, best.value)),
        ),
        ("peak memory", memory.map(bytes)),
        (
            "unattributed",
            counted.then(|| format!("{:.3} %", run.accounting.unattributed.share_percent.abs())),
        ),
    ];
    html.open("dl", "tiles");
    for (name, value) in tiles {
        let Some(value) = value else { continue };
        html.open("div", "");
        html.element("dt", "", name);
        html.element("dd", "", &value);
        html.close("div");
    }
    html.close("dl");
}

fn curves(html: &mut Html, run: &RunReport, number: usize) {
    if run.curves.iteration.is_empty() {
        return;
    }
    html.element("h3", "", "Training");
    means_note(html, run.curves.iterations_per_point);
    non_finite_note(html, run.curves.non_finite_losses);
    html.open("div", "pair");
    html.chart("loss", number, "Loss", "");
    match run.task {
        Task::Classification => html.chart("accuracy", number, "Top-1 accuracy, %", ""),
        Task::Segmentation => html.chart("accuracy", number, "Pixel accuracy and mean IoU, %", ""),
        Task::MultiLabel => {
            html.chart("accuracy", number, "Label accuracy and mean average precision, %", LABEL_NOTE);
        }
        Task::Regression => html.chart("accuracy", number, "R²", R2_NOTE),
    }
    html.close("div");
    match run.task {
        Task::Classification | Task::Segmentation => {}
        Task::MultiLabel => {
            html.chart("label-measures", number, "Validation AUC, F1 and exact match by epoch, %", "");
        }
        Task::Regression => {
            html.chart("errors", number, "Validation errors by epoch, in the unit of the targets", "");
        }
    }
    html.open("div", "pair");
    html.chart("learning-rate", number, "Learning rate", "");
    html.chart("iteration-time", number, "Iteration and waiting for data, ms", "");
    html.close("div");
}

/// Adds a note that points of curves are means, if they are of more than one iteration.
fn means_note(html: &mut Html, iterations: u64) {
    if iterations > 1 {
        html.element("p", "note", &format!("Each point of a curve is the mean of {iterations} iterations."));
    }
}

/// Adds a note on gaps in the curve of the loss, if the loss was not finite.
fn non_finite_note(html: &mut Html, iterations: u64) {
    if iterations > 0 {
        let iterations = counted(iterations, "iteration");
        let text = format!(
            "The loss of {iterations} is not finite: the curve has no point there, and its \
             line connects the neighbouring points."
        );
        html.element("p", "note", &text);
    }
}

fn time(html: &mut Html, run: &RunReport, number: usize) {
    let accounting = &run.accounting;
    if accounting.iterations == 0 {
        return;
    }
    html.element("h3", "", "Time per iteration");
    html.element(
        "p",
        "note",
        &format!(
            "Means over {}; the first {} {} skipped.",
            counted(accounting.iterations, "iteration"),
            accounting.skipped,
            if accounting.skipped == 1 { "is" } else { "are" }
        ),
    );
    html.drawing("Time per iteration", &charts::time(accounting, &run.layers.tree));
    let (drawn, layers) = (run.curves.layers.len(), accounting.layers.len());
    if drawn > 0 {
        means_note(html, run.curves.layer_iterations_per_point);
        let cut = run.layers.tree.cut(MAX_BLOCKS);
        let note = match (cut.len() > drawn, drawn < layers) {
            (true, _) => format!("The {drawn} longest of {}. ", counted(layers as u64, "layer")),
            (false, true) => "A block is the sum of its layers. ".to_owned(),
            (false, false) => String::new(),
        };
        let note = note + "Click a name below the chart to hide or show its line.";
        html.chart("layers", number, "Layer time over the iterations, ms", &note);
        let title = format!("Forward, and backward with update, all {layers} layers, ms");
        html.chart("forward-backward", number, &title, "");
    }
    layer_table::table(html, run, number);
    phase_table(html, run);
    super::workers::table(html, accounting);
    accounted(html, run);
}

/// Adds the table of the phases outside layers.
fn phase_table(html: &mut Html, run: &RunReport) {
    let rows: Vec<Vec<Cell>> = run
        .accounting
        .phases
        .iter()
        .map(|row| {
            vec![
                Cell::text(row.phase.name().replace('_', " ")),
                Cell::number(Some(row.cost.mean_ms), 3),
                Cell::number(Some(row.cost.median_ms), 3),
                Cell::number(Some(row.cost.share_percent), 2),
            ]
        })
        .collect();
    html.element("h4", "", "Outside layers");
    html.table(&["phase", "ms", "median ms", "share %"], &rows);
}

/// Adds the table of the wall time of iterations and the accounted time.
fn accounted(html: &mut Html, run: &RunReport) {
    let accounting = &run.accounting;
    let (wall, rest) = (accounting.wall.total_ns as f64 / 1e9, accounting.unattributed.total_ns as f64 / 1e9);
    let wait: f64 = accounting
        .phases
        .iter()
        .filter(|row| row.phase == Phase::DataWait)
        .map(|row| row.cost.total_ns as f64 / 1e9)
        .sum();
    html.element("h4", "", "Wall time and accounted time");
    html.table(
        &["iterations", "wall s", "accounted s", "waiting for data s", "error %"],
        &[vec![
            Cell::sorted(accounting.iterations.to_string(), accounting.iterations as f64),
            Cell::number(Some(wall), 3),
            Cell::number(Some(wall - rest), 3),
            Cell::number(Some(wait), 3),
            Cell::number(Some(accounting.unattributed.share_percent.abs()), 4),
        ]],
    );
}

fn roofline(html: &mut Html, work: &RooflineData) {
    if work.points.is_empty() {
        return;
    }
    html.element("h3", "", "Roofline");
    let note = if work.peaks.gb_per_s.is_some() && work.peaks.gflops.contains_key(&work.precision) {
        "One circle per layer and phase, sized by time. The line is the peak measured by `stratus doctor`; \
         operands from caches can exceed its slope."
    } else {
        "One circle per layer and phase, sized by time. There is no roof, since the peaks of this machine \
         for this number format are unknown: `stratus doctor` measures them."
    };
    html.element("p", "note", note);
    html.drawing("Roofline", &charts::roofline(work));
}

fn memory(html: &mut Html, map: &MemoryMap) {
    html.element("h3", "", "Memory over an iteration");
    html.element(
        "p",
        "note",
        &format!(
            "Exact bytes of the plan: {} persistent, {} reused in each iteration (peak {} at step {}), {} of \
             images and labels.",
            bytes(map.persistent_bytes as u64),
            bytes(map.transient_bytes as u64),
            bytes(map.alive.iter().copied().max().unwrap_or(0) as u64),
            map.peak_step,
            bytes(map.input_bytes as u64),
        ),
    );
    html.drawing("Memory over an iteration", &charts::memory(map));
    if map.unnamed.0 > 0 {
        let text = format!(
            "{} smaller blocks ({} in total) are not drawn.",
            map.unnamed.0,
            bytes(map.unnamed.1 as u64)
        );
        html.element("p", "note", &text);
    }
    html.open("div", "pair");
    let peak = map.blocks.iter().filter(|block| (block.first..=block.last).contains(&map.peak_step));
    let rows: Vec<Vec<Cell>> = peak
        .take(MAX_LISTED_VALUES)
        .map(|block| {
            vec![
                Cell::text(block.name.clone()),
                Cell::text(block.kind.name()),
                Cell::text(block.shape.clone()),
                Cell::sorted(bytes(block.bytes as u64), block.bytes as f64),
            ]
        })
        .collect();
    html.open("div", "");
    html.element("h4", "", "Largest values at the peak");
    html.table(&["value", "kind", "shape", "bytes"], &rows);
    html.close("div");
    let rows: Vec<Vec<Cell>> = map
        .persistent
        .iter()
        .map(|(name, held)| vec![Cell::text(*name), Cell::sorted(bytes(*held as u64), *held as f64)])
        .collect();
    html.open("div", "");
    html.element("h4", "", "Persistent memory");
    html.table(&["kind", "bytes"], &rows);
    html.close("div");
    html.close("div");
}

/// Adds the utilisation of the machine over the time of the run.
fn usage(html: &mut Html, run: &RunReport, number: usize) {
    let Some(curves) = &run.usage else { return };
    let known = |curve: &[Option<f64>]| curve.iter().any(Option::is_some);
    html.element("h3", "", "Machine utilisation");
    let summary = run.record.summary.as_ref().map(|summary| summary.usage).unwrap_or_default();
    let percent = |value: Option<f64>, decimals: usize| {
        value.map_or("–".to_owned(), |value| format!("{value:.decimals$} %"))
    };
    let mut facts = vec![
        format!("CPU time of this run {}", percent(summary.cpu_percent_mean, 0)),
        format!("of other programs {}", percent(summary.stolen_percent, 0)),
    ];
    if known(&curves.gpu.busy_percent) {
        facts.push(format!("the GPU was busy {}", percent(summary.gpu_percent_mean, 0)));
    }
    facts.push(format!("sampling took {} of the run's CPU time", percent(summary.sampling_percent, 3)));
    let text = format!("One sample per second. Since the last resume: {}.", facts.join(", "));
    html.element("p", "note", &text);
    html.open("div", "pair");
    html.chart("usage-cpu", number, "CPU and GPU utilisation, %", "");
    html.chart("usage-memory", number, "Memory in use, GB", "");
    html.close("div");
    let moved = [&curves.disk_read_mb_per_s, &curves.disk_write_mb_per_s, &curves.net_mb_per_s];
    html.open("div", "pair");
    if moved.iter().any(|curve| known(curve)) {
        let note = "Network: everything that the machine sent and received, without the loopback interface.";
        html.chart("usage-transfers", number, "Disk and network, MB/s", note);
    }
    if known(&curves.gpu.watts) || known(&curves.cpu_watts) {
        let note = "CPU: all packages of the processor, by RAPL. Both include other programs.";
        html.chart("usage-power", number, "Power of CPU and GPU, W", note);
    }
    html.close("div");
    gpus::section(html, curves, number);
}

/// Adds configuration and machine as collapsed tables.
fn facts(html: &mut Html, run: &RunReport) {
    html.open("details", "");
    html.element("summary", "", "Configuration");
    let keys = flatten(&run.record.configuration).into_iter();
    html.table(
        &["key", "value"],
        &keys.map(|(key, value)| [key, value].map(Cell::text).into()).collect::<Vec<_>>(),
    );
    html.close("details");
    let Some(machine) = &run.record.machine else { return };
    html.open("details", "");
    html.element("summary", "", "Machine");
    let mut rows = vec![
        [Cell::text("host"), Cell::text(machine.host.clone())],
        [Cell::text("system"), Cell::text(format!("{}, {}", machine.os, machine.kernel))],
        [Cell::text("CPU"), Cell::text(machine.cpu.model.clone())],
    ];
    let mut add = |name: &str, value: Option<String>| {
        rows.extend(value.map(|value| [Cell::text(name), Cell::text(value)]));
    };
    add("usable threads", machine.cpu.usable_threads.map(|threads| threads.to_string()));
    add("memory", machine.ram_bytes.map(bytes));
    for device in &machine.devices {
        let memory = device.memory_bytes.map_or(String::new(), |held| format!(", {}", bytes(held)));
        add("device", Some(format!("{}{memory}", device.name)));
    }
    for (name, library) in &machine.libraries {
        add(name, Some(library.version.clone()));
    }
    let rows: Vec<Vec<Cell>> = rows.into_iter().map(Vec::from).collect();
    html.table(&["fact", "value"], &rows);
    html.close("details");
}

/// Adds the comparison of several runs.
pub(super) fn comparison(html: &mut Html, comparison: &Comparison, runs: &[RunReport]) {
    let score = comparison.score;
    let best = format!("best {}", score.head());
    let mut heads = vec!["run", "status"];
    heads.extend(comparison.keys.iter().map(String::as_str));
    heads.extend([
        best.as_str(),
        "validation loss",
        "training loss",
        "iteration ms, median",
        "images/s, median",
        "speed-up",
        "total s",
        "peak memory",
    ]);
    let rows: Vec<Vec<Cell>> = comparison
        .rows
        .iter()
        .map(|row| {
            let mut cells = vec![Cell::text(row.label.clone()), Cell::text(row.status.clone())];
            cells.extend(row.values.iter().map(|value| setting(value)));
            cells.extend([
                Cell::number(row.best_score.map(|best| score.number(best)), score.decimals()),
                Cell::number(row.val_loss, 4),
                Cell::number(row.train_loss, 4),
                Cell::number(row.iteration_ms, 2),
                Cell::number(row.images_per_second, 0),
                Cell::number(row.speed_up, 2),
                Cell::number(row.total_s, 1),
                row.peak_bytes.map_or(Cell::number(None, 0), |held| Cell::sorted(bytes(held), held as f64)),
            ]);
            cells
        })
        .collect();
    html.element("h2", "", "Comparison");
    if let Some(verdict) = &comparison.verdict {
        html.element("p", "", verdict);
    }
    html.table(&heads, &rows);
    if !comparison.repetitions.is_empty() {
        repetitions(html, comparison);
    }
    html.open("div", "pair");
    let title =
        format!("Validation {} by epoch{}", score.name(), if score.is_fraction() { ", %" } else { "" });
    html.chart("runs-loss", 0, "Validation loss by epoch", "");
    html.chart("runs-accuracy", 0, &title, "");
    html.close("div");
    if comparison.repetitions.iter().any(|group| group.runs.len() > 1) {
        html.element("p", "note", BAND_NOTE);
    }
    optimised::comparison(html, runs);
    side_by_side::forecasts(html, runs);
    side_by_side::layers(html, runs);
}

fn repetitions(html: &mut Html, comparison: &Comparison) {
    html.element("h3", "", "Repetitions");
    html.element(
        "p",
        "note",
        "Runs that differ only in the seed: mean ± sample standard deviation. A difference from the first \
         row is significant if Welch's t-test (two-sided) gives p < 0.05.",
    );
    let mut heads = vec!["runs"];
    heads.extend(comparison.keys.iter().map(String::as_str));
    let score = comparison.score;
    let best = format!("best {}", score.head());
    heads.extend([best.as_str(), "p", "images/s", "p", "total s", "p"]);
    let rows: Vec<Vec<Cell>> = comparison
        .repetitions
        .iter()
        .map(|group: &Repetitions| {
            let mut cells = vec![Cell::sorted(group.runs.len().to_string(), group.runs.len() as f64)];
            cells.extend(group.values.iter().map(|value| setting(value)));
            for (statistics, scale, decimals) in [
                (&group.best_score, score.number(1.0), score.decimals()),
                (&group.images_per_second, 1.0, 0),
                (&group.total_s, 1.0, 1),
            ] {
                let mean = statistics.mean.map(|mean| scale * mean);
                let text = match (mean, statistics.deviation.map(|deviation| scale * deviation)) {
                    (Some(mean), Some(deviation)) => format!("{mean:.decimals$} ± {deviation:.decimals$}"),
                    (Some(mean), None) => format!("{mean:.decimals$}"),
                    (None, _) => "–".to_owned(),
                };
                cells.push(Cell::sorted(text, mean.unwrap_or(f64::NEG_INFINITY)));
                let verdict = statistics.p.map_or("–".to_owned(), |p| {
                    format!("{p:.3}{}", if statistics.differs == Some(true) { " (significant)" } else { "" })
                });
                cells.push(Cell::sorted(verdict, statistics.p.unwrap_or(f64::NEG_INFINITY)));
            }
            cells
        })
        .collect();
    html.table(&heads, &rows);
}

/// The cell of a value of the configuration, sorted numerically if it is a number.
fn setting(value: &str) -> Cell {
    value.parse::<f64>().map_or_else(|_| Cell::text(value), |number| Cell::sorted(value, number))
}

/// Adds the list of missing data.
pub(super) fn problems(html: &mut Html, problems: &[Problem]) {
    if problems.is_empty() {
        return;
    }
    html.element("h2", "", "Missing data");
    html.open("ul", "problems");
    for problem in problems {
        html.element("li", "", &format!("{}: {} ({})", problem.run.display(), problem.what, problem.reason));
    }
    html.close("ul");
}
