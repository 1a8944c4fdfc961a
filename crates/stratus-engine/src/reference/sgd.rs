//! Stochastic gradient descent with momentum and weight decay.

use super::loss_scale::read;
use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::SgdUpdate;

impl ReferenceKernel for SgdUpdate {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [gradient, scalars, rest @ ..] = operands else { return Err(unexpected_operands()) };
        let Some((scale, rest)) = rest.split_at_mut_checked(usize::from(self.loss_scaled)) else {
            return Err(unexpected_operands());
        };
        let (parameter, velocity, copy) = match rest {
            [parameter, velocity] => (parameter, velocity, None),
            [parameter, velocity, copy] => (parameter, velocity, Some(copy)),
            _ => return Err(unexpected_operands()),
        };
        let scale = scale.first().map(read);
        if scale.is_some_and(|scale| scale.overflow) {
            write_copy(parameter, copy);
            return Ok(());
        }
        let scale = scale.map_or(1.0, |scale| scale.scale);
        step(*self, scalars, |position| gradient.get(position) / scale, parameter, velocity, copy);
        Ok(())
    }
}

/// Writes the copy of a parameter.
pub(super) fn write_copy(parameter: &Tensor<'_>, copy: Option<&mut Tensor<'_>>) {
    if let Some(copy) = copy {
        copy.fill_with(|position| parameter.get(position));
    }
}

/// Updates every parameter with the gradient returned by a closure.
pub(super) fn step(
    sgd: SgdUpdate,
    scalars: &Tensor<'_>,
    gradient: impl Fn(usize) -> f64,
    parameter: &mut Tensor<'_>,
    velocity: &mut Tensor<'_>,
    mut copy: Option<&mut Tensor<'_>>,
) {
    let learning_rate = f64::from(sgd.rate_factor) * scalars.get(0);
    let (momentum, weight_decay) = (f64::from(sgd.momentum), f64::from(sgd.weight_decay));
    for position in 0..parameter.len() {
        let decayed = gradient(position) + weight_decay * parameter.get(position);
        let speed = momentum * velocity.get(position) + decayed;
        velocity.set(position, speed);
        let step = if sgd.nesterov { decayed + momentum * speed } else { speed };
        parameter.set(position, parameter.get(position) - learning_rate * step);
        if let Some(copy) = &mut copy {
            // From the stored parameter, so that a refresh gives the same bits.
            copy.set(position, parameter.get(position));
        }
    }
}
