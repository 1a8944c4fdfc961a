//! Int8 inference: convolutions of an evaluation program are replaced by products of eight-bit
//! integers.
//!
//! ```text
//! conv2d_relu  x ─▶ y                quantise x ─▶ bytes, quantised_conv2d_relu bytes ─▶ y
//! conv2d       x ─▶ z, add(z, a) ─▶ y             quantised_conv2d_add (x, a) ─▶ y
//! ```
//!
//! A map stays in int8 between two such layers; other layers read real numbers. The caller knows the scale
//! of each map and each weight ([`QuantisedLayer`] says which constants it has to set).

use super::fuse::fuse_sums;
use crate::ops::{Addend, Quantise, QuantisedConv2d, Uint8Scale};
use crate::program::Mode;
use crate::{DType, EngineError, Kernel, Phase, Program, Role, Step, ValueId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use stratus_graph::ops::Conv2d;

/// A program whose layers run in int8, and these layers.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantisedProgram {
    /// The program.
    pub program: Program,
    /// The layers that run in int8, in the order of the program.
    pub layers: Vec<QuantisedLayer>,
    /// The maps that layers read in int8, by the name of the value.
    pub maps: BTreeMap<String, QuantisedMap>,
}

/// A map that layers read in int8.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantisedMap {
    /// The meaning of its bytes.
    pub scale: Uint8Scale,
    /// True if it exists only in int8, false if other layers read real numbers.
    pub is_stored: bool,
}

/// A layer that runs in int8. Its constants are to be set before the first run: the weights divided by
/// their scales, and for each output channel the product of the scales of input and weights, and the bias
/// with the correction for the input's byte 0.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantisedLayer {
    /// Its name.
    pub layer: String,
    /// The convolution.
    pub conv: Conv2d,
    /// The scale of its input.
    pub input: Uint8Scale,
    /// The names of its parameters: weight, and bias if it has one.
    pub parameters: Vec<String>,
    /// The names of the values to be set: weights (i8), scales and biases (f32).
    pub constants: [String; 3],
}

/// A convolution of a program, which may run in int8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantisable {
    /// The layer's name.
    pub layer: String,
    /// The name of the value that it reads.
    pub input: String,
    /// The reason why it cannot run in int8.
    pub obstacle: Option<Obstacle>,
}

/// The reason why a layer cannot run in int8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// There is no kernel for its operation.
    NoKernel,
    /// It reads the images, which are not calibrated.
    ReadsImages,
    /// The range of its input is not known, or it is always 0.
    UnknownRange,
    /// Its input is padded and its zero point is not 0: the padding, byte 0, would not stand for 0.
    PaddedNegativeInput,
}

impl Obstacle {
    /// The reason, for people.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::NoKernel => "its operation has no int8 kernel",
            Self::ReadsImages => "it reads the images",
            Self::UnknownRange => "the range of its input is unknown, or it is always 0",
            Self::PaddedNegativeInput => "its padded input has negative numbers",
        }
    }
}

/// The layers of a forward program that multiply matrices, with the reasons why some of them cannot compute
/// with bytes of these scales, by the name of the value.
#[must_use]
pub fn quantisable(program: &Program, scales: &BTreeMap<String, Uint8Scale>) -> Vec<Quantisable> {
    let products = program.steps.iter().filter(|step| {
        matches!(
            step.kernel,
            Kernel::Conv2dForward(_)
                | Kernel::Conv2dInference(_)
                | Kernel::Conv2dBackwardData(_)
                | Kernel::LinearForward(_)
        )
    });
    products
        .map(|step| Quantisable {
            layer: main_layer(program, step).to_owned(),
            input: program.value(step.inputs[0]).name.clone(),
            obstacle: named_scale(program, step, scales).err(),
        })
        .collect()
}

pub(super) fn main_layer<'a>(program: &'a Program, step: &Step) -> &'a str {
    &program.layers[step.layers[0]].name
}

/// The scale of the input of a layer that can run in int8, among those of values by name.
fn named_scale(
    program: &Program,
    step: &Step,
    scales: &BTreeMap<String, Uint8Scale>,
) -> Result<Uint8Scale, Obstacle> {
    input_scale(program, step, scales.get(&program.value(step.inputs[0]).name).copied())
}

