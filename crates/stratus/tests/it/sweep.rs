//! Sweeps as processes: what comes of them, and that a killed one goes on to the same table and the same
//! bits.

use crate::common::{Place, Ran, Result, root};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Kills of a sweep, where `STRATUS_KILLS` does not say how many.
const KILLS: u64 = 5;

fn write(place: &Place, name: &str, sweep: &str) {
    let data = root().join("data/mnist");
    let text = format!(
        "[model]\nname = \"digits\"\n[data]\npath = {:?}\n[train]\nepochs = 2\nbatch_size = 1024\n\
         [checkpoint]\nevery_seconds = 0.05\n{sweep}",
        data.display().to_string()
    );
    fs::write(place.path(name), text).unwrap();
}

fn table(sweep: &Path) -> String {
    fs::read_to_string(sweep.join("cells.csv")).unwrap()
}

#[test]
fn a_sweep_is_trained_and_compared() {
    let place = Place::new();
    let sweep = "[sweep]\nrepetitions = 2\n[sweep.keys]\n\"optimiser.learning_rate\" = [0.05, 0.2]\n";
    write(&place, "rates.toml", sweep);
    let planned = place.run(&["sweep", "rates.toml", "--dry-run"]).expect(0).out;
    assert!(planned.contains("4 runs: 2 cells, 2 of each"), "{planned}");
    assert!(!place.path("sweeps").exists());

    let ran = place.run(&["sweep", "rates.toml", "--set", "train.epochs=1"]).expect(0);
    let folder = place.path("sweeps/rates");
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
    let [first, second] = ["runs/1/1", "runs/1/2"].map(|run| Result::of(&folder.join(run)));
    assert_ne!(first.weights, second.weights);
    assert_eq!(first.epochs.len(), 1, "--set counts");

    // Once more there is nothing left to do, and the result is told again.
    let again = place.run(&["sweep", "sweeps/rates", "--json"]).expect(0);
    let told: serde_json::Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!(told["cells"].as_array().unwrap().len(), 4);
    assert_eq!(told["cells"][3]["status"], "completed");
    assert_eq!(told["cells"][3]["values"][0], "0.2");
    assert_eq!(Result::of(&folder.join("runs/1/1")), first);
    let refused = place.run(&["sweep", "rates.toml"]).expect(2).err;
    assert!(refused.contains("continue it with `stratus sweep sweeps/rates`"), "{refused}");
}

#[test]
fn a_run_that_was_removed_is_trained_again() {
    let place = Place::new();
    write(&place, "rates.toml", "[sweep.keys]\n\"optimiser.learning_rate\" = [0.05, 0.2]\n");
    place.run(&["sweep", "rates.toml", "--set", "train.epochs=1", "--out", "rates"]).expect(0);
    let (folder, run) = (place.path("rates"), place.path("rates/runs/1/1"));
    let [whole, other] = ["runs/1/1", "runs/2/1"].map(|run| Result::of(&folder.join(run)));
    let rows = table(&folder);
    let goes_on = |expected: &str| {
        let planned = place.run(&["sweep", "rates", "--dry-run"]).expect(0);
        assert!(planned.err.contains(expected), "{}", planned.err);
        assert!(planned.out.contains("1 of each; 1 are left to train"), "{}", planned.out);
        let ran = place.run(&["sweep", "rates"]).expect(0);
        // It is said before it is trained.
        let said = ran.err.find(expected).unwrap_or_else(|| panic!("{expected}: {}", ran.err));
        assert!(said < ran.err.find("completed").unwrap(), "{}", ran.err);
        assert_eq!(table(&folder), rows);
        assert_eq!(Result::of(&run), whole);
        assert_eq!(Result::of(&folder.join("runs/2/1")), other);
    };
    let removed = place.run(&["runs", "rm", "rates/runs/1/1", "--yes"]).expect(0).err;
    assert!(removed.contains("belongs to a sweep: `stratus sweep rates` trains it again"), "{removed}");
    goes_on("cell 1 (optimiser.learning_rate = 0.05): its run is gone (rates/runs/1/1): it is trained again");
    fs::remove_file(run.join("epochs.csv")).unwrap();
    goes_on("its run is damaged: ");
    assert!(place.path("rates/runs/1/.1.damaged/iterations.csv").is_file());
    fs::write(run.join("summary.json"), "{").unwrap();
    goes_on("it is continued");
    let planned = place.run(&["sweep", "rates", "--dry-run"]).expect(0).out;
    assert!(planned.contains("; 0 are left to train"), "{planned}");

    // A file in the place of a folder is not touched, and nothing is trained.
    fs::remove_dir_all(place.path("rates/runs/1")).unwrap();
    fs::write(place.path("rates/runs/1"), "mine").unwrap();
    let refused = place.run(&["sweep", "rates"]).expect(2).err;
    assert!(refused.contains("error: rates/runs/1: it is a file, where a sweep has a folder"), "{refused}");
    assert!(refused.contains("hint: move it away"), "{refused}");
    assert_eq!(fs::read_to_string(place.path("rates/runs/1")).unwrap(), "mine");
    assert_eq!(table(&folder), rows);
}

