//! Launches on Slurm. Those on a real one, which the test starts, need its packages: `make test-all` runs
//! them.

use super::{ended, instead, is_left_out, launch, near, status, target, text};
use crate::common::{EPOCHS_HEADER, ITERATIONS_HEADER, Place, Result, root, rows};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

#[test]
fn a_dry_run_shows_the_batch_script() {
    let place = Place::bare();
    let how = "kind = \"slurm\"\nhost = \"login\"\npartition = \"gpu\"\ngres = \"gpu:a100:1\"\ncpus = 8\n\
               memory = \"16G\"\ntime = \"1-00:00:00\"\nconcurrent = 2\noptions = [\"--exclusive\"]\n\
               setup = \"module load cuda\"";
    target(&place, "cluster", how, "there");
    let data = format!("data.path={}", root().join("data/mnist").display());
    let arguments = ["launch", "cluster", "digits", "--repetitions", "3", "--dry-run", "--set", &data];
    let dry = place.run(&arguments).expect(0).out;
    assert!(dry.starts_with("cluster: Slurm, ssh login, in "), "{dry}");
    let (before, script) = dry.split_once("/batch.sh:\n").unwrap();
    let id = before.rsplit('/').next().unwrap();
    let (script, rest) = script.split_once("\njobs/").unwrap();
    assert!(rest.starts_with(&format!("{id}/1/experiment.toml:")), "{rest}");
    let place = place.folder.path().display().to_string();
    // The folder of the program is named by what is in it.
    let line = |line: &str| match line.find("/program/") {
        Some(at) => format!("{}/program/HASH{}", &line[..at], &line[at + "/program/".len() + 32..]),
        None => line.to_owned(),
    };
    // What differs from machine to machine.
    let machines = ["export STRATUS_ONEDNN=", "export STRATUS_LIBJPEG=", "export OMP_NUM_THREADS="];
    let is_machines = |line: &&str| machines.iter().any(|start| line.starts_with(start));
    let script = script.replace(&place, "PLACE").replace(id, "ID");
    let script: Vec<String> = script.lines().filter(|line| !is_machines(line)).map(line).collect();
    insta::assert_snapshot!("batch_script", script.join("\n"));
}

#[test]
fn what_slurm_refuses_is_said_before_anything_is_sent() {
    let mut place = Place::bare();
    target(&place, "cluster", "kind = \"slurm\"\npartition = \"none\"", "there");
    let data = format!("data.path={}", root().join("data/mnist").display());
    instead(&mut place, "squeue", "exit 1");
    instead(&mut place, "scancel", "exit 1");
    instead(
        &mut place,
        "sbatch",
        "grep -q -- --partition=none && printf 'sbatch: error: \\033[2Jno partition\\n' >&2\nexit 1",
    );
    let said = place.run(&["launch", "cluster", "digits", "--set", &data]).expect(1).err;
    assert!(said.contains("cluster: cannot ask Slurm for such a job: sbatch: error: "), "{said}");
    assert!(said.contains("no partition") && said.contains("hint: ") && !said.contains('\u{1b}'), "{said}");
    assert!(!place.path("there").exists() && !place.path("runs").exists());
}

/// A real Slurm, which ends with this.
struct Slurm(PathBuf);

impl Slurm {
    fn script(action: &str, folder: &Path) {
        let script = root().join("scripts/slurm-server.sh");
        let done = Command::new("bash").arg(script).arg(action).arg(folder).status().unwrap();
        assert!(done.success(), "scripts/slurm-server.sh {action}");
    }

    fn start(place: &mut Place) -> Self {
        let folder = place.path("slurm");
        let slurm = Self(folder.clone());
        Self::script("start", &folder);
        place.variables.push(("SLURM_CONF", folder.join("slurm.conf").into()));
        slurm
    }

