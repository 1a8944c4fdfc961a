//! All figures and series of a page, compared with their CSV files: networks with 6 and 150 layers,
//! all tasks, short and long runs.

use crate::page::{drawn, slot};
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use stratus_report::report::Report;
use stratus_report::{layers, page};
use stratus_run::csv::{CsvWriter, EpochRow, IterationRow, LabelColumns, NumberColumns, Task, UsageRow};
use stratus_run::timeline::{Phase, Program, Purpose, TimelineWriter};
use stratus_run::{RunDir, atomic};

/// Number of first iterations that mean times skip.
pub const SKIPPED: u64 = 2;

/// A run of layers outside of blocks.
fn make(root: &Path, task: Task, layers: usize, iterations: u64) -> RunDir {
    let names: Vec<Vec<String>> = (0..layers).map(|layer| vec![format!("layer{layer}")]).collect();
    make_named(root, task, &names, iterations)
}

/// A run with the given rows of layers and `iterations` iterations in two epochs, with all times and metrics
/// different.
pub fn make_named(root: &Path, task: Task, names: &[Vec<String>], iterations: u64) -> RunDir {
    let run = RunDir::create(root, "net").unwrap();
    atomic::write(&run.experiment(), b"[train]\nbatch_size = 32\n").unwrap();
    run.prepare().unwrap();
    let slot = |names: &[String], kind: &str, phase| {
        slot(&names.iter().map(String::as_str).collect::<Vec<_>>(), kind, phase)
    };
    let mut slots = vec![slot(&[], "", Phase::DataWait)];
    slots.extend(names.iter().map(|name| slot(name, "conv2d", Phase::Forward)));
    slots.push(slot(&[], "cross_entropy", Phase::Loss));
    for name in names.iter().rev() {
        slots.push(slot(name, "conv2d", Phase::BackwardData));
        slots.push(slot(name, "conv2d", Phase::BackwardWeights));
        slots.push(slot(name, "sgd", Phase::Update));
    }
    let count = slots.len() as u64;
    let program = Program { name: "train".into(), purpose: Purpose::Train, batch_size: 32, slots };
    let mut timeline = TimelineWriter::open(&run.timeline()).unwrap();
    let id = timeline.register(&program).unwrap();
    let mut rows = CsvWriter::open(&run.iterations(), task).unwrap();
    for iteration in 1..=iterations {
        let epoch = 1 + u32::from(iteration > iterations / 3);
        let ns: Vec<u64> =
            (0..count).map(|slot| 1000 + (slot * 7919 + iteration * 104_729) % 90_001).collect();
        timeline.append(id, epoch, iteration, ns.iter().sum::<u64>() + 77, &ns).unwrap();
        let row = IterationRow {
            epoch,
            iteration,
            loss: 3.0 / iteration as f64,
            accuracy: Some(1.0 - 1.0 / iteration as f64),
            learning_rate: 0.0004 / (1.0 + iteration as f64),
            data_s: ns[0] as f64 / 1e9,
            train_s: ns[1..].iter().sum::<u64>() as f64 / 1e9,
            ..IterationRow::default()
        };
        rows.append(&row).unwrap();
    }
    let mut rows = CsvWriter::open(&run.epochs(), task).unwrap();
    for epoch in 1..=2 {
        let fraction = f64::from(epoch) / 3.7;
        let row = EpochRow {
            epoch,
            train_loss: 2.0 * fraction,
            train_accuracy: 0.9 * fraction,
            val_loss: Some(2.5 * fraction),
            val_accuracy: Some(0.8 * fraction),
            val_miou: (task == Task::Segmentation).then_some(0.7 * fraction),
            labels: LabelColumns {
                val_map: Some(0.61 * fraction),
                val_auc: Some(0.62 * fraction),
                val_f1: Some(0.63 * fraction),
                val_exact_match: Some(0.64 * fraction),
            },
            numbers: NumberColumns { val_mae: Some(3.1 * fraction), val_rmse: Some(4.2 * fraction) },
            elapsed_s: 11.0 * fraction,
            ..EpochRow::default()
        };
        rows.append(&row).unwrap();
    }
    let mut rows = CsvWriter::open(&run.usage(), task).unwrap();
    for second in 1..=9_u64 {
        let row = UsageRow {
            elapsed_s: second as f64,
            cpu_percent: Some(40.0 + second as f64),
            rss_bytes: Some(1_000_000 * second),
            disk_read_bytes: Some(3_000_000 + second),
            ..UsageRow::default()
        };
        rows.append(&row).unwrap();
    }
    run
}

