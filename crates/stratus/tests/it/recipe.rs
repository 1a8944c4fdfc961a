//! The parts of a training recipe, from the configuration to the files of the run; each resumes bit-identical
//! after interruptions.

#![cfg(unix)]

use crate::common::tiny::{NET, arguments, copy, write_data};
use crate::common::{CommandOutput, RunResult, TestDir, has_precision, summary};
use std::fs;
use std::path::{Path, PathBuf};
use stratus_run::checkpoint::{Checkpoint, Checkpoints, Tensor, Values, read_safetensors};

/// The number of iterations per epoch.
const PER_EPOCH: u64 = 5;

/// A folder with the images and the network.
fn test_dir() -> TestDir {
    let dir = TestDir::without_kernel_cache();
    write_data(&dir.path("data"));
    fs::write(dir.path("net.toml"), NET).unwrap();
    dir
}

/// Trains the run `name` and keeps a checkpoint of every iteration.
fn train(dir: &TestDir, name: &str, more: &[&str]) -> CommandOutput {
    let settings = [&["checkpoint.every_seconds=1e-9", "checkpoint.keep=1000"], more].concat();
    dir.run(&arguments(&["train", "net.toml", "--out", name], &settings)).expect(0)
}

/// Copies a run as if it had been killed after `iteration`.
fn killed_after(dir: &TestDir, name: &str, iteration: u64) -> PathBuf {
    let run = dir.path(&format!("{name}_{iteration}"));
    copy(&dir.path(name), &run);
    fs::remove_file(run.join("summary.json")).unwrap();
    let checkpoints = Checkpoints::new(run.join("checkpoints"));
    for later in checkpoints.list().unwrap().into_iter().filter(|&later| later > iteration) {
        fs::remove_dir_all(checkpoints.path(later)).unwrap();
    }
    run
}

/// Checks that a run killed after each of these iterations resumes bit-identical, and returns the resumed
/// runs.
fn assert_resumes(dir: &TestDir, name: &str, iterations: &[u64]) -> Vec<PathBuf> {
    let continued = |&iteration: &u64| {
        let run = killed_after(dir, name, iteration);
        let ran = dir.run(&["train", run.to_str().unwrap()]).expect(0);
        assert!(ran.err.contains(&format!("resumed after iteration {iteration}\n")), "{}", ran.err);
        assert_eq!(RunResult::read(&run), RunResult::read(&dir.path(name)), "after iteration {iteration}");
        run
    };
    iterations.iter().map(continued).collect()
}

/// A column of `epochs.csv`.
fn column(run: &Path, name: &str) -> Vec<f64> {
    let text = fs::read_to_string(run.join("epochs.csv")).unwrap();
    let mut lines = text.lines();
    let dir = lines.next().unwrap().split(',').position(|column| column == name).unwrap();
    lines.map(|line| line.split(',').nth(dir).unwrap().parse().unwrap()).collect()
}

#[test]
fn every_schedule_warms_up() {
    let dir = test_dir();
    for name in ["constant", "step", "cosine", "poly", "one_cycle"] {
        let schedule = format!("schedule.name={name}");
        train(&dir, name, &[&schedule, "schedule.warmup_epochs=1", "train.epochs=2", "train.seed=7"]);
        let iterations = RunResult::read(&dir.path(name)).iterations;
        let rate = |row: &String| row.split(',').nth(5).unwrap().parse::<f64>().unwrap();
        let rates: Vec<f64> = iterations.iter().map(rate).collect();
        let (first, top) = (rates[0], rates[4]);
        assert!((first * 5.0 - top).abs() < 1e-12, "{name}: {rates:?}");
        assert!(rates[..5].is_sorted() && rates[0] > 0.0, "{name}: {rates:?}");
        if name == "poly" {
            assert!((rates[9] - 0.01 * 0.2_f64.powf(0.9)).abs() < 1e-12, "{rates:?}");
        }
    }
    assert_resumes(&dir, "poly", &[3, 7]);
}

