//! Launches of sweeps in which results decide which cells are trained.

use super::{hosts::kill_training, target, text};
use crate::common::{CommandOutput, TestDir, digits};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A search of the learning rate on the digits of these tests.
fn sweep(dir: &TestDir, epochs: u32, keys: &str, halving: &str) {
    let text = format!(
        "[model]\nname = \"digits\"\n\n[data]\npath = {:?}\nverify = false\n\n[train]\nepochs = {epochs}\n\
         batch_size = 256\nseed = 7\n\n[checkpoint]\nevery_seconds = 0.05\n\n[sweep]\n{keys}\n\
         \n[sweep.keys]\n\"optimiser.learning_rate\" = {{ log_uniform = [1e-4, 1.0] }}\n{halving}",
        digits()
    );
    fs::write(dir.path("rates.toml"), text).unwrap();
}

const HALVING: &str =
    "\n[sweep.halving]\nmetric = \"val_loss\"\nepochs = 1\nfactor = 2\nasynchronous = true\n";
/// One cell more than those that follow from the seed alone.
const TPE: &str = "search = \"tpe\"\ntrials = 11\nobjective = \"val_loss\"\n";

/// Adds the target `lab`: hosts that are folders of this machine. A host with the file `down-HOST` cannot be
/// reached.
fn hosts(dir: &mut TestDir, names: &[&str], more: &str) {
    let program = dir.path("ssh");
    let script = format!(
        "#!/bin/sh\nwhile [ \"$1\" != -- ]; do\n  [ \"$1\" = -O ] && exit 0\n  shift\ndone\n\
         if [ -e '{}/down-'\"$2\" ]; then\n  echo \"ssh: connect to host $2: no route\" >&2\n  exit 255\nfi\n\
         exec sh -c \"$3\"\n",
        dir.folder.path().display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    dir.variables.push(("STRATUS_SSH", program.into()));
    target(dir, "lab", &format!("kind = \"ssh\"\nhosts = {names:?}\n{more}"), "there");
}

/// The fields of the rows of a sweep's table.
fn rows(dir: &TestDir, sweep: &str) -> Vec<Vec<String>> {
    let table = fs::read_to_string(dir.path(sweep).join("cells.csv")).unwrap();
    table.lines().skip(1).map(fields).collect()
}

/// The fields of a line, which are quoted if they contain a comma.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut is_quoted = false;
    for c in line.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(String::new()),
            c => fields.last_mut().unwrap().push(c),
        }
    }
    fields
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(300), "{what}");
        sleep(Duration::from_millis(20));
    }
}

fn launch_sweep(dir: &TestDir, target: &str) -> String {
    let launched = dir.run(&["launch", target, "rates.toml", "--tag", "rates", "--json"]).expect(0).out;
    let launched: serde_json::Value = serde_json::from_str(&launched).unwrap();
    assert_eq!(launched["sweep"], "sweeps/rates");
    text(&launched, "id").to_owned()
}

/// Follows a launch and kills this process when a condition holds.
fn kill_follower(dir: &TestDir, what: &str, condition: impl FnMut() -> bool) {
    let mut command = dir.command(&["launch", "fetch", "-f"]);
    let mut follower = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until(what, condition);
    follower.kill().unwrap();
    follower.wait().unwrap();
}

fn follow(dir: &TestDir) -> CommandOutput {
    dir.run(&["launch", "fetch", "-f"])
}

#[test]
fn killed_search_on_one_machine_has_the_table_of_a_local_sweep() {
    let dir = TestDir::new();
    target(&dir, "here", "kind = \"local\"", "there");
    sweep(&dir, 3, "search = \"random\"\ntrials = 4\n", HALVING);
    dir.run(&["sweep", "rates.toml", "--out", "near"]).expect(0);

    let id = launch_sweep(&dir, "here");
    let settled = || rows(&dir, "sweeps/rates").iter().filter(|row| row[2] == "interrupted").count();
    kill_follower(&dir, "two cells have results", || settled() >= 2);
    let job = dir.path(&format!("there/jobs/{id}"));
    // The training of the next cell is killed too.
    wait_until("the next cell is trained or ended", || {
        job.join("pid").exists() || !dir.run(&["launch", "status", "--json"]).out.contains("\"alive\": true")
    });
    kill_training(&job);
    let message = follow(&dir).expect(0).err;
    assert!(message.contains("the sweep has ended; `stratus sweep sweeps/rates` compares"), "{message}");
    let [near, far] =
        ["near", "sweeps/rates"].map(|sweep| fs::read_to_string(dir.path(sweep).join("cells.csv")).unwrap());
    assert_eq!(far, near);
    let epochs = |sweep: &str, cell: &str| {
        crate::common::rows(
            &dir.path(sweep).join("runs").join(cell).join("1/epochs.csv"),
            crate::common::EPOCHS_HEADER,
        )
    };
    for cell in ["1", "2", "3", "4"] {
        assert_eq!(epochs("sweeps/rates", cell), epochs("near", cell), "{cell}");
    }
    // Nothing is left to train.
    dir.run(&["sweep", "sweeps/rates"]).expect(0);
    let resumed = dir.run(&["launch", "resume"]).expect(0).err;
    assert!(resumed.contains("nothing to resume"), "{resumed}");
}

