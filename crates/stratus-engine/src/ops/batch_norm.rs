//! Batch normalisation, alone or fused with an activation, or with ReLU and max pooling.
//!
//! Batch norm, activations and pooling are bound by memory bandwidth. Fused, the normalised map is never
//! written, and neither is its gradient. Batch statistics and the sums of
//! the backward pass are separate kernels, so that the steps before and after them can run in tiles. A norm
//! whose output is concatenated with others writes its channels of the concatenated map directly; one that
//! reads a horizontally fused convolution reads its channels of the joint map. Gradients use the same
//! channels: see [`ChannelOffsets`].
//!
//! Vectors `[N, C]` are maps of one pixel. After a linear layer they have the master precision; outputs and
//! gradients have the compute precision.

use super::batch_norm_names::{NormKernel, name};
use super::{
    FusedActivation, KernelSpec, Tiling, WorkKind, expect_channels, expect_counts, expect_f64, expect_index,
    expect_same_shape, expect_shape, image_shape,
};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{DType, EngineError, Kernel, Phase, Step, Value, ValueId};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::{BatchNorm2d, MaxPool2d};

/// Channel slices start at multiples of this many channels, so that no channel block of a blocked layout
/// belongs to two slices.
pub const CHANNEL_SLICE_ALIGNMENT: usize = 16;

/// The first channel of a norm within a larger map; `None` if the map belongs to the norm alone, as always
/// with pooling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelOffsets {
    /// In the input and its gradient.
    #[serde(default)]
    pub x: Option<usize>,
    /// In the output and its gradient.
    #[serde(default)]
    pub y: Option<usize>,
}

/// The max pooling after a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FusedPool {
    /// Window `[vertical, horizontal]`. Without [`Self::overlapping`] it is also the stride, and there is no
    /// padding.
    pub window: [usize; 2],
    /// The complete attributes, if windows overlap or are padded.
    #[serde(default)]
    pub overlapping: Option<MaxPool2d>,
}

impl FusedPool {
    /// A pooling with windows that neither overlap nor are padded.
    #[must_use]
    pub const fn disjoint(window: [usize; 2]) -> Self {
        Self { window, overlapping: None }
    }

    /// The fused form of a pooling, if it can be fused: the argmax within a window and
    /// [`RELU_MASKED`](Self::RELU_MASKED) must fit a byte.
    #[must_use]
    pub fn from_pool(pool: &MaxPool2d) -> Option<Self> {
        let disjoint = pool.kernel == pool.stride && pool.padding == [0, 0] && !pool.ceil_mode;
        let fits = pool.kernel.iter().product::<usize>() <= usize::from(Self::RELU_MASKED);
        let fused = Self { window: pool.kernel, overlapping: (!disjoint).then_some(*pool) };
        fits.then_some(fused)
    }

    /// The index value of an output whose maximum ReLU masks, so that no gradient passes.
    pub const RELU_MASKED: u8 = 255;

    /// The attributes of the pooling.
    #[must_use]
    pub fn pool(&self) -> MaxPool2d {
        self.overlapping.unwrap_or(MaxPool2d {
            kernel: self.window,
            stride: self.window,
            padding: [0, 0],
            ceil_mode: false,
        })
    }

    /// The shape `[N, C, …]` of the pooled map; its extents are 0 if no window fits.
    #[must_use]
    pub fn output_shape(&self, shape: [usize; 4]) -> [usize; 4] {
        let [height, width] = self.pool().output_size([shape[2], shape[3]]).unwrap_or_default();
        [shape[0], shape[1], height, width]
    }
}

/// `x updates (running_mean, running_var) -> mean, inverse_deviation, moments f64 [2, C]`: the batch
/// statistics.
///
/// `inverse_deviation` is `1 / sqrt(variance + epsilon)` with the biased variance; the running variance is
/// unbiased, as in PyTorch. `moments` accumulates mean and sum of squared deviations over the tiles, combined
/// as in Chan, Golub, LeVeque ("Updating formulae and a pairwise algorithm for computing sample variances",
/// 1979).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormStatistics {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// The first of its channels within a larger map.
    #[serde(rename = "part")]
    pub offset: Option<usize>,
}