#[test]
fn early_stopping_reports_its_reason() {
    let dir = test_dir();
    // No epoch improves by this much, so the first stays the best.
    let settings = [
        "train.epochs=6",
        "train.early_stopping.patience=2",
        "train.early_stopping.measure=train_top1",
        "train.early_stopping.min_delta=0.99",
    ];
    let ran = train(&dir, "run", &settings);
    let run = dir.path("run");
    let of = |run: &Path| summary(run)["stopped_early"].clone();
    let best = column(&run, "train_top1")[0];
    let expected = serde_json::json!({"epoch": 3, "metric": "train_top1", "best": best, "best_epoch": 1});
    assert_eq!((of(&run), &summary(&run)["epochs"]), (expected.clone(), &3.into()));
    let text = format!("stopped early after epoch 3: train_top1 has not improved since epoch 1 ({best:.4})");
    assert!(ran.err.contains(&text), "{}", ran.err);
    assert!(ran.out.contains(&text), "{}", ran.out);
    assert!(fs::read_to_string(run.join("log.txt")).unwrap().contains(&text));
    let again = dir.run(&["train", "run"]).expect(0);
    assert!(again.err.contains("is complete: nothing is left to train"), "{}", again.err);
    // Also if it was killed before the last summary.
    for run in assert_resumes(&dir, "run", &[2, 7, 10, 3 * PER_EPOCH]) {
        assert_eq!(of(&run), expected);
    }
    // A run does not stop early in its last epoch.
    train(&dir, "short", &[&settings[1..], &["train.epochs=3"]].concat());
    assert!(summary(&dir.path("short")).get("stopped_early").is_none());
}

#[test]
fn best_checkpoint_is_kept() {
    let dir = test_dir();
    let settings = ["train.epochs=8", "optimiser.learning_rate=0.05", "checkpoint.keep_best=val_top1"];
    train(&dir, "run", &settings);
    let run = dir.path("run");
    let measured = column(&run, "val_top1");
    let value = measured.iter().copied().fold(0.0, f64::max);
    let epoch = measured.iter().position(|&measured| measured == value).unwrap() as u64 + 1;
    assert!((2..7).contains(&epoch), "the test wants a best epoch in between: {measured:?}");
    let iteration = epoch * PER_EPOCH;
    let best =
        serde_json::json!({"metric": "val_top1", "value": value, "epoch": epoch, "iteration": iteration});
    assert_eq!(summary(&run)["best"], best);
    for run in assert_resumes(&dir, "run", &[iteration - 1, iteration, iteration + 1, 39]) {
        assert_eq!(summary(&run)["best"], best);
    }

    // It is kept besides the two newest checkpoints.
    let few = ["checkpoint.keep=2", "checkpoint.every_seconds=0"];
    train(&dir, "few", &[&settings[..], &few].concat());
    let few = dir.path("few");
    let checkpoints = Checkpoints::new(few.join("checkpoints"));
    assert_eq!(checkpoints.list().unwrap(), [iteration, 35, 40]);
    assert_eq!(RunResult::read(&few), RunResult::read(&run));

    let ran = dir.run(&["eval", "few", "--checkpoint", "best", "--json"]).expect(0);
    let evaluated: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&evaluated["iteration"], &evaluated["top1"]), (&iteration.into(), &value.into()));
    assert_eq!(evaluated["loss"], column(&few, "val_loss")[epoch as usize - 1]);
    dir.run(&["model", "export", "few", "--checkpoint", "best", "--safetensors", "best.safetensors"])
        .expect(0);
    let exported = read_safetensors(&fs::read(dir.path("best.safetensors")).unwrap()).unwrap();
    let kept = checkpoints.load(iteration).unwrap().weights;
    for tensor in &exported {
        assert!(kept.contains(tensor), "{}", tensor.name);
    }
    assert_eq!(exported.len(), kept.len());

    let none = dir.run(&["eval", "run_39", "--checkpoint", "40"]);
    assert_eq!(none.code, Some(0), "{}", none.err);
    train(&dir, "plain", &["train.epochs=1"]);
    let ran = dir.run(&["eval", "plain", "--checkpoint", "best"]).expect(1);
    assert!(ran.err.contains("there is no best checkpoint; train with checkpoint.keep_best"), "{}", ran.err);
    let ran = dir.run(&["eval", "plain", "--checkpoint", "bset"]).expect(2);
    assert!(ran.err.contains("use a number of iterations, or `best`"), "{}", ran.err);
}

