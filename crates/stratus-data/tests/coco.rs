//! Data in COCO's format: outlines of every form become masks, in the order that is promised; what cannot be is refused.

#![allow(clippy::unwrap_used, reason = "a helper that unwraps is a failing test")]

mod common;

use std::fs;
use std::path::Path;

use common::{refused, write_picture};
use proptest::prelude::*;
use serde_json::{Value, json};
use stratus_data::datasets::IGNORED_PIXEL;
use stratus_data::{OpenOptions, Scratch, Split, open};

/// Two images of 4×6 and one without objects; what is no part of masks stands between.
fn document() -> Value {
    json!({
        "info": {"year": 2017, "nested": [[[{}]], null, "\u{e9}\n"]},
        "annotations": [
            // A cup before a table, a table of two parts, and a crowd that both cover partly.
            {"id": 3, "image_id": 20, "category_id": 47, "area": 2.0, "bbox": [1, 1, 2, 1], "iscrowd": 0,
             "segmentation": [[1, 1, 3, 1, 3, 2, 1, 2]]},
            {"id": 1, "image_id": 20, "category_id": 67, "iscrowd": 0,
             "segmentation": [[0, 0, 4, 0, 4, 3, 0, 3], [4.0, 3.0, 6.0, 3.0, 6.0, 4.0, 4.0, 4.0]]},
            {"id": 2, "image_id": 20, "category_id": 1, "iscrowd": 1,
             "segmentation": {"size": [4, 6], "counts": [12, 12]}},
            {"id": 4, "image_id": 10, "category_id": 1, "iscrowd": 0,
             "segmentation": {"counts": "524;", "size": [4, 6]}},
        ],
        "images": [
            {"id": 20, "file_name": "b.png", "height": 4, "width": 6, "license": 1},
            {"id": 10, "file_name": "a.png", "height": 4, "width": 6},
            {"id": 30, "file_name": "more/c.png", "height": 2, "width": 3},
        ],
        "categories": [
            {"id": 67, "name": "dining table", "supercategory": "furniture"},
            {"id": 1, "name": "person"},
            {"id": 47, "name": "cup"},
        ],
    })
}

fn write(root: &Path, document: &str) {
    fs::create_dir_all(root.join("annotations")).unwrap();
    fs::write(root.join("annotations/instances_train2017.json"), document).unwrap();
    for (number, (name, size)) in [("a", [4, 6]), ("b", [4, 6]), ("more/c", [2, 3])].into_iter().enumerate() {
        write_picture(&root.join(format!("train2017/{name}.png")), size, number as u8);
    }
}

#[test]
fn outlines_become_masks() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write(root, &document().to_string());
    let set = open("coco", root, Split::Train, &OpenOptions::default()).unwrap();
    assert_eq!((set.len(), set.classes(), set.masks()), (3, 4, true));
    let names: Vec<String> = (0..4).map(|class| set.class_name(class)).collect();
    assert_eq!(names, ["background", "person", "cup", "dining table"]);
    assert_eq!(set.sample_name(0), format!("{}/train2017/a.png", root.display()));
    assert!(set.resident_bytes() < 1000, "{}", set.resident_bytes());
    let mut scratch = Scratch::default();
    let mut mask = |index: usize| set.read(index, &mut scratch).unwrap().mask.unwrap().to_vec();
    let c = IGNORED_PIXEL;
    // Columns of four: 5 off, 2 on, 4 off, 13 on.
    assert_eq!(mask(0), [0, 0, 0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1]);
    assert_eq!(mask(1), [3, 3, 3, 3, c, c, 3, 2, 2, 3, c, c, 3, 3, 3, 3, c, c, 0, 0, 0, c, 3, 3]);
    assert_eq!(mask(2), [0; 6]);
    assert!(open("coco", root, Split::Validation, &OpenOptions::default()).is_err());
}

