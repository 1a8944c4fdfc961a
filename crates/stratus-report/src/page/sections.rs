//! The parts of the page.

use serde_json::Value;
use stratus_run::csv::Task;
use stratus_run::summary::Forecast;
use stratus_run::timeline::Phase;

use super::charts;
use super::html::{Cell, Html};
use crate::report::{Comparison, MemoryMap, Problem, Repetitions, RunReport, Work, score_name};
use crate::text::bytes;

/// Values of the arena that the page lists by name.
const LARGEST: usize = 12;

/// Everything on one run; `alone` where the report is on no other.
pub(super) fn run(html: &mut Html, run: &RunReport, number: usize, alone: bool) {
    html.open("section", "run");
    let summary = run.experiment.summary.as_ref();
    let title =
        summary.map_or(run.label.clone(), |summary| format!("{} on {}", summary.model, summary.dataset));
    html.element(if alone { "h1" } else { "h2" }, "", &if alone { title.clone() } else { run.label.clone() });
    html.open("p", "lead");
    html.element("span", "status", run.experiment.status.name());
    let what = if alone { &run.label } else { &title };
    html.element("span", "muted", what);
    html.close("p");
    html.element("p", "headline", &run.headline);
    tiles(html, run);
    if !run.advice.is_empty() {
        html.element("h3", "", "What to try next");
        html.open("ol", "");
        run.advice.iter().for_each(|line| html.element("li", "", line));
        html.close("ol");
    }
    curves(html, run, number);
    time(html, run, number);
    if let Some(work) = &run.work {
        roofline(html, work);
    }
    if let Some(map) = &run.memory {
        memory(html, map);
    }
    usage(html, run, number);
    facts(html, run);
    html.close("section");
}

