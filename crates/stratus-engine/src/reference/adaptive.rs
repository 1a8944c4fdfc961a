//! Optimisers that give each weight a rate of its own.

use super::loss_scale::read;
use super::sgd::refresh;
use super::{Reference, Tensor, Tile, unexpected_operands};
use crate::ops::{Adaptive, AdaptiveUpdate};

/// Moves a mean towards a new value, of which its old one keeps a share; returns it.
fn blend(state: &mut Tensor<'_>, position: usize, share: f64, new: f64) -> f64 {
    let mixed = share * state.get(position) + (1.0 - share) * new;
    state.set(position, mixed);
    mixed
}

impl Reference for AdaptiveUpdate {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [gradient, hyper, rest @ ..] = operands else { return Err(unexpected_operands()) };
        let Some((scale, [parameter, rest @ ..])) = rest.split_at_mut_checked(usize::from(self.scaled))
        else {
            return Err(unexpected_operands());
        };
        let Some((states, copy)) = rest.split_at_mut_checked(self.rule.states().len()) else {
            return Err(unexpected_operands());
        };
        let scale = scale.first().map(read);
        if scale.is_some_and(|scale| scale.overflow) {
            refresh(parameter, copy.first_mut());
            return Ok(());
        }
        let (scale, skipped) = scale.map_or((1.0, 0.0), |scale| (scale.scale, scale.skipped));
        let (rate, iteration) = (self.rate * hyper.get(0), hyper.get(1) - skipped);
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
                // From the parameter as it is stored: a refresh must give the same bits.
                copy.set(position, parameter.get(position));
            }
        }
        Ok(())
    }
}
