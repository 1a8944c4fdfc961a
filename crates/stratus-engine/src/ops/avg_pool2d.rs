//! Average pooling over windows and to a fixed output size. The two differ only in the pixels that an output
//! averages.

use super::{
    ChannelScaleMeanBackward, Kernel, KernelSpec, Tiling, WorkKind, expect_counts, expect_shape, image_shape,
};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use stratus_graph::Node;
use stratus_graph::ops::{AdaptiveAvgPool2d, AvgPool2d};

/// The pixels averaged by each output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AvgPooling {
    /// A sliding window.
    Windows(AvgPool2d),
    /// Bins that cover an image of any size.
    Bins(AdaptiveAvgPool2d),
}

/// The pixels that one output averages along one axis. An output averages the pixels of its vertical and its
/// horizontal range, and divides by the product of their counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRange {
    /// The pixels. Neither start nor end decreases from output to output.
    pub pixels: Range<usize>,
    /// The divisor: the number of pixels, including padding if `count_include_pad`.
    pub count: usize,
}

impl AvgPooling {
    /// Height and width of the output for an input of `size`.
    ///
    /// # Errors
    /// If a window does not fit, or the output or the input is empty.
    pub fn output_size(&self, size: [usize; 2]) -> Result<[usize; 2], String> {
        match self {
            Self::Windows(pool) => pool.output_size(size).map_err(|error| error.to_string()),
            Self::Bins(pool) if size.contains(&0) || pool.output.contains(&0) => {
                Err(format!("cannot divide {size:?} pixels into {:?} bins", pool.output))
            }
            Self::Bins(pool) => Ok(pool.output),
        }
    }

    /// The range that output `index` averages on an axis of `size` pixels.
    #[must_use]
    pub fn range(&self, axis: usize, index: usize, size: usize) -> PoolRange {
        match self {
            Self::Windows(AvgPool2d { kernel, stride, padding, count_include_pad, .. }) => {
                let start = index * stride[axis];
                let first = start.saturating_sub(padding[axis]);
                let pixels = first..(start + kernel[axis]).saturating_sub(padding[axis]).clamp(first, size);
                let count = if *count_include_pad { kernel[axis] } else { pixels.len() };
                PoolRange { pixels, count }
            }
            Self::Bins(pool) => {
                let pixels = AdaptiveAvgPool2d::bin(index, pool.output[axis], size);
                PoolRange { count: pixels.len(), pixels }
            }
        }
    }
}

/// `x -> y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AvgPoolForward {
    /// Attributes.
    #[serde(rename = "averages")]
    pub pooling: AvgPooling,
}

/// `dy -> dx`: each pixel gets its share of the gradients of the outputs that average it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AvgPoolBackward {
    /// Attributes.
    #[serde(rename = "averages")]
    pub pooling: AvgPooling,
}

pub(super) fn lower(averages: AvgPooling, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let (x, y) = (lowering.input(node, 0), lowering.output(node));
    lowering.push(node, AvgPoolForward { pooling: averages }, vec![x], vec![], vec![y]);
    Ok(())
}

fn check_pair(averages: &AvgPooling, x: &Value, y: &Value) -> Result<(), String> {
    let [n, c, h, w] = image_shape(x)?;
    let [height, width] = averages.output_size([h, w])?;
    expect_shape(y, &[n, c, height, width])
}

/// An addition for every pixel of every output.
fn flops(averages: &AvgPooling, x: &Value, y: &Value) -> u64 {
    let (Ok([.., h, w]), Ok([n, c, height, width])) = (image_shape(x), image_shape(y)) else { return 0 };
    let pixels = |axis: usize, outputs: usize, size: usize| -> usize {
        (0..outputs).map(|index| averages.range(axis, index, size).pixels.len()).sum()
    };
    (n * c * pixels(0, height, h) * pixels(1, width, w)) as u64
}

impl KernelSpec for AvgPoolForward {
    fn name(&self) -> &'static str {
        match self.pooling {
            AvgPooling::Windows(_) => "avg_pool_forward",
            AvgPooling::Bins(_) => "adaptive_avg_pool_forward",
        }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        check_pair(&self.pooling, operands[0], operands[1])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Pooling
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.pooling, operands[0], operands[1])
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let (x, y) = (step.inputs[0], step.outputs[0]);
        let Some(dy) = backward.gradient(y) else { return Ok(()) };
        if !backward.requires_grad(x) {
            return Ok(());
        }
        let is_mean = matches!(self.pooling, AvgPooling::Bins(AdaptiveAvgPool2d { output: [1, 1] }));
        let scales = |kernel: &Kernel| matches!(kernel, Kernel::ChannelScale(_));
        if let Some(scale) = is_mean.then(|| backward.take_only_term(x, scales)).flatten() {
            // One step computes both terms of the gradient: that of the scale and that of the mean.
            let forward = Step { layers: [&scale.layers[..], &step.layers].concat(), ..step.clone() };
            let inputs = [&scale.inputs[..], &[dy]].concat();
            let (kernel, phase) = (ChannelScaleMeanBackward, Phase::BackwardData);
            backward.push(&forward, kernel, phase, inputs, vec![], scale.outputs);
        } else {
            backward.add_gradient(x, |backward, dx| {
                let kernel = AvgPoolBackward { pooling: self.pooling };
                backward.push(step, kernel, Phase::BackwardData, vec![dy], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

impl KernelSpec for AvgPoolBackward {
    fn name(&self) -> &'static str {
        match self.pooling {
            AvgPooling::Windows(_) => "avg_pool_backward",
            AvgPooling::Bins(_) => "adaptive_avg_pool_backward",
        }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        check_pair(&self.pooling, operands[1], operands[0])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Pooling
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.pooling, operands[1], operands[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(averages: AvgPooling, outputs: usize, size: usize) -> Vec<(Range<usize>, usize)> {
        let output_range = |index| averages.range(0, index, size);
        (0..outputs).map(output_range).map(|range| (range.pixels, range.count)).collect()
    }

    #[test]
    fn padding_counts_only_with_count_include_pad() {
        let pool = AvgPool2d::new(3, 2, 1);
        assert_eq!(ranges(AvgPooling::Windows(pool), 3, 5), [(0..2, 3), (1..4, 3), (3..5, 3)]);
        let pool = AvgPool2d { count_include_pad: false, ..pool };
        assert_eq!(ranges(AvgPooling::Windows(pool), 3, 5), [(0..2, 2), (1..4, 3), (3..5, 2)]);
    }

    #[test]
    fn bins_average_only_their_own_pixels() {
        let pool = AdaptiveAvgPool2d { output: [3, 1] };
        assert_eq!(ranges(AvgPooling::Bins(pool), 3, 7), [(0..3, 3), (2..5, 3), (4..7, 3)]);
        assert!(AvgPooling::Bins(pool).output_size([0, 4]).is_err());
    }
}