/// The scale of the input of a layer that can run in int8; `scale` is `None` if it is not known.
pub(super) fn input_scale(
    program: &Program,
    step: &Step,
    scale: Option<Uint8Scale>,
) -> Result<Uint8Scale, Obstacle> {
    let Kernel::Conv2dForward(forward) = &step.kernel else { return Err(Obstacle::NoKernel) };
    let conv = &forward.conv;
    if program.value(step.inputs[0]).role == Role::Images {
        return Err(Obstacle::ReadsImages);
    }
    let scale = scale.ok_or(Obstacle::UnknownRange)?;
    let is_padded = conv.padding_before.iter().chain(&conv.padding_after).any(|&padding| padding > 0);
    if is_padded && scale.zero_point != 0 { Err(Obstacle::PaddedNegativeInput) } else { Ok(scale) }
}

/// Replaces the convolutions of `layers` in an evaluation program that is fused but not tiled. `scales` are
/// those of values by name; a value without one is not stored in int8.
///
/// # Errors
/// If the program trains, or one of the layers does not exist or cannot run in int8.
pub fn quantise(
    program: &Program,
    scales: &BTreeMap<String, Uint8Scale>,
    layers: &BTreeSet<String>,
) -> Result<QuantisedProgram, EngineError> {
    if program.mode != Mode::Evaluate || !program.sections.is_empty() {
        return Err(EngineError::InvalidRequest("only a whole evaluation program runs in int8".to_owned()));
    }
    let mut pass = Pass { program: program.clone(), scales, layers: Vec::new(), maps: BTreeMap::new() };
    pass.replace(layers)?;
    fuse_sums(&mut pass.program, with_sum);
    pass.store_in_bytes();
    pass.quantise_inputs();
    let Pass { mut program, layers, maps, .. } = pass;
    drop_unread_parameters(&mut program);
    program.verify("quantise")?;
    Ok(QuantisedProgram { program, layers, maps })
}

/// Drops the parameters and transient values that no step uses any more.
fn drop_unread_parameters(program: &mut Program) {
    let is_kept = |role| {
        !matches!(role, Role::Parameter | Role::Frozen | Role::ComputeCopy | Role::Buffer | Role::Transient)
    };
    let mut used: Vec<bool> = program.values.iter().map(|value| is_kept(value.role)).collect();
    for id in program.steps.iter().flat_map(Step::operands) {
        used[id.0] = true;
        used[program.master_of(id).0] = true;
    }
    program.retain_values(&used);
}

/// The kernel with a sum, if it is a replaced convolution that nothing was fused with.
fn with_sum(kernel: &Kernel, relu: bool) -> Option<Kernel> {
    match *kernel {
        Kernel::QuantisedConv2d(kernel) if !kernel.relu && kernel.addend == Addend::None => {
            Some(QuantisedConv2d { relu, addend: Addend::Real, ..kernel }.into())
        }
        _ => None,
    }
}

struct Pass<'a> {
    program: Program,
    scales: &'a BTreeMap<String, Uint8Scale>,
    layers: Vec<QuantisedLayer>,
    maps: BTreeMap<String, QuantisedMap>,
}

