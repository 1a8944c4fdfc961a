//! Launches on Slurm. Some tests start a real Slurm and need its packages; `make test-all` runs them.

use super::{launch, replace_program, should_skip, status, target, text, train_locally, wait_for_end};
use crate::common::{EPOCHS_HEADER, ITERATIONS_HEADER, RunResult, TestDir, digits, root, rows};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

#[test]
fn dry_run_prints_the_batch_script() {
    let dir = TestDir::without_kernel_cache();
    let how = "kind = \"slurm\"\nhost = \"login\"\npartition = \"gpu\"\ngres = \"gpu:a100:1\"\ncpus = 8\n\
               memory = \"16G\"\ntime = \"1-00:00:00\"\nconcurrent = 2\noptions = [\"--exclusive\"]\n\
               setup = \"module load cuda\"";
    target(&dir, "cluster", how, "there");
    let data = format!("data.path={}", digits().display());
    let arguments = ["launch", "cluster", "digits", "--repetitions", "3", "--dry-run", "--set", &data];
    let dry = dir.run(&arguments).expect(0).out;
    assert!(dry.starts_with("cluster: Slurm, ssh login, in "), "{dry}");
    let (before, script) = dry.split_once("/batch.sh:\n").unwrap();
    let id = before.rsplit('/').next().unwrap();
    let (script, rest) = script.split_once("\njobs/").unwrap();
    assert!(rest.starts_with(&format!("{id}/1/experiment.toml:")), "{rest}");
    let dir = dir.folder.path().display().to_string();
    // The folder of the program is named by its content.
    let line = |line: &str| match line.find("/program/") {
        Some(at) => format!("{}/program/HASH{}", &line[..at], &line[at + "/program/".len() + 32..]),
        None => line.to_owned(),
    };
    // Lines that differ between machines.
    let starts = ["export STRATUS_ONEDNN=", "export STRATUS_LIBJPEG=", "export OMP_NUM_THREADS="];
    let is_local = |line: &&str| starts.iter().any(|start| line.starts_with(start));
    let script = script.replace(&dir, "PLACE").replace(id, "ID");
    let script: Vec<String> = script.lines().filter(|line| !is_local(line)).map(line).collect();
    insta::assert_snapshot!("batch_script", script.join("\n"));
}

#[test]
fn job_rejected_by_slurm_fails_before_any_upload() {
    let mut dir = TestDir::without_kernel_cache();
    target(&dir, "cluster", "kind = \"slurm\"\npartition = \"none\"", "there");
    let data = format!("data.path={}", digits().display());
    replace_program(&mut dir, "squeue", "exit 1");
    replace_program(&mut dir, "scancel", "exit 1");
    replace_program(
        &mut dir,
        "sbatch",
        "grep -q -- --partition=none && printf 'sbatch: error: \\033[2Jno partition\\n' >&2\nexit 1",
    );
    let message = dir.run(&["launch", "cluster", "digits", "--set", &data]).expect(1).err;
    assert!(message.contains("cluster: cannot submit the job to Slurm: sbatch: error: "), "{message}");
    assert!(
        message.contains("no partition") && message.contains("hint: ") && !message.contains('\u{1b}'),
        "{message}"
    );
    assert!(!dir.path("there").exists() && !dir.path("runs").exists());
}

/// A real Slurm, which is stopped on drop.
pub(super) struct Slurm(PathBuf);

impl Slurm {
    /// Runs an action of the script that manages it.
    pub(super) fn script(&self, action: &str, more: &[&str]) {
        let script = root().join("scripts/slurm-server.sh");
        let done = Command::new("bash").arg(script).arg(action).arg(&self.0).args(more).status().unwrap();
        assert!(done.success(), "scripts/slurm-server.sh {action}");
    }

    pub(super) fn start(dir: &mut TestDir) -> Self {
        Self::start_nodes(dir, 1)
    }

    /// Starts it with a number of simulated nodes.
    pub(super) fn start_nodes(dir: &mut TestDir, nodes: usize) -> Self {
        let folder = dir.path("slurm");
        let slurm = Self(folder.clone());
        slurm.script("start", &[&nodes.to_string()]);
        dir.variables.push(("SLURM_CONF", folder.join("slurm.conf").into()));
        slurm
    }