#[test]
fn what_fails_and_what_does_not_fit_are_results() {
    let place = Place::new();
    let keys = "\"data.name\" = [\"mnist\", \"folder\"]\n\"train.batch_size\" = [1024]\n";
    write(&place, "mixed.toml", &format!("[sweep.keys]\n{keys}"));
    let ran = place.run(&["sweep", "mixed.toml", "--set", "train.epochs=1", "--out", "mixed"]).expect(1);
    assert!(ran.err.contains("error: 1 of 2 runs failed"), "{}", ran.err);
    let table_text = table(&place.path("mixed"));
    let rows: Vec<&str> = table_text.lines().collect();
    assert_eq!(rows[1], "1,1,completed,,runs/1/1,mnist,1024");
    assert!(rows[2].starts_with("2,1,failed,"), "{}", rows[2]);
    assert!(ran.out.contains("cell 2, run 1: "), "{}", ran.out);

    // A batch of 16 million images of 3 x 224 x 224 fits no machine; nothing is tried.
    let keys = "\"train.batch_size\" = [16777216]\n";
    let huge = format!(
        "[model]\nname = \"resnet18\"\n[data]\nname = \"synthetic\"\n[data.synthetic]\nimages = 16777216\n\
         [sweep.keys]\n{keys}"
    );
    fs::write(place.path("huge.toml"), huge).unwrap();
    let ran = place.run(&["sweep", "huge.toml"]).expect(0);
    let table_text = table(&place.path("sweeps/huge"));
    let row = table_text.lines().nth(1).unwrap();
    assert!(row.starts_with("1,1,does_not_fit,\"needs at least ") && row.contains("are there"), "{row}");
    assert!(ran.out.contains("does not fit"), "{}", ran.out);
}

#[test]
fn cells_that_do_badly_are_stopped_early() {
    let place = Place::new();
    let sweep = "[sweep.keys]\n\"optimiser.learning_rate\" = [0.000001, 0.2]\n\
         [sweep.halving]\nmetric = \"val_top1\"\n";
    write(&place, "halved.toml", sweep);
    place.run(&["sweep", "halved.toml"]).expect(0);
    let folder = place.path("sweeps/halved");
    let table_text = table(&folder);
    let rows: Vec<&str> = table_text.lines().collect();
    assert!(rows[1].starts_with("1,1,stopped_early,\"after epoch 1: val_top1 0."), "{}", rows[1]);
    assert!(rows[1].ends_with("1 of 2 went on\",runs/1/1,0.000001"), "{}", rows[1]);
    assert_eq!(rows[2], "2,1,completed,,runs/2/1,0.2");
    // What went on was stopped after its first epoch, too, and has the bits of a run that was not.
    let data = format!("data.path={}", root().join("data/mnist").display());
    let settings = ["train.epochs=2", "train.batch_size=1024", "checkpoint.every_seconds=0.05", &data];
    let mut arguments = vec!["train", "digits", "--out", "whole"];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    place.run(&arguments).expect(0);
    assert_eq!(Result::of(&place.path("whole")), Result::of(&folder.join("runs/2/1")));
}

