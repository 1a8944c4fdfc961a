//! `stratus optimise` makes the network of a run smaller; `stratus bench infer` measures latency.

use crate::common::{RunResult, SplitMix64, TestDir, digits, json, summary};
use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

/// The arguments that prune the run to the folder `small`.
const PRUNE: [&str; 9] =
    ["optimise", "run", "--prune", "0.4", "--granularity", "4", "--out", "small", "--calibration-batches=4"];

#[test]
fn a_pruned_run_is_a_smaller_run_of_its_own() {
    let dir = TestDir::trained();
    let original = fs::read(dir.path("run/summary.json")).unwrap();
    let report = json(&dir.run(&[&PRUNE[..], &["--json"]].concat()).expect(0).out);
    assert_eq!(report["run"], "small");
    let [before, after] = [0, 1].map(|at| report["pruning"]["multiply_adds"][at].as_u64().unwrap());
    assert!(after as f64 <= 0.6 * before as f64 && after as f64 > 0.4 * before as f64, "{before} {after}");
    // The counts are those of the smaller network everywhere.
    let variants = report["variants"].as_array().unwrap();
    for variant in variants {
        let is_pruned = variant["variant"].as_str().unwrap().starts_with("pruned ");
        let expected = if is_pruned { after } else { before };
        assert_eq!(variant["multiply_adds"].as_u64().unwrap(), expected, "{variant}");
        assert!(variant["ms_median"].as_f64().unwrap() > 0.0 && variant["measure"].as_f64().unwrap() > 0.5);
    }
    assert!(variants.len() >= 2, "{report}");
    let table = fs::read_to_string(dir.path("small/variants.csv")).unwrap();
    let header = "variant,measure,ms_median,ms_p99,ms_batch8,bytes,multiply_adds";
    assert_eq!(table.lines().next().unwrap(), header);
    assert_eq!(table.lines().count(), variants.len() + 1);
    // It is evaluated, described and reported as any other run; the original is untouched.
    let evaluated = json(&dir.run(&["eval", "small", "--json"]).expect(0).out);
    assert_eq!(evaluated["measures"]["top1"], summary(&dir.path("small"))["final"]["val_top1"]);
    dir.run(&["report", "small"]).expect(0);
    dir.run(&["bench", "infer", "small", "--runs", "2", "--batch", "1"]).expect(0);
    assert_eq!(fs::read(dir.path("run/summary.json")).unwrap(), original);
    // The model that other programs run is the folded, smaller network.
    dir.run(&["model", "import", "small/network.onnx", "-o", "imported"]).expect(0);
    let layers = fs::read_to_string(dir.path("imported/network.toml")).unwrap();
    assert!(!layers.contains("batch_norm2d") && layers.contains("conv2d"), "{layers}");
    // The same request again only compares again; another one is refused.
    let weights = RunResult::read(&dir.path("small")).weights;
    dir.run(&PRUNE).expect(0);
    assert_eq!(RunResult::read(&dir.path("small")).weights, weights);
    let other = dir.run(&[&PRUNE[..], &["--importance", "l1"]].concat()).expect(2);
    assert!(other.err.contains("`importance` was \"taylor\", not \"l1\""), "{}", other.err);
    let other = dir.run(&[&PRUNE[..], &["--int8"]].concat()).expect(2);
    assert!(other.err.contains("`int8` was not set, not {"), "{}", other.err);
    lists_and_tables_show_what_was_optimised(&dir);
    damage_is_named_before_anything_is_computed(&dir);
}