    /// Runs a Slurm command and returns its output.
    pub(super) fn run(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(program);
        let out = command.args(arguments).env("SLURM_CONF", self.0.join("slurm.conf")).output().unwrap();
        assert!(out.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// The running job of a repetition.
    pub(super) fn job(&self, id: &str, repetition: usize) -> String {
        let jobs = self.run("squeue", &["-h", "-r", "-t", "RUNNING", "-n", id, "-o", "%i"]);
        let end = format!("_{repetition}");
        jobs.lines().find(|job| job.ends_with(&end)).unwrap_or_else(|| panic!("{jobs}")).to_owned()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        self.script("stop", &[]);
    }
}

/// Waits until a condition holds.
pub(super) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(600), "{what}");
        sleep(Duration::from_millis(200));
    }
}

/// The statuses of the repetitions of the last launch, with their states in the queue.
fn statuses(dir: &TestDir) -> Vec<(String, String)> {
    let state = status(dir)["state"].take();
    let repetitions = state["repetitions"].as_array().unwrap().iter();
    let queue = |one: &serde_json::Value| one["queue"].as_str().unwrap_or_default().to_owned();
    repetitions.map(|one| (text(one, "status").to_owned(), queue(one))).collect()
}

pub(super) fn iterations(job: &Path, repetition: usize) -> usize {
    let path = job.join(format!("{repetition}/run/iterations.csv"));
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// The log of Slurm and the script for a repetition.
pub(super) fn log(job: &Path, repetition: usize) -> String {
    fs::read_to_string(job.join(format!("{repetition}/slurm.log"))).unwrap_or_default()
}

#[test]
#[ignore = "needs Slurm: scripts/slurm-server.sh install, as root"]
fn preempted_slurm_tasks_are_bit_identical_to_local_runs() {
    const EPOCHS: u32 = 5;
    if should_skip("launching on Slurm") {
        return;
    }
    let mut dir = TestDir::new();
    let slurm = Slurm::start(&mut dir);
    target(&dir, "cluster", "kind = \"slurm\"\npartition = \"main\"\ncpus = 1", "there");
    let launched = launch(&dir, "cluster", EPOCHS, &["--repetitions", "4"]);
    let id = text(&launched, "id").to_owned();
    let job = dir.path(&format!("there/jobs/{id}"));
    let rejected = dir.run(&["launch", "resume"]).expect(1).err;
    assert!(rejected.contains("is already running on Slurm"), "{rejected}");
    // Sends each job the signal that Slurm sends before the time limit.
    for repetition in 1..=4 {
        wait_until("it is running", || iterations(&job, repetition) > 20);
        slurm.run("scancel", &["--batch", "--signal=TERM", &slurm.job(&id, repetition)]);
    }
    wait_until("every repetition is requeued", || (1..=4).all(|one| log(&job, one).contains(" requeued\n")));

    // A cancelled job stays cancelled.
    let trains = |repetition: usize| log(&job, repetition).matches(" training repetition ").count();
    wait_until("the first is running again", || trains(1) == 2 && statuses(&dir)[0].0 == "running");
    slurm.run("scancel", &[&slurm.job(&id, 1)]);
    wait_until("the first is interrupted", || statuses(&dir)[0] == ("interrupted".to_owned(), String::new()));

    // Jobs of a drained node go back to the queue, which reports why they wait.
    let node = slurm.run("sinfo", &["-h", "-o", "%n"]).trim().to_owned();
    let node = format!("nodename={node}");
    wait_until("the others are running again", || (2..=4).all(|one| trains(one) == 2));
    slurm.run("scontrol", &["update", &node, "state=drain", "reason=test"]);
    for repetition in 2..=4 {
        slurm.run("scancel", &["--batch", "--signal=TERM", &slurm.job(&id, repetition)]);
    }
    let waits = |(status, queue): &(String, String)| status == "waiting" && queue.starts_with("PENDING: ");
    wait_until("the others wait", || statuses(&dir)[1..].iter().all(waits));
    let has_reason = |one: &(String, String)| waits(one) && !one.1.contains("BeginTime");
    wait_until("the queue has a reason", || statuses(&dir)[1..].iter().any(has_reason));
    let shown = dir.run(&["launch", "status"]).expect(0).out;
    assert!(shown.contains("waiting") && shown.contains("PENDING"), "{shown}");
    slurm.run("scontrol", &["update", &node, "state=resume"]);

    // Only jobs that are not queued are submitted again.
    dir.run(&["launch", "resume"]).expect(0);
    assert_eq!(wait_for_end(&dir), ["completed"; 4]);
    dir.run(&["launch", "fetch"]).expect(0);
    for repetition in 1..=4_u32 {
        let run = dir.path(&format!("runs/digits/{repetition}"));
        let seed = 6 + repetition;
        assert_eq!(
            RunResult::read(&run),
            train_locally(&dir, &format!("near{seed}"), EPOCHS, seed),
            "{repetition}"
        );
        assert_eq!(trains(repetition as usize), 3, "{}", log(&job, repetition as usize));
    }
}

#[test]
#[ignore = "needs Slurm: scripts/slurm-server.sh install, as root"]
fn time_limit_loses_no_iteration_and_stopped_tasks_stay_stopped() {
    if should_skip("launching on Slurm") {
        return;
    }
    let mut dir = TestDir::new();
    let slurm = Slurm::start(&mut dir);
    // Such an early signal is sent at the next check of Slurm, twice a minute.
    let how = "kind = \"slurm\"\ncpus = 1\ntime = \"1\"\nsignal_seconds = 59";
    target(&dir, "cluster", how, "there");
    let launched = launch(&dir, "cluster", 5000, &[]);
    let job = dir.path(&format!("there/jobs/{}", text(&launched, "id")));
    wait_until("the time limit requeued it twice", || log(&job, 1).matches(" requeued\n").count() >= 2);
    wait_until("it is running again", || log(&job, 1).matches(" training repetition ").count() >= 3);
    dir.run(&["launch", "stop"]).expect(0);
    assert_eq!(wait_for_end(&dir), ["interrupted"]);
    assert!(slurm.run("squeue", &["-h", "-t", "PENDING,RUNNING"]).is_empty());
    dir.run(&["launch", "fetch"]).expect(0);

    let remote = rows(&dir.path("runs/digits/1/epochs.csv"), EPOCHS_HEADER);
    // On a busy machine there may be no epoch yet.
    let until = remote.len().max(1).to_string();
    let more = ["--set", "train.seed=7", "--until-epoch", &until];
    dir.train("near", 5000, &more).expect(0);
    assert_eq!(remote, rows(&dir.path("near/epochs.csv"), EPOCHS_HEADER)[..remote.len()]);
    let local = rows(&dir.path("near/iterations.csv"), ITERATIONS_HEADER);
    let remote = rows(&dir.path("runs/digits/1/iterations.csv"), ITERATIONS_HEADER);
    let common = local.len().min(remote.len());
    assert!(common > 0);
    assert_eq!(remote[..common], local[..common]);
}

#[test]
#[ignore = "needs Slurm: scripts/slurm-server.sh install, as root"]
fn job_requeues_itself_without_scontrol() {
    if should_skip("launching on Slurm") {
        return;
    }
    let mut dir = TestDir::new();
    let slurm = Slurm::start(&mut dir);
    let path = format!("{}:{}", dir.path("bin").display(), std::env::var("PATH").unwrap());
    replace_program(&mut dir, "scontrol", "exit 127");
    target(&dir, "cluster", &format!("kind = \"slurm\"\ncpus = 1\nsetup = \"PATH={path}\""), "there");
    let launched = launch(&dir, "cluster", 4, &[]);
    let id = text(&launched, "id").to_owned();
    let job = dir.path(&format!("there/jobs/{id}"));
    wait_until("it is running", || iterations(&job, 1) > 20);
    slurm.run("scancel", &["--batch", "--signal=TERM", &slurm.job(&id, 1)]);
    assert_eq!(wait_for_end(&dir), ["completed"]);
    assert!(log(&job, 1).contains(" resubmitted as a separate job\n"), "{}", log(&job, 1));
    dir.run(&["launch", "fetch"]).expect(0);
    assert_eq!(RunResult::read(&dir.path("runs/digits/1")), train_locally(&dir, "near", 4, 7));
}
