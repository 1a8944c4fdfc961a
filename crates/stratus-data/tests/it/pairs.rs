//! Data sets of image files with a label image each: CamVid in both layouts, and Cityscapes; errors are
//! reported.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::{open_error, write_labels, write_picture, write_png};
use png::ColorType;
use stratus_data::datasets::{IGNORED, IGNORED_PIXEL};
use stratus_data::{Dataset, OpenOptions, Scratch, Split, open, stats};

const VOID: u8 = IGNORED_PIXEL;

/// Two training pairs and one for validation, in the layout of SegNet's authors.
fn lists(root: &Path) {
    let classes: Vec<u8> = (0..12).collect();
    for (number, name) in ["train/a", "train/b", "val/c"].iter().enumerate() {
        write_picture(&root.join(format!("{name}.png")), [3, 4], number as u8);
        let labels: Vec<u8> = classes.iter().map(|class| (class + number as u8) % 12).collect();
        write_labels(&root.join(format!("{}.png", name.replace('/', "annot/"))), [3, 4], &labels);
    }
    let pair = "/SegNet/CamVid/train/a.png /SegNet/CamVid/trainannot/a.png";
    fs::write(root.join("train.txt"), format!("{pair}\n\ntrain/b.png  trainannot/b.png\r\n")).unwrap();
    fs::write(root.join("val.txt"), "val/c.png valannot/c.png").unwrap();
}

fn mask(set: &dyn Dataset, index: usize) -> Vec<u8> {
    let mut scratch = Scratch::default();
    let sample = set.read(index, &mut scratch).unwrap();
    assert_eq!(sample.label, IGNORED);
    let mask = sample.mask.unwrap().to_vec();
    assert_eq!(mask.len(), sample.shape[1] * sample.shape[2]);
    mask
}

#[test]
fn reads_camvid_lists() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    lists(root);
    let train = open("camvid", root, Split::Train, &OpenOptions::default()).unwrap();
    assert!(train.has_masks());
    assert_eq!((train.len(), train.classes(), train.class_name(8)), (2, 11, "car".to_owned()));
    assert_eq!(train.sample_name(0), format!("{}/train/a.png", root.display()));
    assert_eq!(mask(train.as_ref(), 0), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, VOID]);
    assert_eq!(mask(train.as_ref(), 1), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, VOID, 0]);
    let mut scratch = Scratch::default();
    assert_eq!(train.read(1, &mut scratch).unwrap().pixels[..3], [1, 0, 254]);
    assert!(train.read(2, &mut scratch).is_err());
    for split in [Split::Validation, Split::Test] {
        let set = open("camvid", root, split, &OpenOptions::default()).unwrap();
        assert_eq!(set.sample_name(0), format!("{}/val/c.png", root.display()));
    }
}

/// The published table of colours, and some mapped classes.
#[test]
fn reads_camvid_colour_labels() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let colours: [[u8; 3]; 8] = [
        [128, 128, 128],
        [64, 192, 0],
        [192, 192, 128],
        [192, 0, 64],
        [0, 0, 192],
        [0, 0, 0],
        [64, 64, 0],
        [192, 0, 192],
    ];
    for number in 0..10u8 {
        write_picture(&root.join(format!("701_StillsRaw_full/{number}.png")), [2, 4], number);
        let path = root.join(format!("LabeledApproved_full/{number}_L.png"));
        write_png(&path, ColorType::Rgb, [2, 4], colours.as_flattened());
    }
    fs::write(root.join("701_StillsRaw_full/Thumbs.db"), "no image").unwrap();
    let mut seen = BTreeSet::new();
    for (split, count) in [(Split::Train, 6), (Split::Validation, 2), (Split::Test, 2)] {
        let set = open("camvid", root, split, &OpenOptions::default()).unwrap();
        assert_eq!(set.len(), count);
        assert_eq!(mask(set.as_ref(), 0), [0, 1, 2, 3, 4, VOID, 9, 10]);
        assert!((0..count).all(|index| seen.insert(set.sample_name(index))));
    }
    assert_eq!(seen.len(), 10);

    write_png(&root.join("LabeledApproved_full/0_L.png"), ColorType::Rgb, [2, 4], &[1; 24]);
    fs::remove_file(root.join("LabeledApproved_full/1_L.png")).unwrap();
    let options = OpenOptions { skip_damaged: true, ..OpenOptions::default() };
    let damaged: Vec<String> = [Split::Train, Split::Validation, Split::Test]
        .into_iter()
        .flat_map(|split| open("camvid", root, split, &options).unwrap().damaged().to_vec())
        .map(|(_, problem)| problem)
        .collect();
    assert_eq!(damaged.len(), 2, "{damaged:?}");
    let is_reported = |start: &str| damaged.iter().any(|problem| problem.starts_with(start));
    assert!(is_reported(
        "label image LabeledApproved_full/0_L.png: unknown label colour [1, 1, 1] at row 0, column 0"
    ));
    assert!(is_reported("label image LabeledApproved_full/1_L.png: No such file"), "{damaged:?}");
}

