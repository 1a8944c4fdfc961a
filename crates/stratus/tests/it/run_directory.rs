//! The run directory: every documented file with its columns and keys, consistent numbers, and reproducible
//! bits.

#![cfg(unix)]

use crate::common::{
    CommandOutput, EPOCHS_HEADER, ITERATIONS_HEADER, PER_EPOCH, RunResult, TestDir, rows, summary,
};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// A run of one epoch and the output of `train --json`.
struct SharedRun {
    dir: TestDir,
    ran: CommandOutput,
    result: RunResult,
}

fn trained() -> &'static SharedRun {
    static TRAINED: OnceLock<SharedRun> = OnceLock::new();
    TRAINED.get_or_init(|| {
        let dir = TestDir::new();
        let ran = dir.train("run", 1, &["--json"]).expect(0);
        let result = RunResult::read(&dir.path("run"));
        SharedRun { dir, ran, result }
    })
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn sorted<const N: usize>(mut names: [&str; N]) -> Vec<&str> {
    names.sort_unstable();
    names.to_vec()
}

#[test]
fn run_directory_has_every_documented_file() {
    let SharedRun { dir, ran, result } = trained();
    let run = dir.path("run");
    let mut names: Vec<String> = fs::read_dir(&run)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "layers.csv")
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "checkpoints",
            "classes.csv",
            "data.json",
            "epochs.csv",
            "experiment.toml",
            "iterations.csv",
            "log.txt",
            "machine.json",
            "plan.json",
            "run.lock",
            "sources.json",
            "summary.json",
            "timeline",
            "usage.csv",
            "validation"
        ]
    );
    assert_eq!((result.iterations.len(), result.epochs.len()), (PER_EPOCH, 1));

    // The configuration is complete: reading and writing it changes nothing.
    let experiment = fs::read_to_string(run.join("experiment.toml")).unwrap();
    assert_eq!(dir.run(&["config", "show", "run"]).expect(0).out, experiment);
    for decided in ["shape = [1, 28, 28]", "mean = [0.1307]", "std = [0.3081]", "classes = 10"] {
        assert!(experiment.contains(&format!("\n{decided}\n")), "{experiment}");
    }
    for open in ["threads = 0\n", "precision = \"auto\"\n"] {
        assert!(!experiment.contains(open), "{experiment}");
    }

    let summary = summary(&run);
    assert_eq!(
        keys(&summary),
        sorted([
            "status",
            "experiment",
            "model",
            "dataset",
            "device",
            "threads",
            "data_workers",
            "precision",
            "batch_size",
            "epochs",
            "iterations",
            "images_per_second",
            "time",
            "accounting",
            "final",
            "forecast",
            "classes",
            "memory",
            "usage",
            "energy_wh",
            "cpu_energy_wh",
            "gpu_energy_wh",
            "weights_sha256",
            "resumed"
        ])
    );
    let parts: &[(&str, &[&str])] = &[
        ("images_per_second", &["median", "p10", "p90"]),
        ("time", &["checkpoint_s", "data_wait_s", "startup_s", "total_s", "train_s", "validation_s"]),
        (
            "usage",
            &[
                "cpu_percent_mean",
                "disk_read_bytes",
                "disk_write_bytes",
                "gpu_memory_peak_bytes",
                "gpu_percent_mean",
                "gpu_watts_mean",
                "net_bytes",
                "rss_peak_bytes",
                "sampling_percent",
                "stolen_percent",
            ],
        ),
        ("accounting", &["attributed_s", "iteration_s", "unattributed_percent"]),
        ("final", &["train_loss", "val_loss", "val_top1", "val_top5"]),
        ("memory", &["device_peak_bytes", "measured_peak_rss_bytes", "planned_peak_bytes"]),
    ];
    for (part, expected) in parts {
        assert_eq!(keys(&summary[part]), *expected, "{part}");
    }
    for (key, value) in [("experiment", "digits"), ("model", "digits"), ("dataset", "mnist")] {
        assert_eq!(summary[key], value);
    }
    for (key, value) in [("batch_size", 256), ("epochs", 1), ("iterations", PER_EPOCH), ("resumed", 0)] {
        assert_eq!(summary[key], value, "{key}");
    }

    let machine = json(&run.join("machine.json"));
    assert!(machine.is_object() && machine["cpu"]["model"].is_string(), "{machine}");

    // The printed report has the content of the file.
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(keys(&report), ["accounting", "run", "summary"]);
    assert_eq!((&report["run"], &report["summary"]), (&Value::from("run"), &summary));
}

