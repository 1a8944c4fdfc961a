//! Data in COCO's format: outlines of every form become masks, in the documented order; invalid data are
//! rejected.

use std::fs;
use std::path::Path;

use crate::common::{open_error, write_picture};
use proptest::prelude::*;
use serde_json::{Value, json};
use stratus_data::datasets::{IGNORED, IGNORED_PIXEL};
use stratus_data::{OpenOptions, Scratch, Split, TargetKind, open};

type Change = fn(&mut Value);

/// Two images of 4×6 and one without objects, with irrelevant fields in between.
fn document() -> Value {
    json!({
        "info": {"year": 2017, "nested": [[[{}]], null, "\u{e9}\n"]},
        "annotations": [
            // A cup in front of a table, a table of two polygons, and a crowd partly covered by both.
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
fn rasterises_outlines_into_masks() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write(root, &document().to_string());
    let set = open("coco", root, Split::Train, &OpenOptions::default()).unwrap();
    assert_eq!((set.len(), set.classes(), set.has_masks()), (3, 4, true));
    let names: Vec<String> = (0..4).map(|class| set.class_name(class)).collect();
    assert_eq!(names, ["background", "person", "cup", "dining table"]);
    assert_eq!(set.sample_name(0), format!("{}/train2017/a.png", root.display()));
    assert!(set.resident_bytes() < 1000, "{}", set.resident_bytes());
    let mut scratch = Scratch::default();
    let mut mask = |index: usize| set.read(index, &mut scratch).unwrap().mask.unwrap().to_vec();
    let c = IGNORED_PIXEL;
    // Columns of four pixels: 5 off, 2 on, 4 off, 13 on.
    assert_eq!(mask(0), [0, 0, 0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1]);
    assert_eq!(mask(1), [3, 3, 3, 3, c, c, 3, 2, 2, 3, c, c, 3, 3, 3, 3, c, c, 0, 0, 0, c, 3, 3]);
    assert_eq!(mask(2), [0; 6]);
    assert!(open("coco", root, Split::Validation, &OpenOptions::default()).is_err());
}

#[test]
fn rejects_invalid_annotations() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let error = || open_error("coco", root, Split::Train, &OpenOptions::default());
    assert_eq!(
        error(),
        "ROOT: no file annotations/instances_train*.json; the images must be in a folder named like the split"
    );
    let cases: [(Change, &str); 15] = [
        (
            |d| d["annotations"][2]["segmentation"]["counts"] = json!([12, 11]),
            "annotation 2: run lengths add up to 23 pixels, but 4×6 are 24",
        ),
        (
            |d| d["annotations"][2]["segmentation"] = json!({"size": [6, 4], "counts": [12, 12]}),
            "annotation 2: run lengths are for 6×4, but image 20 is 4×6",
        ),
        (
            |d| d["annotations"][2]["segmentation"]["size"] = json!([u64::MAX, 2]),
            "annotation 2: run lengths are too large",
        ),
        (|d| d["annotations"][3]["segmentation"]["counts"] = json!("52 4"), "invalid run-length string"),
        (|d| d["annotations"][2]["segmentation"] = json!({"counts": [24]}), "missing field `size`"),
        (
            |d| d["annotations"][0]["segmentation"] = json!([]),
            "annotation 3: missing `segmentation`: a bounding box is not enough for a mask",
        ),
        (
            |d| d["annotations"][0]["segmentation"] = json!([[1, 2, 3]]),
            "a polygon of 3 numbers, expected two per corner",
        ),
        (
            |d| d["annotations"][0]["segmentation"] = json!([[1, 2, 3, 1e300, 5, 6]]),
            "polygon corner (3, 1000000",
        ),
        (|d| d["annotations"][0]["image_id"] = json!(21), "annotation 3: unknown image id 21"),
        (|d| d["annotations"][0]["category_id"] = json!(2), "annotation 3: unknown category id 2"),
        (|d| d["images"][1]["id"] = json!(20), "duplicate image id 20"),
        (|d| d["categories"][1]["id"] = json!(67), "duplicate category id 67"),
        (
            |d| d["images"][0]["height"] = json!(4_000_000_000u32),
            "image 20 has an invalid size: 4000000000×6",
        ),
        (
            |d| d["images"][0]["file_name"] = json!("../../b.png"),
            "image 20: path `../../b.png` is outside the data set folder",
        ),
        (|d| d["images"] = json!([]), "no images or no categories"),
    ];
    for (change, expected) in cases {
        let mut document = document();
        change(&mut document);
        write(root, &document.to_string());
        let message = error();
        assert!(message.starts_with("ROOT/annotations/instances_train2017.json: "), "{message}");
        assert!(message.contains(expected), "{message}");
    }
    let mut document = document();
    document["categories"] = (0..255).map(|id| json!({"id": id, "name": "x"})).collect();
    write(root, &document.to_string());
    assert!(error().ends_with(": 255 categories, maximum is 254"), "{}", error());
    for garbage in
        ["", "[]", "{\"images\": [", "{\"images\": {}}", "{} {}", "\u{0}", "{\"images\": [{\"id\": -1}]}"]
    {
        write(root, garbage);
        let message = error();
        assert!(message.starts_with("ROOT/annotations/instances_train2017.json: "), "{message}");
    }
    write(root, &format!("{{\"info\": {}", "[".repeat(100_000)));
    assert!(error().contains("EOF"), "{}", error());
}

/// Areas are those of the file, not of the outlines: the cup of the second image is larger than one part of
/// the table, but not than both.
fn labelled() -> Value {
    let mut document = document();
    let annotations = document["annotations"].as_array_mut().unwrap();
    annotations.push(json!({"id": 5, "image_id": 20, "category_id": 67, "area": 1.25, "bbox": [0, 0, 1, 1]}));
    annotations.push(json!({"id": 6, "image_id": 30, "category_id": 47, "area": 0, "segmentation": null}));
    for (at, area) in [(0, 2.0), (1, 0.875), (2, 24.0), (3, 9.5)] {
        annotations[at]["area"] = json!(area);
    }
    document
}

#[test]
fn labels_images_with_the_largest_class() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let options = OpenOptions::default();
    write(root, &labelled().to_string());
    let set = open("coco_labels", root, Split::Train, &options).unwrap();
    assert_eq!((set.name(), set.len(), set.classes(), set.has_masks()), ("coco_labels", 3, 3, false));
    let names: Vec<String> = (0..4).map(|class| set.class_name(class)).collect();
    assert_eq!(names, ["person", "cup", "dining table", "3"]);
    let mut scratch = Scratch::default();
    let mut label = |index: usize| {
        let sample = set.read(index, &mut scratch).unwrap();
        assert!(sample.mask.is_none());
        assert_eq!(set.label(index).unwrap(), sample.label);
        sample.label
    };
    assert_eq!([0, 1, 2].map(&mut label), [0, 2, 1]);

    // If areas are equal, the first category counts.
    let mut equal = labelled();
    equal["annotations"][0]["area"] = json!(2.125);
    write(root, &equal.to_string());
    assert_eq!(open("coco_labels", root, Split::Train, &options).unwrap().label(1).unwrap(), 1);

    let cases: [(Change, &str); 4] = [
        (
            |d| d["annotations"][4]["area"] = Value::Null,
            "annotation 5: missing `area`, which selects the class of the image",
        ),
        (|d| d["annotations"][4]["area"] = json!(-0.5), "annotation 5: `area` is -0.5"),
        (|d| d["annotations"][4]["image_id"] = json!(21), "annotation 5: unknown image id 21"),
        (|d| d["annotations"][4]["category_id"] = json!(2), "annotation 5: unknown category id 2"),
    ];
    for (change, expected) in cases {
        let mut document = labelled();
        change(&mut document);
        write(root, &document.to_string());
        let message = open_error("coco_labels", root, Split::Train, &options);
        assert!(message.starts_with("ROOT/annotations/instances_train2017.json: "), "{message}");
        assert!(message.contains(expected), "{message}");
    }
}

/// Equivalent spellings of other programs give the same masks and labels.
#[test]
fn accepts_equivalent_spellings_of_annotations() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let masks_of = |text: &str| {
        write(root, text);
        let mut all = Vec::new();
        for name in ["coco", "coco_labels"] {
            let set = open(name, root, Split::Train, &OpenOptions::default()).unwrap();
            let mut scratch = Scratch::default();
            for index in 0..3 {
                let sample = set.read(index, &mut scratch).unwrap();
                all.push((sample.label, sample.mask.map(<[u8]>::to_vec), set.sample_name(index)));
            }
        }
        all
    };
    let document = || {
        let mut document = labelled();
        let annotations = document["annotations"].as_array_mut().unwrap();
        annotations[5]["segmentation"] = json!([[0, 0, 1, 0, 1, 1]]);
        annotations[4]["segmentation"] = json!([[0, 0, 1, 0, 1, 1]]);
        document
    };
    let expected = masks_of(&document().to_string());
    let forms: [Change; 7] = [
        |d| d["images"][1]["file_name"] = json!("./a.png"),
        |d| d["images"][2]["file_name"] = json!("more\\c.png"),
        |d| d["images"][2]["file_name"] = json!(".\\more\\c.png"),
        |d| d["annotations"][2]["iscrowd"] = json!(true),
        |d| {
            for annotation in d["annotations"].as_array_mut().unwrap() {
                let is_crowd = annotation["iscrowd"] == json!(1);
                annotation["iscrowd"] = if is_crowd { json!(1.0) } else { json!(false) };
            }
        },
        |d| d["annotations"][0]["iscrowd"] = Value::Null,
        |d| {
            let float = |value: &mut Value| *value = json!(value.as_f64().unwrap());
            for (list, keys) in [
                ("annotations", &["id", "image_id", "category_id"][..]),
                ("images", &["id", "height", "width"]),
                ("categories", &["id"]),
            ] {
                for one in d[list].as_array_mut().unwrap() {
                    keys.iter().for_each(|key| float(&mut one[key]));
                }
            }
        },
    ];
    for (number, change) in forms.iter().enumerate() {
        let mut changed = document();
        change(&mut changed);
        assert_eq!(masks_of(&changed.to_string()), expected, "{number}");
    }
    assert_eq!(masks_of(&format!("\u{feff}{}", document())), expected);
}

