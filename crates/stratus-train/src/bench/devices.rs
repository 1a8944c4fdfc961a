//! Forecasts of several devices against published speeds.

use crate::TrainError;
use crate::forecast::{Planner, forecast_on, step_from_profile};
use serde::Serialize;
use stratus_experiment::Experiment;
use stratus_forecast::catalogue::Catalogue;
use stratus_forecast::model::Framework;
use stratus_forecast::scaling::{Between, Connection, PublishedScaling, PublishedTable, published_scaling};
use stratus_forecast::{shipped, text};

/// A published table with its forecast.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DevicesComparison {
    /// The table.
    #[serde(flatten)]
    pub table: PublishedTable,
    /// Each number of devices above one.
    pub rows: Vec<SpeedUps>,
}

/// Published and forecast speed-ups over one device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SpeedUps {
    /// The number of devices.
    pub devices: u64,
    /// The published speed-up.
    pub published: f64,
    /// The forecast speed-up.
    pub forecast: f64,
}

impl SpeedUps {
    /// The error of the forecast in percent.
    #[must_use]
    pub fn error_percent(&self) -> f64 {
        100.0 * (self.forecast / self.published - 1.0)
    }
}

/// Forecasts every shipped published table.
///
/// # Errors
/// If a shipped file is damaged.
pub fn compare_devices() -> Result<Vec<DevicesComparison>, TrainError> {
    let (catalogue, profiles) = (Catalogue::builtin()?, shipped::profiles()?);
    let compare = |PublishedScaling { table, rows }: PublishedScaling| {
        let machine = catalogue.find(&table.machine)?;
        let keys = [("data.name", "synthetic"), ("train.precision", table.precision.as_str())];
        let experiment = Experiment::builtin(&table.network)?.with_overrides(&keys)?;
        let mut planner = Planner::new(experiment, Framework::Stratus, None, None)?;
        let single = forecast_on(&machine, table.batch as usize, &mut planner, &profiles)?;
        let step = step_from_profile(&machine, table.batch, &planner, &profiles)?;
        let (network, devices_per_machine) = match &table.network_between {
            Some((rate, devices)) => (Some(text::bytes_per_second("network", rate)?), Some(*devices)),
            None => (None, None),
        };
        let between = Some(Between::parse(&table.between)?);
        let connection = Connection { between, network, devices_per_machine, ..Connection::default() };
        let one = rows.first().map_or(f64::NAN, |row| row.1);
        let rows = rows.iter().filter(|row| row.0 > 1).map(|&(devices, speed)| {
            let model = connection.model(&machine, devices)?;
            let scaled = step.scale_to(devices, &model, single.device_images_per_second());
            Ok(SpeedUps { devices, published: speed / one, forecast: scaled.speed_up })
        });
        let rows = rows.collect::<Result<_, TrainError>>()?;
        Ok(DevicesComparison { table, rows })
    };
    published_scaling()?.into_iter().map(compare).collect()
}
