//! Segmentation from training to masks: real processes on a small generated set of street scenes.

#![cfg(unix)]

use crate::common::streets::{
    CLASSES, HEIGHT, TRAIN, VALIDATION, VOID, WIDTH, arguments, grey, labels, train, write, write_streets,
};
use crate::common::{TestDir, rows, summary, validation_files};
use png::ColorType;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ITERATIONS: &str = "epoch,iteration,loss,accuracy,learning_rate,data_s,train_s,unattributed_s";
const EPOCHS: &str = "epoch,train_loss,train_accuracy,val_loss,val_accuracy,val_mean_accuracy,val_miou,\
                      val_bf,train_s,val_s,elapsed_s";

/// Weights, iterations, epochs, and the files of `validation/`.
type StageResult = (String, Vec<String>, Vec<String>, BTreeMap<String, Vec<u8>>);

/// The parts of both stages that must not depend on interruptions.
fn results(run: &Path) -> Vec<StageResult> {
    [run.join("first_stage"), run.to_owned()]
        .iter()
        .map(|run| {
            let summary = summary(run);
            assert_eq!(summary["status"], "completed", "{summary}");
            let weights = summary["weights_sha256"].as_str().unwrap().to_owned();
            let [iterations, epochs] = [("iterations.csv", ITERATIONS), ("epochs.csv", EPOCHS)]
                .map(|(name, header)| rows(&run.join(name), header));
            (weights, iterations, epochs, validation_files(run))
        })
        .collect()
}

/// Stops training with SIGTERM once `run` has a checkpoint.
fn stop_within(dir: &TestDir, arguments: &[String], run: &Path) {
    let mut command = dir.command(&[]);
    let mut child = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    let checkpoints = || fs::read_dir(run.join("checkpoints")).into_iter().flatten().count();
    let before = checkpoints();
    while checkpoints() <= before {
        assert!(child.try_wait().unwrap().is_none(), "it exited before its first checkpoint");
        assert!(start.elapsed() < Duration::from_secs(300), "timed out");
        std::thread::yield_now();
    }
    let sent = Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().code(), Some(75));
}

const STAGES: &[&str] = &["train.epochs=15", "first_stage.network=erfnet_encoder", "first_stage.epochs=15"];

#[test]
fn stopped_two_stage_run_resumes_bit_identical() {
    let dir = TestDir::without_kernel_cache();
    write_streets(&dir);
    train(&dir, "whole", "erfnet", STAGES).expect(0);
    let whole = results(&dir.path("whole"));
    assert_eq!(whole[1].1.len(), 30);
    let message = summary(&dir.path("whole"));
    assert_eq!(
        (&message["first_stage"]["model"], &message["first_stage"]["epochs"]),
        (&"erfnet_encoder".into(), &15.into())
    );
    // Stops within the pre-training stage, then after it, then trains to the end.
    let (run, started) = (dir.path("cut"), Instant::now());
    stop_within(&dir, &arguments("cut", "erfnet", STAGES), &run.join("first_stage"));
    assert!(!run.join("checkpoints").read_dir().unwrap().any(|_| true));
    stop_within(&dir, &["train".to_owned(), "cut".to_owned()], &run);
    dir.run(&["train", "cut"]).expect(0);
    assert_eq!(results(&run), whole);
    // The time of the pre-training stage is not part of that of the run.
    let summary = summary(&run);
    let seconds = |part: &str| summary[part]["total_s"].as_f64().unwrap();
    assert!(seconds("first_stage") + seconds("time") <= started.elapsed().as_secs_f64(), "{summary}");
}

