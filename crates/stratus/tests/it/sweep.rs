//! Sweeps as processes: their results, and that a killed sweep resumes to the same table and the same bits.

use crate::common::{CommandOutput, RunResult, TestDir, digits};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The number of kills if `STRATUS_KILLS` is not set.
const KILLS: u64 = 5;

fn write(dir: &TestDir, name: &str, sweep: &str) {
    let data = digits();
    let text = format!(
        "[model]\nname = \"digits\"\n[data]\npath = {:?}\nverify = false\n[train]\nepochs = 2\n\
         batch_size = 256\n[checkpoint]\nevery_seconds = 0.05\n{sweep}",
        data.display().to_string()
    );
    fs::write(dir.path(name), text).unwrap();
}

fn table(sweep: &Path) -> String {
    fs::read_to_string(sweep.join("cells.csv")).unwrap()
}

#[test]
fn sweep_trains_every_cell_and_writes_the_comparison() {
    let dir = TestDir::new();
    let sweep = "[sweep]\nrepetitions = 2\n[sweep.keys]\n\"optimiser.learning_rate\" = [0.05, 0.2]\n";
    write(&dir, "rates.toml", sweep);
    let planned = dir.run(&["sweep", "rates.toml", "--dry-run"]).expect(0).out;
    assert!(planned.contains("4 runs: 2 cells, 2 repetitions each"), "{planned}");
    assert!(!dir.path("sweeps").exists());

    let ran = dir.run(&["sweep", "rates.toml", "--set", "train.epochs=1"]).expect(0);
    let folder = dir.path("sweeps/rates");
    assert_eq!(
        table(&folder),
        "cell,repetition,status,reason,run,optimiser.learning_rate\n1,1,completed,,runs/1/1,0.05\n\
         1,2,completed,,runs/1/2,0.05\n2,1,completed,,runs/2/1,0.2\n2,2,completed,,runs/2/2,0.2\n"
    );
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(lines[0].starts_with("cell  optimiser.learning_rate     status  runs    top-1"), "{}", ran.out);
    assert!(lines[2].starts_with("2                         0.2  completed     2"), "{}", ran.out);
    assert!(lines.last().unwrap().ends_with("sweeps/rates/report.html"), "{}", ran.out);
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(page.contains("optimiser.learning_rate"));
    // Repetitions differ in the seed.
    let [first, second] = ["runs/1/1", "runs/1/2"].map(|run| RunResult::read(&folder.join(run)));
    assert_ne!(first.weights, second.weights);
    assert_eq!(first.epochs.len(), 1, "--set counts");

    // A second run has nothing to do and prints the results again.
    let again = dir.run(&["sweep", "sweeps/rates", "--json"]).expect(0);
    let report: serde_json::Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!(report["cells"].as_array().unwrap().len(), 4);
    assert_eq!(report["cells"][3]["status"], "completed");
    assert_eq!(report["cells"][3]["values"][0], "0.2");
    assert_eq!(RunResult::read(&folder.join("runs/1/1")), first);
    let rejected = dir.run(&["sweep", "rates.toml"]).expect(2).err;
    assert!(rejected.contains("resume it with `stratus sweep sweeps/rates`"), "{rejected}");
}