/// A CSV file: rows of fields by column.
pub fn table(path: &Path) -> Vec<HashMap<String, String>> {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let heads: Vec<&str> = lines.next().unwrap().split(',').collect();
    lines
        .map(|line| heads.iter().map(ToString::to_string).zip(line.split(',').map(Into::into)).collect())
        .collect()
}

fn column(table: &[HashMap<String, String>], name: &str) -> Vec<f64> {
    table.iter().map(|row| row[name].parse().unwrap_or(f64::NAN)).collect()
}

/// Means over buckets of `length` rows.
pub fn means(values: &[f64], length: usize) -> Vec<f64> {
    values.chunks(length).map(|bucket| bucket.iter().sum::<f64>() / bucket.len() as f64).collect()
}

#[track_caller]
pub fn expect_curve(curve: &Value, expected: &[f64]) {
    let curve = curve.as_array().unwrap();
    assert_eq!(curve.len(), expected.len());
    for (point, expected) in curve.iter().zip(expected) {
        expect_near(point.as_f64().unwrap(), *expected);
    }
}

/// Compares with the six decimals of CSV files.
#[track_caller]
pub fn expect_near(value: f64, expected: f64) {
    assert!((value - expected).abs() <= 1e-6 + 1e-9 * expected.abs(), "{value} and {expected}");
}

/// The rows of the table after a heading; each cell as its sort key, its whole name, or its text.
pub fn cells(page: &str, heading: &str) -> Vec<Vec<String>> {
    let from = page.find(&format!(">{heading}</h4>")).unwrap();
    let body = &page[from..];
    let body = &body[body.find("<tbody>").unwrap()..body.find("</tbody>").unwrap()];
    let cell = |cell: &str| match cell.split_once("data-n=\"") {
        Some((_, number)) => number.split('"').next().unwrap().to_owned(),
        None if cell.contains("title=\"") => cell.split('"').nth(3).unwrap().to_owned(),
        None => cell.split('>').nth(1).unwrap().split('<').next().unwrap().to_owned(),
    };
    body.split("<tr").skip(1).map(|row| row.split("<td").skip(1).map(cell).collect()).collect()
}

/// Microseconds of forward, backward and update of each iteration, by layer.
pub fn layer_times(run: &RunDir) -> HashMap<String, [Vec<f64>; 3]> {
    layers::write_file(run, &run.layers()).unwrap();
    let mut times: HashMap<String, [Vec<f64>; 3]> = HashMap::new();
    for row in table(&run.layers()) {
        let columns = times.entry(row["layer"].clone()).or_default();
        for (column, name) in columns.iter_mut().zip(["forward_us", "backward_us", "update_us"]) {
            column.push(row[name].parse().unwrap());
        }
    }
    times
}

