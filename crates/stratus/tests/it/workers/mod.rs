//! Several workers train a run: real processes, started by a real `mpiexec`.

#![cfg(unix)]

mod exchange_type;
mod gpus;
pub mod hosts;
mod kills;
mod nccl;
mod networks;

use crate::common::tiny::copy;
use crate::common::{CommandOutput, RunResult, TestDir, digits, photographs, root};
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

/// Returns whether MPI is installed, by `scripts/deps-mpi.sh`. Without MPI, `STRATUS_WITHOUT_MPI` must be
/// set.
pub fn has_mpi() -> bool {
    let is_installed =
        root().join(".deps/mpich/bin/mpiexec").is_file() || env::var_os("STRATUS_MPI").is_some();
    let is_skipped = env::var_os("STRATUS_WITHOUT_MPI").is_some_and(|value| !value.is_empty());
    assert!(is_installed || is_skipped, "no MPI: run scripts/deps-mpi.sh, or set STRATUS_WITHOUT_MPI=1");
    if !is_installed {
        eprintln!("SKIPPED: STRATUS_WITHOUT_MPI is set, and MPI is not installed");
    }
    is_installed
}

const PARTS: [&str; 4] = ["--set", "train.parts=4", "--set", "train.threads=1"];

/// Trains `epochs` epochs in four parts.
fn train(dir: &TestDir, name: &str, epochs: u32, more: &[&str]) -> CommandOutput {
    dir.train(name, epochs, &[&PARTS[..], more].concat())
}

/// Trains on one, two and four workers, and a run that changes from four to two to one.
#[test]
fn worker_count_does_not_change_the_bits() {
    if !has_mpi() {
        return;
    }
    let dir = TestDir::new();
    train(&dir, "alone", 2, &[]).expect(0);
    let single = RunResult::read(&dir.path("alone"));
    for workers in ["2", "4"] {
        let ran = train(&dir, workers, 2, &["--workers", workers]).expect(0);
        assert_eq!(ran.out.matches("digits on mnist: completed").count(), 1, "{}", ran.out);
        assert!(ran.out.contains("exchange with other workers"), "{}", ran.out);
        assert_eq!(ran.err.matches(&format!("{workers} processes, each with")).count(), 1, "{}", ran.err);
        assert!(RunResult::read(&dir.path(workers)) == single, "{workers} workers");
        let others = fs::read_dir(dir.path(workers).join("workers")).unwrap().count();
        assert_eq!(others.to_string(), (workers.parse::<usize>().unwrap() - 1).to_string());
        // Each worker samples its own GPU.
        for worker in 1..=others {
            let usage = dir.path(workers).join(format!("workers/{worker}/usage.csv"));
            let header = fs::read_to_string(usage).unwrap().lines().next().unwrap().to_owned();
            assert!(header.ends_with(",gpu_mhz,gpu_celsius,gpu_throttling"), "{header}");
        }
    }
    train(&dir, "moved", 2, &["--workers", "4", "--until-epoch", "1"]).expect(0);
    dir.run(&["train", "moved", "--workers", "2"]).expect(0);
    assert!(RunResult::read(&dir.path("moved")) == single, "from four workers to two");
    assert_eq!(fs::read_dir(dir.path("moved/workers")).unwrap().count(), 1, "those of four are gone");
    // Workers in several folders write one run.
    let listed = dir.run(&["runs", "moved", "--json"]).expect(0).out;
    assert_eq!(listed.matches("\"iterations\"").count().max(1), 1, "{listed}");
}

/// With the batch norm statistics of the whole batch, which differ from those of the parts.
#[test]
fn synchronised_batch_norm_does_not_depend_on_the_workers() {
    if !has_mpi() {
        return;
    }
    let dir = TestDir::new();
    let synchronised = ["--set", "train.synchronise_batch_norm=true"];
    train(&dir, "parts", 1, &[]).expect(0);
    train(&dir, "alone", 2, &synchronised).expect(0);
    train(&dir, "moved", 2, &[&synchronised[..], &["--workers", "4", "--until-epoch", "1"]].concat())
        .expect(0);
    dir.run(&["train", "moved", "--workers", "2"]).expect(0);
    let alone = RunResult::read(&dir.path("alone"));
    assert!(RunResult::read(&dir.path("moved")) == alone);
    assert_ne!(RunResult::read(&dir.path("parts")).iterations[0], alone.iterations[0]);

    for (setting, problem) in [
        ("train.stages=2", "`train.synchronise_batch_norm` cannot be combined with train.stages = 2"),
        (
            "train.micro_batches=2",
            "`train.synchronise_batch_norm` cannot be combined with train.micro_batches",
        ),
    ] {
        let refused = dir.train("refused", 1, &[&synchronised[..], &["--set", setting]].concat()).expect(2);
        assert!(refused.err.contains(problem), "{}", refused.err);
    }
}

