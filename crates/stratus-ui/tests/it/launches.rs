//! The pages of launches: records as `stratus launch` writes them, and what is saved beside them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::common::{MadeRun, Running, make};
use crate::pages::data;
use serde_json::{Value, json};
use stratus_launch::{
    LaunchEventKind, LaunchRecord, LaunchState, RepetitionState, RepetitionStatus, events_file, state_file,
};
use stratus_run::RunDir;
use stratus_run::remote::RemoteRun;
use stratus_run::summary::Status;

/// A name that would be markup if it were not text.
const HOSTILE: &str = "<img src=x onerror='alert(1)'></script>";

/// The record of a launch of three repetitions on two hosts, in a project folder.
fn make_record(project: &Path, id: &str) -> LaunchRecord {
    let experiment = "[train]\nprice_per_hour = 36.0\nbudget = 2.5\n";
    let record = LaunchRecord {
        id: id.to_owned(),
        target: HOSTILE.to_owned(),
        launched: 1_790_000_000,
        runs: (1..=3).map(|number| PathBuf::from(format!("runs/digits/{number}"))).collect(),
        experiments: vec![experiment.to_owned(); 3],
        expected_s: Some(120.0),
        host_by_repetition: ["a", "b", "b"].map(str::to_owned).to_vec(),
        prepared_hosts: ["a", "b", "c"].map(str::to_owned).to_vec(),
        ..LaunchRecord::default()
    };
    record.write(&project.join("runs")).unwrap();
    record
}

fn state() -> LaunchState {
    let one = |repetition, status, last: &str| RepetitionState {
        repetition,
        status,
        last_line: last.to_owned(),
        elapsed_s: (status != RepetitionStatus::Unknown).then_some(50),
        epochs: Some(1),
        ..RepetitionState::default()
    };
    LaunchState {
        is_running: true,
        owner: HOSTILE.to_owned(),
        heartbeat_s: Some(3),
        repetitions: vec![
            one(1, RepetitionStatus::Running, HOSTILE),
            one(2, RepetitionStatus::Unknown, "no route to host"),
            one(3, RepetitionStatus::Unknown, "no route to host"),
        ],
        ..LaunchState::default()
    }
}

/// The only launch.
fn only(server: &Running) -> Value {
    server.index.scan();
    let list = server.json("/api/launches");
    assert_eq!(list["launches"].as_array().unwrap().len(), 1, "{list}");
    list["launches"][0].clone()
}

fn document(server: &Running) -> Value {
    let id = only(server)["id"].as_str().unwrap().to_owned();
    server.json(&format!("/api/launches/{id}"))
}

