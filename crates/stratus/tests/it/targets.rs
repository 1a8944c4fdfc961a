//! Several labels per image, and numbers: a table of made-up images is trained, evaluated, predicted and
//! exported.

#![cfg(unix)]

use crate::common::{CommandOutput, TestDir, json, last_epoch, rows, summary};
use crate::workers::has_mpi;
use png::{BitDepth, ColorType, Encoder};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const LABELS_HEADER: &str = "epoch,train_loss,train_label_accuracy,val_loss,val_label_accuracy,val_map,\
                             val_auc,val_f1,val_exact_match,train_s,val_s,elapsed_s";
const NUMBERS_HEADER: &str =
    "epoch,train_loss,train_r2,val_loss,val_r2,val_mae,val_rmse,train_s,val_s,elapsed_s";
const SIDE: usize = 12;
const IMAGES: usize = 120;

/// The grey levels of the left and of the right half of an image, 0 to 255.
fn levels(image: usize) -> [u8; 2] {
    [(image * 67 % 251) as u8, (image * 29 % 241) as u8]
}

/// The labels of an image: whether its left half is bright, and whether its right half is; unknown for some.
fn labels(image: usize) -> [Option<bool>; 2] {
    let [left, right] = levels(image);
    [Some(left > 125), (image % 7 != 3).then_some(right > 125)]
}

/// The numbers of an image: the level of its left half in another unit, and that of the right; unknown for
/// some.
fn numbers(image: usize) -> [Option<f64>; 2] {
    let [left, right] = levels(image).map(f64::from);
    [Some(40.0 + left / 4.0), (image % 5 != 2).then_some(right / 1000.0)]
}

/// Writes the images, a table of labels and a table of numbers.
fn write_tables(dir: &TestDir) {
    fs::create_dir_all(dir.path("set/images")).unwrap();
    let mut tables = ["path,split,left,right\n".to_owned(), "path,split,age,height\n".to_owned()];
    for image in 0..IMAGES {
        let [left, right] = levels(image);
        let pixels: Vec<u8> = (0..SIDE * SIDE)
            .map(|pixel| if pixel % SIDE < SIDE / 2 { left } else { right } / 2 + (pixel * 37 % 100) as u8)
            .collect();
        let path = dir.path(&format!("set/images/{image}.png"));
        let mut encoder = Encoder::new(File::create(path).unwrap(), SIDE as u32, SIDE as u32);
        encoder.set_color(ColorType::Grayscale);
        encoder.set_depth(BitDepth::Eight);
        encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
        let split = ["train", "train", "train", "val", "test"][image % 5 * usize::from(image % 3 > 0)];
        let label = |known: Option<bool>| known.map_or("", |applies| if applies { "yes" } else { "no" });
        let number = |known: Option<f64>| known.map_or(String::new(), |number| number.to_string());
        let [one, other] = labels(image).map(label);
        tables[0] += &format!("images/{image}.png,{split},{one},{other}\n");
        let [one, other] = numbers(image).map(number);
        tables[1] += &format!("images/{image}.png,{split},{one},{other}\n");
    }
    fs::write(dir.path("set/labels.csv"), &tables[0]).unwrap();
    fs::write(dir.path("set/numbers.csv"), &tables[1]).unwrap();
}

fn test_dir() -> TestDir {
    let dir = TestDir::without_kernel_cache();
    write_tables(&dir);
    dir
}

