//! `stratus data` with tables of labels and numbers.

use crate::common::{TestDir, json, root};
use std::fs;

/// Four images, the first two of which are the same.
fn write_images(dir: &TestDir) {
    let fixtures = root().join("crates/stratus-data/tests/fixtures/images");
    fs::create_dir_all(dir.path("photos/images")).unwrap();
    for (number, file) in ["colour.jpg", "colour.jpg", "grey.jpg", "deep.png"].into_iter().enumerate() {
        fs::copy(fixtures.join(file), dir.path(&format!("photos/images/{number}"))).unwrap();
    }
}

#[test]
fn check_counts_labels_missing_cells_and_contradictions() {
    let dir = TestDir::without_kernel_cache();
    write_images(&dir);
    let table =
        "path,split,sea,sun\nimages/0,train,1,1\nimages/1,train,1,\nimages/2,val,0,1\nimages/2,val,0,1\n";
    fs::write(dir.path("photos/labels.csv"), table).unwrap();
    let expected = "train: 2 images, 0 damaged, 1 missing labels or numbers, 1 also with other labels\n  \
                    photos/images/1: the same image, with other labels or numbers: photos/images/0\n\
                    validation: 1 images, 0 damaged, 1 classes without images\n  sea: no images\n";
    for name in ["photos", "photos/labels.csv"] {
        let ran = dir.run(&["data", "check", name]).expect(1);
        assert_eq!(ran.out, expected);
        assert!(ran.err.contains("photos/labels.csv: ignored 1 repeated row"), "{}", ran.err);
    }
    fs::write(dir.path("photos/labels.csv"), "path,split,age\nimages/0,train,2\nimages/3,val,2\n").unwrap();
    let ran = dir.run(&["data", "check", "photos"]).expect(0);
    let first = "train: 1 images, 0 damaged, 1 constant numbers\n  age: the same number in all images\n";
    assert!(ran.out.starts_with(first), "{}", ran.out);
}

#[test]
fn stats_show_labels_pairs_and_ranges() {
    let dir = TestDir::without_kernel_cache();
    write_images(&dir);
    let table = "path,sea,sun,ice\nimages/0,1,1,\nimages/1,1,1,1\nimages/2,0,1,0\nimages/3,0,0,0\n";
    fs::write(dir.path("photos/labels.csv"), table).unwrap();
    let ran = dir.run(&["data", "stats", "photos"]).expect(0);
    let text: Vec<String> =
        ran.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "label images share missing",
        "sea 2 50.00% 0",
        "sun 3 75.00% 0",
        "ice 1 33.33% 1",
        "labels together images",
        "sea, sun 2",
        "sea, ice 1",
    ] {
        assert!(text.iter().any(|found| found == line), "`{line}` in {}", ran.out);
    }
    let document = json(&dir.run(&["data", "stats", "photos", "--json"]).expect(0).out);
    let text = document.to_string();
    assert!(text.contains("\"kind\":\"labels\"") && text.contains("\"positives\":3"), "{text}");
    fs::write(dir.path("photos/labels.csv"), "path,age\nimages/0,-1\nimages/2,\nimages/3,2.5\n").unwrap();
    let ran = dir.run(&["data", "stats", "photos"]).expect(0);
    let text = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let expected = "number images missing min mean max std age 2 1 -1 0.75 2.5 1.75";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn sheets_and_shards_of_tables() {
    let dir = TestDir::without_kernel_cache();
    write_images(&dir);
    let table = "path,split,sea,sun\nimages/0,train,1,0\nimages/2,train,0,1\nimages/3,val,1,0\n";
    fs::write(dir.path("photos/labels.csv"), table).unwrap();
    let ran =
        dir.run(&["data", "show", "photos", "-o", "sheet.png", "--set", "data.shape=[3,32,32]"]).expect(0);
    assert!(ran.out.contains("2 images"), "{}", ran.out);
    let pack = ["data", "shard", "photos/labels.csv", "packed", "--name", "table"];
    dir.run(&pack).expect(0);
    let stats = |arguments: &[&str]| {
        let document = json(&dir.run(&[&["data", "stats", "--json"], arguments].concat()).expect(0).out);
        document.to_string()
    };
    let targets = |text: &str| {
        let start = text.find("\"targets\":").unwrap();
        text[start..].to_owned()
    };
    assert_eq!(targets(&stats(&["shards", "--path", "packed"])), targets(&stats(&["photos"])));
}