#[test]
fn newest_checkpoint_is_from_the_end() {
    let SharedRun { dir, result, .. } = trained();
    let folder = dir.path(&format!("run/checkpoints/{PER_EPOCH:010}"));
    let mut names: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["manifest.json", "optimizer.safetensors", "state.json", "weights.safetensors"]);
    let state = json(&folder.join("state.json"));
    assert_eq!((&state["epoch"], &state["batch"]), (&Value::from(1), &Value::from(0)));
    assert_eq!(state["weights_sha256"], result.weights.as_str());
}

#[test]
fn planned_bytes_equal_allocated_bytes() {
    let SharedRun { dir, .. } = trained();
    let plans = json(&dir.path("run/plan.json"));
    let number = |plan: &Value, key: &str| plan[key].as_u64().unwrap();
    let all: Vec<&Value> = ["train", "tail", "evaluate", "refresh"].iter().map(|name| &plans[name]).collect();
    assert!(all.iter().all(|plan| plan.is_object()), "an epoch of 15,000 images ends with a smaller batch");
    let transient = all.iter().map(|plan| number(plan, "transient_bytes")).max().unwrap();
    for plan in &all {
        let persistent = number(plan, "persistent_bytes");
        assert_eq!(number(&plans, "arena_bytes"), persistent + transient);
        assert!(number(plan, "transient_lower_bound") <= number(plan, "transient_bytes"));
        let steps = plan["program"]["steps"].as_array().unwrap().len();
        assert_eq!(plan["steps"].as_array().unwrap().len(), steps);
    }
    // Besides the arena: the data set and the batches of the loader threads.
    let pixels = 17_500 * (28 * 28 + 1);
    let planned = summary(&dir.path("run"))["memory"]["planned_peak_bytes"].as_u64().unwrap();
    assert!(planned > number(&plans, "arena_bytes") + pixels, "{planned}");
}

/// The rows of the table are integer nanoseconds and add up exactly to the wall time.
#[test]
fn time_columns_add_up() {
    let SharedRun { dir, ran, .. } = trained();
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let accounting = &report["accounting"];
    let ns = |cost: &Value| cost["total_ns"].as_i64().unwrap();
    let mut sum = ns(&accounting["unattributed"]);
    for layer in accounting["layers"].as_array().unwrap() {
        let parts: i64 = ["forward", "backward", "update"].iter().map(|part| ns(&layer[part])).sum();
        assert_eq!(ns(&layer["total"]), parts, "{layer}");
        sum += parts;
    }
    for phase in accounting["phases"].as_array().unwrap() {
        sum += ns(&phase["cost"]);
    }
    let wall = ns(&accounting["wall"]);
    assert_eq!(sum, wall);
    let counted = accounting["iterations"].as_u64().unwrap() + accounting["skipped"].as_u64().unwrap();
    assert_eq!(counted, PER_EPOCH as u64);
    // No time is counted twice. The end of an iteration and its last stamp read the clock separately, so
    // small differences are possible.
    assert!(ns(&accounting["unattributed"]) > -wall / 1000, "{accounting}");

    // The table, the rows of the iterations and the summary agree.
    let all = dir.run(&["collect", "run", "--json", "--skip", "0"]).expect(0);
    let all: Value = serde_json::from_str(&all.out).unwrap();
    let wall_s = ns(&all[0]["accounting"]["wall"]) as f64 * 1e-9;
    let text = fs::read_to_string(dir.path("run/iterations.csv")).unwrap();
    let rows_s: f64 = text
        .lines()
        .skip(1)
        .map(|line| line.split(',').skip(6).map(|field| field.parse::<f64>().unwrap()).sum::<f64>())
        .sum();
    // Rows have six decimals: three fields, each off by at most half a microsecond.
    assert!((wall_s - rows_s).abs() < 1.5e-6 * PER_EPOCH as f64, "{wall_s} {rows_s}");
    let iteration_s = report["summary"]["accounting"]["iteration_s"].as_f64().unwrap();
    assert!((wall_s - iteration_s).abs() < 1e-6, "{wall_s} {iteration_s}");
}

#[test]
fn collect_writes_layers_on_request() {
    let SharedRun { dir, .. } = trained();
    let ran = dir.run(&["collect", "run", "--layers"]).expect(0);
    let text = fs::read_to_string(dir.path("run/layers.csv")).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("epoch,iteration,layer,kind,device,forward_us,backward_us,update_us"));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert!(ran.err.contains(&format!("layers.csv: {} rows", rows.len())), "{}", ran.err);
    assert_eq!(rows.len() % PER_EPOCH, 0);
    let per_iteration = rows.len() / PER_EPOCH;
    for (position, row) in rows.iter().enumerate() {
        assert_eq!(row.len(), 8);
        assert_eq!((row[0], row[1]), ("1", (position / per_iteration + 1).to_string().as_str()));
        assert!(row[5..].iter().all(|field| field.parse::<f64>().unwrap() >= 0.0));
    }
    let layers: Vec<&str> = rows[..per_iteration].iter().map(|row| row[2]).collect();
    for layer in
        ["layer1.0", "layer1.1", "layer1.2", "pool1", "layer2.0", "pool2", "layer3.0", "layer3.1", "fc"]
    {
        assert!(layers.iter().any(|name| name.split('+').any(|part| part == layer)), "{layer} in {layers:?}");
    }
}

