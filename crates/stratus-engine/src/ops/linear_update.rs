//! The gradient of a large fully connected layer and its update in one step: each element of the gradient is
//! used as soon as it is computed.
//!
//! The first classifier layers of AlexNet and VGG have more weights than all other layers together. Their
//! gradients would be written once and read once, and would be the largest values of the program.

use super::{
    ITERATION_SCALAR_FIELDS, KernelSpec, SgdUpdate, Tiling, WorkKind, expect_counts, expect_same_shape,
    expect_shape,
};
use crate::Value;
use serde::{Deserialize, Serialize};
use stratus_graph::ops::Linear;

/// `(x, dy, scalars) updates (parameter, velocity) -> copy?, dbias?`:
/// [`LinearBackwardWeights`](super::LinearBackwardWeights) followed by [`SgdUpdate`], without storing the
/// gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinearUpdate {
    /// The layer.
    pub linear: Linear,
    /// The optimiser.
    pub sgd: SgdUpdate,
}

impl KernelSpec for LinearUpdate {
    fn name(&self) -> &'static str {
        "linear_update"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let outputs = usize::from(self.linear.bias);
        if self.sgd.loss_scaled {
            return Err(
                "the gradient of a scaled loss must be checked for overflow before the update".to_owned()
            );
        }
        expect_counts(counts, &[[3, 2, outputs], [3, 2, outputs + 1]])?;
        let [x, dy, scalars, parameter, velocity] = operands[..5] else {
            return Err("operands are missing".to_owned());
        };
        super::linear::check_triple(&self.linear, x, Some(parameter), dy)?;
        expect_shape(scalars, &[ITERATION_SCALAR_FIELDS.len()])?;
        expect_same_shape(parameter, velocity)?;
        if counts[2] > outputs {
            expect_same_shape(parameter, operands[5])?;
        }
        if self.linear.bias {
            expect_shape(operands[operands.len() - 1], &[self.linear.out_features])?;
        }
        Ok(())
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::MatrixProduct
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        super::linear::flops(&self.linear, operands[0]) + 6 * operands[3].elements() as u64
    }
}
