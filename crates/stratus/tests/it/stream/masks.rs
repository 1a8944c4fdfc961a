//! Masks of a stream, and videos in it.

use super::{Streaming, TIMEOUT};
use crate::common::TestDir;
use crate::common::streets::{HEIGHT, TRAIN, VALIDATION, WIDTH, pixels, train, write_streets};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A folder with street scenes, and a segmentation network trained on them in `run`.
fn segmenter() -> TestDir {
    let dir = TestDir::without_kernel_cache();
    write_streets(&dir);
    train(&dir, "run", "fcn_resnet18", &["train.epochs=2", "train.device=reference"]).expect(0);
    dir
}

/// The masks of the validation images 8, 9 and 10, as the command writes them without a stream.
fn expected_masks(dir: &TestDir) -> Vec<Vec<u8>> {
    dir.run(&["infer", "run", "set/val", "--out", "expected", "--raw"]).expect(0);
    ["8", "9", "10"].map(|image| fs::read(dir.path(&format!("expected/{image}.png"))).unwrap()).to_vec()
}

/// Installs a program that is used in place of ffmpeg; returns the search path.
fn fake_ffmpeg(dir: &TestDir, text: &str) -> String {
    let path = dir.path("bin/ffmpeg");
    fs::create_dir_all(dir.path("bin")).unwrap();
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:/usr/bin:/bin", dir.path("bin").display())
}

fn start(dir: &TestDir, path: &str, arguments: &[&str]) -> Streaming {
    let mut command = dir.command(&[&["infer"], arguments].concat());
    command.env("PATH", path);
    Streaming::spawn(command)
}

/// A validation image as a frame of ffmpeg.
fn frame(number: usize) -> Vec<u8> {
    [format!("P6\n{WIDTH} {HEIGHT}\n255\n").into_bytes(), pixels(TRAIN + number)].concat()
}

