//! What a trained network says of images that are larger than its input, of another size, or frames of a
//! video.

#![cfg(unix)]

use crate::common::streets::{
    CLASSES, HEIGHT, TRAIN, VALIDATION, WIDTH, arguments, grey, pixels, streets, train, write,
};
use crate::common::{Place, Ran, tiny};
use png::ColorType;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use stratus_weights::WeightsFile;

/// A folder with streets, and a run that saw them once.
fn trained() -> Place {
    let place = Place::bare();
    streets(&place);
    train(&place, "run", "fcn_resnet18", &["train.epochs=2", "train.device=reference"]).expect(0);
    place
}

/// The masks of a call, by the names of their files, as they were written.
fn masks(place: &Place, out: &str, more: &[&str]) -> Vec<(String, Vec<u8>)> {
    let all = [&["infer", "--out", out, "--raw"], more].concat();
    place.run(&all).expect(0);
    written(&place.path(out))
}

fn written(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
        .into_iter()
        .map(|file| (file.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&file).unwrap()))
        .collect()
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap()
}

#[test]
fn a_window_as_large_as_the_image_changes_nothing() {
    let place = trained();
    let whole = masks(&place, "whole", &["run", "set/val"]);
    assert_eq!(whole.len(), VALIDATION);
    assert_eq!(masks(&place, "window", &["run", "set/val", "--window", "24x32"]), whole);
    let eval = |more: &[&str]| json(&place.run(&[&["eval", "run", "--json"], more].concat()).expect(0));
    let (plain, mut windowed) = (eval(&[]), eval(&["--window", "24x32", "--overlap", "0.5"]));
    let off = plain["loss"].as_f64().unwrap() - windowed["loss"].as_f64().unwrap();
    assert!(off.abs() < 1e-6, "{off}");
    windowed["loss"] = plain["loss"].clone();
    assert_eq!(windowed, plain);
    // Of weights as a file too.
    let export = ["model", "export", "run", "--safetensors", "weights.safetensors"];
    place.run(&export).expect(0);
    let of_file = [
        arguments("unused", "fcn_resnet18", &["train.device=reference"])[4..].to_vec(),
        ["fcn_resnet18", "--weights", "weights.safetensors", "--json", "--window", "24x32"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let of_file = of_file.concat();
    let of_file: Vec<&str> = of_file.iter().map(String::as_str).collect();
    let said = json(&place.run(&[&["eval"], &of_file[..]].concat()).expect(0));
    assert_eq!((&said["miou"], &said["loss"]), (&plain["miou"], &eval(&["--window", "24x32"])["loss"]));
}

/// The oracle: windows side by side are images of their own.
#[test]
fn windows_side_by_side_are_images_of_their_own() {
    let place = trained();
    let windows = masks(&place, "windows", &["run", "set/val", "--window", "12x16", "--overlap", "0"]);
    let small = ["--set", "data.shape=[3, 12, 16]"];
    for (name, _) in &windows {
        let image: usize = name.trim_end_matches(".png").parse().unwrap();
        let (whole, whole_mask) = (pixels(image), grey(&place.path(&format!("windows/{name}"))));
        for (row, column) in [(0, 0), (0, 16), (12, 0), (12, 16)] {
            let at = |y: usize, x: usize| (row + y) * WIDTH + column + x;
            let part: Vec<u8> = (0..12 * 16)
                .flat_map(|pixel| &whole[3 * at(pixel / 16, pixel % 16)..][..3])
                .copied()
                .collect();
            let file = format!("part-{image}-{row}-{column}.png");
            crate::common::streets::write_sized(&place.path(&file), ColorType::Rgb, &part, [12, 16]);
            let out = format!("parts-{image}-{row}-{column}");
            masks(&place, &out, &[&["run", file.as_str()], &small[..]].concat());
            let expected: Vec<u8> =
                (0..12 * 16).map(|pixel| whole_mask[at(pixel / 16, pixel % 16)]).collect();
            assert_eq!(grey(&place.path(&format!("{out}/{file}"))), expected, "{file}");
        }
    }
}

#[test]
fn masks_do_not_depend_on_how_many_windows_go_together() {
    let place = trained();
    let with = |out: &str, batch: &str| {
        let more = ["run", "set/val", "--window", "13x10", "--overlap", "0.4", "--overlay", "--batch", batch];
        masks(&place, out, &more)
    };
    let one = with("one", "1");
    // Masks and overlays at the images' own size.
    assert_eq!(one.len(), 2 * VALIDATION);
    assert_eq!(grey(&place.path("one/8.png")).len(), HEIGHT * WIDTH);
    for batch in ["2", "5", "64"] {
        assert_eq!(with(&format!("of{batch}"), batch), one, "{batch}");
    }
    let refused = |code: i32, more: &[&str], words: &str| {
        let ran = place.run(&[&["infer", "run", "set/val"], more].concat()).expect(code);
        assert!(ran.err.contains(words), "{}", ran.err);
    };
    refused(2, &["--window", "25x32"], "10.png has 24x32 pixels, a window 25x32");
    refused(2, &["--window", "12"], "expected height and width, like 512x1024");
    refused(2, &["--window", "0x9"], "at least one pixel");
    refused(2, &["--window", "9x9", "--overlap", "1"], "less than 1");
    refused(2, &["--overlap", "0.5"], "--window");
    refused(2, &["--window", "9x9", "--sheet", "sheet.png"], "--sheet");
    let ran = place.run(&["eval", "run", "--window", "24x33"]).expect(2);
    assert!(ran.err.contains("a window 24x33"), "{}", ran.err);
}

/// Class names and normalisation go with the weights, into ONNX and back.
#[test]
fn a_network_takes_its_classes_and_normalisation_along() {
    let place = trained();
    let whole = masks(&place, "whole", &["run", "set/val"]);
    let said = json(&place.run(&["model", "export", "run", "--onnx", "net.onnx", "--json"]).expect(0));
    let names: Vec<String> = serde_json::from_str(said["metadata"]["class_names"].as_str().unwrap()).unwrap();
    assert_eq!((names.len(), names[0].to_lowercase().as_str()), (CLASSES, "sky"));
    assert_eq!(said["metadata"]["input_shape"], "[3,24,32]");
    assert_eq!(said["metadata"]["channel_order"], "RGB");
    place.run(&["model", "import", "net.onnx", "-o", "net.toml"]).expect(0);
    let file = WeightsFile::open(place.path("net.safetensors")).unwrap();
    for key in ["class_names", "mean", "std", "input_shape", "crop", "channel_order"] {
        assert_eq!(file.metadata()[key], said["metadata"][key].as_str().unwrap(), "{key}");
    }
    let reference = ["--set", "train.device=reference", "--set", "train.precision=f32"];
    let imported = ["net.toml", "set/val", "--weights", "net.safetensors"];
    assert_eq!(masks(&place, "imported", &[&imported[..], &reference].concat()), whole);
    // What the command says goes before what the file says.
    let other = ["--set", "data.mean=[0.9, 0.9, 0.9]", "--set", "data.std=[0.1, 0.1, 0.1]"];
    let others = masks(&place, "other", &[&imported[..], &reference, &other].concat());
    assert!(others != whole, "the normalisation changes nothing");

    // Any size of images, of a run, of the zoo and of a layer file.
    let large = ["--set", "data.shape=[3, 40, 56]"];
    let of_run = masks(&place, "large", &[&["run", "set/val"][..], &large].concat());
    assert_eq!(grey(&place.path("large/8.png")).len(), 40 * 56);
    assert_eq!(masks(&place, "layers", &[&imported[..], &reference, &large].concat()), of_run);
    let zoo = ["fcn_resnet18", "set/val", "--weights", "run", "--set", "model.width=4"];
    let classes = ["--set", "model.classes=11"];
    assert_eq!(masks(&place, "zoo", &[&zoo[..], &classes, &reference, &large].concat()), of_run);
}

#[test]
fn a_network_with_weights_for_one_size_says_so() {
    let place = Place::bare();
    tiny::write_data(&place.path("data"));
    fs::write(place.path("net.toml"), tiny::NET).unwrap();
    let train = tiny::arguments(&["train", "net.toml", "--out", "run"], &["train.epochs=1"]);
    place.run(&train).expect(0);
    write(&place.path("image.png"), ColorType::Grayscale, &[7; HEIGHT * WIDTH]);
    let infer = |more: &[&str]| place.run(&[&["infer", "run", "image.png"], more].concat());
    infer(&[]).expect(0);
    let ran = infer(&["--set", "data.shape=[1, 20, 20]"]).expect(2);
    assert!(ran.err.contains("fc.weight") && ran.err.contains("data.shape"), "{}", ran.err);
    let ran = infer(&["--window", "12x12"]).expect(2);
    assert!(ran.err.contains("gives one answer for an image"), "{}", ran.err);
}

/// A program of this name that is found before others.
fn script(place: &Place, folder: &str, name: &str, text: &str) {
    let path = place.path(folder).join(name);
    fs::create_dir_all(place.path(folder)).unwrap();
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Validation images as ffmpeg writes frames.
fn stream() -> Vec<u8> {
    let frame = |image: usize| [format!("P6\n{WIDTH} {HEIGHT}\n255\n").into_bytes(), pixels(image)].concat();
    (TRAIN..TRAIN + VALIDATION).flat_map(frame).collect()
}

fn infer_with(place: &Place, path: &str, arguments: &[&str]) -> Ran {
    let mut command = place.command(&[&["infer"], arguments].concat());
    Ran::of(command.env("PATH", path).output().unwrap())
}

#[test]
fn frames_of_a_video_are_what_ffmpeg_writes() {
    let place = trained();
    let whole = masks(&place, "whole", &["run", "set/val"]);
    let path = format!("{}:/usr/bin:/bin", place.path("bin").display());
    let said = place.path("arguments");
    fs::write(place.path("frames"), stream()).unwrap();
    let pass =
        format!("printf '%s\\n' \"$@\" > '{}'; cat '{}'", said.display(), place.path("frames").display());
    script(&place, "bin", "ffmpeg", &pass);
    // A name that a shell, or a program that takes it for an option, would not survive.
    let video = "-i odd; touch pwned $(touch pwned) name.mp4";
    fs::write(place.path(video), "video").unwrap();
    let ran = infer_with(&place, &path, &["--out", "masks", "--raw", "--json", "run", "--", video]).expect(0);
    let report = json(&ran);
    let names: Vec<&str> =
        report["images"].as_array().unwrap().iter().map(|image| image["path"].as_str().unwrap()).collect();
    assert_eq!(names, [1, 2, 3].map(|number| format!("{video}#{number}")));
    let frames = written(&place.path("masks"));
    assert!(frames[0].0.ends_with(" name-000001.png"), "{}", frames[0].0);
    let bytes =
        |masks: &[(String, Vec<u8>)]| masks.iter().map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>();
    // Images are listed by their names, 10 before 8.
    let by_number = [&whole[1], &whole[2], &whole[0]].map(|(_, bytes)| bytes.clone());
    assert_eq!(bytes(&frames), by_number);
    assert!(!place.path("pwned").exists());
    let passed = fs::read_to_string(&said).unwrap();
    assert!(passed.lines().any(|argument| argument == format!("file:{video}")), "{passed}");

    // Some frames; with images beside them.
    let some =
        ["--every", "2", "--frames", "1", "--out", "some", "--overlay", "run", "set/val/8.png", "--", video];
    infer_with(&place, &path, &some).expect(0);
    let names: Vec<String> = written(&place.path("some")).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 4);
    assert!(names.iter().all(|name| name.starts_with('8') || name.contains("-000001.")), "{names:?}");
    let every: Vec<String> = {
        infer_with(&place, &path, &["--every", "2", "--out", "every", "run", "--", video]).expect(0);
        written(&place.path("every")).into_iter().map(|(name, _)| name).collect()
    };
    assert!(every.len() == 2 && every[1].ends_with("-000003.png"), "{every:?}");
}

#[test]
fn a_video_that_cannot_be_read_says_why() {
    let place = trained();
    fs::write(place.path("film.mp4"), "video").unwrap();
    let path = format!("{}:/usr/bin:/bin", place.path("bin").display());
    let refused = |path: &str, video: &str, words: &[&str]| {
        let ran = infer_with(&place, path, &["--out", "masks", "run", video]).expect(1);
        assert!(words.iter().all(|words| ran.err.contains(words)), "{}", ran.err);
    };
    let empty = place.path("empty").display().to_string();
    refused(&empty, "film.mp4", &["film.mp4: ", "ffmpeg, which is not installed", "apt install ffmpeg"]);
    refused(&path, "none.mp4", &["none.mp4: cannot open"]);
    script(&place, "bin", "ffmpeg", "echo 'moov atom not found' >&2; exit 1");
    refused(&path, "film.mp4", &["ffmpeg failed (exit status: 1)", "moov atom not found"]);
    script(&place, "bin", "ffmpeg", "exit 0");
    refused(&path, "film.mp4", &["ffmpeg found no frames in it"]);
    let frames = stream();
    fs::write(place.path("cut"), &frames[..frames.len() - 1]).unwrap();
    script(&place, "bin", "ffmpeg", &format!("cat '{}'", place.path("cut").display()));
    refused(&path, "film.mp4", &["it ends within its pixels"]);
    script(&place, "bin", "ffmpeg", "yes not a frame");
    refused(&path, "film.mp4", &["does not begin with P6"]);
    let ran = place.run(&["infer", "run", "film.mp4", "other/film.mkv", "--out", "masks"]).expect(2);
    assert!(ran.err.contains("would have the same names"), "{}", ran.err);
}

/// Frames before the damage have their masks, and so do the images that are named beside the video.
#[test]
fn a_video_that_breaks_off_keeps_no_image_from_its_answer() {
    let place = trained();
    let whole = masks(&place, "whole", &["run", "set/val"]);
    let path = format!("{}:/usr/bin:/bin", place.path("bin").display());
    fs::write(place.path("film.mp4"), "video").unwrap();
    let frames = stream();
    fs::write(place.path("cut"), &frames[..frames.len() - 1]).unwrap();
    script(&place, "bin", "ffmpeg", &format!("cat '{}'", place.path("cut").display()));
    for batch in ["1", "2", "8"] {
        let out = format!("of{batch}");
        let all = ["run", "film.mp4", "set/val", "--out", &out, "--raw", "--json", "--batch", batch];
        let ran = infer_with(&place, &path, &all).expect(1);
        let report = json(&ran);
        let count = |key: &str| report[key].as_array().unwrap().len();
        assert_eq!((count("images"), count("errors")), (VALIDATION + 2, 1));
        assert_eq!(report["errors"][0]["path"], "film.mp4");
        assert!(report["errors"][0]["error"].as_str().unwrap().starts_with("ffmpeg's output is no image"));
        assert!(ran.err.contains("1 of 6 images got no answer"), "{}", ran.err);
        let named: Vec<String> = written(&place.path(&out)).into_iter().map(|(name, _)| name).collect();
        assert_eq!(named, ["10.png", "8.png", "9.png", "film-000001.png", "film-000002.png"]);
        assert_eq!(written(&place.path(&out))[..VALIDATION], whole);
    }
}

/// With ffmpeg itself, where it is installed: a video without loss has the masks of its images.
#[test]
fn a_real_video_has_the_masks_of_its_frames() {
    if Command::new("ffmpeg").arg("-version").output().is_err() {
        eprintln!("SKIPPED: ffmpeg is not installed");
        return;
    }
    let place = trained();
    let whole = masks(&place, "whole", &["run", "set/val"]);
    for (number, image) in (TRAIN..TRAIN + VALIDATION).enumerate() {
        let from = place.path(&format!("set/val/{image}.png"));
        fs::copy(from, place.path(&format!("frame-{number}.png"))).unwrap();
    }
    // FFV1 in RGB keeps every bit.
    let make =
        ["-loglevel", "error", "-framerate", "5", "-i", "frame-%d.png", "-c:v", "ffv1", "-pix_fmt", "bgr0"];
    let made = Command::new("ffmpeg").args(make).arg("film.mkv").current_dir(place.folder.path()).status();
    assert!(made.unwrap().success());
    let frames = masks(&place, "masks", &["run", "film.mkv"]);
    let names: Vec<&str> = frames.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["film-000001.png", "film-000002.png", "film-000003.png"]);
    for ((_, frame), (_, image)) in frames.iter().zip([&whole[1], &whole[2], &whole[0]]) {
        assert_eq!(frame, image);
    }
}
