//! Max pooling that was not fused.

use super::batch_norm::FusedPool;
use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape, expect_shape, image_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::program::Mode;
use crate::{DType, EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::MaxPool2d;

/// `x -> y, index?`; `index` (u8) is the argmax within the window, in row-major order, or
/// [`FusedPool::RELU_MASKED`] if no gradient passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MaxPoolForward {
    /// Attributes.
    pub pool: MaxPool2d,
    /// True if outputs that are not positive pass no gradient: `x` is the output of a ReLU, whose mask is
    /// then included in the index.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "cut")]
    pub mask_relu: bool,
}

/// `(dy, index) -> dx`; no gradient passes if `index` is [`FusedPool::RELU_MASKED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MaxPoolBackward {
    /// Attributes.
    pub pool: MaxPool2d,
}

pub(super) fn lower(op: &MaxPool2d, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let (x, y) = (lowering.input(node, 0), lowering.output(node));
    let mut outputs = vec![y];
    if lowering.mode() == Mode::Train {
        let shape = lowering.shape(y);
        outputs.push(lowering.saved_samples(node, ":index", &shape, DType::U8));
    }
    lowering.push(node, MaxPoolForward { pool: *op, mask_relu: false }, vec![x], vec![], outputs);
    Ok(())
}

fn check_pair(pool: &MaxPool2d, x: &Value, y: &Value, index: Option<&Value>) -> Result<(), String> {
    let [n, c, h, w] = image_shape(x)?;
    let [height, width] = pool.output_size([h, w]).map_err(|error| error.to_string())?;
    expect_shape(y, &[n, c, height, width])?;
    match index {
        Some(index) if index.dtype != DType::U8 => {
            Err(format!("`{}`: expected u8, got {}", index.name, index.dtype))
        }
        Some(index) => expect_same_shape(y, index),
        None => Ok(()),
    }
}

impl KernelSpec for MaxPoolForward {
    fn name(&self) -> &'static str {
        "max_pool_forward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1], [1, 0, 2]])?;
        if self.mask_relu && FusedPool::from_pool(&self.pool).is_none() {
            return Err("pooling windows must have at most 255 pixels".to_owned());
        }
        check_pair(&self.pool, operands[0], operands[1], operands.get(2).copied())
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Pooling
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[1].elements() as u64 * (self.pool.kernel[0] * self.pool.kernel[1]) as u64
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let (x, y) = (step.inputs[0], step.outputs[0]);
        let Some(dy) = backward.gradient(y) else { return Ok(()) };
        let Some(&index) = step.outputs.get(1) else { return Err(backward.no_derivative(step)) };
        if backward.requires_grad(x) {
            backward.add_gradient(x, |backward, dx| {
                let kernel = MaxPoolBackward { pool: self.pool };
                backward.push(step, kernel, Phase::BackwardData, vec![dy, index], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

impl KernelSpec for MaxPoolBackward {
    fn name(&self) -> &'static str {
        "max_pool_backward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        check_pair(&self.pool, operands[2], operands[0], Some(operands[1]))
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Pooling
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }
}