/// `(x, weight, bias, mean, inverse_deviation) -> y, index?`. The first channel slice of a map outputs `y`;
/// later slices update it.
///
/// With a pool, `index` (u8) is the argmax within the window, in row-major order, or
/// [`FusedPool::RELU_MASKED`] if ReLU is inactive at the maximum and no gradient passes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormApply {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// The activation of the result.
    #[serde(alias = "relu", deserialize_with = "super::fused_activation::read")]
    pub activation: FusedActivation,
    /// The fused pooling of the result, if any.
    pub pool: Option<FusedPool>,
    /// Its channels within larger maps.
    #[serde(rename = "parts")]
    pub offsets: ChannelOffsets,
}

/// `(x, weight, bias, running_mean, running_var) -> y, index?`: for evaluation, and for training frozen
/// layers. `index`, as in [`BatchNormApply`], is written only in training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormInference {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// The activation of the result.
    #[serde(alias = "relu", deserialize_with = "super::fused_activation::read")]
    pub activation: FusedActivation,
    /// The fused pooling of the result, if any.
    pub pool: Option<FusedPool>,
    /// Its channels within larger maps.
    #[serde(rename = "parts")]
    pub offsets: ChannelOffsets,
}

/// `(x, dy, weight, bias, mean, inverse_deviation, index?) -> dweight, dbias, sums f64 [2, C]`.
///
/// `sums` accumulates the sums of the gradient after ReLU, and of its product with `x - mean`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormGradients {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// The activation of the result.
    #[serde(alias = "relu", deserialize_with = "super::fused_activation::read")]
    pub activation: FusedActivation,
    /// The fused pooling of the result, if any.
    pub pool: Option<FusedPool>,
    /// Its channels within larger maps.
    #[serde(rename = "parts")]
    pub offsets: ChannelOffsets,
}

/// `(x, dy, weight, bias, mean, inverse_deviation, dweight, dbias, index?) -> dx`. The first channel slice of
/// a gradient outputs it; later slices update it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormBackwardData {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// The activation of the result.
    #[serde(alias = "relu", deserialize_with = "super::fused_activation::read")]
    pub activation: FusedActivation,
    /// The fused pooling of the result, if any.
    pub pool: Option<FusedPool>,
    /// Its channels within larger maps.
    #[serde(rename = "parts")]
    pub offsets: ChannelOffsets,
}

/// `(x, dy, weight, bias, running_mean, running_var, index?) -> dx`: the statistics are constants. Channel
/// slices as in [`BatchNormBackwardData`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormInferenceBackward {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// The activation of the result.
    #[serde(alias = "relu", deserialize_with = "super::fused_activation::read")]
    pub activation: FusedActivation,
    /// The fused pooling of the result, if any.
    pub pool: Option<FusedPool>,
    /// Its channels within larger maps.
    #[serde(rename = "parts")]
    pub offsets: ChannelOffsets,
}

pub(super) fn lower(op: &BatchNorm2d, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let x = lowering.unflattened_input(node, 0);
    let [weight, bias, running_mean, running_var] = [0, 1, 2, 3].map(|i| lowering.parameter(node, i));
    let y = lowering.output(node);
    let (norm, pool, parts) = (*op, None, ChannelOffsets::default());
    let activation = FusedActivation::Identity;
    if lowering.is_training(node) {
        let master = lowering.precision().master();
        let saved = |lowering: &mut Lowering, part| lowering.saved(node, part, &[op.channels], master);
        let (mean, inverse_deviation) = (saved(lowering, ":mean"), saved(lowering, ":inverse_deviation"));
        let moments = lowering.saved(node, ":moments", &[2, op.channels], DType::F64);
        let outputs = vec![mean, inverse_deviation, moments];
        let statistics = BatchNormStatistics { norm, offset: None };
        lowering.push(node, statistics, vec![x], vec![running_mean, running_var], outputs);
        let inputs = vec![x, weight, bias, mean, inverse_deviation];
        lowering.push(
            node,
            BatchNormApply { norm, activation, pool, offsets: parts },
            inputs,
            vec![],
            vec![y],
        );
    } else {
        let inputs = vec![x, weight, bias, running_mean, running_var];
        lowering.push(
            node,
            BatchNormInference { norm, activation, pool, offsets: parts },
            inputs,
            vec![],
            vec![y],
        );
    }
    Ok(())
}

