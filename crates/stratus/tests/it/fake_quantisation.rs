//! `stratus optimise --int8 --epochs` fine-tunes with the rounded numbers of int8.

use crate::common::{RunResult, SplitMix64, TestDir, json, last_epoch};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;
use stratus_weights::{TensorRef, WeightsFile, write_safetensors};

/// The layers do not depend on measured times.
const TUNE: [&str; 9] =
    ["optimise", "run", "--int8=all", "--epochs", "1", "--out", "tuned", "--calibration-images", "32"];

fn record(path: &Path) -> serde_json::Value {
    json(&fs::read_to_string(path).unwrap())
}

/// The weights of the newest checkpoint of a run.
fn weights(run: &Path) -> PathBuf {
    let checkpoints = fs::read_dir(run.join("checkpoints")).unwrap();
    let newest = checkpoints.map(|entry| entry.unwrap().path()).max().unwrap();
    newest.join("weights.safetensors")
}

#[test]
fn a_fine_tuned_run_is_a_run_of_its_own_with_its_ranges() {
    let dir = TestDir::trained();
    let original = RunResult::read(&dir.path("run"));
    let report = json(&dir.run(&[&TUNE[..], &["--json"]].concat()).expect(0).out);
    let layers = report["quantisation"]["layers"].as_array().unwrap();
    let names: Vec<&str> = layers.iter().map(|layer| layer["layer"].as_str().unwrap()).collect();
    assert_eq!(names, ["layer2.0", "layer3.0"]);
    assert!(report["pruning"].is_null());
    // It was trained with the layers and ranges that it records, which are those of the choice at the end.
    let tuned = dir.path("tuned");
    assert_ne!(RunResult::read(&tuned).weights, original.weights);
    assert_eq!(RunResult::read(&dir.path("run")), original);
    let before = record(&tuned.join("optimise/fake_quantisation.json"));
    let after = record(&tuned.join("optimise/quantisation.json"));
    assert_eq!(before["ranges"], after["ranges"]);
    assert_ne!(before["weights_sha256"], after["weights_sha256"]);
    let experiment: toml::Value =
        toml::from_str(&fs::read_to_string(tuned.join("experiment.toml")).unwrap()).unwrap();
    let keys = &experiment["train"]["fake_quantisation"];
    let texts: Vec<&str> =
        keys["layers"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let range = &before["ranges"]["pool1:y"];
    let input = format!("layer2.0 {} {}", range["low"].as_f64().unwrap(), range["high"].as_f64().unwrap());
    let as_numbers =
        |text: &str| -> Vec<f32> { text.split(' ').skip(1).map(|number| number.parse().unwrap()).collect() };
    assert!(texts[0].starts_with("layer2.0 ") && texts[1].starts_with("layer3.0 "), "{texts:?}");
    assert_eq!(as_numbers(texts[0]), as_numbers(&input));
    assert!([63, 127].contains(&keys["max_weight"].as_integer().unwrap()));
    // The training computed with rounded numbers; the time of all its steps is accounted for.
    let plan = fs::read_to_string(tuned.join("plan.json")).unwrap();
    for kernel in ["fake_quantise", "fake_quantise_backward", "fake_quantise_weights"] {
        assert!(plan.contains(&format!("\"{kernel}\"")), "{kernel}");
    }
    // It is evaluated in int8, reported and exported as any other run.
    let variant = report["variants"].as_array().unwrap().last().unwrap().clone();
    assert!(variant["variant"].as_str().unwrap().starts_with("int8 and "), "{variant}");
    let evaluated = json(&dir.run(&["eval", "tuned", "--json"]).expect(0).out);
    assert_eq!(evaluated["measures"]["top1"], variant["measure"]);
    dir.run(&["report", "tuned"]).expect(0);
    // The same request again keeps everything; another is refused.
    let chosen = fs::read(tuned.join("optimise/quantisation.json")).unwrap();
    let result = RunResult::read(&tuned);
    dir.run(&TUNE).expect(0);
    assert_eq!(fs::read(tuned.join("optimise/quantisation.json")).unwrap(), chosen);
    assert_eq!(RunResult::read(&tuned), result);
    let mut other = TUNE;
    other[4] = "2";
    let error = dir.run(&other).expect(2).err;
    assert!(error.contains("tuned was begun by another request: `epochs`"), "{error}");
    // Pruning starts from its weights, in real numbers.
    let prune = ["optimise", "tuned", "--prune", "0.3", "--granularity", "4", "--epochs", "1"];
    dir.run(&[&prune[..], &["--calibration-batches", "2", "--out", "small"]].concat()).expect(0);
    let small = fs::read_to_string(dir.path("small/plan.json")).unwrap();
    assert!(!small.contains("fake_quantise"));
}

#[test]
fn killed_at_random_it_has_the_same_weights() {
    let kills = std::env::var("STRATUS_KILLS").map_or(3, |kills| kills.parse::<u64>().unwrap().min(20));
    let dir = TestDir::trained();
    let more = ["--set", "checkpoint.every_seconds=0.05", "--set", "train.micro_batches=2"];
    let request = [&TUNE[..], &more].concat();
    dir.run(&request).expect(0);
    let read = |file: &str| fs::read(dir.path("tuned/optimise").join(file)).unwrap();
    let result = || {
        let choice = (read("quantisation.json"), read("fake_quantisation.json"));
        (RunResult::read(&dir.path("tuned")), choice)
    };
    let expected = result();
    fs::rename(dir.path("tuned"), dir.path("uninterrupted")).unwrap();
    let mut random = SplitMix64(5);
    for _ in 0..kills {
        let mut child = dir.command(&request).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        sleep(Duration::from_millis(random.next_below(2500)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    dir.run(&request).expect(0);
    assert_eq!(result(), expected);
}

#[test]
fn impossible_requests_are_refused_before_anything_is_written() {
    let dir = TestDir::trained();
    let refused = |more: &[&str], code: i32, message: &str| {
        let error = dir.run(&[&TUNE[..], more].concat()).expect(code).err;
        assert!(error.contains(message), "{more:?}: {error}");
        assert!(!dir.path("tuned").exists(), "{more:?}");
    };
    let moved = format!("data.path={}", dir.path("moved").display());
    refused(&["--set", &moved], 1, "moved");
    refused(&["--set", "train.stages=2"], 2, "train.stages");
    refused(&["--set", "train.fake_quantisation.max_weight=3"], 2, "cannot be set when optimising");
    // The keys of a run are checked too.
    let train = |layers: &str, more: &[&str]| {
        let layers = format!("train.fake_quantisation.layers={layers}");
        dir.train("other", 1, &[&["--set", &layers], more].concat())
    };
    for (layers, code, message) in [
        ("layer9 0 1", 2, "no convolution `layer9`"),
        ("layer1.0 0 1", 2, "`layer1.0` cannot run in int8: it reads the images"),
        ("layer2.0 -1 1", 2, "its padded input has negative numbers"),
        ("layer2.0 0 nan", 2, "the range of \"layer2.0 0 nan\""),
        ("layer2.0 0 1e-44", 2, "the range of \"layer2.0\" is empty"),
        ("layer2.0", 2, "is not a layer with two numbers"),
    ] {
        let error = train(layers, &[]).expect(code).err;
        assert!(error.contains("train.fake_quantisation.layers") && error.contains(message), "{error}");
        assert!(!dir.path("other").exists());
    }
    // Damage is found before hours of training.
    dir.run(&[&TUNE[..], &["--set", "checkpoint.every_seconds=0.05"]].concat()).expect(0);
    let file = dir.path("tuned/optimise/fake_quantisation.json");
    let good = fs::read_to_string(&file).unwrap();
    let known = record(&file)["weights_sha256"].as_str().unwrap().to_owned();
    let range = record(&file)["ranges"]["pool1:y"]["high"].to_string();
    for (content, code, message) in [
        (good.replace(&known, &"0".repeat(64)), 2, "other weights"),
        (good.replace(&format!("\"high\": {range}"), "\"high\": NaN"), 1, "fake_quantisation.json"),
        (good.replace(&format!("\"high\": {range}"), "\"high\": null"), 1, "fake_quantisation.json"),
        (good[..good.len() / 2].to_owned(), 1, "fake_quantisation.json"),
    ] {
        assert_ne!(content, good);
        fs::write(&file, content).unwrap();
        let again = [&TUNE[..], &["--set", "checkpoint.every_seconds=0.05"]].concat();
        let error = dir.run(&again).expect(code).err;
        assert!(error.contains(message), "{error}");
    }
    fs::remove_file(&file).unwrap();
    let again = [&TUNE[..], &["--set", "checkpoint.every_seconds=0.05"]].concat();
    let error = dir.run(&again).expect(2).err;
    assert!(error.contains("fake_quantisation.json is missing"), "{error}");
}

/// Writes the weights of a run after a change of each tensor, by name and shape.
fn write_changed(run: &Path, to: &Path, change: impl Fn(&str, &[usize], &mut [f32])) {
    let file = WeightsFile::open(weights(run)).unwrap();
    let mut tensors = Vec::new();
    for tensor in file.float_tensors() {
        let mut values = file.read(tensor).unwrap();
        change(&tensor.name, &tensor.shape, &mut values);
        tensors.push((tensor.name.clone(), tensor.shape.clone(), values));
    }
    let tensors: Vec<TensorRef> =
        tensors.iter().map(|(name, shape, values)| TensorRef::f32(name, shape, values)).collect();
    let mut out = fs::File::create(to).unwrap();
    write_safetensors(&mut out, &tensors, file.metadata()).unwrap();
}

/// The weights of the two int8 layers with three values in each channel, `-s`, 0 and `s`.
fn three_levels(run: &Path, to: &Path) {
    write_changed(run, to, |name, shape, values| {
        if ["layer2.0.weight", "layer3.0.weight"].contains(&name) {
            for channel in values.chunks_mut(shape[1..].iter().product()) {
                let scale = channel.iter().fold(0.0_f32, |most, weight| most.max(weight.abs()));
                channel.iter_mut().for_each(|weight| *weight = (*weight / scale).round() * scale);
            }
        }
    });
}

#[test]
fn weights_adapt_to_the_rounding() {
    // Weights of three values, which calibration alone cannot make up for: 8 bits lose nothing on digits.
    let dir = TestDir::new();
    // In single precision, kernels differ by little.
    let single = ["--set", "train.precision=f32"];
    dir.train("run", 1, &single).expect(0);
    let weights_key = format!("model.weights={}", dir.path("run").display());
    let tuning = [&single[..], &["--set", &weights_key, "--set", "train.seed=2"]].concat();
    dir.train("plain", 1, &tuning).expect(0);
    let rounded = [
        "--set",
        "train.fake_quantisation.layers=layer2.0 0 8,layer3.0 0 8",
        "--set",
        "train.fake_quantisation.max_weight=1",
    ];
    dir.train("rounded", 1, &[&tuning[..], &rounded].concat()).expect(0);
    let scores = ["run", "plain", "rounded"].map(|run| {
        let file = dir.path(&format!("{run}.safetensors"));
        three_levels(&dir.path(run), &file);
        let file = file.display().to_string();
        let data = format!("data.path={}", crate::common::digits().display());
        let settings = ["--set", &data, "--set", "data.verify=false", "--json"];
        let arguments = [&["eval", "digits", "--weights", &file][..], &settings].concat();
        let report = json(&dir.run(&arguments).expect(0).out);
        (report["loss"].as_f64().unwrap(), report["measures"]["top1"].as_f64().unwrap())
    });
    let [(calibrated, _), (longer, plain), (tuned, top1)] = scores;
    // The same training in real numbers does not help.
    assert!(tuned < 0.5 * calibrated && tuned < 0.5 * longer, "{scores:?}");
    assert!(top1 > plain, "{scores:?}");
}

/// Weights of the same function in real numbers, whose map before `layer3.0` has four channels with numbers a
/// thousand times as large: in bytes, the numbers of the others become 0.
fn wide_channels(run: &Path, to: &Path) {
    const FACTOR: f32 = 1000.0;
    const CHANNELS: usize = 4;
    write_changed(run, to, |name, shape, values| match name {
        "layer2.1.weight" | "layer2.1.bias" => values[..CHANNELS].iter_mut().for_each(|v| *v *= FACTOR),
        "layer3.0.weight" => {
            let filter = shape[1..].iter().product();
            let wide = CHANNELS * shape[2..].iter().product::<usize>();
            values.chunks_mut(filter).flat_map(|filter| &mut filter[..wide]).for_each(|v| *v /= FACTOR);
        }
        _ => {}
    });
}

#[test]
fn a_loss_of_accuracy_names_the_command_that_recovers_it() {
    let dir = TestDir::trained();
    wide_channels(&dir.path("run"), &dir.path("wide.safetensors"));
    let weights = format!("model.weights={}", dir.path("wide.safetensors").display());
    // Almost no training: the run is only to have these weights.
    let still = ["optimiser.learning_rate=1e-7", "schedule.name=constant"];
    let settings = [weights.as_str(), still[0], still[1]].map(|setting| ["--set", setting]).concat();
    dir.train("wide", 1, &settings).expect(0);
    let ran = dir.run(&["optimise", "wide", "--int8=all", "--out", "bytes"]).expect(0);
    let command = "`stratus optimise bytes --int8=all --epochs 1` with the other options";
    assert!(ran.err.contains("accuracy drops by") && ran.err.contains(command), "{}", ran.err);
    let measure = |more: &[&str]| {
        let arguments = ["--int8=all", "--keep", "100", "--json"];
        let report = json(&dir.run(&[more, &arguments].concat()).expect(0).out);
        assert_eq!(report["quantisation"]["layers"].as_array().unwrap().len(), 2);
        report["variants"].as_array().unwrap().last().unwrap()["measure"].as_f64().unwrap()
    };
    let calibrated = measure(&["optimise", "wide", "--out", "all"]);
    let rate = "optimiser.learning_rate=0.02";
    let tuned = measure(&["optimise", "bytes", "--epochs", "1", "--set", rate, "--out", "tuned"]);
    assert!(tuned > calibrated + 0.3, "{calibrated} {tuned}");
    // The last validation rounded as int8 does.
    let validated = last_epoch(&dir.path("tuned"), "val_top1");
    assert!((tuned - validated).abs() < 0.01, "{tuned} {validated}");
}
