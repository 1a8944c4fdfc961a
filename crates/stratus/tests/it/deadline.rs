//! Deadlines and budgets: messages, stopping before them, resuming after them.

use crate::common::{CommandOutput, TestDir};
use serde_json::Value;
use std::fs;

/// Trains on a few synthetic images into the folder `out`.
fn train(dir: &TestDir, out: &str, more: &[&str], code: i32) -> CommandOutput {
    let mut arguments = vec!["train", "digits", "--out", out];
    let settings = [
        "data.name=synthetic",
        "data.synthetic.images=40",
        "data.synthetic.validation_images=8",
        "train.batch_size=8",
        "train.epochs=2",
    ];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    arguments.extend(more);
    dir.run(&arguments).expect(code)
}

fn summary(dir: &TestDir, run: &str) -> Value {
    serde_json::from_slice(&fs::read(dir.path(run).join("summary.json")).unwrap()).unwrap()
}

/// A budget of a millisecond stops the run before its first iteration.
#[test]
fn run_stops_before_its_deadline_and_resumes_bit_identical() {
    let dir = TestDir::without_kernel_cache();
    train(&dir, "whole", &[], 0);
    let ran = train(&dir, "late", &["--deadline", "0.001s"], 75);
    let stopped = "stopped after iteration 0: deadline 0.001s reached";
    assert!(
        ran.err.contains("exceeds deadline 0.001s; training will stop")
            || ran.err.contains("ends training in")
    );
    assert!(ran.err.contains(stopped), "{}", ran.err);
    assert!(ran.err.contains("resume with `stratus train late`"), "{}", ran.err);
    assert!(fs::read_to_string(dir.path("late/log.txt")).unwrap().contains(stopped));
    let stands = summary(&dir, "late");
    assert_eq!((stands["status"].as_str(), stands["iterations"].as_u64()), (Some("interrupted"), Some(0)));
    // The run keeps its configuration unless it is overridden.
    let again = dir.run(&["train", "late"]).expect(75);
    assert!(again.err.contains(stopped), "{}", again.err);
    let ran = dir.run(&["train", "late", "--deadline", "1d"]).expect(0);
    assert!(ran.err.contains("within deadline 1d") || ran.err.contains("deadline 1d ends"));
    let weights = |run: &str| summary(&dir, run)["weights_sha256"].clone();
    assert_eq!(weights("late"), weights("whole"));
    assert_eq!(summary(&dir, "late")["epochs"], 2);
}

#[test]
fn sufficient_budget_changes_nothing() {
    let dir = TestDir::without_kernel_cache();
    train(&dir, "whole", &[], 0);
    let ran = train(&dir, "paid", &["--budget", "1000", "--set", "train.instance=g5.xlarge"], 0);
    assert!(ran.err.contains("budget 1000 USD at "), "{}", ran.err);
    assert_eq!(summary(&dir, "paid")["weights_sha256"], summary(&dir, "whole")["weights_sha256"]);
}

