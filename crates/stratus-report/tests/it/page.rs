//! Pages on generated run directories: complete, partial, long, and with names that look like markup.

use std::fs;
use std::path::{Path, PathBuf};

use stratus_report::report::Report;
use stratus_report::{markdown, page};
use stratus_run::csv::{CsvWriter, EpochRow, IterationRow, Task, UsageRow};
use stratus_run::summary::{Energy, FinalMetrics, Forecast, Status, Summary, TimeBreakdown};
use stratus_run::timeline::{Phase, Program, Purpose, Slot, TimelineWriter};
use stratus_run::{RunDir, atomic};

/// A name that would be markup, a script, or the end of one if it were not escaped.
pub const HOSTILE: &str = "</script><script>alert(1)</script><img src=x onerror='alert(1)'>\"`|";

pub struct Made<'a> {
    layer: &'a str,
    iterations: u64,
    rate: f64,
    seed: u64,
    summary: bool,
}

pub const PLAIN: Made<'static> = Made { layer: "conv1", iterations: 40, rate: 0.1, seed: 1, summary: true };

pub fn slot(layers: &[&str], kind: &str, phase: Phase) -> Slot {
    let layers = layers.iter().map(ToString::to_string).collect();
    Slot { layers, kind: kind.into(), phase, device: "cpu".into() }
}

pub fn make(root: &Path, made: &Made) -> PathBuf {
    let run = RunDir::create(root, "digits").unwrap();
    let text = format!(
        "[train]\nbatch_size = 32\nseed = {}\n[optimiser]\nlearning_rate = {}\n[model]\nname = {:?}\n",
        made.seed, made.rate, made.layer
    );
    atomic::write(&run.experiment(), text.as_bytes()).unwrap();
    run.prepare().unwrap();
    let slots = vec![
        slot(&[], "", Phase::DataWait),
        slot(&[made.layer], "conv2d", Phase::Forward),
        slot(&["fc"], "linear", Phase::Forward),
        slot(&["fc"], "linear", Phase::BackwardWeights),
        slot(&[made.layer], "conv2d", Phase::BackwardWeights),
    ];
    let program = Program { name: "train".into(), purpose: Purpose::Train, batch_size: 32, slots };
    let mut timeline = TimelineWriter::open(&run.timeline()).unwrap();
    let id = timeline.register(&program).unwrap();
    let mut iterations = CsvWriter::open(&run.iterations(), Task::Classification).unwrap();
    for iteration in 1..=made.iterations {
        let ns = [6_000_000, 1_000_000, 2_000_000, 3_000_000, 4_000_000];
        timeline.append(id, 1, iteration, ns.iter().sum::<u64>() + 100, &ns).unwrap();
        let row = IterationRow {
            epoch: 1,
            iteration,
            loss: 2.0 / iteration as f64,
            accuracy: Some(0.5),
            data_s: 0.006,
            train_s: 0.01,
            ..IterationRow::default()
        };
        iterations.append(&row).unwrap();
    }
    if made.summary {
        let last = FinalMetrics { val_loss: Some(0.25), val_top1: Some(0.9), ..FinalMetrics::default() };
        let summary = Summary {
            status: Status::Completed,
            model: made.layer.to_owned(),
            dataset: "mnist".into(),
            final_metrics: last,
            time: TimeBreakdown { total_s: 10.0 + made.seed as f64, ..TimeBreakdown::default() },
            ..Summary::default()
        };
        summary.write(&run.summary()).unwrap();
        let mut epochs = CsvWriter::open(&run.epochs(), Task::Classification).unwrap();
        let val_top1 = Some(0.9 + made.rate / 10.0 + made.seed as f64 * 1e-4);
        epochs
            .append(&EpochRow {
                epoch: 1,
                val_accuracy: val_top1,
                val_loss: Some(0.25),
                ..EpochRow::default()
            })
            .unwrap();
    }
    run.path().to_owned()
}

/// The JSON document of the scripts of a page.
pub fn drawn(page: &str) -> serde_json::Value {
    let from = page.find("id=\"data\">").unwrap() + "id=\"data\">".len();
    let text = &page[from..];
    serde_json::from_str(&text[..text.find("</script>").unwrap()]).unwrap()
}

