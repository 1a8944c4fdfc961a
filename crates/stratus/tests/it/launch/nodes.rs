//! Workers on several nodes of Slurm. Some tests start a real Slurm with two simulated nodes.

use super::slurm::{Slurm, iterations, log, wait_until};
use super::{launch, replace_program, should_skip, target, text, wait_for_end};
use crate::common::{CommandOutput, RunResult, TestDir, digits};
use crate::workers::has_mpi;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The keys of workers on one or two nodes.
const NODES: &str = "kind = \"slurm\"\ncpus = 1\nnodes = \"1-2\"\nworkers_per_node = 2";

#[test]
fn batch_script_starts_workers_by_srun() {
    if !has_mpi() {
        return;
    }
    let dir = TestDir::without_kernel_cache();
    target(&dir, "cluster", &format!("{NODES}\ngpus_per_node = \"a100:2\""), "there");
    target(&dir, "other", "kind = \"slurm\"\nnodes = 2\nmpi = \"pmix_v4\"", "there");
    let data = format!("data.path={}", digits().display());
    let dry_run =
        |name: &str| dir.run(&["launch", name, "digits", "--dry-run", "--set", &data]).expect(0).out;
    let shown = dry_run("cluster");
    for line in [
        "#SBATCH --gpus-per-node=a100:2",
        "#SBATCH --nodes=1-2",
        "#SBATCH --cpus-per-task=2",
        "workers=",
        "workers_per_node=2",
        "cpus_per_worker=1",
        "mpi='pmi2'",
        "parts = 4",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
    // MPI is uploaded, since the nodes load it.
    assert!(shown.contains("/libmpi_abi.so.1  from "), "{shown}");
    let shown = dry_run("other");
    for line in
        ["#SBATCH --nodes=2", "#SBATCH --cpus-per-task=1", "cpus_per_worker=", "mpi='pmix_v4'", "parts = 2"]
    {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
}

#[test]
fn workers_that_nodes_cannot_have_are_rejected_before_any_upload() {
    let dir = TestDir::without_kernel_cache();
    target(&dir, "cluster", NODES, "there");
    let data = format!("data.path={}", digits().display());
    let rejected = |more: &[&str]| {
        let arguments = ["launch", "cluster", "digits", "--dry-run", "--set", &data];
        dir.run(&[&arguments[..], more].concat()).expect(2).err
    };
    let message = rejected(&["--workers", "2"]);
    assert!(message.contains("--workers cannot be used with `nodes` or `workers_per_node`"), "{message}");
    let message = rejected(&["--set", "train.parts=2"]);
    assert!(message.contains("4 workers exceed train.parts = 2"), "{message}");
    let message = rejected(&["--set", "train.batch_size=50"]);
    assert!(message.contains("`train.parts` = 4 is not a power of two that divides"), "{message}");
    assert!(!dir.path("there").exists() && !dir.path("runs").exists());
}

/// `srun` reports the code of the workers that it killed; that of the one that failed is recorded.
#[test]
fn worker_that_fails_is_not_requeued() {
    let mut dir = TestDir::without_kernel_cache();
    target(&dir, "cluster", NODES, "there");
    let data = format!("data.path={}", digits().display());
    let dry = dir.run(&["launch", "cluster", "digits", "--dry-run", "--json", "--set", &data]).expect(0).out;
    let dry: serde_json::Value = serde_json::from_str(&dry).unwrap();
    for file in dry["job"].as_array().unwrap() {
        let path = dir.path("job").join(file[0].as_str().unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file[1].as_str().unwrap()).unwrap();
    }
    replace_program(
        &mut dir,
        "srun",
        "case $RECORDED in\n\
         device*) touch \"$STRATUS_WORKER_EXITS/.device-failed-0\" ;;\n\
         ?*) echo \"$RECORDED\" > \"$STRATUS_WORKER_EXITS/1\" ;;\nesac\n\
         [ \"$RECORDED\" = devices ] && touch \"$STRATUS_WORKER_EXITS/.device-failed-1\"\n\
         echo 75 > \"$STRATUS_WORKER_EXITS/0\"\nexit \"$REPORTED\"",
    );
    for program in ["squeue", "scontrol"] {
        replace_program(&mut dir, program, "");
    }
    let job = dir.path("job");
    let lost = "after the loss of a worker\n";
    for (recorded, reported, exit, message) in [
        ("2", "137", 2, "exited with 2\n"),
        ("1", "137", 1, "exited with 1\n"),
        ("", "137", 75, lost),
        // The GPU of one worker fails, or that of each.
        ("device", "75", 75, lost),
        ("devices", "75", 1, "exited with 1\n"),
        ("devices", "137", 1, "exited with 1\n"),
    ] {
        let mut command = Command::new("sh");
        command.arg("batch.sh").current_dir(&job).env("RECORDED", recorded).env("REPORTED", reported);
        command.envs(dir.variables.iter().map(|(name, value)| (name, value)));
        command.env("SLURM_SUBMIT_DIR", &job).env("SLURM_ARRAY_JOB_ID", "9").env("SLURM_ARRAY_TASK_ID", "1");
        let ran = CommandOutput::new(command.output().unwrap()).expect(exit);
        assert!(ran.out.contains(message), "{recorded}: {}", ran.out);
        assert_eq!(fs::read_to_string(job.join("1/exit")).unwrap(), format!("{exit}\n"));
    }
}

/// Kills the worker of a rank that trains in a job's folder.
fn kill_worker(job: &Path, rank: usize) {
    let rank = format!("PMI_RANK={rank}");
    let folder = job.display().to_string();
    let lines = |path: std::path::PathBuf| -> Vec<String> {
        let bytes = fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&bytes).split('\0').map(str::to_owned).collect()
    };
    let is_worker = |process: &Path| {
        lines(process.join("environ")).contains(&rank)
            && fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.display().to_string() == folder)
            && lines(process.join("cmdline")).get(1).is_some_and(|argument| argument == "train")
    };
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let workers: Vec<_> = processes.filter(|process| is_worker(process)).collect();
    let [worker] = &workers[..] else { panic!("{workers:?}") };
    let process = worker.file_name().unwrap();
    assert!(Command::new("kill").arg("-9").arg(process).status().unwrap().success());
}