#[test]
fn eval_and_infer_match_the_last_validation() {
    let dir = TestDir::without_kernel_cache();
    write_streets(&dir);
    let more = ["train.epochs=6", "checkpoint.keep_best=val_miou", "train.class_weighting=median_frequency"];
    train(&dir, "run", "fcn_resnet18", &more).expect(0);
    let run = dir.path("run");
    let epochs = rows(&run.join("epochs.csv"), EPOCHS);
    assert_eq!(epochs.len(), 6);
    let last: Vec<&str> = epochs[5].split(',').collect();
    let summary = summary(&run);
    let columns = ["val_loss", "val_accuracy", "val_mean_accuracy", "val_miou", "val_bf"];
    for (name, field) in columns.iter().zip(&last[3..]) {
        assert_eq!(summary["final"][*name].as_f64().unwrap(), field.parse::<f64>().unwrap(), "{name}");
    }
    assert_eq!(summary["final"]["val_top1"], serde_json::Value::Null);
    assert_eq!(summary["best"]["metric"], "val_miou");

    let eval = ["eval", "run", "--csv", "again.csv", "--confusion", "confusion.csv"];
    let ran = dir.run(&eval).expect(0);
    assert!(ran.out.contains("mean IoU") && ran.out.contains("boundary F1"), "{}", ran.out);
    let read = |name: &str| fs::read_to_string(dir.path(name)).unwrap();
    assert_eq!(read("again.csv"), read("run/classes.csv"));
    // A class that is neither labelled nor predicted has no IoU. Pixels without a class are not counted.
    let confusion: Vec<Vec<u64>> = read("confusion.csv")
        .lines()
        .skip(1)
        .map(|line| line.split(',').skip(1).map(|count| count.parse().unwrap()).collect())
        .collect();
    let pixels: u64 = confusion.iter().flatten().sum();
    assert_eq!(pixels as usize, VALIDATION * (HEIGHT - 1) * (WIDTH - 1));
    for (class, line) in read("again.csv").lines().skip(1).enumerate() {
        let met = confusion[class].iter().sum::<u64>() + confusion.iter().map(|row| row[class]).sum::<u64>();
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields[4].is_empty(), met == 0, "{line}");
    }

    // The images of lowest IoU, drawn with truth, prediction and difference.
    let eval = ["eval", "run", "--mistakes", "--gallery", "gallery.png", "--json"];
    let report: serde_json::Value = serde_json::from_str(&dir.run(&eval).expect(0).out).unwrap();
    let listed = report["mistakes"].as_array().unwrap();
    assert!(!listed.is_empty() && listed.len() <= VALIDATION);
    let iou: Vec<f64> = listed.iter().map(|mistake| mistake["iou"].as_f64().unwrap()).collect();
    assert!(iou.is_sorted() && iou.iter().all(|iou| (0.0..1.0).contains(iou)), "{iou:?}");
    assert!(dir.path("gallery.png").is_file());
    let ran = dir.run(&["eval", "run", "--mistakes=1"]).expect(0);
    assert!(ran.out.contains(listed[0]["path"].as_str().unwrap()), "{}", ran.out);

    let infer =
        ["infer", "run", "set/val", "--out", "masks", "--raw", "--overlay", "--sheet", "sheet.png", "--json"];
    let ran = dir.run(&infer).expect(0);
    let message: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let images = message["images"].as_array().unwrap();
    assert_eq!(images.len(), VALIDATION);
    assert!(message["milliseconds"]["p99"].as_f64().unwrap() > 0.0);
    let mut counted = vec![vec![0u64; CLASSES]; CLASSES];
    for image in images {
        let number = Path::new(image["path"].as_str().unwrap()).file_stem().unwrap().to_str().unwrap();
        let (mask, truth) =
            (grey(&dir.path(image["mask"].as_str().unwrap())), labels(number.parse().unwrap()));
        for (&predicted, &class) in mask.iter().zip(&truth).filter(|(_, class)| **class != VOID) {
            counted[usize::from(class)][usize::from(predicted)] += 1;
        }
    }
    assert_eq!(counted, confusion);
    // A palette: the published one by default, or that of a file.
    let palette = |name: &str| {
        let file = std::io::BufReader::new(fs::File::open(dir.path(name)).unwrap());
        png::Decoder::new(file).read_info().unwrap().info().palette.clone().unwrap().into_owned()
    };
    dir.run(&["infer", "run", "set/val/8.png", "--out", "coloured"]).expect(0);
    assert_eq!(palette("coloured/8.png")[..6], [128, 128, 128, 128, 0, 0]);
    fs::write(dir.path("colours.txt"), "1 2 3 building\n").unwrap();
    let mine = ["infer", "run", "set/val/8.png", "--out", "coloured", "--palette", "colours.txt"];
    dir.run(&mine).expect(0);
    assert_eq!(palette("coloured/8.png")[..6], [128, 128, 128, 1, 2, 3]);
    fs::write(dir.path("colours.txt"), "1 2 3 bulding\n").unwrap();
    let ran = dir.run(&mine).expect(2);
    assert!(
        ran.err.contains("colours.txt: line 1: unknown class `bulding`, did you mean `building`"),
        "{}",
        ran.err
    );
    let ran = dir.run(&["infer", "run", "set/val", "--csv", "classes.csv"]).expect(2);
    assert!(ran.err.contains("--csv has no effect"), "{}", ran.err);
    let ran = dir.run(&["infer", "run", "set/val", "set/val/8.png", "--out", "masks"]).expect(2);
    assert!(ran.err.contains("would both be"), "{}", ran.err);
    let ran = dir.run(&["infer", "run", "set/train.txt"]).expect(1);
    assert!(ran.err.contains("not a JPEG, PNG or WebP file"), "{}", ran.err);
    assert!(dir.path("masks/8.overlay.png").is_file() && dir.path("sheet.png").is_file());
}