/// Adds the step that computes the gradient of `x` or of a slice of it. Only the norm contributes to the
/// gradient of its slice.
fn add_gradient_of_input(
    step: &Step,
    x: ValueId,
    parts: ChannelOffsets,
    kernel: impl Into<Kernel>,
    inputs: Vec<ValueId>,
    backward: &mut Differentiator,
) {
    let phase = Phase::BackwardData;
    match (parts.x, backward.gradient(x)) {
        (Some(_), Some(whole)) => backward.push(step, kernel, phase, inputs, vec![whole], vec![]),
        _ => backward
            .add_gradient(x, |backward, dx| backward.push(step, kernel, phase, inputs, vec![], vec![dx])),
    }
}

/// The map that a step writes, whole or in part.
fn written_map(step: &Step) -> ValueId {
    step.outputs.first().copied().unwrap_or_else(|| step.updates[0])
}

/// Checks the operand counts of a step that writes a map. The first slice outputs the map; later slices
/// update it.
fn expect_counts_of_written_map(
    counts: [usize; 3],
    whole_map_counts: &[[usize; 3]],
    part: Option<usize>,
) -> Result<(), String> {
    let [inputs, ..] = whole_map_counts[0];
    match part {
        Some(_) => expect_counts(counts, &[[inputs, 0, 1], [inputs, 1, 0]]),
        None => expect_counts(counts, whole_map_counts),
    }
}

/// Checks that a map of `shape` is a slice of another, starting at channel `first`.
fn expect_slice(whole: &Value, first: usize, shape: [usize; 4]) -> Result<(), String> {
    expect_channels(whole, first, shape)?;
    let end = first + shape[1];
    let is_aligned = |channel: usize| channel.is_multiple_of(CHANNEL_SLICE_ALIGNMENT);
    if is_aligned(first) && (is_aligned(end) || whole.shape.get(1) == Some(&end)) {
        return Ok(());
    }
    Err(format!("channels {first}..{end} of `{}` are not aligned to {CHANNEL_SLICE_ALIGNMENT}", whole.name))
}

/// Checks that backends have kernels of a norm with this activation, and with pooling if there is a `pool`.
fn check_activation(activation: FusedActivation, pool: Option<FusedPool>) -> Result<(), String> {
    match activation {
        FusedActivation::Activation(activation) if FusedActivation::after_norm(activation).is_none() => {
            Err(format!("a batch norm cannot include {}", activation.name()))
        }
        _ if pool.is_some() && activation.as_plain_relu().is_none() => {
            Err("a pooled batch norm cannot include an activation other than ReLU".to_owned())
        }
        _ => Ok(()),
    }
}

/// Checks x, y and everything per channel.
pub(super) fn check_all(
    norm: &BatchNorm2d,
    (pool, parts): (Option<FusedPool>, ChannelOffsets),
    x: &Value,
    y: &Value,
    channels: &[&Value],
) -> Result<(), String> {
    let shape = match x.shape[..] {
        [batch, features] if pool.is_none() && parts == ChannelOffsets::default() => [batch, features, 1, 1],
        _ => image_shape(x)?,
    };
    let [batch, channels_of_x, height, width] = shape;
    let norm_shape = [batch, norm.channels, height, width];
    match parts.x {
        Some(first) => expect_slice(x, first, norm_shape)?,
        None if channels_of_x != norm.channels => {
            return Err(format!("`{}`: expected {} channels, got {channels_of_x}", x.name, norm.channels));
        }
        None => {}
    }
    match (pool, parts.y) {
        (Some(pool), None) if parts.x.is_none() => expect_shape(y, &pool.output_shape(norm_shape))?,
        (None, Some(first)) => expect_slice(y, first, norm_shape)?,
        (None, None) if parts.x.is_some() => expect_shape(y, &norm_shape)?,
        (None, None) => expect_same_shape(x, y)?,
        (Some(_), _) => return Err("a pooled batch norm cannot write into a slice of another map".to_owned()),
    }
    if batch * height * width == 0 {
        return Err(format!("`{}` is empty", x.name));
    }
    channels.iter().try_for_each(|value| expect_shape(value, &[norm.channels]))
}

