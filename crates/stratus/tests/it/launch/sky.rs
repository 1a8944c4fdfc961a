//! Launches through SkyPilot. A stand-in for its command uses folders of this machine as machines;
//! `scripts/check-sky.sh` checks that SkyPilot's own parser accepts the task files.

use super::{launch, replace_program, should_skip, status, text, train_locally, wait_for_end};
use crate::common::{CommandOutput, RunResult, TestDir, digits, root};
use crate::workers::hosts::{has_mpich, replace_ssh};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Adds the target `cloud`, whose bucket is a folder, and returns the folder of the stand-in.
fn cloud(dir: &mut TestDir) -> PathBuf {
    cloud_with(dir, "")
}

/// As [`cloud`], with other keys of the target.
fn cloud_with(dir: &mut TestDir, keys: &str) -> PathBuf {
    let folder = dir.path("sky");
    fs::create_dir(&folder).unwrap();
    let stand_in = root().join("crates/stratus/tests/it/launch/sky.py");
    replace_program(dir, "sky", &format!("exec python3 '{}' \"$@\"", stand_in.display()));
    dir.variables.push(("SKY_STAND_IN", folder.clone().into()));
    let threads = std::env::var("OMP_NUM_THREADS")
        .unwrap_or_else(|_| std::thread::available_parallelism().unwrap().to_string());
    let target = format!(
        "[cloud]\nkind = \"sky\"\nbucket = {:?}\nspot = true\nfolder = \"~/own disk\"\n{keys}\
         [cloud.environment]\nSTRATUS_CACHE = {:?}\nOMP_WAIT_POLICY = \"passive\"\n\
         OMP_NUM_THREADS = \"{threads}\"\n",
        dir.path("bucket"),
        dir.path("cache")
    );
    fs::write(dir.path("targets.toml"), target).unwrap();
    folder
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(300), "{what}");
        sleep(Duration::from_millis(50));
    }
}

/// The number of times a run was saved.
fn saved_count(dir: &TestDir, id: &str, repetition: usize) -> u64 {
    let list = |slot: usize| dir.path(&format!("bucket/jobs/{id}/{repetition}/run.{slot}.list"));
    let count = |path| fs::read_to_string(path).ok()?.lines().next()?.parse().ok();
    (0..2).filter_map(|slot| count(list(slot))).max().unwrap_or(0)
}

#[test]
#[ignore = "takes minutes: `make test-all` runs it"]
fn preempted_machine_loses_only_work_since_the_last_checkpoint() {
    let mut dir = TestDir::new();
    let sky = cloud(&mut dir);
    let launched = launch(&dir, "cloud", 12, &["--repetitions", "2"]);
    let id = text(&launched, "id").to_owned();
    assert!(launched["sent_files"].as_u64().unwrap() >= 6, "{launched}");
    let rejected = dir.run(&["launch", "resume", &id]).expect(1).err;
    assert!(rejected.contains("is already running on "), "{rejected}");
    wait_until("a checkpoint is saved", || saved_count(&dir, &id, 2) > 0);
    fs::write(sky.join("2.take"), "").unwrap();
    wait_until("the machine is removed", || !sky.join("machine-2-0").exists());
    // A running repetition can be fetched and inspected.
    dir.run(&["launch", "fetch"]).expect(0);
    dir.run(&["collect", "runs/digits/2"]).expect(0);
    assert_eq!(wait_for_end(&dir), ["completed"; 2]);
    dir.run(&["launch", "fetch"]).expect(0);
    for repetition in 1..=2 {
        let run = dir.path(&format!("runs/digits/{repetition}"));
        let seed = 6 + repetition;
        assert_eq!(
            RunResult::read(&run),
            train_locally(&dir, &format!("near{seed}"), 12, seed),
            "{repetition}"
        );
    }
    let message = dir.run(&["launch", "logs", "--repetition", "2"]).expect(0).out;
    assert!(message.contains("resuming from the saved run") && message.contains("epoch"), "{message}");
    let again = launch(&dir, "cloud", 1, &[]);
    assert_eq!((again["sent_files"].as_u64(), again["sent_bytes"].as_u64()), (Some(0), Some(0)));
    assert_eq!(wait_for_end(&dir), ["completed"]);
}