/// Errors name the annotation's id, or its position in the list if it has none.
#[test]
fn reports_errors_with_their_annotation() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let cases: [(Change, &str); 13] = [
        (|d| d["annotations"][0]["id"] = json!("3"), "element 1 of `annotations`: `id` is the text \"3\""),
        (|d| d["annotations"][1]["image_id"] = json!("20"), "annotation 1: `image_id` is the text \"20\""),
        (|d| d["annotations"][1]["category_id"] = json!(67.5), "annotation 1: `category_id` is 67.5"),
        (|d| d["annotations"][1]["category_id"] = json!(-1), "annotation 1: `category_id` is -1"),
        (|d| d["annotations"][3]["iscrowd"] = json!(2), "annotation 4: `iscrowd` is 2, expected 0 or 1"),
        (|d| d["annotations"][3]["iscrowd"] = json!([0]), "annotation 4: `iscrowd` is a list"),
        (
            |d| drop(d["annotations"][3].as_object_mut().unwrap().remove("image_id")),
            "annotation 4: missing `image_id`",
        ),
        (|d| d["annotations"][2]["segmentation"] = json!("box"), "element 3 of `annotations`: invalid type"),
        (|d| d["images"][1]["height"] = json!("4"), "image 10: `height` is the text \"4\""),
        (|d| d["images"][1]["id"] = json!({}), "element 2 of `images`: `id` is an object"),
        (|d| d["categories"][1]["id"] = Value::Null, "category `person`: missing `id`"),
        (
            |d| d["images"][0]["file_name"] = json!("..\\image\\b.png"),
            "image 20: path `..\\image\\b.png` is outside the data set folder",
        ),
        (
            |d| d["images"][0]["file_name"] = json!("C:\\image\\b.png"),
            "image 20: path `C:\\image\\b.png` is absolute; it must be relative to the image folder",
        ),
    ];
    for (change, expected) in cases {
        let mut document = document();
        change(&mut document);
        write(root, &document.to_string());
        let message = open_error("coco", root, Split::Train, &OpenOptions::default());
        assert!(message.contains(expected), "{message}");
    }
    fs::write(root.join("annotations/instances_train2017.json"), b"\xff\xfe{\0}\0").unwrap();
    let message = open_error("coco", root, Split::Train, &OpenOptions::default());
    assert!(message.contains("UTF-16"), "{message}");
}