/// Elements of a norm's channels of `map`.
fn elements(norm: &BatchNorm2d, map: &Value) -> u64 {
    let channels = map.shape.get(1).copied().unwrap_or(1).max(1);
    (map.elements() / channels * norm.channels) as u64
}

/// The number of channels that a norm reads or writes in the operand at `position`, if the operand is a
/// larger map. `x` holds the positions of the norm's input and of the input's gradient, `y` the position of
/// its output or of the output's gradient.
fn channels_touched_at(
    norm: &BatchNorm2d,
    parts: ChannelOffsets,
    position: usize,
    x: [usize; 2],
    y: usize,
) -> Option<usize> {
    let is_part = parts.x.is_some() && x.contains(&position) || parts.y.is_some() && position == y;
    is_part.then_some(norm.channels)
}

fn check_index(pool: Option<FusedPool>, y: &Value, index: Option<&&Value>) -> Result<(), String> {
    if pool.is_some() { expect_index(y, index.copied()) } else { Ok(()) }
}

impl KernelSpec for BatchNormStatistics {
    fn name(&self) -> &'static str {
        "batch_norm_statistics"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 2, 3]])?;
        let (x, parts) = (operands[0], ChannelOffsets { x: self.offset, y: self.offset });
        check_all(&self.norm, (None, parts), x, x, &operands[1..5])?;
        expect_shape(operands[5], &[2, self.norm.channels])?;
        expect_f64(operands[5])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
    }

    fn tiling(&self) -> Tiling {
        Tiling::Accumulates
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        3 * elements(&self.norm, operands[0])
    }

    fn channels_touched(&self, _operands: &[&Value], position: usize) -> Option<usize> {
        (self.offset.is_some() && position == 0).then_some(self.norm.channels)
    }

    fn differentiate(&self, _step: &Step, _backward: &mut Differentiator) -> Result<(), EngineError> {
        // Handled by the derivative of the step that applies the statistics.
        Ok(())
    }
}

impl KernelSpec for BatchNormApply {
    fn name(&self) -> &'static str {
        name(NormKernel::Apply, self.activation, self.pool.is_some())
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        check_activation(self.activation, self.pool)?;
        let outputs = if self.pool.is_some() { 2 } else { 1 };
        expect_counts_of_written_map(counts, &[[5, 0, outputs]], self.offsets.y)?;
        check_all(&self.norm, (self.pool, self.offsets), operands[0], operands[5], &operands[1..5])?;
        check_index(self.pool, operands[5], operands.get(6))
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn channels_touched(&self, _operands: &[&Value], position: usize) -> Option<usize> {
        channels_touched_at(&self.norm, self.offsets, position, [0, 0], 5)
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * elements(&self.norm, operands[0])
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let Some(dy) = backward.gradient(written_map(step)) else { return Ok(()) };
        let (norm, activation, pool, parts) = (self.norm, self.activation, self.pool, self.offsets);
        let [x, weight, bias, mean, inverse_deviation] = step.inputs[..] else {
            return Err(backward.no_derivative(step));
        };
        let index = step.outputs.get(1);
        let (dweight, dbias) = (backward.parameter_gradient(weight), backward.parameter_gradient(bias));
        let sums = backward.sums(step, &[2, norm.channels]);
        let mut inputs = vec![x, dy, weight, bias, mean, inverse_deviation];
        let mut sources = [&inputs[..], &[dweight, dbias]].concat();
        inputs.extend(index);
        sources.extend(index);
        let outputs = vec![dweight, dbias, sums];
        let gradients = BatchNormGradients { norm, activation, pool, offsets: parts };
        backward.push(step, gradients, Phase::BackwardWeights, inputs, vec![], outputs);
        if backward.requires_grad(x) {
            let kernel = BatchNormBackwardData { norm, activation, pool, offsets: parts };
            add_gradient_of_input(step, x, parts, kernel, sources, backward);
        }
        Ok(())
    }
}

