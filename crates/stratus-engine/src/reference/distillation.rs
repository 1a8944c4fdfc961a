//! The loss of a network that learns from a teacher.

use super::count_labels::divisor;
use super::loss_scale::read;
use super::target_loss::{sigmoid, softplus};
use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::DType;
use crate::ops::{DistillationFunction, DistillationLoss};

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
        if self.function != DistillationFunction::Softmax {
            let counts = self.partial.then(|| &inputs[at_counts]);
            self.by_output([logits, teacher, labels], counts, scale, metrics, gradient);
            return Ok(());
        }
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

impl DistillationLoss {
    /// The functions that compare each output on its own. A label is a number for each.
    fn by_output(
        &self,
        [outputs, teacher, labels]: [&Tensor<'_>; 3],
        label_counts: Option<&Tensor<'_>>,
        scale: f64,
        metrics: &mut Tensor<'_>,
        gradient: &mut Tensor<'_>,
    ) {
        let is_counted = |position: &usize| match labels.dtype() {
            DType::F32 => !labels.get(*position).is_nan(),
            _ => labels.get(*position) >= 0.0,
        };
        let counted = || (0..labels.len()).filter(is_counted).count() as f64;
        let divisor = label_counts.map_or_else(counted, |counts| divisor(counts, None));
        if divisor == 0.0 {
            return;
        }
        let (weight, temperature) = (f64::from(self.weight), f64::from(self.temperature));
        let mut loss = 0.0;
        for position in (0..labels.len()).filter(is_counted) {
            let (z, t) = (outputs.get(position), teacher.get(position));
            let (term, slope) = match self.function {
                DistillationFunction::SquaredError => ((z - t) * (z - t), 2.0 * (z - t)),
                _ => {
                    let (z, t) = (z / temperature, t / temperature);
                    // 0 · ∞ counts as 0.
                    let part = |p: f64, log: f64| if p == 0.0 { 0.0 } else { p * log };
                    let divergence = part(sigmoid(t), softplus(-z) - softplus(-t))
                        + part(sigmoid(-t), softplus(z) - softplus(t));
                    (temperature * temperature * divergence, temperature * (sigmoid(z) - sigmoid(t)))
                }
            };
            loss += term;
            gradient.set(position, gradient.get(position) + scale * weight * slope / divisor);
        }
        metrics.set(0, metrics.get(0) + weight * loss / divisor);
    }
}

/// The logarithms of the softmax of `classes` values.
fn log_softmax(value: impl Fn(usize) -> f64, classes: usize) -> Vec<f64> {
    let largest = (0..classes).map(&value).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = (0..classes).map(|class| (value(class) - largest).exp()).sum();
    (0..classes).map(|class| value(class) - largest - sum.ln()).collect()
}
