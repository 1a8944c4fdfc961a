//! Average-pooling over windows and to a given size: the two differ in which pixels an output averages, and
//! in nothing else.

use super::{KernelSpec, Tiling, expect_counts, expect_shape, image_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use stratus_graph::Node;
use stratus_graph::ops::{AdaptiveAvgPool2d, AvgPool2d};

/// Which pixels each output averages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Averages {
    /// A window that moves by a stride.
    Windows(AvgPool2d),
    /// Bins that cover the image, whatever its size.
    Bins(AdaptiveAvgPool2d),
}

/// What one output averages along one axis. An output averages the pixels of its vertical and its horizontal
/// stretch, and divides by the product of their counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The pixels; neither the first nor the one behind the last decreases from output to output.
    pub pixels: Range<usize>,
    /// How many pixels count, zeros of the padding included where they do.
    pub count: usize,
}

impl Averages {
    /// Height and width of the output for an input of `size`.
    ///
    /// # Errors
    /// Where a window does not fit, or the output or the input is empty.
    pub fn output_size(&self, size: [usize; 2]) -> Result<[usize; 2], String> {
        match self {
            Self::Windows(pool) => pool.output_size(size).map_err(|error| error.to_string()),
            Self::Bins(pool) if size.contains(&0) || pool.output.contains(&0) => {
                Err(format!("it cuts {size:?} pixels into {:?} bins", pool.output))
            }
            Self::Bins(pool) => Ok(pool.output),
        }
    }

    /// What output `index` averages of an axis of `size` pixels.
    #[must_use]
    pub fn stretch(&self, axis: usize, index: usize, size: usize) -> Stretch {
        match self {
            Self::Windows(AvgPool2d { kernel, stride, padding, count_include_pad }) => {
                let start = index * stride[axis];
                let first = start.saturating_sub(padding[axis]);
                let pixels = first..(start + kernel[axis]).saturating_sub(padding[axis]).clamp(first, size);
                let count = if *count_include_pad { kernel[axis] } else { pixels.len() };
                Stretch { pixels, count }
            }
            Self::Bins(pool) => {
                let pixels = AdaptiveAvgPool2d::bin(index, pool.output[axis], size);
                Stretch { count: pixels.len(), pixels }
            }
        }
    }
}

/// `x -> y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AvgPoolForward {
    /// Attributes.
    pub averages: Averages,
}

/// `dy -> dx`: each pixel gets its share of the outputs that it is averaged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AvgPoolBackward {
    /// Attributes.
    pub averages: Averages,
}

pub(super) fn lower(averages: Averages, node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    let (x, y) = (to.input(node, 0), to.output(node));
    to.push(node, AvgPoolForward { averages }, vec![x], vec![], vec![y]);
    Ok(())
}

fn check_pair(averages: &Averages, x: &Value, y: &Value) -> Result<(), String> {
    let [n, c, h, w] = image_shape(x)?;
    let [height, width] = averages.output_size([h, w])?;
    expect_shape(y, &[n, c, height, width])
}

/// An addition for every pixel of every output.
fn flops(averages: &Averages, x: &Value, y: &Value) -> u64 {
    let (Ok([.., h, w]), Ok([n, c, height, width])) = (image_shape(x), image_shape(y)) else { return 0 };
    let pixels = |axis: usize, outputs: usize, size: usize| -> usize {
        (0..outputs).map(|index| averages.stretch(axis, index, size).pixels.len()).sum()
    };
    (n * c * pixels(0, height, h) * pixels(1, width, w)) as u64
}

impl KernelSpec for AvgPoolForward {
    fn name(&self) -> &'static str {
        match self.averages {
            Averages::Windows(_) => "avg_pool_forward",
            Averages::Bins(_) => "adaptive_avg_pool_forward",
        }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        check_pair(&self.averages, operands[0], operands[1])
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.averages, operands[0], operands[1])
    }

    fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
        let (x, y) = (step.inputs[0], step.outputs[0]);
        let Some(dy) = to.gradient(y) else { return Ok(()) };
        if to.wants_gradient(x) {
            to.add_gradient(x, |to, dx| {
                let kernel = AvgPoolBackward { averages: self.averages };
                to.push(step, kernel, Phase::BackwardData, vec![dy], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

impl KernelSpec for AvgPoolBackward {
    fn name(&self) -> &'static str {
        match self.averages {
            Averages::Windows(_) => "avg_pool_backward",
            Averages::Bins(_) => "adaptive_avg_pool_backward",
        }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        check_pair(&self.averages, operands[1], operands[0])
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.averages, operands[1], operands[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretches(averages: Averages, outputs: usize, size: usize) -> Vec<(Range<usize>, usize)> {
        let of = |index| averages.stretch(0, index, size);
        (0..outputs).map(of).map(|stretch| (stretch.pixels, stretch.count)).collect()
    }

    #[test]
    fn padding_counts_where_it_is_asked_to() {
        let pool = AvgPool2d::new(3, 2, 1);
        assert_eq!(stretches(Averages::Windows(pool), 3, 5), [(0..2, 3), (1..4, 3), (3..5, 3)]);
        let pool = AvgPool2d { count_include_pad: false, ..pool };
        assert_eq!(stretches(Averages::Windows(pool), 3, 5), [(0..2, 2), (1..4, 3), (3..5, 2)]);
    }

    #[test]
    fn bins_divide_by_their_own_pixels() {
        let pool = AdaptiveAvgPool2d { output: [3, 1] };
        assert_eq!(stretches(Averages::Bins(pool), 3, 7), [(0..3, 3), (2..5, 3), (4..7, 3)]);
        assert!(Averages::Bins(pool).output_size([0, 4]).is_err());
    }
}