#[test]
fn eval_repeats_the_bits_of_the_last_validation() {
    let SharedRun { dir, result, .. } = trained();
    // Without a cache of timed kernels, the kernels of the run are used.
    let elsewhere = TestDir::without_kernel_cache();
    let run = dir.path("run");
    let ran = elsewhere.run(&["eval", &run.display().to_string(), "--json"]).expect(0);
    let scores: Value = serde_json::from_str(&ran.out).unwrap();
    let [loss, top1, top5] = ["loss", "top1", "top5"].map(|key| scores[key].as_f64().unwrap());
    let row: Vec<&str> = result.epochs[0].split(',').collect();
    assert_eq!(row[3..], [format!("{loss:?}"), format!("{top1:?}"), format!("{top5:?}")]);
    assert_eq!(scores["weights_sha256"], result.weights.as_str());
    assert_eq!((&scores["samples"], &scores["iteration"]), (&Value::from(2500), &Value::from(PER_EPOCH)));
    assert!(top1 > 0.9, "did not learn: {top1}");
}

/// Writes sixteen training and validation images whose columns are ordered by `column`.
fn write_digits(dir: &TestDir, name: &str, column: fn(usize) -> usize) {
    let header = |kind: u8, sizes: &[u32]| -> Vec<u8> {
        let sizes = sizes.iter().flat_map(|size| size.to_be_bytes());
        [0, 0, 8, kind].into_iter().chain(sizes).collect()
    };
    let pixel = |at: usize| {
        let (image, y, x) = (at / 784, at / 28 % 28, column(at % 28));
        ((image * 31 + y * y * 5 + x * (image + y)) % 256) as u8
    };
    let images = [header(3, &[16, 28, 28]), (0..16 * 784).map(pixel).collect()].concat();
    let labels = [header(1, &[16]), (0..16).map(|image| image % 10).collect()].concat();
    fs::create_dir_all(dir.path(name)).unwrap();
    for split in ["train", "t10k"] {
        fs::write(dir.path(name).join(format!("{split}-images-idx3-ubyte")), &images).unwrap();
        fs::write(dir.path(name).join(format!("{split}-labels-idx1-ubyte")), &labels).unwrap();
    }
}

#[test]
fn eval_averages_images_and_their_mirror_images() {
    let SharedRun { dir, .. } = trained();
    write_digits(dir, "forth", |x| x);
    write_digits(dir, "back", |x| 27 - x);
    write_digits(dir, "even", |x| x.min(27 - x));
    let scores_of = |data: &str, mirror: bool, shift: usize| {
        let (path, mirror) = (format!("data.path={data}"), format!("validation.mirror={mirror}"));
        let shift = format!("validation.shift={shift}");
        let settings = ["data.verify=false", "train.batch_size=16", &path, &mirror, &shift];
        let settings = settings.into_iter().flat_map(|setting| ["--set", setting]);
        let eval: Vec<&str> = ["eval", "run", "--json"].into_iter().chain(settings).collect();
        let scores: Value = serde_json::from_str(&dir.run(&eval).expect(0).out).unwrap();
        ["samples", "loss", "top1", "top5"].map(|key| scores[key].as_f64().unwrap())
    };
    let scores = |data: &str, mirror| scores_of(data, mirror, 0);
    assert_ne!(scores("forth", false), scores("back", false));
    assert_ne!(scores("forth", false), scores("forth", true));
    // The order of an image and its mirror image does not matter.
    assert_eq!(scores("forth", true), scores("back", true));
    let [[samples, loss, top1, top5], both] = [false, true].map(|mirror| scores("even", mirror));
    assert_eq!([samples, top1, top5], [both[0], both[2], both[3]]);
    assert!((loss - both[1]).abs() < 1e-5 * loss, "{loss} {}", both[1]);
    // Shifted images differ, and mirroring them again gives equal results.
    let moved = |data: &str, mirror| scores_of(data, mirror, 2);
    assert_ne!(moved("forth", false), scores("forth", false));
    assert_eq!(moved("forth", true), moved("back", true));

    // The same in a run with these settings, and its summary reports it.
    let settings = [
        "data.path=forth",
        "data.verify=false",
        "train.batch_size=16",
        "validation.mirror=true",
        "validation.shift=3",
    ];
    let settings: Vec<&str> = settings.into_iter().flat_map(|setting| ["--set", setting]).collect();
    let ran = dir.train("mirrored", 1, &settings).expect(0);
    assert!(ran.out.contains(", 10 views per image\n"), "{}", ran.out);
    let last = &json(&dir.path("mirrored/summary.json"))["final"];
    let eval: Value = serde_json::from_str(&dir.run(&["eval", "mirrored", "--json"]).expect(0).out).unwrap();
    assert_eq!((last["val_views"].as_u64(), eval["views"].as_u64()), (Some(10), Some(10)));
    assert_eq!([&last["val_loss"], &last["val_top1"]], [&eval["loss"], &eval["top1"]]);
}

