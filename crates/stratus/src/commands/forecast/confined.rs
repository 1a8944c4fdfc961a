//! Forecasts of a run whose configuration is not trusted: nothing outside of its directory is opened.
//!
//! The page of `stratus ui` forecasts runs of strangers, too. Their data sets may be anywhere, also in a
//! store on a network, so what the run itself recorded takes their place.

use crate::errors::{Failure, Result};
use std::path::Path;
use stratus_experiment::Experiment;
use stratus_report::report::planned_image_shape;
use stratus_run::RunDir;
use stratus_run::data::DataRecord;

/// Checks that the network of a run's experiment is described in the run, and adds the shape and the classes
/// of its images.
///
/// # Errors
/// If its layer file is elsewhere.
pub(super) fn with_recorded_images(experiment: Experiment, run: &Path) -> Result<Experiment> {
    if let Some(file) = experiment.layer_file() {
        let is_inside = run
            .canonicalize()
            .is_ok_and(|run| file.canonicalize().is_ok_and(|file| file.starts_with(run) && file.is_file()));
        if !is_inside {
            let problem =
                format!("the network of this run is in {}, which is not opened here", file.display());
            return Err(Failure::usage(problem).with_hint("use `stratus forecast` if you trust the run"));
        }
        return Ok(experiment);
    }
    let Ok(run) = RunDir::open(run) else { return Ok(experiment) };
    let mut overrides: Vec<(&str, String)> = Vec::new();
    if experiment.data.shape.is_none()
        && let Some(shape) = planned_image_shape(&run)
    {
        overrides.push(("data.shape", format!("{shape:?}")));
    }
    if experiment.model.classes.is_none()
        && let Some(record) = recorded_data(&run)
        && !record.classes.is_empty()
    {
        overrides.push(("model.classes", record.classes.len().to_string()));
    }
    Ok(experiment.with_overrides(&overrides)?)
}

/// The numbers of images of a run's training and validation data, as it recorded them.
#[cfg(feature = "ui")]
pub(super) fn recorded_images(run: &Path) -> Option<[u64; 2]> {
    let record = recorded_data(&RunDir::open(run).ok()?)?;
    Some([record.training.images, record.validation.images])
}

fn recorded_data(run: &RunDir) -> Option<DataRecord> {
    DataRecord::read(&run.data()).ok()?
}
