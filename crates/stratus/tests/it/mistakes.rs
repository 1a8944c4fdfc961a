//! `stratus eval --mistakes` and `--gallery`: what a network is wrong about.

use crate::common::{CommandOutput, TestDir, photographs};
use serde_json::Value;
use std::fs;

/// Trains a network for one epoch, which leaves mistakes.
fn trained() -> TestDir {
    let dir = photographs::test_dir();
    photographs::train(&dir, "run", &["train.epochs=1"], None).expect(0);
    dir
}

fn eval(dir: &TestDir, more: &[&str]) -> CommandOutput {
    dir.run(&[&["eval", "run", "--split", "all"], more].concat())
}

#[test]
fn lists_the_most_confident_mistakes() {
    let dir = trained();
    let ran = eval(&dir, &["--mistakes=1000", "--json", "--csv", "classes.csv"]).expect(0);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let listed = report["mistakes"].as_array().unwrap();
    let wrong = 30.0 * (1.0 - report["top1"].as_f64().unwrap());
    assert_eq!(listed.len() as f64, wrong.round());
    assert_eq!(report["images_with_mistakes"], listed.len());
    assert!(!listed.is_empty());
    let probability = |mistake: &Value| mistake["probability"].as_f64().unwrap();
    assert!(listed.windows(2).all(|pair| probability(&pair[0]) >= probability(&pair[1])));
    for mistake in listed {
        let text = |key: &str| mistake[key].as_str().unwrap();
        // The folder of an image is its class.
        assert!(text("path").contains(&format!("/{}/", text("name"))), "{mistake}");
        assert_ne!(text("name"), text("predicted_name"));
        assert!(probability(mistake) > 1.0 / 3.0 - 1e-6 && probability(mistake) <= 1.0, "{mistake}");
        // Inference on the file gives the same answer.
        let ran = dir.run(&["infer", "run", text("path"), "--json"]).expect(0);
        let inferred: Value = serde_json::from_str(&ran.out).unwrap();
        let top = &inferred["images"][0]["top"][0];
        assert_eq!(top["name"], mistake["predicted_name"]);
        assert!((probability(top) - probability(mistake)).abs() < 1e-4, "{top} {mistake}");
    }
    // Without the flag nothing changes.
    let plain: Value = serde_json::from_str(&eval(&dir, &["--json"]).expect(0).out).unwrap();
    assert!(plain.get("mistakes").is_none() && plain.get("images_with_mistakes").is_none());
    assert_eq!(plain["loss"], report["loss"]);

    let ran = eval(&dir, &["--mistakes=1", "--mistakes-csv", "mistakes.csv"]).expect(0);
    let first = listed[0]["path"].as_str().unwrap();
    assert!(
        ran.out.contains("images with mistakes, the worst 1:\n") && ran.out.contains(first),
        "{}",
        ran.out
    );
    let table = fs::read_to_string(dir.path("mistakes.csv")).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0], "path,class,name,predicted,predicted_name,probability,iou");
    assert!(lines[1].starts_with(&format!("\"{first}\",")), "{table}");
    // Its own table is replaced, a file of the user is not.
    eval(&dir, &["--mistakes-csv", "mistakes.csv"]).expect(0);
    fs::write(dir.path("mistakes.csv"), "mine").unwrap();
    let ran = eval(&dir, &["--mistakes-csv", "mistakes.csv"]).expect(2);
    assert!(ran.err.contains("the table of mistakes would replace it"), "{}", ran.err);
    eval(&dir, &["--mistakes=0"]).expect(2);
    let ran = eval(&dir, &["--mistakes", "--window", "8x8"]).expect(2);
    assert!(ran.err.contains("cannot be used with"), "{}", ran.err);
}

#[test]
fn draws_the_mistakes() {
    let dir = trained();
    let ran = eval(&dir, &["--gallery", "gallery.png"]).expect(0);
    assert!(ran.out.contains("with mistakes"), "{}", ran.out);
    let size = |name: &str| {
        let file = std::io::BufReader::new(fs::File::open(dir.path(name)).unwrap());
        let reader = png::Decoder::new(file).read_info().unwrap();
        (reader.info().height, reader.info().width)
    };
    let all = size("gallery.png");
    // The gallery is an image of Stratus, so it is replaced.
    eval(&dir, &["--mistakes=1", "--gallery", "gallery.png"]).expect(0);
    let one = size("gallery.png");
    assert!(one.0 < all.0 || one.1 < all.1, "{one:?} {all:?}");
    // Names that a terminal would obey.
    let report: Value = serde_json::from_str(&eval(&dir, &["--mistakes=1", "--json"]).expect(0).out).unwrap();
    let worst = dir.path(report["mistakes"][0]["path"].as_str().unwrap());
    fs::copy(&worst, worst.with_file_name("a\u{1b}[2J\u{202e}<script>\".png")).unwrap();
    let ran = eval(&dir, &["--mistakes=100", "--gallery", "gallery.png"]).expect(0);
    assert!(ran.out.contains("a�[2J�<script>\".png") && !ran.out.contains('\u{1b}'), "{}", ran.out);
    fs::write(dir.path("mine.png"), "mine").unwrap();
    eval(&dir, &["--gallery", "mine.png"]).expect(2);
    assert_eq!(fs::read(dir.path("mine.png")).unwrap(), b"mine");
}