#[test]
fn same_experiment_is_bit_identical() {
    let SharedRun { dir, result, .. } = trained();
    // The same experiment with other loader threads.
    dir.train("again", 1, &["-q", "--set", "data.workers=3"]).expect(0);
    assert_eq!(RunResult::read(&dir.path("again")), *result);
    // The same experiment from the configuration of the first run.
    fs::copy(dir.path("run/experiment.toml"), dir.path("copy.toml")).unwrap();
    let ran = dir.run(&["train", "copy.toml", "-q"]).expect(0);
    assert!(ran.err.is_empty(), "{}", ran.err);
    assert_eq!(RunResult::read(&dir.path("runs/digits/1")), *result);
    assert!(ran.out.contains(&result.weights));
}

/// Kernels of another build may give other bits, even with the same names.
#[test]
fn resume_keeps_the_planned_kernels() {
    let dir = TestDir::new();
    dir.train("run", 1, &["-q"]).expect(0);
    let [plan, experiment, summary] =
        ["plan.json", "experiment.toml", "summary.json"].map(|name| dir.path("run").join(name));
    let own = json(&plan);
    let resume = |epochs: u32| {
        let text = fs::read_to_string(&experiment).unwrap();
        let more = text.replace(&format!("epochs = {}\n", epochs - 1), &format!("epochs = {epochs}\n"));
        assert_ne!(more, text);
        fs::write(&experiment, more).unwrap();
        fs::remove_file(&summary).unwrap();
        dir.run(&["train", "run", "-q"]).expect(0).err
    };
    assert_eq!(resume(2), "");
    let mut others = own.clone();
    for program in ["train", "tail", "evaluate", "refresh"] {
        others[program]["kernels"] = "0123".into();
    }
    fs::write(&plan, others.to_string()).unwrap();
    let message = resume(3);
    assert!(
        message.contains("resuming with a different plan: it was made for ")
            && message.contains(", kernels 0123,"),
        "{message}"
    );
    let log = fs::read_to_string(dir.path("run/log.txt")).unwrap();
    assert!(log.contains(", kernels 0123,"), "{log}");
    assert_eq!(json(&plan), own);
}

/// The seed changes the bits, so the tests above would notice a difference.
#[test]
fn another_seed_changes_the_bits() {
    let SharedRun { dir, result, .. } = trained();
    dir.train("other", 1, &["--set", "train.seed=2"]).expect(0);
    let other = RunResult::read(&dir.path("other"));
    assert_ne!(other.weights, result.weights);
    assert_ne!(other.iterations[0], result.iterations[0]);
}

#[test]
fn csv_headers_match_the_contract() {
    let SharedRun { dir, .. } = trained();
    assert_eq!(rows(&dir.path("run/iterations.csv"), ITERATIONS_HEADER).len(), PER_EPOCH);
    assert_eq!(rows(&dir.path("run/epochs.csv"), EPOCHS_HEADER).len(), 1);
    let columns = |more: &[&str]| -> Vec<String> {
        let ran = dir.run(&[&["collect", "run", "--csv"], more].concat()).expect(0);
        assert_eq!(ran.out.lines().count(), 2);
        ran.out.lines().next().unwrap().split(',').map(str::to_owned).collect()
    };
    let brief =
        "path,status,epochs,train_loss,val_loss,val_top1,overall_s,images_per_second_median".split(',');
    assert_eq!(columns(&[]), brief.collect::<Vec<_>>());
    // The identity of a machine is recorded only on request.
    let [all, identity] = [columns(&["--all"]), columns(&["--all", "--identity"])];
    assert!(all.iter().any(|column| column == "weights_sha256"), "{all:?}");
    let more: Vec<&String> = identity.iter().filter(|column| !all.contains(column)).collect();
    assert_eq!(more, ["uuid", "mac"]);
    let recorded = json(&dir.path("run/machine.json"));
    assert!(recorded["identity"].is_object(), "{recorded}");
}
