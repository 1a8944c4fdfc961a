//! Leases, notices, the release of a machine, and what a launch is expected to take.

use super::{ended, instead, launch, near, target, text};
use crate::common::{Place, Result, root};
use std::fs;
use std::process::Command;

fn data() -> String {
    format!("data.path={}", root().join("data/mnist").display())
}

#[test]
fn training_stops_before_its_lease_ends_and_goes_on_with_another() {
    let place = Place::new();
    target(&place, "here", "kind = \"local\"", "there");
    // Half a minute of it is for what comes back.
    let launched = launch(&place, "here", 5000, &["--until", "50s"]);
    let job = place.path(&format!("there/jobs/{}", text(&launched, "id")));
    let script = fs::read_to_string(job.join("launch.sh")).unwrap();
    assert!(script.contains("\nstop_at=1") || script.contains("\nstop_at=2"), "{script}");
    assert_eq!(ended(&place), ["interrupted"]);
    assert_eq!(fs::read_to_string(job.join("1/exit")).unwrap().trim(), "75");
    place.run(&["launch", "fetch"]).expect(0);
    place.run(&["launch", "resume", "--until", "2h"]).expect(0);
    place.run(&["launch", "stop"]).expect(0);
    assert_eq!(ended(&place), ["interrupted"]);

    for (until, problem) in [
        ("soon", "--until soon: give a duration"),
        ("2001-12-01 08:00", "that is over"),
        ("20s", "bringing the runs back may take"),
    ] {
        let said = place.run(&["launch", "resume", "--until", until]);
        assert!(matches!(said.code, Some(1 | 2)) && said.err.contains(problem), "{}", said.err);
    }
}

#[test]
fn what_happens_is_told_and_the_address_is_written_nowhere() {
    let mut place = Place::new();
    let at = place.folder.path().display().to_string();
    let variables = "$STRATUS_EVENT $STRATUS_REPETITION $STRATUS_EXIT";
    let told = format!("echo {variables} >> {at}/told; seq 100000; exit 3");
    target(&place, "here", &format!("kind = \"local\"\nnotify = {told:?}"), "there");
    instead(&mut place, "curl", &format!("cat >> {at}/curl.input\necho \"$@\" >> {at}/curl.arguments"));
    place.variables.push(("STRATUS_WEBHOOK", "https://hooks.example.org/hunter2".into()));
    launch(&place, "here", 1, &["--repetitions", "2"]);
    assert_eq!(ended(&place), ["completed"; 2]);
    let lines = |name: &str| -> Vec<String> {
        let text = fs::read_to_string(place.path(name)).unwrap();
        let mut lines: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines("told"), ["end 1 0", "end 2 0", "start 1", "start 2"]);
    assert_eq!(lines("curl.input"), ["url = \"https://hooks.example.org/hunter2\""; 4]);
    let arguments = lines("curl.arguments").join("\n");
    for part in ["\"event\": \"end\"", "\"repetition\": 2", "\"exit\": 0"] {
        assert!(arguments.contains(part), "{arguments}");
    }
    assert!(!arguments.contains("hunter2"));
    fs::remove_file(place.path("curl.input")).unwrap();
    let found = Command::new("grep").args(["-r", "-l", "hunter2"]).arg(place.folder.path()).output().unwrap();
    assert!(found.stdout.is_empty(), "{}", String::from_utf8_lossy(&found.stdout));

    // What fails there is told too.
    fs::remove_file(place.path("told")).unwrap();
    let there = ["launch", "here", "digits", "--data-there", "--set", "data.path=/nowhere"];
    place.run(&there).expect(0);
    assert_eq!(ended(&place), ["failed"]);
    assert_eq!(lines("told")[0], "failure 1 1");

    place.variables.pop();
    place.variables.push(("STRATUS_WEBHOOK", "hunter2".into()));
    let said = place.run(&["launch", "resume"]).expect(2).err;
    assert!(said.contains("STRATUS_WEBHOOK is no address") && !said.contains("hunter2"), "{said}");
}

