//! The stem: the convolution of the images fused with batch norm, ReLU and 2×2 max pooling. The convolution's
//! output is never stored.
//!
//! If images have one channel, a convolution's output is many times larger than its input: writing it once
//! and reading it three times takes longer than recomputing it. Two of the three readers do not need it at
//! all, because the convolution is linear in its weights and the images are constants. With `p(k)` the pixel
//! at tap `k` of an output, and all sums over the outputs of the batch,
//!
//! - the mean of channel `c` is `sum over k of w(c, k) * I(k) / count`, its mean square
//!   `sum over j, k of w(c, j) * w(c, k) * A(j, k) / count`, where `I(k)` is the sum of `p(k)`, and `A(j, k)`
//!   that of `p(j) * p(k)`: the images' correlation, whatever the number of channels;
//! - the gradient of the weights is that of the batch norm's formula term by term: with `g` the gradient of
//!   the normalised map and `G(c, k)` the sum of `g * p(k)`, it is `weight / deviation * (G(c, k) - dbias /
//!   count * I(k) - dweight / count * X(c, k))`, where `X(c, k)`, the sum of the normalised map times `p(k)`,
//!   is `(sum over j of w(c, j) * A(j, k) - mean * I(k)) / deviation`. `dweight` follows from `G` likewise.
//!
//! A variance computed as a difference of sums is as exact as the sums: six digits of the channel's mean
//! square, in kernels that add in single precision before double precision. For images with the mean
//! subtracted, as the loader does it, the mean square is close to the variance.
//!
//! The backward pass computes only `G`, from the pooled gradient and the argmax of the pooling.

use super::{
    KernelSpec, Tiling, WorkKind, expect_counts, expect_f64, expect_index, expect_shape, image_shape,
};
use crate::build::Differentiator;
use crate::ops::FusedPool;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::ops::{BatchNorm2d, Conv2d};

/// Attributes of a stem.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stem {
    /// The convolution: dense, without stride, groups and bias.
    pub conv: Conv2d,
    /// The batch norm.
    pub norm: BatchNorm2d,
    /// True if ReLU is applied to the normalised map.
    pub relu: bool,
}

impl Stem {
    /// The pooling's windows.
    pub const POOL: FusedPool = FusedPool::disjoint([2, 2]);

    /// The maximum number of taps over all input channels. A multiply-add of a register takes half a cycle
    /// per tap; at 20 GB/s for two cores, writing a register to memory and reading it three times takes about
    /// forty cycles.
    pub const MAX_TAPS: usize = 16;

    /// The number of output channels must be a multiple of this: half the lanes of the widest registers.
    pub const CHANNEL_GROUP: usize = 8;

    /// The stem of a convolution and the following layers, if fusing them pays.
    #[must_use]
    pub fn new(conv: Conv2d, norm: BatchNorm2d, relu: bool, pool: FusedPool) -> Option<Self> {
        let is_supported = conv.stride == [1, 1]
            && conv.dilation == [1, 1]
            && conv.groups == 1
            && !conv.bias
            && conv.out_channels.is_multiple_of(Self::CHANNEL_GROUP)
            && taps(&conv) <= Self::MAX_TAPS
            && norm.channels == conv.out_channels
            && pool == Self::POOL;
        is_supported.then_some(Self { conv, norm, relu })
    }

    /// Taps of all input channels.
    #[must_use]
    pub fn taps(&self) -> usize {
        taps(&self.conv)
    }
}

fn taps(conv: &Conv2d) -> usize {
    conv.in_channels.saturating_mul(conv.kernel[0]).saturating_mul(conv.kernel[1])
}

/// `(images, weight) updates (running_mean, running_var) -> mean, inverse_deviation, correlation f64 [T + 1,
/// T]`.
///
/// Mean and deviation are those of [`super::BatchNormStatistics`]. `correlation` accumulates `A` in its first
/// `T` rows and `I` in the last. Elements right of the diagonal are filled in after the last tile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StemStatistics {
    /// Attributes.
    pub stem: Stem,
}

/// `(images, weight, norm_weight, norm_bias, mean, inverse_deviation) -> y, index`, as in
/// [`super::BatchNormApply`] with a pool.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StemApply {
    /// Attributes.
    pub stem: Stem,
}

/// `(images, weight, norm_weight, norm_bias, running_mean, running_var) -> y`: for evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StemInference {
    /// Attributes.
    pub stem: Stem,
}

/// `(images, weight, dy, norm_weight, mean, inverse_deviation, correlation, index) -> dweight, dnorm_weight,
/// dnorm_bias, sums f64 [O, T + 1]`.
///
/// `sums` accumulates `G` and the sum of `g`, per output channel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StemGradients {
    /// Attributes.
    pub stem: Stem,
}

/// Checks images, weight, the pooled map, and everything per channel.
fn check_all(stem: &Stem, [images, weight, y]: [&Value; 3], channels: &[&Value]) -> Result<(), String> {
    let [n, _, h, w] = check_images(stem, images)?;
    expect_shape(weight, &stem.conv.weight_shape())?;
    expect_shape(y, &Stem::POOL.output_shape([n, stem.conv.out_channels, h, w]))?;
    channels.iter().try_for_each(|value| expect_shape(value, &[stem.conv.out_channels]))
}