#[test]
fn annotations_that_cannot_be_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let refuse = || refused("coco", root, Split::Train, &OpenOptions::default());
    assert_eq!(
        refuse(),
        "ROOT: holds no file annotations/instances_train*.json; the images are in folders called like the part"
    );
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 15] = [
        (
            |d| d["annotations"][2]["segmentation"]["counts"] = json!([12, 11]),
            "annotation 2: its run lengths add up to 23 pixels, but 4×6 are 24",
        ),
        (
            |d| d["annotations"][2]["segmentation"] = json!({"size": [6, 4], "counts": [12, 12]}),
            "annotation 2: its run lengths are for 6×4, but image 20 is 4×6",
        ),
        (
            |d| d["annotations"][2]["segmentation"]["size"] = json!([u64::MAX, 2]),
            "annotation 2: its run lengths are too large",
        ),
        (
            |d| d["annotations"][3]["segmentation"]["counts"] = json!("52 4"),
            "its run lengths are no such text",
        ),
        (|d| d["annotations"][2]["segmentation"] = json!({"counts": [24]}), "missing field `size`"),
        (
            |d| d["annotations"][0]["segmentation"] = json!([]),
            "annotation 3: no segmentation; a mask cannot be made of a box",
        ),
        (
            |d| d["annotations"][0]["segmentation"] = json!([[1, 2, 3]]),
            "a polygon of 3 numbers, but each corner has two",
        ),
        (
            |d| d["annotations"][0]["segmentation"] = json!([[1, 2, 3, 1e300, 5, 6]]),
            "a polygon's corner at (3, 1000000",
        ),
        (|d| d["annotations"][0]["image_id"] = json!(21), "annotation 3: there is no image 21"),
        (|d| d["annotations"][0]["category_id"] = json!(2), "annotation 3: there is no category 2"),
        (|d| d["images"][1]["id"] = json!(20), "image 20 is there twice"),
        (|d| d["categories"][1]["id"] = json!(67), "category 67 is there twice"),
        (|d| d["images"][0]["height"] = json!(4_000_000_000u32), "image 20 is 4000000000×6"),
        (
            |d| d["images"][0]["file_name"] = json!("../../b.png"),
            "image 20: `../../b.png` leads out of the data set's folder",
        ),
        (|d| d["images"] = json!([]), "holds no images or no categories"),
    ];
    for (change, expected) in cases {
        let mut document = document();
        change(&mut document);
        write(root, &document.to_string());
        let message = refuse();
        assert!(message.starts_with("ROOT/annotations/instances_train2017.json: "), "{message}");
        assert!(message.contains(expected), "{message}");
    }
    let mut document = document();
    document["categories"] = (0..255).map(|id| json!({"id": id, "name": "x"})).collect();
    write(root, &document.to_string());
    assert!(refuse().ends_with(": 255 categories; 254 are possible"), "{}", refuse());
    for garbage in
        ["", "[]", "{\"images\": [", "{\"images\": {}}", "{} {}", "\u{0}", "{\"images\": [{\"id\": -1}]}"]
    {
        write(root, garbage);
        let message = refuse();
        assert!(message.starts_with("ROOT/annotations/instances_train2017.json: "), "{message}");
    }
    write(root, &format!("{{\"info\": {}", "[".repeat(100_000)));
    assert!(refuse().contains("EOF"), "{}", refuse());
}

#[test]
fn images_of_another_size_and_missing_ones_are_listed() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write(root, &document().to_string());
    write_picture(&root.join("train2017/a.png"), [6, 4], 0);
    fs::remove_file(root.join("train2017/more/c.png")).unwrap();
    let message = refused("coco", root, Split::Train, &OpenOptions::default());
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines[0], "`coco`: damaged samples in the train split (2):");
    assert_eq!(lines[1], "  ROOT/train2017/a.png: its annotations are for 4×6, but the image is 6×4");
    assert!(lines[2].starts_with("  ROOT/train2017/more/c.png: No such file"), "{message}");
    fs::remove_dir_all(root.join("train2017")).unwrap();
    assert_eq!(
        refused("coco", root, Split::Train, &OpenOptions::default()),
        "ROOT: holds no folder `train2017` or `images/train2017` with the images"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_documents_do_not_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = document().to_string().into_bytes();
        for (place, byte) in changes {
            let at = place.index(bytes.len());
            bytes[at] = byte;
        }
        write(directory.path(), "");
        fs::write(directory.path().join("annotations/instances_train2017.json"), bytes).unwrap();
        if let Ok(set) = open("coco", directory.path(), Split::Train, &OpenOptions { verify: false, ..OpenOptions::default() }) {
            let mut scratch = Scratch::default();
            (0..set.len()).for_each(|index| { let _ = set.read(index, &mut scratch); });
        }
    }
}
