//! The hosts are folders of this machine.

#![cfg(target_os = "linux")]

use super::{Host, HostsTarget, job_id_on_host};
use crate::local::LocalShell;
use crate::target::{ShellTarget, Target};
use crate::{LaunchRecord, RepetitionStatus};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

fn hosts(root: &Path) -> HostsTarget {
    let host = |name: &str| {
        let shell = Box::new(LocalShell { name: name.to_owned() });
        Host { name: name.to_owned(), target: ShellTarget { shell, folder: root.display().to_string() } }
    };
    HostsTarget {
        name: "lab".to_owned(),
        hosts: vec![host("a"), host("b")],
        lost_after: Duration::from_secs(300),
        unreachable_since: std::sync::Mutex::default(),
    }
}

/// A launch whose repetitions are all assigned to the first host. `program` trains them.
fn record(root: &Path, repetitions: usize, program: &str) -> LaunchRecord {
    let path = root.join("program.sh");
    fs::write(&path, format!("#!/bin/sh\n{program}\n")).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    LaunchRecord {
        root: root.display().to_string(),
        program: path.display().to_string(),
        runs: (1..=repetitions).map(|number| root.join(format!("here/{number}"))).collect(),
        experiments: vec![String::new(); repetitions],
        host_by_repetition: vec!["a".to_owned(); repetitions],
        prepared_hosts: vec!["a".to_owned(), "b".to_owned()],
        id: "x-1".to_owned(),
        target: "lab".to_owned(),
        ..LaunchRecord::default()
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn idle_host_takes_over_a_waiting_repetition() {
    let folder = tempfile::tempdir().unwrap();
    let target = hosts(folder.path());
    let go = folder.path().join("go");
    let mut record =
        record(folder.path(), 2, &format!("until [ -e '{}' ]; do sleep 0.05; done", go.display()));
    let job = record.job(None);
    target.submit(&record.root, &job).unwrap();
    wait_until("the first is trained", || folder.path().join("jobs/x-1.a/1/log.txt").exists());
    assert!(!folder.path().join(format!("jobs/{}", job_id_on_host("x-1", "b"))).exists());
    let messages = target.reschedule(&mut record, &job, false, &mut |_| Ok(())).unwrap();
    assert_eq!(messages, ["b is idle and takes over repetition 2 of a"]);
    assert_eq!(record.host_by_repetition, ["a", "b"]);
    let state = target.state(&record).unwrap();
    assert!(
        state.is_running && state.repetitions.iter().all(|one| one.status != RepetitionStatus::Completed)
    );
    fs::write(&go, "").unwrap();
    wait_until("both are done", || {
        let state = target.state(&record).unwrap();
        !state.is_running && state.repetitions.iter().all(|one| one.status == RepetitionStatus::Completed)
    });
    assert!(!target.stop(&record).unwrap());
}

#[test]
fn repetition_lost_with_its_folder_resumes_from_the_local_run() {
    let folder = tempfile::tempdir().unwrap();
    let target = hosts(folder.path());
    let mut record = record(folder.path(), 1, "exit 0");
    let run = &record.runs[0];
    fs::create_dir_all(run.join("checkpoints/1")).unwrap();
    fs::write(run.join("checkpoints/1/state.json"), "12345").unwrap();
    fs::write(run.join("experiment.toml"), "").unwrap();
    fs::create_dir_all(folder.path().join("jobs")).unwrap();
    let job = record.job(None);
    let messages = target.reschedule(&mut record, &job, false, &mut |_| Ok(())).unwrap();
    assert_eq!(messages, ["a takes over repetition 1 of a, from the local checkpoint"]);
    assert!(folder.path().join("jobs/x-1.a/1/run/checkpoints/1/state.json").exists());
}
