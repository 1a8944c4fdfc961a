//! `stratus report` on real runs: a page, tables, charts and data; folders of runs; what is no run.

#![cfg(unix)]

use crate::common::{Place, training};
use serde_json::Value;
use std::fs;

fn train(place: &Place, out: &str, seed: u32) {
    let more = ["--set".to_owned(), format!("train.seed={seed}")];
    let mut arguments = training(out, 1, &[]);
    arguments.extend(more);
    place.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).expect(0);
}

#[test]
fn runs_are_shown_as_pages_tables_charts_and_data() {
    let place = Place::new();
    train(&place, "runs/digits/1", 1);
    train(&place, "runs/digits/2", 2);
    let report = |arguments: &[&str]| {
        let all = [&["report", "--no-peaks"], arguments].concat();
        place.run(&all).expect(0)
    };

    let one = report(&["runs/digits/1"]);
    assert_eq!((one.out.as_str(), one.err.as_str()), ("", "runs/digits/1/report.html: html of one run\n"));
    let page = fs::read_to_string(place.path("runs/digits/1/report.html")).unwrap();
    for text in ["<h1>digits on mnist</h1>", "Roofline", "Memory over an iteration", "layer2.0", "GFLOP/s"] {
        assert!(page.contains(text), "{text}");
    }
    assert!(!page.contains("Not in this report"));

    // The document holds what the page shows, and its sums are the plan's.
    let json: Value = serde_json::from_str(&report(&["runs/digits/1", "--json"]).out).unwrap();
    let run = &json["runs"][0];
    let layers = run["work"]["layers"].as_array().unwrap();
    let plan: Value =
        serde_json::from_slice(&fs::read(place.path("runs/digits/1/plan.json")).unwrap()).unwrap();
    assert_eq!(layers.len(), run["accounting"]["layers"].as_array().unwrap().len());
    assert_eq!(run["memory"]["transient_bytes"], plan["train"]["transient_bytes"]);
    let alive = run["memory"]["alive"].as_array().unwrap();
    let most = alive.iter().map(|bytes| bytes.as_u64().unwrap()).max();
    assert!(most <= plan["train"]["transient_bytes"].as_u64(), "more is alive than there is room for");
    let conv = layers.iter().find(|layer| layer["layer"] == "layer2.0").unwrap();
    // Three passes of a 3×3 convolution from 8 to 16 channels over 1024 maps of 14×14 (CUDA: the same count).
    assert_eq!(conv["flops"].as_u64().unwrap() / (2 * 1024 * 14 * 14 * 9 * 8 * 16), 3);

    // A folder stands for its runs.
    let both = report(&["runs"]);
    assert_eq!(both.err, "report.html: html of 2 runs\n");
    let page = fs::read_to_string(place.path("report.html")).unwrap();
    assert!(page.contains("Side by side") && page.contains("Repetitions"), "two seeds are repetitions");
    let csv = report(&["runs", "--format", "csv", "--out", "-"]).out;
    assert_eq!(csv.lines().count(), 3, "{csv}");
    assert!(csv.starts_with("run,status,best top-1 %,"), "{csv}");
    let text = report(&["runs/digits/2", "--format", "md", "--out", "-"]).out;
    assert!(text.starts_with("# digits/2\n\nOf ") && text.contains("| layer2.0 | conv2d |"), "{text}");
    for chart in ["time", "roofline", "memory"] {
        let svg = report(&["runs/digits/1", "--format", "svg", "--chart", chart, "--out", "-"]).out;
        assert!(svg.starts_with("<svg xmlns=") && svg.trim_end().ends_with("</svg>"), "{svg}");
    }
}

#[test]
fn what_is_no_run_is_said() {
    let place = Place::bare();
    fs::create_dir_all(place.path("runs/empty")).unwrap();
    let refused = place.run(&["report", "runs"]).expect(2);
    assert_eq!(
        refused.err,
        "error: there is no run in runs\n\
         hint: name a run directory, or a folder that holds some, like `runs`\n"
    );
    place.run(&["report", "nothing"]).expect(2);
    fs::write(place.path("runs/empty/experiment.toml"), "[train\n").unwrap();
    let failed = place.run(&["report", "runs"]).expect(1);
    assert!(failed.err.starts_with("warning: runs/empty: the run cannot be reported: "), "{}", failed.err);
    assert!(failed.err.ends_with("error: none of the runs can be read\n"), "{}", failed.err);
}
