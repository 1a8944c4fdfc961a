//! The pages of sweeps.

use std::fs;
use std::os::unix::fs::symlink;

use crate::common::{Running, append_epoch, make_huge_sweep, make_sweep};
use crate::pages::data;
use serde_json::{Value, json};
use stratus_run::RunDir;

/// The id of the only sweep.
fn id(server: &Running) -> String {
    let list = server.json("/api/sweeps");
    assert_eq!(list["sweeps"].as_array().unwrap().len(), 1, "{list}");
    list["sweeps"][0]["id"].as_str().unwrap().to_owned()
}

#[test]
fn page_of_a_sweep_has_its_cells_and_rounds() {
    let root = tempfile::tempdir().unwrap();
    make_sweep(root.path(), "sweeps/batch");
    let server = Running::start(root.path());
    let list = data(&server.get("/sweeps").body);
    let line = &list["sweeps"][0];
    assert_eq!(
        (line["label"].as_str(), line["method"].as_str()),
        (Some("sweeps/batch"), Some("grid, halving"))
    );
    assert_eq!(
        (&line["cells"], &line["keys"]),
        (&json!([4, 4]), &json!(["train.batch_size", "model.width"]))
    );
    assert_eq!(line["statuses"], json!({"completed": 2, "failed": 2, "stopped_early": 2, "waiting": 2}));
    assert_eq!(line["best"]["name"], "batch_size=32 width=8");
    // The best epoch of both repetitions.
    assert_eq!((line["best"]["value"].as_f64(), line["best"]["runs"].as_u64()), (Some(0.9375), Some(2)));
    let address = format!("/sweeps/{}", line["id"].as_str().unwrap());
    let page = server.get(&address);
    for script in ["figures.js", "parallel.js", "sweep.js"] {
        assert!(page.body.contains(&format!("<script src=\"/assets/{script}\" defer></script>")), "{script}");
        assert_eq!(server.get(&format!("/assets/{script}")).status, 200);
    }
    let sweep = data(&page.body);
    assert_eq!(sweep, server.json(&format!("/api{address}")));
    assert_eq!(sweep["objective"], json!({"name": "val_top1", "is_higher_better": true}));
    assert_eq!((&sweep["measure"], &sweep["measure_unit"]), (&"top-1".into(), &"%".into()));
    let run = &sweep["rows"][0]["runs"][1];
    assert_eq!((run["status"].as_str(), run["epochs"].as_u64()), (Some("completed"), Some(4)));
    assert_eq!(run["run"], server.id("sweeps/batch/runs/1/2"));
    assert_eq!((run["best"].as_f64(), run["images_per_second"].as_f64()), (Some(0.9375), Some(1000.0)));
    assert_eq!(sweep["rows"][2]["runs"][0]["reason"], "<script>alert(1)</script>");
    assert!(!page.body.contains("<script>alert(1)"), "{}", page.body);
    assert_eq!(
        (&sweep["rows"][3]["values"], &sweep["rows"][3]["result"]),
        (&json!(["64", "16"]), &Value::Null)
    );
    let rounds = json!([
        {"epoch": 1, "cells": [[1, 0.75, "continues"], [2, 0.75, "stopped"]]},
        {"epoch": 2, "cells": [[1, 0.875, "continues"]]},
    ]);
    assert_eq!(sweep["rounds"], rounds);
    // Of an unchanged sweep, only that is sent.
    let same = server.json(&format!("/api{address}?version={}", sweep["version"].as_str().unwrap()));
    assert_eq!(same, json!({"version": sweep["version"], "is_same": true}));
}

#[test]
fn a_page_hears_of_cells_and_epochs_that_are_added() {
    let root = tempfile::tempdir().unwrap();
    let path = make_sweep(root.path(), "batch");
    let server = Running::start(root.path());
    let address = format!("/api/sweeps/{}", id(&server));
    let before = server.json(&address);
    let mut changes = server.stream("/changes");
    changes.next();
    let table = fs::read_to_string(path.join("cells.csv")).unwrap();
    let running = table.replacen("4,1,waiting", "4,1,running", 1);
    fs::write(path.join("cells.csv"), running).unwrap();
    changes.next();
    let after = server.json(&address);
    assert_ne!(before["version"], after["version"]);
    assert_eq!(after["rows"][3]["runs"][0]["status"], "running");
    let run = RunDir::open(&path.join("runs/2/1")).unwrap();
    append_epoch(&run, 2);
    changes.next();
    let later = server.json(&address);
    assert_eq!(later["rows"][1]["runs"][0]["epochs"], 2);
    assert_ne!(later["version"], after["version"]);
}