/// `small` is an optimised run.
fn lists_and_tables_show_what_was_optimised(dir: &TestDir) {
    let list = json(&dir.run(&["runs", ".", "--json"]).expect(0).out);
    let networks: Vec<&str> =
        list["runs"].as_array().unwrap().iter().map(|run| run["network"].as_str().unwrap()).collect();
    assert!(networks.contains(&"digits") && networks.contains(&"digits, optimised"), "{networks:?}");
    let table = dir.run(&["collect", "small"]).expect(0).out;
    let file = fs::read_to_string(dir.path("small/variants.csv")).unwrap();
    for row in file.lines().skip(1) {
        let [variant, _, ms, ..] = row.split(',').collect::<Vec<_>>()[..] else { panic!("{row}") };
        let shown = table.lines().find(|line| line.starts_with(variant)).unwrap();
        assert!(shown.contains(ms), "{shown}, {row}");
    }
    assert!(table.contains("layer that lost channels"), "{table}");
    let said = dir.run(&["collect", "small", "--variants", "--out", "all.csv"]).expect(0).err;
    assert!(said.contains(&format!("{} rows of 1 run\n", file.lines().count() - 1)), "{said}");
    let columns = fs::read_to_string(dir.path("all.csv")).unwrap();
    let rows: Vec<&str> = columns.lines().map(|line| line.split_once(',').unwrap().1).collect();
    assert_eq!(rows[0], file.lines().next().unwrap());
    assert_eq!(rows.len(), file.lines().count());
    let chart = ["report", "small", "--format", "svg", "--chart", "variants", "-o", "-"];
    assert!(dir.run(&chart).expect(0).out.contains("class=\"point update\""));
    let none = ["report", "run", "--format", "svg", "--chart", "variants", "-o", "-"];
    assert!(dir.run(&none).expect(1).err.contains("stratus optimise"));
    // At 30 columns, no row of the table is wrapped.
    let narrow = dir.command(&PRUNE).env("COLUMNS", "30").output().unwrap();
    let narrow = String::from_utf8(narrow.stdout).unwrap();
    assert!(narrow.lines().next().unwrap().starts_with("network"), "{narrow}");
    for (line, row) in narrow.lines().zip(file.lines()).skip(1) {
        let name = row.split(',').next().unwrap();
        assert!(line.starts_with(name) && line.chars().count() <= 40, "{narrow}");
    }
}

