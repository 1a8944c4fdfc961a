//! Deadlines and budgets: what is said of them, stopping before them, continuing behind them.

use crate::common::{Place, Ran};
use serde_json::Value;
use std::fs;

/// A training of a few synthetic images, into the folder `out`.
fn train(place: &Place, out: &str, more: &[&str], code: i32) -> Ran {
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
    place.run(&arguments).expect(code)
}

fn summary(place: &Place, run: &str) -> Value {
    serde_json::from_slice(&fs::read(place.path(run).join("summary.json")).unwrap()).unwrap()
}

/// Nothing fits a millisecond: the run stops before its first iteration, and ends as one that never stopped.
#[test]
fn a_run_stops_before_its_deadline_and_continues_to_the_same_bits() {
    let place = Place::bare();
    train(&place, "whole", &[], 0);
    let ran = train(&place, "late", &["--deadline", "0.001s"], 75);
    let stopped = "stopped after iteration 0: the deadline, 0.001s, allows no further one";
    assert!(ran.err.contains("does not hold; training will stop") || ran.err.contains("ends training in"));
    assert!(ran.err.contains(stopped), "{}", ran.err);
    assert!(ran.err.contains("continue it with `stratus train late`"), "{}", ran.err);
    assert!(fs::read_to_string(place.path("late/log.txt")).unwrap().contains(stopped));
    let stands = summary(&place, "late");
    assert_eq!((stands["status"].as_str(), stands["iterations"].as_u64()), (Some("interrupted"), Some(0)));
    // It keeps its configuration, unless another is given.
    let again = place.run(&["train", "late"]).expect(75);
    assert!(again.err.contains(stopped), "{}", again.err);
    let ran = place.run(&["train", "late", "--deadline", "1d"]).expect(0);
    assert!(ran.err.contains("the deadline, 1d, holds") || ran.err.contains("the deadline, 1d, ends"));
    let weights = |run: &str| summary(&place, run)["weights_sha256"].clone();
    assert_eq!(weights("late"), weights("whole"));
    assert_eq!(summary(&place, "late")["epochs"], 2);
}

#[test]
fn a_budget_that_holds_changes_nothing() {
    let place = Place::bare();
    train(&place, "whole", &[], 0);
    let ran = train(&place, "paid", &["--budget", "1000", "--set", "train.instance=g5.xlarge"], 0);
    assert!(ran.err.contains("the budget of 1000 USD"), "{}", ran.err);
    assert_eq!(summary(&place, "paid")["weights_sha256"], summary(&place, "whole")["weights_sha256"]);
}

/// Forecast and measured stand together, in the file, the printed summary and the page.
#[test]
fn a_forecast_is_compared_with_what_came() {
    let place = Place::bare();
    let ran = train(&place, "run", &["--set", "train.forecast=true"], 0);
    let forecast = summary(&place, "run")["forecast"].clone();
    if forecast.is_null() {
        // The reference backend forecasts nothing.
        assert_eq!(summary(&place, "run")["device"], "reference");
        assert!(!ran.out.contains("forecast"), "{}", ran.out);
        return;
    }
    let number = |name: &str| forecast[name].as_f64().unwrap();
    assert_eq!(forecast["source"], "measured");
    assert!(number("low_s") < number("step_s") && number("step_s") < number("high_s"));
    assert!(number("total_s") > 10.0 * number("step_s"));
    let error = 100.0 * (number("step_s") / number("measured_step_s") - 1.0);
    assert!((number("error_percent") - error).abs() < 1e-9);
    assert!(ran.out.contains("\n  forecast ") && ran.out.contains("a step "), "{}", ran.out);
    place.run(&["report", "run", "--out", "page.html"]).expect(0);
    let page = fs::read_to_string(place.path("page.html")).unwrap();
    assert!(page.contains("a step, forecast and measured"));
}

/// A start takes no longer for those who asked for nothing.
#[test]
fn without_being_asked_nothing_is_forecast() {
    let place = Place::bare();
    let ran = train(&place, "run", &[], 0);
    assert!(summary(&place, "run")["forecast"].is_null());
    assert!(!ran.out.contains("forecast"), "{}", ran.out);
}

#[test]
fn what_is_refused() {
    let place = Place::bare();
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
        .map(|arguments| format!("$ {}\n{}", arguments.join(" "), train(&place, "run", arguments, 2).err))
        .collect();
    insta::assert_snapshot!("deadline_refused", shown.join("\n"));
    // By how much it is past changes.
    let past = train(&place, "run", &["--deadline", "2026-01-01T00:00Z"], 2).err;
    assert!(past.contains("train.deadline is 2026-01-01T00:00Z: that was "), "{past}");
    assert!(!place.path("run").exists());
}