#[test]
fn images_with_only_crowds_have_no_class() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let mut document = labelled();
    document["annotations"].as_array_mut().unwrap().pop();
    document["annotations"][3]["iscrowd"] = json!(1);
    write(root, &document.to_string());
    fs::remove_file(root.join("train2017/b.png")).unwrap();
    let no_class = "no class: the image has no annotation except `iscrowd` regions";
    let lines = [
        "`coco_labels`: damaged samples in the train split (2):".to_owned(),
        format!("  ROOT/train2017/a.png: {no_class}"),
        format!("  ROOT/train2017/more/c.png: {no_class}"),
    ];
    let unverified = OpenOptions { verify: false, ..OpenOptions::default() };
    let message = open_error("coco_labels", root, Split::Train, &unverified);
    assert_eq!(message.lines().take(3).collect::<Vec<_>>(), lines);
    let message = open_error("coco_labels", root, Split::Train, &OpenOptions::default());
    assert!(message.contains("(3):") && message.contains("b.png: No such file"), "{message}");

    let skip = OpenOptions { skip_damaged: true, ..unverified };
    let set = open("coco_labels", root, Split::Train, &skip).unwrap();
    assert_eq!(set.damaged(), [(0, no_class.to_owned()), (2, no_class.to_owned())]);
    let mut scratch = Scratch::default();
    assert!(set.read(0, &mut scratch).unwrap_err().to_string().contains(no_class));
    assert!(set.encoded(2, &mut scratch).unwrap_err().to_string().contains(no_class));
}

