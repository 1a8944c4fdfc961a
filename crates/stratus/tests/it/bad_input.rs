//! What is refused before the first iteration: the message, the exit code, and that nothing is left behind.
//!
//! Where a disk fills up while a run is written is tested in `kill.rs`; shapes that fit no layer, which no
//! data set of today leads to, where networks are built; labels and images of different number, which the
//! checksums find first, in `stratus-data`.

#![cfg(unix)]

use crate::common::{Place, root};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const IMAGES: &str = "train-images-idx3-ubyte.gz";
const LABELS: &str = "train-labels-idx1-ubyte.gz";

fn published(name: &str) -> PathBuf {
    root().join("data/mnist").join(name)
}

/// A copy of the data set, in which one file is something else.
fn data_with(place: &Place, name: &str, content: Option<&[u8]>) {
    let folder = place.path("data");
    fs::create_dir(&folder).unwrap();
    for entry in fs::read_dir(root().join("data/mnist")).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        if file.ends_with(".gz") && file.trim_end_matches(".gz") != name.trim_end_matches(".gz") {
            symlink(&path, folder.join(file)).unwrap();
        }
    }
    if let Some(content) = content {
        fs::write(folder.join(name), content).unwrap();
    }
}

/// Runs a command that is refused, and shows it as its user sees it. Nothing new may be left in its folder.
fn refused(place: &Place, code: i32, arguments: &[&str]) -> String {
    let before = files(place.folder.path());
    let ran = place.run(arguments).expect(code);
    assert_eq!(ran.out, "");
    assert_eq!(files(place.folder.path()), before, "{arguments:?} leaves something behind");
    let shown = format!("$ stratus {}\n{}exit code {code}\n", arguments.join(" "), ran.err);
    shown
        .replace(&place.folder.path().display().to_string(), "[FOLDER]")
        .replace(&root().display().to_string(), "[ROOT]")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // What was measured is kept, whatever comes of the run.
        if path.ends_with("cache") {
            continue;
        }
        if path.is_dir() && !path.is_symlink() {
            found.extend(files(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

/// A training that needs no kernels to be measured.
const TRAIN: &[&str] = &["train", "digits", "--set", "train.device=reference"];

fn refused_training(place: &Place, code: i32, more: &[&str]) -> String {
    refused(place, code, &[TRAIN, more].concat())
}

/// The same with the repository's data, by a path that stands in no message.
fn refused_with_data(code: i32, more: &[&str]) -> String {
    let place = Place::bare();
    symlink(root().join("data"), place.path("data")).unwrap();
    refused_training(&place, code, more)
}

#[test]
fn data_sets() {
    let mut shown = Vec::new();
    let mut with = |name: &str, content: Option<&[u8]>| {
        let place = Place::bare();
        data_with(&place, name, content);
        shown.push(refused_training(&place, 1, &["--set", "data.path=data"]));
    };
    with(LABELS, None);
    let (images, labels) = (fs::read(published(IMAGES)).unwrap(), fs::read(published(LABELS)).unwrap());
    with(IMAGES, Some(&images[..images.len() / 2]));
    with(LABELS, Some(&labels[..5]));
    with(LABELS, Some(b""));
    let mut corrupt = labels.clone();
    let middle = corrupt.len() / 2;
    corrupt[middle..middle + 64].fill(0xff);
    with(LABELS, Some(&corrupt));
    // One label more than is there, one less than there are images, labels of other images, images for
    // labels.
    let mut plain = vec![0, 0, 8, 1, 0, 0, 0xea, 0x61];
    plain.resize(8 + 60_000, 3);
    with("train-labels-idx1-ubyte", Some(&plain));
    plain[7] = 0x5f;
    plain.truncate(8 + 59_999);
    with("train-labels-idx1-ubyte", Some(&plain));
    with(LABELS, Some(&fs::read(published("t10k-labels-idx1-ubyte.gz")).unwrap()));
    with(LABELS, Some(&fs::read(published("t10k-images-idx3-ubyte.gz")).unwrap()));
    with(IMAGES, Some(b"<html>not found</html>"));
    let place = Place::bare();
    shown.push(refused_training(&place, 1, &["--set", "data.path=nowhere"]));
    shown.push(refused_training(&place, 1, &["--set", "data.path=nowhere", "--set", "data.name=folder"]));
    // A list that is missing is not the folder.
    fs::create_dir_all(place.path("folder/train/a")).unwrap();
    let list = ["--set", "data.path=folder", "--set", "data.name=folder", "--set", "data.classes=nowhere"];
    shown.push(refused_training(&place, 1, &list));
    fs::write(place.path("file"), "").unwrap();
    shown.push(refused_training(&place, 1, &["--set", "data.path=file"]));
    shown.push(refused_training(&place, 2, &["--set", "data.name=mnits"]));
    insta::assert_snapshot!(shown.join("\n"));
}

/// A limit on addresses stands for a full memory. The plan says how much it takes, before there is an
/// iteration.
#[test]
fn memory_that_cannot_be_had() {
    let place = Place::bare();
    let settings = [
        "train.device=reference",
        "data.name=synthetic",
        "data.synthetic.images=64",
        "data.synthetic.validation_images=1",
        "train.batch_size=64",
    ];
    let settings = settings.map(|setting| ["--set", setting]);
    let arguments = [&["train", "vgg11", "--out", "run"], settings.as_flattened()].concat();
    let program = place.command(&arguments);
    let mut shell = Command::new("sh");
    // KiB, of which the threads' stacks and the program itself have a part.
    shell
        .args(["-c", "ulimit -v 2000000; exec \"$@\"", "sh"])
        .arg(program.get_program())
        .args(program.get_args());
    let ran = crate::common::Ran::of(shell.current_dir(place.folder.path()).output().unwrap()).expect(1);
    let said = ran.err.lines().find(|line| line.starts_with("error:")).unwrap_or_default();
    assert!(said.starts_with("error: there is no memory for the plan's arena: it takes "), "{}", ran.err);
    assert!(said.ends_with(" MiB"), "{}", ran.err);
    assert!(
        ran.err.contains("\nhint: have activations recomputed with --memory-limit SIZE, "),
        "{}",
        ran.err
    );
}

/// Where oneDNN computes: found before the first iteration, and before there is a run.
#[test]
fn a_number_format_that_a_device_has_not() {
    let place = Place::bare();
    symlink(root().join("data"), place.path("data")).unwrap();
    let settings = ["--set", "train.device=onednn", "--set", "train.precision=f16"];
    let shown = ["train", "plan"].map(|command| {
        let arguments = [&[command, "digits"], settings.as_slice()].concat();
        refused(&place, 2, &arguments)
    });
    // Not every processor has bf16.
    insta::assert_snapshot!(shown.join("\n").replace("f32, bf16 on", "f32 on"));
}

#[test]
fn configurations() {
    let place = Place::bare();
    let mut shown = Vec::new();
    let files: &[(&str, &str)] = &[
        ("misspelt.toml", "[model]\nname = \"digits\"\n\n[train]\nepochs = 3\nbatchsize = 64\n"),
        ("section.toml", "[model]\nname = \"digits\"\n\n[optimizer]\nlearning_rate = 0.1\n"),
        ("type.toml", "[model]\nname = \"digits\"\n\n[train]\nepochs = \"three\"\n"),
        ("range.toml", "[model]\nname = \"digits\"\n\n[optimiser]\nmomentum = 1.0\n"),
        ("network.toml", "[model]\nname = \"digts\"\n"),
        ("syntax.toml", "[model]\nname = digits\n"),
        ("unnamed.toml", "[train]\nepochs = 3\n"),
    ];
    symlink(root().join("data"), place.path("data")).unwrap();
    for (name, content) in files {
        fs::write(place.path(name), content).unwrap();
        shown.push(refused(&place, 2, &["train", name]));
    }
    for settings in [
        "train.epoch=3",
        "train.epochs=three",
        "train.epochs=0",
        "train.batch_size=0",
        "train.batch_size=-1",
        "train.device=tpu",
        "lr=0.1",
        "optimizer.lr=0.1",
        "num_workers=4",
        "train.precision=fp16",
        "optimiser.learning_rate=nan",
        "model.name=digts",
        "=3",
    ] {
        shown.push(refused(&place, 2, &["train", "digits", "--set", settings]));
    }
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn settings_that_do_not_fit_the_data() {
    let cases: &[&[&str]] = &[
        &["--set", "train.batch_size=60001"],
        &["--set", "model.classes=9"],
        &["--set", "data.augment.shift=28"],
        &["--set", "data.augment.shift=14", "--set", "data.augment.padding=reflect"],
        &["--set", "validation.shift=28"],
        &["--set", "data.mean=[0.1, 0.2]", "--set", "data.std=[0.3, 0.3]"],
        &["--set", "data.mean=[0.1, 0.2]"],
        &["--set", "schedule.name=cosine", "--set", "schedule.warmup_epochs=50"],
    ];
    let shown: Vec<String> = cases.iter().map(|more| refused_with_data(2, more)).collect();
    insta::assert_snapshot!(shown.join("\n"));
}

/// Permissions do not bind everybody; a file where a folder should be stops anyone.
#[test]
fn places_that_cannot_be_written_to() {
    let place = Place::bare();
    symlink(root().join("data"), place.path("data")).unwrap();
    fs::write(place.path("file"), "").unwrap();
    fs::create_dir(place.path("full")).unwrap();
    fs::write(place.path("full/notes.txt"), "mine").unwrap();
    let mut shown = Vec::new();
    for (code, out) in [(1, "file"), (1, "file/run"), (2, "full")] {
        let ran = place.run(&[TRAIN, &["-q", "--out", out]].concat()).expect(code);
        shown.push(format!("--out {out}\n{}exit code {code}\n", ran.err));
    }
    assert_eq!(fs::read(place.path("full/notes.txt")).unwrap(), b"mine");
    fs::write(place.path("runs"), "").unwrap();
    let ran = place.run(&[TRAIN, &["-q"]].concat()).expect(1);
    shown.push(format!("runs is a file\n{}exit code 1\n", ran.err));
    assert!(!place.path("runs").is_dir());
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn directories_that_are_no_runs() {
    let place = Place::bare();
    fs::create_dir(place.path("empty")).unwrap();
    fs::write(place.path("file"), "").unwrap();
    // Killed before its first checkpoint.
    fs::create_dir(place.path("young")).unwrap();
    let shown = place.run(&["config", "show", "digits"]).expect(0);
    fs::write(place.path("young/experiment.toml"), shown.out).unwrap();
    // Of another version, or of another hand.
    fs::create_dir(place.path("strange")).unwrap();
    fs::write(place.path("strange/experiment.toml"), "[model]\nname = \"digits\"\ndepth = 3\n").unwrap();
    let cases: &[(i32, &[&str])] = &[
        (2, &["eval", "empty"]),
        (2, &["eval", "absent"]),
        (2, &["eval", "file"]),
        (1, &["eval", "young"]),
        (1, &["eval", "young", "--checkpoint", "7"]),
        (2, &["eval", "strange"]),
        (2, &["collect", "empty"]),
        (2, &["collect", "file", "--layers"]),
        (1, &["collect", "young"]),
        (2, &["train", "empty"]),
        (2, &["train", "absent/1"]),
        (2, &["plan", "empty"]),
    ];
    let shown: Vec<String> =
        cases.iter().map(|(code, arguments)| refused(&place, *code, arguments)).collect();
    insta::assert_snapshot!(shown.join("\n"));
}

/// A library that is none: what asks for it by name fails, what takes what there is says so and goes on.
#[test]
fn a_library_that_is_none() {
    let place = Place::bare();
    symlink(root().join("data"), place.path("data")).unwrap();
    fs::write(place.path("libdnnl.so.3"), "no library").unwrap();
    let command = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.env("STRATUS_ONEDNN", place.path("libdnnl.so.3"));
        command
    };
    let settings = ["--set", "train.batch_size=16"];
    let named = ["train", "digits", "--set", "train.device=onednn"];
    let ran = crate::common::Ran::of(command(&named).output().unwrap()).expect(2);
    let why = format!("no usable oneDNN 3.x was found; looked at {}", place.path("libdnnl.so.3").display());
    assert!(ran.err.starts_with(&format!("error: train.device = \"onednn\": {why}")), "{}", ran.err);
    assert!(
        ran.err.contains(
            "\nhint: run `make deps`, or use the device that is there with --set train.device=auto\n"
        ),
        "{}",
        ran.err
    );
    assert!(!place.path("runs").exists());

    let arguments = [&["train", "digits", "--out", "run"], settings.as_slice()].concat();
    let said = place.path("said");
    let mut child =
        command(&arguments).stdout(Stdio::null()).stderr(fs::File::create(&said).unwrap()).spawn().unwrap();
    // It stops after the iteration at hand.
    while !place.path("run/summary.json").exists() {
        let said = || fs::read_to_string(&said).unwrap();
        assert!(child.try_wait().unwrap().is_none(), "{}", said());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status().unwrap();
    let status = child.wait().unwrap();
    let said = fs::read_to_string(&said).unwrap();
    assert_eq!(status.code(), Some(75), "{said}");
    assert!(said.starts_with(&format!("warning: {why}")), "{said}");
    assert!(said.contains("Training runs on the reference backend"), "{said}");
    assert_eq!(crate::common::summary(&place.path("run"))["device"], "reference");
}
