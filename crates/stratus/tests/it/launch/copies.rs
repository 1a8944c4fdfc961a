//! The local copies of launched runs: what they tell of the machine that trains them, and their labels.

use super::{kill_training, launch, target, text, wait_for_end};
use crate::common::TestDir;
use std::fs;

fn json(path: &std::path::Path) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn copy_tells_where_it_is_trained_and_keeps_its_labels() {
    let dir = TestDir::new();
    target(&dir, "lab", "kind = \"local\"", "there");
    let launched = launch(&dir, "lab", 3, &["--tag", "baseline", "--name", "far"]);
    let id = text(&launched, "id").to_owned();
    let [labels, remote] = ["labels.json", "remote.json"].map(|name| dir.path("runs/digits/1").join(name));
    assert_eq!(json(&labels)["tags"], serde_json::json!(["baseline"]));
    kill_training(&dir.path(&format!("there/jobs/{id}")));
    assert_eq!(wait_for_end(&dir), ["interrupted"]);
    dir.run(&["launch", "fetch"]).expect(0);
    let recorded = json(&remote);
    assert_eq!((&recorded["launch"], &recorded["target"]), (&id.as_str().into(), &"lab".into()));
    assert_eq!((&recorded["status"], &recorded["machine"]), (&"interrupted".into(), &"this machine".into()));
    assert!(recorded["host"].as_str().is_some_and(|host| !host.is_empty()), "{recorded}");

    // As if it had been running when it was last fetched: no process here trains it, but it is not
    // interrupted.
    let mut running = recorded.clone();
    running["status"] = "running".into();
    fs::write(&remote, running.to_string()).unwrap();
    let listed = dir.run(&["runs", "--json"]).expect(0).out;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["runs"][0]["status"], "running");
    assert_eq!(listed["runs"][0]["remote"], running);
    let table = dir.run(&["runs"]).expect(0).out;
    assert!(
        table.contains("trained on") && table.contains("lab (") && table.contains(", fetched "),
        "{table}"
    );
    dir.run(&["report", "runs/digits/1"]).expect(0);
    let page = fs::read_to_string(dir.path("runs/digits/1/report.html")).unwrap();
    assert!(page.contains("trained on lab (") && page.contains(", this machine, fetched 20"));
    let collected = dir.run(&["collect", "runs/digits/1"]).expect(0).out;
    assert!(collected.contains("trained on    lab ("), "{collected}");

    // Labels are changed here, and a fetch does not replace them.
    dir.run(&["runs", "tag", "runs/digits/1", "--add", "good"]).expect(0);
    dir.run(&["launch", "fetch"]).expect(0);
    assert_eq!(json(&labels)["tags"], serde_json::json!(["baseline", "good"]));
    assert_eq!(json(&labels)["name"], "far");

    // Resuming the copy here makes it a run of this machine.
    fs::write(&remote, running.to_string()).unwrap();
    let resumed = dir.run(&["train", "runs/digits/1"]).expect(0);
    assert!(resumed.err.contains("was being trained on lab ("), "{}", resumed.err);
    assert!(!remote.exists() && labels.exists());
    assert!(!dir.run(&["runs"]).expect(0).out.contains("trained on"));
}