fn check(task: Task, layer_count: usize, iterations: u64) {
    let root = tempfile::tempdir().unwrap();
    let run = make(root.path(), task, layer_count, iterations);
    let report = Report::read(&[run.path().to_owned()], Some(SKIPPED), None);
    let page = page::render(&report);
    let shown = &drawn(&page)["runs"][0];
    let curves = &shown["curves"];

    let rows = table(&run.iterations());
    let length = curves["iterations_per_point"].as_u64().unwrap() as usize;
    assert_eq!(length > 1, iterations > 1000);
    assert_eq!(
        length > 1,
        page.contains(&format!("Each point of a curve is the mean of {length} iterations."))
    );
    let accuracy = match task {
        Task::Classification => "top1",
        Task::Segmentation => "accuracy",
        Task::MultiLabel => "label_accuracy",
        Task::Regression => "r2",
    };
    expect_curve(&curves["loss"], &means(&column(&rows, "loss"), length));
    expect_curve(&curves["accuracy"], &means(&column(&rows, accuracy), length));
    expect_curve(&curves["learning_rate"], &means(&column(&rows, "learning_rate"), length));
    let [data, train, rest] = ["data_s", "train_s", "unattributed_s"].map(|name| column(&rows, name));
    // Milliseconds from seconds with six decimals.
    let data_ms: Vec<f64> = data.iter().map(|s| 1e3 * s).collect();
    let wall_ms: Vec<f64> = (0..data.len()).map(|i| 1e3 * (data[i] + train[i] + rest[i])).collect();
    expect_curve(&curves["data_ms"], &means(&data_ms, length));
    expect_curve(&curves["iteration_ms"], &means(&wall_ms, length));

    let rows = table(&run.epochs());
    let (score, others): (&str, &[&str]) = match task {
        Task::Classification => ("val_top1", &[]),
        Task::Segmentation => ("val_miou", &[]),
        Task::MultiLabel => ("val_map", &["val_map", "val_auc", "val_f1", "val_exact_match"]),
        Task::Regression => ("val_r2", &["val_mae", "val_rmse"]),
    };
    for (epoch, row) in shown["epochs"].as_array().unwrap().iter().zip(&rows) {
        let expected = |name: &str| row[name].parse::<f64>().unwrap();
        expect_near(epoch["train_loss"].as_f64().unwrap(), expected("train_loss"));
        expect_near(epoch["val_loss"].as_f64().unwrap(), expected("val_loss"));
        expect_near(epoch["val_score"].as_f64().unwrap(), expected(score));
        others.iter().for_each(|name| expect_near(epoch[*name].as_f64().unwrap(), expected(name)));
        let last = if epoch["epoch"] == 1 { iterations / 3 } else { iterations };
        assert_eq!(epoch["last_iteration"], last);
    }
    assert_eq!(rows.len(), 2);

    let rows = table(&run.usage());
    expect_curve(&shown["usage"]["elapsed_s"], &column(&rows, "elapsed_s"));
    expect_curve(&shown["usage"]["cpu_percent"], &column(&rows, "cpu_percent"));
    expect_curve(&shown["usage"]["rss_bytes"], &column(&rows, "rss_bytes"));
    let read: Vec<f64> = column(&rows, "disk_read_bytes").iter().map(|bytes| bytes / 1e6).collect();
    expect_curve(&shown["usage"]["disk_read_mb_per_s"], &read);

    let times = layer_times(&run);
    assert_eq!(times.len(), layer_count);
    layer_curves(&page, curves, &times, iterations as usize);
    layer_figures(&page, &times);
    time_chart(&report, &times, &wall_ms);
}

/// Checks the charts of layers over the iterations: those with a curve of their own, and the sums over all
/// layers.
fn layer_curves(page: &str, curves: &Value, times: &HashMap<String, [Vec<f64>; 3]>, iterations: usize) {
    let length = curves["layer_iterations_per_point"].as_u64().unwrap() as usize;
    assert_eq!(curves["layer_iteration"].as_array().unwrap().len(), iterations.div_ceil(length));
    let ms = |parts: &[&Vec<f64>]| {
        let sum = |i: usize| parts.iter().map(|part| part[i]).sum::<f64>() / 1e3;
        means(&(0..iterations).map(sum).collect::<Vec<_>>(), length)
    };
    for curve in curves["layers"].as_array().unwrap() {
        let [forward, backward, update] = &times[curve["layer"].as_str().unwrap()];
        expect_curve(&curve["forward_ms"], &ms(&[forward]));
        expect_curve(&curve["backward_ms"], &ms(&[backward, update]));
    }
    let all =
        |parts: fn(&[Vec<f64>; 3]) -> Vec<&Vec<f64>>| ms(&times.values().flat_map(parts).collect::<Vec<_>>());
    expect_curve(&curves["forward_ms"], &all(|layer| vec![&layer[0]]));
    expect_curve(&curves["backward_ms"], &all(|layer| vec![&layer[1], &layer[2]]));
    let (drawn, layers) = (curves["layers"].as_array().unwrap().len(), times.len());
    assert!(page.contains(&format!("Forward, and backward with update, all {layers} layers, ms")));
    assert_eq!(drawn < layers, page.contains(&format!("The {drawn} longest of {layers} layers.")));
}

