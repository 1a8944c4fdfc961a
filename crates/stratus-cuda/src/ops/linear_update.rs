//! The weight gradient of a large fully connected layer and the update of the weight: a matrix product to the
//! scratch, and the optimiser's kernel that reads it there.

use super::bias::sum_rows;
use super::linear::{gradient, multiply};
use super::{BuildResult, GpuOp, KernelBuilder, Operand};
use crate::processor::{Argument, NestedCall};
use stratus_engine::DType;
use stratus_engine::ops::LinearUpdate;

impl GpuOp for LinearUpdate {
    fn build(&self, operands: &[Operand], counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        // x, dy, scalars, parameter, velocity, copy?, dbias?
        let [x, dy, scalars, parameter, velocity, outputs @ ..] = operands else {
            return Err("missing operands".to_owned());
        };
        if self.sgd.loss_scaled {
            return Err("loss scaling must check all gradients before an update".to_owned());
        }
        let product = gradient(&self.linear, x, DType::F32);
        let mut implementation =
            multiply(product, [Argument::Operand(1), Argument::Operand(0), Argument::Scratch(0)], builder)?;
        implementation.scratch_bytes =
            implementation.scratch_bytes.max(parameter.elements() * size_of::<f32>());
        let copies = counts[2] - usize::from(self.linear.bias);
        // The optimiser's operands: gradient, scalars, parameter, velocity, copy?
        let mut update_operands =
            vec![parameter.clone(), scalars.clone(), parameter.clone(), velocity.clone()];
        update_operands.extend(outputs[..copies].iter().cloned());
        let update = self.sgd.build(&update_operands, [2, 2, copies], builder)?;
        if update.scratch_bytes > 0 {
            return Err("the fused optimiser must not need scratch".to_owned());
        }
        let arguments: Vec<Argument> =
            [Argument::Scratch(0)].into_iter().chain((2..5 + copies).map(Argument::Operand)).collect();
        for call in update.calls {
            implementation.calls.push(Box::new(NestedCall { call, operands: arguments.clone() }));
        }
        if self.linear.bias {
            let sums = sum_rows(dy, [1, operands.len() - 1], implementation.scratch_bytes, builder)?;
            implementation.scratch_bytes = sums.scratch_bytes;
            implementation.calls.extend(sums.calls);
        }
        Ok(implementation)
    }
}