impl Pass<'_> {
    fn scale(&self, id: ValueId) -> Option<Uint8Scale> {
        self.scales.get(&self.program.value(id).name).copied()
    }

    /// Replaces the convolutions of `layers`; inputs and outputs are real numbers for now.
    fn replace(&mut self, layers: &BTreeSet<String>) -> Result<(), EngineError> {
        let mut missing: BTreeSet<&str> = layers.iter().map(String::as_str).collect();
        for position in 0..self.program.steps.len() {
            let step = self.program.steps[position].clone();
            let layer = main_layer(&self.program, &step).to_owned();
            let Kernel::Conv2dForward(forward) = &step.kernel else { continue };
            if !missing.remove(layer.as_str()) {
                continue;
            }
            let input = named_scale(&self.program, &step, self.scales).map_err(|obstacle| {
                let reason = obstacle.reason();
                EngineError::InvalidRequest(format!("layer `{layer}` cannot run in int8: {reason}"))
            })?;
            let parameters = step.inputs[1..].iter();
            let parameters: Vec<String> =
                parameters.map(|&id| self.program.value(self.program.master_of(id)).name.clone()).collect();
            let conv = Conv2d { bias: true, ..forward.conv };
            let weight = &parameters[0];
            let [weights, scales, biases] =
                ["int8", "scale", "bias"].map(|label| format!("{weight}:{label}"));
            let add = |program: &mut Program, name: &str, shape: &[usize], dtype| {
                program.add_value(name, shape, dtype, Role::Constant)
            };
            let channels = [conv.out_channels];
            let program = &mut self.program;
            let inputs = vec![
                step.inputs[0],
                add(program, &weights, &conv.weight_shape(), DType::I8),
                add(program, &scales, &channels, DType::F32),
                add(program, &biases, &channels, DType::F32),
            ];
            let kernel = QuantisedConv2d { conv, relu: forward.relu, addend: Addend::None, output: None };
            program.steps[position] = Step { kernel: kernel.into(), inputs, ..step };
            let constants = [weights, scales, biases];
            self.layers.push(QuantisedLayer { layer, conv, input, parameters, constants });
        }
        match missing.first() {
            None => Ok(()),
            Some(layer) => {
                Err(EngineError::InvalidRequest(format!("the network has no convolution `{layer}`")))
            }
        }
    }

    /// Stores as uint8 the maps that replaced convolutions write and only they read.
    fn store_in_bytes(&mut self) {
        for position in 0..self.program.steps.len() {
            let step = &self.program.steps[position];
            let (Kernel::QuantisedConv2d(_), Some(&output)) = (&step.kernel, step.outputs.first()) else {
                continue;
            };
            let Some(scale) = self.scale(output) else { continue };
            let readers: Vec<usize> = self.program.readers(output).collect();
            let accepts =
                |&reader: &usize| matches!(self.program.steps[reader].kernel, Kernel::QuantisedConv2d(_));
            if readers.is_empty() || !readers.iter().all(accepts) {
                continue;
            }
            self.program.values[output.0].dtype = DType::U8;
            self.maps
                .insert(self.program.value(output).name.clone(), QuantisedMap { scale, is_stored: true });
            for &reader in &readers {
                let is_addend = self.program.steps[reader].inputs.get(4) == Some(&output);
                let Kernel::QuantisedConv2d(kernel) = &mut self.program.steps[reader].kernel else {
                    continue;
                };
                if is_addend {
                    kernel.addend = Addend::Bytes(scale);
                }
            }
            if let Kernel::QuantisedConv2d(kernel) = &mut self.program.steps[position].kernel {
                kernel.output = Some(scale);
            }
        }
    }

    /// Adds a step before the first replaced convolution that reads a map of real numbers.
    fn quantise_inputs(&mut self) {
        let mut quantised: HashMap<ValueId, ValueId> = HashMap::new();
        let mut steps = Vec::with_capacity(self.program.steps.len());
        for mut step in std::mem::take(&mut self.program.steps) {
            let x = step.inputs.first().copied();
            let is_replaced = matches!(step.kernel, Kernel::QuantisedConv2d(_));
            if let (true, Some(x)) = (is_replaced, x)
                && self.program.value(x).dtype != DType::U8
                && let Some(bytes) = self.scale(x)
            {
                step.inputs[0] = *quantised.entry(x).or_insert_with(|| {
                    let value = self.program.value(x);
                    self.maps.insert(value.name.clone(), QuantisedMap { scale: bytes, is_stored: false });
                    let (name, shape) = (format!("{}:uint8", value.name), value.shape.clone());
                    let output = self.program.add_samples(name, &shape, DType::U8);
                    steps.push(Step {
                        kernel: Quantise { bytes }.into(),
                        phase: Phase::Forward,
                        layers: step.layers.clone(),
                        inputs: vec![x],
                        updates: vec![],
                        outputs: vec![output],
                    });
                    output
                });
            }
            steps.push(step);
        }
        self.program.steps = steps;
    }
}
