//! Names of images on standard input, answered with classes.

use super::{Streaming, classifier};
use crate::common::TestDir;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

/// The classes of an image by the same command without a stream.
fn expected(dir: &TestDir, image: &str) -> Value {
    let ran = dir.run(&["infer", "run", image, "--json", "--batch", "1"]).expect(0);
    serde_json::from_str::<Value>(&ran.out).unwrap()["images"][0]["top"].clone()
}

/// Everything in between must not delay or change the answer of an image.
#[test]
fn every_name_is_answered_before_the_next_is_written() {
    let dir = classifier();
    fs::write(dir.path("damaged.png"), "no image").unwrap();
    fs::create_dir(dir.path("folder")).unwrap();
    let expected: Vec<Value> = (0..3).map(|image| expected(&dir, &format!("{image}.png"))).collect();
    for batch in ["1", "4"] {
        let mut stream = Streaming::start(&dir, &["run", "-", "--json", "--batch", batch]);
        for (image, expected) in expected.iter().enumerate() {
            let name = format!("{image}.png");
            let answer = stream.ask_json(&name);
            assert_eq!((&answer["path"], &answer["top"]), (&name.into(), expected));
            assert!(answer["ms"].as_f64().unwrap() > 0.0 && answer.get("error").is_none(), "{answer}");
            for (name, words) in [
                ("none.png", "No such file"),
                ("damaged.png", "not a JPEG"),
                ("folder", "is a folder"),
                ("", "the line is empty"),
                ("/dev/zero", "not a file"),
            ] {
                let answer = stream.ask_json(name);
                assert_eq!(answer["path"], name);
                assert!(answer["error"].as_str().unwrap().contains(words), "{answer}");
                assert!(answer.get("top").is_none(), "{answer}");
            }
        }
        let ended = stream.end().expect(1);
        assert!(ended.answers.is_empty(), "{:?}", ended.answers);
        let err = ended.words();
        assert!(err.contains("no prediction for 15 of 18 images"), "{err}");
        assert!(err.contains("images 3 without answer 15 per image median") && err.contains("p99"), "{err}");
        assert!(!err.contains("warning"), "{err}");
    }
}

#[test]
fn columns_are_separated_by_tabs() {
    let dir = classifier();
    let mut stream = Streaming::start(&dir, &["run", "-", "--top", "2"]);
    let line = stream.ask("7.png");
    let columns: Vec<&str> = line.split('\t').collect();
    let expected = expected(&dir, "7.png");
    assert_eq!(columns.len(), 6, "{line}");
    assert_eq!((columns[0], columns[2]), ("7.png", expected[0]["name"].as_str().unwrap()));
    assert!(columns[1].parse::<f64>().unwrap() > 0.0, "{line}");
    let probability: f64 = columns[5].parse().unwrap();
    assert!((probability - expected[1]["probability"].as_f64().unwrap()).abs() < 1e-6, "{line}");
    let line = stream.ask("none.png");
    let columns: Vec<&str> = line.split('\t').collect();
    assert_eq!((columns.len(), columns[0], columns[1]), (3, "none.png", "error"), "{line}");
    assert!(stream.end().expect(1).words().contains("without answer 1"));
    // A last line without its end, and lines that end in CR LF.
    let mut stream = Streaming::start(&dir, &["run", "-", "--quiet"]);
    stream.write(b"1.png\r\n2.png");
    let ended = stream.end().expect(0);
    assert_eq!(ended.err, "");
    let names: Vec<&str> = ended.answers.iter().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(names, ["1.png", "2.png"]);
}

/// Names that are waiting run together; answers keep their order.
#[test]
fn waiting_names_are_answered_in_order() {
    let dir = classifier();
    let expected: Vec<Value> = (0..10).map(|image| expected(&dir, &format!("{image}.png"))).collect();
    for batch in ["1", "3", "64"] {
        let mut stream = Streaming::start(&dir, &["run", "-", "--json", "--batch", batch]);
        let images = (0..200).map(|at| at * 7 % 11);
        let name = |image: usize| if image == 10 { "none.png".to_owned() } else { format!("{image}.png") };
        let names: String = images.clone().map(|image| name(image) + "\n").collect();
        stream.write(names.as_bytes());
        for image in images {
            let answer: Value = serde_json::from_str(&stream.answer()).unwrap();
            assert_eq!(answer["path"], name(image));
            match image {
                10 => assert!(answer["error"].is_string(), "{answer}"),
                _ => assert_eq!(answer["top"], expected[image], "batch {batch}"),
            }
        }
        assert!(stream.end().expect(1).answers.is_empty());
    }
}

