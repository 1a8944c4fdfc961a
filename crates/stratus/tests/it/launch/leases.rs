//! Leases, notifications, the release of a machine, and the forecast of a launch.

use super::{launch, replace_program, target, text, train_locally, wait_for_end};
use crate::common::{RunResult, TestDir, digits};
use std::fs;
use std::process::Command;

fn data() -> String {
    format!("data.path={}", digits().display())
}

#[test]
fn training_stops_before_its_lease_ends_and_resumes_with_another() {
    let dir = TestDir::new();
    target(&dir, "here", "kind = \"local\"", "there");
    // Half a minute of the lease is reserved for fetching.
    let launched = launch(&dir, "here", 5000, &["--until", "50s"]);
    let job = dir.path(&format!("there/jobs/{}", text(&launched, "id")));
    let script = fs::read_to_string(job.join("launch.sh")).unwrap();
    assert!(script.contains("\nstop_at=1") || script.contains("\nstop_at=2"), "{script}");
    assert_eq!(wait_for_end(&dir), ["interrupted"]);
    assert_eq!(fs::read_to_string(job.join("1/exit")).unwrap().trim(), "75");
    dir.run(&["launch", "fetch"]).expect(0);
    dir.run(&["launch", "resume", "--until", "2h"]).expect(0);
    dir.run(&["launch", "stop"]).expect(0);
    assert_eq!(wait_for_end(&dir), ["interrupted"]);

    for (until, code, problem) in [
        ("soon", 2, "--until soon: use a duration"),
        ("2001-12-01 08:00", 2, "in the past"),
        ("20s", 1, "fetching may take"),
    ] {
        let message = dir.run(&["launch", "resume", "--until", until]).expect(code);
        assert!(message.err.contains(problem), "{}", message.err);
    }
}

#[test]
fn events_are_reported_and_the_webhook_address_is_not_stored() {
    let mut dir = TestDir::new();
    let at = dir.folder.path().display().to_string();
    let variables = "$STRATUS_EVENT $STRATUS_REPETITION $STRATUS_EXIT";
    let notify = format!("echo {variables} >> {at}/events; seq 100000; exit 3");
    target(&dir, "here", &format!("kind = \"local\"\nnotify = {notify:?}"), "there");
    replace_program(&mut dir, "curl", &format!("cat >> {at}/curl.input\necho \"$@\" >> {at}/curl.arguments"));
    dir.variables.push(("STRATUS_WEBHOOK", "https://hooks.example.org/hunter2".into()));
    launch(&dir, "here", 1, &["--repetitions", "2"]);
    assert_eq!(wait_for_end(&dir), ["completed"; 2]);
    let lines = |name: &str| -> Vec<String> {
        let text = fs::read_to_string(dir.path(name)).unwrap();
        let mut lines: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines("events"), ["end 1 0", "end 2 0", "start 1", "start 2"]);
    assert_eq!(lines("curl.input"), ["url = \"https://hooks.example.org/hunter2\""; 4]);
    let arguments = lines("curl.arguments").join("\n");
    for part in ["\"event\": \"end\"", "\"repetition\": 2", "\"exit\": 0"] {
        assert!(arguments.contains(part), "{arguments}");
    }
    assert!(!arguments.contains("hunter2"));
    fs::remove_file(dir.path("curl.input")).unwrap();
    let found = Command::new("grep").args(["-r", "-l", "hunter2"]).arg(dir.folder.path()).output().unwrap();
    assert!(found.stdout.is_empty(), "{}", String::from_utf8_lossy(&found.stdout));

    // A failure is reported too.
    fs::remove_file(dir.path("events")).unwrap();
    let failing = ["launch", "here", "digits", "--remote-data", "--set", "data.path=/nowhere"];
    dir.run(&failing).expect(0);
    assert_eq!(wait_for_end(&dir), ["failed"]);
    assert_eq!(lines("events")[0], "failure 1 1");
    // It has no run. Following it ends, with the reason.
    for (follow, code) in [(&["launch", "fetch"][..], 0), (&["launch", "fetch", "-f"], 1)] {
        let message = dir.run(follow).expect(code).err;
        assert!(!message.contains("retrying"), "{message}");
        if follow.contains(&"-f") {
            assert!(message.contains("failed: error: /nowhere") && message.contains("resume"), "{message}");
        }
    }

    dir.variables.pop();
    dir.variables.push(("STRATUS_WEBHOOK", "hunter2".into()));
    let message = dir.run(&["launch", "resume"]).expect(2).err;
    assert!(
        message.contains("STRATUS_WEBHOOK is not an http:// or https:// address")
            && !message.contains("hunter2"),
        "{message}"
    );
}