#[test]
#[ignore = "takes minutes: `make test-all` runs it"]
fn stopped_cloud_job_resumes_from_its_checkpoint() {
    let mut dir = TestDir::new();
    let sky = cloud(&mut dir);
    let launched = launch(&dir, "cloud", 20, &[]);
    let id = text(&launched, "id").to_owned();
    wait_until("a checkpoint is saved", || saved_count(&dir, &id, 1) > 0);
    dir.run(&["launch", "stop"]).expect(0);
    assert_eq!(wait_for_end(&dir), ["interrupted"]);
    let state = status(&dir)["state"].take();
    assert_eq!(text(&state["repetitions"][0], "queue"), "SUCCEEDED", "it is not restarted: {state}");
    dir.run(&["launch", "resume"]).expect(0);
    assert_eq!(wait_for_end(&dir), ["completed"]);
    assert!(sky.join("machine-2-0").exists());
    dir.run(&["launch", "fetch"]).expect(0);
    assert_eq!(RunResult::read(&dir.path("runs/digits/1")), train_locally(&dir, "near", 20, 7));
    // If the newest copy in the bucket is damaged, the older one is used.
    let path = dir.path(&format!("bucket/jobs/{id}/1"));
    let newest = saved_count(&dir, &id, 1) % 2;
    fs::write(path.join(format!("run.{newest}/summary.json")), "{}").unwrap();
    fs::remove_dir_all(dir.path("runs/digits/1")).unwrap();
    let message = dir.run(&["launch", "fetch", "--json"]).expect(0).out;
    let message: serde_json::Value = serde_json::from_str(&message).unwrap();
    assert_eq!(message[0]["changing"], 1, "{message}");
}

/// Two machines without a common folder, with two workers each. A machine is taken, then a worker is killed.
#[test]
#[ignore = "needs root, for mount namespaces, and takes minutes: `make test-all` runs it"]
fn lost_machine_of_several_restarts_the_job_bit_identically() {
    const EPOCHS: u32 = 12;
    if should_skip("launching on several cloud machines") || !has_mpich() {
        return;
    }
    let mut dir = TestDir::new();
    let sky = cloud_with(&mut dir, "nodes = 2\nworkers_per_node = 2\n");
    let enter = format!("nsenter --mount=/proc/$(cat '{}/node-1.pid')/ns/mnt", sky.display());
    replace_ssh(&mut dir, &format!("[ \"$host\" = other ] || exit 255\nexec {enter} sh -c \"$line\""));
    let settings = ["--set", "train.threads=1", "--set", "checkpoint.every_seconds=0.5"];
    let launched = launch(&dir, "cloud", EPOCHS, &settings);
    let id = text(&launched, "id").to_owned();
    wait_until("a checkpoint is saved", || saved_count(&dir, &id, 1) > 0);
    fs::write(sky.join("1.take-1"), "").unwrap();
    wait_until("the job restarts", || sky.join("machine-1-1-0").exists());
    // The first machine noticed the loss by itself; the lost one was killed.
    assert_eq!(fs::read_to_string(sky.join("1.codes")).unwrap(), "75 -9\n");
    let saved = saved_count(&dir, &id, 1);
    wait_until("another checkpoint is saved", || saved_count(&dir, &id, 1) > saved);

    // A worker on the second machine is killed; the machines stay, and each script ends with 75.
    let second = fs::read_to_string(sky.join("node-1.pid")).unwrap();
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let own = namespace(&second).unwrap();
    let is_worker = |pid: &String| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        namespace(pid).as_ref() == Some(&own) && command.split(|byte| *byte == 0).nth(1) == Some(b"train")
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut processes = processes.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let worker = processes.find(is_worker).expect("a worker on the second machine");
    assert!(Command::new("kill").args(["-9", &worker]).status().unwrap().success());
    wait_until("the job restarts again", || sky.join("machine-1-2-0").exists());
    assert!(fs::read_to_string(sky.join("1.codes")).unwrap().ends_with("\n75 75\n"));

    assert_eq!(wait_for_end(&dir), ["completed"]);
    // The run is complete before the script of the last machine has ended.
    wait_until("both scripts end", || fs::read_to_string(sky.join("1.codes")).unwrap().ends_with("\n0 0\n"));
    dir.run(&["launch", "fetch"]).expect(0);
    let local = ["--set", "train.seed=7", "--set", "train.parts=4"];
    dir.train("near", EPOCHS, &[&settings[..], &local].concat()).expect(0);
    assert_eq!(RunResult::read(&dir.path("runs/digits/1")), RunResult::read(&dir.path("near")));
    let shown = dir.run(&["launch", "logs"]).expect(0).out;
    for message in [
        "2 of 4 workers do not see ",
        "; they get copies of its files",
        "exited with 75 after the loss of a worker",
        " on other was killed after iteration ",
        "the first machine exited with 75",
        "the first machine exited with 0",
    ] {
        assert!(shown.contains(message), "{message}: {shown}");
    }
    // The second machine never had the run.
    assert!(sky.join(format!("machine-1-2-0/own disk/jobs/{id}/1/run")).is_dir());
    assert!(!sky.join(format!("machine-1-2-1/own disk/jobs/{id}/1/run")).exists());
}

