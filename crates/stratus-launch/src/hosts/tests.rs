//! Machines that are folders of this one: each has a job folder of its own.

#![cfg(target_os = "linux")]

use super::{Host, Hosts, id_on};
use crate::local::Local;
use crate::shell::Shell;
use crate::target::{Machine, Target};
use crate::{Record, Status};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

fn hosts(root: &Path) -> Hosts {
    let host = |name: &str| {
        let shell: Box<dyn Shell> = Box::new(Local { name: name.to_owned() });
        Host { name: name.to_owned(), machine: Machine { shell, folder: root.display().to_string() } }
    };
    Hosts {
        name: "lab".to_owned(),
        hosts: vec![host("a"), host("b")],
        patience: Duration::from_secs(300),
        lost: std::sync::Mutex::default(),
    }
}

/// A launch whose repetitions all are the first machine's. `program` trains them.
fn record(root: &Path, repetitions: usize, program: &str) -> Record {
    let path = root.join("program.sh");
    fs::write(&path, format!("#!/bin/sh\n{program}\n")).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    Record {
        root: root.display().to_string(),
        program: path.display().to_string(),
        runs: (1..=repetitions).map(|number| root.join(format!("here/{number}"))).collect(),
        experiments: vec![String::new(); repetitions],
        hosts: vec!["a".to_owned(); repetitions],
        ready: vec!["a".to_owned(), "b".to_owned()],
        ..Record::of_a_test("x-1", "lab")
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_machine_that_was_given_nothing_takes_what_waits_and_is_stopped_too() {
    let place = tempfile::tempdir().unwrap();
    let target = hosts(place.path());
    let go = place.path().join("go");
    let mut record =
        record(place.path(), 2, &format!("until [ -e '{}' ]; do sleep 0.05; done", go.display()));
    let job = record.job(None);
    target.submit(&record.root, &job).unwrap();
    until("the first is trained", || place.path().join("jobs/x-1.a/1/log.txt").exists());
    assert!(!place.path().join(format!("jobs/{}", id_on("x-1", "b"))).exists());
    let said = target.tend(&mut record, &job, false, &mut |_| Ok(())).unwrap();
    assert_eq!(said, ["b has nothing to do and takes repetition 2 of a"]);
    assert_eq!(record.hosts, ["a", "b"]);
    let state = target.state(&record).unwrap();
    assert!(state.alive && state.repetitions.iter().all(|one| one.status != Status::Completed));
    fs::write(&go, "").unwrap();
    until("both are done", || {
        let state = target.state(&record).unwrap();
        !state.alive && state.repetitions.iter().all(|one| one.status == Status::Completed)
    });
    assert!(!target.stop(&record).unwrap());
}

#[test]
fn what_was_lost_with_its_folder_goes_on_from_what_is_here() {
    let place = tempfile::tempdir().unwrap();
    let target = hosts(place.path());
    let mut record = record(place.path(), 1, "exit 0");
    let run = &record.runs[0];
    fs::create_dir_all(run.join("checkpoints/1")).unwrap();
    fs::write(run.join("checkpoints/1/state.json"), "12345").unwrap();
    fs::write(run.join("experiment.toml"), "").unwrap();
    fs::create_dir_all(place.path().join("jobs")).unwrap();
    let job = record.job(None);
    let said = target.tend(&mut record, &job, false, &mut |_| Ok(())).unwrap();
    assert_eq!(said, ["a takes repetition 1 of a, from the checkpoint that is here"]);
    assert!(place.path().join("jobs/x-1.a/1/run/checkpoints/1/state.json").exists());
}
