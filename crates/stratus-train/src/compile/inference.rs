//! Sessions of trained networks in inference, whose layers may run in int8.

use super::plans::{EvaluationSession, KernelSelection, plan_evaluation};
use super::programs::{tiled, untiled_evaluation_program};
use crate::TrainError;
use crate::device::OpenDevice;
use crate::resolve::ResolvedProcess;
use crate::weights::session_state::refresh;
use std::collections::BTreeMap;
use stratus_engine::ops::Uint8Scale;
use stratus_engine::passes::fuse::fuse_inference;
use stratus_engine::passes::lower::with_label_smoothing;
use stratus_engine::passes::quantise::{QuantisedLayer, QuantisedMap, quantise};
use stratus_engine::{DType, Program, Role, Session};
use stratus_optimise::quantise::{QuantisedWeights, corrected_biases, quantise_weights};
use stratus_optimise::{Model, ModelError};
use stratus_run::quantisation::Quantisation;

/// How a network in inference computes, besides its number format.
#[derive(Clone, Copy, Default)]
pub struct InferenceForm<'a> {
    /// The layers that run in int8; `None` for none.
    pub quantisation: Option<&'a Quantisation>,
    /// True if the loss is that of smoothed labels, so that every class has a target above 0, and the loss
    /// is finite only if all logits are.
    pub smooths_labels: bool,
    /// True if sums and activations stay steps of their own instead of becoming part of the convolution
    /// before them, as int8 layers need it.
    pub separates_steps: bool,
    /// True if all maps are kept after a run, for the caller to read; then steps are separate too.
    pub observes_maps: bool,
    /// True if kernels are not measured: the first that supports an operation is taken.
    pub first_kernels: bool,
}

/// Plans and allocates a session for a model in inference form, and sets its values.
///
/// # Errors
/// If no kernel can run a step, the device does not run in int8, the quantisation is not that of the
/// model, or a value is missing.
pub fn inference_session(
    resolved: &ResolvedProcess,
    model: &Model,
    device: &OpenDevice,
    form: InferenceForm<'_>,
    warn: &mut dyn FnMut(&str),
) -> Result<EvaluationSession, TrainError> {
    let InferenceProgram { program, layers, .. } = inference_program(resolved, model, device, form)?;
    let selection =
        if form.first_kernels { KernelSelection::FirstSupported } else { KernelSelection::Cached };
    let mut evaluation = plan_evaluation(&program, device, &selection, warn)?;
    let session = &mut evaluation.session;
    write_values(session, &model.values)?;
    if let Some(largest) = device.backend.max_int8_weight() {
        layers.iter().try_for_each(|layer| write_constants(session, layer, &model.values, largest))?;
    }
    refresh(session, evaluation.refresh)?;
    Ok(evaluation)
}

/// The program of a network in inference.
pub struct InferenceProgram {
    /// The program.
    pub program: Program,
    /// The layers that run in int8.
    pub layers: Vec<QuantisedLayer>,
    /// The maps that layers read in int8, by the name of the value.
    pub maps: BTreeMap<String, QuantisedMap>,
}

/// The program of [`inference_session`].
///
/// # Errors
/// As there.
pub fn inference_program(
    resolved: &ResolvedProcess,
    model: &Model,
    device: &OpenDevice,
    form: InferenceForm<'_>,
) -> Result<InferenceProgram, TrainError> {
    let mut program = untiled_evaluation_program(resolved, &model.graph, device)?;
    let (mut layers, mut maps) = (Vec::new(), BTreeMap::new());
    if let Some(quantisation) = form.quantisation {
        if device.backend.max_int8_weight().is_none() {
            return Err(TrainError::NoInt8Layer {
                problem: format!("int8 is not supported on {}", device.backend.describe()),
                hint: "run it on the CPU with `--device cpu`".to_owned(),
            });
        }
        let names = quantisation.layers.iter().map(|layer| layer.layer.clone()).collect();
        let quantised = quantise(&program, &uint8_scales(quantisation), &names)?;
        (program, layers, maps) = (quantised.program, quantised.layers, quantised.maps);
    }
    let is_separate = form.separates_steps || form.observes_maps;
    if device.backend.fusions().inference && !is_separate {
        program = fuse_inference(&program)?;
    }
    // Programs with int8 layers are not tiled.
    if form.quantisation.is_none() {
        program = tiled(program, resolved)?;
    }
    if form.observes_maps {
        let is_map = |value: &stratus_engine::Value| {
            value.role == Role::Transient && value.dtype == DType::F32 && value.shape.len() == 4
        };
        program.values.iter_mut().filter(|value| is_map(value)).for_each(|value| value.role = Role::Observed);
    }
    if form.smooths_labels {
        program = with_label_smoothing(program, 0.5)?;
    }
    Ok(InferenceProgram { program, layers, maps })
}

/// The scales of maps in int8 by the name of their value; a map that is 0 everywhere has none.
#[must_use]
pub fn uint8_scales(quantisation: &Quantisation) -> BTreeMap<String, Uint8Scale> {
    let ranges = quantisation.ranges.iter();
    ranges
        .filter_map(|(name, range)| Some((name.clone(), Uint8Scale::of_range(range.low, range.high)?)))
        .collect()
}

/// Sets the persistent values of a session.
fn write_values(session: &mut Session, values: &BTreeMap<String, Vec<f32>>) -> Result<(), TrainError> {
    let names: Vec<String> = session.state().map(|value| value.name.to_owned()).collect();
    for name in names {
        session.write(&name, value(values, &name)?)?;
    }
    Ok(())
}

fn value<'a>(values: &'a BTreeMap<String, Vec<f32>>, name: &str) -> Result<&'a [f32], ModelError> {
    let missing = || ModelError::Missing { parameter: name.to_owned() };
    values.get(name).map(Vec::as_slice).ok_or_else(missing)
}

/// The int8 weights, and the biases, of a layer that runs in int8.
pub(crate) fn layer_values<'a>(
    layer: &QuantisedLayer,
    values: &'a BTreeMap<String, Vec<f32>>,
    largest: i8,
) -> Result<(QuantisedWeights, Option<&'a [f32]>), TrainError> {
    let mut parameters = layer.parameters.iter().map(|name| value(values, name));
    let weight = parameters.next().transpose()?.unwrap_or_default();
    let bias = parameters.next().transpose()?;
    Ok((quantise_weights(weight, layer.conv.out_channels, largest), bias))
}

/// Sets the weights, scales and biases of a layer that runs in int8.
fn write_constants(
    session: &mut Session,
    layer: &QuantisedLayer,
    values: &BTreeMap<String, Vec<f32>>,
    largest: i8,
) -> Result<(), TrainError> {
    let QuantisedLayer { input, constants: [bytes, scales, biases], .. } = layer;
    let (weights, bias) = layer_values(layer, values, largest)?;
    session.write_bytes(bytes, &weights.bytes)?;
    let products: Vec<f32> = weights.scales.iter().map(|scale| scale * input.scale).collect();
    session.write(scales, &products)?;
    Ok(session.write(biases, &corrected_biases(&weights, bias, input.scale, input.zero_point))?)
}
