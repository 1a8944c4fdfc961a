//! Errors before the first iteration: the message, the exit code, and that no files are left.
//!
//! `kill.rs` tests full disks; the tests of networks test shapes that fit no layer, which no data set has;
//! `stratus-data` tests different numbers of labels and images, which checksums find first.

#![cfg(unix)]

use crate::common::{TestDir, root, without_registries};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const IMAGES: &str = "train-images-idx3-ubyte.gz";
const LABELS: &str = "train-labels-idx1-ubyte.gz";

fn published(name: &str) -> PathBuf {
    root().join("data/mnist").join(name)
}

/// Copies the data set with one file replaced or removed.
fn data_with(dir: &TestDir, name: &str, content: Option<&[u8]>) {
    let folder = dir.path("data");
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

/// Runs a command that fails and returns its error. It must not leave files in its folder.
fn error_of(dir: &TestDir, code: i32, arguments: &[&str]) -> String {
    let before = files(dir.folder.path());
    let ran = dir.run(arguments).expect(code);
    assert_eq!(ran.out, "");
    assert_eq!(files(dir.folder.path()), before, "{arguments:?} leaves something behind");
    let err = without_registries(&ran.err);
    let shown = format!("$ stratus {}\n{err}exit code {code}\n", arguments.join(" "));
    shown
        .replace(&dir.folder.path().display().to_string(), "[FOLDER]")
        .replace(&root().display().to_string(), "[ROOT]")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // Timed kernels are kept, even if the run fails.
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

/// Trains without timing kernels.
const TRAIN: &[&str] = &["train", "digits", "--set", "train.device=reference"];

fn training_error(dir: &TestDir, code: i32, more: &[&str]) -> String {
    error_of(dir, code, &[TRAIN, more].concat())
}

/// Trains on the data of the repository, whose path must not appear in messages.
fn refused_with_data(code: i32, more: &[&str]) -> String {
    let dir = TestDir::without_kernel_cache();
    symlink(root().join("data"), dir.path("data")).unwrap();
    training_error(&dir, code, more)
}

#[test]
fn rejects_damaged_and_missing_data_sets() {
    let mut shown = Vec::new();
    let mut with = |name: &str, content: Option<&[u8]>| {
        let dir = TestDir::without_kernel_cache();
        data_with(&dir, name, content);
        shown.push(training_error(&dir, 1, &["--set", "data.path=data"]));
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
    // One label too many in the header, one label too few, labels of other images, images instead of labels.
    let mut plain = vec![0, 0, 8, 1, 0, 0, 0xea, 0x61];
    plain.resize(8 + 60_000, 3);
    with("train-labels-idx1-ubyte", Some(&plain));
    plain[7] = 0x5f;
    plain.truncate(8 + 59_999);
    with("train-labels-idx1-ubyte", Some(&plain));
    with(LABELS, Some(&fs::read(published("t10k-labels-idx1-ubyte.gz")).unwrap()));
    with(LABELS, Some(&fs::read(published("t10k-images-idx3-ubyte.gz")).unwrap()));
    with(IMAGES, Some(b"<html>not found</html>"));
    let dir = TestDir::without_kernel_cache();
    shown.push(training_error(&dir, 1, &["--set", "data.path=nowhere"]));
    shown.push(training_error(&dir, 1, &["--set", "data.path=nowhere", "--set", "data.name=folder"]));
    // A missing list is not a missing folder.
    fs::create_dir_all(dir.path("folder/train/a")).unwrap();
    let list = ["--set", "data.path=folder", "--set", "data.name=folder", "--set", "data.classes=nowhere"];
    shown.push(training_error(&dir, 1, &list));
    fs::write(dir.path("file"), "").unwrap();
    shown.push(training_error(&dir, 1, &["--set", "data.path=file"]));
    shown.push(training_error(&dir, 2, &["--set", "data.name=mnits"]));
    insta::assert_snapshot!(shown.join("\n"));
}

/// A limit of the address space simulates a full memory. The plan states the required memory before the first
/// iteration.
#[test]
fn reports_memory_that_cannot_be_allocated() {
    let dir = TestDir::without_kernel_cache();
    let settings = [
        "train.device=reference",
        "data.name=synthetic",
        "data.synthetic.images=64",
        "data.synthetic.validation_images=1",
        "train.batch_size=64",
    ];
    let settings = settings.map(|setting| ["--set", setting]);
    let arguments = [&["train", "vgg11", "--out", "run"], settings.as_flattened()].concat();
    let program = dir.command(&arguments);
    let mut shell = Command::new("sh");
    // In KiB; includes the stacks of threads and the program itself.
    shell
        .args(["-c", "ulimit -v 2000000; exec \"$@\"", "sh"])
        .arg(program.get_program())
        .args(program.get_args());
    let ran =
        crate::common::CommandOutput::new(shell.current_dir(dir.folder.path()).output().unwrap()).expect(1);
    let message = ran.err.lines().find(|line| line.starts_with("error:")).unwrap_or_default();
    assert!(message.starts_with("error: out of memory: the plan's arena needs "), "{}", ran.err);
    assert!(message.ends_with(" MiB"), "{}", ran.err);
    assert!(ran.err.contains("\nhint: recompute activations with --memory-limit SIZE, "), "{}", ran.err);
}

/// With oneDNN, the error is found before the first iteration and before the run directory exists.
#[test]
fn rejects_an_unsupported_precision() {
    let dir = TestDir::without_kernel_cache();
    symlink(root().join("data"), dir.path("data")).unwrap();
    let settings = ["--set", "train.device=onednn", "--set", "train.precision=f16"];
    let shown = ["train", "plan"].map(|command| {
        let arguments = [&[command, "digits"], settings.as_slice()].concat();
        error_of(&dir, 2, &arguments)
    });
    // Not every CPU supports bf16.
    insta::assert_snapshot!(shown.join("\n").replace("f32, bf16 on", "f32 on"));
}

#[test]
fn rejects_invalid_configurations() {
    let dir = TestDir::without_kernel_cache();
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
    symlink(root().join("data"), dir.path("data")).unwrap();
    for (name, content) in files {
        fs::write(dir.path(name), content).unwrap();
        shown.push(error_of(&dir, 2, &["train", name]));
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
        shown.push(error_of(&dir, 2, &["train", "digits", "--set", settings]));
    }
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn rejects_settings_that_do_not_fit_the_data() {
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

/// Root ignores permissions, so a file in the place of a folder makes it unwritable.
#[test]
fn rejects_unwritable_folders() {
    let dir = TestDir::without_kernel_cache();
    symlink(root().join("data"), dir.path("data")).unwrap();
    fs::write(dir.path("file"), "").unwrap();
    fs::create_dir(dir.path("full")).unwrap();
    fs::write(dir.path("full/notes.txt"), "mine").unwrap();
    let mut shown = Vec::new();
    for (code, out) in [(1, "file"), (1, "file/run"), (2, "full")] {
        let ran = dir.run(&[TRAIN, &["-q", "--out", out]].concat()).expect(code);
        shown.push(format!("--out {out}\n{}exit code {code}\n", ran.err));
    }
    assert_eq!(fs::read(dir.path("full/notes.txt")).unwrap(), b"mine");
    fs::write(dir.path("runs"), "").unwrap();
    let ran = dir.run(&[TRAIN, &["-q"]].concat()).expect(1);
    shown.push(format!("runs is a file\n{}exit code 1\n", ran.err));
    assert!(!dir.path("runs").is_dir());
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn rejects_folders_that_are_not_runs() {
    let dir = TestDir::without_kernel_cache();
    fs::create_dir(dir.path("empty")).unwrap();
    fs::write(dir.path("file"), "").unwrap();
    // Killed before its first checkpoint.
    fs::create_dir(dir.path("young")).unwrap();
    let shown = dir.run(&["config", "show", "digits"]).expect(0);
    fs::write(dir.path("young/experiment.toml"), shown.out).unwrap();
    // Written by another version or edited.
    fs::create_dir(dir.path("strange")).unwrap();
    fs::write(dir.path("strange/experiment.toml"), "[model]\nname = \"digits\"\ndepth = 3\n").unwrap();
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
    let shown: Vec<String> = cases.iter().map(|(code, arguments)| error_of(&dir, *code, arguments)).collect();
    insta::assert_snapshot!(shown.join("\n"));
}

/// A library that a variable names, but that cannot be used, is an error before anything is trained, also
/// where another one would do.
#[test]
fn library_that_is_named_must_be_usable() {
    let dir = TestDir::without_kernel_cache();
    symlink(root().join("data"), dir.path("data")).unwrap();
    fs::write(dir.path("libdnnl.so.3"), "no library").unwrap();
    fs::create_dir(dir.path("empty")).unwrap();
    let run = |code: i32, variable: &str, path: &str, arguments: &[&str]| {
        let output = dir.command(arguments).env(variable, dir.path(path)).output().unwrap();
        crate::common::CommandOutput::new(output).expect(code)
    };
    let shown = |path: &str| dir.path(path).display().to_string();
    let problems = [
        ("absent", format!("{}, which does not exist\n", shown("absent"))),
        ("empty", format!("{}, a folder without libdnnl.so.3\n", shown("empty"))),
        (
            "libdnnl.so.3",
            format!("{0}, which is not a usable oneDNN 3.x: cannot load {0}: ", shown("libdnnl.so.3")),
        ),
    ];
    for (path, problem) in &problems {
        for device in ["onednn", "cpu"] {
            let ran = run(2, "STRATUS_ONEDNN", path, &["train", "digits", "--device", device]);
            let expected = format!("error: STRATUS_ONEDNN names {problem}");
            assert!(ran.err.starts_with(&expected), "{}", ran.err);
            let hint = "hint: set STRATUS_ONEDNN to the file libdnnl.so.3 of oneDNN 3.x, or to its folder, \
                        or unset it\n";
            assert!(ran.err.ends_with(hint), "{}", ran.err);
        }
        let doctor = run(0, "STRATUS_ONEDNN", path, &["doctor", "--no-measure"]);
        assert!(doctor.out.contains("not found, STRATUS_ONEDNN names "), "{}", doctor.out);
        // The reference backend does not need the library.
        run(0, "STRATUS_ONEDNN", path, &["plan", "digits", "--device", "reference", "--dump", "program"]);
    }
    let gpu = run(2, "STRATUS_CUDA", "empty", &["train", "digits"]);
    let expected = format!("error: STRATUS_CUDA names {}, without libraries of CUDA in it\n", shown("empty"));
    assert!(gpu.err.starts_with(&expected), "{}", gpu.err);
    fs::create_dir_all(dir.path("photos/a")).unwrap();
    fs::write(dir.path("photos/a/0.jpg"), "no image").unwrap();
    for arguments in [&["data", "check", "photos"][..], &["data", "stats", "photos"]] {
        let ran = run(2, "STRATUS_LIBJPEG", "absent", arguments);
        assert!(ran.err.starts_with("error: STRATUS_LIBJPEG names "), "{}", ran.err);
    }
    let workers = run(2, "STRATUS_MPI", "absent", &["train", "digits", "--workers", "2"]);
    assert!(workers.err.starts_with("error: STRATUS_MPI names "), "{}", workers.err);
    assert!(!dir.path("runs").exists());
}

/// Without oneDNN, `train.device=onednn` fails, and the default device warns and uses another backend.
#[test]
fn missing_library_fails_only_if_its_device_is_set() {
    let dir = TestDir::without_kernel_cache();
    symlink(root().join("data"), dir.path("data")).unwrap();
    let command = |arguments: &[&str]| {
        let mut command = dir.command(arguments);
        command.env("STRATUS_ONEDNN", "none");
        command
    };
    let settings = ["--set", "train.batch_size=16"];
    let named = ["train", "digits", "--set", "train.device=onednn"];
    let ran = crate::common::CommandOutput::new(command(&named).output().unwrap()).expect(2);
    let why = "STRATUS_ONEDNN is `none`";
    assert!(ran.err.starts_with(&format!("error: device `onednn`: {why}\n")), "{}", ran.err);
    assert!(
        ran.err.contains(" deps`, or use an available device with --set train.device=auto\n"),
        "{}",
        ran.err
    );
    assert!(!dir.path("runs").exists());

    let arguments = [&["train", "digits", "--out", "run"], settings.as_slice()].concat();
    let log = dir.path("stderr.txt");
    let mut child =
        command(&arguments).stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
    // Training stops after the current iteration.
    while !dir.path("run/summary.json").exists() {
        let message = || fs::read_to_string(&log).unwrap();
        assert!(child.try_wait().unwrap().is_none(), "{}", message());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status().unwrap();
    let status = child.wait().unwrap();
    let message = fs::read_to_string(&log).unwrap();
    assert_eq!(status.code(), Some(75), "{message}");
    assert!(message.starts_with(&format!("warning: {why}")), "{message}");
    assert!(message.contains("Training runs on the reference backend"), "{message}");
    assert_eq!(crate::common::summary(&dir.path("run"))["device"], "reference");
}
