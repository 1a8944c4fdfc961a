//! Calibration of a fictitious machine.

use super::*;
use crate::work::program::work;
use crate::work::training::{Target, training};
use stratus_engine::Precision;

fn processor() -> Cpu {
    Cpu {
        base_ghz: 3.0,
        f32_flops_per_cycle: 16.0,
        bandwidth_gb_s: 20.0,
        second_level_kib: Some(512),
        name: "made-up".to_owned(),
        date: "2026-11".to_owned(),
        ..Cpu::unknown("made up", 2)
    }
}

/// Seconds of a kernel on a fictitious machine, which is slower for products with few columns.
fn seconds(kernel: &Kernel) -> f64 {
    let columns = kernel.product.map_or(1e9, |product| product.columns);
    kernel.flops / 60e9 * (1.0 + 12.0 / columns) + kernel.bytes / 15e9 + 4e-6 * kernel.launches
}

fn measured(index: usize) -> MeasuredNetwork {
    let design::Design { graph, batch } = design::network(index).unwrap();
    let program = training(&graph, batch, Precision::F32, Target::Cpu { cache_bytes: 2 << 20 }).unwrap();
    let kernels = work(&program, false).kernels;
    MeasuredNetwork { kernels: kernels.into_iter().map(|k| (k.clone(), seconds(&k))).collect() }
}

fn calibration() -> Calibration {
    let networks: Vec<MeasuredNetwork> = (0..8).map(measured).collect();
    let profile =
        profile(&networks, &processor(), NumberFormat::F32, ("eight", "stratus calibrate")).unwrap();
    let machine =
        CalibratedMachine { library: "none".to_owned(), reference_s: Some(0.02), processor: processor() };
    Calibration { machine, profiles: vec![profile] }
}

#[test]
fn forecasts_unmeasured_networks() {
    let calibration = calibration();
    let peaks = peaks(&calibration.machine().processor, NumberFormat::F32).unwrap();
    let mut sum = 0.0;
    for index in 20..27 {
        let unseen = measured(index);
        let (step, _) = calibration.profiles[0].estimate_work(&unseen.work(), &peaks);
        let error = (step.seconds / unseen.step_s() - 1.0).abs();
        assert!(error < 0.2, "{index}: {error}");
        sum += error;
    }
    assert!(sum / 7.0 < 0.06, "{}", sum / 7.0);
    // The terms alone do not model products with few columns.
    let plain = Profile { correction: Correction::default(), ..calibration.profiles[0].clone() };
    let error = |profile: &Profile| {
        let unseen = measured(24);
        (profile.estimate_work(&unseen.work(), &peaks).0.seconds / unseen.step_s() - 1.0).abs()
    };
    assert!(error(&calibration.profiles[0]) < error(&plain));
}

#[test]
fn calibration_survives_a_round_trip() {
    let mut written = calibration();
    let run = |forecast_s: f64| ComparedRun { network: "a".into(), batch: 2, forecast_s, measured_s: 0.5 };
    written.add_run(NumberFormat::F32, run(0.25)).unwrap();
    let refused = written.add_run(NumberFormat::Bf16, run(0.25)).unwrap_err().to_string();
    assert_eq!(refused, "made-up does not compute in bf16");
    let text = written.to_toml().unwrap();
    let read = Calibration::parse("m.toml", &text).unwrap();
    assert_eq!(read.machine, written.machine);
    assert_eq!(read.profiles[0].runs, written.profiles[0].runs);
    let peaks = peaks(&read.machine().processor, NumberFormat::F32).unwrap();
    let step = |calibration: &Calibration| {
        calibration.profiles[0].estimate_work(&measured(30).work(), &peaks).0.seconds
    };
    assert!((step(&read) / step(&written) - 1.0).abs() < 5e-3);
    assert!((step(&read) / step(&calibration()) - 2.0_f64.sqrt()).abs() < 1e-2);
}

#[test]
fn refuses_invalid_calibrations() {
    let text = calibration().to_toml().unwrap();
    let refused = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        Calibration::parse("m.toml", &text.replacen(from, to, 1)).unwrap_err().to_string()
    };
    assert_eq!(
        refused("format = 2", "format = 1"),
        "m.toml: unsupported profile format 1; expected format 2"
    );
    assert!(refused("base_ghz = 3.0", "base_ghz = -3.0").contains("base_ghz must be above 0"));
    assert!(
        refused("machine = \"made-up\"", "machine = \"other\"").contains("belong to a different machine")
    );
    assert!(refused("library", "librery").contains("unknown field `librery`"));
    let profile = calibration().profiles[0].to_toml();
    let error = Calibration::parse("p.toml", &profile).unwrap_err().to_string();
    assert!(error.contains("not a calibration"), "{error}");
    let few: Vec<MeasuredNetwork> = (0..MIN_NETWORKS - 1).map(measured).collect();
    assert!(super::profile(&few, &processor(), NumberFormat::F32, ("", "")).is_err());
}