/// `small` is an optimised run; each file of it is restored.
fn damage_is_named_before_anything_is_computed(dir: &TestDir) {
    let damaged = |file: &str, content: Option<&str>, expected: &str| {
        let path = dir.path("small/optimise").join(file);
        let saved = fs::read(&path).unwrap();
        match content {
            Some(content) => fs::write(&path, content).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let error = dir.run(&PRUNE).expect(1).err;
        assert!(error.contains(expected) && !error.contains("comparing"), "{error}");
        for word in ["struct", "OptimiseRequest", "Pruning", "u64", "field"] {
            assert!(!error.contains(word), "{word}: {error}");
        }
        fs::write(&path, saved).unwrap();
    };
    damaged(
        "request.json",
        Some("{\"run\": \"run\"}"),
        "request.json is damaged: not the expected JSON (the key `",
    );
    damaged("request.json", Some("[]"), "request.json is damaged");
    damaged("request.json", Some("{\"run\": 7}"), "another value was expected at line 1");
    damaged("pruning.json", None, "pruning.json");
    damaged("pruning.json", Some("{"), "pruning.json is damaged: not the expected JSON (it ends at line 1");
}

#[test]
fn data_that_moved_are_read_from_their_new_place() {
    let dir = TestDir::new();
    std::os::unix::fs::symlink(digits(), dir.path("data")).unwrap();
    dir.train("run", 1, &["--set", "data.path=data"]).expect(0);
    fs::rename(dir.path("data"), dir.path("moved")).unwrap();
    assert!(dir.run(&PRUNE).expect(1).err.contains("data"));
    dir.run(&[&PRUNE[..], &["--set", "data.path=moved"]].concat()).expect(0);
}

#[test]
fn killed_at_random_it_has_the_same_weights() {
    let kills = std::env::var("STRATUS_KILLS").map_or(4, |kills| kills.parse::<u64>().unwrap().min(20));
    let dir = TestDir::trained();
    let epochs = ["--epochs", "2", "--set", "checkpoint.every_seconds=0.05"];
    dir.run(&[&PRUNE[..], &epochs].concat()).expect(0);
    let expected = RunResult::read(&dir.path("small"));
    fs::rename(dir.path("small"), dir.path("uninterrupted")).unwrap();
    let mut random = SplitMix64(7);
    for _ in 0..kills {
        let mut command = dir.command(&[&PRUNE[..], &epochs].concat());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        sleep(Duration::from_millis(random.next_below(1500)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    dir.run(&[&PRUNE[..], &epochs].concat()).expect(0);
    assert_eq!(RunResult::read(&dir.path("small")), expected);
}

#[test]
fn impossible_requests_are_refused_before_anything_is_written() {
    let dir = TestDir::trained();
    let refused = |arguments: &[&str], code: i32, message: &str| {
        let error = dir.run(arguments).expect(code).err;
        assert!(error.contains(message), "{arguments:?}: {error}");
        assert!(!dir.path("run-optimised").exists() && !dir.path("other").exists(), "{arguments:?}");
    };
    refused(&["optimise", "nothing", "--prune", "0.5"], 2, "nothing");
    refused(&["optimise", "run"], 2, "--prune");
    refused(&["optimise", "run", "--prune", "1.5"], 2, "must be above 0 and below 1");
    refused(&["optimise", "run", "--prune", "0.9"], 2, "at most");
    refused(&["optimise", "run", "--prune", "0.5", "--granularity", "4096"], 2, "nothing can be pruned");
    let seventh = ["optimise", "run", "--prune", "0.3", "--granularity", "4", "--checkpoint", "7"];
    refused(&seventh, 1, "checkpoint 7: not in run, which has ");
    let export = ["model", "export", "run", "--onnx", "model.onnx"];
    for command in [&["eval", "run"][..], &["bench", "infer", "run"], &export] {
        let error = dir.run(&[command, &["--checkpoint", "7"]].concat()).expect(1).err;
        assert!(error.contains("checkpoint 7: not in run, ") && !error.contains("manifest"), "{error}");
    }
    // What only the fine-tuning needs is checked before channels are removed.
    let set = |key: &str, message: &str| {
        let of_key = ["optimise", "run", "--prune", "0.3", "--granularity", "4", "--set", key];
        refused(&of_key, 2, message);
        let error = dir.run(&of_key).expect(2).err;
        assert!(!error.contains("network.toml") && !error.contains("pruned:"), "{error}");
    };
    set("data.shape=[1, 32, 32]", "`data.shape` cannot be set when optimising");
    set("train.device=cuda", "device `cuda`");
    set("train.batch_size=1000000", "exceeds the");
    set("train.precision=f16", "train.precision = f16 is not supported");
    let start =
        dir.run(&["optimise", "run", "--prune", "0.3", "--granularity", "4", "--set", "data.resize=8"]);
    assert!(!dir.path("run-optimised").exists(), "{}", start.err);
    start.expect(2);
    // In an empty folder, nothing remains of a start that failed; in one with files of someone else's, these.
    fs::create_dir_all(dir.path("empty")).unwrap();
    let into = |out: &str| {
        let failing = ["--granularity", "4", "--set", "data.resize=8", "--out", out];
        dir.run(&[&["optimise", "run", "--prune", "0.3"][..], &failing].concat()).expect(2);
    };
    into("empty");
    assert_eq!(fs::read_dir(dir.path("empty")).unwrap().count(), 0);
    fs::create_dir_all(dir.path("empty/optimise")).unwrap();
    fs::write(dir.path("empty/optimise/notes.txt"), "mine").unwrap();
    into("empty");
    assert_eq!(fs::read_dir(dir.path("empty/optimise")).unwrap().count(), 1);
    let key = ["optimise", "run", "--prune", "0.3", "--granularity", "4", "--set", "train.bacth_size=3"];
    refused(&key, 2, "train.batch_size");
    // Another run is not overwritten, nor a folder with files.
    dir.train("another", 1, &[]).expect(0);
    let error = dir.run(&["optimise", "run", "--prune", "0.3", "--out", "another"]).expect(2).err;
    assert!(error.contains("another is a run that `stratus optimise` did not make"), "{error}");
    fs::create_dir(dir.path("full")).unwrap();
    fs::write(dir.path("full/notes.txt"), "mine").unwrap();
    dir.run(&["optimise", "run", "--prune", "0.3", "--granularity", "4", "--out", "full"]).expect(2);
    assert_eq!(fs::read_dir(dir.path("full")).unwrap().count(), 1);
}

#[test]
fn unfinished_runs_are_refused() {
    let dir = TestDir::new();
    dir.train("run", 3, &["--until-epoch", "1"]).expect(0);
    let error = dir.run(&["optimise", "run", "--prune", "0.3"]).expect(2).err;
    assert!(error.contains("the run run is interrupted") && error.contains("stratus train run"), "{error}");
}

#[test]
fn a_directory_in_use_is_said_to_be_in_use() {
    let dir = TestDir::trained();
    let slow = ["--epochs", "1000"];
    let mut first = dir.command(&[&PRUNE[..], &slow].concat()).stderr(Stdio::null()).spawn().unwrap();
    while !dir.path("small/epochs.csv").exists() {
        assert!(first.try_wait().unwrap().is_none(), "the first command ended early");
        sleep(Duration::from_millis(20));
    }
    let in_use = format!("small is in use by another process (pid {})", first.id());
    let again = dir.run(&[&PRUNE[..], &slow].concat()).expect(1).err;
    assert!(again.contains(&in_use), "{again}");
    let train = dir.run(&["train", "digits", "--out", "small"]);
    assert!(train.err.contains(&in_use), "{}", train.err);
    first.kill().unwrap();
    first.wait().unwrap();
    let train = dir.run(&["train", "digits", "--out", "small"]);
    assert!(train.err.contains("exists and is not empty"), "{}", train.err);
}

#[test]
fn latency_is_measured_by_batch_and_layer() {
    let dir = TestDir::trained();
    let arguments = ["bench", "infer", "run", "--batch", "8,1,8", "--threads", "1", "--runs", "3", "--json"];
    let report = json(&dir.run(&arguments).expect(0).out);
    let batches = report["batches"].as_array().unwrap();
    let sizes: Vec<u64> = batches.iter().map(|batch| batch["batch"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [1, 8]);
    for batch in batches {
        let ms = |key: &str| batch[key].as_f64().unwrap();
        assert!(0.0 < ms("ms_median") && ms("ms_median") <= ms("ms_p90") && ms("ms_p90") <= ms("ms_p99"));
        let rate = ms("batch") * 1e3 / ms("ms_median");
        assert!((ms("images_per_second") / rate - 1.0).abs() < 1e-9);
        let shares = batch["steps"].as_array().unwrap().iter().map(|step| step["percent"].as_f64().unwrap());
        assert!((shares.sum::<f64>() - 100.0).abs() < 1e-6);
    }
    let text = dir.run(&["bench", "infer", "run", "--runs", "2", "--batch", "1"]).expect(0).out;
    assert!(text.contains("% of peak") && text.contains("layer1.0"), "{text}");
    let once = dir.run(&["bench", "infer", "run", "--runs", "1", "--batch", "1"]).expect(0).out;
    assert!(once.contains(", 1 run per batch size"), "{once}");
    // A network without a run has initial weights; its data need not exist.
    let data = format!("data.path={}", digits().join("absent").display());
    dir.run(&["bench", "infer", "digits", "--runs", "2", "--batch", "1", "--set", &data]).expect(0);
}
