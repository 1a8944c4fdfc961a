//! Changes of runs, as pages receive them.

use std::fs;

use crate::common::{MadeRun, Running, append_epoch, append_iterations, make};
use serde_json::Value;
use stratus_run::RunDir;
use stratus_run::csv::{CsvWriter, IterationRow, Task};
use stratus_run::summary::Status;

fn first_run(event: &Value) -> Option<&Value> {
    event["runs"].as_array().unwrap().first()
}

fn training(root: &std::path::Path) -> RunDir {
    RunDir::open(&make(root, &MadeRun { status: Status::Running, ..MadeRun::default() })).unwrap()
}

#[test]
fn appended_rows_arrive_as_events_and_as_new_points() {
    let root = tempfile::tempdir().unwrap();
    let run = training(root.path());
    // The test holds the lock as the process that trains does.
    let lock = run.lock().unwrap();
    let server = Running::start(root.path());
    let id = server.id("digits/1");
    let mut events = server.events(&format!("?runs={id}"));
    let (_, first) = events.next();
    assert_eq!(
        (first["is_all"].as_bool(), first_run(&first).unwrap()["iteration"].as_u64()),
        (Some(true), Some(40))
    );
    assert_eq!(first_run(&first).unwrap()["state"], "running");
    assert_eq!(first_run(&first).unwrap()["left_s"], 20.0);
    let series = server.json(&format!("/api/runs/{id}/series"));
    append_iterations(&run, "digits", 3, 5);
    let event = events.until(|event| first_run(event).is_some_and(|run| run["iteration"] == 45));
    let row = first_run(&event).unwrap();
    assert_eq!(row["content"], first_run(&first).unwrap()["content"], "only iterations were added");
    assert_eq!(row["percent"], 56.25);
    let target = format!("/api/runs/{id}/series?generation={}&from=39", series["generation"]);
    let new = server.json(&target);
    assert_eq!((new["first"].as_u64(), new["generation"].clone()), (Some(39), series["generation"].clone()));
    assert_eq!(new["iteration"], serde_json::json!([40, 41, 42, 43, 44, 45]));
    append_epoch(&run, 3);
    let event = events.until(|event| first_run(event).is_some_and(|run| run["epochs"] == 3));
    assert!(first_run(&event).unwrap()["content"].as_u64() > first_run(&first).unwrap()["content"].as_u64());
    // The process is killed: its lock is free, its files are at rest.
    drop(lock);
    let event = events.until(|event| first_run(event).is_some_and(|run| run["state"] == "interrupted"));
    assert_eq!(first_run(&event).unwrap()["left_s"], Value::Null);
}

#[test]
fn a_resumed_run_is_read_again_from_the_start() {
    let root = tempfile::tempdir().unwrap();
    let run = training(root.path());
    let server = Running::start(root.path());
    let id = server.id("digits/1");
    let series = server.json(&format!("/api/runs/{id}/series"));
    assert_eq!(series["iteration"].as_array().unwrap().len(), 40);
    let whole = fs::read_to_string(run.iterations()).unwrap();
    let checkpoint: usize = whole.lines().take(31).map(|line| line.len() + 1).sum();
    let mut rows =
        CsvWriter::<IterationRow>::resume_at(&run.iterations(), Task::Classification, checkpoint as u64)
            .unwrap();
    for iteration in 31..=60 {
        rows.append(&IterationRow { epoch: 2, iteration, loss: 9.0, ..IterationRow::default() }).unwrap();
    }
    rows.flush().unwrap();
    let target = format!("/api/runs/{id}/series?generation={}&from=39", series["generation"]);
    let again = server.json(&target);
    assert_ne!(again["generation"], series["generation"]);
    assert_eq!((again["first"].as_u64(), again["iteration"].as_array().unwrap().len()), (Some(0), 60));
    assert_eq!((again["loss"][29].as_f64(), again["loss"][30].as_f64()), (Some(2.0 / 30.0), Some(9.0)));
    // Half a row is not a row.
    let half = fs::read(run.iterations()).unwrap();
    fs::write(run.iterations(), &half[..half.len() - 3]).unwrap();
    let cut = server.json(&format!("/api/runs/{id}/series"));
    assert_eq!(cut["iteration"].as_array().unwrap().len(), 59);
}

#[test]
fn new_moved_and_deleted_runs_arrive_as_events() {
    let root = tempfile::tempdir().unwrap();
    let path = make(root.path(), &MadeRun::default());
    let server = Running::start(root.path());
    let id = server.id("digits/1");
    let page = server.get(&format!("/run/{id}"));
    assert_eq!(page.status, 200);
    let mut events = server.events("");
    assert!(events.next().1["is_all"].as_bool().unwrap());
    make(root.path(), &MadeRun { path: "digits/2", ..MadeRun::default() });
    let event = events.until(|event| first_run(event).is_some());
    assert_eq!(first_run(&event).unwrap()["label"], "digits/2");
    fs::rename(&path, root.path().join("digits/3")).unwrap();
    let event = events.until(|event| !event["removed"].as_array().unwrap().is_empty());
    assert_eq!(event["removed"], serde_json::json!([id]));
    for target in [format!("/run/{id}"), format!("/api/runs/{id}/sections"), format!("/api/runs/{id}/series")]
    {
        assert_eq!(server.get(&target).status, 404, "{target}");
    }
    server.index.scan();
    assert_ne!(server.id("digits/3"), id);
}

/// A page that was hidden, or whose connection broke, gets what it missed; one of another server gets all.
#[test]
fn a_page_that_connects_again_gets_what_it_missed() {
    let root = tempfile::tempdir().unwrap();
    make(root.path(), &MadeRun::default());
    let second = make(root.path(), &MadeRun { path: "digits/2", ..MadeRun::default() });
    let server = Running::start(root.path());
    let list = server.json("/api/runs");
    let since = format!("{}-{}", list["instance"], list["revision"]);
    append_epoch(&RunDir::open(&second).unwrap(), 3);
    server.index.scan();
    let (id, event) = server.events(&format!("?since={since}&keys=train.batch_size")).next();
    assert_eq!((event["is_all"].as_bool(), event["runs"].as_array().unwrap().len()), (Some(false), 1));
    assert_eq!(first_run(&event).unwrap()["label"], "digits/2");
    assert_eq!(first_run(&event).unwrap()["settings"], serde_json::json!(["32"]));
    assert_eq!(id, format!("{}-{}", event["instance"], event["revision"]));
    for since in ["1-1", "nonsense", "", &format!("{}-999999", list["instance"])] {
        let (_, event) = server.events(&format!("?since={since}")).next();
        assert_eq!(
            (event["is_all"].as_bool(), event["runs"].as_array().unwrap().len()),
            (Some(true), 2),
            "{since}"
        );
    }
}