#[test]
fn hostile_names_break_neither_lines_nor_the_terminal() {
    let dir = classifier();
    let control = "a\tb\u{1b}[2J\u{9b}31m\r \u{202e}\"\\<script>.png";
    let names = [
        control.as_bytes().to_vec(),
        b"\xff\xfe.png".to_vec(),
        b" spaces .png ".to_vec(),
        b"-".to_vec(),
        b"--help".to_vec(),
        b"a\0b.png".to_vec(),
        vec![b'x'; 10_000],
        vec![b'/'; 10_000],
        [&vec![b'y'; 100_000][..], b".png"].concat(),
        b"../../../../../../../../etc/passwd".to_vec(),
        b"1.png".to_vec(),
    ];
    let with_file = [0, 1, 2, 3, 4];
    for &at in &with_file {
        fs::copy(dir.path("1.png"), dir.folder.path().join(OsStr::from_bytes(&names[at]))).unwrap();
    }
    for (format, is_json) in [(&[][..], false), (&["--json"], true)] {
        let mut stream = Streaming::start(&dir, &[&["run", "-"], format].concat());
        for (at, name) in names.iter().enumerate() {
            stream.write(&[&name[..], b"\n"].concat());
            let line = stream.answer();
            let has_prediction = with_file.contains(&at) || name == b"1.png";
            assert!(line.chars().all(|c| !c.is_control() || c == '\t'), "{line:?}");
            assert!(!line.contains('\u{202e}') && line.len() < 100_000, "{line:?}");
            if is_json {
                let answer: Value = serde_json::from_str(&line).unwrap();
                assert_eq!(answer.get("top").is_some(), has_prediction, "{line}");
                if let (Ok(name), true) = (std::str::from_utf8(name), name.len() < 32_768) {
                    assert_eq!(answer["path"], name);
                }
            } else {
                let is_error = line.split('\t').nth(1) == Some("error");
                assert_eq!(is_error, !has_prediction, "{line}");
            }
        }
        let ended = stream.end().expect(1);
        assert!(ended.answers.is_empty() && !ended.err.contains('\u{1b}'), "{}", ended.err);
    }
}

/// The memory after many answers is that after a few.
#[test]
fn memory_does_not_grow_with_answers() {
    let dir = classifier();
    let mut stream = Streaming::start(&dir, &["run", "-", "--batch", "16"]);
    let status = format!("/proc/{}/status", stream.child.id());
    let resident_kib = || -> u64 {
        let status = fs::read_to_string(&status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.unwrap().trim().strip_suffix(" kB").unwrap().parse().unwrap()
    };
    // Names of 20,000 bytes: their answers would take 60 MB.
    let long = "x".repeat(20_000);
    let mut first = 0;
    for round in 0..30 {
        for _ in 0..100 {
            assert!(stream.ask(&long).contains("\terror\t"));
        }
        stream.ask("1.png");
        if round == 2 {
            first = resident_kib();
        }
    }
    let grown = resident_kib().saturating_sub(first);
    assert!(grown < 20_000, "{grown} KiB");
    stream.end().expect(1);
}

#[test]
fn closed_output_ends_quietly() {
    let dir = classifier();
    let command = dir.command(&["infer", "run", "-"]);
    let program = command.get_program().to_str().unwrap().to_owned();
    let mut shell = Command::new("sh");
    // `head` closes the pipe after the first line.
    shell.arg("-c").arg("{ \"$0\" infer run -; echo \"status $?\" >&2; } | head -n 1").arg(program);
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut stream = Streaming::spawn({
        shell.current_dir(dir.folder.path());
        shell
    });
    assert!(stream.ask("1.png").starts_with("1.png\t"));
    // The program notices with one of its next answers.
    let mut input = stream.input.take().unwrap();
    let writer = std::thread::spawn(move || while input.write_all(b"2.png\n").is_ok() {});
    let ended = stream.wait().expect(0);
    writer.join().unwrap();
    assert!(ended.err.contains("status 0") && !ended.err.contains("error"), "{}", ended.err);
    assert!(ended.answers.is_empty(), "{:?}", ended.answers);
}

#[test]
fn interrupt_ends_with_the_summary() {
    let dir = classifier();
    for signal in ["-INT", "-TERM"] {
        let mut stream = Streaming::start(&dir, &["run", "-"]);
        stream.ask("1.png");
        let id = stream.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        // The input is still open.
        let input = stream.input.take();
        let ended = stream.wait().expect(75);
        drop(input);
        let err = ended.words();
        assert!(err.contains("images 1") && err.contains("interrupted"), "{err}");
        assert!(ended.answers.is_empty());
    }
}

#[test]
fn impossible_arguments_are_refused_with_the_reason() {
    let dir = classifier();
    for (arguments, words) in [
        (&["-", "--sheet", "sheet.png"][..], "--sheet cannot be used with `-`"),
        (&["-", "--csv", "a.csv"], "--csv cannot be used with `-`"),
        (&["-", "1.png"], "`-` cannot be combined with other paths"),
        (&["-", "-"], "`-` cannot be combined with other paths"),
        (&["1.png", "--video"], "--video is for a video on standard input"),
        (&["-", "--out", "masks"], "--out has no effect"),
    ] {
        let ran = dir.run(&[&["infer", "run"], arguments].concat()).expect(2);
        assert!(ran.err.contains(words) && ran.out.is_empty(), "{}", ran.err);
    }
    for file in ["sheet.png", "a.csv", "masks"] {
        assert!(!dir.path(file).exists(), "{file}");
    }
    // Standard input is empty.
    let ran = dir.run(&["infer", "run", "-"]).expect(2);
    assert!(ran.err.contains("no images on standard input"), "{}", ran.err);
}
