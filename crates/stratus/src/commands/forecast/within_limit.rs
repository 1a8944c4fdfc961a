//! The training that a machine could do within a deadline or budget that it exceeds.

use super::Report;
use crate::errors::Result;
use serde::Serialize;
use stratus_base::text::{counted, duration};
use stratus_forecast::catalogue::Machine;
use stratus_forecast::forecast::Forecast;
use stratus_forecast::objective::Objective;
use stratus_forecast::profile::Profile;
use stratus_train::TrainError;
use stratus_train::bench::probe::ProbeReport;
use stratus_train::forecast::{Planner, forecast_from_probe, forecast_on};

/// The training that a machine could do within a deadline or budget.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct WithinLimit {
    /// The machine.
    name: String,
    /// Images per iteration.
    batch: u64,
    /// The number of epochs whose upper bound keeps the limit; 0 if one epoch exceeds it.
    epochs: u64,
    /// Height and width of the largest smaller images with which all epochs keep it.
    image_size: Option<[usize; 2]>,
}

/// The fractions of the height and width that are tried, in eighths.
const SMALLER_EIGHTHS: [usize; 4] = [7, 6, 5, 4];
/// Heights and widths that are tried are multiples of this, as the strides of most networks need.
const SIZE_STEP: usize = 32;

impl WithinLimit {
    /// Finds the number of epochs by bisection; `None` if the objective has no limit or the total is unknown.
    ///
    /// # Errors
    /// If the machine cannot be forecast.
    pub fn find(
        objective: Objective,
        row: &Forecast,
        machine: &Machine,
        planner: &mut Planner,
        (profiles, probed): (&[Profile], Option<&ProbeReport>),
    ) -> Result<Option<Self>> {
        let keeps = |row: &Forecast| match objective {
            Objective::Deadline(max) => row.total_high_s.is_some_and(|seconds| seconds <= max),
            Objective::Budget(max) => row.cost.price_high.is_some_and(|price| price <= max),
            _ => false,
        };
        let has_limit = match objective {
            Objective::Deadline(_) => row.total_high_s.is_some(),
            Objective::Budget(_) => row.cost.price_high.is_some(),
            _ => false,
        };
        if !has_limit {
            return Ok(None);
        }
        let all = planner.length().epochs;
        let (mut enough, mut too_many) = (0, all);
        while too_many - enough > 1 {
            let epochs = enough + (too_many - enough) / 2;
            planner.set_epochs(epochs);
            let shorter = match probed {
                Some(probed) => forecast_from_probe(machine, probed, planner)?,
                None => {
                    forecast_on(machine, row.batch as usize, planner, profiles).map_err(TrainError::from)?
                }
            };
            match keeps(&shorter) {
                true => enough = epochs,
                false => too_many = epochs,
            }
        }
        planner.set_epochs(all);
        // Kernels that were timed here are those of one size.
        let image_size = match probed {
            Some(_) => None,
            None => smaller_images(row, machine, planner, profiles, &keeps)?,
        };
        Ok(Some(Self { name: row.name.clone(), batch: row.batch, epochs: enough, image_size }))
    }

    /// A sentence.
    pub fn describe(&self, report: &Report) -> String {
        let limit = match report.objective {
            Objective::Deadline(seconds) => duration(seconds),
            Objective::Budget(price) => format!("{price} {}", self.currency(report)),
            _ => return String::new(),
        };
        let size = self.image_size.map_or_else(String::new, |[height, width]| {
            format!("; or for all epochs with images of {height}×{width} (data.shape)")
        });
        match self.epochs {
            0 => format!("there, {limit} is not enough for one epoch{size}"),
            epochs => format!(
                "there, {limit} is enough for {epochs} of {}: --epochs {epochs}{size}",
                counted(report.epochs, "epoch")
            ),
        }
    }

    fn currency<'a>(&self, report: &'a Report) -> &'a str {
        let row = report.machines.iter().find(|row| row.name == self.name);
        row.and_then(|row| row.cost.currency.as_deref()).unwrap_or("")
    }
}

/// The largest of some smaller image sizes with which a forecast keeps the limit. The time to decode an image
/// is assumed to be the same.
fn smaller_images(
    row: &Forecast,
    machine: &Machine,
    planner: &Planner,
    profiles: &[Profile],
    keeps: &dyn Fn(&Forecast) -> bool,
) -> Result<Option<[usize; 2]>> {
    let Some([channels, height, width]) = planner.input_shape()? else { return Ok(None) };
    for eighths in SMALLER_EIGHTHS {
        let [height, width] = [height, width].map(|side| side * eighths / 8 / SIZE_STEP * SIZE_STEP);
        // Networks of a fixed size take no other.
        let smaller = planner.with_input_shape([channels, height, width]);
        let Some(mut smaller) = smaller.ok().filter(|_| height > 0 && width > 0) else { continue };
        let forecast = forecast_on(machine, row.batch as usize, &mut smaller, profiles);
        if forecast.is_ok_and(|row| keeps(&row)) {
            return Ok(Some([height, width]));
        }
    }
    Ok(None)
}
