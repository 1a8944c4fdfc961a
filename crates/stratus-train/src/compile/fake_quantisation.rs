//! `train.fake_quantisation`: training and validation compute some convolutions with rounded numbers.

use crate::TrainError;
use crate::device::OpenDevice;
use std::collections::BTreeMap;
use stratus_engine::Program;
use stratus_engine::ops::Uint8Scale;
use stratus_engine::passes::fake_quantise::fake_quantise;
use stratus_experiment::Experiment;

/// The key that names the layers.
const LAYERS: &str = "train.fake_quantisation.layers";

/// Rounds what the convolutions of `train.fake_quantisation.layers` read in a program that is not fused yet.
///
/// # Errors
/// If the device is a GPU, or a layer does not exist or cannot run in int8.
pub(super) fn fake_quantised(
    program: Program,
    settings: &Experiment,
    device: &OpenDevice,
) -> Result<Program, TrainError> {
    let refused = |problem: String, hint: &str| TrainError::Configuration {
        problem: format!("{LAYERS}: {problem}"),
        hint: hint.to_owned(),
    };
    let hint = "name convolutions of the network, with the ranges of their inputs";
    let layers = settings.fake_quantised_layers().map_err(|problem| refused(problem, hint))?;
    if layers.is_empty() {
        return Ok(program);
    }
    if device.backend.max_int8_weight().is_none() {
        let problem = format!("fake quantisation is not supported on {}", device.backend.describe());
        return Err(refused(problem, "train on the CPU with --device cpu"));
    }
    let mut scales = BTreeMap::new();
    for layer in layers {
        let scale = Uint8Scale::of_range(layer.low, layer.high);
        let scale = scale.ok_or_else(|| refused(format!("the range of {:?} is empty", layer.layer), hint))?;
        scales.insert(layer.layer, scale);
    }
    // The key is checked: it is at most 127.
    let max_weight = i8::try_from(settings.fake_quantisation.max_weight).unwrap_or(i8::MAX);
    fake_quantise(&program, &scales, max_weight).map_err(|error| refused(error.to_string(), hint))
}