/// Trains the table `set/<table>.csv`.
fn train(dir: &TestDir, table: &str, out: &str, more: &[&str]) -> CommandOutput {
    let arguments = arguments(table, out, more);
    dir.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

fn arguments(table: &str, out: &str, more: &[&str]) -> Vec<String> {
    let data = format!("set/{table}.csv");
    let settings = [
        "train.epochs=12",
        "train.batch_size=8",
        "optimiser.name=adamw",
        "optimiser.learning_rate=0.003",
        "train.parts=2",
        "train.threads=1",
        "data.mean=[0.5]",
        "data.std=[0.25]",
        "checkpoint.every_seconds=0.02",
    ];
    let mut all: Vec<String> = ["train", "digits", "--data", &data, "--out", out].map(str::to_owned).to_vec();
    all.push(format!("--set=data.shape=[1,{SIDE},{SIDE}]"));
    all.extend(settings.map(|setting| format!("--set={setting}")));
    all.extend(more.iter().map(|&argument| argument.to_owned()));
    all
}

/// The results that interruptions and workers must not change.
fn result(run: &Path, header: &str) -> (String, Vec<String>, BTreeMap<&'static str, Vec<u8>>) {
    let weights = summary(run)["weights_sha256"].as_str().unwrap().to_owned();
    let files =
        ["classes.csv", "validation/classes.csv"].map(|name| (name, fs::read(run.join(name)).unwrap()));
    (weights, rows(&run.join("epochs.csv"), header), BTreeMap::from(files))
}

/// The fields of each row of a CSV file without quotes in fields, by column.
fn table(text: &str) -> Vec<BTreeMap<String, String>> {
    let mut lines = text.lines().map(|line| line.split(',').map(|field| field.trim_matches('"').to_owned()));
    let header: Vec<String> = lines.next().unwrap().collect();
    lines.map(|fields| header.iter().cloned().zip(fields).collect()).collect()
}

/// The images of a split of the table, with their path.
fn images_of(dir: &TestDir, split: &str) -> Vec<(usize, String)> {
    let text = fs::read_to_string(dir.path("set/labels.csv")).unwrap();
    let rows = table(&text).into_iter().enumerate().filter(|(_, row)| row["split"] == split);
    rows.map(|(image, row)| (image, format!("set/{}", row["path"]))).collect()
}

/// The measures of `stratus eval`.
fn measures(dir: &TestDir, arguments: &[&str]) -> Value {
    json(&dir.run(&[&["eval"], arguments, &["--json"]].concat()).expect(0).out)["measures"].clone()
}

#[test]
fn labels_are_learned_and_all_outputs_agree() {
    let dir = test_dir();
    train(&dir, "labels", "run", &[]).expect(0);
    let run = dir.path("run");
    assert!(last_epoch(&run, "val_map") > 0.9 && last_epoch(&run, "val_auc") > 0.9);
    // `eval` repeats the last validation, with the thresholds that it chose.
    let found = measures(&dir, &["run", "--csv", "eval.csv"]);
    for name in ["label_accuracy", "map", "auc", "f1", "exact_match"] {
        assert_eq!(found[name].as_f64().unwrap(), last_epoch(&run, &format!("val_{name}")), "{name}");
    }
    let classes = fs::read_to_string(run.join("classes.csv")).unwrap();
    assert_eq!(fs::read_to_string(dir.path("eval.csv")).unwrap(), classes);
    // The recorded thresholds apply to another split, and the exact match follows from predictions.
    let test = measures(&dir, &["run", "--split", "test", "--csv", "test.csv"]);
    let thresholds = |path: &Path| -> Vec<String> {
        table(&fs::read_to_string(path).unwrap()).iter().map(|row| row["threshold"].clone()).collect()
    };
    assert_eq!(thresholds(&dir.path("test.csv")), thresholds(&run.join("classes.csv")));
    let images = images_of(&dir, "test");
    let paths: Vec<&str> = images.iter().map(|(_, path)| path.as_str()).collect();
    dir.run(&[&["infer", "run", "--csv", "predicted.csv"], &paths[..]].concat()).expect(0);
    let predicted = table(&fs::read_to_string(dir.path("predicted.csv")).unwrap());
    assert_eq!(predicted.len(), 2 * images.len());
    let is_right = |image: usize, path: &str| {
        let answers = predicted.iter().filter(|row| row["path"] == path);
        answers.map(|row| (row, labels(image)[row["label"].parse::<usize>().unwrap()])).all(|(row, truth)| {
            let [probability, threshold]: [f64; 2] =
                ["probability", "threshold"].map(|name| row[name].parse().unwrap());
            assert_eq!(row["applies"], (probability >= threshold).to_string());
            truth.is_none_or(|applies| row["applies"] == applies.to_string())
        })
    };
    let exact = images.iter().filter(|(image, path)| is_right(*image, path)).count();
    assert_eq!(test["exact_match"].as_f64().unwrap(), exact as f64 / images.len() as f64);
}

#[test]
fn numbers_are_learned_and_all_outputs_agree() {
    let dir = test_dir();
    train(&dir, "numbers", "run", &["--set=train.epochs=30"]).expect(0);
    let run = dir.path("run");
    assert!(last_epoch(&run, "val_r2") > 0.8, "{}", last_epoch(&run, "val_r2"));
    let experiment = fs::read_to_string(run.join("experiment.toml")).unwrap();
    assert!(experiment.contains("target_mean = [") && experiment.contains("target_std = ["), "{experiment}");
    let found = measures(&dir, &["run", "--csv", "eval.csv"]);
    for name in ["r2", "mae", "rmse"] {
        assert_eq!(found[name].as_f64().unwrap(), last_epoch(&run, &format!("val_{name}")), "{name}");
    }
    let classes = fs::read_to_string(run.join("classes.csv")).unwrap();
    assert_eq!(fs::read_to_string(dir.path("eval.csv")).unwrap(), classes);
    // The mean absolute error follows from predictions, in the unit of the table.
    let images = images_of(&dir, "val");
    let paths: Vec<&str> = images.iter().map(|(_, path)| path.as_str()).collect();
    dir.run(&[&["infer", "run", "--csv", "predicted.csv"], &paths[..]].concat()).expect(0);
    let predicted = table(&fs::read_to_string(dir.path("predicted.csv")).unwrap());
    for (target, row) in table(&classes).iter().enumerate() {
        let errors: Vec<f64> = images
            .iter()
            .filter_map(|(image, path)| {
                let own = |row: &&BTreeMap<String, String>| {
                    row["path"] == *path && row["target"] == target.to_string()
                };
                let answer: f64 = predicted.iter().find(own).unwrap()["number"].parse().unwrap();
                Some((answer - numbers(*image)[target]?).abs())
            })
            .collect();
        let (mean, mae) =
            (errors.iter().sum::<f64>() / errors.len() as f64, row["mae"].parse::<f64>().unwrap());
        // Folded batch norms round differently.
        assert!((mean - mae).abs() < 1e-4 * (1.0 + mae), "target {target}: {mean} and {mae}");
    }
}

#[test]
fn workers_and_stages_keep_the_bits_of_labels_and_numbers() {
    if !has_mpi() {
        return;
    }
    let dir = test_dir();
    for (table, header) in [("labels", LABELS_HEADER), ("numbers", NUMBERS_HEADER)] {
        let run = |kind: &str, more: &[&str]| {
            let out = format!("{table}-{kind}");
            train(&dir, table, &out, &[&["--set=train.epochs=3"], more].concat()).expect(0);
            result(&dir.path(&out), header)
        };
        let alone = run("alone", &[]);
        assert!(run("workers", &["--workers", "2"]) == alone, "{table}, two workers");
        let stages = run("stages", &["--workers", "2", "--set=train.stages=2"]);
        assert!(stages == alone, "{table}, two stages");
    }
}

#[test]
fn killed_runs_continue_with_the_same_bits() {
    let dir = test_dir();
    for (table, header) in [("labels", LABELS_HEADER), ("numbers", NUMBERS_HEADER)] {
        let more = ["--set=train.epochs=6"];
        train(&dir, table, &format!("{table}-whole"), &more).expect(0);
        let whole = result(&dir.path(&format!("{table}-whole")), header);
        let out = format!("{table}-killed");
        let (run, mut kills) = (dir.path(&out), 0);
        loop {
            let is_new = !run.join("experiment.toml").exists();
            let first = arguments(table, &out, &more);
            let again = ["train".to_owned(), out.clone()];
            let mut command = dir.command(&[]);
            command.args(if is_new { &first[..] } else { &again[..] });
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let rows_before = rows_in(&run);
            let started = Instant::now();
            // After a few further iterations, in the middle of an epoch or of a validation.
            let ended = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    assert!(status.success(), "{table}");
                    break true;
                }
                if kills < 3 && rows_in(&run) > rows_before + 7 {
                    break false;
                }
                assert!(started.elapsed() < Duration::from_secs(300), "{table}: timed out");
            };
            if ended {
                break;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
        }
        assert!(result(&run, header) == whole, "{table} after {kills} kills");
    }
}