#[test]
fn removed_run_is_trained_again() {
    let dir = TestDir::new();
    write(&dir, "rates.toml", "[sweep.keys]\n\"optimiser.learning_rate\" = [0.05, 0.2]\n");
    dir.run(&["sweep", "rates.toml", "--set", "train.epochs=1", "--out", "rates"]).expect(0);
    let (folder, run) = (dir.path("rates"), dir.path("rates/runs/1/1"));
    let [whole, other] = ["runs/1/1", "runs/2/1"].map(|run| RunResult::read(&folder.join(run)));
    let rows = table(&folder);
    let resumes_with = |expected: &str| {
        let planned = dir.run(&["sweep", "rates", "--dry-run"]).expect(0);
        assert!(planned.err.contains(expected), "{}", planned.err);
        assert!(planned.out.contains("1 repetition each; 1 remaining"), "{}", planned.out);
        let ran = dir.run(&["sweep", "rates"]).expect(0);
        // The message is printed before training.
        let message = ran.err.find(expected).unwrap_or_else(|| panic!("{expected}: {}", ran.err));
        assert!(message < ran.err.find("completed").unwrap(), "{}", ran.err);
        assert_eq!(table(&folder), rows);
        assert_eq!(RunResult::read(&run), whole);
        assert_eq!(RunResult::read(&folder.join("runs/2/1")), other);
    };
    let removed = dir.run(&["runs", "rm", "rates/runs/1/1", "--yes"]).expect(0).err;
    assert!(removed.contains("belongs to a sweep: `stratus sweep rates` trains it again"), "{removed}");
    resumes_with("cell 1 (learning_rate=0.05): its run is missing (rates/runs/1/1): will be trained again");
    fs::remove_file(run.join("epochs.csv")).unwrap();
    resumes_with("its run is damaged: ");
    assert!(dir.path("rates/runs/1/.1.damaged/iterations.csv").is_file());
    fs::write(run.join("summary.json"), "{").unwrap();
    resumes_with("will be resumed");
    let planned = dir.run(&["sweep", "rates", "--dry-run"]).expect(0).out;
    assert!(planned.contains("; 0 remaining"), "{planned}");

    // A file in the place of a folder is not touched, and nothing is trained.
    fs::remove_dir_all(dir.path("rates/runs/1")).unwrap();
    fs::write(dir.path("rates/runs/1"), "mine").unwrap();
    let rejected = dir.run(&["sweep", "rates"]).expect(2).err;
    assert!(rejected.contains("error: rates/runs/1: is a file; a folder of runs is expected"), "{rejected}");
    assert!(rejected.contains("hint: move it away"), "{rejected}");
    assert_eq!(fs::read_to_string(dir.path("rates/runs/1")).unwrap(), "mine");
    assert_eq!(table(&folder), rows);
}

#[test]
fn failed_and_too_large_cells_are_recorded_as_results() {
    let dir = TestDir::new();
    let keys = "\"data.name\" = [\"mnist\", \"folder\"]\n\"train.batch_size\" = [256]\n";
    write(&dir, "mixed.toml", &format!("[sweep.keys]\n{keys}"));
    let ran = dir.run(&["sweep", "mixed.toml", "--set", "train.epochs=1", "--out", "mixed"]).expect(1);
    assert!(ran.err.contains("error: 1 of 2 runs failed"), "{}", ran.err);
    let table_text = table(&dir.path("mixed"));
    let rows: Vec<&str> = table_text.lines().collect();
    assert_eq!(rows[1], "1,1,completed,,runs/1/1,mnist,256");
    assert!(rows[2].starts_with("2,1,failed,"), "{}", rows[2]);
    assert!(ran.out.contains("cell 2, run 1: "), "{}", ran.out);

    // A batch of 16 million images of 3 x 224 x 224 fits no machine; training is not attempted.
    let keys = "\"train.batch_size\" = [16777216]\n";
    let huge = format!(
        "[model]\nname = \"resnet18\"\n[data]\nname = \"synthetic\"\n[data.synthetic]\nimages = 16777216\n\
         [sweep.keys]\n{keys}"
    );
    fs::write(dir.path("huge.toml"), huge).unwrap();
    let ran = dir.run(&["sweep", "huge.toml"]).expect(0);
    let table_text = table(&dir.path("sweeps/huge"));
    let row = table_text.lines().nth(1).unwrap();
    assert!(row.starts_with("1,1,does_not_fit,\"needs at least ") && row.contains("available"), "{row}");
    assert!(ran.out.contains("does not fit"), "{}", ran.out);
}

