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
fn two_runs_and_published_figures_are_compared() {
    let place = Place::new();
    train(&place, "a", 1);
    train(&place, "b", 2);
    let report = |arguments: &[&str]| place.run(&[&["report", "--no-peaks"], arguments].concat()).expect(0);

    let text = report(&["--diff", "a", "b", "--format", "md", "--out", "-"]).out;
    assert!(text.starts_with("# What became faster or slower\n"), "{text}");
    assert!(text.contains("Welch's t-test") && text.contains(" takes "), "{text}");
    assert!(text.contains("| an iteration |"), "{text}");
    let csv = report(&["--diff", "a", "b", "--format", "csv", "--out", "-"]).out;
    let forward = csv.lines().find(|line| line.starts_with("layer2.0,conv2d,forward,iteration,"));
    assert!(forward.is_some_and(|line| line.split(',').count() == 10), "{csv}");
    let json: Value = serde_json::from_str(&report(&["--diff", "a", "b", "--json"]).out).unwrap();
    let diff = &json["diff"];
    // One epoch has 58 whole batches; 5 % of 59, but at least two, are left out.
    assert_eq!((diff["iterations"][0].as_u64(), diff["blocks"][1].as_u64()), (Some(55), Some(20)));
    let wall = &diff["wall"];
    assert!(wall["before_ms"].as_f64() > Some(0.0) && wall["p"].is_number(), "{wall}");
    let svg = report(&["--diff", "a", "b", "--format", "svg", "--out", "-"]).out;
    assert!(svg.contains("What became faster or slower"), "{svg}");
    report(&["--diff", "a", "b"]);
    assert!(fs::read_to_string(place.path("diff.html")).unwrap().contains("Every layer and phase"));
    let refused = place.run(&["report", "--diff", "a"]).expect(2);
    assert_eq!(
        refused.err,
        "error: a difference is between two runs, and not of 1\n\
         hint: name the run before and the run after: `stratus report --diff A B`\n"
    );

    fs::write(place.path("deck.csv"), "quantity,value,unit,network\naccuracy,87,percent,digits\n").unwrap();
    let csv = report(&["a", "b", "--against", "deck.csv", "--format", "csv", "--out", "-"]).out;
    assert_eq!(csv.lines().count(), 3, "{csv}");
    assert!(csv.lines().nth(1).unwrap().contains(",accuracy,87.0,percent,,"), "{csv}");
    fs::write(place.path("deck.csv"), "quantity,valve\naccuracy,87\n").unwrap();
    let refused = place.run(&["report", "a", "--against", "deck.csv"]).expect(2);
    let error = "error: deck.csv: line 1: unknown column `valve`, did you mean `value`?; a table may have ";
    assert!(refused.err.starts_with(error), "{}", refused.err);
    let refused = place.run(&["report", "a", "--against", "deck.csv", "--format", "svg"]).expect(2);
    assert!(refused.err.starts_with("error: there is no chart of published figures\n"), "{}", refused.err);
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
