//! Max-pooling, where it could not be fused.

use super::batch_norm::FusedPool;
use super::{KernelSpec, Tiling, expect_counts, expect_same_shape, expect_shape, image_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::program::Mode;
use crate::{DType, EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::MaxPool2d;

/// `x -> y, index?`; `index` (u8) is the argmax within the window, in row-major order, or [`FusedPool::CUT`]
/// where no gradient passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MaxPoolForward {
    /// Attributes.
    pub pool: MaxPool2d,
    /// Whether no gradient passes where the result is not positive: `x` is rectified, and what the rectifier
    /// would take from the gradient is known here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// `(dy, index) -> dx`; nothing passes where `index` is [`FusedPool::CUT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MaxPoolBackward {
    /// Attributes.
    pub pool: MaxPool2d,
}

pub(super) fn lower(op: &MaxPool2d, node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    let (x, y) = (to.input(node, 0), to.output(node));
    let mut outputs = vec![y];
    if to.mode() == Mode::Train {
        let shape = to.shape(y);
        outputs.push(to.saved_samples(node, ":index", &shape, DType::U8));
    }
    to.push(node, MaxPoolForward { pool: *op, cut: false }, vec![x], vec![], outputs);
    Ok(())
}

fn check_pair(pool: &MaxPool2d, x: &Value, y: &Value, index: Option<&Value>) -> Result<(), String> {
    let [n, c, h, w] = image_shape(x)?;
    let [height, width] = pool.output_size([h, w]).map_err(|error| error.to_string())?;
    expect_shape(y, &[n, c, height, width])?;
    match index {
        Some(index) if index.dtype != DType::U8 => {
            Err(format!("`{}` is {}, it should be u8", index.name, index.dtype))
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
        if self.cut && FusedPool::from_pool(&self.pool).is_none() {
            return Err("its window has a position with the number of what is cut off".to_owned());
        }
        check_pair(&self.pool, operands[0], operands[1], operands.get(2).copied())
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[1].elements() as u64 * (self.pool.kernel[0] * self.pool.kernel[1]) as u64
    }

    fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
        let (x, y) = (step.inputs[0], step.outputs[0]);
        let Some(dy) = to.gradient(y) else { return Ok(()) };
        let Some(&index) = step.outputs.get(1) else { return Err(to.no_derivative(step)) };
        if to.wants_gradient(x) {
            to.add_gradient(x, |to, dx| {
                let kernel = MaxPoolBackward { pool: self.pool };
                to.push(step, kernel, Phase::BackwardData, vec![dy, index], vec![], vec![dx]);
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

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }
}