#[test]
fn a_machine_is_released_when_everything_is_here() {
    let place = Place::new();
    let at = place.folder.path().display().to_string();
    let command = format!("echo $STRATUS_TARGET $STRATUS_LAUNCH >> {at}/released");
    target(&place, "here", &format!("kind = \"local\"\nrelease = {command:?}"), "there");
    let launched = launch(&place, "here", 5000, &[]);
    let said = place.run(&["launch", "release"]).expect(1).err;
    assert!(said.contains("is being trained"), "{said}");
    place.run(&["launch", "stop"]).expect(0);
    ended(&place);
    let said = place.run(&["launch", "release"]).expect(1).err;
    assert!(said.contains("repetition 1 is ") && said.contains("hint: "), "{said}");
    assert!(!place.path("released").exists());
    let said = place.run(&["launch", "release", "--anyway"]).expect(0).err;
    assert!(said.contains("everything is here, checked"), "{said}");
    let first = format!("here {}\n", text(&launched, "id"));
    assert_eq!(fs::read_to_string(place.path("released")).unwrap(), first);
    let list = place.run(&["launch", "list"]).expect(0).out;
    assert!(list.contains("released"), "{list}");

    // Who follows releases it at the end.
    launch(&place, "here", 1, &[]);
    place.run(&["launch", "fetch", "-f"]).expect(0);
    assert_eq!(fs::read_to_string(place.path("released")).unwrap().lines().count(), 2);
    assert_eq!(Result::of(&place.path("runs/digits/2")), near(&place, "near", 1, 7));

    fs::remove_file(place.path("targets.toml")).unwrap();
    target(&place, "here", "kind = \"local\"\nrelease = \"echo no >&2; exit 4\"", "there");
    let said = place.run(&["launch", "release"]).expect(1).err;
    assert!(said.contains("here: release: the command ended with 4: no"), "{said}");
}

#[test]
fn what_a_launch_takes_is_said_and_what_cannot_fit_is_refused() {
    let place = Place::bare();
    target(&place, "cloud", "kind = \"local\"\nmachine = \"g4dn.xlarge\"", "there");
    let how = "kind = \"slurm\"\nhost = \"login\"\ngres = \"gpu:1\"\nmachine = \"t4-16gb\"";
    target(&place, "cluster", how, "there");
    target(&place, "wrong", "kind = \"local\"\nmachine = \"t44\"", "there");
    let data = data();
    let dry = |target: &str, more: &[&str]| {
        let arguments = ["launch", target, "digits", "--dry-run", "--repetitions", "2", "--set", &data];
        place.run(&[&arguments, more].concat())
    };
    let said = dry("cloud", &[]).expect(0).err;
    assert!(said.contains("cloud: forecast for g4dn.xlarge: "), "{said}");
    assert!(said.contains(" USD (up to ") && said.contains("; 2 repetitions, one after the other"), "{said}");
    let script = dry("cluster", &[]).expect(0).out;
    for option in ["--time=0-", "--mem=", "--cpus-per-task="] {
        assert!(script.contains(&format!("#SBATCH {option}")), "{script}");
    }
    let late = ["--set", "train.epochs=1000000", "--until", "1h"];
    let said = dry("cloud", &late).expect(2).err;
    assert!(said.contains("cloud: even at best it takes ") && said.contains("--anyway"), "{said}");
    dry("cloud", &[&late[..], &["--anyway"]].concat()).expect(0);
    let said = dry("wrong", &[]).expect(2).err;
    assert!(said.contains("t44"), "{said}");

    let synthetic = ["--set", "data.name=synthetic", "--set", "train.batch_size=8192", "--dry-run"];
    let said = place.run(&[&["launch", "cloud", "resnet50"], &synthetic[..]].concat()).expect(2).err;
    assert!(said.contains("it does not fit the memory of g4dn.xlarge: "), "{said}");
    assert!(!place.path("there").exists() && !place.path("runs").exists());
}