/// The number of rows of a run's iterations so far.
fn rows_in(run: &Path) -> usize {
    fs::read_to_string(run.join("iterations.csv")).map_or(0, |text| text.lines().count())
}

#[test]
fn classes_are_learned_as_labels_and_as_numbers() {
    let dir = TestDir::new();
    let labels = dir.train("labels", 1, &["--set", "train.loss=binary_cross_entropy"]).expect(0);
    assert!(labels.err.contains("10 labels"), "{}", labels.err);
    assert!(last_epoch(&dir.path("labels"), "val_label_accuracy") > 0.93);
    let names = table(&fs::read_to_string(dir.path("labels/classes.csv")).unwrap());
    assert_eq!(names.iter().map(|row| row["name"].as_str()).collect::<Vec<_>>().concat(), "0123456789");
    let huber = ["--set", "train.loss=huber", "--lr", "0.01"];
    let numbers = dir.train("numbers", 1, &huber).expect(0);
    assert!(numbers.err.contains("1 target\n"), "{}", numbers.err);
    assert!(last_epoch(&dir.path("numbers"), "val_r2") > 0.3);
    // The number of a digit, not a standardised one.
    let rmse = last_epoch(&dir.path("numbers"), "val_rmse");
    let r2 = last_epoch(&dir.path("numbers"), "val_r2");
    assert!((rmse / (1.0 - r2).sqrt() - 2.9).abs() < 0.1, "the deviation of digits is 2.9: {rmse}, {r2}");
}

