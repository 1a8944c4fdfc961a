//! Optimisers with a rate per weight: Adam and AdamW, Adagrad, Adadelta. Memory-bound: parameter, states and
//! gradient are read once, parameter and states written once.

use super::elementwise::{CpuContext, MAX_STATES, convert};
use super::simd::{Bf16, multiversion};
use stratus_engine::ops::{Adaptive, AdaptiveUpdate};

/// The constants of an update.
#[derive(Clone, Copy, Debug)]
enum AdaptiveConstants {
    /// `p ← kept · p - step · m / (root · √v + epsilon)`, with `g ← g + decay · p`, `m ← old₀ m + new₀ g`, `v
    /// ← old₁ v + new₁ g²`.
    Adam {
        kept: f32,
        decay: f32,
        old: [f32; 2],
        new: [f32; 2],
        step: f32,
        root: f32,
        epsilon: f32,
    },
    Adagrad {
        decay: f32,
        step: f32,
        epsilon: f32,
    },
    Adadelta {
        decay: f32,
        step: f32,
        old: f32,
        new: f32,
        epsilon: f32,
    },
}

impl AdaptiveConstants {
    /// The constants of an update; `scalars` is [`stratus_engine::ops::ITERATION_SCALAR_FIELDS`].
    fn from_scalars(update: AdaptiveUpdate, scalars: &[f64]) -> Self {
        let number = |position: usize| scalars.get(position).copied().unwrap_or(0.0);
        let (rate, iteration, decay) = (update.rate_factor * number(0), number(1), update.weight_decay);
        match update.rule {
            Adaptive::Adam { betas, epsilon, decoupled } => {
                let corrections = Adaptive::corrections(betas, iteration);
                Self::Adam {
                    kept: if decoupled { (1.0 - rate * decay) as f32 } else { 1.0 },
                    decay: if decoupled { 0.0 } else { decay as f32 },
                    old: betas.map(|beta| beta as f32),
                    new: betas.map(|beta| (1.0 - beta) as f32),
                    step: (rate / corrections[0]) as f32,
                    root: (1.0 / corrections[1].sqrt()) as f32,
                    epsilon: epsilon as f32,
                }
            }
            Adaptive::Adagrad { epsilon } => {
                Self::Adagrad { decay: decay as f32, step: rate as f32, epsilon: epsilon as f32 }
            }
            Adaptive::Adadelta { rho, epsilon } => Self::Adadelta {
                decay: decay as f32,
                step: rate as f32,
                old: rho as f32,
                new: (1.0 - rho) as f32,
                epsilon: epsilon as f32,
            },
        }
    }
}

impl CpuContext {
    /// See [`AdaptiveUpdate`]; `scalars` is [`stratus_engine::ops::ITERATION_SCALAR_FIELDS`]. States that the
    /// rule does not have are empty; `copy` may be empty.
    pub fn adaptive(
        &self,
        update: AdaptiveUpdate,
        scalars: &[f64],
        gradient: &[f32],
        parameter: &mut [f32],
        states: [&mut [f32]; MAX_STATES],
        copy: &mut [Bf16],
    ) {
        let rates = AdaptiveConstants::from_scalars(update, scalars);
        self.for_parameter_ranges(parameter, states, copy, &|range, (parameter, [first, second], copy)| {
            let gradient = &gradient[range];
            match rates {
                AdaptiveConstants::Adam { .. } => adam(self.level, rates, gradient, parameter, first, second),
                AdaptiveConstants::Adagrad { .. } => adagrad(self.level, rates, gradient, parameter, first),
                AdaptiveConstants::Adadelta { .. } => {
                    adadelta(self.level, rates, gradient, parameter, first, second);
                }
            }
            convert(self.level, parameter, copy);
        });
    }
}

multiversion! {
    fn adam / adam_body [] [] (
        rates: AdaptiveConstants,
        gradient: &[f32],
        parameter: &mut [f32],
        mean: &mut [f32],
        square: &mut [f32],
    )
}

#[inline(always)]
fn adam_body(
    rates: AdaptiveConstants,
    gradient: &[f32],
    parameter: &mut [f32],
    mean: &mut [f32],
    square: &mut [f32],
) {
    let AdaptiveConstants::Adam { kept, decay, old, new, step, root, epsilon } = rates else { return };
    for (((p, m), v), g) in parameter.iter_mut().zip(mean).zip(square).zip(gradient) {
        let g = p.mul_add(decay, *g);
        *m = m.mul_add(old[0], new[0] * g);
        *v = v.mul_add(old[1], new[1] * g * g);
        *p = p.mul_add(kept, -step * *m / v.sqrt().mul_add(root, epsilon));
    }
}

multiversion! {
    fn adagrad / adagrad_body [] [] (
        rates: AdaptiveConstants, gradient: &[f32], parameter: &mut [f32], sum: &mut [f32],
    )
}

#[inline(always)]
fn adagrad_body(rates: AdaptiveConstants, gradient: &[f32], parameter: &mut [f32], sum: &mut [f32]) {
    let AdaptiveConstants::Adagrad { decay, step, epsilon } = rates else { return };
    for ((p, s), g) in parameter.iter_mut().zip(sum).zip(gradient) {
        let g = p.mul_add(decay, *g);
        *s = g.mul_add(g, *s);
        *p -= step * g / (s.sqrt() + epsilon);
    }
}

multiversion! {
    fn adadelta / adadelta_body [] [] (
        rates: AdaptiveConstants,
        gradient: &[f32],
        parameter: &mut [f32],
        square: &mut [f32],
        delta: &mut [f32],
    )
}

#[inline(always)]
fn adadelta_body(
    rates: AdaptiveConstants,
    gradient: &[f32],
    parameter: &mut [f32],
    square: &mut [f32],
    delta: &mut [f32],
) {
    let AdaptiveConstants::Adadelta { decay, step, old, new, epsilon } = rates else { return };
    for (((p, s), d), g) in parameter.iter_mut().zip(square).zip(delta).zip(gradient) {
        let g = p.mul_add(decay, *g);
        *s = s.mul_add(old, new * g * g);
        let change = ((*d + epsilon) / (*s + epsilon)).sqrt() * g;
        *d = d.mul_add(old, new * change * change);
        *p -= step * change;
    }
}