#[test]
fn a_sweep_that_was_killed_is_not_shown_as_running() {
    let root = tempfile::tempdir().unwrap();
    let path = make_sweep(root.path(), "batch");
    let table = fs::read_to_string(path.join("cells.csv")).unwrap();
    fs::write(path.join("cells.csv"), table.replacen("2,1,stopped_early", "2,1,running", 1)).unwrap();
    let server = Running::start(root.path());
    let sweep = server.json(&format!("/api/sweeps/{}", id(&server)));
    assert_eq!(sweep["rows"][1]["runs"][0]["status"], "killed");
}

#[test]
fn damaged_sweeps_are_reported_and_links_are_not_followed() {
    let root = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = make_sweep(root.path(), "batch");
    let server = Running::start(root.path());
    let address = format!("/api/sweeps/{}", id(&server));
    let problem = || {
        server.index.scan();
        let text = server.json(&address)["problem"].as_str().unwrap_or_default().to_owned();
        assert_eq!(server.json("/api/sweeps")["sweeps"][0]["problem"].as_str().unwrap_or_default(), text);
        assert_eq!(server.get(&address.replace("/api", "")).status, 200);
        text
    };
    assert_eq!(problem(), "");
    let table = fs::read_to_string(path.join("cells.csv")).unwrap();
    fs::write(path.join("cells.csv"), &table[..table.len() / 2]).unwrap();
    assert!(problem().contains("cells.csv"), "{}", problem());
    fs::remove_file(path.join("cells.csv")).unwrap();
    assert!(problem().contains("cells.csv"), "{}", problem());
    fs::write(path.join("cells.csv"), [0xff, 0xfe, 0]).unwrap();
    assert!(problem().contains("cells.csv"), "{}", problem());
    fs::write(elsewhere.path().join("cells.csv"), &table).unwrap();
    fs::remove_file(path.join("cells.csv")).unwrap();
    symlink(elsewhere.path().join("cells.csv"), path.join("cells.csv")).unwrap();
    assert_eq!(problem(), "cells.csv is a link that leads out of the folders");
    fs::remove_file(path.join("cells.csv")).unwrap();
    fs::write(path.join("cells.csv"), &table).unwrap();
    fs::write(path.join("sweep.toml"), "[sweep").unwrap();
    assert!(problem().contains("sweep.toml"), "{}", problem());
    // A table of epochs outside of the folders does not count.
    fs::remove_dir_all(&path).unwrap();
    server.index.scan();
    assert_eq!(server.get(&address).status, 404);
    assert!(server.get(&address.replace("/api", "")).body.contains("No such sweep is in the folders"));
    let path = make_sweep(root.path(), "batch");
    let epochs = path.join("runs/1/1/epochs.csv");
    fs::rename(&epochs, elsewhere.path().join("epochs.csv")).unwrap();
    symlink(elsewhere.path().join("epochs.csv"), &epochs).unwrap();
    fs::remove_file(path.join("runs/1/2/epochs.csv")).unwrap();
    server.index.scan();
    assert_eq!(server.json(&address)["rows"][0]["result"], Value::Null);
    // Nor do those of a folder that is a link.
    fs::remove_dir_all(&path).unwrap();
    server.index.scan();
    let path = make_sweep(root.path(), "batch");
    server.index.scan();
    assert_ne!(server.json(&address)["rows"][0]["result"], Value::Null);
    fs::rename(path.join("runs"), elsewhere.path().join("runs")).unwrap();
    symlink(elsewhere.path().join("runs"), path.join("runs")).unwrap();
    // Its files are read again.
    fs::write(path.join("cells.csv"), table.trim_end()).unwrap();
    server.index.scan();
    assert_eq!(server.json(&address)["rows"][0]["result"], Value::Null);
}

#[test]
fn addresses_that_are_no_sweeps_have_no_page() {
    let root = tempfile::tempdir().unwrap();
    let server = Running::start(root.path());
    let list = data(&server.get("/sweeps").body);
    assert_eq!(list["sweeps"], json!([]));
    for address in ["x", "0123456789abcdef", "..%2f..%2fetc%2fpasswd", "%00", "é"] {
        for at in [format!("/sweeps/{address}"), format!("/api/sweeps/{address}")] {
            assert_eq!(server.get(&at).status, 404, "{at}");
        }
    }
}

#[test]
fn a_sweep_of_a_thousand_cells_is_listed_whole() {
    let root = tempfile::tempdir().unwrap();
    make_huge_sweep(root.path(), "huge", 1000);
    let server = Running::start(root.path());
    let sweep = server.json(&format!("/api/sweeps/{}", id(&server)));
    assert_eq!(sweep["rows"].as_array().unwrap().len(), 1000);
    assert_eq!(sweep["rows"][999]["values"], json!(["1000"]));
    assert_eq!((&sweep["best"], &sweep["rounds"]), (&Value::Null, &json!([])));
}