fn error(answer: &Value) -> &str {
    answer["error"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn masks_replace_nothing_of_the_user() {
    let dir = segmenter();
    let expected = expected_masks(&dir);
    fs::create_dir_all(dir.path("other")).unwrap();
    fs::create_dir_all(dir.path("masks")).unwrap();
    fs::write(dir.path("masks/mine.png"), "mine").unwrap();
    for name in ["other/8.png", "mine.png", "masks/input.png"] {
        fs::copy(dir.path("set/val/9.png"), dir.path(name)).unwrap();
    }
    fs::write(dir.path("later.png"), "half").unwrap();
    for overwrite in [false, true] {
        let more = if overwrite { &["--overwrite"][..] } else { &[] };
        let arguments = ["run", "-", "--json", "--out", "masks", "--raw", "--overlay"];
        let mut stream = Streaming::start(&dir, &[&arguments, more].concat());
        let answer = stream.ask_json("set/val/8.png");
        assert_eq!(answer["mask"], "masks/8.png", "{answer}");
        assert_eq!(fs::read(dir.path("masks/8.png")).unwrap(), expected[0]);
        assert!(dir.path("masks/8.overlay.png").exists());
        for name in ["other/8.png", "set/val/8.png"] {
            assert!(error(&stream.ask_json(name)).contains("that of an earlier image"));
        }
        assert!(error(&stream.ask_json("masks/input.png")).contains("which is an input"));
        let answer = stream.ask_json("mine.png");
        if overwrite {
            assert_eq!(answer["mask"], "masks/mine.png", "{answer}");
        } else {
            assert!(error(&answer).contains("masks/mine.png exists"), "{answer}");
            assert_eq!(fs::read(dir.path("masks/mine.png")).unwrap(), b"mine");
        }
        // A file that was incomplete can be sent again.
        fs::write(dir.path("later.png"), "half").unwrap();
        assert!(error(&stream.ask_json("later.png")).contains("not a JPEG"));
        fs::copy(dir.path("set/val/10.png"), dir.path("later.png")).unwrap();
        assert_eq!(stream.ask_json("later.png")["mask"], "masks/later.png");
        assert_eq!(fs::read(dir.path("masks/8.png")).unwrap(), expected[0]);
        stream.end().expect(1);
        assert_eq!(
            fs::read(dir.path("masks/input.png")).unwrap(),
            fs::read(dir.path("set/val/9.png")).unwrap()
        );
    }
    // A mask that cannot be written is an error of its image; without `--out` there is none.
    fs::create_dir(dir.path("masks/9.png")).unwrap();
    let mut stream = Streaming::start(&dir, &["run", "-", "--json", "--out", "masks", "--overwrite"]);
    assert!(error(&stream.ask_json("set/val/9.png")).contains("is a folder"));
    assert_eq!(stream.ask_json("set/val/10.png")["mask"], "masks/10.png");
    stream.end().expect(1);
    let mut stream = Streaming::start(&dir, &["run", "-"]);
    assert_eq!(stream.ask("set/val/9.png").split('\t').count(), 2);
    stream.end().expect(0);
}

#[test]
fn windows_answer_images_of_any_size() {
    let dir = segmenter();
    let expected = expected_masks(&dir);
    let more = ["--out", "masks", "--raw", "--window", "24x32", "--json"];
    let mut stream = Streaming::start(&dir, &[&["run", "-"], &more[..]].concat());
    for (image, expected) in ["8", "9", "10"].iter().zip(expected) {
        let answer = stream.ask_json(&format!("set/val/{image}.png"));
        assert_eq!(fs::read(dir.path(answer["mask"].as_str().unwrap())).unwrap(), expected);
    }
    crate::common::streets::write_sized(&dir.path("small.png"), png::ColorType::Rgb, &[9; 300], [10, 10]);
    let answer = stream.ask_json("small.png");
    assert!(error(&answer).contains("has 10x10 pixels, fewer than a window of 24x32"), "{answer}");
    stream.end().expect(1);
}

/// The last line of a video's answer has its own path.
#[test]
fn videos_among_names_have_a_line_for_each_frame() {
    let dir = segmenter();
    let expected = expected_masks(&dir);
    let frames: Vec<u8> = (0..VALIDATION).flat_map(frame).collect();
    fs::write(dir.path("frames"), &frames).unwrap();
    fs::write(dir.path("cut"), &frames[..frames.len() - 1]).unwrap();
    for name in ["film.mp4", "cut.mkv", "other.mp4"] {
        fs::write(dir.path(name), "video").unwrap();
    }
    let script = format!(
        "case \"$*\" in *cut.mkv*) cat '{}';; *) cat '{}';; esac",
        dir.path("cut").display(),
        dir.path("frames").display()
    );
    let path = fake_ffmpeg(&dir, &script);
    for batch in ["1", "2", "8"] {
        let out = format!("of{batch}");
        let all = ["run", "-", "--json", "--out", &out, "--raw", "--batch", batch];
        let mut stream = start(&dir, &path, &all);
        stream.write(b"set/val/8.png\nfilm.mp4\ncut.mkv\nfilm.mp4\nnone.mp4\nset/val/9.png\n");
        let answers: Vec<Value> = (0..11).map(|_| serde_json::from_str(&stream.answer()).unwrap()).collect();
        let names: Vec<&str> = answers.iter().map(|answer| answer["path"].as_str().unwrap()).collect();
        let order = [
            "set/val/8.png",
            "film.mp4#1",
            "film.mp4#2",
            "film.mp4#3",
            "film.mp4",
            "cut.mkv#1",
            "cut.mkv#2",
            "cut.mkv",
            "film.mp4",
            "none.mp4",
            "set/val/9.png",
        ];
        assert_eq!(names, order);
        assert_eq!(answers[4]["frames"], 3);
        assert!(error(&answers[7]).starts_with("invalid PPM from ffmpeg: truncated"), "{}", answers[7]);
        assert!(error(&answers[8]).contains("those of an earlier video"), "{}", answers[8]);
        assert!(error(&answers[9]).contains("cannot open"), "{}", answers[9]);
        for (number, expected) in (1..).zip(&expected) {
            let mask = dir.path(&format!("{out}/film-{number:06}.png"));
            assert_eq!(&fs::read(mask).unwrap(), expected);
        }
        let ended = stream.end().expect(1);
        assert!(ended.err.contains("no prediction for 3 of 10 images"), "{}", ended.err);
    }
    let mut stream = start(&dir, &path, &["run", "-", "--every", "2", "--frames", "1"]);
    assert!(stream.ask("film.mp4").starts_with("film.mp4#1\t"));
    assert_eq!(stream.answer(), "film.mp4\tframes\t1");
    assert!(stream.ask("other.mp4").starts_with("other.mp4#1\t"));
    assert_eq!(stream.end().expect(0).answers, ["other.mp4\tframes\t1"]);
}

/// A program writes the frames, which ffmpeg only passes on here.
#[test]
fn frames_on_standard_input_are_answered_as_they_arrive() {
    let dir = segmenter();
    let expected = expected_masks(&dir);
    let arguments = dir.path("arguments");
    let path = fake_ffmpeg(&dir, &format!("printf '%s\\n' \"$@\" > '{}'; exec cat", arguments.display()));
    for batch in ["1", "4"] {
        let out = format!("of{batch}");
        let all = ["run", "--video", "-", "--json", "--out", &out, "--raw", "--batch", batch];
        let mut stream = start(&dir, &path, &all);
        for number in 1..=VALIDATION {
            stream.write(&frame(number - 1));
            let answer: Value = serde_json::from_str(&stream.answer()).unwrap();
            assert_eq!(answer["path"], format!("stdin#{number}"));
            assert_eq!(answer["mask"], format!("{out}/stdin-{number:06}.png"));
            let mask = fs::read(dir.path(answer["mask"].as_str().unwrap())).unwrap();
            assert_eq!(mask, expected[number - 1]);
        }
        let ended = stream.end().expect(0);
        assert!(ended.answers.is_empty() && ended.words().contains("images 3"), "{}", ended.err);
    }
    let passed = fs::read_to_string(&arguments).unwrap();
    assert!(passed.contains("-protocol_whitelist\npipe\n") && passed.contains("-i\npipe:0\n"), "{passed}");

    // Every second frame, and an end before that of the video.
    let mut stream = start(&dir, &path, &["run", "-", "--video", "--every", "2", "--frames", "2"]);
    stream.write(&frame(0));
    assert!(stream.answer().starts_with("stdin#1\t"));
    stream.write(&[frame(1), frame(2)].concat());
    assert!(stream.answer().starts_with("stdin#3\t"));
    let input = stream.input.take();
    assert!(stream.wait().expect(0).answers.is_empty());
    drop(input);

    // Damage, after whole frames and at once.
    for (bytes, frames, words) in [
        ([&frame(0)[..], b"P6\n9 9\n255\n"].concat(), 1, "truncated pixels"),
        (b"no video".to_vec(), 0, "must start with P6"),
        (Vec::new(), 0, "ffmpeg found no frames"),
    ] {
        let mut stream = start(&dir, &path, &["run", "-", "--video"]);
        stream.write(&bytes);
        let ended = stream.end().expect(1);
        assert_eq!(ended.answers.len(), frames + 1, "{:?}", ended.answers);
        let last = &ended.answers[frames];
        assert!(last.starts_with("stdin\terror\t") && last.contains(words), "{last}");
    }
    let mut stream = start(&dir, "/none", &["run", "-", "--video"]);
    assert!(stream.answer().contains("ffmpeg not found"));
    stream.end().expect(1);
}

/// With no data on standard input, a signal ends both programs.
#[test]
fn interrupt_ends_ffmpeg_too() {
    let dir = segmenter();
    let id_file = dir.path("id");
    let path = fake_ffmpeg(&dir, &format!("echo $$ > '{}'; exec cat", id_file.display()));
    let mut stream = start(&dir, &path, &["run", "-", "--video"]);
    stream.write(&frame(0));
    stream.answer();
    let id = stream.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    let input = stream.input.take();
    let ended = stream.wait().expect(75);
    assert!(ended.answers.is_empty(), "{:?}", ended.answers);
    let decoder = fs::read_to_string(&id_file).unwrap();
    let started = Instant::now();
    while Command::new("kill").args(["-0", decoder.trim()]).stderr(Stdio::null()).status().unwrap().success()
    {
        assert!(started.elapsed() < TIMEOUT, "ffmpeg does not end");
        thread::sleep(Duration::from_millis(5));
    }
    drop(input);
}

/// With ffmpeg, if it is installed: a lossless video through a pipe has the masks of its images, and the
/// first frame is answered before the video ends.
#[test]
fn real_video_on_standard_input_has_the_masks_of_its_frames() {
    if Command::new("ffmpeg").arg("-version").output().is_err() {
        eprintln!("SKIPPED: ffmpeg is not installed");
        return;
    }
    let dir = segmenter();
    let expected = expected_masks(&dir);
    // Images 0 to 2, again and again.
    let frames = 60;
    for number in 0..frames {
        let from = dir.path(&format!("set/val/{}.png", TRAIN + number % VALIDATION));
        fs::copy(from, dir.path(&format!("frame-{number}.png"))).unwrap();
    }
    let make =
        ["-loglevel", "error", "-framerate", "5", "-i", "frame-%d.png", "-c:v", "ffv1", "-pix_fmt", "bgr0"];
    let made = Command::new("ffmpeg").args(make).arg("film.mkv").current_dir(dir.folder.path()).status();
    assert!(made.unwrap().success());
    let video = fs::read(dir.path("film.mkv")).unwrap();
    let all = ["run", "--video", "-", "--json", "--out", "masks", "--raw"];
    let mut stream = Streaming::start(&dir, &all);
    let (first, rest) = video.split_at(video.len() / 2);
    stream.write(first);
    for number in 1..=frames {
        let answer: Value = serde_json::from_str(&stream.answer()).unwrap();
        assert_eq!(answer["path"], format!("stdin#{number}"), "{answer}");
        let mask = fs::read(dir.path(answer["mask"].as_str().unwrap())).unwrap();
        assert_eq!(mask, expected[(number - 1) % VALIDATION], "{number}");
        if number == 1 {
            stream.write(rest);
            stream.input = None;
        }
    }
    assert!(stream.end().expect(0).answers.is_empty());
}