#[test]
fn returns_stored_files_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write(root, &labelled().to_string());
    let file = fs::read(root.join("train2017/more/c.png")).unwrap();
    for name in ["coco", "coco_labels"] {
        let mut document = labelled();
        if name == "coco" {
            document["annotations"].as_array_mut().unwrap().truncate(4);
        }
        write(root, &document.to_string());
        let set = open(name, root, Split::Train, &OpenOptions::default()).unwrap();
        assert_eq!(set.encoded(2, &mut Scratch::default()).unwrap(), Some(file.as_slice()));
        assert!(set.encoded(3, &mut Scratch::default()).is_err());
    }
}

#[test]
fn lists_images_of_another_size_and_missing_ones() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write(root, &document().to_string());
    write_picture(&root.join("train2017/a.png"), [6, 4], 0);
    fs::remove_file(root.join("train2017/more/c.png")).unwrap();
    let message = open_error("coco", root, Split::Train, &OpenOptions::default());
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines[0], "`coco`: damaged samples in the train split (2):");
    assert_eq!(lines[1], "  ROOT/train2017/a.png: annotations are for 4×6, but the image is 6×4");
    assert!(lines[2].starts_with("  ROOT/train2017/more/c.png: No such file"), "{message}");
    fs::remove_dir_all(root.join("train2017")).unwrap();
    assert_eq!(
        open_error("coco", root, Split::Train, &OpenOptions::default()),
        "ROOT: no folder `train2017` or `images/train2017` with the images"
    );
}