#[test]
fn refuses_settings_without_meaning_for_the_task() {
    let dir = test_dir();
    for (table, more, expected) in [
        ("labels", &["--set=train.loss=cross_entropy"][..], "train.loss = cross_entropy cannot be learned"),
        ("labels", &["--set=validation.mirror=true"], "views are averaged only for one class per image"),
        (
            "labels",
            &["--set=model.classes=5"],
            "model.classes is 5, but data set `table` has 2 labels and needs 2 outputs",
        ),
        ("labels", &["--set=checkpoint.keep_best=val_top1"], "this run does not record val_top1"),
        ("labels", &["--set=train.loss=squared_error"], "expected a number, found `"),
        ("numbers", &["--set=train.loss=binary_cross_entropy"], "line 2, column `age`"),
        ("numbers", &["--set=data.augment.flip=true"], "data.augment.flip may change the numbers"),
        (
            "numbers",
            &["--set=data.augment.cutmix=1"],
            "data.augment.cutmix: the number of a pasted rectangle",
        ),
        (
            "numbers",
            &["--set=train.label_smoothing=0.1"],
            "train.label_smoothing: has no meaning for regression",
        ),
        (
            "numbers",
            &["--set=train.positive_weighting=auto"],
            "only multi-label training has positive weights",
        ),
        ("numbers", &["--set=train.class_weighting=logarithmic"], "numbers have no frequency"),
        ("numbers", &["--set=data.target_mean=[1]"], "only one of `data.target_mean` and `data.target_std`"),
    ] {
        let ran = train(&dir, table, "refused", more);
        assert!(ran.code != Some(0) && ran.err.contains(expected), "{more:?}: {}", ran.err);
        assert!(!dir.path("refused/iterations.csv").exists(), "{more:?}");
    }
    // Said to be harmless, it is done.
    let more =
        ["--set=data.augment.flip=true", "--set=data.augment.keeps_targets=true", "--set=train.epochs=1"];
    train(&dir, "numbers", "flipped", &more).expect(0);
}

