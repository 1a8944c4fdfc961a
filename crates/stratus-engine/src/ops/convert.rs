//! Conversion of types and layouts, and accumulation.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape};
use crate::build::Differentiator;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};

/// `x -> y`: the same values in another type, rounded to nearest even. Layouts are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Convert;

/// `x -> y`: the same values in another layout. Backends insert it where kernels need different layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reorder;

/// `x -> y`: a feature map `[N, C, H, W]` as the matrix `[N, C * H * W]`, channels slowest, or a matrix as a
/// feature map; types may differ. The same kernel computes `dx` from `dy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Flatten;

/// `x updates sum`: `sum += x`, for the gradient of a value with several readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Accumulate;

/// `part -> sum`: `sum = part` for the first tile or micro-batch, `sum += part` for the others, in their
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AddTiles;

impl KernelSpec for AddTiles {
    fn name(&self) -> &'static str {
        "add_tiles"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::Accumulates
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }
}

impl KernelSpec for Convert {
    fn name(&self) -> &'static str {
        "convert"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }
}

impl KernelSpec for Flatten {
    fn name(&self) -> &'static str {
        "flatten"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        let [x, y] = [operands[0], operands[1]];
        if x.shape.first() != y.shape.first() || x.elements() != y.elements() {
            return Err(format!(
                "`{}` {:?} and `{}` {:?} differ in elements per sample",
                x.name, x.shape, y.name, y.shape
            ));
        }
        Ok(())
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let Some(dy) = backward.gradient(step.outputs[0]) else { return Ok(()) };
        if backward.requires_grad(step.inputs[0]) {
            backward.add_gradient(step.inputs[0], |backward, dx| {
                backward.push(step, *self, Phase::BackwardData, vec![dy], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

impl KernelSpec for Reorder {
    fn name(&self) -> &'static str {
        "reorder"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])?;
        if operands[0].dtype != operands[1].dtype {
            return Err(format!("cannot convert {} to {}", operands[0].dtype, operands[1].dtype));
        }
        Ok(())
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }
}

impl KernelSpec for Accumulate {
    fn name(&self) -> &'static str {
        "accumulate"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 1, 0]])?;
        expect_same_shape(operands[0], operands[1])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }
}