/// The mean over the counted iterations, in milliseconds.
pub fn mean_ms(microseconds: &[f64]) -> f64 {
    let counted = &microseconds[SKIPPED as usize..];
    counted.iter().sum::<f64>() / counted.len() as f64 / 1e3
}

/// Checks the table of layers.
fn layer_figures(page: &str, times: &HashMap<String, [Vec<f64>; 3]>) {
    let rows = cells(page, "Per layer");
    assert_eq!(rows.len(), times.len());
    for row in &rows {
        let parts = times[&row[0]].each_ref().map(|part| mean_ms(part));
        let expected = [parts[0], parts[1], parts[2], parts.iter().sum()];
        for (cell, expected) in row[2..6].iter().zip(expected) {
            expect_near(cell.parse().unwrap(), expected);
        }
    }
}

/// Checks that the bars and the line of text for the remaining layers sum to the iteration.
fn time_chart(report: &Report, times: &HashMap<String, [Vec<f64>; 3]>, wall_ms: &[f64]) {
    let svg = page::time_svg(&report.runs[0]);
    let titles = svg.split("<title>").skip(1).map(|title| title.split("</title>").next().unwrap());
    let bars: Vec<(&str, &str, f64)> = titles
        .map(|title| {
            let (label, ms) = title.rsplit_once(": ").unwrap();
            let (name, part) = label.split_once(", ").unwrap();
            (name, part, ms.strip_suffix(" ms").unwrap().parse().unwrap())
        })
        .collect();
    for (name, part, ms) in &bars {
        let Some([forward, _, update]) = times.get(*name) else { continue };
        let expected = match *part {
            "forward" => mean_ms(forward),
            "update" => mean_ms(update),
            _ => continue,
        };
        assert!((ms - expected).abs() <= 0.0005, "{name}, {part}: {ms} and {expected}");
    }
    let more = svg
        .split("more layers take ")
        .nth(1)
        .map_or(0.0, |text| text.split(" ms").next().unwrap().parse::<f64>().unwrap());
    assert_eq!(more > 0.0, times.len() > 16);
    // No bar represents several layers.
    assert!(!svg.contains("more layers, "), "{svg}");
    let all: f64 = bars.iter().map(|(_, _, ms)| ms).sum::<f64>() + more;
    let wall = wall_ms[SKIPPED as usize..].iter().sum::<f64>() / (wall_ms.len() - SKIPPED as usize) as f64;
    // Each bar is rounded to a microsecond.
    assert!((all - wall).abs() <= 0.0005 * (bars.len() + 2) as f64, "{all} of {wall}");
}

#[test]
fn page_notes_non_finite_losses() {
    let root = tempfile::tempdir().unwrap();
    let run = make(root.path(), Task::Classification, 6, 30);
    let text = fs::read_to_string(run.iterations()).unwrap();
    let lines = text.lines().enumerate().map(|(at, line)| {
        let mut fields: Vec<&str> = line.split(',').collect();
        if [7, 8].contains(&at) {
            fields[2] = "NaN";
        }
        fields.join(",") + "\n"
    });
    fs::write(run.iterations(), lines.collect::<String>()).unwrap();
    let page = page::render(&Report::read(&[run.path().to_owned()], Some(SKIPPED), None));
    let losses = drawn(&page)["runs"][0]["curves"]["loss"].as_array().unwrap().clone();
    let missing: Vec<usize> = (0..losses.len()).filter(|&at| losses[at].is_null()).collect();
    assert_eq!(missing, [6, 7]);
    assert!(page.contains("The loss of 2 iterations is not finite"));
}

#[test]
fn figures_of_a_page_equal_its_csv_files() {
    check(Task::Classification, 6, 30);
    check(Task::Classification, 150, 30);
    check(Task::Segmentation, 150, 30);
    check(Task::MultiLabel, 6, 30);
    check(Task::Regression, 6, 30);
}

#[test]
fn curves_of_a_long_run_are_means_of_its_csv_files() {
    check(Task::Classification, 6, 2500);
    check(Task::Segmentation, 40, 1200);
}