fn tiles(html: &mut Html, run: &RunReport) {
    let best = run.epochs.iter().filter_map(|epoch| epoch.val_score).reduce(f64::max);
    let best_name = format!("best validation {}", score_name(run.task));
    let summary = run.experiment.summary.as_ref();
    let speed = summary.and_then(|summary| summary.images_per_second.median);
    let memory = summary
        .and_then(|summary| summary.memory.device_peak_bytes.or(summary.memory.measured_peak_rss_bytes));
    let counted = run.accounting.iterations > 0;
    let tiles = [
        (best_name.as_str(), best.map(|share| format!("{:.2} %", 100.0 * share))),
        (
            "validation loss",
            summary.and_then(|summary| summary.last.val_loss).map(|loss| format!("{loss:.4}")),
        ),
        ("images/s, median", speed.map(|speed| format!("{speed:.0}"))),
        ("an iteration, median", counted.then(|| format!("{:.2} ms", run.accounting.wall.median_ms))),
        (
            "a step, forecast and measured",
            summary.and_then(|summary| summary.forecast.as_ref()).map(forecast),
        ),
        ("in all", summary.map(|summary| duration(summary.time.total_s))),
        (
            "ended early",
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
            "not accounted for",
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

fn forecast(forecast: &Forecast) -> String {
    let ms = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
    let measured = forecast.measured_step_s.map_or("–".to_owned(), ms);
    let error = forecast.error_percent.map_or("–".to_owned(), |error| format!("{error:+.1} %"));
    format!("{} and {measured}, {error}", ms(forecast.step_s))
}

fn curves(html: &mut Html, run: &RunReport, number: usize) {
    if run.curves.iteration.is_empty() {
        return;
    }
    html.element("h3", "", "Learning");
    means_note(html, run.curves.iterations_per_point);
    non_finite_note(html, run.curves.non_finite_losses);
    html.open("div", "pair");
    html.chart("loss", number, "Loss", "");
    match run.task {
        Task::Classification => html.chart("accuracy", number, "Top-1 accuracy, %", ""),
        Task::Segmentation => html.chart("accuracy", number, "Pixel accuracy and mean IoU, %", ""),
    }
    html.close("div");
    html.open("div", "pair");
    html.chart("rate", number, "Learning rate", "");
    html.chart("pace", number, "Milliseconds of an iteration, and of it waiting for data", "");
    html.close("div");
}

/// Says that the points of curves are means, where they are of more than one iteration.
fn means_note(html: &mut Html, iterations: u64) {
    if iterations > 1 {
        html.element("p", "note", &format!("Each point of a curve is the mean of {iterations} iterations."));
    }
}

/// Says that the curve of the loss leaves out points, where the loss was not finite.
fn non_finite_note(html: &mut Html, iterations: u64) {
    if iterations > 0 {
        let plural = if iterations == 1 { "" } else { "s" };
        let text = format!(
            "The loss of {iterations} iteration{plural} is not finite: the curve has no point there, and its \
             line joins the points beside."
        );
        html.element("p", "note", &text);
    }
}

fn time(html: &mut Html, run: &RunReport, number: usize) {
    let accounting = &run.accounting;
    if accounting.iterations == 0 {
        return;
    }
    html.element("h3", "", "Where an iteration goes");
    html.element(
        "p",
        "note",
        &format!(
            "Means over {} iterations; the first {} are left out.",
            accounting.iterations, accounting.skipped
        ),
    );
    html.open("div", "scroll");
    html.raw(&charts::time(accounting).inline("Where an iteration goes"));
    html.close("div");
    let (drawn, layers) = (run.curves.layers.len(), accounting.layers.len());
    if drawn > 0 {
        means_note(html, run.curves.layer_iterations_per_point);
        let note = match drawn < layers {
            true => format!("The {drawn} layers of {layers} that take longest. "),
            false => String::new(),
        };
        let note = note + "A name below the chart hides or shows its layer.";
        html.chart("layers", number, "Layer time over the iterations, ms", &note);
        let title = format!("Forward against backward and update, all {layers} layers, ms");
        html.chart("forward-backward", number, &title, "");
    }
    layer_table(html, run);
    super::workers::table(html, accounting);
    accounted(html, run);
}

fn layer_table(html: &mut Html, run: &RunReport) {
    let work = run.work.as_ref();
    let heads = [
        "layer",
        "kind",
        "forward ms",
        "backward ms",
        "update ms",
        "total ms",
        "median ms",
        "share %",
        "MFLOP",
        "GFLOP/s",
        "GB/s",
    ];
    let rows: Vec<Vec<Cell>> = run
        .accounting
        .layers
        .iter()
        .enumerate()
        .map(|(position, layer)| {
            let work = work.and_then(|work| work.layers.get(position));
            let ms = |cost: &crate::accounting::Cost| Cell::number(Some(cost.mean_ms), 3);
            vec![
                Cell::text(layer.layer.clone()),
                Cell::text(layer.kind.clone()),
                ms(&layer.forward),
                ms(&layer.backward),
                ms(&layer.update),
                ms(&layer.total),
                Cell::number(Some(layer.total.median_ms), 3),
                Cell::number(Some(layer.total.share_percent), 1),
                Cell::number(work.map(|work| work.flops as f64 / 1e6), 1),
                Cell::number(work.and_then(|work| work.gflops_per_s), 1),
                Cell::number(work.and_then(|work| work.gb_per_s), 1),
            ]
        })
        .collect();
    html.element("h4", "", "Per layer");
    html.table(&heads, &rows);
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
    html.element("h4", "", "What belongs to no layer");
    html.table(&["phase", "ms", "median ms", "share %"], &rows);
}

/// The iterations' wall time against what the slots add up to.
fn accounted(html: &mut Html, run: &RunReport) {
    let accounting = &run.accounting;
    let (wall, rest) = (accounting.wall.total_ns as f64 / 1e9, accounting.unattributed.total_ns as f64 / 1e9);
    let wait: f64 = accounting
        .phases
        .iter()
        .filter(|row| row.phase == Phase::DataWait)
        .map(|row| row.cost.total_ns as f64 / 1e9)
        .sum();
    html.element("h4", "", "Total against accounted");
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

fn roofline(html: &mut Html, work: &Work) {
    if work.points.is_empty() {
        return;
    }
    html.element("h3", "", "Roofline");
    let note = if work.peaks.gb_per_s.is_some() && work.peaks.gflops.contains_key(&work.precision) {
        "A circle a layer and phase, its area the time it takes. The line is what this machine can do at \
         most, as \
         `stratus doctor` measures it; operands that come out of caches can lie above its slope."
    } else {
        "A circle a layer and phase, its area the time it takes. The machine's peaks for this number format \
         are not \
         known, so there is no roof: `stratus doctor` measures them."
    };
    html.element("p", "note", note);
    html.open("div", "scroll");
    html.raw(&charts::roofline(work).inline("Roofline"));
    html.close("div");
}

fn memory(html: &mut Html, map: &MemoryMap) {
    html.element("h3", "", "Memory over an iteration");
    html.element(
        "p",
        "note",
        &format!(
            "From the plan, to the byte: {} that outlive an iteration, {} that each iteration uses anew (at \
             most {} of \
             it at once, at step {}), {} of images and labels.",
            bytes(map.persistent_bytes as u64),
            bytes(map.transient_bytes as u64),
            bytes(map.alive.iter().copied().max().unwrap_or(0) as u64),
            map.peak_step,
            bytes(map.input_bytes as u64),
        ),
    );
    html.open("div", "scroll");
    html.raw(&charts::memory(map).inline("Memory over an iteration"));
    html.close("div");
    if map.unnamed.0 > 0 {
        let text = format!(
            "{} smaller blocks, {} together, are not drawn.",
            map.unnamed.0,
            bytes(map.unnamed.1 as u64)
        );
        html.element("p", "note", &text);
    }
    html.open("div", "pair");
    let peak = map.blocks.iter().filter(|block| (block.first..=block.last).contains(&map.peak_step));
    let rows: Vec<Vec<Cell>> = peak
        .take(LARGEST)
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
    html.element("h4", "", "Largest at the peak");
    html.table(&["value", "what", "shape", "bytes"], &rows);
    html.close("div");
    let rows: Vec<Vec<Cell>> = map
        .persistent
        .iter()
        .map(|(name, held)| vec![Cell::text(*name), Cell::sorted(bytes(*held as u64), *held as f64)])
        .collect();
    html.open("div", "");
    html.element("h4", "", "What outlives iterations");
    html.table(&["what", "bytes"], &rows);
    html.close("div");
    html.close("div");
}

/// How the machine was used, over the time of the run.
fn usage(html: &mut Html, run: &RunReport, number: usize) {
    let Some(curves) = &run.usage else { return };
    let known = |curve: &[Option<f64>]| curve.iter().any(Option::is_some);
    html.element("h3", "", "How the machine was used");
    let summary = run.experiment.summary.as_ref().map(|summary| summary.usage).unwrap_or_default();
    let percent = |value: Option<f64>, decimals: usize| {
        value.map_or("–".to_owned(), |value| format!("{value:.decimals$} %"))
    };
    let mut facts = vec![
        format!("the run took {} of the processors' time", percent(summary.cpu_percent_mean, 0)),
        format!("others {}", percent(summary.stolen_percent, 0)),
    ];
    if known(&curves.gpu_percent) {
        facts.push(format!("the GPU was busy {} of it", percent(summary.gpu_percent_mean, 0)));
    }
    facts.push(format!("sampling took {} of the run's processor time", percent(summary.sampling_percent, 3)));
    let text = format!("A sample a second. Since the run was last continued: {}.", facts.join(", "));
    html.element("p", "note", &text);
    html.open("div", "pair");
    html.chart("used-processors", number, "Processors and device, % of their time", "");
    html.chart("used-memory", number, "Memory in use, GB", "");
    html.close("div");
    let moved = [&curves.disk_read_mb_per_s, &curves.disk_write_mb_per_s, &curves.net_mb_per_s];
    html.open("div", "pair");
    if moved.iter().any(|curve| known(curve)) {
        let note = "Of the network, all that the machine sent and received; its loopback is left out.";
        html.chart("used-transfers", number, "Disk and network, MB a second", note);
    }
    if known(&curves.gpu_watts) {
        html.chart("used-power", number, "Power of the device, W", "");
    }
    html.close("div");
}

/// Configuration and machine, folded.
fn facts(html: &mut Html, run: &RunReport) {
    html.open("details", "");
    html.element("summary", "", "Configuration");
    let mut rows = Vec::new();
    flatten("", &run.experiment.configuration, &mut rows);
    html.table(&["key", "value"], &rows);
    html.close("details");
    let Some(machine) = &run.experiment.machine else { return };
    html.open("details", "");
    html.element("summary", "", "Machine");
    let mut rows = vec![
        [Cell::text("host"), Cell::text(machine.host.clone())],
        [Cell::text("system"), Cell::text(format!("{}, {}", machine.os, machine.kernel))],
        [Cell::text("processor"), Cell::text(machine.cpu.model.clone())],
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

fn flatten(name: &str, value: &Value, rows: &mut Vec<Vec<Cell>>) {
    match value {
        Value::Object(table) => {
            for (key, value) in table {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                flatten(&name, value, rows);
            }
        }
        Value::String(text) => rows.push(vec![Cell::text(name), Cell::text(text.clone())]),
        other => rows.push(vec![Cell::text(name), Cell::text(other.to_string())]),
    }
}

/// Several runs beside each other.
pub(super) fn comparison(html: &mut Html, comparison: &Comparison) {
    let best = format!("best {} %", comparison.score);
    let mut heads = vec!["run", "status"];
    heads.extend(comparison.keys.iter().map(String::as_str));
    heads.extend([
        best.as_str(),
        "validation loss",
        "training loss",
        "iteration ms, median",
        "images/s, median",
        "speed-up",
        "in all s",
        "peak memory",
    ]);
    let rows: Vec<Vec<Cell>> = comparison
        .rows
        .iter()
        .map(|row| {
            let mut cells = vec![Cell::text(row.label.clone()), Cell::text(row.status.clone())];
            cells.extend(row.values.iter().map(|value| setting(value)));
            cells.extend([
                Cell::number(row.best_score.map(|share| 100.0 * share), 2),
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
    html.element("h2", "", "Side by side");
    if let Some(verdict) = &comparison.verdict {
        html.element("p", "", verdict);
    }
    html.table(&heads, &rows);
    if !comparison.repetitions.is_empty() {
        repetitions(html, comparison);
    }
    html.open("div", "pair");
    html.chart("all-loss", 0, "Validation loss by epoch", "");
    html.chart("all-accuracy", 0, &format!("Validation {} by epoch, %", comparison.score), "");
    html.close("div");
}

fn repetitions(html: &mut Html, comparison: &Comparison) {
    html.element("h3", "", "Repetitions");
    html.element(
        "p",
        "note",
        "Runs that differ in nothing but the seed: mean ± sample standard deviation. A difference from the \
         first row \
         is called real where Welch's t-test (two-sided) gives p < 0.05.",
    );
    let mut heads = vec!["runs"];
    heads.extend(comparison.keys.iter().map(String::as_str));
    let best = format!("best {} %", comparison.score);
    heads.extend([best.as_str(), "p", "images/s", "p", "in all s", "p"]);
    let rows: Vec<Vec<Cell>> = comparison
        .repetitions
        .iter()
        .map(|group: &Repetitions| {
            let mut cells = vec![Cell::sorted(group.runs.len().to_string(), group.runs.len() as f64)];
            cells.extend(group.values.iter().map(|value| setting(value)));
            for (spread, scale, decimals) in
                [(&group.best_score, 100.0, 2), (&group.images_per_second, 1.0, 0), (&group.total_s, 1.0, 1)]
            {
                let mean = spread.mean.map(|mean| scale * mean);
                let text = match (mean, spread.deviation.map(|deviation| scale * deviation)) {
                    (Some(mean), Some(deviation)) => format!("{mean:.decimals$} ± {deviation:.decimals$}"),
                    (Some(mean), None) => format!("{mean:.decimals$}"),
                    (None, _) => "–".to_owned(),
                };
                cells.push(Cell::sorted(text, mean.unwrap_or(f64::NEG_INFINITY)));
                let verdict = spread.p.map_or("–".to_owned(), |p| {
                    format!("{p:.3}{}", if spread.differs == Some(true) { " real" } else { "" })
                });
                cells.push(Cell::sorted(verdict, spread.p.unwrap_or(f64::NEG_INFINITY)));
            }
            cells
        })
        .collect();
    html.table(&heads, &rows);
}

/// A configuration's value, sorted as a number where it is one.
fn setting(value: &str) -> Cell {
    value.parse::<f64>().map_or_else(|_| Cell::text(value), |number| Cell::sorted(value, number))
}

/// What could not be read.
pub(super) fn problems(html: &mut Html, problems: &[Problem]) {
    if problems.is_empty() {
        return;
    }
    html.element("h2", "", "Not in this report");
    html.open("ul", "problems");
    for problem in problems {
        html.element("li", "", &format!("{}: {} ({})", problem.run.display(), problem.what, problem.reason));
    }
    html.close("ul");
}

/// Seconds as a person says them.
fn duration(seconds: f64) -> String {
    let whole = seconds.round().max(0.0) as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{}:{:02} min", whole / 60, whole % 60),
        _ => format!("{}:{:02} h", whole / 3600, whole / 60 % 60),
    }
}
