//! Losses of several targets per sample.

use super::count_labels::divisor;
use super::loss_scale::read;
use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{TargetFunction, TargetLoss};

impl ReferenceKernel for TargetLoss {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let [at_weights, at_scale, at_counts, at_metrics, _] = self.positions();
        let Some((inputs, results)) = operands.split_at_mut_checked(at_metrics) else {
            return Err(unexpected_operands());
        };
        let [outputs, targets, ..] = &*inputs else { return Err(unexpected_operands()) };
        let (metrics, mut gradient) = match results {
            [metrics] => (metrics, None),
            [metrics, gradient] => (metrics, Some(gradient)),
            _ => return Err(unexpected_operands()),
        };
        let [batch, columns, ..] = outputs.image();
        let is_present = |position: &usize| !targets.get(*position).is_nan();
        let present = (0..batch * columns).filter(is_present).count() as f64;
        let divisor = if self.partial { divisor(&inputs[at_counts], None) } else { present };
        let scale = if self.loss_scaled { read(&inputs[at_scale]).scale } else { 1.0 };
        let factor = if divisor > 0.0 { f64::from(self.factor()) / divisor } else { 0.0 };
        let (mut loss, mut score, mut samples) = (0.0, 0.0, 0.0);
        for n in 0..batch {
            let row = n * columns..(n + 1) * columns;
            samples += f64::from(u8::from(row.clone().any(|position| is_present(&position))));
            for (target, position) in row.enumerate() {
                let (z, y) = (outputs.get(position), targets.get(position));
                if y.is_nan() {
                    if let Some(gradient) = &mut gradient {
                        gradient.set(position, 0.0);
                    }
                    continue;
                }
                if self.function.uses_labels() && !(0.0..=1.0).contains(&y) {
                    let y = y as f32;
                    return Err(format!("sample {n}: label {target} is {y}, which is not in [0, 1]"));
                }
                let [w, p] = match self.class_weighted {
                    true => [0, columns].map(|row| inputs[at_weights].get(row + target)),
                    false => [1.0, 1.0],
                };
                let (term, slope) = match self.function {
                    TargetFunction::BinaryCrossEntropy => {
                        let smoothing = f64::from(self.smoothing);
                        binary_cross_entropy(z, (1.0 - smoothing) * y + smoothing / 2.0, [w, p])
                    }
                    _ if w == 0.0 => (0.0, 0.0),
                    TargetFunction::SquaredError => (w * (z - y) * (z - y), 2.0 * w * (z - y)),
                    TargetFunction::Huber => huber(z - y, w),
                };
                loss += term;
                score += match self.function.uses_labels() {
                    true => f64::from(u8::from((z > 0.0) == (y > 0.5) && !z.is_nan())),
                    false => 1.0 - (z - y) * (z - y),
                };
                if let Some(gradient) = &mut gradient {
                    gradient.set(position, if factor == 0.0 { 0.0 } else { scale * factor * slope });
                }
            }
        }
        let mean = if factor == 0.0 { 0.0 } else { loss * factor };
        match self.auxiliary {
            Some(_) => metrics.set(0, metrics.get(0) + mean),
            None => {
                for (position, value) in [mean, present, score, samples].into_iter().enumerate() {
                    let before = if tile.starts_sums() { 0.0 } else { metrics.get(position) };
                    metrics.set(position, before + value);
                }
            }
        }
        Ok(())
    }
}

/// The loss of a logit and its derivative. A term whose factor is 0 is 0: 0 · ∞ counts as 0.
fn binary_cross_entropy(z: f64, y: f64, [w, p]: [f64; 2]) -> (f64, f64) {
    let (yes, no) = (w * p * y, w * (1.0 - y));
    let term = |share: f64, value: f64| if share == 0.0 { 0.0 } else { share * value };
    (term(yes, softplus(-z)) + term(no, softplus(z)), term(no, sigmoid(z)) - term(yes, sigmoid(-z)))
}

/// The Huber loss of a difference and its derivative, both multiplied by a weight.
fn huber(difference: f64, weight: f64) -> (f64, f64) {
    if difference.abs() < 1.0 {
        return (weight * 0.5 * difference * difference, weight * difference);
    }
    (weight * (difference.abs() - 0.5), weight * difference.signum())
}

/// `log(1 + exp(x))` at any size of `x`.
pub(super) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `1 / (1 + exp(-x))` at any size of `x`.
pub(super) fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}