impl KernelSpec for BatchNormInference {
    fn name(&self) -> &'static str {
        "batch_norm_inference"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        check_activation(self.activation, self.pool)?;
        let allowed: &[[usize; 3]] = if self.pool.is_some() { &[[5, 0, 1], [5, 0, 2]] } else { &[[5, 0, 1]] };
        expect_counts_of_written_map(counts, allowed, self.offsets.y)?;
        check_all(&self.norm, (self.pool, self.offsets), operands[0], operands[5], &operands[1..5])?;
        if counts[2] == 2 { check_index(self.pool, operands[5], operands.get(6)) } else { Ok(()) }
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn channels_touched(&self, _operands: &[&Value], position: usize) -> Option<usize> {
        channels_touched_at(&self.norm, self.offsets, position, [0, 0], 5)
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * elements(&self.norm, operands[0])
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let (x, y) = (step.inputs[0], written_map(step));
        let Some(dy) = backward.gradient(y) else { return Ok(()) };
        if !backward.requires_grad(x) {
            return Ok(());
        }
        let (norm, activation, pool, parts) = (self.norm, self.activation, self.pool, self.offsets);
        let mut inputs = vec![x, dy];
        inputs.extend(&step.inputs[1..]);
        match (pool, step.outputs.get(1)) {
            (None, _) => {}
            (Some(_), Some(&index)) => inputs.push(index),
            (Some(_), None) => return Err(backward.no_derivative(step)),
        }
        let kernel = BatchNormInferenceBackward { norm, activation, pool, offsets: parts };
        add_gradient_of_input(step, x, parts, kernel, inputs, backward);
        Ok(())
    }
}

impl KernelSpec for BatchNormInferenceBackward {
    fn name(&self) -> &'static str {
        name(NormKernel::InferenceBackward, self.activation, self.pool.is_some())
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        check_activation(self.activation, self.pool)?;
        let inputs = if self.pool.is_some() { 7 } else { 6 };
        expect_counts_of_written_map(counts, &[[inputs, 0, 1]], self.offsets.x)?;
        check_all(&self.norm, (self.pool, self.offsets), operands[0], operands[1], &operands[2..6])?;
        expect_same_shape(operands[0], operands[inputs])?;
        check_index(self.pool, operands[1], operands.get(6))
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn channels_touched(&self, operands: &[&Value], position: usize) -> Option<usize> {
        channels_touched_at(&self.norm, self.offsets, position, [0, operands.len() - 1], 1)
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * elements(&self.norm, operands[0])
    }
}

impl KernelSpec for BatchNormGradients {
    fn name(&self) -> &'static str {
        name(NormKernel::Gradients, self.activation, self.pool.is_some())
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        check_activation(self.activation, self.pool)?;
        let inputs = if self.pool.is_some() { 7 } else { 6 };
        expect_counts(counts, &[[inputs, 0, 3]])?;
        let channels = [&operands[2..6], &operands[inputs..inputs + 2]].concat();
        check_all(&self.norm, (self.pool, self.offsets), operands[0], operands[1], &channels)?;
        expect_shape(operands[inputs + 2], &[2, self.norm.channels])?;
        expect_f64(operands[inputs + 2])?;
        check_index(self.pool, operands[1], operands.get(6))
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
    }

    fn tiling(&self) -> Tiling {
        Tiling::Accumulates
    }

    fn channels_touched(&self, _operands: &[&Value], position: usize) -> Option<usize> {
        channels_touched_at(&self.norm, self.offsets, position, [0, 0], 1)
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        4 * elements(&self.norm, operands[0])
    }
}

impl KernelSpec for BatchNormBackwardData {
    fn name(&self) -> &'static str {
        name(NormKernel::BackwardData, self.activation, self.pool.is_some())
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        check_activation(self.activation, self.pool)?;
        let inputs = if self.pool.is_some() { 9 } else { 8 };
        expect_counts_of_written_map(counts, &[[inputs, 0, 1]], self.offsets.x)?;
        check_all(&self.norm, (self.pool, self.offsets), operands[0], operands[1], &operands[2..8])?;
        expect_same_shape(operands[0], operands[inputs])?;
        check_index(self.pool, operands[1], operands.get(8))
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Normalisation
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn channels_touched(&self, operands: &[&Value], position: usize) -> Option<usize> {
        channels_touched_at(&self.norm, self.offsets, position, [0, operands.len() - 1], 1)
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        4 * elements(&self.norm, operands[0])
    }
}