fn checkpoint(run: &Path, iteration: u64) -> Checkpoint {
    Checkpoints::new(run.join("checkpoints")).load(iteration).unwrap()
}

/// The values of the f32 tensors, by name.
fn numbers(tensors: &[Tensor]) -> Vec<(&str, &[f32])> {
    let mut found = Vec::new();
    for tensor in tensors {
        if let Values::F32(values) = &tensor.values {
            found.push((tensor.name.as_str(), values.as_slice()));
        }
    }
    found
}

#[test]
fn averaged_weights_are_evaluated_exported_and_resumed() {
    let dir = test_dir();
    let settings = ["train.epochs=3", "train.ema_decay=0.8", "optimiser.learning_rate=0.05"];
    let ran = train(&dir, "run", &settings);
    let text = "evaluation and export use the moving average of the weights, decay 0.8";
    assert!(ran.err.contains(text) && ran.out.contains("averaged weights, decay 0.8"), "{}", ran.out);
    let run = dir.path("run");
    assert_eq!(summary(&run)["final"]["val_ema_decay"], 0.8);

    // Averaging does not change training.
    train(&dir, "plain", &[settings[0], settings[2]]);
    let plain = dir.path("plain");
    assert_eq!(RunResult::read(&plain).weights, RunResult::read(&run).weights);
    assert_eq!(RunResult::read(&plain).iterations, RunResult::read(&run).iterations);
    assert!(column(&plain, "val_loss") != column(&run, "val_loss"));
    assert!(checkpoint(&plain, 15).averaged.is_none());

    // Each average combines the previous one and the new weights, statistics included.
    for iteration in 1..3 * PER_EPOCH {
        let [before, after] = [iteration, iteration + 1].map(|iteration| checkpoint(&run, iteration));
        let (averages, old) = (after.averaged.unwrap(), before.averaged.unwrap());
        let t = iteration as f64;
        let gain = 1.0 - 0.8_f64.min((1.0 + t) / (10.0 + t));
        let (averages, old, new) = (numbers(&averages), numbers(&old), numbers(&after.weights));
        assert!(
            averages.len() == new.len() && averages.iter().any(|(name, _)| name.ends_with("running_var"))
        );
        for ((average, old), new) in averages.iter().zip(old).zip(new) {
            assert!(average.0 == old.0 && average.0 == new.0);
            for ((average, old), new) in average.1.iter().zip(old.1).zip(new.1) {
                let expected = f64::from(*old) + gain * (f64::from(*new) - f64::from(*old));
                assert_eq!(*average, expected as f32);
            }
        }
    }

    let ran = dir.run(&["eval", "run", "--json"]).expect(0);
    let evaluated: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (&evaluated["averaged"], &evaluated["loss"]),
        (&true.into(), &column(&run, "val_loss")[2].into())
    );
    let ran = dir.run(&["eval", "run"]).expect(0);
    assert!(ran.out.contains("the moving average of "), "{}", ran.out);
    dir.run(&["model", "export", "run", "--safetensors", "averaged.safetensors"]).expect(0);
    let exported = read_safetensors(&fs::read(dir.path("averaged.safetensors")).unwrap()).unwrap();
    let averaged = checkpoint(&run, 15).averaged.unwrap();
    assert!(exported.len() == averaged.len() && exported.iter().all(|tensor| averaged.contains(tensor)));
    // A run that starts from averaged weights also initialises its averages with them.
    let more = ["train.epochs=1", "train.ema_decay=0.8"];
    dir.run(&arguments(&["train", "net.toml", "--weights", "run", "--out", "next"], &more)).expect(0);
    let first = checkpoint(&dir.path("next"), 0);
    assert_eq!(numbers(&first.weights), numbers(&averaged));
    assert_eq!(numbers(&first.averaged.unwrap()), numbers(&averaged));

    for again in assert_resumes(&dir, "run", &[1, 5, 7]) {
        assert_eq!(checkpoint(&again, 15).averaged.unwrap(), averaged);
    }
    // A checkpoint with a damaged average is damaged: the previous one is used.
    let damaged = killed_after(&dir, "run", 9);
    let file = checkpoint(&damaged, 9).path.join("averaged.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let ran = dir.run(&["train", damaged.to_str().unwrap()]).expect(0);
    assert!(ran.err.contains("averaged.safetensors: its SHA-256 does not match the manifest"), "{}", ran.err);
    assert_eq!(RunResult::read(&damaged), RunResult::read(&run));
}

