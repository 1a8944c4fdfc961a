//! Batch normalisation, alone or with what follows it: the rectifier and max-pooling.
//!
//! Batch norm, ReLU and pooling are bound by memory bandwidth. Fused, the normalised map is never written,
//! and the gradient of the pooled map is not scattered into a map of its own. Batch statistics are a kernel
//! of their own, and so are the sums of the backward pass, so that the steps before and after them can run in
//! tiles. A norm whose output is concatenated with others writes its channels of the concatenated map
//! directly; one that reads a horizontally fused convolution reads its channels of the joint map. Gradients
//! follow the same channels: see [`Parts`].
//!
//! Vectors `[N, C]` are maps of one pixel. After a linear layer they have the master precision; outputs and
//! gradients have the compute precision.

use super::{
    KernelSpec, Tiling, expect_channels, expect_counts, expect_f64, expect_index, expect_same_shape,
    expect_shape, image_shape, no_kernel,
};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{DType, EngineError, Kernel, Phase, Step, Value, ValueId};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::{BatchNorm2d, MaxPool2d};

/// Parts of a map begin at multiples of this many channels, so that no block of a layout with blocked
/// channels belongs to two parts.
pub const PART_BORDER: usize = 16;

/// The first channel of a norm within a larger map; `None` where the map is the norm's alone, as it always is
/// with pooling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// In the input and its gradient.
    #[serde(default)]
    pub x: Option<usize>,
    /// In the output and its gradient.
    #[serde(default)]
    pub y: Option<usize>,
}

/// The max-pooling after a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FusedPool {
    /// Window `[vertical, horizontal]`. Without [`Self::overlapping`] it is the stride too, and there is no
    /// padding.
    pub window: [usize; 2],
    /// The whole pooling, where its windows overlap or are padded.
    #[serde(default)]
    pub overlapping: Option<MaxPool2d>,
}

impl FusedPool {
    /// Windows that neither overlap nor are padded.
    #[must_use]
    pub const fn disjoint(window: [usize; 2]) -> Self {
        Self { window, overlapping: None }
    }

    /// The pooling, where it can be fused: the argmax within a window and [`CUT`](Self::CUT) must fit a byte.
    #[must_use]
    pub fn from_pool(pool: &MaxPool2d) -> Option<Self> {
        let disjoint = pool.kernel == pool.stride && pool.padding == [0, 0] && !pool.ceil_mode;
        let fits = pool.kernel.iter().product::<usize>() <= usize::from(Self::CUT);
        let fused = Self { window: pool.kernel, overlapping: (!disjoint).then_some(*pool) };
        fits.then_some(fused)
    }

    /// The index where ReLU is inactive at the maximum, so that no gradient passes.
    pub const CUT: u8 = 255;

    /// The pooling by itself.
    #[must_use]
    pub fn pool(&self) -> MaxPool2d {
        self.overlapping.unwrap_or(MaxPool2d {
            kernel: self.window,
            stride: self.window,
            padding: [0, 0],
            ceil_mode: false,
        })
    }

    /// `[N, C, …]`, with the extents of the pooled map; these are 0 where no window fits.
    #[must_use]
    pub fn output_shape(&self, shape: [usize; 4]) -> [usize; 4] {
        let [height, width] = self.pool().output_size([shape[2], shape[3]]).unwrap_or_default();
        [shape[0], shape[1], height, width]
    }
}

/// `x updates (running_mean, running_var) -> mean, inverse_deviation, moments f64 [2, C]`: what the batch is
/// normalised by.
///
/// `inverse_deviation` is `1 / sqrt(variance + epsilon)` with the biased variance; the running variance is
/// unbiased, as in PyTorch. `moments` holds mean and sum of squared deviations of the tiles so far, combined
/// as in Chan, Golub, LeVeque ("Updating formulae and a pairwise algorithm for computing sample variances",
/// 1979).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormStatistics {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// The first of its channels, where these are part of a larger map.
    pub part: Option<usize>,
}

/// `(x, weight, bias, mean, inverse_deviation) -> y, index?`. The first part of a map that is written makes
/// `y`, the others update it.
///
/// With a pool, `index` (u8) is the argmax within the window, in row-major order, or [`FusedPool::CUT`] where
/// ReLU is inactive at the maximum and no gradient passes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormApply {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// Whether the result is rectified.
    pub relu: bool,
    /// Whether the result is pooled.
    pub pool: Option<FusedPool>,
    /// Its channels within larger maps.
    pub parts: Parts,
}

/// `(x, weight, bias, running_mean, running_var) -> y, index?`: in evaluation, and in training where the
/// layer is frozen. Only there the `index` of [`BatchNormApply`] is made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormInference {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// Whether the result is rectified.
    pub relu: bool,
    /// Whether the result is pooled.
    pub pool: Option<FusedPool>,
    /// Which channels of larger maps its own are.
    pub parts: Parts,
}

