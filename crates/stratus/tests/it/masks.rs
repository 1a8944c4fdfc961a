//! Inspecting a data set with masks: class counts, problems and the contact sheet.

#![cfg(unix)]

use crate::common::TestDir;
use png::{BitDepth, ColorType, Decoder, Encoder};
use serde_json::Value;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;

fn write(path: &Path, colour: ColorType, pixels: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut encoder = Encoder::new(File::create(path).unwrap(), 6, 4);
    encoder.set_color(colour);
    encoder.set_depth(BitDepth::Eight);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
}

/// Every class is in two training images and one validation image.
fn write_set(dir: &TestDir) {
    let mut lists = [String::new(), String::new()];
    for (number, name) in ["train/a", "train/b", "val/c"].iter().enumerate() {
        write(&dir.path(&format!("set/{name}.png")), ColorType::Rgb, &[40 * number as u8; 72]);
        let labels = format!("{}.png", name.replace('/', "annot/"));
        let classes: Vec<u8> = (0..24).map(|pixel| pixel % 12).collect();
        write(&dir.path(&format!("set/{labels}")), ColorType::Grayscale, &classes);
        lists[number / 2].push_str(&format!("{name}.png {labels}\n"));
    }
    fs::write(dir.path("set/train.txt"), &lists[0]).unwrap();
    fs::write(dir.path("set/val.txt"), &lists[1]).unwrap();
}

#[test]
fn mask_check_counts_classes_and_lists_problems() {
    let dir = TestDir::without_kernel_cache();
    write_set(&dir);
    let ran = dir.run(&["data", "stats", "camvid", "--path", "set"]).expect(0);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines[0], "train       2 images, 4 × 6");
    assert_eq!(lines[3], "  no class  4 pixels, 8.33%");
    assert_eq!(lines[5], "  class        images  pixels  share  weight");
    assert_eq!(lines[6], "  sky               2       4  9.09%  1.0000");
    assert!(ran.out.contains("validation  1 images, 4 × 6"), "{}", ran.out);
    let check = ["data", "check", "camvid", "--path", "set"];
    let ran = dir.run(&check).expect(0);
    assert_eq!(ran.out, "train: 2 images, 0 damaged\nvalidation: 1 images, 0 damaged\n");

    write(&dir.path("set/trainannot/a.png"), ColorType::Grayscale, &[11; 24]);
    let rest: Vec<u8> = (0..24).map(|pixel| if pixel % 12 == 7 { 6 } else { pixel % 12 }).collect();
    write(&dir.path("set/trainannot/b.png"), ColorType::Grayscale, &rest);
    write(&dir.path("set/valannot/c.png"), ColorType::Grayscale, &[12; 24]);
    let ran = dir.run(&["data", "stats", "camvid", "--path", "set", "--json"]).expect(0);
    let parts: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(parts[0]["ignored_pixels"], 26);
    assert_eq!(parts[0]["unlabelled"], 1);
    let sign = &parts[0]["classes"][6];
    assert_eq!(
        (&sign["name"], &sign["pixels"], &sign["weight"]),
        (&"sign_symbol".into(), &4.into(), &0.5.into())
    );
    assert_eq!(parts[0]["classes"][7]["weight"], Value::Null);
    assert_eq!(parts[1]["damaged"].as_array().unwrap().len(), 1);
    let ran = dir.run(&check).expect(1);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines[0], "train: 2 images, 0 damaged, 1 unlabelled, 1 classes without images");
    assert_eq!(lines[1], "  set/train/a.png: unlabelled");
    assert_eq!(lines[2], "  fence: no images");
    assert_eq!(lines[3], "validation: 1 images, 1 damaged, 11 classes without images");
    assert!(lines[4].starts_with("  set/val/c.png: label image valannot/c.png: label 12 at row 0, column 0"));
    assert!(ran.err.contains("found 14 problems"), "{}", ran.err);
}

#[test]
fn contact_sheet_shows_the_network_input() {
    let dir = TestDir::without_kernel_cache();
    write_set(&dir);
    let show = |more: &[&str]| {
        dir.run(&[&["data", "show", "camvid", "--path", "set", "--out", "sheet.png"], more].concat())
    };
    let size = || {
        let mut reader =
            Decoder::new(BufReader::new(File::open(dir.path("sheet.png")).unwrap())).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        (reader.info().height, reader.info().width, pixels)
    };
    let ran = show(&["--set", "data.shape=[3, 8, 12]"]).expect(0);
    assert!(ran.out.starts_with("sheet.png: 2 images"), "{}", ran.out);
    let (height, width, pixels) = size();
    assert_eq!(pixels.len() as u32, height * width * 3);
    // The sheet is independent of the number of loader threads; other epochs differ.
    let shifted = ["--set", "data.shape=[3, 8, 12]", "--set", "data.augment.shift=3"];
    show(&[&shifted[..], &["--epoch", "1"]].concat()).expect(0);
    let first = size();
    show(&[&shifted[..], &["--epoch", "1", "--set", "data.workers=3"]].concat()).expect(0);
    assert_eq!(size(), first);
    show(&[&shifted[..], &["--epoch", "2"]].concat()).expect(0);
    assert_ne!(size(), first);
    // Validation images are not augmented: except for the title, the sheets are identical.
    let validation = ["--split", "validation", "--count", "1"];
    show(&[&shifted[..], &validation].concat()).expect(0);
    let (height, width, first) = size();
    show(&[&shifted[..], &validation, &["--epoch", "1"]].concat()).expect(0);
    let (_, _, second) = size();
    let title = 40 * 3 * width as usize;
    assert_eq!(height as usize * 3 * width as usize, second.len());
    assert!(first[..title] != second[..title] && first[title..] == second[title..]);
    show(&["--split", "tset"]).expect(2);
    show(&["--count", "0"]).expect(2);
    let ran = dir.run(&["data", "show", "camvid", "--path", "set", "--out", "nowhere/sheet.png"]).expect(1);
    assert!(ran.err.contains("nowhere/sheet.png: "), "{}", ran.err);
}