/// Each error is printed once, not once per worker.
#[test]
fn rejects_worker_and_part_counts_that_do_not_divide() {
    if !has_mpi() {
        return;
    }
    let dir = TestDir::new();
    for (more, expected) in [
        (&["--workers", "3"][..], "3 workers: the number of workers must be a power of two"),
        (&["--workers", "4", "--set", "train.parts=2"], "4 workers exceed train.parts = 2"),
        (
            &["--set", "train.parts=3"],
            "`train.parts` = 3 is not a power of two that divides `train.batch_size` = 256",
        ),
        (
            &["--workers", "2", "--set", "train.parts=256"],
            "the last batch of an epoch has 152 samples, which cannot be divided into 256 equal parts",
        ),
        (
            &["--workers", "2", "--set", "train.batch_size=50", "--set", "train.parts=32"],
            "`train.parts` = 32 is not",
        ),
    ] {
        let ran = dir.train("refused", 1, more).expect(2);
        let times = ran.err.matches(expected).count();
        assert!(times >= 1, "{more:?}: {}", ran.err);
        assert_eq!(times, 1, "not printed exactly once: {}", ran.err);
        assert!(!dir.path("refused").exists(), "{more:?}");
    }
}

/// The plan of one worker has its part of a batch and the exchange of all gradients.
#[test]
fn plan_counts_the_memory_of_one_worker() {
    let dir = TestDir::new();
    let plan = |more: &[&str]| -> serde_json::Value {
        let settings =
            ["plan", "digits", "--json", "--set", "train.batch_size=256", "--set", "data.verify=false"];
        let parts = ["--set", "train.parts=4", "--set", "train.threads=1"];
        let data = format!("data.path={}", digits().display());
        let ran = dir.run(&[&settings[..], &parts, &["--set", &data], more].concat()).expect(0);
        serde_json::from_str(&ran.out).unwrap()
    };
    let single = plan(&[]);
    assert_eq!(single.get("shared"), None);
    let (two, four) = (plan(&["--workers", "2"]), plan(&["--workers", "4"]));
    for (plan, workers) in [(&two, 2), (&four, 4)] {
        let shared = &plan["shared"];
        assert_eq!(
            [&shared["workers"], &shared["parts"], &shared["parts_of_each"], &shared["images_of_part"]],
            [workers, 4, 4 / workers, 64]
        );
        let bytes = |bucket: &serde_json::Value| bucket["bytes"].as_u64().unwrap();
        let exchanged = shared["buckets"].as_array().unwrap().iter().map(bytes).sum::<u64>();
        assert_eq!(shared["exchanged_bytes"], exchanged);
        assert_eq!(shared["sent_bytes"], 2 * (exchanged - exchanged / workers));
        // Most of the exchanged bytes are f32 gradients of weights.
        let parameters = plan["memory"][0]["bytes"].as_u64().unwrap();
        assert!((parameters..2 * parameters).contains(&exchanged), "{exchanged} of {parameters}");
        let images = |plan: &serde_json::Value| plan["host_memory"]["batch_bytes"].as_u64().unwrap();
        assert!(images(plan) * workers <= images(&single) + 4096, "{} of {}", images(plan), images(&single));
    }
    let rejected = dir.run(&["plan", "digits", "--workers", "3"]).expect(2);
    assert!(
        rejected.err.contains("3 workers: the number of workers must be a power of two"),
        "{}",
        rejected.err
    );
}

/// The program that starts workers: the one of the MPI that is tested, else that of `make deps`, else the
/// system's.
fn mpiexec() -> PathBuf {
    let installed = root().join(".deps/mpich/bin/mpiexec");
    let installed = if installed.is_file() { installed } else { "mpiexec".into() };
    env::var_os("STRATUS_MPIEXEC").map_or(installed, PathBuf::from)
}

/// Each worker reads the data set of its machine; here, two folders.
#[test]
fn worker_with_another_data_set_is_named() {
    if !has_mpi() {
        return;
    }
    let dir = photographs::test_dir();
    let folders = ["one", "other"].map(|folder| dir.path(folder));
    for folder in &folders {
        fs::create_dir(folder).unwrap();
        copy(&dir.path("photographs"), &folder.join("photographs"));
    }
    let run = dir.path("run").display().to_string();
    let more = ["train.batch_size=8", "train.parts=2", "train.threads=1"];
    let settings = photographs::SETTINGS.iter().chain(&more).flat_map(|setting| ["--set", setting]);
    let arguments = ["train", "digits", "--out", &run, "--data", "photographs"];
    let arguments: Vec<&str> = arguments.into_iter().chain(settings).collect();
    let exits = dir.path("exits");
    fs::create_dir(&exits).unwrap();
    let exit_codes = || ["0", "1"].map(|rank| fs::read_to_string(exits.join(rank)).unwrap());
    let started = || {
        let mut command = Command::new(mpiexec());
        let single = dir.command(&arguments);
        for (at, folder) in folders.iter().enumerate() {
            command.args((at > 0).then_some(":")).args(["-n", "1", "-wdir"]).arg(folder);
            command.arg(single.get_program()).args(single.get_args());
        }
        command.envs(single.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("STRATUS_WORKER_EXITS", &exits);
        CommandOutput::new(command.output().unwrap())
    };
    let removed = folders[1].join("photographs/row/3.png");
    let changed = fs::read(&removed).unwrap();
    fs::write(&removed, fs::read(folders[1].join("photographs/row/4.png")).unwrap()).unwrap();
    let message = started().expect(2).err;
    assert!(message.contains("worker 1 has a different data set than worker 0\n"), "{message}");
    assert!(message.contains("row/3.png"), "{message}");
    assert!(!dir.path("run/experiment.toml").exists());
    assert_eq!(exit_codes(), ["2\n", "2\n"]);
    fs::write(&removed, changed).unwrap();
    started().expect(0);
    assert_eq!(exit_codes(), ["0\n", "0\n"]);
}
