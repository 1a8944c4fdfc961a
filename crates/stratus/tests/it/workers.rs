//! Several workers train a run together: real processes, started by a real `mpiexec`.

#![cfg(unix)]

mod kills;
mod networks;

use crate::common::tiny::copy;
use crate::common::{Place, Ran, Result, photographs, root};
use std::fs;
use std::process::Command;

/// Whether there is an MPI to test with: `scripts/deps-mpi.sh` brings one. Where there can be none, the test
/// run says so with `STRATUS_WITHOUT_MPI`.
pub fn has_mpi() -> bool {
    let there = root().join(".deps/mpich/bin/mpiexec").is_file() || std::env::var_os("STRATUS_MPI").is_some();
    let given_up = std::env::var_os("STRATUS_WITHOUT_MPI").is_some_and(|value| !value.is_empty());
    assert!(there || given_up, "no MPI: run scripts/deps-mpi.sh, or set STRATUS_WITHOUT_MPI=1");
    if !there {
        eprintln!("SKIPPED: STRATUS_WITHOUT_MPI is set, and there is no MPI");
    }
    there
}

const PARTS: [&str; 4] = ["--set", "train.parts=4", "--set", "train.threads=1"];

/// Trains `epochs` epochs in four parts.
fn train(place: &Place, name: &str, epochs: u32, more: &[&str]) -> Ran {
    place.train(name, epochs, &[&PARTS[..], more].concat())
}

/// The result is a function of the experiment: one process, two, four; and a run that goes from four to two
/// to one.
#[test]
fn any_number_of_workers_gives_the_same_bits() {
    if !has_mpi() {
        return;
    }
    let place = Place::new();
    train(&place, "alone", 2, &[]).expect(0);
    let alone = Result::of(&place.path("alone"));
    for workers in ["2", "4"] {
        let ran = train(&place, workers, 2, &["--workers", workers]).expect(0);
        assert_eq!(ran.out.matches("digits on mnist: completed").count(), 1, "{}", ran.out);
        assert!(ran.out.contains("exchange with other workers"), "{}", ran.out);
        assert_eq!(ran.err.matches(&format!("{workers} processes, each with")).count(), 1, "{}", ran.err);
        assert!(Result::of(&place.path(workers)) == alone, "{workers} workers");
        let others = fs::read_dir(place.path(workers).join("workers")).unwrap().count();
        assert_eq!(others.to_string(), (workers.parse::<usize>().unwrap() - 1).to_string());
    }
    train(&place, "moved", 2, &["--workers", "4", "--until-epoch", "1"]).expect(0);
    place.run(&["train", "moved", "--workers", "2"]).expect(0);
    assert!(Result::of(&place.path("moved")) == alone, "from four workers to two");
    assert_eq!(fs::read_dir(place.path("moved/workers")).unwrap().count(), 1, "those of four are gone");
    // A run is one run, however many folders its workers have.
    let listed = place.run(&["runs", "moved", "--json"]).expect(0).out;
    assert_eq!(listed.matches("\"iterations\"").count().max(1), 1, "{listed}");
}

/// Said once, not once a worker.
#[test]
fn what_workers_cannot_share_out() {
    if !has_mpi() {
        return;
    }
    let place = Place::new();
    for (more, expected) in [
        (&["--workers", "3"][..], "there are 3 workers; their number is a power of two"),
        (
            &["--workers", "4", "--set", "train.parts=2"],
            "there are 4 workers, and batches are cut into 2 parts",
        ),
        (&["--set", "train.parts=3"], "`train.parts` is 3 and `train.batch_size` is 1024"),
        (
            &["--workers", "2", "--set", "train.parts=256"],
            "the last batch of an epoch has 608 samples, which cannot be cut into 256 equal parts",
        ),
        (
            &["--workers", "2", "--set", "train.batch_size=50", "--set", "train.parts=32"],
            "`train.parts` is 32",
        ),
    ] {
        let ran = place.train("refused", 1, more);
        assert!(matches!(ran.code, Some(1 | 2)), "{more:?}: {:?} {}", ran.code, ran.err);
        let times = ran.err.matches(expected).count();
        assert!(times >= 1, "{more:?}: {}", ran.err);
        assert_eq!(times, 1, "said once: {}", ran.err);
        assert!(!place.path("refused").exists(), "{more:?}");
    }
}