#[test]
fn rejects_invalid_lists() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let error = || open_error("camvid", root, Split::Train, &OpenOptions::default());
    assert_eq!(
        error(),
        "ROOT: neither train.txt nor 701_StillsRaw_full/ found; expected lists of pairs, or \
         701_StillsRaw_full/ and LabeledApproved_full/"
    );
    lists(root);
    let error_with = |text: &str| {
        fs::write(root.join("train.txt"), text).unwrap();
        error()
    };
    assert_eq!(error_with("\n \n"), "ROOT/train.txt: no samples; expected at least one");
    assert_eq!(
        error_with("train/a.png trainannot/a.png\ntrain/a.png"),
        "ROOT/train.txt: line 2: expected 2 fields (image, label image), found 1"
    );
    assert_eq!(
        error_with("train/a.png trainannot/a.png 3"),
        "ROOT/train.txt: line 1: expected 2 fields (image, label image), found 3"
    );
    for path in ["../../etc/passwd", "train/../../a.png", "/train/../.."] {
        assert_eq!(
            error_with(&format!("{path} trainannot/a.png")),
            format!("ROOT/train.txt: line 1: path `{path}` is outside the data set folder")
        );
    }
    fs::write(root.join("train.txt"), [0xff, 0xfe, 0]).unwrap();
    assert!(error().starts_with("ROOT/train.txt: "));
}

