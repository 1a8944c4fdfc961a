//! Softmax and cross-entropy of every pixel.

use super::count_labels::divisor;
use super::loss_scale::read;
use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::PixelCrossEntropy;

impl ReferenceKernel for PixelCrossEntropy {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let [_, at_scale, at_counts, at_metrics, ..] = self.positions();
        let Some((inputs, outputs)) = operands.split_at_mut_checked(at_metrics) else {
            return Err(unexpected_operands());
        };
        let [logits, labels, rest @ ..] = inputs else { return Err(unexpected_operands()) };
        let scale = if self.loss_scaled { read(&rest[at_scale - 2]).scale } else { 1.0 };
        let [n, channels, height, width] = logits.image();
        let classes = self.classes(channels);
        let weights: Vec<f64> =
            (0..classes).map(|class| if self.class_weighted { rest[0].get(class) } else { 1.0 }).collect();
        let all_weights: f64 = weights.iter().sum();
        let Some((metrics, outputs)) = outputs.split_first_mut() else { return Err(unexpected_operands()) };
        let (mut predictions, mut gradient) = match (self.predicts, outputs) {
            (true, [predictions, rest @ ..]) => (Some(predictions), rest.first_mut()),
            (false, rest) => (None, rest.first_mut()),
            _ => return Err(unexpected_operands()),
        };
        let pixels = height * width;
        let label = |pixel: usize| -> Result<Option<usize>, String> {
            let label = labels.get(pixel);
            if label >= classes as f64 {
                let (sample, row, column) = (pixel / pixels, pixel / width % height, pixel % width);
                return Err(format!(
                    "sample {sample}, pixel {row}, {column}: label {label} is out of range for {classes} \
                     classes"
                ));
            }
            Ok((label >= 0.0).then_some(label as usize))
        };
        let mut weight = 0.0;
        for pixel in 0..n * pixels {
            weight += label(pixel)?.map_or(0.0, |label| weights[label]);
        }
        let divisor = match self.partial {
            true => divisor(&rest[at_counts - 2], rest.first().filter(|_| self.class_weighted)),
            false => weight,
        };
        let factor = if divisor > 0.0 { f64::from(self.factor()) / divisor } else { 0.0 };
        let smoothing = f64::from(self.smoothing);
        let (mut loss, mut counted, mut right) = (0.0, 0.0, 0.0);
        for pixel in 0..n * pixels {
            // The position of a class's logit. Of a binary loss, class 0 has none: its logit is 0.
            let at = |class: usize| match (self.binary, class) {
                (true, 0) => None,
                (true, _) => Some(pixel),
                (false, _) => Some((pixel / pixels * classes + class) * pixels + pixel % pixels),
            };
            let row: Vec<f64> =
                (0..classes).map(|class| at(class).map_or(0.0, |at| logits.get(at))).collect();
            let mut best = (0, f64::NEG_INFINITY);
            for (class, &logit) in row.iter().enumerate() {
                if logit > best.1 {
                    best = (class, logit);
                }
            }
            if let Some(predictions) = &mut predictions {
                predictions.set(pixel, best.0 as f64);
            }
            let Some(label) = label(pixel)? else {
                if let Some(gradient) = &mut gradient {
                    (0..classes).filter_map(at).for_each(|at| gradient.set(at, 0.0));
                }
                continue;
            };
            counted += 1.0;
            right += f64::from(u8::from(best.0 == label && !row[label].is_nan()));
            let sum: f64 = row.iter().map(|logit| (logit - best.1).exp()).sum();
            // `-log p` of a class; a weight of 0 adds nothing: 0 · ∞ counts as 0.
            let term = |share: f64, class: usize| match share {
                0.0 => 0.0,
                _ => share * (sum.ln() + best.1 - row[class]),
            };
            loss += term((1.0 - smoothing) * weights[label], label);
            let base_share = smoothing / classes as f64;
            loss += (0..classes).map(|class| term(base_share * weights[class], class)).sum::<f64>();
            if let Some(gradient) = &mut gradient {
                let total = (1.0 - smoothing) * weights[label] + base_share * all_weights;
                for (class, logit) in row.iter().enumerate() {
                    let Some(at) = at(class) else { continue };
                    let label_share = if class == label { (1.0 - smoothing) * weights[label] } else { 0.0 };
                    let probability = (logit - best.1).exp() / sum;
                    let slope = total * probability - label_share - base_share * weights[class];
                    gradient.set(at, if factor == 0.0 { 0.0 } else { scale * factor * slope });
                }
            }
        }
        let mean = loss * factor;
        match self.auxiliary {
            Some(_) => metrics.set(0, metrics.get(0) + mean),
            None => {
                for (position, value) in [mean, counted, right, weight].into_iter().enumerate() {
                    let before = if tile.starts_sums() { 0.0 } else { metrics.get(position) };
                    metrics.set(position, before + value);
                }
            }
        }
        Ok(())
    }
}