/// Without momentum and decay, the weights change by the learning rate times the clipped norm.
#[test]
fn gradients_are_clipped() {
    let dir = test_dir();
    let settings = [
        "train.epochs=2",
        "optimiser.learning_rate=1",
        "optimiser.momentum=0",
        "train.clip_norm=0.01",
        "train.ema_decay=0.9",
    ];
    train(&dir, "run", &settings);
    let run = dir.path("run");
    for iteration in 1..10 {
        let [before, after] = [iteration, iteration + 1].map(|iteration| checkpoint(&run, iteration).weights);
        let moved = numbers(&before).into_iter().zip(numbers(&after));
        let moved = moved.filter(|((name, _), _)| !name.contains("running"));
        let squares = moved.flat_map(|((_, before), (_, after))| {
            before.iter().zip(after).map(|(before, after)| (f64::from(*after) - f64::from(*before)).powi(2))
        });
        let norm = squares.sum::<f64>().sqrt();
        assert!((norm - 0.01).abs() < 1e-5, "iteration {iteration}: {norm}");
    }
    assert_resumes(&dir, "run", &[3, 6]);
    // No gradient has this norm.
    train(&dir, "loose", &[&settings[..3], &["train.clip_norm=1e6"]].concat());
    train(&dir, "plain", &settings[..3]);
    assert_eq!(RunResult::read(&dir.path("loose")), RunResult::read(&dir.path("plain")));
}

/// Class weights from the configuration or from counts, also with mixed and smoothed labels, on each backend,
/// and bit-identical after interruptions.
#[test]
fn class_weights_change_the_loss() {
    let dir = test_dir();
    let first_loss = |name: &str| {
        let text = fs::read_to_string(dir.path(name).join("iterations.csv")).unwrap();
        text.lines().nth(1).unwrap().split(',').nth(2).unwrap().parse::<f64>().unwrap()
    };
    train(&dir, "plain", &["train.epochs=1"]);
    // All classes are equally frequent: each weight is 1, and the loss is that without weights.
    train(&dir, "counted", &["train.epochs=1", "train.class_weighting=median_frequency"]);
    let recorded = fs::read_to_string(dir.path("counted/experiment.toml")).unwrap();
    assert!(recorded.contains("class_weights = [1.0, 1.0, 1.0, 1.0,"), "{recorded}");
    assert!((first_loss("counted") - first_loss("plain")).abs() < 1e-6);

    let weights = "train.class_weights=[0.5, 2, 1, 1, 0, 3, 1, 1, 0.25, 1]";
    let mixed = ["train.label_smoothing=0.1", "data.augment.mixup=0.4"];
    for (name, device, more) in [
        ("reference", "train.device=reference", &[][..]),
        ("native", "train.device=auto", &[]),
        ("mixed", "train.device=reference", &mixed),
        ("native_mixed", "train.device=auto", &mixed),
    ] {
        train(&dir, name, &[&["train.epochs=2", "train.precision=f32", device, weights], more].concat());
        assert_resumes(&dir, name, &[3, 6]);
    }
    let near = |[one, other]: [&str; 2]| (first_loss(one) - first_loss(other)).abs() < 1e-4;
    assert!(near(["native", "reference"]) && near(["native_mixed", "mixed"]));
    assert!((first_loss("reference") - first_loss("plain")).abs() > 1e-4);

    for (setting, problem) in [
        ("train.class_weights=[1, 2]", "has 2 numbers"),
        ("train.class_weights=[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]", "are all 0"),
        ("train.class_weights=[1, 1, 1, 1, 1, 1, 1, 1, 1, -1]", "class_weights"),
    ] {
        let ran = dir.run(&arguments(&["train", "net.toml", "--out", "wrong"], &[setting])).expect(2);
        assert!(ran.err.contains(problem), "{}", ran.err);
        assert!(!dir.path("wrong").exists());
    }
}

