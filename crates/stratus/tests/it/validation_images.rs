//! `validation/` of a run: what the network gets wrong, as pictures and figures, after every validation.

#![cfg(unix)]

use crate::common::streets::{self, HEIGHT, WIDTH, write_streets};
use crate::common::{TestDir, photographs, summary, validation_files};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn names(run: &Path) -> Vec<String> {
    validation_files(run).into_keys().collect()
}

/// Height and width of a PNG file, which is decoded.
fn size(path: &Path) -> (u32, u32) {
    let file = std::io::BufReader::new(fs::File::open(path).unwrap());
    let mut reader = png::Decoder::new(file).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    (reader.info().height, reader.info().width)
}

/// The fields of a CSV file without quotes, below its header.
fn table(path: &Path, header: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(header));
    lines.map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

const CLASSES: &str = "epoch,class,samples,accuracy,iou,bf";
const CONFUSION: &str = "epoch,class,predicted,count";

#[test]
fn classifier_keeps_its_mistakes() {
    let dir = photographs::test_dir();
    let more = ["train.epochs=2", "validation.images=5"];
    photographs::train(&dir, "run", &more, None).expect(0);
    let run = dir.path("run");
    let index = json(&run.join("validation/images.json"));
    // The mistakes are those of `stratus eval`.
    let ran = dir.run(&["eval", "run", "--mistakes=5", "--json"]).expect(0);
    let eval: Value = serde_json::from_str(&ran.out).unwrap();
    let (kept, listed) =
        (index["images"]["mistakes"].as_array().unwrap(), eval["mistakes"].as_array().unwrap());
    assert!(!kept.is_empty());
    assert_eq!(kept.len(), listed.len());
    for (kept, listed) in kept.iter().zip(listed) {
        assert_eq!(kept["file"], listed["path"]);
        for key in ["class", "predicted", "probability"] {
            assert_eq!(kept[key], listed[key], "{key}");
        }
    }
    assert_eq!(index["images"]["mistake_count"], eval["images_with_mistakes"]);
    assert_eq!((&index["epoch"], &index["size"]), (&2.into(), &serde_json::json!([12, 12])));
    // All images of each class, since there are few; the folder of an image is its class.
    let samples = index["images"]["samples"].as_array().unwrap();
    for sample in samples {
        let class = ["column", "frame", "row"][sample["class"].as_u64().unwrap() as usize];
        assert!(sample["file"].as_str().unwrap().contains(&format!("/{class}/")), "{sample}");
    }
    // Pictures in rows of eight, only those of the newest validation.
    let (mistakes, samples) = (kept.len() as u32, samples.len() as u32);
    let folder = run.join("validation");
    assert_eq!(size(&folder.join("0000000002.png")), (12, 12 * mistakes));
    assert_eq!(size(&folder.join("samples.png")), (12 * samples.div_ceil(8), 12 * samples.min(8)));
    assert_eq!(names(&run), ["0000000002.png", "classes.csv", "confusion.csv", "images.json", "samples.png"]);
    // A row per validation and class, and the counts of the newest matrix.
    let classes = table(&folder.join("classes.csv"), CLASSES);
    let epochs: Vec<&str> = classes.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(epochs, ["1", "1", "1", "2", "2", "2"]);
    for (row, class) in classes[3..].iter().zip(summary(&run)["classes"].as_array().unwrap()) {
        assert_eq!(row[1], class["class"].to_string());
        assert_eq!(row[3].parse::<f64>().ok(), class["accuracy"].as_f64());
    }
    let counts = table(&folder.join("confusion.csv"), CONFUSION);
    let count = |is_counted: &dyn Fn(&Vec<String>) -> bool| -> u64 {
        counts.iter().filter(|row| is_counted(row)).map(|row| row[3].parse::<u64>().unwrap()).sum()
    };
    let (correct, all) = (count(&|row| row[1] == row[2]), count(&|_| true));
    assert_eq!(all - correct, eval["images_with_mistakes"].as_u64().unwrap());
    assert_eq!(correct as f64 / all as f64, eval["top1"].as_f64().unwrap());
    // The page shows them, with the names as text.
    dir.run(&["report", "run", "--out", "report.html"]).expect(0);
    let page = fs::read_to_string(dir.path("report.html")).unwrap();
    for text in ["Most confident mistakes", "data:image/png;base64,", "Confusion matrix", "class-history"] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn images_change_no_bit_of_the_training_and_are_off_with_0() {
    let dir = photographs::test_dir();
    for (run, images) in [("off", "validation.images=0"), ("on", "validation.images=64")] {
        photographs::train(&dir, run, &["train.epochs=2", images], None).expect(0);
    }
    let [off, on] = ["off", "on"].map(|run| dir.path(run));
    assert!(!off.join("validation").exists() && on.join("validation").exists());
    let weights = [&off, &on].map(|run| summary(run)["weights_sha256"].clone());
    assert_eq!(weights[0], weights[1]);
    let ran = dir.run(&["report", "off", "--out", "off.html"]).expect(0);
    assert!(!ran.err.contains("validation"), "{}", ran.err);
    assert!(!fs::read_to_string(dir.path("off.html")).unwrap().contains("What the network gets wrong"));
    let ran = photographs::train(&dir, "many", &["validation.images=65"], None).expect(2);
    assert!(ran.err.contains("validation.images"), "{}", ran.err);
}

#[test]
fn segmentation_keeps_the_masks_of_the_same_images() {
    let dir = TestDir::without_kernel_cache();
    write_streets(&dir);
    let more = ["train.epochs=3", "validation.images=2"];
    streets::train(&dir, "run", "erfnet", &more).expect(0);
    let run = dir.path("run");
    let index = json(&run.join("validation/images.json"));
    let images = &index["images"];
    let epochs: Vec<u64> = images["predictions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|shown| shown["epoch"].as_u64().unwrap())
        .collect();
    assert_eq!(epochs, [1, 2, 3]);
    // Of the first and the middle image of the list. Their IoU is that of `stratus eval`.
    let ran = dir.run(&["eval", "run", "--mistakes=1000", "--json"]).expect(0);
    let eval: Value = serde_json::from_str(&ran.out).unwrap();
    let samples = images["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 2);
    for (row, sample) in samples.iter().enumerate() {
        let listed = eval["mistakes"].as_array().unwrap().iter().find(|mistake| mistake["path"] == *sample);
        let iou = listed.map_or(1.0, |listed| listed["iou"].as_f64().unwrap());
        assert_eq!(images["predictions"][2]["iou"][row].as_f64(), Some(iou), "{sample}");
    }
    let pictures = ["samples", "0000000001", "0000000002", "0000000003"];
    for name in pictures {
        let path = run.join(format!("validation/{name}.png"));
        assert_eq!(size(&path), (2 * HEIGHT as u32, 2 * WIDTH as u32));
    }
    // CamVid's classes have their published colours.
    assert_eq!(images["colours"][3], serde_json::json!([128, 64, 128]));
    let rows = table(&run.join("validation/classes.csv"), CLASSES);
    assert_eq!(rows.len(), 3 * images["colours"].as_array().unwrap().len());
    dir.run(&["report", "run", "--out", "report.html"]).expect(0);
    let page = fs::read_to_string(dir.path("report.html")).unwrap();
    assert!(page.contains("data-mask-epochs=\"1,2,3\""));
}

#[test]
fn files_of_a_resumed_run_equal_those_of_an_uninterrupted_one() {
    let dir = photographs::test_dir();
    let settings = ["train.epochs=6", "checkpoint.every_seconds=0.01"];
    photographs::train(&dir, "whole", &settings, None).expect(0);
    let whole = validation_files(&dir.path("whole"));
    assert!(whole.len() >= 4);
    let run = dir.path("cut");
    let changed = photographs::SETTINGS.iter().chain(&settings).flat_map(|setting| ["--set", setting]);
    let begin = ["train", "digits", "--out", "cut", "--data", "photographs", "--until-epoch", "3"];
    let ran = dir.run(&begin.into_iter().chain(changed).collect::<Vec<_>>());
    assert!(ran.code == Some(0) || ran.code == Some(75), "{}", ran.err);
    assert_ne!(validation_files(&run), whole);
    // As after a kill between a validation and its checkpoint: files of later epochs, and a torn one.
    let folder = run.join("validation");
    for (name, bytes) in whole.iter().filter(|(name, _)| *name != "classes.csv") {
        fs::write(folder.join(name), bytes).unwrap();
    }
    let mut rows = fs::read(folder.join("classes.csv")).unwrap();
    rows.extend_from_slice(b"9,0,1,0.5,0.5,\n9,1,");
    fs::write(folder.join("classes.csv"), rows).unwrap();
    fs::write(folder.join(".images.json.1.0.tmp"), "{").unwrap();
    dir.run(&["train", "cut"]).expect(0);
    assert_eq!(validation_files(&run), whole);
    assert_eq!(summary(&run)["weights_sha256"], summary(&dir.path("whole"))["weights_sha256"]);
}

#[test]
fn damaged_files_are_named_and_do_not_stop_anything() {
    let dir = photographs::test_dir();
    photographs::train(&dir, "run", &["train.epochs=1"], None).expect(0);
    let folder = dir.path("run/validation");
    let picture = folder.join("samples.png");
    let bytes = fs::read(&picture).unwrap();
    fs::write(&picture, &bytes[..bytes.len() / 2]).unwrap();
    fs::write(folder.join("confusion.csv"), "epoch,class,predicted,count\n1,x\n").unwrap();
    fs::write(folder.join("classes.csv"), "epoch,class\n").unwrap();
    dir.run(&["report", "run", "--out", "report.html"]).expect(0);
    let page = fs::read_to_string(dir.path("report.html")).unwrap();
    for text in [
        "samples.png is damaged: it is incomplete",
        "confusion.csv is damaged: line 2",
        "classes.csv is damaged",
    ] {
        assert!(page.contains(text), "{text}");
    }
    fs::write(folder.join("images.json"), "{}").unwrap();
    dir.run(&["report", "run", "--out", "report.html"]).expect(0);
    let page = fs::read_to_string(dir.path("report.html")).unwrap();
    assert!(page.contains("images.json is damaged") && page.contains("Per layer"));
    // Without the folder, the run is reported and trained further as before.
    fs::remove_dir_all(&folder).unwrap();
    dir.run(&["report", "run", "--out", "report.html"]).expect(0);
    assert!(!fs::read_to_string(dir.path("report.html")).unwrap().contains("What the network gets wrong"));
}
