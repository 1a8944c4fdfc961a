//! Files of forecasts: machines, SkyPilot's catalogues, profiles, steps, calibrations, tables of layers.

use stratus_forecast::{
    calibration::Calibration,
    catalogue::{Catalogue, SkyPilotCatalogue},
    profile::Profile,
    steps::StepTable,
    work::layers,
};

use super::Target;
use crate::seeds;

pub const TARGET: Target =
    Target { name: "forecast", run, seeds: seeds::forecast, dictionary: &[], max_bytes: 16384 };

fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(catalogue) = Catalogue::builtin() {
        let mut skypilot = SkyPilotCatalogue::default();
        let _ = skypilot.add_cloud(("cloud", "2026-01-01"), ("vms.csv", data), &catalogue.gpus);
        let _ = catalogue.with("machines.toml", &text);
    }
    let _ = Profile::parse("profile.toml", &text);
    let _ = StepTable::parse("steps.csv", &text);
    let _ = Calibration::parse("calibration.toml", &text);
    let _ = layers::parse("layers.csv", &text);
}
