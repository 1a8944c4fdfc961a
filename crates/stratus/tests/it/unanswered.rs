//! Images that get no answer: what cannot be decoded, is too small for a window or too large for the memory.

use crate::common::photographs::put_photographs;
use crate::common::streets::{VALIDATION, streets};
use crate::common::{Place, Ran, photographs, streets as streets_of};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A folder with photographs, and a run that saw them once.
fn trained() -> Place {
    let place = Place::bare();
    put_photographs(&place, "photographs");
    photographs::train(&place, "run", &["train.epochs=1"], None).expect(0);
    place
}

/// A folder with streets, and a run that saw them once.
fn segmenting() -> Place {
    let place = Place::bare();
    streets(&place);
    let settings = ["train.epochs=1", "train.device=reference"];
    streets_of::train(&place, "run", "fcn_resnet18", &settings).expect(0);
    place
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap()
}

/// The classes of the images with an answer, by their paths.
fn answers(report: &Value) -> Vec<(String, Value)> {
    let images = report["images"].as_array().unwrap();
    images.iter().map(|image| (image["path"].as_str().unwrap().to_owned(), image["top"].clone())).collect()
}

/// Cuts a copy of a file in its middle.
fn cut(from: &Path, to: &Path) {
    let bytes = fs::read(from).unwrap();
    fs::write(to, &bytes[..bytes.len() / 2]).unwrap();
}

/// No word of what infer does not do.
fn expect_no_training(ran: &Ran) {
    for word in ["batch", "epoch", "train"] {
        assert!(!ran.err.contains(word), "{}", ran.err);
    }
}

#[test]
fn answers_whole_images_as_if_damaged_ones_were_not_there() {
    let place = trained();
    let whole: Vec<String> = (0..4).map(|image| format!("photographs/row/{image}.png")).collect();
    let damaged = ["cut.png", "empty.png", "text.jpg"];
    cut(&place.path(&whole[0]), &place.path(damaged[0]));
    fs::write(place.path(damaged[1]), "").unwrap();
    fs::write(place.path(damaged[2]), "no image").unwrap();
    let infer =
        |images: &[&str], more: &[&str]| place.run(&[&["infer", "run", "--json"], images, more].concat());
    let whole: Vec<&str> = whole.iter().map(String::as_str).collect();
    for batch in ["1", "2", "3"] {
        let expected = answers(&json(&infer(&whole, &["--batch", batch]).expect(0)));
        // Damaged ones first, between the others and last; as many together as fill a batch.
        for at in [[0, 1, 2], [2, 2, 3], [4, 5, 6], [0, 3, 6], [1, 1, 1]] {
            let mut images = whole.clone();
            at.into_iter().zip(damaged).for_each(|(at, name)| images.insert(at, name));
            for on_bad_sample in ["error", "skip"] {
                let key = format!("data.on_bad_sample={on_bad_sample}");
                let ran = infer(&images, &["--batch", batch, "--set", &key]).expect(1);
                let report = json(&ran);
                assert_eq!(answers(&report), expected, "{images:?} {batch}");
                let errors = report["errors"].as_array().unwrap();
                let mut named: Vec<&str> =
                    errors.iter().map(|image| image["path"].as_str().unwrap()).collect();
                named.sort_unstable();
                assert_eq!(named, damaged);
                assert!(ran.err.contains("warning: cut.png: the PNG cannot be decoded"), "{}", ran.err);
                assert!(ran.err.contains("warning: empty.png: the file is empty"), "{}", ran.err);
                assert!(ran.err.contains("error: 3 of 7 images got no answer"), "{}", ran.err);
                expect_no_training(&ran);
            }
        }
    }
}

