//! Optimisers with adaptive learning rates.

use super::loss_scale::read;
use super::sgd::write_copy;
use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{Adaptive, AdaptiveUpdate};

/// Updates a running mean with decay `share`; returns it.
fn blend(state: &mut Tensor<'_>, position: usize, share: f64, new: f64) -> f64 {
    let mixed = share * state.get(position) + (1.0 - share) * new;
    state.set(position, mixed);
    mixed
}

impl ReferenceKernel for AdaptiveUpdate {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [gradient, scalars, rest @ ..] = operands else { return Err(unexpected_operands()) };
        let Some((scale, [parameter, rest @ ..])) = rest.split_at_mut_checked(usize::from(self.loss_scaled))
        else {
            return Err(unexpected_operands());
        };
        let Some((states, copy)) = rest.split_at_mut_checked(self.rule.states().len()) else {
            return Err(unexpected_operands());
        };
        let scale = scale.first().map(read);
        if scale.is_some_and(|scale| scale.overflow) {
            write_copy(parameter, copy.first_mut());
            return Ok(());
        }
        let (scale, skipped) = scale.map_or((1.0, 0.0), |scale| (scale.scale, scale.skipped));
        let (rate, iteration) = (self.rate_factor * scalars.get(0), scalars.get(1) - skipped);
        for position in 0..parameter.len() {
            let mut value = parameter.get(position);
            let mut g = gradient.get(position) / scale;
            let decayed = g + self.weight_decay * value;
            match self.rule {
                Adaptive::Adam { betas, epsilon, decoupled } => {
                    if decoupled {
                        value -= rate * self.weight_decay * value;
                    } else {
                        g = decayed;
                    }
                    let corrections = Adaptive::corrections(betas, iteration);
                    let mean = blend(&mut states[0], position, betas[0], g);
                    let square = blend(&mut states[1], position, betas[1], g * g);
                    value -= rate / corrections[0] * mean / ((square / corrections[1]).sqrt() + epsilon);
                }
                Adaptive::Adagrad { epsilon } => {
                    let sum = states[0].get(position) + decayed * decayed;
                    states[0].set(position, sum);
                    value -= rate * decayed / (sum.sqrt() + epsilon);
                }
                Adaptive::Adadelta { rho, epsilon } => {
                    let square = blend(&mut states[0], position, rho, decayed * decayed);
                    let before = states[1].get(position);
                    let delta = (before + epsilon).sqrt() / (square + epsilon).sqrt() * decayed;
                    blend(&mut states[1], position, rho, delta * delta);
                    value -= rate * delta;
                }
            }
            parameter.set(position, value);
            for copy in &mut *copy {
                // From the stored parameter, so that a refresh gives the same bits.
                copy.set(position, parameter.get(position));
            }
        }
        Ok(())
    }
}
