//! Label counts by class.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::DType;
use crate::ops::CountLabels;

impl ReferenceKernel for CountLabels {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [labels, counts] = operands else { return Err(unexpected_operands()) };
        let classes = counts.len();
        (0..classes).for_each(|class| counts.set(class, 0.0));
        if labels.dtype() == DType::F32 {
            for position in (0..labels.len()).filter(|&position| !labels.get(position).is_nan()) {
                let target = position % classes;
                counts.set(target, counts.get(target) + 1.0);
            }
            return Ok(());
        }
        for position in (0..labels.len()).step_by(self.stride()) {
            let label = labels.get(position);
            if (0.0..classes as f64).contains(&label) {
                counts.set(label as usize, counts.get(label as usize) + 1.0);
            }
        }
        Ok(())
    }
}

/// The divisor of a partial loss: the number of labels, or the sum of their classes' weights.
pub(super) fn divisor(label_counts: &Tensor<'_>, class_weights: Option<&Tensor<'_>>) -> f64 {
    let weight = |class| class_weights.map_or(1.0, |weights| weights.get(class));
    (0..label_counts.len()).map(|class| weight(class) * label_counts.get(class)).sum()
}
