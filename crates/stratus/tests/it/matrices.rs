//! Every optimiser with every schedule: the learning rates are those of the published formulas, and the run
//! resumes bit-identical. `make test` has a part of the matrix with every optimiser and every schedule.

#![cfg(unix)]

use crate::common::tiny::{NET, arguments, copy, write_data};
use crate::common::{RunResult, TestDir};
use std::f64::consts::PI;
use std::fs;
use stratus_run::checkpoint::Checkpoints;
use stratus_testing::sample::sample;

/// The learning rate of an iteration over the highest one.
type Factor = fn(f64) -> f64;

/// The number of iterations per epoch, and of epochs.
const PER_EPOCH: u64 = 5;
const EPOCHS: u64 = 3;
/// The name of each optimiser, its highest learning rate, and its settings.
const OPTIMISERS: [(&str, f64, &[&str]); 6] = [
    ("sgd", 0.02, &["optimiser.momentum=0.8", "optimiser.weight_decay=0.001"]),
    ("sgd", 0.02, &["optimiser.nesterov=true"]),
    ("adam", 0.005, &["optimiser.weight_decay=0.001"]),
    ("adamw", 0.005, &["optimiser.weight_decay=0.1"]),
    ("adagrad", 0.02, &[]),
    ("adadelta", 0.5, &["optimiser.rho=0.8"]),
];
/// The name of each schedule, its settings, and its factor.
const SCHEDULES: [(&str, &[&str], Factor); 5] = [
    ("constant", &[], |_| 1.0),
    ("step", &["schedule.step_epochs=1", "schedule.gamma=0.5"], |at| {
        0.5_f64.powf((at / PER_EPOCH as f64).floor())
    }),
    ("cosine", &[], |at| 0.5 * (1.0 + (PI * at / TOTAL).cos())),
    ("poly", &["schedule.power=0.7"], |at| (1.0 - at / TOTAL).powf(0.7)),
    // Two phases of 5 and 10 iterations, which share the peak: 4 and 10 intervals.
    ("one_cycle", &["schedule.peak_at=0.3333333333333333", "schedule.initial_divisor=10"], |at| {
        let half_cosine = |from: f64, to: f64, done: f64| to + (from - to) * 0.5 * (1.0 + (PI * done).cos());
        if at < 4.0 { half_cosine(0.1, 1.0, at / 4.0) } else { half_cosine(1.0, 1e-5, (at - 4.0) / 10.0) }
    }),
];
const TOTAL: f64 = (PER_EPOCH * EPOCHS) as f64;

#[test]
fn every_optimiser_follows_every_schedule_and_resumes() {
    let dir = TestDir::without_kernel_cache();
    write_data(&dir.path("data"));
    fs::write(dir.path("net.toml"), NET).unwrap();
    let mut weights = Vec::new();
    for (row, (optimiser, highest, settings)) in OPTIMISERS.into_iter().enumerate() {
        for (schedule, more, factor) in sample(SCHEDULES, SCHEDULES.len(), row) {
            let name = format!("{row}-{schedule}");
            let keys = [
                format!("optimiser.name={optimiser}"),
                format!("optimiser.learning_rate={highest}"),
                format!("schedule.name={schedule}"),
                format!("train.epochs={EPOCHS}"),
            ];
            let common = ["checkpoint.every_seconds=1e-9", "checkpoint.keep=1000"];
            let keys: Vec<&str> = keys.iter().map(String::as_str).chain(common).collect();
            let all = [&keys[..], settings, more].concat();
            dir.run(&arguments(&["train", "net.toml", "--out", &name], &all)).expect(0);
            let whole = RunResult::read(&dir.path(&name));
            for (at, iteration) in whole.iterations.iter().enumerate() {
                let rate: f64 = iteration.split(',').nth(5).unwrap().parse().unwrap();
                let expected = highest * factor(at as f64);
                assert!(
                    (rate - expected).abs() <= 1e-12 * highest,
                    "{name}, iteration {at}: {rate}, not {expected}"
                );
            }

            // As if killed after an iteration that differs between runs.
            let killed = dir.path(&format!("{name}-killed"));
            copy(&dir.path(&name), &killed);
            fs::remove_file(killed.join("summary.json")).unwrap();
            let checkpoints = Checkpoints::new(killed.join("checkpoints"));
            let last = 1 + (3 * row as u64 + schedule.len() as u64) % (PER_EPOCH * EPOCHS - 2);
            for later in checkpoints.list().unwrap().into_iter().filter(|&at| at > last) {
                fs::remove_dir_all(checkpoints.path(later)).unwrap();
            }
            let ran = dir.run(&["train", killed.to_str().unwrap()]).expect(0);
            assert!(ran.err.contains(&format!("resumed after iteration {last}\n")), "{}", ran.err);
            assert_eq!(RunResult::read(&killed), whole, "{name} after iteration {last}");
            weights.push(whole);
        }
    }
    // No two of them are the same training.
    for (at, run) in weights.iter().enumerate() {
        assert!(!weights[..at].contains(run), "run {at}");
    }
}
