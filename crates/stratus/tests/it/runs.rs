//! `stratus runs`: listing and removing runs.

use crate::common::TestDir;
use std::fs;
use stratus_run::RunDir;

#[test]
fn runs_are_listed_filtered_and_removed() {
    let dir = TestDir::new();
    assert_eq!(dir.run(&["runs"]).expect(0).out, "no runs\n");
    dir.train("runs/digits/1", 1, &[]).expect(0);
    dir.train("runs/digits/2", 1, &["--set", "optimiser.learning_rate=0.1"]).expect(0);
    fs::create_dir_all(dir.path("runs/broken/1")).unwrap();
    fs::write(dir.path("runs/broken/1/experiment.toml"), "[").unwrap();
    let ran = dir.run(&["runs"]).expect(0);
    assert!(ran.err.starts_with("warning: cannot list runs/broken/1: "), "{}", ran.err);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 3, "{}", ran.out);
    assert!(lines[1].starts_with("runs/digits/1  completed   digits  mnist     1/1  top-1 "), "{}", ran.out);
    assert!(lines[2].ends_with("optimiser.learning_rate=0.1"), "{}", ran.out);

    // One row per run, with its differences and results. Unreadable runs are skipped with a warning.
    let ran = dir.run(&["collect", "runs"]).expect(0);
    assert!(ran.err.starts_with("warning: skipping runs/broken/1: "), "{}", ran.err);
    let lines: Vec<Vec<&str>> = ran.out.lines().map(|line| line.split_whitespace().collect()).collect();
    // If the learning rate is the recipe's, so is its reference batch.
    assert_eq!(lines[0][..2], ["run", "learning_rate"], "{}", ran.out);
    assert!(!lines[0].contains(&"status"), "all are completed: {}", ran.out);
    assert_eq!(lines[1][0], "runs/digits/1", "{}", ran.out);
    assert_eq!(lines[2][..2], ["runs/digits/2", "0.1"], "{}", ran.out);
    assert!(ran.out.ends_with("`--all` those of every run.\n"), "{}", ran.out);
    let csv = dir.run(&["collect", "runs", "--csv"]).expect(0).out;
    let header: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    assert_eq!(header[..2], ["path", "config.optimiser.learning_rate"], "{csv}");
    let results = "status,epochs,train_loss,val_loss,val_top1,overall_s,images_per_second_median";
    assert!(header.join(",").ends_with(results) && csv.contains("\nruns/digits/2,0.1,"), "{csv}");
    let all = dir.run(&["collect", "runs/digits", "--all"]).expect(0).out;
    assert_eq!(all.matches("Milliseconds per iteration").count(), 2);
    let report = dir.run(&["collect", "runs/digits", "--json"]).expect(0).out;
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report[1]["machine"]["identity"], serde_json::json!({"uuid": null, "mac": null}));

    let where_slow = ["runs", "runs/digits", "--where", "optimiser.learning_rate=0.1", "--json"];
    let report: serde_json::Value = serde_json::from_str(&dir.run(&where_slow).expect(0).out).unwrap();
    assert_eq!(report["runs"].as_array().unwrap().len(), 1);
    assert_eq!(report["runs"][0]["path"], "runs/digits/2");
    assert_eq!(report["runs"][0]["status"], "completed");
    let sorted = dir.run(&["runs", "runs/digits", "--sort", "time", "--status", "completed"]).expect(0).out;
    assert_eq!(sorted.lines().count(), 3);
    assert_eq!(dir.run(&["runs", "runs/digits", "--status", "failed"]).expect(0).out, "no runs\n");

    let rejected = dir.run(&["runs", "rm", "runs/digits/1"]).expect(2).err;
    assert!(rejected.contains("use --yes"), "{rejected}");
    let none = dir.run(&["runs", "rm", "--yes", "runs/digits/2", "runs"]).expect(2).err;
    assert!(none.contains("runs is not a run directory") || none.contains("experiment.toml"), "{none}");
    assert!(dir.path("runs/digits/2").is_dir(), "nothing is removed if one argument is not a run");
    let run = RunDir::open(&dir.path("runs/digits/1")).unwrap();
    let lock = run.lock().unwrap();
    assert!(dir.run(&["runs", "rm", "--yes", "runs/digits/1"]).code != Some(0));
    assert!(run.path().is_dir(), "a run that is being trained is never touched");
    drop(lock);
    dir.run(&["runs", "rm", "--yes", "runs/digits/1"]).expect(0);
    assert!(!run.path().exists());
    assert!(dir.path("runs/digits/2").is_dir());
}
