//! Images without a result: not decodable, smaller than a window, or too large for memory.

use crate::common::photographs::write_photographs;
use crate::common::streets::{VALIDATION, write_streets};
use crate::common::{CommandOutput, TestDir, photographs, streets};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A folder with photographs, and a run of one epoch on them.
fn trained() -> TestDir {
    let dir = TestDir::without_kernel_cache();
    write_photographs(&dir, "photographs");
    photographs::train(&dir, "run", &["train.epochs=1"], None).expect(0);
    dir
}

/// A folder with street scenes, and a run of one epoch on them.
fn trained_segmentation() -> TestDir {
    let dir = TestDir::without_kernel_cache();
    write_streets(&dir);
    let settings = ["train.epochs=1", "train.device=reference"];
    streets::train(&dir, "run", "fcn_resnet18", &settings).expect(0);
    dir
}

fn json(ran: &CommandOutput) -> Value {
    serde_json::from_str(&ran.out).unwrap()
}

/// The classes of the images with a result, by path.
fn results(report: &Value) -> Vec<(String, Value)> {
    let images = report["images"].as_array().unwrap();
    images.iter().map(|image| (image["path"].as_str().unwrap().to_owned(), image["top"].clone())).collect()
}

/// Writes a copy of a file that ends in the middle.
fn truncate(from: &Path, to: &Path) {
    let bytes = fs::read(from).unwrap();
    fs::write(to, &bytes[..bytes.len() / 2]).unwrap();
}

/// Checks that messages do not mention training.
fn expect_no_training(ran: &CommandOutput) {
    for word in ["batch", "epoch", "train"] {
        assert!(!ran.err.contains(word), "{}", ran.err);
    }
}

#[test]
fn damaged_images_do_not_change_other_results() {
    let dir = trained();
    let whole: Vec<String> = (0..4).map(|image| format!("photographs/row/{image}.png")).collect();
    let damaged = ["cut.png", "empty.png", "text.jpg"];
    truncate(&dir.path(&whole[0]), &dir.path(damaged[0]));
    fs::write(dir.path(damaged[1]), "").unwrap();
    fs::write(dir.path(damaged[2]), "no image").unwrap();
    let infer =
        |images: &[&str], more: &[&str]| dir.run(&[&["infer", "run", "--json"], images, more].concat());
    let whole: Vec<&str> = whole.iter().map(String::as_str).collect();
    for batch in ["1", "2", "3"] {
        let expected = results(&json(&infer(&whole, &["--batch", batch]).expect(0)));
        // Damaged images at the start, between others and at the end; a full batch of them in sequence.
        for at in [[0, 1, 2], [2, 2, 3], [4, 5, 6], [0, 3, 6], [1, 1, 1]] {
            let mut images = whole.clone();
            at.into_iter().zip(damaged).for_each(|(at, name)| images.insert(at, name));
            for on_bad_sample in ["error", "skip"] {
                let key = format!("data.on_bad_sample={on_bad_sample}");
                let ran = infer(&images, &["--batch", batch, "--set", &key]).expect(1);
                let report = json(&ran);
                assert_eq!(results(&report), expected, "{images:?} {batch}");
                let errors = report["errors"].as_array().unwrap();
                let mut named: Vec<&str> =
                    errors.iter().map(|image| image["path"].as_str().unwrap()).collect();
                named.sort_unstable();
                assert_eq!(named, damaged);
                assert!(ran.err.contains("warning: cut.png: cannot decode the PNG"), "{}", ran.err);
                assert!(ran.err.contains("warning: empty.png: the file is empty"), "{}", ran.err);
                assert!(ran.err.contains("error: no prediction for 3 of 7 images"), "{}", ran.err);
                expect_no_training(&ran);
            }
        }
    }
}

#[test]
fn damaged_images_get_no_row_and_no_picture() {
    let dir = trained();
    truncate(&dir.path("photographs/row/0.png"), &dir.path("photographs/row/0a.png"));
    let ran = dir.run(&["infer", "run", "photographs/row", "--csv", "a.csv", "--sheet", "a.png"]).expect(1);
    assert!(ran.err.contains("no prediction for 1 of 11 images"), "{}", ran.err);
    let table = fs::read_to_string(dir.path("a.csv")).unwrap();
    assert_eq!(table.lines().filter(|line| line.contains("\",1,")).count(), 10);
    assert!(!table.contains("0a.png") && !ran.out.contains("0a.png"), "{table}");
    assert!(dir.path("a.png").exists());

    let ran = dir.run(&["infer", "run", "photographs/row/0a.png", "--csv", "b.csv", "--sheet", "b.png"]);
    let ran = ran.expect(1);
    assert!(ran.err.contains("no prediction for 1 of 1 image"), "{}", ran.err);
    assert_eq!(fs::read_to_string(dir.path("b.csv")).unwrap(), "path,rank,class,name,probability\n");
    assert!(!dir.path("b.png").exists());
}