/// What one of them has of a batch, and what it exchanges: all gradients, whatever their number.
#[test]
fn a_plan_says_what_one_of_several_workers_holds() {
    let place = Place::new();
    let plan = |more: &[&str]| -> serde_json::Value {
        let settings = ["plan", "digits", "--json", "--set", "train.batch_size=1024"];
        let parts = ["--set", "train.parts=4", "--set", "train.threads=1"];
        let data = format!("data.path={}", root().join("data/mnist").display());
        let ran = place.run(&[&settings[..], &parts, &["--set", &data], more].concat()).expect(0);
        serde_json::from_str(&ran.out).unwrap()
    };
    let alone = plan(&[]);
    assert_eq!(alone.get("shared"), None);
    let (two, four) = (plan(&["--workers", "2"]), plan(&["--workers", "4"]));
    for (plan, workers) in [(&two, 2), (&four, 4)] {
        let shared = &plan["shared"];
        assert_eq!(
            [&shared["workers"], &shared["parts"], &shared["parts_of_each"], &shared["images_of_part"]],
            [workers, 4, 4 / workers, 256]
        );
        let bytes = |of: &serde_json::Value| of["bytes"].as_u64().unwrap();
        let exchanged = shared["buckets"].as_array().unwrap().iter().map(bytes).sum::<u64>();
        assert_eq!(shared["exchanged_bytes"], exchanged);
        assert_eq!(shared["sent_bytes"], 2 * (exchanged - exchanged / workers));
        // Weights in f32, and little else.
        let parameters = plan["memory"][0]["bytes"].as_u64().unwrap();
        assert!((parameters..2 * parameters).contains(&exchanged), "{exchanged} of {parameters}");
        let images = |plan: &serde_json::Value| plan["host_memory"]["batch_bytes"].as_u64().unwrap();
        assert!(images(plan) * workers <= images(&alone) + 4096, "{} of {}", images(plan), images(&alone));
    }
    let refused = place.run(&["plan", "digits", "--workers", "3"]).expect(2);
    assert!(refused.err.contains("there are 3 workers; their number is a power of two"), "{}", refused.err);
}

/// Each worker has the data set of its own machine: here two folders.
#[test]
fn a_worker_with_another_data_set_is_named() {
    if !has_mpi() {
        return;
    }
    let place = photographs::place();
    let folders = ["one", "other"].map(|folder| place.path(folder));
    for folder in &folders {
        fs::create_dir(folder).unwrap();
        copy(&place.path("photographs"), &folder.join("photographs"));
    }
    let run = place.path("run").display().to_string();
    let more = ["train.batch_size=8", "train.parts=2", "train.threads=1"];
    let settings = photographs::SETTINGS.iter().chain(&more).flat_map(|setting| ["--set", setting]);
    let arguments = ["train", "digits", "--out", &run, "--data", "photographs"];
    let arguments: Vec<&str> = arguments.into_iter().chain(settings).collect();
    let started = || {
        let own = root().join(".deps/mpich/bin/mpiexec");
        let mut command = Command::new(if own.is_file() { own } else { "mpiexec".into() });
        let alone = place.command(&arguments);
        for (at, folder) in folders.iter().enumerate() {
            command.args((at > 0).then_some(":")).args(["-n", "1", "-wdir"]).arg(folder);
            command.arg(alone.get_program()).args(alone.get_args());
        }
        command.envs(alone.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Ran::of(command.output().unwrap())
    };
    let removed = folders[1].join("photographs/row/3.png");
    let changed = fs::read(&removed).unwrap();
    fs::write(&removed, fs::read(folders[1].join("photographs/row/4.png")).unwrap()).unwrap();
    let said = started().expect(2).err;
    assert!(said.contains("worker 1 has another data set than worker 0\n"), "{said}");
    assert!(said.contains("row/3.png"), "{said}");
    assert!(!place.path("run/experiment.toml").exists());
    fs::write(&removed, changed).unwrap();
    started().expect(0);
}