/// The script of a repetition on two machines, which shares a folder with the bucket, and does not pause. The
/// program that it starts only shows a version.
struct NodesScript {
    dir: TestDir,
    script: String,
    /// The files of the repetition in the bucket.
    saved: PathBuf,
}

impl NodesScript {
    fn new() -> Self {
        let mut dir = TestDir::without_kernel_cache();
        cloud_with(&mut dir, "nodes = 2\nworkers_per_node = 2\n");
        let data = format!("data.path={}", digits().display());
        let settings = ["launch", "cloud", "digits", "--dry-run", "--json", "--set", &data];
        let dry = dir.run(&settings).expect(0).out;
        let dry: serde_json::Value = serde_json::from_str(&dry).unwrap();
        let file = |name: &str| {
            let files = dry["job"].as_array().unwrap();
            files.iter().find(|file| file[0] == name).unwrap()[1].as_str().unwrap().to_owned()
        };
        let script = file("1/train.sh");
        let value = |name: &str| {
            let line = script.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_matches('\'').to_owned()
        };
        let saved = PathBuf::from(value("root=")).join("jobs").join(value("launch=")).join("1");
        let (program, mpi) = (value("program="), value("export STRATUS_MPI="));
        let install = PathBuf::from(&mpi).ancestors().nth(2).unwrap().to_owned();
        for (path, text) in [
            (saved.join("experiment.toml"), file("1/experiment.toml")),
            (program.into(), "#!/bin/sh\n".to_owned()),
            (mpi.into(), String::new()),
            (install.join("bin/mpiexec"), String::new()),
        ] {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let script = script.replace("\npause=2\n", "\npause=0\n");
        Self { dir, script, saved }
    }

    /// Runs the script of a machine.
    fn run(&self, node: usize, exit: i32) -> String {
        let mut command = Command::new("sh");
        command.args(["-c", &self.script, "stratus"]).env("HOME", self.dir.path(&format!("home-{node}")));
        command.env("SKYPILOT_NODE_RANK", node.to_string()).env("SKYPILOT_NODE_IPS", "192.0.2.1\n192.0.2.2");
        CommandOutput::new(command.output().unwrap()).expect(exit).out
    }

    /// The state and exit code of the first machine, as the others read it.
    fn head(&self) -> String {
        let files = fs::read_dir(&self.saved).unwrap().flatten().map(|entry| entry.path());
        let is_head = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("head.");
        fs::read_to_string(files.into_iter().find(is_head).expect("the file of the first machine")).unwrap()
    }
}

#[test]
fn machine_that_is_never_ready_restarts_the_job_at_most_three_times_in_a_row() {
    if !has_mpich() {
        return;
    }
    let machines = NodesScript::new();
    let lost = |exit: i32| {
        let shown = machines.run(0, exit);
        assert!(shown.contains("machine 2 of 2 was not ready after "), "{shown}");
        assert_eq!(shown.contains("not restarted; run stratus launch resume"), exit == 0, "{shown}");
        assert!(machines.head().ends_with(&format!(" {exit}\n")), "{}", machines.head());
        assert!(!machines.saved.join("beat").exists());
    };
    lost(75);
    lost(75);
    // An attempt that ends by a preemption makes progress.
    let id = machines.saved.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
    let run = machines.dir.path(&format!("home-0/own disk/jobs/{id}/1/run"));
    fs::create_dir_all(&run).unwrap();
    fs::write(run.join("iterations.csv"), "iteration\n1\n2\n").unwrap();
    lost(75);
    lost(75);
    lost(0);
    let state = fs::read_to_string(machines.saved.join("state")).unwrap();
    assert!(state.contains("\nexit=75\n"), "{state}");
}

#[test]
fn machine_that_loses_the_first_one_restarts_the_job_at_most_three_times() {
    if !has_mpich() {
        return;
    }
    let machines = NodesScript::new();
    for exit in [75, 75, 0] {
        let shown = machines.run(1, exit);
        assert!(shown.contains("stratus: the first machine is lost\n"), "{shown}");
    }
    // The saved run has changed since.
    fs::write(machines.saved.join("run.0.list"), "4\n").unwrap();
    machines.run(1, 75);
}

/// A job that fails before its training is not restarted by the other machines.
#[test]
fn early_failure_of_the_first_machine_ends_the_others_with_its_exit_code() {
    if !has_mpich() {
        return;
    }
    let machines = NodesScript::new();
    fs::rename(machines.saved.join("experiment.toml"), machines.saved.join("other.toml")).unwrap();
    machines.run(0, 1);
    assert!(machines.head().ends_with(" 1\n"), "{}", machines.head());
    assert!(!machines.saved.join("beat").exists());
    fs::rename(machines.saved.join("other.toml"), machines.saved.join("experiment.toml")).unwrap();
    let shown = machines.run(1, 1);
    assert!(shown.contains("stratus: the first machine exited with 1\n"), "{shown}");
}

/// `num_nodes`, and neither CPUs nor memory if the GPUs determine them. The script starts workers on all
/// machines.
#[test]
fn task_file_has_the_machines_of_the_target() {
    if !has_mpich() {
        return;
    }
    let dir = TestDir::without_kernel_cache();
    let target = "[cloud]\nkind = \"sky\"\nbucket = \"s3://lab\"\ngpus = \"A100:4\"\nnodes = 2\n";
    fs::write(dir.path("targets.toml"), target).unwrap();
    let data = format!("data.path={}", digits().display());
    let settings = ["launch", "cloud", "digits", "--dry-run", "--set", &data];
    let dry = dir.run(&settings).expect(0).out;
    for line in ["num_nodes: 2", "nodes=2", "workers_per_node=4", "parts = 8"] {
        assert!(dry.lines().any(|shown| shown == line), "{line}: {dry}");
    }
    // The GPUs determine the machine: one with as many CPUs as its workers use may not exist.
    assert!(!dry.contains("\n  cpus: ") && !dry.contains("\n  memory: "), "{dry}");
    // MPI is uploaded, since the machines load it.
    assert!(dry.contains("/libmpi_abi.so.1  from "), "{dry}");
    let message = dir.run(&[&settings[..], &["--workers", "2"]].concat()).expect(2).err;
    assert!(message.contains("--workers cannot be used with `nodes` or `workers_per_node`"), "{message}");
    let message = dir.run(&[&settings[..], &["--set", "train.parts=4"]].concat()).expect(2).err;
    assert!(message.contains("8 workers exceed train.parts = 4"), "{message}");
}

#[test]
fn task_file_has_the_settings_of_the_target() {
    let dir = TestDir::without_kernel_cache();
    let target = "[cloud]\nkind = \"sky\"\nbucket = \"s3://lab/stratus/\"\ninfra = \"aws/us-east-1\"\n\
                  gpus = \"A100:1\"\ncpus = \"8+\"\nmemory = \"32+\"\ndisk = 100\nspot = true\n\
                  max_hourly_cost = 1.5\nimage = \"ami-1\"\nsetup = \"nvidia-smi\\ntrue\"\n";
    fs::write(dir.path("targets.toml"), target).unwrap();
    let data = format!("data.path={}", digits().display());
    let dry = dir.run(&["launch", "cloud", "digits", "--dry-run", "--set", &data]).expect(0).out;
    assert!(dry.starts_with("cloud: SkyPilot, aws/us-east-1, s3://lab/stratus, in "), "{dry}");
    let (before, task) = dry.split_once("/1.yaml:\n").unwrap();
    let id = before.rsplit('/').next().unwrap();
    let (task, script) = task.split_once("\njobs/").unwrap();
    insta::assert_snapshot!("launch_sky", task.replace(id, "ID"));
    assert!(script.contains("\nroot='/stratus'\nn=1\nsubmitted=1\nfolder=\"$HOME\"'/.stratus'\npause=10\n"));
    assert!(script.contains("\nprogram='/stratus/program/"), "{script}");
    let no_sky = dir.run(&["launch", "cloud", "digits", "--set", &data]);
    assert!(no_sky.expect(1).err.contains("command `sky` not found"));
}
