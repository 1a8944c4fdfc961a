//! Output to a terminal fits 80 and 120 columns; output to a pipe is not shortened.

use crate::common::CommandOutput;
use crate::common::photographs::{run_with_columns, test_dir, train};

/// Commands whose output depends neither on this machine nor on time.
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

/// Commands whose output contains measured times.
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

/// Checks that no line is wider than the terminal, except for single words: paths and hashes are not broken.
fn assert_fits(ran: &CommandOutput, columns: &str, arguments: &[&str]) {
    let width: usize = columns.parse().unwrap();
    for line in ran.out.lines().chain(ran.err.lines()) {
        let words = line.split_whitespace().count();
        assert!(line.chars().count() <= width || words <= 1, "{arguments:?} in {columns}: {line}");
    }
}

#[test]
fn output_fits_each_terminal_width() {
    let dir = test_dir();
    let mut snapshot = String::new();
    for arguments in STABLE {
        let piped = run_with_columns(&dir, arguments, None);
        snapshot += &format!("$ stratus {}\n", arguments.join(" "));
        let mut before = String::new();
        for columns in ["80", "120"] {
            let ran = run_with_columns(&dir, arguments, Some(columns));
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
fn measured_output_fits_each_terminal_width() {
    let dir = test_dir();
    for (run, columns) in [("run-a", "80"), ("run-b", "120"), ("run-c", "80")] {
        let ran = train(&dir, run, &["optimiser.learning_rate=0.02"], Some(columns)).expect(0);
        assert_fits(&ran, columns, &["train"]);
    }
    for arguments in MEASURED {
        for columns in ["80", "120"] {
            let ran = run_with_columns(&dir, arguments, Some(columns)).expect(0);
            assert_fits(&ran, columns, arguments);
        }
    }
    // Output to a pipe is neither shortened nor wrapped.
    let wide = run_with_columns(&dir, &["runs", "."], None).expect(0).out;
    assert!(wide.contains("images/s") && wide.lines().count() == 4, "{wide}");
    let narrow = run_with_columns(&dir, &["runs", "."], Some("60")).expect(0).out;
    assert!(narrow.contains("columns hidden: time"), "{narrow}");
}