/// Checks the attributes and the images; returns the shape of the convolution's output.
fn check_images(stem: &Stem, images: &Value) -> Result<[usize; 4], String> {
    if Stem::new(stem.conv, stem.norm, stem.relu, Stem::POOL).is_none() {
        return Err(format!("no stem kernel for {:?}", stem.conv));
    }
    let [n, c, h, w] = image_shape(images)?;
    if c != stem.conv.in_channels || n == 0 {
        return Err(format!(
            "`{}`: expected images of {} channels, got {:?}",
            images.name, stem.conv.in_channels, images.shape
        ));
    }
    let [height, width] = stem.conv.output_size([h, w]).map_err(|error| error.to_string())?;
    Ok([n, stem.conv.out_channels, height, width])
}

/// Operations per pixel of the convolution's output, of all channels.
fn flops(stem: &Stem, images: &Value, per_pixel: usize) -> u64 {
    let outputs = image_shape(images).ok().and_then(|[n, _, h, w]| {
        let [height, width] = stem.conv.output_size([h, w]).ok()?;
        Some(n * height * width)
    });
    (outputs.unwrap_or(0) * per_pixel) as u64
}

impl KernelSpec for StemStatistics {
    fn name(&self) -> &'static str {
        "stem_statistics"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 2, 3]])?;
        let (stem, taps) = (&self.stem, self.stem.taps());
        check_images(stem, operands[0])?;
        expect_shape(operands[1], &stem.conv.weight_shape())?;
        operands[2..6].iter().try_for_each(|value| expect_shape(value, &[stem.conv.out_channels]))?;
        expect_shape(operands[6], &[taps + 1, taps])?;
        expect_f64(operands[6])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::MatrixProduct
    }

    fn tiling(&self) -> Tiling {
        Tiling::Accumulates
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        // Half of the symmetric correlation, and the sums.
        let taps = self.stem.taps();
        flops(&self.stem, operands[0], taps * (taps + 1) + taps)
    }

    fn differentiate(&self, _step: &Step, _backward: &mut Differentiator) -> Result<(), EngineError> {
        // Handled by the derivative of the step that applies the statistics.
        Ok(())
    }
}

impl KernelSpec for StemApply {
    fn name(&self) -> &'static str {
        if self.stem.relu { "stem_relu_apply" } else { "stem_apply" }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[6, 0, 2]])?;
        check_all(&self.stem, [operands[0], operands[1], operands[6]], &operands[2..6])?;
        expect_index(operands[6], Some(operands[7]))
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::MatrixProduct
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.stem, operands[0], 2 * (self.stem.taps() + 1) * self.stem.conv.out_channels)
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let Some(dy) = backward.gradient(step.outputs[0]) else { return Ok(()) };
        let ([images, weight, norm_weight, norm_bias, mean, inverse_deviation], [_, index]) =
            (&step.inputs[..], &step.outputs[..])
        else {
            return Err(backward.no_derivative(step));
        };
        if backward.requires_grad(*images) {
            return Err(backward.no_derivative(step));
        }
        let correlation = backward.output_beside(*mean, 2).ok_or_else(|| backward.no_derivative(step))?;
        let sums = backward.sums(step, &[self.stem.conv.out_channels, self.stem.taps() + 1]);
        let outputs =
            [*weight, *norm_weight, *norm_bias].map(|parameter| backward.parameter_gradient(parameter));
        let outputs = outputs.into_iter().chain([sums]).collect();
        let inputs = vec![*images, *weight, dy, *norm_weight, *mean, *inverse_deviation, correlation, *index];
        let kernel = StemGradients { stem: self.stem };
        backward.push(step, kernel, Phase::BackwardWeights, inputs, vec![], outputs);
        Ok(())
    }
}

impl KernelSpec for StemInference {
    fn name(&self) -> &'static str {
        "stem_inference"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[6, 0, 1]])?;
        check_all(&self.stem, [operands[0], operands[1], operands[6]], &operands[2..6])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::MatrixProduct
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.stem, operands[0], 2 * (self.stem.taps() + 1) * self.stem.conv.out_channels)
    }
}

impl KernelSpec for StemGradients {
    fn name(&self) -> &'static str {
        "stem_gradients"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[8, 0, 4]])?;
        let taps = self.stem.taps();
        let channels = [&operands[3..6], &operands[9..11]].concat();
        check_all(&self.stem, [operands[0], operands[1], operands[2]], &channels)?;
        expect_shape(operands[6], &[taps + 1, taps])?;
        expect_f64(operands[6])?;
        expect_index(operands[2], Some(operands[7]))?;
        expect_shape(operands[8], &self.stem.conv.weight_shape())?;
        expect_shape(operands[11], &[self.stem.conv.out_channels, taps + 1])?;
        expect_f64(operands[11])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::MatrixProduct
    }

    fn tiling(&self) -> Tiling {
        Tiling::Accumulates
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.stem, operands[0], 2 * self.stem.taps() * self.stem.conv.out_channels)
    }
}
