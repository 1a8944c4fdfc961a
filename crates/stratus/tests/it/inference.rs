//! Inference on images that are larger than the input, of another size, or frames of a video.

#![cfg(unix)]

use crate::common::streets::{
    CLASSES, HEIGHT, TRAIN, VALIDATION, WIDTH, arguments, grey, pixels, train, write, write_streets,
};
use crate::common::{CommandOutput, TestDir, tiny};
use png::ColorType;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use stratus_weights::WeightsFile;

/// A folder with street scenes, and a run of one epoch on them.
fn trained() -> TestDir {
    let dir = TestDir::without_kernel_cache();
    write_streets(&dir);
    train(&dir, "run", "fcn_resnet18", &["train.epochs=2", "train.device=reference"]).expect(0);
    dir
}

/// Runs inference and returns the masks by file name.
fn masks(dir: &TestDir, out: &str, more: &[&str]) -> Vec<(String, Vec<u8>)> {
    let all = [&["infer", "--out", out, "--raw"], more].concat();
    dir.run(&all).expect(0);
    written(&dir.path(out))
}

fn written(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
        .into_iter()
        .map(|file| (file.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&file).unwrap()))
        .collect()
}

fn json(ran: &CommandOutput) -> Value {
    serde_json::from_str(&ran.out).unwrap()
}

