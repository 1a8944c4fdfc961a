//! Data in COCO's format: outlines of every form become masks, in the order that is promised; what cannot be
//! is refused.

use std::fs;
use std::path::Path;

use crate::common::{refused, write_picture};
use proptest::prelude::*;
use serde_json::{Value, json};
use stratus_data::datasets::IGNORED_PIXEL;
use stratus_data::{OpenOptions, Scratch, Split, open};

type Change = fn(&mut Value);

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
        "ROOT: holds no file annotations/instances_train*.json; the images belong in folders named like the \
         split"
    );
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

/// Areas by the file, not by the outlines: the cup of the second image is larger than one part of the table,
/// and not than both.
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
fn images_get_the_class_that_covers_most_of_them() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let options = OpenOptions::default();
    write(root, &labelled().to_string());
    let set = open("coco_labels", root, Split::Train, &options).unwrap();
    assert_eq!((set.name(), set.len(), set.classes(), set.masks()), ("coco_labels", 3, 3, false));
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

    // Of two that cover as much, the first category counts.
    let mut equal = labelled();
    equal["annotations"][0]["area"] = json!(2.125);
    write(root, &equal.to_string());
    assert_eq!(open("coco_labels", root, Split::Train, &options).unwrap().label(1).unwrap(), 1);

    let cases: [(Change, &str); 4] = [
        (
            |d| d["annotations"][4]["area"] = Value::Null,
            "annotation 5: no area, by which images get their class",
        ),
        (|d| d["annotations"][4]["area"] = json!(-0.5), "annotation 5: its area is -0.5"),
        (|d| d["annotations"][4]["image_id"] = json!(21), "annotation 5: there is no image 21"),
        (|d| d["annotations"][4]["category_id"] = json!(2), "annotation 5: there is no category 2"),
    ];
    for (change, expected) in cases {
        let mut document = labelled();
        change(&mut document);
        write(root, &document.to_string());
        let message = refused("coco_labels", root, Split::Train, &options);
        assert!(message.starts_with("ROOT/annotations/instances_train2017.json: "), "{message}");
        assert!(message.contains(expected), "{message}");
    }
}

/// What programs write that loses nothing: the same masks and labels.
#[test]
fn every_form_that_loses_nothing_is_read() {
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

/// What is wrong is told with the annotation's number, or its place in the list where it has none.
#[test]
fn errors_name_the_annotation() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let cases: [(Change, &str); 13] = [
        (|d| d["annotations"][0]["id"] = json!("3"), "number 1 of its annotations: its id is the text \"3\""),
        (|d| d["annotations"][1]["image_id"] = json!("20"), "annotation 1: its image_id is the text \"20\""),
        (|d| d["annotations"][1]["category_id"] = json!(67.5), "annotation 1: its category_id is 67.5"),
        (|d| d["annotations"][1]["category_id"] = json!(-1), "annotation 1: its category_id is -1"),
        (
            |d| d["annotations"][3]["iscrowd"] = json!(2),
            "annotation 4: its iscrowd is 2, and 0 or 1 is needed",
        ),
        (|d| d["annotations"][3]["iscrowd"] = json!([0]), "annotation 4: its iscrowd is a list"),
        (
            |d| drop(d["annotations"][3].as_object_mut().unwrap().remove("image_id")),
            "annotation 4: it has no image_id",
        ),
        (|d| d["annotations"][2]["segmentation"] = json!("box"), "number 3 of its annotations: invalid type"),
        (|d| d["images"][1]["height"] = json!("4"), "image 10: its height is the text \"4\""),
        (|d| d["images"][1]["id"] = json!({}), "number 2 of its images: its id is an object"),
        (|d| d["categories"][1]["id"] = Value::Null, "category `person`: it has no id"),
        (
            |d| d["images"][0]["file_name"] = json!("..\\image\\b.png"),
            "image 20: `..\\image\\b.png` leads out of the data set's folder",
        ),
        (
            |d| d["images"][0]["file_name"] = json!("C:\\image\\b.png"),
            "image 20: `C:\\image\\b.png` is a path of one machine; name it from the images' folder on",
        ),
    ];
    for (change, expected) in cases {
        let mut document = document();
        change(&mut document);
        write(root, &document.to_string());
        let message = refused("coco", root, Split::Train, &OpenOptions::default());
        assert!(message.contains(expected), "{message}");
    }
    fs::write(root.join("annotations/instances_train2017.json"), b"\xff\xfe{\0}\0").unwrap();
    let message = refused("coco", root, Split::Train, &OpenOptions::default());
    assert!(message.contains("UTF-16"), "{message}");
}

