//! A network in stages: real processes, each with a part of it.

#![cfg(unix)]

use crate::common::{Place, Ran, Result};
use crate::workers::has_mpi;

/// Averages and mixed images, so that all that goes through the stages does.
const SETTINGS: [&str; 8] = [
    "--set",
    "train.parts=4",
    "--set",
    "train.threads=1",
    "--set",
    "train.ema_decay=0.9",
    "--set",
    "data.augment.mixup=0.2",
];

fn train(place: &Place, name: &str, epochs: u32, more: &[&str]) -> Ran {
    place.train(name, epochs, &[&SETTINGS[..], more].concat())
}

/// The result is a function of the experiment: in one process, in two stages, in four; and of a run that goes
/// from four stages to two to none. Gradients are clipped by the norm of all stages, in an epoch's smaller
/// last batch too, whose parts are others.
#[test]
fn any_number_of_stages_gives_the_same_bits() {
    if !has_mpi() {
        return;
    }
    let place = Place::new();
    let clip = ["--set", "train.clip_norm=0.5"];
    train(&place, "unclipped", 3, &[]).expect(0);
    train(&place, "alone", 3, &clip).expect(0);
    let alone = Result::of(&place.path("alone"));
    assert!(Result::of(&place.path("unclipped")) != alone, "gradients are clipped");
    for stages in ["2", "4"] {
        let set = format!("train.stages={stages}");
        let more = [&clip[..], &["--set", &set, "--workers", stages]].concat();
        let ran = train(&place, stages, 3, &more).expect(0);
        assert_eq!(ran.out.matches("digits on mnist: completed").count(), 1, "{}", ran.out);
        assert!(ran.out.contains("exchange with other workers"), "{}", ran.out);
        let said = format!("{stages} processes, each a stage of the network");
        assert_eq!(ran.err.matches(&said).count(), 1, "{}", ran.err);
        assert!(Result::of(&place.path(stages)) == alone, "{stages} stages");
    }
    let four = ["--set", "train.stages=4", "--workers", "4", "--until-epoch", "1"];
    train(&place, "moved", 3, &[&clip[..], &four].concat()).expect(0);
    place.run(&["train", "moved", "--workers", "2", "--until-epoch", "2"]).expect(0);
    place.run(&["train", "moved"]).expect(0);
    assert!(Result::of(&place.path("moved")) == alone, "from four stages to two to one process");
    // What it has learnt is measured by one process, with the kernels of all stages.
    let measured = |run: &str| -> serde_json::Value {
        serde_json::from_str(&place.run(&["eval", run, "--json"]).expect(0).out).unwrap()
    };
    let (four, alone) = (measured("4"), measured("alone"));
    assert!(four["loss"].is_number(), "{four}");
    assert_eq!([&four["loss"], &four["top1"]], [&alone["loss"], &alone["top1"]]);
}

/// A run in stages begins with weights from outside as one process does.
#[test]
fn stages_begin_with_the_weights_of_another_run() {
    if !has_mpi() {
        return;
    }
    let place = Place::new();
    train(&place, "first", 1, &[]).expect(0);
    train(&place, "alone", 1, &["--weights", "first"]).expect(0);
    let stages = ["--weights", "first", "--set", "train.stages=2", "--workers", "2"];
    train(&place, "two", 1, &stages).expect(0);
    assert!(Result::of(&place.path("two")) == Result::of(&place.path("alone")));
}

/// Said once, before the first iteration.
#[test]
fn what_cannot_be_trained_in_stages() {
    if !has_mpi() {
        return;
    }
    let place = Place::new();
    for (more, expected) in [
        (&["--set", "train.stages=2"][..], "train.stages is 2, and there is 1 process"),
        (&["--set", "train.stages=2", "--workers", "4"], "train.stages is 2, and there are 4 processes"),
        (&["--set", "train.stages=3"], "`train.stages` is 3"),
        (
            &["--set", "train.stages=8", "--set", "train.parts=4", "--workers", "8"],
            "train.stages is 8, and batches are cut into 4 parts",
        ),
        (
            &["--set", "train.stages=16", "--set", "train.parts=16", "--workers", "16"],
            "stages at most, not 16",
        ),
        (
            &["--set", "train.stages=2", "--set", "train.memory_limit_mib=1", "--workers", "2"],
            "in 2 stages of 4 parts, the largest stage of digits needs",
        ),
        (
            &["--set", "train.stages=2", "--set", "train.parts=0", "--set", "train.activations_kib=256"],
            "`train.stages` is 2, and `train.activations_kib` is set",
        ),
        (
            &["--set", "train.stages=2", "--set", "validation.mirror=true"],
            "`train.stages` is 2, and `validation.mirror` is set",
        ),
        (
            &["--set", "train.stages=2", "--set", "train.parts=0", "--set", "train.micro_batches=2"],
            "`train.stages` is 2, and `train.micro_batches` is set",
        ),
    ] {
        let ran = train(&place, "refused", 1, more);
        assert!(matches!(ran.code, Some(1 | 2)), "{more:?}: {:?} {}", ran.code, ran.err);
        assert_eq!(ran.err.matches(expected).count(), 1, "{more:?}: {}", ran.err);
        assert!(!place.path("refused").exists(), "{more:?}");
    }
}

/// What knows of one process alone says so.
#[test]
fn stages_are_not_forecast() {
    let place = Place::new();
    let set = ["--set", "train.stages=2", "--set", "train.parts=4"];
    for command in [&["forecast", "digits"][..], &["bench", "kernels", "digits"]] {
        let ran = place.run(&[command, &set[..]].concat()).expect(2);
        assert!(ran.err.contains("train.stages is 2; networks in stages are planned"), "{}", ran.err);
    }
}

/// Where the network would be cut is planned without training.
#[test]
fn stages_are_planned() {
    let place = Place::new();
    let mut arguments = crate::common::training("unused", 1, &SETTINGS);
    arguments.drain(2..4);
    arguments[0] = "plan".to_owned();
    arguments.extend(["--set".to_owned(), "train.stages=2".to_owned()]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let planned = place.run(&arguments).expect(0).out;
    assert!(planned.contains("digits in 2 stages, batches in 4 parts"), "{planned}");
    assert!(planned.contains("wait 20.0 % of the time"), "{planned}");
}
