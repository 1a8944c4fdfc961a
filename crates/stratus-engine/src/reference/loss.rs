//! Softmax and cross-entropy.

use super::count_labels::divisor;
use super::loss_scale::read;
use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{FULL_SHARE, MIXED_LABEL_LEN, SoftmaxCrossEntropy};

impl ReferenceKernel for SoftmaxCrossEntropy {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let [logits, labels, rest @ ..] = operands else { return Err(unexpected_operands()) };
        let Some((class_weights, rest)) = rest.split_at_mut_checked(usize::from(self.class_weighted)) else {
            return Err(unexpected_operands());
        };
        let Some((scale, rest)) = rest.split_at_mut_checked(usize::from(self.loss_scaled)) else {
            return Err(unexpected_operands());
        };
        let Some((label_counts, rest)) = rest.split_at_mut_checked(usize::from(self.partial)) else {
            return Err(unexpected_operands());
        };
        let scale = scale.first().map_or(1.0, |scale| read(scale).scale);
        let (metrics, mut gradient) = match rest {
            [metrics] => (metrics, None),
            [metrics, gradient] => (metrics, Some(gradient)),
            _ => return Err(unexpected_operands()),
        };
        let [batch, classes, ..] = logits.image();
        let width = if self.mixed_labels { MIXED_LABEL_LEN } else { 1 };
        let class_weight = |class: usize| class_weights.first().map_or(1.0, |weights| weights.get(class));
        let counted = (0..batch).filter(|&n| labels.get(n * width) >= 0.0).count() as f64;
        let weight = f64::from(self.factor());
        // The number of samples, or the sum of their class weights.
        let divisor = if let [label_counts] = label_counts {
            divisor(label_counts, class_weights.first().filter(|_| !self.mixed_labels))
        } else if self.class_weighted && !self.mixed_labels {
            let known = |n: usize| (0.0..classes as f64).contains(&labels.get(n));
            (0..batch).filter(|&n| known(n)).map(|n| class_weight(labels.get(n) as usize)).sum()
        } else {
            counted
        };
        let factor = if divisor > 0.0 { weight / divisor } else { 0.0 };
        let smoothing = f64::from(self.smoothing);
        let (mut loss, mut top1, mut top5) = (0.0, 0.0, 0.0);
        for n in 0..batch {
            let logit = |class: usize| logits.get(n * classes + class);
            if labels.get(n * width) < 0.0 {
                if let Some(gradient) = &mut gradient {
                    (0..classes).for_each(|class| gradient.set(n * classes + class, 0.0));
                }
                continue;
            }
            let class_at = |position: usize| {
                let label = labels.get(n * width + position);
                if label >= 0.0 && (label as usize) < classes {
                    return Ok(label as usize);
                }
                Err(format!("sample {n}: label {label} is out of range for {classes} classes"))
            };
            let own_class = class_at(0)?;
            let (other_class, share) = if self.mixed_labels {
                (class_at(1)?, labels.get(n * width + 2) / f64::from(FULL_SHARE))
            } else {
                (own_class, 0.0)
            };
            if !(0.0..=1.0).contains(&share) {
                return Err(format!("sample {n}: mixing share {share} is not in [0, 1]"));
            }
            // The class that counts as a hit.
            let label = if share > 0.5 { other_class } else { own_class };
            // Shifted by the largest logit, so that no exponential overflows.
            let largest = (0..classes).map(logit).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = (0..classes).map(|class| (logit(class) - largest).exp()).sum();
            let target = |class: usize| {
                let share_if = |expected: usize, share: f64| if class == expected { share } else { 0.0 };
                let mixed = share_if(own_class, 1.0 - share) + share_if(other_class, share);
                class_weight(class) * ((1.0 - smoothing) * mixed + smoothing / classes as f64)
            };
            // `-log p` of each class; a share of 0 adds nothing: 0 · ∞ counts as 0.
            let log = sum.ln() + largest;
            let term = |class| if target(class) == 0.0 { 0.0 } else { target(class) * (log - logit(class)) };
            loss += (0..classes).map(term).sum::<f64>();
            // The number of classes ranked before the label; NaN is ranked last.
            let ahead =
                |class: usize| logit(label) > logit(class) || (logit(label) == logit(class) && label < class);
            let rank = (0..classes).filter(|&class| class != label && !ahead(class)).count();
            top1 += f64::from(u8::from(rank < 1));
            top5 += f64::from(u8::from(rank < 5));
            if let Some(gradient) = &mut gradient {
                let total: f64 = (0..classes).map(target).sum();
                for class in 0..classes {
                    let probability = (logit(class) - largest).exp() / sum;
                    let slope = total * probability - target(class);
                    let slope = if factor == 0.0 { 0.0 } else { scale * factor * slope };
                    gradient.set(n * classes + class, slope);
                }
            }
        }
        let mean = if factor == 0.0 { 0.0 } else { loss * factor };
        match self.auxiliary {
            Some(_) => metrics.set(0, metrics.get(0) + mean),
            None => {
                for (position, value) in [mean, counted, top1, top5].into_iter().enumerate() {
                    let before = if tile.starts_sums() { 0.0 } else { metrics.get(position) };
                    metrics.set(position, before + value);
                }
            }
        }
        Ok(())
    }
}
