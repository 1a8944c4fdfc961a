//! The gradient of a large fully connected layer and its update: a product into the scratch, and the optimiser's kernel on it.

use super::linear::{gradient, multiply, sum_rows};
use super::{Maker, OnGpu, Operand};
use crate::processor::{Argument, Elsewhere, Made};
use stratus_engine::DType;
use stratus_engine::ops::LinearUpdate;

impl OnGpu for LinearUpdate {
    fn make(&self, operands: &[Operand], counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        // x, dy, hyper, parameter, velocity, copy?, dbias?
        let [x, dy, hyper, parameter, velocity, outputs @ ..] = operands else {
            return Err("it lacks operands".to_owned());
        };
        if self.sgd.scaled {
            return Err(
                "it updates where the gradient is made: whether all are finite is not known yet".to_owned()
            );
        }
        let product = gradient(&self.linear, x, DType::F32);
        let mut made =
            multiply(product, [Argument::Operand(1), Argument::Operand(0), Argument::Scratch(0)], maker)?;
        made.scratch_bytes = made.scratch_bytes.max(parameter.elements() * size_of::<f32>());
        let copies = counts[2] - usize::from(self.linear.bias);
        // The optimiser's operands: gradient, hyper, parameter, velocity, copy?
        let mut of_update = vec![parameter.clone(), hyper.clone(), parameter.clone(), velocity.clone()];
        of_update.extend(outputs[..copies].iter().cloned());
        let update = self.sgd.make(&of_update, [2, 2, copies], maker)?;
        if update.scratch_bytes > 0 {
            return Err("its optimiser needs scratch of its own".to_owned());
        }
        let places: Vec<Argument> =
            [Argument::Scratch(0)].into_iter().chain((2..5 + copies).map(Argument::Operand)).collect();
        for call in update.calls {
            made.calls.push(Box::new(Elsewhere { call, operands: places.clone() }));
        }
        if self.linear.bias {
            let sums = sum_rows(dy, [1, operands.len() - 1], made.scratch_bytes, maker)?;
            made.scratch_bytes = sums.scratch_bytes;
            made.calls.extend(sums.calls);
        }
        Ok(made.into())
    }
}