#[test]
fn page_compares_the_forecast_and_shows_the_energy() {
    let root = tempfile::tempdir().unwrap();
    let path = make(root.path(), &PLAIN);
    let run = RunDir::open(&path).unwrap();
    let page = |run: &RunDir| page::render(&Report::read(&[run.path().to_owned()], None, None));
    let plain = page(&run);
    for text in ["Forecast and measured", "energy, with other programs", "Power of CPU and GPU"] {
        assert!(!plain.contains(text), "{text}");
    }
    // A forecast of an earlier version has no parts: they follow from its step.
    let summary = Summary {
        iterations: 40,
        forecast: Some(Forecast { step_s: 0.02, total_s: 1.0, ..Forecast::default() }),
        energy: Energy { energy_wh: Some(3.5), cpu_energy_wh: Some(3.5), gpu_energy_wh: None },
        time: TimeBreakdown { train_s: 0.5, data_wait_s: 1.25, ..TimeBreakdown::default() },
        ..Summary::read(&run.summary()).unwrap()
    };
    summary.write(&run.summary()).unwrap();
    let mut usage = CsvWriter::<UsageRow>::open(&run.usage(), Task::Classification).unwrap();
    for elapsed_s in [1.0, 2.0] {
        usage.append(&UsageRow { elapsed_s, cpu_watts: Some(42.0), ..UsageRow::default() }).unwrap();
    }
    usage.flush().unwrap();
    let page = page(&run);
    for text in [
        "<dt>energy, with other programs</dt>",
        "<dd>3.50 Wh</dd>",
        "Power of CPU and GPU, W",
        "The largest error is that of data wait: -1.25 s.",
        "<td>iterations</td><td class=\"n\" data-n=\"0.8\">0.80</td>",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert_eq!(drawn(&page)["runs"][0]["usage"]["cpu_watts"][0], 42.0);
}

#[test]
fn page_shows_the_time_per_iteration() {
    let root = tempfile::tempdir().unwrap();
    let run = make(root.path(), &PLAIN);
    let report = Report::read(&[run], None, None);
    // Without plan.json, the data from it is reported as missing.
    assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
    assert!(report.problems[0].what.contains("roofline"));
    let run = &report.runs[0];
    assert_eq!(
        run.headline,
        "An iteration takes 16.00 ms: layers 62.5 % (longest conv1, 31.2 %), waiting for data 37.5 %, loss, \
         layout changes and bookkeeping 0.0 %, unattributed 0.001 %."
    );
    assert!(run.advice[0].starts_with("Training waits for data 37.5 % of the time with data.workers = 1"));
    let page = page::render(&report);
    for text in ["<h1>conv1 on mnist</h1>", "completed", "91.01 %", "Per layer", "conv2d", "Missing data"] {
        assert!(page.contains(text), "{text}");
    }
    let drawn = drawn(&page);
    assert_eq!(drawn["runs"][0]["curves"]["iteration"].as_array().unwrap().len(), 40);
    assert_eq!(drawn["runs"][0]["curves"]["layers"][0]["layer"], "conv1");
    assert_eq!(drawn["runs"][0]["curves"]["layers"][0]["forward_ms"][7], 1.0);
    assert_eq!(drawn["runs"][0]["curves"]["layers"][0]["backward_ms"][7], 4.0);
    // The page loads nothing external.
    let own = page.replace("http://www.w3.org/", "");
    assert!(
        !own.contains("src=\"http") && !own.contains("href=\"http") && !own.contains("url("),
        "the page loads external resources"
    );
}

#[test]
fn names_of_a_run_never_become_markup() {
    let root = tempfile::tempdir().unwrap();
    let run = make(root.path(), &Made { layer: HOSTILE, ..PLAIN });
    let plain = make(root.path(), &PLAIN);
    let report = Report::read(&[run, plain], None, None);
    let page = page::render(&report);
    // Only the two scripts of the page, one of them the data.
    assert_eq!(page.matches("<script").count(), 2, "injected script");
    assert_eq!(page.matches("</script").count(), 2);
    assert!(!page.contains("<img"), "injected markup");
    assert_eq!(drawn(&page)["runs"][0]["curves"]["layers"][0]["layer"], HOSTILE);
    let svg = page::time_svg(&report.runs[0]);
    assert!(!svg.contains("<script") && !svg.contains("<img"), "{svg}");
    let text = markdown::markdown(&report);
    assert!(!text.contains("<script"), "{text}");
}

#[test]
fn reports_missing_data_and_everything_else() {
    let root = tempfile::tempdir().unwrap();
    let whole = make(root.path(), &PLAIN);
    let young = make(root.path(), &Made { iterations: 0, summary: false, ..PLAIN });
    let torn = make(root.path(), &PLAIN);
    fs::write(torn.join("plan.json"), "{\"train\": {\"steps\": 3}}").unwrap();
    fs::write(torn.join("epochs.csv"), "epoch,what\n1,2\n").unwrap();
    fs::write(torn.join("iterations.csv"), b"\xff\xfe").unwrap();
    let damaged = make(root.path(), &PLAIN);
    fs::write(damaged.join("experiment.toml"), "[train\n").unwrap();
    let nowhere = root.path().join("digits/17");
    let paths = [whole, young, torn.clone(), damaged.clone(), nowhere.clone()];
    let report = Report::read(&paths, None, None);
    let labels: Vec<&str> = report.runs.iter().map(|run| run.label.as_str()).collect();
    let problems_of = |path: &Path| report.problems.iter().filter(|problem| problem.run == path).count();
    assert_eq!((problems_of(&damaged), problems_of(&nowhere)), (1, 1), "{:?}", report.problems);
    assert!(problems_of(&torn) >= 1, "{:?}", report.problems);
    assert_eq!(labels[..2], ["digits/1", "digits/2"]);
    assert_eq!(report.runs[1].headline, "No training iteration is recorded yet.");
    let page = page::render(&report);
    assert!(page.contains("digits/17") && page.contains("<h2>Comparison</h2>"));
}

#[test]
fn compares_runs_by_their_differences() {
    let root = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for (rate, seed) in [(0.1, 1), (0.1, 2), (0.1, 3), (0.2, 1), (0.2, 2), (0.2, 3)] {
        paths.push(make(root.path(), &Made { rate, seed, ..PLAIN }));
    }
    let report = Report::read(&paths, None, None);
    let comparison = report.comparison.as_ref().unwrap();
    assert_eq!(comparison.keys, ["optimiser.learning_rate"]);
    assert_eq!(comparison.repetitions.len(), 2);
    let [first, second] = &comparison.repetitions[..] else { panic!("two groups") };
    assert_eq!((first.runs.len(), first.best_score.p), (3, None));
    // The means differ by 0.01, the values of each group by 0.0001.
    assert_eq!(second.best_score.differs, Some(true));
    assert_eq!(second.total_s.p, None, "equal values do not differ");
    let csv = markdown::to_csv(&report);
    assert_eq!(csv.lines().count(), 7, "{csv}");
    assert!(csv.starts_with("run,status,optimiser.learning_rate,best top-1 %,"), "{csv}");
    assert!(csv.lines().nth(4).unwrap().starts_with("digits/4,completed,0.2,92.01,0.2500"), "{csv}");
}

#[test]
fn page_of_a_long_run_is_small() {
    let root = tempfile::tempdir().unwrap();
    let run = make(root.path(), &Made { iterations: 100_000, ..PLAIN });
    let report = Report::read(&[run], None, None);
    let curves = &report.runs[0].curves;
    assert!((500..=1000).contains(&curves.iteration.len()), "{}", curves.iteration.len());
    assert_eq!(curves.iteration.last(), Some(&100_000));
    let page = page::render(&report);
    assert!(page.len() < 1 << 20, "{} bytes", page.len());
}

/// In two of three iterations, the first worker waits for the second; in one, the second waits for the first.
#[test]
fn page_shows_which_worker_is_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let run = make(root.path(), &Made { iterations: 0, ..PLAIN });
    let run = RunDir::open(&run).unwrap();
    let slots = vec![
        slot(&[], "", Phase::DataWait),
        slot(&["fc"], "linear", Phase::Forward),
        slot(&[], "exchange", Phase::Communication),
    ];
    let program = Program { name: "train".into(), purpose: Purpose::Train, batch_size: 32, slots };
    let times = [[[1, 10, 9], [1, 10, 9], [1, 16, 3]], [[1, 17, 2], [1, 17, 2], [1, 10, 9]]];
    let others = run.worker(1).unwrap();
    others.prepare().unwrap();
    for (worker, times) in [&run, &others].into_iter().zip(times) {
        let mut timeline = TimelineWriter::resume_at(&worker.timeline(), 0).unwrap();
        let id = timeline.register(&program).unwrap();
        for (iteration, ms) in (1..).zip(times) {
            let ns = ms.map(|ms: u64| ms * 1_000_000);
            timeline.append(id, 1, iteration, ns.iter().sum(), &ns).unwrap();
        }
    }
    let report = Report::read(&[run.path().to_owned()], Some(0), None);
    let workers = &report.runs[0].accounting.workers;
    let waited: Vec<(u64, u64, f64)> = workers
        .iter()
        .map(|worker| {
            let waited = worker.waited_for.unwrap();
            (worker.worker, waited.worker, waited.mean_ms)
        })
        .collect();
    assert_eq!(waited, [(0, 1, 14.0 / 3.0), (1, 0, 2.0)]);
    let page = page::render(&report);
    for text in ["Per worker", "communication ms", "worker 1", "4.667", "worker 0", "2.000"] {
        assert!(page.contains(text), "{text}");
    }
    let text = markdown::markdown(&report);
    assert!(text.contains("| worker | iteration ms | communication ms | waits for | waiting ms |"), "{text}");
    assert!(text.contains("| 0 | 20.000 | 7.000 | worker 1 | 4.667 |"), "{text}");
    // A single worker has no such table.
    fs::remove_dir_all(run.path().join("workers")).unwrap();
    assert!(!page::render(&Report::read(&[run.path().to_owned()], Some(0), None)).contains("Per worker"));
}