#[test]
fn search_continues_on_the_other_host_if_one_is_lost() {
    let mut dir = TestDir::new();
    hosts(&mut dir, &["a", "b"], "lost_after_seconds = 1");
    sweep(&dir, 2, TPE, &HALVING.replace("factor = 2", "factor = 3"));
    let id = launch_sweep(&dir, "lab");
    let on_a = dir.path(&format!("there/jobs/{id}.a"));
    let count = |status: &str| rows(&dir, "sweeps/rates").iter().filter(|row| row[2] == status).count();
    kill_follower(&dir, "cells have results", || count("interrupted") + count("completed") >= 3);
    fs::write(dir.path("down-a"), "").unwrap();
    kill_training(&on_a);
    let drawn = rows(&dir, "sweeps/rates");
    let message = follow(&dir).expect(0).err;
    assert!(message.contains("the sweep has ended"), "{message}");
    let table = rows(&dir, "sweeps/rates");
    assert_eq!(table.len(), 11);
    assert!(table.iter().all(|row| ["completed", "stopped_early"].contains(&&*row[2])), "{table:?}");
    assert!(table.iter().any(|row| row[2] == "completed"), "{table:?}");
    // Cells that were drawn before keep their values.
    assert!(drawn.iter().zip(&table).all(|(before, after)| before[5] == after[5]), "{drawn:?} {table:?}");
    let mut rates: Vec<&String> = table.iter().map(|row| &row[5]).collect();
    rates.sort();
    rates.dedup();
    assert_eq!(rates.len(), 11, "no cell twice");
    // Cells that were drawn later have the labels of the launch too.
    for row in &table {
        let path = dir.path("sweeps/rates").join(&row[4]).join("labels.json");
        let labels: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(labels["tags"], serde_json::json!(["rates"]), "{row:?}");
    }
    dir.run(&["sweep", "sweeps/rates"]).expect(0);
    // A run has the epochs of a local one, though it may have moved.
    let best = table.iter().find(|row| row[2] == "completed").unwrap();
    let rate = format!("optimiser.learning_rate={}", best[5]);
    dir.train("near", 2, &["--set", "train.seed=7", "--set", &rate]).expect(0);
    let read = |run: &Path| crate::common::RunResult::read(run);
    assert_eq!(read(&dir.path("sweeps/rates").join(&best[4])), read(&dir.path("near")));
}

#[test]
fn stopped_search_starts_no_cell_until_it_is_resumed() {
    let mut dir = TestDir::new();
    hosts(&mut dir, &["a", "b"], "");
    sweep(&dir, 2, "search = \"random\"\ntrials = 4\n", &HALVING.replace("true", "false"));
    let id = launch_sweep(&dir, "lab");
    // All cells are compared at once, so all are queued.
    let status: serde_json::Value =
        serde_json::from_str(&dir.run(&["launch", "status", "--json"]).expect(0).out).unwrap();
    assert_eq!(status["runs"].as_array().unwrap().len(), 4);
    wait_until("both hosts train", || {
        ["a", "b"].iter().all(|host| dir.path(&format!("there/jobs/{id}.{host}/pid")).exists())
    });
    dir.run(&["launch", "stop"]).expect(0);
    let stopped = follow(&dir).expect(75).err;
    assert!(stopped.contains("resume"), "{stopped}");
    assert!(rows(&dir, "sweeps/rates").iter().any(|row| row[2] == "running"));
    let release = dir.run(&["launch", "release"]).expect(1).err;
    assert!(release.contains("unfinished") || release.contains("repetition"), "{release}");
    dir.run(&["launch", "resume"]).expect(0);
    follow(&dir).expect(0);
    let statuses: Vec<String> = rows(&dir, "sweeps/rates").into_iter().map(|row| row[2].clone()).collect();
    assert_eq!(statuses.iter().filter(|status| *status == "completed").count(), 2, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| *status == "stopped_early").count(), 2, "{statuses:?}");
    dir.run(&["launch", "release"]).expect(0);
}

#[test]
fn clouds_reject_a_search_and_a_wrong_ssh_program_is_named() {
    let mut dir = TestDir::without_kernel_cache();
    sweep(&dir, 2, TPE, HALVING);
    fs::write(dir.path("targets.toml"), "[cloud]\nkind = \"sky\"\nbucket = \"s3://lab\"\n").unwrap();
    let message = dir.run(&["launch", "cloud", "rates.toml"]).expect(2).err;
    assert!(message.contains("cannot be launched on cloud targets"), "{message}");
    hosts(&mut dir, &["a"], "");
    dir.variables = vec![("STRATUS_SSH", dir.path("none").into())];
    let message = dir.run(&["launch", "lab", "rates.toml"]).expect(1).err;
    assert!(message.contains("cannot start `") && message.contains("unset STRATUS_SSH"), "{message}");
    assert!(!dir.path("sweeps").exists());
}