/// `(x, dy, weight, bias, mean, inverse_deviation, index?) -> dweight, dbias, sums f64 [2, C]`.
///
/// `sums` holds what was added up so far: of the gradient behind the rectifier, and of the same times
/// `x - mean`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormGradients {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// Whether the result was rectified.
    pub relu: bool,
    /// Whether the result was pooled.
    pub pool: Option<FusedPool>,
    /// Which channels of larger maps its own are.
    pub parts: Parts,
}

/// `(x, dy, weight, bias, mean, inverse_deviation, dweight, dbias, index?) -> dx`. The first part of a
/// gradient that is written makes it, the others update it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormBackwardData {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// Whether the result was rectified.
    pub relu: bool,
    /// Whether the result was pooled.
    pub pool: Option<FusedPool>,
    /// Which channels of larger maps its own are.
    pub parts: Parts,
}

/// `(x, dy, weight, bias, running_mean, running_var, index?) -> dx`: the statistics are constants. Parts as
/// in [`BatchNormBackwardData`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNormInferenceBackward {
    /// Attributes.
    pub norm: BatchNorm2d,
    /// Whether the result was rectified.
    pub relu: bool,
    /// Whether the result was pooled.
    pub pool: Option<FusedPool>,
    /// Which channels of larger maps its own are.
    pub parts: Parts,
}

pub(super) fn lower(op: &BatchNorm2d, node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    let x = to.input(node, 0);
    let [weight, bias, running_mean, running_var] = [0, 1, 2, 3].map(|i| to.parameter(node, i));
    let y = to.output(node);
    if to.shape(x) != to.shape(y) {
        // What was flattened lies as the map did.
        return Err(no_kernel(
            node,
            "its input is a flattened map; normalise the map before it is flattened",
        ));
    }
    let (norm, relu, pool, parts) = (*op, false, None, Parts::default());
    if to.trains(node) {
        let master = to.precision().master();
        let saved = |to: &mut Lowering, part| to.saved(node, part, &[op.channels], master);
        let (mean, inverse_deviation) = (saved(to, ":mean"), saved(to, ":inverse_deviation"));
        let moments = to.saved(node, ":moments", &[2, op.channels], DType::F64);
        let outputs = vec![mean, inverse_deviation, moments];
        let statistics = BatchNormStatistics { norm, part: None };
        to.push(node, statistics, vec![x], vec![running_mean, running_var], outputs);
        let inputs = vec![x, weight, bias, mean, inverse_deviation];
        to.push(node, BatchNormApply { norm, relu, pool, parts }, inputs, vec![], vec![y]);
    } else {
        let inputs = vec![x, weight, bias, running_mean, running_var];
        to.push(node, BatchNormInference { norm, relu, pool, parts }, inputs, vec![], vec![y]);
    }
    Ok(())
}

/// Adds the step that makes the gradient of `x` or of a part of it. Of a part nothing but its norm has a
/// gradient.
fn add_gradient_of_input(
    step: &Step,
    x: ValueId,
    parts: Parts,
    kernel: impl Into<Kernel>,
    inputs: Vec<ValueId>,
    to: &mut Differentiator,
) {
    let phase = Phase::BackwardData;
    match (parts.x, to.gradient(x)) {
        (Some(_), Some(whole)) => to.push(step, kernel, phase, inputs, vec![whole], vec![]),
        _ => to.add_gradient(x, |to, dx| to.push(step, kernel, phase, inputs, vec![], vec![dx])),
    }
}

/// The value that a step makes, or makes a part of.
fn result(step: &Step) -> ValueId {
    step.outputs.first().copied().unwrap_or_else(|| step.updates[0])
}

/// What a step takes that makes a map: the first part of one makes it, the others update it.
fn expect_counts_of_result(
    counts: [usize; 3],
    of_whole: &[[usize; 3]],
    part: Option<usize>,
) -> Result<(), String> {
    let [inputs, ..] = of_whole[0];
    match part {
        Some(_) => expect_counts(counts, &[[inputs, 0, 1], [inputs, 1, 0]]),
        None => expect_counts(counts, of_whole),
    }
}

/// Checks that a map of `shape` is a part of another, from the channel `first` on.
fn expect_part(whole: &Value, first: usize, shape: [usize; 4]) -> Result<(), String> {
    expect_channels(whole, first, shape)?;
    let end = first + shape[1];
    let is_border = |channel: usize| channel.is_multiple_of(PART_BORDER);
    if is_border(first) && (is_border(end) || whole.shape.get(1) == Some(&end)) {
        return Ok(());
    }
    Err(format!("the channels {first} to {end} of `{}` end within blocks of {PART_BORDER}", whole.name))
}

