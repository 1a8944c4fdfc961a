//! `stratus runs`: what there is, and removing it.

use crate::common::Place;
use std::fs;
use stratus_run::RunDir;

#[test]
fn runs_are_listed_filtered_and_removed() {
    let place = Place::new();
    assert_eq!(place.run(&["runs"]).expect(0).out, "no runs\n");
    place.train("runs/digits/1", 1, &[]).expect(0);
    place.train("runs/digits/2", 1, &["--set", "optimiser.learning_rate=0.05"]).expect(0);
    fs::create_dir_all(place.path("runs/broken/1")).unwrap();
    fs::write(place.path("runs/broken/1/experiment.toml"), "[").unwrap();
    let ran = place.run(&["runs"]).expect(0);
    assert!(ran.err.starts_with("warning: runs/broken/1 cannot be listed: "), "{}", ran.err);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 3, "{}", ran.out);
    assert!(lines[1].starts_with("runs/digits/1  completed   digits  mnist     1/1  top-1 "), "{}", ran.out);
    assert!(lines[2].ends_with("optimiser.learning_rate=0.05"), "{}", ran.out);

    // A row a run: what differs, and what came of it. What cannot be read is left out, and said.
    let ran = place.run(&["collect", "runs"]).expect(0);
    assert!(ran.err.starts_with("warning: runs/broken/1 is left out: "), "{}", ran.err);
    let lines: Vec<Vec<&str>> = ran.out.lines().map(|line| line.split_whitespace().collect()).collect();
    // The batch that a rate is for is the recipe's where the rate is.
    assert_eq!(lines[0][..2], ["run", "learning_rate"], "{}", ran.out);
    assert!(!lines[0].contains(&"status"), "all are completed: {}", ran.out);
    assert_eq!(lines[1][0], "runs/digits/1", "{}", ran.out);
    assert_eq!(lines[2][..2], ["runs/digits/2", "0.05"], "{}", ran.out);
    assert!(ran.out.ends_with("`--all` those of every run.\n"), "{}", ran.out);
    let csv = place.run(&["collect", "runs", "--csv"]).expect(0).out;
    let header: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    assert_eq!(header[..2], ["path", "config.optimiser.learning_rate"], "{csv}");
    let results = "status,epochs,train_loss,val_loss,val_top1,overall_s,images_per_second_median";
    assert!(header.join(",").ends_with(results) && csv.contains("\nruns/digits/2,0.05,"), "{csv}");
    let all = place.run(&["collect", "runs/digits", "--all"]).expect(0).out;
    assert_eq!(all.matches("Milliseconds per iteration").count(), 2);
    let told = place.run(&["collect", "runs/digits", "--json"]).expect(0).out;
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told[1]["machine"]["identity"], serde_json::json!({"uuid": null, "mac": null}));

    let where_slow = ["runs", "runs/digits", "--where", "optimiser.learning_rate=0.05", "--json"];
    let told: serde_json::Value = serde_json::from_str(&place.run(&where_slow).expect(0).out).unwrap();
    assert_eq!(told["runs"].as_array().unwrap().len(), 1);
    assert_eq!(told["runs"][0]["path"], "runs/digits/2");
    assert_eq!(told["runs"][0]["status"], "completed");
    let sorted = place.run(&["runs", "runs/digits", "--sort", "time", "--status", "completed"]).expect(0).out;
    assert_eq!(sorted.lines().count(), 3);
    assert_eq!(place.run(&["runs", "runs/digits", "--status", "failed"]).expect(0).out, "no runs\n");

    let refused = place.run(&["runs", "rm", "runs/digits/1"]).expect(2).err;
    assert!(refused.contains("give --yes"), "{refused}");
    let none = place.run(&["runs", "rm", "--yes", "runs/digits/2", "runs"]).expect(2).err;
    assert!(none.contains("runs is not a run directory") || none.contains("experiment.toml"), "{none}");
    assert!(place.path("runs/digits/2").is_dir(), "nothing is removed where one is no run");
    let run = RunDir::open(&place.path("runs/digits/1")).unwrap();
    let lock = run.lock().unwrap();
    assert!(place.run(&["runs", "rm", "--yes", "runs/digits/1"]).code != Some(0));
    assert!(run.path().is_dir(), "a run that is being trained is never touched");
    drop(lock);
    place.run(&["runs", "rm", "--yes", "runs/digits/1"]).expect(0);
    assert!(!run.path().exists());
    assert!(place.path("runs/digits/2").is_dir());
}
