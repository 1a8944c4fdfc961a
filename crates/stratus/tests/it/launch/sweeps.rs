//! Launches of sweeps and of several workers.

use super::{launch, target, text, wait_for_end};
use crate::common::{RunResult, TestDir, digits};
use crate::workers::has_mpi;
use std::fs;

#[test]
fn remote_sweep_is_compared_locally() {
    let dir = TestDir::new();
    target(&dir, "here", "kind = \"local\"", "there");
    let sweep = format!(
        "[model]\nname = \"digits\"\n\n[data]\npath = {:?}\nverify = false\n\n[train]\nepochs = 1\n\
         batch_size = 256\nseed = 7\n\n[checkpoint]\nevery_seconds = 0.05\n\n[sweep]\n\
         repetitions = 2\n\n[sweep.keys]\n\"optimiser.learning_rate\" = [0.05, 0.1]\n",
        digits()
    );
    fs::write(dir.path("rates.toml"), sweep).unwrap();
    for (arguments, problem) in [
        (
            &["launch", "here", "rates.toml", "--repetitions", "2"][..],
            "--repetitions cannot be used with a sweep",
        ),
        (&["launch", "here", "rates.toml", "--set", "train.epoch=1"], "train.epochs"),
    ] {
        let message = dir.run(arguments).expect(2).err;
        assert!(message.contains(problem), "{message}");
    }
    assert!(!dir.path("sweeps").exists());
    let launched = dir.run(&["launch", "here", "rates.toml", "--json"]).expect(0).out;
    let launched: serde_json::Value = serde_json::from_str(&launched).unwrap();
    assert_eq!(launched["sweep"], "sweeps/rates");
    assert_eq!(launched["runs"].as_array().unwrap().len(), 4);
    assert_eq!(launched["runs"][3], "sweeps/rates/runs/2/2");
    let twice = dir.run(&["launch", "here", "rates.toml"]).expect(2).err;
    assert!(twice.contains("the sweep already exists"), "{twice}");
    assert_eq!(wait_for_end(&dir), ["completed"; 4]);
    dir.run(&["launch", "fetch"]).expect(0);
    dir.run(&["sweep", "sweeps/rates"]).expect(0);
    let cells = fs::read_to_string(dir.path("sweeps/rates/cells.csv")).unwrap();
    assert_eq!(cells.matches(",completed,").count(), 4, "{cells}");
    // The second repetition with the second learning rate.
    dir.train("near", 1, &["--set", "train.seed=8", "--set", "optimiser.learning_rate=0.1"]).expect(0);
    assert_eq!(RunResult::read(&dir.path("sweeps/rates/runs/2/2")), RunResult::read(&dir.path("near")));
}

#[test]
fn remote_workers_are_bit_identical_to_one_local_worker() {
    if !has_mpi() {
        return;
    }
    let dir = TestDir::new();
    target(&dir, "here", "kind = \"local\"", "there");
    let more = ["--workers", "2", "--set", "train.parts=2", "--set", "train.threads=1"];
    let launched = launch(&dir, "here", 1, &more);
    assert_eq!(wait_for_end(&dir), ["completed"]);
    dir.run(&["launch", "fetch"]).expect(0);
    let log = dir.path(&format!("there/jobs/{}/1/log.txt", text(&launched, "id")));
    assert!(fs::read_to_string(log).unwrap().contains("worker"), "trained by several workers");
    let alone = ["--set", "train.seed=7", "--set", "train.parts=2", "--set", "train.threads=1"];
    dir.train("near", 1, &alone).expect(0);
    assert_eq!(RunResult::read(&dir.path("runs/digits/1")), RunResult::read(&dir.path("near")));

    let cloud = "[cloud]\nkind = \"sky\"\nbucket = \"s3://lab\"\n";
    fs::write(dir.path("targets.toml"), cloud).unwrap();
    let data = format!("data.path={}", digits().display());
    let message = dir.run(&["launch", "cloud", "digits", "--workers", "2", "--dry-run", "--set", &data]);
    assert!(message.expect(2).err.contains("--workers cannot be used with cloud targets"));
}