#[test]
fn images_with_nothing_but_crowds_have_no_class() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let mut document = labelled();
    document["annotations"].as_array_mut().unwrap().pop();
    document["annotations"][3]["iscrowd"] = json!(1);
    write(root, &document.to_string());
    fs::remove_file(root.join("train2017/b.png")).unwrap();
    let without = "it has no class: nothing in it is annotated but crowds";
    let lines = [
        "`coco_labels`: damaged samples in the train split (2):".to_owned(),
        format!("  ROOT/train2017/a.png: {without}"),
        format!("  ROOT/train2017/more/c.png: {without}"),
    ];
    let look_at_nothing = OpenOptions { verify: false, ..OpenOptions::default() };
    let message = refused("coco_labels", root, Split::Train, &look_at_nothing);
    assert_eq!(message.lines().take(3).collect::<Vec<_>>(), lines);
    let message = refused("coco_labels", root, Split::Train, &OpenOptions::default());
    assert!(message.contains("(3):") && message.contains("b.png: No such file"), "{message}");

    let skip = OpenOptions { skip_damaged: true, ..look_at_nothing };
    let set = open("coco_labels", root, Split::Train, &skip).unwrap();
    assert_eq!(set.damaged(), [(0, without.to_owned()), (2, without.to_owned())]);
    let mut scratch = Scratch::default();
    assert!(set.read(0, &mut scratch).unwrap_err().to_string().contains(without));
    assert!(set.encoded(2, &mut scratch).unwrap_err().to_string().contains(without));
}

#[test]
fn image_files_are_given_as_they_are() {
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

/// A photograph of 4×6, its upper left quarter outlined, with an orientation of EXIF.
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

/// Annotations are of the upright image, unless their size is the stored one's alone.
#[test]
fn outlines_are_of_the_upright_image() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    // The box of three rows and two columns, from the upper left corner.
    let upright = |row: usize, column: usize| row < 3 && column < 2;
    for orientation in 1..=8u8 {
        for size in [[4, 6], [6, 4]] {
            photograph(root, orientation, size);
            let turned = orientation > 4;
            if !turned && size == [6, 4] {
                let message = refused("coco", root, Split::Train, &OpenOptions::default());
                assert!(message.contains("its annotations are for 6×4, but the image is 4×6"), "{message}");
            } else {
                let set = open("coco", root, Split::Train, &OpenOptions::default()).unwrap();
                let mut scratch = Scratch::default();
                let sample = set.read(0, &mut scratch).unwrap();
                let mask = sample.mask.unwrap();
                let at = |row: usize, column: usize| mask[row * 6 + column] == 1;
                for (row, column) in (0..4).flat_map(|row| (0..6).map(move |column| (row, column))) {
                    // Where a stored pixel is shown (TIFF 6.0, tag Orientation).
                    let shown = match orientation {
                        2 => (row, 5 - column),
                        3 => (3 - row, 5 - column),
                        4 => (3 - row, column),
                        5 => (column, row),
                        6 => (column, 3 - row),
                        7 => (5 - column, 3 - row),
                        8 => (5 - column, row),
                        _ => (row, column),
                    };
                    let stored_alone = turned && size == [4, 6];
                    let place = if stored_alone { (row, column) } else { shown };
                    let expected = upright(place.0, place.1);
                    assert_eq!(at(row, column), expected, "{orientation} {size:?} {row} {column}");
                }
                assert_eq!(
                    set.assumed_upright(),
                    usize::from((2..=4).contains(&orientation)),
                    "{orientation}"
                );
            }
            // Without coordinates nothing can be turned wrongly.
            let set = open("coco_labels", root, Split::Train, &OpenOptions::default()).unwrap();
            assert_eq!(set.read(0, &mut Scratch::default()).unwrap().label, 0);
            assert_eq!(set.assumed_upright(), 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_documents_do_not_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "");
        let options = OpenOptions { verify: false, skip_damaged: true, ..OpenOptions::default() };
        for (name, document) in [("coco", document()), ("coco_labels", labelled())] {
            let mut bytes = document.to_string().into_bytes();
            for (place, byte) in &changes {
                let at = place.index(bytes.len());
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