/// All damaged pairs are listed when the data set is opened.
#[test]
fn lists_damaged_pairs() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    lists(root);
    let pair = |name: &str| {
        write_picture(&root.join(format!("train/{name}.png")), [3, 4], 9);
        write_labels(&root.join(format!("trainannot/{name}.png")), [3, 4], &[5; 12]);
        format!("train/{name}.png trainannot/{name}.png\n")
    };
    let list: String = ["whole", "size", "range", "colour", "image", "missing", "cut"].map(pair).concat();
    fs::write(root.join("train.txt"), list).unwrap();
    let labels = |name: &str| root.join(format!("trainannot/{name}.png"));
    write_labels(&labels("size"), [4, 3], &[5; 12]);
    write_labels(&labels("range"), [3, 4], &[0, 1, 2, 3, 4, 5, 12, 5, 5, 5, 5, 5]);
    write_png(&labels("colour"), ColorType::Rgb, [3, 4], &[7; 36]);
    fs::write(root.join("train/image.png"), "text").unwrap();
    fs::remove_file(labels("missing")).unwrap();
    let whole = fs::read(labels("whole")).unwrap();
    fs::write(labels("cut"), &whole[..whole.len() - 20]).unwrap();

    let message = open_error("camvid", root, Split::Train, &OpenOptions::default());
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines[0], "`camvid`: damaged samples in the train split (6):");
    let annotated = "label image trainannot";
    let expected = [
        format!("  ROOT/train/size.png: {annotated}/size.png: is 4×3, but the image is 3×4"),
        format!(
            "  ROOT/train/range.png: {annotated}/range.png: label 12 at row 1, column 2 is out of range; \
             labels are 0 to 10, and 11 for void"
        ),
        format!(
            "  ROOT/train/colour.png: {annotated}/colour.png: unknown label colour [7, 7, 7] at row 0, \
             column 0"
        ),
        "  ROOT/train/image.png: not a JPEG, PNG or WebP file".to_owned(),
    ];
    assert_eq!(lines[1..5], expected);
    assert!(
        lines[5].starts_with("  ROOT/train/missing.png: label image trainannot/missing.png: No such file")
    );
    assert!(lines[6].starts_with("  ROOT/train/cut.png: label image trainannot/cut.png: "), "{message}");

    // Reading detects the same problems as opening.
    let options = OpenOptions { skip_damaged: true, ..OpenOptions::default() };
    let found = open("camvid", root, Split::Train, &options).unwrap();
    let unverified = OpenOptions { verify: false, ..OpenOptions::default() };
    let set = open("camvid", root, Split::Train, &unverified).unwrap();
    let mut scratch = Scratch::default();
    let failing: Vec<u32> =
        (0..set.len() as u32).filter(|&at| set.read(at as usize, &mut scratch).is_err()).collect();
    assert_eq!(failing, found.damaged().iter().map(|(index, _)| *index).collect::<Vec<_>>());
    assert_eq!(failing, [1, 2, 3, 4, 5, 6]);
}

/// The label image of a photograph with an EXIF rotation refers to the upright image, or to the stored one if
/// its size proves it.
#[test]
fn label_images_refer_to_the_upright_image() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    fs::write(root.join("train.txt"), "train/a.png trainannot/a.png").unwrap();
    let photograph = |orientation: u8| {
        let exif =
            [b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".as_slice(), &[orientation, 0, 0, 0]].concat();
        let mut info = png::Info::with_size(3, 2);
        info.exif_metadata = Some(exif.into());
        let mut file = Vec::new();
        let encoder = png::Encoder::with_info(&mut file, info).unwrap();
        encoder.write_header().unwrap().write_image_data(&[9; 6]).unwrap();
        fs::create_dir_all(root.join("train")).unwrap();
        fs::write(root.join("train/a.png"), file).unwrap();
    };
    let labels = [1, 2, 3, 4, 5, 6];
    for (orientation, size, expected) in [
        (3, [2, 3], Some(([6, 5, 4, 3, 2, 1], 1))),
        (6, [2, 3], Some((labels, 0))),
        (6, [3, 2], Some(([2, 4, 6, 1, 3, 5], 0))),
        (1, [2, 3], Some((labels, 0))),
        (3, [3, 2], None),
    ] {
        photograph(orientation);
        write_labels(&root.join("trainannot/a.png"), size, &labels);
        let set = open("camvid", root, Split::Train, &OpenOptions::default());
        match expected {
            Some((expected, assumed)) => {
                let set = set.unwrap();
                assert_eq!(mask(set.as_ref(), 0), expected, "{orientation} {size:?}");
                assert_eq!(set.assumed_upright(), assumed);
            }
            None => assert!(set.err().unwrap().to_string().contains("is 3×2, but the image is 2×3")),
        }
    }
}

