//! Fake quantisation: training and validation of a network compute some convolutions with the rounded numbers
//! that int8 inference would use, in real arithmetic, so that the weights adapt to the rounding (Jacob et
//! al., "Quantization and training of neural networks for efficient integer-arithmetic-only inference",
//! 2018).
//!
//! ```text
//! conv2d (x, w) ─▶ y        fake_quantise x ─▶ x', fake_quantise_weights w ─▶ w', conv2d (x', w') ─▶ y
//! ```
//!
//! A map is rounded to the numbers of its bytes and clipped to their range, which does not change in
//! training. Weights are rounded with a scale for each output channel, which follows from their largest
//! magnitude. Gradients pass straight through the rounding, except where a map was clipped.
//!
//! **Batch norms are not folded.** In inference the weights of a convolution are multiplied by the scale of
//! the batch norm that follows, one factor `f` for each output channel. The scale `s` of that channel's
//! weights is multiplied by `|f|` with them, so `round(f w / (|f| s)) = ± round(w / s)`: the same integers,
//! up to the sign of the channel. The unfolded training network rounds as the folded one does, with the
//! statistics of its batches.
//!
//! Sums and all other layers read the map itself, as they do in int8 inference where a map is kept in real
//! numbers too. Where it is kept in bytes only, as between the blocks of a residual network, int8 inference
//! rounds the summand as well; training does not.

use super::quantise::{Obstacle, input_scale, main_layer};
use crate::ops::{FakeQuantise, FakeQuantiseWeights, Kernel, Uint8Scale};
use crate::program::Origin;
use crate::{EngineError, Phase, Program, Role, Step, ValueId};
use std::collections::BTreeMap;

/// Rounds what the convolutions `layers` read, each with the scale of its input. The program is that of
/// [`lower`](super::lower::lower), before fusion; all fusions fit as before.
///
/// `max_weight` is the largest magnitude of weights in int8.
///
/// # Errors
/// If the program is tiled, or one of the layers does not exist or cannot run in int8.
pub fn fake_quantise(
    forward: &Program,
    layers: &BTreeMap<String, Uint8Scale>,
    max_weight: i8,
) -> Result<Program, EngineError> {
    if !forward.sections.is_empty() {
        let problem = "fake quantisation needs a program without tiles";
        return Err(EngineError::InvalidRequest(problem.to_owned()));
    }
    let mut program = forward.clone();
    let mut missing: Vec<&String> = layers.keys().collect();
    // Weights come first: a step for the whole batch would end the section of steps that run tile by tile.
    let (mut weights, mut steps) = (Vec::new(), Vec::new());
    let mut maps = RoundedMaps::default();
    for mut step in std::mem::take(&mut program.steps) {
        let layer = main_layer(&program, &step).to_owned();
        let Some(&scale) = layers.get(&layer).filter(|_| is_product(&step.kernel)) else {
            steps.push(step);
            continue;
        };
        missing.retain(|name| **name != layer);
        let scale = input_scale(&program, &step, Some(scale)).map_err(|obstacle| refuse(&layer, obstacle))?;
        let (x, weight) = (step.inputs[0], program.master_of(step.inputs[1]));
        step.inputs[0] = maps.rounded(&mut program, &mut steps, x, scale, &step.layers);
        let compute = program.precision.compute();
        let rounded = program.add_derived(Origin::Rounded(weight), compute, Role::Transient);
        let kernel = FakeQuantiseWeights { max_weight };
        weights.push(forward_step(kernel, &step.layers, weight, rounded));
        step.inputs[1] = rounded;
        steps.push(step);
    }
    if let Some(layer) = missing.first() {
        return Err(EngineError::InvalidRequest(format!("the network has no convolution `{layer}`")));
    }
    weights.append(&mut steps);
    program.steps = weights;
    drop_unread_copies(&mut program);
    program.verify("fake_quantise")?;
    Ok(program)
}

/// Drops the copies of parameters in the compute precision that no step reads any more.
fn drop_unread_copies(program: &mut Program) {
    let is_read = |id: usize| {
        program.values[id].role != Role::ComputeCopy || program.readers(ValueId(id)).next().is_some()
    };
    let used: Vec<bool> = (0..program.values.len()).map(is_read).collect();
    program.retain_values(&used);
}

fn refuse(layer: &str, obstacle: Obstacle) -> EngineError {
    EngineError::InvalidRequest(format!("layer `{layer}` cannot run in int8: {}", obstacle.reason()))
}

/// Returns whether a step is the main one of a layer with weights.
fn is_product(kernel: &Kernel) -> bool {
    matches!(kernel, Kernel::Conv2dForward(_) | Kernel::Conv2dBackwardData(_) | Kernel::LinearForward(_))
}

/// The maps that are rounded so far: those that several layers read are rounded once.
#[derive(Default)]
struct RoundedMaps {
    known: Vec<(ValueId, Uint8Scale, ValueId)>,
}

impl RoundedMaps {
    /// The rounded map of `x`; a new one is written by a step of the given layers.
    fn rounded(
        &mut self,
        program: &mut Program,
        steps: &mut Vec<Step>,
        x: ValueId,
        bytes: Uint8Scale,
        layers: &[usize],
    ) -> ValueId {
        if let Some(&(.., rounded)) = self.known.iter().find(|known| (known.0, known.1) == (x, bytes)) {
            return rounded;
        }
        let value = program.value(x);
        let layer = layers.first().map_or("", |&layer| program.layers[layer].name.as_str());
        let (name, shape, dtype) = (format!("{layer}:rounded_input"), value.shape.clone(), value.dtype);
        let rounded = program.add_samples(name, &shape, dtype);
        steps.push(forward_step(FakeQuantise { bytes }, layers, x, rounded));
        self.known.push((x, bytes, rounded));
        rounded
    }
}

fn forward_step(kernel: impl Into<Kernel>, layers: &[usize], input: ValueId, output: ValueId) -> Step {
    Step {
        kernel: kernel.into(),
        phase: Phase::Forward,
        layers: layers.to_vec(),
        inputs: vec![input],
        updates: vec![],
        outputs: vec![output],
    }
}