#[test]
fn window_of_image_size_changes_nothing() {
    let dir = trained();
    let whole = masks(&dir, "whole", &["run", "set/val"]);
    assert_eq!(whole.len(), VALIDATION);
    assert_eq!(masks(&dir, "window", &["run", "set/val", "--window", "24x32"]), whole);
    let eval = |more: &[&str]| json(&dir.run(&[&["eval", "run", "--json"], more].concat()).expect(0));
    let (plain, mut windowed) = (eval(&[]), eval(&["--window", "24x32", "--overlap", "0.5"]));
    let off = plain["loss"].as_f64().unwrap() - windowed["loss"].as_f64().unwrap();
    assert!(off.abs() < 1e-6, "{off}");
    windowed["loss"] = plain["loss"].clone();
    assert_eq!(windowed, plain);
    // Also with a weights file.
    let export = ["model", "export", "run", "--safetensors", "weights.safetensors"];
    dir.run(&export).expect(0);
    let of_file = [
        arguments("unused", "fcn_resnet18", &["train.device=reference"])[4..].to_vec(),
        ["fcn_resnet18", "--weights", "weights.safetensors", "--json", "--window", "24x32"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let of_file = of_file.concat();
    let of_file: Vec<&str> = of_file.iter().map(String::as_str).collect();
    let message = json(&dir.run(&[&["eval"], &of_file[..]].concat()).expect(0));
    assert_eq!((&message["miou"], &message["loss"]), (&plain["miou"], &eval(&["--window", "24x32"])["loss"]));
}

/// The oracle: adjacent windows are separate images.
#[test]
fn adjacent_windows_match_separate_images() {
    let dir = trained();
    let windows = masks(&dir, "windows", &["run", "set/val", "--window", "12x16", "--overlap", "0"]);
    let small = ["--set", "data.shape=[3, 12, 16]"];
    for (name, _) in &windows {
        let image: usize = name.trim_end_matches(".png").parse().unwrap();
        let (whole, whole_mask) = (pixels(image), grey(&dir.path(&format!("windows/{name}"))));
        for (row, column) in [(0, 0), (0, 16), (12, 0), (12, 16)] {
            let at = |y: usize, x: usize| (row + y) * WIDTH + column + x;
            let part: Vec<u8> = (0..12 * 16)
                .flat_map(|pixel| &whole[3 * at(pixel / 16, pixel % 16)..][..3])
                .copied()
                .collect();
            let file = format!("part-{image}-{row}-{column}.png");
            crate::common::streets::write_sized(&dir.path(&file), ColorType::Rgb, &part, [12, 16]);
            let out = format!("parts-{image}-{row}-{column}");
            masks(&dir, &out, &[&["run", file.as_str()], &small[..]].concat());
            let expected: Vec<u8> =
                (0..12 * 16).map(|pixel| whole_mask[at(pixel / 16, pixel % 16)]).collect();
            assert_eq!(grey(&dir.path(&format!("{out}/{file}"))), expected, "{file}");
        }
    }
}

#[test]
fn masks_are_independent_of_the_window_batch() {
    let dir = trained();
    let with = |out: &str, batch: &str| {
        let more = ["run", "set/val", "--window", "13x10", "--overlap", "0.4", "--overlay", "--batch", batch];
        masks(&dir, out, &more)
    };
    let one = with("one", "1");
    // Masks and overlays in the size of the images.
    assert_eq!(one.len(), 2 * VALIDATION);
    assert_eq!(grey(&dir.path("one/8.png")).len(), HEIGHT * WIDTH);
    for batch in ["2", "5", "64"] {
        assert_eq!(with(&format!("of{batch}"), batch), one, "{batch}");
    }
    let error_of = |code: i32, more: &[&str], words: &str| {
        let ran = dir.run(&[&["infer", "run", "set/val"], more].concat()).expect(code);
        assert!(ran.err.contains(words), "{}", ran.err);
    };
    error_of(2, &["--window", "25x32"], "10.png has 24x32 pixels, fewer than a window of 25x32");
    error_of(2, &["--window", "12"], "expected height and width, like 512x1024");
    error_of(2, &["--window", "0x9"], "at least one pixel");
    error_of(2, &["--window", "9x9", "--overlap", "1"], "less than 1");
    error_of(2, &["--overlap", "0.5"], "--window");
    error_of(2, &["--window", "9x9", "--sheet", "sheet.png"], "--sheet");
    let ran = dir.run(&["eval", "run", "--window", "24x33"]).expect(2);
    assert!(ran.err.contains("a window of 24x33"), "{}", ran.err);
}

/// Class names and normalisation are stored with the weights, also through ONNX.
#[test]
fn exported_network_keeps_classes_and_normalisation() {
    let dir = trained();
    let whole = masks(&dir, "whole", &["run", "set/val"]);
    let message = json(&dir.run(&["model", "export", "run", "--onnx", "net.onnx", "--json"]).expect(0));
    let names: Vec<String> =
        serde_json::from_str(message["metadata"]["class_names"].as_str().unwrap()).unwrap();
    assert_eq!((names.len(), names[0].to_lowercase().as_str()), (CLASSES, "sky"));
    assert_eq!(message["metadata"]["input_shape"], "[3,24,32]");
    assert_eq!(message["metadata"]["channel_order"], "RGB");
    dir.run(&["model", "import", "net.onnx", "-o", "net.toml"]).expect(0);
    let file = WeightsFile::open(dir.path("net.safetensors")).unwrap();
    for key in ["class_names", "mean", "std", "input_shape", "crop", "channel_order"] {
        assert_eq!(file.metadata()[key], message["metadata"][key].as_str().unwrap(), "{key}");
    }
    let reference = ["--set", "train.device=reference", "--set", "train.precision=f32"];
    let imported = ["net.toml", "set/val", "--weights", "net.safetensors"];
    assert_eq!(masks(&dir, "imported", &[&imported[..], &reference].concat()), whole);
    // The command line overrides the file.
    let other = ["--set", "data.mean=[0.9, 0.9, 0.9]", "--set", "data.std=[0.1, 0.1, 0.1]"];
    let others = masks(&dir, "other", &[&imported[..], &reference, &other].concat());
    assert!(others != whole, "the normalisation changes nothing");

    // Images of any size, with a run, a built-in network and a layer file.
    let large = ["--set", "data.shape=[3, 40, 56]"];
    let of_run = masks(&dir, "large", &[&["run", "set/val"][..], &large].concat());
    assert_eq!(grey(&dir.path("large/8.png")).len(), 40 * 56);
    assert_eq!(masks(&dir, "layers", &[&imported[..], &reference, &large].concat()), of_run);
    let zoo = ["fcn_resnet18", "set/val", "--weights", "run", "--set", "model.width=4"];
    let classes = ["--set", "model.classes=11"];
    assert_eq!(masks(&dir, "zoo", &[&zoo[..], &classes, &reference, &large].concat()), of_run);
}

#[test]
fn fixed_size_network_rejects_other_sizes() {
    let dir = TestDir::without_kernel_cache();
    tiny::write_data(&dir.path("data"));
    fs::write(dir.path("net.toml"), tiny::NET).unwrap();
    let train = tiny::arguments(&["train", "net.toml", "--out", "run"], &["train.epochs=1"]);
    dir.run(&train).expect(0);
    write(&dir.path("image.png"), ColorType::Grayscale, &[7; HEIGHT * WIDTH]);
    let infer = |more: &[&str]| dir.run(&[&["infer", "run", "image.png"], more].concat());
    infer(&[]).expect(0);
    let ran = infer(&["--set", "data.shape=[1, 20, 20]"]).expect(2);
    assert!(ran.err.contains("fc.weight") && ran.err.contains("data.shape"), "{}", ran.err);
    let ran = infer(&["--window", "12x12"]).expect(2);
    assert!(ran.err.contains("--window needs a segmentation network"), "{}", ran.err);
}

/// Writes a script that hides a program of this name.
fn script(dir: &TestDir, folder: &str, name: &str, text: &str) {
    let path = dir.path(folder).join(name);
    fs::create_dir_all(dir.path(folder)).unwrap();
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The validation images as frames of ffmpeg.
fn stream() -> Vec<u8> {
    let frame = |image: usize| [format!("P6\n{WIDTH} {HEIGHT}\n255\n").into_bytes(), pixels(image)].concat();
    (TRAIN..TRAIN + VALIDATION).flat_map(frame).collect()
}

fn infer_with(dir: &TestDir, path: &str, arguments: &[&str]) -> CommandOutput {
    let mut command = dir.command(&[&["infer"], arguments].concat());
    CommandOutput::new(command.env("PATH", path).output().unwrap())
}

#[test]
fn video_frames_match_ffmpeg_images() {
    let dir = trained();
    let whole = masks(&dir, "whole", &["run", "set/val"]);
    let path = format!("{}:/usr/bin:/bin", dir.path("bin").display());
    let message = dir.path("arguments");
    fs::write(dir.path("frames"), stream()).unwrap();
    let pass =
        format!("printf '%s\\n' \"$@\" > '{}'; cat '{}'", message.display(), dir.path("frames").display());
    script(&dir, "bin", "ffmpeg", &pass);
    // A name that is special to shells and looks like an option.
    let video = "-i odd; touch pwned $(touch pwned) name.mp4";
    fs::write(dir.path(video), "video").unwrap();
    let ran = infer_with(&dir, &path, &["--out", "masks", "--raw", "--json", "run", "--", video]).expect(0);
    let report = json(&ran);
    let names: Vec<&str> =
        report["images"].as_array().unwrap().iter().map(|image| image["path"].as_str().unwrap()).collect();
    assert_eq!(names, [1, 2, 3].map(|number| format!("{video}#{number}")));
    let frames = written(&dir.path("masks"));
    assert!(frames[0].0.ends_with(" name-000001.png"), "{}", frames[0].0);
    let bytes =
        |masks: &[(String, Vec<u8>)]| masks.iter().map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>();
    // Images are sorted by name, 10 before 8.
    let by_number = [&whole[1], &whole[2], &whole[0]].map(|(_, bytes)| bytes.clone());
    assert_eq!(bytes(&frames), by_number);
    assert!(!dir.path("pwned").exists());
    let passed = fs::read_to_string(&message).unwrap();
    assert!(passed.lines().any(|argument| argument == format!("file:{video}")), "{passed}");

    // Some frames, together with images.
    let some =
        ["--every", "2", "--frames", "1", "--out", "some", "--overlay", "run", "set/val/8.png", "--", video];
    infer_with(&dir, &path, &some).expect(0);
    let names: Vec<String> = written(&dir.path("some")).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 4);
    assert!(names.iter().all(|name| name.starts_with('8') || name.contains("-000001.")), "{names:?}");
    let every: Vec<String> = {
        infer_with(&dir, &path, &["--every", "2", "--out", "every", "run", "--", video]).expect(0);
        written(&dir.path("every")).into_iter().map(|(name, _)| name).collect()
    };
    assert!(every.len() == 2 && every[1].ends_with("-000003.png"), "{every:?}");
}

#[test]
fn unreadable_video_reports_the_cause() {
    let dir = trained();
    fs::write(dir.path("film.mp4"), "video").unwrap();
    let path = format!("{}:/usr/bin:/bin", dir.path("bin").display());
    let error_of = |path: &str, video: &str, words: &[&str]| {
        let ran = infer_with(&dir, path, &["--out", "masks", "run", video]).expect(1);
        assert!(words.iter().all(|words| ran.err.contains(words)), "{}", ran.err);
    };
    let empty = dir.path("empty").display().to_string();
    error_of(&empty, "film.mp4", &["film.mp4: ", "ffmpeg not found", "apt install ffmpeg"]);
    error_of(&path, "none.mp4", &["none.mp4: cannot open"]);
    script(&dir, "bin", "ffmpeg", "echo 'moov atom not found' >&2; exit 1");
    error_of(&path, "film.mp4", &["ffmpeg failed (exit status: 1)", "moov atom not found"]);
    script(&dir, "bin", "ffmpeg", "exit 0");
    error_of(&path, "film.mp4", &["ffmpeg found no frames"]);
    let frames = stream();
    fs::write(dir.path("cut"), &frames[..frames.len() - 1]).unwrap();
    script(&dir, "bin", "ffmpeg", &format!("cat '{}'", dir.path("cut").display()));
    error_of(&path, "film.mp4", &["truncated pixels"]);
    script(&dir, "bin", "ffmpeg", "yes not a frame");
    error_of(&path, "film.mp4", &["must start with P6"]);
    let ran = dir.run(&["infer", "run", "film.mp4", "other/film.mkv", "--out", "masks"]).expect(2);
    assert!(ran.err.contains("would have the same names"), "{}", ran.err);
}

/// Frames before the damage and other named images have masks.
#[test]
fn truncated_video_keeps_other_results() {
    let dir = trained();
    let whole = masks(&dir, "whole", &["run", "set/val"]);
    let path = format!("{}:/usr/bin:/bin", dir.path("bin").display());
    fs::write(dir.path("film.mp4"), "video").unwrap();
    let frames = stream();
    fs::write(dir.path("cut"), &frames[..frames.len() - 1]).unwrap();
    script(&dir, "bin", "ffmpeg", &format!("cat '{}'", dir.path("cut").display()));
    for batch in ["1", "2", "8"] {
        let out = format!("of{batch}");
        let all = ["run", "film.mp4", "set/val", "--out", &out, "--raw", "--json", "--batch", batch];
        let ran = infer_with(&dir, &path, &all).expect(1);
        let report = json(&ran);
        let count = |key: &str| report[key].as_array().unwrap().len();
        assert_eq!((count("images"), count("errors")), (VALIDATION + 2, 1));
        assert_eq!(report["errors"][0]["path"], "film.mp4");
        assert!(report["errors"][0]["error"].as_str().unwrap().starts_with("invalid PPM from ffmpeg"));
        assert!(ran.err.contains("no prediction for 1 of 6 images"), "{}", ran.err);
        let named: Vec<String> = written(&dir.path(&out)).into_iter().map(|(name, _)| name).collect();
        assert_eq!(named, ["10.png", "8.png", "9.png", "film-000001.png", "film-000002.png"]);
        assert_eq!(written(&dir.path(&out))[..VALIDATION], whole);
    }
}

/// With ffmpeg, if it is installed: a lossless video has the masks of its images.
#[test]
fn real_video_masks_match_its_frames() {
    if Command::new("ffmpeg").arg("-version").output().is_err() {
        eprintln!("SKIPPED: ffmpeg is not installed");
        return;
    }
    let dir = trained();
    let whole = masks(&dir, "whole", &["run", "set/val"]);
    for (number, image) in (TRAIN..TRAIN + VALIDATION).enumerate() {
        let from = dir.path(&format!("set/val/{image}.png"));
        fs::copy(from, dir.path(&format!("frame-{number}.png"))).unwrap();
    }
    // FFV1 in RGB is lossless.
    let make =
        ["-loglevel", "error", "-framerate", "5", "-i", "frame-%d.png", "-c:v", "ffv1", "-pix_fmt", "bgr0"];
    let made = Command::new("ffmpeg").args(make).arg("film.mkv").current_dir(dir.folder.path()).status();
    assert!(made.unwrap().success());
    let frames = masks(&dir, "masks", &["run", "film.mkv"]);
    let names: Vec<&str> = frames.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["film-000001.png", "film-000002.png", "film-000003.png"]);
    for ((_, frame), (_, image)) in frames.iter().zip([&whole[1], &whole[2], &whole[0]]) {
        assert_eq!(frame, image);
    }
}
