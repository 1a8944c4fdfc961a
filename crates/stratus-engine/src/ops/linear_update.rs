//! The gradient of a large fully connected layer and its update in one step: the gradient of a weight is used
//! where it is made.
//!
//! AlexNet's and VGG's first classifier layers have more weights than all others together. Their gradients
//! would be written once and read once, and be the largest values of the whole program.

use super::{HYPER, KernelSpec, SgdUpdate, Tiling, expect_counts, expect_same_shape, expect_shape};
use crate::Value;
use serde::{Deserialize, Serialize};
use stratus_graph::ops::Linear;

/// `(x, dy, hyper) updates (parameter, velocity) -> copy?, dbias?`: what
/// [`LinearBackwardWeights`](super::LinearBackwardWeights) and then [`SgdUpdate`] do, without the gradient
/// between them.
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
        if self.sgd.scaled {
            return Err(
                "it updates where the gradient is made, when no gradient of a scaled loss is known to be \
                 finite"
                    .to_owned(),
            );
        }
        expect_counts(counts, &[[3, 2, outputs], [3, 2, outputs + 1]])?;
        let [x, dy, hyper, parameter, velocity] = operands[..5] else {
            return Err("it lacks operands".to_owned());
        };
        super::linear::check_triple(&self.linear, x, Some(parameter), dy)?;
        expect_shape(hyper, &[HYPER.len()])?;
        expect_same_shape(parameter, velocity)?;
        if counts[2] > outputs {
            expect_same_shape(parameter, operands[5])?;
        }
        if self.linear.bias {
            expect_shape(operands[operands.len() - 1], &[self.linear.out_features])?;
        }
        Ok(())
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        super::linear::flops(&self.linear, operands[0]) + 6 * operands[3].elements() as u64
    }
}