#[test]
fn halving_stops_the_worse_cells_early() {
    let dir = TestDir::new();
    let sweep = "[sweep.keys]\n\"optimiser.learning_rate\" = [0.000001, 0.2]\n\
         [sweep.halving]\nmetric = \"val_top1\"\n";
    write(&dir, "halved.toml", sweep);
    dir.run(&["sweep", "halved.toml"]).expect(0);
    let folder = dir.path("sweeps/halved");
    let table_text = table(&folder);
    let rows: Vec<&str> = table_text.lines().collect();
    assert!(rows[1].starts_with("1,1,stopped_early,\"after epoch 1: val_top1 0."), "{}", rows[1]);
    assert!(rows[1].ends_with("1 of 2 cells continue\",runs/1/1,0.000001"), "{}", rows[1]);
    assert_eq!(rows[2], "2,1,completed,,runs/2/1,0.2");
    // The better cell was paused after its first epoch too, and is bit-identical to an uninterrupted run.
    let data = format!("data.path={}", digits().display());
    let settings = [
        "train.epochs=2",
        "train.batch_size=256",
        "optimiser.learning_rate=0.2",
        "data.verify=false",
        "checkpoint.every_seconds=0.05",
        &data,
    ];
    let mut arguments = vec!["train", "digits", "--out", "whole"];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    dir.run(&arguments).expect(0);
    assert_eq!(RunResult::read(&dir.path("whole")), RunResult::read(&folder.join("runs/2/1")));
}

/// The keys of a small search: a hundred learning rates, two batch sizes.
const SEARCH: &str = "objective = \"val_top1\"\n[sweep.keys]\n\
     \"optimiser.learning_rate\" = { log_uniform = [1e-3, 1] }\n\
     \"train.batch_size\" = { choice = [256, 512] }\n\"train.epochs\" = [1]\n";

#[test]
fn tpe_sweep_names_its_cells_and_the_best_one() {
    let dir = TestDir::new();
    write(&dir, "rates.toml", &format!("[sweep]\nsearch = \"tpe\"\ntrials = 12\n{SEARCH}"));
    let text = fs::read_to_string(dir.path("rates.toml")).unwrap().replace("batch_size = 256\n", "");
    fs::write(dir.path("rates.toml"), text.replace("epochs = 2\n", "")).unwrap();
    let planned = dir.run(&["sweep", "rates.toml", "--dry-run"]).expect(0).out;
    let expected = "12 runs: 12 cells, 1 repetition each; 2 cells follow from the results of these";
    assert!(planned.contains(expected), "{planned}");
    let ran = dir.run(&["sweep", "rates.toml"]).expect(0);
    let folder = dir.path("sweeps/rates");
    assert_eq!(table(&folder).matches(",completed,").count(), 12);
    assert!(ran.err.contains("cell 11 (learning_rate="), "{}", ran.err);
    let best = ran.out.lines().find(|line| line.starts_with("best    cell ")).unwrap();
    assert!(best.contains("(learning_rate=0.") && best.contains(" epochs=1): val_top1 0."), "{best}");
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(page.contains("12/1 learning_rate=0."), "the page names runs by their values");
    // A sweep that has lost its last cells draws the same ones again.
    let whole = table(&folder);
    let rows: Vec<&str> = whole.lines().take(11).collect();
    fs::write(folder.join("cells.csv"), rows.join("\n") + "\n").unwrap();
    fs::remove_dir_all(folder.join("runs/12")).unwrap();
    dir.run(&["sweep", "sweeps/rates"]).expect(0);
    assert_eq!(table(&folder), whole);
}

