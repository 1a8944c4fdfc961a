//! Bilinear resizing: each output is interpolated between two rows of the input, and within each between two
//! pixels. Nearest-neighbour interpolation gives one of them the weight 1.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_shape, image_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{DType, EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::ops::{Resize, ResizeTo};
use stratus_graph::{Node, Operation, Shape};

/// The positions of outputs in the input.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interpolation {
    /// True if the centres of the corner pixels are aligned, instead of the image edges.
    pub align_corners: bool,
    /// The factors `[vertical, horizontal]` that determined the output's size, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<[f64; 2]>,
    /// True if each output is one input, at `⌊i · inputs / outputs⌋`, instead of a mean of four.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nearest: bool,
}

/// The two inputs and weights of one output along an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taps {
    /// The input at or before its position; it does not decrease from output to output.
    pub first: usize,
    /// The next input, or `first` if there is none.
    pub second: usize,
    /// Their weights, which sum to 1. If both are the same input, the first has weight 1.
    pub weights: [f64; 2],
}

impl Interpolation {
    /// The distance between outputs in input pixels.
    ///
    /// The step and the positions of outputs are PyTorch's: computed in `f32`, for `f64` maps in `f64`.
    /// PyTorch's own kernels differ from each other in the last bit.
    #[must_use]
    pub fn step(&self, axis: usize, inputs: usize, outputs: usize, dtype: DType) -> f64 {
        let round = rounding(dtype);
        match self.scale {
            _ if inputs == outputs => 1.0,
            _ if self.align_corners && outputs > 1 => {
                round(round(inputs.saturating_sub(1) as f64) / round((outputs - 1) as f64))
            }
            _ if self.align_corners => 0.0,
            Some(scale) => round(1.0 / scale[axis]),
            None => round(round(inputs as f64) / round(outputs as f64)),
        }
    }

    /// The taps of output `index` of `outputs`, along an axis of `inputs` pixels.
    #[must_use]
    pub fn taps(&self, axis: usize, index: usize, inputs: usize, outputs: usize, dtype: DType) -> Taps {
        if self.nearest {
            let first = (index * inputs / outputs.max(1)).min(inputs.saturating_sub(1));
            return Taps { first, second: first, weights: [1.0, 0.0] };
        }
        let (round, step) = (rounding(dtype), self.step(axis, inputs, outputs, dtype));
        let position = if self.align_corners {
            round(step * round(index as f64))
        } else {
            round(round(step * round(index as f64 + 0.5)) - 0.5).max(0.0)
        };
        let first = (position.floor() as usize).min(inputs.saturating_sub(1));
        if first + 1 >= inputs {
            return Taps { first, second: first, weights: [1.0, 0.0] };
        }
        let weight = round(position - first as f64).clamp(0.0, 1.0);
        Taps { first, second: first + 1, weights: [round(1.0 - weight), weight] }
    }

    /// The taps of all outputs of an axis.
    #[must_use]
    pub fn axis(&self, axis: usize, inputs: usize, outputs: usize, dtype: DType) -> Vec<Taps> {
        (0..outputs).map(|index| self.taps(axis, index, inputs, outputs, dtype)).collect()
    }

    /// Checks that `x` can be resized to `y`.
    fn check(&self, x: &Value, y: &Value) -> Result<(), String> {
        let [n, c, h, w] = image_shape(x)?;
        let [_, _, height, width] = image_shape(y)?;
        let to = self.scale.map_or(ResizeTo::Size([height, width]), ResizeTo::Scale);
        let resize = Resize { to, align_corners: self.align_corners, nearest: self.nearest };
        let shape = resize.output_shape(&[&Shape::image(c, h, w)]).map_err(|error| error.to_string())?;
        expect_shape(y, &[vec![n], shape.0].concat())
    }
}

/// Rounding to the precision of positions. An operation on two `f32` values that is rounded to `f64` and then
/// to `f32` has the bits of the `f32` operation.
fn rounding(dtype: DType) -> fn(f64) -> f64 {
    match dtype {
        DType::F64 => |value| value,
        _ => |value| f64::from(value as f32),
    }
}

/// `x -> y`; their types may differ.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResizeForward {
    /// The positions of outputs.
    #[serde(rename = "bilinear")]
    pub interpolation: Interpolation,
}

/// `dy -> dx`: each pixel gets the weighted gradients of the outputs that use it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResizeBackward {
    /// The positions of outputs.
    #[serde(rename = "bilinear")]
    pub interpolation: Interpolation,
}

/// The second input, which gives the size, is not an operand, because sizes are static.
pub(super) fn lower(op: &Resize, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let x = lowering.input(node, 0);
    let y = lowering.output_as(node, lowering.dtype(x));
    let scale = if let ResizeTo::Scale(scale) = op.to { Some(scale) } else { None };
    let interpolation = Interpolation { align_corners: op.align_corners, scale, nearest: op.nearest };
    lowering.push(node, ResizeForward { interpolation }, vec![x], vec![], vec![y]);
    Ok(())
}

