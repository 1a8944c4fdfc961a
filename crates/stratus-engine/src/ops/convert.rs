//! Moving values: to another type, to another layout, onto another.

use super::{KernelSpec, Tiling, expect_counts, expect_same_shape};
use crate::build::Differentiator;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};

/// `x -> y`: the same numbers in another type, rounded to nearest even. Layouts are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Convert;

/// `x -> y`: the same numbers in another layout. Backends insert it where kernels want different layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reorder;

/// `x -> y`: a feature map `[N, C, H, W]` as the matrix `[N, C * H * W]`, channels slowest, or a matrix as a
/// feature map; in another type too. The same kernel on `dy` makes `dx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Flatten;

/// `x updates sum`: `sum += x`, for a value whose gradient comes from several readers.
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

    fn tiling(&self) -> Tiling {
        Tiling::Continues
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

    fn tiling(&self) -> Tiling {
        Tiling::Whole
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
                "`{}` {:?} and `{}` {:?} do not have the same elements a sample",
                x.name, x.shape, y.name, y.shape
            ));
        }
        Ok(())
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }

    fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
        let Some(dy) = to.gradient(step.outputs[0]) else { return Ok(()) };
        if to.wants_gradient(step.inputs[0]) {
            to.add_gradient(step.inputs[0], |to, dx| {
                to.push(step, *self, Phase::BackwardData, vec![dy], vec![], vec![dx]);
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
            return Err(format!("it changes {} into {}", operands[0].dtype, operands[1].dtype));
        }
        Ok(())
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
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

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }
}