/// The sweep is killed at random moments; its child processes keep running.
#[test]
#[cfg(unix)]
fn killed_sweep_resumes_to_same_table() {
    let dir = TestDir::new();
    let sweep = "[sweep.keys]\n\"optimiser.learning_rate\" = [0.05, 0.2]\ntrain.epochs = [1]\n";
    write(&dir, "rates.toml", sweep);
    let start = Instant::now();
    dir.run(&["sweep", "rates.toml", "--out", "whole"]).expect(0);
    // Later sweeps are faster, since their kernels have been timed.
    let longest = (start.elapsed() / 3).min(Duration::from_secs(2));
    let kills = std::env::var("STRATUS_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let (mut killed, mut round) = (0, 0);
    while killed < kills {
        let name = format!("killed-{round}");
        loop {
            let is_started = dir.path(&name).join("sweep.toml").is_file();
            let target =
                if is_started { [&name, "--json"].to_vec() } else { ["rates.toml", "--out", &name].to_vec() };
            let mut command = dir.command(&["sweep"]);
            let mut child = command.args(target).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            // A different delay for each kill.
            let fraction = f64::from(((killed * 37 + 11) % 101) as u32) / 101.0;
            sleep(longest.mul_f64(fraction));
            let ended = child.try_wait().unwrap().is_some();
            child.kill().unwrap();
            child.wait().unwrap();
            killed += u64::from(!ended);
            if ended || killed == kills {
                break;
            }
        }
        dir.run(&["sweep", &name]).expect(0);
        assert_eq!(table(&dir.path(&name)), table(&dir.path("whole")));
        for run in ["runs/1/1", "runs/2/1"] {
            let [whole, killed] = ["whole", &name].map(|sweep| RunResult::read(&dir.path(sweep).join(run)));
            assert_eq!(whole, killed, "{name}, {run}");
        }
        round += 1;
    }
}

#[test]
#[cfg(unix)]
fn sweep_waits_for_a_run_that_a_killed_sweep_left_training() {
    let dir = TestDir::new();
    write(&dir, "rates.toml", "[sweep.keys]\n\"optimiser.learning_rate\" = [0.05]\ntrain.epochs = [1]\n");
    let spawn = |arguments: &[&str]| {
        dir.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut killed = spawn(&["sweep", "rates.toml", "--out", "rates"]);
    let start = Instant::now();
    while !dir.path("rates/sweep.toml").is_file() {
        assert!(start.elapsed() < Duration::from_secs(300), "timed out");
        sleep(Duration::from_millis(5));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    // Holds the lock, as a process left by the killed sweep would.
    fs::create_dir_all(dir.path("rates/runs/1")).unwrap();
    let lock = fs::File::create(dir.path("rates/runs/1/1.json")).unwrap();
    lock.lock().unwrap();
    let mut sweep = spawn(&["sweep", "rates"]);
    sleep(Duration::from_millis(500));
    assert!(sweep.try_wait().unwrap().is_none(), "it did not wait for the lock");
    drop(lock);
    assert!(sweep.wait().unwrap().success());
    RunResult::read(&dir.path("rates/runs/1/1"));
}

#[test]
#[cfg(unix)]
fn terminated_sweep_stops_with_a_checkpoint() {
    let dir = TestDir::new();
    write(&dir, "long.toml", "[sweep.keys]\n\"train.epochs\" = [1000, 1001]\n");
    let mut command = dir.command(&["sweep", "long.toml"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let run = dir.path("sweeps/long/runs/1/1");
    let start = Instant::now();
    while !run.join("checkpoints").read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        assert!(start.elapsed() < Duration::from_secs(300), "timed out");
        sleep(Duration::from_millis(20));
    }
    let kill = std::process::Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let ran = CommandOutput::new(child.wait_with_output().unwrap()).expect(75);
    assert!(ran.err.contains("hint: resume with `stratus sweep sweeps/long`"), "{}", ran.err);
    let table_text = table(&dir.path("sweeps/long"));
    assert!(table_text.contains("\n1,1,interrupted,can be resumed,runs/1/1,1000\n"), "{table_text}");
    assert!(table_text.contains("\n2,1,waiting,,,1001\n"), "{table_text}");
    assert_eq!(crate::common::summary(&run)["status"], "interrupted");
}

#[test]
fn rejects_invalid_sweep_files_and_folders() {
    let dir = TestDir::without_kernel_cache();
    fs::write(dir.path("plain.toml"), "[model]\nname = \"digits\"\n").unwrap();
    fs::write(
        dir.path("typo.toml"),
        "[model]\nname = \"digits\"\n[sweep.keys]\n\"train.bach_size\" = [64]\n",
    )
    .unwrap();
    fs::create_dir(dir.path("empty")).unwrap();
    for (arguments, expected) in [
        (&["sweep", "digit-batch-filters"][..], "hint: did you mean `digits-batch-filters`?"),
        (&["sweep", "none.toml"], "error: cannot read the sweep none.toml"),
        (&["sweep", "plain.toml"], "error: plain.toml: [sweep] is missing"),
        (&["sweep", "typo.toml"], "hint: did you mean `train.batch_size`?"),
        (&["sweep", "empty"], "error: empty is not a sweep"),
        (&["train", "typo.toml"], "hint: train it with `stratus sweep typo.toml`"),
        (&["sweep", "digits-batch-filters", "--set", "model.width=8"], "both swept and set with --set"),
    ] {
        let ran = dir.run(arguments).expect(2);
        assert!(ran.err.contains(expected), "{arguments:?}\n{}", ran.err);
        assert!(!dir.path("sweeps").exists());
    }
}