/// Checks x, y and everything per channel.
pub(super) fn check_all(
    norm: &BatchNorm2d,
    (pool, parts): (Option<FusedPool>, Parts),
    x: &Value,
    y: &Value,
    channels: &[&Value],
) -> Result<(), String> {
    let shape = match x.shape[..] {
        [batch, features] if pool.is_none() && parts == Parts::default() => [batch, features, 1, 1],
        _ => image_shape(x)?,
    };
    let [batch, of_x, height, width] = shape;
    let own = [batch, norm.channels, height, width];
    match parts.x {
        Some(first) => expect_part(x, first, own)?,
        None if of_x != norm.channels => {
            return Err(format!("`{}` has {of_x} channels, the batch norm takes {}", x.name, norm.channels));
        }
        None => {}
    }
    match (pool, parts.y) {
        (Some(pool), None) if parts.x.is_none() => expect_shape(y, &pool.output_shape(own))?,
        (None, Some(first)) => expect_part(y, first, own)?,
        (None, None) if parts.x.is_some() => expect_shape(y, &own)?,
        (None, None) => expect_same_shape(x, y)?,
        (Some(_), _) => return Err("what is pooled is no part of another map".to_owned()),
    }
    if batch * height * width == 0 {
        return Err(format!("`{}` is empty", x.name));
    }
    channels.iter().try_for_each(|value| expect_shape(value, &[norm.channels]))
}

/// Elements of the channels of `map` that a norm has.
fn elements(norm: &BatchNorm2d, map: &Value) -> u64 {
    let channels = map.shape.get(1).copied().unwrap_or(1).max(1);
    (map.elements() / channels * norm.channels) as u64
}

/// How many channels a norm reads or writes of the operand at `position`, where that is a larger map: its own
/// map or the gradient of that, which are at `x`, or the result or the gradient of that, at `y`.
fn touched(norm: &BatchNorm2d, parts: Parts, position: usize, x: [usize; 2], y: usize) -> Option<usize> {
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
        let (x, parts) = (operands[0], Parts { x: self.part, y: self.part });
        check_all(&self.norm, (None, parts), x, x, &operands[1..5])?;
        expect_shape(operands[5], &[2, self.norm.channels])?;
        expect_f64(operands[5])
    }

    fn tiling(&self) -> Tiling {
        Tiling::Continues
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        3 * elements(&self.norm, operands[0])
    }

    fn channels_touched(&self, _operands: &[&Value], position: usize) -> Option<usize> {
        (self.part.is_some() && position == 0).then_some(self.norm.channels)
    }

    fn differentiate(&self, _step: &Step, _to: &mut Differentiator) -> Result<(), EngineError> {
        // The derivative of what applies the statistics goes through them.
        Ok(())
    }
}

impl KernelSpec for BatchNormApply {
    fn name(&self) -> &'static str {
        match (self.relu, self.pool.is_some()) {
            (false, false) => "batch_norm_apply",
            (true, false) => "batch_norm_relu_apply",
            (false, true) => "batch_norm_pool_apply",
            (true, true) => "batch_norm_relu_pool_apply",
        }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let outputs = if self.pool.is_some() { 2 } else { 1 };
        expect_counts_of_result(counts, &[[5, 0, outputs]], self.parts.y)?;
        check_all(&self.norm, (self.pool, self.parts), operands[0], operands[5], &operands[1..5])?;
        check_index(self.pool, operands[5], operands.get(6))
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn channels_touched(&self, _operands: &[&Value], position: usize) -> Option<usize> {
        touched(&self.norm, self.parts, position, [0, 0], 5)
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * elements(&self.norm, operands[0])
    }

    fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
        let Some(dy) = to.gradient(result(step)) else { return Ok(()) };
        let (norm, relu, pool, parts) = (self.norm, self.relu, self.pool, self.parts);
        let [x, weight, bias, mean, inverse_deviation] = step.inputs[..] else {
            return Err(to.no_derivative(step));
        };
        let index = step.outputs.get(1);
        let (dweight, dbias) = (to.parameter_gradient(weight), to.parameter_gradient(bias));
        let sums = to.sums(step, &[2, norm.channels]);
        let mut inputs = vec![x, dy, weight, bias, mean, inverse_deviation];
        let mut sources = [&inputs[..], &[dweight, dbias]].concat();
        inputs.extend(index);
        sources.extend(index);
        let outputs = vec![dweight, dbias, sums];
        let gradients = BatchNormGradients { norm, relu, pool, parts };
        to.push(step, gradients, Phase::BackwardWeights, inputs, vec![], outputs);
        if to.wants_gradient(x) {
            let kernel = BatchNormBackwardData { norm, relu, pool, parts };
            add_gradient_of_input(step, x, parts, kernel, sources, to);
        }
        Ok(())
    }
}

