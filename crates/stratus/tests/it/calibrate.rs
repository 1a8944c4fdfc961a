//! `stratus calibrate`: the use of its file, learning from runs, errors. Measuring takes minutes;
//! `stratus-train` tests it on a small network.

use crate::common::TestDir;
use serde_json::Value;
use std::fs;
use stratus_forecast::calibration::{CalibratedMachine, Calibration, MeasuredNetwork, design, profile};
use stratus_forecast::catalogue::Cpu;
use stratus_forecast::peaks::NumberFormat;
use stratus_forecast::work::Kernel;
use stratus_forecast::work::program::work;
use stratus_forecast::work::training::{Target, training};

/// A calibration of a CPU with `cores` cores and a constant time per byte.
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
        let program = training(&graph, batch, NumberFormat::F32.precision(), target).unwrap();
        let kernels = work(&program, false).kernels;
        MeasuredNetwork { kernels: kernels.into_iter().map(|k| (k.clone(), seconds(&k))).collect() }
    };
    let networks: Vec<MeasuredNetwork> = (0..5).map(measured).collect();
    let profile =
        profile(&networks, &processor, NumberFormat::F32, ("a test's", "stratus calibrate")).unwrap();
    let machine = CalibratedMachine { library: "none".to_owned(), reference_s: Some(0.02), processor };
    Calibration { machine, profiles: vec![profile] }.to_toml().unwrap()
}

/// Forecasts the machine of `lab.toml`.
fn forecast(dir: &TestDir, network: &str, batch: &str) -> Value {
    let asked = ["forecast", network, "--on", "lab.toml", "--batch", batch, "--set", "train.precision=f32"];
    let ran = dir.run(&[&asked[..], &["--json"]].concat()).expect(0);
    serde_json::from_str::<Value>(&ran.out).unwrap()["machines"][0].clone()
}

#[test]
fn calibrated_machine_is_forecast_anywhere() {
    let dir = TestDir::without_kernel_cache();
    fs::write(dir.path("lab.toml"), calibration("a processor", 2)).unwrap();
    let row = forecast(&dir, "resnet18", "8");
    assert_eq!((row["name"].as_str(), row["source"].as_str()), (Some("lab"), Some("profile")));
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap();
    assert!(
        number(&row, "low_s") < number(&row, "step_s") && number(&row, "step_s") < number(&row, "high_s")
    );
    // 8 images of 3 × 3.6 GFLOP at 50 GFLOP/s, and some bytes.
    assert!((1.5..4.0).contains(&number(&row, "step_s")), "{row}");
    assert!(number(&forecast(&dir, "resnet18", "16"), "step_s") > 1.5 * number(&row, "step_s"));
}

/// A run that took longer than forecast increases forecasts.
#[test]
fn calibration_learns_from_runs() {
    let dir = TestDir::without_kernel_cache();
    let settings = ["data.name=synthetic", "data.synthetic.images=160", "train.precision=f32"];
    let more = ["data.synthetic.validation_images=8", "train.batch_size=8", "train.epochs=1"];
    let set: Vec<&str> = settings.iter().chain(&more).flat_map(|setting| ["--set", setting]).collect();
    dir.run(&[&["train", "digits", "--out", "run"], &set[..]].concat()).expect(0);
    let json = |file: &str| -> Value {
        serde_json::from_slice(&fs::read(dir.path("run").join(file)).unwrap()).unwrap()
    };
    let model = json("machine.json")["cpu"]["model"].as_str().unwrap().to_owned();
    let threads = json("summary.json")["threads"].as_u64().unwrap() as usize;
    fs::write(dir.path("lab.toml"), calibration(&model, threads)).unwrap();
    let before = forecast(&dir, "digits", "8")["step_s"].as_f64().unwrap();
    let ran = dir.run(&["calibrate", "--learn", "run", "--out", "lab.toml", "--json"]).expect(0);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let run = &report["runs"][0];
    assert_eq!((run["network"].as_str(), run["batch"].as_u64()), (Some("digits"), Some(8)));
    let ratio = run["measured_s"].as_f64().unwrap() / run["forecast_s"].as_f64().unwrap();
    let after = forecast(&dir, "digits", "8")["step_s"].as_f64().unwrap();
    // The forecast counts as one run.
    assert!((after / before / ratio.sqrt() - 1.0).abs() < 0.01, "{before} {after} {ratio}");
    // Runs of another machine are ignored, and the file stays as it is.
    fs::write(dir.path("other.toml"), calibration("an abacus", threads)).unwrap();
    let other = fs::read(dir.path("other.toml")).unwrap();
    let ran = dir.run(&["calibrate", "--learn", "run", "--out", "other.toml"]).expect(2);
    assert!(ran.err.contains("the calibration is of an abacus"), "{}", ran.err);
    assert_eq!(fs::read(dir.path("other.toml")).unwrap(), other);
}

#[test]
fn rejects_invalid_calibrations_and_arguments() {
    let dir = TestDir::without_kernel_cache();
    fs::write(dir.path("lab.toml"), calibration("a processor", 2)).unwrap();
    let text = calibration("a processor", 2);
    fs::write(dir.path("old.toml"), text.replacen("format = 2", "format = 1", 1)).unwrap();
    fs::write(dir.path("cut.toml"), &text[..text.len() / 2]).unwrap();
    let on = |file| ["forecast", "digits", "--on", file];
    let cases: &[(&[&str], &str)] = &[
        (&on("old.toml"), "old.toml: unsupported profile format 1; expected format 2"),
        (&on("none.toml"), "cannot read none.toml"),
        (
            &["calibrate", "--out", "no/such/folder.toml"],
            "cannot write no/such/folder.toml: folder not found",
        ),
        (&["calibrate", "--minutes", "0"], "must be a number from 0.1 to 60"),
        (&["calibrate", "--learn", "none", "--out", "lab.toml"], "none: not a finished run"),
        (&["calibrate", "--learn", "none", "--out", "old.toml"], "old.toml: unsupported profile format 1"),
        (&["calibrate", "--learn", "none", "--minutes", "2"], "cannot be used with"),
        (&["calibrate", "--set", "train.device=reference"], "cannot calibrate the reference backend"),
        (&["bench", "forecast", "--calibrated", "lab.toml"], "--here"),
    ];
    for (arguments, expected) in cases {
        let message = dir.run(arguments).expect(2).err;
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
    assert!(dir.run(&on("cut.toml")).expect(2).err.contains("cut.toml: "));
}