    /// What one of its programs says.
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(program);
        let out = command.args(arguments).env("SLURM_CONF", self.0.join("slurm.conf")).output().unwrap();
        assert!(out.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// The job of a repetition that is trained.
    fn job(&self, id: &str, repetition: usize) -> String {
        let jobs = self.run("squeue", &["-h", "-r", "-t", "RUNNING", "-n", id, "-o", "%i"]);
        let end = format!("_{repetition}");
        jobs.lines().find(|job| job.ends_with(&end)).unwrap_or_else(|| panic!("{jobs}")).to_owned()
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        Self::script("stop", &self.0);
    }
}

/// Waits until it is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(600), "{what}");
        sleep(Duration::from_millis(200));
    }
}

/// How the repetitions of the last launch stand, and how the queue has them.
fn stands(place: &Place) -> Vec<(String, String)> {
    let state = status(place)["state"].take();
    let repetitions = state["repetitions"].as_array().unwrap().iter();
    let queue = |one: &serde_json::Value| one["queue"].as_str().unwrap_or_default().to_owned();
    repetitions.map(|one| (text(one, "status").to_owned(), queue(one))).collect()
}

fn iterations(job: &Path, repetition: usize) -> usize {
    let path = job.join(format!("{repetition}/run/iterations.csv"));
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// What Slurm and the script said of a repetition.
fn log(job: &Path, repetition: usize) -> String {
    fs::read_to_string(job.join(format!("{repetition}/slurm.log"))).unwrap_or_default()
}

#[test]
#[ignore = "needs Slurm: scripts/slurm-server.sh install, as root"]
fn repetitions_that_slurm_cuts_end_as_runs_here() {
    const EPOCHS: u32 = 5;
    if is_left_out("launching on Slurm") {
        return;
    }
    let mut place = Place::new();
    let slurm = Slurm::start(&mut place);
    target(&place, "cluster", "kind = \"slurm\"\npartition = \"main\"\ncpus = 1", "there");
    let launched = launch(&place, "cluster", EPOCHS, &["--repetitions", "4"]);
    let id = text(&launched, "id").to_owned();
    let job = place.path(&format!("there/jobs/{id}"));
    let refused = place.run(&["launch", "resume"]).expect(1).err;
    assert!(refused.contains("is being trained already, by Slurm"), "{refused}");
    // By the signal that comes before the end of their time, each in its turn.
    for repetition in 1..=4 {
        until("it is trained", || iterations(&job, repetition) > 20);
        slurm.run("scancel", &["--batch", "--signal=TERM", &slurm.job(&id, repetition)]);
    }
    until("every repetition is cut", || (1..=4).all(|one| log(&job, one).contains(" requeued\n")));

    // A job that somebody cancels stays so.
    let trains = |repetition: usize| log(&job, repetition).matches(" trains repetition ").count();
    until("the first is trained again", || trains(1) == 2 && stands(&place)[0].0 == "running");
    slurm.run("scancel", &[&slurm.job(&id, 1)]);
    until("the first is interrupted", || stands(&place)[0] == ("interrupted".to_owned(), String::new()));

    // From a node that is drained they go back into the queue, which knows why they wait.
    let node = slurm.run("sinfo", &["-h", "-o", "%n"]).trim().to_owned();
    let node = format!("nodename={node}");
    until("the others are trained again", || (2..=4).all(|one| trains(one) == 2));
    slurm.run("scontrol", &["update", &node, "state=drain", "reason=test"]);
    for repetition in 2..=4 {
        slurm.run("scancel", &["--batch", "--signal=TERM", &slurm.job(&id, repetition)]);
    }
    let waits = |(status, queue): &(String, String)| status == "waiting" && queue.starts_with("PENDING: ");
    until("the others wait", || stands(&place)[1..].iter().all(waits));
    let is_told = |one: &(String, String)| waits(one) && !one.1.contains("BeginTime");
    until("the queue says why", || stands(&place)[1..].iter().any(is_told));
    let shown = place.run(&["launch", "status"]).expect(0).out;
    assert!(shown.contains("waiting") && shown.contains("PENDING"), "{shown}");
    slurm.run("scontrol", &["update", &node, "state=resume"]);

    // Only what is in no queue is handed over again.
    place.run(&["launch", "resume"]).expect(0);
    assert_eq!(ended(&place), ["completed"; 4]);
    place.run(&["launch", "fetch"]).expect(0);
    for repetition in 1..=4_u32 {
        let run = place.path(&format!("runs/digits/{repetition}"));
        let seed = 6 + repetition;
        assert_eq!(Result::of(&run), near(&place, &format!("near{seed}"), EPOCHS, seed), "{repetition}");
        assert_eq!(trains(repetition as usize), 3, "{}", log(&job, repetition as usize));
    }
}

#[test]
#[ignore = "needs Slurm: scripts/slurm-server.sh install, as root"]
fn a_time_limit_costs_no_iteration_and_what_is_stopped_stays_so() {
    if is_left_out("launching on Slurm") {
        return;
    }
    let mut place = Place::new();
    let slurm = Slurm::start(&mut place);
    // So early a signal comes as soon as Slurm looks, twice a minute.
    let how = "kind = \"slurm\"\ncpus = 1\ntime = \"1\"\nsignal_seconds = 59";
    target(&place, "cluster", how, "there");
    let launched = launch(&place, "cluster", 5000, &[]);
    let job = place.path(&format!("there/jobs/{}", text(&launched, "id")));
    until("time limits cut it twice", || log(&job, 1).matches(" requeued\n").count() >= 2);
    until("it is trained again", || log(&job, 1).matches(" trains repetition ").count() >= 3);
    place.run(&["launch", "stop"]).expect(0);
    assert_eq!(ended(&place), ["interrupted"]);
    assert!(slurm.run("squeue", &["-h", "-t", "PENDING,RUNNING"]).is_empty());
    place.run(&["launch", "fetch"]).expect(0);

    let there = rows(&place.path("runs/digits/1/epochs.csv"), EPOCHS_HEADER);
    // Beside other work there may be no epoch yet.
    let until = there.len().max(1).to_string();
    let more = ["--set", "train.seed=7", "--until-epoch", &until];
    place.train("near", 5000, &more).expect(0);
    assert_eq!(there, rows(&place.path("near/epochs.csv"), EPOCHS_HEADER)[..there.len()]);
    let near = rows(&place.path("near/iterations.csv"), ITERATIONS_HEADER);
    let there = rows(&place.path("runs/digits/1/iterations.csv"), ITERATIONS_HEADER);
    let common = near.len().min(there.len());
    assert!(common > 0);
    assert_eq!(there[..common], near[..common]);
}

#[test]
#[ignore = "needs Slurm: scripts/slurm-server.sh install, as root"]
fn where_a_node_has_no_scontrol_a_job_chains_itself() {
    if is_left_out("launching on Slurm") {
        return;
    }
    let mut place = Place::new();
    let slurm = Slurm::start(&mut place);
    let path = format!("{}:{}", place.path("bin").display(), std::env::var("PATH").unwrap());
    instead(&mut place, "scontrol", "exit 127");
    target(&place, "cluster", &format!("kind = \"slurm\"\ncpus = 1\nsetup = \"PATH={path}\""), "there");
    let launched = launch(&place, "cluster", 4, &[]);
    let id = text(&launched, "id").to_owned();
    let job = place.path(&format!("there/jobs/{id}"));
    until("it is trained", || iterations(&job, 1) > 20);
    slurm.run("scancel", &["--batch", "--signal=TERM", &slurm.job(&id, 1)]);
    assert_eq!(ended(&place), ["completed"]);
    assert!(log(&job, 1).contains(" goes on in a job of its own\n"), "{}", log(&job, 1));
    place.run(&["launch", "fetch"]).expect(0);
    assert_eq!(Result::of(&place.path("runs/digits/1")), near(&place, "near", 4, 7));
}