/// Constant targets, of which nothing can be learned, and repeated rows are reported before the first
/// iteration.
#[test]
fn trainings_warn_about_unusual_tables() {
    let dir = test_dir();
    let extended = |table: &str, column: &str, cell: &str| {
        let text = fs::read_to_string(dir.path(&format!("set/{table}.csv"))).unwrap();
        let with_cell = |(at, line)| format!("{line},{}", if at == 0 { column } else { cell });
        let mut lines: Vec<String> = text.lines().enumerate().map(with_cell).collect();
        lines.push(lines[1].clone());
        fs::write(dir.path(&format!("set/{table}2.csv")), lines.join("\n") + "\n").unwrap();
    };
    for (table, column, cell, noun) in
        [("numbers", "year", "1999.5", "number"), ("labels", "always", "yes", "label")]
    {
        extended(table, column, cell);
        let out = format!("{table}-{column}");
        let ran = train(&dir, &format!("{table}2"), &out, &["--set=train.epochs=1"]).expect(0);
        let constant =
            format!("{noun} `{column}` is constant in the training images: nothing can be learned about it");
        assert!(ran.err.contains(&constant), "{}", ran.err);
        assert_eq!(ran.err.matches("ignored 1 repeated row").count(), 1, "{}", ran.err);
    }
}

#[test]
fn exported_models_have_thresholds_and_scales() {
    let dir = test_dir();
    train(&dir, "labels", "labels", &["--set=train.epochs=2"]).expect(0);
    train(&dir, "numbers", "numbers", &["--set=train.epochs=2"]).expect(0);
    let export = |arguments: &[&str]| dir.run(&[&["model", "export"], arguments, &["--json"]].concat());
    let labels = json(&export(&["labels", "--onnx", "labels.onnx", "--sigmoid"]).expect(0).out);
    assert_eq!(labels["metadata"]["loss"], "binary_cross_entropy");
    assert!(labels["metadata"]["thresholds"].as_str().unwrap().starts_with('['), "{labels}");
    let numbers = json(&export(&["numbers", "--onnx", "numbers.onnx"]).expect(0).out);
    assert_eq!(numbers["metadata"]["loss"], "squared_error");
    assert!(numbers["metadata"]["target_mean"].as_str().unwrap().starts_with('['), "{numbers}");
    let refused = export(&["numbers", "--onnx", "other.onnx", "--sigmoid"]).expect(2);
    assert!(refused.err.contains("are not labels"), "{}", refused.err);
    // A file of weights has them too: predictions are those of the run.
    for run in ["labels", "numbers"] {
        let file = format!("{run}.safetensors");
        export(&[run, "--safetensors", &file]).expect(0);
        let shape = format!("--set=data.shape=[1,{SIDE},{SIDE}]");
        let image = "set/images/7.png";
        let answers = |arguments: &[&str]| -> Vec<f64> {
            let found = json(&dir.run(&[&["infer"], arguments, &[image, "--json"]].concat()).expect(0).out);
            let image = &found["images"][0];
            let values = |list: &str, keys: &[&str]| -> Vec<f64> {
                let answers = image[list].as_array().into_iter().flatten();
                answers.flat_map(|answer| keys.iter().map(|&key| answer[key].as_f64().unwrap())).collect()
            };
            [values("labels", &["label", "probability", "threshold"]), values("numbers", &["number"])]
                .concat()
        };
        let [of_file, of_run] = [answers(&["digits", "--weights", &file, &shape]), answers(&[run])];
        assert_eq!(of_file.len(), if run == "labels" { 6 } else { 2 });
        // The number of threads differs, and with it the order of sums.
        let is_close = |(one, other): (&f64, &f64)| (one - other).abs() <= 1e-5 * (1.0 + other.abs());
        assert!(of_file.iter().zip(&of_run).all(is_close), "{run}: {of_file:?} and {of_run:?}");
    }
    // An imported model that ends in a sigmoid is one of logits, and predicts the same labels.
    let imported = dir.run(&["model", "import", "labels.onnx", "--out", "imported.toml"]).expect(0);
    assert!(format!("{}{}", imported.out, imported.err).contains("binary_cross_entropy"), "{}", imported.err);
}