impl KernelSpec for BatchNormInference {
    fn name(&self) -> &'static str {
        "batch_norm_inference"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let allowed: &[[usize; 3]] = if self.pool.is_some() { &[[5, 0, 1], [5, 0, 2]] } else { &[[5, 0, 1]] };
        expect_counts_of_result(counts, allowed, self.parts.y)?;
        check_all(&self.norm, (self.pool, self.parts), operands[0], operands[5], &operands[1..5])?;
        if counts[2] == 2 { check_index(self.pool, operands[5], operands.get(6)) } else { Ok(()) }
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn channels_touched(&self, _operands: &[&Value], position: usize) -> Option<usize> {
        touched(&self.norm, self.parts, position, [0, 0], 5)
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * elements(&self.norm, operands[0])
    }

    fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
        let (x, y) = (step.inputs[0], result(step));
        let Some(dy) = to.gradient(y) else { return Ok(()) };
        if !to.wants_gradient(x) {
            return Ok(());
        }
        let (norm, relu, pool, parts) = (self.norm, self.relu, self.pool, self.parts);
        let mut inputs = vec![x, dy];
        inputs.extend(&step.inputs[1..]);
        match (pool, step.outputs.get(1)) {
            (None, _) => {}
            (Some(_), Some(&index)) => inputs.push(index),
            (Some(_), None) => return Err(to.no_derivative(step)),
        }
        let kernel = BatchNormInferenceBackward { norm, relu, pool, parts };
        add_gradient_of_input(step, x, parts, kernel, inputs, to);
        Ok(())
    }
}

impl KernelSpec for BatchNormInferenceBackward {
    fn name(&self) -> &'static str {
        match (self.relu, self.pool.is_some()) {
            (false, false) => "batch_norm_inference_backward",
            (true, false) => "batch_norm_relu_inference_backward",
            (false, true) => "batch_norm_pool_inference_backward",
            (true, true) => "batch_norm_relu_pool_inference_backward",
        }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let inputs = if self.pool.is_some() { 7 } else { 6 };
        expect_counts_of_result(counts, &[[inputs, 0, 1]], self.parts.x)?;
        check_all(&self.norm, (self.pool, self.parts), operands[0], operands[1], &operands[2..6])?;
        expect_same_shape(operands[0], operands[inputs])?;
        check_index(self.pool, operands[1], operands.get(6))
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn channels_touched(&self, operands: &[&Value], position: usize) -> Option<usize> {
        touched(&self.norm, self.parts, position, [0, operands.len() - 1], 1)
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * elements(&self.norm, operands[0])
    }
}

impl KernelSpec for BatchNormGradients {
    fn name(&self) -> &'static str {
        match (self.relu, self.pool.is_some()) {
            (false, false) => "batch_norm_gradients",
            (true, false) => "batch_norm_relu_gradients",
            (false, true) => "batch_norm_pool_gradients",
            (true, true) => "batch_norm_relu_pool_gradients",
        }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let inputs = if self.pool.is_some() { 7 } else { 6 };
        expect_counts(counts, &[[inputs, 0, 3]])?;
        let channels = [&operands[2..6], &operands[inputs..inputs + 2]].concat();
        check_all(&self.norm, (self.pool, self.parts), operands[0], operands[1], &channels)?;
        expect_shape(operands[inputs + 2], &[2, self.norm.channels])?;
        expect_f64(operands[inputs + 2])?;
        check_index(self.pool, operands[1], operands.get(6))
    }

    fn tiling(&self) -> Tiling {
        Tiling::Continues
    }

    fn channels_touched(&self, _operands: &[&Value], position: usize) -> Option<usize> {
        touched(&self.norm, self.parts, position, [0, 0], 1)
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        4 * elements(&self.norm, operands[0])
    }
}

impl KernelSpec for BatchNormBackwardData {
    fn name(&self) -> &'static str {
        match (self.relu, self.pool.is_some()) {
            (false, false) => "batch_norm_backward_data",
            (true, false) => "batch_norm_relu_backward_data",
            (false, true) => "batch_norm_pool_backward_data",
            (true, true) => "batch_norm_relu_pool_backward_data",
        }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let inputs = if self.pool.is_some() { 9 } else { 8 };
        expect_counts_of_result(counts, &[[inputs, 0, 1]], self.parts.x)?;
        check_all(&self.norm, (self.pool, self.parts), operands[0], operands[1], &operands[2..8])?;
        expect_same_shape(operands[0], operands[inputs])?;
        check_index(self.pool, operands[1], operands.get(8))
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn channels_touched(&self, operands: &[&Value], position: usize) -> Option<usize> {
        touched(&self.norm, self.parts, position, [0, operands.len() - 1], 1)
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        4 * elements(&self.norm, operands[0])
    }
}
