//! `stratus calibrate`: what its file is good for, what it learns from runs, what it refuses. Measuring
//! itself takes minutes; `stratus-train` tests it on one small network.

use crate::common::Place;
use serde_json::Value;
use std::fs;
use stratus_forecast::calibration::{Calibrated, Calibration, MeasuredNetwork, design, profile};
use stratus_forecast::catalogue::Cpu;
use stratus_forecast::peaks::Format;
use stratus_forecast::work::Kernel;
use stratus_forecast::work::program::work;
use stratus_forecast::work::training::{Target, training};

/// The calibration of a processor of so many cores that needs a constant time for a byte.
fn calibration(title: &str, cores: usize) -> String {
    let processor = Cpu {
        name: "lab".to_owned(),
        base_ghz: 3.0,
        f32_flops_per_cycle: 16.0,
        bandwidth_gb_s: 20.0,
        date: "2026-11".to_owned(),
        ..Cpu::unknown(title, cores)
    };
    let seconds = |kernel: &Kernel| kernel.bytes / 10e9 + kernel.flops / 50e9 + 1e-6;
    let measured = |index: usize| {
        let design::Design { graph, batch } = design::network(index).unwrap();
        let target = Target::Cpu { cache_bytes: 2 << 20 };
        let program = training(&graph, batch, Format::F32.precision(), target).unwrap();
        let kernels = work(&program, false).kernels;
        MeasuredNetwork { kernels: kernels.into_iter().map(|k| (k.clone(), seconds(&k))).collect() }
    };
    let networks: Vec<MeasuredNetwork> = (0..5).map(measured).collect();
    let profile = profile(&networks, &processor, Format::F32, ("a test's", "stratus calibrate")).unwrap();
    let machine = Calibrated { library: "none".to_owned(), processor };
    Calibration { machine, profiles: vec![profile] }.to_toml().unwrap()
}

/// The forecast of `lab.toml`.
fn forecast(place: &Place, network: &str, batch: &str) -> Value {
    let asked = ["forecast", network, "--on", "lab.toml", "--batch", batch, "--set", "train.precision=f32"];
    let ran = place.run(&[&asked[..], &["--json"]].concat()).expect(0);
    serde_json::from_str::<Value>(&ran.out).unwrap()["machines"][0].clone()
}

#[test]
fn a_calibrated_machine_is_forecast_anywhere() {
    let place = Place::bare();
    fs::write(place.path("lab.toml"), calibration("a processor", 2)).unwrap();
    let row = forecast(&place, "resnet18", "8");
    assert_eq!((row["name"].as_str(), row["source"].as_str()), (Some("lab"), Some("profile")));
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap();
    assert!(
        number(&row, "low_s") < number(&row, "step_s") && number(&row, "step_s") < number(&row, "high_s")
    );
    // 8 images of 3 × 3.6 GFLOP at 50 GFLOP/s, and some bytes.
    assert!((1.5..4.0).contains(&number(&row, "step_s")), "{row}");
    assert!(number(&forecast(&place, "resnet18", "16"), "step_s") > 1.5 * number(&row, "step_s"));
}

/// A run that took longer than forecast makes forecasts longer.
#[test]
fn runs_teach_a_calibration() {
    let place = Place::bare();
    let settings = ["data.name=synthetic", "data.synthetic.images=160", "train.precision=f32"];
    let more = ["data.synthetic.validation_images=8", "train.batch_size=8", "train.epochs=1"];
    let set: Vec<&str> = settings.iter().chain(&more).flat_map(|setting| ["--set", setting]).collect();
    place.run(&[&["train", "digits", "--out", "run"], &set[..]].concat()).expect(0);
    let json = |file: &str| -> Value {
        serde_json::from_slice(&fs::read(place.path("run").join(file)).unwrap()).unwrap()
    };
    let model = json("machine.json")["cpu"]["model"].as_str().unwrap().to_owned();
    let threads = json("summary.json")["threads"].as_u64().unwrap() as usize;
    fs::write(place.path("lab.toml"), calibration(&model, threads)).unwrap();
    let before = forecast(&place, "digits", "8")["step_s"].as_f64().unwrap();
    let ran = place.run(&["calibrate", "--learn", "run", "--out", "lab.toml", "--json"]).expect(0);
    let learnt: Value = serde_json::from_str(&ran.out).unwrap();
    let run = &learnt["runs"][0];
    assert_eq!((run["network"].as_str(), run["batch"].as_u64()), (Some("digits"), Some(8)));
    let ratio = run["measured_s"].as_f64().unwrap() / run["forecast_s"].as_f64().unwrap();
    let after = forecast(&place, "digits", "8")["step_s"].as_f64().unwrap();
    // The forecast itself counts for one.
    assert!((after / before / ratio.sqrt() - 1.0).abs() < 0.01, "{before} {after} {ratio}");
    // Of another machine nothing is learnt, and the file stays.
    fs::write(place.path("other.toml"), calibration("an abacus", threads)).unwrap();
    let other = fs::read(place.path("other.toml")).unwrap();
    let ran = place.run(&["calibrate", "--learn", "run", "--out", "other.toml"]).expect(2);
    assert!(ran.err.contains("the file is of an abacus"), "{}", ran.err);
    assert_eq!(fs::read(place.path("other.toml")).unwrap(), other);
}

#[test]
fn what_is_refused() {
    let place = Place::bare();
    fs::write(place.path("lab.toml"), calibration("a processor", 2)).unwrap();
    let text = calibration("a processor", 2);
    fs::write(place.path("old.toml"), text.replacen("format = 2", "format = 1", 1)).unwrap();
    fs::write(place.path("cut.toml"), &text[..text.len() / 2]).unwrap();
    let on = |file| ["forecast", "digits", "--on", file];
    let cases: &[(&[&str], &str)] = &[
        (&on("old.toml"), "old.toml: the profile has format 1, this version reads format 2"),
        (&on("none.toml"), "cannot read none.toml"),
        (
            &["calibrate", "--out", "no/such/folder.toml"],
            "cannot write no/such/folder.toml: there is no such folder",
        ),
        (&["calibrate", "--minutes", "0"], "it is a number from 0.1 to 60"),
        (&["calibrate", "--learn", "none", "--out", "lab.toml"], "none: it is no run that has ended"),
        (&["calibrate", "--learn", "none", "--out", "old.toml"], "old.toml: the profile has format 1"),
        (&["calibrate", "--learn", "none", "--minutes", "2"], "cannot be used with"),
        (&["calibrate", "--set", "train.device=reference"], "the reference backend would be measured"),
        (&["bench", "forecast", "--calibrated", "lab.toml"], "--here"),
    ];
    for (arguments, expected) in cases {
        let said = place.run(arguments).expect(2).err;
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    assert!(place.run(&on("cut.toml")).expect(2).err.contains("cut.toml: "));
}
