//! What people read fits a terminal of 80 and of 120 columns; what goes to another program is whole.

use crate::common::Ran;
use crate::common::photographs::{place, shown, train};

/// What is shown does not depend on this machine, nor on a clock.
const STABLE: &[&[&str]] = &[
    &["model", "list"],
    &["model", "show", "digits"],
    &["data", "list"],
    &["data", "check", "folder", "--path", "photographs"],
    &["data", "check", "folder", "--path", "photographs", "--set", "data.split_seed=0"],
    &["data", "stats", "folder", "--path", "photographs", "--set", "data.split_seed=0"],
    &["config", "keys", "checkpoint"],
    &["config", "keys", "train.batch"],
    &["forecast", "resnet50", "--on", "v100-16gb,a100-80gb,h100-80gb-sxm", "--images", "1281167"],
    &["forecast", "resnet50", "--on", "v100"],
    &["sweep", "digits-batch-filters", "--dry-run"],
    &["plan", "digits", "--data", "nowhere"],
    &["train", "digits", "--lr", "a"],
    &["predict", "run-a"],
];

/// What is shown has measured times in it.
const MEASURED: &[&[&str]] = &[
    &["doctor"],
    &["forecast", "machines"],
    &["plan", "run-a"],
    &[
        "plan",
        "digits",
        "--data",
        "photographs",
        "--batch",
        "3",
        "--set",
        "data.name=folder",
        "--set",
        "data.split_seed=0",
    ],
    &["plan", "run-a", "--largest-batch", "--memory-limit", "64MiB"],
    &["eval", "run-a"],
    &["eval", "run-a", "--data", "photographs", "--split", "train", "--set", "data.split_seed=0"],
    &["infer", "run-a", "photographs/row/0.png"],
    &["infer", "run-a", "photographs"],
    &["collect", "run-a"],
    &["collect", "run-a", "run-b"],
    &["collect", "run-a", "run-b", "--all"],
    &["runs", "."],
    &["report", "run-a"],
    &["report", "run-a", "run-b", "--diff"],
];

/// No line may be wider, but for a single word: paths and hashes are copied whole.
fn assert_fits(ran: &Ran, columns: &str, arguments: &[&str]) {
    let width: usize = columns.parse().unwrap();
    for line in ran.out.lines().chain(ran.err.lines()) {
        let words = line.split_whitespace().count();
        assert!(line.chars().count() <= width || words <= 1, "{arguments:?} in {columns}: {line}");
    }
}

#[test]
fn what_is_shown_at_each_width() {
    let place = place();
    let mut snapshot = String::new();
    for arguments in STABLE {
        let piped = shown(&place, arguments, None);
        snapshot += &format!("$ stratus {}\n", arguments.join(" "));
        let mut before = String::new();
        for columns in ["80", "120"] {
            let ran = shown(&place, arguments, Some(columns));
            assert_fits(&ran, columns, arguments);
            assert_eq!(ran.code, piped.code, "{arguments:?}");
            let text = ran.out + &ran.err;
            let same = if text == before { "as above\n" } else { &text };
            snapshot += &format!("--- {columns} columns\n{same}");
            before = text;
        }
        let text = piped.out + &piped.err;
        let same = if text == before { "as above\n" } else { &text };
        snapshot += &format!("--- in a pipe\n{same}\n");
    }
    insta::assert_snapshot!(snapshot);
}

#[test]
fn what_was_measured_fits_too() {
    let place = place();
    for (run, columns) in [("run-a", "80"), ("run-b", "120"), ("run-c", "80")] {
        let ran = train(&place, run, &["optimiser.learning_rate=0.02"], Some(columns)).expect(0);
        assert_fits(&ran, columns, &["train"]);
    }
    for arguments in MEASURED {
        for columns in ["80", "120"] {
            let ran = shown(&place, arguments, Some(columns)).expect(0);
            assert_fits(&ran, columns, arguments);
        }
    }
    // Nothing is left out or broken where another program reads it.
    let wide = shown(&place, &["runs", "."], None).expect(0).out;
    assert!(wide.contains("images/s") && wide.lines().count() == 4, "{wide}");
    let narrow = shown(&place, &["runs", "."], Some("60")).expect(0).out;
    assert!(narrow.contains("left out, for want of columns: time"), "{narrow}");
}