impl KernelSpec for ResizeForward {
    fn name(&self) -> &'static str {
        "resize_forward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        self.interpolation.check(operands[0], operands[1])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Pooling
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        // The same count as in the graph: four pixels are weighted and added; the nearest is copied.
        let operations = if self.interpolation.nearest { 0 } else { 8 };
        (operands[1].elements() as u64).saturating_mul(operations)
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let (x, y) = (step.inputs[0], step.outputs[0]);
        let Some(dy) = backward.gradient(y) else { return Ok(()) };
        if backward.requires_grad(x) {
            backward.add_gradient(x, |backward, dx| {
                let kernel = ResizeBackward { interpolation: self.interpolation };
                backward.push(step, kernel, Phase::BackwardData, vec![dy], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

impl KernelSpec for ResizeBackward {
    fn name(&self) -> &'static str {
        "resize_backward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        self.interpolation.check(operands[1], operands[0])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Pooling
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        let operations = if self.interpolation.nearest { 1 } else { 8 };
        (operands[0].elements() as u64).saturating_mul(operations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGES: Interpolation = Interpolation { align_corners: false, scale: None, nearest: false };
    const CORNERS: Interpolation = Interpolation { align_corners: true, scale: None, nearest: false };

    /// The positions of outputs, as sums of inputs times weights.
    fn positions(interpolation: Interpolation, inputs: usize, outputs: usize) -> Vec<f64> {
        let position =
            |taps: &Taps| taps.first as f64 * taps.weights[0] + taps.second as f64 * taps.weights[1];
        interpolation.axis(0, inputs, outputs, DType::F64).iter().map(position).collect()
    }

    #[test]
    fn outputs_align_edges_or_corners() {
        assert_eq!(positions(EDGES, 2, 4), [0.0, 0.25, 0.75, 1.0]);
        assert_eq!(positions(EDGES, 4, 2), [0.5, 2.5]);
        assert_eq!(positions(EDGES, 5, 1), [2.0]);
        assert_eq!(positions(EDGES, 1, 3), [0.0; 3]);
        assert_eq!(positions(CORNERS, 3, 5), [0.0, 0.5, 1.0, 1.5, 2.0]);
        assert_eq!(positions(CORNERS, 4, 2), [0.0, 3.0]);
        assert_eq!(positions(CORNERS, 5, 1), [0.0]);
        assert_eq!(positions(CORNERS, 1, 3), [0.0; 3]);
    }

    /// With a scale the distance between outputs is its inverse, even if five times 1.5 is not an integer.
    #[test]
    fn given_scale_determines_the_distance_between_outputs() {
        let by = Interpolation { scale: Some([1.0, 1.5]), ..EDGES };
        assert_eq!(by.step(1, 5, 7, DType::F64), 1.0 / 1.5);
        assert_eq!(EDGES.step(1, 5, 7, DType::F64), 5.0 / 7.0);
        assert_eq!(by.step(1, 5, 7, DType::Bf16), f64::from(1.0f32 / 1.5));
        // PyTorch copies if the size does not change, whatever the scale.
        let barely = Interpolation { scale: Some([1.1; 2]), ..EDGES };
        assert_eq!(positions(barely, 4, 4), [0.0, 1.0, 2.0, 3.0]);
    }

    /// `torch.nn.functional.interpolate` with `mode="nearest"`.
    #[test]
    fn nearest_pixels_are_copied() {
        let nearest = Interpolation { nearest: true, ..EDGES };
        assert_eq!(positions(nearest, 2, 4), [0.0, 0.0, 1.0, 1.0]);
        assert_eq!(positions(nearest, 3, 5), [0.0, 0.0, 1.0, 1.0, 2.0]);
        assert_eq!(positions(nearest, 5, 3), [0.0, 1.0, 3.0]);
        assert_eq!(positions(nearest, 1, 3), [0.0; 3]);
    }

    #[test]
    fn last_pixels_have_one_tap() {
        for (inputs, outputs) in [(1, 1), (1, 30), (3, 12), (12, 3), (7, 5), (90, 360)] {
            for interpolation in [EDGES, CORNERS] {
                let taps = interpolation.axis(0, inputs, outputs, DType::F32);
                assert!(taps.is_sorted_by_key(|taps| taps.first));
                for taps in taps {
                    assert!(taps.second < inputs && taps.second - taps.first <= 1, "{taps:?}");
                    assert!(taps.second > taps.first || taps.weights == [1.0, 0.0], "{taps:?}");
                    assert!((taps.weights[0] + taps.weights[1] - 1.0).abs() < 1e-7, "{taps:?}");
                }
            }
        }
    }
}