#[test]
fn damaged_images_get_no_mask() {
    let dir = trained_segmentation();
    let image = |name: &str| dir.path(&format!("set/val/{name}.png"));
    truncate(&image("8"), &image("08"));
    for (out, more) in [("whole", &[][..]), ("windows", &["--window", "12x16"])] {
        let arguments = ["infer", "run", "set/val", "--out", out, "--overlay", "--batch", "2"];
        let ran = dir.run(&[&arguments, more].concat()).expect(1);
        assert!(ran.err.contains("warning: set/val/08.png: cannot decode the PNG"), "{}", ran.err);
        expect_no_training(&ran);
        assert_eq!(fs::read_dir(dir.path(out)).unwrap().count(), 2 * VALIDATION);
    }
    // An image smaller than the window does not affect other masks.
    streets::write_sized(&image("small"), png::ColorType::Rgb, &[9; 3 * 100], [10, 10]);
    let ran = dir.run(&["infer", "run", "set/val", "--out", "windows", "--window", "12x16"]).expect(1);
    assert!(ran.err.contains("small.png has 10x10 pixels, fewer than a window of 12x16"), "{}", ran.err);
    assert!(ran.err.contains("no prediction for 2 of 5 images"), "{}", ran.err);
}

#[test]
fn metrics_skip_damaged_images_and_report_their_number() {
    let dir = trained();
    let image = dir.path("photographs/row/3.png");
    truncate(&image.clone(), &image);
    let eval = |more: &[&str]| {
        let all = ["eval", "run", "--data", "photographs", "--split", "all", "--set", "data.split_seed="];
        dir.run(&[&all[..], &["--set", "data.on_bad_sample=skip"], more].concat())
    };
    let ran = eval(&[]).expect(0);
    assert!(ran.err.contains("cannot decode 1 of 30 images, all of photographs: skipped"), "{}", ran.err);
    let report = json(&eval(&["--json"]).expect(0));
    assert_eq!((&report["measured"]["left_out"], &report["samples"]), (&1.into(), &29.into()));
}

/// Limits the address space to simulate little memory.
#[cfg(target_os = "linux")]
#[test]
fn rejects_an_image_that_exceeds_memory() {
    use std::process::{Command, Stdio};
    let dir = trained_segmentation();
    let (height, width) = (9000, 9000);
    streets::write_sized(
        &dir.path("large.png"),
        png::ColorType::Grayscale,
        &vec![7; height * width],
        [height, width],
    );
    let program = env!("CARGO_BIN_EXE_stratus");
    let infer = format!(
        "ulimit -v 1200000; '{program}' infer run large.png set/val --out masks --window 24x32 --overlap 0"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &infer]).current_dir(dir.folder.path()).stdin(Stdio::null());
    let ran = CommandOutput::new(command.env("STRATUS_CACHE", dir.path("cache")).output().unwrap()).expect(1);
    assert!(ran.err.contains("large.png needs "), "{}", ran.err);
    assert!(ran.err.contains("for 9000x9000 pixels"), "{}", ran.err);
    assert!(ran.err.contains("no prediction for 1 of 4 images"), "{}", ran.err);
    assert_eq!(fs::read_dir(dir.path("masks")).unwrap().count(), VALIDATION);
}

/// The loss of the only iteration is finite, but not the outputs of the weights that follow.
const DIVERGING: [&str; 3] = ["train.epochs=1", "optimiser.learning_rate=1e30", "schedule.warmup_epochs=0"];

#[test]
fn outputs_that_are_not_finite_have_neither_classes_nor_metrics() {
    let dir = TestDir::without_kernel_cache();
    write_photographs(&dir, "photographs");
    let one_iteration = ["train.batch_size=18"];
    let ran = photographs::train(&dir, "run", &[&DIVERGING[..], &one_iteration].concat(), None).expect(0);
    assert!(ran.err.contains("warning: the validation loss after epoch 1 is NaN"), "{}", ran.err);
    let row = fs::read_to_string(dir.path("run/epochs.csv")).unwrap();
    assert!(row.lines().last().unwrap().contains(",NaN,,,"), "{row}");
    let classes = fs::read_to_string(dir.path("run/classes.csv")).unwrap();
    assert!(classes.lines().skip(1).all(|line| line.ends_with(",,,")), "{classes}");

    let ran = dir.run(&["infer", "run", "photographs/row/0.png", "--json"]).expect(1);
    assert!(ran.err.contains("photographs/row/0.png: the network's output is not finite"), "{}", ran.err);
    assert_eq!(results(&json(&ran)), []);
    let ran = dir.run(&["eval", "run"]).expect(1);
    assert!(ran.err.contains("error: the loss is NaN: the network's outputs are not finite"), "{}", ran.err);
}

#[test]
fn outputs_that_are_not_finite_have_no_masks() {
    let dir = TestDir::without_kernel_cache();
    write_streets(&dir);
    let settings = [&DIVERGING[..], &["train.batch_size=8"]].concat();
    streets::train(&dir, "run", "fcn_resnet18", &settings).expect(0);
    for (out, more) in [("whole", &[][..]), ("windows", &["--window", "12x16"])] {
        let ran = dir.run(&[&["infer", "run", "set/val/8.png", "--out", out][..], more].concat()).expect(1);
        assert!(ran.err.contains("the network's output is not finite"), "{}", ran.err);
        assert!(!dir.path(out).join("8.png").exists());
        let ran = dir.run(&[&["eval", "run"][..], more].concat()).expect(1);
        assert!(ran.err.contains("the network's output"), "{}", ran.err);
    }
}