#[test]
#[ignore = "needs Slurm: scripts/slurm-server.sh install, as root"]
fn lost_node_continues_on_the_other_bit_identically() {
    const EPOCHS: u32 = 6;
    if should_skip("launching on Slurm") || !has_mpi() {
        return;
    }
    let mut dir = TestDir::new();
    let slurm = Slurm::start_nodes(&mut dir, 2);
    target(&dir, "cluster", NODES, "there");
    let settings = ["--set", "train.threads=1"];
    let launched = launch(&dir, "cluster", EPOCHS, &settings);
    let id = text(&launched, "id").to_owned();
    let job = dir.path(&format!("there/jobs/{id}"));
    // The first worker writes the run itself; the others have folders in it.
    let workers = || fs::read_dir(job.join("1/run/workers")).map_or(1, |folders| 1 + folders.count());
    let starts = || log(&job, 1).matches(" training repetition ").count();
    let is_training = |start: usize, count: usize| {
        wait_until("the job is started", || starts() == start && workers() == count);
        let before = iterations(&job, 1);
        wait_until("workers train", || iterations(&job, 1) > before + 20);
    };
    is_training(1, 4);
    assert_eq!(text(&super::status(&dir)["state"]["repetitions"][0], "status"), "running");

    // A killed worker ends the others.
    kill_worker(&job, 3);
    wait_until("the job is requeued", || log(&job, 1).contains(" requeued\n"));
    assert!(log(&job, 1).contains(" exited with 75 after the loss of a worker\n"), "{}", log(&job, 1));
    is_training(2, 4);

    // Without the second node, the first trains all parts.
    slurm.script("lose", &["node2"]);
    is_training(3, 2);

    // A signal before the time limit reaches all workers of the step.
    slurm.script("return", &["node2"]);
    slurm.run("scancel", &["--batch", "--signal=TERM", &slurm.job(&id, 1)]);
    assert_eq!(wait_for_end(&dir), ["completed"]);
    let shown = log(&job, 1);
    assert!(shown.contains(" exited with 75\n") && shown.matches(" requeued\n").count() == 2, "{shown}");
    assert_eq!(starts(), 4, "{shown}");

    dir.run(&["launch", "fetch"]).expect(0);
    let run = dir.path("runs/digits/1");
    dir.train(
        "near",
        EPOCHS,
        &[&settings[..], &["--set", "train.seed=7", "--set", "train.parts=4"]].concat(),
    )
    .expect(0);
    assert_eq!(RunResult::read(&run), RunResult::read(&dir.path("near")));
    // The files are complete and readable.
    let collected = dir.run(&["collect", "runs/digits/1", "--json"]).expect(0).out;
    assert!(serde_json::from_str::<serde_json::Value>(&collected).is_ok(), "{collected}");
}
