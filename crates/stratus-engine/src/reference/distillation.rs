//! The loss of a network that learns from a teacher.

use super::count_labels::divisor;
use super::loss_scale::read;
use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::DistillationLoss;

impl ReferenceKernel for DistillationLoss {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [at_scale, at_counts, at_metrics, _] = self.positions();
        let Some((inputs, updates)) = operands.split_at_mut_checked(at_metrics) else {
            return Err(unexpected_operands());
        };
        let ([logits, teacher, labels, ..], [metrics, gradient]) = (&*inputs, updates) else {
            return Err(unexpected_operands());
        };
        let scale = if self.loss_scaled { read(&inputs[at_scale]).scale } else { 1.0 };
        let [n, classes, height, width] = logits.image();
        let (pixels, stride) = (height * width, self.label_stride());
        let is_labelled = |pixel: &usize| labels.get(pixel * stride) >= 0.0;
        let divisor = match self.partial {
            true => divisor(&inputs[at_counts], None),
            false => (0..n * pixels).filter(is_labelled).count() as f64,
        };
        if divisor == 0.0 {
            return Ok(());
        }
        let (weight, temperature) = (f64::from(self.weight), f64::from(self.temperature));
        let mut loss = 0.0;
        for pixel in (0..n * pixels).filter(is_labelled) {
            let at = |class: usize| (pixel / pixels * classes + class) * pixels + pixel % pixels;
            let logarithms =
                |map: &Tensor<'_>| log_softmax(|class| map.get(at(class)) / temperature, classes);
            let (student, teacher) = (logarithms(logits), logarithms(teacher));
            for (class, (log_q, log_p)) in student.iter().zip(&teacher).enumerate() {
                let (p, q) = (log_p.exp(), log_q.exp());
                // 0 · ∞ counts as 0.
                loss += if p == 0.0 { 0.0 } else { p * (log_p - log_q) };
                let slope = scale * weight * temperature * (q - p) / divisor;
                gradient.set(at(class), gradient.get(at(class)) + slope);
            }
        }
        metrics.set(0, metrics.get(0) + weight * temperature * temperature * loss / divisor);
        Ok(())
    }
}

/// The logarithms of the softmax of `classes` values.
fn log_softmax(value: impl Fn(usize) -> f64, classes: usize) -> Vec<f64> {
    let largest = (0..classes).map(&value).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = (0..classes).map(|class| (value(class) - largest).exp()).sum();
    (0..classes).map(|class| value(class) - largest - sum.ln()).collect()
}
