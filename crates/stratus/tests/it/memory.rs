//! Training with a memory limit: the same run in less memory.

#![cfg(unix)]

use crate::common::{CommandOutput, RunResult, TestDir};
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SETTINGS: [&str; 9] = [
    "model.width=8",
    "data.name=synthetic",
    "data.shape=[3, 32, 32]",
    "data.synthetic.images=200",
    "data.synthetic.validation_images=20",
    "data.synthetic.classes=4",
    "train.batch_size=64",
    "train.epochs=3",
    "train.threads=2",
];

fn with<'a>(begin: &[&'a str], end: &[&'a str]) -> Vec<&'a str> {
    let settings = SETTINGS.iter().flat_map(|setting| ["--set", *setting]);
    begin.iter().copied().chain(settings).chain(end.iter().copied()).collect()
}

fn arena(plans: &Value) -> u64 {
    plans["arena_bytes"].as_u64().unwrap()
}

/// The plan counts the batches that a run prefetches.
#[test]
fn prefetched_batches_are_counted_and_bounded() {
    let dir = TestDir::without_kernel_cache();
    let plan = |more: &[&str]| -> Value {
        let more = [&["--set", "data.workers=5"], more].concat();
        let ran = dir.run(&with(&["plan", "resnet18_cifar", "--json"], &more)).expect(0);
        serde_json::from_str::<Value>(&ran.out).unwrap()["host_memory"].clone()
    };
    let memory = plan(&[]);
    let batch = memory["batch_bytes"].as_u64().unwrap();
    // Elements have between one and four bytes.
    assert!((64 * 3 * 32 * 32..64 * (3 * 32 * 32 * 4 + 8) + 200).contains(&batch), "{memory}");
    assert_eq!(memory["batches"], 8);
    assert_eq!(plan(&["--set", "data.prefetch_mib=2"])["batches"], (2 << 20) / batch);
    let large = ["--set", "train.batch_size=192", "--set", "data.prefetch_mib=1"];
    let ran = dir.run(&with(&["plan", "resnet18_cifar"], &large)).expect(2);
    assert!(
        ran.err.contains("data.prefetch_mib is 1, but 2 batches of 192 images, the minimum"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("set data.prefetch_mib to at least "), "{}", ran.err);
}

#[test]
fn memory_limited_run_is_bit_identical_after_kills() {
    let dir = TestDir::without_kernel_cache();
    let plan = |more: &[&str]| -> Value {
        let ran = dir.run(&with(&["plan", "resnet18_cifar", "--json"], more)).expect(0);
        serde_json::from_str(&ran.out).unwrap()
    };
    let whole = arena(&plan(&[]));
    // The minimum for the fastest kernels.
    let too_little = dir.run(&with(&["plan", "resnet18_cifar"], &["--memory-limit", "1MiB"])).expect(2);
    let (_, least) = too_little.err.split_once("needs at least ").unwrap();
    let limit_mib: u64 = least.split_once(" MiB").unwrap().0.parse().unwrap();
    assert!(limit_mib << 20 < whole * 9 / 10, "{limit_mib} MiB of {whole}");
    let limit = format!("{limit_mib}MiB");
    assert!(arena(&plan(&["--memory-limit", &limit])) <= limit_mib << 20);

    dir.run(&with(&["train", "resnet18_cifar", "--out", "whole"], &[])).expect(0);
    let expected = RunResult::read(&dir.path("whole"));
    let limited = |out| with(&["train", "resnet18_cifar", "--out", out, "--memory-limit", &limit], &[]);
    dir.run(&limited("less")).expect(0);
    assert_eq!(RunResult::read(&dir.path("less")), expected);
    let text = fs::read(dir.path("less").join("plan.json")).unwrap();
    assert!(arena(&serde_json::from_slice(&text).unwrap()) <= limit_mib << 20);

    let mut command = dir.command(&limited("killed"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    let checkpoints = dir.path("killed").join("checkpoints");
    let first = |name: std::ffi::OsString| name.to_string_lossy().ends_with('4');
    while !fs::read_dir(&checkpoints).is_ok_and(|mut dir| dir.any(|entry| first(entry.unwrap().file_name())))
    {
        assert!(child.try_wait().unwrap().is_none(), "it exited too early");
        assert!(start.elapsed() < Duration::from_secs(300), "timed out");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    dir.run(&["train", "killed"]).expect(0);
    assert_eq!(RunResult::read(&dir.path("killed")), expected);

    let rejected = dir.run(&["train", "less", "--memory-limit", "1GiB"]).expect(2);
    assert!(rejected.err.contains("--memory-limit cannot be used when resuming"), "{}", rejected.err);
}

/// A batch norm of one value is planned with a warning that has the error of training.
#[test]
fn plan_warns_when_training_would_be_rejected() {
    let dir = TestDir::without_kernel_cache();
    let single = ["--set", "train.batch_size=1"];
    // Images of 32x32 become feature maps of one pixel in the last stage.
    let planned = dir.run(&with(&["plan", "resnet18"], &single)).expect(0);
    let rejected = dir.run(&with(&["train", "resnet18", "--out", "no"], &single)).expect(2);
    let problem = rejected.err.lines().find_map(|line| line.strip_prefix("error: ")).unwrap();
    assert!(problem.contains("a batch has 1 sample"), "{problem}");
    let warning = format!("warning: training will reject this plan: {problem}; use larger batches");
    assert!(planned.err.contains(&warning), "{}", planned.err);
    let fine = dir.run(&with(&["plan", "resnet18"], &[])).expect(0);
    assert!(!fine.err.contains("training will reject this plan"), "{}", fine.err);
}

/// Explicit micro-batches need less memory, also split the last batch of an epoch, and repeat their bits.
#[test]
fn micro_batches_need_less_memory_and_repeat_their_bits() {
    let dir = TestDir::without_kernel_cache();
    // 200 images: three batches of 64, and one of 8 in one micro-batch.
    let train = |out: &str, parts: &str| {
        let setting = format!("train.micro_batches={parts}");
        let arguments = with(
            &["train", "resnet18_cifar", "--out", out],
            &["--set", &setting, "--set", "data.drop_last=false"],
        );
        dir.run(&arguments).expect(0);
        let text = fs::read(dir.path(out).join("plan.json")).unwrap();
        let plans: Value = serde_json::from_slice(&text).unwrap();
        (arena(&plans), RunResult::read(&dir.path(out)))
    };
    let (whole, _) = train("whole", "1");
    let (parts, expected) = train("parts", "4");
    assert!(parts * 2 < whole, "{parts} of {whole} bytes");
    assert_eq!(expected.iterations.len(), 12);
    assert_eq!(train("again", "4"), (parts, expected));

    let rejected = dir
        .run(&with(&["train", "resnet18_cifar", "--out", "no"], &["--set", "train.micro_batches=5"]))
        .expect(2);
    assert!(
        rejected.err.contains("`train.micro_batches` = 5 does not divide `train.batch_size` = 64"),
        "{}",
        rejected.err
    );
}

#[test]
fn too_little_memory_is_reported_before_training() {
    let dir = TestDir::without_kernel_cache();
    let ran =
        dir.run(&with(&["train", "resnet18_cifar", "--out", "run", "--memory-limit", "1MiB"], &[])).expect(2);
    assert!(
        ran.err.contains("train.memory_limit_mib is 1, but resnet18_cifar in batches of 64 needs at least"),
        "{}",
        ran.err
    );
    assert!(!dir.path("run").exists());
    let least: u64 = ran.err.split("at least ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let limit = format!("{least}MiB");
    dir.run(&with(&["plan", "resnet18_cifar", "--memory-limit", &limit], &[])).expect(0);
    let wrong = dir.run(&with(&["plan", "resnet18_cifar", "--memory-limit", "lots"], &[])).expect(2);
    assert!(wrong.err.contains("expected a number with a unit, like 800MiB"), "{}", wrong.err);
}

#[test]
fn largest_batch_is_found_and_fits() {
    let dir = TestDir::without_kernel_cache();
    let found = |more: &[&str]| -> Value {
        let ran = dir.run(&with(&["plan", "resnet18_cifar", "--largest-batch", "--json"], more)).expect(0);
        serde_json::from_str(&ran.out).unwrap()
    };
    let limited = found(&["--memory-limit", "100MiB", "--set", "data.synthetic.images=100000"]);
    let batch = limited["batch_size"].as_u64().unwrap();
    let bytes = limited["arena_bytes"].as_u64().unwrap();
    assert!(bytes <= 100 << 20 && bytes > 80 << 20, "{limited}");
    // The host memory is that of these batches, not of the configured ones.
    let batch_bytes = limited["host_memory"]["batch_bytes"].as_u64().unwrap();
    assert!(batch_bytes >= batch * 3 * 32 * 32, "{limited}");
    // A batch larger by half does not fit.
    let larger = format!("train.batch_size={}", batch * 3 / 2);
    let more = ["--set", &larger, "--set", "data.synthetic.images=100000"];
    let ran = dir.run(&with(&["plan", "resnet18_cifar", "--json"], &more)).expect(0);
    let planned: Value = serde_json::from_str(&ran.out).unwrap();
    assert!(arena(&planned) > 100 << 20, "{planned}");
    // At most the number of images; the text says how to use it.
    assert_eq!(found(&["--memory-limit", "100GiB"])["is_whole_data_set"], true);
    let text = dir.run(&with(&["plan", "resnet18_cifar", "--largest-batch"], &["--memory-limit", "100MiB"]));
    assert!(text.expect(0).out.contains("To train with it, use --batch "));
    let none = dir.run(&with(&["plan", "resnet18_cifar", "--largest-batch", "--memory-limit", "1M"], &[]));
    assert!(none.expect(2).err.contains("no batch of resnet18_cifar fits in 1 MiB"));
}

#[test]
fn largest_batch_keeps_to_the_limit_of_batches_read_ahead() {
    let dir = TestDir::without_kernel_cache();
    let command = |more: &[&str]| {
        let data = ["--set", "data.synthetic.images=100000", "--set", "data.prefetch_mib=1"];
        let begin = with(&["plan", "resnet18_cifar", "--largest-batch", "--memory-limit", "2GiB"], &data);
        dir.run(&[&begin[..], more].concat())
    };
    let found: Value = serde_json::from_str(&command(&["--json"]).expect(0).out).unwrap();
    let batch_bytes = found["host_memory"]["batch_bytes"].as_u64().unwrap();
    assert_eq!(found["host_memory"]["batches"], 2, "{found}");
    let share = (2 * batch_bytes) as f64 / f64::from(1 << 20);
    assert!((0.97..=1.0).contains(&share), "{found}");
    let none = command(&["--set", "data.shape=[3,512,512]"]).expect(2).err;
    assert!(none.contains("data.prefetch_mib is 1, but 2 batches of 1 images"), "{none}");
}

#[test]
fn largest_batch_needs_no_data() {
    let dir = TestDir::without_kernel_cache();
    // A program outside of the checkout does not find the checkout's data, nor its libraries.
    let program = dir.path("stratus");
    if fs::hard_link(env!("CARGO_BIN_EXE_stratus"), &program).is_err() {
        fs::copy(env!("CARGO_BIN_EXE_stratus"), &program).unwrap();
    }
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.env_clear().env("STRATUS_CACHE", dir.path("cache")).current_dir(dir.path(""));
        command.args(arguments).args(["--set", "train.device=reference"]);
        CommandOutput::new(command.output().unwrap())
    };
    let plan = |data: &[&str]| {
        let begin = ["plan", "digits", "--largest-batch", "--memory-limit", "64MiB", "--json"];
        run(&[&begin, data].concat()).expect(0)
    };
    let missing = plan(&[]);
    let message = "data set `mnist` is not at data/mnist: assuming images of 1×28×28 and 10 classes\n";
    assert!(missing.err.contains(message), "{}", missing.err);
    assert_eq!(plan(&["-q"]).err, "");
    let synthetic = plan(&["--set", "data.name=synthetic", "--set", "data.synthetic.images=100000"]);
    let [missing, synthetic] =
        [&missing, &synthetic].map(|ran| serde_json::from_str::<Value>(&ran.out).unwrap());
    // The search is approximate; the last batch of an epoch depends on the number of images.
    for found in [&missing, &synthetic] {
        let bytes = found["arena_bytes"].as_u64().unwrap();
        assert!(bytes <= 64 << 20 && bytes as f64 >= 0.97 * f64::from(64 << 20), "{found}");
    }
    let [one, other] = [&missing, &synthetic].map(|found| found["batch_size"].as_f64().unwrap());
    assert!((0.95..1.05).contains(&(one / other)), "{one} {other}");
    assert_eq!(missing["is_whole_data_set"], false);
    // A plan of a training run needs its data.
    assert!(run(&["plan", "digits"]).expect(1).err.starts_with("error: data/mnist: "));
}

#[test]
fn rejects_plans_that_exceed_the_machine_before_kernels_are_timed() {
    let dir = TestDir::without_kernel_cache();
    let huge = ["--set", "train.batch_size=8000000", "--set", "data.synthetic.images=9000000"];
    for command in ["plan", "train"] {
        let ran = dir.run(&with(&[command, "resnet18_cifar"], &huge)).expect(2);
        assert!(ran.err.contains("in batches of 8000000 needs at least "), "{}", ran.err);
        assert!(ran.err.contains(" MiB are free\nhint: use smaller batches, about "), "{}", ran.err);
    }
}

#[test]
fn plan_starts_with_a_summary() {
    let dir = TestDir::without_kernel_cache();
    let output = dir.command(&with(&["plan", "resnet18_cifar"], &[])).env("COLUMNS", "80").output();
    let ran = CommandOutput::new(output.unwrap()).expect(0);
    for line in
        ["network  resnet18_cifar on synthetic", "batch    64 images", "  optimiser state", "  data sets"]
    {
        assert!(ran.out.lines().any(|found| found.starts_with(line)), "{line}: {}", ran.out);
    }
    assert!(ran.out.lines().count() < 40, "{}", ran.out);
    assert!(ran.out.lines().all(|line| line.chars().count() <= 80), "{}", ran.out);
    let all = dir.run(&with(&["plan", "resnet18_cifar", "--dump", "plan"], &[])).expect(0);
    assert!(all.out.lines().count() > 80, "{}", all.out);
}
