//! `stratus optimise --target-ms` chooses by itself how a network reaches a latency.

use crate::common::{RunResult, TestDir, json};
use std::fs;

/// A network whose smallest form is many times as fast, in the folder `run`.
fn trained() -> TestDir {
    let dir = TestDir::new();
    dir.train("run", 1, &["--set", "model.width=128"]).expect(0);
    dir
}

fn refused(dir: &TestDir, arguments: &[&str], code: i32, message: &str) -> String {
    let error = dir.run(&[&["optimise", "run"], arguments].concat()).expect(code).err;
    assert!(error.contains(message), "{arguments:?}: {error}");
    error
}

/// The milliseconds before the last ` ms` of a message.
fn last_milliseconds(text: &str) -> f64 {
    let end = text.rfind(" ms").unwrap();
    let number = text[..end].rsplit(' ').next().unwrap();
    number.parse().unwrap()
}

#[test]
fn a_latency_between_the_whole_and_the_smallest_network_is_reached() {
    let dir = trained();
    let error_line = |error: &str| error.lines().find(|line| line.starts_with("error")).unwrap().to_owned();
    let error = refused(&dir, &["--target-ms", "1000000"], 2, "already");
    let whole = last_milliseconds(&error_line(&error));
    let small = ["--granularity", "4", "--importance", "l1", "--calibration-images", "8", "--out", "small"];
    let error =
        refused(&dir, &[&["--target-ms", "0.000001"], &small[..]].concat(), 2, "cannot take 0.000001 ms");
    let smallest = last_milliseconds(&error_line(&error));
    assert!(!dir.path("small").exists(), "a target that cannot be reached leaves nothing");
    assert!(smallest < whole / 2.0, "{smallest} {whole}");
    // Far from both, so that neither depends on what else the machine does.
    let target = (smallest * whole).sqrt();
    let milliseconds = format!("{target:.6}");
    let request = [&["optimise", "run", "--target-ms", &milliseconds], &small[..]].concat();
    let report = json(&dir.run(&[&request[..], &["--json"]].concat()).expect(0).out);
    assert_eq!(report["target"]["target_ms"], json(&milliseconds));
    let fastest = report["target"]["variant"].as_str().unwrap();
    let variants = report["variants"].as_array().unwrap();
    let variant = variants.iter().find(|variant| variant["variant"] == fastest).unwrap();
    assert!(variants.iter().all(|other| other["ms_median"].as_f64() >= variant["ms_median"].as_f64()));
    let recorded = json(&fs::read_to_string(dir.path("small/optimise/request.json")).unwrap());
    assert_eq!(recorded["target"]["ms"], json(&milliseconds));
    // It was reached by int8 or by pruning, which the record and the files agree on.
    assert!(recorded["int8"].is_object() || recorded["prune"].is_number(), "{recorded}");
    assert_eq!(recorded["prune"].is_number(), report["pruning"].is_object());
    assert_eq!(recorded["prune"].is_number(), dir.path("small/optimise/pruning.json").exists());
    if let Some(share) = recorded["prune"].as_f64() {
        let [all, left] = [0, 1].map(|at| report["pruning"]["multiply_adds"][at].as_f64().unwrap());
        assert!((1.0 - left / all - share).abs() < 1e-9, "{share} {all} {left}");
    }
    // The same request keeps the choice and the weights; another is refused.
    let weights = RunResult::read(&dir.path("small")).weights;
    let again = dir.run(&request).expect(0).out;
    assert!(again.contains("target"), "{again}");
    assert_eq!(RunResult::read(&dir.path("small")).weights, weights);
    let other = [&["--target-ms", "7"], &small[..]].concat();
    refused(&dir, &other, 2, "small was begun by another request: `target`");
    refused(&dir, &["--prune", "0.5", "--out", "small"], 2, "small was begun by another request");
}

#[test]
fn contradicting_options_are_refused() {
    let dir = TestDir::new();
    for (arguments, message) in [
        (&["--target-ms", "0"][..], "must be above 0"),
        (&["--target-ms", "inf"], "must be above 0"),
        (&["--target-ms", "5", "--prune", "0.5"], "--prune"),
        (&["--target-ms", "5", "--int8"], "--int8"),
        (&["--keep", "1", "--prune", "0.5"], "--int8"),
        (&["--epochs", "1"], "--prune"),
        (&["--target-ms", "5", "--checkpoint", "best"], "--checkpoint"),
        (&["--teacher", "--int8"], "--prune"),
        (&[], "--target-ms"),
    ] {
        refused(&dir, arguments, 2, message);
    }
}