#[test]
fn reads_cityscapes_folders() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let put = |split: &str, city: &str, number: u8, labels: &[u8]| {
        let id = format!("{split}/{city}/{city}_00000{number}_000019");
        write_picture(&root.join(format!("leftImg8bit/{id}_leftImg8bit.png")), [2, 4], number);
        write_labels(&root.join(format!("gtFine/{id}_gtFine_labelIds.png")), [2, 4], labels);
    };
    put("train", "ulm", 0, &[7, 8, 0, 33, 255, 29, 31, 26]);
    put("train", "aachen", 1, &[11; 8]);
    put("val", "lindau", 2, &[24; 8]);
    let set = open("cityscapes", root, Split::Train, &OpenOptions::default()).unwrap();
    assert_eq!((set.len(), set.classes(), set.class_name(10)), (2, 19, "sky".to_owned()));
    assert_eq!(mask(set.as_ref(), 0), [2; 8]);
    assert_eq!(mask(set.as_ref(), 1), [0, 1, VOID, 18, VOID, VOID, 16, 13]);
    let set = open("cityscapes", root, Split::Validation, &OpenOptions::default()).unwrap();
    assert_eq!(mask(set.as_ref(), 0), [11; 8]);

    assert_eq!(
        open_error("cityscapes", root, Split::Test, &OpenOptions::default()),
        "`cityscapes` has no labels in its test split: the labels of the test images are not published; use \
         the validation split"
    );
    put("train", "ulm", 0, &[34; 8]);
    let message = open_error("cityscapes", root, Split::Train, &OpenOptions::default());
    assert!(
        message.contains("label 34 at row 0, column 0 is out of range; labels are ids 0 to 33"),
        "{message}"
    );
    fs::remove_dir_all(root.join("gtFine/train")).unwrap();
    assert_eq!(
        open_error("cityscapes", root, Split::Train, &OpenOptions::default()),
        "ROOT: no folder `gtFine/train`; expected leftImg8bit/train/<city>/ and gtFine/train/<city>/"
    );
}

/// Counts pixels and images of each class, for any number of threads. Unreadable and fully ignored samples
/// are reported and not counted.
#[test]
fn counts_mask_pixels() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let mut list = String::new();
    for (name, size, labels) in [
        ("a", [2, 4], [0, 0, 0, 0, 1, 1, 11, 11]),
        ("b", [4, 2], [0, 1, 1, 1, 1, 1, 1, 1]),
        ("c", [2, 4], [10; 8]),
        ("none", [2, 4], [11; 8]),
        ("bad", [2, 4], [0, 0, 0, 0, 0, 0, 0, 99]),
    ] {
        write_png(&root.join(format!("train/{name}.png")), ColorType::Grayscale, size, &[51; 8]);
        write_labels(&root.join(format!("trainannot/{name}.png")), size, &labels);
        list.push_str(&format!("train/{name}.png trainannot/{name}.png\n"));
    }
    fs::write(root.join("train.txt"), list).unwrap();
    let options = OpenOptions { verify: false, ..OpenOptions::default() };
    let set = open("camvid", root, Split::Train, &options).unwrap();
    let found = stats::compute_stats(set.as_ref(), 1).unwrap();
    assert_eq!(found.samples, 5);
    assert_eq!(found.samples_per_class, [2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let masks = found.masks.as_ref().unwrap();
    assert_eq!(masks.pixels_per_class, [5, 9, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
    assert_eq!(masks.pixels_of_samples, [16, 16, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
    assert_eq!(masks.ignored, 10);
    assert_eq!(found.empty_classes().collect::<Vec<_>>(), (2..10).collect::<Vec<_>>());
    // Frequencies 5/16, 9/16, 8/8; their median is 9/16.
    let weights = found.median_frequency_weights();
    assert_eq!((weights[0], weights[1], weights[2], weights[10]), (Some(1.8), Some(1.0), None, Some(0.5625)));
    let channels = found.channels.as_ref().unwrap();
    assert_eq!((&channels.mean[..], &channels.std[..]), (&[0.2f32][..], &[0.0f32][..]));
    assert_eq!(found.sizes.map(|sizes| (sizes.smallest, sizes.largest)), Some(([2, 4], [4, 2])));
    assert_eq!(found.unlabelled, [3]);
    assert_eq!(found.damaged.len(), 1);
    assert!(found.damaged[0].1.contains("label 99 at row 1, column 3 is out of range"), "{found:?}");
    for threads in [2, 3, 16] {
        assert_eq!(stats::compute_stats(set.as_ref(), threads).unwrap(), found);
    }
}