/// Killed at random moments, with everything it began left to itself, a sweep goes on to the same table and
/// the same bits.
#[test]
#[cfg(unix)]
fn a_killed_sweep_goes_on() {
    let place = Place::new();
    let sweep = "[sweep.keys]\n\"optimiser.learning_rate\" = [0.05, 0.2]\ntrain.epochs = [1]\n";
    write(&place, "rates.toml", sweep);
    let begun = Instant::now();
    place.run(&["sweep", "rates.toml", "--out", "whole"]).expect(0);
    // What was slow the first time, measuring kernels, is not slow again.
    let longest = (begun.elapsed() / 3).min(Duration::from_secs(2));
    let kills = std::env::var("STRATUS_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let (mut killed, mut round) = (0, 0);
    while killed < kills {
        let name = format!("killed-{round}");
        loop {
            let begun = place.path(&name).join("sweep.toml").is_file();
            let target =
                if begun { [&name, "--json"].to_vec() } else { ["rates.toml", "--out", &name].to_vec() };
            let mut command = place.command(&["sweep"]);
            let mut child = command.args(target).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            // Some function of the kill's number; what it is only has to differ.
            let share = f64::from(((killed * 37 + 11) % 101) as u32) / 101.0;
            sleep(longest.mul_f64(share));
            let ended = child.try_wait().unwrap().is_some();
            child.kill().unwrap();
            child.wait().unwrap();
            killed += u64::from(!ended);
            if ended || killed == kills {
                break;
            }
        }
        place.run(&["sweep", &name]).expect(0);
        assert_eq!(table(&place.path(&name)), table(&place.path("whole")));
        for run in ["runs/1/1", "runs/2/1"] {
            let [whole, killed] = ["whole", &name].map(|sweep| Result::of(&place.path(sweep).join(run)));
            assert_eq!(whole, killed, "{name}, {run}");
        }
        round += 1;
    }
}

/// While a process that a killed sweep began is not gone, nothing is begun in its place.
#[test]
#[cfg(unix)]
fn a_sweep_waits_for_what_a_killed_one_began() {
    let place = Place::new();
    write(&place, "rates.toml", "[sweep.keys]\n\"optimiser.learning_rate\" = [0.05]\ntrain.epochs = [1]\n");
    let begin = |arguments: &[&str]| {
        place.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut killed = begin(&["sweep", "rates.toml", "--out", "rates"]);
    let begun = Instant::now();
    while !place.path("rates/sweep.toml").is_file() {
        assert!(begun.elapsed() < Duration::from_secs(300), "nothing happens");
        sleep(Duration::from_millis(5));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    // As such a process has it; it waits for the one that there may be.
    fs::create_dir_all(place.path("rates/runs/1")).unwrap();
    let claim = fs::File::create(place.path("rates/runs/1/1.json")).unwrap();
    claim.lock().unwrap();
    let mut sweep = begin(&["sweep", "rates"]);
    sleep(Duration::from_millis(500));
    assert!(sweep.try_wait().unwrap().is_none(), "it trains what it cannot have");
    drop(claim);
    assert!(sweep.wait().unwrap().success());
    Result::of(&place.path("rates/runs/1/1"));
}

/// Asked to stop, a sweep stops its run with a checkpoint, and says how to go on.
#[test]
#[cfg(unix)]
fn a_sweep_stops_when_it_is_asked_to() {
    let place = Place::new();
    write(&place, "long.toml", "[sweep.keys]\n\"train.epochs\" = [1000, 1001]\n");
    let mut command = place.command(&["sweep", "long.toml"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let run = place.path("sweeps/long/runs/1/1");
    let begun = Instant::now();
    while !run.join("checkpoints").read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        assert!(begun.elapsed() < Duration::from_secs(300), "nothing happens");
        sleep(Duration::from_millis(20));
    }
    let kill = std::process::Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let ran = Ran::of(child.wait_with_output().unwrap()).expect(75);
    assert!(ran.err.contains("hint: continue it with `stratus sweep sweeps/long`"), "{}", ran.err);
    let table_text = table(&place.path("sweeps/long"));
    assert!(table_text.contains("\n1,1,interrupted,it can be continued,runs/1/1,1000\n"), "{table_text}");
    assert!(table_text.contains("\n2,1,waiting,,,1001\n"), "{table_text}");
    assert_eq!(crate::common::summary(&run)["status"], "interrupted");
}

#[test]
fn wrong_sweeps_are_refused() {
    let place = Place::bare();
    fs::write(place.path("plain.toml"), "[model]\nname = \"digits\"\n").unwrap();
    fs::write(
        place.path("typo.toml"),
        "[model]\nname = \"digits\"\n[sweep.keys]\n\"train.bach_size\" = [64]\n",
    )
    .unwrap();
    fs::create_dir(place.path("empty")).unwrap();
    for (arguments, expected) in [
        (&["sweep", "digit-batch-filters"][..], "hint: did you mean `digits-batch-filters`?"),
        (&["sweep", "none.toml"], "error: cannot read the sweep none.toml"),
        (&["sweep", "plain.toml"], "error: plain.toml: there is no [sweep] section"),
        (&["sweep", "typo.toml"], "hint: did you mean `train.batch_size`?"),
        (&["sweep", "empty"], "error: empty is no sweep"),
        (&["train", "typo.toml"], "hint: train it with `stratus sweep typo.toml`"),
        (&["sweep", "digits-batch-filters", "--set", "model.width=8"], "set with --set too"),
    ] {
        let ran = place.run(arguments).expect(2);
        assert!(ran.err.contains(expected), "{arguments:?}\n{}", ran.err);
        assert!(!place.path("sweeps").exists());
    }
}
