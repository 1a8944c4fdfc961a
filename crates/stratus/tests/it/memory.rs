//! Training within a budget of memory: the same run in less of it.

#![cfg(unix)]

use crate::common::{Place, Ran, Result};
use serde_json::Value;
use std::process::Stdio;
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

/// The batches that the plan counts are those that a run reads ahead.
#[test]
fn batches_that_are_read_ahead_are_counted_and_bounded() {
    let place = Place::bare();
    let plan = |more: &[&str]| -> Value {
        let more = [&["--set", "data.workers=5"], more].concat();
        let ran = place.run(&with(&["plan", "resnet18_cifar", "--json"], &more)).expect(0);
        serde_json::from_str::<Value>(&ran.out).unwrap()["host_memory"].clone()
    };
    let memory = plan(&[]);
    let batch = memory["batch_bytes"].as_u64().unwrap();
    // At least bytes, at most f32.
    assert!((64 * 3 * 32 * 32..64 * (3 * 32 * 32 * 4 + 8) + 200).contains(&batch), "{memory}");
    assert_eq!(memory["batches"], 8);
    assert_eq!(plan(&["--set", "data.prefetch_mib=2"])["batches"], (2 << 20) / batch);
    let large = ["--set", "train.batch_size=192", "--set", "data.prefetch_mib=1"];
    let ran = place.run(&with(&["plan", "resnet18_cifar"], &large)).expect(2);
    assert!(
        ran.err.contains("data.prefetch_mib is 1; 2 batches of 192 images, the fewest that"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("set data.prefetch_mib to at least "), "{}", ran.err);
}

#[test]
fn a_run_in_less_memory_has_the_same_bits_also_when_it_is_killed() {
    let place = Place::bare();
    let plan = |more: &[&str]| -> Value {
        let ran = place.run(&with(&["plan", "resnet18_cifar", "--json"], more)).expect(0);
        serde_json::from_str(&ran.out).unwrap()
    };
    let whole = arena(&plan(&[]));
    // The least there is for the kernels that were measured to be the fastest.
    let too_little = place.run(&with(&["plan", "resnet18_cifar"], &["--memory-limit", "1MiB"])).expect(2);
    let (_, least) = too_little.err.split_once("needs at least ").unwrap();
    let limit_mib: u64 = least.split_once(" MiB").unwrap().0.parse().unwrap();
    assert!(limit_mib << 20 < whole * 9 / 10, "{limit_mib} MiB of {whole}");
    let limit = format!("{limit_mib}MiB");
    assert!(arena(&plan(&["--memory-limit", &limit])) <= limit_mib << 20);

    place.run(&with(&["train", "resnet18_cifar", "--out", "whole"], &[])).expect(0);
    let expected = Result::of(&place.path("whole"));
    let limited = |out| with(&["train", "resnet18_cifar", "--out", out, "--memory-limit", &limit], &[]);
    place.run(&limited("less")).expect(0);
    assert_eq!(Result::of(&place.path("less")), expected);
    let text = std::fs::read(place.path("less").join("plan.json")).unwrap();
    assert!(arena(&serde_json::from_slice(&text).unwrap()) <= limit_mib << 20);

    let mut command = place.command(&limited("killed"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    let checkpoints = place.path("killed").join("checkpoints");
    let first = |name: std::ffi::OsString| name.to_string_lossy().ends_with('4');
    while !std::fs::read_dir(&checkpoints)
        .is_ok_and(|mut dir| dir.any(|entry| first(entry.unwrap().file_name())))
    {
        assert!(child.try_wait().unwrap().is_none(), "it ended too early");
        assert!(begun.elapsed() < Duration::from_secs(300), "nothing happens");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    place.run(&["train", "killed"]).expect(0);
    assert_eq!(Result::of(&place.path("killed")), expected);

    let refused = place.run(&["train", "less", "--memory-limit", "1GiB"]).expect(2);
    assert!(
        refused.err.contains("--memory-limit cannot be given to a run that is continued"),
        "{}",
        refused.err
    );
}

/// A batch norm of one value is planned with a warning, which says what training is refused for.
#[test]
fn a_plan_warns_of_what_is_not_trained() {
    let place = Place::bare();
    let single = ["--set", "train.batch_size=1"];
    // Images of 32x32 are maps of one pixel in the last stage.
    let planned = place.run(&with(&["plan", "resnet18"], &single)).expect(0);
    let refused = place.run(&with(&["train", "resnet18", "--out", "no"], &single)).expect(2);
    let problem = refused.err.lines().find_map(|line| line.strip_prefix("error: ")).unwrap();
    assert!(problem.contains("a batch has 1 sample"), "{problem}");
    let warning = format!("warning: this is planned and will not be trained: {problem}; take larger batches");
    assert!(planned.err.contains(&warning), "{}", planned.err);
    let fine = place.run(&with(&["plan", "resnet18"], &[])).expect(0);
    assert!(!fine.err.contains("will not be trained"), "{}", fine.err);
}

/// Micro-batches, asked for explicitly: less memory, the last batch of an epoch in parts too, and the same
/// bits each time.
#[test]
fn a_run_in_micro_batches_needs_less_and_repeats_its_bits() {
    let place = Place::bare();
    // 200 images: three batches of 64, and one of 8 that is one part.
    let train = |out: &str, parts: &str| {
        let setting = format!("train.micro_batches={parts}");
        let arguments = with(
            &["train", "resnet18_cifar", "--out", out],
            &["--set", &setting, "--set", "data.drop_last=false"],
        );
        place.run(&arguments).expect(0);
        let text = std::fs::read(place.path(out).join("plan.json")).unwrap();
        let plans: Value = serde_json::from_slice(&text).unwrap();
        (arena(&plans), Result::of(&place.path(out)))
    };
    let (whole, _) = train("whole", "1");
    let (parts, expected) = train("parts", "4");
    assert!(parts * 2 < whole, "{parts} of {whole} bytes");
    assert_eq!(expected.iterations.len(), 12);
    assert_eq!(train("again", "4"), (parts, expected));

    let refused = place
        .run(&with(&["train", "resnet18_cifar", "--out", "no"], &["--set", "train.micro_batches=5"]))
        .expect(2);
    assert!(
        refused.err.contains("`train.micro_batches` is 5 and `train.batch_size` is 64"),
        "{}",
        refused.err
    );
}

#[test]
fn too_little_memory_is_said_before_anything_is_trained() {
    let place = Place::bare();
    let ran = place
        .run(&with(&["train", "resnet18_cifar", "--out", "run", "--memory-limit", "1MiB"], &[]))
        .expect(2);
    assert!(
        ran.err.contains("train.memory_limit_mib is 1; in batches of 64, resnet18_cifar needs at least"),
        "{}",
        ran.err
    );
    assert!(!place.path("run").exists());
    let least: u64 = ran.err.split("at least ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let limit = format!("{least}MiB");
    place.run(&with(&["plan", "resnet18_cifar", "--memory-limit", &limit], &[])).expect(0);
    let wrong = place.run(&with(&["plan", "resnet18_cifar", "--memory-limit", "lots"], &[])).expect(2);
    assert!(wrong.err.contains("give a number with a unit, like 800MiB"), "{}", wrong.err);
}

#[test]
fn the_largest_batch_is_found_and_fits() {
    let place = Place::bare();
    let found = |more: &[&str]| -> Value {
        let ran = place.run(&with(&["plan", "resnet18_cifar", "--largest-batch", "--json"], more)).expect(0);
        serde_json::from_str(&ran.out).unwrap()
    };
    let limited = found(&["--memory-limit", "100MiB", "--set", "data.synthetic.images=100000"]);
    let batch = limited["batch_size"].as_u64().unwrap();
    let bytes = limited["arena_bytes"].as_u64().unwrap();
    assert!(bytes <= 100 << 20 && bytes > 80 << 20, "{limited}");
    // Half as much again does not fit.
    let larger = format!("train.batch_size={}", batch * 3 / 2);
    let more = ["--set", &larger, "--set", "data.synthetic.images=100000"];
    let ran = place.run(&with(&["plan", "resnet18_cifar", "--json"], &more)).expect(0);
    let planned: Value = serde_json::from_str(&ran.out).unwrap();
    assert!(arena(&planned) > 100 << 20, "{planned}");
    // No more than there are images; and the text says how to use it.
    assert_eq!(found(&["--memory-limit", "100GiB"])["is_whole_data_set"], true);
    let text =
        place.run(&with(&["plan", "resnet18_cifar", "--largest-batch"], &["--memory-limit", "100MiB"]));
    assert!(text.expect(0).out.contains("Train with it: --batch "));
    let none = place.run(&with(&["plan", "resnet18_cifar", "--largest-batch", "--memory-limit", "1M"], &[]));
    assert!(none.expect(2).err.contains("no batch of resnet18_cifar fits 1 MiB"));
}

#[test]
fn what_cannot_fit_this_machine_is_refused_before_kernels_are_measured() {
    let place = Place::bare();
    let huge = ["--set", "train.batch_size=8000000", "--set", "data.synthetic.images=9000000"];
    for command in ["plan", "train"] {
        let ran = place.run(&with(&[command, "resnet18_cifar"], &huge)).expect(2);
        assert!(ran.err.contains("in batches of 8000000 needs at least "), "{}", ran.err);
        assert!(ran.err.contains(" MiB are free\nhint: take smaller batches, about "), "{}", ran.err);
    }
}

#[test]
fn a_plan_begins_with_a_summary() {
    let place = Place::bare();
    let output = place.command(&with(&["plan", "resnet18_cifar"], &[])).env("COLUMNS", "80").output();
    let ran = Ran::of(output.unwrap()).expect(0);
    for line in
        ["network  resnet18_cifar on synthetic", "batch    64 images", "  optimiser state", "  data sets"]
    {
        assert!(ran.out.lines().any(|found| found.starts_with(line)), "{line}: {}", ran.out);
    }
    assert!(ran.out.lines().count() < 40, "{}", ran.out);
    assert!(ran.out.lines().all(|line| line.chars().count() <= 80), "{}", ran.out);
    let all = place.run(&with(&["plan", "resnet18_cifar", "--dump", "plan"], &[])).expect(0);
    assert!(all.out.lines().count() > 80, "{}", all.out);
}
