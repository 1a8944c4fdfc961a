//! `stratus report` on real runs: pages, tables, charts, data, folders of runs, and errors.

#![cfg(unix)]

use crate::common::{TestDir, train_arguments};
use serde_json::Value;
use std::fs;

fn train(dir: &TestDir, out: &str, seed: u32) {
    let more = ["--set".to_owned(), format!("train.seed={seed}")];
    let mut arguments = train_arguments(out, 1, &[]);
    arguments.extend(more);
    dir.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).expect(0);
}

#[test]
fn report_writes_pages_tables_charts_and_data() {
    let dir = TestDir::new();
    train(&dir, "runs/digits/1", 1);
    train(&dir, "runs/digits/2", 2);
    let report = |arguments: &[&str]| {
        let all = [&["report", "--no-peaks"], arguments].concat();
        dir.run(&all).expect(0)
    };

    let one = report(&["runs/digits/1"]);
    assert_eq!((one.out.as_str(), one.err.as_str()), ("", "runs/digits/1/report.html: page of one run\n"));
    let page = fs::read_to_string(dir.path("runs/digits/1/report.html")).unwrap();
    for text in ["<h1>digits on mnist</h1>", "Roofline", "Memory over an iteration", "layer2.0", "GFLOP/s"] {
        assert!(page.contains(text), "{text}");
    }
    assert!(!page.contains("Missing data"));

    // The JSON document has the content of the page, and its sums match the plan.
    let json: Value = serde_json::from_str(&report(&["runs/digits/1", "--json"]).out).unwrap();
    let run = &json["runs"][0];
    let layers = run["work"]["layers"].as_array().unwrap();
    let plan: Value =
        serde_json::from_slice(&fs::read(dir.path("runs/digits/1/plan.json")).unwrap()).unwrap();
    assert_eq!(layers.len(), run["accounting"]["layers"].as_array().unwrap().len());
    assert_eq!(run["memory"]["transient_bytes"], plan["train"]["transient_bytes"]);
    let alive = run["memory"]["alive"].as_array().unwrap();
    let max_alive = alive.iter().map(|bytes| bytes.as_u64().unwrap()).max();
    assert!(max_alive <= plan["train"]["transient_bytes"].as_u64(), "live bytes exceed the arena");
    let conv = layers.iter().find(|layer| layer["layer"] == "layer2.0").unwrap();
    // Three passes of a 3×3 convolution from 8 to 16 channels over 256 maps of 14×14 (CUDA: the same count).
    assert_eq!(conv["flops"].as_u64().unwrap() / (2 * 256 * 14 * 14 * 9 * 8 * 16), 3);

    // A folder means all its runs.
    let both = report(&["runs"]);
    assert_eq!(both.err, "report.html: page of 2 runs\n");
    let page = fs::read_to_string(dir.path("report.html")).unwrap();
    assert!(
        page.contains("<h2>Comparison</h2>") && page.contains("Repetitions"),
        "two seeds are repetitions"
    );
    let csv = report(&["runs", "--format", "csv", "--out", "-"]).out;
    assert_eq!(csv.lines().count(), 3, "{csv}");
    assert!(csv.starts_with("run,status,best top-1 %,"), "{csv}");
    let text = report(&["runs/digits/2", "--format", "md", "--out", "-"]).out;
    assert!(
        text.starts_with("# digits/2\n\nAn iteration takes ") && text.contains("| layer2.0 | conv2d |"),
        "{text}"
    );
    for chart in ["time", "roofline", "memory"] {
        let svg = report(&["runs/digits/1", "--format", "svg", "--chart", chart, "--out", "-"]).out;
        assert!(svg.starts_with("<svg xmlns=") && svg.trim_end().ends_with("</svg>"), "{svg}");
    }
}

#[test]
fn report_compares_runs_and_published_figures() {
    let dir = TestDir::new();
    train(&dir, "a", 1);
    train(&dir, "b", 2);
    let report = |arguments: &[&str]| dir.run(&[&["report", "--no-peaks"], arguments].concat()).expect(0);

    let text = report(&["--diff", "a", "b", "--format", "md", "--out", "-"]).out;
    assert!(text.starts_with("# Time differences\n"), "{text}");
    assert!(text.contains("Welch's t-test") && text.contains(" takes "), "{text}");
    assert!(text.contains("| iteration |"), "{text}");
    let csv = report(&["--diff", "a", "b", "--format", "csv", "--out", "-"]).out;
    let forward = csv.lines().find(|line| line.starts_with("layer2.0,conv2d,forward,iteration,"));
    assert!(forward.is_some_and(|line| line.split(',').count() == 10), "{csv}");
    let json: Value = serde_json::from_str(&report(&["--diff", "a", "b", "--json"]).out).unwrap();
    let diff = &json["diff"];
    // One epoch has 58 full batches; 5 % of 59, but at least two, are skipped.
    assert_eq!((diff["iterations"][0].as_u64(), diff["blocks"][1].as_u64()), (Some(55), Some(20)));
    let wall = &diff["wall"];
    assert!(wall["before_ms"].as_f64() > Some(0.0) && wall["p"].is_number(), "{wall}");
    let svg = report(&["--diff", "a", "b", "--format", "svg", "--out", "-"]).out;
    assert!(svg.contains("Time differences"), "{svg}");
    report(&["--diff", "a", "b"]);
    assert!(fs::read_to_string(dir.path("diff.html")).unwrap().contains("All layers and phases"));
    let rejected = dir.run(&["report", "--diff", "a"]).expect(2);
    assert_eq!(
        rejected.err,
        "error: --diff needs two runs, got 1\n\
         hint: name the old and the new run: `stratus report --diff A B`\n"
    );

    fs::write(dir.path("deck.csv"), "quantity,value,unit,network\naccuracy,87,percent,digits\n").unwrap();
    let csv = report(&["a", "b", "--against", "deck.csv", "--format", "csv", "--out", "-"]).out;
    assert_eq!(csv.lines().count(), 3, "{csv}");
    assert!(csv.lines().nth(1).unwrap().contains(",accuracy,87.0,percent,,"), "{csv}");
    fs::write(dir.path("deck.csv"), "quantity,valve\naccuracy,87\n").unwrap();
    let rejected = dir.run(&["report", "a", "--against", "deck.csv"]).expect(2);
    let error = "error: deck.csv: line 1: unknown column `valve`, did you mean `value`?; expected source, ";
    assert!(rejected.err.starts_with(error), "{}", rejected.err);
    let rejected = dir.run(&["report", "a", "--against", "deck.csv", "--format", "svg"]).expect(2);
    assert!(
        rejected.err.starts_with("error: --against cannot be used with --format svg\n"),
        "{}",
        rejected.err
    );
}

#[test]
fn report_rejects_folders_that_are_not_runs() {
    let dir = TestDir::without_kernel_cache();
    fs::create_dir_all(dir.path("runs/empty")).unwrap();
    let rejected = dir.run(&["report", "runs"]).expect(2);
    assert_eq!(
        rejected.err,
        "error: no runs in runs\n\
         hint: name a run directory, or a folder of run directories, like `runs`\n"
    );
    dir.run(&["report", "nothing"]).expect(2);
    fs::write(dir.path("runs/empty/experiment.toml"), "[train\n").unwrap();
    let failed = dir.run(&["report", "runs"]).expect(1);
    assert!(failed.err.starts_with("warning: runs/empty: cannot report the run: "), "{}", failed.err);
    assert!(failed.err.ends_with("error: no run can be read\n"), "{}", failed.err);
}