/// The summary file, the printed summary and the page compare the forecast with the measured time.
#[test]
fn summary_compares_forecast_with_measured_time() {
    let dir = TestDir::without_kernel_cache();
    let ran = train(&dir, "run", &["--set", "train.forecast=true"], 0);
    let forecast = summary(&dir, "run")["forecast"].clone();
    if forecast.is_null() {
        // The reference backend has no forecast.
        assert_eq!(summary(&dir, "run")["device"], "reference");
        assert!(!ran.out.contains("forecast"), "{}", ran.out);
        return;
    }
    let number = |name: &str| forecast[name].as_f64().unwrap();
    assert_eq!(forecast["source"], "measured");
    assert!(number("low_s") < number("step_s") && number("step_s") < number("high_s"));
    assert!(number("total_s") > 10.0 * number("step_s"));
    let error = 100.0 * (number("step_s") / number("measured_step_s") - 1.0);
    assert!((number("error_percent") - error).abs() < 1e-9);
    assert!(ran.out.contains("\n  forecast      step "), "{}", ran.out);
    // Ten iterations, two validations and two checkpoints.
    let parts = forecast["parts"].as_array().unwrap();
    let names: Vec<&str> = parts.iter().map(|part| part["part"].as_str().unwrap()).collect();
    assert_eq!(names, ["iterations", "data_wait", "validation", "checkpoints", "total"]);
    let expected = [10.0 * number("step_s"), 0.0, 2.0 * number("validation_s"), 2.0 * number("checkpoint_s")];
    let time = &summary(&dir, "run")["time"];
    let keys = ["train_s", "data_wait_s", "validation_s", "checkpoint_s"];
    let [mut forecast_s, mut measured_s] = [0.0; 2];
    for ((part, expected), key) in parts.iter().zip(expected).zip(keys) {
        let part_s = |key: &str| part[key].as_f64().unwrap();
        assert!((part_s("forecast_s") - expected).abs() < 1e-9, "{part}");
        assert!((part_s("measured_s") - time[key].as_f64().unwrap()).abs() < 1e-9, "{part}");
        forecast_s += part_s("forecast_s");
        measured_s += part_s("measured_s");
    }
    let total = |key: &str| parts[4][key].as_f64().unwrap();
    assert!(
        (total("forecast_s") - forecast_s).abs() < 1e-9 && (total("measured_s") - measured_s).abs() < 1e-9
    );
    for text in
        ["\n                total ", "\n                data wait 0.00 s, measured ", "largest error: "]
    {
        assert!(ran.out.contains(text), "{}", ran.out);
    }
    dir.run(&["report", "run", "--out", "page.html"]).expect(0);
    let page = fs::read_to_string(dir.path("page.html")).unwrap();
    assert!(page.contains("step, forecast and measured") && page.contains("Forecast and measured"));
    let listed = dir.run(&["runs", ".", "--forecast"]).expect(0).out;
    assert!(listed.lines().next().unwrap().ends_with("largest error"), "{listed}");
    let line = listed.lines().nth(1).unwrap();
    assert!(line.contains("run  completed") && !line.contains('–'), "{listed}");
    let listed: Value = serde_json::from_str(&dir.run(&["runs", ".", "--json"]).expect(0).out).unwrap();
    assert_eq!(listed["runs"][0]["forecast"]["measured_s"], parts[4]["measured_s"]);
}

/// Without a deadline or budget, the start takes no extra time.
#[test]
fn training_forecasts_only_on_request() {
    let dir = TestDir::without_kernel_cache();
    let ran = train(&dir, "run", &[], 0);
    assert!(summary(&dir, "run")["forecast"].is_null());
    assert!(!ran.out.contains("forecast"), "{}", ran.out);
    let listed = dir.run(&["runs", ".", "--forecast"]).expect(0).out;
    assert!(listed.contains("no run had a forecast"), "{listed}");
}

#[test]
fn rejects_invalid_deadlines_and_budgets() {
    let dir = TestDir::without_kernel_cache();
    let cases: &[&[&str]] = &[
        &["--deadline", "soon"],
        &["--deadline", "6"],
        &["--deadline", "-2h"],
        &["--deadline", "2026-02-30T08:00Z"],
        &["--budget", "-20", "--set", "train.price_per_hour=1"],
        &["--budget", "20"],
        &["--set", "train.price_per_hour=-1"],
        &["--budget", "20", "--set", "train.price_per_hour=1", "--set", "train.instance=g5.xlarge"],
        &["--budget", "20", "--set", "train.instance=g5.xlrge"],
        &["--budget", "20", "--set", "train.instance=v100-16gb"],
    ];
    let shown: Vec<String> = cases
        .iter()
        .map(|arguments| format!("$ {}\n{}", arguments.join(" "), train(&dir, "run", arguments, 2).err))
        .collect();
    insta::assert_snapshot!("deadline_refused", shown.join("\n"));
    // The time since the deadline varies.
    let past = train(&dir, "run", &["--deadline", "2026-01-01T00:00Z"], 2).err;
    assert!(past.contains("train.deadline 2026-01-01T00:00Z has passed ("), "{past}");
    assert!(!dir.path("run").exists());
}