#[test]
fn machine_is_released_after_the_last_fetch() {
    let dir = TestDir::new();
    let at = dir.folder.path().display().to_string();
    let command = format!("echo $STRATUS_TARGET $STRATUS_LAUNCH >> {at}/released");
    target(&dir, "here", &format!("kind = \"local\"\nrelease = {command:?}"), "there");
    let launched = launch(&dir, "here", 5000, &[]);
    let message = dir.run(&["launch", "release"]).expect(1).err;
    assert!(message.contains("is running"), "{message}");
    dir.run(&["launch", "stop"]).expect(0);
    wait_for_end(&dir);
    let message = dir.run(&["launch", "release"]).expect(1).err;
    assert!(message.contains("repetition 1 is ") && message.contains("hint: "), "{message}");
    assert!(!dir.path("released").exists());
    let message = dir.run(&["launch", "release", "--force"]).expect(0).err;
    assert!(message.contains("all files fetched and verified"), "{message}");
    let first = format!("here {}\n", text(&launched, "id"));
    assert_eq!(fs::read_to_string(dir.path("released")).unwrap(), first);
    let list = dir.run(&["launch", "list"]).expect(0).out;
    assert!(list.contains("released"), "{list}");

    // Following releases the machine at the end.
    launch(&dir, "here", 1, &[]);
    dir.run(&["launch", "fetch", "-f"]).expect(0);
    assert_eq!(fs::read_to_string(dir.path("released")).unwrap().lines().count(), 2);
    assert_eq!(RunResult::read(&dir.path("runs/digits/2")), train_locally(&dir, "near", 1, 7));

    fs::remove_file(dir.path("targets.toml")).unwrap();
    target(&dir, "here", "kind = \"local\"\nrelease = \"echo no >&2; exit 4\"", "there");
    let message = dir.run(&["launch", "release"]).expect(1).err;
    assert!(message.contains("here: release: the command exited with 4: no"), "{message}");
}

#[test]
fn dry_run_reports_requirements_and_rejects_launches_that_cannot_fit() {
    let dir = TestDir::without_kernel_cache();
    target(&dir, "cloud", "kind = \"local\"\nmachine = \"g4dn.xlarge\"", "there");
    let how = "kind = \"slurm\"\nhost = \"login\"\ngres = \"gpu:1\"\nmachine = \"t4-16gb\"";
    target(&dir, "cluster", how, "there");
    target(&dir, "wrong", "kind = \"local\"\nmachine = \"t44\"", "there");
    let data = data();
    let dry = |target: &str, more: &[&str]| {
        let arguments = [
            "launch",
            target,
            "digits",
            "--dry-run",
            "--repetitions",
            "2",
            "--set",
            &data,
            "--set",
            "data.verify=false",
        ];
        dir.run(&[&arguments, more].concat())
    };
    let message = dry("cloud", &[]).expect(0).err;
    assert!(message.contains("cloud: forecast for g4dn.xlarge: "), "{message}");
    assert!(
        message.contains(" USD (up to ") && message.contains("; 2 repetitions, one after the other"),
        "{message}"
    );
    let script = dry("cluster", &[]).expect(0).out;
    for option in ["--time=0-", "--mem=", "--cpus-per-task="] {
        assert!(script.contains(&format!("#SBATCH {option}")), "{script}");
    }
    let late = ["--set", "train.epochs=1000000", "--until", "1h"];
    let message = dry("cloud", &late).expect(2).err;
    assert!(message.contains("cloud: needs at least ") && message.contains("--force"), "{message}");
    dry("cloud", &[&late[..], &["--force"]].concat()).expect(0);
    let message = dry("wrong", &[]).expect(2).err;
    assert!(message.contains("t44"), "{message}");

    let synthetic = ["--set", "data.name=synthetic", "--set", "train.batch_size=8192", "--dry-run"];
    let message = dir.run(&[&["launch", "cloud", "resnet50"], &synthetic[..]].concat()).expect(2).err;
    assert!(message.contains("does not fit the memory of g4dn.xlarge: "), "{message}");
    assert!(!dir.path("there").exists() && !dir.path("runs").exists());
}