/// All parts at once, on the CPU kernels and with bf16 copies of weights.
#[test]
fn full_recipe_resumes_bit_identical() {
    let dir = test_dir();
    for precision in ["f32", "bf16"] {
        if !has_precision(precision) {
            continue;
        }
        let settings = [
            &format!("train.precision={precision}"),
            "train.device=auto",
            "train.epochs=4",
            "train.clip_norm=0.5",
            "train.ema_decay=0.9",
            "train.early_stopping.patience=2",
            "train.early_stopping.min_delta=0.9",
            "checkpoint.keep_best=val_loss",
            "schedule.name=poly",
            "schedule.warmup_epochs=0.5",
        ];
        train(&dir, precision, &settings);
        let run = dir.path(precision);
        assert_eq!(summary(&run)["stopped_early"]["epoch"], 3);
        for again in assert_resumes(&dir, precision, &[2, 5, 11]) {
            assert_eq!(summary(&again)["best"], summary(&run)["best"]);
            assert_eq!(checkpoint(&again, 15).averaged, checkpoint(&run, 15).averaged);
        }
        let ran = dir.run(&["eval", precision, "--json", "--checkpoint", "15"]).expect(0);
        let evaluated: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(evaluated["loss"], column(&run, "val_loss")[2]);
    }
}

/// An extended run equals a run that was configured with all epochs from the start.
#[test]
fn completed_run_is_extended_by_epochs() {
    let dir = test_dir();
    let step =
        ["schedule.name=step", "schedule.step_epochs=2", "train.epochs=4", "validation.every_epochs=1"];
    train(&dir, "long", &step);
    let expected = RunResult::read(&dir.path("long"));
    train(&dir, "short", &[&step[..], &["train.epochs=2"]].concat());
    let rejected = dir.run(&["train", "short", "--extend-to", "2"]).expect(2);
    assert!(
        rejected.err.contains("short cannot be extended: it already trains 2 epochs"),
        "{}",
        rejected.err
    );
    let ran = dir.run(&["train", "short", "--extend-to", "4"]).expect(0);
    assert!(ran.err.contains("resumed after iteration 10"), "{}", ran.err);
    assert_eq!(RunResult::read(&dir.path("short")), expected);
    assert_eq!(summary(&dir.path("short"))["epochs"], 4);
    let log = fs::read_to_string(dir.path("short/log.txt")).unwrap();
    assert!(log.contains("extended from 2 to 4 epochs"), "{log}");
    // A learning rate that decays to the end of training would have decayed differently.
    train(&dir, "cosine", &["schedule.name=cosine", "train.epochs=2"]);
    let rejected = dir.run(&["train", "cosine", "--extend-to", "4"]).expect(2);
    assert!(
        rejected.err.contains("its schedule (cosine) depends on the number of epochs"),
        "{}",
        rejected.err
    );
    assert!(rejected.err.contains("--weights cosine"), "{}", rejected.err);
    let rejected = dir.run(&["train", "net.toml", "--extend-to", "4"]).expect(2);
    assert!(rejected.err.contains("--extend-to needs a run directory"), "{}", rejected.err);
}