#[test]
fn writes_no_row_and_no_picture_for_damaged_images() {
    let place = trained();
    cut(&place.path("photographs/row/0.png"), &place.path("photographs/row/0a.png"));
    let ran = place.run(&["infer", "run", "photographs/row", "--csv", "a.csv", "--sheet", "a.png"]).expect(1);
    assert!(ran.err.contains("1 of 11 images got no answer"), "{}", ran.err);
    let table = fs::read_to_string(place.path("a.csv")).unwrap();
    assert_eq!(table.lines().filter(|line| line.contains("\",1,")).count(), 10);
    assert!(!table.contains("0a.png") && !ran.out.contains("0a.png"), "{table}");
    assert!(place.path("a.png").exists());

    let ran = place.run(&["infer", "run", "photographs/row/0a.png", "--csv", "b.csv", "--sheet", "b.png"]);
    let ran = ran.expect(1);
    assert!(ran.err.contains("1 of 1 image got no answer"), "{}", ran.err);
    assert_eq!(fs::read_to_string(place.path("b.csv")).unwrap(), "path,rank,class,name,probability\n");
    assert!(!place.path("b.png").exists());
}

#[test]
fn writes_no_mask_for_damaged_images() {
    let place = segmenting();
    let image = |name: &str| place.path(&format!("set/val/{name}.png"));
    cut(&image("8"), &image("08"));
    for (out, more) in [("whole", &[][..]), ("windows", &["--window", "12x16"])] {
        let arguments = ["infer", "run", "set/val", "--out", out, "--overlay", "--batch", "2"];
        let ran = place.run(&[&arguments, more].concat()).expect(1);
        assert!(ran.err.contains("warning: set/val/08.png: the PNG cannot be decoded"), "{}", ran.err);
        expect_no_training(&ran);
        assert_eq!(fs::read_dir(place.path(out)).unwrap().count(), 2 * VALIDATION);
    }
    // A smaller image than a window keeps no other from its mask.
    streets_of::write_sized(&image("small"), png::ColorType::Rgb, &[9; 3 * 100], [10, 10]);
    let ran = place.run(&["infer", "run", "set/val", "--out", "windows", "--window", "12x16"]).expect(1);
    assert!(ran.err.contains("small.png has 10x10 pixels, a window 12x16"), "{}", ran.err);
    assert!(ran.err.contains("2 of 5 images got no answer"), "{}", ran.err);
}

#[test]
fn measures_whole_images_and_says_how_many_are_left_out() {
    let place = trained();
    let image = place.path("photographs/row/3.png");
    cut(&image.clone(), &image);
    let eval = |more: &[&str]| {
        let all = ["eval", "run", "--data", "photographs", "--split", "all", "--set", "data.split_seed="];
        place.run(&[&all[..], &["--set", "data.on_bad_sample=skip"], more].concat())
    };
    let ran = eval(&[]).expect(0);
    assert!(ran.err.contains("1 of 30 images, all of photographs cannot be decoded"), "{}", ran.err);
    let report = json(&eval(&["--json"]).expect(0));
    assert_eq!((&report["measured"]["left_out"], &report["samples"]), (&1.into(), &29.into()));
}

/// A limit of the address space, as on a machine with little memory.
#[cfg(target_os = "linux")]
#[test]
fn refuses_an_image_that_memory_has_no_room_for() {
    use std::process::{Command, Stdio};
    let place = segmenting();
    let (height, width) = (9000, 9000);
    streets_of::write_sized(
        &place.path("large.png"),
        png::ColorType::Grayscale,
        &vec![7; height * width],
        [height, width],
    );
    let program = env!("CARGO_BIN_EXE_stratus");
    let infer = format!(
        "ulimit -v 1200000; '{program}' infer run large.png set/val --out masks --window 24x32 --overlap 0"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &infer]).current_dir(place.folder.path()).stdin(Stdio::null());
    let ran = Ran::of(command.env("STRATUS_CACHE", place.path("cache")).output().unwrap()).expect(1);
    assert!(ran.err.contains("large.png needs "), "{}", ran.err);
    assert!(ran.err.contains("of 9000x9000 pixels"), "{}", ran.err);
    assert!(ran.err.contains("1 of 4 images got no answer"), "{}", ran.err);
    assert_eq!(fs::read_dir(place.path("masks")).unwrap().count(), VALIDATION);
}