/// A photograph of 4×6 with an EXIF orientation, its upper left quarter outlined.
fn photograph(root: &Path, orientation: u8, size: [u32; 2]) {
    let exif = [b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".as_slice(), &[orientation, 0, 0]].concat();
    let [height, width] = [4u32, 6];
    let pixels: Vec<u8> = (0..height * width).map(|at| at as u8).collect();
    let mut file = Vec::new();
    let mut info = png::Info::with_size(width, height);
    info.exif_metadata = Some(exif.into());
    let encoder = png::Encoder::with_info(&mut file, info).unwrap();
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    fs::create_dir_all(root.join("train2017")).unwrap();
    fs::write(root.join("train2017/a.png"), file).unwrap();
    let document = json!({
        "images": [{"id": 1, "file_name": "a.png", "height": size[0], "width": size[1]}],
        "categories": [{"id": 1, "name": "box"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "iscrowd": 0, "area": 6.0,
                         "segmentation": [[0, 0, 2, 0, 2, 3, 0, 3]]}],
    });
    fs::create_dir_all(root.join("annotations")).unwrap();
    fs::write(root.join("annotations/instances_train2017.json"), document.to_string()).unwrap();
}

/// Annotations refer to the upright image, unless their size matches only the stored one.
#[test]
fn outlines_refer_to_the_upright_image() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    // The box of three rows and two columns in the upper left corner.
    let upright = |row: usize, column: usize| row < 3 && column < 2;
    for orientation in 1..=8u8 {
        for size in [[4, 6], [6, 4]] {
            photograph(root, orientation, size);
            let is_rotated = orientation > 4;
            if !is_rotated && size == [6, 4] {
                let message = open_error("coco", root, Split::Train, &OpenOptions::default());
                assert!(message.contains("annotations are for 6×4, but the image is 4×6"), "{message}");
            } else {
                let set = open("coco", root, Split::Train, &OpenOptions::default()).unwrap();
                let mut scratch = Scratch::default();
                let sample = set.read(0, &mut scratch).unwrap();
                let mask = sample.mask.unwrap();
                let at = |row: usize, column: usize| mask[row * 6 + column] == 1;
                for (row, column) in (0..4).flat_map(|row| (0..6).map(move |column| (row, column))) {
                    // The upright position of a stored pixel (TIFF 6.0, tag Orientation).
                    let upright_position = match orientation {
                        2 => (row, 5 - column),
                        3 => (3 - row, 5 - column),
                        4 => (3 - row, column),
                        5 => (column, row),
                        6 => (column, 3 - row),
                        7 => (5 - column, 3 - row),
                        8 => (5 - column, row),
                        _ => (row, column),
                    };
                    let stored_alone = is_rotated && size == [4, 6];
                    let position = if stored_alone { (row, column) } else { upright_position };
                    let expected = upright(position.0, position.1);
                    assert_eq!(at(row, column), expected, "{orientation} {size:?} {row} {column}");
                }
                assert_eq!(
                    set.assumed_upright(),
                    usize::from((2..=4).contains(&orientation)),
                    "{orientation}"
                );
            }
            // Without coordinates the orientation does not matter.
            let set = open("coco_labels", root, Split::Train, &OpenOptions::default()).unwrap();
            assert_eq!(set.read(0, &mut Scratch::default()).unwrap().label, 0);
            assert_eq!(set.assumed_upright(), 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_documents_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "");
        let options = OpenOptions { verify: false, skip_damaged: true, ..OpenOptions::default() };
        for (name, document) in [("coco", document()), ("coco_labels", labelled())] {
            let mut bytes = document.to_string().into_bytes();
            for (position, byte) in &changes {
                let at = position.index(bytes.len());
                bytes[at] = *byte;
            }
            fs::write(directory.path().join("annotations/instances_train2017.json"), bytes).unwrap();
            if let Ok(set) = open(name, directory.path(), Split::Train, &options) {
                let mut scratch = Scratch::default();
                (0..set.len()).for_each(|index| { let _ = set.read(index, &mut scratch); });
            }
        }
    }
}

#[test]
fn every_category_of_an_image_is_a_label() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    // No area is needed; the crowd of image 20 is no label, and image 30 has none.
    write(root, &document().to_string());
    let set = open("coco_multilabel", root, Split::Train, &OpenOptions::default()).unwrap();
    assert_eq!((set.name(), set.len(), set.classes(), set.has_masks()), ("coco_multilabel", 3, 3, false));
    assert_eq!(set.target_kind(), Some(TargetKind::Labels));
    assert_eq!([set.class_name(0), set.class_name(1), set.class_name(2)], ["person", "cup", "dining table"]);
    let rows = [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.0]];
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(set.targets(index).unwrap(), row);
        let mut scratch = Scratch::default();
        let sample = set.read(index, &mut scratch).unwrap();
        assert_eq!((sample.label, sample.mask), (IGNORED, None));
        assert_eq!(set.label(index).unwrap(), IGNORED);
    }
    assert!(set.damaged().is_empty() && set.targets(3).is_err());
}
