//! Power-average pooling of norm 2.
//!
//! ```text
//! y = √(Σ x²)        dx = x Σ dy / y        over the pixels of a window, and the windows of a pixel
//! ```
//!
//! A window of zeros passes no gradient.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape, expect_shape, image_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::reference::{ReferenceKernel, Tensor, unexpected_operands};
use crate::{EngineError, Phase, Step, Tile, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::LpPool2d;

/// `x [N,C,H,W] -> y`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LpPoolForward {
    /// Attributes.
    pub pool: LpPool2d,
}

/// `(x, y, dy) -> dx`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LpPoolBackward {
    /// Attributes.
    pub pool: LpPool2d,
}

pub(super) fn lower(op: &LpPool2d, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let (x, y) = (lowering.input(node, 0), lowering.output(node));
    lowering.push(node, LpPoolForward { pool: *op }, vec![x], vec![], vec![y]);
    Ok(())
}

/// Checks the input of a pooling and its output.
fn check_maps(pool: &LpPool2d, x: &Value, y: &Value) -> Result<(), String> {
    let [n, channels, height, width] = image_shape(x)?;
    let [height, width] = pool.output_size([height, width]).map_err(|error| error.to_string())?;
    expect_shape(y, &[n, channels, height, width])
}

/// A square and a sum per pixel of each window.
fn flops(pool: &LpPool2d, y: &Value) -> u64 {
    let taps = pool.kernel[0].saturating_mul(pool.kernel[1]) as u64;
    (y.elements() as u64).saturating_mul(taps).saturating_mul(2)
}

impl KernelSpec for LpPoolForward {
    fn name(&self) -> &'static str {
        "lp_pool_forward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        check_maps(&self.pool, operands[0], operands[1])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Pooling
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.pool, operands[1])
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let (x, y) = (step.inputs[0], step.outputs[0]);
        let Some(dy) = backward.gradient(y) else { return Ok(()) };
        if backward.requires_grad(x) {
            backward.add_gradient(x, |backward, dx| {
                let kernel = LpPoolBackward { pool: self.pool };
                backward.push(step, kernel, Phase::BackwardData, vec![x, y, dy], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

impl KernelSpec for LpPoolBackward {
    fn name(&self) -> &'static str {
        "lp_pool_backward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[3, 0, 1]])?;
        check_maps(&self.pool, operands[0], operands[1])?;
        expect_same_shape(operands[1], operands[2])?;
        expect_same_shape(operands[0], operands[3])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Pooling
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.pool, operands[1])
    }
}

/// Calls `visit` with the positions of every output and of each pixel of its window.
fn for_each_tap(pool: &LpPool2d, x: [usize; 4], y: [usize; 4], mut visit: impl FnMut(usize, usize)) {
    let [samples, channels, height, width] = y;
    for plane in 0..samples * channels {
        for (row, column) in (0..height).flat_map(|row| (0..width).map(move |column| (row, column))) {
            let output = (plane * height + row) * width + column;
            for (i, j) in (0..pool.kernel[0]).flat_map(|i| (0..pool.kernel[1]).map(move |j| (i, j))) {
                let [row, column] = [row * pool.stride[0] + i, column * pool.stride[1] + j];
                visit(output, (plane * x[2] + row) * x[3] + column);
            }
        }
    }
}

impl ReferenceKernel for LpPoolForward {
    /// The sums of squares.
    fn scratch(&self, operands: &[&Value]) -> usize {
        operands[1].elements()
    }

    fn run(&self, operands: &mut [Tensor<'_>], squares: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        squares.fill(0.0);
        for_each_tap(&self.pool, x.image(), y.image(), |output, at| squares[output] += x.get(at).powi(2));
        y.fill_with(|output| squares[output].sqrt());
        Ok(())
    }
}

impl ReferenceKernel for LpPoolBackward {
    /// The sums of `dy / y`.
    fn scratch(&self, operands: &[&Value]) -> usize {
        operands[0].elements()
    }

    fn run(&self, operands: &mut [Tensor<'_>], sums: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y, dy, dx] = operands else { return Err(unexpected_operands()) };
        sums.fill(0.0);
        for_each_tap(&self.pool, x.image(), y.image(), |output, at| {
            if y.get(output) != 0.0 {
                sums[at] += dy.get(output) / y.get(output);
            }
        });
        dx.fill_with(|at| x.get(at) * sums[at]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::run_in_f64;

    /// The results of `torch.nn.functional.lp_pool2d` of PyTorch 2.15 in float64. The windows overlap, and
    /// one of them has a single pixel other than zero.
    #[test]
    fn matches_pytorch() {
        let pool = LpPool2d { kernel: [2, 2], stride: [1, 2] };
        let (image, pooled) = (&[1, 1, 3, 6][..], &[1, 1, 2, 3][..]);
        let x =
            [1.0, 2.0, 4.0, -1.0, 0.5, 0.0, 0.0, 3.0, -2.0, 1.5, 0.0, 0.0, 1.0, 1.0, 2.0, -3.0, 0.25, 0.5];
        let dy = [1.0, -2.0, 0.5, 3.0, 1.0, 0.75];
        let close = |found: &[f64], expected: &[f64]| {
            assert_eq!(found.len(), expected.len());
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{found:?} {expected:?}");
        };
        let y = run_in_f64(&LpPoolForward { pool }, &[(image, &x), (pooled, &[0.0; 6])], 1);
        close(&y[0], &[3.741657387, 4.82182538, 0.5, 3.31662479, 4.387482194, 0.559016994]);
        let operands = [(image, &x[..]), (pooled, &y[0]), (pooled, &dy), (image, &[0.0; 18])];
        let dx = run_in_f64(&LpPoolBackward { pool }, &operands, 1);
        let expected = [
            0.267261242,
            0.534522484,
            -1.659122712,
            0.414780678,
            0.5,
            0.0,
            0.0,
            3.515385827,
            0.37371905,
            -0.280289287,
            0.0,
            0.0,
            0.904534034,
            0.904534034,
            0.455842306,
            -0.683763459,
            0.335410197,
            0.670820393,
        ];
        close(&dx[0], &expected);
    }

    #[test]
    fn windows_of_zeros_pass_no_gradient() {
        let pool = LpPool2d { kernel: [1, 2], stride: [1, 2] };
        let (image, pooled) = (&[1, 1, 1, 4][..], &[1, 1, 1, 2][..]);
        let x = [0.0, 0.0, 3.0, 4.0];
        let operands = [(image, &x[..]), (pooled, &[0.0, 5.0]), (pooled, &[1.0, 5.0]), (image, &[1.0; 4])];
        assert_eq!(run_in_f64(&LpPoolBackward { pool }, &operands, 1)[0], [0.0, 0.0, 3.0, 4.0]);
    }
}