/// A batch without labels has no accuracy and does not change the weights.
#[test]
fn unlabelled_batch_is_not_counted() {
    let dir = TestDir::without_kernel_cache();
    write_streets(&dir);
    for image in 0..TRAIN {
        let path = dir.path(&format!("set/trainannot/{image}.png"));
        write(&path, ColorType::Grayscale, &[VOID; HEIGHT * WIDTH]);
    }
    let more = ["train.epochs=1", "optimiser.momentum=0", "optimiser.weight_decay=0"];
    train(&dir, "run", "fcn_resnet18", &more).expect(0);
    for row in rows(&dir.path("run/iterations.csv"), ITERATIONS) {
        let fields: Vec<&str> = row.split(',').collect();
        assert_eq!(fields[2..4], ["0.0", ""], "{row}");
    }
}

#[test]
fn rejects_invalid_segmentation_settings_before_training() {
    let dir = TestDir::without_kernel_cache();
    write_streets(&dir);
    let error_of = |network: &str, more: &[&str], words: &[&str]| {
        let ran = train(&dir, "run", network, more).expect(2);
        assert!(words.iter().all(|words| ran.err.contains(words)), "{}", ran.err);
        assert!(!dir.path("run").exists());
    };
    error_of("resnet18", &[], &["`camvid` is for segmentation", "`resnet18` is for classification"]);
    error_of(
        "fcn_resnet18",
        &["data.name=synthetic"],
        &["`fcn_resnet18` is for segmentation", "data set `synthetic` has one class per image"],
    );
    error_of("fcn_resnet18", &["checkpoint.keep_best=val_top1"], &["val_top1", "val_miou"]);
    error_of("fcn_resnet18", &["train.class_weights=[1, 2]"], &["has 2 numbers", "has 11 classes"]);
    error_of("fcn_resnet18", &["train.class_weights=[0,0,0,0,0,0,0,0,0,0,0]"], &["are all 0"]);
    error_of("erfnet", &["first_stage.network=digits"], &["shares no layer with `erfnet`"]);
    error_of("fcn_resnet18", &["validation.mirror=true"], &["no class probabilities"]);
    // A mask of another size than its image, and an invalid class.
    let label = dir.path("set/trainannot/2.png");
    let before = fs::read(&label).unwrap();
    write(&label, ColorType::Grayscale, &[VOID + 1; HEIGHT * WIDTH]);
    let ran = train(&dir, "run", "fcn_resnet18", &["train.epochs=1"]).expect(1);
    assert!(ran.err.contains("trainannot/2.png") && ran.err.contains("12"), "{}", ran.err);
    fs::write(&label, before).unwrap();
}

/// Half or all of the pixels of an image have no class: a micro-batch may have no labels.
#[test]
fn micro_batches_have_the_loss_of_the_whole_batch() {
    let dir = TestDir::without_kernel_cache();
    write_streets(&dir);
    for (image, rows) in [(1, HEIGHT / 2), (2, HEIGHT)] {
        let mut classes = labels(image);
        classes[..rows * WIDTH].fill(VOID);
        write(&dir.path(&format!("set/trainannot/{image}.png")), ColorType::Grayscale, &classes);
    }
    let network = "name = \"net\"\ninput = [3, 24, 32]\noutput = \"conv\"\n\n[[layer]]\nname = \"conv\"\n\
                   op = \"conv2d\"\nout_channels = 11\nkernel = 3\npadding = 1\n";
    fs::write(dir.path("net.toml"), network).unwrap();
    let loss_and_weights = |name: &str, more: &[&str], workers: &str| {
        let settings = ["train.epochs=1", "train.threads=1", "train.class_weighting=median_frequency"];
        let mut arguments = arguments(name, "net.toml", &[&settings[..], more].concat());
        // The layer file has no width.
        let width = arguments.iter().position(|argument| argument == "model.width=4").unwrap();
        arguments.drain(width - 1..=width);
        arguments.extend(["--workers".to_owned(), workers.to_owned()]);
        dir.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).expect(0);
        let row = rows(&dir.path(name).join("iterations.csv"), ITERATIONS)[0].clone();
        let loss: f64 = row.split(',').nth(2).unwrap().parse().unwrap();
        (loss, summary(&dir.path(name))["weights_sha256"].clone())
    };
    let (whole, _) = loss_and_weights("whole", &[], "1");
    let near = |loss: f64| assert!((loss / whole - 1.0).abs() < 1e-6, "{loss} and {whole}");
    near(loss_and_weights("micro2", &["train.micro_batches=2"], "1").0);
    near(loss_and_weights("micro4", &["train.micro_batches=4"], "1").0);
    let (loss, weights) = loss_and_weights("parts", &["train.parts=4"], "1");
    near(loss);
    if crate::workers::has_mpi() {
        assert_eq!(loss_and_weights("two", &["train.parts=4"], "2"), (loss, weights));
    }
}