#[test]
fn page_of_a_launch_has_what_is_known_here() {
    let project = tempfile::tempdir().unwrap();
    let runs = project.path().join("runs");
    let record = make_record(project.path(), "digits-20261129-1");
    let run = make(&runs, &MadeRun { epochs: 2, status: Status::Running, ..MadeRun::default() });
    let server = Running::start(&runs);
    // Nobody has asked the target.
    let line = only(&server);
    assert_eq!((line["name"].as_str(), line["target"].as_str()), (Some("digits-20261129-1"), Some(HOSTILE)));
    assert_eq!((&line["asked"], &line["answered"]), (&Value::Null, &Value::Null));
    assert_eq!(line["statuses"], json!({"unknown": 3}));
    // The price of the seconds of the run that is here, and the budget of all.
    assert_eq!((line["spent"].as_f64(), line["budget"].as_f64()), (Some(36.0 * 20.0 / 3600.0), Some(7.5)));
    let remote = RemoteRun { status: "running".to_owned(), fetched: 1_790_000_100, ..RemoteRun::default() };
    remote.write(&RunDir::open(&run).unwrap().remote()).unwrap();
    let shown = document(&server);
    assert_eq!(
        (&shown["rows"][0]["status"], &shown["rows"][0]["fetched"]),
        (&json!("running"), &json!(1_790_000_100))
    );
    assert_eq!(shown["rows"][0]["run"], server.id("digits/1"));
    assert_eq!(shown["rows"][1]["run"], Value::Null);
    // What the last command heard.
    record.save_state(&runs, Ok(&state())).unwrap();
    let text = "b takes over repetition 3 of a, from the local checkpoint";
    record.add_events(&runs, LaunchEventKind::Rescheduled, &[text]).unwrap();
    record.add_events(&runs, LaunchEventKind::Unreachable, &[HOSTILE]).unwrap();
    let shown = document(&server);
    assert_eq!(shown["statuses"], json!({"running": 1, "unknown": 2}));
    assert_eq!((shown["is_running"].as_bool(), shown["retries"].as_u64()), (Some(true), Some(1)));
    assert_eq!((&shown["rows"][0]["last_line"], &shown["owner"]), (&json!(HOSTILE), &json!(HOSTILE)));
    assert_eq!(shown["spent"].as_f64(), Some(36.0 * 50.0 / 3600.0));
    let hosts: Vec<(&str, Option<&str>, u64)> = shown["hosts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|host| {
            (host["name"].as_str().unwrap(), host["lost"].as_str(), host["assigned"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(hosts, [("a", None, 1), ("b", Some("no route to host"), 2), ("c", None, 0)]);
    assert_eq!(shown["events"][0]["text"], text);
    // The target is lost: the last state stays.
    record.save_state(&runs, Err("ssh: no route".to_owned())).unwrap();
    let shown = document(&server);
    assert_eq!((&shown["unreachable"], &shown["statuses"]["running"]), (&json!("ssh: no route"), &json!(1)));
    let page = server.get(&format!("/launches/{}", shown["id"].as_str().unwrap()));
    assert!(!page.body.contains("<img"), "{}", page.body);
    assert_eq!(data(&page.body)["rows"], shown["rows"]);
    assert!(!server.get("/launches").body.contains("<img"));
    // An unchanged launch is not sent again.
    let address = format!("/api/launches/{}", shown["id"].as_str().unwrap());
    let version = shown["version"].as_str().unwrap();
    assert_eq!(server.json(&format!("{address}?version={version}"))["is_same"], true);
}

#[test]
fn a_launched_sweep_links_to_its_page() {
    let project = tempfile::tempdir().unwrap();
    let sweep = crate::common::make_sweep(project.path(), "sweeps/batch");
    let record = LaunchRecord {
        id: "batch-1".to_owned(),
        runs: vec![PathBuf::from("sweeps/batch/runs/1/1"), PathBuf::from("../../etc/passwd")],
        ..LaunchRecord::default()
    };
    record.write(&project.path().join("runs")).unwrap();
    // The folder of the project has both.
    let server = Running::start(project.path());
    let shown = document(&server);
    let sweeps = server.json("/api/sweeps");
    assert_eq!(shown["sweep"], sweeps["sweeps"][0]["id"]);
    assert_eq!(shown["rows"][0]["run"], server.id("sweeps/batch/runs/1/1"));
    assert_eq!(shown["rows"][1]["run"], Value::Null);
    fs::remove_dir_all(sweep).unwrap();
    assert_eq!(document(&server)["sweep"], Value::Null);
}

#[test]
fn damaged_records_are_reported_and_links_are_not_followed() {
    let project = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let runs = project.path().join("runs");
    let record = make_record(project.path(), "digits-1");
    let file = record.file(&runs);
    let server = Running::start(&runs);
    let text = fs::read_to_string(&file).unwrap();
    for content in [&text[..text.len() / 3], "", "\0\0", "id = \"../x\"\n"] {
        fs::write(&file, content).unwrap();
        let line = only(&server);
        assert!(line["problem"].is_string(), "{content:?}: {line}");
        assert!(document(&server)["problem"].is_string());
    }
    fs::write(&file, &text).unwrap();
    record.save_state(&runs, Ok(&state())).unwrap();
    fs::write(state_file(&file), "{\"asked\": 3, \"state\": {").unwrap();
    fs::create_dir(events_file(&file)).unwrap();
    let shown = document(&server);
    // A folder in place of the file of events is a reason not to read the launch.
    assert!(shown["problem"].as_str().unwrap().contains("is not a file"), "{shown}");
    fs::remove_dir(events_file(&file)).unwrap();
    let shown = document(&server);
    assert!(shown["problems"][0].as_str().unwrap().contains("not the state of a launch"), "{shown}");
    assert_eq!((shown["rows"].as_array().unwrap().len(), &shown["problem"]), (3, &Value::Null));
    fs::remove_file(state_file(&file)).unwrap();
    fs::write(elsewhere.path().join("state"), "{\"asked\": 3}").unwrap();
    symlink(elsewhere.path().join("state"), state_file(&file)).unwrap();
    let shown = document(&server);
    assert!(shown["problem"].as_str().unwrap().contains("leads out of the folders"), "{shown}");
    let address = format!("/launches/{}", shown["id"].as_str().unwrap());
    fs::remove_dir_all(runs.join(".launches")).unwrap();
    server.index.scan();
    assert_eq!(server.get(&address).status, 404);
    assert_eq!(data(&server.get("/launches").body)["launches"], json!([]));
    for address in ["x", "..%2f..%2fetc", "0123456789abcdef"] {
        assert_eq!(server.get(&format!("/launches/{address}")).status, 404, "{address}");
    }
}
